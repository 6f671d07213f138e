package vfs

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func stampOf(i os.FileInfo) Stamp {
	st, ok := i.Sys().(*syscall.Stat_t)
	if !ok {
		return Stamp{}
	}
	return Stamp{Inode: st.Ino, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}
}

// Writeback starts the flush of dirty pages early, so that the fsync at close finds little left to do.
func (f osFile) Writeback(off, n int64) {
	if c, err := f.SyscallConn(); err == nil {
		// A hint: the fsync that follows reports what matters.
		_ = c.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), off, n, unix.SYNC_FILE_RANGE_WRITE) })
	}
}

// Forget is what keeps a scrubber from verifying memory instead of the disk.
func (f osFile) Forget(off, n int64) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), off, n, unix.FADV_DONTNEED) })
	}
}

// Allocate makes extents. Page by page they would be looked for, reserved and counted, which costs ext4 a third of a write.
func (f osFile) Allocate(off, n int64) {
	if c, err := f.SyscallConn(); err == nil {
		// A hint: a write finds out by itself that the disk is full.
		_ = c.Control(func(fd uintptr) { _ = unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE, off, n) })
	}
}

// maxPieces is the kernel's limit for one call (UIO_MAXIOV).
const maxPieces = 1024

// WriteAllAt hands the kernel all pieces in one call: it makes large folios for a long write.
func (f osFile) WriteAllAt(pieces [][]byte, off int64) error {
	if len(pieces) <= 1 {
		return f.writeEach(pieces, off)
	}
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	failed := c.Control(func(fd uintptr) {
		for len(pieces) > 0 && err == nil {
			var n int
			n, err = unix.Pwritev(int(fd), pieces[:min(len(pieces), maxPieces)], off)
			if errors.Is(err, unix.EINTR) {
				err = nil
				continue
			}
			if err == nil && n == 0 && len(pieces[0]) > 0 {
				err = io.ErrShortWrite
			}
			off += int64(n)
			for len(pieces) > 0 && n >= len(pieces[0]) && err == nil {
				n -= len(pieces[0])
				pieces = pieces[1:]
			}
			if len(pieces) > 0 && err == nil {
				pieces[0] = pieces[0][n:]
			}
		}
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		return &os.PathError{Op: "pwritev", Path: f.Name(), Err: err}
	}
	return nil
}

// Punch makes a hole.
func (f osFile) Punch(off, n int64) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	failed := c.Control(func(fd uintptr) {
		err = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if failed != nil {
		return failed
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return f.zero(off)
	}
	if err != nil {
		return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	return nil
}

// Sync is fdatasync: the times in the inode need not be durable.
func (f osFile) Sync() error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	failed := c.Control(func(fd uintptr) {
		for err = unix.Fdatasync(int(fd)); errors.Is(err, unix.EINTR); err = unix.Fdatasync(int(fd)) {
		}
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}
