package search

import (
	"container/heap"
	"slices"

	"github.com/gohops/hops/training"
)

// placed is a trial's result in a rung. Score is the metric, turned so that more is better.
type placed struct {
	Trial    training.TrialID `json:"trial"`
	Score    float64          `json:"score"`
	Promoted bool             `json:"promoted,omitempty"`
}

// before orders results, the best first. Of equals the trial that was started first goes first: the same in every run.
func (p *placed) before(q *placed) bool {
	return p.Score > q.Score || p.Score == q.Score && p.Trial < q.Trial
}

func byRank(p, q placed) int {
	switch {
	case p.before(&q):
		return -1
	case q.before(&p):
		return 1
	}
	return 0
}

// ranking keeps the results of a rung such that the best floor(n/eta) of n, and among them those not promoted, are found in
// O(log n), however many there are.
type ranking struct {
	eta     int
	least   int // the best are at least so many
	entries map[training.TrialID]*entry
	best    entryHeap // the best of them, the worst of these first
	rest    entryHeap // the others, the best of these first
	ready   entryHeap // of the best that are not promoted, the best first; also some that are not of them any more
	open    int       // how many of the best are not promoted
}

type entry struct {
	placed
	isBest, isReady bool
}

func newRanking(eta, least int) *ranking {
	better := func(a, b *entry) bool { return a.before(&b.placed) }
	return &ranking{
		eta: eta, least: least, entries: map[training.TrialID]*entry{},
		best: entryHeap{first: func(a, b *entry) bool { return better(b, a) }}, rest: entryHeap{first: better}, ready: entryHeap{first: better},
	}
}

// put adds a result. A trial has one.
func (r *ranking) put(p placed) {
	if r.entries[p.Trial] != nil {
		return
	}
	e := &entry{placed: p}
	r.entries[p.Trial] = e
	if len(r.best.list) > 0 && p.before(&r.best.list[0].placed) {
		r.enter(e)
	} else {
		heap.Push(&r.rest, e)
	}
	limit := max(r.least, len(r.entries)/r.eta)
	for len(r.best.list) < limit && len(r.rest.list) > 0 {
		r.enter(heap.Pop(&r.rest).(*entry))
	}
	for len(r.best.list) > limit {
		e := heap.Pop(&r.best).(*entry)
		e.isBest = false
		if !e.Promoted {
			r.open--
		}
		heap.Push(&r.rest, e)
	}
}

func (r *ranking) enter(e *entry) {
	e.isBest = true
	heap.Push(&r.best, e)
	if e.Promoted {
		return
	}
	r.open++
	if !e.isReady {
		e.isReady = true
		heap.Push(&r.ready, e)
	}
}

// promotable is the best of those that go on next; ok is false if none does.
func (r *ranking) promotable() (id training.TrialID, ok bool) {
	for len(r.ready.list) > 0 {
		if e := r.ready.list[0]; e.isBest && !e.Promoted {
			return e.Trial, true
		}
		heap.Pop(&r.ready).(*entry).isReady = false
	}
	return 0, false
}

// promote marks a trial, whether or not it is one of the best.
func (r *ranking) promote(id training.TrialID) {
	e := r.entries[id]
	if e == nil || e.Promoted {
		return
	}
	e.Promoted = true
	if e.isBest {
		r.open--
	}
}

// list is all of it, the best first.
func (r *ranking) list() []placed {
	out := make([]placed, 0, len(r.entries))
	for _, e := range r.entries {
		out = append(out, e.placed)
	}
	slices.SortFunc(out, byRank)
	return out
}

// entryHeap is a heap of results.
type entryHeap struct {
	list  []*entry
	first func(a, b *entry) bool
}

func (h entryHeap) Len() int           { return len(h.list) }
func (h entryHeap) Less(i, j int) bool { return h.first(h.list[i], h.list[j]) }
func (h entryHeap) Swap(i, j int)      { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *entryHeap) Push(x any)        { h.list = append(h.list, x.(*entry)) }
func (h *entryHeap) Pop() any {
	n := len(h.list) - 1
	e := h.list[n]
	h.list[n] = nil
	h.list = h.list[:n]
	return e
}
