package search

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gohops/hops/training"
)

// proposer chooses a configuration from what was observed. What it returns depends on the seed, the number of the trial and the
// history alone: it may keep what it has computed, but nothing else.
type proposer interface {
	propose(n training.TrialID, h *history) (x []float64, label string)
}

// history is what a proposer knows.
type history struct {
	axes axes
	done []observation // in the order in which they came
	// running are the points of the trials without a result, in the order of their numbers.
	running [][]float64
	// revision changes when done did otherwise than by growing.
	revision int

	tried map[string]bool // configurations of a finite space
}

// observation is the result of a trial.
type observation struct {
	trial training.TrialID
	x     []float64
	// losses are those of the objectives, less is better; nil for a trial that failed.
	losses []float64
}

func (o *observation) failed() bool { return o.losses == nil }

// taken reports whether a point of a finite space was tried.
func (h *history) taken(x []float64) bool { return h.tried != nil && h.tried[h.axes.decode(x).Key()] }

// losses are those of the first objective. A failure counts as the worst result that there is, so that a model keeps away from
// where trials fail.
func (h *history) losses() []float64 {
	worst := math.Inf(-1)
	for i := range h.done {
		if o := &h.done[i]; !o.failed() {
			worst = max(worst, o.losses[0])
		}
	}
	if math.IsInf(worst, -1) {
		worst = 0
	}
	out := make([]float64, len(h.done))
	for i := range h.done {
		if out[i] = worst; !h.done[i].failed() {
			out[i] = h.done[i].losses[0]
		}
	}
	return out
}

// modelled runs configurations that a model proposes, each to its end.
type modelled struct {
	proposer   proposer
	sampler    *sampler
	directions []training.Direction
	trials     int
	budget     int
	startup    int
	issued     int
	points     map[training.TrialID][]float64 // of every trial so far
	running    []training.TrialID             // rising
	history    history
}

func newModelled(s *training.Spec, startup int, p proposer) *modelled {
	m := &modelled{
		proposer: p, sampler: newSampler(s.Space, s.RandomSeed()), directions: directions(s), budget: s.MaxEpochs,
		points: map[training.TrialID][]float64{}, history: history{axes: newAxes(s.Space)},
	}
	m.trials = min(s.Trials, m.sampler.size())
	m.startup = min(max(startup, 1), m.trials)
	if m.sampler.finite {
		m.history.tried = map[string]bool{}
	}
	return m
}

func (m *modelled) Next() (Suggestion, Verdict) {
	if m.issued >= m.trials {
		if len(m.running) > 0 {
			return Suggestion{}, Idle
		}
		return Suggestion{}, Done
	}
	id := training.TrialID(m.issued + 1)
	p, label := m.choose(id)
	s := Suggestion{Trial: id, Params: p, Budget: m.budget, Last: true, Label: label}
	m.Adopt(s)
	return s, Suggest
}

func (m *modelled) choose(id training.TrialID) (training.Params, string) {
	var x []float64
	label := "startup"
	switch {
	case int(id) <= m.startup:
		x = m.history.axes.stratified(m.sampler.seed, int(id)-1, m.startup)
	case slices.ContainsFunc(m.history.done, func(o observation) bool { return !o.failed() }):
		h := &m.history
		h.running = h.running[:0]
		for _, t := range m.running {
			h.running = append(h.running, m.points[t])
		}
		x, label = m.proposer.propose(id, h)
	}
	if x != nil && !m.history.taken(x) {
		return m.history.axes.decode(x), label
	}
	p, ok := m.sampler.draw(id)
	if !ok {
		panic("search: a finite space has fewer configurations than it said") // trials is at most its size
	}
	return p, "random"
}

func (m *modelled) Adopt(s Suggestion) {
	if s.Params == nil {
		return // there are no promotions here
	}
	m.issued = max(m.issued, int(s.Trial))
	m.run(s.Trial)
	m.take(s.Trial, s.Params)
}

func (m *modelled) take(id training.TrialID, p training.Params) {
	m.points[id] = m.history.axes.encode(p)
	m.sampler.take(id, p)
	if m.history.tried != nil {
		m.history.tried[p.Key()] = true
	}
}

func (m *modelled) run(id training.TrialID) {
	if i, running := slices.BinarySearch(m.running, id); !running {
		m.running = slices.Insert(m.running, i, id)
	}
}

func (m *modelled) Observe(e Event) Answer {
	x, suggested := m.points[e.Trial]
	if !suggested || e.Kind == Reported {
		return Answer{}
	}
	i, running := slices.BinarySearch(m.running, e.Trial)
	if e.Kind == Resumed {
		m.run(e.Trial)
		if k := slices.IndexFunc(m.history.done, func(o observation) bool { return o.trial == e.Trial }); k >= 0 {
			m.history.done = slices.Delete(m.history.done, k, k+1)
			m.history.revision++
		}
		return Answer{}
	}
	if !running {
		return Answer{}
	}
	m.running = slices.Delete(m.running, i, i+1)
	o := observation{trial: e.Trial, x: x}
	if e.Kind != Failed {
		o.losses = losses(m.directions, e)
	}
	m.history.done = append(m.history.done, o)
	return Answer{}
}

// losses turns an event's values so that less is better; nil if there is not one for each objective.
func losses(directions []training.Direction, e Event) []float64 {
	values := e.Values
	if len(directions) == 1 {
		values = []float64{e.Value}
	}
	if len(values) != len(directions) {
		return nil
	}
	out := make([]float64, len(values))
	for i, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
		out[i] = -directions[i].Score(v)
	}
	return out
}

func directions(s *training.Spec) []training.Direction {
	return []training.Direction{s.Direction}
}

func (m *modelled) Outlook() int { return m.trials - m.issued }

func (m *modelled) Planned() int { return m.trials }

// modelledState is the history. What models make of it is computed again.
type modelledState struct {
	Issued  int                `json:"issued"`
	Running []training.TrialID `json:"running"`
	Done    []doneState        `json:"done"`
}

type doneState struct {
	Trial  training.TrialID `json:"trial"`
	Losses []float64        `json:"losses,omitempty"`
}

func (m *modelled) Snapshot() ([]byte, error) {
	s := modelledState{Issued: m.issued, Running: m.running}
	for _, o := range m.history.done {
		s.Done = append(s.Done, doneState{o.trial, o.losses})
	}
	return json.Marshal(s)
}

func (m *modelled) Restore(data []byte, tried []training.Params) error {
	var s modelledState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	for i, p := range tried {
		m.take(training.TrialID(i+1), p)
	}
	m.issued, m.running = s.Issued, s.Running
	for _, d := range s.Done {
		if x, ok := m.points[d.Trial]; ok {
			m.history.done = append(m.history.done, observation{d.Trial, x, d.Losses})
		}
	}
	return nil
}

// dice are the random numbers of a trial. The second number of the seed keeps them apart from the sampler's.
func dice(seed uint64, n training.TrialID) *rand.Rand {
	return rand.New(rand.NewPCG(seed^0x9e3779b97f4a7c15, uint64(n)))
}
