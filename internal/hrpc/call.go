package hrpc

import (
	"cmp"
	"context"
	"errors"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Call is one request that waits for its answer. Its fields are the handler's to read until it has answered, and after that unless its
// method is Passing.
type Call struct {
	*memory
	turn   uint64 // which of the calls that the memory serves this one is
	server *Server
}

// memory is what a call has. That of a Passing one serves another one when all who hold it have let it go.
type memory struct {
	particulars
	// stage is even while a call is open, and odd when it is answered. It only grows, by two for each call, so that an answer to a call that
	// is over is never taken for one to the call that has its memory now.
	stage atomic.Uint64
	// holders are the reader until the handler has returned, the answer until it is given, and what Go runs.
	holders atomic.Int32
}

var memories = sync.Pool{New: func() any { return new(memory) }}

// particulars are those of one call.
type particulars struct {
	// Caller is who asks, as the door saw it.
	Caller metadata.Caller
	// ClientID and ID identify the call across retries; Retry counts them, -1 if the client does not. They are what a
	// retry cache needs when ClientID has 16 bytes and ID is not negative. ClientID must not be changed.
	ClientID []byte
	CallID   int32
	Retry    int32
	// StateID is the state that the caller has seen of these servers (HDFS-12943), if Told: it is told the server's. Aligned: it reads from observers as Hadoop's
	// clients do, whatever has happened that it has not seen. Staleness, if not 0, is how old a state it allows to be read.
	StateID       int64
	Told, Aligned bool
	Staleness     time.Duration
	// Doubt, if a handler sets it, is called before an answer goes out, whatever it is: an error of it goes out instead.
	Doubt func() error
	// Request has the type that the method's New returned.
	Request Message
	// Protocol and Method are the names on the wire.
	Protocol, Method string
	// Authentication is how the caller is known: sasl.Simple, sasl.Token, …
	Authentication string
	// Key is sasl.Identity's of the token that the caller has shown.
	Key int32
	// Proof is what the caller's name rests on.
	Proof security.Proof
	// Own: the far end is a process of the user who runs this one, or of root.
	Own bool
	// Remote is the peer's address.
	Remote net.Addr

	conn   *serverConn
	method *Method
	// What the call holds: held counts towards MaxHeld, cost is of the requests' budget, answer of the answers'.
	held, cost int64
	answer     atomic.Int64
	// When it came, when it was its turn, and when it was answered: by clock; 0: that has not been. And what it waited for.
	came, begun, ended time.Duration
	waits              metadata.Waits
	changed            metadata.Changed // for the audit log
}

// started is where clock begins.
var started = time.Now()

// clock is the time that calls are measured by, which is one reading where time.Now takes two. It is never 0.
func clock() time.Duration { return time.Since(started) + 1 }

// clockAt is what clock said at a time.
func clockAt(t time.Time) time.Duration { return t.Sub(started) + 1 }

// claim takes the right to answer. False: the call is answered already, and nothing of it may be looked at.
func (c *Call) claim() bool { return c.stage.CompareAndSwap(c.turn, c.turn+1) }

// again counts an answer to a call that has one, and tells who gave it: it is a mistake, of which the client hears nothing.
func (c *Call) again() {
	if n := c.server.again.Add(1); n&(n-1) == 0 { // fewer and fewer: it may come with every call
		c.server.config.Logger.Error("a call was answered more than once", "times", n, "stack", string(debug.Stack()))
	}
}

// release is called by who has held the memory. The last one gives it to other calls, where the method allows it.
func (c *Call) release() {
	if c.holders.Add(-1) > 0 {
		return
	}
	method, request := c.method, c.Request
	if method == nil || !method.Passing {
		return
	}
	if method.requests != nil {
		request.(resetter).Reset()
		method.requests.Put(request)
	}
	c.particulars = particulars{}
	c.stage.Store(c.turn + 2)
	memories.Put(c.memory)
}

// resetter is a Message that can be emptied, to be decoded into once more.
type resetter interface{ Reset() }

// Context is done when the connection is gone and nobody waits for the answer any more.
func (c *Call) Context() context.Context { return c.conn.ctx }

// Go runs f, which answers, on a goroutine that Serve waits for. Handle calls it, or f does. A panic becomes an error reply.
func (c *Call) Go(f func()) {
	c.holders.Add(1)
	c.conn.work.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				c.panicked(r)
				return // nobody knows what else it has left: the memory serves nobody any more
			}
			c.release()
		}()
		f()
	})
}

// Admit waits until there is room for an answer of about n bytes, and for what is held while it is made. It is called
// before such an answer is made, from a goroutine that only this call needs. With an error, which is to be answered, there
// is no room, or nobody waits any more.
func (c *Call) Admit(n int64) error {
	if err := c.conn.out.await(pauseAt); err != nil {
		return err
	}
	n = min(n, c.conn.server.config.Answers.Most())
	// Who waits holds nothing: two that held what the other one needs would wait for ever.
	c.conn.answers.Give(c.answer.Swap(0))
	if err := c.conn.answers.Take(c.conn.ctx, n); err != nil {
		return err
	}
	c.answer.Store(n)
	if c.stage.Load() != c.turn {
		c.conn.answers.Give(c.answer.Swap(0))
	}
	return nil
}

// Reply answers with m, nil for an empty message. m is encoded before Reply returns; if that fails, or panics, the answer is an error.
func (c *Call) Reply(m Message) {
	if !c.claim() {
		c.again()
		return
	}
	c.reply(m)
	c.conn.finished(c)
}

// reply is Reply for who has the right to answer.
func (c *Call) reply(m Message) {
	defer c.conn.unanswered()
	if err := c.doubt(); err != nil {
		c.failed(err)
		return
	}
	c.decided(m, nil) // who has the answer finds it in the audit log
	h := responseHeader{callID: c.CallID, retry: c.Retry, clientID: c.ClientID, stateID: c.state()}
	err := c.conn.send(&h, m)
	if err != nil && !c.conn.gone() {
		h.status, h.detail = hadooppb.RpcResponseHeaderProto_ERROR, detailSerializing
		h.class, h.message = classIOException, "the answer of "+c.Method+" cannot be encoded: "+err.Error()
		facts := []any{"method", c.Method, "error", err}
		if p, ok := errors.AsType[*encodingPanic](err); ok {
			facts = append(facts, "stack", string(p.stack))
		}
		c.conn.server.config.Logger.Error("answer cannot be encoded", facts...)
		_ = c.conn.send(&h, nil)
	}
}

// unanswered is deferred by who answers. What panics meanwhile leaves a call without an answer, and nobody else can give it: the connection ends.
func (c *serverConn) unanswered() {
	if r := recover(); r != nil {
		c.log.Error("answering panicked, the connection ends", "panic", r, "stack", string(debug.Stack()))
		c.out.fail(errAnswering)
		c.interruptReader()
	}
}

// errAnswering ends a connection on which a call stays without an answer.
var errAnswering = errors.New("a call could not be answered")

// doubt is why an answer must not go out.
func (c *Call) doubt() error {
	if c.Doubt == nil {
		return nil
	}
	return c.Doubt()
}

// state is the server's state for the header of the answer, which is made already; nil: the caller does not want to know.
func (c *Call) state() *int64 {
	if !c.Told || c.conn.server.config.State == nil {
		return nil
	}
	state := c.conn.server.config.State()
	return &state
}

// decided tells the audit log that the caller was let, and answered, or was refused; other errors are no decision about the caller.
func (c *Call) decided(answer Message, err error) {
	door, m := c.conn.server.config.Door, c.method
	if many, ok := answer.(ManyAnswers); ok && m != nil && m.Command != "" {
		c.decidedMany(many)
		return
	}
	if several, ok := answer.(DecisionsAnswer); ok {
		if !door.Audits(false) {
			return
		}
		for _, d := range several.Decisions() {
			d.Caller, d.Port = c.Caller, "rpc"
			door.Record(d)
		}
		return
	}
	if m == nil || err == nil && (m.Command == "" || !door.Audits(m.Read)) || err != nil && !security.Refused(err) {
		return
	}
	d := security.Decision{Allowed: err == nil, Caller: c.Caller, Port: "rpc", Command: cmp.Or(m.Command, m.Name), Read: m.Read}
	if m.CommandOf != nil && c.Request != nil {
		d.Command = m.CommandOf(c.Request)
	}
	if err != nil {
		d.Reason = err.Error()
	} else {
		d.Changed = c.changed
	}
	if r, ok := answer.(interface{ GetResult() bool }); ok && !r.GetResult() {
		switch c.Request.(type) {
		case *hadooppb.RenameRequestProto, *hadooppb.DeleteRequestProto: // as FSNamesystem.renameTo and delete have it
			d.Allowed = false
		case *hadooppb.SetReplicationRequestProto:
			return
		}
	}
	switch r := c.Request.(type) {
	case interface {
		GetSrc() string
		GetDst() string
	}:
		d.Source, d.Target = r.GetSrc(), r.GetDst()
	case interface{ GetSnapshotRoot() string }:
		d.Source, d.Target = ofSnapshots(r, answer)
	case interface {
		GetInfo() *hadooppb.CacheDirectiveInfoProto
	}:
		d.Source = directiveText(r.GetInfo())
	case interface {
		GetInfo() *hadooppb.CachePoolInfoProto
	}:
		d.Source = poolText(r.GetInfo().GetPoolName())
	case *hadooppb.RemoveCacheDirectiveRequestProto:
		d.Source = idText(r.GetId())
	case interface{ GetPoolName() string }:
		d.Source = poolText(r.GetPoolName())
	case interface{ GetSrc() string }:
		d.Source = r.GetSrc()
	case interface{ GetPath() string }:
		d.Source = r.GetPath()
	case *hadooppb.ConcatRequestProto:
		d.Source, d.Target = security.PathList(r.GetSrcs()), r.GetTrg()
	case interface {
		GetCreate() *hadooppb.CreateRequestProto
	}:
		d.Source = r.GetCreate().GetSrc()
	case interface{ GetEcPolicyName() string }:
		d.Source = r.GetEcPolicyName()
	case interface{ GetPaths() []string }: // a decision about each
		for _, d.Source = range r.GetPaths() {
			door.Record(d)
		}
		return
	}
	door.Record(d)
}

// ManyAnswers is an answer about the paths of a request that has many (GetPaths), which is a decision of its own about each.
type ManyAnswers interface {
	Message
	// Outcomes is about how many of the paths it is, from the first on, and Outcome what became of one: nil, or why it is refused.
	Outcomes() int
	Outcome(i int) error
}

// DecisionsAnswer is an answer to a request of several things, and says itself what the audit log keeps of it, but for caller and port.
type DecisionsAnswer interface {
	Message
	Decisions() []security.Decision
}

// decidedMany is decided about each path of an answer.
func (c *Call) decidedMany(many ManyAnswers) {
	request, ok := c.Request.(interface{ GetPaths() []string })
	if !ok {
		return
	}
	d := security.Decision{Caller: c.Caller, Port: "rpc", Command: c.method.Command, Read: c.method.Read}
	for i, path := range request.GetPaths()[:many.Outcomes()] {
		err := many.Outcome(i)
		switch {
		case err == nil:
			d.Reason = ""
		case security.Refused(err):
			d.Reason = err.Error()
		default:
			continue
		}
		d.Allowed, d.Source = err == nil, path
		c.conn.server.config.Door.Record(d)
	}
}

// Fail answers with an error: its class and message are the server's to choose, or err's own if it is a *RemoteError.
func (c *Call) Fail(err error) {
	if !c.claim() {
		c.again()
		return
	}
	c.answerError(err)
	c.conn.finished(c)
}

// answerError is Fail for who has the right to answer.
func (c *Call) answerError(err error) {
	defer c.conn.unanswered()
	if doubt := c.doubt(); doubt != nil {
		err = doubt
	}
	c.failed(err)
}

// failed answers with an error.
func (c *Call) failed(err error) {
	c.decided(nil, err)
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		detail := remote.Detail
		if detail == 0 {
			detail = detailApplication
		}
		c.refuse(detail, remote.Class, remote.Message)
		return
	}
	class, message := c.conn.server.config.Exception(err)
	c.refuse(detailApplication, class, message)
}

// fail is for the server itself: it answers unless the handler has.
func (c *Call) fail(detail hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto, class, message string) {
	if c.claim() {
		c.refuse(detail, class, message)
		c.conn.finished(c)
	}
}

// refuse answers, for who has the right to.
func (c *Call) refuse(detail hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto, class, message string) {
	c.conn.failures.Add(1)
	_ = c.conn.send(&responseHeader{
		callID:   c.CallID,
		retry:    c.Retry,
		clientID: c.ClientID,
		stateID:  c.state(),
		status:   hadooppb.RpcResponseHeaderProto_ERROR,
		detail:   detail,
		class:    class,
		message:  message,
	}, nil) // fails only when nobody is there to be told
}
