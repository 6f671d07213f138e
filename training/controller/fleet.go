package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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
	// experiment reads and changes the experiment.
	experiment interface {
		propose(ctx context.Context, run func(*experiment.Experiment, training.Millis) error) error
		view(func(*experiment.Experiment))
	}

	changed chan struct{} // capacity 1: something to look at

	mu         sync.Mutex
	containers map[string]*container
	asks       [2]ask // by kind: for executors that train, and for those that serve
	excluded   []string
	release    []string
	pending    string
	// onlyExcluded: the resource manager says that only excluded nodes could give a container.
	onlyExcluded bool
	handled      uint64        // the last event that was taken in
	ended        bool          // the application is finished: the resource manager knows this attempt no more
	strangers    int           // requests that wait for the grant of their container
	arrived      chan struct{} // closed when a container is granted
	lastGrant    time.Time
}

// The kinds of executors.
const (
	trains = 0
	serves = 1 // members of gangs that do not train, without devices
)

// ask is the one for all executors of a kind.
type ask struct {
	resources *rmpb.Resources
	// gang is how many have to come together where all workers of a gang are missing: as many as it begins with; 0: each on its own.
	gang, workers int
	within        string
	// missing is how many containers are asked for beyond those that were granted, on other nodes than excluded; unsaid: the
	// resource manager does not know that yet.
	missing int
	unsaid  bool
}

// container is one that was granted.
type container struct {
	kind           int
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

var askNames = [2]string{"executors", "servers"}

// ask is the id of the one ask for all executors of a kind.
func (f *fleet) ask(kind int) string { return fmt.Sprintf("%d-%s", f.try, askNames[kind]) }

// kindOf is the kind of an ask's id, also of an earlier attempt's.
func kindOf(id string) int {
	if strings.HasSuffix(id, "-"+askNames[serves]) {
		return serves
	}
	return trains
}

// describe says what executors are.
func (f *fleet) describe(s *training.Spec) {
	r := rmpb.Resources{Memory: int64(s.Resources.Memory), Vcores: int32(s.Resources.VCores), Gpus: int32(s.Resources.GPUs)}
	f.asks[trains].resources = &rmpb.Resources{Memory: r.Memory, Vcores: r.Vcores, Gpus: r.Gpus}
	f.asks[serves].resources = &rmpb.Resources{Memory: r.Memory, Vcores: r.Vcores}
	if d := s.Distributed; d != nil && d.Workers > 1 {
		f.asks[trains].gang, f.asks[trains].workers, f.asks[trains].within = d.MinWorkers, d.Workers, d.Within
	}
}

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
	kind := kindOf(c.GetAskId())
	if a := &f.asks[kind]; c.GetAskId() == f.ask(kind) {
		if a.missing == 0 {
			defer func() { f.releaseLocked(f.containers[c.GetContainerId()]) }()
		}
		a.missing = max(0, a.missing-1)
	}
	f.containers[c.GetContainerId()] = &container{kind: kind, id: c.GetContainerId(), node: c.GetNodeId(), host: c.GetHost(), key: security.NewRequestKey(c.GetToken(), security.ExecutorRequests), granted: time.Now()}
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

// where is the node of a container, "" if it is not known, and whether its executor is one that serves.
func (f *fleet) where(id string) (node string, server bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		return c.node, c.kind == serves
	}
	return "", false
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
	if missing := f.asks[trains].missing + f.asks[serves].missing; missing > 0 && f.pending != "" {
		return fmt.Sprintf("waits for %d executors: %s", missing, f.pending)
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
	var wanted, usable [2]int
	var excluded []string
	type row struct{ idle, draining bool }
	executors := map[string]row{}
	works := false
	f.experiment.view(func(x *experiment.Experiment) {
		works = x.Held > 0
		for kind := range wanted {
			usable[kind] = x.Usable(kind == serves)
			if !x.Over() {
				wanted[kind] = x.Wanted(kind == serves)
			}
		}
		excluded = x.Excluded()
		for _, w := range x.Executors {
			if w.Alive() {
				executors[w.Container] = row{w.Holds() == 0, w.State == experiment.ExecutorDraining}
			}
		}
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	var starting [2]int
	for _, c := range f.containers {
		w, registered := executors[c.id]
		c.registered = c.registered || registered
		switch {
		case c.gone || c.released:
		case !registered && c.registered: // its executor was given up
			f.releaseLocked(c)
		case !registered && wanted[c.kind] == 0:
			f.releaseLocked(c)
		case !registered && now.Sub(c.granted) > f.times.Start:
			late = append(late, c)
			f.releaseLocked(c)
		case !registered:
			starting[c.kind]++
		case w.draining && w.idle:
			if c.drainingSince.IsZero() {
				c.drainingSince = now
			} else if now.Sub(c.drainingSince) > f.times.Drain {
				f.releaseLocked(c)
			}
		}
	}
	missing, there := 0, 0
	for kind := range f.asks {
		a := &f.asks[kind]
		n := max(0, wanted[kind]-usable[kind]-starting[kind])
		a.unsaid = a.unsaid || n != a.missing || n > 0 && !slices.Equal(f.excluded, excluded)
		a.missing = n
		missing, there = missing+n, there+usable[kind]+starting[kind]
	}
	f.excluded = excluded
	if f.asks[trains].gang > 0 && !works {
		there = 0 // a part of a gang is of no use
	}
	if len(excluded) > 0 && missing > 0 && there == 0 && (f.onlyExcluded || now.Sub(f.lastGrant) > f.times.Amnesty) {
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
			err := f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
				_, err := x.Propose(now, &experiment.Entry{Forgiven: &experiment.Forgiven{Node: forgive}})
				return err
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
	for kind := range f.asks {
		a := &f.asks[kind]
		switch {
		case a.unsaid && a.missing > 0:
			gang := 0 // what is missing of a gang that was whole comes one by one
			if a.missing >= a.workers {
				gang = a.gang
			}
			within := ""
			if gang > 0 {
				within = a.within
			}
			r.Asks = append(r.Asks, &rmpb.Ask{
				AskId: f.ask(kind), Priority: 1, Resources: a.resources, Count: int32(a.missing), GangMin: int32(gang), Within: within,
				ExcludedNodes: slices.Clone(f.excluded), Launch: f.launch,
			})
		case a.unsaid:
			r.Cancel = append(r.Cancel, f.ask(kind))
		}
		a.unsaid = false
	}
	f.release = nil
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
		return f.preempt(ctx, e.GetPreempt())
	case e.GetPending() != nil:
		f.mu.Lock()
		f.pending = e.GetPending().GetMessage()
		f.onlyExcluded = e.GetPending().GetCode() == string(resourcemanager.ReasonExcluded)
		f.mu.Unlock()
		f.log.Info("waiting for a container", "ask", e.GetPending().GetAskId(), "code", e.GetPending().GetCode(), "reason", e.GetPending().GetMessage())
	}
	return nil
}

// preempt takes in that a container is to make room, or that it may stay after all: it may be the first that is heard of it.
func (f *fleet) preempt(ctx context.Context, p *rmpb.Preempt) error {
	return f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
		w := x.InContainer(p.GetContainerId())
		if w == nil || !w.Alive() || (w.Preempted != "") != p.GetWithdrawn() {
			return nil
		}
		notice := &experiment.Preempted{Executor: w.ID, Withdrawn: p.GetWithdrawn()}
		if !notice.Withdrawn {
			notice.Reason = cmp.Or(p.GetReason(), "the resource manager takes its container away")
		}
		_, err := x.Propose(now, &experiment.Entry{Preempted: notice})
		return err
	})
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
	err := f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
		w := x.InContainer(done.GetContainerId())
		had = w != nil
		if w == nil || !w.Alive() {
			return nil
		}
		told := w.Holds() == 0 && (w.State == experiment.ExecutorDraining || x.Over())
		_, err := x.Propose(now, &experiment.Entry{Lost: &experiment.Lost{Executor: w.ID, Reason: "its container ended, " + why, Blame: !told && !status.ClusterFault(), Told: told}})
		return err
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
	return f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
		if x.Over() {
			return nil
		}
		_, err := x.Propose(now, &experiment.Entry{NotStarted: &experiment.NotStarted{Container: c.id, Node: c.node, Reason: why, Log: log}})
		return err
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
		err := f.experiment.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
			w := x.InContainer(id)
			if w == nil || !w.Alive() {
				return nil
			}
			_, err := x.Propose(now, &experiment.Entry{Lost: &experiment.Lost{Executor: w.ID, Reason: "node " + node + " is lost"}})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
