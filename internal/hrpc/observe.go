package hrpc

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Reading says how a Failover's Read asks servers that do not lead.
type Reading struct {
	// MaxStaleness is how old a state may be that is answered from, 1 ms at least: an answer contains all that was acknowledged so long before the call began.
	// 0: there is no limit, as with Hadoop's observers. An answer never is of an older state than this client has seen.
	MaxStaleness time.Duration
	// Sync asks the server that leads, by the Failover's Call, for nothing but its state. It comes before the first read without MaxStaleness, and then when
	// SyncEvery has passed since the last; 0: never again; less: before each read.
	Sync      func(ctx context.Context) error
	SyncEvery time.Duration
	// Rest is how long a server that fails or refuses is left alone at the most. 0: 30 s; less: not at all.
	Rest time.Duration
	// Word is a method without arguments. A server that reads wait for in silence is asked for it, and left if it says nothing, be it an error, either: it hangs. "": it is waited for as
	// long as the DialConfig says.
	Word string
}

// alignment is what the connections of a client have seen of the servers' states (HDFS-12943), and how old one may be.
type alignment struct {
	seen      atomic.Int64
	staleness time.Duration
}

// learn notes a state that a server has told.
func (a *alignment) learn(state int64) {
	for seen := a.seen.Load(); seen < state && !a.seen.CompareAndSwap(seen, state); seen = a.seen.Load() {
	}
}

const (
	// refusalsBorne is how many reads in a row a server may refuse before it is left alone: it may be behind for a moment.
	refusalsBorne = 3
	// A server that fails or refuses is left alone for firstRest, and twice as long each time until it answers again, up to what Reading says, or lastRest.
	firstRest, lastRest = 100 * time.Millisecond, 30 * time.Second
	// A server of which nothing comes for wordAfter is asked for a word, for which it has wordTime.
	wordAfter, wordTime = 250 * time.Millisecond, 500 * time.Millisecond
)

// observers are the servers of a Failover as Read sees them.
type observers struct {
	Reading
	failover  *Failover
	alignment *alignment
	synced    atomic.Int64  // by clock, when the last Sync began that succeeded; 0: none
	syncing   chan struct{} // capacity 1: held during a Sync that others wait for

	mu    sync.Mutex
	at    int // who is asked, as long as it answers
	nodes []observer
}

// observer is one of them.
type observer struct {
	refused int           // reads in a row
	pause   time.Duration // the last one; 0: it has answered since
	until   time.Duration // by clock: it is left alone until then
	trying  bool          // a read, or a question for a word, finds out whether it answers again
	mute    bool          // it was silent: no read waits for it before it has said a word
}

func newObservers(f *Failover, r Reading) *observers {
	o := &observers{
		Reading: r, failover: f, alignment: &alignment{staleness: r.MaxStaleness}, syncing: make(chan struct{}, 1),
		at: rand.IntN(len(f.config.Addresses)), nodes: make([]observer, len(f.config.Addresses)),
	}
	o.alignment.seen.Store(math.MinInt64) // as Hadoop's clients have it
	return o
}

// Read is Call for what changes nothing and may be answered by a server that does not lead, where the configuration has a Reading. One that is connected is
// asked first, the same as long as it answers; whatever keeps it from answering, the call goes on as Call's. So no read waits for a connection
// to be made, and a server that is down or behind costs the reads that are under way there, and then one now and then; one that hangs costs those under way three quarters of a second, and no others.
func (f *Failover) Read(ctx context.Context, protocol, method string, request, response Message) error {
	o := f.observers
	if o == nil {
		return f.Call(ctx, protocol, method, request, response)
	}
	at, c := o.pick()
	if c == nil {
		return f.Call(ctx, protocol, method, request, response)
	}
	if err := o.sync(ctx); err != nil {
		o.tried(at)
		return err
	}
	err := c.call(ctx, f.ids.Add(1)&0x7fffffff, 0, true, protocol, method, request, response)
	remote, answered := errors.AsType[*RemoteError](err)
	switch {
	case err == nil, answered && !remote.Standby() && !remote.Retriable() && !remote.Fatal:
		o.good(at)
		return err
	case ctx.Err() != nil:
		o.tried(at)
		return err
	case answered && remote.OneCall():
		o.good(at)
	case answered && !remote.Fatal:
		o.refusal(at)
	default:
		o.rest(at, o.Word != "" && errors.Is(err, ErrTimeout))
	}
	f.log.Debug("server does not answer the read, asking the one that leads", "server", f.nodes[at].addr, "method", method, "error", err)
	return f.Call(ctx, protocol, method, request, response)
}

// pick returns a connection to a server that is to be asked first, nil: there is none but to the one that leads. One that was left alone has one read at a time until
// it has answered: it may be silent, which takes long to find out.
func (o *observers) pick() (at int, c *Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	leads, now := int(o.failover.active.Load()), clock()
	for i := range o.nodes {
		at := (o.at + i) % len(o.nodes)
		n := &o.nodes[at]
		if at == leads || now < n.until || n.trying {
			continue
		}
		c := o.failover.nodes[at].ready()
		switch {
		case c == nil:
			n.rest(o.Rest)
		case n.mute:
			n.trying = true
			go o.revive(at, c)
		default:
			o.at, n.trying = at, n.pause > 0
			return at, c
		}
	}
	return 0, nil
}

// tried is for a read that has not found out whether a server answers.
func (o *observers) tried(at int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodes[at].trying = false
}

func (o *observers) good(at int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodes[at] = observer{}
}

func (o *observers) refusal(at int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := &o.nodes[at]
	n.trying = false
	if n.refused++; n.refused >= refusalsBorne {
		n.rest(o.Rest)
	}
}

func (o *observers) rest(at int, mute bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := &o.nodes[at]
	n.trying, n.mute = false, n.mute || mute
	n.rest(o.Rest)
}

// revive finds out whether a server that was silent has a word now.
func (o *observers) revive(at int, c *Client) {
	if o.word(c) {
		o.good(at)
	} else {
		o.rest(at, true)
	}
}

// word reports whether a server says anything at all when it is asked.
func (o *observers) word(c *Client) bool {
	ctx, cancel := context.WithTimeout(context.Background(), wordTime)
	defer cancel()
	heard := c.lastRead.Load()
	err := c.call(ctx, o.failover.ids.Add(1)&0x7fffffff, 0, false, c.config.Protocol, o.Word, nothing{}, nothing{})
	_, answered := errors.AsType[*RemoteError](err)
	return err == nil || answered || c.lastRead.Load() != heard
}

// nothing is a request without arguments, and an answer that nobody looks at.
type nothing struct{}

func (nothing) SizeVT() int                                { return 0 }
func (nothing) MarshalToSizedBufferVT([]byte) (int, error) { return 0, nil }
func (nothing) UnmarshalVT([]byte) error                   { return nil }

// rest has it left alone, for most at the longest. Reads that end badly at the same time are one reason, not many.
func (n *observer) rest(most time.Duration) {
	now := clock()
	if now < n.until {
		return
	}
	n.refused, n.pause = 0, min(max(2*n.pause, firstRest), max(cmp.Or(most, lastRest), 0))
	n.until = now + n.pause
}

// sync makes sure that this client has seen what it wants its reads to show.
func (o *observers) sync(ctx context.Context) error {
	switch {
	case o.MaxStaleness > 0 || o.current():
		return nil
	case o.SyncEvery < 0:
		return o.Sync(ctx)
	}
	select {
	case o.syncing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-o.syncing }()
	if o.current() {
		return nil
	}
	began := clock()
	err := o.Sync(ctx)
	if err == nil {
		o.synced.Store(int64(began))
	}
	return err
}

// current reports whether the last Sync will do.
func (o *observers) current() bool {
	at := time.Duration(o.synced.Load())
	return at != 0 && o.SyncEvery >= 0 && (o.SyncEvery == 0 || clock()-at < o.SyncEvery)
}

// ready returns a live connection, nil: there is none. One is being made then, for another time.
func (n *node) ready() *Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client != nil {
		select {
		case <-n.client.Done():
			n.client = nil
		default:
			return n.client
		}
	}
	if !n.shut && n.dialing == nil {
		n.dialing = make(chan struct{})
		go n.dial(n.dialing)
	}
	return nil
}
