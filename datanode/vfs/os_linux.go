package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Writeback starts the flush of dirty pages early, so that the fsync at close finds little left to do.
func (f osFile) Writeback(off, n int64) {
	if c, err := f.SyscallConn(); err == nil {
		// A hint: the fsync that follows reports what matters.
		_ = c.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), off, n, unix.SYNC_FILE_RANGE_WRITE) })
	}
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
