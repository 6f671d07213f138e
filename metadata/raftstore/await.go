package raftstore

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"sync/atomic"
)

// waiters wait for entries to be applied. An entry wakes those who wait for it or for one before it, and costs a look at one number while nobody does:
// somebody else decides how many wait, and for what.
type waiters struct {
	lowest atomic.Uint64 // 1 more than what the first waits for; 0: nobody waits
	mu     sync.Mutex
	queue  waiterHeap
}

type waiter struct {
	entry uint64
	ready chan struct{}
	at    int // in the heap; -1: woken
}

// join begins a wait for an entry.
func (w *waiters) join(entry uint64) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := &waiter{entry: min(entry, math.MaxUint64-1), ready: make(chan struct{})}
	heap.Push(&w.queue, x)
	w.first()
	return x
}

// leave ends a wait.
func (w *waiters) leave(x *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.at >= 0 {
		heap.Remove(&w.queue, x.at)
		w.first()
	}
}

// wake ends the waits for what has been applied by now.
func (w *waiters) wake(applied uint64) {
	if lowest := w.lowest.Load(); lowest == 0 || lowest-1 > applied {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 && w.queue[0].entry <= applied {
		x := heap.Pop(&w.queue).(*waiter)
		close(x.ready)
	}
	w.first()
}

func (w *waiters) first() {
	if len(w.queue) == 0 {
		w.lowest.Store(0)
	} else {
		w.lowest.Store(w.queue[0].entry + 1)
	}
}

// waiterHeap implements heap.Interface: the lowest entry first.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].entry < h[j].entry }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.at = len(*h)
	*h = append(*h, w)
}

func (h *waiterHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	w.at, *h = -1, (*h)[:last]
	return w
}

// AwaitApplied waits until this member's state contains an entry.
func (g *Group) AwaitApplied(ctx context.Context, entry uint64) error {
	w := g.fsm.waiters.join(entry)
	defer g.fsm.waiters.leave(w)
	if g.fsm.applied.Load() >= entry { // who has applied it since looked for waiters before this one came
		return nil
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.dying:
		return g.notLeader()
	}
}
