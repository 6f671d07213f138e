package journal

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
)

// Disk is what a journal needs of a file system. Tests put their own in place of the real one: a journal makes no other
// system calls.
type Disk interface {
	// List returns the names of a directory's files.
	List(dir string) ([]string, error)
	// Open opens a file that exists for reading and writing; fs.ErrNotExist.
	Open(path string) (File, error)
	// Create makes an empty file, also in place of one that exists.
	Create(path string) (File, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes what was created, renamed and removed in a directory durable.
	SyncDir(dir string) error
}

// File is an open file of a Disk. Close may be called while a read is under way, which then fails or not.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	// Allocate sets aside room for a new file, in one piece if there is one; what it holds is undefined until it is
	// written. syscall.ENOSPC: there is not enough.
	Allocate(size int64) error
	// Sync makes what was written durable, as fdatasync does.
	Sync() error
}

// FileSystem is the Disk of the operating system.
type FileSystem struct{}

func (FileSystem) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name()) // what is no file cannot be opened: better than to go on without it
	}
	return names, err
}

func (FileSystem) Open(path string) (File, error) { return openSystem(path, os.O_RDWR) }

func (FileSystem) Create(path string) (File, error) {
	return openSystem(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func openSystem(path string, flags int) (File, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return systemFile{f}, nil
}

func (FileSystem) Rename(from, to string) error { return os.Rename(from, to) }
func (FileSystem) Remove(path string) error     { return os.Remove(path) }

func (FileSystem) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type systemFile struct{ *os.File }

func (f systemFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f systemFile) Allocate(size int64) error {
	err := again(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil // writing it does as well
	}
	return err
}

// Sync is fdatasync: a file whose blocks have all been written before has no metadata that would have to wait for the
// journal of the file system, and with it for everybody else's writes.
func (f systemFile) Sync() error {
	return again(func() error { return unix.Fdatasync(int(f.Fd())) })
}

// Forget is what keeps a scrubber from verifying memory instead of the disk: what is read next of a part comes from there.
func (f systemFile) Forget(from, n int64) {
	_ = unix.Fadvise(int(f.Fd()), from, n, unix.FADV_DONTNEED) // a hint
}

// ReadNow is ReadAt of what is in memory, and does not wait for the disk. Errors: syscall.EAGAIN, where that would be needed; syscall.EOPNOTSUPP, where the file system cannot
// say; those of ReadAt. It may read less than all of b without one.
func (f systemFile) ReadNow(b []byte, at int64) (n int, err error) {
	err = again(func() (err error) {
		n, err = unix.Preadv2(int(f.Fd()), [][]byte{b}, at, unix.RWF_NOWAIT)
		return err
	})
	return max(n, 0), err
}

// again repeats a system call that a signal has interrupted.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// full reports whether there is no space for something new; what is there is not touched by that.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, metadata.ErrNoSpace)
}
