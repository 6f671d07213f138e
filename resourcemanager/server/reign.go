package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
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
	// wake makes the scheduler look at what has changed.
	wake chan struct{}
	// plans is the scheduler's part.
	plans planner
	// keeper looks after the tokens of applications; nil: they have none.
	keeper *keeper
	// finder knows where the data of applications lies.
	finder *finder

	mu      sync.Mutex // guards everything below
	looked  time.Time  // when this process was seen to run last
	began   time.Time  // since when masters could launch what they hold: the beginning of the reign, or the end of its last standstill
	rests   time.Time  // until when watch leaves applications alone, and nodes that leave
	nodes   map[rm.NodeID]*softNode
	streams map[rm.ApplicationID]map[*eventStream]bool
	masters map[rm.AttemptID]*softMaster
	said    map[span]metadata.Time // what was told of deadlines by the clock, since began; see steady
	// preempted is when it was looked last who has to make room; of the goroutine that watches.
	preempted time.Time
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
	// loads are what its devices do, by UUID; uses what containers have done with theirs.
	loads map[string]*pb.GPULoad
	// divided are its GPUs in MIG mode.
	divided []rest.DividedGPU
	uses    map[rm.ContainerID][]*pb.GPUUse
	// signals are for the node's next orders.
	signals []*pb.Signal
	// devices are what an operator says of its devices, for the same.
	devices []*pb.DeviceOrder
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
		streams: map[rm.ApplicationID]map[*eventStream]bool{},
		masters: map[rm.AttemptID]*softMaster{},
	}
	r.finder = newFinder(r)
	if s.config.Tokens != nil {
		r.keeper = newKeeper(r)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if ahead := s.clock.begin(s.state.View().Now()); ahead > clockStep {
			s.log.Warn("the time of the replicated state is ahead of this machine's clock, and goes on from there: the clock of one of the resource managers is, or was, wrong", "by", ahead)
		}
		for {
			level := s.group.Load().Level()
			if level < release.Forgetting {
				level = 0
			}
			result, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{
				Leader: s.config.ID, LeaseMs: s.config.NodeLease.Milliseconds(), QueuesHash: s.Queues().Hash(), Recovered: int64(s.group.Load().Recovered()), Level: int32(level),
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
		s.installQueues(ctx)
		s.log.Info("leading", "term", r.term, "epoch", r.epoch, "nodes", known)
		s.readyOnce.Do(func() { close(s.ready) })
		kick(r.wake)
		wg.Go(r.schedule)
		wg.Go(r.watch)
		wg.Go(r.beat)
		wg.Go(r.sweep)
		if r.keeper != nil {
			wg.Go(r.keeper.run)
		}
	})
	return func() {
		cancel()
		wg.Wait()
		r.finder.stop()
		s.reign.CompareAndSwap(r, nil)
	}
}

// since is when masters could begin to launch what they hold.
func (r *reign) since() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.began
}

// applied wakes whom effects concern.
func (r *reign) applied(e state.Effects) {
	r.plans.note(e)
	if e.Schedule || e.Restored {
		kick(r.wake)
	}
	if r.keeper != nil && (e.Credentials || e.Restored) {
		r.keeper.noted(e.Applications)
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

// waitsFor is what the node manager says that a container waits for before it starts; empty: nothing.
func (r *reign) waitsFor(c *rm.Container) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[c.Node]; n != nil {
		return n.waits[c.ID]
	}
	return ""
}
