package fault

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/integration/process"
)

func (r *row) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// until waits for what may take as long as all patience.
func (s *scene) until(what string, check func() error) {
	s.t.Helper()
	s.must(s.k.Cluster.Await(2*process.Patience, what, check))
}

// address is where a namenode is asked.
func (s *scene) address(name string) string {
	for _, n := range s.k.File().Namenodes {
		if n.ID == name {
			return n.IPC
		}
	}
	s.t.Fatalf("there is no namenode %s", name)
	return ""
}

// answers is an error as long as a namenode does not answer.
func (s *scene) answers(address string) error {
	for _, st := range s.fs.HAState(timeout(s.t, process.Patience/2)) {
		if st.Address == address {
			return st.Err
		}
	}
	return errors.New("not among the namenodes")
}

// checkpoint has the leader write a checkpoint.
func (s *scene) checkpoint() {
	s.t.Helper()
	h := s.k.Hops()
	h.OK("dfsadmin", "-safemode", "enter")
	h.OK("dfsadmin", "-saveNamespace")
	h.OK("dfsadmin", "-safemode", "leave")
}

// files are all files below a directory that have something in them, but for those that only a lock is.
func (s *scene) files(dir string) []string {
	s.t.Helper()
	var found []string
	s.must(filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err == nil && info.Size() > 0 && !strings.EqualFold(d.Name(), "lock") {
			found = append(found, name)
		}
		return nil
	}))
	slices.Sort(found)
	return found
}

// journal is the file of a namenode's log that was written last.
func (s *scene) journal(name string) string {
	s.t.Helper()
	newest, at := "", time.Time{}
	for _, f := range s.files(filepath.Join(filepath.Dir(s.k.Log(name)), name)) {
		if !strings.Contains(f, string(filepath.Separator)+"log"+string(filepath.Separator)) {
			continue
		}
		if info, err := os.Stat(f); err == nil && info.ModTime().After(at) {
			newest, at = f, info.ModTime()
		}
	}
	if newest == "" {
		s.t.Fatalf("%s has no log among %v", name, s.files(filepath.Join(filepath.Dir(s.k.Log(name)), name)))
	}
	return newest
}

// tear makes the last bytes of a file, which zeros may follow, zeros.
func (s *scene) tear(file string, n int) string {
	s.t.Helper()
	data, err := os.ReadFile(file)
	s.must(err)
	end := len(bytes.TrimRight(data, "\x00"))
	from := max(0, end-n)
	clear(data[from:end])
	s.must(os.WriteFile(file, data, 0o600))
	return fmt.Sprintf("bytes %d to %d of %s are zero", from, end, filepath.Base(file))
}

// flip changes single bits at random places of files, and says where.
func (s *scene) flip(files []string, bits int) string {
	s.t.Helper()
	var said []string
	for range bits {
		name := files[s.random.IntN(len(files))]
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		s.must(err)
		info, err := f.Stat()
		s.must(err)
		if info.Size() == 0 {
			f.Close()
			continue
		}
		at := s.random.Int64N(info.Size())
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		s.must(err)
		b[0] ^= 1 << s.random.IntN(8)
		_, err = f.WriteAt(b[:], at)
		s.must(errors.Join(err, f.Close()))
		said = append(said, fmt.Sprintf("%s at %d", filepath.Base(name), at))
	}
	return strings.Join(said, ", ")
}

// mount puts a filesystem of so many bytes at a directory, until the test ends.
func (r *row) mount(dir string, size int64) {
	r.t.Helper()
	if os.Geteuid() != 0 {
		r.skip("small disks need root")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := unix.Mount("fault", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		r.skip("a small disk cannot be mounted: " + err.Error())
	}
	r.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// fill writes to a disk until it has no more than some bytes; the returned function gives the room back.
func (s *scene) fill(dir string, rest int64) (empty func()) {
	s.t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	s.must(err)
	defer f.Close()
	for {
		var st unix.Statfs_t
		s.must(unix.Statfs(dir, &st))
		free := int64(st.Bavail) * st.Bsize
		if free <= rest {
			break
		}
		if _, err := f.Write(make([]byte, min(free-rest, 1<<20))); err != nil {
			break
		}
	}
	return func() { s.must(os.Remove(name)) }
}
