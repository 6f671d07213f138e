package experiment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/search"
)

const pairSpec = `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 2, "executors": 2, "seed": 1, "report_timeout": "30s", "stop_grace": "1s",
	"distributed": {"framework": "plain", "workers": 2, "restarts": 3}, "space": {"x": ["DOUBLE", [0, 1]]}}`

// pair begins a gang of two that is whole.
func pair(t *testing.T) (x *Experiment, do func(*Entry)) {
	t.Helper()
	return gangOf(t, pairSpec)
}

func gangOf(t *testing.T, spec string) (x *Experiment, do func(*Entry)) {
	t.Helper()
	x, do = begun(t, spec, "n1", "n2")
	if _, _, err := x.Next(x.Now, "e0001", 0); err != nil {
		t.Fatal(err)
	}
	for rank, m := range x.Trial(1).Members {
		j := protocol.Join{Rank: rank, Host: "10.0.0.1", Ports: []int{4000 + rank}}
		if _, _, err := x.Join(x.Now, x.Executor(m.Executor).Container, 1, 1, j); err != nil {
			t.Fatal(err)
		}
	}
	return x, do
}

// everyone is heard of at every moment.
func everyone(now training.Millis) func(string, int) training.Millis {
	return func(string, int) training.Millis { return now }
}

// always is the time of a controller that was there at every moment.
func always(at training.Millis) training.Millis { return at }

// Who stops an experiment, or a trial, whose chief has its result already, waits for the rest of the gang no longer than for any
// other: the others end it, or time does.
func TestAGangWhoseChiefHasEndedCanBeStopped(t *testing.T) {
	for _, late := range []bool{false, true} {
		x, do := pair(t)
		if _, _, err := x.Final(x.Now, x.Executor(x.Trial(1).executor()).Container, 1, 1, protocol.Final{Status: training.Completed, Metric: new(training.M(1))}); err != nil {
			t.Fatal(err)
		}
		if err := x.Decide(x.Now, Decided{Trial: 1, Reason: "too late"}); err != nil {
			t.Fatal(err)
		}
		do(&Entry{Stopped: &Stopped{User: "ann"}})
		if late {
			now := x.Now.Add(time.Minute)
			for _, e := range x.Due(now, 4*time.Second, everyone(now), always) {
				do(e)
			}
		} else if _, _, err := x.Final(x.Now, x.Executor(x.Trial(1).Members[1].Executor).Container, 1, 1, protocol.Final{Rank: 1, Status: training.Completed}); err != nil {
			t.Fatal(err)
		}
		if one := x.Trial(1); one.State != training.Completed || !x.Over() {
			t.Errorf("late %v: trial %s, experiment %s, ending %s", late, one.State, x.State, x.Ending)
		}
	}
}

// Imports may take longer than the time between two reports: what is allowed until the first one is more. The time counts anew in
// each attempt, and the chief's reports are those that count.
func TestTheTimeBetweenReportsCountsFromTheFirst(t *testing.T) {
	x, do := pair(t)
	due := func(after time.Duration) []*Entry {
		now := x.Now.Add(after)
		return x.Due(now, 4*time.Second, everyone(now), always)
	}
	report := func(rank int, seq int64) {
		t.Helper()
		one := x.Trial(1)
		r := points(seq)
		r.Rank = rank
		if _, _, err := x.Report(x.Now, x.Executor(one.Members[rank].Executor).Container, 1, one.Attempt, r); err != nil {
			t.Fatal(err)
		}
	}
	for attempt := 1; attempt <= 2; attempt++ {
		report(1, 1) // a worker's says nothing of the chief
		if e := due(9 * time.Minute); len(e) > 0 {
			t.Fatalf("attempt %d: %+v after 9 minutes without any report", attempt, e[0])
		}
		if e := due(11 * time.Minute); len(e) != 1 || e[0].Expired == nil || e[0].Expired.Code != training.CodeNoReport {
			t.Fatalf("attempt %d: %v after 11 minutes without any report", attempt, e)
		}
		report(0, 1)
		report(1, 2)
		if e := due(29 * time.Second); len(e) > 0 {
			t.Fatalf("attempt %d: %+v after 29 s", attempt, e[0])
		}
		e := due(31 * time.Second)
		if len(e) != 1 || e[0].Expired == nil || e[0].Expired.Code != training.CodeNoReport {
			t.Fatalf("attempt %d: %v after 31 s without a report of the chief", attempt, e)
		}
		do(e[0])
		if got := x.Trial(1).Stopping.Error.Message; got != "nothing was reported for 30s" {
			t.Error(got)
		}
		chief := x.Trial(1).executor()
		if _, _, err := x.Final(x.Now, x.Executor(chief).Container, 1, attempt, protocol.Final{Seq: 1, Status: training.Stopped}); err != nil {
			t.Fatal(err)
		}
		if attempt == 2 {
			break
		}
		if _, _, err := x.Next(x.Now, chief, 0); err != nil {
			t.Fatal(err)
		}
		for rank, m := range x.Trial(1).Members {
			j := protocol.Join{Rank: rank, Host: "10.0.0.1", Ports: []int{5000 + rank}}
			if _, _, err := x.Join(x.Now, x.Executor(m.Executor).Container, 1, 2, j); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Where nobody could be heard of since before a limit began to count, what an executor was told or waits for has its whole time from then on, and
// what the function was to do meanwhile counts when there was time to say so.
func TestLimitsWaitForWhoCouldNotBeHeard(t *testing.T) {
	const lease = 4 * time.Second
	for _, c := range []struct {
		name, spec string
		begin      func(x *Experiment, do func(*Entry))
		after      time.Duration // the moment from which time counts
		kind, code string
	}{
		{"told to stop", pairSpec, func(x *Experiment, do func(*Entry)) {
			do(&Entry{Expired: &expired{1, 1, training.CodeNoReport}})
		}, 2*time.Second + lease, "lost", ""},
		{"chief ended", pairSpec, func(x *Experiment, do func(*Entry)) {
			do(&Entry{Ended: &ended{1, 1, protocol.Final{Status: training.Completed, Metric: new(training.M(1))}}})
		}, time.Second + lease, "expired", training.CodeNotEnding},
		{"not whole", pairSpec, func(x *Experiment, do func(*Entry)) {
			x.Trial(1).Members[1].Joined = false
		}, joinTimeout, "expired", training.CodeNotWhole},
		{"no report", pairSpec, func(x *Experiment, do func(*Entry)) {
			do(&Entry{Reported: &reported{Trial: 1, Attempt: 1, Events: points(1).Events}})
		}, lease, "expired", training.CodeNoReport},
		{"too long", strings.Replace(pairSpec, "report_timeout", "trial_timeout", 1), func(x *Experiment, do func(*Entry)) {}, lease, "expired", training.CodeTimeout},
		{"quick", strings.Replace(pairSpec, `"report_timeout": "30s"`, `"trial_timeout": "3s"`, 1), func(x *Experiment, do func(*Entry)) {}, 3 * time.Second, "expired", training.CodeTimeout},
		{"too few", pairSpec, func(x *Experiment, do func(*Entry)) {
			do(&Entry{Lost: &Lost{Executor: "e0002", Reason: "test"}})
		}, regroup, "drained", ""},
	} {
		x, do := gangOf(t, c.spec)
		c.begin(x, do)
		heard := x.Now.Add(time.Hour)
		since := func(at training.Millis) training.Millis { return max(at, heard) }
		due := func(now training.Millis, since func(training.Millis) training.Millis) []*Entry {
			return x.Due(now, lease, everyone(now), since)
		}
		if got := due(heard.Add(c.after), since); len(got) > 0 {
			t.Errorf("%s: %s before its time", c.name, got[0].What())
		}
		for _, got := range [][]*Entry{due(heard.Add(c.after+time.Millisecond), since), due(heard, always)} {
			if len(got) != 1 || got[0].What() != c.kind || c.code != "" && got[0].Expired.Code != c.code {
				t.Errorf("%s: %v is due", c.name, got)
			}
		}
	}
}

// The limits of a gang's function count from when the gang is whole: no process has begun before, however long that was after the assignment.
func TestTheLimitsOfAGangCountFromWhenItIsWhole(t *testing.T) {
	const lease = 4 * time.Second
	for _, c := range []struct {
		name, limit, code string
		after             time.Duration
	}{
		{"no report", `"report_timeout": "30s"`, training.CodeNoReport, firstReport},
		{"too long", `"trial_timeout": "2m"`, training.CodeTimeout, 2 * time.Minute},
		{"idle", `"timeout": "9h"`, training.CodeIdle, idleTimeout},
	} {
		x, _ := begun(t, strings.Replace(pairSpec, `"report_timeout": "30s"`, c.limit, 1), "n1", "n2")
		if _, _, err := x.Next(x.Now, "e0001", 0); err != nil {
			t.Fatal(err)
		}
		back := x.Now.Add(11 * time.Minute) // of the controller
		since := func(at training.Millis) training.Millis { return max(at, back) }
		due := func(now training.Millis) []*Entry {
			silent := func(string, int) time.Duration { return time.Hour }
			if c.code == training.CodeIdle {
				return x.Idle(now, silent)
			}
			return x.Due(now, lease, everyone(now), since)
		}
		for rank, m := range x.Trial(1).Members {
			whole := back.Add(joinTimeout)
			if got := due(whole); len(got) > 0 {
				t.Errorf("%s: %s while it gathers", c.name, got[0].What())
			}
			j := protocol.Join{Rank: rank, Host: "10.0.0.1", Ports: []int{4000 + rank}}
			if _, _, err := x.Join(whole, x.Executor(m.Executor).Container, 1, 1, j); err != nil {
				t.Fatal(err)
			}
		}
		if got := due(x.Now.Add(c.after)); len(got) > 0 {
			t.Errorf("%s: %s %+v before its time", c.name, got[0].What(), got[0].Expired)
		}
		if got := due(x.Now.Add(c.after + time.Millisecond)); len(got) != 1 || got[0].Expired == nil || got[0].Expired.Code != c.code {
			t.Errorf("%s: %v is due", c.name, got)
		}
	}
}

// What a search suggests is compared with the journal in all that matters.
func TestTheWholeSuggestionIsCompared(t *testing.T) {
	for name, change := range map[string]func(*search.Suggestion){
		"":          func(s *search.Suggestion) { s.Label = "other words" },
		"budget":    func(s *search.Suggestion) { s.Budget++ },
		"last":      func(s *search.Suggestion) { s.Last = !s.Last },
		"promotion": func(s *search.Suggestion) { s.Promotion = true },
		"source":    func(s *search.Suggestion) { s.Source = &search.Source{Trial: 1, Step: 2} },
		"params":    func(s *search.Suggestion) { s.Params["x"] = training.Float(0.123) },
	} {
		x, do := begun(t, plainSpec, "n1")
		do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}}})
		entries := x.Take().Entries
		y := New()
		y.Compare = true
		var err error
		for _, e := range entries {
			if e.Assigned != nil {
				change(e.Assigned.Suggestion)
			}
			if err == nil {
				err = y.Apply(e)
			}
		}
		if (err != nil) != (name != "") || err != nil && !strings.Contains(err.Error(), "where it suggested") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A label is seen in the trial's row, also after a snapshot.
func TestALabelIsShown(t *testing.T) {
	x, do := begun(t, plainSpec, "n1")
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}, Suggestion: &search.Suggestion{Trial: 1, Params: training.Params{"x": training.Float(0.5)}, Last: true, Label: "model"}}})
	b, err := x.Snapshot(0)
	if err != nil {
		t.Fatal(err)
	}
	y, _, err := Restore(b)
	if err != nil {
		t.Fatal(err)
	}
	if x.Row(x.Trial(1), false).Label != "model" || y.Row(y.Trial(1), false).Label != "model" {
		t.Error("it is not")
	}
}

// The checkpoint from which a gang goes on stays until the attempt has ended: the chief may save the next one before the last
// member has read it. And no name is used twice.
func TestAGangsCheckpointStaysWhileItIsRead(t *testing.T) {
	x, do := pair(t)
	commit := func(step int64, uri string) error {
		one := x.Trial(1)
		_, _, err := x.Commit(x.Now, x.Executor(one.executor()).Container, 1, one.Attempt, protocol.Commit{Step: step, URI: uri, Files: []training.File{{Name: "m"}}})
		return err
	}
	if err := commit(1, "/e/0001/checkpoints/1/best"); err == nil || !strings.Contains(err.Error(), "/e/0001/checkpoints/1/step-1, not") {
		t.Errorf("%v", err)
	}
	if err := commit(1, "/e/0001/checkpoints/1/step-1"); err != nil {
		t.Fatal(err)
	}
	do(&Entry{Lost: &Lost{Executor: x.Trial(1).Members[1].Executor, Reason: "test"}})
	do(&Entry{Registered: &registered{Container: "c3", Instance: "i", Node: "n3"}})
	if _, _, err := x.Next(x.Now, "e0003", 0); err != nil {
		t.Fatal(err)
	}
	x.Take()
	for step := int64(2); step <= 3; step++ {
		if err := commit(step, fmt.Sprintf("/e/0001/checkpoints/2/step-%d", step)); err != nil {
			t.Fatal(err)
		}
	}
	if got := x.Take().Deletes; len(got) != 1 || got[0] != "/e/0001/checkpoints/2/step-2" {
		t.Errorf("%v are removed while the gang reads step 1", got)
	}
	do(&Entry{Lost: &Lost{Executor: "e0003", Reason: "test"}})
	if got := x.Take().Deletes; len(got) != 1 || got[0] != "/e/0001/checkpoints/1/step-1" {
		t.Errorf("%v are removed after it", got)
	}
}

// Executors that wait for a gang are woken when there are enough of them, not by each that comes: each would look at all others.
func TestExecutorsWaitForAGangInPeace(t *testing.T) {
	x, do := begun(t, strings.NewReplacer(`"executors": 2`, `"executors": 4`, `"workers": 2`, `"workers": 4, "min_workers": 3`).Replace(pairSpec))
	x.Take()
	for n := 1; n <= 4; n++ {
		do(&Entry{Registered: &registered{Container: fmt.Sprint("c", n), Instance: "i"}})
		if woken := x.Take().Wake; woken != (n >= 3) {
			t.Errorf("woken by number %d: %v", n, woken)
		}
	}
}

// One container cannot fill the state with executors, nor the journal with names.
func TestWhatAContainerSaysHasLimits(t *testing.T) {
	x, do := begun(t, plainSpec, "n1")
	do(&Entry{Assigned: &assigned{Seats: []seat{{Executor: "e0001"}}}})
	long := strings.Repeat("x", 1<<16)
	if _, _, err := x.Final(x.Now, "c1", 1, 1, protocol.Final{Status: training.Failed, Error: &training.TrialError{Type: long, Message: long, Remedy: long, Traceback: long}}); err != nil {
		t.Fatal(err)
	}
	if e := x.Trial(1).Error; len(e.Type) > 200 || len(e.Message) > 1100 || len(e.Remedy) > 1100 {
		t.Errorf("%d, %d and %d bytes", len(e.Type), len(e.Message), len(e.Remedy))
	}
	var err error
	for n := 0; err == nil; n++ {
		if n > maxRegistrations {
			t.Fatal("nobody refuses")
		}
		_, _, _, err = x.Register(x.Now, protocol.RegisterExecutor{ContainerID: "c2", Instance: fmt.Sprint(n)}, "n2", false)
	}
	if len(x.Executors) != 1+maxRegistrations {
		t.Errorf("%d executors: %v", len(x.Executors), err)
	}
}

// A trial that pauses at a rung while the experiment ends is stopped like all others that are paused then, and paused again by a resume.
func TestATrialThatPausesWhileTheExperimentEndsIsStopped(t *testing.T) {
	x, do := begun(t, `{"entry": "m:f", "optimizer": {"type": "asha", "eta": 2, "r_min": 1, "r_max": 4}, "trials": 4, "executors": 1, "seed": 1, "space": {"x": ["DOUBLE", [0, 1]]}}`, "n1")
	if _, _, err := x.Next(x.Now, "e0001", 0); err != nil {
		t.Fatal(err)
	}
	one := x.Trial(1)
	r, _, err := x.Report(x.Now, "c1", 1, 1, points(1, 2))
	if err != nil || r.Op != protocol.OpPause {
		t.Fatalf("%+v %v", r, err)
	}
	do(&Entry{Stopped: &Stopped{User: "ann"}})
	if _, _, err := x.Final(x.Now, "c1", 1, 1, protocol.Final{Seq: 2, Status: training.Paused}); err != nil {
		t.Fatal(err)
	}
	if one.State != training.Stopped || !x.Over() {
		t.Errorf("trial %s, experiment %s", one.State, x.State)
	}
	do(&Entry{Resumed: &Resumed{Application: "other", User: "ann"}})
	do(&Entry{Started: &Started{Attempt: 1}})
	if one.State != training.Paused || x.Over() {
		t.Errorf("trial %s, experiment %s after a resume", one.State, x.State)
	}
}

// Who suggests from outside may take its time: executors that are enough for a gang are not given back for that.
func TestAGangWaitsForItsSuggestion(t *testing.T) {
	doc := `{"entry": "m:f", "optimizer": {"type": "external"}, "trials": 2, "executors": 4, "resources": {"gpus": 1},
		"distributed": {"framework": "parameter_server", "workers": 3, "min_workers": 2, "parameter_servers": 1}, "space": {"x": ["DOUBLE", [0, 1]]}}`
	for train := 1; train <= 3; train++ {
		x, do := begun(t, doc)
		do(&Entry{Registered: &registered{Container: "s", Instance: "i", Serves: true}})
		for n := range train {
			do(&Entry{Registered: &registered{Container: fmt.Sprint("c", n), Instance: "i"}})
		}
		now := x.Now.Add(time.Hour)
		asked, _ := x.Asked()
		if due := x.Due(now, time.Minute, everyone(now), always); (len(due) == 0) != (train >= 2) || (asked > 0) != (train >= 2) {
			t.Errorf("%d workers: %d are due, %d suggestions wanted", train, len(due), asked)
		}
	}
}
