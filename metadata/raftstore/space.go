package raftstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
)

// spaceInterval is how often free space is looked up. At 1 GB/s of log the reserve has to cover 250 MB of surprise.
const spaceInterval = 250 * time.Millisecond

// defaultReserve is min(5 % of the disk, this).
const defaultReserve = 1 << 30

// space watches the disk under a directory, so that the store turns read-only before writes fail: a full disk kills a
// memory-mapped checkpoint with SIGBUS and leaves half a segment behind.
//
// Three limits, from above:
//
//	bound   nothing is proposed below it: the reserve, or what the next snapshot takes above the floor if that is more
//	floor   snapshots and checkpoints give up at it: half the reserve, or what the checkpoint's store takes unasked
//	half    of the reserve: entries of other leaders are refused below it
type space struct {
	dir string
	// reserve is 0 until the size of the disk is known; below 0 nothing is guarded.
	reserve atomic.Int64
	// lookup returns free and total bytes.
	lookup func(dir string) (free, total int64, err error)
	free   atomic.Int64
	// looking is held from a look to when it is noted: the newest one counts.
	looking sync.Mutex

	// snapshot and store are sums over the groups: what their next snapshots are expected to take, and what the stores of
	// their checkpoints take without asking.
	snapshot, store atomic.Int64
	mu              sync.Mutex
	demands         map[string]demand
}

// demand is what one group wants of the disk.
type demand struct{ snapshot, store int64 }

func newSpace(dir string, reserve int64) *space {
	s := &space{dir: dir, lookup: statfs, demands: make(map[string]demand)}
	s.reserve.Store(reserve)
	s.free.Store(1 << 62)
	return s
}

func statfs(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	for {
		err = unix.Statfs(dir, &st)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, err
}

func (s *space) check() error {
	s.looking.Lock()
	defer s.looking.Unlock()
	free, total, err := s.lookup(s.dir)
	if err != nil {
		return err
	}
	s.reserve.CompareAndSwap(0, min(total/20, defaultReserve))
	s.free.Store(free)
	return nil
}

func (s *space) run(ctx context.Context) error {
	t := pace.NewBeat(spaceInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			t.Next()
			if err := s.check(); err != nil {
				return err
			}
		}
	}
}

// want notes what a group's snapshot and store are expected to take.
func (s *space) want(group string, d demand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.demands[group] == d {
		return
	}
	s.demands[group] = d
	var sum demand
	for _, d := range s.demands {
		sum.snapshot += d.snapshot
		sum.store += d.store
	}
	s.snapshot.Store(sum.snapshot)
	s.store.Store(sum.store)
}

// floor is what snapshots and checkpoints leave free.
func (s *space) floor() int64 {
	reserve := s.reserve.Load()
	if reserve <= 0 {
		return 0
	}
	return max(reserve/2, s.store.Load())
}

// bound is what has to be free for proposals.
func (s *space) bound() int64 {
	reserve := s.reserve.Load()
	if reserve <= 0 {
		return 0
	}
	return max(reserve, s.floor()+s.snapshot.Load())
}

// admit refuses proposals when less than the bound is free.
func (s *space) admit() error { return s.atLeast(s.bound()) }

// low: this member had better not lead. roomy: it may well, and will not be low again at once.
func (s *space) low() bool   { return s.free.Load() < s.bound() }
func (s *space) roomy() bool { return s.free.Load() >= s.bound()+s.bound()/8 }

// bookkeeping is how much raft's own entries take, and what little they may have to follow, in bytes: a leader needs them to lead at all, if only for
// reads.
const bookkeeping = 4 << 10

// append refuses entries of other leaders, and this one's own, when half the reserve is gone, but not raft's bookkeeping: it goes into the segments that the
// log has, as long as they have room, and no other is made then. raft takes the error for "not stored": a follower falls behind until there is space, a leader
// steps down.
func (s *space) append(bytes int) error {
	if bytes <= bookkeeping {
		return nil
	}
	return s.atLeast(s.reserve.Load() / 2)
}

// room is nil when n bytes may be written beside the log. It looks at the disk.
func (s *space) room(n int64) error {
	if s.reserve.Load() <= 0 {
		return nil
	}
	if err := s.check(); err != nil {
		return err
	}
	return s.atLeast(s.floor() + n)
}

func (s *space) atLeast(bound int64) error {
	if free := s.free.Load(); bound > 0 && free < bound {
		return metadata.Errorf(metadata.ErrNoSpace, "%s has %d MiB free, %d MiB are reserved: nothing is written until there is space",
			s.dir, free>>20, bound>>20)
	}
	return nil
}

// spaceLook is how often a group looks whether it should lead on a disk like this.
const spaceLook = 250 * time.Millisecond

// watchSpace tells the host what the group takes, and hands leadership over when this member's disk is nearly full and
// another voter's is not. With all disks full the leader stays, for reads.
func (g *Group) watchSpace() {
	var said time.Time
	g.every(spaceLook, func() (goOn bool) {
		d := demand{snapshot: g.snapshotTakes()}
		if s, due := g.copyDue(); due {
			d.snapshot += s.ref.Bytes + s.ref.Bytes/4
		}
		if g.cfg.Headroom != nil {
			d.store = g.cfg.Headroom()
		}
		g.host.space.want(g.name, d)
		g.trim()
		r := g.reign.Load()
		if r == nil || !g.host.space.low() {
			return true
		}
		to, ok := g.successor(r.term, knowledge.roomy)
		if !ok {
			return true
		}
		if time.Since(said) > foundSays {
			said = time.Now()
			g.log.Warn("handing over leadership: this member's disk is nearly full", "to", to.ID, "err", g.host.space.admit())
		}
		if err := g.yield(to); err != nil {
			g.log.Debug("the handover failed", "to", to.ID, "err", err)
		}
		return true
	})
}

// trim takes off the log what is needless, if the disk is nearly full. Otherwise that goes with the next snapshot, for which there is no space then: a loan may have
// ended, or a copy have been made, behind the last one.
func (g *Group) trim() {
	if !g.host.space.low() {
		return
	}
	if err := g.journal.Trim(); err != nil {
		g.log.Debug("cannot take off the head of the log", "err", err) // the journal says itself that it failed
	}
}

// snapshotTakes is about how many bytes the next snapshot writes: as much as the last one, or, of a state machine that keeps versions, what
// so much log changes.
func (g *Group) snapshotTakes() int64 {
	list := g.snapshots.all()
	switch {
	case len(list) == 0:
		return 0
	case list[0].ref != nil:
		return min(g.cfg.SnapshotBytes, list[0].ref.Bytes)
	}
	return list[0].size + list[0].size/4
}

// yield hands leadership to a voter. raft ends a handover after an election timeout.
func (g *Group) yield(to raft.Server) error {
	return g.settle(g.raft.LeadershipTransferToServer(to.ID, to.Address))
}

// successor is the voter that would lead best after this member, the leader of a term: the first of its heirs that says of itself what fit wants.
func (g *Group) successor(term uint64, fit func(knowledge) bool) (best raft.Server, found bool) {
	return g.choose(g.heirs(term), fit)
}

// heir is the voter to whom this member, the leader of a term, leaves leadership when it goes: one that would lead well, if any says so of itself.
func (g *Group) heir(term uint64) (best raft.Server, found bool) {
	heirs := g.heirs(term)
	if best, found = g.choose(heirs, knowledge.roomy); !found && len(heirs) > 0 {
		return heirs[0], true
	}
	return best, found
}

// heirs are the other voters that have answered the leader of a term lately, those with most of the log first.
func (g *Group) heirs(term uint64) (heirs []raft.Server) {
	match := make(map[raft.ServerID]uint64)
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		p := g.wire.peer(s.ID)
		if s.ID == raft.ServerID(g.host.cfg.ID) || s.Suffrage != raft.Voter || p.term != term || time.Since(p.contact) > 2*g.cfg.Timers.Heartbeat {
			continue
		}
		if a, err := g.members.ServerAddr(s.ID); err == nil {
			s.Address = a
		}
		match[s.ID] = p.match
		heirs = append(heirs, s)
	}
	slices.Reverse(heirs)
	slices.SortStableFunc(heirs, func(a, b raft.Server) int { return cmp.Compare(match[b.ID], match[a.ID]) })
	return heirs
}

// choose asks heirs, and is the first one that says of itself what fit wants.
func (g *Group) choose(heirs []raft.Server, fit func(knowledge) bool) (best raft.Server, found bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	known := g.askVoters(ctx, heirs)
	at := slices.IndexFunc(heirs, func(s raft.Server) bool {
		return slices.ContainsFunc(known, func(k knowledge) bool { return k.Member == string(s.ID) && fit(k) })
	})
	if at < 0 {
		return best, false
	}
	return heirs[at], true
}

// holdsBack: this member lets others win elections. One that joins has no vote for itself, and one whose disk is nearly
// full, or whose state machine is stuck, stands only when nobody else was elected for a while.
func (g *Group) holdsBack() bool {
	return g.joining.Load() || (g.host.space.low() || g.stuck.Load()) && time.Since(g.wire.heardAt()) < 5*g.cfg.Timers.Election
}
