package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/scheduler"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// reign is one period of leadership: what only the leader knows, and the goroutines that only the leader runs. Nothing
// of it outlives it; the next leader starts from the replicated state and gives every node one full lease to speak.
type reign struct {
	s     *Server
	ctx   context.Context
	epoch uint64
	term  uint64
	// settles is when the leases that earlier leaders gave are certainly over, if one of them was longer than ours: until
	// then no node is lost.
	settles time.Time
	// wake starts a scheduling pass.
	wake chan struct{}
	// began is when masters could begin to launch what they hold. It belongs to watch.
	began time.Time
	// keeper looks after the tokens of applications; nil: they have none.
	keeper *keeper

	mu      sync.Mutex // guards everything below
	looked  time.Time  // when silence was last looked for
	nodes   map[rm.NodeID]*softNode
	streams map[rm.ApplicationID]map[*eventStream]bool
	reasons map[rm.ApplicationID]map[string]rm.Reason
	masters map[rm.AttemptID]*softMaster
}

// softNode is what the leader knows of a node without having it replicated.
type softNode struct {
	// heard is when the last report arrived, or when the reign began. The node's lease ends at heard + lease at the
	// latest: it counts from the sending of a report that was acknowledged.
	heard   time.Time
	session *session
	// open: a report of the session has been worked through, so that what runs there is known.
	open    bool
	healthy bool
	// losing: the node is being declared lost. From here on no report of the session is acknowledged.
	losing bool
	// refused says why the last report was not taken in, other than for the lease; empty: it was.
	refused string
	// busy, taken and strangers belong to containers that run there although they should not, and busy also to processes
	// that the node knows nothing of.
	busy      map[string]bool
	taken     rm.Resource
	strangers int
	// memory used by each container, as reported.
	memory map[rm.ContainerID]int64
	// signals are for the node's next orders.
	signals []*pb.Signal
	// waits says what containers that are to start wait for, as reported.
	waits map[rm.ContainerID]string
}

// softMaster is what the leader knows of a master without having it replicated.
type softMaster struct {
	seen     time.Time
	streams  int
	progress float32
}

// begin starts a reign. The returned function ends it and waits for its goroutines.
func (s *Server) begin(ctx context.Context, l raftstore.Leadership) func() {
	ctx, cancel := context.WithCancel(ctx)
	r := &reign{
		s: s, ctx: ctx, term: l.Term, wake: make(chan struct{}, 1), nodes: map[rm.NodeID]*softNode{},
		streams: map[rm.ApplicationID]map[*eventStream]bool{}, reasons: map[rm.ApplicationID]map[string]rm.Reason{},
		masters: map[rm.AttemptID]*softMaster{},
	}
	if s.config.Tokens != nil {
		r.keeper = newKeeper(r)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			result, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{
				Leader: s.config.ID, LeaseMs: s.config.NodeLease.Milliseconds(), QueuesHash: s.Queues().Hash(), Recovered: int64(s.group.Load().Recovered()),
			}}})
			if err == nil {
				r.epoch = result.Epoch
				if result.Lease > s.config.NodeLease {
					r.settles = time.Now().Add(result.Lease + s.config.LeaseMargin)
				}
				break
			}
			if ctx.Err() != nil || errors.Is(err, metadata.ErrStandby) {
				return // not the leader any more: lead hears of it too
			}
			s.log.Warn("cannot begin to lead", "term", l.Term, "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
		now := time.Now()
		r.began = now
		for n := range s.state.View().Nodes() {
			if n.State != rm.NodeLost {
				r.nodes[n.ID] = &softNode{heard: now}
			}
		}
		known := len(r.nodes) // from here on nodes may register
		s.reign.Store(r)
		if ctx.Err() != nil {
			s.reign.Store(nil)
			return
		}
		s.log.Info("leading", "term", r.term, "epoch", r.epoch, "nodes", known)
		s.readyOnce.Do(func() { close(s.ready) })
		kick(r.wake)
		wg.Go(r.schedule)
		wg.Go(r.watch)
		wg.Go(r.sweep)
		if r.keeper != nil {
			wg.Go(r.keeper.run)
		}
	})
	return func() {
		cancel()
		wg.Wait()
		s.reign.CompareAndSwap(r, nil)
	}
}

// applied wakes whom effects concern.
func (r *reign) applied(e state.Effects) {
	if e.Schedule || e.Restored {
		kick(r.wake)
	}
	if r.keeper != nil && (e.Credentials || e.Restored) {
		kick(r.keeper.wake)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range e.Nodes {
		if n := r.nodes[id]; n != nil && n.session != nil {
			kick(n.session.wake)
		}
	}
	for id := range e.Applications {
		for stream := range r.streams[id] {
			kick(stream.wake)
		}
	}
}

// grantBytes bounds the groups of one command, and so any group, below the largest that the Raft group takes
// (raftstore.MaxCommand).
const grantBytes = raftstore.MaxCommand * 3 / 4

// schedule runs a pass whenever something changed: plan from the present view, commit, and tell why the rest waits. The
// plan may be out of date when it is applied; the state refuses what does not hold any more and asks for another pass.
func (r *reign) schedule() {
	const shortest, longest = 20 * time.Millisecond, time.Second
	pause := shortest
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.wake:
		}
		start := time.Now()
		view := r.s.state.View()
		plan := scheduler.Schedule(r.snapshot(view), metadata.TimeOf(start))
		r.s.figures.passes.add(time.Since(start))
		plan.Waiting = append(plan.Waiting, r.uncredentialed(view)...)
		r.explain(plan.Waiting)
		granted, refused := 0, 0
		pause = min(2*pause, longest)
		failed := plan.Waiting
		for _, groups := range r.entries(view, plan.Groups) {
			recording := time.Now()
			n, err := r.commit(groups)
			r.s.figures.commits.add(time.Since(recording))
			if err != nil {
				if r.ctx.Err() == nil && !errors.Is(err, metadata.ErrStandby) {
					r.s.log.Warn("grants were not committed", "groups", len(groups), "err", err)
				}
				for _, g := range groups {
					failed = append(failed, scheduler.Waiting{App: g.App, Ask: g.Ask, Reason: rm.Reason{
						Code: rm.ReasonNotRecorded, Text: fmt.Sprintf("there is room, but the grant could not be recorded: %v", err),
					}})
				}
			}
			if err == nil {
				pause = shortest
			}
			granted += n
			refused += len(groups) - n
		}
		if len(failed) > len(plan.Waiting) {
			r.explain(failed)
		}
		if granted > 0 {
			r.s.log.Debug("granted", "groups", granted, "refused", refused, "took", time.Since(start))
		}
		if refused > 0 { // plan again, but never in a busy loop
			select {
			case <-r.ctx.Done():
				return
			case <-time.After(pause):
			}
			kick(r.wake)
		}
	}
}

// grant is a group of a plan with the form in which it is recorded.
type grant struct {
	scheduler.Group
	record *statepb.Group
}

// entries divides a plan's groups, in their order, into what fits into one command each.
func (r *reign) entries(view *state.View, groups []scheduler.Group) [][]grant {
	var out [][]grant
	most := r.s.config.grantBytes
	size := most
	for _, g := range groups {
		p := &statepb.Group{Application: state.ApplicationID(g.App), Attempt: int32(view.Application(g.App).Attempt().Number), Ask: g.Ask}
		for _, at := range g.Placements {
			p.Placements = append(p.Placements, &statepb.Placement{
				Node: string(at.Node), Resource: state.Resource(g.Resource), Gpus: at.GPUs,
				Salt: newSalt(),
			})
		}
		n := proto.Size(p) + 8 // and its frame
		if size += n; size > most {
			out, size = append(out, nil), n
		}
		out[len(out)-1] = append(out[len(out)-1], grant{g, p})
	}
	return out
}

// commit proposes groups and returns how many were granted.
func (r *reign) commit(groups []grant) (int, error) {
	c := &statepb.Grant{Epoch: r.epoch}
	for _, g := range groups {
		c.Groups = append(c.Groups, g.record)
	}
	result, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_Grant{Grant: c}})
	if err != nil {
		return 0, err
	}
	n := 0
	for i, g := range result.Groups {
		if g.Reason.IsZero() {
			n++
		} else {
			r.s.log.Debug("grant refused", "app", groups[i].App, "ask", groups[i].Ask, "reason", g.Reason.Text)
		}
	}
	return n, nil
}

// snapshot joins the replicated state with what the leader knows of the nodes.
func (r *reign) snapshot(view *state.View) scheduler.Snapshot {
	out := scheduler.Snapshot{Queues: r.s.Queues(), GroupBytes: r.s.config.grantBytes}
	holders := view.Holders()
	now := time.Now()
	r.mu.Lock()
	for n := range view.Nodes() {
		if n.State == rm.NodeLost {
			continue
		}
		soft := r.nodes[n.ID]
		node := scheduler.Node{ID: n.ID, Host: n.Host, Rack: n.Rack, Labels: n.Labels, Capacity: n.Capacity, Used: n.Used, Containers: n.Live}
		node.Capacity.GPUs = len(n.GPUs)
		if n.Wish != nil { // the cluster has no more of it than is in use
			node.Capacity = n.Used
		}
		node.Closed = !n.Takes() || soft == nil || !soft.open || !soft.healthy || soft.losing ||
			now.Sub(soft.heard) > r.s.config.NodeLease
		for _, g := range n.GPUs {
			_, held := holders[g.UUID]
			node.GPUs = append(node.GPUs, scheduler.GPU{
				UUID: g.UUID, Model: g.Model, Island: g.Island, Minor: g.Minor,
				Free: !held && g.Usable() && (soft == nil || !soft.busy[g.UUID]),
			})
		}
		if soft != nil {
			node.Used = node.Used.Add(soft.taken)
			node.Containers += soft.strangers
		}
		out.Nodes = append(out.Nodes, node)
	}
	r.mu.Unlock()
	for a := range view.Live() {
		app := scheduler.App{ID: a.ID, Queue: a.Queue, Priority: a.Priority, Submitted: a.Submitted, Used: a.Used}
		if m := view.Master(a); m != nil && m.Live() {
			app.Masters = m.Resource
		}
		if !a.State.Final() {
			if a.WantsMaster() && r.credentialed(view, a) {
				app.Asks = append(app.Asks, rm.Ask{Resource: a.Master, Count: 1})
			}
			if !a.Deaf() {
				app.Asks = append(app.Asks, view.Asks(a.ID)...)
			}
		}
		out.Apps = append(out.Apps, app)
	}
	return out
}

// explain keeps the reason of every ask that waits and wakes the masters to whom it is news.
func (r *reign) explain(waiting []scheduler.Waiting) {
	reasons := map[rm.ApplicationID]map[string]rm.Reason{}
	for _, w := range waiting {
		if reasons[w.App] == nil {
			reasons[w.App] = map[string]rm.Reason{}
		}
		reasons[w.App][w.Ask] = w.Reason
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, streams := range r.streams {
		changed := len(r.reasons[id]) != len(reasons[id])
		for ask, reason := range reasons[id] {
			changed = changed || r.reasons[id][ask] != reason
		}
		if changed {
			for stream := range streams {
				kick(stream.wake)
			}
		}
	}
	r.reasons = reasons
}

// waitsFor is what the node manager says that a container waits for before it starts; empty: nothing.
func (r *reign) waitsFor(c *rm.Container) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[c.Node]; n != nil {
		return n.waits[c.ID]
	}
	return ""
}

// waitingFor lists the reasons of an application's asks, by ask.
func (r *reign) waitingFor(id rm.ApplicationID) []scheduler.Waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []scheduler.Waiting
	for ask, reason := range r.reasons[id] {
		out = append(out, scheduler.Waiting{App: id, Ask: ask, Reason: reason})
	}
	slices.SortFunc(out, func(a, b scheduler.Waiting) int { return cmp.Compare(a.Ask, b.Ask) })
	return out
}
