//go:build !race

package hrpc

import (
	"syscall"
	"unsafe"
)

// readSocket and writeSocket are read(2) and write(2) on a socket that does not block. The scheduler is not told: these
// calls end within microseconds, and a thread that it believes to be blocked loses its place to another one, which
// costs more than the call. b is not empty.

func readSocket(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

func writeSocket(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}
