package vfs

import "golang.org/x/sys/unix"

// Writeback starts the flush of dirty pages early, so that the fsync at close finds little left to do.
func (f osFile) Writeback(off, n int64) {
	if c, err := f.SyscallConn(); err == nil {
		// A hint: the fsync that follows reports what matters.
		_ = c.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), off, n, unix.SYNC_FILE_RANGE_WRITE) })
	}
}
