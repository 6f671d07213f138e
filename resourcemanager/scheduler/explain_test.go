package scheduler

import (
	"cmp"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// TestWhatWouldStartStarts draws small clusters, and whatever an explanation says would start now is granted by a model that is made
// anew with that one change; fewer members and fewer GPUs are the most. An explanation changes nothing.
func TestWhatWouldStartStarts(t *testing.T) {
	said := map[ChangeKind]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for _, name := range w.order {
			w.apps[name].User = rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user")
			for i := range w.apps[name].Asks {
				w.apps[name].Asks[i].Within = rapid.SampledFrom([]string{"", "", "node", "1"}).Draw(t, "within")
			}
		}
		for _, q := range w.queues.All {
			if q.Leaf() && rapid.IntRange(0, 3).Draw(t, "userlimit") == 0 {
				q.UserLimitPercent = 50
			}
		}
		var leaves []string
		for _, q := range w.queues.All {
			if q.Leaf() {
				leaves = append(leaves, q.Path)
			}
		}
		for range 2 { // and once more when a node is free again
			for more := true; more; { // users that want nothing more leave more to others
				plan := Schedule(w.snapshot(), 0)
				if err := w.apply(plan); err != nil {
					t.Fatal(err)
				}
				more = len(plan.Groups) > 0
			}
			s := w.snapshot()
			m := NewModel(Config{Queues: s.Queues})
			for _, n := range s.Nodes {
				m.SetNode(n)
			}
			for _, a := range s.Apps {
				m.SetApp(a)
			}
			if plan := m.Plan(Budget{}, 0); len(plan.Groups) > 0 {
				t.Fatalf("a second pass found more: %+v", plan.Groups)
			}
			waiting := m.Waiting()
			grants := func(app rm.ApplicationID, c Change) bool {
				changed := s
				changed.Apps = slices.Clone(s.Apps)
				i := slices.IndexFunc(s.Apps, func(a App) bool { return a.ID == app })
				a := &changed.Apps[i]
				a.Asks = slices.Clone(a.Asks)
				a.Asks[slices.IndexFunc(a.Asks, func(x rm.Ask) bool { return x.ID == c.Ask.ID })] = c.Ask
				if c.Queue != "" {
					a.Queue = c.Queue
				}
				return slices.ContainsFunc(Schedule(changed, 0).Groups, func(g Group) bool { return g.App == app && g.Ask == c.Ask.ID })
			}
			for _, x := range waiting {
				e, ok := m.Explain(x.App, x.Ask, leaves, 0)
				if again, _ := m.Explain(x.App, x.Ask, leaves, 0); !ok || !reflect.DeepEqual(e, again) {
					t.Fatalf("explained twice: %+v, %+v", e, again)
				}
				if e.Reason != x.Reason {
					t.Fatalf("explains %v, says %v", e.Reason, x.Reason)
				}
				for _, c := range e.Changes {
					said[c.Kind]++
					if !grants(x.App, c) {
						t.Fatalf("%+v would start with %+v, and does not: %+v", x, c, s)
					}
					switch c.Kind {
					case FewerMembers:
						if c.Members >= e.Unit {
							t.Fatalf("%d are not fewer than %d", c.Members, e.Unit)
						}
						if c.Members++; c.Members < e.Unit {
							c.Ask.Count, c.Ask.Gang = c.Members, c.Members
							if grants(x.App, c) {
								t.Fatalf("%d members would start, too: %+v", c.Members, e)
							}
						}
					case FewerGPUs:
						if c.GPUs++; c.GPUs < e.Ask.Resource.GPUs {
							c.Ask.Resource.GPUs = c.GPUs
							if grants(x.App, c) {
								t.Fatalf("%d GPUs would start, too: %+v", c.GPUs, e)
							}
						}
					}
				}
			}
			if !reflect.DeepEqual(waiting, m.Waiting()) {
				t.Fatal("an explanation changed what waits")
			}
			if plan := m.Plan(Budget{}, 0); len(plan.Groups) > 0 {
				t.Fatalf("an explanation changed what is planned: %+v", plan.Groups)
			}
			if len(w.nodes) > 0 {
				w.do(t, "free "+rapid.SampledFrom(w.nodeNames()).Draw(t, "freed"))
			}
		}
	})
	for _, k := range []ChangeKind{FewerMembers, FewerGPUs, OtherQueue, AnyIsland, AnyPlace, AnyLabel, AnyModel, AnyNode, AlsoExcluded} {
		if said[k] == 0 {
			t.Logf("no %s was drawn", k)
		}
	}
}

// TestAnExplanationNamesWhoIsInTheWay: who holds the room, who uses the queue, and when what runs is over.
func TestAnExplanationNamesWhoIsInTheWay(t *testing.T) {
	queues, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"default": {Capacity: "50%"}, "b": {Capacity: "50%", Max: "50%"}}})
	if err != nil {
		t.Fatal(err)
	}
	m := NewModel(Config{Queues: queues})
	gpus := func(n int) rm.Resource { return rm.Resource{Memory: 1, VCores: 1, GPUs: n} }
	id := func(n int64) rm.ApplicationID { return rm.ApplicationID{Cluster: 1, Sequence: n} }
	node := Node{ID: "a", Host: "a", Capacity: rm.Resource{Memory: 100, VCores: 100, GPUs: 8}, Used: gpus(6), Containers: 2}
	for i := range 8 {
		node.GPUs = append(node.GPUs, GPU{UUID: string(rune('0' + i)), Minor: i, Island: "0", Free: i >= 6})
	}
	node.Holds = []Hold{{App: id(1), Resource: gpus(2), GPUs: []string{"0", "1"}}, {App: id(2), Resource: gpus(4), GPUs: []string{"2", "3", "4", "5"}}}
	m.SetNode(node)
	ends := metadata.TimeOf(time.Unix(1000, 0))
	m.SetApp(App{ID: id(1), Queue: "root.default", User: "ann", Used: gpus(2)})
	m.SetApp(App{ID: id(2), Queue: "root.b", User: "bob", Used: gpus(4), Ends: ends})
	m.SetApp(App{ID: id(3), Queue: "root.default", User: "ann", Submitted: 1, Asks: []rm.Ask{{ID: "w", Count: 2, Gang: 2, Resource: gpus(3)}}})
	m.SetApp(App{ID: id(4), Queue: "root.b", User: "bob", Submitted: 1, Asks: []rm.Ask{{ID: "w", Count: 1, Resource: gpus(1)}}})
	now := metadata.TimeOf(time.Unix(500, 0))
	if plan := m.Plan(Budget{}, now); len(plan.Groups) > 0 {
		t.Fatalf("granted %+v", plan.Groups)
	}
	e, _ := m.Explain(id(3), "w", []string{"root.default", "root.b"}, now)
	if e.Reason.Code != rm.ReasonResources || e.Starts != ends || e.Since != now || len(e.Blockers) != 2 || e.Blockers[0].App != id(2) || e.Blockers[0].Amount != 4 || e.Blockers[0].User != "bob" {
		t.Fatalf("%+v", e)
	}
	if len(e.Changes) != 1 || e.Changes[0].Kind != FewerGPUs || e.Changes[0].GPUs != 1 {
		t.Fatalf("%+v", e.Changes)
	}
	e, _ = m.Explain(id(4), "w", []string{"root.default", "root.b", "root.c"}, now)
	if e.Reason.Code != rm.ReasonQueueMaximum || e.Limit != 4 || e.Used != 4 || len(e.Blockers) != 1 || e.Blockers[0].App != id(2) || e.Starts != 0 {
		t.Fatalf("%+v", e)
	}
	if len(e.Changes) != 1 || e.Changes[0].Queue != "root.default" {
		t.Fatalf("%+v", e.Changes)
	}
	if _, ok := m.Explain(id(4), "other", nil, now); ok {
		t.Fatal("explains what nobody asked for")
	}
}

// TestATrialIsWhatWouldHappen: what Try says of an application is what a new model with it grants, and leaves no trace.
func TestATrialIsWhatWouldHappen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		if q := w.queues.Find("root.default"); q.UserLimitPercent > 0 && q.UserLimitPercent < 100 {
			return // what it takes lets others go on, with whom it has to share then
		}
		name := w.order[len(w.order)-1]
		tried := *w.apps[name]
		delete(w.apps, name)
		w.order = w.order[:len(w.order)-1]
		for more := true; more; {
			plan := Schedule(w.snapshot(), 0)
			if err := w.apply(plan); err != nil {
				t.Fatal(err)
			}
			more = len(plan.Groups) > 0
		}
		s := w.snapshot()
		build := func() *Model {
			m := NewModel(Config{Queues: s.Queues})
			for _, n := range s.Nodes {
				m.SetNode(n)
			}
			for _, a := range s.Apps {
				m.SetApp(a)
			}
			return m
		}
		m, untouched := build(), build()
		for _, x := range []*Model{m, untouched} {
			if plan := x.Plan(Budget{}, 0); len(plan.Groups) > 0 {
				t.Fatalf("a second pass found more: %+v", plan.Groups)
			}
		}
		// In the order in which they are served.
		slices.SortStableFunc(tried.Asks, func(a, b rm.Ask) int { return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.ID, b.ID)) })
		groups, waits := m.Try(tried, nil, 0)
		if again, _ := m.Try(tried, nil, 0); !reflect.DeepEqual(groups, again) {
			t.Fatalf("tried twice: %+v, %+v", groups, again)
		}
		if !reflect.DeepEqual(m.Waiting(), untouched.Waiting()) {
			t.Fatal("a trial changed what waits")
		}
		if plan := m.Plan(Budget{}, 0); len(plan.Groups) > 0 {
			t.Fatalf("a trial changed what is planned: %+v", plan.Groups)
		}
		for _, x := range waits {
			if x.Reason.IsZero() {
				t.Fatalf("waits without a reason: %+v", x)
			}
		}
		changed := s
		changed.Apps = append(slices.Clone(s.Apps), tried)
		plan := Schedule(changed, 0)
		if !slices.EqualFunc(plan.Groups, groups, func(a, b Group) bool { return a.Ask == b.Ask && reflect.DeepEqual(a.Placements, b.Placements) }) {
			t.Fatalf("tried %+v, granted %+v", groups, plan.Groups)
		}
	})
}
