package controller

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
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
