package main

import (
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// hangUp ends all connections of the process and has its addresses refuse others, just before it ends. A process does not end while one of its threads is in a call of a disk that does not
// answer: it is dead to everybody but the kernel, which keeps what it has open, takes connections in its name, and acknowledges what is sent on them. Who talks to it would wait for
// long, or for ever, and followers would not know that their leader is gone. Sockets that were there before the program, as the one that a service's log goes to, are others', too.
func hangUp() {
	hungUp.Store(true)
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

// hungUp: the sockets were shut down, and that one accepts nothing is no news.
var hungUp atomic.Bool

// dying: the process is ending for a reason that is said beside its parts, which may end sooner because of it: a listener that hangUp has shut down does.
var dying atomic.Bool

// die ends the process by exit when say has said why. What was accepted meanwhile is hung up on, too.
func die(say func(), exit func(code int)) {
	dying.Store(true)
	hangUp()
	say()
	hangUp()
	exit(exitFailed)
}

// cause is the error with which the parts of a program have ended, unless die is at work: the reason is another one then, and patience is how long it may take until that is said.
func cause(err error, patience time.Duration) error {
	if !dying.Load() {
		return err
	}
	time.Sleep(patience)
	return &statusError{code: exitFailed}
}
