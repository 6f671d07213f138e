package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcmd "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// squatOrder is to listen in a server's place.
type squatOrder struct {
	Addr string
	// Relay is a server of the same kind that lives: what a client proves to the squatter is passed on to it, until the
	// client begins to speak.
	Relay string
	// Knock is the method that is called over a relayed connection.
	Knock string
}

// catch is what a squatter got.
type catch struct {
	Connections int
	// Headers that came with requests, those aside that say nothing. Each once.
	Headers []map[string]string
	// Raw is everything that came, to be searched for secrets; at most 1 MiB.
	Raw []byte
	// Relayed counts connections whose client went on to speak in clear after its proof had been passed on, Knocked what
	// the server then answered to a call of the squatter's own.
	Relayed int
	Knocked []string
}

// squatter is at work.
type squatter struct {
	order squatOrder
	// silence is how long a client may say nothing before it is taken for one that waits to be spoken to; 0 is half a second.
	silence time.Duration
	mu      sync.Mutex
	catch   catch
}

const preface = "PRI * HTTP/2.0"

// squat listens on a port that its server has just left, and takes whatever its clients say: HTTP/2 as a gRPC server,
// HTTP/1, or the answer to a challenge, which is passed on where there is a server to pass it on to.
func squat(ctx context.Context, p *part, o squatOrder) (catch, error) {
	var l net.Listener
	for {
		var err error
		if l, err = net.Listen("tcp", o.Addr); err == nil {
			break
		}
		if ctx.Err() != nil {
			return catch{}, err
		}
		pause(ctx, time.Millisecond)
	}
	p.tell("bound")
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	s := &squatter{order: o}
	var wait sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		s.mu.Lock()
		s.catch.Connections++
		s.mu.Unlock()
		wait.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			s.serve(ctx, c)
		})
	}
	wait.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catch, nil
}

// heard keeps what came.
func (s *squatter) heard(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catch.Raw = append(s.catch.Raw, b[:min(len(b), max(0, 1<<20-len(s.catch.Raw)))]...)
}

// headers keeps those of a request.
func (s *squatter) headers(h map[string][]string) {
	one := map[string]string{}
	for name, values := range h {
		name = strings.ToLower(name)
		switch name {
		case ":authority", "content-type", "user-agent", "accept", "accept-encoding", "connection", "grpc-accept-encoding", "host", "content-length":
			continue
		}
		one[name] = strings.Join(values, ",")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(one) > 0 && len(s.catch.Headers) < 100 && !slices.ContainsFunc(s.catch.Headers, func(h map[string]string) bool { return maps.Equal(h, one) }) {
		s.catch.Headers = append(s.catch.Headers, one)
	}
}

// hearing is a connection whose incoming bytes are kept.
type hearing struct {
	net.Conn
	r *bufio.Reader
	s *squatter
}

func (h *hearing) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.s.heard(p[:n])
	return n, err
}

func (s *squatter) serve(ctx context.Context, c net.Conn) {
	h := &hearing{Conn: c, r: bufio.NewReader(c), s: s}
	_ = c.SetReadDeadline(time.Now().Add(cmp.Or(s.silence, 500*time.Millisecond)))
	first, err := h.r.Peek(len(preface))
	_ = c.SetReadDeadline(time.Time{})
	switch {
	case err == nil && string(first) == preface:
		s.grpc(ctx, h)
	case err == nil && (bytes.HasPrefix(first, []byte("GET /")) || bytes.HasPrefix(first, []byte("POST /")) || bytes.HasPrefix(first, []byte("PUT /"))):
		s.http(h)
	case len(first) == 0 && s.order.Relay != "":
		s.relay(ctx, h)
	default:
		// Perhaps the client waits to be spoken to: this looks like a challenge.
		if len(first) == 0 {
			if _, err := c.Write(bytes.Repeat([]byte{7}, 32)); err != nil {
				return
			}
		}
		_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		_, _ = io.Copy(io.Discard, h) // all that comes is kept
	}
}

// grpc answers every call, once its headers have come, with Unavailable.
func (s *squatter) grpc(ctx context.Context, c net.Conn) {
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		md, _ := grpcmd.FromIncomingContext(stream.Context())
		s.headers(md)
		return status.Error(codes.Unavailable, "later")
	}))
	l := &oneConn{conn: c, done: make(chan struct{})}
	defer context.AfterFunc(ctx, server.Stop)()
	time.AfterFunc(5*time.Second, func() { _ = l.Close() })
	_ = server.Serve(l) // ends when the listener is closed
	server.Stop()
}

// http answers one request with 503.
func (s *squatter) http(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	s.headers(r.Header)
	fmt.Fprint(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// relay passes both sides' bytes on until the client speaks HTTP/2, and then goes on alone: the server takes it for the
// client.
func (s *squatter) relay(ctx context.Context, client *hearing) {
	server, err := net.Dial("tcp", s.order.Relay)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { server.Close() })()
	over := make(chan struct{})
	go func() {
		defer close(over)
		b := make([]byte, 4096)
		for {
			n, err := server.Read(b)
			if n > 0 {
				if _, err := client.Write(b[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	var held []byte // what may be the beginning of the preface
	b := make([]byte, 4096)
	for total := 0; ; {
		_ = client.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := client.Read(b)
		total += n
		held = append(held, b[:n]...)
		pass, spoke := beforePreface(held)
		if _, err := server.Write(pass); err != nil {
			return
		}
		held = held[len(pass):]
		if spoke {
			break
		}
		if err != nil || total > 64<<10 {
			return
		}
	}
	// What the server says from here on is for the squatter.
	_ = server.SetReadDeadline(time.Now())
	<-over
	_ = server.SetReadDeadline(time.Time{})
	answer := knockOver(ctx, server, s.order.Knock, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catch.Relayed++
	if len(s.catch.Knocked) < 20 {
		s.catch.Knocked = append(s.catch.Knocked, answer)
	}
}

// beforePreface is what of b comes before HTTP/2's preface, or, if that is not in it, before four bytes or more that it may
// begin with.
func beforePreface(b []byte) (before []byte, found bool) {
	if i := bytes.Index(b, []byte(preface)); i >= 0 {
		return b[:i], true
	}
	for n := len(preface) - 1; n >= 4; n-- {
		if bytes.HasSuffix(b, []byte(preface[:n])) {
			return b[:len(b)-n], false
		}
	}
	return b, false
}

// oneConn is a listener that has one connection to give, and ends with it.
type oneConn struct {
	conn net.Conn
	once sync.Once
	end  sync.Once
	done chan struct{}
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = closingConn{l.conn, l} })
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	l.end.Do(func() { close(l.done) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

type closingConn struct {
	net.Conn
	l *oneConn
}

func (c closingConn) Close() error { return errors.Join(c.Conn.Close(), c.l.Close()) }

// knockOrder is to call a method with headers that were caught, or none.
type knockOrder struct {
	Addr, Method string
	Headers      map[string]string
}

// refused is what knock answers of a server that did not let it in; another answer is the server's status.
const refused = "refused"

func knock(ctx context.Context, _ *part, o knockOrder) (string, error) {
	c, err := net.DialTimeout("tcp", o.Addr, 5*time.Second)
	if err != nil {
		return refused, nil
	}
	defer c.Close()
	return knockOver(ctx, c, o.Method, o.Headers), nil
}

// knockOver calls a gRPC method with an empty message over a connection.
func knockOver(ctx context.Context, c net.Conn, method string, headers map[string]string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	given := false
	conn, err := grpc.NewClient("passthrough:///squatter", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if given {
				return nil, errors.New("there is one connection only")
			}
			given = true
			return c, nil
		}))
	if err != nil {
		return refused
	}
	defer conn.Close()
	ctx = grpcmd.NewOutgoingContext(ctx, grpcmd.New(headers))
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err == nil {
		if err = stream.SendMsg(&emptypb.Empty{}); err == nil || errors.Is(err, io.EOF) {
			_ = stream.CloseSend() // the answer says all
			err = stream.RecvMsg(&emptypb.Empty{})
		}
	}
	switch code := status.Code(err); {
	case err == nil || errors.Is(err, io.EOF):
		return "OK"
	case code == codes.Unauthenticated, code == codes.Unavailable, code == codes.DeadlineExceeded, code == codes.PermissionDenied, code == codes.Canceled:
		return refused
	default:
		return fmt.Sprintf("%v: %.60s", code, status.Convert(err).Message())
	}
}
