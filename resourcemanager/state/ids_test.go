package state

import (
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// A submission may bring an id of its own, as in YARN. The ids that we give come from our own sequence all the same: one
// request of any user would otherwise decide about everybody's.
func TestSubmittedIDsDoNotMoveOurs(t *testing.T) {
	c := newCluster(t, Config{})
	first := c.submit(&rm.Application{}).Application
	for _, sequence := range []int64{first.Sequence + 1, 1 << 20, 1<<31 - 1} {
		id := rm.ApplicationID{Cluster: first.Cluster, Sequence: sequence}
		if r := c.submit(&rm.Application{ID: id}); r.Err != nil || r.Application != id {
			t.Fatalf("%v: %+v", id, r)
		}
	}
	if got, want := c.submit(&rm.Application{}).Application.Sequence, first.Sequence+2; got != want {
		t.Errorf("the next application has number %d, want %d: the one between is taken", got, want)
	}
	for _, sequence := range []int64{1 << 31, 1<<63 - 1, -1} {
		if r := c.submit(&rm.Application{ID: rm.ApplicationID{Cluster: first.Cluster, Sequence: sequence}}); r.Err == nil {
			t.Errorf("sequence %d is taken in", sequence)
		}
	}
	c.sound()
}

// Whoever asks for ids all the time ends nobody's submissions: behind the last number the first one comes again, with another
// time before it.
func TestIDsDoNotRunOut(t *testing.T) {
	c := newCluster(t, Config{})
	first := c.submit(&rm.Application{}).Application
	c.lastApplication = rm.MaxSequence - 1
	last := c.submit(&rm.Application{}).Application
	if want := (rm.ApplicationID{Cluster: first.Cluster, Sequence: rm.MaxSequence}); last != want {
		t.Fatalf("the last id is %v, want %v", last, want)
	}
	next := c.submit(&rm.Application{})
	if want := (rm.ApplicationID{Cluster: first.Cluster + 1, Sequence: 1}); next.Err != nil || next.Application != want {
		t.Fatalf("behind %v: %+v, want %v", last, next, want)
	}
	v := c.View()
	for id, ours := range map[rm.ApplicationID]bool{
		first: true, next.Application: true, {Cluster: first.Cluster - 1, Sequence: 1}: false, {Cluster: first.Cluster + 2, Sequence: 1}: false,
	} {
		if v.Ours(id) != ours {
			t.Errorf("%v: %v", id, !ours)
		}
	}
	c.sound()
}

// A master that starts again is told of all that ended before, however much of other applications has ended since: what it
// is not told of runs a second time.
func TestEndedContainersOfALiveApplicationAreNotForgottenForOthers(t *testing.T) {
	c := newCluster(t, Config{MaxEndedContainers: 4})
	c.node(nodeOne, "i", 4)
	id, _, epoch := c.running(&rm.Application{})
	end := func(id rm.ApplicationID, epoch, sequence uint64) rm.ContainerID {
		t.Helper()
		a := c.View().Application(id)
		c.allocate(id, 1, epoch, sequence, a.LastEvent, rm.Ask{ID: "w", Resource: oneGPU, Count: 1})
		g := c.grant(c.epoch, id, "w", oneGPU, nodeOne, "n1:1-0")
		if len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
		c.status(nodeOne, "i", g.Containers[0], rm.ContainerComplete, 0)
		return g.Containers[0]
	}
	mine := end(id, epoch, 1)
	c.allocate(id, 1, epoch, 2, c.View().Application(id).LastEvent) // handled
	other, _, e := c.running(&rm.Application{User: "bob"})
	for i := range 10 {
		end(other, e, uint64(i+1))
	}
	if c.View().Container(mine) == nil {
		t.Error("forgotten")
	}
	if n := c.containers.Len(); n > 4+3 {
		t.Errorf("%d containers are remembered", n)
	}
	c.sound()
}
