package hrpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

var standby = &RemoteError{Class: classStandby, Message: "Operation category READ is not supported in state standby."}

// identity is what a retry cache knows of a call.
type identity struct {
	CallID, Retry int32
	ClientID      string
}

// member is a server that answers "ask" as it is told and records who asked.
type member struct {
	addr  string
	stop  func()
	state atomic.Int64 // which it tells who wants to know

	mu   sync.Mutex
	seen []identity
	then func(*Call)
}

func (m *member) set(then func(*Call)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.then = then
}

func (m *member) calls() []identity {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.seen)
}

func newMember(t *testing.T, then func(*Call)) *member {
	m := &member{then: then}
	s := NewServer(ServerConfig{
		Door: security.NewDoor(security.Config{}), Logger: slog.New(slog.DiscardHandler), Drain: 10 * time.Millisecond, State: func() int64 { return m.state.Load() },
	})
	s.Handle(nn, Method{
		Name: "ask", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) {
			m.mu.Lock()
			m.seen = append(m.seen, identity{c.CallID, c.Retry, string(c.ClientID)})
			then := m.then
			m.mu.Unlock()
			then(c)
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.addr = l.Addr().String()
	m.stop = startOn(t, s, l)
	return m
}

func yes(c *Call)        { c.Reply(&hadooppb.RollEditsResponseProto{NewSegmentTxId: new(uint64(c.CallID))}) }
func standingBy(c *Call) { c.Fail(standby) }
func hanging(*Call)      {}
func breaking(c *Call)   { go c.conn.conn.Close() }
func notReady(c *Call)   { c.Fail(&RemoteError{Class: classRetriable, Message: "starting"}) }
func refusing(c *Call) {
	c.Fail(&RemoteError{Class: "java.io.FileNotFoundException", Message: "File does not exist: /x\n\tat Java"})
}
func unreachable() string { return "127.0.0.1:1" }

func newFailover(t *testing.T, config FailoverConfig, addresses ...string) *Failover {
	config.Addresses = addresses
	config.DialTimeout, config.Silence = cmp.Or(config.DialTimeout, time.Minute), cmp.Or(config.Silence, time.Minute) // nobody moves on from a server that is only slow
	config.Protocol = nn
	config.User = "alice"
	config.Logger = slog.New(slog.DiscardHandler)
	f, err := NewFailover(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func ask(ctx context.Context, f *Failover) (uint64, error) {
	var answer hadooppb.RollEditsResponseProto
	err := f.Call(ctx, nn, "ask", new(hadooppb.RollEditsRequestProto), &answer)
	return answer.GetNewSegmentTxId(), err
}

func TestFailoverFindsTheLeaderAndRemembersIt(t *testing.T) {
	a, b := newMember(t, standingBy), newMember(t, yes)
	f := newFailover(t, FailoverConfig{}, unreachable(), a.addr, b.addr)
	for range 3 {
		if _, err := ask(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(a.calls()); n != 1 {
		t.Errorf("the standby was asked %d times", n)
	}
	if f.Active() != b.addr {
		t.Errorf("active is %s", f.Active())
	}
	// Leadership moves: the next call follows.
	a.set(yes)
	b.set(standingBy)
	if _, err := ask(t.Context(), f); err != nil || f.Active() != a.addr {
		t.Errorf("active is %s, %v", f.Active(), err)
	}
}

func TestCallKeepsItsIdentityWhereverItGoes(t *testing.T) {
	a, b := newMember(t, breaking), newMember(t, notReady)
	f := newFailover(t, FailoverConfig{}, a.addr, b.addr)
	var asked atomic.Int32
	b.set(func(c *Call) {
		if asked.Add(1) < 3 {
			notReady(c)
			return
		}
		yes(c)
	})
	id, err := ask(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	clientID := f.ClientID()
	last := int32(-1)
	for _, c := range append(a.calls(), b.calls()...) {
		if uint64(c.CallID) != id || c.ClientID != string(clientID[:]) {
			t.Errorf("call %d of %x, want %d of %x", c.CallID, c.ClientID, id, clientID)
		}
		if c.Retry <= last {
			t.Errorf("retry count %d after %d", c.Retry, last)
		}
		last = c.Retry
	}
	if len(a.calls()) != 1 || len(b.calls()) < 2 {
		t.Errorf("%d and %d calls; a server that is not ready has to be asked again", len(a.calls()), len(b.calls()))
	}
}

func TestOtherErrorsAreReturnedAtOnce(t *testing.T) {
	a, b := newMember(t, refusing), newMember(t, yes)
	f := newFailover(t, FailoverConfig{}, a.addr, b.addr)
	_, err := ask(t.Context(), f)
	remote, ok := errors.AsType[*RemoteError](err)
	if !ok || remote.Class != "java.io.FileNotFoundException" || remote.Error() != "FileNotFoundException: File does not exist: /x" {
		t.Errorf("got %v", err)
	}
	if len(b.calls()) != 0 {
		t.Error("the other server was asked too")
	}
}

func TestUnreachableServersAreAllNamed(t *testing.T) {
	f := newFailover(t, FailoverConfig{Unreachable: 30 * time.Millisecond}, "127.0.0.1:1", "127.0.0.1:2")
	_, err := ask(t.Context(), f)
	if _, ok := errors.AsType[*UnreachableError](err); !ok {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"127.0.0.1:1", "127.0.0.1:2", "connection refused"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestNobodyLeadsUntilTheContextEnds(t *testing.T) {
	a := newMember(t, standingBy)
	f := newFailover(t, FailoverConfig{}, a.addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int32
	a.set(func(c *Call) {
		standingBy(c)
		if asked.Add(1) == 3 {
			cancel()
		}
	})
	_, err := ask(ctx, f)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("got %v", err)
	}
}

func TestCallWithoutDeadlineEndsAllTheSame(t *testing.T) {
	a := newMember(t, standingBy)
	f := newFailover(t, FailoverConfig{DialConfig: DialConfig{CallTimeout: 50 * time.Millisecond}}, a.addr)
	if _, err := ask(context.Background(), f); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v", err)
	}
}

func TestServerThatHangsIsLeft(t *testing.T) {
	a, b := newMember(t, hanging), newMember(t, yes)
	f := newFailover(t, FailoverConfig{DialConfig: DialConfig{Silence: 50 * time.Millisecond}}, a.addr, b.addr)
	if _, err := ask(t.Context(), f); err != nil || f.Active() != b.addr {
		t.Errorf("active is %s, %v", f.Active(), err)
	}
}

func TestRefusedUserIsNotTriedElsewhere(t *testing.T) {
	a, b := newMember(t, yes), newMember(t, yes)
	f := newFailover(t, FailoverConfig{DialConfig: DialConfig{RealUser: "mallory"}}, a.addr, b.addr)
	_, err := ask(t.Context(), f)
	if remote, ok := errors.AsType[*RemoteError](err); !ok || remote.Class != classAuthorization {
		t.Errorf("got %v", err)
	}
}

func TestLeaderDiesUnderManyCalls(t *testing.T) {
	// The servers share a retry cache, as replicated ones do: a call may be carried out once.
	var mu sync.Mutex
	done := map[int32]int{}
	carryOut := func(c *Call) {
		mu.Lock()
		defer mu.Unlock()
		if done[c.CallID] == 0 || c.Retry == 0 {
			done[c.CallID]++
		}
	}
	execute := func(c *Call) {
		carryOut(c)
		yes(c)
	}
	a, b := newMember(t, nil), newMember(t, standingBy)
	var served atomic.Int32
	a.set(func(c *Call) {
		if served.Add(1) > 500 {
			carryOut(c)            // but the answer is lost
			go c.conn.conn.Close() // waits for this handler, on which the connection is read
			return
		}
		execute(c)
	})
	f := newFailover(t, FailoverConfig{}, a.addr, b.addr)
	time.AfterFunc(100*time.Millisecond, func() { a.stop(); b.set(execute) })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 100 {
				if _, err := ask(t.Context(), f); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(done) != 2000 {
		t.Errorf("%d calls, want 2000", len(done))
	}
	for id, n := range done {
		if n != 1 {
			t.Errorf("call %d was carried out %d times", id, n)
		}
	}
}

func TestCloseEndsCallsUnderWay(t *testing.T) {
	a := newMember(t, hanging)
	f := newFailover(t, FailoverConfig{}, a.addr)
	done := make(chan error, 1)
	go func() {
		_, err := ask(context.Background(), f)
		done <- err
	}()
	eventually(t, func() bool { return len(a.calls()) == 1 })
	f.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := ask(t.Context(), f); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestLateAnswerOfAnAbandonedCallIsDropped(t *testing.T) {
	held := make(chan *Call, 1)
	a := newMember(t, func(c *Call) { held <- c })
	c, err := Dial(t.Context(), a.addr, DialConfig{Protocol: nn, User: "alice", DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Call(ctx, nn, "ask", new(hadooppb.RollEditsRequestProto), new(hadooppb.RollEditsResponseProto))
	}()
	late := <-held
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	a.set(yes)
	late.Reply(&hadooppb.RollEditsResponseProto{NewSegmentTxId: new(uint64(99))})
	var answer hadooppb.RollEditsResponseProto
	if err := c.Call(t.Context(), nn, "ask", new(hadooppb.RollEditsRequestProto), &answer); err != nil || answer.GetNewSegmentTxId() == 99 {
		t.Errorf("got %v, %v", &answer, err)
	}
}

func TestServerThatTalksNonsenseEndsTheCall(t *testing.T) {
	for _, nonsense := range []string{"7fffffff00", "0000000100", "00000002ffff", "00000003020800", "HTTP/1.1 400 Bad Request"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if strings.HasPrefix(nonsense, "HTTP") {
				_, _ = io.WriteString(conn, nonsense)
			} else {
				_, _ = conn.Write(unhex(t, nonsense))
			}
			_, _ = io.Copy(io.Discard, conn)
		}()
		c, err := Dial(t.Context(), l.Addr().String(), DialConfig{Protocol: nn, User: "alice", DialTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Call(t.Context(), nn, "ask", new(hadooppb.RollEditsRequestProto), new(hadooppb.RollEditsResponseProto))
		if _, ok := errors.AsType[*ConnError](err); !ok {
			t.Errorf("%q: %v", nonsense, err)
		}
		c.Close()
		l.Close()
	}
}

// A machine that was frozen keeps its connections: calls move when another server says that it leads, and not before.
func TestFrozenServerIsLeftForOneThatLeads(t *testing.T) {
	a, b := newMember(t, hanging), newMember(t, yes)
	var elected, asked atomic.Bool
	f := newFailover(t, FailoverConfig{
		DialConfig: DialConfig{DoubtAfter: 20 * time.Millisecond},
		Leads: func(_ context.Context, addr string) bool {
			if addr == a.addr {
				t.Error("the silent one was asked")
			}
			// Asked a second time the other one leads.
			return asked.Swap(true) && !elected.Swap(true)
		},
	}, a.addr, b.addr)
	f.nodes[1].config.Doubt = nil // on a busy machine it is silent for as long as that
	if _, err := ask(t.Context(), f); err != nil || f.Active() != b.addr || !elected.Load() {
		t.Errorf("active is %s, %v", f.Active(), err)
	}
}

// Calls that look for who leads stop pausing when another call has found it. Who was woken in vain pauses to the end next time.
func TestWhoFindsTheLeaderWakesTheOthers(t *testing.T) {
	a, b := newMember(t, yes), newMember(t, standingBy)
	f := newFailover(t, FailoverConfig{}, b.addr, a.addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	woken, deaf := make(chan bool, 10), make(chan bool, 1)
	for range cap(woken) {
		go func() { woken <- f.seek(ctx, time.Hour, false) }()
	}
	go func() { deaf <- f.seek(ctx, time.Hour, true) }()
	eventually(t, func() bool { return f.seeking.Load() == int32(cap(woken)+1) })
	eventually(t, func() bool {
		if _, err := ask(t.Context(), f); err != nil || f.Active() != a.addr {
			t.Fatalf("active is %s, %v", f.Active(), err)
		}
		return f.seeking.Load() == 1 // one that was about to wait needs another answer
	})
	for range cap(woken) {
		if !<-woken {
			t.Error("a call paused to the end")
		}
	}
	select {
	case <-deaf:
		t.Error("a call that is not to be woken was")
	default:
	}
	cancel()
	if <-deaf {
		t.Error("the end of a call is taken for an answer to another")
	}
}

// A round that takes long, because many ask, is followed by a long pause.
func TestBusyServersAreAskedLessOften(t *testing.T) {
	for _, c := range []struct{ round, least, want time.Duration }{
		{time.Millisecond, earlyPause, earlyPause},
		{40 * time.Millisecond, firstPause, 320 * time.Millisecond},
		{time.Minute, firstPause, lastPause},
	} {
		if got := restedFrom(c.round, c.least); got != c.want {
			t.Errorf("behind %v, at least %v: %v, want %v", c.round, c.least, got, c.want)
		}
	}
}

// A server that answers something else is asked once more, or another one is, and not to the end of the call.
func TestMalformedAnswersEndACall(t *testing.T) {
	garbled := func(c *Call) { c.Reply(&hadooppb.GetFileInfoRequestProto{Src: new("no number")}) }
	one := newMember(t, garbled)
	f := newFailover(t, FailoverConfig{}, one.addr)
	if _, err := ask(t.Context(), f); !errors.Is(err, ErrAnswer) || !strings.Contains(err.Error(), "that of ask") || len(one.calls()) != 2 {
		t.Fatalf("%v, asked %d times", err, len(one.calls()))
	}
	one.set(yes)
	if _, err := ask(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	one.set(garbled)
	two := newMember(t, yes)
	f = newFailover(t, FailoverConfig{}, one.addr, two.addr)
	if _, err := ask(t.Context(), f); err != nil || len(two.calls()) != 1 {
		t.Fatalf("%v, the other one was asked %d times", err, len(two.calls()))
	}
	two.set(garbled)
	if _, err := ask(t.Context(), f); !errors.Is(err, ErrAnswer) {
		t.Fatal(err)
	}
	two.set(standingBy) // and the only one that leads is garbled
	before := len(one.calls())
	if _, err := ask(t.Context(), f); !errors.Is(err, ErrAnswer) || len(one.calls())-before != 2 {
		t.Fatalf("%v, asked %d times", err, len(one.calls())-before)
	}
}

// So is one whose answers are protected.
func TestMalformedProtectionIsAMalformedAnswer(t *testing.T) {
	for name, frame := range map[string][]byte{
		"no header": {0, 0, 0, 1, 0}, "a frame that is too large": {0x7f, 0xff, 0xff, 0xff},
	} {
		here, there := net.Pipe()
		config := DialConfig{}.withDefaults()
		c := &Client{config: config, addr: "server", conn: here, started: time.Now(), done: make(chan struct{}), layer: noLayer{}}
		c.out = newOutbox(here, config.CallTimeout, func(*outbox) {})
		go func() { _, _ = there.Write(frame) }()
		c.read(newFrames(here, config.MaxFrame))
		if there.Close(); !errors.Is(c.err, ErrAnswer) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

// noLayer protects nothing.
type noLayer struct{}

func (noLayer) Wrap(p []byte) ([]byte, error)   { return p, nil }
func (noLayer) Unwrap(p []byte) ([]byte, error) { return p, nil }
