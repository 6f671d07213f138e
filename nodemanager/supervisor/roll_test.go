package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

// punches skips a test where the filesystem of temporary files knows no holes: containers end there as before.
func punches(t *testing.T) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<19)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		t.Skip("no holes here:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAProgramThatPrintsWithoutEndKeepsTheEnd: whoever holds the file open and however, the disk has little of it, the program goes on, and
// the end is complete.
func TestAProgramThatPrintsWithoutEndKeepsTheEnd(t *testing.T) {
	punches(t)
	const lines = 500_000 // 3.4 MB, seven times what the container may have without rolling
	for name, script := range map[string]string{
		"the command":            fmt.Sprintf("seq %d", lines),
		"appending by name":      fmt.Sprintf("exec >/dev/null; seq %d >> ../logs/stdout", lines),
		"not appending":          fmt.Sprintf("exec >/dev/null; seq %d > ../logs/stdout", lines),
		"an orphan that goes on": fmt.Sprintf(`(setsid sh -c 'seq %d; touch over' &); while [ ! -e over ]; do sleep 0.01; done`, lines),
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, "sh", "-c", script)
			c.launch.LogLimit, c.launch.Rolled, c.launch.LogKeep = 512<<10, []string{"stdout", "stderr"}, 64<<10
			c.start()
			if e := c.end(); e.Status != nodemanager.Success {
				t.Fatalf("%+v", e)
			}
			text, err := os.ReadFile(c.launch.Stdout)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(c.launch.Stdout)
			if err != nil {
				t.Fatal(err)
			}
			if have := info.Sys().(*syscall.Stat_t).Blocks * 512; have > 160<<10 {
				t.Errorf("%d bytes on the disk of %d", have, len(text))
			}
			var want strings.Builder
			for i := 1; i <= lines; i++ {
				fmt.Fprintln(&want, i)
			}
			head, _, _ := bytes.Cut(text, []byte{0})
			kept := bytes.TrimLeft(text[len(head):], "\x00")
			if len(text) != want.Len() || len(head) < 4096 || !strings.HasPrefix(want.String(), string(head)) || len(kept) < 64<<10 || !strings.HasSuffix(want.String(), string(kept)) {
				t.Errorf("%d bytes of %d, %d are kept, the last are %q", len(text), want.Len(), len(kept), kept[max(0, len(kept)-20):])
			}
		})
	}
}

// TestWhatIsPreallocatedIsCutAndCounts: a program that lengthens a rolled file by fallocate takes no room of the disk with it that nobody
// counts.
func TestWhatIsPreallocatedIsCutAndCounts(t *testing.T) {
	punches(t)
	const keep, long = 64 << 10, 8 << 20
	for name, at := range map[string]int64{"no data in it": -1, "data that is cut": long / 2, "data at its end": long - 100} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			f, err := os.Create(filepath.Join(dir, "stdout"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := unix.Fallocate(int(f.Fd()), 0, 0, long); err != nil {
				t.Skip("nothing is preallocated here:", err)
			}
			if at >= 0 {
				if _, err := f.WriteAt([]byte("a line\n"), at); err != nil {
					t.Fatal(err)
				}
			}
			before, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if onDisk(before) < long {
				t.Skip("preallocated blocks do not count here")
			}
			s := &supervisor{launch: Launch{LogKeep: keep}}
			counts := s.roll(root, "stdout", before)
			after, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if counts > keep || onDisk(after) > 2*keep || after.Size() != long {
				t.Errorf("%d bytes count, %d of %d are on the disk", counts, onDisk(after), after.Size())
			}
		})
	}
}

// TestARolledFileCountsWhatIsKept: what may be there before it is cut is no step up in what counts, unless nothing can be cut.
func TestARolledFileCountsWhatIsKept(t *testing.T) {
	const keep = 64 << 10
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, length := range map[string]int{"short": keep / 2, "uncut": keep + keep/8} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte{1}, length), 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		s := &supervisor{launch: Launch{LogKeep: keep}}
		if got, want := s.roll(root, name, info), min(onDisk(info), keep); got != want {
			t.Errorf("%s: %d bytes count, want %d", name, got, want)
		}
		s.unrolled.Store(true)
		if got := s.roll(root, name, info); got != onDisk(info) {
			t.Errorf("%s, where nothing is rolled: %d bytes count, want %d", name, got, onDisk(info))
		}
	}
}

func TestOnlyTheContainersOwnFilesAreCut(t *testing.T) {
	punches(t)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	data := bytes.Repeat([]byte{1}, 1<<20)
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := errors.Join(os.WriteFile(foreign, data, 0o600), os.Symlink(foreign, filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "directory"), 0o700),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.WriteFile(filepath.Join(dir, "short"), []byte("short"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "directory", "pipe"} {
		if _, err := cut(root, name, 1); err == nil || errors.Is(err, errNoHoles) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := cut(root, "short", 64<<10); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(foreign); err != nil || !bytes.Equal(got, data) {
		t.Errorf("what a link leads to has changed: %v", err)
	}
	if os.Geteuid() == 0 { // a hard link to what is not the container's
		if err := errors.Join(os.Link(foreign, filepath.Join(dir, "hard")), os.Chown(dir, 4711, 4711)); err != nil {
			t.Fatal(err)
		}
		if _, err := cut(root, "hard", 1); !errors.Is(err, errForeign) {
			t.Errorf("a hard link: %v", err)
		}
	}
}

func TestRolledFilesAreChosenByPattern(t *testing.T) {
	l := &Launch{Rolled: []string{"stdout", "*.log"}, LogKeep: 1}
	for name, want := range map[string]bool{"stdout": true, "stderr": false, "a.log": true, "a.log.1": false} {
		if l.rolls(name) != want {
			t.Errorf("%s", name)
		}
	}
	if l.LogKeep = 0; l.rolls("stdout") {
		t.Error("rolled without a limit")
	}
}
