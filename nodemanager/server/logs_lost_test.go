package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

// descriptors lets this process open no more than so many files until the returned function is called. The test must not run beside others.
func descriptors(t *testing.T, more uint64) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(f.Fd()) // the lowest that is free
	f.Close()
	now := was
	now.Cur = next + more
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}
}

// logsOf is a shipper of a container that has ended and has printed something.
func logsOf(t *testing.T, files *memoryFS) (*shipper, *nodemanager.Spec, *os.Root) {
	t.Helper()
	dir := t.TempDir()
	logs := filepath.Join(dir, "logs")
	if err := os.Mkdir(logs, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"stdout": "a line\n", "events": "another\n"} {
		if err := os.WriteFile(filepath.Join(logs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(logs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	c := &container{dir: dir, server: &Server{config: Config{LogLimit: 1 << 20, LogKeep: 1 << 20, LogPatience: time.Minute}}}
	return &shipper{c: c, files: map[string]*shipment{}, began: time.Now(), fsys: files}, &nodemanager.Spec{ID: "container_1", LogDir: "/logs/container_1"}, root
}

// What cannot be opened for want of descriptors is not shipped: a round that says it were has its container's logs removed.
func TestLogsThatCannotBeOpenedAreNotShipped(t *testing.T) {
	files := newMemoryFS()
	s, spec, root := logsOf(t, files)
	restore := descriptors(t, 1) // the directory itself, and not once more to list it
	err := s.round(t.Context(), spec, true)
	restore()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("a directory that cannot be listed: %v", err)
	}
	restore = descriptors(t, 0)
	err = s.file(t.Context(), root, spec, "stdout", true)
	restore()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("a file that cannot be opened: %v", err)
	}
	if err := s.round(t.Context(), spec, true); err != nil || files.get("/logs/container_1/stdout") != "a line\n" || files.get("/logs/container_1/events") != "another\n" {
		t.Errorf("afterwards: %v, %q", err, files.get("/logs/container_1/stdout"))
	}
}

// What only has the name of a log file holds up nothing.
func TestWhatIsNoLogFileIsPassedOver(t *testing.T) {
	files := newMemoryFS()
	s, spec, root := logsOf(t, files)
	dir := s.c.logsPath()
	for _, err := range []error{
		os.Symlink("stdout", filepath.Join(dir, "link")), os.Symlink("/etc/passwd", filepath.Join(dir, "out")), os.Symlink("loop", filepath.Join(dir, "loop")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Mkdir(filepath.Join(dir, "dir"), 0o700), unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o600, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.round(t.Context(), spec, true); err != nil || len(files.files) != 2 {
		t.Errorf("a round: %v, %d files are shipped", err, len(files.files))
	}
	names := []string{"out", "loop", "pipe", "dir", "socket", "gone"} // as if they had come after the list was made
	if os.Geteuid() == 0 {                                            // a file of another's
		if err := os.Chown(dir, 1000, 1000); err != nil {
			t.Fatal(err)
		}
		names = append(names, "stdout")
	}
	for _, name := range names {
		if _, _, err := openLog(root, name); !noLog(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.file(t.Context(), root, spec, name, true); err != nil {
			t.Errorf("%s holds up the others: %v", name, err)
		}
	}
}

// A program that takes away the right to read one of its logs loses that log, and the others are shipped.
func TestALogThatMayNotBeReadIsPassedOver(t *testing.T) {
	files := newMemoryFS()
	s, spec, root := logsOf(t, files)
	dir := s.c.logsPath()
	if err := os.Chmod(filepath.Join(dir, "events"), 0); err != nil {
		t.Fatal(err)
	}
	all := os.Geteuid() == 0 // may read everything
	if all {
		for _, name := range []string{s.c.dir, dir, filepath.Join(dir, "events"), filepath.Join(dir, "stdout")} {
			if err := os.Chown(name, 1000, 1000); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Dir(s.c.dir), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	var opened, shipped error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if all { // the thread ends with this goroutine
			runtime.LockOSThread()
			if _, opened = unix.SetfsuidRetUid(1000); opened != nil {
				return
			}
		}
		_, _, opened = openLog(root, "events")
		shipped = s.round(t.Context(), spec, true)
	}()
	<-done
	if !errors.Is(opened, unix.EACCES) {
		t.Errorf("it can be read: %v", opened)
	}
	if shipped != nil || files.get("/logs/container_1/stdout") != "a line\n" || len(files.files) != 1 {
		t.Errorf("%v, %d files are shipped", shipped, len(files.files))
	}
}

// refusingFS takes one log file not.
type refusingFS struct {
	*memoryFS
	name string
}

func (f refusingFS) OpenLog(ctx context.Context, name string) (LogFile, error) {
	if name == f.name {
		return nil, unix.EIO
	}
	return f.memoryFS.OpenLog(ctx, name)
}

// A log that cannot be shipped holds up no other one, and the round says that it has failed.
func TestALogHoldsUpNoOther(t *testing.T) {
	files := newMemoryFS()
	s, spec, _ := logsOf(t, files)
	s.fsys = refusingFS{files, "/logs/container_1/stdout"}
	if err := s.round(t.Context(), spec, true); !errors.Is(err, unix.EIO) || files.get("/logs/container_1/events") != "another\n" || len(files.files) != 1 {
		t.Errorf("%v, %d files are shipped", err, len(files.files))
	}
}
