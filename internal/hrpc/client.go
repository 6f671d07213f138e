package hrpc

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ErrClosed is what calls on a client end in after Close.
var ErrClosed = errors.New("connection is closed")

// ErrTimeout marks a connection or call that was given up because no answer came.
var ErrTimeout = errors.New("no answer in time")

// ClientID identifies a client across its connections.
type ClientID [16]byte

// DialConfig says how to connect and as whom.
type DialConfig struct {
	// Protocol is the one announced for the connection; calls may use others. Java servers authorize it. Required.
	Protocol string
	// User acts; RealUser, if not empty, is the authenticated user who acts for User.
	User, RealUser string
	// Token is what the client proves with who it is, in place of claiming a name; nil, or false for the address of a server:
	// it claims User. What it proves is whatever the token says.
	Token func(addr string) (Token, bool)
	// Bearer is the token of a user (usertoken) that is shown where Token has nothing for the server; nil, or empty: none. It is
	// shown within TLS only; on a plain connection within this machine the socket's owner counts. If User is another one,
	// the token's acts for them as a proxy.
	Bearer func() string
	// Login begins an exchange of Kerberos with a server that says which service it is, on which host; nil, or when there is a
	// token: no tickets are shown. Who the client is the tickets say, unless RealUser is set: then User is who that acts for.
	Login func(addr, service, host string, qualities []sasl.Quality) (Initiator, error)
	// Qualities of protection that are taken when a token or a ticket is shown, the preferred one first; default: any, the best first.
	Qualities []sasl.Quality
	// ClientID; the zero value means a random one.
	ClientID ClientID
	// DialTimeout bounds connecting. Default 3 s.
	DialTimeout time.Duration
	// CallTimeout bounds a call whatever its context says. Default 60 s.
	CallTimeout time.Duration
	// Silence closes the connection when calls wait and nothing at all has come for so long: the server hangs. Default
	// CallTimeout.
	Silence time.Duration
	// Doubt, if not nil, is asked once at a time when calls wait and nothing at all has come for DoubtAfter (default 2 s): the connection
	// is closed if it says that another server does this one's work. It is called on a goroutine of its own.
	Doubt      func() bool
	DoubtAfter time.Duration
	// MaxFrame is the largest answer taken, in bytes. Default DefaultMaxFrame.
	MaxFrame int
	// mute, if not nil, is asked likewise when nothing at all has come for wordAfter: the connection is closed if it says that the server has no word for it.
	mute func(c *Client) bool
	// alignment, if not nil, is shared by a client's connections.
	alignment *alignment
	// Dial makes the connection; default a net.Dialer's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (c DialConfig) withDefaults() DialConfig {
	c.DialTimeout = cmp.Or(c.DialTimeout, 3*time.Second)
	c.CallTimeout = cmp.Or(c.CallTimeout, 60*time.Second)
	c.Silence = cmp.Or(c.Silence, c.CallTimeout)
	c.DoubtAfter = cmp.Or(c.DoubtAfter, 2*time.Second)
	c.MaxFrame = cmp.Or(c.MaxFrame, DefaultMaxFrame)
	if c.ClientID == (ClientID{}) {
		c.ClientID = NewClientID()
	}
	if len(c.Qualities) == 0 {
		c.Qualities = []sasl.Quality{sasl.Privacy, sasl.Integrity, sasl.Authentication}
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	return c
}

func (c *DialConfig) bearer() string {
	if c.Bearer == nil {
		return ""
	}
	return c.Bearer()
}

// Client is one connection to one server. Any number of calls may be under way at a time; answers come in any order. It
// is safe for concurrent use.
type Client struct {
	config DialConfig
	addr   string
	conn   net.Conn
	out    *outbox
	layer  sasl.Layer    // protects what is said after an exchange of SASL; nil: nothing does
	wake   chan struct{} // tells the writer that there is something to send; capacity one
	ids    atomic.Int32

	lastRead atomic.Int64 // nanoseconds since started
	started  time.Time
	done     chan struct{} // closed when the connection has failed

	mu       sync.Mutex
	waiting  map[int32]*pending
	err      error
	watching bool
	doubting atomic.Bool
	muting   atomic.Bool
	ignored  bool // a call was given up since an answer came: the server may not be reading
}

// pending is a call that waits for its answer.
type pending struct {
	ready chan struct{} // capacity one: the answer, or err, is there
	since time.Duration // after Client.started
	body  []byte        // the encoded answer; its memory is reused
	err   error
}

var pendings = sync.Pool{New: func() any { return &pending{ready: make(chan struct{}, 1)} }}

// Dial connects to a server and says who calls. The server's opinion of that comes with the answer to the first call.
func Dial(ctx context.Context, addr string, config DialConfig) (*Client, error) {
	config = config.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, config.DialTimeout)
	defer cancel()
	conn, err := config.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Client{
		config:  config,
		addr:    addr,
		conn:    conn,
		wake:    make(chan struct{}, 1),
		started: time.Now(),
		done:    make(chan struct{}),
		waiting: map[int32]*pending{},
	}
	c.out = newOutbox(conn, config.CallTimeout, func(*outbox) {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	})
	frames := newFrames(conn, config.MaxFrame)
	c.out.plain(security.Raw(conn))
	hello := connectionContext(config)
	token, prove := Token{}, false
	if config.Token != nil {
		token, prove = config.Token(addr)
	}
	switch {
	case prove:
		hello.UserInfo = nil // the token says it
		err = c.prove(c.tokenProof(token), &frames)
	case config.Login != nil:
		if prove = true; config.RealUser == "" {
			hello.UserInfo = nil // the ticket says it
		} else {
			hello.UserInfo.RealUser = nil
		}
		err = c.prove(c.loginProof(), &frames)
	case config.bearer() != "" && !within(conn):
		prove = true
		err = c.proveBearer(config.bearer(), &frames)
	}
	if err == nil {
		err = c.add(func(dst []byte) ([]byte, error) {
			if !prove {
				dst = append(dst, magic...)
				dst = append(dst, version, 0, authNone)
			}
			dst, at := beginFrame(dst)
			var room [64]byte
			dst = appendDelimited(dst, appendRequestHeader(room[:0], callContext, -1, config.ClientID[:]))
			if dst, err = appendMessage(dst, hello); err != nil {
				return nil, err
			}
			return endFrame(dst, at), nil
		}, false)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	go c.read(frames)
	go c.write()
	return c, nil
}

func connectionContext(config DialConfig) *hadooppb.IpcConnectionContextProto {
	user := &hadooppb.UserInformationProto{EffectiveUser: &config.User}
	if config.RealUser != "" {
		user.RealUser = &config.RealUser
	}
	return &hadooppb.IpcConnectionContextProto{UserInfo: user, Protocol: &config.Protocol}
}

// Addr is the server's address.
func (c *Client) Addr() string { return c.addr }

// Done is closed when the connection has failed or was closed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection; calls under way return ErrClosed.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	return nil
}

// Call asks the server and waits for the answer, which is decoded into response. Errors: a *RemoteError is the server's;
// a *ConnError means that the connection failed and it is not known whether the call was carried out; ctx.Err().
func (c *Client) Call(ctx context.Context, protocol, method string, request, response Message) error {
	return c.call(ctx, c.ids.Add(1)&0x7fffffff, 0, false, protocol, method, request, response)
}

// ConnError is a failure of the connection to a server, or to make one.
type ConnError struct {
	Addr string
	Err  error
	// Dial: there was no connection, so the call cannot have been carried out.
	Dial bool
}

func (e *ConnError) Error() string {
	if e.Dial {
		return e.Err.Error() // a dial error names the address
	}
	return fmt.Sprintf("connection to %s: %v", e.Addr, e.Err)
}

func (e *ConnError) Unwrap() error { return e.Err }

// call is Call under a number, for the retry of that number. anywhere: a server may answer that does not lead.
func (c *Client) call(ctx context.Context, id, retry int32, anywhere bool, protocol, method string, request, response Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := pendings.Get().(*pending)
	p.err = nil
	p.since = time.Since(c.started)
	alone, err := c.enter(id, p)
	if err != nil {
		return err
	}
	err = c.add(func(dst []byte) ([]byte, error) {
		dst, at := beginFrame(dst)
		var room [256]byte
		header := appendRequestHeader(room[:0], id, retry, c.config.ClientID[:])
		if a := c.config.alignment; a != nil {
			header = appendAlignment(header, a, anywhere)
		}
		dst = appendDelimited(dst, header)
		dst = appendDelimited(dst, appendCallHeader(room[:0], protocol, method))
		var err error
		if dst, err = appendMessage(dst, request); err != nil {
			return nil, err
		}
		return endFrame(dst, at), nil
	}, alone)
	if err != nil {
		c.leave(id, p)
		if c.out.failure() != nil {
			c.fail(err)
			return &ConnError{Addr: c.addr, Err: err}
		}
		return fmt.Errorf("request of %s: %w", method, err)
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
		c.leave(id, p)
		return ctx.Err()
	}
	err = p.err
	if err == nil {
		if err = response.UnmarshalVT(p.body); err != nil {
			err = &ConnError{Addr: c.addr, Err: fmt.Errorf("%w: that of %s: %w", ErrAnswer, method, err)}
		}
	}
	if _, keeps := response.(BodyKeeper); keeps || cap(p.body) > 64<<10 {
		p.body = nil
	}
	pendings.Put(p)
	return err
}

// enter registers a call. alone: it is the only one, so that its caller had better send it than wake the writer, and the
// server takes what it is sent, so that the caller does not block where its context cannot reach it.
func (c *Client) enter(id int32, p *pending) (alone bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false, &ConnError{Addr: c.addr, Err: c.err}
	}
	if c.waiting[id] != nil {
		return false, fmt.Errorf("call id %d is in use on the connection to %s", id, c.addr)
	}
	c.waiting[id] = p
	if !c.watching {
		c.watching = true
		time.AfterFunc(c.watchInterval(), c.watch)
	}
	return len(c.waiting) == 1 && !c.ignored, nil
}

// leave forgets a call that nobody waits for any more. If its answer is being delivered, leave waits for that.
func (c *Client) leave(id int32, p *pending) {
	c.mu.Lock()
	mine := c.waiting[id] == p
	if mine {
		delete(c.waiting, id)
		c.ignored = true
	}
	c.mu.Unlock()
	if !mine {
		<-p.ready
	}
	pendings.Put(p)
}

// claim takes a call whose answer has come.
func (c *Client) claim(id int32) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.waiting[id]
	delete(c.waiting, id)
	c.ignored = false
	return p
}

// watchInterval is how often calls that wait are looked at: often enough for the shortest timeout, at most once a second
// where that is minutes.
func (c *Client) watchInterval() time.Duration {
	shortest := min(c.config.Silence, c.config.CallTimeout)
	if c.config.Doubt != nil {
		shortest = min(shortest, c.config.DoubtAfter)
	}
	if c.config.mute != nil {
		shortest = min(shortest, wordAfter)
	}
	return min(max(shortest/4, 10*time.Millisecond), time.Second)
}

// watch gives up calls that have waited too long, and the connection if it says nothing at all. It runs every
// watchInterval while calls wait.
func (c *Client) watch() {
	now := time.Since(c.started)
	heard := time.Duration(c.lastRead.Load())
	c.mu.Lock()
	if len(c.waiting) == 0 || c.err != nil {
		c.watching = false
		c.mu.Unlock()
		return
	}
	oldest := now
	var late []*pending
	for id, p := range c.waiting {
		oldest = min(oldest, p.since)
		if now-p.since > c.config.CallTimeout {
			delete(c.waiting, id)
			c.ignored = true
			late = append(late, p)
		}
	}
	c.mu.Unlock()
	for _, p := range late {
		p.err = &ConnError{Addr: c.addr, Err: fmt.Errorf("%w (%v)", ErrTimeout, c.config.CallTimeout)}
		p.ready <- struct{}{}
	}
	switch silent := now - max(heard, oldest); {
	case silent > c.config.Silence:
		c.fail(fmt.Errorf("%w: the server has been silent for %v", ErrTimeout, silent.Round(time.Millisecond)))
		return
	case c.config.Doubt != nil && silent > c.config.DoubtAfter && c.doubting.CompareAndSwap(false, true):
		go func() {
			defer c.doubting.Store(false)
			if c.config.Doubt() {
				c.fail(fmt.Errorf("%w: the server has been silent for %v, and another one leads", ErrTimeout, silent.Round(time.Millisecond)))
			}
		}()
	}
	if silent := now - max(heard, oldest); c.config.mute != nil && silent > wordAfter && c.muting.CompareAndSwap(false, true) {
		go func() {
			defer c.muting.Store(false)
			if c.config.mute(c) {
				c.fail(fmt.Errorf("%w: the server has been silent for %v, and has no word when it is asked", ErrTimeout, (silent + wordTime).Round(time.Millisecond)))
			}
		}()
	}
	time.AfterFunc(c.watchInterval(), c.watch)
}

// fail ends the connection and every call on it.
func (c *Client) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	c.out.fail(err)
	c.conn.Close()
	close(c.done)
	for _, p := range waiting {
		p.err = &ConnError{Addr: c.addr, Err: err}
		if remote, ok := errors.AsType[*RemoteError](err); ok {
			p.err = remote
		}
		p.ready <- struct{}{}
	}
}

// write sends what callers leave in the outbox. Letting other goroutines run first makes one system call of many calls.
func (c *Client) write() {
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
		runtime.Gosched()
		if err := c.out.flush(); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Client) read(f frames) {
	known := c.layer != nil // a frame of an answer has come
	var inner frames        // of what was protected
	if c.layer != nil {
		inner, f.limit = newFrames(nil, f.limit), f.limit+wrapOverhead
	}
	for {
		frame, ok, err := f.next()
		if err != nil && !known {
			err = &WrongPortError{Addr: c.addr, Speaks: "something else"}
		} else if err != nil {
			err = fmt.Errorf("%w: %w", ErrAnswer, err)
		} else if err == nil && !ok {
			err = f.fill()
			c.lastRead.Store(int64(time.Since(c.started)))
			if !known {
				err = c.greeted(f.buf[f.start:f.end], err)
			}
		} else if err == nil {
			known = true
			if c.layer == nil {
				err = c.deliver(frame)
			} else if err = c.unwrap(frame, &inner); err != nil && !errors.Is(err, ErrAnswer) {
				err = fmt.Errorf("%w: %w", ErrAnswer, err)
			}
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// greeted looks at the first bytes of a server, and at the error that followed them, for what it is that listens there.
func (c *Client) greeted(first []byte, err error) error {
	switch speaks := spoken(first); {
	case speaks != "":
		return &WrongPortError{Addr: c.addr, Speaks: speaks}
	case len(first) == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return ErrMute
	}
	return err
}

// deliver hands an answer to who waits for it. An error ends the connection.
func (c *Client) deliver(frame []byte) error {
	head, n := cut(frame)
	if n == 0 {
		return fmt.Errorf("%w: no response header", ErrAnswer)
	}
	h, err := parseResponseHeader(head)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	if a := c.config.alignment; a != nil && h.stateID != nil {
		a.learn(*h.stateID)
	}
	var remote *RemoteError
	if h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
		remote = &RemoteError{
			Class:   h.class,
			Message: h.message,
			Detail:  h.detail,
			Fatal:   h.status == hadooppb.RpcResponseHeaderProto_FATAL,
		}
		if remote.Class == "" {
			remote.Class = classIOException
		}
	}
	if h.callID < 0 {
		if remote != nil {
			return remote
		}
		return nil
	}
	p := c.claim(h.callID)
	switch {
	case p == nil: // its caller has left
	case remote != nil:
		p.err = remote
		p.ready <- struct{}{}
	default:
		body, m := cut(frame[n:])
		if m == 0 {
			p.err = &ConnError{Addr: c.addr, Err: fmt.Errorf("%w: no response", ErrAnswer)}
		}
		p.body = append(p.body[:0], body...)
		p.ready <- struct{}{}
	}
	if remote != nil && remote.Fatal {
		return remote
	}
	return nil
}

// NewClientID returns a random one.
func NewClientID() ClientID {
	var id ClientID
	_, _ = rand.Read(id[:]) // never fails
	return id
}
