package scheduler

import (
	"fmt"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// Asks for which all nodes have to be looked at, because they are about neighbours or name nodes, use up the budget of a slice by that: the model is
// given back in between, and nothing is forgotten.
func TestWhatLooksAtAllNodesUsesUpItsSlice(t *testing.T) {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "100%"}}})
	if err != nil {
		t.Fatal(err)
	}
	const nodes, asks = 1_000, 50
	var excluded []string
	for i := range nodes {
		excluded = append(excluded, fmt.Sprint("other", (i*7919)%nodes))
	}
	excluded = append(excluded, "n7")
	far := constraints(t, []string{"none:rack:1:"})
	for what, ask := range map[string]rm.Ask{
		"neighbours": {Placement: rm.Placement{Constraints: far}},
		"a gang":     {Placement: rm.Placement{Constraints: far}, Gang: 2},
		"exclusions": {Excluded: excluded, Placement: rm.Placement{Constraints: far}},
	} {
		m := NewModel(Config{Queues: q})
		for i := range nodes {
			id := fmt.Sprint("n", i)
			m.SetNode(Node{ID: rm.NodeID(id), Host: id, Rack: "/r", Capacity: rm.Resource{Memory: 1 << 30, VCores: 8}})
		}
		a := App{ID: rm.ApplicationID{Cluster: 1, Sequence: 1}, Queue: "root.a", User: "u"}
		for i := range asks {
			own := ask
			own.ID, own.Count, own.Resource = fmt.Sprint(i), 2, rm.Resource{Memory: int64(1000 + i)}
			a.Asks = append(a.Asks, own)
		}
		m.SetApp(a)
		slices, last := 0, 0
		for more := true; more; slices++ {
			plan := m.Plan(Budget{Steps: 20}, 0)
			if more = plan.More; len(plan.Groups) > 0 || m.looks-last > 21*looksAStep+2*nodes {
				t.Fatalf("%s: %d groups, %d looks at nodes in one slice", what, len(plan.Groups), m.looks-last)
			}
			last = m.looks
		}
		if slices < 5 {
			t.Errorf("%s: %d slices", what, slices)
		}
		if n := len(m.Waiting()); n != asks {
			t.Errorf("%s: %d wait", what, n)
		}
	}
}
