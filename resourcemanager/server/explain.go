package server

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/scheduler"
)

// maxExplained bounds the asks of one answer. Answers are made one at a time, and whoever has waited so long is told to come back:
// they take the model from the scheduler.
const (
	maxExplained   = 10
	explainsWithin = 5 * time.Second
)

// question takes the turn of who asks the model something that costs more than a look.
func (s *Server) question(ctx context.Context) (r *reign, done func(), err error) {
	if r = s.reign.Load(); r == nil {
		return nil, nil, metadata.Errorf(metadata.ErrRetriable, "this resource manager does not lead")
	}
	turn := time.NewTimer(explainsWithin)
	defer turn.Stop()
	select {
	case s.questions <- struct{}{}:
		began := time.Now()
		return r, func() { // the scheduler has as much time without questions as with them
			time.AfterFunc(min(time.Since(began), explainsWithin/2), func() { <-s.questions })
		}, nil
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-turn.C:
		return nil, nil, metadata.Errorf(metadata.ErrRetriable, "too many ask for explanations and plans at the moment: try again")
	}
}

// Explain implements rest.Cluster.
//
// Errors: metadata.ErrRetriable: it does not lead, or too many ask.
func (s *Server) Explain(ctx context.Context, id rm.ApplicationID, queues []string) (list []rest.Explanation, more int, err error) {
	r, done, err := s.question(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	waiting := r.waiting(id)
	if more = len(waiting) - maxExplained; more > 0 {
		waiting = waiting[:maxExplained]
	}
	for _, w := range waiting {
		began := time.Now()
		list = append(list, r.explained(w, queues))
		select { // the scheduler has its turn
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		case <-time.After(time.Since(began)):
		}
	}
	for _, w := range s.starting(r, id) {
		if len(list) < maxExplained {
			list = append(list, rest.Explanation{Ask: w.Ask, Reason: w.Reason})
		} else {
			more = max(more, 0) + 1
		}
	}
	return list, max(more, 0), nil
}

// explained explains one ask. The model is given back after each.
func (r *reign) explained(w scheduler.Waiting, queues []string) rest.Explanation {
	p := &r.plans
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.model != nil {
		if e, ok := p.model.Explain(w.App, w.Ask, queues, r.s.clock.moment().State); ok && e.Reason.Code == w.Reason.Code {
			out := rest.Explained(e)
			if strings.HasPrefix(w.Reason.Text, e.Reason.Text) { // with what the server adds
				out.Reason = w.Reason
			}
			return out
		}
	}
	return rest.Explanation{Ask: w.Ask, Reason: w.Reason} // it is not the scheduler that it waits for
}

// Plan implements rest.Cluster.
//
// Errors: those of Submit; metadata.ErrRetriable: it does not lead, or too many ask; metadata.ErrUnsupported: in a queue that the submission
// would make.
func (s *Server) Plan(ctx context.Context, caller metadata.Caller, b rest.Submission, spec *job.Spec, queues []string) (rest.Planned, error) {
	a, failure, err := s.admit(caller, b)
	switch {
	case err != nil:
		return rest.Planned{}, err
	case failure != "":
		return rest.Planned{}, metadata.Errorf(metadata.ErrInvalidArgument, "%s", failure)
	case s.Queues().Find(a.Queue) == nil:
		return rest.Planned{}, metadata.Errorf(metadata.ErrUnsupported, "queue %s would be made for it, and nothing can be planned there before", a.Queue)
	}
	app := scheduler.App{Queue: a.Queue, User: caller.User, Priority: a.Priority, Lasts: a.Timeout, Asks: []rm.Ask{{Resource: a.Master, Count: 1}}}
	unresolved := error(nil)
	if ask, ok := spec.Ask(); ok {
		ask.Resource = ask.Resource.Raise(s.config.Minimum)
		if r := s.reign.Load(); r != nil { // before it has its turn: a slow filesystem keeps nobody else's question waiting
			ask, unresolved = r.finder.resolveNow(ctx, caller.User, ask)
		}
		app.Asks = append(app.Asks, ask)
	}
	r, done, err := s.question(ctx)
	if err != nil {
		return rest.Planned{}, err
	}
	defer done()
	p := &r.plans
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.model == nil {
		return rest.Planned{}, metadata.Errorf(metadata.ErrRetriable, "it has only begun to lead")
	}
	r.tell()
	groups, waits := p.model.Try(app, queues, r.s.clock.moment().State)
	out := rest.Planned{Queue: a.Queue, Priority: a.Priority, Starts: len(waits) == 0, Placements: []rest.PlannedContainer{}}
	for _, g := range groups {
		for _, at := range g.Placements {
			out.Placements = append(out.Placements, rest.PlannedContainer{Ask: g.Ask, Master: g.Ask == "", Node: string(at.Node), GPUs: at.GPUs})
		}
	}
	if a.After != nil {
		a.After = slices.DeleteFunc(a.After, func(d rm.Dependency) bool {
			on := s.state.View().Application(d.Application)
			if on == nil {
				return true
			}
			met, _ := d.Settled(on)
			return met
		})
		if text := a.AwaitedText(); text != "" {
			out.Starts = false
			out.Waits = append(out.Waits, rest.Explanation{Reason: rm.Reason{Code: rm.ReasonDependency, Text: text}})
		}
	}
	for _, e := range waits {
		if e.Ask.ID != "" && unresolved != nil {
			e.Reason.Text += "; " + unresolvedText(unresolved)
		}
		out.Waits = append(out.Waits, rest.Explained(e))
	}
	return out, nil
}
