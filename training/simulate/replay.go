package simulate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/search"
)

// maxLine bounds a line of the journal, in bytes.
const maxLine = 8 << 20

// ReadJournal reads an experiment's journal. What a crash has torn is left out: a line that is no whole entry, and entries that are
// there already. A gap is an error.
func ReadJournal(in io.Reader) ([]*experiment.Entry, error) {
	var out []*experiment.Entry
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	number := 0
	for lines.Scan() {
		number++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		e, err := experiment.DecodeEntry(text)
		if err != nil {
			if number == 1 {
				return nil, fmt.Errorf("line 1 is no entry of a journal: %w", err)
			}
			continue
		}
		last := int64(len(out))
		if e.N > last+1 {
			return nil, fmt.Errorf("line %d: entry %d follows entry %d", number, e.N, last)
		}
		if e.N == last+1 {
			out = append(out, e)
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("line %d is longer than %d bytes", number+1, maxLine)
		}
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the journal is empty")
	}
	return out, nil
}

// Replayed is how far a journal could be reproduced.
type Replayed struct {
	Entries int `json:"entries"`
	// Suggestions and decisions that this program makes as they are in the journal.
	Suggestions int `json:"suggestions"`
	Decisions   int `json:"decisions"`
	// Differs says what it does otherwise, and where; empty: nothing.
	Differs string `json:"differs,omitempty"`
}

// Replay makes every suggestion and decision of a journal again and compares.
func Replay(journal []*experiment.Entry) Replayed {
	x := experiment.New()
	x.Compare = true
	r := Replayed{Entries: len(journal)}
	for _, e := range journal {
		err := x.Apply(e)
		x.Take()
		if err != nil {
			r.Differs = err.Error()
			break
		}
		if e.Assigned != nil && e.Assigned.Suggestion != nil {
			r.Suggestions++
		}
		if e.Reported != nil && e.Reported.Decision != nil {
			r.Decisions++
		}
	}
	return r
}

// WhatIf is what another early stopping would have made of an experiment. What trials did after that is not recorded: those that
// were stopped in fact end where they did, and no executor that would have been free does anything else.
type WhatIf struct {
	Policy training.EarlyStop `json:"policy"`
	Metric string             `json:"metric"`
	Trials int                `json:"trials"`
	Epochs int                `json:"epochs"` // that were reported
	Saved  int                `json:"saved"`  // of them, after their trial would have been stopped
	// Stopped are the trials that would have been, in the order in which they would.
	Stopped []StoppedTrial `json:"stopped"`
	// StoppedInFact is how many were stopped early when it ran.
	StoppedInFact int `json:"stopped_in_fact"`
	// Best is the best trial, BestSurvives whether it would have come to its end; if not, Next is the best that would, 0 for none.
	Best         training.TrialID `json:"best,omitempty"`
	BestValue    *float64         `json:"best_value,omitempty"`
	BestSurvives bool             `json:"best_survives"`
	Next         training.TrialID `json:"next,omitempty"`
	NextValue    *float64         `json:"next_value,omitempty"`
}

// StoppedTrial would have been stopped.
type StoppedTrial struct {
	Trial  training.TrialID `json:"trial"`
	Step   int64            `json:"step"`
	Saved  int              `json:"saved"`           // epochs
	Value  *float64         `json:"value,omitempty"` // that it came to in fact
	Reason string           `json:"reason"`
}

// If runs an early stopping over the curves of a journal, in the order in which they were reported.
func If(journal []*experiment.Entry, policy training.EarlyStop) (*WhatIf, error) {
	x := experiment.New()
	w := &WhatIf{Stopped: []StoppedTrial{}}
	var stopper search.EarlyStop
	var finished []search.TrialView
	compared := 0
	curves := map[training.TrialID]*search.Curve{}
	stopped := map[training.TrialID]int{} // place in w.Stopped
	curve := func(id training.TrialID) *search.Curve {
		if curves[id] == nil {
			curves[id] = &search.Curve{}
		}
		return curves[id]
	}
	for _, e := range journal {
		err := x.Apply(e)
		x.Take()
		if err != nil {
			return nil, err
		}
		if e.Created != nil {
			spec := *x.Spec
			spec.EarlyStop = policy
			spec.SetDefaults(spec.Project)
			if err := spec.Validate(); err != nil {
				return nil, err
			}
			if stopper, err = search.NewEarlyStop(spec.EarlyStop); err != nil {
				return nil, err
			}
			w.Policy, w.Metric = spec.EarlyStop, spec.Metric
		}
		if r := e.Reported; r != nil {
			for _, event := range r.Events {
				m, ok := event.Metrics[x.Spec.Metric]
				if !ok || !m.Finite() {
					continue
				}
				w.Epochs++
				if i, gone := stopped[r.Trial]; gone {
					w.Stopped[i].Saved++
					w.Saved++
					continue
				}
				c := curve(r.Trial)
				c.Put(event.Step, m.Value)
				if d := stopper.Check(search.TrialView{Trial: r.Trial, Curve: c}, finished, x.Spec.Direction); d.Stop {
					stopped[r.Trial] = len(w.Stopped)
					w.Stopped = append(w.Stopped, StoppedTrial{Trial: r.Trial, Step: event.Step, Reason: d.Reason})
					finished = append(finished, search.TrialView{Trial: r.Trial, Curve: c})
				}
			}
		}
		for _, id := range x.Compared[min(compared, len(x.Compared)):] {
			if _, gone := stopped[id]; !gone {
				finished = append(finished, search.TrialView{Trial: id, Curve: curve(id)})
			}
		}
		compared = len(x.Compared)
	}
	w.sum(x, stopped)
	return w, nil
}

// sum compares the trials that would have survived with all.
func (w *WhatIf) sum(x *experiment.Experiment, stopped map[training.TrialID]int) {
	w.Trials, w.StoppedInFact, w.Best = len(x.Trials), x.Counters.EarlyStopped, x.Best
	for _, t := range x.Trials {
		i, gone := stopped[t.ID]
		if gone {
			w.Stopped[i].Value = t.Metric
		}
		if t.Metric == nil || t.State == training.Failed || t.State == training.Invalid {
			continue
		}
		if t.ID == w.Best {
			w.BestValue, w.BestSurvives = t.Metric, !gone
		}
		if !gone && (w.NextValue == nil || x.Spec.Direction.Better(*t.Metric, *w.NextValue)) {
			w.Next, w.NextValue = t.ID, t.Metric
		}
	}
	if w.BestSurvives {
		w.Next, w.NextValue = 0, nil
	}
	w.Stopped = slices.Clip(w.Stopped)
}
