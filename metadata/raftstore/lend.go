package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A version that another member pulls is lent to it: it stays, and the log behind it, until the member has it, does not go on for
// pullPatience, or has taken several times what there is. When the member has it, the log behind it stays until the member has followed to
// where the log would begin without it: while a large version is pulled, more log comes than the member takes in a moment. A loan ends when the
// log becomes too long or the disk is nearly full: who is slow costs the others only so much.

const (
	// maxLoans is how many members may have a version lent, maxServed how many are sent pieces at a time.
	maxLoans, maxServed = 4, 2
	// loanTimes is how many times the size of a version a loan sends, and how long the log may become for it; loanBytes is how much more, because
	// the size is a guess.
	loanTimes, loanBytes = 4, 1 << 30
	// dialBytes is what a connection counts as: who dials again and again and takes nothing holds a version only so long, too.
	dialBytes = 256 << 10
	// lendAgain is how soon a leader asks again whether a member has pulled a version, at first and at last.
	lendAgain, lendAgainMost = 20 * time.Millisecond, time.Second
)

// lending is what this member has lent, by the name of the other.
type lending struct {
	mu     sync.Mutex
	loans  map[string]*loan
	served int
	closed bool
	// sending are those who read versions.
	sending sync.WaitGroup
}

type loan struct {
	of      stored
	version Version // holds it; each connection opens its own
	at      time.Time
	users   int
	sent    int64
	// arrived: the member has it, and its log follows; match is how far. over: the loan has ended.
	arrived, over bool
	match         uint64
}

// idle: nobody has gone on with it since a moment.
func (l *loan) idle(since time.Time) bool { return l.users == 0 && l.at.Before(since) }

// spent: it has been sent so often that whoever pulls it is not getting anywhere.
func (l *loan) spent() bool { return l.sent > l.most() }

// most is how many bytes may be sent, and how many the log may have, for its sake.
func (l *loan) most() int64 { return loanTimes*l.of.ref.Bytes + loanBytes }

var errBusy = errors.New("other members are being sent versions; try again")

// lend makes a loan of a snapshot to a member, or finds the one that there is.
func (g *Group) lend(member string, s stored) (*loan, error) {
	l := &g.lending
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	if old := l.loans[member]; old != nil {
		if old.of.ref.same(*s.ref) && !old.spent() && !old.arrived {
			old.at = time.Now()
			return old, nil
		}
		if old.users > 0 && !old.spent() && !old.arrived {
			return nil, errBusy
		}
		l.end(member)
	}
	pulling := 0
	for _, other := range l.loans {
		if !other.arrived {
			pulling++
		}
	}
	if pulling >= maxLoans {
		return nil, errBusy
	}
	v, err := g.versioned().Version(*s.ref)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			g.snapshots.emptied(s.id)
			g.wantSnapshot()
		}
		return nil, err
	}
	if l.loans == nil {
		l.loans = map[string]*loan{}
	}
	l.loans[member] = &loan{of: s, version: v, at: time.Now()}
	return l.loans[member], nil
}

// end closes a loan. mu is held.
func (l *lending) end(member string) {
	loan := l.loans[member]
	loan.over = true
	if !loan.arrived {
		loan.version.Close()
	}
	delete(l.loans, member)
}

// arrived notes that a member has the version that it was lent.
func (l *lending) arrived(member string, ref Reference) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if loan := l.loans[member]; loan != nil && loan.of.ref.same(ref) && !loan.arrived {
		loan.arrived, loan.at, loan.match = true, time.Now(), loan.of.meta.Index
		loan.version.Close()
	}
}

// floor is up to where the log may go for the sake of what is lent.
func (l *lending) floor() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	floor := uint64(math.MaxUint64)
	for _, loan := range l.loans {
		floor = min(floor, max(loan.of.meta.Index, loan.match))
	}
	return floor
}

// close ends all loans, for good.
func (l *lending) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for member := range l.loans {
		l.end(member)
	}
}

// expire ends loans with which nobody has gone on since a moment, those that are not needed any more, and those that cost too much.
func (g *Group) expire(since time.Time) {
	l := &g.lending
	l.mu.Lock()
	some := len(l.loans) > 0
	l.mu.Unlock()
	if !some {
		return
	}
	log, low, list := g.logBytes(), g.host.space.low(), g.snapshots.all()
	ended := false
	l.mu.Lock()
	for member, loan := range l.loans {
		if match := g.wire.peer(raft.ServerID(member)).match; loan.arrived && match > loan.match {
			loan.match, loan.at = match, time.Now()
		}
		follows := loan.arrived && len(list) >= keptSnapshots && loan.match >= list[keptSnapshots-1].meta.Index
		dear := low || log > loan.most()
		if dear && !follows {
			g.log.Warn("a member takes too long to pull a version, or to follow behind it, for what the log behind that takes: it has to begin anew", "member", member, "index", loan.of.meta.Index, "log", log, "low", low)
		}
		if follows || dear || loan.idle(since) {
			l.end(member)
			ended = true
		}
	}
	l.mu.Unlock()
	if ended {
		g.keep()
		g.trim()
	}
}

// watchLoans ends loans, and a pull, that have gone stale until the group ends, and then all loans.
func (g *Group) watchLoans() {
	g.every(time.Second, func() (goOn bool) {
		g.expire(time.Now().Add(-g.host.pullPatience))
		if ref, some := g.pulls.forsake(g.wire.lease.now() - g.host.pullPatience); some {
			g.log.Info("no leader wants a version to be installed any more: gave it up", "index", ref.Index)
		}
		return true
	})
	g.lending.close()
	g.lending.sending.Wait() // nobody reads the store when the group has ended
}

// lent reports whether a member is still being lent a version.
func (g *Group) lent(member string, ref Reference) bool {
	l := &g.lending
	l.mu.Lock()
	defer l.mu.Unlock()
	loan := l.loans[member]
	return loan != nil && loan.of.ref.same(ref) && !loan.spent()
}

// lend has a member install a version: it is told of it again and again until it has pulled it.
func (w *wire) lend(id raft.ServerID, target raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	g := w.group
	raw, err := io.ReadAll(io.LimitReader(data, referenceSize+1))
	if err != nil {
		return err
	}
	ref, err := decodeReference(raw)
	if err != nil {
		return err
	}
	s, ok := g.snapshots.find(ref)
	if !ok {
		return fmt.Errorf("version %d: %w", ref.Index, fs.ErrNotExist)
	}
	if _, err := g.lend(string(id), s); err != nil {
		return err
	}
	for pause := lendAgain; ; pause = min(2*pause, lendAgainMost) {
		*resp = raft.InstallSnapshotResponse{}
		err := w.NetworkTransport.InstallSnapshot(id, target, req, resp, bytes.NewReader(raw))
		if err == nil && (resp.Success || resp.Term > req.Term) {
			if resp.Success {
				g.lending.arrived(string(id), ref)
			}
			return nil
		}
		if !g.lent(string(id), ref) {
			return errors.Join(fmt.Errorf("member %s did not pull version %d", id, ref.Index), err)
		}
		w.rest(pause)
		if !w.hears(id, req.Term, time.Now().Add(-2*g.cfg.Timers.Heartbeat)) {
			return errCut
		}
	}
}

// find looks for a snapshot by its version.
func (s *snapshots) find(ref Reference) (stored, bool) {
	for _, c := range s.all() {
		if c.ref != nil && !c.hollow && c.ref.same(ref) {
			return c, true
		}
	}
	return stored{}, false
}

// borrow finds what a request asks for, and begins to use it.
func (g *Group) borrow(r pullRequest) (*loan, pullAnswer) {
	refuse := func(gone bool, format string, args ...any) (*loan, pullAnswer) {
		return nil, pullAnswer{Refused: fmt.Sprintf(format, args...), Gone: gone}
	}
	if g.versioned() == nil || r.Member == "" || len(r.Member) > 255 || len(r.Position) > MaxPosition {
		return refuse(true, "the request makes no sense")
	}
	if g.wire.cut.Load() || g.over.Load() {
		return refuse(false, "%v", errCut)
	}
	var of stored
	l := &g.lending
	if r.Index != 0 {
		ref := Reference{Index: r.Index, Hash: r.Hash}
		s, ok := g.snapshots.find(ref)
		if !ok {
			l.mu.Lock()
			if loan := l.loans[r.Member]; loan != nil && loan.of.ref.same(ref) {
				s, ok = loan.of, true
			}
			l.mu.Unlock()
		}
		if !ok {
			return refuse(true, "there is no version %d here", r.Index)
		}
		of = s
	} else {
		list := g.snapshots.all()
		i := slices.IndexFunc(list, func(s stored) bool { return s.ref != nil && !s.hollow && s.meta.Index >= r.Least })
		if i < 0 {
			if g.fsm.applied.Load() >= r.Least {
				g.wantSnapshot()
			}
			return refuse(false, "there is no version of entry %d or later yet", r.Least)
		}
		of = list[i]
	}
	loan, err := g.lend(r.Member, of)
	if err != nil {
		return refuse(errors.Is(err, fs.ErrNotExist), "%v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return refuse(false, "%v", errClosed)
	}
	if l.served >= maxServed {
		return refuse(false, "%v", errBusy)
	}
	l.served++
	l.sending.Add(1)
	loan.users++
	loan.sent += dialBytes
	return loan, pullAnswer{Index: of.ref.Index, Hash: of.ref.Hash, Bytes: of.ref.Bytes, Snapshot: of.meta}
}

// serveVersion answers a member that pulls.
func (g *Group) serveVersion(conn net.Conn) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(g.host.headerTimeout)); err != nil {
		return
	}
	var request pullRequest
	if err := readText(conn, &request); err != nil {
		return
	}
	loan, answer := g.borrow(request)
	if loan == nil {
		_ = writeText(conn, answer)
		return
	}
	defer g.lending.sending.Done()
	defer func() {
		g.lending.mu.Lock()
		g.lending.served--
		loan.users--
		g.lending.mu.Unlock()
	}()
	if err := g.sendVersion(conn, loan, answer, request.Position); err != nil {
		g.log.Debug("sending a version ended", "to", request.Member, "index", answer.Index, "err", err)
	}
}

func (g *Group) sendVersion(conn net.Conn, loan *loan, answer pullAnswer, position []byte) error {
	v, err := g.versioned().Version(answer.reference())
	if err != nil {
		return errors.Join(err, writeText(conn, pullAnswer{Refused: err.Error(), Gone: errors.Is(err, fs.ErrNotExist)}))
	}
	defer v.Close()
	if err := writeText(conn, answer); err != nil {
		return err
	}
	for {
		if err := conn.SetDeadline(time.Now().Add(g.host.pullPatience)); err != nil {
			return err
		}
		piece, next, err := v.Read(position)
		if err != nil {
			return err
		}
		if g.wire.cut.Load() {
			return errCut
		}
		if err := writePiece(conn, piece); err != nil {
			return err
		}
		g.lending.mu.Lock()
		loan.at = time.Now()
		loan.sent += int64(len(piece))
		sent, spent, over := loan.sent, loan.spent(), loan.over
		g.lending.mu.Unlock()
		switch {
		case next == nil:
			return nil
		case over:
			return errors.New("it is not lent any more")
		case spent:
			return fmt.Errorf("%d bytes of a version of about %d were sent", sent, loan.of.ref.Bytes)
		}
		position = next
	}
}
