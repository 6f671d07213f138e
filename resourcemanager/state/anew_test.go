package state

import (
	"bytes"
	"slices"
	"testing"

	"github.com/gohops/hops/internal/release"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// anew has the next attempt of an application register, in a cluster of some level.
func (c *cluster) anew(id rm.ApplicationID, old rm.ContainerID, level int32) (rm.ContainerID, *Result) {
	c.t.Helper()
	c.status(nodeOne, "i", old, rm.ContainerComplete, 1)
	g := c.grant(c.epoch, id, "", master, nodeOne)
	if len(g.Containers) != 1 {
		c.t.Fatal(g.Reason)
	}
	return g.Containers[0], c.must(&statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{
		Application: ApplicationID(id), Attempt: int32(g.Containers[0].Attempt.Number), Level: level,
	}}})
}

// A master that starts again did not hear what the one before was told: it is told again which containers are to go.
func TestANewAttemptHearsWhoIsToGo(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 0)
	c.node("n2:1", "i", 0)
	other := c.submit(&rm.Application{User: "bob"}).Application
	id, am, epoch := c.running(&rm.Application{KeepContainers: true, MaxAttempts: 9})
	c.allocate(id, 1, epoch, 1, 0, rm.Ask{ID: "w", Resource: master, Count: 5})
	var w []rm.ContainerID
	for _, node := range []string{nodeOne, nodeOne, nodeOne, "n2:1", nodeOne} {
		g := c.grant(c.epoch, id, "w", master, node)
		if len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
		w = append(w, g.Containers[0])
	}
	c.must(&statepb.Command{Op: &statepb.Command_PreemptContainers{PreemptContainers: &statepb.PreemptContainers{Epoch: c.epoch, DeadlineMs: c.now + 60_000, Evictions: []*statepb.Eviction{{
		Application: ApplicationID(other), Queue: "root.b", Containers: []*statepb.ContainerID{ContainerID(w[4]), ContainerID(w[0]), ContainerID(w[1])},
	}}}}})
	c.must(&statepb.Command{Op: &statepb.Command_Stop{Stop: &statepb.Stop{Epoch: c.epoch, Status: int32(rm.ExitPreempted), Containers: []*statepb.ContainerID{ContainerID(w[1])}}}})
	c.must(&statepb.Command{Op: &statepb.Command_AdministerNodes{AdministerNodes: &statepb.AdministerNodes{Nodes: []string{"n2:1"}, Wish: Wish(&rm.Wish{By: "ops", Since: 1})}}})
	if events := c.View().Events(id, 0); len(events) != 5+3+1 {
		t.Fatalf("%+v", events)
	}
	am, r := c.anew(id, am, 0)
	if events := c.View().Events(id, 0); len(events) != 0 || len(r.Containers) != 5 {
		t.Errorf("below the level: %+v, %+v", events, r)
	}
	am, r = c.anew(id, am, release.RetoldNotices)
	var told []rm.ContainerID
	for _, e := range c.View().Events(id, 0) {
		told = append(told, e.Preempt)
	}
	if want := []rm.ContainerID{w[0], w[3], w[4]}; !slices.Equal(told, want) {
		t.Errorf("%v is told, want %v", told, want)
	}
	if a := c.View().Application(id); a.LastEvent-a.Acknowledged != 3 {
		t.Errorf("events up to %d, of which %d are handled", a.LastEvent, a.Acknowledged)
	}
	again := c.must(&statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{Application: ApplicationID(id), Attempt: int32(am.Attempt.Number), Level: release.RetoldNotices}}})
	if events := c.View().Events(id, 0); len(events) != 3 || again.Epoch != r.Epoch {
		t.Errorf("a repeat: %+v", events)
	}
}

// An attempt that begins hears who may stay after all, where the one before may not have.
func TestANewAttemptHearsWhoMayStay(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 0)
	other := c.submit(&rm.Application{User: "bob"}).Application
	id, am, epoch := c.running(&rm.Application{KeepContainers: true, MaxAttempts: 9})
	c.allocate(id, 1, epoch, 1, 0, rm.Ask{ID: "w", Resource: master, Count: 4})
	var w []*statepb.ContainerID
	for range 4 {
		g := c.grant(c.epoch, id, "w", master, nodeOne)
		if len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
		w = append(w, ContainerID(g.Containers[0]))
	}
	preempt := func(p *statepb.PreemptContainers) {
		p.Epoch, p.DeadlineMs = c.epoch, c.now+60_000
		c.must(&statepb.Command{Op: &statepb.Command_PreemptContainers{PreemptContainers: p}})
	}
	preempt(&statepb.PreemptContainers{Evictions: []*statepb.Eviction{{Application: ApplicationID(other), Queue: "root.b", Containers: w[:3]}}})
	preempt(&statepb.PreemptContainers{Spared: w[:1]})
	c.allocate(id, 1, epoch, 2, c.View().Application(id).LastEvent) // that far it is heard
	preempt(&statepb.PreemptContainers{Spared: w[1:2]})
	for attempt := range 2 { // the second hears nothing either
		am, _ = c.anew(id, am, release.RetoldNotices)
		var told []rm.ContainerID
		for _, e := range c.View().Events(id, 0) {
			told = append(told, e.Preempt)
		}
		if want := []rm.ContainerID{containerIDOf(w[1]), containerIDOf(w[2])}; !slices.Equal(told, want) {
			t.Errorf("attempt %d: %v is told, want %v", attempt+2, told, want)
		}
	}
	if k := c.View().Container(containerIDOf(w[1])); k.Notice != nil {
		t.Errorf("%+v", k.Notice)
	}
	c.sound()
}

// Members of an array that have succeeded are known to a master that starts again, also when their containers are forgotten.
func TestForgottenMembersHaveSucceeded(t *testing.T) {
	c := newCluster(t, Config{MaxEndedContainers: 2})
	c.node(nodeOne, "i", 0)
	id, am, _ := c.running(&rm.Application{KeepContainers: true, MaxAttempts: 9})
	am, r := c.anew(id, am, release.RememberedSuccess)
	sequence := uint64(0)
	ends := func(attempt int32, epoch uint64, number int32, exit rm.ExitStatus) {
		t.Helper()
		sequence++
		c.allocate(id, attempt, epoch, sequence, 0, rm.Ask{ID: "try-1", Resource: master, Count: 1, Instances: []int32{number}})
		g := c.grant(c.epoch, id, "try-1", master, nodeOne)
		if len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
		c.status(nodeOne, "i", g.Containers[0], rm.ContainerComplete, exit)
		sequence++
		c.allocate(id, attempt, epoch, sequence, c.View().Application(id).LastEvent)
		c.sound()
	}
	held := c.held["ann"].bytes
	for number, exit := range []rm.ExitStatus{0, 0, 7, 0, 0, 0} {
		ends(2, r.Epoch, int32(number), exit)
	}
	a := c.View().Application(id)
	if got := a.Succeeded.List(); !slices.Equal(got, []int32{0, 1, 3}) {
		t.Errorf("%v have succeeded and are forgotten", got)
	}
	if more := c.held["ann"].bytes - held; more != int64(8*len(a.Succeeded)) {
		t.Errorf("%d bytes more are held", more)
	}
	var b bytes.Buffer
	f, _ := c.Freeze()
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	restored := New(Config{MaxEndedContainers: 2})
	if err := restored.Restore(&b); err != nil || restored.Hash() != c.Hash() {
		t.Errorf("restored: %v", err)
	}
	for _, err := range restored.Check() {
		t.Error(err)
	}
	// What has succeeded stays as it is, whoever kills it.
	c.must(&statepb.Command{Op: &statepb.Command_ChangeMembers{ChangeMembers: &statepb.ChangeMembers{Application: ApplicationID(id), Numbers: []int32{0}, Reason: "killed"}}})
	if m := c.View().Application(id).MemberOf(0); m.Killed {
		t.Error("a member that has succeeded is killed")
	}
	if _, r = c.anew(id, am, release.RememberedSuccess); !slices.Equal(r.Succeeded.List(), []int32{0, 1, 3, 4}) { // the container of the second master has ended since
		t.Errorf("the next attempt hears of %v", r.Succeeded.List())
	}
	c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
	if a := c.View().Application(id); len(a.Succeeded) > 0 {
		t.Errorf("an application that has ended remembers %v", a.Succeeded.List())
	}
}

// The numbers of an array may be larger than there can be members.
func TestForgottenMembersWithLargeNumbers(t *testing.T) {
	for _, step := range []int32{1, 1000, 1 << 20} {
		c := newCluster(t, Config{MaxEndedContainers: 2})
		c.node(nodeOne, "i", 0)
		id, am, _ := c.running(&rm.Application{KeepContainers: true, MaxAttempts: 9})
		am, r := c.anew(id, am, release.RememberedSuccess)
		var want []int32
		for i := range int32(100) {
			n := 20_000 + i*step
			c.allocate(id, 2, r.Epoch, uint64(2*i+1), 0, rm.Ask{ID: "try-1", Resource: master, Count: 1, Instances: []int32{n}})
			g := c.grant(c.epoch, id, "try-1", master, nodeOne)
			if len(g.Containers) != 1 {
				t.Fatal(g.Reason)
			}
			c.status(nodeOne, "i", g.Containers[0], rm.ContainerComplete, 0)
			c.allocate(id, 2, r.Epoch, uint64(2*i+2), c.View().Application(id).LastEvent)
			want = append(want, n)
		}
		c.sound()
		_, r = c.anew(id, am, release.RememberedSuccess)
		if got := r.Succeeded.List(); len(got) < 98 || !slices.Equal(got, want[:len(got)]) {
			t.Errorf("steps of %d: the next attempt hears of %v", step, got)
		}
		var b bytes.Buffer
		f, _ := c.Freeze()
		if _, err := f.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		restored := New(Config{MaxEndedContainers: 2})
		if err := restored.Restore(&b); err != nil || restored.Hash() != c.Hash() || !slices.Equal(restored.View().Application(id).Succeeded, c.View().Application(id).Succeeded) {
			t.Errorf("restored: %v", err)
		}
	}
}

// In a cluster that was not raised nothing of that is written.
func TestNothingIsRememberedBelowTheLevel(t *testing.T) {
	c := newCluster(t, Config{MaxEndedContainers: 1})
	c.node(nodeOne, "i", 0)
	id, _, epoch := c.running(&rm.Application{})
	for n := range 3 {
		c.allocate(id, 1, epoch, uint64(2*n+1), 0, rm.Ask{ID: "w", Resource: master, Count: 1, Instances: []int32{int32(n)}})
		g := c.grant(c.epoch, id, "w", master, nodeOne)
		c.status(nodeOne, "i", g.Containers[0], rm.ContainerComplete, 0)
		c.allocate(id, 1, epoch, uint64(2*n+2), c.View().Application(id).LastEvent)
		c.sound()
	}
	if a := c.View().Application(id); a.Remembers || len(a.Succeeded) > 0 || len(c.View().Containers(id)) != 2 {
		t.Errorf("%+v, %d containers", a, len(c.View().Containers(id)))
	}
}
