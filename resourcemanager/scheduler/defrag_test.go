package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// mending has containers moved that write checkpoints.
func (w *town) mending() {
	c := w.model.config
	c.Preempt.Defragment, c.Preempt.RoundShare = true, 1
	w.model.Configure(c)
}

// saver submits an application whose programs write checkpoints.
func (w *town) saver(queue string, priority int, asks ...rm.Ask) *App {
	a := w.submit(queue, priority, asks...)
	w.saves[a.ID] = true
	return a
}

// settle lets time pass in which all that runs saves its work now and then.
func (w *town) settle(d time.Duration) {
	w.wait(d)
	for _, n := range w.nodes {
		for i := range n.Holds {
			if h := &n.Holds[i]; h.Checkpoints {
				h.Saved = w.now
			}
		}
	}
}

// checkMove holds a plan against what tries everything: without it there is no room for the ask, and with it there is, together with
// room for everybody who is moved.
func (w *town) checkMove(e Eviction) {
	t := w.t
	ask := w.ask(e)
	none := func(*Hold) bool { return false }
	if n := w.grants(e, true, none); n >= e.Units {
		t.Fatalf("%v moves though there is room for %d", e, n)
	}
	victim := map[rm.ContainerID]bool{}
	for _, v := range e.Victims {
		victim[v.Container] = true
	}
	groups := [][]rm.Ask{slices.Repeat([]rm.Ask{ask}, e.Units)}
	gangs := map[int64]int{}
	for _, n := range w.nodes {
		for _, h := range n.Holds {
			if h.Gang != 0 && victim[h.Container] {
				gangs[h.Gang]++
			}
		}
	}
	for _, n := range w.nodes {
		for _, h := range n.Holds {
			a := w.apps[h.App]
			if !victim[h.Container] {
				if gangs[h.Gang] > 0 {
					t.Fatalf("%v: %v stays without its gang", e, h.Container)
				}
				continue
			}
			q := w.queues.Find(a.Queue)
			if !h.Checkpoints || h.Master || q.PreemptionDisabled || h.For != "" || w.now-h.Began < metadata.Time(DefaultDefragmentRest.Milliseconds()) ||
				a.Queue == e.Queue && a.Priority > w.apps[e.App].Priority {
				t.Fatalf("%v: %+v may not be moved", e, h)
			}
			switch k := len(groups); {
			case h.Gang == 0:
				groups = append(groups, []rm.Ask{w.asks[h.Container]})
			case gangs[h.Gang] > 0: // once
				groups = append(groups, slices.Repeat([]rm.Ask{w.asks[h.Container]}, gangs[h.Gang]))
				gangs[h.Gang] = -k
			}
		}
	}
	if !w.allFit(victim, groups) {
		t.Fatalf("%v: no way to place all of %v", e, groups)
	}
}

// allFit tries every way to place groups of containers at once when some have gone.
func (w *town) allFit(gone map[rm.ContainerID]bool, groups [][]rm.Ask) bool {
	type place struct {
		node   int
		island [2]int // free devices by island
		whole  bool
		used   int
	}
	var places []place
	for i, n := range w.nodes {
		p := place{node: i}
		for _, g := range n.GPUs {
			free := g.Free
			for _, h := range n.Holds {
				free = free || gone[h.Container] && slices.Contains(h.GPUs, g.UUID)
			}
			if free {
				p.island[g.Minor/2]++
			}
		}
		for _, h := range n.Holds {
			if !gone[h.Container] {
				p.used++
			}
		}
		p.whole = n.Exclusive && p.used > 0
		places = append(places, p)
	}
	racks := make([][]string, len(groups))
	var try func(g, k int) bool
	try = func(g, k int) bool {
		if g == len(groups) {
			return true
		}
		if k == len(groups[g]) {
			return try(g+1, 0)
		}
		a := groups[g][k]
		for i := range places {
			p := places[i]
			rack := w.nodes[i].Rack
			if a.Within == "node" {
				rack = w.nodes[i].Host
			}
			if p.whole || a.Exclusive && p.used > 0 || a.Within != "" && k > 0 && racks[g][0] != rack {
				continue
			}
			for first := 0; first <= min(a.Resource.GPUs, p.island[0]); first++ { // so many of the first island
				second := a.Resource.GPUs - first
				if second > p.island[1] || a.Island && first > 0 && second > 0 {
					continue
				}
				places[i] = place{i, [2]int{p.island[0] - first, p.island[1] - second}, a.Exclusive, p.used + 1}
				racks[g] = append(racks[g], rack)
				if try(g, k+1) {
					return true
				}
				racks[g] = racks[g][:len(racks[g])-1]
				places[i] = p
			}
		}
		return false
	}
	return try(0, 0)
}

// halfFull is two nodes of 4 GPUs, with 2 of each in use by programs that write checkpoints, and an ask for 4.
func halfFull(t *testing.T, saves bool) (*town, *App, *App) {
	w := newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}}, 2, 4)
	filler := w.submit("root.a", 0, rm.Ask{ID: "f", Resource: gpus(2), Count: 1})
	w.plan()
	a := w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(2), Count: 2, Gang: 0})
	w.saves[a.ID] = saves
	w.plan()
	w.end(false, func(h *Hold) bool { return h.App == filler.ID })
	delete(w.apps, filler.ID)
	w.model.RemoveApp(filler.ID)
	w.settle(DefaultDefragmentRest)
	b := w.submit("root.a", 0, rm.Ask{ID: "y", Resource: gpus(4), Count: 1})
	w.plan()
	w.preempt()
	return w, a, b
}

func TestRoomInOnePiece(t *testing.T) {
	w, a, b := halfFull(t, true)
	w.settle(DefaultDefragmentAfter)
	if p := w.preempt(); len(p.Evictions) > 0 {
		t.Fatalf("nobody has asked for it: %+v", p)
	}
	w.mending() // which makes the waiting begin anew
	w.plan()
	w.preempt()
	w.settle(DefaultDefragmentAfter)
	p := w.preempt()
	if len(p.Evictions) != 1 || !p.Evictions[0].Moves || len(p.Evictions[0].Victims) != 1 || len(w.model.berths) != 1 {
		t.Fatalf("%+v", p)
	}
	// Who comes now gets neither the one room nor the other.
	thief := w.submit("root.b", 9, rm.Ask{ID: "z", Resource: gpus(1), Count: 8})
	for range 3 {
		w.plan()
		if p := w.preempt(); len(p.Evictions)+len(p.Spared) > 0 {
			t.Fatalf("%+v", p)
		}
		w.wait(time.Second)
	}
	if thief.Used.GPUs > 0 {
		t.Fatalf("it has %v", thief.Used)
	}
	w.end(true, func(h *Hold) bool { return h.For != "" })
	w.plan()
	if a.Used.GPUs != 4 || b.Used.GPUs != 4 || len(w.model.berths) != 0 || thief.Used.GPUs != 0 {
		t.Fatalf("they have %v and %v, %d berths", a.Used, b.Used, len(w.model.berths))
	}
}

func TestNobodyIsMoved(t *testing.T) {
	for name, change := range map[string]func(w *town, a, b *App){
		"":                          func(*town, *App, *App) {}, // but for this one
		"who writes no checkpoints": func(w *town, a, _ *App) { w.everyHold(func(h *Hold) { h.Checkpoints = false }) },
		"of higher priority":        func(w *town, a, _ *App) { a.Priority = 1 },
		"who came lately":           func(w *town, _, _ *App) { w.everyHold(func(h *Hold) { h.Began = w.now - 1000 }) },
		"who would lose much":       func(w *town, _, _ *App) { w.everyHold(func(h *Hold) { h.Saved = w.now - 3_600_000 }) },
		"who wants to know nothing": func(w *town, _, _ *App) { w.everyHold(func(h *Hold) { h.Asked = nil }) },
		"who has no place elsewhere": func(w *town, _, _ *App) {
			w.everyHold(func(h *Hold) { ask := *h.Asked; ask.Label = "x"; h.Asked = &ask })
		},
		"for more than is free": func(w *town, _, b *App) { b.Asks = []rm.Ask{{ID: "y", Resource: gpus(4), Count: 2, Gang: 2}} },
	} {
		w, a, b := halfFull(t, true)
		w.mending()
		w.plan()
		w.preempt()
		w.settle(DefaultDefragmentAfter)
		change(w, a, b)
		w.plan()
		if p := w.preempt(); len(p.Evictions) > 0 != (name == "") || len(w.model.berths) > 0 != (name == "") {
			t.Errorf("%q: %+v", name, p)
		}
	}
}

func (w *town) everyHold(do func(h *Hold)) {
	for _, n := range w.nodes {
		for i := range n.Holds {
			do(&n.Holds[i])
		}
	}
}

// A new leader, who knows of no berths, finds them again, or calls off what has no place any more.
func TestMovesOutliveTheModel(t *testing.T) {
	for _, place := range []bool{true, false} {
		w, a, b := halfFull(t, true)
		w.mending()
		w.plan()
		w.preempt()
		w.settle(DefaultDefragmentAfter)
		w.plan()
		if p := w.preempt(); len(p.Evictions) != 1 {
			t.Fatalf("%+v", p)
		}
		if !place {
			w.everyHold(func(h *Hold) { ask := *h.Asked; ask.Label = "gone"; h.Asked = &ask })
		}
		w.model = NewModel(w.model.config)
		w.plan()
		p := w.preempt()
		if !place {
			if len(p.Spared) != 1 || len(w.model.berths) > 0 {
				t.Fatalf("%+v", p)
			}
			continue
		}
		if len(p.Spared)+len(p.Evictions) > 0 || len(w.model.berths) != 1 {
			t.Fatalf("%+v, %d berths", p, len(w.model.berths))
		}
		w.end(true, func(h *Hold) bool { return h.For != "" })
		w.plan()
		if a.Used.GPUs != 4 || b.Used.GPUs != 4 {
			t.Fatalf("they have %v and %v", a.Used, b.Used)
		}
	}
}

// What nobody comes for is others' after a while.
func TestABerthIsNotKeptForEver(t *testing.T) {
	w, a, _ := halfFull(t, true)
	w.mending()
	w.plan()
	w.preempt()
	w.settle(DefaultDefragmentAfter)
	w.plan()
	w.preempt()
	w.end(false, func(h *Hold) bool { return h.For != "" })
	w.plan()
	other := w.submit("root.b", 0, rm.Ask{ID: "z", Resource: gpus(2), Count: 1})
	if w.plan(); other.Used.GPUs > 0 || len(w.model.berths) != 1 {
		t.Fatalf("it has %v, %d berths", other.Used, len(w.model.berths))
	}
	w.wait(berthPatience + time.Second)
	if w.plan(); other.Used.GPUs != 2 || len(w.model.berths) != 0 || w.model.byQueue[w.queues.Find("root.a")].used.GPUs != a.Used.GPUs+4 {
		t.Fatalf("it has %v, %d berths; %v in use", other.Used, len(w.model.berths), w.model.byQueue[w.queues.Find("root.a")].used)
	}
}

// Where nobody was told to go after all, because that could not be recorded, nothing stays kept.
func TestABerthOfWhoWasNotToldIsGivenUp(t *testing.T) {
	w, _, _ := halfFull(t, true)
	w.mending()
	w.plan()
	w.preempt()
	w.settle(DefaultDefragmentAfter)
	w.plan()
	w.model.Preempt(w.now) // and it is lost
	w.plan()
	if len(w.model.berths) != 1 {
		t.Fatalf("%d berths", len(w.model.berths))
	}
	w.wait(berthUntold + time.Second)
	if w.plan(); len(w.model.berths) != 0 {
		t.Fatalf("%d berths", len(w.model.berths))
	}
}

// TestMovesAreProved draws small clusters and holds every plan to move somebody against a look at every placement. Then it is carried out, while
// others come: all have a place at the end, the ask and those who were moved, and nobody is moved twice within the rest.
func TestMovesAreProved(t *testing.T) {
	plans, moved := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		w := newTown(t, rm.QueueConfig{Children: map[string]rm.QueueConfig{
			"a": {Capacity: "60%"}, "b": {Capacity: "40%", PreemptionDisabled: r.IntN(4) == 0},
		}}, 2+r.IntN(3), 4)
		w.mending()
		last := map[rm.ApplicationID]metadata.Time{}
		draw := func(most int) rm.Ask {
			ask := rm.Ask{ID: "k", Resource: gpus(1 + r.IntN(most)), Count: 1 + r.IntN(2), Island: r.IntN(6) == 0}
			switch r.IntN(6) {
			case 0, 1:
				ask.Gang = ask.Count
				ask.Within = []string{"", "", "1", "node"}[r.IntN(4)]
			case 2:
				ask.Exclusive = true
			}
			return ask
		}
		for range 40 {
			if r.IntN(3) > 0 {
				w.saver([]string{"root.a", "root.b"}[r.IntN(2)], r.IntN(2), draw(2))
			} else {
				w.submit([]string{"root.a", "root.b"}[r.IntN(2)], r.IntN(2), draw(4))
			}
			w.plan()
			w.preempt()
			w.settle(DefaultDefragmentAfter + time.Duration(r.IntN(10))*time.Minute)
			w.end(false, func(*Hold) bool { return r.IntN(6) == 0 })
			w.end(true, func(h *Hold) bool { return h.For != "" })
			w.plan()
			for _, e := range w.preempt().Evictions {
				if !e.Moves {
					continue
				}
				plans++
				moved += len(e.Victims)
				var who []*App
				for _, v := range e.Victims {
					h := w.hold(v.Container)
					if at, again := last[h.App]; again && w.now-at < metadata.Time(DefaultDefragmentRest.Milliseconds()) && len(w.apps[h.App].Asks) == 0 && w.apps[h.App].Used == h.Resource {
						t.Fatalf("seed %d: %v is moved again", seed, h.App)
					}
					last[h.App] = w.now
					who = append(who, w.apps[h.App])
				}
				before := map[rm.ApplicationID]rm.Resource{}
				for _, a := range who {
					before[a.ID] = a.Used
				}
				for range 3 { // others come
					w.submit([]string{"root.a", "root.b"}[r.IntN(2)], 0, rm.Ask{ID: "k", Resource: gpus(1), Count: 1 + r.IntN(3)})
					w.plan()
					if p := w.preempt(); slices.ContainsFunc(p.Evictions, func(e Eviction) bool { return e.Moves }) {
						t.Fatalf("seed %d: two at a time: %+v", seed, p)
					}
					w.wait(time.Second)
				}
				if !slices.ContainsFunc(w.model.berths, func(b *berth) bool { return b.queue == e.Queue }) {
					continue // called off, for who came
				}
				// Who comes before it in its queue may have taken it over.
				first, used, left := (*App)(nil), rm.Resource{}, r.IntN(3)
				if kept := w.model.byQueue[w.queues.Find(e.Queue)].head.reservation; kept != nil {
					first = w.apps[kept.want.app.ID]
					used = first.Used
				}
				w.everyHold(func(h *Hold) { // who makes room for others besides has less afterwards
					if h.For != "" && !h.Moves {
						before[h.App] = before[h.App].Sub(h.Resource)
					}
				})
				w.end(true, func(h *Hold) bool { // some earlier than others
					left--
					return h.Moves && left == 0
				})
				w.plan()
				w.end(true, func(h *Hold) bool { return h.For != "" })
				w.plan()
				for _, a := range who {
					if a.Used.GPUs < before[a.ID].GPUs {
						t.Fatalf("seed %d: %v: %v had %v and has %v", seed, e, a.ID, before[a.ID], a.Used)
					}
				}
				if first != nil && first.Used == used {
					t.Fatalf("seed %d: %v was moved for nothing", seed, e)
				}
				break
			}
		}
		w.end(true, func(h *Hold) bool { return h.For != "" })
		w.plan()
		w.wait(berthPatience + time.Second)
		w.plan()
		for _, q := range w.model.queues {
			var used rm.Resource
			for _, a := range w.apps {
				if holdsQueue(q.Queue, w.queues.Find(a.Queue)) {
					used = used.Add(a.Used)
				}
			}
			if q.used != used || len(w.model.berths) > 0 {
				t.Fatalf("seed %d: %d berths are left, and %s uses %v, not %v", seed, len(w.model.berths), q.Path, q.used, used)
			}
		}
		for _, n := range w.model.nodes {
			if !n.assumed.IsZero() || n.assumedContainers != 0 || len(n.assumedGPUs) > 0 {
				t.Fatalf("seed %d: node %s has %v that is nobody's", seed, n.ID, n.assumed)
			}
		}
	}
	if plans < 10 {
		t.Fatalf("only %d plans", plans)
	}
	t.Logf("%d plans, %d containers", plans, moved)
}
