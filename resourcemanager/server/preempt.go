package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/scheduler"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// Preemption says when containers are ended so that others find room.
type Preemption struct {
	// Off: never.
	Off bool
	// After is how long an ask to which room is due finds none; default 15 s, as YARN's max_wait_before_kill.
	After time.Duration
	// Notice is how long a container has to save its work; default 1 min.
	Notice time.Duration
	// RoundShare is the part of the cluster that may be on its way out at a time; default 0.1, as YARN's total_preemption_per_round.
	RoundShare float64
	// Defragment: containers that write checkpoints are moved so that others find room in one piece, see scheduler.Preemption.
	Defragment bool
	// DefragmentAfter is how long an ask finds no room before; default 5 min. DefragmentPrice is what it may cost for each GPU that finds
	// room, in time of a GPU; default 5 min. DefragmentRest is how long a container stays where it is before it is moved; default 30 min.
	DefragmentAfter, DefragmentPrice, DefragmentRest time.Duration
}

func (p *Preemption) defaults() {
	if p.After <= 0 {
		p.After = scheduler.DefaultStarved
	}
	if p.Notice <= 0 {
		p.Notice = time.Minute
	}
	if p.RoundShare <= 0 {
		p.RoundShare = scheduler.DefaultRoundShare
	}
}

// notices reports whether notices and gangs may be recorded.
func (s *Server) notices() bool {
	g := s.group.Load()
	return g != nil && g.Level() >= release.Requests
}

// preemption is what the scheduler goes by.
func (s *Server) preemption() scheduler.Preemption {
	c := s.config.Preemption
	return scheduler.Preemption{
		Enabled: !c.Off && s.notices(), After: c.After, RoundShare: c.RoundShare,
		Defragment: c.Defragment, DefragmentAfter: c.DefragmentAfter, DefragmentPrice: c.DefragmentPrice, DefragmentRest: c.DefragmentRest,
	}
}

// What lies between two looks at who has to make room, and how many containers are told in one command.
const (
	preemptEvery   = time.Second
	maxNotices     = 5_000
	checkpointsGap = 10 * time.Second
)

// preemptFor looks who has to make room for asks that found none, and tells them. What has been told is in the state, so that another leader goes
// on with it.
func (r *reign) preemptFor(now moment) {
	if now.Sub(r.preempted) < min(preemptEvery, r.s.config.Preemption.After) {
		return
	}
	r.preempted = now.Time
	p := &r.plans
	p.mu.Lock()
	if p.model == nil {
		p.mu.Unlock()
		return
	}
	if r.tell(); !r.seen(now.Time) {
		p.mu.Unlock()
		return
	}
	out, missing := p.model.Preempt(now.State), int64(p.model.MissingCells())
	p.mu.Unlock()
	if was := r.s.figures.missingCells.Swap(missing); was != missing && missing > 0 {
		r.s.log.Warn("fewer whole nodes than queues are guaranteed as cells: nodes are gone or broken, or were in use before they were guaranteed", "missing", missing)
	}
	if len(out.Evictions)+len(out.Spared) == 0 {
		return
	}
	c := &statepb.PreemptContainers{Epoch: r.epoch, DeadlineMs: int64(now.after(r.s.config.Preemption.Notice))}
	for _, id := range out.Spared[:min(len(out.Spared), maxNotices)] {
		c.Spared = append(c.Spared, state.ContainerID(id))
	}
	told := 0
	for _, e := range out.Evictions {
		if told += len(e.Victims); told > maxNotices && told > len(e.Victims) {
			break
		}
		record := &statepb.Eviction{Application: state.ApplicationID(e.App), Ask: e.Ask, Queue: e.Queue, Moves: e.Moves}
		lost := 0.0
		for _, v := range e.Victims {
			record.Containers = append(record.Containers, state.ContainerID(v.Container))
			lost += v.Lost
		}
		c.Evictions = append(c.Evictions, record)
		r.s.log.Info("containers are to make room", "for", e.App, "queue", e.Queue, "containers", len(e.Victims), "gpu_seconds", int64(lost), "moved", e.Moves, "notice", r.s.config.Preemption.Notice)
	}
	_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_PreemptContainers{PreemptContainers: c}})
	if err != nil && r.ctx.Err() == nil {
		r.s.log.Warn("containers that are to make room are not told yet", "err", err)
	}
}

// seen reports whether all nodes that are not lost have spoken to this leader, or have had a lease to do it: until then it does not know where
// there is room. p.mu is held.
func (r *reign) seen(now time.Time) bool {
	if now.Sub(r.since()) > r.s.config.NodeLease {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.nodes {
		if !n.open {
			return false
		}
	}
	return true
}

// hearing is how long a leader has led, or runs again, before it ends anything for a notice: who was to hear of it is asked for so long at least.
const hearing = 10 * time.Second

// least is for how long who is told at a moment to go until a deadline has to be able to hear of it: for as long as a notice is today, or as long as
// it was given, if that is less.
func (r *reign) least(since, deadline metadata.Time) time.Duration {
	return min(r.s.config.Preemption.Notice, time.Duration(max(deadline-since, 0))*time.Millisecond)
}

// heeded reports whether who was told to go, from since to a deadline, could hear of it for long enough from this leader, see least: what was told
// before the reign, or before a standstill, may have reached nobody. Two such times after the deadline nobody is waited for any more: leaders that do
// not last, or stand still again and again, do not put it off for ever.
func (r *reign) heeded(now moment, since, deadline metadata.Time) bool {
	least, led := r.least(since, deadline), now.Sub(r.since())
	return led >= least || led >= hearing && now.State >= deadline+metadata.Time(2*least.Milliseconds())
}

// deadline is what programs, masters and nodes are told of one, by the clock; 0: there is none. It is not before it counts, see heeded.
func (r *reign) deadline(since, deadline metadata.Time) metadata.Time {
	if deadline == 0 {
		return 0
	}
	now := r.s.clock.moment()
	led := now.Sub(r.since()) // the clock may have been wrong then, and set right since
	after := func(d time.Duration) metadata.Time { return metadata.TimeOf(now.Add(d - led)) }
	at, least := r.s.clock.told(deadline), r.least(since, deadline)
	anyway := max(at+metadata.Time(2*least.Milliseconds()), after(hearing))
	return r.steady(span{since, deadline}, max(at, min(after(least), anyway)))
}

// stamp is what nodes are told of a stamp of the state, by the clock; 0: there is none.
func (r *reign) stamp(at metadata.Time) metadata.Time {
	if at == 0 {
		return 0
	}
	return r.steady(span{since: at}, r.s.clock.told(at))
}

// span is from when until when somebody is to go, in the state's time.
type span struct{ since, deadline metadata.Time }

// maxSaid bounds what is known of what was said.
const maxSaid = 100_000

// steady is what was said of something before in place of what would be said now, unless that is sooner, or later by more than a minute: while the
// state's time is ahead of the clock, what a stamp is by the clock changes by an eighth of what passes, and who is told of it would write it down each time.
func (r *reign) steady(of span, now metadata.Time) metadata.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, ok := r.said[of]
	if ok && now >= was-metadata.Time(time.Second.Milliseconds()) && now <= was+metadata.Time(clockStep.Milliseconds()) {
		return was
	}
	if r.said == nil || len(r.said) >= maxSaid {
		r.said = map[span]metadata.Time{}
	}
	r.said[of] = now
	return now
}

// endNoticed ends the containers whose notice is over.
func (r *reign) endNoticed(now moment) {
	at := now.State
	var due []*rm.Container
	for c := range r.s.state.View().Noticed() {
		if c.Notice.Deadline > at || len(due) == maxNotices {
			break
		}
		if r.heeded(now, c.Notice.Since, c.Notice.Deadline) {
			due = append(due, c)
		}
	}
	for len(due) > 0 { // one command for each whom room is made for
		n := due[0].Notice
		c := &statepb.Stop{Epoch: r.epoch, Status: int32(n.Exit()), Reason: fmt.Sprintf("%v; it was told at %s", n, n.Since.Time().UTC().Format(time.RFC3339))}
		var lost int64
		due = slices.DeleteFunc(due, func(k *rm.Container) bool {
			if *k.Notice != *n {
				return false
			}
			c.Containers = append(c.Containers, state.ContainerID(k.ID))
			lost += int64(k.Resource.GPUShare() * float64(max(int64(at-k.Saved()), 0)))
			return true
		})
		_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_Stop{Stop: c}})
		if err != nil {
			if r.ctx.Err() == nil {
				r.s.log.Warn("containers that made no room in time are not ended yet", "err", err)
			}
			return
		}
		if n.Resized != "" {
			r.s.log.Info("containers that are too many are ended", "why", n.Resized, "containers", len(c.Containers))
			continue
		}
		r.s.figures.evicted.Add(int64(len(c.Containers)))
		if n.Moves {
			r.s.figures.moved.Add(int64(len(c.Containers)))
		}
		r.s.figures.lost.Add(lost)
		r.s.log.Info("containers that were to make room are ended", "for", n.For, "queue", n.Queue, "containers", len(c.Containers))
	}
}

// preemptionOf says whether a container is to go; nil: nothing is known of that any more.
func (r *reign) preemptionOf(view *state.View, c *rm.Container) *rm.Preemption {
	if c.Notice != nil {
		return &rm.Preemption{Container: c.ID, Deadline: r.deadline(c.Notice.Since, c.Notice.Deadline), Reason: c.Notice.String()}
	}
	if n := view.Node(c.Node); n != nil && n.Leaves() {
		return &rm.Preemption{Container: c.ID, Deadline: r.deadline(n.Wish.Since, n.Wish.Deadline), Reason: n.Why()}
	}
	return &rm.Preemption{Container: c.ID, Reason: "its room is needed no more", Withdrawn: true}
}

// Checkpointed implements rm.Masters. But for the answer to a notice, at most one report in ten seconds is recorded for a container: what it costs to
// end it need not be known more exactly. What has no effect is not recorded at all.
func (s *Server) Checkpointed(ctx context.Context, id rm.AttemptID, containers []rm.ContainerID, step int64) error {
	r, _, err := s.master(id)
	switch {
	case err != nil:
		return err
	case step < 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "step: %d is negative", step)
	case len(containers) == 0 || len(containers) > maxNotices:
		return metadata.Errorf(metadata.ErrInvalidArgument, "a checkpoint of %d containers: name 1 to %d", len(containers), maxNotices)
	}
	if err := s.raised("checkpoints"); err != nil {
		return err
	}
	view := s.state.View()
	now := s.clock.moment()
	c := &statepb.Checkpoint{Application: state.ApplicationID(id.Application), Step: step}
	var evicted []*rm.Container
	live := 0
	for _, k := range containers {
		row := view.Container(k)
		switch {
		case k.Attempt.Application != id.Application:
			return metadata.Errorf(metadata.ErrPermission, "%v is no container of %v", k, id.Application)
		case row == nil || !row.Live():
			continue
		}
		live++
		goes := row.Notice != nil && row.StopStatus == 0
		if goes && row.Notice.Resized == "" {
			evicted = append(evicted, row)
		}
		if !goes && row.Checkpointed > 0 && now.passed(row.Checkpointed) < checkpointsGap {
			continue
		}
		c.Containers = append(c.Containers, state.ContainerID(k))
	}
	switch {
	case live == 0:
		return metadata.Errorf(metadata.ErrNotExist, "none of %d containers of %v lives", len(containers), id.Application)
	case len(c.Containers) == 0:
		return nil
	}
	if _, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_Checkpoint{Checkpoint: c}}); err != nil {
		return err
	}
	if len(evicted) > 0 {
		s.figures.evicted.Add(int64(len(evicted)))
		for _, row := range evicted {
			if row.Notice.Moves {
				s.figures.moved.Add(1)
			}
		}
		r.s.log.Info("containers that are to make room have saved their work", "app", id.Application, "containers", len(evicted), "step", step)
	}
	return nil
}
