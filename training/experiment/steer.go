package experiment

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/search"
)

// A search can be steered from outside: by the brain, a process that runs what its user wrote in Python, or by a client. What it
// suggests and decides enters the journal as entries; what it has to know leaves as effects. Nothing waits for it.

// Suggested: an external optimizer has made suggestions, or says that there are no more.
type Suggested struct {
	Suggestions []search.Suggestion `json:"suggestions,omitempty"`
	Done        bool                `json:"done,omitempty"`
	Reason      string              `json:"reason,omitempty"` // of Done
}

// Decided: an external rule ends an attempt.
type Decided struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	Op      string           `json:"op"` // protocol.OpStop
	Reason  string           `json:"reason"`
}

// Broken: who steers cannot go on; the experiment has failed.
type Broken struct {
	Reason    string `json:"reason"`
	Traceback string `json:"traceback,omitempty"`
}

// Steered is what who steers has to know, in the order of the journal: exactly one of the fields is set.
type Steered struct {
	Suggested *search.Suggestion   `json:"suggested,omitempty"`
	Event     *protocol.TrialEvent `json:"event,omitempty"`
	// Check asks whether a trial is to stop; it is not repeated to a new brain.
	Check *Check
	// Resumed: what was told of the end of a trial does not hold any more.
	Resumed training.TrialID
}

// Check is a trial that has reported.
type Check struct {
	Trial   training.TrialID
	Attempt int
	Params  training.Params
	Curve   []protocol.CurvePoint
}

// Steered reports whether somebody outside suggests or decides.
func (x *Experiment) Steered() bool {
	return x.Spec.Optimizer.Type == training.External || x.Spec.EarlyStop.Policy == training.ExternalStop
}

func (x *Experiment) external() *search.External {
	e, _ := x.optimizer.(*search.External)
	return e
}

// Open reports whether an external optimizer may suggest more.
func (x *Experiment) Open() bool {
	e := x.external()
	return e != nil && e.Open()
}

// Asked is how many suggestions could be run now beyond those that wait, and the number of the next new trial.
func (x *Experiment) Asked() (n int, next training.TrialID) {
	if x.Closing() || !x.Open() {
		return 0, 0
	}
	if d := x.Spec.Distributed; d != nil {
		train, serve, _ := x.idle()
		workers := d.Workers
		if x.separate() {
			n = min(len(train)/workers, len(serve)/d.Servers())
		} else {
			n = len(train) / (workers + d.Servers())
		}
		if n == 0 && x.startable() { // with fewer workers
			n = 1
		}
	} else {
		for _, w := range x.Executors {
			if w.Preempted == "" && (w.State == executorIdle || w.State == executorBusy) {
				n += len(w.Slots) - w.Holds()
			}
		}
	}
	return max(0, n-len(x.Queue)-x.Outlook()), training.TrialID(x.external().Issued() + 1)
}

// NextTrial is the number that the next new trial of an external optimizer has; 0 if there is none.
func (x *Experiment) NextTrial() int {
	if e := x.external(); e != nil {
		return e.Issued() + 1
	}
	return 0
}

// Suggest takes suggestions in. A mistake in them comes back as a refusal.
func (x *Experiment) Suggest(now training.Millis, s Suggested) error {
	e := x.external()
	if e == nil {
		return Refuse(400, protocol.CodeBadRequest, "optimizer %s makes its own suggestions; external takes others'", x.Spec.Optimizer.Type)
	}
	if x.Closing() {
		return nil
	}
	paused := func(id training.TrialID) bool { t := x.Trial(id); return t != nil && t.State == training.Paused }
	if err := e.Check(s.Suggestions, x.Spec.Space, paused); err != nil {
		return Refuse(400, protocol.CodeBadRequest, "%v", err)
	}
	_, err := x.Propose(now, &Entry{Suggested: &s})
	return err
}

// Decide ends a trial that runs, if it is still at that attempt (0: at any).
func (x *Experiment) Decide(now training.Millis, d Decided) error {
	t := x.Trial(d.Trial)
	if t == nil || !t.State.Held() || t.Stopping != nil || t.chief().Done != "" || d.Attempt != 0 && t.Attempt != d.Attempt {
		return nil
	}
	d.Attempt, d.Op = t.Attempt, protocol.OpStop
	_, err := x.Propose(now, &Entry{Decided: &d})
	return err
}

func (x *Experiment) suggested(s *Suggested) error {
	e := x.external()
	if e == nil {
		return fmt.Errorf("optimizer %s takes no suggestions", x.Spec.Optimizer.Type)
	}
	e.Suggest(s.Suggestions, s.Done)
	for i := range s.Suggestions {
		x.out.Steer = append(x.out.Steer, Steered{Suggested: &s.Suggestions[i]})
	}
	if s.Done {
		x.logf("the optimizer suggests no more%s", prefixed(": ", s.Reason))
	}
	x.out.Wake = true
	return nil
}

func (x *Experiment) decided(d *Decided) error {
	t := x.Trial(d.Trial)
	if t == nil || t.Attempt != d.Attempt || !t.State.Held() {
		return fmt.Errorf("trial %v/%d does not run", d.Trial, d.Attempt)
	}
	t.Stopping = &stopping{Op: d.Op, State: training.Stopped, Reason: d.Reason, Since: x.Now, Early: true, Epochs: t.Curve.Len()}
	x.logf("%v/%d is told to %s: %s", t.ID, t.Attempt, d.Op, d.Reason)
	x.touch(t)
	return nil
}

func (x *Experiment) broken(b *Broken) {
	for _, line := range lines(b.Traceback) {
		x.logf("%s", line)
	}
	x.end(protocol.ExperimentFailed, b.Reason)
}

// tell notes an event for who steers.
func (x *Experiment) tell(t *trial, kind search.Kind, v float64, values []float64) {
	if !x.Steered() {
		return
	}
	e := &protocol.TrialEvent{Trial: int(t.ID), Epochs: t.Curve.Len(), Values: values}
	switch kind {
	case search.Reported:
		step, _, _ := t.Curve.Last()
		e.Kind, e.Step, e.Value = "reported", &step, new(training.M(v))
		x.out.Steer = append(x.out.Steer, Steered{Event: e})
		return
	case search.Finished:
		e.Kind, e.Value = "finished", new(training.M(v))
	case search.Stopped:
		e.Kind = "stopped"
		if t.Metric != nil {
			e.Value = new(training.M(v))
		}
	case search.Failed:
		e.Kind = "failed"
	case search.Resumed:
		x.out.Steer = append(x.out.Steer, Steered{Resumed: t.ID})
		return
	}
	e.Params, e.Started, e.Ended = t.Params, t.Started, x.Now
	e.Curve = new(curveOf(t))
	x.out.Steer = append(x.out.Steer, Steered{Event: e})
}

// check asks an external rule about a trial that has reported.
func (x *Experiment) check(t *trial) {
	e := x.Spec.EarlyStop
	if e.Policy != training.ExternalStop || t.Stopping != nil || t.Curve.Len()%e.Interval != 0 || t.Curve.Len() < e.Warmup || x.Concluded <= *e.Min {
		return
	}
	x.out.Steer = append(x.out.Steer, Steered{Check: &Check{Trial: t.ID, Attempt: t.Attempt, Params: t.Params, Curve: curveOf(t)}})
}

// curveOf is the curve of a trial.
func curveOf(t *trial) []protocol.CurvePoint {
	out := make([]protocol.CurvePoint, t.Curve.Len())
	for i := range out {
		out[i].Step, out[i].Value = t.Curve.At(i)
	}
	return out
}

func lines(text string) []string {
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
