package hrpc

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// observe is ask by Read.
func observe(ctx context.Context, f *Failover) (uint64, error) {
	var answer hadooppb.RollEditsResponseProto
	err := f.Read(ctx, nn, "ask", new(hadooppb.RollEditsRequestProto), &answer)
	return answer.GetNewSegmentTxId(), err
}

// number answers with one.
func number(n uint64) func(*Call) {
	return func(c *Call) { c.Reply(&hadooppb.RollEditsResponseProto{NewSegmentTxId: &n}) }
}

// answeredBy reads until the server that answers with a number does.
func answeredBy(t *testing.T, f *Failover, n uint64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got, err := observe(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no read is answered by %d", n)
		}
	}
}

func TestTheHeaderSaysWhatWasSeen(t *testing.T) {
	t.Parallel()
	base := appendRequestHeader(nil, 5, 2, []byte("0123456789abcdef"))
	for _, c := range []struct {
		name            string
		staleness       time.Duration
		anywhere        bool
		seen            int64
		aligned         bool
		staleAtTheOther time.Duration
	}{
		{name: "as Hadoop's clients", seen: 7, aligned: true},
		{name: "as Hadoop's clients that have seen nothing", seen: math.MinInt64, aligned: true, anywhere: true},
		{name: "a limit, to the server that leads", seen: 7, staleness: 1500 * time.Millisecond},
		{name: "a limit", seen: 7, staleness: 1500 * time.Millisecond, anywhere: true, staleAtTheOther: 1500 * time.Millisecond},
		{name: "a limit beyond all", seen: math.MinInt64, staleness: 1 << 62, anywhere: true, staleAtTheOther: maxStaleness},
	} {
		a := &alignment{staleness: c.staleness}
		a.seen.Store(c.seen)
		h, err := parseRequestHeader(appendAlignment(base[:len(base):len(base)], a, c.anywhere))
		if err != nil || h.callID != 5 || h.retry != 2 || h.stateID != c.seen || !h.told || h.aligned != c.aligned || h.staleness != c.staleAtTheOther {
			t.Errorf("%s: %+v, %v", c.name, h, err)
		}
	}
	if h, err := parseRequestHeader(base); err != nil || h.told || h.aligned || h.staleness != 0 {
		t.Errorf("a header that says nothing: %+v, %v", h, err)
	}
}

func TestReadsGoToAServerThatDoesNotLead(t *testing.T) {
	leads, other := newMember(t, number(1)), newMember(t, nil)
	var wrong atomic.Int32
	other.set(func(c *Call) {
		if c.Staleness != time.Second || !c.Told || c.Aligned {
			wrong.Add(1)
		}
		number(2)(c)
	})
	f := newFailover(t, FailoverConfig{Reading: &Reading{MaxStaleness: time.Second}}, leads.addr, other.addr)
	answeredBy(t, f, 2)
	for range 10 {
		if n, err := observe(t.Context(), f); n != 2 || err != nil {
			t.Fatalf("%d, %v: want the server that has answered before", n, err)
		}
	}
	if n, err := ask(t.Context(), f); n != 1 || err != nil {
		t.Fatalf("%d, %v: want what is no read to go to who leads", n, err)
	}
	if wrong.Load() > 0 {
		t.Fatal("a read does not say how old its answer may be")
	}
	other.set(refusing)
	if _, err := observe(t.Context(), f); err == nil || leads.calls() == nil {
		t.Fatal("an error is an answer")
	}
}

func TestReadsShowWhatTheClientHasSeen(t *testing.T) {
	leads, other := newMember(t, number(1)), newMember(t, nil)
	var seen atomic.Int64
	other.set(func(c *Call) {
		if !c.Aligned || c.Staleness != 0 {
			seen.Store(-1)
		} else {
			seen.Store(c.StateID)
		}
		number(2)(c)
	})
	var syncs atomic.Int32
	var f *Failover
	reading := &Reading{Sync: func(ctx context.Context) error {
		syncs.Add(1)
		_, err := ask(ctx, f)
		return err
	}}
	f = newFailover(t, FailoverConfig{Reading: reading}, leads.addr, other.addr)
	leads.state.Store(7)
	answeredBy(t, f, 2)
	if seen.Load() != 7 || syncs.Load() != 1 {
		t.Fatalf("it is asked for %d, behind %d questions for what is newest", seen.Load(), syncs.Load())
	}
	leads.state.Store(9)
	if _, err := ask(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if n, err := observe(t.Context(), f); n != 2 || err != nil || seen.Load() != 9 || syncs.Load() != 1 {
		t.Fatalf("%d, %v: asked for %d, behind %d questions", n, err, seen.Load(), syncs.Load())
	}
	f.observers.SyncEvery = -1
	leads.state.Store(12)
	if n, err := observe(t.Context(), f); n != 2 || err != nil || seen.Load() != 12 || syncs.Load() != 2 {
		t.Fatalf("%d, %v: asked for %d, behind %d questions", n, err, seen.Load(), syncs.Load())
	}
}

func TestAServerThatRefusesReadsIsLeftAlone(t *testing.T) {
	leads, other := newMember(t, number(1)), newMember(t, number(2))
	f := newFailover(t, FailoverConfig{Reading: &Reading{MaxStaleness: time.Second}}, leads.addr, other.addr)
	answeredBy(t, f, 2)
	for _, refuse := range []func(*Call){standingBy, notReady} {
		other.set(refuse)
		o := f.observers
		o.nodes[1] = observer{}
		for pause := firstRest; pause <= 2*firstRest; pause *= 2 {
			before := len(other.calls())
			for range refusalsBorne {
				if n, err := observe(t.Context(), f); n != 1 || err != nil {
					t.Fatalf("%d, %v: want the answer of who leads", n, err)
				}
			}
			if asked := len(other.calls()) - before; asked != refusalsBorne || o.nodes[1].pause != pause {
				t.Fatalf("it was asked %d times, and is left alone for %v; want %v", asked, o.nodes[1].pause, pause)
			}
			o.nodes[1].until = clock() + time.Hour
			if n, err := observe(t.Context(), f); n != 1 || err != nil || len(other.calls())-before != refusalsBorne {
				t.Fatalf("%d, %v: it is not left alone", n, err)
			}
			o.nodes[1].until = 0
		}
	}
	other.set(number(2))
	if n, err := observe(t.Context(), f); n != 2 || err != nil || f.observers.nodes[1] != (observer{}) {
		t.Fatalf("%d, %v: it answers again", n, err)
	}
	// What it says of one call says nothing of the others.
	other.set(func(c *Call) { c.Fail(&RemoteError{Class: classObserverRetry, Message: "ask the leader"}) })
	for range 2 * refusalsBorne {
		if n, err := observe(t.Context(), f); n != 1 || err != nil || f.observers.nodes[1] != (observer{}) {
			t.Fatalf("%d, %v, %+v: want the answer of who leads", n, err, f.observers.nodes[1])
		}
	}
	// It is left alone no longer than the client's configuration says.
	other.set(standingBy)
	for _, most := range []time.Duration{-1, firstRest / 2, 3 * firstRest} {
		f.observers.Rest, f.observers.nodes[1] = most, observer{}
		for range 5 {
			f.observers.nodes[1].until = 0
			f.observers.rest(1, false)
		}
		if got, want := f.observers.nodes[1].pause, max(most, 0); got != want {
			t.Errorf("left alone for %v, want %v", got, want)
		}
	}
}

func TestOneReadTriesAServerThatWasLeftAlone(t *testing.T) {
	leads, other := newMember(t, number(1)), newMember(t, number(2))
	f := newFailover(t, FailoverConfig{Reading: &Reading{MaxStaleness: time.Second}}, leads.addr, other.addr)
	answeredBy(t, f, 2)
	f.observers.nodes[1] = observer{pause: firstRest}
	asked, release := make(chan struct{}), make(chan struct{})
	other.set(func(c *Call) {
		close(asked)
		c.Go(func() {
			<-release
			number(2)(c)
		})
	})
	tried := make(chan uint64, 1)
	go func() {
		n, _ := observe(t.Context(), f)
		tried <- n
	}()
	<-asked
	for range 3 {
		if n, err := observe(t.Context(), f); n != 1 || err != nil {
			t.Fatalf("%d, %v: want the answer of who leads while another read waits", n, err)
		}
	}
	other.set(number(2))
	close(release)
	if n := <-tried; n != 2 {
		t.Fatalf("the read that tries: %d", n)
	}
	if n, err := observe(t.Context(), f); n != 2 || err != nil {
		t.Fatalf("%d, %v: it has answered", n, err)
	}
}

func TestReadsOutliveAServer(t *testing.T) {
	leads, other := newMember(t, number(1)), newMember(t, number(2))
	f := newFailover(t, FailoverConfig{Reading: &Reading{MaxStaleness: time.Second}}, leads.addr, other.addr)
	answeredBy(t, f, 2)
	other.set(breaking)
	if n, err := observe(t.Context(), f); n != 1 || err != nil {
		t.Fatalf("%d, %v: want the answer of who leads", n, err)
	}
	other.stop()
	for range 100 {
		if n, err := observe(t.Context(), f); n != 1 || err != nil {
			t.Fatalf("%d, %v: want the answer of who leads", n, err)
		}
	}
}

// Nothing goes out that a handler doubts when it is made, be it an error.
func TestADoubtfulAnswerIsNone(t *testing.T) {
	m := newMember(t, nil)
	f := newFailover(t, FailoverConfig{}, m.addr)
	old := &RemoteError{Class: "java.io.IOException", Message: "old"}
	for _, answer := range []func(*Call){yes, refusing} {
		m.set(func(c *Call) {
			c.Doubt = func() error { return old }
			answer(c)
		})
		var remote *RemoteError
		if _, err := ask(t.Context(), f); !errors.As(err, &remote) || remote.Message != "old" {
			t.Fatalf("%v", err)
		}
		m.set(func(c *Call) {
			c.Doubt = func() error { return nil }
			answer(c)
		})
		if _, err := ask(t.Context(), f); errors.As(err, &remote) && remote.Message == "old" {
			t.Fatalf("%v", err)
		}
	}
}

// A server that hangs holds up the reads that are under way there for less than a second, and no others until it has said a word. One that is only slow is waited for.
func TestReadsLeaveAServerThatHangs(t *testing.T) {
	t.Parallel()
	leads, other := newMember(t, number(1)), newMember(t, number(2))
	f := newFailover(t, FailoverConfig{Reading: &Reading{MaxStaleness: time.Second, Word: "ask"}}, leads.addr, other.addr)
	answeredBy(t, f, 2)
	var reads, words atomic.Int32
	other.set(func(c *Call) {
		if c.Staleness > 0 {
			reads.Add(1)
		} else {
			words.Add(1)
		}
	})
	began := time.Now()
	if n, err := observe(t.Context(), f); n != 1 || err != nil {
		t.Fatalf("%d, %v: want the answer of who leads", n, err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a read waits for a server that hangs, for %v", took)
	}
	for asked := words.Load(); words.Load() < asked+3; time.Sleep(time.Millisecond) {
		if n, err := observe(t.Context(), f); n != 1 || err != nil {
			t.Fatalf("%d, %v: want the answer of who leads", n, err)
		}
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("%d reads have waited for it, want that which found out", n)
	}
	other.set(number(2))
	answeredBy(t, f, 2)
}

func TestReadsWaitForAServerThatIsSlow(t *testing.T) {
	t.Parallel()
	leads, other := newMember(t, number(1)), newMember(t, number(2))
	f := newFailover(t, FailoverConfig{Reading: &Reading{MaxStaleness: time.Second, Word: "anything"}}, leads.addr, other.addr)
	answeredBy(t, f, 2)
	other.set(func(c *Call) {
		c.Go(func() {
			time.Sleep(2 * (wordAfter + wordTime)) // it is slow
			number(2)(c)
		})
	})
	if n, err := observe(t.Context(), f); n != 2 || err != nil {
		t.Fatalf("%d, %v: want the answer of who is slow, and says that there is no such method", n, err)
	}
}
