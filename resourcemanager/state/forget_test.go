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
