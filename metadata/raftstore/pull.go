package raftstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// What raft installs on a member that is too far behind is a reference to a version of the leader's state. The member pulls the version
// over a connection of its own (stream.go), beside raft, and gives raft the reference when it has all of it:
//
//	member:  length(2) | pullRequest as JSON
//	sender:  length(4) | pullAnswer as JSON, then pieces, each length(4) | bytes; it closes behind the last
//
// Numbers are little endian. The pieces are the state machine's: it checks each, and the whole at the end.

const (
	// pullPatience is how long one piece may take, and how long a version waits for a member that does not go on pulling it.
	pullPatience = 30 * time.Second
	// pullPause is how long a member waits before it dials a sender again, at first and at last.
	pullPause, pullPauseMost = 50 * time.Millisecond, 5 * time.Second
	// maxPullText bounds request and answer.
	maxPullText = 1 << 20
)

// pullRequest asks for a version from a position on.
type pullRequest struct {
	Member string `json:"member"`
	// Index and Hash name the version; 0: one of an entry that is not before Least.
	Index uint64 `json:"index,omitempty"`
	Hash  uint64 `json:"hash,omitempty"`
	Least uint64 `json:"least,omitempty"`
	// Position is where to begin.
	Position []byte `json:"position,omitempty"`
}

// pullAnswer says what comes.
type pullAnswer struct {
	// Refused is why nothing does, and Gone that asking again is of no use.
	Refused string `json:"refused,omitempty"`
	Gone    bool   `json:"gone,omitempty"`
	// Index, Hash and Bytes are the version's reference, Snapshot what raft has to know of it.
	Index    uint64       `json:"index,omitempty"`
	Hash     uint64       `json:"hash,omitempty"`
	Bytes    int64        `json:"bytes,omitempty"`
	Snapshot snapshotMeta `json:"snapshot"`
}

func (a pullAnswer) reference() Reference { return Reference{a.Index, a.Hash, a.Bytes} }

// errGone: the sender does not have the version any more, and will not.
var errGone = errors.New("the sender does not have the version any more")

// pulls is what this member is pulling.
type pulls struct {
	mu      sync.Mutex
	current *pull
	closed  bool
}

// pull is a version on its way here.
type pull struct {
	ref    Reference
	intake Intake
	cancel context.CancelFunc
	ended  chan struct{}
	// asked is when the leader last wanted the version to be installed, by the clock of leases: no wall clock moves it.
	asked atomic.Int64
	// again is, after a failure, when to begin anew.
	again time.Time

	mu sync.Mutex // guards what follows
	// from is who sends it: the present leader, at an address. attempt ends the connection to it.
	from    raft.ServerID
	address raft.ServerAddress
	attempt context.CancelFunc
}

// redirect has another leader send the rest: two may have the same version, and the former one may be dead or stand still.
func (c *pull) redirect(leader raft.ServerID, address raft.ServerAddress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from == leader {
		return
	}
	c.from, c.address = leader, address
	if c.attempt != nil {
		c.attempt()
	}
}

// begin returns whom to ask now, and a context for it.
func (c *pull) begin(ctx context.Context) (raft.ServerID, raft.ServerAddress, context.Context, context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	once, cancel := context.WithCancel(ctx)
	c.attempt = cancel
	return c.from, c.address, once, cancel
}

// failedPause is how long a version that could not be pulled is left alone.
const failedPause = 5 * time.Second

// takesReference looks at a leader's snapshot beside the pump: it goes to raft when the version that it refers to is here, or when raft will
// refuse it.
func (w *wire) takesReference(rpc raft.RPC) bool {
	install, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if !ok || w.group.versioned() == nil {
		return false
	}
	go func() {
		raw := make([]byte, referenceSize)
		var ref Reference
		var err error
		if install.Size != referenceSize {
			err = metadata.Errorf(metadata.ErrCorrupt, "the leader sends a snapshot of %d bytes, no reference to a version: it may run another version of the program; start the same one on all members", install.Size)
			_, _ = io.Copy(io.Discard, rpc.Reader) // the sender expects all of it to be read
		} else if _, err = io.ReadFull(rpc.Reader, raw); err == nil {
			ref, err = decodeReference(raw)
		}
		here := false
		if err == nil && install.Term >= w.group.raft.CurrentTerm() {
			here, err = w.group.hasOrPulls(ref, raft.ServerID(install.ID), w.DecodePeer(install.Addr))
		} else {
			here = err == nil
		}
		switch {
		case err != nil:
			w.group.log.Warn("cannot take the leader's snapshot", "index", install.LastLogIndex, "err", err)
			rpc.Respond(nil, err)
		case here:
			w.install(rpc, install, bytes.NewReader(raw))
		default:
			rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: w.header(), Term: install.Term}, nil)
		}
	}()
	return true
}

// hasOrPulls reports whether a version is here. If it is not, it is being pulled from the leader when the call returns.
func (g *Group) hasOrPulls(ref Reference, leader raft.ServerID, address raft.ServerAddress) (here bool, err error) {
	p := &g.pulls
	p.mu.Lock()
	defer p.mu.Unlock()
	if applied := g.fsm.machine.AppliedIndex(); applied >= ref.Index {
		return true, nil
	}
	if c := p.current; c != nil && c.ref.same(ref) {
		c.asked.Store(int64(g.wire.lease.now()))
		select {
		case <-c.ended: // it failed, or is complete
			if c.intake.Complete() {
				return true, nil
			}
			if time.Now().Before(c.again) {
				return false, nil
			}
		default:
			c.redirect(leader, address)
			return false, nil
		}
	}
	if p.closed {
		return false, errClosed
	}
	p.end()
	if err := g.host.space.room(ref.Bytes); err != nil {
		return false, err
	}
	intake, err := g.versioned().Receive(ref)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &pull{ref: ref, intake: intake, cancel: cancel, ended: make(chan struct{}), from: leader, address: address}
	c.asked.Store(int64(g.wire.lease.now()))
	p.current = c
	g.log.Info("pulling a version of the state", "from", leader, "index", ref.Index, "bytes", ref.Bytes)
	g.workers.Go(func() {
		select {
		case <-g.dying:
			cancel()
		case <-ctx.Done():
		}
	})
	g.workers.Go(func() {
		defer cancel()
		defer close(c.ended)
		if err := g.pullFrom(ctx, c); err != nil {
			intake.Cancel()
			c.again = time.Now().Add(failedPause)
			g.log.Warn("pulling a version of the state ended", "from", leader, "index", ref.Index, "err", err)
			return
		}
		g.log.Info("pulled a version of the state", "from", leader, "index", ref.Index)
	})
	return false, nil
}

// end gives up what is being pulled. mu is held.
func (p *pulls) end() {
	if c := p.current; c != nil {
		c.cancel()
		<-c.ended
		c.intake.Cancel()
		p.current = nil
	}
}

// forsake gives up what no leader has wanted to be installed since a moment: what came meanwhile in its log may have made it needless, and it
// takes as much space as the state.
func (p *pulls) forsake(since time.Duration) (forsaken Reference, some bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil || p.current.asked.Load() >= int64(since) {
		return Reference{}, false
	}
	forsaken = p.current.ref
	p.end()
	return forsaken, true
}

// close gives up what is being pulled, for good.
func (p *pulls) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.end()
}

// taken returns the complete intake of a version, nil when there is none.
func (p *pulls) taken(ref Reference) Intake {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.current; c != nil && c.ref.same(ref) && c.intake.Complete() {
		p.current = nil
		return c.intake
	}
	return nil
}

// pullFrom pulls until all is here, the sender says that it never will be, or nobody wants it any more.
func (g *Group) pullFrom(ctx context.Context, c *pull) error {
	for pause := pullPause; ; pause = min(2*pause, pullPauseMost) {
		from, address, once, cancel := c.begin(ctx)
		if a, err := g.addressOf(from); err == nil {
			address = a
		}
		before := string(c.intake.Position())
		err := g.pullOnce(once, c.intake, address, pullRequest{Index: c.ref.Index, Hash: c.ref.Hash}, nil)
		cancel()
		switch {
		case err == nil, ctx.Err() != nil, final(err):
			return err
		}
		g.log.Debug("pulling a version of the state was interrupted", "from", from, "err", err)
		if string(c.intake.Position()) != before {
			pause = pullPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// addressOf is where a member is, as far as this one knows.
func (g *Group) addressOf(id raft.ServerID) (raft.ServerAddress, error) {
	if g.members == nil {
		return "", fs.ErrNotExist
	}
	return g.members.ServerAddr(id)
}

// final errors do not go away by asking again.
func final(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, metadata.ErrCorrupt) || errors.Is(err, metadata.ErrNoSpace) || errors.Is(err, metadata.ErrUnsupported) || errors.Is(err, errIntake)
}

// errIntake: the state machine's store failed.
var errIntake = errors.New("storing the version")

// pullOnce pulls over one connection, from where the intake is. begin, if not nil, makes the intake when the sender has said what comes.
func (g *Group) pullOnce(ctx context.Context, intake Intake, address raft.ServerAddress, request pullRequest, begin func(pullAnswer) (Intake, error)) error {
	conn, err := g.streams.dial(ctx, pullMagic, address, knowPatience)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(g.host.pullPatience)); err != nil {
		return err
	}
	request.Member = g.host.cfg.ID
	if intake != nil {
		request.Position = intake.Position()
	}
	if err := writeText(conn, request); err != nil {
		return err
	}
	var answer pullAnswer
	if err := readText(conn, &answer); err != nil {
		return err
	}
	switch {
	case answer.Refused != "" && answer.Gone:
		return fmt.Errorf("%w: %s", errGone, answer.Refused)
	case answer.Refused != "":
		return fmt.Errorf("%s refused: %s", address, answer.Refused)
	case request.Index != 0 && (answer.Index != request.Index || answer.Hash != request.Hash):
		return metadata.Errorf(metadata.ErrCorrupt, "%s sends version %d, not %d", address, answer.Index, request.Index)
	}
	if begin != nil {
		if intake, err = begin(answer); err != nil {
			return err
		}
	}
	var piece []byte
	for !intake.Complete() {
		if err := conn.SetDeadline(time.Now().Add(g.host.pullPatience)); err != nil {
			return err
		}
		if piece, err = readPiece(conn, piece); err != nil {
			return err
		}
		if err := g.host.space.room(0); err != nil {
			return err
		}
		if err := intake.Put(piece); err != nil {
			if !errors.Is(err, metadata.ErrCorrupt) && !errors.Is(err, metadata.ErrNoSpace) {
				err = fmt.Errorf("%w: %w", errIntake, err)
			}
			return err
		}
	}
	return nil
}

func readPiece(r io.Reader, buf []byte) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return buf, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n == 0 || n > MaxPiece {
		return buf, metadata.Errorf(metadata.ErrCorrupt, "a piece of a version claims %d bytes", n)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	_, err := io.ReadFull(r, buf)
	return buf, err
}

func writePiece(w io.Writer, piece []byte) error {
	buffers := net.Buffers{binary.LittleEndian.AppendUint32(nil, uint32(len(piece))), piece}
	_, err := buffers.WriteTo(w)
	return err
}

// writeText and readText carry request and answer.
func writeText(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writePiece(w, text)
}

func readText(r io.Reader, v any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxPullText {
		return metadata.Errorf(metadata.ErrCorrupt, "a description of a version claims %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return metadata.Errorf(metadata.ErrCorrupt, "the description of a version cannot be read: %v", err)
	}
	return nil
}

// takeOver is raft's Restore: what r refers to was pulled, or the state machine is ahead of it.
func (f *fsm) takeOver(r io.Reader) error {
	g := f.group
	raw, err := io.ReadAll(io.LimitReader(r, referenceSize+1))
	if err != nil {
		return err
	}
	ref, err := decodeReference(raw)
	if err != nil {
		g.snapshots.refuse()
		return err
	}
	ahead := f.machine.AppliedIndex() >= ref.Index
	if !ahead {
		intake := g.pulls.taken(ref)
		if intake == nil {
			g.snapshots.refuse()
			return fmt.Errorf("version %d is not here", ref.Index) // raft's leader tries again
		}
		raise(&f.begun, ref.Index)
		if err := g.commit(intake, ref); err != nil {
			g.snapshots.refuse()
			g.fail(fmt.Errorf("restore snapshot: %w", err))
			return err
		}
	}
	if err := g.snapshots.promote(ahead); err != nil {
		g.fail(fmt.Errorf("restore snapshot: %w", err))
		return err
	}
	if ahead {
		g.wantSnapshot()
	}
	f.advance(g.snapshots.reach(ref.Index))
	return nil
}

// commit replaces the state by what an intake has.
func (g *Group) commit(intake Intake, ref Reference) error {
	g.fsm.replacing.Add(1)
	err := intake.Commit()
	g.fsm.replacing.Add(-1)
	if err != nil {
		return err
	}
	if got := g.fsm.machine.AppliedIndex(); got != ref.Index {
		return fmt.Errorf("the state machine is at index %d after taking over version %d", got, ref.Index)
	}
	return nil
}

// healSays is how often a member that waits for a version says so.
const healSays = foundSays

// heal gives a state machine that has lost its state a version of another member's, which reaches up to an entry at least. It is called
// before raft runs: log, term and vote are there, and what was acknowledged stays so; only the state is pulled, and the log behind it
// replayed. It waits until somebody has such a version.
func (g *Group) heal(least uint64) (stored, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-g.host.closing:
			cancel()
		case <-stop:
		}
	}()
	addresses := map[string]raft.ServerAddress{}
	for _, s := range g.snapshots.all() {
		for _, m := range s.meta.Configuration.Servers {
			addresses[string(m.ID)] = m.Address
		}
	}
	for _, m := range g.cfg.Members {
		addresses[m.ID] = raft.ServerAddress(m.Address)
	}
	delete(addresses, g.host.cfg.ID)
	g.log.Warn("the state was lost or damaged on this member, its log was not: pulling the state from another member before going on", "from entry", least)
	said := time.Now()
	for pause := pullPause; ; pause = min(2*pause, pullPauseMost) {
		var all error
		for id, address := range addresses {
			s, err := g.healFrom(ctx, address, least)
			if err == nil {
				g.log.Info("pulled the state", "from", id, "index", s.meta.Index)
				return s, nil
			}
			if ctx.Err() != nil {
				return stored{}, errClosed
			}
			if errors.Is(err, errIntake) || errors.Is(err, metadata.ErrNoSpace) {
				return stored{}, err
			}
			all = errors.Join(all, fmt.Errorf("member %s: %w", id, err))
		}
		if time.Since(said) > healSays {
			said = time.Now()
			g.log.Warn("waiting for a member that has the state; this one does not vote meanwhile", "from entry", least, "err", all)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return stored{}, errClosed
		}
	}
}

// healFrom pulls the newest version of one member, and makes a snapshot of it in place of all others.
func (g *Group) healFrom(ctx context.Context, address raft.ServerAddress, least uint64) (stored, error) {
	var intake Intake
	var answer pullAnswer
	defer func() {
		if intake != nil {
			intake.Cancel()
		}
	}()
	begin := func(a pullAnswer) (Intake, error) {
		if a.Snapshot.Index < least || a.Index == 0 || a.Index > a.Snapshot.Index {
			return nil, metadata.Errorf(metadata.ErrCorrupt, "%s sends version %d of entry %d, %d was asked for", address, a.Index, a.Snapshot.Index, least)
		}
		if err := g.host.space.room(a.Bytes); err != nil {
			return nil, err
		}
		in, err := g.versioned().Receive(a.reference())
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errIntake, err)
		}
		intake, answer = in, a
		return in, nil
	}
	err := g.pullOnce(ctx, nil, address, pullRequest{Least: least}, begin)
	for try := 0; err != nil && intake != nil && !final(err) && ctx.Err() == nil; {
		before := string(intake.Position())
		select {
		case <-time.After(pullPause << try):
		case <-ctx.Done():
		}
		err = g.pullOnce(ctx, intake, address, pullRequest{Index: answer.Index, Hash: answer.Hash}, nil)
		if try++; string(intake.Position()) != before {
			try = 0
		}
		if try > 6 {
			break
		}
	}
	if err != nil {
		return stored{}, err
	}
	ref, meta := answer.reference(), answer.Snapshot
	sink, err := g.snapshots.Create(1, meta.Index, meta.Term, meta.Configuration, meta.ConfigIndex, nil)
	if err != nil {
		return stored{}, fmt.Errorf("%w: %w", errIntake, err)
	}
	if _, err = sink.Write(ref.encode()); err == nil {
		err = sink.Close()
	}
	if err == nil {
		err = g.commit(intake, ref)
	}
	if err == nil {
		err = g.snapshots.promote(false)
	}
	if err != nil {
		return stored{}, fmt.Errorf("%w: %w", errIntake, errors.Join(err, sink.Cancel()))
	}
	return g.snapshots.all()[0], nil
}
