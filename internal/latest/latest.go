// Package latest asks for what may not come, such as figures behind a lock that somebody holds who waits for a silent disk. Who asks waits for so long and no
// longer, and has what came last then; and however many ask, one goroutine waits for what does not come.
package latest

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Value is something that is asked for again and again. The zero Value has never come. It is safe for concurrent use.
type Value[T any] struct {
	// Pause lies between the beginnings of two askings: who asks sooner waits for the next one, together with all others who do. It is set before the first Ask.
	Pause time.Duration

	mu    sync.Mutex // held for moments only
	now   *asking[T] // under way; nil: none is
	last  *asking[T] // the last one that came to an end; nil: none has
	began time.Time  // when the last one began
}

// asking is one time that the value is asked for.
type asking[T any] struct {
	began time.Time     // zero: the pause before it is not over; under mu, until done is closed
	done  chan struct{} // closed when it has come to an end
	value T
	panic error // why it has no value
}

// Answer is what there is of a Value.
type Answer[T any] struct {
	// Value may be shared with others: nobody changes what it refers to. If nothing ever came it is the zero value.
	Value T
	// At is when the asking began that brought Value; zero: nothing ever came.
	At time.Time
	// Late is when the asking began that has not come; zero: Value is as new as it was asked for.
	Late time.Time
}

// Known reports whether there is a value.
func (a *Answer[T]) Known() bool { return !a.At.IsZero() }

// Since is for how long what was asked for has not come; 0: it has.
func (a *Answer[T]) Since() time.Duration {
	if a.Late.IsZero() {
		return 0
	}
	return max(time.Since(a.Late), 0)
}

// Ask is what ask returns, of a call that begins no sooner than Ask, its own one or that of somebody else who asks at the same time. If that takes longer than
// patience it is what came last; and where a call is under way for that long already, at once. ask goes on then, and the next one begins when it has ended. It
// panics if ask does.
func (v *Value[T]) Ask(patience time.Duration, ask func() T) Answer[T] {
	asked := time.Now()
	end := time.NewTimer(patience)
	defer end.Stop()
	for {
		a, own, hangs := v.begin(asked.Add(-patience), ask)
		if hangs {
			return v.late()
		}
		select {
		case <-a.done:
		case <-end.C:
			return v.late()
		}
		if !own && !a.began.After(asked) {
			continue // what happened before the call is to be in it
		}
		if a.panic != nil {
			panic(a.panic)
		}
		return Answer[T]{Value: a.value, At: a.began}
	}
}

// begin is the asking under way, or a new one, the caller's own; hangs: it began at a point of time or before.
func (v *Value[T]) begin(before time.Time, ask func() T) (a *asking[T], own, hangs bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.now == nil {
		v.now, own = &asking[T]{done: make(chan struct{})}, true
		go v.run(v.now, v.began.Add(v.Pause), ask)
	}
	return v.now, own, !v.now.began.IsZero() && !v.now.began.After(before)
}

// run carries an asking out, at a point of time at the earliest.
func (v *Value[T]) run(a *asking[T], at time.Time, ask func() T) {
	time.Sleep(time.Until(at))
	v.mu.Lock()
	a.began = time.Now()
	v.began = a.began
	v.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			a.panic = fmt.Errorf("%v\n%s", p, debug.Stack())
		}
		v.mu.Lock()
		if v.now = nil; a.panic == nil {
			v.last = a
		}
		v.mu.Unlock()
		close(a.done)
	}()
	a.value = ask()
}

// late is what came last, for who waits no longer.
func (v *Value[T]) late() (out Answer[T]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last != nil {
		out.Value, out.At = v.last.value, v.last.began
	}
	out.Late = time.Now()
	if v.now != nil && !v.now.began.IsZero() {
		out.Late = v.now.began
	}
	return out
}

// Together runs calls of Ask at the same time, and panics if one of them does.
func Together(asks ...func()) {
	panics := make(chan any, len(asks))
	var all sync.WaitGroup
	for _, ask := range asks {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panics <- p
				}
			}()
			ask()
		})
	}
	all.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
	}
}
