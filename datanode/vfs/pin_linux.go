package vfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// pinStep is how much is locked by one call.
const pinStep = 4 << 20

// pinned are mapped pages that stay in memory. Nobody looks at them by their address: a file that is cut would end the process.
type pinned []byte

// Pin keeps the pages of a file that have a range in memory until the answer is closed, and reads them from the disk if need be. Whoever reads the file finds them there.
func Pin(ctx context.Context, f *os.File, off, n int64) (io.Closer, error) {
	page := int64(os.Getpagesize())
	start := off / page * page
	c, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var m pinned
	failed := c.Control(func(fd uintptr) {
		m, err = unix.Mmap(int(fd), start, int(off+n-start), unix.PROT_READ, unix.MAP_SHARED)
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, fmt.Errorf("mmap %s: %w", f.Name(), err)
	}
	for at := 0; at < len(m); at += pinStep {
		if err = ctx.Err(); err == nil {
			err = unix.Mlock(m[at:min(at+pinStep, len(m))])
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("mlock %s: %w", f.Name(), err), m.Close())
		}
	}
	return m, nil
}

// Close lets the kernel have the pages again.
func (m pinned) Close() error { return unix.Munmap(m) }

// PinLimit makes sure that the process may lock n bytes, and raises its limit for that if it can.
func PinLimit(n int64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return fmt.Errorf("getrlimit RLIMIT_MEMLOCK: %w", err)
	}
	if l.Cur >= uint64(n) {
		return nil
	}
	had := l.Cur
	l.Cur, l.Max = max(l.Cur, uint64(n)), max(l.Max, uint64(n))
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return fmt.Errorf("it is more than the %d bytes that the process may lock (RLIMIT_MEMLOCK: `ulimit -l`, LimitMEMLOCK= of systemd): %w", had, err)
	}
	return nil
}
