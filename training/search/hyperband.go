package search

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gohops/hops/training"
)

// hyperband is Hyperband (Li et al., JMLR 2018): brackets of successive halving that begin with ever fewer configurations at
// ever higher rungs, one after the other and round again until all configurations are started. With a model that learns from
// all of their results it is BOHB (Falkner et al., ICML 2018).
//
// Within a bracket a rung is complete when all of it have ended; then the best 1/eta go on, one at least. Nobody waits for
// that: where older brackets have nothing to do the next one begins.
type hyperband struct {
	spec    *training.Spec
	from    proposer
	trials  int
	budgets []int // of the rungs
	sizes   []int // of the brackets; bracket k begins at rung k
	state   hyperbandState
	live    []int // brackets that have not ended
}

type hyperbandState struct {
	Issued   int                     `json:"issued"`
	Brackets []*bracket              `json:"brackets"`
	At       map[training.TrialID]at `json:"at"` // those that were suggested
	Running  int                     `json:"running"`
}

// at is where a trial is.
type at struct {
	Bracket int  `json:"bracket"`
	Rung    int  `json:"rung"`
	Running bool `json:"running,omitempty"`
}

// bracket is one bracket at the rung that it works on.
type bracket struct {
	Size   int                `json:"size"` // configurations that it begins with
	Issued int                `json:"issued"`
	First  int                `json:"first"` // rung
	Rung   int                `json:"rung"`
	Here   int                `json:"here"`            // trials of this rung in all
	Ended  int                `json:"ended"`           // of them
	Done   []placed           `json:"done,omitempty"`  // of them, with a result, the best first
	Queue  []training.TrialID `json:"queue,omitempty"` // promoted to this rung, not suggested yet
}

func newHyperband(s *training.Spec, from proposer) *hyperband {
	return &hyperband{
		spec: s, from: from, trials: min(s.Trials, from.size()), budgets: s.Optimizer.Rungs(), sizes: s.Optimizer.Brackets(),
		state: hyperbandState{At: map[training.TrialID]at{}},
	}
}

// waiting are the trials of a bracket that can go on now, the best first: those promoted to its rung, or those that a
// complete rung promotes.
func (h *hyperband) waiting(b *bracket) []training.TrialID {
	if len(b.Queue) > 0 || b.Ended < b.Here || b.Rung == len(h.budgets)-1 {
		return b.Queue
	}
	n := min(max(b.Here/h.spec.Optimizer.Eta, 1), len(b.Done))
	out := make([]training.TrialID, n)
	for i := range out {
		out[i] = b.Done[i].Trial
	}
	return out
}

// over reports whether a bracket has no more to do.
func (h *hyperband) over(b *bracket) bool {
	return b.Ended == b.Here && len(h.waiting(b)) == 0
}

func (h *hyperband) Next() (Suggestion, Verdict) {
	s, ok := h.suggest()
	switch {
	case ok:
		h.Adopt(s)
		return s, Suggest
	case h.state.Running > 0:
		return Suggestion{}, Idle
	}
	return Suggestion{}, Done
}

func (h *hyperband) suggest() (Suggestion, bool) {
	for _, i := range h.live {
		b := h.state.Brackets[i]
		if w := h.waiting(b); len(w) > 0 {
			k := b.Rung
			if len(b.Queue) == 0 {
				k++
			}
			return h.suggestion(w[0], i, k), true
		}
	}
	if h.state.Issued == h.trials {
		return Suggestion{}, false
	}
	i := len(h.state.Brackets) - 1
	if i < 0 || h.state.Brackets[i].Issued == h.state.Brackets[i].Size {
		i++
	}
	id := training.TrialID(h.state.Issued + 1)
	s := h.suggestion(id, i, i%len(h.sizes))
	params, label := h.from.propose(id)
	s.Params, s.Promotion = params, false
	if label != "" {
		s.Label += ", " + label
	}
	return s, true
}

func (h *hyperband) suggestion(id training.TrialID, bracket, rung int) Suggestion {
	return Suggestion{Trial: id, Budget: h.budgets[rung], Last: rung == len(h.budgets)-1, Promotion: true, Label: fmt.Sprintf("bracket %d", bracket+1)}
}

func (h *hyperband) Adopt(s Suggestion) {
	if s.Promotion {
		h.promote(s.Trial)
		return
	}
	i := len(h.state.Brackets) - 1
	if i < 0 || h.state.Brackets[i].Issued == h.state.Brackets[i].Size {
		i++
		k := i % len(h.sizes)
		size := min(h.sizes[k], h.trials-h.state.Issued)
		h.state.Brackets = append(h.state.Brackets, &bracket{Size: size, First: k, Rung: k, Here: size})
		h.live = append(h.live, i)
	}
	b := h.state.Brackets[i]
	b.Issued++
	h.state.Issued++
	h.state.At[s.Trial] = at{i, b.First, true}
	h.state.Running++
	h.from.take(s.Trial, s.Params)
}

func (h *hyperband) promote(id training.TrialID) {
	t, ok := h.state.At[id]
	if !ok {
		return
	}
	b := h.state.Brackets[t.Bracket]
	if len(b.Queue) == 0 { // the first of its rung
		queue := h.waiting(b)
		if len(queue) == 0 {
			queue = []training.TrialID{id} // of another version, which was further
		}
		*b = bracket{Size: b.Size, Issued: b.Issued, First: b.First, Rung: min(b.Rung+1, len(h.budgets)-1), Here: len(queue), Queue: queue}
	}
	b.Queue = slices.DeleteFunc(b.Queue, func(q training.TrialID) bool { return q == id })
	h.state.At[id] = at{t.Bracket, b.Rung, true}
	h.state.Running++
}

func (h *hyperband) Observe(e Event) Answer {
	t, ok := h.state.At[e.Trial]
	if !ok || e.Kind == Reported || t.Running == (e.Kind == Resumed) {
		return Answer{}
	}
	t.Running = !t.Running
	h.state.At[e.Trial] = t
	h.from.learn(resultOf(e, h.spec, e.Trial))
	b := h.state.Brackets[t.Bracket]
	step := 1
	if e.Kind == Resumed {
		step = -1
	}
	h.state.Running -= step
	if b.Rung != t.Rung { // its rung was complete when it was resumed: it runs to its end, and nothing follows
		return Answer{}
	}
	b.Ended += step
	if e.Kind == Finished {
		p := placed{Trial: e.Trial, Score: h.spec.Direction.Score(e.Value)}
		i, _ := slices.BinarySearchFunc(b.Done, p, byRank)
		b.Done = slices.Insert(b.Done, i, p)
	}
	if e.Kind == Resumed && !slices.Contains(h.live, t.Bracket) {
		h.findLive()
	} else if h.over(b) {
		h.live = slices.DeleteFunc(h.live, func(i int) bool { return i == t.Bracket })
	}
	return Answer{}
}

func (h *hyperband) findLive() {
	h.live = nil
	for i, b := range h.state.Brackets {
		if !h.over(b) {
			h.live = append(h.live, i)
		}
	}
}

func (h *hyperband) Outlook() int {
	n := h.trials - h.state.Issued
	for _, i := range h.live {
		n += len(h.waiting(h.state.Brackets[i]))
	}
	return n
}

func (h *hyperband) Planned() int { return h.trials }

type hyperbandSnapshot struct {
	hyperbandState
	Model json.RawMessage `json:"model,omitempty"`
}

func (h *hyperband) Snapshot() ([]byte, error) {
	model, err := h.from.snapshot()
	if err != nil {
		return nil, err
	}
	return json.Marshal(hyperbandSnapshot{h.state, model})
}

func (h *hyperband) Restore(data []byte, tried []training.Params) error {
	s := hyperbandSnapshot{hyperbandState: hyperbandState{At: map[training.TrialID]at{}}}
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	h.state = s.hyperbandState
	h.findLive()
	return h.from.restore(s.Model, tried)
}
