package security

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/gohops/hops/internal/authority"
)

// echo serves what connections send back to them, at an address that is returned.
func echo(t *testing.T, keys Keyring) string {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	l := keys.Listen(raw)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	return raw.Addr().String()
}

// joined is a server of a cluster, with the roles.
func joined(t testing.TB, a *authority.Authority, roles ...authority.Role) Credentials {
	t.Helper()
	i, err := a.Self("m1", roles, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m, err := i.Member(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return Credentials{Secret: NewSecret(), Member: m}
}

func founded(t testing.TB) *authority.Authority {
	t.Helper()
	a, err := authority.New("CID-test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func trustOf(a *authority.Authority) *authority.Trust {
	return &authority.Trust{Cluster: a.Cluster(), Roots: []*x509.Certificate{a.Root()}}
}

func TestKeysGuardConnections(t *testing.T) {
	a := founded(t)
	rm, nm, dn := joined(t, a, authority.ResourceManager), joined(t, a, authority.NodeManager), joined(t, a, authority.Datanode)
	other := founded(t)
	trust := trustOf(a)
	addr := echo(t, Keyring{
		Member: rm.Member, Roles: []authority.Role{authority.NodeManager},
		Token: func(id string) (string, bool) { return "sesame", id == "container_1" },
	})
	for name, key := range map[string]Key{
		"server": nm.Key(authority.ResourceManager), "token": TokenKey(trust, "container_1", "sesame", authority.ResourceManager),
	} {
		c, err := key.Dial(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(name, err)
		}
		defer c.Close()
		io.WriteString(c, "hello")
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Fatalf("%s: echo = %q, %v", name, b, err)
		}
	}
	for name, key := range map[string]Key{
		"another cluster":                       joined(t, other, authority.NodeManager).Key(),
		"another role":                          dn.Key(authority.ResourceManager),
		"not whom it looks for":                 nm.Key(authority.Namenode),
		"another token":                         TokenKey(trust, "container_1", "sesam"),
		"another container":                     TokenKey(trust, "container_2", "sesame"),
		"an empty token":                        TokenKey(trust, "container_2", ""),
		"a container of another cluster":        TokenKey(trustOf(other), "container_1", "sesame"),
		"a container that looks for a namenode": TokenKey(trust, "container_1", "sesame", authority.Namenode),
	} {
		if c, err := key.Dial(t.Context(), "tcp", addr); !errors.Is(err, ErrProof) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	if _, err := TokenKey(trust, "container_1", "sesame").Dial(t.Context(), "tcp", echo(t, Keyring{Member: rm.Member})); err == nil {
		t.Error("a container is let in where servers alone are")
	}
}

// What a stranger who has taken the port of a server passes on to another server does not fit there: neither side
// believes the other one, and the stranger learns nothing that could be used later.
func TestAHandshakeCannotBeRelayed(t *testing.T) {
	a := founded(t)
	rm := joined(t, a, authority.ResourceManager)
	real := echo(t, Keyring{Member: rm.Member, Token: func(string) (string, bool) { return "sesame", true }})
	squatter, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	// It ends the dialer's TLS with a certificate of its own, and proves what it hears to the real server.
	seen := make(chan []byte, 1)
	go func() {
		defer close(seen)
		raw, err := squatter.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		stranger := joined(t, founded(t), authority.ResourceManager)
		c, err := stranger.Member.Accept(t.Context(), raw, authority.Door{Strangers: true})
		if err != nil {
			return
		}
		b := make([]byte, 64)
		n, _ := c.Read(b)
		seen <- b[:n]
	}()
	if c, err := TokenKey(trustOf(a), "container_1", "sesame").Dial(t.Context(), "tcp", squatter.Addr().String()); err == nil {
		c.Close()
		t.Fatal("a dialer believed a stranger who relays")
	}
	squatter.Close()
	if b := <-seen; len(b) > 0 {
		t.Errorf("the stranger was told %d bytes", len(b))
	}
	// A proof of one connection is worth nothing on another one.
	proof := func() (out []byte) {
		v := authority.Visitor{Trust: trustOf(a), Now: time.Now}
		raw, err := net.Dial("tcp", real)
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := v.Connect(t.Context(), raw, authority.Door{Protocols: protocols}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if out, err = proofOf(c.Conn, "container_1", []byte("sesame")); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if bytes.Equal(proof(), proof()) {
		t.Error("two connections have the same proof")
	}
}

func TestTheNewestStrangerIsHeard(t *testing.T) {
	server := joined(t, founded(t), authority.Namenode)
	addr := echo(t, Keyring{Member: server.Member})
	known, err := server.Key().Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	for range 2 * maxStrangers {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	c, err := server.Key().Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatalf("behind %d strangers: %v", 2*maxStrangers, err)
	}
	c.Close()
	io.WriteString(known, "x") // who has proved the key makes no room for strangers
	if _, err := io.ReadFull(known, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// TestWhichStrangerLeaves: nobody has more than a share of the places at the cost of others, and who is at it gets the time to prove who it is.
func TestWhichStrangerLeaves(t *testing.T) {
	now := time.Now()
	l := &provingListener{from: map[string]int{}}
	come := func(from string, ago time.Duration, spoke bool) *provenConn {
		p := &provenConn{listener: l, from: from, came: now.Add(-ago)}
		p.spoke.Store(spoke)
		p.stranger = l.strangers.PushBack(p)
		if from != "" {
			l.from[from]++
		}
		return p
	}
	leaves := func(what string, want *provenConn, within time.Duration) {
		t.Helper()
		if got, wait := l.leaver(now); got != want || wait != within {
			t.Errorf("%s: %v leaves after %v, want %v after %v", what, got, wait, want, within)
		}
	}
	for i := range maxStrangers - 2 { // a cluster that has lost its server
		come(fmt.Sprint("machine ", i), 50*time.Millisecond, true)
	}
	leaves("all are at it", nil, strangerTime-50*time.Millisecond)
	silent := come("silent", 20*time.Millisecond, false)
	leaves("one has said nothing yet", nil, silentTime-20*time.Millisecond)
	silent.came = now.Add(-silentTime)
	leaves("one says nothing", silent, 0)
	l.known(silent)
	own := come("", strangerTime, true)
	leaves("one has had its time", own, 0)
	l.known(own)
	first := come("many", 0, true)
	for range shareOfPlaces {
		come("many", 0, true)
	}
	leaves("an address with more than its share", first, 0)
	l.known(first)
	leaves("and no more than that", nil, strangerTime-50*time.Millisecond)
	if n := l.from["many"]; n != shareOfPlaces || l.from["silent"] != 0 {
		t.Errorf("%d of one address, %v", n, l.from)
	}
}

func TestADialerWaitsNoLongerThanItsContext(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := time.AfterFunc(20*time.Millisecond, cancel)
	defer cancelled.Stop()
	if _, err := joined(t, founded(t), authority.Namenode).Key().Dial(ctx, "tcp", silent.Addr().String()); err == nil {
		t.Fatal("nobody has answered")
	}
	if ctx.Err() == nil {
		t.Fatal("the dialer gave up before its context")
	}
}

// serveGRPC serves a service of each right.
func serveGRPC(t *testing.T, keys Keyring, rights map[string]Right) (addr string, failed chan error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failed = make(chan error, 1)
	handler := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if _, ok := PrincipalOf(ctx); !ok {
			t.Error("the handler does not know who calls")
		}
		return new(emptypb.Empty), decode(new(emptypb.Empty))
	}
	g := GRPC{Doorway: Doorway{Name: "test"}, Keys: keys}
	for name, right := range rights {
		g.Services = append(g.Services, Service{Right: right, Desc: &grpc.ServiceDesc{
			ServiceName: name, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Do", Handler: handler}},
		}})
	}
	go func() { failed <- NewDoor(Config{}).ServeGRPC(t.Context(), l, g) }()
	return l.Addr().String(), failed
}

func call(t *testing.T, addr, service string, creds grpc.DialOption) error {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+addr, creds)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return c.Invoke(ctx, "/"+service+"/Do", new(emptypb.Empty), new(emptypb.Empty))
}

func TestGRPCAsksWhoCalls(t *testing.T) {
	a := founded(t)
	cluster := joined(t, a, authority.Namenode)
	keys := Keyring{Member: cluster.Member, Token: func(id string) (string, bool) { return "sesame", id == "container_1" }}
	addr, _ := serveGRPC(t, keys, map[string]Right{"test.Servers": ServersOnly, "test.Containers": ContainersOnly})
	server := grpc.WithTransportCredentials(cluster.Key().Credentials())
	container := grpc.WithTransportCredentials(TokenKey(trustOf(a), "container_1", "sesame").Credentials())
	for _, c := range []struct {
		who     string
		creds   grpc.DialOption
		service string
		code    codes.Code
	}{
		{"a server", server, "test.Servers", codes.OK},
		{"a server", server, "test.Containers", codes.PermissionDenied},
		{"a container", container, "test.Containers", codes.OK},
		{"a container", container, "test.Servers", codes.PermissionDenied},
		{"a server", server, "test.Unknown", codes.Unimplemented},
		{"another cluster", grpc.WithTransportCredentials(joined(t, founded(t), authority.Namenode).Key().Credentials()), "test.Servers", codes.Unavailable},
		{"another container", grpc.WithTransportCredentials(TokenKey(trustOf(a), "container_2", "sesame").Credentials()), "test.Containers", codes.Unavailable},
	} {
		if err := call(t, addr, c.service, c.creds); status.Code(err) != c.code {
			t.Errorf("%s calls %s: %v, want %v", c.who, c.service, err, c.code)
		}
	}
}

func TestAServiceWithoutARightIsNotServed(t *testing.T) {
	_, failed := serveGRPC(t, Keyring{Member: joined(t, founded(t), authority.Namenode).Member}, map[string]Right{"test.Containers": Superuser})
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "has no right") {
		t.Fatalf("served: %v", err)
	}
}
