package scheduler

import (
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// What machines have beside memory, vcores and GPUs is counted like these: by node, by queue, and in the reasons.
func TestOtherResourcesAreCounted(t *testing.T) {
	fpgas := func(n int64) rm.Amounts {
		a, err := rm.NewAmounts(map[string]int64{"example.com/fpga": n})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	queues, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%", Max: "50%"}, "b": {Capacity: "50%"}}})
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string, n int64) Node {
		return Node{ID: rm.NodeID(name + ":1"), Host: name, Capacity: rm.Resource{Memory: 1 << 40, VCores: 100, Other: fpgas(n)}}
	}
	app := func(n int64, queue string, count int, each int64) App {
		return App{
			ID: rm.ApplicationID{Cluster: 1, Sequence: n}, Queue: queue,
			Asks: []rm.Ask{{ID: "x", Count: count, Resource: rm.Resource{Memory: 1 << 20, VCores: 1, Other: fpgas(each)}}},
		}
	}
	plan := Schedule(Snapshot{
		Queues: queues, Nodes: []Node{node("one", 2), node("two", 4), {ID: "three:1", Capacity: rm.Resource{Memory: 1 << 40, VCores: 100}}},
		Apps: []App{app(1, "root.a", 5, 1), app(2, "root.b", 2, 2), app(3, "root.b", 1, 5)},
	}, 0)
	granted := map[int64]int{}
	for _, g := range plan.Groups {
		granted[g.App.Sequence] += len(g.Placements)
		for _, p := range g.Placements {
			if p.Node == "three:1" {
				t.Errorf("%v has a container on a node without any", g.App)
			}
		}
	}
	if granted[1] < 2 || granted[1] > 3 || granted[1]+2*granted[2] > 6 || granted[1]+2*granted[2] < 5 || granted[3] != 0 {
		t.Errorf("granted %v", granted)
	}
	var reasons []string
	for _, w := range plan.Waiting {
		if w.App.Sequence == 3 || w.Reason.Code == rm.ReasonQueueMaximum {
			reasons = append(reasons, w.Reason.Text)
		}
	}
	if want := "needs 5 of example.com/fpga on one node; the largest node has 4 of example.com/fpga"; len(reasons) == 0 || reasons[len(reasons)-1] != want {
		t.Errorf("%q, want %q last", reasons, want)
	}
}
