package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// watch ends what has run out: leases of silent nodes, the time of applications and of nodes that leave, the patience with masters.
// Granting does not wait for it.
func (r *reign) watch() {
	tick := pace.NewBeat(min(max(r.s.config.NodeLease/20, 5*time.Millisecond), 250*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
			tick.Next()
			r.look(r.s.clock.moment()) // not the tick's own time: that may lie before a pause, and what follows after it
		}
	}
}

// standstill is a time between two moments of beat that is no delay any more: this process stood still.
const standstill = 2 * time.Second

// beat notes all the time that this process runs, whatever its other goroutines wait for.
func (r *reign) beat() {
	tick := pace.NewBeat(standstill / 8)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
			tick.Next()
			r.awake(time.Now())
		}
	}
}

// awake notes that this process runs at a moment. Silence counts only while we could have heard something: after a standstill of this
// process (it was stopped, or its machine was), nodes and masters have as much time left as before.
func (r *reign) awake(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gap := now.Sub(r.looked); !r.looked.IsZero() && gap > standstill {
		for _, n := range r.nodes {
			n.heard = notAfter(n.heard.Add(gap), now)
		}
		for _, m := range r.masters {
			m.seen = notAfter(m.seen.Add(gap), now)
		}
		r.s.log.Warn("this resource manager stood still; nobody is given up for it", "for", gap)
		r.began, r.said = now, nil
	}
	r.looked = now
}

// look ends at a moment what has run out.
func (r *reign) look(now moment) {
	r.awake(now.Time)
	r.mu.Lock()
	rests := now.Before(r.rests)
	r.mu.Unlock()
	r.loseSilentNodes(now.Time)
	r.endNoticed(now)
	r.preemptFor(now)
	if rests {
		return
	}
	began := time.Now()
	r.endOverdue(now)
	r.endHeld(now)
	r.tend(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rests = now.Add(restAfter(time.Since(began)))
}

// restAfter is how long to leave alone what looks at all applications or all nodes, after it took so long: it costs a fiftieth of a
// processor at most, however many there are, and nothing that it ends is a matter of less than seconds.
func restAfter(took time.Duration) time.Duration { return min(50*took, 5*time.Second) }

// notAfter is t, or now if that is earlier.
func notAfter(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

// loseSilentNodes declares nodes lost whose lease is certainly over: the node counts it from the sending of its last
// acknowledged report, we from the arrival of its last report, which is later; a new leader from its own beginning,
// which is later than the last acknowledgement of any leader before it, since those are sent only after leadership was
// confirmed behind the report's arrival.
//
// Earlier leaders may have given longer leases than ours. Nodes keep to what they were promised, so nothing is lost before
// the longest of them is over.
func (r *reign) loseSilentNodes(now time.Time) {
	lease := r.s.config.NodeLease
	if !r.settles.IsZero() && now.After(r.settles) {
		r.settle()
	}
	var silent []rm.NodeID
	r.mu.Lock()
	for id, n := range r.nodes {
		quiet := now.Sub(n.heard)
		if quiet > lease && n.open { // takes nothing new already, see snapshot
			n.open = false
			r.stir(id)
		}
		if quiet > lease+r.s.config.LeaseMargin && r.settles.IsZero() && !n.losing {
			n.losing = true
			silent = append(silent, id)
		}
	}
	r.mu.Unlock()
	for _, id := range silent {
		reason := fmt.Sprintf("silent for more than its lease of %v", lease)
		_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_LoseNode{LoseNode: &statepb.LoseNode{Epoch: r.epoch, Node: string(id), Reason: reason}}})
		r.mu.Lock()
		n := r.nodes[id]
		if errors.Is(err, metadata.ErrNotExist) { // it has never registered: there is nothing to lose
			if n.losing = false; n.session != nil {
				n.session.end(errNodeLost)
			} else {
				delete(r.nodes, id)
			}
			r.mu.Unlock()
			continue
		}
		if err != nil {
			n.losing = errors.Is(err, raftstore.ErrUnknown) // otherwise nothing happened: the next tick tries again
			r.mu.Unlock()
			if r.ctx.Err() == nil {
				r.s.log.Warn("node is not declared lost yet", "node", id, "err", err)
			}
			continue
		}
		if n.session != nil {
			n.session.end(errNodeLost)
		}
		delete(r.nodes, id)
		r.mu.Unlock()
		r.s.log.Warn("node lost", "node", id, "lease", lease)
	}
}

// settle records that the leases of earlier leaders are over.
func (r *reign) settle() {
	_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_SettleLease{SettleLease: &statepb.SettleLease{
		Epoch: r.epoch, LeaseMs: r.s.config.NodeLease.Milliseconds(),
	}}})
	if err != nil {
		if r.ctx.Err() == nil {
			r.s.log.Warn("end of earlier leaders' leases is not recorded yet", "err", err)
		}
		return
	}
	r.settles = time.Time{}
}

// maxOverdue bounds what endOverdue ends at once: each is a command of its own, and silent nodes wait meanwhile.
const maxOverdue = 50

// endOverdue stops applications whose time is over, masters that hang, and masters that outlive their application: some of them, and the
// others when it is called again.
func (r *reign) endOverdue(now moment) {
	view := r.s.state.View()
	clock := metadata.TimeOf(now.Time)
	current := map[rm.AttemptID]bool{}
	queues := r.s.Queues()
	left := maxOverdue
	stop := func(id rm.ContainerID, status rm.ExitStatus, reason string) {
		if left--; left >= 0 {
			r.stop(id, status, reason)
		}
	}
	kill := func(id rm.ApplicationID, why string) {
		if left--; left >= 0 {
			r.kill(id, why)
		}
	}
	for a := range view.Live() {
		t := a.Attempt()
		master := view.Master(a)
		switch {
		case t == nil:
		case a.State.Final():
			if master != nil && master.Live() && master.StopStatus == 0 && now.passed(a.Finished) > r.s.config.FinishGrace {
				stop(master.ID, rm.ExitApplicationDone, "its application has finished")
			}
		case outlived(queues.Find(a.Queue), a, now.State):
			kill(a.ID, fmt.Sprintf("Application %v is killed by ResourceManager as it has exceeded the lifetime period of its queue %s.", a.ID, a.Queue))
		case a.Late(clock): // what users say when is by the clock
			kill(a.ID, "the application has not started in time: "+lateText(a, clock))
		case a.Deadline > 0 && clock > a.Deadline:
			kill(a.ID, "the application had not ended by its deadline, "+a.Deadline.Time().UTC().Format(time.RFC3339))
		case a.Expires > 0 && clock > a.Expires:
			kill(a.ID, fmt.Sprintf("the application's time was over at %s, as it was set while it lived", a.Expires.Time().UTC().Format(time.RFC3339)))
		case a.Expires == 0 && a.Timeout > 0 && a.Launched > 0 && now.passed(a.Launched) > a.Timeout:
			kill(a.ID, fmt.Sprintf("the application ran longer than its timeout of %v", a.Timeout))
		case master != nil && master.Live() && master.StopStatus == 0 && (t.State == rm.AttemptLaunched || t.State == rm.AttemptRunning):
			id := rm.AttemptID{Application: a.ID, Number: t.Number}
			current[id] = true
			r.mu.Lock()
			m := r.masters[id]
			if m == nil {
				m = &softMaster{seen: now.Time}
				r.masters[id] = m
			}
			if m.streams > 0 {
				m.seen = now.Time
			}
			quiet := now.Sub(m.seen)
			r.mu.Unlock()
			if quiet > r.s.config.MasterExpiry {
				stop(master.ID, rm.ExitKilledByResourceManager, fmt.Sprintf("the master was silent for %v", r.s.config.MasterExpiry))
			}
		}
	}
	r.mu.Lock()
	for id, m := range r.masters {
		if !current[id] && m.streams == 0 { // whose stream was opened since we looked is a master of now
			delete(r.masters, id)
		}
	}
	r.mu.Unlock()
}

// outlived reports whether an application has taken longer than its queue, if it has one, lets it.
func outlived(q *rm.Queue, a *rm.Application, now metadata.Time) bool {
	if q == nil {
		return false
	}
	most := q.Lifetime(a.Timeout)
	return most > 0 && int64(now-a.Submitted) > most.Milliseconds()
}

func (r *reign) stop(id rm.ContainerID, status rm.ExitStatus, reason string) {
	_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_Stop{Stop: &statepb.Stop{
		Epoch:      r.epoch,
		Containers: []*statepb.ContainerID{state.ContainerID(id)}, Status: int32(status), Reason: reason,
	}}})
	if err != nil && r.ctx.Err() == nil {
		r.s.log.Warn("container is not stopped yet", "container", id, "err", err)
	}
}

func (r *reign) kill(id rm.ApplicationID, why string) {
	_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: state.ApplicationID(id), Diagnostics: why}}})
	if err != nil && r.ctx.Err() == nil {
		r.s.log.Warn("application is not killed yet", "app", id, "err", err)
	}
}
