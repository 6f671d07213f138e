package main

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spareProcessor gives the runtime one processor more than there are cores for this process, where GOMAXPROCS does not say otherwise, for servers
// that wait for the fsyncs of a log. A thread in a system call keeps its processor while another one is idle; where none is, the scheduler's
// watch takes it away, looks every 20 µs for the next one to take, and the thread that comes back from the disk has to wait for one.
func spareProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}

const (
	// timerSlack is by how much the kernel may let sleeps of a server with a log take longer, so that several end together.
	timerSlack = time.Millisecond
	// begunAnew in the environment says that the program has been begun anew already.
	begunAnew = "HOPS_BEGUN_ANEW"
)

// slackenTimers begins the program anew, in the same process, with timerSlack, if its arguments are those of a server with a log.
//
// While anything runs or waits for the disk, the scheduler's watch (runtime.sysmon) sleeps for 20 µs at a time, and each time costs an interrupt and
// two switches: a seventh of the CPU of three namenodes that get small changes. With the slack it sleeps for a millisecond. A thread has the slack of the one
// that made it, which may set no other one's without being privileged, and the watch is made before the program's first line: so it has to be there
// before the runtime is, and an execve keeps it. What the runtime's other threads sleep for, they round to milliseconds anyway.
func slackenTimers(args []string) {
	if os.Getenv(begunAnew) != "" {
		os.Unsetenv(begunAnew)
		return
	}
	if !hasLog(args) {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || time.Duration(before) >= timerSlack { // TimerSlackNSec= of systemd, for one
		return
	}
	path, err := os.Executable()
	if err != nil || unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) != nil {
		return
	}
	_ = syscall.Exec(path, args, append(os.Environ(), begunAnew+"=1")) // the server runs without as well
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0)
}

// hasLog reports whether a command line is that of a server with a log, and without containers, which would have its slack, too.
func hasLog(args []string) bool {
	if len(args) < 2 || args[1] != "server" {
		return false
	}
	var names []string
	for _, a := range args[2:] {
		_, list, ok := strings.Cut(a, "=")
		if !ok {
			list = a
		}
		names = append(names, strings.Split(list, ",")...)
	}
	return (slices.Contains(names, "namenode") || slices.Contains(names, "resourcemanager")) && !slices.Contains(names, "nodemanager")
}
