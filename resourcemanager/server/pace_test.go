package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// TestNodesReportAsOftenAsTheirLeaderCanTakeIt: the more nodes there are, the less often each reports when nothing changes.
func TestNodesReportAsOftenAsTheirLeaderCanTakeIt(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, untilStopped)
	c.awaitOpen(n)
	r := c.leader().reign.Load()
	every := func() time.Duration {
		r.mu.Lock()
		x := r.nodes[rm.NodeID(n.id)].session
		r.mu.Unlock()
		return x.reportEvery()
	}
	if d := every(); d != 0 {
		t.Errorf("a cluster that was not raised is told to report every %v", d)
	}
	c.raise()
	if d := every(); d <= 0 || d >= time.Millisecond {
		t.Errorf("one node is told to report every %v", d)
	}
	r.mu.Lock()
	for i := range 4*reportsPerSecond - 1 {
		r.nodes[rm.NodeID(fmt.Sprint("other-", i))] = &softNode{heard: time.Now().Add(time.Hour)}
	}
	r.mu.Unlock()
	if d := every(); d != 4*time.Second {
		t.Errorf("%d nodes are told to report every %v, want 4s", 4*reportsPerSecond, d)
	}
}

// TestRestAfter: what takes long because there is much of it is done less often, and at least every few seconds.
func TestRestAfter(t *testing.T) {
	for took, rest := range map[time.Duration]time.Duration{
		0: 0, 10 * time.Microsecond: 500 * time.Microsecond, 20 * time.Millisecond: time.Second, time.Second: 5 * time.Second,
	} {
		if got := restAfter(took); got != rest {
			t.Errorf("after %v it rests for %v, want %v", took, got, rest)
		}
	}
}

// TestTheLargestContainerFollowsTheNodes: what masters are told of the most that there is changes when nodes come, change and go.
func TestTheLargestContainerFollowsTheNodes(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	small, large := c.node("127.0.0.1:1001", 1, untilStopped), c.node("127.0.0.1:1002", 4, untilStopped)
	c.awaitOpen(small, large)
	largest := func() rm.Resource { return c.leader().largest(c.leader().View()) }
	if r := largest(); r.GPUs != 4 || r.Memory != 16<<30 {
		t.Errorf("the largest is %v", r)
	}
	large.set(func() { large.capacity.Memory = 32 << 30 })
	eventually(t, "more memory to be known", func() bool { return largest().Memory == 32<<30 })
	if err := c.leader().Resize(t.Context(), metadata.Caller{User: "root"}, rm.NodeID(large.id), rm.Resource{Memory: 8 << 30, VCores: 2}); err != nil {
		t.Fatal(err)
	}
	if r := largest(); r.Memory != 16<<30 || r.GPUs != 4 {
		t.Errorf("after a node was made smaller the largest is %v", r)
	}
}
