package journal

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// watchTicks is how many looks at a write come before it is slow.
const watchTicks = 10

// Patience adds up time that has passed while this process ran. Each Pass counts what has gone by since the one before,
// but twice Tick at most: a process that was stopped (SIGSTOP, a paused or migrated virtual machine, a suspended host) has
// not waited, however much later it goes on. The zero value, with Tick set, is ready.
type Patience struct {
	// Tick is how often Pass is meant to be called.
	Tick time.Duration
	last time.Time
	sum  time.Duration
}

// Pass adds what has gone by until now and returns the sum. The first call only begins.
func (p *Patience) Pass(now time.Time) time.Duration {
	if !p.last.IsZero() {
		p.sum += min(max(now.Sub(p.last), 0), 2*p.Tick)
	}
	p.last = now
	return p.sum
}

// Reset begins again.
func (p *Patience) Reset() { p.last, p.sum = time.Time{}, 0 }

// watch counts how long writes have been under way, on a goroutine of its own.
type watch struct {
	deadline, slow, tick time.Duration
	wake                 chan struct{} // capacity 1: there is a write
	done                 chan struct{}

	mu     sync.Mutex
	writes []*underWay
}

// underWay is a write that has begun and not ended.
type underWay struct {
	what string
	took Patience
}

func newWatch(deadline, slow time.Duration) *watch {
	return &watch{deadline: deadline, slow: slow, tick: max(min(slow, deadline)/watchTicks, time.Millisecond), wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (w *watch) begin(what string) *underWay {
	u := &underWay{what: what, took: Patience{Tick: w.tick}}
	w.mu.Lock()
	w.writes = append(w.writes, u)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return u
}

func (w *watch) end(u *underWay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = slices.DeleteFunc(w.writes, func(o *underWay) bool { return o == u })
}

// look lets time pass for all writes and tells of the one that takes longest.
func (w *watch) look(now time.Time) (what string, took time.Duration, busy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.writes {
		if t := u.took.Pass(now); t >= took {
			what, took = u.what, t
		}
	}
	return what, took, len(w.writes) > 0
}

// run looks at the writes until close. tardy is called at each tick at which one takes longer than slow, and patient at the deadline and whenever as
// much has gone by again; hangs is called once, when patient is not.
func (w *watch) run(tardy func(what string, took time.Duration), patient func(what string, took time.Duration) bool, hangs func(error)) {
	t := time.NewTicker(w.tick)
	defer t.Stop()
	limit := w.deadline
	for {
		what, took, busy := w.look(time.Now())
		if took < w.deadline {
			limit = w.deadline
		}
		switch {
		case !busy:
			select {
			case <-w.wake:
			case <-w.done:
				return
			}
			continue
		case took >= limit && patient != nil && patient(what, took):
			limit = took + w.deadline
		case took >= limit:
			hangs(fmt.Errorf("%s hangs for %v: the disk does not answer", what, w.deadline))
			return
		case took >= w.slow && tardy != nil:
			tardy(what, took)
		}
		select {
		case <-t.C:
		case <-w.done:
			return
		}
	}
}

func (w *watch) close() { close(w.done) }
