package search

import (
	"math"
	"math/rand/v2"

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

// takeAll notes the configurations of the trials so far.
func takeAll(s source, tried []training.Params) {
	for i, p := range tried {
		s.take(training.TrialID(i+1), p)
	}
}

// sampler draws at random, never the same configuration twice where the space is finite.
type sampler struct {
	space  training.Space
	seed   uint64
	count  uint64 // configurations of a finite space
	finite bool
	drawn  training.TrialID
	seen   map[string]bool
}

func newSampler(space training.Space, seed uint64) *sampler {
	s := &sampler{space: space, seed: seed, seen: map[string]bool{}}
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
		if p := nth(s.space, (start+i)%s.count); !s.seen[p.Key()] {
			return p
		}
	}
	panic("search: a space with free configurations has none") // draw counts them
}

// at is the try-th candidate for trial n.
func (s *sampler) at(n training.TrialID, try uint64) training.Params {
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
		u, v := r.Float64(), 0.0
		if d.Log {
			v = math.Exp(math.Log(d.Min) + u*(math.Log(d.Max)-math.Log(d.Min)))
		} else {
			v = d.Min + u*(d.Max-d.Min)
		}
		return training.Float(min(max(v, d.Min), d.Max))
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

// nth is the i-th configuration of a finite space in the order of nested loops, the last parameter fastest. Parameters that
// are not active are no loops.
func nth(space training.Space, i uint64) training.Params {
	p := make(training.Params, len(space))
	for k, d := range space {
		if !d.Active(p) {
			continue
		}
		if d.Type == training.Integer {
			rest, _ := space.SizeFrom(k+1, p)
			p[d.Name] = training.Int(int64(d.Min) + int64(i/rest))
			i %= rest
			continue
		}
		for _, v := range d.Values {
			p[d.Name] = v
			rest, _ := space.SizeFrom(k+1, p)
			if i < rest {
				break
			}
			i -= rest
		}
	}
	return p
}

// grid walks the whole space.
type grid struct{ space training.Space }

func (g grid) size() int {
	n, _ := g.space.Size()
	return int(n)
}

func (grid) take(training.TrialID, training.Params) {}

func (g grid) draw(n training.TrialID) (training.Params, bool) {
	if int(n) > g.size() {
		return nil, false
	}
	return nth(g.space, uint64(n-1)), true
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
