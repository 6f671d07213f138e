package experiment

import (
	"fmt"
	"slices"
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

// Two failures in a day are no bad machine: a strike counts for an hour, and so does the exclusion, which an entry ends.
func TestStrikesAreForgottenWithTime(t *testing.T) {
	x, do := begun(t, plainSpec, "n1")
	pass := func(d time.Duration) { x.Now = x.Now.Add(d) }
	due := func() (names []string) {
		for _, e := range x.Due(x.Now, 2*strikeLife, func(string, int) training.Millis { return x.Now }, always) {
			if e.Forgiven != nil {
				names = append(names, e.Forgiven.Node)
				do(e)
			}
		}
		return names
	}
	x.strike("n1", 1)
	pass(strikeLife)
	x.strike("n1", 2)
	if len(x.Excluded()) != 0 || len(x.Nodes["n1"].Strikes) != 1 {
		t.Fatalf("%+v", x.Nodes["n1"])
	}
	pass(strikeLife - 1)
	x.strike("n1", 3)
	if got := x.Excluded(); len(got) != 1 || len(due()) != 0 {
		t.Fatalf("excluded %v: %+v", got, x.Nodes["n1"])
	}
	pass(strikeLife)
	if got := due(); len(got) != 1 || len(x.Excluded()) != 0 || len(x.Nodes["n1"].Strikes) != 0 || len(due()) != 0 {
		t.Errorf("forgiven %v: %+v", got, x.Nodes["n1"])
	}
}

// Two machines of a gang stand still at the same moment, but were heard of last at different ones. Both are found at once, and neither is
// asked for an executor for a while; one on which another trial runs well is left alone.
func TestMachinesThatFallSilentTogetherAreFoundTogether(t *testing.T) {
	const lease = 4 * time.Second
	for name, c := range map[string]struct {
		silent map[string]time.Duration
		lost   string
		nodes  string
	}{
		"one rank":         {map[string]time.Duration{"e0002": lease + time.Millisecond}, "e0002", "n2"},
		"two ranks":        {map[string]time.Duration{"e0001": lease - 900*time.Millisecond, "e0002": lease + time.Millisecond}, "e0001 e0002", "n1 n2"},
		"the idle one too": {map[string]time.Duration{"e0002": lease + time.Millisecond, "e0004": lease - 900*time.Millisecond}, "e0002 e0004", "n2"},
		"a slow report":    {map[string]time.Duration{"e0001": lease / 2, "e0002": lease + time.Millisecond, "e0003": lease - time.Millisecond}, "e0002", "n2"},
	} {
		x, do := begun(t, `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 9, "executors": 4, "seed": 1, "distributed": {"workers": 2}, "space": {"x": ["DOUBLE", [0, 1]]}}`, "n1", "n2")
		if _, _, err := x.Next(x.Now, "e0002", 0); err != nil || x.Held != 1 {
			t.Fatal(err)
		}
		do(&Entry{Registered: &registered{Container: "c3", Instance: "i", Node: "n3"}})
		do(&Entry{Registered: &registered{Container: "c4", Instance: "i", Node: "n2"}})
		x.Now = x.Now.Add(time.Minute)
		var lost []string
		for _, e := range x.Due(x.Now, lease, func(id string, slot int) training.Millis { return x.Now.Add(-c.silent[id]) }, always) {
			if e.Lost == nil || !e.Lost.Silent || !e.Lost.Blame {
				t.Errorf("%s: %+v", name, e)
				continue
			}
			lost = append(lost, e.Lost.Executor)
			do(e)
		}
		if got := strings.Join(lost, " "); got != c.lost {
			t.Errorf("%s: lost %s, want %s", name, got, c.lost)
		}
		if got := strings.Join(x.Excluded(), " "); got != c.nodes || x.Trial(1).Failures != 1 {
			t.Errorf("%s: %s are avoided, want %s; %d failures", name, got, c.nodes, x.Trial(1).Failures)
		}
		for _, node := range x.Excluded() {
			if len(x.Nodes[node].Strikes) == 0 {
				t.Errorf("%s: nobody blames %s", name, node)
			}
		}
		snapshot, err := x.Snapshot(0)
		if err != nil {
			t.Fatal(err)
		}
		if y, _, err := Restore(snapshot); err != nil || !slices.Equal(y.Excluded(), x.Excluded()) {
			t.Errorf("%s: a snapshot has it otherwise: %v", name, err)
		}
		x.Now = x.Now.Add(silentAvoided)
		forgiven := 0
		for _, e := range x.Due(x.Now, lease, func(string, int) training.Millis { return x.Now }, always) {
			if e.Forgiven != nil {
				forgiven++
				do(e)
			}
		}
		if len(x.Excluded()) != 0 || forgiven != len(strings.Fields(c.nodes)) {
			t.Errorf("%s: %v are avoided still", name, x.Excluded())
		}
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
	if !x.Over() || x.Nodes["n1"].Excluded == 0 || x.Trial(1).Failures != 1 {
		t.Fatalf("%s, n1 %+v, %d failures", x.State, x.Nodes["n1"], x.Trial(1).Failures)
	}
	x.Now = x.Now.Add(time.Hour)
	do(&Entry{Resumed: &Resumed{Application: "other", User: "ann"}})
	do(&Entry{Started: &Started{Attempt: 1}})
	one := x.Trial(1)
	if one.State != training.Pending || one.Failures != 0 || len(one.FailedOn) != 0 || x.Nodes["n1"].Excluded != 0 || len(x.Nodes["n1"].Strikes) != 0 {
		t.Errorf("trial %s with %d failures on %v, n1 %+v", one.State, one.Failures, one.FailedOn, x.Nodes["n1"])
	}
	expires := func(after time.Duration) bool {
		return len(x.Due(x.Now.Add(after), time.Hour, func(string, int) training.Millis { return x.Now }, always)) > 0
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

// Two members of a population are far ahead of the other two. One of those becomes a copy of the best one: of what that was when it had come as
// far, which was kept for it, and is dropped when the last has come by.
func TestACopyIsOfWhatTheOtherWasThen(t *testing.T) {
	x, do := begun(t, `{"entry": "m:f", "optimizer": {"type": "pbt", "population": 4, "interval": 3, "quantile": 0.5}, "max_epochs": 12, "seed": 1, "space": {"x": ["DOUBLE", [0, 1]]}}`,
		"n1", "n2", "n3", "n4")
	attempts := map[training.TrialID]int{}
	var gone []string
	begin := func(id training.TrialID) *trial {
		t.Helper()
		do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: fmt.Sprintf("e%04d", id)}}}})
		attempts[id]++
		if x.Trial(id) == nil || x.Trial(id).Attempt != attempts[id] || !x.Trial(id).State.Held() {
			t.Fatalf("trial %v does not go on", id)
		}
		return x.Trial(id)
	}
	// train goes on to the budget, with a checkpoint of every epoch.
	train := func(id training.TrialID, from, to int64) {
		t.Helper()
		container := fmt.Sprint("c", int(id))
		for step := from + 1; step <= to; step++ {
			var r protocol.Report
			r.Events = []protocol.MetricEvent{{Seq: step - from, Step: step, Metrics: map[string]training.Metric{"metric": training.M(float64(step) - float64(id)/10)}}}
			if _, _, err := x.Report(x.Now, container, id, attempts[id], r); err != nil {
				t.Fatal(err)
			}
			c := protocol.Commit{Step: step, URI: fmt.Sprintf("/e/%v/checkpoints/%d/step-%d", id, attempts[id], step), Files: []training.File{{Name: "a", Size: 1}}}
			if _, _, err := x.Commit(x.Now, container, id, attempts[id], c); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := x.Final(x.Now, container, id, attempts[id], protocol.Final{Status: training.Completed, Seq: to - from}); err != nil {
			t.Fatal(err)
		}
		gone = append(gone, x.Take().Deletes...)
	}
	for id := range training.TrialID(4) {
		begin(id + 1)
	}
	train(1, 0, 3)
	train(2, 0, 3)
	for _, to := range []int64{6, 9} {
		begin(1)
		begin(2)
		train(1, to-3, to)
		train(2, to-3, to)
	}
	train(3, 0, 3)
	c := begin(3)
	if c.Resume == nil || c.Resume.URI != "/e/0001/checkpoints/1/step-3" {
		t.Fatalf("trial 3 goes on from %+v", c.Resume)
	}
	if slices.Contains(gone, c.Resume.URI) {
		t.Fatalf("%s was dropped", c.Resume.URI)
	}
	if !slices.Contains(gone, "/e/0001/checkpoints/1/step-2") {
		t.Fatalf("dropped: %v", gone)
	}
	train(4, 0, 3)
	begin(4)
	train(3, 3, 6)
	train(4, 3, 6)
	if !slices.Contains(gone, "/e/0001/checkpoints/1/step-3") || slices.Contains(gone, "/e/0001/checkpoints/2/step-6") {
		t.Fatalf("dropped: %v", gone)
	}
}
