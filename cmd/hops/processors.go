package main

import (
	"os"
	"runtime"
)

// spareProcessor gives the runtime one processor more than there are cores for this process, where GOMAXPROCS does not say otherwise, for servers
// that wait for the fsyncs of a log. A thread in a system call keeps its processor while another one is idle; where none is, the scheduler's
// watch takes it away, looks every 20 µs for the next one to take, and the thread that comes back from the disk has to wait for one.
func spareProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}
