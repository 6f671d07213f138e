package hadoop

import (
	"maps"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
	"github.com/gohops/hops/resourcemanager/scheduler"
)

// MapReduce asks for each of its maps on the hosts of a block, in their rack, and anywhere: three rows, and one container. Those go to the hosts,
// then to the rack, then anywhere, and the counts are those of "*".
func TestMapsNearTheirBlocks(t *testing.T) {
	c, w := rowCall(t), newWants()
	queues, err := rm.NewQueues(rm.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m := scheduler.NewModel(scheduler.Config{Queues: queues})
	for host, rack := range map[string]string{"a": "/r1", "b": "/r1/x", "c": "/r10"} {
		m.SetNode(scheduler.Node{ID: rm.NodeID(host + ":1"), Host: host, Rack: rack, Capacity: rm.Resource{Memory: 2 << 30, VCores: 8}})
	}
	id := rm.ApplicationID{Cluster: 1, Sequence: 1}
	now := metadata.TimeOf(time.Unix(1000, 0))
	granted := map[string]int{}
	plan := func(after time.Duration, rows ...*pb.ResourceRequestProto) map[string]int {
		t.Helper()
		changed, err := w.take(c, &pb.AllocateRequestProto{Ask: rows})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range changed {
			ask, ok := only(t, w, c, key)
			if !ok {
				t.Fatal("nothing is wanted")
			}
			m.SetApp(scheduler.App{ID: id, Queue: "root.default", Asks: []rm.Ask{ask}})
		}
		now += metadata.Time(after.Milliseconds())
		for _, g := range m.Plan(scheduler.Budget{}, now).Groups { // which stay assumed
			for _, p := range g.Placements {
				granted[string(p.Node)]++
			}
		}
		return granted
	}
	for _, x := range []struct {
		after time.Duration
		rows  []*pb.ResourceRequestProto
		want  map[string]int
	}{
		{0, []*pb.ResourceRequestProto{asked("a", 4, false), asked("/r1", 4, false), asked("*", 4, false)}, map[string]int{"a:1": 2}},
		{3 * time.Second, nil, map[string]int{"a:1": 2, "b:1": 2}},
		{0, []*pb.ResourceRequestProto{asked("*", 5, false)}, map[string]int{"a:1": 2, "b:1": 2}}, // one more
		{6 * time.Second, nil, map[string]int{"a:1": 2, "b:1": 2, "c:1": 1}},
		{0, []*pb.ResourceRequestProto{asked("/r1", 6, true), asked("*", 6, true)}, map[string]int{"a:1": 2, "b:1": 2, "c:1": 1}}, // on its host alone
		{time.Hour, nil, map[string]int{"a:1": 2, "b:1": 2, "c:1": 1}},
		{0, []*pb.ResourceRequestProto{asked("a", 0, false), asked("c", 6, false)}, map[string]int{"a:1": 2, "b:1": 2, "c:1": 2}},
	} {
		if got := plan(x.after, x.rows...); !maps.Equal(got, x.want) {
			t.Fatalf("after %v and %v: %v, want %v", x.after, x.rows, got, x.want)
		}
	}
}
