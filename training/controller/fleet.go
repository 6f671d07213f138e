package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
)

// fleet keeps the containers of the executors: it asks the resource manager for as many as the experiment wants, takes
// what happens to them into the experiment, and gives back what is not wanted any more.
//
// The experiment's journal knows executors; the fleet knows containers, which the resource manager remembers and tells
// again after a restart.
type fleet struct {
	rm    ResourceManager
	log   *slog.Logger
	times Times
	app   string
	try   int
	epoch uint64
	// launch is what runs in each container.
	launch *rmpb.Launch
	// resources of each.
	resources *rmpb.Resources
	// experiment reads and changes the experiment.
	experiment interface {
		propose(ctx context.Context, run func(*experiment.Experiment, training.Millis) (*experiment.Entry, error)) error
		view(func(*experiment.Experiment))
	}

	changed chan struct{} // capacity 1: something to look at

	mu         sync.Mutex
	containers map[string]*container
	// missing is how many containers are asked for beyond those that were granted, on other nodes than excluded; unsaid: the
	// resource manager does not know that yet.
	missing  int
	excluded []string
	unsaid   bool
	release  []string
	pending  string
	// onlyExcluded: the resource manager says that only excluded nodes could give a container.
	onlyExcluded bool
	handled      uint64        // the last event that was taken in
	ended        bool          // the application is finished: the resource manager knows this attempt no more
	strangers    int           // requests that wait for the grant of their container
	arrived      chan struct{} // closed when a container is granted
	lastGrant    time.Time
}

// container is one that was granted.
type container struct {
	id, node, host string
	key            security.RequestKey
	admission      security.Admission
	granted        time.Time
	registered     bool
	gone           bool
	released       bool
	drainingSince  time.Time
}

func (f *fleet) init() {
	f.changed = make(chan struct{}, 1)
	f.containers = map[string]*container{}
	f.arrived = make(chan struct{})
	f.lastGrant = time.Now()
}

// poke makes the fleet look at the experiment.
func (f *fleet) poke() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// ask is the id of the one ask for all executors.
func (f *fleet) ask() string { return fmt.Sprintf("%d-executors", f.try) }

// add takes in a granted container; event is the number of the grant, 0: it was there before this attempt.
//
// The number of the event and the count of what is missing change together: the resource manager takes the grants that a
// request does not acknowledge off the count in it. One that is not wanted any more is given back.
func (f *fleet) add(c *rmpb.Container, event uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastGrant, f.pending, f.onlyExcluded = time.Now(), "", false
	f.handled = max(f.handled, event)
	if _, known := f.containers[c.GetContainerId()]; known {
		return
	}
	if c.GetAskId() == f.ask() {
		if f.missing == 0 {
			defer func() { f.releaseLocked(f.containers[c.GetContainerId()]) }()
		}
		f.missing = max(0, f.missing-1)
	}
	f.containers[c.GetContainerId()] = &container{id: c.GetContainerId(), node: c.GetNodeId(), host: c.GetHost(), key: security.NewRequestKey(c.GetToken(), security.ExecutorRequests), granted: time.Now()}
	close(f.arrived)
	f.arrived = make(chan struct{})
}

// await finds a container, also one that has ended: its executor, if it still runs, is to learn that from the answers. An
// executor may be a little faster than its grant, so that an unknown one is waited for; nil: in vain.
func (f *fleet) await(ctx context.Context, id string, patience time.Duration) *container {
	var deadline <-chan time.Time
	for {
		f.mu.Lock()
		arrived := f.arrived
		if c := f.containers[id]; c != nil {
			f.mu.Unlock()
			return c
		}
		if deadline == nil {
			if f.strangers >= maxStrangers {
				f.mu.Unlock()
				return nil
			}
			deadline = time.After(patience)
			f.strangers++
			defer func() {
				f.mu.Lock()
				f.strangers--
				f.mu.Unlock()
			}()
		}
		f.mu.Unlock()
		select {
		case <-arrived:
		case <-deadline:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// maxStrangers bounds the requests that wait for their container's grant.
const maxStrangers = 256

// node is the node of a container, "" if it is not known.
func (f *fleet) node(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		return c.node
	}
	return ""
}

// giveBack releases containers.
func (f *fleet) giveBack(ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.releaseLocked(f.containers[id])
	}
}

func (f *fleet) releaseLocked(c *container) {
	if c != nil && !c.gone && !c.released {
		c.released = true
		f.release = append(f.release, c.id)
	}
}

// reason says what the fleet waits for, "" if nothing.
func (f *fleet) reason() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.missing > 0 && f.pending != "" {
		return fmt.Sprintf("waits for %d executors: %s", f.missing, f.pending)
	}
	return ""
}

// live counts the containers that have not ended.
func (f *fleet) live() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if !c.gone {
			n++
		}
	}
	return n
}

// left waits until all containers have ended, for as long as an executor may take to end after it was told to.
func (f *fleet) left(ctx context.Context) {
	patient, cancel := context.WithTimeout(ctx, f.times.Drain)
	defer cancel()
	for f.live() > 0 {
		select {
		case <-patient.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// look compares what is wanted with what is there and decides what to ask for and what to give back.
func (f *fleet) look(now time.Time) (late []*container, forgive string) {
	var wanted, usable int
	var excluded []string
	executors := map[string]experiment.Executor{}
	f.experiment.view(func(x *experiment.Experiment) {
		wanted, usable, excluded = x.Wanted(), x.Usable(), x.Excluded()
		if x.Over() {
			wanted = 0
		}
		for _, w := range x.Executors {
			if w.Alive() {
				executors[w.Container] = *w
			}
		}
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	starting := 0
	for _, c := range f.containers {
		w, registered := executors[c.id]
		c.registered = c.registered || registered
		switch {
		case c.gone || c.released:
		case !registered && c.registered: // its executor was given up
			f.releaseLocked(c)
		case !registered && wanted == 0:
			f.releaseLocked(c)
		case !registered && now.Sub(c.granted) > f.times.Start:
			late = append(late, c)
			f.releaseLocked(c)
		case !registered:
			starting++
		case w.State == experiment.ExecutorDraining && w.Trial == 0:
			if c.drainingSince.IsZero() {
				c.drainingSince = now
			} else if now.Sub(c.drainingSince) > f.times.Drain {
				f.releaseLocked(c)
			}
		}
	}
	missing := max(0, wanted-usable-starting)
	f.unsaid = f.unsaid || missing != f.missing || missing > 0 && !slices.Equal(f.excluded, excluded)
	f.missing, f.excluded = missing, excluded
	if len(excluded) > 0 && f.missing > 0 && usable+starting == 0 && (f.onlyExcluded || now.Sub(f.lastGrant) > f.times.Amnesty) {
		forgive = excluded[0]
		f.lastGrant, f.onlyExcluded = now, false
	}
	return late, forgive
}

// beat is how often the resource manager hears of the controller when nothing changes.
const beat = 2 * time.Second

// run drives the fleet until ctx ends.
func (f *fleet) run(ctx context.Context) error {
	tick := time.NewTicker(f.times.Tick)
	defer tick.Stop()
	var sequence uint64
	var sent time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.changed:
		case <-tick.C:
		}
		late, forgive := f.look(time.Now())
		for _, c := range late {
			err := f.notStarted(ctx, c, fmt.Sprintf("its executor did not register within %s", f.times.Start), "")
			if err != nil {
				return err
			}
		}
		if forgive != "" {
			err := f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) (*experiment.Entry, error) {
				return x.Propose(now, &experiment.Entry{Forgiven: &experiment.Forgiven{Node: forgive}})
			})
			if err != nil {
				return err
			}
		}
		r := f.request()
		if len(r.Asks)+len(r.Cancel)+len(r.Release) == 0 && time.Since(sent) < beat {
			continue
		}
		f.experiment.view(func(x *experiment.Experiment) { r.Progress = x.Progress() })
		sequence++
		r.Sequence, sent = sequence, time.Now()
		if _, err := f.rm.Allocate(ctx, r); err != nil {
			if ctx.Err() != nil || f.over() {
				return nil
			}
			return fmt.Errorf("resource manager: %w", err)
		}
	}
}

// request collects what is to be told.
func (f *fleet) request() *rmpb.AllocateRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &rmpb.AllocateRequest{ApplicationId: f.app, Attempt: int32(f.try), Epoch: f.epoch, Release: f.release, Acknowledged: f.handled}
	switch {
	case f.unsaid && f.missing > 0:
		r.Asks = []*rmpb.Ask{{
			AskId: f.ask(), Priority: 1, Resources: f.resources, Count: int32(f.missing), ExcludedNodes: slices.Clone(f.excluded), Launch: f.launch,
		}}
	case f.unsaid:
		r.Cancel = []string{f.ask()}
	}
	f.release, f.unsaid = nil, false
	return r
}

// watch takes the resource manager's events in until ctx ends.
func (f *fleet) watch(ctx context.Context) error {
	request := &rmpb.EventsRequest{ApplicationId: f.app, Attempt: int32(f.try), Epoch: f.epoch}
	for {
		err := f.rm.Events(ctx, request, func(e *rmpb.Event) error {
			if e.GetSequence() <= request.Acknowledged && e.GetSequence() != 0 {
				return nil
			}
			if err := f.handle(ctx, e); err != nil {
				return err
			}
			request.Acknowledged = max(request.Acknowledged, e.GetSequence())
			f.mu.Lock()
			f.handled = max(f.handled, request.Acknowledged)
			f.mu.Unlock()
			f.poke()
			return nil
		})
		switch {
		case ctx.Err() != nil || f.over():
			return nil
		case errors.Is(err, errStaleAttempt):
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// handle takes one event in; it returns when what follows from it is in the journal.
func (f *fleet) handle(ctx context.Context, e *rmpb.Event) error {
	switch {
	case e.GetGranted() != nil:
		f.add(e.GetGranted(), e.GetSequence())
	case e.GetCompleted() != nil:
		return f.completed(ctx, e.GetCompleted())
	case e.GetNodeLost() != nil:
		return f.nodeLost(ctx, e.GetNodeLost().GetNodeId())
	case e.GetPreempt() != nil:
		p := e.GetPreempt()
		return f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) (*experiment.Entry, error) {
			w := x.InContainer(p.GetContainerId())
			if w == nil || !w.Alive() || w.Preempted != "" {
				return nil, nil
			}
			reason := p.GetReason()
			if reason == "" {
				reason = "the resource manager takes its container away"
			}
			return x.Propose(now, &experiment.Entry{Preempted: &experiment.Preempted{Executor: w.ID, Reason: reason}})
		})
	case e.GetPending() != nil:
		f.mu.Lock()
		f.pending = e.GetPending().GetMessage()
		f.onlyExcluded = e.GetPending().GetCode() == string(resourcemanager.ReasonExcluded)
		f.mu.Unlock()
		f.log.Info("waiting for a container", "ask", e.GetPending().GetAskId(), "code", e.GetPending().GetCode(), "reason", e.GetPending().GetMessage())
	}
	return nil
}

// end marks a container as ended; first is false if it was known already or was given back.
func (f *fleet) end(id string) (c *container, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c = f.containers[id]
	if c == nil || c.gone {
		return c, false
	}
	c.gone = true
	return c, !c.released
}

func (f *fleet) completed(ctx context.Context, done *rmpb.Completed) error {
	c, first := f.end(done.GetContainerId())
	status := resourcemanager.ExitStatus(done.GetExitStatus())
	why := status.String()
	if d := done.GetDiagnostics(); d != "" && len(d) < 300 {
		why += ": " + d
	}
	had := false
	err := f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) (*experiment.Entry, error) {
		w := x.InContainer(done.GetContainerId())
		had = w != nil
		if w == nil || !w.Alive() {
			return nil, nil
		}
		told := w.Trial == 0 && (w.State == experiment.ExecutorDraining || x.Over())
		return x.Propose(now, &experiment.Entry{Lost: &experiment.Lost{Executor: w.ID, Reason: "its container ended, " + why, Blame: !told && !status.ClusterFault(), Told: told}})
	})
	if err != nil || had || !first || status.ClusterFault() {
		return err
	}
	return f.notStarted(ctx, c, why, done.GetLogDir())
}

// finished is told before the application ends, so that the resource manager's refusals are not taken for errors.
func (f *fleet) finished() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
}

func (f *fleet) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}

func (f *fleet) notStarted(ctx context.Context, c *container, why, log string) error {
	return f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) (*experiment.Entry, error) {
		if x.Over() {
			return nil, nil
		}
		return x.Propose(now, &experiment.Entry{NotStarted: &experiment.NotStarted{Container: c.id, Node: c.node, Reason: why, Log: log}})
	})
}

func (f *fleet) nodeLost(ctx context.Context, node string) error {
	var ids []string
	f.mu.Lock()
	for id, c := range f.containers {
		if c.node == node && !c.gone {
			c.gone = true
			ids = append(ids, id)
		}
	}
	f.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		err := f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) (*experiment.Entry, error) {
			w := x.InContainer(id)
			if w == nil || !w.Alive() {
				return nil, nil
			}
			return x.Propose(now, &experiment.Entry{Lost: &experiment.Lost{Executor: w.ID, Reason: "node " + node + " is lost"}})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
