package state

import (
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// A node that a container has for itself is granted as a whole, only while it is empty, and to nobody else while it lives.
func TestANodeForOneContainerAlone(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 0)
	c.node("n2:1", "i", 2)
	id, _, epoch := c.running(&rm.Application{})
	attributes, err := rm.NewConditions(map[string]string{"zone": "!a"})
	if err != nil {
		t.Fatal(err)
	}
	tags, err := rm.NewTags([]string{"x", "w"})
	if err != nil {
		t.Fatal(err)
	}
	constraints, err := rm.NewConstraints([]rm.Constraint{{Tag: "x", Scope: "rack", Min: 1, Max: rm.Unbounded}, {Tag: "w", Scope: "node"}})
	if err != nil {
		t.Fatal(err)
	}
	near, err := rm.NewNear(rm.NearWords{Paths: []string{"/data"}, Hosts: []rm.NearHost{{Host: "n1", Weight: 8}}, Racks: []string{"/r"}, Wait: rm.NoWait})
	if err != nil {
		t.Fatal(err)
	}
	ask := rm.Ask{ID: "w", Resource: oneGPU, Count: 2, Near: near, Placement: rm.Placement{Exclusive: true, Attributes: attributes, Tags: tags, Constraints: constraints}}
	if r := c.allocate(id, 1, epoch, 1, 0, ask, rm.Ask{ID: "other", Resource: master, Count: 2}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if got := c.View().Asks(id); len(got) != 2 || got[1].Placement != ask.Placement || got[1].Near != near {
		t.Errorf("as it is kept: %+v", got)
	}
	whole := rm.Resource{Memory: 8 << 30, VCores: 8, GPUs: 2}
	less := whole
	less.Memory--
	one := whole
	one.GPUs = 1
	for what, g := range map[string]GroupResult{
		"where the master runs": c.grant(1, id, "w", rm.Resource{Memory: 8 << 30, VCores: 8}, nodeOne),
		"not all memory":        c.grant(1, id, "w", less, "n2:1", "n2:1-0", "n2:1-1"),
		"devices unlike amount": c.grant(1, id, "w", one, "n2:1", "n2:1-0", "n2:1-1"),
		"what the ask names":    c.grant(1, id, "w", oneGPU, "n2:1", "n2:1-0"),
	} {
		if g.Reason.Code != rm.ReasonConflict {
			t.Errorf("%s: %+v", what, g)
		}
	}
	g := c.grant(1, id, "w", whole, "n2:1", "n2:1-0", "n2:1-1")
	if len(g.Containers) != 1 {
		t.Fatal(g.Reason)
	}
	if k, n := c.View().Container(g.Containers[0]), c.View().Node("n2:1"); !k.Exclusive || k.Tags != tags || k.Resource != whole || !n.Exclusive {
		t.Errorf("%+v on %+v", k, n)
	}
	c.node("n2:1", "i", 3) // it grows, and says so
	if g := c.grant(1, id, "other", master, "n2:1"); g.Reason.Code != rm.ReasonConflict {
		t.Errorf("beside it: %+v", g)
	}
	c.status("n2:1", "i", g.Containers[0], rm.ContainerComplete, 0)
	if n := c.View().Node("n2:1"); n.Exclusive {
		t.Error("it is still its own")
	}
	if g := c.grant(1, id, "other", master, "n2:1"); len(g.Containers) != 1 {
		t.Error(g.Reason)
	}
}
