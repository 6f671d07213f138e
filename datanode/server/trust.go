package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Times of what a datanode believes.
const (
	// tokenLife is how long a token is good that this datanode signs for a transfer of its own.
	tokenLife = time.Hour
	// formerPeer is how long a datanode is known that no namenode names any more. One that has just started has not yet
	// heard of all.
	formerPeer = 5 * time.Minute
	// askTime and askAllTime are what trust's fields are, but in tests.
	askTime    = 3 * time.Second
	askAllTime = time.Second
	// askSpacing is the least time between two rounds of asking: who guesses tokens does not make a datanode ask all day.
	askSpacing = 100 * time.Millisecond
)

// trust is whom the datanode trusts: the bearers of tokens signed by the cluster's keys, and the datanodes that some
// namenode knows. It implements transfer.Trust.
type trust struct {
	user string // for whom own tokens are signed
	// ask has namenodes tell what they know now: the one that leads, or all.
	ask func(ctx context.Context, all bool)
	// askTime is how long a request waits for namenodes to be asked about a key or a datanode that is not known.
	askTime time.Duration
	// askAllTime bounds a round to all namenodes, for which requests wait that only want the one that leads.
	askAllTime time.Duration
	keys       atomic.Pointer[security.BlockKeys]

	mu    sync.Mutex
	named map[string][]string  // by namenode: the datanodes it names
	peers map[string]time.Time // all of them; with a time: named no more since then
	next  *round               // to begin, nil if nobody wants one
	want  chan struct{}        // capacity 1: there is a next round
}

// round is one time that namenodes are asked.
type round struct {
	all  bool // of them, not only the one that leads
	done chan struct{}
}

func newTrust(user string, ask func(ctx context.Context, all bool)) *trust {
	return &trust{
		user: user, ask: ask, askTime: askTime, askAllTime: askAllTime,
		named: map[string][]string{}, peers: map[string]time.Time{}, want: make(chan struct{}, 1),
	}
}

// learn takes what a namenode says. Of the keys the newest count: a namenode that lags knows fewer.
func (t *trust) learn(namenode string, m *pb.Trust, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []security.BlockKey
	for _, k := range m.GetKeys() {
		keys = append(keys, security.BlockKey{ID: k.GetId(), Key: k.GetKey()})
	}
	if told := security.NewBlockKeys(keys); told.Newest() >= t.keys.Load().Newest() {
		t.keys.Store(told)
	}
	t.named[namenode] = m.GetDatanodes()
	peers := make(map[string]time.Time, len(t.peers))
	for addr, since := range t.peers {
		if since.IsZero() {
			since = now
		}
		if now.Sub(since) < formerPeer {
			peers[addr] = since
		}
	}
	for _, list := range t.named {
		for _, addr := range list {
			peers[addr] = time.Time{}
		}
	}
	t.peers = peers
}

// forget drops what a namenode has said of datanodes, because it is none of the list any more.
func (t *trust) forget(namenode string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.named, namenode)
}

// Check implements transfer.Trust.
func (t *trust) Check(ctx context.Context, tok security.Token, pool string, b metadata.BlockID, mode security.BlockMode) error {
	err := t.keys.Load().Check(tok, pool, b, mode, time.Now())
	if errors.Is(err, security.ErrBlockKey) {
		t.refresh(ctx, false)
		if err = t.keys.Load().Check(tok, pool, b, mode, time.Now()); errors.Is(err, security.ErrBlockKey) {
			return fmt.Errorf("%w, ask the namenode for the block's locations again", err)
		}
	}
	return err
}

// Password implements transfer.Trust.
func (t *trust) Password(ctx context.Context, identifier []byte) ([]byte, error) {
	password, err := t.keys.Load().Password(identifier, time.Now())
	if errors.Is(err, security.ErrBlockKey) {
		t.refresh(ctx, false)
		password, err = t.keys.Load().Password(identifier, time.Now())
	}
	return password, err
}

// EncryptionKey implements transfer.Trust.
func (t *trust) EncryptionKey(ctx context.Context, id int32, nonce []byte) ([]byte, int32, error) {
	key, id, err := t.keys.Load().EncryptionKey(id, nonce)
	if errors.Is(err, security.ErrBlockKey) {
		t.refresh(ctx, false)
		key, id, err = t.keys.Load().EncryptionKey(id, nonce)
	}
	return key, id, err
}

// Sign implements transfer.Trust.
func (t *trust) Sign(pool string, b metadata.BlockID, mode security.BlockMode) security.Token {
	return t.keys.Load().Sign(security.BlockGrant{User: t.user, Pool: pool, Block: b, Modes: mode}, time.Now().Add(tokenLife))
}

// Datanode implements transfer.Trust. A namenode may have told a client of a datanode that has just registered, before it
// told this one; and that may be another one than the one that is believed to lead.
func (t *trust) Datanode(ctx context.Context, addr string) error {
	if t.isPeer(addr) {
		return nil
	}
	for _, all := range []bool{false, true} {
		t.refresh(ctx, all)
		if t.isPeer(addr) {
			return nil
		}
	}
	return metadata.Errorf(metadata.ErrPermission, "%s is not a datanode of this cluster, nothing is sent there", addr)
}

func (t *trust) isPeer(addr string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, ok := t.peers[addr]
	return ok && (since.IsZero() || time.Since(since) < formerPeer)
}

// refresh waits until the namenode that leads, or all, have been asked after it was called, or for askTime.
func (t *trust) refresh(ctx context.Context, all bool) {
	t.mu.Lock()
	r := t.next
	if r == nil {
		r = &round{done: make(chan struct{})}
		t.next = r
		poke(t.want)
	}
	r.all = r.all || all
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, t.askTime)
	defer cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
	}
}

// run asks the namenodes when somebody wants it, until ctx is done.
func (t *trust) run(ctx context.Context) {
	for {
		select {
		case <-t.want:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		r := t.next
		t.next = nil
		all := r.all
		t.mu.Unlock()
		limit := t.askTime
		if all {
			limit = t.askAllTime
		}
		call, cancel := context.WithTimeout(ctx, limit)
		t.ask(call, all)
		cancel()
		close(r.done)
		select {
		case <-time.After(askSpacing):
		case <-ctx.Done():
			return
		}
	}
}

// askTrust asks the leader, and all namenodes if they are meant, none is known to lead or it does not answer.
func (s *Server) askTrust(ctx context.Context, all bool) {
	if n := s.leader(); !all && n != nil && n.fetchTrust(ctx) == nil {
		return
	}
	var g sync.WaitGroup
	for _, n := range s.all() {
		g.Go(func() { _ = n.fetchTrust(ctx) })
	}
	g.Wait()
}

// fetchTrust asks one namenode.
func (n *session) fetchTrust(ctx context.Context) error {
	m, err := n.client.GetTrust(ctx, &pb.GetTrustRequest{})
	if err != nil {
		return fmt.Errorf("trust: %w", pb.FromStatus(err))
	}
	n.trust.learn(n.addr, m, time.Now())
	n.trusted.Store(m.GetVersion())
	return nil
}

// trusts asks the namenode whenever it has said that its trust is another one.
func (n *session) trusts(ctx context.Context) error {
	for {
		select {
		case <-n.untold:
		case <-ctx.Done():
			return ctx.Err()
		}
		call, cancel := context.WithTimeout(ctx, callTime)
		err := n.fetchTrust(call)
		cancel()
		if err != nil {
			return err
		}
	}
}
