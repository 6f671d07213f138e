package hrpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// encrypted starts a server behind TLS, and returns how to connect to it.
func encrypted(t *testing.T, s *Server) (addr string, dial func(context.Context, string, string) (net.Conn, error)) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(ctx, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // who the server is, is others' to check
	return l.Addr().String(), dialer.DialContext
}

func TestUserTokensOnIPC(t *testing.T) {
	sign, v := securitytest.Tokens(t)
	door := func() *security.Door {
		return security.NewDoor(security.Config{
			Here:       func(_, _ netip.Addr) bool { return false },
			ProxyUsers: map[string]security.ProxyRule{"hue": {Users: []string{"ann"}, Hosts: []string{"*"}}},
		})
	}
	offers := []Offer{tokenOffer(), BearerOffer(v)}
	addr, dial := encrypted(t, newServer(t, ServerConfig{Door: door(), Offers: offers, Exception: notFound}))
	bare, dialBare := encrypted(t, newServer(t, ServerConfig{Door: door(), Offers: []Offer{tokenOffer()}, Exception: notFound}))
	plain := start(t, newServer(t, ServerConfig{Door: door(), Offers: offers, Exception: notFound}))
	show := func(token string) func() string { return func() string { return token } }
	good := sign("ann", 12*time.Hour)
	for _, c := range []struct {
		name   string
		addr   string
		config DialConfig
		who    string
		words  string
	}{
		{name: "a token", config: DialConfig{Dial: dial, Bearer: show(good)}, who: "ann,"},
		{name: "a token and its user's name", config: DialConfig{Dial: dial, User: "ann", Bearer: show(good)}, who: "ann,"},
		{name: "a proxy user's token for whom it may act", config: DialConfig{Dial: dial, User: "ann", Bearer: show(sign("hue", 12*time.Hour))}, who: "ann,hue"},
		{name: "a delegation token counts more", config: DialConfig{Dial: dial, Token: tokenOf("alice", "alicealice"), Bearer: show(good)}, who: "alice,"},
		{name: "a token of one for another", config: DialConfig{Dial: dial, User: "root", Bearer: show(good)}, words: "User: ann is not allowed to impersonate root"},
		{name: "an expired token", config: DialConfig{Dial: dial, Bearer: show(sign("ann", time.Minute))}, words: "expired at"},
		{name: "a forged token", config: DialConfig{Dial: dial, Bearer: show(good[:len(good)-8] + "AAAAAAAA")}, words: "its signature is wrong"},
		{name: "no token", config: DialConfig{Dial: dial, User: "ann"}, words: "SIMPLE authentication is not enabled.  Available:[TOKEN, BEARER]"},
		{name: "a server that takes none", addr: bare, config: DialConfig{Dial: dialBare, Bearer: show(good)}, words: "BEARER authentication is not enabled.  Available:[TOKEN]"},
		{name: "a connection in plain", addr: plain, config: DialConfig{Bearer: show(good)}, words: "SIMPLE authentication is not enabled.  Available:[TOKEN]"},
		{name: "a connection in plain to elsewhere", addr: plain, config: DialConfig{Bearer: show(good), Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return distant{c}, err
		}}, words: "was connected to in plain: the user token is not sent there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.addr == "" {
				c.addr = addr
			}
			who, err := whoAmI(t, c.addr, c.config)
			if c.words == "" && (err != nil || strings.Join(who, ",") != c.who) || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
				t.Fatalf("%q, %v, want %s%s", who, err, c.who, c.words)
			}
		})
	}
}

// A connection that began with a token ends when the token does.
func TestARevokedTokenEndsItsConnections(t *testing.T) {
	sign, v := securitytest.Tokens(t)
	addr, dial := encrypted(t, newServer(t, ServerConfig{Offers: []Offer{BearerOffer(v)}, Exception: notFound}))
	token := sign("ann", 12*time.Hour)
	c, err := Dial(t.Context(), addr, DialConfig{Protocol: nn, DialTimeout: 30 * time.Second, Dial: dial, Bearer: func() string { return token }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	call := func() error {
		return c.Call(t.Context(), nn, "getGroups", &hadooppb.GetGroupsForUserRequestProto{User: new("x")}, &hadooppb.GetGroupsForUserResponseProto{})
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	claims, err := v.Verify(token)
	if err != nil {
		t.Fatal(err)
	}
	var told atomic.Bool
	v.Refresh(func() {
		if told.CompareAndSwap(false, true) {
			if err := v.Believe([]byte(`{"cluster":"CID-test","revoked":{"` + claims.ID + `":0}}`)); err != nil {
				t.Error(err)
			}
		}
	})
	err = call()
	if remote, ok := errors.AsType[*RemoteError](err); !ok || !strings.Contains(remote.Message, "was revoked") {
		t.Fatalf("a call after the token was revoked: %v", err)
	}
	if _, err := whoAmI(t, addr, DialConfig{Dial: dial, Bearer: func() string { return token }}); err == nil || !strings.Contains(err.Error(), usertoken.ErrRefused.Error()) {
		t.Errorf("a new connection: %v", err)
	}
}

// distant is a connection to another machine.
type distant struct{ net.Conn }

func (distant) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8020} }
