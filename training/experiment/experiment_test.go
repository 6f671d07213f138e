package experiment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/search"
)

// begun makes an experiment with an executor on each of the nodes.
func begun(t *testing.T, doc string, nodes ...string) (x *Experiment, do func(*Entry)) {
	t.Helper()
	spec, err := training.ParseSpec([]byte(doc), "ann")
	if err != nil {
		t.Fatal(err)
	}
	x = New()
	do = func(e *Entry) {
		t.Helper()
		if _, err := x.Propose(x.Now, e); err != nil {
			t.Fatal(err)
		}
	}
	do(&Entry{Created: &Created{Version: Version, ID: "app_1", Application: "app", User: "ann", Directory: "/e", Spec: spec}})
	do(&Entry{Started: &Started{Attempt: 1}})
	for i, node := range nodes {
		do(&Entry{Registered: &registered{Container: fmt.Sprint("c", i+1), Instance: "i", Node: node}})
	}
	return x, do
}

const plainSpec = `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 9, "executors": 2, "seed": 1, "timeout": "10m", "space": {"x": ["DOUBLE", [0, 1]]}}`

func points(seqs ...int64) (r protocol.Report) {
	for _, n := range seqs {
		r.Events = append(r.Events, protocol.MetricEvent{Seq: n, Step: n, Metrics: map[string]training.Metric{"metric": training.M(float64(n))}})
	}
	return r
}

// The answer to a report got lost; the next one repeats it and has more.
func TestAReportThatRepeatsAndGoesOnIsTaken(t *testing.T) {
	x, do := begun(t, plainSpec, "n1")
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}}})
	for _, seqs := range [][]int64{{1, 2}, {1, 2, 3}, {2, 3, 4, 5}} {
		r, _, err := x.Report(x.Now, "c1", 1, 1, points(seqs...))
		if err != nil || r.Ack != seqs[len(seqs)-1] {
			t.Fatalf("after %v: acknowledged %d, %v", seqs, r.Ack, err)
		}
	}
	if n := x.Trial(1).Curve.Len(); n != 5 || x.Counters.Epochs != 5 {
		t.Errorf("%d points, %d epochs, want 5", n, x.Counters.Epochs)
	}
}

// What a journal suggests is adopted, but not out of its order: trial n is the n-th.
func TestASuggestionOutOfOrderIsRefused(t *testing.T) {
	x, _ := begun(t, plainSpec, "n1")
	_, err := x.Propose(x.Now, &Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}, Suggestion: &search.Suggestion{Trial: 5, Params: training.Params{"x": training.Float(0.5)}, Last: true}}})
	if err == nil || !strings.Contains(err.Error(), "trial 0005 is suggested after trial 0") {
		t.Errorf("%v", err)
	}
}

func TestTheSeedOfAFunctionFollowsFromTheSearchs(t *testing.T) {
	seeds := map[uint64]string{}
	for _, seed := range []string{"1", "2"} {
		x, _ := begun(t, strings.Replace(plainSpec, `"seed": 1`, `"seed": `+seed, 1))
		for id := training.TrialID(1); id <= 3; id++ {
			name := fmt.Sprintf("trial %v of seed %s", id, seed)
			if other := seeds[x.seedOf(id)]; other != "" {
				t.Errorf("%s and %s have the same", name, other)
			}
			seeds[x.seedOf(id)] = name
		}
	}
}

// A configuration that kills its process everywhere is what is wrong, not the machines.
func TestStrikesByAnInvalidTrialAreTakenBack(t *testing.T) {
	x, do := begun(t, plainSpec, "n1", "n2")
	died := protocol.Final{Status: training.Failed, Error: &training.TrialError{Type: training.CodeProcessDied, Message: "killed"}}
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}}})
	do(&Entry{Ended: &ended{1, 1, died}})
	if n := len(x.Nodes["n1"].Strikes); n != 1 {
		t.Fatalf("n1 has %d strikes", n)
	}
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0002"}}, Trial: 1, Attempt: 2}})
	do(&Entry{Ended: &ended{1, 2, died}})
	if x.Trial(1).State != training.Invalid || len(x.Nodes["n1"].Strikes)+len(x.Nodes["n2"].Strikes) != 0 {
		t.Errorf("trial %s, n1 %+v, n2 %+v", x.Trial(1).State, x.Nodes["n1"], x.Nodes["n2"])
	}
}

// Who resumes begins without blame, and with the whole of the time limit.
func TestAResumedExperimentForgets(t *testing.T) {
	x, do := begun(t, plainSpec, "n1", "n2")
	died := protocol.Final{Status: training.Failed, Error: &training.TrialError{Type: training.CodeProcessDied, Message: "killed"}}
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}}})
	do(&Entry{Ended: &ended{1, 1, died}})
	x.strike("n1", 9)
	do(&Entry{Stopped: &Stopped{User: "ann"}})
	if !x.Over() || !x.Nodes["n1"].Excluded || x.Trial(1).Failures != 1 {
		t.Fatalf("%s, n1 %+v, %d failures", x.State, x.Nodes["n1"], x.Trial(1).Failures)
	}
	x.Now = x.Now.Add(time.Hour)
	do(&Entry{Resumed: &Resumed{Application: "other", User: "ann"}})
	do(&Entry{Started: &Started{Attempt: 1}})
	one := x.Trial(1)
	if one.State != training.Pending || one.Failures != 0 || len(one.FailedOn) != 0 || x.Nodes["n1"].Excluded || len(x.Nodes["n1"].Strikes) != 0 {
		t.Errorf("trial %s with %d failures on %v, n1 %+v", one.State, one.Failures, one.FailedOn, x.Nodes["n1"])
	}
	expires := func(after time.Duration) bool {
		return len(x.Due(x.Now.Add(after), time.Hour, func(string, int) training.Millis { return x.Now })) > 0
	}
	if expires(9*time.Minute) || !expires(10*time.Minute) {
		t.Error("its ten minutes do not begin with the resume")
	}
}

// Which blobs are free follows from the state: a snapshot does not have to say it. A blob that two trials have goes with the
// second, and that of a checkpoint from which another trial goes on stays as long as that does.
func TestBlobsAreCountedAnewAfterASnapshot(t *testing.T) {
	x, do := begun(t, plainSpec, "n1", "n2")
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}}})
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0002"}}}})
	commit := func(x *Experiment, id training.TrialID, step int64, blobs ...checkpoint.Blob) []string {
		t.Helper()
		c := protocol.Commit{Step: step, URI: fmt.Sprintf("/e/%v/checkpoints/1/step-%d", id, step), Metric: new(training.M(float64(step)))}
		for i, b := range blobs {
			c.Files = append(c.Files, training.File{Name: fmt.Sprint(i), Size: 1, Blob: b.String()})
		}
		if _, _, err := x.Commit(x.Now, fmt.Sprint("c", int(id)), id, 1, c); err != nil {
			t.Fatal(err)
		}
		return x.Take().Deletes
	}
	blob := func(sum byte, id training.TrialID, step int64) checkpoint.Blob {
		return checkpoint.Blob{Sum: [32]byte{sum}, Trial: id, Attempt: 1, Step: step}
	}
	shared := blob('s', 1, 1)
	commit(x, 1, 1, shared, blob('a', 1, 1))
	commit(x, 2, 1, shared, blob('a', 2, 1))
	snapshot, err := x.Snapshot(0)
	if err != nil {
		t.Fatal(err)
	}
	y, _, err := Restore(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Experiment{x, y} {
		x.Take()
		got := [][]string{commit(x, 1, 2, blob('b', 1, 2)), commit(x, 2, 2, blob('b', 2, 2))}
		want := [][]string{
			{"/e/0001/checkpoints/1/step-1", checkpoint.BlobPath("/e/.blobs", blob('a', 1, 1).String())},
			{"/e/0002/checkpoints/1/step-1", checkpoint.BlobPath("/e/.blobs", shared.String()), checkpoint.BlobPath("/e/.blobs", blob('a', 2, 1).String())},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		// What is dropped never comes back.
		c := protocol.Commit{Step: 3, URI: "/e/0001/checkpoints/1/step-3", Files: []training.File{{Name: "s", Size: 1, Blob: shared.String()}}}
		if _, _, err := x.Commit(x.Now, "c1", 1, 1, c); err == nil || !strings.Contains(err.Error(), "of no committed checkpoint any more") {
			t.Errorf("%v", err)
		}
		// Trial 2 is that from which another one goes on.
		x.Trial(1).Resume, x.Trial(1).Borrowed = &x.Trial(2).Checks[0], 2
		if got := commit(x, 2, 3, blob('c', 2, 3)); len(got) != 0 {
			t.Errorf("%v are removed while another trial reads them", got)
		}
	}
}
