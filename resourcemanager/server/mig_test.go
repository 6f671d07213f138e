package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

// divided has a node report a GPU in MIG mode with instances of the profiles.
func divided(n *fakeNode, profiles ...string) {
	n.set(func() {
		n.spoil = func(r *pb.NodeReport) {
			parent := "GPU-" + n.id + "-divided"
			r.Divided = []*pb.GPU{{Uuid: parent, Model: "Simulated A100", Memory: 40 << 30, Minor: 9, Simulated: true, Health: "HEALTHY"}}
			for i, p := range profiles {
				r.Divided = append(r.Divided, &pb.GPU{
					Uuid: fmt.Sprintf("MIG-%s-%d-%s", n.id, i, p), Model: "Simulated A100", Memory: 5 << 30, Minor: 9, Profile: p, Parent: parent, Simulated: true, Health: "HEALTHY",
				})
			}
		}
	})
	n.poke()
}

// A job that names a profile gets instances of that, each once, a gang over nodes at a time; one that names none gets whole GPUs; and who waits
// is told which profiles there are.
func TestJobsOnMIGInstances(t *testing.T) {
	c := raised(t, 1, nil)
	one := c.node("127.0.0.1:1001", 1, programs(c, untilStopped))
	two := c.node("127.0.0.1:1002", 0, programs(c, untilStopped))
	for _, n := range []*fakeNode{one, two} {
		n.set(func() { n.capacity.Vcores = 64 })
		divided(n, "1g.5gb", "1g.5gb", "3g.20gb")
	}
	c.awaitOpen(one, two)
	instances := func(n *fakeNode) int { // which the leader knows of
		node := c.leader().state.View().Node(rm.NodeID(n.id))
		if node == nil {
			return 0
		}
		return node.Capacity.Instances()
	}
	eventually(t, "the instances", func() bool { return instances(one) == 3 && instances(two) == 3 })

	gang := c.submit("ann", `{"argv":["x"],"instances":3,"gang":true,"resources":{"gpus":1,"gpu_profile":"1g.5gb"}}`)
	running := func() (specs []*pb.ContainerSpec) {
		return append(one.running(false), two.running(false)...)
	}
	eventually(t, "the gang", func() bool { return len(running()) == 3 })
	seen := map[string]bool{}
	for _, s := range running() {
		if len(s.GpuUuids) != 1 || !strings.HasSuffix(s.GpuUuids[0], "1g.5gb") || seen[s.GpuUuids[0]] || s.Resources.Gpus != 0 || s.Resources.Other[rm.MIGPrefix+"1g.5gb"] != 1 {
			t.Errorf("%v", s)
		}
		seen[s.GpuUuids[0]] = true
	}

	// One more than are left, an instance as YARN names its resource, and a whole GPU.
	waits := c.submit("ann", `{"argv":["x"],"instances":2,"gang":true,"resources":{"gpus":1,"gpu_profile":"1g.5gb"}}`)
	eventually(t, "the job to wait", func() bool { return c.waits(waits) == rm.ReasonGang })
	c.submit("ann", `{"argv":["x"],"resources":{"other":{"nvidia.com/mig-3g.20gb":1}}}`)
	c.submit("ann", `{"argv":["x"],"resources":{"gpus":1}}`)
	eventually(t, "an instance by the name of its resource, and a GPU", func() bool {
		all := ""
		for _, s := range running() {
			all += strings.Join(s.GpuUuids, " ") + " "
		}
		return len(running()) == 5 && strings.Contains(all, "3g.20gb") && strings.Contains(all, "GPU-127.0.0.1:1001-0 ")
	})
	whole := c.submit("ann", `{"argv":["x"],"resources":{"gpus":1}}`)
	eventually(t, "no second GPU", func() bool { return c.waits(whole) == rm.ReasonResources })

	// What no node has, and words that are for whole GPUs, are refused at once.
	for document, want := range map[string]string{
		`{"argv":["x"],"resources":{"gpus":1,"gpu_profile":"2g.10gb"}}`:                          "no node has MIG instances of profile 2g.10gb; there are 1g.5gb (2 on one node at most), 3g.20gb (1 on one node at most)",
		`{"argv":["x"],"resources":{"gpus":3,"gpu_profile":"1g.5gb"}}`:                           "3 MIG instances 1g.5gb in one container, the most is 2",
		`{"argv":["x"],"resources":{"gpus":1,"gpu_profile":"1g.5gb","gpu_model":"H100"}}`:        "are for whole GPUs",
		`{"argv":["x"],"resources":{"gpu_profile":"1g.5gb"}}`:                                    "give gpus",
		`{"argv":["x"],"resources":{"gpus":1,"gpu_profile":"small"}}`:                            "is no MIG profile",
		`{"argv":["x"],"resources":{"gpu_island":true,"other":{"nvidia.com/mig-1g.5gb":1}}}`:     "are for whole GPUs",
		`{"argv":["x"],"resources":{"gpus":1,"gpu_profile":"1g.5gb","gpu_memory":"10GiB"}}`:      "are for whole GPUs",
		`{"argv":["x"],"resources":{"gpus":1,"other":{"yarn.io/gpu":1},"gpu_profile":"1g.5gb"}}`: "yarn.io/gpu",
	} {
		var problem rest.Problem
		if code, _ := c.http("POST", "/api/v1/jobs", "ann", document, &problem); code != http.StatusBadRequest && code != http.StatusUnprocessableEntity || !strings.Contains(problem.Detail, want) {
			t.Errorf("%s: %d %+v, want %s", document, code, problem, want)
		}
	}

	var list struct {
		Nodes []rest.NodeView `json:"nodes"`
	}
	if code, _ := c.http("GET", "/api/v1/nodes", "", nil, &list); code != http.StatusOK || len(list.Nodes) != 2 {
		t.Fatalf("%d %+v", code, list)
	}
	n := list.Nodes[slices.IndexFunc(list.Nodes, func(n rest.NodeView) bool { return n.ID == one.id })]
	if len(n.GPUs) != 4 || n.Capacity.GPUs != 1 || len(n.Divided) != 1 || n.Divided[0].Instances != 3 || n.GPUs[1].Profile != "1g.5gb" || n.GPUs[1].Parent != n.Divided[0].UUID {
		t.Errorf("%+v", n)
	}

	// They are divided anew under the gang: it goes on, and who waits for what is gone is told.
	divided(one, "7g.40gb")
	divided(two)
	eventually(t, "the new layout", func() bool { return instances(one) == 1 && instances(two) == 0 })
	eventually(t, "the reason", func() bool {
		w := c.leader().Waiting(waits)
		return len(w) == 1 && w[0].Reason.Code == rm.ReasonProfile &&
			w[0].Reason.Text == "none of 2 nodes has MIG instances of profile 1g.5gb; there are: 1 of 7g.40gb"
	})
	if len(running()) != 5 || c.job(gang).State != rm.StateRunning {
		t.Errorf("%d run, the gang is %s", len(running()), c.job(gang).State)
	}
	for _, err := range c.leader().state.Check() {
		t.Error(err)
	}

	// A node that declares instances, or names a profile that is none, gets no more work.
	two.set(func() {
		two.spoil = func(r *pb.NodeReport) { r.Capacity.Other = map[string]int64{rm.MIGPrefix + "1g.5gb": 100} }
	})
	two.poke()
	eventually(t, "its report is refused", func() bool {
		return strings.Contains(c.leader().Liveness(rm.NodeID(two.id)).Refused, "its MIG instances are counted")
	})
}
