package search

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/gohops/hops/training"
)

// source yields the configuration of trial n, in order of n; ok is false when there is none any more.
type source interface {
	draw(n training.TrialID) (p training.Params, ok bool)
	// take notes that trial n has this configuration, whoever drew it. Called in order of n.
	take(n training.TrialID, p training.Params)
	// size bounds how many configurations there are.
	size() int
}

// sampler draws at random, never the same configuration twice where the space is finite.
type sampler struct {
	space  training.Space
	seed   uint64
	count  uint64 // configurations of a finite space
	finite bool
	drawn  training.TrialID
	seen   map[string]bool
	points *enumeration
	quasi  *sobol // where the first candidate of each trial comes from, if not from chance
}

func newSampler(space training.Space, seed uint64) *sampler {
	s := &sampler{space: space, seed: seed, seen: map[string]bool{}, points: newEnumeration(space)}
	s.count, s.finite = space.Size()
	return s
}

func (s *sampler) size() int {
	if s.finite && s.count < training.MaxTrials {
		return int(s.count)
	}
	return training.MaxTrials
}

// tries is how often a duplicate is drawn again before the rest of a finite space is searched in order.
const tries = 32

// draw makes trial n's configuration. For a finite space the earlier ones are drawn first, to know what is taken.
func (s *sampler) draw(n training.TrialID) (training.Params, bool) {
	if !s.finite {
		return s.at(n, 0), true
	}
	var p training.Params
	for s.drawn < n {
		if uint64(s.drawn) >= s.count {
			return nil, false
		}
		s.drawn++
		p = s.fresh(s.drawn)
		s.seen[p.Key()] = true
	}
	return p, p != nil
}

func (s *sampler) take(n training.TrialID, p training.Params) {
	if s.finite && n > s.drawn {
		s.drawn = n
		s.seen[p.Key()] = true
	}
}

func (s *sampler) fresh(n training.TrialID) training.Params {
	for try := range uint64(tries) {
		if p := s.at(n, try); !s.seen[p.Key()] {
			return p
		}
	}
	// Nearly exhausted, so that the space is small: the next free one behind a random place.
	start := rand.New(rand.NewPCG(s.seed, uint64(n)<<16|tries)).Uint64N(s.count)
	for i := range s.count {
		if p := s.points.nth((start + i) % s.count); !s.seen[p.Key()] {
			return p
		}
	}
	panic("search: a space with free configurations has none") // draw counts them
}

// at is the try-th candidate for trial n.
func (s *sampler) at(n training.TrialID, try uint64) training.Params {
	if s.quasi != nil && try == 0 {
		return s.quasi.at(n)
	}
	r := rand.New(rand.NewPCG(s.seed, uint64(n)<<16|try))
	p := make(training.Params, len(s.space))
	for _, d := range s.space {
		if d.Active(p) {
			p[d.Name] = sample(d, r)
		}
	}
	return p
}

func sample(d training.Parameter, r *rand.Rand) training.Value {
	switch d.Type {
	case training.Double:
		return fromUnit(d, r.Float64())
	case training.Integer:
		if d.Log {
			v := math.Floor(math.Exp(math.Log(d.Min) + r.Float64()*(math.Log(d.Max+1)-math.Log(d.Min))))
			return training.Int(int64(min(max(v, d.Min), d.Max)))
		}
		return training.Int(int64(d.Min) + r.Int64N(int64(d.Max)-int64(d.Min)+1))
	default:
		return d.Values[r.IntN(len(d.Values))]
	}
}

// fromUnit is the value at a place of the unit interval: of a range evenly, in the logarithm if it says so; of a list each value
// has an equal part.
func fromUnit(d training.Parameter, u float64) training.Value {
	u = min(max(u, 0), math.Nextafter(1, 0))
	switch d.Type {
	case training.Double:
		v := d.Min + u*(d.Max-d.Min)
		switch {
		case d.Log:
			v = math.Exp(math.Log(d.Min) + u*(math.Log(d.Max)-math.Log(d.Min)))
		case math.IsInf(d.Max-d.Min, 1):
			v = (1-u)*d.Min + u*d.Max
		}
		return training.Float(min(max(v, d.Min), d.Max))
	case training.Integer:
		v := d.Min + math.Floor(u*(d.Max-d.Min+1))
		if d.Log {
			v = math.Floor(math.Exp(math.Log(d.Min) + u*(math.Log(d.Max+1)-math.Log(d.Min))))
		}
		return training.Int(int64(min(max(v, d.Min), d.Max)))
	default:
		return d.Values[int(u*float64(len(d.Values)))]
	}
}

// toUnit is the place of a value, in the middle of those that fromUnit takes to it.
func toUnit(d training.Parameter, v training.Value) float64 {
	if !d.Ranged() {
		i := slices.IndexFunc(d.Values, v.Equal)
		return (float64(max(i, 0)) + 0.5) / float64(len(d.Values))
	}
	f, _ := v.Float()
	return place(d, f)
}

// place is where a number of a range lies in the unit interval, a whole one in the middle of its part.
func place(d training.Parameter, f float64) float64 {
	at, all := f/2-d.Min/2, d.Max/2-d.Min/2 // halves, because a difference of the largest numbers is infinite
	switch {
	case d.Type == training.Integer && d.Log:
		f, all = math.Log(max(f, d.Min)+0.5), math.Log(d.Max+1)
		at, all = f-math.Log(d.Min), all-math.Log(d.Min)
	case d.Type == training.Integer:
		at, all = f-d.Min+0.5, d.Max-d.Min+1 // in this order the largest ones keep their halves
	case d.Log:
		at, all = math.Log(max(f, d.Min))-math.Log(d.Min), math.Log(d.Max)-math.Log(d.Min)
	}
	if !(all > 0) { // two neighbouring numbers, or one
		return 0.5
	}
	return min(max(at/all, 0), 1)
}

// enumeration counts the configurations of a finite space in the order of nested loops, the last parameter fastest. Parameters
// that are not active are no loops. How many ways there are to go on depends on the values of those parameters only that others
// depend on, so it is remembered by them.
type enumeration struct {
	space   training.Space
	decides []bool
	rest    map[string]uint64
}

func newEnumeration(space training.Space) *enumeration {
	e := &enumeration{space: space, decides: make([]bool, len(space)), rest: map[string]uint64{}}
	for i, p := range space {
		e.decides[i] = slices.ContainsFunc(space, func(q training.Parameter) bool {
			return slices.ContainsFunc(q.When, func(w training.Condition) bool { return w.Parameter == p.Name })
		})
	}
	return e
}

// from is in how many ways a configuration goes on whose parameters before the k-th are decided.
func (e *enumeration) from(k int, p training.Params) uint64 {
	key := strconv.AppendInt(nil, int64(k), 10)
	for i, d := range e.space[:k] {
		if e.decides[i] {
			v, ok := p[d.Name]
			key = append(key, ' ')
			if ok {
				key = strconv.AppendInt(key, int64(slices.Index(d.Values, v)), 10)
			}
		}
	}
	if n, ok := e.rest[string(key)]; ok {
		return n
	}
	n, _ := e.space.SizeFrom(k, p)
	e.rest[string(key)] = n
	return n
}

// nth is the i-th configuration.
func (e *enumeration) nth(i uint64) training.Params {
	p := make(training.Params, len(e.space))
	for k, d := range e.space {
		if !d.Active(p) {
			continue
		}
		if !e.decides[k] {
			rest := e.from(k+1, p)
			if d.Type == training.Integer {
				p[d.Name] = training.Int(int64(d.Min) + int64(i/rest))
			} else {
				p[d.Name] = d.Values[i/rest]
			}
			i %= rest
			continue
		}
		for _, v := range d.Values {
			p[d.Name] = v
			rest := e.from(k+1, p)
			if i < rest {
				break
			}
			i -= rest
		}
	}
	return p
}

// grid walks the whole space.
type grid struct {
	points *enumeration
	n      int
}

func newGrid(space training.Space) grid {
	n, _ := space.Size()
	return grid{newEnumeration(space), int(n)}
}

func (g grid) size() int { return g.n }

func (grid) take(training.TrialID, training.Params) {}

func (g grid) draw(n training.TrialID) (training.Params, bool) {
	if int(n) > g.n {
		return nil, false
	}
	return g.points.nth(uint64(n - 1)), true
}

// list yields given configurations; without any, empty ones.
type list struct{ configurations []training.Params }

func (l list) size() int {
	if len(l.configurations) == 0 {
		return training.MaxTrials
	}
	return len(l.configurations)
}

func (list) take(training.TrialID, training.Params) {}

func (l list) draw(n training.TrialID) (training.Params, bool) {
	if len(l.configurations) == 0 {
		return training.Params{}, true
	}
	if int(n) > len(l.configurations) {
		return nil, false
	}
	return l.configurations[n-1], true
}
