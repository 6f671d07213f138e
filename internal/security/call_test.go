package security_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
)

// whoami is a service that answers each call with an error that says who calls.
type whoami struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (whoami) Check(ctx context.Context, q *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if q.Service == "panic" {
		panic("as it was asked to")
	}
	c, err := security.CallOf(ctx).Caller()
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return nil, status.Errorf(codes.Aborted, "%s", c.User)
}

// serveCalls serves whoami beside a page of HTTP.
func (l *lab) serveCalls(right security.Right) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(l.t, err)
	l.addr = listener.Addr().String()
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.door.ServeHTTP(ctx, listener, security.HTTP{
			Doorway: security.Doorway{Name: "test"}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }),
			Calls: []security.Service{{Desc: &grpc_health_v1.Health_ServiceDesc, Server: whoami{}, Right: right}},
		})
	}()
	if right != security.ByPath {
		defer cancel()
		return <-done
	}
	l.t.Cleanup(func() { cancel(); check(l.t, <-done) })
	return nil
}

// call makes a call from an address, by TLS or in plain, with metadata.
func (l *lab) call(from string, config *tls.Config, service string, pairs ...string) error {
	by := insecure.NewCredentials()
	if config != nil {
		by = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("passthrough:///"+l.addr, grpc.WithTransportCredentials(by), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", l.addr)
	}))
	check(l.t, err)
	defer conn.Close()
	ctx, stop := context.WithTimeout(metadata.AppendToOutgoingContext(l.t.Context(), pairs...), time.Minute)
	defer stop()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	return err
}

// Who calls by gRPC at the port of a web server is who a request there would be from.
func TestWhoIsLetInByGRPC(t *testing.T) {
	l := newLab(t, 7001)
	check(t, l.serveCalls(security.ByPath))
	ann := l.user("ann", time.Now())
	other, err := authority.New("CID-other", time.Now())
	check(t, err)
	for _, c := range []struct {
		name, from string
		config     *tls.Config
		pairs      []string
		code       codes.Code
		says       string
	}{
		{"plain here, own name", local, nil, []string{"user.name", "7001"}, codes.Aborted, "7001"},
		{"plain here, other name", local, nil, []string{"user.name", "root"}, codes.Unauthenticated, "user 7001 may not act as root"},
		{"plain here, for somebody", local, nil, []string{"user.name", "7001", "doas", "ann"}, codes.Unauthenticated, "is not allowed to impersonate ann"},
		{"plain here, two names", local, nil, []string{"user.name", "7001", "user.name", "root"}, codes.Unauthenticated, "more than once"},
		{"plain here, no name", local, nil, nil, codes.Aborted, "dr.who"},
		{"plain from elsewhere", stranger, nil, []string{"user.name", "root"}, codes.PermissionDenied, "403"},
		{"plain from a trusted network", friend, nil, []string{"user.name", "ann"}, codes.Aborted, "ann"},
		{"tls here", local, l.tls(), []string{"user.name", "7001"}, codes.Aborted, "7001"},
		{"tls without certificate", stranger, l.tls(), []string{"user.name", "root"}, codes.Unauthenticated, "has shown no certificate and no token"},
		{"user's certificate", stranger, l.tls(ann), nil, codes.Aborted, "ann"},
		{"user's certificate, other name", stranger, l.tls(ann), []string{"user.name", "bob"}, codes.Unauthenticated, "user ann may not act as bob"},
		{"certificate of another cluster", stranger, l.tls(issue(t, other, authority.Name{User: "ann"}, time.Now())), nil, codes.PermissionDenied, "403"},
		{"a token that is not one", stranger, l.tls(), []string{"authorization", "Bearer x"}, codes.Unauthenticated, "401"},
		{"a page of another site", local, nil, []string{"user.name", "7001", "origin", "https://evil.example"}, codes.PermissionDenied, "403"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := *l
			l.t = t
			err := l.call(c.from, c.config, "", c.pairs...)
			if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v and %q", err, c.code, c.says)
			}
		})
	}
	if err := l.call(local, nil, "panic"); status.Code(err) != codes.Internal {
		t.Errorf("a call that panics: %v", err)
	}
	if err := l.call(local, nil, strings.Repeat("x", 70<<10)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large message: %v", err)
	}
}

// What is not gRPC stays on HTTP/1.1, also for clients that know both, and HTTP/2 serves nothing else.
func TestHTTP2IsForCallsAlone(t *testing.T) {
	l := newLab(t, 7001)
	check(t, l.serveCalls(security.ByPath))
	for _, offered := range [][]string{nil, {"http/1.1"}, {"h2", "http/1.1"}} {
		config := l.tls()
		config.NextProtos = offered
		if status, text := l.ask(local, config, "/", ""); status != http.StatusOK || text != "HTTP/1.1" {
			t.Errorf("%q: %d %s", offered, status, text)
		}
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	for _, scheme := range []string{"http", "https"} {
		transport := &http.Transport{Protocols: protocols, TLSClientConfig: l.tls()}
		answer, err := (&http.Client{Transport: transport}).Get(scheme + "://" + l.addr + "/")
		check(t, err)
		answer.Body.Close()
		transport.CloseIdleConnections()
		if answer.ProtoMajor != 2 || answer.StatusCode < 400 {
			t.Errorf("%s: %s %s", scheme, answer.Proto, answer.Status)
		}
	}
	if err := newLab(t, 7001).serveCalls(security.ServersOnly); err == nil || !strings.Contains(err.Error(), "has no right") {
		t.Errorf("a service for servers at a port for users: %v", err)
	}
}
