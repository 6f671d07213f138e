package server

import (
	"context"
	"slices"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// A node that keeps something for applications is told which of them are over, and no other.
func TestANodeIsToldWhichApplicationsHaveEnded(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	held := make(chan struct{})
	n := c.node("127.0.0.1:1001", 0, programs(c, func(ctx context.Context, _ *pb.ContainerSpec) int {
		select {
		case <-held:
		case <-ctx.Done():
		}
		return 0
	}))
	c.awaitOpen(n)
	over, runs := c.submit("ann", `{"argv":["train"]}`), c.submit("ann", `{"argv":["train"]}`)
	c.await(over, rm.StateRunning)
	c.await(runs, rm.StateRunning)
	if code, _ := c.http("PUT", "/ws/v1/cluster/apps/"+over.String()+"/state", "ann", map[string]string{"state": "KILLED"}, nil); code != 200 && code != 202 {
		t.Fatal(code)
	}
	c.await(over, rm.StateKilled)
	unknown := rm.ApplicationID{Cluster: 1, Sequence: 1}.String()
	n.set(func() {
		n.spoil = func(r *pb.NodeReport) { r.Kept = []string{over.String(), runs.String(), unknown, "nonsense"} }
	})
	told := func(want ...string) func() bool {
		return func() bool {
			n.poke()
			n.mu.Lock()
			defer n.mu.Unlock()
			return slices.Equal(n.ended, want)
		}
	}
	eventually(t, "the node to hear what is over", told(over.String(), unknown, "nonsense"))
	close(held)
	c.await(runs, rm.StateFinished)
	eventually(t, "the node to hear that the other is over", told(over.String(), runs.String(), unknown, "nonsense"))
}
