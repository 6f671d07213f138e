package hrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Backoff between rounds over all servers.
const (
	firstPause = 5 * time.Millisecond
	// earlyPause is the longest in the first earlyFor of a call: a leader whose process has ended is replaced within some tenths of a second.
	earlyPause = 100 * time.Millisecond
	earlyFor   = 3 * time.Second
	lastPause  = 500 * time.Millisecond
	// restful is how many times longer than the round a pause is, up to lastPause: the busier clients make the servers, or each other, the longer they
	// pause.
	restful = 8
	// sharedPause is the longest where calls share their pauses.
	sharedPause = time.Second
	// patientFor is how long a call is tried before anybody is told, and how long a server that nobody has ever heard of is.
	patientFor = time.Second
	// maxMute is how often a single server that has never answered may hang up without a word.
	maxMute = 3
)

// FailoverConfig describes a Failover.
type FailoverConfig struct {
	DialConfig
	// Addresses of the servers, host:port each; at least one.
	Addresses []string
	// Unreachable is how long a call tries while no server can be connected to at all. Default 10 s, but 1 s for a single
	// server that has never answered: there is nobody to move to, and nothing says that it is coming.
	Unreachable time.Duration
	// Leaderless is how long a call tries while some server stands by and no other one accepts a connection; 0: to its end.
	Leaderless time.Duration
	// Leads, if not nil, asks a server whether it leads. When the one that is asked is silent, the others are asked that way, and calls move
	// to one that says so: a machine that was frozen keeps its connections.
	Leads func(ctx context.Context, addr string) bool
	// Waiting, if not nil, is called when a call has been tried for a second and goes on being tried, once for each call,
	// with what keeps it waiting. It must not block.
	Waiting func(why error)
	// Reading, if not nil, has Read ask servers that do not lead.
	Reading *Reading
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

// Failover calls whichever of several servers leads. It connects when it has to, remembers who answered last, and moves
// on when a server stands by, cannot be reached or loses the connection. A call keeps its identity (client id, call id)
// however often it is sent, and says how often that was, so a server that has carried it out already can answer without
// doing so again. It is safe for concurrent use.
type Failover struct {
	config FailoverConfig
	log    *slog.Logger
	nodes  []*node
	// observers; nil: Read is Call.
	observers *observers
	active    atomic.Int32
	ids       atomic.Int32
	heard     atomic.Bool // some server has answered a call
	closed    chan struct{}
	once      sync.Once

	// seeking is how many calls pause because nobody leads.
	seeking atomic.Int32
	mu      sync.Mutex
	found   chan struct{} // closed when a call is answered; nil while nobody waits for that
}

// NewFailover makes a Failover; it connects at the first call.
func NewFailover(config FailoverConfig) (*Failover, error) {
	if len(config.Addresses) == 0 {
		return nil, errors.New("no server address is given")
	}
	if len(config.Addresses) > 1 {
		config.Silence = cmp.Or(config.Silence, 10*time.Second)
	}
	config.DialConfig = config.DialConfig.withDefaults()
	f := &Failover{config: config, log: config.Logger, closed: make(chan struct{})}
	if f.log == nil {
		f.log = slog.Default()
	}
	if config.Reading != nil {
		f.observers = newObservers(f, *config.Reading)
		config.alignment = f.observers.alignment
	}
	for _, addr := range config.Addresses {
		n := &node{addr: addr, config: config.DialConfig}
		if config.Leads != nil && len(config.Addresses) > 1 {
			n.config.Doubt = func() bool { return f.anotherLeads(addr) }
		}
		if config.Reading != nil && config.Reading.Word != "" {
			n.config.mute = func(c *Client) bool { return f.Active() != addr && !f.observers.word(c) }
		}
		f.nodes = append(f.nodes, n)
	}
	return f, nil
}

// anotherLeads asks all servers but one whether they lead.
func (f *Failover) anotherLeads(silent string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), f.config.DialTimeout)
	defer cancel()
	answers := make(chan bool, len(f.nodes))
	asked := 0
	for _, n := range f.nodes {
		if n.addr != silent {
			asked++
			go func() { answers <- f.config.Leads(ctx, n.addr) }()
		}
	}
	for range asked {
		select {
		case leads := <-answers:
			if leads {
				return true
			}
		case <-f.closed:
			return false
		}
	}
	return false
}

// ClientID is the identity of all its calls.
func (f *Failover) ClientID() ClientID { return f.config.ClientID }

// Active is the address of the server that is asked first.
func (f *Failover) Active() string { return f.nodes[f.active.Load()].addr }

// Close ends all connections; calls under way and later ones return ErrClosed.
func (f *Failover) Close() error {
	f.once.Do(func() { close(f.closed) })
	for _, n := range f.nodes {
		n.close()
	}
	return nil
}

// UnreachableError says what each server was tried with.
type UnreachableError struct {
	Addresses []string
	Errors    []error
}

func (e *UnreachableError) Error() string {
	if len(e.Errors) == 1 && e.Errors[0] != nil {
		if wrong, ok := errors.AsType[*WrongPortError](e.Errors[0]); ok {
			return wrong.Error()
		}
	}
	var parts []string
	standby := false
	for i, addr := range e.Addresses {
		text := "not tried"
		if e.Errors[i] != nil {
			text = e.Errors[i].Error()
			if remote, ok := errors.AsType[*RemoteError](e.Errors[i]); ok && remote.Standby() {
				text, standby = "it is a standby, it does not lead", true
			}
		}
		if strings.Contains(text, addr) {
			parts = append(parts, text)
		} else {
			parts = append(parts, addr+": "+text)
		}
	}
	if standby {
		return "no server leads, a majority of them must run: " + strings.Join(parts, "; ")
	}
	return "no server answers: " + strings.Join(parts, "; ")
}

// Unwrap gives the causes.
func (e *UnreachableError) Unwrap() []error {
	var errs []error
	for _, err := range e.Errors {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Call asks the leading server and decodes its answer into response. It tries until ctx is done, or for the configured
// call timeout if ctx has no deadline. Errors: *RemoteError from the server; *UnreachableError naming every server when
// none led in time; ErrAnswer after two malformed answers; ctx.Err(), wrapped; ErrClosed.
func (f *Failover) Call(ctx context.Context, protocol, method string, request, response Message) error {
	id := f.ids.Add(1) & 0x7fffffff
	at := f.active.Load()
	err := f.try(ctx, at, id, 0, protocol, method, request, response)
	if err == nil || !f.again(ctx, err) {
		return err
	}
	return f.persist(ctx, at, err, id, protocol, method, request, response)
}

func (f *Failover) try(ctx context.Context, at, id, retry int32, protocol, method string, request, response Message) error {
	c, err := f.nodes[at].get(ctx, f.closed)
	if err != nil {
		return err
	}
	err = c.call(ctx, id, retry, false, protocol, method, request, response)
	if err == nil && f.heard.Load() && f.seeking.Load() == 0 {
		return nil
	}
	remote, _ := errors.AsType[*RemoteError](err)
	if err == nil || remote != nil {
		f.heard.Store(true)
	}
	if err == nil || remote != nil && !remote.Standby() && !remote.Retriable() {
		f.tell(at)
	}
	return err
}

// tell wakes the calls that look for who leads, because a server has answered one.
func (f *Failover) tell(at int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		f.active.Store(at)
		close(f.found)
		f.found = nil
	}
}

// seek is the pause of a call that has found nobody who leads: between half of it and all of it, so that many clients do not come back at once. The calls
// of one client share their pauses: each is as many times longer as there are, and the first that is answered ends all; so the client asks as often
// as one with a single call. deaf: an answer to another call does not end it. woken: one did.
func (f *Failover) seek(ctx context.Context, pause time.Duration, deaf bool) (woken bool) {
	n := time.Duration(f.seeking.Add(1))
	defer f.seeking.Add(-1)
	var found chan struct{}
	if !deaf {
		f.mu.Lock()
		if f.found == nil {
			f.found = make(chan struct{})
		}
		found = f.found
		f.mu.Unlock()
	}
	return f.pause(ctx, max(pause, min(n*pause, sharedPause)), found)
}

// restedFrom is how long a call pauses behind a round that took so long, at least so long as it would behind one that took no time.
func restedFrom(round, least time.Duration) time.Duration {
	return max(least, min(restful*round, lastPause))
}

// pause waits between half of a time and all of it, or until found is closed, which it reports.
func (f *Failover) pause(ctx context.Context, pause time.Duration, found <-chan struct{}) bool {
	wait := time.NewTimer(pause/2 + rand.N(pause/2))
	defer wait.Stop()
	select {
	case <-found:
		return true
	case <-wait.C:
	case <-ctx.Done():
	case <-f.closed:
	}
	return false
}

// unreachable is how long a call is tried while there is no connection to any server.
func (f *Failover) unreachable() time.Duration {
	switch {
	case f.config.Unreachable > 0:
		return f.config.Unreachable
	case len(f.nodes) == 1 && !f.heard.Load():
		return patientFor
	}
	return 10 * time.Second
}

// final reports whether what the servers were tried with last leaves no hope, now that mute connections in a row were
// ended by the other side without a word.
func (f *Failover) final(causes []error, mute int) bool {
	if mute >= maxMute && len(f.nodes) == 1 && !f.heard.Load() {
		causes[0] = &ConnError{Addr: f.nodes[0].addr, Err: &WrongPortError{Addr: f.nodes[0].addr}}
	}
	for _, err := range causes {
		if err == nil || !hopeless(err) {
			return false
		}
	}
	return true
}

// again reports whether another attempt makes sense.
func (f *Failover) again(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, ErrClosed) {
		return false
	}
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		return remote.Standby() || remote.Retriable()
	}
	_, broken := errors.AsType[*ConnError](err)
	return broken
}

// persist repeats a call whose first attempt, at one server, failed with err.
func (f *Failover) persist(ctx context.Context, at int32, err error, id int32, protocol, method string, request, response Message) error {
	started := time.Now()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.config.CallTimeout, ErrTimeout)
		defer cancel()
	}
	causes := make([]error, len(f.nodes))
	reached := false // some server had a connection
	pause := firstPause
	tried, round := 1, started // servers tried in this round, which began then
	mute, told, woken := 0, false, false
	garbled := false
	for retry := int32(1); ; retry++ {
		causes[at] = err
		if errors.Is(err, ErrMute) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			mute++
		} else {
			mute = 0
		}
		if errors.Is(err, ErrAnswer) { // the next one may answer better, or another call may have spoilt the connection
			if garbled {
				return err
			}
			garbled = true
		}
		if f.final(causes, mute) {
			return &UnreachableError{Addresses: f.config.Addresses, Errors: causes}
		}
		if !told && f.config.Waiting != nil && time.Since(started) > patientFor {
			told = true
			f.config.Waiting(&UnreachableError{Addresses: f.config.Addresses, Errors: slices.Clone(causes)})
		}
		if broken, ok := errors.AsType[*ConnError](err); !ok || !broken.Dial {
			reached = true
		}
		remote, _ := errors.AsType[*RemoteError](err)
		stay := remote != nil && remote.Retriable()
		if !stay {
			f.log.Debug("server does not answer the call, trying the next", "server", f.nodes[at].addr, "method", method, "error", err)
			at = f.leave(at)
		}
		if stay || tried >= len(f.nodes) {
			if !reached && time.Since(started) > f.unreachable() {
				return &UnreachableError{Addresses: f.config.Addresses, Errors: causes}
			}
			if limit := f.config.Leaderless; limit > 0 && time.Since(started) > limit && leaderless(causes) {
				return &UnreachableError{Addresses: f.config.Addresses, Errors: causes}
			}
			most := lastPause
			if stay {
				f.pause(ctx, pause, nil)
			} else {
				if woken = f.seek(ctx, restedFrom(time.Since(round), pause), woken); woken { // in vain once, it is not woken again
					at = f.active.Load()
				}
				if time.Since(started) < earlyFor {
					most = earlyPause
				}
			}
			pause = min(2*pause, most)
			tried, round = 0, time.Now()
		}
		select {
		case <-f.closed:
			return ErrClosed
		default:
		}
		if ctx.Err() == nil {
			err = f.try(ctx, at, id, retry, protocol, method, request, response)
			tried++
			if err == nil || !f.again(ctx, err) && ctx.Err() == nil {
				return err
			}
			if ctx.Err() != nil { // what it was refused with before is not what became of it
				causes[at] = fmt.Errorf("%w, before: %v", err, causes[at]) //nolint:errorlint // that is no cause any more
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w: %w", method, context.Cause(ctx), &UnreachableError{Addresses: f.config.Addresses, Errors: causes})
		}
	}
}

// leaderless reports whether every server stands by or has no connection.
func leaderless(causes []error) bool {
	return !slices.ContainsFunc(causes, func(err error) bool {
		if remote, ok := errors.AsType[*RemoteError](err); ok {
			return !remote.Standby()
		}
		_, broken := errors.AsType[*ConnError](err)
		return !broken
	})
}

// leave moves away from a server, unless somebody has done so already, and returns whom to ask now.
func (f *Failover) leave(at int32) int32 {
	f.active.CompareAndSwap(at, (at+1)%int32(len(f.nodes)))
	return f.active.Load()
}

// node is one server and, once it was needed, the connection to it.
type node struct {
	addr   string
	config DialConfig

	mu      sync.Mutex
	client  *Client
	dialing chan struct{} // closed when the attempt under way has ended
	err     error         // of the last attempt
	shut    bool
}

// get returns a live connection, making one if need be. Callers that come while one is being made share it.
func (n *node) get(ctx context.Context, closed <-chan struct{}) (*Client, error) {
	n.mu.Lock()
	for {
		if n.shut {
			n.mu.Unlock()
			return nil, ErrClosed
		}
		if n.client != nil {
			select {
			case <-n.client.Done():
				n.client = nil
			default:
				c := n.client
				n.mu.Unlock()
				return c, nil
			}
		}
		mine := n.dialing == nil
		if mine {
			n.dialing = make(chan struct{})
			go n.dial(n.dialing)
		}
		dialing := n.dialing
		n.mu.Unlock()
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-closed:
			return nil, ErrClosed
		}
		n.mu.Lock()
		if n.client == nil && n.err != nil {
			err := n.err
			n.mu.Unlock()
			return nil, &ConnError{Addr: n.addr, Err: err, Dial: true}
		}
	}
}

// dial belongs to all who wait for it, so it ends with its own timeout and not with one caller's context.
func (n *node) dial(done chan struct{}) {
	c, err := Dial(context.Background(), n.addr, n.config)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && n.shut {
		c.Close()
		c, err = nil, ErrClosed
	}
	n.client, n.err = c, err
	n.dialing = nil
	close(done)
}

func (n *node) close() {
	n.mu.Lock()
	n.shut = true
	c := n.client
	n.client = nil
	n.mu.Unlock()
	if c != nil {
		c.Close()
	}
}
