package state

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// divided registers a node with one whole GPU and one that is divided into instances of the profiles, or not: then it is whole, too.
func (c *cluster) divided(id string, profiles ...string) *Result {
	n := &rm.Node{ID: rm.NodeID(id), Incarnation: "i", Host: id, State: rm.NodeRunning, Capacity: rm.Resource{Memory: 8 << 30, VCores: 8}}
	n.GPUs = []rm.GPU{{UUID: id + "-0"}}
	for i, p := range profiles {
		n.GPUs = append(n.GPUs, rm.GPU{UUID: fmt.Sprintf("MIG-%s-%d-%s", id, i, p), Profile: p, Parent: id + "-1", Minor: 1, Memory: 5 << 30})
	}
	if len(profiles) == 0 {
		n.GPUs = append(n.GPUs, rm.GPU{UUID: id + "-1", Minor: 1})
	}
	for i := range n.GPUs {
		n.Capacity.AddDevice(&n.GPUs[i])
	}
	return c.do(&statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: c.epoch, Node: Node(n)}}})
}

// instances is an amount with memory and a vcore.
func instances(t *testing.T, counts map[string]int64) rm.Resource {
	t.Helper()
	byName := map[string]int64{}
	for profile, n := range counts {
		byName[rm.ProfileResource(profile)] = n
	}
	other, err := rm.NewAmounts(byName)
	if err != nil {
		t.Fatal(err)
	}
	return rm.Resource{Memory: 1 << 30, VCores: 1, Other: other}
}

// MIG instances are granted as the individuals that their resource counts, once; a GPU that is divided under somebody stays that one's until it
// ends, and what is gone is nobody's.
func TestInstancesAreGrantedOnce(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 0)
	id, _, epoch := c.running(&rm.Application{})
	c.divided(nodeOne, "1g.5gb", "1g.5gb", "3g.20gb") // beside the master
	small, large := instances(t, map[string]int64{"1g.5gb": 1}), instances(t, map[string]int64{"3g.20gb": 1})
	both := instances(t, map[string]int64{"1g.5gb": 1})
	both.GPUs = 1
	if r := c.allocate(id, 1, epoch, 1, 0, rm.Ask{ID: "small", Resource: small, Count: 9}, rm.Ask{ID: "large", Resource: large, Count: 9}, rm.Ask{ID: "both", Resource: both, Count: 9},
		rm.Ask{ID: "w", Resource: oneGPU, Count: 9}); r.Err != nil {
		t.Fatal(r.Err)
	}
	one, two, three := "MIG-n1:1-0-1g.5gb", "MIG-n1:1-1-1g.5gb", "MIG-n1:1-2-3g.20gb"
	held := c.grant(1, id, "small", small, nodeOne, one)
	if len(held.Containers) != 1 || c.View().Holders()[one] != held.Containers[0] {
		t.Fatal(held.Reason)
	}
	for what, g := range map[string]GroupResult{
		"a second time":              c.grant(1, id, "small", small, nodeOne, one),
		"of another profile":         c.grant(1, id, "small", small, nodeOne, three),
		"a whole GPU":                c.grant(1, id, "small", small, nodeOne, nodeOne+"-0"),
		"in place of a whole GPU":    c.grant(1, id, "w", oneGPU, nodeOne, two),
		"none":                       c.grant(1, id, "small", small, nodeOne),
		"one too many":               c.grant(1, id, "large", large, nodeOne, three, two),
		"the GPU that is divided":    c.grant(1, id, "w", oneGPU, nodeOne, nodeOne+"-1"),
		"a GPU, but not an instance": c.grant(1, id, "both", both, nodeOne, nodeOne+"-0"),
	} {
		if g.Reason.Code != rm.ReasonConflict {
			t.Errorf("%s: %+v", what, g)
		}
	}
	if g := c.grant(1, id, "both", both, nodeOne, nodeOne+"-0", two); len(g.Containers) != 1 {
		t.Error(g.Reason)
	}

	// What a replica reads from a snapshot is the same.
	f, err := c.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	late := New(Config{})
	if err := late.Restore(&b); err != nil || late.Hash() != c.Hash() {
		t.Fatalf("a replica from the snapshot differs: %v", err)
	}
	if n := late.View().Node(rm.NodeID(nodeOne)); n.GPUs[3].Profile != "3g.20gb" || n.GPUs[3].Parent != nodeOne+"-1" || n.Capacity.GPUs != 1 || n.Capacity.Instances() != 3 {
		t.Errorf("%+v", n)
	}

	// Divided anew under those that hold some: they stay until they end, and others get what is new.
	c.divided(nodeOne, "3g.20gb")
	c.sound()
	if !c.View().Container(held.Containers[0]).Live() {
		t.Error("it was ended")
	}
	if g := c.grant(1, id, "small", small, nodeOne, one); g.Reason.Code != rm.ReasonConflict {
		t.Errorf("what is gone: %+v", g)
	}
	if g := c.grant(1, id, "large", large, nodeOne, "MIG-n1:1-0-3g.20gb"); len(g.Containers) != 1 {
		t.Error(g.Reason)
	}
	c.status(nodeOne, "i", held.Containers[0], rm.ContainerComplete, 0)
	c.sound()
	if _, ok := c.View().Holders()[one]; ok {
		t.Error("it is held still")
	}

	// Whole, then divided under somebody who has it as a whole: nobody else gets a part of it before that ends.
	n3 := "n3:1"
	c.divided(n3)
	whole := c.grant(1, id, "w", oneGPU, n3, n3+"-1")
	if len(whole.Containers) != 1 {
		t.Fatal(whole.Reason)
	}
	c.divided(n3, "1g.5gb", "1g.5gb")
	if g := c.grant(1, id, "small", small, n3, "MIG-n3:1-1-1g.5gb"); g.Reason.Code != rm.ReasonConflict || !strings.Contains(g.Reason.Text, "is a part, is held by") {
		t.Errorf("a part of what is somebody's: %+v", g)
	}
	c.status(n3, "i", whole.Containers[0], rm.ContainerComplete, 0)
	if g := c.grant(1, id, "small", small, n3, "MIG-n3:1-1-1g.5gb"); len(g.Containers) != 1 {
		t.Error(g.Reason)
	}
	var open []string
	for g := range c.View().Ledger() {
		if g.To == 0 {
			open = append(open, g.GPUs...)
		}
	}
	slices.Sort(open)
	if len(slices.Compact(slices.Clone(open))) != len(open) {
		t.Errorf("the ledger has one twice: %q", open)
	}
}
