package raftstore

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Questions have connections of their own (stream.go). Each is 16 bytes, as is its answer, big endian:
//
//	question: the leader's term | its round
//	answer:   the same term if the member stands by that leader, else 0 | the same round
//
// A member is asked the next one when it has answered. A question of the term anyTerm is one for a leader (horizon.go), whose answer has an entry in place of
// the term: up to it there is everything that was acknowledged before the question came. 0: the member does not lead, or is of a version that does
// not know the question.
const questionBytes = 16

const (
	// askPatience is how long a round relies on the members it has asked before it asks all others.
	askPatience = 10 * time.Millisecond
	// askLimit is how long an answer may take before its connection is given up.
	askLimit = 5 * time.Second
	// askAgain is how long after a failure a connection is tried again, and after a no its member.
	askAgain = 200 * time.Millisecond
)

// stands reports whether at some moment during the call this member had voted for nobody beyond term and was in it
// itself: whoever leads a later term then, has been elected without it or will be elected later. A member that may have
// forgotten votes never says so.
func (g *Group) stands(term uint64) bool {
	return g.raft.CurrentTerm() == term && g.voted.Load() <= term && !g.joining.Load() && !g.wire.cut.Load()
}

// answer answers questions until the connection ends.
func (g *Group) answer(conn net.Conn) {
	defer conn.Close()
	var b [questionBytes]byte
	for {
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return
		}
		switch term := binary.BigEndian.Uint64(b[:]); {
		case term == anyTerm:
			ctx, cancel := context.WithTimeout(context.Background(), askLimit)
			binary.BigEndian.PutUint64(b[:], g.acknowledged(ctx))
			cancel()
		case !g.stands(term):
			clear(b[:8])
		}
		if g.wire.cut.Load() {
			return
		}
		if _, err := conn.Write(b[:]); err != nil {
			return
		}
	}
}

// inquiry asks the other voters during one reign whether they stand by it.
type inquiry struct {
	group *Group
	reign *reign

	mu    sync.Mutex
	lines []*line // those who answered lately first
	ended bool
	// refused: a member has said no, so that another one has to be asked.
	refused bool
}

// line is the way to one member.
type line struct {
	id   raft.ServerID
	gone context.CancelFunc
	// conn is nil while there is none.
	conn net.Conn
	// asked is the round of the question that is not answered, 0 when there is none, and since when.
	asked uint64
	since time.Time
	// pause is until when the member is not asked, because it has said no.
	pause time.Time
}

// ask sends a question to as many voters as make a majority with this member, and reports whether so many could be
// asked; with all it asks every one that can be asked. One that owes an answer is not asked again.
func (q *inquiry) ask(c raft.Configuration, round uint64, all bool) bool {
	g := q.group
	if g.wire.cut.Load() {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return false
	}
	q.refused = false
	need := q.follow(c)
	var b [questionBytes]byte
	binary.BigEndian.PutUint64(b[:], q.reign.term)
	binary.BigEndian.PutUint64(b[8:], round)
	now := time.Now()
	for _, l := range q.lines {
		if need <= 0 && !all {
			break
		}
		if l.conn == nil || l.asked != 0 || now.Before(l.pause) {
			if l.asked == round {
				need-- // this round's question is under way
			}
			continue
		}
		if _, err := l.conn.Write(b[:]); err != nil { // never waits: there is one question at most in its buffers
			l.drop()
			continue
		}
		l.asked, l.since = round, now
		need--
	}
	return need <= 0
}

// follow keeps a line to every other voter and returns how many of them make a majority with this member. mu is held.
func (q *inquiry) follow(c raft.Configuration) int {
	self := raft.ServerID(q.group.host.cfg.ID)
	voters, me, lines := 0, 0, 0
	for _, s := range c.Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == self {
			me = 1
			continue
		}
		lines++
		if !slices.ContainsFunc(q.lines, func(l *line) bool { return l.id == s.ID }) {
			ctx, gone := context.WithCancel(context.Background())
			l := &line{id: s.ID, gone: gone}
			q.lines = append(q.lines, l)
			go q.serve(ctx, l, s.Address)
		}
	}
	if lines < len(q.lines) {
		q.lines = slices.DeleteFunc(q.lines, func(l *line) bool {
			stays := slices.ContainsFunc(c.Servers, func(s raft.Server) bool { return s.ID == l.id && s.Suffrage == raft.Voter })
			if !stays {
				l.end()
			}
			return !stays
		})
	}
	return voters/2 + 1 - me
}

// again asks others in place of those who have said no, and reports whether enough could be asked.
func (q *inquiry) again(c raft.Configuration, round uint64) bool {
	q.mu.Lock()
	refused := q.refused
	q.mu.Unlock()
	return !refused || q.ask(c, round, false)
}

// late prefers the others to those who owe an answer, and asks them.
func (q *inquiry) late(c raft.Configuration, round uint64) {
	q.mu.Lock()
	slices.SortStableFunc(q.lines, func(a, b *line) int { return int(min(a.asked, 1)) - int(min(b.asked, 1)) })
	for _, l := range q.lines {
		if l.asked != 0 && time.Since(l.since) > askLimit {
			l.drop()
		}
	}
	q.mu.Unlock()
	q.ask(c, round, true)
}

// close ends all lines.
func (q *inquiry) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	for _, l := range q.lines {
		l.end()
	}
}

// drop ends the connection of a line; serve makes another one. mu is held.
func (l *line) drop() {
	if l.conn != nil {
		l.conn.Close()
		l.conn, l.asked = nil, 0
	}
}

// lose ends the connection of a line that has ended at the other end. Who owed an answer on it is asked behind the others from now on. mu is held.
func (q *inquiry) lose(l *line) {
	if i := slices.Index(q.lines, l); i >= 0 && l.asked != 0 {
		q.lines = append(slices.Delete(q.lines, i, i+1), l)
	}
	l.drop()
}

func (l *line) end() {
	l.gone()
	l.drop()
}

// serve keeps a line connected until ctx is done, and takes its answers.
func (q *inquiry) serve(ctx context.Context, l *line, address raft.ServerAddress) {
	g := q.group
	for ctx.Err() == nil {
		if known, err := g.members.ServerAddr(l.id); err == nil {
			address = known
		}
		conn, err := g.streams.dial(ctx, questionMagic, address, askLimit)
		if err == nil {
			q.mu.Lock()
			goesOn := ctx.Err() == nil
			if goesOn {
				l.conn, l.asked = conn, 0
			}
			q.mu.Unlock()
			if goesOn { // else nobody would close it
				q.listen(l, conn)
			}
			q.mu.Lock()
			if l.conn == conn {
				q.lose(l)
			}
			q.mu.Unlock()
			conn.Close()
		}
		select {
		case <-ctx.Done():
		case <-g.dying:
			return
		case <-time.After(askAgain):
		}
	}
}

// listen takes answers until the connection ends.
func (q *inquiry) listen(l *line, conn net.Conn) {
	w := q.group.wire
	var b [questionBytes]byte
	for {
		if _, err := io.ReadFull(conn, b[:]); err != nil || w.cut.Load() {
			return
		}
		term, round := binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
		q.mu.Lock()
		if l.conn != conn || l.asked != round {
			q.mu.Unlock()
			return // not an answer to what was asked
		}
		l.asked = 0
		if term != q.reign.term {
			l.pause, q.refused = time.Now().Add(askAgain), true
		}
		q.mu.Unlock()
		if term == q.reign.term {
			w.accepted(l.id, term, round, 0, 0)
		} else {
			w.tell()
		}
	}
}
