package scheduler

import (
	"fmt"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// The reasons of many different asks are found in parts that look at few nodes, and for so many sorts of them only.
func TestReasonsOfManyAsksAreBounded(t *testing.T) {
	const nodes, asks, shapes = 500, 400, 100
	q, err := rm.NewQueues(rm.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m := NewModel(Config{Queues: q})
	for i := range nodes {
		m.SetNode(Node{ID: rm.NodeID(fmt.Sprint("n", i)), Host: fmt.Sprint("n", i), Capacity: rm.Resource{Memory: 1 << 30, VCores: 4}, Used: rm.Resource{Memory: int64(1000 + i), VCores: 4}})
	}
	a := App{ID: rm.ApplicationID{Cluster: 1, Sequence: 1}, Queue: "root.default", User: "u"}
	for i := range asks {
		a.Asks = append(a.Asks, rm.Ask{ID: fmt.Sprint("w", i), Count: 1, Resource: rm.Resource{Memory: int64(1 + i), VCores: 1}})
	}
	m.SetApp(a)
	if p := m.Plan(Budget{}, 0); len(p.Groups) > 0 || p.More {
		t.Fatalf("%+v", p)
	}
	collect := func() map[string]rm.Reason {
		t.Helper()
		e := &Effort{Shapes: shapes}
		before, out := m.looks, map[string]rm.Reason{}
		for from, more := 0, true; more; more = from > 0 {
			last := m.looks
			var part []Waiting
			part, from = m.WaitingPart(a.ID, from, e)
			for _, w := range part {
				out[w.Ask] = w.Reason
			}
			if n := m.looks - last; n >= partNodes+nodes {
				t.Fatalf("%d looks at nodes in one part", n)
			}
		}
		if n := m.looks - before; n > shapes*nodes {
			t.Fatalf("%d looks at nodes", n)
		}
		if len(out) != asks {
			t.Fatalf("%d of %d asks have a reason", len(out), asks)
		}
		return out
	}
	first := collect()
	if n := m.looks; n != shapes*nodes {
		t.Fatalf("%d looks at nodes", n)
	}
	if r := first[fmt.Sprint("w", shapes-1)]; r.Code != rm.ReasonResources || r.Resource != rm.VCoresName {
		t.Errorf("%+v", r)
	}
	if r := first[fmt.Sprint("w", shapes)]; r.Code != rm.ReasonResources || r.Text == "" || r.Resource != "" {
		t.Errorf("beyond the effort: %+v", r)
	}
	// As long as nothing changes, what was found costs nothing, and the effort goes further.
	if r := collect()[fmt.Sprint("w", shapes)]; r.Resource != rm.VCoresName {
		t.Errorf("the second time: %+v", r)
	}
	m.RemoveNode("n0")
	if r := collect()[fmt.Sprint("w", 2*shapes-1)]; r.Resource != rm.VCoresName {
		t.Errorf("found before: %+v", r)
	}
}
