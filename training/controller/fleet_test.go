package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// The resource manager plans one ask of many, and has one reason why it waits.
func TestExecutorsAreOneAskTogether(t *testing.T) {
	f := &fleet{app: "application_1_0001", try: 2, log: slog.New(slog.DiscardHandler), times: Times{Start: time.Hour}}
	f.init()
	grant := func(n int, event uint64) {
		f.add(&rmpb.Container{ContainerId: fmt.Sprint("container_", n), AskId: f.ask(trains)}, event)
	}
	f.add(&rmpb.Container{ContainerId: "container_0", AskId: "1-executors"}, 0) // of the attempt before
	f.asks[trains].missing, f.asks[trains].unsaid = 4, true
	r := f.request()
	if len(r.Asks) != 1 || r.Asks[0].Count != 4 || r.Asks[0].AskId != "2-executors" || len(r.Cancel) != 0 {
		t.Fatalf("asked with %v", r)
	}
	if r := f.request(); len(r.Asks)+len(r.Cancel) != 0 {
		t.Errorf("said twice: %v", r)
	}
	// What is asked for and which grants that counts from go together, also between the grant and the end of its handling.
	grant(1, 7)
	grant(2, 8)
	grant(2, 8)
	f.excluded, f.asks[trains].unsaid = []string{"node1:8042"}, true
	if r := f.request(); len(r.Asks) != 1 || r.Asks[0].Count != 2 || r.Acknowledged != 8 || !slices.Equal(r.Asks[0].ExcludedNodes, []string{"node1:8042"}) {
		t.Errorf("asked anew with %v", r)
	}
	f.asks[trains].missing, f.asks[trains].unsaid = 0, true
	if r := f.request(); len(r.Asks) != 0 || !slices.Equal(r.Cancel, []string{"2-executors"}) {
		t.Errorf("withdrawn with %v", r)
	}
	grant(3, 9) // was on its way
	if r := f.request(); !slices.Equal(r.Release, []string{"container_3"}) || f.live() != 4 {
		t.Errorf("given back with %v, %d are there", r, f.live())
	}
}

// shown is an experiment as a fleet sees it.
type shown struct{ *experiment.Experiment }

func (s shown) view(fn func(*experiment.Experiment)) { fn(s.Experiment) }
func (s shown) propose(_ context.Context, run func(*experiment.Experiment, training.Millis) error) error {
	return run(s.Experiment, s.Now)
}

// A part of a gang works nothing: if only an excluded node could give the rest, it is asked again. Who works waits for another.
func TestAnExcludedNodeIsForgivenForAPartOfAGang(t *testing.T) {
	for name, c := range map[string]struct {
		distributed string
		forgive     string
	}{
		"gang":  {`, "distributed": {"framework": "plain", "workers": 2}`, "n2"},
		"alone": {"", ""},
	} {
		spec, err := training.ParseSpec([]byte(`{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 9, "executors": 2, "seed": 1, "space": {"x": ["DOUBLE", [0, 1]]}`+c.distributed+`}`), "ann")
		if err != nil {
			t.Fatal(err)
		}
		x := experiment.New()
		propose := func(e *experiment.Entry) {
			t.Helper()
			if _, err := x.Propose(x.Now, e); err != nil {
				t.Fatal(err)
			}
		}
		propose(&experiment.Entry{Created: &experiment.Created{Version: experiment.Version, ID: "a_1", User: "ann", Directory: "/e", Spec: spec}})
		propose(&experiment.Entry{Started: &experiment.Started{Attempt: 1}})
		f := &fleet{app: "a", try: 1, experiment: shown{x}}
		f.times.setDefaults()
		f.init()
		f.describe(spec)
		for i := range 2 {
			k := fmt.Sprint("c", i+1)
			f.add(&rmpb.Container{ContainerId: k, AskId: f.ask(trains)}, uint64(i+1))
			f.containers[k].released = false
			if _, _, _, err := x.Register(x.Now, protocol.RegisterExecutor{ContainerID: k, Instance: "i"}, fmt.Sprint("n", i+1), false); err != nil {
				t.Fatal(err)
			}
		}
		f.look(time.Now())
		propose(&experiment.Entry{Lost: &experiment.Lost{Executor: "e0002", Reason: "silent", Blame: true, Silent: true}})
		f.onlyExcluded = true // as the resource manager says
		if _, forgive := f.look(time.Now()); forgive != c.forgive {
			t.Errorf("%s: %q is forgiven, want %q", name, forgive, c.forgive)
		}
	}
}

// Executors write the last files of their trials after the last result is in. A namenode's failover takes longer than five
// seconds; who never ends holds the end of the experiment up no longer than an executor may drain; nothing is waited for
// when the controller has to stop.
func TestExecutorsAreWaitedForWhileTheyLeave(t *testing.T) {
	var times Times
	times.setDefaults()
	for _, c := range []struct{ ends, stops, want time.Duration }{
		{12 * time.Second, time.Hour, 12 * time.Second},
		{time.Hour, time.Hour, times.Drain},
		{time.Hour, time.Second, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fleet{app: "application_1_0001", try: 1, times: times}
			f.init()
			f.add(&rmpb.Container{ContainerId: "container_1"}, 1)
			began := time.Now()
			time.AfterFunc(c.ends, func() { f.end("container_1") })
			ctx, cancel := context.WithTimeout(t.Context(), c.stops)
			defer cancel()
			f.left(ctx)
			if took := time.Since(began); took < c.want || took > c.want+time.Second {
				t.Errorf("waited %s, want %s", took, c.want)
			}
		})
	}
}
