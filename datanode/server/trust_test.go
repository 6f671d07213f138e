package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const testPool = "BP-lab"

// tokenOfKey is what a namenode signs whose newest key is id + 1.
func tokenOfKey(id int32, expires time.Time) security.Token {
	var keys []security.BlockKey
	for i := id; i <= id+1; i++ {
		keys = append(keys, security.BlockKey{ID: i, Key: fmt.Appendf(nil, "%032d", i)})
	}
	return security.NewBlockKeys(keys).Sign(security.BlockGrant{User: "ann", Pool: testPool, Block: 7, Modes: security.ReadBlock}, expires)
}

func (s *Server) transferAddr() string {
	return net.JoinHostPort(s.id.Ip, strconv.Itoa(int(s.id.TransferPort)))
}

// A token of a key that the datanode was not told of yet is good: it asks. One that nobody knows is refused, and many of
// them do not make the datanode ask all the time.
func TestUnknownKeysAreAskedFor(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	d, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, d)
	good := func(tok security.Token) error {
		return d.trust.Check(t.Context(), tok, testPool, 7, security.ReadBlock)
	}
	check(t, good(tokenOfKey(1, time.Now().Add(time.Minute))))
	n.mu.Lock()
	n.silent, n.lastKey = true, 5 // it does not tell by itself
	n.mu.Unlock()
	check(t, good(tokenOfKey(4, time.Now().Add(time.Minute))))
	check(t, good(tokenOfKey(3, time.Now().Add(time.Minute)))) // one that was rolled meanwhile

	if err := good(tokenOfKey(1, time.Now().Add(time.Minute))); !errors.Is(err, security.ErrBlockToken) {
		t.Errorf("a key that is gone: %v", err)
	}
	n.mu.Lock()
	before := n.asked
	n.mu.Unlock()
	began := time.Now()
	const many = 200
	errs := make(chan error, many)
	for range many {
		go func() { errs <- good(tokenOfKey(900, time.Now().Add(time.Minute))) }()
	}
	for range many {
		if err := <-errs; !errors.Is(err, security.ErrBlockKey) {
			t.Errorf("a key that nobody knows: %v", err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if took := time.Since(began); n.asked-before > 2+int(took/askSpacing) {
		t.Errorf("the namenode was asked %d times in %v", n.asked-before, took)
	}
}

// A datanode that has just registered is known by the time it is needed; a stranger is never.
func TestDatanodesOfTheClusterAreKnown(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	a, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, a)
	b, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, b)
	check(t, a.trust.Datanode(t.Context(), b.transferAddr())) // by asking, or because it was told
	within(t, "the change is told", func() bool { return a.trust.isPeer(b.transferAddr()) && b.trust.isPeer(a.transferAddr()) })
	n.mu.Lock()
	n.hidden, n.silent = b.UUID(), true
	n.mu.Unlock()
	if err := a.trust.Datanode(t.Context(), "127.0.0.1:1"); metadata.KindOf(err) != metadata.ErrPermission {
		t.Errorf("a stranger: %v", err)
	}
	if err := a.trust.Datanode(t.Context(), "localhost:"+strconv.Itoa(int(b.id.TransferPort))); err == nil {
		t.Error("a name that nobody registered is known")
	}
	check(t, a.trust.Datanode(t.Context(), b.transferAddr())) // named no more, but lately
}

func TestWhatNamenodesSayIsMerged(t *testing.T) {
	tr := newTrust("dn", func(context.Context, bool) {})
	now := time.Now()
	keys := func(ids ...int32) (out []*pb.BlockKey) {
		for _, id := range ids {
			out = append(out, &pb.BlockKey{Id: id, Key: []byte("key")})
		}
		return out
	}
	tr.learn("leader", &pb.Trust{Keys: keys(3, 4, 5), Datanodes: []string{"a:1", "b:1"}}, now)
	tr.learn("lagging", &pb.Trust{Keys: keys(2, 3, 4), Datanodes: []string{"a:1"}}, now)
	tr.learn("empty", nil, now)
	if got := tr.keys.Load().Newest(); got != 5 {
		t.Errorf("the newest key is %d", got)
	}
	known := func(at time.Duration) (out string) {
		tr.learn("empty", nil, now.Add(at)) // time passes
		for _, addr := range []string{"a:1", "b:1"} {
			if tr.isPeer(addr) {
				out += addr + " "
			}
		}
		return out
	}
	if got := known(0); got != "a:1 b:1 " {
		t.Errorf("known: %s", got)
	}
	tr.learn("leader", &pb.Trust{Keys: keys(3, 4, 5), Datanodes: []string{"a:1"}}, now)
	if got := known(formerPeer - time.Second); got != "a:1 b:1 " {
		t.Errorf("soon after: %s", got)
	}
	if got := known(formerPeer + time.Second); got != "a:1 " {
		t.Errorf("long after: %s", got)
	}
}

// The namenode that is believed to lead does not know a datanode that another one has told a client of.
func TestAllNamenodesAreAskedAboutADatanode(t *testing.T) {
	var tr *trust
	rounds := make(chan bool, 10)
	tr = newTrust("dn", func(_ context.Context, all bool) {
		rounds <- all
		tr.learn("believed", &pb.Trust{Datanodes: []string{"a:1"}}, time.Now())
		if all {
			tr.learn("other", &pb.Trust{Datanodes: []string{"a:1", "b:1"}}, time.Now())
		}
	})
	tr.askTime, tr.askAllTime = time.Minute, time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tr.run(ctx)
	}()
	for _, addr := range []string{"a:1", "b:1"} {
		if err := tr.Datanode(t.Context(), addr); err != nil {
			t.Error(err)
		}
	}
	cancel()
	<-done
	close(rounds)
	var asked []bool
	for all := range rounds {
		asked = append(asked, all)
	}
	if !slices.Equal(asked, []bool{false, false, true}) {
		t.Errorf("all were asked: %v", asked)
	}
}

// Hadoop's clients show a block token when they ask a datanode for the length of a block. It makes nobody a user.
func TestBlockTokenOnTheIPCPort(t *testing.T) {
	var keys []metadata.BlockKey
	for id := range int32(2) {
		keys = append(keys, metadata.BlockKey{ID: id + 1, Seed: metadata.KeySeed(fmt.Sprintf("%032d", id))})
	}
	secret := security.NewSecret()
	s := &Server{log: slog.New(slog.DiscardHandler), trust: newTrust("hdfs", func(context.Context, bool) {}), cfg: Config{
		Door: security.NewDoor(security.Config{Here: func(_, _ netip.Addr) bool { return false }}),
	}}
	known := secret.BlockKeys(keys)
	s.trust.keys.Store(known)
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.ipcServer().Serve(ctx, l) }()
	defer func() { cancel(); <-done }()
	ask := func(tok *security.Token, method string, request, answer hrpc.Message) error {
		config := hrpc.DialConfig{Protocol: clientDatanodeProtocol, User: "blk_1_1", DialTimeout: time.Minute}
		if tok != nil {
			config.Token = func(string) (hrpc.Token, bool) {
				return hrpc.Token{Identifier: tok.Identifier, Password: tok.Password}, true
			}
		}
		c, err := hrpc.Dial(t.Context(), l.Addr().String(), config)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Call(t.Context(), clientDatanodeProtocol, method, request, answer)
	}
	info := func(tok *security.Token) error {
		return ask(tok, "getDatanodeInfo", new(hadooppb.GetDatanodeInfoRequestProto), new(hadooppb.GetDatanodeInfoResponseProto))
	}
	good := known.Sign(security.BlockGrant{User: s.cfg.Door.Daemon(), Pool: "p", Block: 1, Modes: security.ReadBlock}, time.Now().Add(time.Hour))
	old := known.Sign(security.BlockGrant{User: "ann", Pool: "p", Block: 1}, time.Now().Add(-time.Hour))
	if err := info(&good); err != nil {
		t.Errorf("a bearer: %v", err)
	}
	for _, c := range []struct {
		who, words string
		err        error
	}{
		{"a stranger without", "SIMPLE authentication is not enabled.  Available:[TOKEN]", info(nil)},
		{"one whose token has expired", "it has expired", info(&old)},
		{"one without the password", "Mismatched response", info(&security.Token{Identifier: good.Identifier, Password: []byte("guess")})},
		{
			"the bearer of a superuser's token, as superuser", "Superuser privilege is required",
			ask(&good, "triggerBlockReport", &hadooppb.TriggerBlockReportRequestProto{Incremental: new(false)}, new(hadooppb.TriggerBlockReportResponseProto)),
		},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.words) {
			t.Errorf("%s: %v, want %s", c.who, c.err, c.words)
		}
	}
}
