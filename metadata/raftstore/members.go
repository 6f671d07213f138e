package raftstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// addressBook knows where members are: a raft.ServerAddressProvider.
type addressBook struct {
	// since is the last entry of the log at Open: what was recorded up to there may be outdated, and the
	// configuration file knows better.
	since uint64
	mu    sync.RWMutex
	known map[raft.ServerID]raft.ServerAddress
}

func newAddressBook(members []Member, since uint64) *addressBook {
	b := &addressBook{since: since, known: make(map[raft.ServerID]raft.ServerAddress)}
	for _, m := range members {
		b.known[raft.ServerID(m.ID)] = raft.ServerAddress(m.Address)
	}
	return b
}

var errNoAddress = errors.New("not in the list of members")

// ServerAddr implements raft.ServerAddressProvider. raft falls back to the recorded address.
func (b *addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if a, ok := b.known[id]; ok {
		return a, nil
	}
	return "", errNoAddress
}

// changed takes over the addresses of a committed change of membership.
func (b *addressBook) changed(index uint64, c raft.Configuration) {
	if index <= b.since {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range c.Servers {
		b.known[s.ID] = s.Address
	}
}

func (b *addressBook) set(m Member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[raft.ServerID(m.ID)] = raft.ServerAddress(m.Address)
}

// MemberStatus is what a member knows of another. All but the first three are known to the leader only.
type MemberStatus struct {
	ID      string
	Address string
	Voter   bool
	// Match is the last entry that the member's log shares with the leader's.
	Match uint64
	// Contact is when the member last answered; zero: never.
	Contact time.Time
}

// Status describes a group for people and metrics.
type Status struct {
	Leadership
	Name    string
	Members []MemberStatus
	// Indexes of the log: first and last entry, last committed, last applied, last in a snapshot.
	First, Last, Commit, Applied, Snapshot uint64
	// Queued is how many commands wait for a place in an entry.
	Queued int
	// Applying is the entry that the state machine has been given and has not come back with; 0: there is none.
	Applying uint64
	// Joining: the member started empty and does not vote yet.
	Joining bool
	// Stuck: the state machine does not come back with an entry, StuckAt, or does not say what it has, which was StuckAt, since StuckSince; the member carries nothing out. It is told when that has taken
	// HostConfig.SlowApply.
	Stuck      bool
	StuckAt    uint64
	StuckSince time.Time
	// Committed is the last entry that a leader has said is committed: how far Applied lags behind.
	Committed uint64
	// FreeBytes and ReserveBytes are of the disk; below the reserve nothing is proposed. The reserve is what was configured,
	// or what the next snapshot takes if that is more.
	FreeBytes, ReserveBytes int64
	// Stranger says that this member is none of the group's; empty when it is one or nobody knows.
	Stranger string
	// Failure is why the group stopped; nil while it works.
	Failure error
}

// Status returns the present state of the group.
func (g *Group) Status() Status {
	s := Status{
		Leadership: g.Leadership(), Name: g.name,
		Last: g.raft.LastIndex(), Commit: g.raft.CommitIndex(), Applied: g.fsm.applied.Load(),
		Joining: g.joining.Load(), Committed: max(g.wire.commit(), g.raft.CommitIndex()), FreeBytes: g.host.space.free.Load(), ReserveBytes: g.host.space.bound(),
	}
	if x := g.hang.Load(); x != nil && g.stuck.Load() {
		s.Stuck, s.StuckAt, s.StuckSince = true, x.entry, x.since
	}
	s.Applying = g.fsm.applying.Load()
	if why := g.stranger.Load(); why != nil {
		s.Stranger = *why
	}
	if err := g.failure.Load(); err != nil {
		s.Failure = *err
	}
	if first, err := g.journal.FirstIndex(); err == nil {
		s.First = first
	}
	if list := g.snapshots.all(); len(list) > 0 {
		s.Snapshot = list[0].meta.Index
	}
	g.batches.mu.Lock()
	s.Queued = len(g.batches.queue)
	g.batches.mu.Unlock()
	for _, server := range g.raft.GetConfiguration().Configuration().Servers {
		m := MemberStatus{ID: string(server.ID), Address: string(server.Address), Voter: server.Suffrage == raft.Voter}
		if a, err := g.members.ServerAddr(server.ID); err == nil {
			m.Address = string(a)
		}
		if s.Leader {
			if m.ID == g.host.cfg.ID {
				m.Match, m.Contact = s.Last, time.Now()
			} else if p := g.wire.peer(server.ID); p.term == s.Term {
				m.Match, m.Contact = p.match, p.contact
			}
		}
		s.Members = append(s.Members, m)
	}
	return s
}

// AddMember makes m a voter, or changes its address if it is one. A new member, started with an empty directory and
// without Bootstrap, first receives everything and then its vote, so that the group's majority never rests on an empty
// log. It returns when m votes; when ctx ends before, m stays a member without vote and AddMember may be called again.
func (g *Group) AddMember(ctx context.Context, m Member) error {
	if m.ID == "" || m.Address == "" {
		return metadata.Errorf(metadata.ErrInvalidArgument, "member %q at %q: id or address is missing", m.ID, m.Address)
	}
	reign := g.reign.Load()
	if reign == nil {
		return g.notLeader()
	}
	g.solo.Store(false) // before anybody else can lead
	id, at := raft.ServerID(m.ID), raft.ServerAddress(m.Address)
	voter := false
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		voter = voter || s.ID == id && s.Suffrage == raft.Voter
	}
	if !voter {
		g.wire.forget(id)
		if err := g.change(ctx, g.raft.AddNonvoter(id, at, 0, remaining(ctx))); err != nil {
			return fmt.Errorf("add member %s: %w", m.ID, err)
		}
		g.members.set(m)
		target := g.raft.CommitIndex()
		t := time.NewTicker(20 * time.Millisecond)
		defer t.Stop()
		for {
			if p := g.wire.peer(id); p.term == reign.term && p.match >= target {
				break
			}
			select {
			case <-t.C:
			case <-reign.lost:
				return fmt.Errorf("add member %s: %w", m.ID, g.notLeader())
			case <-ctx.Done():
				return fmt.Errorf("add member %s: it has not caught up with entry %d: %w", m.ID, target, ctx.Err())
			}
		}
	}
	if err := g.change(ctx, g.raft.AddVoter(id, at, 0, remaining(ctx))); err != nil {
		return fmt.Errorf("add member %s: %w", m.ID, err)
	}
	g.members.set(m)
	return nil
}

// RemoveMember takes a member out of the group. A leader that removes itself steps down.
func (g *Group) RemoveMember(ctx context.Context, id string) error {
	if g.reign.Load() == nil {
		return g.notLeader()
	}
	if servers := g.raft.GetConfiguration().Configuration(); g.versioned() != nil && voters(servers) == 2 && id != g.host.cfg.ID {
		// Nobody is left to pull the state from, should this member lose it.
		if _, err := g.newestCopy(); err != nil {
			return fmt.Errorf("remove member %s: a copy of the state for a group of one: %w", id, err)
		}
	}
	if err := g.change(ctx, g.raft.RemoveServer(raft.ServerID(id), 0, remaining(ctx))); err != nil {
		return fmt.Errorf("remove member %s: %w", id, err)
	}
	return nil
}

// memberSilent is how long a member may be silent and still count as one that answers.
const memberSilent = 3 * time.Second

// Dismiss is RemoveMember for people: it is done only if those that stay and answer are a majority of those that stay.
//
// Errors: NotLeader; metadata.ErrInvalidArgument with what is in the way.
func (g *Group) Dismiss(ctx context.Context, id string) error {
	status := g.Status()
	known, voters, answer := false, 0, 0
	for _, m := range status.Members {
		if m.ID == id {
			known = true
			continue
		}
		if m.Voter {
			voters++
			if m.ID == g.host.cfg.ID || time.Since(m.Contact) < memberSilent {
				answer++
			}
		}
	}
	switch {
	case !status.Leader:
		return g.notLeader()
	case !known:
		return metadata.Errorf(metadata.ErrInvalidArgument, "%s is not a member", id)
	case voters == 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "%s is the last member", id)
	case answer <= voters/2:
		return metadata.Errorf(metadata.ErrInvalidArgument, "without %s %d of %d members answer, which is no majority: start the others first", id, answer, voters)
	}
	return g.RemoveMember(ctx, id)
}

// ParseMember checks what people say of a member: its id, and the address of its Raft port, host:port.
func ParseMember(id, address string) (Member, error) {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" || port == "0" {
		return Member{}, metadata.Errorf(metadata.ErrInvalidArgument, "raft address %q of %s: want host:port", address, id)
	}
	if id == "" || len(id) > 255 || strings.ContainsAny(id, " \t\n#/") {
		return Member{}, metadata.Errorf(metadata.ErrInvalidArgument, "id %q: want up to 255 letters, digits and dashes", id)
	}
	return Member{ID: id, Address: address}, nil
}

// TransferLeadership hands leadership to a member, or, if id is empty, to the most advanced one of those that say they would lead well, or of all. It returns when this
// member leads no more.
func (g *Group) TransferLeadership(ctx context.Context, id string) error {
	reign := g.reign.Load()
	if reign == nil {
		return g.notLeader()
	}
	to := raft.Server{ID: raft.ServerID(id)}
	if id == "" {
		best, ok := g.heir(reign.term)
		if !ok {
			return metadata.Errorf(metadata.ErrRetriable, "no other voter of group %s has answered lately", g.name)
		}
		to = best
	} else {
		servers := g.raft.GetConfiguration().Configuration().Servers
		if !slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == to.ID && s.Suffrage == raft.Voter }) {
			return metadata.Errorf(metadata.ErrInvalidArgument, "member %s is no voter of group %s", id, g.name)
		}
		address, err := g.members.ServerAddr(to.ID)
		if err != nil {
			return metadata.Errorf(metadata.ErrInvalidArgument, "member %s is not in the group", id)
		}
		to.Address = address
	}
	if err := await(ctx, g.raft.LeadershipTransferToServer(to.ID, to.Address)); err != nil {
		return fmt.Errorf("hand over leadership: %w", err)
	}
	return nil
}

// Stand has this member stand for election at once, in place of whoever leads. It returns without waiting for the outcome.
func (g *Group) Stand() error {
	self := raft.ServerID(g.host.cfg.ID)
	servers := g.raft.GetConfiguration().Configuration().Servers
	if g.joining.Load() || !slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == self && s.Suffrage == raft.Voter }) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "member %s is no voter of group %s", self, g.name)
	}
	if g.reign.Load() == nil {
		g.wire.electNow()
	}
	return nil
}

// Save writes a snapshot of this member's state now. It is no error when nothing has changed since the last one.
func (g *Group) Save() error {
	err := g.snapshot()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// snapshot has raft make a snapshot. A leader's is not installed beside: raft notes the one that ends last as what it has, and would refuse for good what follows
// the newer one when that has taken the place of the log meanwhile.
func (g *Group) snapshot() error {
	g.wire.replacing.Lock()
	defer g.wire.replacing.Unlock()
	return g.settle(g.raft.Snapshot())
}

// change waits for a change of membership.
func (g *Group) change(ctx context.Context, future raft.Future) error {
	err := await(ctx, future)
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return g.notLeader()
	case errors.Is(err, raft.ErrLeadershipLost):
		return ErrUnknown
	case errors.Is(err, raft.ErrEnqueueTimeout): // see remaining
		return context.DeadlineExceeded
	}
	return err
}

// settle waits for a future until the group ends: raft leaves some unanswered when it is shut down.
func (g *Group) settle(future raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- future.Error() }()
	select {
	case err := <-done:
		return err
	case <-g.dying:
		return errClosed
	}
}

// await waits for a future of raft, which knows no contexts. The goroutine ends when raft answers or is shut down.
func await(ctx context.Context, future raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- future.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// remaining is the time that ctx leaves for raft to accept a change, 0 for any.
func remaining(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Until(deadline), time.Millisecond)
	}
	return 0
}
