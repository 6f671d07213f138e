package latest

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const patience = time.Second

// What comes in time is of a call that began when it was asked for, or later: who has changed something sees the change.
func TestWhatComesInTimeIsNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var v Value[int]
		var state, calls atomic.Int64
		slow := func() int {
			calls.Add(1)
			time.Sleep(100 * time.Millisecond)
			return int(state.Load())
		}
		var all sync.WaitGroup
		all.Go(func() { v.Ask(patience, slow) })
		time.Sleep(50 * time.Millisecond)
		early := func() int { t.Error("a call begins while another one is under way"); return 0 }
		_, own, hangs := v.begin(time.Now().Add(-patience), early)
		if own || hangs {
			t.Errorf("own %v, hangs %v", own, hangs)
		}
		time.Sleep(50*time.Millisecond + 1)
		state.Store(7)
		for range 10 {
			all.Go(func() {
				asked := time.Now()
				a := v.Ask(patience, slow)
				if a.Value != 7 || a.At.Before(asked) || !a.Late.IsZero() || !a.Known() || a.Since() != 0 {
					t.Errorf("%+v, asked at %v", a, asked)
				}
			})
		}
		all.Wait()
		if n := calls.Load(); n > 3 {
			t.Errorf("%d calls for those who ask at the same time", n)
		}
	})
}

// What does not come keeps nobody for longer than patience, and one goroutine however many ask and for how long; what came last is said to be old.
func TestWhatDoesNotComeIsWaitedForByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := Value[int]{Pause: 100 * time.Millisecond}
		gate := make(chan struct{})
		var value, under, most atomic.Int64
		hung := func() int {
			most.Store(max(most.Load(), under.Add(1)))
			defer under.Add(-1)
			<-gate
			return int(value.Load())
		}
		if a := v.Ask(patience, hung); a.Known() || a.Late.IsZero() {
			t.Errorf("before anything came: %+v", a)
		}
		value.Store(1)
		close(gate)
		time.Sleep(patience)
		first := v.Ask(patience, hung)
		if first.Value != 1 || !first.Late.IsZero() {
			t.Errorf("when it comes: %+v", first)
		}
		gate = make(chan struct{})
		time.Sleep(time.Minute)
		began := time.Now()
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 20 * time.Millisecond)
				asked := time.Now()
				a := v.Ask(patience, hung)
				if a.Value != 1 || !a.At.Equal(first.At) || !a.Late.Equal(began) || a.Since() != time.Since(began) {
					t.Errorf("%+v, it hangs since %v", a, began)
				}
				if took := time.Since(asked); took > patience || asked.Sub(began) >= patience && took > 0 {
					t.Errorf("asked %v after it began to hang, waited %v", asked.Sub(began), took)
				}
			})
		}
		all.Wait()
		if n := most.Load(); n != 1 {
			t.Errorf("%d wait for it", n)
		}
		value.Store(2)
		close(gate)
		synctest.Wait()
		if a := v.Ask(patience, hung); a.Value != 2 || !a.Late.IsZero() {
			t.Errorf("when it comes again: %+v", a)
		}
	})
}

// A call that panics does so for who asks, who has somebody to catch it.
func TestPanicIsWhoAsksS(t *testing.T) {
	t.Parallel()
	var v Value[int]
	v.Ask(time.Hour, func() int { return 3 })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("nobody hears of it")
			}
		}()
		v.Ask(time.Hour, func() int { panic("a mistake") })
	}()
	if a := v.Ask(time.Hour, func() int { return 4 }); a.Value != 4 {
		t.Errorf("afterwards: %+v", a)
	}
}
