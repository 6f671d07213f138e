package raftstore

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// wire is the transport of a group. Around raft's own it keeps what raft does not tell: how far each peer's log agrees
// with ours, and which acknowledgements answer requests that were sent after a given moment. In the other direction it
// keeps a joining member from voting.
type wire struct {
	*raft.NetworkTransport
	group *Group
	in    chan raft.RPC
	// inject carries requests of the group to its own raft.
	inject chan raft.RPC
	done   chan struct{}

	// round counts the checks of leadership. A request notes the round in which it was sent.
	round atomic.Uint64
	// waiting: somebody wants to be woken through acked when an acknowledgement comes.
	waiting atomic.Bool
	acked   chan struct{}
	// cut separates the member from its peers: set when it must not be heard any more. silent keeps a leader that gives
	// up from being heard until raft has made it a follower.
	cut, silent atomic.Bool

	// aside is held while a heartbeat is handled beside raft's main loop. The main loop waits for it before it goes on to a
	// new term.
	aside sync.RWMutex

	lease lease
	// lesser has the last candidate who asked for a vote with less of a log than this member's; capacity 1. courted is when one with as much has
	// asked last, by the clock of leases.
	lesser  chan raft.ServerID
	courted atomic.Int64
	// replacing is held while raft takes a leader's snapshot, or makes one: see Group.snapshot.
	replacing sync.Mutex

	mu    sync.Mutex
	peers map[raft.ServerID]peer
	// from is the last leader heard, when, and up to where it had committed. handover is who made this member stand for
	// election.
	from struct {
		leader   string
		term     uint64
		at       time.Time
		commit   uint64
		handover string
	}
}

// peer is what the present leader knows of another member.
type peer struct {
	// term and round belong to the newest request that the peer has accepted.
	term, round uint64
	// match is the last entry that both logs have.
	match   uint64
	contact time.Time
	// sent is when the newest request of raft's that the peer has accepted in term was sent, by the clock of leases.
	sent time.Duration
}

var errCut = errors.New("the member is cut off")

func newWire(g *Group, t *raft.NetworkTransport) *wire {
	w := &wire{
		NetworkTransport: t, group: g,
		in: make(chan raft.RPC), inject: make(chan raft.RPC), done: make(chan struct{}),
		acked: make(chan struct{}, 1), lesser: make(chan raft.ServerID, 1), peers: make(map[raft.ServerID]peer),
	}
	w.from.at = time.Now()
	if w.lease.now = g.cfg.clock; w.lease.now == nil {
		w.lease.now = bootTime
	}
	w.lease.promised.Store(int64(w.lease.now()))
	return w
}

// listen notes what a request tells of the leader.
func (w *wire) listen(rpc raft.RPC) {
	switch request := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		w.promise(request)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.from.leader, w.from.term, w.from.at = string(request.ID), request.Term, time.Now()
		w.from.commit = max(w.from.commit, request.LeaderCommitIndex)
	case *raft.InstallSnapshotRequest:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.from.leader, w.from.term, w.from.at = string(request.ID), request.Term, time.Now()
	case *raft.TimeoutNowRequest:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.from.handover = string(request.ID)
		w.lease.name(request)
	}
}

// heardAt is when a leader was heard last, or the wire was made.
func (w *wire) heardAt() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from.at
}

// commit is up to where leaders have said that they had committed.
func (w *wire) commit() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from.commit
}

// silence says why this member stands for election.
func (w *wire) silence() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	handover := w.from.handover
	w.from.handover = ""
	switch since := time.Since(w.from.at).Round(time.Millisecond); {
	case handover == w.group.host.cfg.ID:
		return "it is the only voter, or was told to"
	case handover != "":
		return handover + " hands over"
	case w.from.leader == "":
		return fmt.Sprintf("no leader was heard for %v since the start", since)
	case w.lease.gone.Load() == w.from.term:
		return fmt.Sprintf("no heartbeat of %s for %v, and its process is gone", w.from.leader, since)
	default:
		return fmt.Sprintf("no heartbeat of %s for %v", w.from.leader, since)
	}
}

// leader is the last leader heard, and its term; nobody before the first.
func (w *wire) leader() (id raft.ServerID, term uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return raft.ServerID(w.from.leader), w.from.term
}

// Consumer implements raft.Transport.
func (w *wire) Consumer() <-chan raft.RPC { return w.in }

// pump carries requests from the network to raft until the wire is closed. Heartbeats do not come this way.
func (w *wire) pump() {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-w.NetworkTransport.Consumer():
			if w.cut.Load() {
				rpc.Respond(nil, errCut)
				continue
			}
			w.listen(rpc)
			w.fit(rpc)
			if w.hasSnapshot(rpc) || w.takesReference(rpc) || w.refusesSnapshot(rpc) || w.takesFrames(rpc) || w.withholds(rpc) {
				continue
			}
		case rpc = <-w.inject:
		case <-w.done:
			return
		}
		w.dispatch(rpc)
	}
}

// dispatch passes a request on to raft, with what raft does not know.
func (w *wire) dispatch(rpc raft.RPC) {
	if w.group.joining.Load() {
		w.passJoining(rpc)
		return
	}
	if request, ok := rpc.Command.(*raft.RequestPreVoteRequest); ok {
		w.passPreVote(rpc, request)
		return
	}
	w.passVote(rpc)
}

// hasSnapshot answers a leader's snapshot that ends in what this member has. It comes late, or from a leader who did not hear this member's
// answers; raft would delete the log, of which the leader may have committed all, and forget configurations in it.
func (w *wire) hasSnapshot(rpc raft.RPC) bool {
	install, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if !ok || !w.contains(install) {
		return false
	}
	w.group.log.Info("this member has what the leader's snapshot has", "index", install.LastLogIndex)
	go func() { // the sender expects all of it to be read
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(w.contained(install), nil)
	}()
	return true
}

// contains reports whether this member has what a leader's snapshot ends with: in its log, or carried out, which may have left the log.
func (w *wire) contains(install *raft.InstallSnapshotRequest) bool {
	r := w.group.raft
	if install.Term != r.CurrentTerm() {
		return false
	}
	var last raft.Log
	if err := w.group.journal.GetLog(install.LastLogIndex, &last); err != nil {
		return install.LastLogIndex <= r.AppliedIndex()
	}
	return last.Term == install.LastLogTerm
}

func (w *wire) contained(install *raft.InstallSnapshotRequest) *raft.InstallSnapshotResponse {
	return &raft.InstallSnapshotResponse{RPCHeader: w.header(), Term: install.Term, Success: true}
}

// takesFrames has a leader's snapshot installed that carries the state itself, beside the pump.
func (w *wire) takesFrames(rpc raft.RPC) bool {
	install, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if ok {
		go w.install(rpc, install, rpc.Reader)
	}
	return ok
}

// install has raft take a leader's snapshot: a reference whose version is here, or frames. One waits for the other: a request that its sender has given up,
// because it took long, may lie behind the one that took the version over, and would take the log back that has come since. And it waits for a snapshot that
// raft makes: see Group.snapshot.
func (w *wire) install(rpc raft.RPC, install *raft.InstallSnapshotRequest, data io.Reader) {
	w.replacing.Lock()
	defer w.replacing.Unlock()
	if w.contains(install) {
		_, _ = io.Copy(io.Discard, data) // the sender expects all of it to be read
		rpc.Respond(w.contained(install), nil)
		return
	}
	answer, origin := make(chan raft.RPCResponse, 1), rpc.RespChan
	rpc.RespChan, rpc.Reader = answer, data
	w.pass(rpc)
	select {
	case a := <-answer:
		origin <- a
	case <-w.done:
		origin <- raft.RPCResponse{Error: raft.ErrTransportShutdown}
	}
}

// fit makes a leader's entries such as raft can take. Of those that this member has carried out, and that have left its log, raft would say that
// they do not fit, and the leader, which has gone back while this member's disk was full, would go back to its snapshot. And raft takes its whole log for
// committed if the leader has committed as much, not only what the leader has seen of it.
func (w *wire) fit(rpc raft.RPC) {
	request, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if !ok || request.PrevLogEntry == 0 || request.Term < w.group.raft.CurrentTerm() {
		return
	}
	if first, err := w.group.journal.FirstIndex(); err == nil && request.PrevLogEntry < first && !w.group.joining.Load() {
		var base raft.Log
		if applied := w.group.raft.AppliedIndex(); applied >= first && w.group.journal.GetLog(applied, &base) == nil {
			known := min(applied-request.PrevLogEntry, uint64(len(request.Entries)))
			request.Entries, request.PrevLogEntry, request.PrevLogTerm = request.Entries[known:], base.Index, base.Term
		}
	}
	request.LeaderCommitIndex = min(request.LeaderCommitIndex, request.PrevLogEntry+uint64(len(request.Entries)))
}

// refusesSnapshot answers a leader's snapshot for which there is no space: that of its file, and of the store that the
// state machine makes of it.
func (w *wire) refusesSnapshot(rpc raft.RPC) bool {
	install, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if !ok {
		return false
	}
	err := w.group.host.space.room(2 * install.Size)
	if err == nil {
		return false
	}
	w.group.log.Warn("no space for the leader's snapshot", "bytes", install.Size, "err", err)
	go func() { // the sender expects all of it to be read
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(nil, err)
	}()
	return true
}

func (w *wire) pass(rpc raft.RPC) {
	select {
	case w.in <- rpc:
	case <-w.done:
		rpc.Respond(nil, raft.ErrTransportShutdown)
	}
}

// passJoining passes a request to a member that may have forgotten entries it acknowledged: one that started empty. A
// vote of such a member could elect a leader that lacks a committed entry. It votes again once it has, in this life,
// accepted a request that reached the end of a leader's log: what it acknowledged before to that leader lies in front of
// that end, and a later leader was elected by members that had not forgotten.
//
// A candidate with nothing but the bootstrap entry is exempt, or a cluster of which one member was bootstrapped and the
// others were started empty would never elect its first leader.
func (w *wire) passJoining(rpc raft.RPC) {
	switch request := rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		if request.LastLogIndex > 1 {
			rpc.Respond(&raft.RequestVoteResponse{RPCHeader: w.header(), Term: w.group.raft.CurrentTerm()}, nil)
			return
		}
	case *raft.RequestPreVoteRequest:
		if request.LastLogIndex > 1 {
			rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: w.header(), Term: w.group.raft.CurrentTerm()}, nil)
			return
		}
	case *raft.AppendEntriesRequest:
		if len(request.Entries) < maxAppendEntries {
			answer := make(chan raft.RPCResponse, 1)
			origin := rpc.RespChan
			rpc.RespChan = answer
			w.pass(rpc)
			select {
			case a := <-answer:
				if r, ok := a.Response.(*raft.AppendEntriesResponse); ok && a.Error == nil && r.Success {
					w.group.joined()
				}
				origin <- a
			case <-w.done:
				origin <- raft.RPCResponse{Error: raft.ErrTransportShutdown}
			}
			return
		}
	}
	w.pass(rpc)
}

func (w *wire) header() raft.RPCHeader {
	id := raft.ServerID(w.group.host.cfg.ID)
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: w.EncodePeer(id, w.LocalAddr())}
}

// electNow makes raft stand for election at once, as if a leader had handed over: a group with one voter need not wait
// for the silence of a leader that cannot exist.
func (w *wire) electNow() {
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: w.header()}, RespChan: answer}
	w.listen(rpc)
	w.lease.standing.Store(anyTerm)
	select {
	case w.inject <- rpc:
	case <-w.done:
	}
}

// nominate makes another member stand for election at once.
func (w *wire) nominate(to raft.Server) {
	request := &raft.TimeoutNowRequest{RPCHeader: w.header()}
	if err := w.TimeoutNow(to.ID, to.Address, request, new(raft.TimeoutNowResponse)); err != nil {
		w.group.log.Warn("the member that should lead does not hear of it; the others elect one when they have missed this one", "to", to.ID, "err", err)
	}
}

// SetHeartbeatHandler implements raft.Transport.
func (w *wire) SetHeartbeatHandler(handle func(raft.RPC)) {
	w.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) { w.heartbeat(rpc, handle) })
}

// heartbeat has a heartbeat handled beside raft's main loop, which may be waiting for a disk, where that changes no term:
// in a follower that is in the leader's. What raft does there is not safe beside its main loop otherwise: it would set a
// term again after the main loop has gone on to the next one, or a new one while the main loop makes a group in term 1.
func (w *wire) heartbeat(rpc raft.RPC, handle func(raft.RPC)) {
	if w.cut.Load() {
		rpc.Respond(nil, errCut)
		return
	}
	w.listen(rpc)
	w.aside.RLock()
	request, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if !ok || w.group.raft.State() != raft.Follower || request.Term != w.group.raft.CurrentTerm() {
		w.aside.RUnlock()
		w.pass(rpc)
		return
	}
	defer w.aside.RUnlock()
	handle(rpc)
}

// AppendEntries implements raft.Transport. What raft replicates, other than its heartbeats, it backs off from for up to
// 10 s after failures, and a member that comes back would be found only then: here a request that does not get through
// is sent again as soon as a heartbeat does.
func (w *wire) AppendEntries(id raft.ServerID, target raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	heartbeat := len(req.Entries) == 0 && req.PrevLogEntry == 0 && req.LeaderCommitIndex == 0
	for {
		err := w.append(id, target, req, resp)
		switch {
		case heartbeat:
			return err
		case err == nil:
			if !resp.Success && !resp.NoRetryBackoff && resp.Term <= req.Term { // it could not store them: its disk is full
				w.rest(refusedPause)
				resp.NoRetryBackoff = true
			}
			return nil
		case !w.hears(id, req.Term, time.Now()):
			return err
		}
	}
}

const (
	// refusedPause is how long a member that could not store entries is left alone.
	refusedPause = 200 * time.Millisecond
	// hearsEvery is how often hears looks.
	hearsEvery = 50 * time.Millisecond
)

// rest waits, and reports whether the group goes on.
func (w *wire) rest(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-w.group.dying:
	case <-w.done:
	}
	return false
}

// hears waits until a member has accepted something in term that came after since. It gives up when this member does not
// lead in that term any more or that one is not in the group.
func (w *wire) hears(id raft.ServerID, term uint64, since time.Time) bool {
	for {
		if p := w.peer(id); p.term == term && p.contact.After(since) {
			return true
		}
		r := w.group.raft
		if w.cut.Load() || w.silent.Load() || r.State() != raft.Leader || r.CurrentTerm() != term ||
			!slices.ContainsFunc(r.GetConfiguration().Configuration().Servers, func(s raft.Server) bool { return s.ID == id }) {
			return false
		}
		select {
		case <-w.group.dying:
			return false
		case <-w.done:
			return false
		case <-time.After(hearsEvery):
		}
	}
}

// append sends one request and notes what its answer says.
func (w *wire) append(id raft.ServerID, target raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if w.cut.Load() || w.silent.Load() {
		return errCut
	}
	round, sent := w.round.Load(), w.lease.now()
	if err := w.NetworkTransport.AppendEntries(id, target, req, resp); err != nil {
		return err
	}
	if !resp.Success || resp.Term > req.Term {
		return nil
	}
	match := req.PrevLogEntry // 0 in a heartbeat
	if n := len(req.Entries); n > 0 {
		match = req.Entries[n-1].Index
	}
	w.accepted(id, req.Term, round, match, sent)
	return nil
}

// accepted notes that a member has accepted what was sent to it in a term and a round: an entry, a heartbeat or a
// question. match is the last entry that both logs have, 0 when the request said nothing about that; sent is when a request of raft's was sent, 0
// for a question, which puts off no election.
func (w *wire) accepted(id raft.ServerID, term, round, match uint64, sent time.Duration) {
	w.mu.Lock()
	p := w.peers[id]
	if p.term < term {
		p = peer{term: term}
	}
	if p.term == term {
		p.round = max(p.round, round)
		if match > 0 {
			p.match = match
		}
	}
	p.contact = time.Now()
	longer := p.term == term && sent > p.sent
	if longer {
		p.sent = sent
	}
	w.peers[id] = p
	if longer {
		w.extend(term)
	}
	w.mu.Unlock()
	w.tell()
}

// tell wakes who waits for acknowledgements.
func (w *wire) tell() {
	if w.waiting.Load() {
		select {
		case w.acked <- struct{}{}:
		default:
		}
	}
}

// peer returns what is known of a member.
func (w *wire) peer(id raft.ServerID) peer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[id]
}

// forget drops what is known of a member: one of that name may come back empty.
func (w *wire) forget(id raft.ServerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.peers, id)
}

// confirmed reports whether a majority of the voters, this member included, has accepted a request that was sent in
// term and not before round.
func (w *wire) confirmed(self raft.ServerID, c raft.Configuration, term, round uint64) bool {
	voters, yes := 0, 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range c.Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if p := w.peers[s.ID]; s.ID == self || p.term == term && p.round >= round {
			yes++
		}
	}
	return yes > voters/2
}

// RequestPreVote implements raft.WithPreVote.
func (w *wire) RequestPreVote(id raft.ServerID, target raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if w.cut.Load() {
		return errCut
	}
	if w.group.holdsBack() || req.LastLogIndex > 1 && w.bound() {
		*resp = raft.RequestPreVoteResponse{RPCHeader: w.header(), Term: req.Term}
		return nil
	}
	return w.NetworkTransport.RequestPreVote(id, target, req, resp)
}

// InstallSnapshot implements raft.Transport. A member that does not answer heartbeats is waited for, as in AppendEntries.
func (w *wire) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if w.cut.Load() || w.silent.Load() {
		return errCut
	}
	if !w.hears(id, req.Term, time.Now().Add(-2*w.group.cfg.Timers.Heartbeat)) {
		return errCut
	}
	if w.group.versioned() != nil {
		return w.lend(id, target, req, resp, data)
	}
	return w.NetworkTransport.InstallSnapshot(id, target, req, resp, data)
}

// Close implements raft.WithClose.
func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.done:
		return nil
	default:
	}
	close(w.done)
	w.NetworkTransport.CloseStreams()
	return w.NetworkTransport.Close()
}

// ballots is the raft.StableStore of a group: the journal, except that a joining member does not vote for itself and that
// the group knows how far it has voted.
type ballots struct {
	raft.StableStore
	group *Group
}

var errJoining = errors.New("this member started empty and does not vote before it has caught up with a leader")

// newBallots learns how far the member has voted in its former lives.
func newBallots(store raft.StableStore, g *Group) (ballots, error) {
	term, err := store.GetUint64([]byte(keyVoteTerm))
	g.voted.Store(term)
	return ballots{store, g}, err
}

// raft's keys.
const (
	keyTerm      = "CurrentTerm"
	keyVoteTerm  = "LastVoteTerm"
	keyCandidate = "LastVoteCand"
)

// SetUint64 implements raft.StableStore. A vote counts as given from here on: sooner than it is stored, and sooner than
// anybody learns of it. A term begins when no heartbeat of the former one is being handled.
func (b ballots) SetUint64(key []byte, v uint64) error {
	switch string(key) {
	case keyVoteTerm:
		b.group.voted.Store(max(v, b.group.voted.Load()))
	case keyTerm:
		if now, err := b.GetUint64(key); err == nil && v > now { // a heartbeat sets no new one
			b.group.wire.aside.Lock()
			defer b.group.wire.aside.Unlock()
		}
	}
	err := b.StableStore.SetUint64(key, v)
	if err != nil {
		b.group.halt()
	}
	return err
}

// Set implements raft.StableStore.
func (b ballots) Set(key, value []byte) error {
	if string(key) == keyCandidate && b.group.joining.Load() && string(value) == b.group.host.cfg.Advertise {
		return errJoining
	}
	return b.StableStore.Set(key, value)
}
