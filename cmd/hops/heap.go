package main

import "github.com/gohops/hops/internal/security"

// ballast is memory that is never touched, so that it costs address space only. The collector runs when the heap has
// doubled, and counts the ballast as heap: a server with a few megabytes of state collects after each 64 MiB of garbage
// in place of after each few, which is some percent of its CPU time. The larger the state, the less it matters.
var ballast []byte //nolint:unused // it is there to be counted by the collector

func steadyHeap() {
	ballast = make([]byte, 64<<20)
	security.LimitMemory()
}
