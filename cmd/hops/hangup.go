package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// hangUp ends all connections of the process and has its addresses refuse others, just before it ends. A process does not end while one of its threads is in a call of a disk that does not
// answer: it is dead to everybody but the kernel, which keeps what it has open, takes connections in its name, and acknowledges what is sent on them. Who talks to it would wait for
// long, or for ever, and followers would not know that their leader is gone. Sockets that were there before the program, as the one that a service's log goes to, are others', too.
func hangUp() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC != 0 {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR) // an error: it is no socket, or not connected
		}
	}
}
