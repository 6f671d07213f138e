package server

import (
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// A job document's words about placement arrive at the scheduler: a node for itself, of those with an attribute.
func TestAJobOnANodeForItself(t *testing.T) {
	c := raised(t, 1, nil)
	plain := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	n := c.node("127.0.0.1:1002", 2, programs(c, untilStopped))
	n.set(func() { n.spoil = func(r *pb.NodeReport) { r.Attributes = map[string]string{"zone": "a"} } })
	c.awaitOpen(plain, n) // or the master is where its container is to be alone
	id := c.submit("ann", map[string]any{
		"argv": []string{"train"}, "resources": map[string]any{"gpus": 1}, "placement": map[string]any{"exclusive": true, "attributes": map[string]string{"zone": "a,b"}},
	})
	eventually(t, "the container", func() bool { return len(n.running(false)) == 1 })
	own := c.leader().state.View().Node(rm.NodeID(n.id))
	if !own.Exclusive || own.Used != own.Capacity {
		t.Errorf("%+v", own)
	}
	waits := c.submit("ann", map[string]any{"argv": []string{"train"}, "placement": map[string]any{"attributes": map[string]string{"zone": "*"}}})
	eventually(t, "a reason", func() bool {
		list := c.leader().Waiting(waits)
		return len(list) == 1 && list[0].Reason.Code == rm.ReasonExclusive
	})
	if c.job(id).State != rm.StateRunning {
		t.Error("it has ended")
	}
}
