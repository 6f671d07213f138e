package controller

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// slowClock is a clock that the test sets; it counts how often it is looked at, which a controller does with every tick.
type slowClock struct{ at, looks atomic.Int64 }

func newSlowClock() *slowClock {
	c := &slowClock{}
	c.at.Store(time.Now().UnixNano())
	return c
}

func (c *slowClock) now() time.Time {
	c.looks.Add(1)
	return time.Unix(0, c.at.Load())
}

// pass lets time pass, and waits for some ticks thereafter.
func (c *slowClock) pass(t *testing.T, d time.Duration) {
	t.Helper()
	c.at.Add(int64(d))
	n := c.looks.Load()
	for until := time.Now().Add(patience); c.looks.Load() < n+10; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the controller does not look at its clock")
		}
	}
}

// takeover has a controller with one executor, whose trial has reported once, end; after absence another one begins.
func takeover(t *testing.T, absence time.Duration, change func(*memFS, *slowClock)) (*slowClock, *memFS, *client, *protocol.Assignment) {
	t.Helper()
	clock := newSlowClock()
	at := func(e *Env) { e.now = clock.now }
	times := fast
	times.Lease, times.Grace = 10*time.Second, 30*time.Second
	spec := `{"project": "lab", "entry": "m:f", "metric": "acc", "optimizer": {"type": "random"}, "trials": 1, "executors": 1, "report_timeout": "30s", "space": {"x": ["DOUBLE", [0, 1]]}}`
	first, rm, fs, clients := manual(t, spec, 1, times, at)
	c := clients[0]
	a := c.next("0").Trial
	if _, err := c.report(a, 1, 1, 0.5); err != nil {
		t.Fatal(err)
	}
	first.cancel()
	<-first.done
	clock.at.Add(int64(absence))
	if change != nil {
		change(fs, clock)
	}
	launch(t, fs, rm, spec, 2, times, at)
	for until := time.Now().Add(patience); whereabouts(fs).Attempt != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("no second controller")
		}
	}
	clock.pass(t, 0)
	return clock, fs, c, a
}

// judged are the entries that end what an executor does.
func judged(t *testing.T, fs *memFS) (out []*experiment.Entry) {
	t.Helper()
	return slices.DeleteFunc(entriesOf(t, fs), func(e *experiment.Entry) bool { return e.Expired == nil && e.Lost == nil && e.Drained == nil })
}

// A trial whose time between reports has passed while there was no controller has not expired: its executor has yet to say what was
// reported meanwhile. From then on the limit holds.
func TestATakeoverExpiresNoTrialBeforeItsExecutorCanSpeak(t *testing.T) {
	clock, fs, c, a := takeover(t, 31*time.Second, nil)
	if got := judged(t, fs); len(got) > 0 {
		t.Fatalf("%s before anybody could be heard: %+v", got[0].Kind, got[0].Expired)
	}
	clock.pass(t, 500*time.Millisecond)
	if _, err := c.register(t.Context(), &protocol.Held{Trial: a.Trial, Attempt: a.Attempt}); err != nil {
		t.Fatal(err)
	}
	for seq := int64(2); seq <= 3; seq++ {
		if r, err := c.report(a, seq, seq, 0.5); err != nil || r.Op != protocol.OpContinue || r.Ack != seq {
			t.Fatalf("report %d: %+v %v", seq, r, err)
		}
	}
	if s := historyOf(t, fs); len(s.Trials) != 1 || s.Trials[0].Epochs != 3 {
		t.Errorf("trials %+v", s.Trials)
	}
	beat := func(d time.Duration) string { // in steps that are no pause
		for ; d > 0; d -= 4 * time.Second {
			clock.pass(t, 4*time.Second)
			r, err := c.beat(a)
			if err != nil {
				t.Fatal(err)
			}
			if r.Op != protocol.OpContinue {
				return r.Op
			}
		}
		return ""
	}
	if op := beat(28 * time.Second); op != "" || len(judged(t, fs)) > 0 {
		t.Errorf("%s within the time between reports: %v", op, judged(t, fs))
	}
	if op := beat(8 * time.Second); op != protocol.OpStop {
		t.Error("the time between reports has no end")
	}
}

// The grace begins when executors can be heard, however long the journal has taken before.
func TestTheGraceBeginsWhenExecutorsCanBeHeard(t *testing.T) {
	clock, fs, _, _ := takeover(t, time.Second, func(fs *memFS, clock *slowClock) {
		fs.slow = func() { clock.at.Add(int64(31 * time.Second)) }
	})
	for range 7 {
		if got := judged(t, fs); len(got) > 0 {
			t.Fatalf("%s within the grace: %+v", got[0].Kind, got[0].Lost)
		}
		clock.pass(t, 4*time.Second)
	}
	clock.pass(t, 4*time.Second)
	if got := judged(t, fs); len(got) != 1 || got[0].Lost == nil || !got[0].Lost.Silent {
		t.Errorf("after the grace: %v", got)
	}
}

// A notice that is withdrawn is as if it had not been, and the next one is passed on as the first was. A withdrawal may be all that is heard.
func TestANoticeCanBeWithdrawn(t *testing.T) {
	spec := `{"project": "lab", "entry": "m:f", "metric": "acc", "optimizer": {"type": "random"}, "trials": 9, "executors": 3, "space": {"x": ["DOUBLE", [0, 1]]}}`
	_, rm, fs, c := manual(t, spec, 3, fast)
	var a []*protocol.Assignment
	for _, e := range c {
		a = append(a, e.next("0").Trial)
	}
	notice := func(n int, withdrawn bool) {
		p := &rmpb.Preempt{ContainerId: c[n].container, Reason: "another queue is owed it", Withdrawn: withdrawn}
		if withdrawn {
			p.Reason = "its room is needed no more"
		}
		rm.tell(&rmpb.Event{Event: &rmpb.Event_Preempt{Preempt: p}})
	}
	told := func(n int) protocol.Reported {
		t.Helper()
		r, err := c[n].beat(a[n])
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	await := func(n int) {
		t.Helper()
		for until := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if r := told(n); r.Op == protocol.OpCheckpoint {
				if r.Reason != "another queue is owed it" {
					t.Errorf("%+v", r)
				}
				return
			}
			if time.Now().After(until) {
				t.Fatalf("executor %d hears of no notice", n+1)
			}
		}
	}
	notice(0, false)
	await(0)
	notice(0, true)
	notice(2, true)
	notice(1, false) // when this is known, so is what was told before
	await(1)
	for _, n := range []int{0, 2} {
		if r := told(n); r.Op != protocol.OpContinue {
			t.Errorf("executor %d, which stays, is told to %s: %s", n+1, r.Op, r.Reason)
		}
	}
	if _, err := c[0].final(a[0], protocol.Final{Status: training.Completed, Metric: new(training.M(0.5))}); err != nil {
		t.Fatal(err)
	}
	next := c[0].next("0")
	if next.Action != protocol.ActionTrial {
		t.Fatalf("an executor that stays is told: %+v", next)
	}
	a[0] = next.Trial
	notice(0, false)
	await(0)
	var got []experiment.Preempted
	for _, e := range entriesOf(t, fs) {
		if e.Preempted != nil {
			got = append(got, *e.Preempted)
		}
	}
	of := func(n int) experiment.Preempted {
		return experiment.Preempted{Executor: c[n].executor, Reason: "another queue is owed it"}
	}
	if want := []experiment.Preempted{of(0), {Executor: c[0].executor, Withdrawn: true}, of(1), of(0)}; !slices.Equal(got, want) {
		t.Errorf("the journal has %+v", got)
	}
}
