package security

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
)

// Limits of what HTTP and gRPC servers take before a handler sees a request.
const (
	maxHeaders = 64 << 10
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	// handlersEnd is how long handlers of gRPC, and of HTTP once nobody waits for them, may take to return when their server stops.
	handlersEnd = 10 * time.Second
	// maxStreams of one gRPC connection: servers have one connection each, for all they do.
	maxStreams = 1000
	// readBuffer of a gRPC connection, which reads what TLS has decrypted: a copy less for what is larger, no system call more.
	// writeBuffer is what it writes at a time, and half of what it holds while it does: when all nodes speak at once all have one.
	readBuffer, writeBuffer = 2 << 10, 8 << 10
	// DefaultMessage is the size of the largest gRPC message, in bytes, unless a service says otherwise.
	DefaultMessage = 4 << 20
)

// HTTP is a server of HTTP.
type HTTP struct {
	Doorway
	Handler http.Handler
	// Calls are gRPC services for users, on HTTP/2, where there is nothing else. Their right is ByPath: they find out who calls (CallOf).
	Calls []Service
	// Hosts says which names beside those of loopback the server is called by; may be nil.
	Hosts func(host string) bool
	// OwnToken says whether a request shows a token that is not of a user but of the server's own making. Who shows it the handler finds out;
	// nil: there are none.
	OwnToken func(r *http.Request, token string) bool
	// ReadTime is how long a request may take to arrive; 0: as long as its handler waits for it.
	ReadTime time.Duration
	// Drain is how long requests in flight may go on when the server stops. Default 1 s.
	Drain time.Duration
	// Interrupt: the context of requests in flight is done then, for handlers that wait for events.
	Interrupt bool
	Logger    *slog.Logger
}

// handlers are those of HTTP that have not returned.
type handlers struct {
	mu      sync.Mutex
	running int
	ended   chan struct{} // once no more come: closed when the last one has returned
}

// serve runs a handler, unless the server has stopped.
func (h *handlers) serve(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		if h.ended != nil {
			h.mu.Unlock()
			panic(http.ErrAbortHandler) // nobody hears the answer
		}
		h.running++
		h.mu.Unlock()
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.running--; h.running == 0 && h.ended != nil {
				close(h.ended)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// end lets no more run and waits for those that do, for handlersEnd at most: one may hang, in a disk for example.
func (h *handlers) end() {
	h.mu.Lock()
	h.ended = make(chan struct{})
	if h.running == 0 {
		close(h.ended)
	}
	h.mu.Unlock()
	select {
	case <-h.ended:
	case <-time.After(handlersEnd):
	}
}

// ServeHTTP serves until ctx is done and returns nil, or the error that the listener broke with. After the drain time the context of what is still being handled is done; it has
// handlersEnd to return then, so that what handlers use may be closed afterwards.
func (d *Door) ServeHTTP(ctx context.Context, l net.Listener, h HTTP) error {
	if h.Drain <= 0 {
		h.Drain = time.Second
	}
	if h.Logger == nil {
		h.Logger = slog.Default()
	}
	handler, protocols := h.Handler, new(http.Protocols)
	protocols.SetHTTP1(true)
	if len(h.Calls) > 0 {
		var err error
		if handler, err = d.calls(&h); err != nil {
			return err
		}
		protocols.SetUnencryptedHTTP2(true) // to the library it is: TLS is the door's
		h.Doorway.Protocols = webProtocols
	}
	base := ctx
	if !h.Interrupt {
		base = context.WithoutCancel(ctx)
	}
	base, interrupt := context.WithCancel(base)
	var running handlers
	defer running.end()
	defer interrupt()
	server := &http.Server{
		Handler:           running.serve(d.secureHTTP(GuardHTTP(d.negotiates(d.bearers(handler, h.OwnToken)), d.hosts(h.Hosts)))),
		ReadHeaderTimeout: headerTime, ReadTimeout: h.ReadTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeaders,
		Protocols: protocols, HTTP2: http2Config(),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: d.withPeer,
		ErrorLog:    slog.NewLogLogger(h.Logger.Handler(), slog.LevelDebug),
	}
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.Drain)
		defer cancel()
		if server.Shutdown(end) != nil { // some took longer
			server.Close()
		}
	})
	h.Doorway.OldTLS = true
	err := server.Serve(d.Guard(l, h.Doorway))
	if !stop() {
		<-drained
		return nil
	}
	server.Close()
	return fmt.Errorf("%s: %w", h.Name, err)
}

// Service is a gRPC service: its description, the object that serves it, and the right that all its methods need, which
// is ServersOnly, ContainersOnly or Joining, and ByPath at a web server.
type Service struct {
	Desc   *grpc.ServiceDesc
	Server any
	Right  Right
	// Roles of which a server that calls needs one; none: any role.
	Roles []authority.Role
}

// Routes lists the methods of services at a port.
func Routes(port string, services ...Service) []Route {
	var out []Route
	for _, s := range services {
		for _, m := range s.Desc.Methods {
			out = append(out, Route{port, s.Desc.ServiceName + "/" + m.MethodName, s.Right})
		}
		for _, m := range s.Desc.Streams {
			out = append(out, Route{port, s.Desc.ServiceName + "/" + m.StreamName, s.Right})
		}
	}
	return out
}

// GRPC is a server of gRPC. Every connection proves a key of Keys; a call is let in when the connection's principal has
// the right of its service.
type GRPC struct {
	Doorway
	Keys     Keyring
	Services []Service
	// MaxMessage is the size of the largest message that is read, in bytes; 0 is DefaultMessage.
	MaxMessage int
}

// ServeGRPC serves until ctx is done and returns nil, or the error that the listener broke with. The context of what is
// being handled is done then; it has handlersEnd to return, so that what handlers use may be closed afterwards.
func (d *Door) ServeGRPC(ctx context.Context, l net.Listener, g GRPC) error {
	if g.MaxMessage <= 0 {
		g.MaxMessage = DefaultMessage
	}
	authorize := func(ctx context.Context, call *tap.Info) (context.Context, error) {
		ctx, err := g.authorize(ctx, call)
		if err != nil {
			who, _ := PrincipalOf(ctx)
			d.Record(Decision{Caller: metadata.Caller{User: who.Container}, Port: "grpc", Command: call.FullMethodName, Reason: status.Convert(err).Message()})
		}
		return ctx, err
	}
	server := grpc.NewServer(
		grpc.Creds(g.Keys.Credentials()), grpc.InTapHandle(authorize), grpc.WaitForHandlers(true),
		// Thousands of node managers keep a connection each that says little: it has no buffers of its own while it says nothing.
		grpc.WriteBufferSize(writeBuffer), grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(proofTime), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxRecvMsgSize(g.MaxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	for _, s := range g.Services {
		if s.Right != ServersOnly && s.Right != ContainersOnly && s.Right != Joining {
			return fmt.Errorf("%s: the service %s has no right", g.Name, s.Desc.ServiceName)
		}
		server.RegisterService(s.Desc, s.Server)
	}
	g.Doorway.Proves = true
	guarded := g.Keys.Listen(d.Guard(l, g.Doorway))
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(guarded) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() {
		server.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(handlersEnd): // one hangs, in a disk for example: the program's own end is bounded
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", g.Name, err)
	}
	return nil
}

// authorize sees a call when its headers have come; its message is not read before.
func (g *GRPC) authorize(ctx context.Context, call *tap.Info) (context.Context, error) {
	service, _, _ := strings.Cut(strings.TrimPrefix(call.FullMethodName, "/"), "/")
	who, ok := PrincipalOf(ctx)
	if !ok {
		return ctx, status.Error(codes.Unauthenticated, ErrProof.Error())
	}
	i := slices.IndexFunc(g.Services, func(s Service) bool { return s.Desc.ServiceName == service })
	if i < 0 {
		return ctx, status.Errorf(codes.Unimplemented, "unknown service %s", service)
	}
	switch of := g.Services[i]; {
	case of.Right == ServersOnly && who.Server != nil:
		if len(of.Roles) > 0 && !slices.ContainsFunc(of.Roles, who.Server.Has) {
			return ctx, status.Errorf(codes.PermissionDenied, "%s: %s: %s has no right to %s", ErrProof, authority.ErrRole, who.Server, service)
		}
		return ctx, nil
	case of.Right == ContainersOnly && who.Container != "":
		return ctx, nil
	case of.Right == Joining && who.Joining != nil:
		return ctx, nil
	case of.Right == ServersOnly && who.Container != "":
		return ctx, status.Errorf(codes.PermissionDenied, "%s is for servers, not for container %s", service, who.Container)
	case of.Right == ServersOnly:
		return ctx, status.Errorf(codes.PermissionDenied, "%s is for servers: join the cluster first", service)
	case of.Right == Joining:
		return ctx, status.Errorf(codes.PermissionDenied, "%s is for machines that join: this one is a member", service)
	}
	return ctx, status.Errorf(codes.PermissionDenied, "%s is for containers: prove a container's token", service)
}

// PrincipalOf is who has proved the key of the connection that a gRPC call came on.
func PrincipalOf(ctx context.Context) (Principal, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Principal{}, false
	}
	who, ok := p.AuthInfo.(Principal)
	return who, ok
}
