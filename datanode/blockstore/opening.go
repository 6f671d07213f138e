package blockstore

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// While the store is being opened a disk may not answer either. Every step is then done on a goroutine of its own, and
// a watchdog ends the wait for it. What such a goroutine comes back with is thrown away.

// answerOf is the result of f, which calls the disk of v. The error says that the disk does not answer; late hears the result then, if
// it ever comes.
func answerOf[T any](v *volume, f func() T, late func(T)) (T, error) {
	var settled atomic.Bool // by the answer, or by giving up
	done := make(chan T, 1)
	go func() {
		result := f()
		if settled.CompareAndSwap(false, true) {
			done <- result
		} else if late != nil {
			late(result)
		}
	}()
	select {
	case result := <-done:
		return result, nil
	case <-v.silent:
		if !settled.CompareAndSwap(false, true) {
			return <-done, nil
		}
		var none T
		return none, fmt.Errorf("while it was opened: %w", errSilent)
	}
}

// ask is answerOf for steps that have only an error as their result.
func (v *volume) ask(f func() error) error {
	err, silent := answerOf(v, f, nil)
	return errors.Join(err, silent)
}

// watchOpening is the watchdog of the opening: it ends the waits for disks of which a call is older than limit, and all of them when the store is left. Where it is Revive that opens, and an administrator
// waits for it, disks are not waited for that are slow. It runs until the function that it returns is called.
func (s *Store) watchOpening(volumes []*volume) (end func()) {
	limit := s.cfg.DiskTimeout
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		t := time.NewTicker(tickOf(limit))
		defer t.Stop()
		hangAt := hangAfter(limit)
		silent := make([]bool, len(volumes))
		for {
			select {
			case <-t.C:
			case <-s.leaves:
				hangAt = math.MinInt64
			case <-stop:
				return
			}
			giveUpAt := hangAt
			if s.reviving.Load() && s.swappers.Load() > 0 {
				giveUpAt = min(giveUpAt, slowTicks)
			}
			for i, v := range volumes {
				if v.calls.tick() >= giveUpAt && !silent[i] {
					silent[i] = true
					close(v.silent)
				}
			}
			if hangAt < 0 {
				return
			}
		}
	})
	return func() { close(stop); g.Wait() }
}
