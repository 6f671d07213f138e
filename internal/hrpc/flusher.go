package hrpc

import (
	"runtime"
	"sync"
)

// flusher sends what goroutines answered that are no connection's reader: those of a group of results wake one sender in
// place of one for each connection, and are not held up by system calls. A connection that gets several answers
// meanwhile sends them together.
type flusher struct {
	mu      sync.Mutex
	queue   []*outbox
	first   int // of the queue, what comes before has been taken
	running int
}

// crowd is how many connections a sender may have before it before another one helps.
const crowd = 16

// push has an outbox sent soon.
func (f *flusher) push(o *outbox) {
	f.mu.Lock()
	if f.first > 0 && len(f.queue) == cap(f.queue) {
		f.queue, f.first = append(f.queue[:0], f.queue[f.first:]...), 0
	}
	f.queue = append(f.queue, o)
	start := len(f.queue)-f.first > crowd*f.running && f.running < runtime.GOMAXPROCS(0)
	if start {
		f.running++
	}
	f.mu.Unlock()
	if start {
		go f.run()
	}
}

// run sends until nothing is left.
func (f *flusher) run() {
	for o := f.pop(); o != nil; o = f.pop() {
		o.sendAtOnce()
	}
}

// pop returns nil when the queue is empty, and its caller then runs no more.
func (f *flusher) pop() *outbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == len(f.queue) {
		f.queue, f.first = f.queue[:0], 0
		f.running--
		return nil
	}
	o := f.queue[f.first]
	f.queue[f.first] = nil
	f.first++
	return o
}
