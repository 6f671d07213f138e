package experiment

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// A gang of which nobody does anything waits for itself, and begins again from its last checkpoint. One of which a member works may be long.
func TestAGangThatWaitsForItselfBeginsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		spec  string
		idle  [2]time.Duration
		after time.Duration
		found bool
	}{
		"all wait":               {"", [2]time.Duration{idleTimeout, idleTimeout + time.Second}, idleTimeout + time.Second, true},
		"one works":              {"", [2]time.Duration{idleTimeout, 0}, 5 * idleTimeout, false},
		"reported since":         {"", [2]time.Duration{idleTimeout, idleTimeout}, idleTimeout, false},
		"they are said to wait":  {`, "report_timeout": "2h"`, [2]time.Duration{idleTimeout, idleTimeout}, 2 * idleTimeout, false},
		"and have waited longer": {`, "report_timeout": "2h"`, [2]time.Duration{2 * time.Hour, 2 * time.Hour}, 2*time.Hour + 1e9, true},
	} {
		x, _ := begun(t, `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 1, "executors": 2, "distributed": {"framework": "plain", "workers": 2, "restarts": 1}, "space": {"x": ["DOUBLE", [0, 1]]}`+c.spec+`}`, "n1", "n2")
		if _, _, err := x.Next(x.Now, "e0002", 0); err != nil || x.Held != 1 {
			t.Fatal(err)
		}
		idle := func(executor string, _ int) time.Duration { return c.idle[executor[4]-'1'] }
		if got := x.Idle(x.Now.Add(c.after), idle); len(got) != 0 {
			t.Errorf("%s: before all have come: %+v", name, got[0])
		}
		for rank := range 2 {
			m := x.Trial(1).Members[rank]
			if _, _, err := x.Join(x.Now, x.Executor(m.Executor).Container, 1, 1, protocol.Join{Rank: rank, Host: "10.0.0.1", Ports: []int{4000 + rank}}); err != nil {
				t.Fatal(err)
			}
		}
		got := x.Idle(x.Now.Add(c.after), idle)
		if len(got) > 0 != c.found {
			t.Errorf("%s: %d are found", name, len(got))
			continue
		}
		for _, e := range got {
			if _, err := x.Propose(x.Now.Add(c.after), e); err != nil {
				t.Fatal(err)
			}
		}
		one := x.Trial(1)
		if c.found && (one.State != training.Pending || one.Failures != 1 || one.Error.Type != training.CodeIdle || x.Executor("e0001").State != executorIdle || len(x.Nodes["n1"].Strikes) != 0) {
			t.Errorf("%s: %s after %d failures, %+v, n1 %+v", name, one.State, one.Failures, one.Error, x.Nodes["n1"])
		}
	}
}

var gangSpecs = []string{
	`{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 4, "executors": 6, "seed": 1, "distributed": {"workers": 3, "restarts": 9}, "space": {"x": ["DOUBLE", [0, 1]]}}`,
	`{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 4, "executors": 7, "seed": 1, "distributed": {"workers": 3, "min_workers": 1, "restarts": 9}, "space": {"x": ["DOUBLE", [0, 1]]}}`,
	`{"entry": "m:f", "optimizer": {"type": "asha", "eta": 2, "r_max": 2}, "trials": 4, "executors": 8, "seed": 1, "resources": {"gpus": 1}, "distributed": {"framework": "parameter_server", "workers": 2, "parameter_servers": 1, "evaluator": true, "restarts": 9}, "space": {"x": ["DOUBLE", [0, 1]]}}`,
	`{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 5, "repeats": 2, "executors": 3, "seed": 1, "trials_per_executor": 3, "space": {"x": ["DOUBLE", [0, 1]]}}`,
}

// Whatever executors do: an attempt has all of its members or none, no slot has two, nobody waits while a whole gang could run, and
// in the end every trial has ended. So two gangs cannot wait for each other's executors.
func TestGangsCannotBlockEachOther(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		spec, err := training.ParseSpec([]byte(rapid.SampledFrom(gangSpecs).Draw(rt, "spec")), "ann")
		if err != nil {
			rt.Fatal(err)
		}
		x, now := New(), training.Millis(1)
		var log []*Entry
		propose := func(e *Entry, err error) {
			if err != nil {
				rt.Fatal(err)
			}
			log = append(log, x.Take().Entries...)
		}
		propose(x.Propose(now, &Entry{Created: &Created{Version: Version, ID: "a_1", Application: "a", User: "ann", Directory: "/e", Spec: spec}}))
		propose(x.Propose(now, &Entry{Started: &Started{Attempt: 1}}))
		refused := func(err error) {
			if _, ok := err.(*Refusal); err != nil && !ok {
				rt.Fatal(err)
			}
		}
		consistent := func() {
			members := map[string]training.TrialID{}
			held := 0
			for _, tr := range x.Trials {
				if !tr.State.Held() {
					continue
				}
				held++
				for _, m := range tr.Members {
					if m.Done == "" {
						key := fmt.Sprint(m.Executor, "/", m.Slot)
						if members[key] != 0 {
							rt.Fatalf("%s has trials %v and %v", key, members[key], tr.ID)
						}
						members[key] = tr.ID
					}
				}
			}
			n := 0
			for _, w := range x.Executors {
				for slot, id := range w.Slots {
					if id != 0 {
						n++
					}
					if got := members[fmt.Sprint(w.ID, "/", slot)]; got != id {
						rt.Fatalf("entry %d: slot %d of %s (%s) holds %v, its trial is %v", x.N, slot, w.ID, w.State, id, got)
					}
				}
			}
			if n != len(members) || held != x.Held {
				rt.Fatalf("entry %d: %d slots hold %d members, %d trials are held, %d counted", x.N, n, len(members), held, x.Held)
			}
		}
		register := func(serves bool) {
			_, _, e, err := x.Register(now, protocol.RegisterExecutor{ContainerID: fmt.Sprint("c", len(x.Executors)), Instance: "i", Host: fmt.Sprint("h", len(x.Executors)%4)}, fmt.Sprint("n", len(x.Executors)%7), serves)
			propose(e, err)
		}
		grant := func() {
			for _, serves := range []bool{false, true} {
				if x.Usable(serves) < x.Wanted(serves) {
					register(serves)
				}
			}
		}
		// ask lets all slots ask; what waits then waits rightly.
		ask := func() {
			for _, w := range x.Executors {
				for slot := range w.Slots {
					if w.Alive() {
						_, e, err := x.Next(now, w.ID, slot)
						propose(e, err)
					}
				}
			}
			if d := spec.Distributed; d != nil && !x.Closing() && len(x.Queue)+x.Outlook() > 0 {
				train, serve, _ := x.idle()
				need := d.Workers
				if !x.separate() {
					need += d.Servers()
				}
				if len(train) >= need && (!x.separate() || len(serve) >= d.Servers()) {
					rt.Fatalf("entry %d: %d and %d executors wait, a gang could run", x.N, len(train), len(serve))
				}
			}
		}
		step := func(tr *trial, rank int, choice int) {
			m := tr.Members[rank]
			w := x.Executor(m.Executor)
			switch {
			case m.Place != nil && !tr.whole():
				j := protocol.Join{Rank: rank, Host: "10.0.0.1"}
				for i := range x.Spec.Distributed.Shape(tr.workers()).Ports(m.Place.Role) {
					j.Ports = append(j.Ports, 4000+rank+i)
				}
				_, e, err := x.Join(now, w.Container, tr.ID, tr.Attempt, j)
				refused(err)
				propose(e, nil)
			case choice < 4:
				ev := protocol.MetricEvent{Seq: m.Seq + 1, Step: m.Seq + 100*int64(tr.Attempt), Metrics: map[string]training.Metric{"metric": training.M(float64(tr.ID))}}
				_, e, err := x.Report(now, w.Container, tr.ID, tr.Attempt, protocol.Report{Rank: rank, Events: []protocol.MetricEvent{ev}})
				refused(err)
				propose(e, nil)
			case choice < 6:
				at := m.Seq + 100*int64(tr.Attempt)
				_, e, err := x.Commit(now, w.Container, tr.ID, tr.Attempt, protocol.Commit{Rank: rank, Step: at, URI: fmt.Sprintf("%s/step-%d", x.Directories(tr, 0).Checkpoints, at), Files: []training.File{{Name: "m"}}})
				refused(err)
				propose(e, nil)
			default:
				status, metric := training.Completed, training.M(1)
				_, e, err := x.Final(now, w.Container, tr.ID, tr.Attempt, protocol.Final{Rank: rank, Seq: m.Seq, Status: status, Metric: &metric})
				refused(err)
				propose(e, nil)
			}
		}
		running := func() (out []*trial) {
			for _, tr := range x.Trials {
				if tr.State.Held() {
					out = append(out, tr)
				}
			}
			return out
		}
		for range rapid.IntRange(0, 80).Draw(rt, "steps") {
			now = now.Add(elasticWait / 3)
			switch choice := rapid.IntRange(0, 9).Draw(rt, "what"); {
			case choice < 3:
				grant()
			case choice < 5:
				ask()
			case choice == 5 && len(x.Executors) > 0:
				w := rapid.SampledFrom(x.Executors).Draw(rt, "lost")
				propose(x.Propose(now, &Entry{Lost: &Lost{Executor: w.ID, Reason: "test", Blame: rapid.IntRange(0, 5).Draw(rt, "blame") == 0}}))
			default:
				if trs := running(); len(trs) > 0 {
					tr := rapid.SampledFrom(trs).Draw(rt, "trial")
					step(tr, rapid.IntRange(0, len(tr.Members)-1).Draw(rt, "rank"), rapid.IntRange(0, 9).Draw(rt, "step"))
				}
			}
			consistent()
		}
		for round := 0; !x.Over(); round++ { // from here on executors come and nothing fails
			if round > 300 {
				rt.Fatalf("it does not end: %d held, queue %v, outlook %d, wanted %d", x.Held, x.Queue, x.Outlook(), x.Wanted(false))
			}
			now = now.Add(elasticWait / 3)
			for _, node := range x.Excluded() {
				propose(x.Propose(now, &Entry{Forgiven: &Forgiven{Node: node}}))
			}
			for _, e := range x.Due(now, 1<<40, func(string, int) training.Millis { return now }, always) {
				propose(x.Propose(now, e))
			}
			for _, w := range x.Executors {
				if w.State == ExecutorDraining && w.Holds() == 0 {
					propose(x.Propose(now, &Entry{Lost: &Lost{Executor: w.ID, Told: true}}))
				}
			}
			grant()
			ask()
			for _, tr := range running() {
				attempt := tr.Attempt
				for rank := range tr.Members {
					if tr.State.Held() && tr.Attempt == attempt && tr.Members[rank].Done == "" {
						step(tr, rank, 9)
					}
				}
			}
			consistent()
		}
		for _, tr := range x.Trials {
			if !tr.State.Final() {
				rt.Fatalf("trial %v is %s", tr.ID, tr.State)
			}
		}
		want, err := x.Snapshot(0)
		if err != nil {
			rt.Fatal(err)
		}
		y := New() // and the journal makes it again
		for _, e := range log {
			b, err := e.Encode()
			if err != nil {
				rt.Fatal(err)
			}
			again, err := DecodeEntry(b)
			if err == nil {
				err = y.Apply(again)
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
		if got, _ := y.Snapshot(0); string(got) != string(want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			rt.Fatalf("the journal makes another state\n%s\n%s", want[max(0, at-200):min(len(want), at+200)], got[max(0, at-200):min(len(got), at+200)])
		}
	})
}
