package search

import (
	"encoding/json"
	"maps"

	"github.com/gohops/hops/training"
)

// repeated runs each configuration of another optimizer several times, with other seeds: configuration c is the trials (c-1)·times+1 to
// c·times. The other one learns of a configuration when its last run has ended: the mean of those that ended with a value.
type repeated struct {
	of     Optimizer
	times  int
	issued int          // trials
	now    Suggestion   // the configuration that is being issued
	open   map[int]runs // configurations of which some, not all, have ended
}

// runs are those of a configuration that have ended.
type runs struct {
	Ended  int     `json:"ended"`
	Worked int     `json:"worked"`
	Sum    float64 `json:"sum"` // of their values, each divided by how many runs there are: finite
	Epochs int     `json:"epochs"`
}

func newRepeated(of Optimizer, times int) Optimizer {
	if times <= 1 {
		return of
	}
	return &repeated{of: of, times: times, open: map[int]runs{}}
}

func (r *repeated) configuration(id training.TrialID) int { return (int(id)-1)/r.times + 1 }

func (r *repeated) Next() (Suggestion, Verdict) {
	if r.issued%r.times == 0 {
		s, v := r.of.Next()
		if v != Suggest {
			return s, v
		}
		r.now = s
	}
	r.issued++
	s := r.now
	s.Trial = training.TrialID(r.issued)
	return s, Suggest
}

func (r *repeated) Adopt(s Suggestion) {
	if int(s.Trial) <= r.issued {
		return
	}
	if r.issued%r.times == 0 {
		r.now = s
		r.now.Trial = training.TrialID(r.configuration(s.Trial))
		r.of.Adopt(r.now)
	}
	r.issued = int(s.Trial)
}

func (r *repeated) Observe(e Event) Answer {
	if e.Trial < 1 || int(e.Trial) > r.issued || e.Kind == Reported {
		return Answer{}
	}
	c := r.configuration(e.Trial)
	x := r.open[c]
	if e.Kind == Resumed { // it had ended: if nothing is open of its configuration, all of that had
		if _, open := r.open[c]; !open {
			x.Ended = r.times
			r.of.Observe(Event{Kind: Resumed, Trial: training.TrialID(c)})
		}
		x.Ended--
		r.open[c] = x
		return Answer{}
	}
	x.Ended++
	x.Epochs = max(x.Epochs, e.Epochs)
	if e.Kind == Finished {
		x.Worked++
		x.Sum += e.Value / float64(r.times)
	}
	if x.Ended < r.times {
		r.open[c] = x
		return Answer{}
	}
	delete(r.open, c)
	out := Event{Kind: e.Kind, Trial: training.TrialID(c), Epochs: x.Epochs, Value: e.Value}
	if x.Worked > 0 {
		out.Kind, out.Value = Finished, x.Sum*(float64(r.times)/float64(x.Worked))
	}
	r.of.Observe(out)
	return Answer{}
}

func (r *repeated) Outlook() int {
	left := 0
	if k := r.issued % r.times; k > 0 {
		left = r.times - k
	}
	return left + r.times*r.of.Outlook()
}

func (r *repeated) Planned() int { return r.times * r.of.Planned() }

type repeatedState struct {
	Of     json.RawMessage `json:"of"`
	Issued int             `json:"issued"`
	Now    Suggestion      `json:"now"`
	Open   map[int]runs    `json:"open"`
}

func (r *repeated) Snapshot() ([]byte, error) {
	of, err := r.of.Snapshot()
	if err != nil {
		return nil, err
	}
	return json.Marshal(repeatedState{of, r.issued, r.now, r.open})
}

func (r *repeated) Restore(data []byte, tried []training.Params) error {
	var s repeatedState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	r.issued, r.now, r.open = s.Issued, s.Now, map[int]runs{}
	maps.Copy(r.open, s.Open)
	var configurations []training.Params
	for i := 0; i < len(tried); i += r.times {
		configurations = append(configurations, tried[i])
	}
	return r.of.Restore(s.Of, configurations)
}
