package scheduler

import (
	"fmt"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// In a fair queue, a container of an application costs a few of its asks, however many there are, and others get their part beside it.
func TestManyAsksInAFairQueue(t *testing.T) {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "100%", Ordering: rm.OrderFair}}})
	if err != nil {
		t.Fatal(err)
	}
	m := NewModel(Config{Queues: q})
	for i := range 10 {
		m.SetNode(Node{ID: rm.NodeID(fmt.Sprint("n", i)), Host: fmt.Sprint("n", i), Capacity: rm.Resource{Memory: 1 << 40, VCores: 1000}})
	}
	const asks, granted = 2000, 1000
	many := App{ID: rm.ApplicationID{Cluster: 1, Sequence: 1}, Queue: "root.a", User: "u"}
	for i := range asks {
		many.Asks = append(many.Asks, rm.Ask{ID: fmt.Sprint("w", i), Count: 1, Resource: rm.Resource{Memory: int64(1 + i%3), VCores: 1}})
	}
	few := App{ID: rm.ApplicationID{Cluster: 1, Sequence: 2}, Queue: "root.a", User: "v", Asks: []rm.Ask{{ID: "w", Count: asks, Resource: rm.Resource{Memory: 1, VCores: 1}}}}
	m.SetApp(many)
	m.SetApp(few)
	got := map[int64]int{}
	p := m.Plan(Budget{Containers: granted}, 0)
	for _, g := range p.Groups {
		got[g.App.Sequence]++
		if d := got[1] - got[2]; d > asks/weighEach+1 || -d > asks/weighEach+1 {
			t.Fatalf("%d and %d containers", got[1], got[2])
		}
	}
	if got[1]+got[2] != granted {
		t.Fatalf("%d containers", got[1]+got[2])
	}
	for _, g := range p.Groups {
		m.Settle(g.Number)
	}
	if most := 3 * granted * (weighEach + 1); m.weighed > most {
		t.Errorf("%d moves of asks for %d containers", m.weighed, granted)
	}
}
