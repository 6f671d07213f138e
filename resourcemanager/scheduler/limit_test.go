package scheduler

import (
	"fmt"
	"slices"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// limited is a cluster of one node with 8 GPUs and the queues of a tree.
func limited(t *testing.T, children map[string]rm.QueueConfig) *Model {
	q, err := rm.NewQueues(rm.QueueConfig{Children: children})
	if err != nil {
		t.Fatal(err)
	}
	m := NewModel(Config{Queues: q})
	n := Node{ID: "n", Host: "n", Capacity: rm.Resource{Memory: 1 << 40, VCores: 100, GPUs: 8}}
	for i := range 8 {
		n.GPUs = append(n.GPUs, GPU{UUID: string(rune('a' + i)), Minor: i, Free: true})
	}
	m.SetNode(n)
	return m
}

// asks brings an application of a user that wants so many GPUs, one by one.
func asks(m *Model, n int64, queue, user string, gpus int) {
	m.SetApp(App{
		ID: rm.ApplicationID{Cluster: 1, Sequence: n}, Queue: queue, User: user,
		Asks: []rm.Ask{{ID: "w", Count: gpus, Resource: rm.Resource{Memory: 1, VCores: 1, GPUs: 1}}},
	})
}

func order(p Plan) (out []int64) {
	for _, g := range p.Groups {
		out = append(out, g.App.Sequence)
	}
	return out
}

func reasonOf(t *testing.T, m *Model, n int64) rm.Reason {
	t.Helper()
	w := m.WaitingFor(rm.ApplicationID{Cluster: 1, Sequence: n})
	if len(w) != 1 {
		t.Fatalf("%d waits for %v", n, w)
	}
	return w[0].Reason
}

func TestUserLimits(t *testing.T) {
	m := limited(t, map[string]rm.QueueConfig{"a": {Capacity: "100%", UserLimit: "25%"}})
	asks(m, 1, "root.a", "ann", 8)
	asks(m, 2, "root.a", "bob", 8)
	if got := order(m.Plan(Budget{}, 0)); !slices.Equal(got, []int64{1, 1, 1, 1, 2, 2, 2, 2}) {
		t.Errorf("granted to %v", got)
	}
	if r := reasonOf(t, m, 1); r.Code != rm.ReasonUserLimit && r.Code != rm.ReasonResources {
		t.Errorf("%v", r)
	}
	m = limited(t, map[string]rm.QueueConfig{"a": {Capacity: "50%", UserLimitFactor: 0.5}, "b": {Capacity: "50%"}})
	asks(m, 1, "root.a", "ann", 8)
	if got := order(m.Plan(Budget{}, 0)); len(got) != 2 {
		t.Errorf("granted to %v", got)
	}
	if r := reasonOf(t, m, 1); r.Text != "one user of queue root.a may use 2 GPUs as long as others wait there, and ann uses 2 GPUs; this needs 1 GPU more" || r.Queue != "root.a" {
		t.Errorf("%v", r)
	}
}

func TestApplicationLimits(t *testing.T) {
	m := limited(t, map[string]rm.QueueConfig{"a": {Capacity: "100%", MaxApplications: 2, MaxApplicationsPerUser: 1}})
	for i, user := range []string{"ann", "ann", "bob", "eve"} {
		m.SetApp(App{ID: rm.ApplicationID{Cluster: 1, Sequence: int64(i + 1)}, Queue: "root.a", User: user, Asks: []rm.Ask{{Count: 1, Resource: rm.Resource{Memory: 1}}}})
	}
	if got := order(m.Plan(Budget{}, 0)); !slices.Equal(got, []int64{1, 3}) {
		t.Errorf("granted to %v", got)
	}
	for n, want := range map[int64]string{2: "1 applications of user ann run in queue root.a, as many as may", 4: "2 applications run in queue root.a, as many as may"} {
		if r := reasonOf(t, m, n); r.Code != rm.ReasonApplicationLimit || r.Text != want {
			t.Errorf("%v", r)
		}
	}
	m.RemoveApp(rm.ApplicationID{Cluster: 1, Sequence: 1})
	if got := order(m.Plan(Budget{}, 0)); !slices.Equal(got, []int64{2}) {
		t.Errorf("then to %v", got)
	}
}

// Within their guarantees the queue of higher priority comes first; beyond them nobody is below another's.
func TestPriorityOfQueues(t *testing.T) {
	m := limited(t, map[string]rm.QueueConfig{"a": {Capacity: "25%"}, "b": {Capacity: "25%", Priority: 5}, "c": {Capacity: "50%"}})
	asks(m, 1, "root.a", "ann", 8)
	asks(m, 2, "root.b", "bob", 8)
	if got := order(m.Plan(Budget{Containers: 4}, 0)); !slices.Equal(got, []int64{2, 2, 1, 1}) {
		t.Errorf("granted to %v", got)
	}
}

// In a fair queue the application that has least comes first.
func TestFairOrder(t *testing.T) {
	m := limited(t, map[string]rm.QueueConfig{"a": {Capacity: "100%", Ordering: rm.OrderFair}})
	for n := range int64(3) {
		asks(m, n+1, "root.a", "ann", 8)
	}
	if got := order(m.Plan(Budget{Containers: 6}, 0)); !slices.Equal(got, []int64{1, 2, 3, 1, 2, 3}) {
		t.Errorf("granted to %v", got)
	}
}

// What one user may have grows with what others in the queue get: whoever was held back by it goes on in the same plan, until there is
// no room, and no queue is asked in vain.
func TestAUserLimitThatHasGrown(t *testing.T) {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "10%", UserLimit: "60%"}, "b": {Capacity: "90%"}}})
	if err != nil {
		t.Fatal(err)
	}
	m := NewModel(Config{Queues: q})
	for i := range 4 {
		m.SetNode(Node{ID: rm.NodeID(fmt.Sprint("n", i)), Host: fmt.Sprint("n", i), Capacity: rm.Resource{Memory: 1000, VCores: 1000}})
	}
	one := rm.Resource{Memory: 10, VCores: 1}
	for i, user := range []string{"ann", "bob"} {
		m.SetApp(App{ID: rm.ApplicationID{Cluster: 1, Sequence: int64(i + 1)}, Queue: "root.a", User: user, Asks: []rm.Ask{
			{ID: "v", Count: 90, Resource: one}, {ID: "w", Count: 90, Resource: one.Add(rm.Resource{VCores: 1})},
		}})
	}
	got := map[int64]int{}
	for _, s := range order(m.Plan(Budget{}, 0)) {
		got[s]++
	}
	if got[1] != 180 || got[2] != 180 {
		t.Errorf("granted %v; %v", got, m.Waiting())
	}
}

// Lanes of applications that are gone leave nothing behind in the queue whose limit held them back.
func TestAFullQueueKeepsNothingOfWhoIsGone(t *testing.T) {
	m := limited(t, map[string]rm.QueueConfig{"a": {Capacity: "10%", Max: "10%"}, "b": {Capacity: "90%"}})
	for i := range int64(100) {
		m.SetApp(App{ID: rm.ApplicationID{Cluster: 1, Sequence: i + 1}, Queue: "root.a", User: "u", Asks: []rm.Ask{{ID: "w", Count: 1, Resource: rm.Resource{Memory: 1 + i, VCores: 50}}}})
		m.Plan(Budget{}, 0)
		m.RemoveApp(rm.ApplicationID{Cluster: 1, Sequence: i + 1})
	}
	for _, q := range m.queues {
		if n := len(q.blocked); n > 0 {
			t.Errorf("%d lanes wait for less use of %s", n, q.Path)
		}
	}
}
