package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// town is a cluster in which containers live: it does what plans say, tells containers to go, and has them asked for again.
type town struct {
	t      failer
	queues *rm.Queues
	model  *Model
	now    metadata.Time
	nodes  []*Node
	apps   map[rm.ApplicationID]*App
	asks   map[rm.ContainerID]rm.Ask // of which each container is
	number int64
	// saves says whose programs write checkpoints, and say so.
	saves map[rm.ApplicationID]bool
	// evicted counts containers, and pairs who went for whom.
	evicted int
}

func newTown(t failer, c rm.QueueConfig, nodes, gpus int) *town {
	q, err := rm.NewQueues(c)
	if err != nil {
		t.Fatal(err)
	}
	w := &town{t: t, queues: q, apps: map[rm.ApplicationID]*App{}, saves: map[rm.ApplicationID]bool{}, asks: map[rm.ContainerID]rm.Ask{}, now: 1_000_000}
	w.lead()
	for i := range nodes {
		n := &Node{ID: rm.NodeID(fmt.Sprintf("n%d", i)), Host: fmt.Sprintf("n%d", i), Rack: fmt.Sprintf("/r%d", i/2), Capacity: rm.Resource{Memory: int64(gpus) << 30, VCores: gpus, GPUs: gpus}}
		for g := range gpus {
			n.GPUs = append(n.GPUs, GPU{UUID: fmt.Sprintf("%d-%d", i, g), Island: fmt.Sprint(g / 2), Minor: g, Free: true})
		}
		w.nodes = append(w.nodes, n)
	}
	w.tell()
	return w
}

// lead is what another leader begins with.
func (w *town) lead() {
	w.model = NewModel(Config{Queues: w.queues, Patience: 1 << 30, Wait: 1 << 60, Preempt: Preemption{Enabled: true, RoundShare: 0.5}})
}

func copyNode(n *Node) Node {
	c := *n
	c.GPUs, c.Holds = slices.Clone(n.GPUs), slices.Clone(n.Holds)
	return c
}

func copyApp(a *App) App {
	c := *a
	c.Asks = slices.Clone(a.Asks)
	return c
}

func (w *town) tell() {
	for _, n := range w.nodes {
		w.model.SetNode(copyNode(n))
	}
	for _, a := range w.apps {
		w.model.SetApp(copyApp(a))
	}
}

func (w *town) submit(queue string, priority int, asks ...rm.Ask) *App {
	w.number++
	a := &App{ID: rm.ApplicationID{Cluster: 1, Sequence: w.number}, Queue: queue, User: "u", Priority: priority, Submitted: w.now, Asks: asks}
	w.apps[a.ID] = a
	return a
}

// plan grants what there is room for.
func (w *town) plan() int {
	w.tell()
	plan := w.model.Plan(Budget{}, w.now)
	var numbers []int64
	for _, g := range plan.Groups {
		numbers = append(numbers, g.Number)
		a := w.apps[g.App]
		i := slices.IndexFunc(a.Asks, func(x rm.Ask) bool { return x.ID == g.Ask })
		gang := int64(0)
		for _, p := range g.Placements {
			w.number++
			if len(g.Placements) > 1 && gang == 0 {
				gang = w.number
			}
			n := w.nodes[slices.IndexFunc(w.nodes, func(n *Node) bool { return n.ID == p.Node })]
			id := rm.ContainerID{Attempt: rm.AttemptID{Application: a.ID, Number: 1}, Number: w.number}
			gets := g.Gets(p)
			ask := a.Asks[i]
			n.Holds = append(n.Holds, Hold{
				App: a.ID, Resource: gets, GPUs: p.GPUs, Container: id, Master: g.Ask == "", Gang: gang, Saved: w.now,
				Began: w.now, Asked: &ask, Checkpoints: w.saves[a.ID],
			})
			w.asks[id] = ask
			n.Used = n.Used.Add(gets)
			n.Containers++
			n.Exclusive = p.Whole != nil
			a.Used = a.Used.Add(gets)
			for k := range n.GPUs {
				n.GPUs[k].Free = n.GPUs[k].Free && !slices.Contains(p.GPUs, n.GPUs[k].UUID)
			}
		}
		if a.Asks[i].Count -= len(g.Placements); a.Asks[i].Count == 0 {
			a.Asks = slices.Delete(slices.Clone(a.Asks), i, i+1)
		} else {
			a.Asks[i].Gang = 0
		}
	}
	w.tell()
	w.model.Settle(numbers...)
	return len(plan.Groups)
}

// end ends containers, which their applications want again if again is set.
func (w *town) end(again bool, which func(h *Hold) bool) int {
	ended := 0
	for _, n := range w.nodes {
		n.Holds = slices.DeleteFunc(slices.Clone(n.Holds), func(h Hold) bool {
			if !which(&h) {
				return false
			}
			ended++
			a := w.apps[h.App]
			n.Used = n.Used.Sub(h.Resource)
			n.Containers--
			n.Exclusive = false
			a.Used = a.Used.Sub(h.Resource)
			for k := range n.GPUs {
				n.GPUs[k].Free = n.GPUs[k].Free || slices.Contains(h.GPUs, n.GPUs[k].UUID)
			}
			if !again {
				return true
			}
			ask := w.asks[h.Container]
			if i := slices.IndexFunc(a.Asks, func(x rm.Ask) bool { return x.ID == ask.ID }); i >= 0 {
				a.Asks = slices.Clone(a.Asks)
				a.Asks[i].Count++
				if h.Gang != 0 {
					a.Asks[i].Gang++
				}
			} else {
				ask.Count, ask.Gang = 1, min(int(h.Gang), 1)
				a.Asks = append(slices.Clone(a.Asks), ask)
			}
			return true
		})
	}
	return ended
}

// preempt tells who is to go, after it has checked that decision.
func (w *town) preempt() Preempted {
	w.tell()
	p := w.model.Preempt(w.now)
	for _, e := range p.Evictions {
		if e.Moves {
			w.checkMove(e)
		} else {
			w.check(e)
			w.evicted += len(e.Victims)
		}
		for _, v := range e.Victims {
			h := w.hold(v.Container)
			h.For, h.ForApp, h.ForAsk, h.Moves = e.Queue, e.App, e.Ask, e.Moves
		}
	}
	for _, id := range p.Spared {
		w.hold(id).For, w.hold(id).Moves = "", false
	}
	w.tell()
	return p
}

func (w *town) hold(id rm.ContainerID) *Hold {
	for _, n := range w.nodes {
		for i := range n.Holds {
			if n.Holds[i].Container == id {
				return &n.Holds[i]
			}
		}
	}
	w.t.Fatalf("there is no container %v", id)
	return nil
}

// grants says how many containers of an ask a cluster without some containers grants at once, to it alone, with or without what is kept for
// others.
func (w *town) grants(e Eviction, others bool, gone func(h *Hold) bool) int {
	m := NewModel(Config{Queues: w.queues, Patience: -1})
	used := map[rm.ApplicationID]rm.Resource{}
	for _, n := range w.nodes {
		c := copyNode(n)
		c.Holds = nil
		if r := w.model.nodes[n.ID].reserved; r != nil && r.queue.Path != e.Queue {
			c.Closed = !others
		}
		for _, h := range n.Holds {
			if !gone(&h) {
				used[h.App] = used[h.App].Add(h.Resource)
				continue
			}
			c.Used = c.Used.Sub(h.Resource)
			c.Containers--
			c.Exclusive = false
			for k := range c.GPUs {
				c.GPUs[k].Free = c.GPUs[k].Free || slices.Contains(h.GPUs, c.GPUs[k].UUID)
			}
		}
		m.SetNode(c)
	}
	for _, a := range w.apps {
		c := copyApp(a)
		c.Used = used[a.ID]
		c.Asks = nil
		if a.ID == e.App {
			ask := w.ask(e)
			ask.Count = e.Units
			c.Asks = []rm.Ask{ask}
		}
		m.SetApp(c)
	}
	sum := 0
	for _, g := range m.Plan(Budget{}, w.now).Groups {
		sum += len(g.Placements)
	}
	return sum
}

// ask is that for which an eviction makes room.
func (w *town) ask(e Eviction) rm.Ask {
	asks := w.apps[e.App].Asks
	return asks[slices.IndexFunc(asks, func(x rm.Ask) bool { return x.ID == e.Ask })]
}

// check holds an eviction against what a look at everything says.
func (w *town) check(e Eviction) {
	t := w.t
	victim := map[rm.ContainerID]bool{}
	for _, v := range e.Victims {
		victim[v.Container] = true
	}
	gone := func(h *Hold) bool { return victim[h.Container] || h.For == e.Queue || h.Stopping && h.For == "" }
	if n := w.grants(e, true, gone); n < e.Units {
		t.Fatalf("%v: there is room for %d of %d without the victims", e, n, e.Units)
	}
	queue := w.queues.Find(e.Queue)
	var total rm.Resource
	for _, n := range w.nodes {
		total = total.Add(n.Capacity)
	}
	guaranteed, _ := w.queues.Resolve(total)
	use := func(q *rm.Queue, gone func(h *Hold) bool) (sum rm.Resource) {
		for _, n := range w.nodes {
			for _, h := range n.Holds {
				for at := w.queues.Find(w.apps[h.App].Queue); at != nil; at = at.Parent {
					if at == q && !gone(&h) {
						sum = sum.Add(h.Resource)
					}
				}
			}
		}
		return sum
	}
	for _, n := range w.nodes {
		for _, h := range n.Holds {
			if !victim[h.Container] {
				continue
			}
			a := w.apps[h.App]
			q := w.queues.Find(a.Queue)
			if h.Master || q.PreemptionDisabled || h.For != "" || a.ID == e.App {
				t.Fatalf("%v: %v may not go", e, h)
			}
			if h.Gang != 0 { // whole
				for _, o := range w.nodes {
					for _, x := range o.Holds {
						if x.App == h.App && x.Gang == h.Gang && !victim[x.Container] {
							t.Fatalf("%v: %v goes without %v of its gang", e, h.Container, x.Container)
						}
					}
				}
			}
			back := w.grants(e, false, func(x *Hold) bool {
				return gone(x) && !(x.App == h.App && (x.Container == h.Container || h.Gang != 0 && x.Gang == h.Gang))
			})
			if back >= e.Units && len(w.model.berths) == 0 { // who is moved keeps some of that
				t.Fatalf("%v: %v goes for nothing", e, h.Container)
			}
			if q == queue {
				if a.Priority >= w.apps[e.App].Priority {
					t.Fatalf("%v: %v has the priority %d", e, h.Container, a.Priority)
				}
				continue
			}
			for at := q; !holdsQueue(at, queue); at = at.Parent {
				if left := use(at, gone); left.GPUs < guaranteed[slices.Index(w.queues.All, at)].GPUs {
					t.Fatalf("%v: queue %s is left with %d GPUs", e, at.Path, left.GPUs)
				}
			}
			ask := w.ask(e)
			for at := queue; !holdsQueue(at, q); at = at.Parent {
				need := ask.Resource.Times(e.Units)
				if ask.Exclusive {
					need = w.nodes[0].Capacity.Times(e.Units)
				}
				if with := use(at, gone).Add(need); with.GPUs > guaranteed[slices.Index(w.queues.All, at)].GPUs {
					t.Fatalf("%v: queue %s would use %d GPUs, more than it is guaranteed", e, at.Path, with.GPUs)
				}
			}
		}
	}
}

func holdsQueue(q, o *rm.Queue) bool {
	for ; o != nil; o = o.Parent {
		if o == q {
			return true
		}
	}
	return false
}

func gpus(n int) rm.Resource { return rm.Resource{Memory: int64(n) << 30, VCores: n, GPUs: n} }

func (w *town) wait(d time.Duration) { w.now += metadata.Time(d.Milliseconds()) }

// starve lets an ask wait for long enough.
func (w *town) starve() {
	w.plan()
	w.preempt()
	w.wait(DefaultStarved)
}

var twoQueues = rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}}

func TestABorrowedGPUComesBack(t *testing.T) {
	w := newTown(t, twoQueues, 2, 4)
	w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 8})
	w.plan()
	w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(1), Count: 8})
	w.plan()
	if p := w.preempt(); len(p.Evictions) > 0 {
		t.Fatalf("before it starves: %v", p)
	}
	w.wait(DefaultStarved)
	p := w.preempt()
	if len(p.Evictions) != 1 || len(p.Evictions[0].Victims) != 4 {
		t.Fatalf("%+v", p)
	}
	if p := w.preempt(); len(p.Evictions) > 0 || len(p.Spared) > 0 {
		t.Fatalf("again: %+v", p)
	}
	w.end(true, func(h *Hold) bool { return h.For != "" })
	if n := w.plan(); n != 4 {
		t.Fatalf("%d groups", n)
	}
	for range 100 {
		w.wait(DefaultStarved)
		w.plan()
		if p := w.preempt(); len(p.Evictions) > 0 {
			t.Fatalf("what was preempted preempts: %+v", p)
		}
	}
}

func TestTheCheapestGangGoesWhole(t *testing.T) {
	w := newTown(t, twoQueues, 4, 4)
	old := w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(2), Count: 4, Gang: 4})
	w.plan()
	w.wait(time.Hour)
	young := w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(2), Count: 4, Gang: 4})
	w.plan()
	w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(4), Count: 1})
	w.starve()
	p := w.preempt()
	if len(p.Evictions) != 1 || len(p.Evictions[0].Victims) != 4 || p.Evictions[0].Victims[0].Container.Attempt.Application != young.ID {
		t.Fatalf("not the young gang %v: %+v", young.ID, p)
	}
	// Room that is made is not somebody else's: the old application gets nothing more.
	old.Asks = []rm.Ask{{ID: "more", Resource: gpus(1), Count: 16}}
	w.end(false, func(h *Hold) bool { return h.For != "" && h.Container == p.Evictions[0].Victims[0].Container })
	w.plan()
	w.end(false, func(h *Hold) bool { return h.For != "" })
	w.plan()
	for _, a := range w.apps {
		if a.Queue == "root.b" && a.Used.GPUs != 4 {
			t.Fatalf("it has %v", a.Used)
		}
	}
}

// The room that others make for a gang is the gang's also when the leader changes while they go.
func TestRoomIsKeptAcrossALeaderChange(t *testing.T) {
	w := newTown(t, twoQueues, 4, 4)
	a := w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 16})
	w.plan()
	gang := w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(4), Count: 2, Gang: 2})
	w.starve()
	if p := w.preempt(); len(p.Evictions) != 1 || len(p.Evictions[0].Victims) != 8 {
		t.Fatalf("%+v", p)
	}
	a.Asks = []rm.Ask{{ID: "more", Resource: gpus(1), Count: 16}}
	for range 8 {
		w.lead()
		for i := range w.nodes { // which speak to this leader one after the other
			for k, n := range w.nodes {
				n.Closed = k > i
			}
			w.plan()
		}
		w.preempt()
		first := true
		w.end(false, func(h *Hold) bool {
			goes := h.For != "" && first
			first = first && !goes
			return goes
		})
	}
	w.plan()
	if gang.Used.GPUs != 8 {
		t.Fatalf("the gang has %v, the others %v", gang.Used, a.Used)
	}
}

func TestACheckpointMakesCheap(t *testing.T) {
	w := newTown(t, twoQueues, 2, 4)
	w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(4), Count: 2})
	w.plan()
	w.wait(time.Hour)
	w.nodes[1].Holds[0].Saved = w.now
	w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(2), Count: 1})
	w.starve()
	if p := w.preempt(); len(p.Evictions) != 1 || p.Evictions[0].Victims[0].Node != "n1" {
		t.Fatalf("%+v", p)
	}
}

func TestPriorityWithinAQueue(t *testing.T) {
	w := newTown(t, twoQueues, 2, 4)
	low := w.submit("root.a", 1, rm.Ask{ID: "x", Resource: gpus(1), Count: 8})
	w.plan()
	w.submit("root.a", 1, rm.Ask{ID: "same", Resource: gpus(2), Count: 1})
	w.starve()
	if p := w.preempt(); len(p.Evictions) > 0 {
		t.Fatalf("equals: %+v", p)
	}
	w.submit("root.a", 2, rm.Ask{ID: "y", Resource: gpus(2), Count: 1})
	w.starve()
	p := w.preempt()
	if len(p.Evictions) != 1 || len(p.Evictions[0].Victims) != 2 || p.Evictions[0].Victims[0].Container.Attempt.Application != low.ID {
		t.Fatalf("%+v", p)
	}
	// The need goes, and with it the notice.
	for id, a := range w.apps {
		if a.Priority == 2 {
			delete(w.apps, id)
			w.model.RemoveApp(id)
		}
	}
	w.plan()
	if p := w.preempt(); len(p.Spared) != 2 {
		t.Fatalf("%+v", p)
	}
}

// A priority is what a user says: it takes room from others only where the queue's administrator wants that.
func TestPriorityOfAnotherUser(t *testing.T) {
	for _, all := range []bool{false, true} {
		w := newTown(t, rm.QueueConfig{PreemptByPriority: all, Children: map[string]rm.QueueConfig{"a": {Capacity: "100%"}}}, 1, 4)
		w.submit("root.a", 1, rm.Ask{ID: "x", Resource: gpus(1), Count: 4})
		w.plan()
		w.submit("root.a", 9, rm.Ask{ID: "y", Resource: gpus(1), Count: 1}).User = "eve"
		w.starve()
		if p := w.preempt(); len(p.Evictions) > 0 != all {
			t.Errorf("by priority %v: %+v", all, p)
		}
	}
}

func TestPreemptionThatIsOff(t *testing.T) {
	w := newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{
		"a": {Capacity: "50%", PreemptionDisabled: true, Children: map[string]rm.QueueConfig{"x": {Capacity: "100%"}}}, "b": {Capacity: "50%"},
	}}, 2, 4)
	w.submit("root.a.x", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 8})
	w.plan()
	b := w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(1), Count: 1})
	w.starve()
	if p := w.preempt(); len(p.Evictions) > 0 {
		t.Fatalf("%+v", p)
	}
	e, _ := w.model.Explain(b.ID, "y", nil, w.now)
	if e.Preempts != nil || e.NoPreemption == "" {
		t.Fatalf("%+v", e)
	}
}

func TestPreemptionUnderAMaximum(t *testing.T) {
	w := newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{
		"a": {Capacity: "50%", Max: "50%", Children: map[string]rm.QueueConfig{"x": {Capacity: "50%"}, "y": {Capacity: "50%"}}}, "b": {Capacity: "50%"},
	}}, 2, 4)
	w.submit("root.a.x", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 8})
	w.plan()
	w.submit("root.a.y", 0, rm.Ask{ID: "y", Resource: gpus(2), Count: 1})
	w.starve()
	if p := w.preempt(); len(p.Evictions) != 1 || len(p.Evictions[0].Victims) != 2 {
		t.Fatalf("%+v", p)
	}
}

// Whole nodes are made free as others' containers are: all that is there goes, and nobody takes what is free already.
func TestAWholeNodeIsMadeFree(t *testing.T) {
	for _, gang := range []int{0, 2} {
		w := newTown(t, twoQueues, 4, 4)
		a := w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 15})
		w.plan()
		w.wait(time.Hour)
		for i := range w.nodes[2:] {
			for k := range w.nodes[2+i].Holds {
				w.nodes[2+i].Holds[k].Saved = w.now
			}
		}
		whole := rm.Ask{ID: "y", Resource: gpus(1), Count: 2, Gang: gang, Placement: rm.Placement{Exclusive: true}}
		b := w.submit("root.b", 0, whole)
		other := w.submit("root.b", 0, whole)
		w.starve()
		for range 4 {
			p := w.preempt()
			for _, e := range p.Evictions {
				if e.App != b.ID || w.model.byQueue[w.queues.Find("root.b")].head.reservation == nil {
					t.Fatalf("%+v", p)
				}
				for _, v := range e.Victims {
					if v.Node != "n2" && v.Node != "n3" {
						t.Errorf("not the cheapest: %+v", v)
					}
				}
			}
			w.plan()
			if e, ok := w.model.Explain(b.ID, "y", nil, w.now); ok && e.Preempts == nil {
				t.Errorf("nobody makes room: %+v", e)
			}
			a.Asks = []rm.Ask{{ID: "more", Resource: gpus(1), Count: 16}}
			first := true
			w.end(false, func(h *Hold) bool { // one after the other
				go1 := h.For != "" && first
				first = first && !go1
				return go1
			})
			w.plan()
			w.end(false, func(h *Hold) bool { return h.For != "" })
			w.plan()
			w.wait(DefaultStarved)
		}
		if b.Used.GPUs != 8 || other.Used.GPUs != 0 {
			t.Errorf("they have %v and %v", b.Used, other.Used)
		}
		e, _ := w.model.Explain(other.ID, "y", nil, w.now)
		if e.Preempts != nil || e.NoPreemption == "" {
			t.Errorf("%+v", e)
		}
	}
}

// A dry run names who would make room, and nobody does for it.
func TestAPlanNamesWhoWouldGo(t *testing.T) {
	w := newTown(t, twoQueues, 2, 4)
	w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 8})
	w.plan()
	to := App{Queue: "root.b", User: "v", Asks: []rm.Ask{{ID: "y", Resource: gpus(4), Count: 1}}}
	for range 2 {
		groups, waits := w.model.Try(to, nil, w.now)
		if len(groups) != 0 || len(waits) != 1 || waits[0].Preempts == nil || len(waits[0].Preempts.Victims) != 4 {
			t.Fatalf("%v %+v", groups, waits)
		}
	}
	for _, n := range w.nodes {
		if at := w.model.nodes[n.ID]; at.Used != n.Used || at.room.GPUs != 0 || at.bucket == nil {
			t.Errorf("%s has %v in use and %d GPUs free", n.ID, at.Used, at.room.GPUs)
		}
	}
	w.wait(time.Hour)
	if p := w.preempt(); len(p.Evictions) > 0 {
		t.Errorf("%+v", p)
	}
}

// TestEvictionsAreProved draws clusters in which applications come, grow and end, and holds every eviction against a look at everything: the
// room is real, nobody goes for nothing, gangs go whole, guarantees hold. When nobody comes any more, it comes to rest.
func TestEvictionsAreProved(t *testing.T) {
	total, nodes := 0, 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{
			"a": {Capacity: "50%", Children: map[string]rm.QueueConfig{"x": {Capacity: "75%"}, "y": {Capacity: "25%"}}},
			"b": {Capacity: "25%"}, "c": {Capacity: "25%", PreemptionDisabled: r.IntN(4) == 0},
		}}, 2+r.IntN(3), 4)
		for step := range 120 {
			if step < 60 && r.IntN(2) == 0 {
				ask := rm.Ask{ID: "k", Resource: gpus(1 + r.IntN(4)), Count: 1 + r.IntN(4), Island: r.IntN(5) == 0}
				if r.IntN(2) == 0 {
					ask.Gang = 1 + r.IntN(ask.Count)
					ask.Within = []string{"", "", "1", "node"}[r.IntN(4)]
				}
				if r.IntN(5) == 0 {
					ask.Exclusive, ask.Count = true, 1+r.IntN(2)
					ask.Gang, ask.Within = min(ask.Gang, ask.Count), ""
				}
				w.submit([]string{"root.a.x", "root.a.y", "root.b", "root.c"}[r.IntN(4)], r.IntN(3), ask)
			}
			if step < 110 && r.IntN(10) == 0 {
				w.lead()
			}
			w.plan()
			before := w.evicted
			for _, e := range w.preempt().Evictions {
				if w.ask(e).Exclusive {
					nodes++
				}
			}
			if step > 110 && w.evicted > before {
				t.Fatalf("seed %d: it does not come to rest", seed)
			}
			w.wait(time.Duration(r.IntN(20)) * time.Second)
			w.end(true, func(h *Hold) bool { return h.For != "" && (step >= 60 || r.IntN(2) == 0) })
			if step < 60 {
				w.end(false, func(*Hold) bool { return r.IntN(20) == 0 })
			}
		}
		total += w.evicted
	}
	if total < 100 || nodes < 5 {
		t.Fatalf("only %d containers went, %d times for whole nodes", total, nodes)
	}
}

// A leader to which only some nodes have spoken comes to rest: a plan after which nothing has changed wants no other.
func TestKeptRoomLetsPlansEnd(t *testing.T) {
	for _, kept := range []int{2, 1} { // nodes on which somebody goes
		w := newTown(t, twoQueues, 4, 4)
		w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 16})
		w.plan()
		w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(4), Count: 2, Gang: 2})
		w.starve()
		w.preempt()
		if kept == 1 { // who made room on one node has gone
			at := slices.IndexFunc(w.nodes, func(n *Node) bool { return slices.ContainsFunc(n.Holds, func(h Hold) bool { return h.For != "" }) })
			gone := map[rm.ContainerID]bool{}
			for _, h := range w.nodes[at].Holds {
				gone[h.Container] = h.For != ""
			}
			w.end(false, func(h *Hold) bool { return gone[h.Container] })
		}
		w.lead()
		for i := range len(w.nodes) + 1 { // which speak to this leader one after the other
			for k, n := range w.nodes {
				n.Closed = k >= i
			}
			w.tell()
			plans := 0
			for w.model.Plan(Budget{}, w.now).More {
				if plans++; plans == 100 {
					t.Fatalf("%d of %d nodes have spoken, and plans do not end", i, len(w.nodes))
				}
			}
		}
	}
}

// The same for clusters of all sorts.
func TestPlansOfANewLeaderEnd(t *testing.T) {
	resumed := 0
	rapid.Check(t, func(t *rapid.T) {
		config := twoQueues
		if i := rapid.IntRange(0, len(cellTrees)).Draw(t, "tree"); i < len(cellTrees) {
			config = rm.QueueConfig{Children: cellTrees[i]}
		}
		w := newTown(t, config, rapid.IntRange(4, 6).Draw(t, "nodes"), 4)
		for range rapid.IntRange(2, 6).Draw(t, "apps") {
			ask := rm.Ask{ID: "w", Count: rapid.SampledFrom([]int{1, 2, 3, 16}).Draw(t, "count"), Resource: gpus(rapid.IntRange(1, 4).Draw(t, "gpus"))}
			if ask.Count < 16 && rapid.Bool().Draw(t, "gang") {
				ask.Gang = ask.Count
			}
			ask.Exclusive = rapid.IntRange(0, 4).Draw(t, "whole") == 0
			w.submit(rapid.SampledFrom(w.leaves()).Draw(t, "queue"), rapid.IntRange(0, 1).Draw(t, "priority"), ask)
			w.plan()
			w.wait(DefaultStarved)
			w.plan()
			for _, e := range w.model.Preempt(w.now).Evictions {
				for _, v := range e.Victims {
					h := w.hold(v.Container)
					h.For, h.ForApp, h.ForAsk, h.Moves = e.Queue, e.App, e.Ask, e.Moves
				}
			}
		}
		gone := rapid.IntRange(1, 4).Draw(t, "gone")
		k := 0
		w.end(rapid.Bool().Draw(t, "again"), func(h *Hold) bool {
			k++
			return h.For != "" && k%gone == 0 || h.For == "" && rapid.IntRange(0, 9).Draw(t, "ends") == 0
		})
		w.lead()
		for range 3 {
			for _, n := range w.nodes {
				n.Closed = rapid.Bool().Draw(t, "closed")
			}
			w.tell()
			plans := 0
			for w.model.Plan(Budget{}, w.now).More {
				if plans++; plans == 50 {
					t.Fatalf("plans do not end\n%s", w.picture())
				}
			}
			resumed += w.model.kept(true)
		}
	})
	t.Logf("%d reservations were kept", resumed)
}

// What would leave others without the nodes that they are guaranteed is not kept, and does not keep a new leader planning.
func TestRoomThatMayNotBeKeptLetsPlansEnd(t *testing.T) {
	w := newTown(t, rm.QueueConfig{Children: cellTrees[1]}, 4, 4)
	whole := rm.Ask{ID: "w", Count: 1, Resource: gpus(1)}
	whole.Exclusive = true
	many := whole
	many.Count = 16
	told := rm.ContainerID{}
	for _, next := range []func(){
		func() { w.submit("root.a", 0, whole) }, func() { w.submit("root.a", 0, many) }, func() { w.submit("root.b", 0, whole) }, func() { w.submit("root.a", 0, whole) },
	} {
		next()
		w.plan()
		w.wait(DefaultStarved)
		w.plan()
		for _, e := range w.model.Preempt(w.now).Evictions {
			for _, v := range e.Victims {
				told = v.Container
				h := w.hold(told)
				h.For, h.ForApp, h.ForAsk, h.Moves = e.Queue, e.App, e.Ask, e.Moves
			}
		}
	}
	if told.IsZero() {
		t.Fatal("nobody is to go")
	}
	w.end(false, func(h *Hold) bool { return h.Container != told })
	w.lead()
	for i := range w.nodes {
		for k, n := range w.nodes {
			n.Closed = k == i
		}
		w.tell()
		plans := 0
		for w.model.Plan(Budget{}, w.now).More {
			if plans++; plans == 50 {
				t.Fatalf("plans do not end while %s has not spoken\n%s", w.nodes[i].ID, w.picture())
			}
		}
	}
}
