package scheduler

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	rm "github.com/gohops/hops/resourcemanager"
)

// sameAsRebuilt compares a model with one that is made from the whole: what they hold, and what they plan.
func sameAsRebuilt(t failer, m *Model, w *world) {
	t.Helper()
	fresh := NewModel(Config{Queues: w.queues})
	s := w.snapshot()
	for _, n := range slices.Backward(s.Nodes) { // in another order than they came
		fresh.SetNode(n)
	}
	for _, a := range slices.Backward(s.Apps) {
		fresh.SetApp(a)
	}
	if m.unresolved {
		m.resolve()
	}
	fresh.resolve()
	m.weighAll()
	fresh.weighAll()
	if a, b := m.contents(), fresh.contents(); a != b {
		t.Fatalf("after changes:\n%s\nmade anew:\n%s", a, b)
	}
	mark, other := m.Mark(), fresh.Mark()
	a, b := m.Plan(Budget{}, 0), fresh.Plan(Budget{}, 0)
	for i := range a.Groups {
		a.Groups[i].Number = 0
	}
	for i := range b.Groups {
		b.Groups[i].Number = 0
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("after changes: %+v\nmade anew: %+v", a, b)
	}
	if a, b := m.Waiting(), fresh.Waiting(); !reflect.DeepEqual(a, b) {
		t.Fatalf("after changes: %+v\nmade anew: %+v", a, b)
	}
	m.Undo(mark)
	fresh.Undo(other)
	if a, b := m.contents(), fresh.contents(); a != b {
		t.Fatalf("after a trial:\n%s\nmade anew:\n%s", a, b)
	}
}

// contents is what a model holds, but for which asks are closed.
func (m *Model) contents() string {
	out := fmt.Sprintln("total", m.total, m.nodeNames.longest(), m.deviceNames.longest(), len(m.assumed))
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[id]
		out += fmt.Sprintln("node", id, n.room, n.places, n.roomNow().free, n.assumed, n.assumedContainers, n.assumedWhole, n.empty(), len(n.assumedGPUs), n.bucket != nil)
		if n.bucket != nil && (n.bucket != m.buckets[string(m.key(n))] || n.bucket.members.list[n.at()] != n) {
			out += "in the wrong bucket\n"
		}
	}
	for _, a := range m.sortedApps() {
		if t := m.tags[a.ID]; t != nil {
			for _, tag := range slices.Sorted(maps.Keys(t.on)) {
				for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
					out += fmt.Sprintln("tag", a.ID, tag, id, t.on[tag][m.nodes[id]], len(t.on[tag]))
				}
			}
		}
	}
	filed, spread := 0, 0
	for i := range m.lists {
		for _, b := range m.lists[i].buckets {
			filed += len(b.members.list)
			if b.node().isSpread() {
				spread++
			}
		}
		spread -= m.lists[i].spread
	}
	open := 0
	for _, n := range m.nodes {
		if !n.Closed {
			open++
		}
	}
	out += fmt.Sprintln("nodes not filed", open-filed, "spread", spread)
	for _, q := range m.queues {
		out += fmt.Sprintln("queue", q.Path, q.used, q.masters, q.guaranteed, q.maximum, q.bounded, q.ratio, q.running, q.asking)
		for i, l := range q.blocked {
			if l.by != q || l.blocked != i || len(l.wants.list) == 0 {
				out += "blocked by something else\n"
			}
		}
		for _, name := range slices.Sorted(maps.Keys(q.users)) {
			if u := q.users[name]; *u != (user{}) {
				out += fmt.Sprintln("user", name, *u)
			}
		}
	}
	for _, a := range m.sortedApps() {
		out += fmt.Sprintln("app", a.ID, a.uses(), a.share, a.counted)
		for _, x := range a.wants {
			out += fmt.Sprintln("ask", x.ID, x.open(), x.unit(), x.lane != nil)
		}
	}
	return out
}

// TestAModelThatIsToldOfChangesIsTheWhole changes clusters at random, and commits, refuses and undoes plans of a few groups; the model
// equals one that is made from the whole, and plans the same.
func TestAModelThatIsToldOfChangesIsTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		m := NewModel(Config{Queues: w.queues})
		tell := func() {
			s := w.snapshot()
			for _, n := range s.Nodes {
				n.GPUs = slices.Clone(n.GPUs)
				m.SetNode(n)
			}
			for _, a := range s.Apps {
				a.Asks = slices.Clone(a.Asks)
				m.SetApp(a)
			}
		}
		tell()
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0: // a plan, of which some groups are refused
				plan := m.Plan(Budget{Containers: rapid.IntRange(0, 3).Draw(t, "budget")}, 0)
				var numbers []int64
				// A gang that is refused takes with it what comes after it, and, of its application, what may have counted on it as a neighbour.
				refused := map[string]bool{}
				for _, g := range plan.Groups {
					numbers = append(numbers, g.Number)
					name, all := fmt.Sprint(g.App, g.Ask), g.App.String()
					asks := w.apps[w.order[g.App.Sequence-1]].Asks
					minds := slices.ContainsFunc(asks, func(a rm.Ask) bool { return a.ID == g.Ask && !a.Constraints.IsZero() })
					if refused[name] || minds && refused[all] || rapid.IntRange(0, 3).Draw(t, "refused") == 0 {
						refused[name], refused[all] = true, true
						continue
					}
					if err := w.apply(Plan{Groups: []Group{g}}); err != nil {
						t.Fatal(err)
					}
				}
				if rapid.Bool().Draw(t, "told first") {
					tell()
					m.Settle(numbers...)
				} else {
					m.Settle(numbers...)
					tell()
				}
			case 1:
				if len(w.nodes) > 0 {
					name := rapid.SampledFrom(w.nodeNames()).Draw(t, "node")
					w.do(t, "free "+name)
				}
			case 2:
				if len(w.nodes) > 0 {
					name := rapid.SampledFrom(w.nodeNames()).Draw(t, "node")
					n := w.nodes[name]
					n.Closed = !n.Closed
					if rapid.Bool().Draw(t, "relabelled") {
						n.Labels = []string{"x"}
						n.Attributes = attributes(t, []string{"zone:c"})
					}
				}
			case 3:
				if len(w.nodes) > 0 {
					name := rapid.SampledFrom(w.nodeNames()).Draw(t, "node")
					w.do(t, "free "+name)
					delete(w.nodes, name)
					m.RemoveNode(rm.NodeID(name))
				}
			case 4:
				a := w.apps[rapid.SampledFrom(w.order).Draw(t, "app")]
				if len(a.Asks) > 0 {
					i := rapid.IntRange(0, len(a.Asks)-1).Draw(t, "ask")
					a.Asks = slices.Clone(a.Asks)
					a.Asks[i].Count = rapid.IntRange(1, 4).Draw(t, "count")
					a.Asks[i].Gang = 0
				}
			case 5:
				a := w.apps[rapid.SampledFrom(w.order).Draw(t, "app")]
				a.Asks = append(slices.Clone(a.Asks), rm.Ask{ID: fmt.Sprint("more", step), Count: 1, Resource: rm.Resource{Memory: 1}})
			case 6: // other queues, of which some are as before
				q, err := rm.NewQueues(rapid.SampledFrom(queueShapes).Draw(t, "other queues"))
				if err != nil {
					t.Fatal(err)
				}
				w.queues = q.With(rapid.SampledFrom([][]string{nil, {"root.b.e"}, {"root.b.e", "root.b.f"}}).Draw(t, "made"))
				m.Configure(Config{Queues: w.queues})
			}
			tell()
			sameAsRebuilt(t, m, w)
		}
	})
}
