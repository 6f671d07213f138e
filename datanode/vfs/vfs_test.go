package vfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What the block store relies on holds for every implementation.
func TestContract(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"os": vfs.OS, "mem": mem.New(1 << 20), "faulty": faulty.New(mem.New(1 << 20))} {
		t.Run(name, func(t *testing.T) {
			root := "/"
			if name == "os" {
				root = t.TempDir()
			}
			dir := filepath.Join(root, "d")
			check(t, fsys.Mkdir(dir, 0o700))
			if err := fsys.Mkdir(dir, 0o700); !errors.Is(err, fs.ErrExist) {
				t.Errorf("second mkdir: %v", err)
			}
			a := filepath.Join(dir, "a")
			if _, err := fsys.OpenFile(a, os.O_RDWR, 0); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("open of nothing: %v", err)
			}
			f, err := fsys.OpenFile(a, os.O_RDWR|os.O_CREATE, 0o600)
			check(t, err)
			_, err = f.WriteAt([]byte("hello"), 3)
			check(t, err)
			p := make([]byte, 10)
			n, err := f.ReadAt(p, 0)
			if n != 8 || !errors.Is(err, io.EOF) || !bytes.Equal(p[:8], []byte("\x00\x00\x00hello")) {
				t.Errorf("read %q, %v", p[:n], err)
			}
			f.Allocate(0, 1<<16)
			check(t, f.WriteAllAt([][]byte{[]byte("abc"), {}, []byte("de")}, 6))
			if n, err := f.ReadAt(p, 2); n != 9 || !errors.Is(err, io.EOF) || !bytes.Equal(p[:9], []byte("\x00helabcde")) {
				t.Errorf("read %q, %v", p[:n], err)
			}
			check(t, f.WriteAllAt(nil, 0))
			many := make([][]byte, 3000) // more than the kernel takes at once
			for i := range many {
				many[i] = []byte{byte(i), byte(i >> 8)}
			}
			check(t, f.WriteAllAt(many, 11))
			if size, err := f.Size(); size != 11+6000 || err != nil {
				t.Errorf("size %d, %v", size, err)
			}
			if _, err := f.ReadAt(p[:2], 11+2*2999); err != nil || p[0] != 2999&0xff || p[1] != 2999>>8 {
				t.Errorf("the last piece is %v, %v", p[:2], err)
			}
			check(t, f.Truncate(4))
			if size, err := f.Size(); size != 4 || err != nil {
				t.Errorf("size %d, %v", size, err)
			}
			f.Writeback(0, 4)
			check(t, f.Sync())
			b := filepath.Join(dir, "b")
			check(t, fsys.Rename(a, b))
			check(t, fsys.SyncDir(dir))
			if entries, err := fsys.ReadDir(dir); err != nil || len(entries) != 1 || entries[0] != (vfs.Entry{Name: "b"}) {
				t.Errorf("entries %v, %v", entries, err)
			}
			check(t, fsys.Remove(b))
			if n, err := f.ReadAt(p[:4], 0); n != 4 || err != nil {
				t.Errorf("an open file that was removed reads %d, %v", n, err)
			}
			check(t, f.Close())
			if err := fsys.Remove(b); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("remove of nothing: %v", err)
			}
			if _, err := fsys.Stat(b); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("stat of nothing: %v", err)
			}
			if i, err := fsys.Stat(dir); err != nil || !i.Dir {
				t.Errorf("stat of a directory: %+v, %v", i, err)
			}
			lock := filepath.Join(dir, "lock")
			l, err := fsys.Lock(lock)
			check(t, err)
			if _, err := fsys.Lock(lock); !errors.Is(err, vfs.ErrLocked) {
				t.Errorf("second lock: %v", err)
			}
			check(t, l.Close())
			l, err = fsys.Lock(lock)
			check(t, err)
			check(t, l.Close())
			if u, err := fsys.Usage(dir); err != nil || u.Free <= 0 || u.Free > u.Total {
				t.Errorf("usage %+v, %v", u, err)
			}
		})
	}
}

func TestCrashKeepsWhatWasSynced(t *testing.T) {
	m := mem.New(1 << 20)
	write := func(name, text string, off int64) vfs.File {
		f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE, 0)
		check(t, err)
		_, err = f.WriteAt([]byte(text), off)
		check(t, err)
		return f
	}
	f := write("/a", "old", 0)
	check(t, f.Sync())
	check(t, m.SyncDir("/"))
	write("/a", "new", 0)
	write("/b", "unsynced name", 0)
	check(t, m.Rename("/a", "/c"))
	read := func(m *mem.FS, name string) string {
		f, err := m.OpenFile(name, os.O_RDONLY, 0)
		if err != nil {
			return "nothing"
		}
		p := make([]byte, 20)
		n, _ := f.ReadAt(p, 0)
		return string(p[:n])
	}
	r := rand.New(rand.NewPCG(1, 1))
	none, all := m.Crash(r, 0), m.Crash(r, 1)
	if a, b, c := read(none, "/a"), read(none, "/b"), read(none, "/c"); a != "old" || b != "nothing" || c != "nothing" {
		t.Errorf("with nothing unsynced: a=%q b=%q c=%q", a, b, c)
	}
	if a, b, c := read(all, "/a"), read(all, "/b"), read(all, "/c"); a != "nothing" || b != "unsynced name" || c != "new" {
		t.Errorf("with everything: a=%q b=%q c=%q", a, b, c)
	}
	seen := map[string]bool{}
	for range 200 {
		c := m.Crash(r, 0.5)
		a, moved := read(c, "/a"), read(c, "/c")
		if (a == "nothing") == (moved == "nothing") {
			t.Fatalf("a rename was torn: a=%q c=%q", a, moved)
		}
		seen[a+moved] = true
	}
	if len(seen) != 4 {
		t.Errorf("crashes differ in %v only", seen)
	}
	if read(m, "/c") != "new" {
		t.Error("the original was harmed")
	}
}

func TestFullDisk(t *testing.T) {
	m := mem.New(10)
	f, err := m.OpenFile("/a", os.O_RDWR|os.O_CREATE, 0)
	check(t, err)
	if _, err := f.WriteAt(make([]byte, 11), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write beyond the end of the disk: %v", err)
	}
	_, err = f.WriteAt(make([]byte, 10), 0)
	check(t, err)
	check(t, m.Remove("/a"))
	if u, _ := m.Usage("/"); u.Free != 10 {
		t.Errorf("%d bytes free after removing all", u.Free)
	}
}

func TestNthCallFails(t *testing.T) {
	f := faulty.New(mem.New(1 << 10))
	f.Set(faulty.Nth(2, "open", "x", false, syscall.EIO))
	for i, name := range []string{"/x1", "/y", "/x2", "/x3"} {
		_, err := f.OpenFile(name, os.O_CREATE, 0)
		if (err != nil) != (i == 2) {
			t.Errorf("open of %s: %v", name, err)
		}
		if i == 2 && !errors.Is(err, syscall.EIO) {
			t.Errorf("error is %v", err)
		}
	}
}

// Every change of a directory or a file gives it another stamp, once the clock of the file system has gone on.
func TestStamps(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"os": vfs.OS, "mem": mem.New(1 << 20), "faulty": faulty.New(mem.New(1 << 20))} {
		t.Run(name, func(t *testing.T) {
			root := "/"
			if name == "os" {
				root = t.TempDir()
			}
			dir, clock := filepath.Join(root, "d"), filepath.Join(root, "clock")
			a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
			check(t, fsys.Mkdir(dir, 0o700))
			stamp := func(name string) vfs.Stamp {
				info, err := fsys.Stat(name)
				check(t, err)
				return info.Stamp
			}
			if stamp(dir).None() {
				t.Skip("stamps are not told here")
			}
			pass := func(name string) { // until the clock is behind what is there
				for then := stamp(name).Latest(); ; {
					f, err := fsys.OpenFile(clock, os.O_RDWR|os.O_CREATE, 0o600)
					check(t, errors.Join(err, f.Close()))
					now := stamp(clock).Latest()
					check(t, fsys.Remove(clock))
					if now > then {
						return
					}
				}
			}
			var f vfs.File
			for _, c := range []struct {
				what, of string
				change   func() error
			}{
				{"create", dir, func() (err error) { f, err = fsys.OpenFile(a, os.O_RDWR|os.O_CREATE, 0o600); return err }},
				{"write", a, func() error { _, err := f.WriteAt(make([]byte, 8192), 0); return err }},
				{"overwrite", a, func() error { _, err := f.WriteAt([]byte{1}, 0); return err }},
				{"hole", a, func() error { return f.Punch(4096, 4096) }},
				{"cut", a, func() error { return f.Truncate(100) }},
				{"rename", dir, func() error { return fsys.Rename(a, b) }},
				{"remove", dir, func() error { return fsys.Remove(b) }},
				{"mkdir", dir, func() error { return fsys.Mkdir(a, 0o700) }},
			} {
				pass(c.of)
				before := stamp(c.of)
				check(t, c.change())
				if after := stamp(c.of); after == before || after.Inode != before.Inode {
					t.Errorf("%s: %v after %v", c.what, after, before)
				}
			}
			check(t, f.Close())
			before := stamp(dir)
			check(t, fsys.SyncDir(dir))
			_, err := fsys.ReadDir(dir)
			check(t, err)
			if after := stamp(dir); after != before {
				t.Errorf("a look: %v after %v", after, before)
			}
		})
	}
}

// After a crash a directory has the stamp of what is in it.
func TestStampsAfterACrash(t *testing.T) {
	m := mem.New(1 << 20)
	now := time.Unix(1000, 0)
	m.SetClock(func() time.Time { now = now.Add(time.Second); return now })
	check(t, m.Mkdir("/d", 0o700))
	check(t, m.SyncDir("/"))
	stamps := map[vfs.Stamp]int{}
	for i := range 20 {
		f, err := m.OpenFile(filepath.Join("/d", string(rune('a'+i))), os.O_RDWR|os.O_CREATE, 0o600)
		check(t, errors.Join(err, f.Close()))
		info, err := m.Stat("/d")
		check(t, err)
		stamps[info.Stamp] = i + 1
		if i == 9 {
			check(t, m.SyncDir("/d"))
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		c := m.Crash(r, 0.7)
		entries, err := c.ReadDir("/d")
		check(t, err)
		info, err := c.Stat("/d")
		check(t, err)
		if len(entries) < 10 || stamps[info.Stamp] != len(entries) {
			t.Fatalf("%d entries with the stamp of %d", len(entries), stamps[info.Stamp])
		}
	}
}
