package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	rm "github.com/gohops/hops/resourcemanager"
)

// cellTrees are guarantees of nodes of 4 GPUs, in clusters of 4 such nodes or more.
var cellTrees = []map[string]rm.QueueConfig{
	{"a": {Capacity: "50%", Cells: map[string]int{"node/4": 2}}, "b": {Capacity: "50%"}},
	{"a": {Capacity: "50%", Cells: map[string]int{"node/4": 2}}, "b": {Capacity: "25%", PreemptionDisabled: true}, "c": {Capacity: "25%", Cells: map[string]int{"node/4": 1}}},
	{"a": {Capacity: "25%", PreemptionDisabled: true, Cells: map[string]int{"node/4": 1}}, "b": {Capacity: "25%", Cells: map[string]int{"node/4": 1}}, "c": {Capacity: "50%", Ordering: rm.OrderFair}},
	{"a": {Capacity: "75%", Cells: map[string]int{"node/4": 3}, Children: map[string]rm.QueueConfig{
		"x": {Capacity: "40%", Cells: map[string]int{"node/4": 1}}, "y": {Capacity: "40%", Cells: map[string]int{"node/4": 1}, PreemptionDisabled: true}, "z": {Capacity: "20%"},
	}}, "b": {Capacity: "25%", Cells: map[string]int{"node/4": 1}}},
}

// cellCount counts whole nodes by looking at all that runs: those where a queue has something, and how many are missing for what is guaranteed.
type cellCount struct {
	w   *town
	off bool // nothing is preempted
}

func (c cellCount) pinned(h *Hold) bool {
	return c.off || h.Master || c.w.queues.Find(c.w.apps[h.App].Queue).PreemptionDisabled
}

func (c cellCount) cell(n *Node) bool { return !n.Closed && len(n.GPUs) >= c.w.queues.CellGPUs }

// on counts the holds on a node that are of a queue, or of others.
func (c cellCount) on(n *Node, q *rm.Queue, pinned bool) (own, others int) {
	for i := range n.Holds {
		switch h := &n.Holds[i]; {
		case pinned && !c.pinned(h):
		case c.w.queues.Find(c.w.apps[h.App].Queue).Below(q):
			own++
		default:
			others++
		}
	}
	return own, others
}

// has counts the cells of a queue: where it has all that is pinned; or nothing is, and it runs something, alone of those below another.
func (c cellCount) has(q, below *rm.Queue) (n int) {
	for _, at := range c.w.nodes {
		if !c.cell(at) {
			continue
		}
		mine, others := c.on(at, q, true)
		if mine+others == 0 {
			mine, _ = c.on(at, q, false)
			all, _ := c.on(at, below, false)
			others = all - mine
		}
		if mine > 0 && others == 0 {
			n++
		}
	}
	return n
}

func (c cellCount) lacks(q *rm.Queue) int {
	own, below := 0, 0
	for _, at := range c.w.nodes {
		if mine, others := c.on(at, q, true); mine > 0 && others == 0 && c.cell(at) {
			own++
		}
	}
	for _, child := range q.Children {
		below += c.lacks(child)
	}
	return max(below, q.Cells-own)
}

// within reports whether n whole nodes more for a leaf are within what it, or a queue above it, is guaranteed, beside what others below that lack.
func (c cellCount) within(leaf *rm.Queue, n int) bool {
	var lacks func(q *rm.Queue) int // with the n
	top := leaf
	for top.Parent.Parent != nil {
		top = top.Parent
	}
	lacks = func(q *rm.Queue) int {
		own, below := c.has(q, top), 0
		if leaf.Below(q) {
			own += n
		}
		for _, child := range q.Children {
			below += lacks(child)
		}
		return max(below, q.Cells-own)
	}
	for q := leaf; q != nil; q = q.Parent {
		below := 0
		for _, child := range q.Children {
			below += lacks(child)
		}
		if q.Cells > 0 && c.has(q, q)+n+below <= q.Cells {
			return true
		}
	}
	return false
}

func (c cellCount) missing() int {
	free := 0
	for _, at := range c.w.nodes {
		if mine, _ := c.on(at, c.w.queues.Root, true); mine == 0 && c.cell(at) {
			free++
		}
	}
	return max(0, c.lacks(c.w.queues.Root)-free)
}

// sameCellsAsRebuilt compares what a model counts with one that is made from the whole.
func (w *town) sameCellsAsRebuilt() {
	w.t.Helper()
	count := func(m *Model) string {
		if m.unresolved {
			m.resolve()
		}
		out := fmt.Sprintln("free", m.cells.free, "missing", m.missing())
		for _, q := range m.queues {
			out += fmt.Sprintln(q.Path, q.cells.pinned, q.cells.touched, q.cells.sole, q.cells.own)
		}
		return out
	}
	fresh := NewModel(w.model.config)
	for _, n := range w.nodes {
		fresh.SetNode(copyNode(n))
	}
	for _, a := range w.apps {
		fresh.SetApp(copyApp(a))
	}
	if a, b := count(w.model), count(fresh); a != b {
		w.t.Fatalf("after changes:\n%smade anew:\n%s", a, b)
	}
}

// evict tells who is to go, and they go, and are asked for again.
func (w *town) evict() {
	w.tell()
	p := w.model.Preempt(w.now)
	for _, e := range p.Evictions {
		for _, v := range e.Victims {
			w.hold(v.Container).For = e.Queue
		}
	}
	for _, id := range p.Spared {
		w.hold(id).For = ""
	}
	w.end(true, func(h *Hold) bool { return h.For != "" })
	w.plan()
}

func drawCells(t *rapid.T) (*town, cellCount) {
	tree := rapid.SampledFrom(cellTrees).Draw(t, "tree")
	w := newTown(t, rm.QueueConfig{Children: tree}, rapid.IntRange(4, 6).Draw(t, "nodes"), 4)
	for i := 4; i < len(w.nodes); i++ {
		if rapid.Bool().Draw(t, "smaller") {
			n := w.nodes[i]
			n.GPUs, n.Capacity.GPUs = n.GPUs[:2], 2
		}
	}
	c := cellCount{w, rapid.IntRange(0, 2).Draw(t, "preemption is off") == 0}
	config := w.model.config
	config.Preempt.Enabled, config.Preempt.RoundShare = !c.off, 1
	w.model.Configure(config)
	return w, c
}

func (w *town) leaves() (out []string) {
	for _, q := range w.queues.All {
		if q.Leaf() {
			out = append(out, q.Path)
		}
	}
	return out
}

// TestCellsCanBeHad draws clusters in which queues are guaranteed whole nodes and others want, and have, all sorts of things; whenever a
// queue is within its cells and asks for whole nodes, it has them at once, or when those who borrow them have been preempted; where nobody is
// preempted, at once. What cannot be preempted never leaves fewer than are guaranteed.
func TestCellsCanBeHad(t *testing.T) {
	claimed, evicted, refused := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w, c := drawCells(t)
		step := func() {
			if n := c.missing(); n > 0 {
				t.Fatalf("%d cells are missing\n%s", n, w.picture())
			}
			w.sameCellsAsRebuilt()
		}
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			default:
				var asks []rm.Ask
				if rapid.IntRange(0, 2).Draw(t, "master") == 0 {
					asks = append(asks, rm.Ask{Count: 1, Resource: rapid.SampledFrom([]rm.Resource{gpus(1), {Memory: 1, VCores: 1}}).Draw(t, "of master")})
				}
				ask := rm.Ask{ID: "w", Count: rapid.IntRange(1, 6).Draw(t, "count"), Resource: gpus(rapid.SampledFrom([]int{1, 1, 2, 3, 4}).Draw(t, "gpus"))}
				if rapid.IntRange(0, 3).Draw(t, "gang") == 0 {
					ask.Gang = ask.Count
				}
				if rapid.IntRange(0, 4).Draw(t, "whole") == 0 {
					ask.Exclusive = true
				}
				if rapid.IntRange(0, 3).Draw(t, "rack") == 0 {
					ask.Within = "1"
				}
				w.submit(rapid.SampledFrom(w.leaves()).Draw(t, "queue"), rapid.IntRange(0, 1).Draw(t, "priority"), append(asks, ask)...)
			case 0:
				part := rapid.IntRange(2, 4).Draw(t, "part")
				i := rapid.IntRange(0, 3).Draw(t, "which")
				w.end(false, func(*Hold) bool { i++; return i%part == 0 })
			}
			w.wait(time.Minute)
			w.plan()
			step()
			for _, x := range w.model.Waiting() {
				if x.Reason.Code == rm.ReasonCells {
					refused++
				}
			}
			if !c.off && rapid.Bool().Draw(t, "evict") {
				w.evict()
				step()
			}
		}
		// Somebody wants what is guaranteed.
		n := rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "cells")
		var able []string
		for _, path := range w.leaves() {
			if c.within(w.queues.Find(path), n) {
				able = append(able, path)
			}
		}
		if len(able) == 0 {
			return
		}
		leaf := rapid.SampledFrom(able).Draw(t, "claims")
		for _, a := range w.apps {
			if strings.HasPrefix(a.Queue, leaf[:len("root.a")]) {
				a.Asks = nil // what else it wants may be first
			}
		}
		ask := rm.Ask{ID: "cells", Count: n, Gang: n, Resource: gpus(4)}
		if ask.Exclusive = rapid.Bool().Draw(t, "exclusive"); ask.Exclusive {
			ask.Resource = gpus(1)
			if len(w.nodes) > 4 {
				ask.Resource = gpus(3) // not on a smaller one, which is no cell
			}
		}
		before := w.picture()
		a := w.submit(leaf, 9, ask)
		claimed++
		for round := 0; ; round++ {
			w.plan()
			step()
			if a.Used.GPUs > 0 {
				break
			}
			if round == 0 {
				evicted++
			}
			if c.off || round == 20 {
				why := w.model.WaitingFor(a.ID)
				e, _ := w.model.Explain(a.ID, "cells", nil, w.now)
				t.Fatalf("round %d: %s does not get its %d cells: %v, %v, %q\nbefore\n%snow\n%s", round, leaf, n, why, e.Preempts, e.NoPreemption, before, w.picture())
			}
			w.wait(time.Minute)
			w.evict()
			if a.Used.GPUs > 0 {
				break
			}
		}
	})
	t.Logf("%d claims, %d with evictions, %d refused", claimed, evicted, refused)
}

func (w *town) picture() string {
	var out strings.Builder
	for _, n := range w.nodes {
		fmt.Fprintf(&out, "%s %d:", n.ID, len(n.GPUs))
		for _, h := range n.Holds {
			fmt.Fprintf(&out, " %s(%d,%dG,gang %d,master %v,for %q)", w.apps[h.App].Queue, h.App.Sequence, h.Resource.GPUs, h.Gang, h.Master, h.For)
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

// cellTown has 3 nodes of 4 GPUs, one of which is guaranteed to a as a cell; b is not preempted.
func cellTown(t *testing.T) *town {
	return newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{
		"a": {Capacity: "50%", Cells: map[string]int{"node/4": 1}}, "b": {Capacity: "50%", PreemptionDisabled: true}, "c": {Capacity: "0%"},
	}}, 3, 4)
}

// TestTheLastCellIsRefused: what cannot be preempted has all room but that of the last cell, and hears why; when something of it ends there is room
// in what it broke already.
func TestTheLastCellIsRefused(t *testing.T) {
	w := cellTown(t)
	first := w.submit("root.b", 0, rm.Ask{ID: "w", Count: 2, Gang: 2, Resource: gpus(3)})
	second := w.submit("root.b", 0, rm.Ask{ID: "w", Count: 1, Resource: rm.Resource{Memory: 1, VCores: 1, GPUs: 2}})
	w.plan()
	if first.Used.GPUs != 6 || second.Used.GPUs != 0 {
		t.Fatalf("the first has %v, the second %v\n%s", first.Used, second.Used, w.picture())
	}
	e, _ := w.model.Explain(second.ID, "w", []string{"root.c"}, w.now)
	if r := e.Reason; r.Code != rm.ReasonCells || r.Queue != "root.a" || r.Need != 1 || r.Have != 1 {
		t.Fatalf("the reason is %+v", r)
	}
	if len(e.Blockers) != 1 || e.Blockers[0].App != first.ID || e.Blockers[0].Amount != 2 {
		t.Fatalf("in its way are %+v", e.Blockers)
	}
	kinds := []ChangeKind{}
	for _, c := range e.Changes {
		kinds = append(kinds, c.Kind)
	}
	if !slices.Equal(kinds, []ChangeKind{FewerGPUs, OtherQueue}) || e.Changes[0].GPUs != 1 || e.Changes[1].Queue != "root.c" {
		t.Fatalf("it would start with %+v", e.Changes)
	}
	// What may be preempted has the room, and the queue with the guarantee has it back.
	borrower := w.submit("root.c", 0, rm.Ask{ID: "w", Count: 1, Resource: gpus(2)})
	w.plan()
	owner := w.submit("root.a", 0, rm.Ask{ID: "w", Count: 1, Resource: gpus(4)})
	w.plan()
	if borrower.Used.GPUs != 2 || owner.Used.GPUs != 0 {
		t.Fatalf("the borrower has %v, the owner %v", borrower.Used, owner.Used)
	}
	w.wait(time.Minute)
	w.evict()
	w.wait(time.Minute)
	w.evict()
	if borrower.Used.GPUs != 0 || owner.Used.GPUs != 4 {
		t.Fatalf("the borrower has %v, the owner %v\n%s", borrower.Used, owner.Used, w.picture())
	}
	freed := false
	w.end(false, func(h *Hold) bool { was := freed; freed = freed || h.App == first.ID; return h.App == first.ID && !was })
	w.plan()
	if second.Used.GPUs != 2 {
		t.Fatalf("the second has %v\n%s", second.Used, w.picture())
	}
}

// TestNothingIsKeptForWhoMayNotHaveIt: a gang that only the cells of others hold back gets no nodes kept, which would keep these from their queue.
func TestNothingIsKeptForWhoMayNotHaveIt(t *testing.T) {
	w := newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{
		"a": {Capacity: "70%", Cells: map[string]int{"node/4": 2}}, "b": {Capacity: "30%", PreemptionDisabled: true},
	}}, 3, 4)
	w.model = NewModel(Config{Queues: w.queues, Patience: 1, Wait: time.Minute})
	w.tell()
	gang := w.submit("root.b", 0, rm.Ask{ID: "w", Count: 2, Gang: 2, Resource: gpus(4)})
	w.plan()
	for range 2 {
		w.submit("root.a", 0, rm.Ask{ID: "w", Count: 1, Resource: rm.Resource{Memory: 1, VCores: 1}})
		w.wait(5 * time.Minute)
		w.plan()
	}
	owner := w.submit("root.a", 0, rm.Ask{ID: "w", Count: 2, Gang: 2, Resource: gpus(4)})
	w.plan()
	if gang.Used.GPUs != 0 || owner.Used.GPUs != 8 {
		t.Fatalf("the gang has %v, the owner of the cells %v\n%s", gang.Used, owner.Used, w.picture())
	}
}

// TestCellsThatAreNotThere: more than the cluster has is no reason to refuse everything; what makes it no worse goes on.
func TestCellsThatAreNotThere(t *testing.T) {
	w := newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{
		"a": {Capacity: "50%", Cells: map[string]int{"node/4": 3}}, "b": {Capacity: "50%", PreemptionDisabled: true},
	}}, 2, 4)
	if n := w.model.MissingCells(); n != 1 {
		t.Fatalf("%d are missing", n)
	}
	b := w.submit("root.b", 0, rm.Ask{ID: "w", Count: 1, Resource: gpus(1)})
	w.plan()
	if b.Used.GPUs != 0 {
		t.Fatalf("it breaks one more: %s", w.picture())
	}
	// Without the guarantee it starts, and when that is given again, goes on, and more of it beside it.
	configure := func(cells map[string]int) {
		q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{
			"a": {Capacity: "50%", Cells: cells}, "b": {Capacity: "50%", PreemptionDisabled: true},
		}})
		if err != nil {
			t.Fatal(err)
		}
		c := w.model.config
		w.queues, c.Queues = q, q
		w.model.Configure(c)
	}
	configure(nil)
	w.plan()
	configure(map[string]int{"node/4": 3})
	more := w.submit("root.b", 0, rm.Ask{ID: "w", Count: 4, Resource: gpus(1)})
	w.plan()
	if n := w.model.MissingCells(); n != 2 || b.Used.GPUs != 1 || more.Used.GPUs != 3 {
		t.Fatalf("%d are missing; they have %v and %v", n, b.Used, more.Used)
	}
	w.sameCellsAsRebuilt()
}

// TestCellsAreCountedByChanges: nodes come and go and close, applications change their queues or are forgotten, the tree is another, plans are taken back;
// what a model counts is what one counts that is made from the whole.
func TestCellsAreCountedByChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, _ := drawCells(t)
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			leaf := rapid.SampledFrom(w.leaves())
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			default:
				ask := rm.Ask{ID: "w", Count: rapid.IntRange(1, 6).Draw(t, "count"), Resource: gpus(rapid.IntRange(0, 4).Draw(t, "gpus"))}
				w.submit(leaf.Draw(t, "queue"), 0, rm.Ask{Count: 1, Resource: gpus(1)}, ask)
			case 0:
				w.end(rapid.Bool().Draw(t, "again"), func(h *Hold) bool { return w.apps[h.App] != nil && h.App.Sequence%2 == 0 })
			case 1:
				n := rapid.SampledFrom(w.nodes).Draw(t, "node")
				n.Closed = !n.Closed
			case 2:
				n := rapid.SampledFrom(w.nodes).Draw(t, "node")
				n.GPUs[0].Broken, n.GPUs[0].Free = true, false
			case 3:
				for _, a := range w.apps {
					if a.ID.Sequence%3 == 0 {
						a.Queue = leaf.Draw(t, "other queue")
					}
				}
			case 4: // it is forgotten before its containers have ended
				for id := range w.apps {
					if id.Sequence%5 == 0 {
						delete(w.apps, id)
						w.model.RemoveApp(id)
					}
				}
			case 5:
				q, err := rm.NewQueues(rm.QueueConfig{Children: rapid.SampledFrom(append(cellTrees, map[string]rm.QueueConfig{"a": {Capacity: "100%"}})).Draw(t, "tree")})
				if err != nil {
					t.Fatal(err)
				}
				w.queues = q
				c := w.model.config
				c.Queues, c.Preempt.Enabled = q, rapid.Bool().Draw(t, "preemption")
				w.model.Configure(c)
			case 7: // with what is in flight there
				if len(w.nodes) > 2 {
					w.model.Plan(Budget{Containers: 2}, w.now)
					n := w.nodes[len(w.nodes)-1]
					w.end(false, func(h *Hold) bool {
						return w.apps[h.App] != nil && slices.ContainsFunc(n.Holds, func(o Hold) bool { return o.Container == h.Container })
					})
					w.nodes = w.nodes[:len(w.nodes)-1]
					w.model.RemoveNode(n.ID)
					for number := range w.model.last + 1 {
						w.model.Settle(number)
					}
				}
			case 6:
				mark := w.model.Mark()
				w.model.Plan(Budget{Containers: rapid.IntRange(0, 3).Draw(t, "budget")}, w.now)
				w.model.Waiting()
				w.model.Undo(mark)
			}
			w.tell()
			w.sameCellsAsRebuilt()
			for _, a := range w.apps { // those of queues that are there no more want nothing
				if w.queues.Find(a.Queue) == nil {
					a.Asks = nil
				}
			}
			w.plan()
			w.sameCellsAsRebuilt()
			w.wait(time.Minute)
			w.tell()
			w.model.Preempt(w.now)
			w.sameCellsAsRebuilt()
		}
	})
}
