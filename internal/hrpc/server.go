package hrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
)

// Method is one method of a protocol.
type Method struct {
	// Name is the method's name on the wire.
	Name string
	// New makes an empty request.
	New func() Message
	// Right is what the caller needs.
	Right security.Right
	// Answer is about how many bytes it takes to make an answer that is made at once, and to hold it until it is sent. One
	// that turns out to be larger asks Call.Admit. Default 1 KiB.
	Answer int64
	// Command is what the audit log calls the method; empty: only refusals are recorded, under its name. Read: it changes
	// nothing.
	Command string
	Read    bool
	// CommandOf is what the audit log calls a call, given its request; nil: Command.
	CommandOf func(Message) string
	// Operation is what a refusal calls the method, given its request; nil: its name.
	Operation func(Message) string
	// Passing says that nothing of a call is looked at once it is answered and Handle has returned, by what it has begun neither: its memory,
	// and that of its request but for what the fields of that point to, serves other calls.
	Passing bool
	// Waits says that a call takes as long as its caller wants to wait for something, so that it is never slow.
	Waits bool
	// Source says that the first field of a request is the path that it is about.
	Source bool
	// Handle serves a call. It runs on the connection's reader and must not block: it answers with Reply or Fail before
	// it returns, or later from any goroutine; Serve waits for those of Call.Go. Every call must be answered exactly once; further answers go nowhere and are
	// counted. A panic becomes an error reply.
	Handle func(*Call)
	// Batch, if not nil, may answer calls that have come together, where a request is a path and nothing else (Source). It runs on the connection's reader, must
	// not block, and answers with Batch.Reply the first of them, as many as it can at once and without an error; the one behind is Handle's, as all of them are
	// where the audit log keeps the method, or there is no room. The others may come in another batch.
	Batch func(*Batch)

	requests *sync.Pool // of empty requests, of a Passing method; nil: each has its own
}

// ServerConfig describes a Server.
type ServerConfig struct {
	// Door decides who may call; required.
	Door *security.Door
	// Offers are the methods of SASL by which callers may prove who they are, the preferred one first. SIMPLE, which is a name
	// without proof, is for connections from where the door lets it count.
	Offers []Offer
	// Name is the user name that a claim stands for; nil: the claim itself.
	Name func(p *security.Peer, claimed string) string
	// Exception names the Java class and the message for an error that a handler fails with. Default: an IOException
	// with the error's text. A *RemoteError goes out as it is.
	Exception func(error) (class, message string)
	// State is the state of this server, a number that never falls on one server, and by which states of all servers compare; nil: it has none. What
	// an answer tells is in it.
	State func() int64
	// Prefetch, if not nil, is told the paths that the next calls of a connection are about, where several have arrived together. It may
	// bring what they will look for nearer, no more: they are not checked yet, and may never be served. paths are not kept.
	Prefetch func(paths [][]byte)
	// MaxInFlight calls of one connection, and MaxHeld bytes that they and their answers hold; reading stops until some are
	// answered. Defaults 4096 and 8 MiB.
	MaxInFlight int
	MaxHeld     int64
	// MaxFrame is the largest request, in bytes. Default DefaultMaxRequest.
	MaxFrame int
	// Requests and Answers bound the bytes that all connections hold together. Default: those of the process.
	Requests, Answers *security.Budget
	// FirstByte is how long a peer may take until it has said who it is. Default 20 s.
	FirstByte time.Duration
	// FrameTime is how long the rest of a frame may take to arrive. Default 2 min.
	FrameTime time.Duration
	// Idle is how long a connection without calls in flight may be silent. Default 10 min.
	Idle time.Duration
	// WriteTime is how long a peer may take to read what it asked for. Default 1 min.
	WriteTime time.Duration
	// Drain is how long calls in flight may take when the server stops. Default 1 s.
	Drain time.Duration
	// Slow is told of calls that take too long; nil: nobody is.
	Slow *slowlog.Operation
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

func (c ServerConfig) withDefaults() ServerConfig {
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 4096)
	c.MaxHeld = cmp.Or(c.MaxHeld, 8<<20)
	c.MaxFrame = cmp.Or(c.MaxFrame, DefaultMaxRequest)
	if c.Requests == nil {
		c.Requests = security.Requests()
	}
	if c.Answers == nil {
		c.Answers = security.Answers()
	}
	c.FirstByte = cmp.Or(c.FirstByte, 20*time.Second)
	c.FrameTime = cmp.Or(c.FrameTime, 2*time.Minute)
	c.Idle = cmp.Or(c.Idle, 10*time.Minute)
	c.WriteTime = cmp.Or(c.WriteTime, time.Minute)
	c.Drain = cmp.Or(c.Drain, time.Second)
	if c.Name == nil {
		c.Name = func(_ *security.Peer, claimed string) string { return claimed }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Exception == nil {
		c.Exception = func(err error) (string, string) { return classIOException, err.Error() }
	}
	return c
}

type protocol struct {
	name    string
	methods map[string]*Method
}

// Server serves protocols on any number of listeners.
type Server struct {
	config    ServerConfig
	protocols map[string]*protocol // complete before Serve, read-only from then on
	flusher   flusher
	batches   bool // a method has a Batch

	mu    sync.Mutex
	conns map[*serverConn]struct{}
	again atomic.Int64 // for Counts
	// ended is what closed connections have done.
	ended Counts
}

// Counts are what a Server has done since it was made.
type Counts struct {
	// Connections that are open now.
	Connections int
	// Calls that were taken in, and of them those that ended in an exception.
	Calls, Failures int64
	// Answered calls, how long they waited for the calls before them on their connection, and how long it took to answer them then.
	Answered     int64
	Queued, Took time.Duration
	// Again are answers to calls that were answered before: mistakes of handlers.
	Again int64
}

func (n Counts) add(c *serverConn) Counts {
	n.Calls, n.Failures, n.Answered = n.Calls+c.calls.Load(), n.Failures+c.failures.Load(), n.Answered+c.answered.Load()
	n.Queued, n.Took = n.Queued+time.Duration(c.queued.Load()), n.Took+time.Duration(c.took.Load())
	return n
}

// Counts adds up over all connections.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.ended
	n.Connections, n.Again = len(s.conns), s.again.Load()
	for c := range s.conns {
		n = n.add(c)
	}
	return n
}

// NewServer makes a server without methods.
func NewServer(config ServerConfig) *Server {
	if config.Door == nil {
		panic("hrpc: a server needs a door")
	}
	return &Server{
		config:    config.withDefaults(),
		protocols: map[string]*protocol{},
		conns:     map[*serverConn]struct{}{},
	}
}

// Handle registers a method, before Serve. A method that is incomplete, has no right or is there already panics.
func (s *Server) Handle(name string, m Method) {
	if name == "" || m.Name == "" || m.New == nil || m.Handle == nil {
		panic(fmt.Sprintf("hrpc: method %q of %q is incomplete", m.Name, name))
	}
	if !m.Right.Valid() {
		panic(fmt.Sprintf("hrpc: method %s of %s says no right", m.Name, name))
	}
	p := s.protocols[name]
	if p == nil {
		p = &protocol{name: name, methods: map[string]*Method{}}
		s.protocols[name] = p
	}
	if p.methods[m.Name] != nil {
		panic(fmt.Sprintf("hrpc: method %s of %s is registered twice", m.Name, name))
	}
	m.Answer = cmp.Or(m.Answer, 1<<10)
	if _, ok := m.New().(resetter); ok && m.Passing {
		m.requests = new(sync.Pool)
	}
	if m.Batch != nil && !m.Source {
		panic(fmt.Sprintf("hrpc: method %s of %s has a Batch, and no Source", m.Name, name))
	}
	s.batches = s.batches || m.Batch != nil
	p.methods[m.Name] = &m
}

// Routes lists the methods, with the right that each needs, as what a port does.
func (s *Server) Routes(port string) []security.Route {
	var out []security.Route
	s.Methods(func(protocol string, m Method) {
		out = append(out, security.Route{Port: port, Name: protocol[strings.LastIndexByte(protocol, '.')+1:] + "/" + m.Name, Right: m.Right})
	})
	return out
}

// Methods calls fn for every registered method.
func (s *Server) Methods(fn func(protocol string, m Method)) {
	for _, p := range s.protocols {
		for _, m := range p.methods {
			fn(p.name, *m)
		}
	}
}

// Serve accepts connections until ctx is done; then it closes the listener, lets calls in flight finish for the drain
// time, closes every connection and returns nil. What Call.Go runs has ended then, also where the caller has gone. It may run on several listeners at once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	connCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	defer listener.Close()

	var wg, work sync.WaitGroup
	defer work.Wait() // when no connection makes any more
	defer cancel()
	var mine sync.Map // connections of this listener
	var failure error
	delay := time.Duration(0)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EINVAL) { // EINVAL: it was shut down, and accepts nothing any more
				failure = fmt.Errorf("accept on %v: %w", listener.Addr(), err)
				break
			}
			// Out of descriptors, most likely: wait for connections to end.
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			s.config.Logger.Warn("cannot accept a connection", "listener", listener.Addr(), "error", err)
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
			continue
		}
		delay = 0
		c := s.admit(conn)
		c.work = &work
		mine.Store(c, nil)
		wg.Go(func() {
			defer mine.Delete(c)
			defer s.dismiss(c)
			c.serve(connCtx)
		})
	}
	mine.Range(func(c, _ any) bool { c.(*serverConn).stop(); return true })
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(s.config.Drain):
		mine.Range(func(c, _ any) bool { c.(*serverConn).conn.Close(); return true })
		<-done
	}
	return failure
}

func (s *Server) admit(conn net.Conn) *serverConn {
	c := newServerConn(s, conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	return c
}

func (s *Server) dismiss(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.ended = s.ended.add(c)
}
