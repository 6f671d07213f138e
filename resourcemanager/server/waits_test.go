package server

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// What a node says that a container waits for is shown with its job.
func TestAContainerThatWaitsForItsInputsSaysSo(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:45454", 0, programs(c, untilStopped))
	const why = `waits for the filesystem: artifact "job.json": no active namenode`
	n.set(func() {
		n.spoil = func(r *pb.NodeReport) {
			for i, st := range r.Containers {
				if st.State == pb.ContainerStatus_RUNNING {
					r.Containers[i] = proto.CloneOf(st)
					r.Containers[i].State, r.Containers[i].StartedMs, r.Containers[i].Diagnostics = pb.ContainerStatus_LOCALIZING, 0, why
				}
			}
		}
	})
	c.awaitOpen(n)
	id := c.submit("ann", map[string]any{"argv": []string{"train"}})
	eventually(t, "the reason", func() bool {
		j := c.job(id)
		return j.Phase == "PENDING" && j.PendingReason != nil && j.PendingReason.Code == rm.ReasonStarting && strings.HasSuffix(j.PendingReason.Text, " on 127.0.0.1:45454 "+why)
	})
	n.set(func() { n.spoil = nil })
	n.poke()
	eventually(t, "no reason any more", func() bool { j := c.job(id); return len(j.Pending) == 0 && j.Phase == "RUNNING" })
}
