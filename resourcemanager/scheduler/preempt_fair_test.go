package scheduler

import (
	"fmt"
	"testing"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
)

// hopeless asks for devices that nobody has, in many ways.
func (w *town) hopeless(queue string) {
	for i := range 2 * maxStarvingLanes {
		r := gpus(1)
		r.Memory -= int64(i)
		w.submit(queue, 1, rm.Ask{ID: "no", Resource: r, Count: 1, Model: "none"})
	}
}

// Those for whom nobody can make room cost the others no more than a while, neither in their own queue nor in others.
func TestHopelessAsksHideNobody(t *testing.T) {
	children := map[string]rm.QueueConfig{"a": {Capacity: "20%"}, "z": {Capacity: "20%"}}
	for i := range 4 {
		children[fmt.Sprint("b", i)] = rm.QueueConfig{Capacity: "15%", Priority: 1}
	}
	w := newTown(t, rm.QueueConfig{Children: children}, 5, 4)
	w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 20})
	w.plan()
	for i := range 4 {
		w.hopeless(fmt.Sprint("root.b", i))
	}
	served := map[rm.ApplicationID]bool{
		w.submit("root.b0", 0, rm.Ask{ID: "y", Resource: gpus(1), Count: 1}).ID: false,
		w.submit("root.z", 0, rm.Ask{ID: "y", Resource: gpus(1), Count: 1}).ID:  false,
	}
	for range 120 {
		w.plan()
		for _, e := range w.preempt().Evictions {
			served[e.App] = true
		}
		w.wait(time.Second)
	}
	for id, ok := range served {
		if !ok {
			t.Errorf("nobody makes room for %v of %s", id, w.apps[id].Queue)
		}
	}
}

// Nobody goes for a gang whose room cannot be kept: others would have it before the last of them has gone.
func TestNobodyGoesForAGangWhoseRoomIsNotKept(t *testing.T) {
	children := map[string]rm.QueueConfig{"a": {Capacity: "49%"}}
	const gangs = maxReservations + 1
	for i := range gangs {
		children[fmt.Sprint("b", i)] = rm.QueueConfig{Capacity: "3%"}
	}
	w := newTown(t, rm.QueueConfig{Children: children}, 34, 4)
	w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 4 * 34})
	w.plan()
	for i := range gangs {
		w.submit(fmt.Sprint("root.b", i), 0, rm.Ask{ID: "y", Resource: gpus(2), Count: 2, Gang: 2})
	}
	w.starve()
	if p := w.preempt(); len(p.Evictions) != maxReservations {
		t.Fatalf("%d evictions, %d times room is kept", len(p.Evictions), len(w.model.reservations))
	}
	w.end(true, func(h *Hold) bool { return h.For != "" })
	if n := w.plan(); n != maxReservations {
		t.Fatalf("%d gangs have their room", n)
	}
	w.wait(time.Second)
	if p := w.preempt(); len(p.Evictions) != 1 {
		t.Fatalf("%+v", p)
	}
}

// What is kept for an older gang of a queue is not taken for a younger one, and nobody goes for that.
func TestWhatIsKeptForWhoComesFirstStays(t *testing.T) {
	w := newTown(t, twoQueues, 4, 4)
	w.model.config.Patience, w.model.config.Wait = 1, time.Nanosecond
	w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(1), Count: 15})
	w.plan()
	w.submit("root.b", 0, rm.Ask{ID: "old", Resource: gpus(4), Count: 4, Gang: 4}) // more than the queue is guaranteed
	w.plan()
	w.submit("root.a", 0, rm.Ask{ID: "small", Resource: gpus(1), Count: 1})
	w.plan()
	w.plan()
	young := w.submit("root.b", 0, rm.Ask{ID: "young", Resource: gpus(4), Count: 2, Gang: 2})
	w.starve()
	r := w.model.byQueue[w.queues.Find("root.b")].head.reservation
	if r == nil || r.want.ID != "old" {
		t.Fatalf("nothing is kept for the old one: %+v", r)
	}
	if p := w.preempt(); len(p.Evictions) > 0 {
		t.Fatalf("%+v", p)
	}
	young.Priority = 1
	w.starve()
	if p := w.preempt(); len(p.Evictions) != 1 || w.model.byQueue[w.queues.Find("root.b")].head.reservation.want.ID != "young" {
		t.Fatalf("the urgent one: %+v", p)
	}
}

// A gang that is told to go is told whole, and stays told: it is of no use in part.
func TestAToldGangIsNotSparedInPart(t *testing.T) {
	w := newTown(t, twoQueues, 4, 4)
	for range 2 {
		w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(2), Count: 4, Gang: 4})
		w.plan()
	}
	b := w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(4), Count: 1})
	w.starve()
	if p := w.preempt(); len(p.Evictions) != 1 || len(p.Evictions[0].Victims) != 4 {
		t.Fatalf("%+v", p)
	}
	for range 3 {
		w.wait(time.Second)
		w.plan()
		if p := w.preempt(); len(p.Evictions)+len(p.Spared) > 0 {
			t.Fatalf("again: %+v", p)
		}
	}
	if e, _ := w.model.Explain(b.ID, "y", nil, w.now); e.Preempts == nil || len(e.Preempts.Victims) != 4 {
		t.Errorf("explained as %+v", e.Preempts)
	}
}

// Room of a container that cannot be killed is not waited for as long as it lives: others go.
func TestWhoCannotBeKilledIsNotCountedOn(t *testing.T) {
	for _, queue := range []string{"", "root.b"} {
		w := newTown(t, twoQueues, 2, 4)
		w.submit("root.a", 0, rm.Ask{ID: "x", Resource: gpus(4), Count: 2})
		w.plan()
		w.nodes[0].Holds[0].Stopping, w.nodes[0].Holds[0].For = true, queue
		w.submit("root.b", 0, rm.Ask{ID: "y", Resource: gpus(4), Count: 1})
		w.starve()
		for range 14 {
			if p := w.model.Preempt(w.now); len(p.Evictions) > 0 {
				t.Fatalf("for queue %q: somebody goes although room is about to come: %+v", queue, p)
			}
			w.wait(time.Minute)
			w.plan()
		}
		w.wait(2 * time.Minute)
		p := w.model.Preempt(w.now)
		if queue != "" { // its devices have a moment
			w.wait(DefaultStarved)
			w.plan()
			p = w.model.Preempt(w.now)
		}
		if len(p.Evictions) != 1 || len(p.Evictions[0].Victims) != 1 || p.Evictions[0].Victims[0].Node != "n1" {
			t.Fatalf("for queue %q: %+v", queue, p)
		}
	}
}
