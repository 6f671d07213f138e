package security

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/metadata"
)

// Users call gRPC at the port of a web server, not at that of the servers: there they show who they are as in any other request, under the same
// rules, and the port of the servers goes on to let in nobody else. gRPC comes on HTTP/2, which serves nothing but these calls.

const (
	// maxCall is the size of the largest message of a user's call, in bytes.
	maxCall = 64 << 10
	// maxCalls is how many calls of one connection there are at a time.
	maxCalls = 100
)

// webProtocols are those of ALPN at a port that takes calls. Who takes both gets the first one.
var webProtocols = []string{"http/1.1", "h2"}

// http2Config bounds what a connection of HTTP/2 holds. One that has gone without a word is noticed.
func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: maxCalls, MaxReceiveBufferPerConnection: maxCall, MaxReceiveBufferPerStream: maxCall,
		SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second, WriteByteTimeout: 30 * time.Second,
	}
}

// Call is a gRPC call of a user's.
type Call struct {
	door    *Door
	request *http.Request

	mu      sync.Mutex
	control *http.ResponseController // nil: the request is over, which the service may hear later
}

type callKey struct{}

// CallOf is the call that a service of HTTP.Calls carries out.
func CallOf(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Caller answers who calls: HTTPCaller of a request, of which metadata named user.name and doas stand for the parameters.
func (c *Call) Caller() (metadata.Caller, error) {
	if c == nil {
		return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "the call did not come through a door")
	}
	return c.door.HTTPCaller(c.request)
}

// Patience ends the call unless it is set again, or the call is over, within a time. Error: the caller is gone.
func (c *Call) Patience(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control == nil {
		return context.Canceled
	}
	return c.control.SetWriteDeadline(time.Now().Add(d))
}

// end lets go of the request.
func (c *Call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control = nil
}

// calls serves the services of a web server.
func (d *Door) calls(h *HTTP) (http.Handler, error) {
	mistake := func(method string, err *error) {
		if what := recover(); what != nil {
			h.Logger.Error("a mistake of this program: a call panicked; please report it", "method", method, "panic", what, "stack", string(debug.Stack()))
			*err = status.Error(codes.Internal, "a mistake of this program, which its log describes")
		}
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxCall),
		grpc.UnaryInterceptor(func(ctx context.Context, q any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
			defer mistake(info.FullMethod, &err)
			return next(ctx, q)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer mistake(info.FullMethod, &err)
			return next(srv, s)
		}))
	for _, s := range h.Calls {
		if s.Right != ByPath {
			return nil, fmt.Errorf("%s: the service %s has no right", h.Name, s.Desc.ServiceName)
		}
		server.RegisterService(s.Desc, s.Server)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			h.Handler.ServeHTTP(w, r)
			return
		}
		claimed := url.Values{}
		for _, parameter := range []string{userParameter, asParameter} {
			claimed[parameter] = r.Header.Values(parameter)
		}
		u := *r.URL
		u.RawQuery = claimed.Encode()
		c := &Call{door: d, control: http.NewResponseController(w)}
		c.request = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		c.request.URL = &u
		c.request.Body = http.MaxBytesReader(w, r.Body, maxCall+5) // with the head of a message
		defer c.end()
		server.ServeHTTP(w, c.request)
	}), nil
}
