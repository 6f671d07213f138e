package hrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// flushAt is how much answers may collect while the reader has more requests to serve.
	flushAt = 64 << 10
	// pauseAt is how much may wait for the peer before its next request is looked at.
	pauseAt = 4 << 20
	// maxTarget is how long the header of a call is that is remembered.
	maxTarget = 256

	// What a call holds until it is answered: callCost itself, with a goroutine that waits, decodedCost for each byte of the
	// request (once decoded, once encoded again for the log, lists of numbers), elementCost for each of its fields.
	callCost    = 4 << 10
	decodedCost = 4
	elementCost = 256
	// oneCall is more than the calls of one connection hold together.
	oneCall = 1 << 40
	// maxDepth is how deep messages lie in requests: no list of Hadoop's is deeper.
	maxDepth = 6
)

const httpReply = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
	"This port speaks Hadoop IPC. The web interface and WebHDFS are on the HTTP port.\r\n"

// serverConn is one connection of a Server.
type serverConn struct {
	server *Server
	conn   net.Conn
	log    *slog.Logger
	ctx    context.Context // done when the connection is
	work   *sync.WaitGroup // what Call.Go runs
	frames frames
	out    *outbox

	requests, answers *security.Account // opened by serve

	// waits is done when the reader must not wait any more.
	waits   context.Context
	hurryUp context.CancelFunc

	// Of the reader alone.
	exchange   *exchange     // of SASL, until the context has come; nil when the client did not ask for it
	known      bool          // the context has come
	opened     time.Time     // when the connection was taken
	heard      time.Time     // when bytes came last
	came       time.Duration // the same by clock
	free       time.Duration // since when, by clock, the reader has done nothing but go on to the next call; 0: nobody knows
	frameSince time.Time     // when the first bytes of an unfinished frame came
	deadline   time.Time     // when waiting for more is interrupted
	remote     net.Addr      // of conn
	lean       time.Time     // until then requests for which there is no room are refused at once
	ended      error         // why the connection ends, once readable has said that it does
	caller     metadata.Caller
	clientID   []byte         // of the last call, shared by the next ones with the same
	method     string         // by which the caller is known
	key        int32          // of the token that it has shown
	proof      security.Proof // of the caller's name
	own        bool           // the far end is a process of the user who runs this one
	headers    headers        // of the calls
	last       target         // likewise
	lasting    lasting        // what the caller has proved, if that may cease to be good
	inner      frames         // of what was protected
	// layer protects what follows an exchange in which that was agreed on; nil otherwise. It is set before there are calls.
	layer sasl.Layer

	stopping atomic.Bool
	calls    atomic.Int64 // counted for Counts
	failures atomic.Int64
	answered atomic.Int64
	queued   atomic.Int64 // nanoseconds, likewise
	took     atomic.Int64
	load     atomic.Int64 // of the calls in flight: their number, by oneCall each, and the bytes that they hold

	mu      sync.Mutex
	fewer   *sync.Cond   // load has fallen
	waiting atomic.Int32 // how many wait for that
}

func newServerConn(s *Server, conn net.Conn) *serverConn {
	c := &serverConn{
		server: s,
		conn:   conn,
		log:    s.config.Logger.With("remote", conn.RemoteAddr().String()),
		frames: newFrames(conn, maxFirstFrame),
		out:    newOutbox(conn, s.config.WriteTime, s.flusher.push),
	}
	c.remote = conn.RemoteAddr()
	c.out.broken = c.interruptReader
	c.fewer = sync.NewCond(&c.mu)
	c.waits, c.hurryUp = context.WithCancel(context.Background())
	return c
}

// serve reads until the peer is done, breaks the protocol, or the server stops.
func (c *serverConn) serve(parent context.Context) {
	ctx, cancel := context.WithCancel(parent)
	c.ctx = ctx
	c.opened = time.Now()
	err := c.interrupt(c.due())
	if err == nil {
		err = security.Enter(c.conn)
	}
	c.out.plain(security.Raw(c.conn))
	c.open()
	if err == nil {
		err = c.read()
	}
	if c.stopping.Load() {
		c.waitInFlight(0)
		err = nil
	}
	_ = c.out.drain(0)
	c.linger(err)
	c.out.fail(net.ErrClosed)
	c.conn.Close()
	cancel()
	c.out.settle()
	c.frames.close()
	c.inner.close()
	c.requests.Close()
	c.answers.Close()
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
	case errors.Is(err, os.ErrDeadlineExceeded) && c.known && !c.frames.partial():
		c.log.Debug("idle connection closed")
	default:
		c.log.Warn("connection closed", "error", err)
	}
}

// linger lets an answer to a peer that broke the protocol arrive: closing with unread bytes would reset the connection.
func (c *serverConn) linger(err error) {
	var refusal *refused
	half, ok := c.conn.(interface{ CloseWrite() error })
	if !errors.As(err, &refusal) || !ok {
		return
	}
	_ = half.CloseWrite()
	_ = c.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	_, _ = io.CopyN(io.Discard, c.conn, 1<<20)
}

// stop makes the reader return; calls in flight are still answered.
func (c *serverConn) stop() {
	c.stopping.Store(true)
	c.interruptReader()
}

// interruptReader makes a reader that waits look around.
func (c *serverConn) interruptReader() {
	_ = c.conn.SetReadDeadline(time.Now())
	c.hurryUp()
	c.mu.Lock()
	c.fewer.Broadcast()
	c.mu.Unlock()
}

// refused is a violation of the protocol that the peer has been told about.
type refused struct{ reason string }

func (r *refused) Error() string { return r.reason }

func (c *serverConn) read() error {
	c.heard = time.Now()
	if err := c.preamble(); err != nil {
		return err
	}
	if err := c.arrived(); err != nil {
		return err
	}
	for {
		err := c.receive()
		if !errors.Is(err, os.ErrDeadlineExceeded) || c.stopping.Load() {
			return err
		}
		if err := c.out.failure(); err != nil {
			return err
		}
		now := time.Now()
		due := c.due()
		if !now.Before(due) {
			if !c.known || c.frames.partial() || !c.busy() {
				return err
			}
			c.heard = now
			due = c.due()
		}
		c.rest()
		if soon := now.Add(lookAgain); c.busy() && due.After(soon) {
			due = soon // to rest once more
		}
		if err := c.interrupt(due); err != nil {
			return err
		}
	}
}

// open opens the accounts of the user who has connected.
func (c *serverConn) open() {
	user := c.account()
	c.requests, c.answers = c.server.config.Requests.Account(user), c.server.config.Answers.Account(user)
	c.frames.account = c.requests
	c.out.mu.Lock()
	c.out.account = c.answers
	c.out.mu.Unlock()
}

// account is the user whose share of the budgets the connection uses: the one who owns the far end, whatever name it
// gives. The door looks once more when it hears the name, and refuses who has no owner.
func (c *serverConn) account() uint32 { return c.server.config.Door.Peer(c.conn).UID() }

// rest gives back what a connection does not need while it is quiet.
func (c *serverConn) rest() {
	c.frames.shrink()
	c.out.shrink()
	c.requests.Rest()
	c.answers.Rest()
}

// take takes n bytes for a request. If that means to wait, the answers so far go out before. After one request has waited in
// vain those behind it do not, as long as the peer reads that. The error is the budget's refusal, or that the connection
// ends.
func (c *serverConn) take(from *security.Account, n int64) error {
	if from.Try(n) {
		return nil
	}
	c.free = 0
	waiting := c.out.hold(false)
	_ = c.out.flush() // its error ends the connection soon
	if waiting < flushAt && time.Now().Before(c.lean) {
		return from.Refusal(n)
	}
	err := from.Take(c.waits, n)
	if err != nil {
		c.lean = time.Now().Add(c.server.config.Requests.Patience())
	}
	return err
}

// isRefusal tells the refusal of a budget from the end of the connection.
func isRefusal(err error) bool { return metadata.KindOf(err) == metadata.ErrRetriable }

// payFrame takes n bytes for the frame that is arriving before memory grows for it. If there are none, the frame is
// skipped and its call is told to come again.
func (c *serverConn) payFrame(f *frames, n int) error {
	err := c.take(c.requests, int64(n))
	switch {
	case err == nil:
		f.paid += n
		return nil
	case !isRefusal(err):
		return net.ErrClosed
	}
	var h requestHeader
	head, size := cut(f.buf[f.start+4 : f.end])
	if size > 0 {
		h, _ = parseRequestHeader(head) // without a call id it is refused for that
	}
	if size == 0 || h.clientID == nil || h.callID < 0 || !c.known {
		return c.fatal(callInvalid, -1, nil, detailServer, classRetriable, err.Error())
	}
	answer := c.send(&responseHeader{
		callID: h.callID, retry: h.retry, clientID: bytes.Clone(h.clientID), status: hadooppb.RpcResponseHeaderProto_ERROR,
		detail: detailApplication, class: classRetriable, message: err.Error(),
	}, nil)
	f.drop()
	return answer
}

// due is when the peer has been silent for too long.
func (c *serverConn) due() time.Time {
	switch {
	case !c.known: // the context has no more time than the first byte
		return c.opened.Add(c.server.config.FirstByte)
	case c.frames.partial():
		return c.frameSince.Add(c.server.config.FrameTime)
	default:
		return c.heard.Add(c.server.config.Idle)
	}
}

// interrupt says when waiting for more bytes ends. An error means that the connection has to end: stop and the writer cut
// the deadline short after they have said why, so that is looked at after every change of it.
func (c *serverConn) interrupt(at time.Time) error {
	c.deadline = at
	_ = c.conn.SetReadDeadline(at)
	if c.stopping.Load() {
		return net.ErrClosed
	}
	return c.out.failure()
}

// lookAgain is after how long without news a socket is read although it was not reported readable: a peer that ended its
// side together with its last bytes is reported once, for both.
const lookAgain = time.Second

// receive serves what comes until the connection ends or a deadline passes.
func (c *serverConn) receive() error {
	raw := security.Raw(c.conn)
	if raw == nil {
		for {
			if err := c.frames.fill(); err != nil {
				return err
			}
			if err := c.arrived(); err != nil {
				return err
			}
		}
	}
	c.ended = nil
	if err := raw.Read(c.readable); err != nil {
		return err
	}
	return c.ended
}

// readable reads and serves until the socket is empty; then it returns false, and is called again when there is more.
// Inside one RawConn.Read no report of new bytes is lost, so a read that did not fill its buffer is the last one: that
// saves the read that finds nothing, which Conn.Read needs each time before it may wait. It is a tenth of a request.
func (c *serverConn) readable(fd uintptr) (ended bool) {
	for {
		n, errno := readSocket(fd, c.frames.room())
		switch {
		case errno == syscall.EAGAIN:
			return false
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			c.ended = os.NewSyscallError("read", errno)
			return true
		case n == 0:
			c.ended = c.frames.ended(io.EOF)
			return true
		}
		security.Touch(c.conn)
		full := c.frames.took(n)
		if c.ended = c.arrived(); c.ended != nil {
			return true
		}
		if !full {
			return false
		}
		if c.stopping.Load() {
			c.ended = net.ErrClosed
			return true
		}
	}
}

// arrived serves the frames that a read has completed.
func (c *serverConn) arrived() error {
	c.heard = time.Now()
	c.came = clockAt(c.heard)
	c.free = c.came
	if soon := c.heard.Add(lookAgain); c.deadline.After(soon) {
		if err := c.interrupt(soon); err != nil {
			return err
		}
	}
	return c.serveArrived()
}

// serveArrived serves the frames that have arrived and sends what has been answered.
func (c *serverConn) serveArrived() error {
	served := false
	var ahead ahead
	defer ahead.release()
	for c.frames.ready() {
		// Before the first, and after every one while there are more.
		if waiting := c.out.hold(true); waiting > flushAt {
			c.free = 0
			if err := c.out.drain(pauseAt); err != nil {
				return err
			}
		}
		served = true
		if c.serveAhead(&ahead) {
			continue
		}
		frame, _, err := c.frames.next()
		if err != nil {
			return err
		}
		if err := c.handle(frame, false); err != nil {
			return err
		}
	}
	if _, _, err := c.frames.next(); err != nil { // there is none, and it is known now what the one that arrives waits for
		return err
	}
	switch {
	case !c.frames.partial():
		c.frameSince = time.Time{}
	case served || c.frameSince.IsZero():
		c.frameSince = c.heard
	}
	if served {
		if err := c.out.release(c.heard); err != nil {
			return err
		}
	}
	if n := c.frames.unpaid(); n > 0 {
		return c.payFrame(&c.frames, n)
	}
	return nil
}

// preamble reads the seven bytes that open a connection.
func (c *serverConn) preamble() error {
	if err := c.interrupt(c.due()); err != nil {
		return err
	}
	for c.frames.end < 4 {
		if err := c.frames.fill(); err != nil {
			return err
		}
	}
	switch first := string(c.frames.buf[:4]); first {
	case magic:
	case "GET ":
		_, _ = io.WriteString(c.conn, httpReply)
		return &refused{"HTTP request on the IPC port"}
	default:
		return fmt.Errorf("%w: a connection starts with %q, not %q", errFrame, magic, first)
	}
	for c.frames.end < 7 {
		if err := c.frames.fill(); err != nil {
			return err
		}
	}
	head, _ := c.frames.take(7)
	if head[4] != version {
		return c.fatal(callUnauthorized, -1, nil, detailVersionMismatch, classVersionMismatch,
			fmt.Sprintf("Server IPC version %d cannot communicate with client version %d", version, head[4]))
	}
	switch head[6] {
	case authNone:
		if !c.simple() {
			return c.refuseMethod(sasl.Simple)
		}
	case authSASL:
		c.exchange = &exchange{}
	default:
		return c.fatal(callUnauthorized, -1, nil, detailUnauthorized, classIOException,
			fmt.Sprintf("authentication protocol %d is not known", head[6]))
	}
	return nil
}

// handle serves one frame, which came inside a protected one or by itself. An error ends the connection.
func (c *serverConn) handle(frame []byte, protected bool) error {
	head, n := cut(frame)
	if n == 0 {
		return c.fatal(callInvalid, -1, nil, detailDeserializing, classRPCServer, "the frame holds no request header")
	}
	rest := frame[n:]
	h, err := c.headers.parse(head)
	if err != nil {
		return c.fatal(callInvalid, -1, nil, detailDeserializing, classRPCServer, "request header: "+err.Error())
	}
	refuse := func(detail hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto, format string, args ...any) error {
		return c.fatal(h.callID, h.retry, h.clientID, detail, classRPCServer, fmt.Sprintf(format, args...))
	}
	if h.op != int32(hadooppb.RpcRequestHeaderProto_RPC_FINAL_PACKET) {
		return refuse(detailInvalidHeader, "unsupported RPC operation %d", h.op)
	}
	if h.kind != int32(hadooppb.RpcKindProto_RPC_PROTOCOL_BUFFER) {
		return refuse(detailInvalidHeader, "unsupported RPC kind %d", h.kind)
	}
	switch {
	case c.layer != nil && !protected && h.callID != callSASL:
		return c.fatal(callUnauthorized, -1, nil, detailUnauthorized, classSASL, "an unprotected message, after protection was agreed on")
	case h.callID >= 0 && c.known:
		return c.dispatch(h, rest)
	case h.callID >= 0:
		return refuse(detailInvalidHeader, "connection context not established")
	case h.callID == callPing:
		return nil
	case h.callID == callSASL && protected:
		return refuse(detailInvalidHeader, "a protected message inside another one")
	case h.callID == callSASL:
		c.free = 0 // what is protected is opened first
		return c.sasl(h, rest)
	case h.callID == callContext && c.known:
		return refuse(detailInvalidHeader, "connection context already processed")
	case h.callID == callContext:
		return c.context(h, rest)
	default:
		return refuse(detailInvalidHeader, "unknown out of band call #%d", h.callID)
	}
}

// target is what a call is for.
type target struct {
	protocol *protocol  // nil: there is none of that name
	method   *Method    // nil: it has none of that name
	names    callHeader // part of the frame of the call that was looked up last
	head     []byte     // by which the method was called, if that is all in order
}

// target looks up what the header of a call names: mostly the method of the call before. It is valid until the next one is looked up.
func (c *serverConn) target(head []byte) (*target, error) {
	t := &c.last
	if len(t.head) > 0 && bytes.Equal(head, t.head) {
		return t, nil
	}
	names, err := parseCallHeader(head)
	if err != nil {
		return nil, err
	}
	*t = target{names: names, head: t.head[:0]}
	if t.protocol = c.server.protocols[string(names.protocol)]; t.protocol != nil {
		t.method = t.protocol.methods[string(names.method)]
	}
	if t.method != nil && names.version == protocolVersion && len(head) <= maxTarget {
		t.head = append(t.head, head...)
	}
	return t, nil
}

// dispatch decodes a call and hands it to its method.
func (c *serverConn) dispatch(h requestHeader, rest []byte) error {
	if !bytes.Equal(h.clientID, c.clientID) || c.clientID == nil {
		c.clientID = bytes.Clone(h.clientID)
	}
	if c.lasting != nil {
		if err := c.lasting.Good(); err != nil {
			return c.unauthenticated(err, c.caller.User)
		}
	}
	call := c.newCall(h)
	head, n := cut(rest)
	if n == 0 {
		return c.fatal(h.callID, h.retry, h.clientID, detailDeserializing, classRPCServer, "the frame names no method")
	}
	target, err := c.target(head)
	if err != nil {
		return c.fatal(h.callID, h.retry, h.clientID, detailDeserializing, classRPCServer, "call header: "+err.Error())
	}
	body, n := cut(rest[n:])
	count := elements(body, maxDepth, maxElements)
	if !c.begin(call, callCost+decodedCost*int64(len(body))+elementCost*int64(count)) {
		return net.ErrClosed
	}
	if err := c.take(c.requests, call.held); err != nil {
		return c.noRoom(call, err)
	}
	call.cost = call.held
	protocol, method := target.protocol, target.method
	if protocol == nil {
		call.fail(detailNoSuchProtocol, classNoSuchProtocol, fmt.Sprintf("Unknown protocol: %s", printable(target.names.protocol)))
		return nil
	}
	if target.names.version != protocolVersion {
		call.fail(detailProtocolMismatch, classVersionMismatch, fmt.Sprintf("Protocol %s version mismatch. (client = %d, server = %d)",
			printable(target.names.protocol), target.names.version, protocolVersion))
		return nil
	}
	if method == nil {
		call.fail(detailNoSuchMethod, classNoSuchMethod, fmt.Sprintf("Unknown method %s called on %s protocol.",
			printable(target.names.method), printable(target.names.protocol)))
		return nil
	}
	if count > maxElements {
		call.fail(detailApplication, classIllegalArgument, fmt.Sprintf("The request of %s has more than %d elements. Split it.", method.Name, maxElements))
		return nil
	}
	if method.Right == security.Superuser && !c.caller.Superuser {
		call.Caller, call.method, call.Request = c.caller, method, method.decoded(body)
		name := method.operation(call.Request)
		call.decided(nil, metadata.ErrPermission)
		call.fail(detailApplication, classAccessControl, metadata.NeedsSuperuser(c.caller.User, name).Error())
		return nil
	}
	if method.Right == security.Superuser && c.proof == security.Vouched {
		call.Caller, call.method = c.caller, method
		call.decided(nil, metadata.ErrPermission)
		call.fail(detailApplication, classAccessControl, security.NoOperator(method.Name).Error())
		return nil
	}
	if err := c.take(c.answers, method.Answer); err != nil {
		return c.noRoom(call, err)
	}
	call.answer.Store(method.Answer)
	request := method.request()
	if n == 0 {
		err = errMalformed
	} else {
		err = request.UnmarshalVT(body)
	}
	if err != nil {
		c.finished(call)
		return c.fatal(h.callID, h.retry, h.clientID, detailDeserializing, classRPCServer, fmt.Sprintf("request of %s: %v", method.Name, err))
	}
	call.Request, call.method = request, method
	call.Caller = c.caller
	if c.free == 0 {
		c.free = clock()
	}
	call.came, call.begun = c.came, c.free
	call.Caller.Waits = &call.waits
	if !method.Read && method.Command != "" && c.server.config.Door.Audits(false) {
		call.Caller.Changed = &call.changed
	}
	call.Method = method.Name
	call.Protocol = protocol.name
	call.Remote = c.remote
	call.Authentication, call.Key, call.Proof, call.Own = c.method, c.key, c.proof, c.own
	sound := c.run(method, call)
	c.free = 0
	if call.holders.Load() == 1 { // it is answered, by now: that was when the next one's turn came
		c.free = call.ended
	}
	if sound {
		call.release()
	}
	return nil
}

// request makes an empty request.
func (m *Method) request() Message {
	if m.requests != nil {
		if r := m.requests.Get(); r != nil {
			return r.(Message)
		}
	}
	return m.New()
}

// newCall makes a call of what its header says.
func (c *serverConn) newCall(h requestHeader) *Call {
	m := memories.Get().(*memory)
	m.ClientID, m.CallID, m.Retry, m.StateID, m.Told, m.Aligned, m.Staleness, m.conn = c.clientID, h.callID, h.retry, h.stateID, h.told, h.aligned, h.staleness, c // the rest is empty
	m.holders.Store(2)
	return &Call{memory: m, turn: m.stage.Load(), server: c.server}
}

// decoded is a request that is not served, for what is said of it; nil when it cannot be decoded.
func (m *Method) decoded(body []byte) Message {
	request := m.New()
	if request.UnmarshalVT(body) != nil {
		return nil
	}
	return request
}

// operation names what the superuser alone may do.
func (m *Method) operation(request Message) string {
	if m.Operation == nil || request == nil {
		return m.Name
	}
	return m.Operation(request)
}

// run serves a call; false: the handler panicked.
func (c *serverConn) run(method *Method, call *Call) (sound bool) {
	defer func() {
		if r := recover(); r != nil {
			sound = false
			call.panicked(r)
		}
	}()
	method.Handle(call)
	return true
}

// panicked answers a call whose handler did.
func (c *Call) panicked(r any) {
	c.conn.log.Error("handler panicked", "method", c.Method, "panic", r, "stack", string(debug.Stack()))
	c.fail(detailServer, classIOException, "internal error in "+c.Method)
}

// send encodes a frame into the outbox, protected if that was agreed on. m is nil for a header alone; after a successful status
// it then counts as empty.
func (c *serverConn) send(h *responseHeader, m Message) error {
	return c.out.add(func(dst []byte) ([]byte, error) {
		if c.layer == nil {
			return appendResponse(dst, h, m)
		}
		plain, err := appendResponse(nil, h, m)
		if err != nil {
			return nil, err
		}
		return appendWrapped(dst, c.layer, plain, appendResponseHeader(nil, &responseHeader{callID: callSASL, retry: -1}))
	})
}

// appendResponse appends a frame.
func appendResponse(dst []byte, h *responseHeader, m Message) ([]byte, error) {
	dst, at := beginFrame(dst)
	dst = appendDelimitedHeader(dst, h)
	if h.status == hadooppb.RpcResponseHeaderProto_SUCCESS {
		var err error
		if dst, err = appendMessage(dst, m); err != nil {
			return nil, err
		}
	}
	return endFrame(dst, at), nil
}

// fatal tells the peer why the connection ends.
func (c *serverConn) fatal(callID, retry int32, clientID []byte, detail hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto, class, message string) error {
	_ = c.send(&responseHeader{
		callID:   callID,
		retry:    retry,
		clientID: clientID,
		status:   hadooppb.RpcResponseHeaderProto_FATAL,
		detail:   detail,
		class:    class,
		message:  message,
	}, nil) // fails only when nobody is there to be told
	return &refused{message}
}

// noRoom ends a call that was not admitted: with the budget's refusal, or because the connection ends.
func (c *serverConn) noRoom(call *Call, err error) error {
	if isRefusal(err) {
		call.fail(detailApplication, classRetriable, err.Error())
		return nil
	}
	c.finished(call)
	return net.ErrClosed
}

// begin counts a call in, waiting while there are too many; false: the connection ends.
func (c *serverConn) begin(call *Call, cost int64) bool {
	call.held = min(cost, c.server.config.Requests.Most())
	c.calls.Add(1)
	if !c.full(c.load.Add(oneCall + call.held)) {
		return true
	}
	c.free = 0
	c.out.hold(false)
	_ = c.out.flush() // its error ends the loop below
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	for c.full(c.load.Load()) {
		if c.stopping.Load() || c.gone() {
			c.load.Add(-oneCall - call.held)
			return false
		}
		c.fewer.Wait()
	}
	return true
}

// full reports whether a load is of more calls in flight than there may be. One there may always be.
func (c *serverConn) full(load int64) bool {
	n, held := load/oneCall, load%oneCall
	return int(n) > c.server.config.MaxInFlight || n > 1 && held > c.server.config.MaxHeld
}

// finished counts a call out.
func (c *serverConn) finished(call *Call) {
	if call.begun != 0 {
		c.timed(call)
	}
	c.requests.Give(call.cost)
	c.answers.Give(call.answer.Swap(0))
	c.load.Add(-oneCall - call.held)
	if c.waiting.Load() > 0 {
		c.mu.Lock()
		c.fewer.Broadcast()
		c.mu.Unlock()
	}
	call.release()
}

// timed counts how long a call has taken, and tells of one that was slow.
func (c *serverConn) timed(call *Call) {
	call.ended = clock()
	queued, took := max(call.begun-call.came, 0), call.ended-call.begun
	c.answered.Add(1)
	c.queued.Add(int64(queued))
	c.took.Add(int64(took))
	if !c.server.config.Slow.Slow(queued+took) || call.method != nil && call.method.Waits {
		return
	}
	c.tellSlow(call.Method, call.Caller.User, queued, took, &call.waits)
}

// tellSlow tells of a call that has taken too long.
func (c *serverConn) tellSlow(method, user string, queued, took time.Duration, w *metadata.Waits) {
	slow := c.server.config.Slow
	rest := max(took-w.Queue-w.Disk-w.Others-w.Apply, 0)
	slow.Tell("Slow RPC : %s took %d milliseconds to process from client %v of %s, the processing detail is connection=%dms, handler=%dms, queue=%dms, disk=%dms, others=%dms, apply=%dms, and the threshold time is %d milliseconds.",
		method, (queued + took).Milliseconds(), c.remote, printable([]byte(user)), queued.Milliseconds(), rest.Milliseconds(), w.Queue.Milliseconds(), w.Disk.Milliseconds(),
		w.Others.Milliseconds(), w.Apply.Milliseconds(), slow.Limit().Milliseconds())
}

func (c *serverConn) busy() bool { return c.load.Load() > 0 }

// waitInFlight waits until at most limit calls are unanswered, or the server's drain time is over.
func (c *serverConn) waitInFlight(limit int) {
	late := false
	timer := time.AfterFunc(c.server.config.Drain, func() {
		c.mu.Lock()
		late = true
		c.fewer.Broadcast()
		c.mu.Unlock()
	})
	defer timer.Stop()
	c.out.hold(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	for int(c.load.Load()/oneCall) > limit && !late {
		c.fewer.Wait()
	}
}

func (c *serverConn) gone() bool { return c.out.failure() != nil }

// printable shortens and quotes what a peer sent, for messages.
func printable(b []byte) string {
	if len(b) > 128 {
		b = b[:128]
	}
	return string(bytes.ToValidUTF8(b, []byte("?")))
}
