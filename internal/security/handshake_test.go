package security

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
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

func TestKeysGuardConnections(t *testing.T) {
	secret := NewSecret()
	addr := echo(t, Keyring{Secret: secret, Token: func(id string) (string, bool) { return "sesame", id == "container_1" }})
	for name, key := range map[string]Key{"secret": secret.Key(), "token": TokenKey("container_1", "sesame")} {
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
		"another secret": NewSecret().Key(), "no secret": {}, "another token": TokenKey("container_1", "sesam"),
		"another container": TokenKey("container_2", "sesame"), "an empty token": TokenKey("container_2", ""),
		"the token as the secret": {key: []byte("sesame")}, "the secret as a token": {"container_1", secret.key},
	} {
		if c, err := key.Dial(t.Context(), "tcp", addr); !errors.Is(err, ErrProof) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	if _, err := secret.Key().Dial(t.Context(), "tcp", echo(t, Keyring{})); err == nil {
		t.Error("a server without a secret let somebody in")
	}
}

// What a stranger who has taken the port of a server passes on to another server does not fit there: neither side
// believes the other one, and the stranger learns nothing that could be used later.
func TestAHandshakeCannotBeRelayed(t *testing.T) {
	secret := NewSecret()
	real := echo(t, Keyring{Secret: secret})
	squatter, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	var seen bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		victim, err := squatter.Accept()
		if err != nil {
			return
		}
		defer victim.Close()
		server, err := net.Dial("tcp", real)
		if err != nil {
			return
		}
		defer server.Close()
		go func() { defer victim.Close(); io.Copy(victim, server) }()
		io.Copy(io.MultiWriter(server, &seen), victim)
	}()
	if c, err := secret.Key().Dial(t.Context(), "tcp", squatter.Addr().String()); err == nil {
		c.Close()
		t.Fatal("a dialer believed a stranger who relays")
	}
	<-done
	if bytes.Contains(seen.Bytes(), secret.key) {
		t.Fatal("the secret was shown")
	}
	// Played again, it is worth nothing: the nonce is another one.
	c, err := net.Dial("tcp", real)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(append(seen.Bytes(), "hello"...))
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if b, _ := io.ReadAll(c); len(b) > len(handshakeMagic)+nonceBytes {
		t.Fatalf("a replayed proof was answered: %d bytes", len(b))
	}
}

func TestTheNewestStrangerIsHeard(t *testing.T) {
	secret := NewSecret()
	addr := echo(t, Keyring{Secret: secret})
	known, err := secret.Key().Dial(t.Context(), "tcp", addr)
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
	c, err := secret.Key().Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatalf("behind %d strangers: %v", 2*maxStrangers, err)
	}
	c.Close()
	io.WriteString(known, "x") // who has proved the key makes no room for strangers
	if _, err := io.ReadFull(known, make([]byte, 1)); err != nil {
		t.Fatal(err)
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
	if _, err := NewSecret().Key().Dial(ctx, "tcp", silent.Addr().String()); err == nil {
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
	secret := NewSecret()
	keys := Keyring{Secret: secret, Token: func(id string) (string, bool) { return "sesame", id == "container_1" }}
	addr, _ := serveGRPC(t, keys, map[string]Right{"test.Servers": ServersOnly, "test.Containers": ContainersOnly})
	server := grpc.WithTransportCredentials(secret.Key().Credentials())
	container := grpc.WithTransportCredentials(TokenKey("container_1", "sesame").Credentials())
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
		{"another cluster", grpc.WithTransportCredentials(NewSecret().Key().Credentials()), "test.Servers", codes.Unavailable},
		{"another container", grpc.WithTransportCredentials(TokenKey("container_2", "sesame").Credentials()), "test.Containers", codes.Unavailable},
	} {
		if err := call(t, addr, c.service, c.creds); status.Code(err) != c.code {
			t.Errorf("%s calls %s: %v, want %v", c.who, c.service, err, c.code)
		}
	}
}

func TestAServiceWithoutARightIsNotServed(t *testing.T) {
	_, failed := serveGRPC(t, Keyring{Secret: NewSecret()}, map[string]Right{"test.Containers": Superuser})
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "has no right") {
		t.Fatalf("served: %v", err)
	}
}
