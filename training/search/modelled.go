package search

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gohops/hops/training"
)

// model chooses a configuration from what was observed. What it returns depends on the seed, the number of the configuration and
// the history alone: it may keep what it has computed, but nothing else.
type model interface {
	// choose returns nil where it cannot tell, and a random configuration is taken. What it finds in the history has one
	// successful observation at least.
	choose(n training.TrialID, h *history) (x []float64)
}

// history is what a model knows.
type history struct {
	axes axes
	done []observation // in the order in which they came
	// running are the points of the configurations without any result, in the order of their numbers.
	running [][]float64
	// revision changes when done did otherwise than by growing at its end.
	revision int

	tried map[string]bool // configurations of a finite space
	known map[known]bool  // what done has
}

type known struct {
	n      training.TrialID
	budget int
}

// observation is the result of a configuration at a budget.
type observation struct {
	n      training.TrialID
	x      []float64
	budget int
	// losses are those of the objectives, less is better; nil for a trial that failed.
	losses []float64
}

func (o *observation) failed() bool { return o.losses == nil }

// taken reports whether a point of a finite space was tried.
func (h *history) taken(x []float64) bool { return h.tried != nil && h.tried[h.axes.decode(x).Key()] }

// modelled makes a proposer of a model: the first configurations are a latin hypercube, which is random and even at once, the
// rest is the model's. In a finite space nothing is tried twice.
type modelled struct {
	model   model
	sampler *sampler
	startup int
	points  map[training.TrialID][]float64 // of every configuration so far
	running []training.TrialID             // rising
	history history
}

// maxStratified bounds the latin hypercube, of which each point is computed anew.
const maxStratified = 1000

func newModelled(s *training.Spec, startup int, m model) *modelled {
	p := &modelled{
		model: m, sampler: newSampler(s.Space, s.RandomSeed()), startup: max(startup, 1),
		points: map[training.TrialID][]float64{}, history: history{axes: newAxes(s.Space), known: map[known]bool{}},
	}
	if p.sampler.finite {
		p.history.tried = map[string]bool{}
	}
	return p
}

func (m *modelled) size() int { return m.sampler.size() }

func (m *modelled) propose(n training.TrialID) (training.Params, string) {
	var x []float64
	label := "startup"
	switch h := &m.history; {
	case int(n) <= m.startup && m.startup > maxStratified: // random
	case int(n) <= m.startup:
		x = h.axes.stratified(m.sampler.seed, int(n)-1, m.startup)
	case slices.ContainsFunc(h.done, func(o observation) bool { return !o.failed() }):
		h.running = h.running[:0]
		for _, t := range m.running {
			h.running = append(h.running, m.points[t])
		}
		x, label = m.model.choose(n, h), "model"
	}
	if x != nil && !m.history.taken(x) {
		return m.history.axes.decode(x), label
	}
	p, ok := m.sampler.draw(n)
	if !ok {
		panic("search: a configuration beyond the size of the space")
	}
	return p, "random"
}

func (m *modelled) take(n training.TrialID, p training.Params) {
	m.points[n] = m.history.axes.encode(p)
	m.running = append(m.running, n)
	m.sampler.take(n, p)
	if m.history.tried != nil {
		m.history.tried[p.Key()] = true
	}
}

func (m *modelled) learn(r result) {
	x, suggested := m.points[r.N]
	if !suggested {
		return
	}
	if r.Kind == Resumed { // what it has told when it was stopped is not its end
		m.forget(r)
		if i, running := slices.BinarySearch(m.running, r.N); !running && !slices.ContainsFunc(m.history.done, func(o observation) bool { return o.n == r.N }) {
			m.running = slices.Insert(m.running, i, r.N)
		}
		return
	}
	if i, running := slices.BinarySearch(m.running, r.N); running {
		m.running = slices.Delete(m.running, i, i+1)
	}
	o := observation{n: r.N, x: x, budget: r.Budget}
	for _, s := range r.Scores {
		o.losses = append(o.losses, -s)
	}
	if slices.ContainsFunc(o.losses, func(l float64) bool { return math.IsNaN(l) || math.IsInf(l, 0) }) {
		o.losses = nil
	}
	m.forget(r)
	m.history.done = append(m.history.done, o)
	m.history.known[known{r.N, r.Budget}] = true
}

// forget takes back what was told of the same configuration and budget.
func (m *modelled) forget(r result) {
	h := &m.history
	if !h.known[known{r.N, r.Budget}] {
		return
	}
	delete(h.known, known{r.N, r.Budget})
	h.done = slices.DeleteFunc(h.done, func(o observation) bool { return o.n == r.N && o.budget == r.Budget })
	h.revision++
}

// modelledState is the history. What a model makes of it is computed again.
type modelledState struct {
	Running []training.TrialID `json:"running,omitempty"`
	Done    []result           `json:"done,omitempty"`
}

func (m *modelled) snapshot() (json.RawMessage, error) {
	s := modelledState{Running: m.running}
	for _, o := range m.history.done {
		r := result{N: o.n, Budget: o.budget, Kind: Finished}
		for _, l := range o.losses {
			r.Scores = append(r.Scores, -l)
		}
		s.Done = append(s.Done, r)
	}
	return json.Marshal(s)
}

func (m *modelled) restore(learned json.RawMessage, tried []training.Params) error {
	var s modelledState
	if err := json.Unmarshal(learned, &s); err != nil {
		return err
	}
	for i, p := range tried {
		m.take(training.TrialID(i+1), p)
	}
	for _, r := range s.Done {
		m.learn(r)
	}
	m.running = s.Running
	return nil
}

// dice are the random numbers of a configuration. The first number of the seed keeps them apart from the sampler's.
func dice(seed uint64, n training.TrialID) *rand.Rand {
	return rand.New(rand.NewPCG(seed^0x9e3779b97f4a7c15, uint64(n)))
}

// lossesOf are those of the first objective, failures counted as the worst result there is, so that a model keeps away from where
// trials fail.
func lossesOf(done []observation) []float64 {
	losses, _ := lossesAfter(done, math.Inf(-1))
	return losses
}

// lossesAfter are those of observations that others were before, the worst of which was so; it returns the worst of all.
func lossesAfter(done []observation, before float64) (losses []float64, worst float64) {
	worst = before
	for i := range done {
		if !done[i].failed() {
			worst = max(worst, done[i].losses[0])
		}
	}
	out := make([]float64, len(done))
	for i := range done {
		switch {
		case !done[i].failed():
			out[i] = done[i].losses[0]
		case !math.IsInf(worst, -1): // or all have failed
			out[i] = worst
		}
	}
	return out, worst
}
