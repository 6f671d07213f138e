package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// eventStream wakes one open stream of events.
type eventStream struct{ wake chan struct{} }

// masterStream is one open stream of events of an application.
type masterStream struct {
	*eventStream
	s     *Server
	r     *reign
	id    rm.AttemptID
	epoch uint64
	leave func()
	// sent is the last event that was answered, told the reasons, managers who these are.
	sent     uint64
	told     map[string]rm.Reason
	managers []string
}

// MasterEvents implements rm.Masters. An open stream alone is no sign that its master lives.
func (s *Server) MasterEvents(ctx context.Context, id rm.AttemptID, after uint64) (rm.MasterStream, error) {
	return s.masterEvents(ctx, id, 0, after, false)
}

// masterEvents opens a stream; alive: its master lives for as long as it is open, because the wire notices when nobody listens.
func (s *Server) masterEvents(ctx context.Context, id rm.AttemptID, epoch, after uint64, alive bool) (*masterStream, error) {
	r, a, err := s.master(id)
	if err != nil {
		return nil, err
	}
	epoch = epochOf(a, id, epoch)
	// Checks the attempt and its epoch, and records what is handled.
	if t := a.Attempt(); after > a.Acknowledged || t.Number != id.Number || t.Epoch != epoch || a.State.Final() {
		if _, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
			Application: state.ApplicationID(id.Application), Attempt: int32(id.Number), Epoch: epoch, Acknowledged: after,
		}}}); err != nil {
			return nil, err
		}
	} else if err := s.group.Load().ReadWait(ctx); err != nil {
		return nil, err
	}
	m := &masterStream{eventStream: &eventStream{wake: make(chan struct{}, 1)}, s: s, r: r, id: id, epoch: epoch, sent: after, told: map[string]rm.Reason{}}
	leave, ok := r.join(id, m.eventStream, alive)
	if !ok {
		return nil, fmt.Errorf("%w: %v has %d streams of events open, which is all that it may have", rm.ErrBusy, id, maxStreams)
	}
	m.leave = leave
	return m, nil
}

// Close implements rm.MasterStream.
func (m *masterStream) Close() { m.leave() }

// Next implements rm.MasterStream.
func (m *masterStream) Next(ctx context.Context, wait time.Duration) ([]rm.MasterEvent, error) {
	var over <-chan time.Time
	for {
		events, err := m.look()
		if err != nil || len(events) > 0 || wait <= 0 {
			return events, err
		}
		if over == nil {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-m.r.ctx.Done():
			return nil, metadata.Errorf(metadata.ErrStandby, "this resource manager does not lead any more")
		case <-over:
			return nil, nil
		case <-m.wake:
		}
	}
}

// eventsAtOnce bounds the events of one answer.
const eventsAtOnce = 1_000

// look answers what is new now.
func (m *masterStream) look() ([]rm.MasterEvent, error) {
	view := m.s.state.View()
	a := view.Application(m.id.Application)
	if a == nil || a.Attempt().Number != m.id.Number || a.Attempt().Epoch != m.epoch || a.State.Final() {
		return nil, fmt.Errorf("%w: %v is not the current attempt, or its application has ended", rm.ErrStaleAttempt, m.id)
	}
	var out []rm.MasterEvent
	if now := m.s.managers(); !slices.Equal(now, m.managers) {
		m.managers = now
		out = append(out, rm.MasterEvent{Managers: now, Web: m.s.webs()})
	}
	for _, e := range view.Events(m.id.Application, m.sent) {
		if len(out) == eventsAtOnce {
			kick(m.wake)
			return out, nil
		}
		out = append(out, m.r.masterEvent(view, e))
		m.sent = e.Sequence
	}
	now := map[string]rm.Reason{}
	for _, w := range m.r.waitingFor(m.id.Application) {
		if now[w.Ask] = w.Reason; m.told[w.Ask] != w.Reason {
			out = append(out, rm.MasterEvent{Pending: &rm.Pending{Ask: w.Ask, Reason: w.Reason}})
		}
	}
	m.told = now
	return out, nil
}

// masterEvent is an event with what it is about, unless that is forgotten or over.
func (r *reign) masterEvent(view *state.View, e state.Event) rm.MasterEvent {
	out := rm.MasterEvent{Sequence: e.Sequence, NodeLost: e.NodeLost}
	if c := view.Container(e.Granted); c != nil {
		told := r.s.told(view, c)
		out.Granted = &told
	}
	if c := view.Container(e.Completed); c != nil {
		told := r.s.told(view, c)
		out.Completed = &told
	}
	if a := view.Application(e.Application); e.Changed && a != nil {
		out.Changed = &rm.JobChange{Size: a.Size, Members: a.Members}
	}
	if c := view.Container(e.Preempt); c != nil && c.Live() {
		out.Preempt = r.preemptionOf(view, c)
	}
	return out
}

// maxStreams bounds the streams of events of one application: a master needs one, and those that broke off live on until
// their connection is found dead.
const maxStreams = 16

// join registers a stream of events for wake-ups; the returned function takes it off again. ok is false when there are
// enough. alive: the master lives while the stream is open.
func (r *reign) join(id rm.AttemptID, x *eventStream, alive bool) (leave func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.streams[id.Application]) >= maxStreams {
		return nil, false
	}
	if r.streams[id.Application] == nil {
		r.streams[id.Application] = map[*eventStream]bool{}
	}
	r.streams[id.Application][x] = true
	soft := r.masters[id]
	if soft == nil {
		soft = &softMaster{}
		r.masters[id] = soft
	}
	if alive {
		soft.streams++
	}
	soft.seen = time.Now()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.streams[id.Application], x)
		if len(r.streams[id.Application]) == 0 {
			delete(r.streams, id.Application)
		}
		if alive {
			soft.streams--
			soft.seen = time.Now()
		}
	}, true
}

// wakeMasters has every stream of events look for what is new.
func (r *reign) wakeMasters() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, streams := range r.streams {
		for x := range streams {
			kick(x.wake)
		}
	}
}
