package controller

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// A line of a kind that is not known was written by a newer program: to skip it, and to write another one of its number, would make two
// histories of one.
func TestALineOfANewerProgramIsNotSkipped(t *testing.T) {
	_, lines := recorded(t, 20)
	fs := newMemFS()
	var all []byte
	for _, l := range lines {
		all = append(all, l.data...)
	}
	fs.put(journalPath, append(all, []byte(`{"n":21,"t":1,"kind":"merged","merged":{"trial":"0001"}}`+"\n")...))
	_, err := resumeJournal(t.Context(), fs, journalPath, 0, 0, quiet, experiment.New().Apply)
	if newer, ok := errors.AsType[*experiment.UnknownKind](err); !ok || newer.N != 21 || newer.Kind != "merged" {
		t.Errorf("%v", err)
	}
}

// The clock of the first controller's machine was a year ahead: limits pass nevertheless.
func TestLimitsPassAfterAControllerWithAWrongClock(t *testing.T) {
	spec := `{"project": "lab", "entry": "m:f", "metric": "acc", "optimizer": {"type": "random"}, "trials": 1, "executors": 1, "timeout": "10m", "space": {"x": ["DOUBLE", [0, 1]]}}`
	var clock atomic.Int64
	clock.Store(time.Now().AddDate(1, 0, 0).UnixNano())
	times := fast
	times.Drain = time.Millisecond
	at := func(e *Env) { e.now = func() time.Time { return time.Unix(0, clock.Load()) } }
	fs, rm := newMemFS(), newFakeRM(1, func(*fakeRM, *rmpb.Container, *rmpb.Launch) {})
	first := launch(t, fs, rm, spec, 1, times, at)
	for where(fs)() == "" {
		time.Sleep(time.Millisecond)
	}
	first.cancel()
	<-first.done
	clock.Store(time.Now().UnixNano())
	second := launch(t, fs, rm, spec, 2, times, at)
	for whereabouts(fs).Attempt != 2 {
		time.Sleep(time.Millisecond)
	}
	clock.Add(int64(11 * time.Minute))
	second.wait()
	if s := historyOf(t, fs); s.State != protocol.ExperimentFailed && s.State != protocol.ExperimentFinished {
		t.Errorf("%s: %s", s.State, s.Reason)
	}
}

func historyOf(t *testing.T, fs *memFS) *protocol.ExperimentStatus {
	t.Helper()
	s, err := History(t.Context(), fs, testDir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Who was heard of by this controller has its lease from then on, whatever grace others have, and a pause of the controller does not
// count. A slot that an executor does not have is nothing to remember.
func TestLeasesCountFromWhatWasHeard(t *testing.T) {
	start := time.UnixMilli(1_700_000_000_000)
	now := start
	c := &controller{env: &Env{now: func() time.Time { return now }}, times: Times{Lease: 4 * time.Second}, lastSeen: map[seat]training.Millis{}}
	c.x = experiment.New()
	spec, err := training.ParseSpec([]byte(`{"project": "lab", "entry": "m:f", "optimizer": {"type": "random"}, "trials": 9, "executors": 2, "space": {"x": ["DOUBLE", [0, 1]]}}`), "ann")
	if err != nil {
		t.Fatal(err)
	}
	millis := func() training.Millis { return training.MillisOf(now) }
	for _, e := range []*experiment.Entry{
		{Created: &experiment.Created{Version: experiment.Version, ID: "a_1", Application: "a", User: "ann", Directory: "/e", Spec: spec}},
		{Started: &experiment.Started{Attempt: 1}},
	} {
		if _, err := c.x.Propose(millis(), e); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []string{"c1", "c2"} {
		if _, _, _, err := c.x.Register(millis(), protocol.RegisterExecutor{ContainerID: k, Instance: "i"}, "n", false); err != nil {
			t.Fatal(err)
		}
	}
	c.graceUntil = millis().Add(30 * time.Second) // taken over: e0002 was not heard of since
	c.heard("e0001", 0)
	lost := func(at time.Duration) (ids []string) {
		for now.Sub(start) < at { // ticks
			now = now.Add(100 * time.Millisecond)
			ids = nil
			for _, e := range c.due(now) {
				ids = append(ids, e.Lost.Executor)
			}
		}
		return ids
	}
	c.lastTick = now
	if got := lost(4 * time.Second); len(got) != 0 {
		t.Errorf("%v are lost within the lease", got)
	}
	if got := lost(4100 * time.Millisecond); len(got) != 1 || got[0] != "e0001" {
		t.Errorf("%v are lost after the lease", got)
	}
	c.heard("e0001", 0)
	now = now.Add(3 * time.Second) // the controller stands still
	start = start.Add(3 * time.Second)
	if got := lost(7 * time.Second); len(got) != 0 {
		t.Errorf("%v are lost within the lease and the pause", got)
	}
	if got := lost(9 * time.Second); len(got) != 1 || got[0] != "e0001" {
		t.Errorf("%v are lost after them", got)
	}
	if got := lost(28 * time.Second); len(got) != 2 {
		t.Errorf("%v are lost after the grace", got)
	}
}
