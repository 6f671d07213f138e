package search

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"github.com/gohops/hops/training"
)

// pbt is population based training (Jaderberg et al., 2017, arXiv 1711.09846): members train side by side, and every interval
// epochs the worst of them are replaced by copies of the best (exploit), whose parameters are then varied (explore). A
// member is a trial, a copy goes on from a checkpoint of the one that it copies.
//
// A member is compared, when it is about to go on, with those that came as far as it did; it waits until that is half of the
// population. Who is furthest behind goes first, so that a population larger than the executors stays together. The one that is
// copied may have gone on meanwhile: the copy takes what it was when it had come as far.
type pbt struct {
	spec    *training.Spec
	budgets []int
	members []member
	results [][]placed // of each step, the best first
}

type member struct {
	Step    int             `json:"step"` // steps that it has a result of, or that it is at work on
	Running bool            `json:"running,omitempty"`
	Dead    bool            `json:"dead,omitempty"`
	Params  training.Params `json:"params"`
}

func newPBT(s *training.Spec) *pbt {
	b := &pbt{spec: s}
	for e := s.Optimizer.Interval; e < s.MaxEpochs; e += s.Optimizer.Interval {
		b.budgets = append(b.budgets, e)
	}
	b.budgets = append(b.budgets, s.MaxEpochs)
	b.results = make([][]placed, len(b.budgets))
	return b
}

// ready reports whether a member may go on now. dead are the steps at which members ended before their time, in rising order.
func (b *pbt) ready(m member, dead []int) bool {
	if m.Running || m.Dead || m.Step == len(b.budgets) {
		return false
	}
	gone := sort.SearchInts(dead, m.Step)
	return 2*(len(b.results[m.Step-1])+gone) >= b.spec.Optimizer.Population
}

func (b *pbt) dead() (steps []int) {
	for _, m := range b.members {
		if m.Dead {
			steps = append(steps, m.Step)
		}
	}
	slices.Sort(steps)
	return steps
}

// next is the member that goes on, -1 if there is none.
func (b *pbt) next() int {
	next, dead := -1, b.dead()
	for i, m := range b.members {
		if (next < 0 || m.Step < b.members[next].Step) && b.ready(m, dead) {
			next = i
		}
	}
	return next
}

func (b *pbt) Next() (Suggestion, Verdict) {
	s, ok := b.suggest()
	switch {
	case ok:
		b.Adopt(s)
		return s, Suggest
	case slices.ContainsFunc(b.members, func(m member) bool { return m.Running }):
		return Suggestion{}, Idle
	}
	return Suggestion{}, Done
}

func (b *pbt) suggest() (Suggestion, bool) {
	if n := len(b.members); n < b.spec.Optimizer.Population {
		id := training.TrialID(n + 1)
		return Suggestion{Trial: id, Params: newSampler(b.spec.Space, b.spec.RandomSeed()).at(id, 0), Budget: b.budgets[0], Last: len(b.budgets) == 1}, true
	}
	i := b.next()
	if i < 0 {
		return Suggestion{}, false
	}
	id, step := training.TrialID(i+1), b.members[i].Step
	s := Suggestion{Trial: id, Budget: b.budgets[step], Last: step == len(b.budgets)-1, Promotion: true}
	list := b.results[step-1]
	q := int(float64(len(list)) * b.spec.Optimizer.Quantile)
	place := slices.IndexFunc(list, func(p placed) bool { return p.Trial == id })
	if place < len(list)-q {
		return s, true
	}
	r := rand.New(rand.NewPCG(b.spec.RandomSeed()^0x706274, uint64(id)<<32|uint64(step)))
	from := list[r.IntN(q)].Trial
	s.Source, s.Label = &Source{Trial: from, Step: int64(b.budgets[step-1])}, fmt.Sprintf("copy of %v", from)
	s.Params = b.explore(b.members[from-1].Params, r)
	return s, true
}

// explore varies parameters: each is drawn anew with the probability of resample; otherwise a number is multiplied by 0.8 or
// 1.2, a discrete one moves to a neighbour in size, and a category stays.
func (b *pbt) explore(from training.Params, r *rand.Rand) training.Params {
	p := make(training.Params, len(from))
	for _, d := range b.spec.Space {
		fresh, up, anew := sample(d, r), r.IntN(2) == 1, r.Float64() < *b.spec.Optimizer.Resample
		if !d.Active(p) {
			continue
		}
		v, has := from[d.Name]
		switch f, _ := v.Float(); {
		case !has || anew:
			v = fresh
		case d.Ranged():
			to := f * 0.8
			if up {
				to = f * 1.2
			}
			if d.Type == training.Double {
				v = training.Float(min(max(to, d.Min), d.Max))
				break
			}
			if to = math.Round(to); to == f { // a small whole number moves all the same
				to--
				if up {
					to = f + 1
				}
			}
			v = training.Int(int64(min(max(to, d.Min), d.Max)))
		case d.Type == training.Discrete:
			v = neighbour(d.Values, v, up)
		}
		p[d.Name] = v
	}
	return p
}

// neighbour is the next value in size; the last one itself at the end.
func neighbour(values []training.Value, v training.Value, up bool) training.Value {
	at, _ := v.Float()
	out, nearest := v, math.Inf(1)
	for _, w := range values {
		f, _ := w.Float()
		if d := math.Abs(f - at); d > 0 && d < nearest && (f > at) == up {
			out, nearest = w, d
		}
	}
	return out
}

func (b *pbt) Adopt(s Suggestion) {
	if !s.Promotion {
		b.members = append(b.members, member{Running: true, Params: s.Params})
		return
	}
	if i := int(s.Trial) - 1; i >= 0 && i < len(b.members) {
		m := &b.members[i]
		m.Running = true
		if s.Params != nil {
			m.Params = s.Params
		}
	}
}

func (b *pbt) Observe(e Event) Answer {
	i := int(e.Trial) - 1
	if i < 0 || i >= len(b.members) || e.Kind == Reported {
		return Answer{}
	}
	m := &b.members[i]
	switch {
	case e.Kind == Resumed && m.Dead:
		m.Running, m.Dead = true, false
	case !m.Running:
	case e.Kind == Finished:
		p := placed{Trial: e.Trial, Score: b.spec.Direction.Score(e.Value)}
		at, _ := slices.BinarySearchFunc(b.results[m.Step], p, byRank)
		b.results[m.Step] = slices.Insert(b.results[m.Step], at, p)
		m.Running = false
		m.Step++
	default:
		m.Running, m.Dead = false, true
	}
	return Answer{}
}

func (b *pbt) Outlook() int {
	n := b.spec.Optimizer.Population - len(b.members)
	dead := b.dead()
	for _, m := range b.members {
		if b.ready(m, dead) {
			n++
		}
	}
	return n
}

func (b *pbt) Planned() int { return b.spec.Optimizer.Population }

type pbtState struct {
	Members []member   `json:"members"`
	Results [][]placed `json:"results"`
}

func (b *pbt) Snapshot() ([]byte, error) { return json.Marshal(pbtState{b.members, b.results}) }

func (b *pbt) Restore(data []byte, _ []training.Params) error {
	var s pbtState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	b.members = s.Members
	copy(b.results, s.Results)
	return nil
}
