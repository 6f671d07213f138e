package state

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

func waitsFor(outcome rm.Outcome, ids ...rm.ApplicationID) (out []rm.Dependency) {
	for _, id := range ids {
		out = append(out, rm.Dependency{Application: id, Outcome: outcome})
	}
	return out
}

// ends has an application come to an outcome: it is killed, or the master that it had says how it ended.
func (c *cluster) ends(id rm.ApplicationID, final rm.FinalStatus) {
	c.t.Helper()
	if final == rm.FinalKilled {
		c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
		return
	}
	c.runs(id)
	r := c.must(&statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{Application: ApplicationID(id), Attempt: 1}}})
	c.must(&statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: ApplicationID(id), Attempt: 1, Epoch: r.Epoch, Final: string(final)}}})
}

// runs starts the master of an application.
func (c *cluster) runs(id rm.ApplicationID) {
	c.t.Helper()
	if g := c.grant(c.epoch, id, "", rm.Resource{Memory: 1 << 30, VCores: 1}, "a"); !g.Reason.IsZero() {
		c.t.Fatal(g.Reason)
	}
	k := c.View().Application(id).Attempt().Container
	c.must(&statepb.Command{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{Epoch: c.epoch, Node: "a", Incarnation: "i", Statuses: []*statepb.Status{{Container: ContainerID(k), State: string(rm.ContainerRunning)}}}}})
}

func TestWhatWaitsForAnotherStartsOrEndsByHowThatEnds(t *testing.T) {
	for _, row := range []struct {
		outcome rm.Outcome
		final   rm.FinalStatus // of the first; empty: it has only started
		starts  bool
		waits   bool
	}{
		{rm.OutcomeSucceeded, rm.FinalSucceeded, true, false},
		{rm.OutcomeSucceeded, rm.FinalFailed, false, false},
		{rm.OutcomeSucceeded, rm.FinalKilled, false, false},
		{rm.OutcomeSucceeded, "", false, true},
		{rm.OutcomeFailed, rm.FinalSucceeded, false, false},
		{rm.OutcomeFailed, rm.FinalFailed, true, false},
		{rm.OutcomeFailed, rm.FinalKilled, true, false},
		{rm.OutcomeEnded, rm.FinalFailed, true, false},
		{rm.OutcomeEnded, "", false, true},
		{rm.OutcomeStarted, "", true, false},
		{rm.OutcomeStarted, rm.FinalKilled, true, false},
	} {
		for _, late := range []bool{false, true} { // submitted before and after the other has settled
			c := newCluster(t, Config{})
			c.node("a", "i", 0)
			first := c.submit(&rm.Application{}).Application
			settle := func() {
				if row.final == "" {
					c.runs(first)
				} else {
					c.ends(first, row.final)
				}
			}
			if late {
				settle()
			}
			r := c.submit(&rm.Application{After: waitsFor(row.outcome, first, first)})
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			third := c.submit(&rm.Application{After: waitsFor(rm.OutcomeSucceeded, r.Application)}).Application
			c.sound()
			if !late {
				if a := c.View().Application(r.Application); a.WantsMaster() || len(a.After) != 1 {
					t.Fatalf("%+v: does not wait: %+v", row, a)
				}
				if g := c.grant(c.epoch, r.Application, "", rm.Resource{Memory: 1 << 30, VCores: 1}, "a"); g.Reason.IsZero() {
					t.Errorf("%+v: its master is granted", row)
				}
				settle()
			}
			a := c.View().Application(r.Application)
			killed := a.State == rm.StateKilled
			if a.WantsMaster() != row.starts || len(a.After) > 0 != row.waits || killed == (row.starts || row.waits) {
				t.Errorf("%+v, late %v: %s, waits for %v", row, late, a.State, a.After)
			}
			if killed && !strings.Contains(a.Diagnostics, "it can never start: it was to wait for "+first.String()) {
				t.Errorf("diagnostics %q", a.Diagnostics)
			}
			if c.View().Application(third).State.Final() != killed {
				t.Errorf("%+v: what waits for it is %s", row, c.View().Application(third).State)
			}
			var b bytes.Buffer
			f, _ := c.Freeze()
			if _, err := f.WriteTo(&b); err != nil {
				t.Fatal(err)
			}
			again := New(Config{})
			if err := again.Restore(&b); err != nil || again.Hash() != c.Hash() || again.Check() != nil {
				t.Errorf("restored: %v %v", err, again.Check())
			}
		}
	}
}

func TestDependenciesThatAreRefused(t *testing.T) {
	c := newCluster(t, Config{})
	unknown := rm.Dependency{Application: rm.ApplicationID{Cluster: 1, Sequence: 9}, Outcome: rm.OutcomeEnded}
	if r := c.submit(&rm.Application{After: []rm.Dependency{unknown}}); !errors.Is(r.Err, metadata.ErrInvalidArgument) || !strings.Contains(r.Err.Error(), "there is no application application_1_0009") {
		t.Errorf("an unknown one: %v", r.Err)
	}
	first := c.submit(&rm.Application{IdempotencyKey: "k"}).Application
	if r := c.submit(&rm.Application{After: waitsFor("sat", first)}); !errors.Is(r.Err, metadata.ErrInvalidArgument) {
		t.Errorf("no outcome: %v", r.Err)
	}
	if r := c.submit(&rm.Application{After: make([]rm.Dependency, rm.MaxAfter+1)}); !errors.Is(r.Err, metadata.ErrInvalidArgument) {
		t.Errorf("too many: %v", r.Err)
	}
	if r := c.submit(&rm.Application{IdempotencyKey: "k", After: []rm.Dependency{unknown}}); !r.Existing {
		t.Errorf("a repeat: %+v", r)
	}
	c.sound()
}

// A long chain ends at once, and in one command.
func TestAChainOfDependencies(t *testing.T) {
	c := newCluster(t, Config{MaxApplications: 10_000})
	first := c.submit(&rm.Application{}).Application
	last := first
	for range 1000 {
		last = c.submit(&rm.Application{After: waitsFor(rm.OutcomeSucceeded, last)}).Application
	}
	c.ends(first, rm.FinalKilled)
	if a := c.View().Application(last); a.State != rm.StateKilled {
		t.Errorf("the last is %s", a.State)
	}
}
