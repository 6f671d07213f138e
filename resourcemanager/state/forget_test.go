package state

import (
	"bytes"
	"testing"

	"github.com/gohops/hops/internal/release"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// raised is a cluster whose leader has said a level.
func raised(t *testing.T, config Config, level int32) *cluster {
	c := newCluster(t, config)
	c.must(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm1", Level: level}}})
	return c
}

// restored is another cluster that goes on from a snapshot.
func (c *cluster) restored(config Config) *cluster {
	c.t.Helper()
	var b bytes.Buffer
	f, err := c.Freeze()
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := f.WriteTo(&b); err != nil {
		c.t.Fatal(err)
	}
	other := &cluster{t: c.t, State: New(config), index: c.index, now: c.now}
	if err := other.Restore(&b); err != nil || other.Hash() != c.Hash() {
		c.t.Fatalf("restored: %v", err)
	}
	other.sound()
	return other
}

func (c *cluster) kill(id rm.ApplicationID) {
	c.t.Helper()
	c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
}

// An application that has ended and whose container does not go keeps nobody's from being forgotten.
func TestAContainerThatStaysKeepsNoEndedApplications(t *testing.T) {
	for _, level := range []int32{release.Forgetting - 1, release.Forgetting} {
		config := Config{MaxEnded: 4}
		c := raised(t, config, level)
		c.node(nodeOne, "i", 2)
		id, am, _ := c.running(&rm.Application{})
		c.kill(id)
		flood := func(c *cluster) {
			for range 100 {
				if r := c.submit(&rm.Application{State: rm.StateFailed, Diagnostics: "no such queue"}); r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			c.sound()
		}
		flood(c)
		late := c.restored(config)
		flood(late)
		flood(c)
		if c.Hash() != late.Hash() {
			t.Error("a replica from a snapshot differs")
		}
		want := 5
		if level < release.Forgetting { // as the program before, so that all members forget the same
			want = 201
		}
		for _, c := range []*cluster{c, late} {
			if n := c.apps.Len(); n != want {
				t.Errorf("level %d: %d applications are remembered, want %d", level, n, want)
			}
			if c.View().Application(id) == nil {
				t.Error("who still holds a container is forgotten")
			}
			c.status(nodeOne, "i", am, rm.ContainerComplete, 0)
			c.sound()
			flood(c)
			if n := c.apps.Len(); n != 4 || c.View().Application(id) != nil {
				t.Errorf("level %d: %d applications are remembered after the container's end", level, n)
			}
		}
	}
}

// ended lets so many containers of an application end that its master does not hear of.
func (c *cluster) ended(id rm.ApplicationID, epoch uint64, n int) {
	c.t.Helper()
	c.allocate(id, 1, epoch, 1, 0, rm.Ask{ID: "w", Resource: master, Count: 100})
	var all []rm.ContainerID
	for range n {
		g := c.grant(c.epoch, id, "w", master, nodeOne)
		if len(g.Containers) != 1 {
			c.t.Fatal(g.Reason)
		}
		all = append(all, g.Containers[0])
	}
	for _, k := range all {
		c.status(nodeOne, "i", k, rm.ContainerComplete, 0)
	}
	c.sound()
}

// What masters do not acknowledge drives out nobody's ended containers.
func TestUnacknowledgedEndsDriveOutNobody(t *testing.T) {
	config := Config{MaxEndedContainers: 4}
	c := raised(t, config, release.Forgetting)
	c.node(nodeOne, "i", 2)
	mallory, _, epoch := c.running(&rm.Application{User: "mallory"})
	c.ended(mallory, epoch, 6)
	ann, am, _ := c.running(&rm.Application{User: "ann"})
	c.kill(ann)
	c.status(nodeOne, "i", am, rm.ContainerComplete, 0)
	for _, c := range []*cluster{c, c.restored(config)} {
		if c.View().Container(am) == nil {
			t.Error("ann's container is forgotten")
		}
		if n := len(c.View().Containers(mallory)); n != 7 {
			t.Errorf("%d containers of mallory's are remembered, want her master and 6 that it has not heard of", n)
		}
		if r := c.grant(c.epoch, mallory, "w", master, nodeOne); len(r.Containers) != 0 || !c.View().HeldBack("mallory") {
			t.Errorf("more is granted to whose masters acknowledge nothing")
		}
		bob, _, of := c.running(&rm.Application{User: "bob"}) // nobody else has less for it, and masters begin
		if c.View().HeldBack("bob") {
			t.Error("bob is held back")
		}
		c.ended(bob, of, 1)
		// One that is told is forgotten before those of others that nobody was told of.
		c.allocate(bob, 1, of, 2, c.View().Application(bob).LastEvent)
		c.allocate(mallory, 1, epoch, 2, c.View().Application(mallory).LastEvent)
		c.sound()
		if r := c.grant(c.epoch, mallory, "w", master, nodeOne); len(r.Containers) != 1 || c.View().HeldBack("mallory") {
			t.Errorf("nothing is granted to who has acknowledged: %v", r.Reason)
		}
		if n := c.containerCount; n != 4 {
			t.Errorf("%d ended containers are remembered, want 4", n)
		}
	}
}

// Of live applications the one that has most loses what its master has heard of, also when another has more that none has.
func TestWhatIsAcknowledgedIsForgottenBesideWhatIsNot(t *testing.T) {
	c := raised(t, Config{MaxEndedContainers: 4}, release.Forgetting)
	c.node(nodeOne, "i", 2)
	mallory, _, epoch := c.running(&rm.Application{User: "mallory"})
	c.ended(mallory, epoch, 6)
	ann, _, of := c.running(&rm.Application{User: "ann"})
	for i := range uint64(6) {
		c.allocate(ann, 1, of, 2*i+1, 0, rm.Ask{ID: "w", Resource: master, Count: 1})
		g := c.grant(c.epoch, ann, "w", master, nodeOne)
		if len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
		c.status(nodeOne, "i", g.Containers[0], rm.ContainerComplete, 0)
		c.allocate(ann, 1, of, 2*i+2, c.View().Application(ann).LastEvent)
		c.sound()
	}
	if n, m := len(c.View().Containers(ann)), len(c.View().Containers(mallory)); n != 5 || m != 7 {
		t.Errorf("%d containers of ann's are remembered, want 5; of mallory's %d, want 7", n, m)
	}
}

// Below the level all is counted together, as the program before does it.
func TestUnacknowledgedEndsCountBelowTheLevel(t *testing.T) {
	c := raised(t, Config{MaxEndedContainers: 4}, release.Forgetting-1)
	c.node(nodeOne, "i", 2)
	mallory, _, epoch := c.running(&rm.Application{User: "mallory"})
	c.ended(mallory, epoch, 6)
	ann, am, _ := c.running(&rm.Application{User: "ann"})
	c.kill(ann)
	c.status(nodeOne, "i", am, rm.ContainerComplete, 0)
	if c.View().Container(am) != nil {
		t.Error("ann's container is remembered")
	}
	if r := c.grant(c.epoch, mallory, "w", master, nodeOne); len(r.Containers) != 1 {
		t.Error(r.Reason)
	}
}
