package main

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watch says whether something takes no longer than was promised. A promise is made for a machine whose processors nobody else uses; where others
// do, it may take as many times longer as any work does.
type watch struct {
	slow  float64
	began time.Time
}

func newWatch() *watch {
	w := &watch{slow: slowed()}
	w.began = time.Now()
	return w
}

// limit is how long what takes so long at most may take here.
func (w *watch) limit(most time.Duration) time.Duration {
	return time.Duration(w.slow * float64(most))
}

// kept is an error when more than most has passed.
func (w *watch) kept(took, most time.Duration) error {
	if took <= w.limit(most) {
		return nil
	}
	if w.slow = max(w.slow, slowed()); took <= w.limit(most) { // others came in the middle
		return nil
	}
	return fmt.Errorf("more than %v, on a machine that is slowed down %.1f times by others", most, w.slow)
}

// slowed is how many times longer work takes now than where nobody else uses the processors: for a piece of it on each, the time that passes against
// the time of a processor that it takes.
func slowed() float64 {
	const piece = 200 * time.Millisecond
	took := make([]float64, runtime.NumCPU())
	var wait sync.WaitGroup
	for i := range took {
		wait.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began, before := time.Now(), processorTime()
			for sum := [sha256.Size]byte{}; processorTime()-before < piece; {
				for range 1000 {
					sum = sha256.Sum256(sum[:])
				}
			}
			took[i] = time.Since(began).Seconds() / (processorTime() - before).Seconds()
		})
	}
	wait.Wait()
	slow := 1.0
	for _, t := range took {
		slow = max(slow, t)
	}
	return slow
}

// processorTime is what this thread has had of a processor.
func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has that clock
	}
	return time.Duration(t.Nano())
}
