package security_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

// In these tests 127.0.0.1 is this machine, 127.1.0.0/16 is a trusted network, and 127.2.0.0/16 is elsewhere.
func here(remote, _ netip.Addr) bool { return remote == netip.MustParseAddr("127.0.0.1") }

const (
	local    = "127.0.0.1"
	friend   = "127.1.0.7"
	stranger = "127.2.0.7"
)

// lab is a cluster with one server that listens.
type lab struct {
	t         *testing.T
	authority *authority.Authority
	server    security.Credentials
	door      *security.Door
	addr      string
}

func newLab(t *testing.T, own uint32) *lab {
	t.Helper()
	c, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	return &lab{t: t, authority: a, server: c, door: security.NewDoor(security.Config{
		Member: c.Member, Simple: []netip.Prefix{netip.MustParsePrefix("127.1.0.0/16")}, Here: here, Hosts: []string{"files.example"},
		Owner: func(security.ConnAddrs) (uint32, error) { return own, nil },
	})}
}

// user makes a certificate for a user.
func (l *lab) user(name string, now time.Time) tls.Certificate {
	l.t.Helper()
	return issue(l.t, l.authority, authority.Name{User: name}, now)
}

func issue(t *testing.T, a *authority.Authority, n authority.Name, now time.Time) tls.Certificate {
	t.Helper()
	key, err := authority.NewKey()
	check(t, err)
	request, err := authority.Request(key)
	check(t, err)
	der, err := a.Issue(request, n, nil, now, time.Hour)
	check(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dial connects from an address: in plain, or by TLS with what the certificate is, if config is not nil.
func (l *lab) dial(from string, config *tls.Config) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
	c, err := d.Dial("tcp", l.addr)
	if err != nil || config == nil {
		return c, err
	}
	return tls.Client(c, config), nil
}

func (l *lab) tls(certificates ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(l.authority.Root())
	return &tls.Config{RootCAs: roots, InsecureSkipVerify: true, Certificates: certificates}
}

// serve answers each request with who asks.
func (l *lab) serve() {
	l.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(l.t, err)
	l.addr = listener.Addr().String()
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.door.ServeHTTP(ctx, listener, security.HTTP{Doorway: security.Doorway{Name: "test"}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := l.door.HTTPCaller(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
				return
			}
			fmt.Fprintf(w, "%s tls=%v own=%v", c.User, r.TLS != nil, l.door.Own(r))
		})})
	}()
	l.t.Cleanup(func() { cancel(); check(l.t, <-done) })
}

// ask makes one request and returns the status and what was answered.
func (l *lab) ask(from string, config *tls.Config, target, host string) (int, string) {
	l.t.Helper()
	c, err := l.dial(from, config)
	check(l.t, err)
	defer c.Close()
	if host == "" {
		host = l.addr
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, host)
	check(l.t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	check(l.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(l.t, err)
	if answer.Header.Get("Content-Type") == "application/problem+json" {
		var p struct {
			Type, Title, Detail string
			Status              int
		}
		check(l.t, json.Unmarshal(text, &p))
		if p.Status != answer.StatusCode {
			l.t.Errorf("the problem says %d, the answer %d", p.Status, answer.StatusCode)
		}
		return answer.StatusCode, p.Type + " " + p.Detail
	}
	return answer.StatusCode, string(text)
}

// Who tried what at an HTTP port, and what happened.
func TestWhoIsLetInOverHTTP(t *testing.T) {
	l := newLab(t, 7001) // nobody's: not the servers' user
	l.serve()
	other, err := authority.New("CID-other", time.Now())
	check(t, err)
	machine := func(a *authority.Authority, roles ...authority.Role) tls.Certificate {
		return issue(t, a, authority.Name{Machine: "m", Generation: 1, Roles: roles}, time.Now())
	}
	ann := l.user("ann", time.Now())
	old := l.tls(ann)
	old.MaxVersion = tls.VersionTLS12
	for _, c := range []struct {
		name, from string
		config     *tls.Config
		target     string
		host       string
		status     int
		says       string
	}{
		{"plain here, own name", local, nil, "/?user.name=7001", "", 200, "7001 tls=false"},
		{"plain here, other name", local, nil, "/?user.name=root", "", 401, "user 7001 may not act as root"},
		{"tls here, own name", local, l.tls(), "/?user.name=7001", "", 200, "7001 tls=true"},
		{"tls here, other name", local, l.tls(), "/?user.name=root", "", 401, "user 7001 may not act as root"},
		{"plain from elsewhere", stranger, nil, "/a/b?user.name=root", "", 403, "urn:hops:https-required plain HTTP is for this machine and trusted networks: use https://"},
		{"plain from a trusted network", friend, nil, "/?user.name=ann", "", 200, "ann tls=false own=false"},
		{"plain from a trusted network, no name", friend, nil, "/", "", 200, "dr.who"},
		{"tls from a trusted network", friend, l.tls(), "/?user.name=ann", "", 200, "ann tls=true own=false"},
		{"tls without certificate, no name", stranger, l.tls(), "/", "", 401, "has shown no certificate and no token: run `hops login`"},
		{"tls without certificate, a name", stranger, l.tls(), "/?user.name=root", "", 401, "has shown no certificate and no token: run `hops login`"},
		{"user's certificate", stranger, l.tls(ann), "/", "", 200, "ann tls=true own=false"},
		{"user's certificate, own name", stranger, l.tls(ann), "/?user.name=ann", "", 200, "ann tls=true"},
		{"user's certificate, other name", stranger, l.tls(ann), "/?user.name=bob", "", 401, "user ann may not act as bob"},
		{"user's certificate, other name, from a trusted network", friend, l.tls(ann), "/?user.name=bob", "", 401, "user ann may not act as bob"},
		{"user's certificate, TLS 1.2", stranger, old, "/", "", 200, "ann tls=true"},
		{"user's certificate that ended", stranger, l.tls(l.user("ann", time.Now().Add(-3*time.Hour))), "/", "", 403, "urn:hops:certificate"},
		{"user's certificate that begins tomorrow", stranger, l.tls(l.user("ann", time.Now().Add(24*time.Hour))), "/", "", 403, "set both by NTP"},
		{"namenode's certificate, any name", stranger, l.tls(machine(l.authority, authority.Namenode)), "/?user.name=bob", "", 200, "bob tls=true own=true"},
		{"resource manager's certificate, any name", stranger, l.tls(machine(l.authority, authority.NodeManager, authority.ResourceManager)), "/?user.name=bob", "", 200, "bob tls=true own=true"},
		{"node manager's certificate, a name", stranger, l.tls(machine(l.authority, authority.NodeManager)), "/?user.name=root", "", 401, `machine m (nodemanager) may not act as "root"`},
		{"datanode's certificate, a name", stranger, l.tls(machine(l.authority, authority.Datanode)), "/?user.name=bob", "", 401, `machine m (datanode) may not act as "bob"`},
		{"datanode's certificate, for somebody", stranger, l.tls(machine(l.authority, authority.Datanode)), "/?user.name=ann&doas=bob", "", 401, `machine m (datanode) may not act as "ann"`},
		{"datanode's certificate, no name", stranger, l.tls(machine(l.authority, authority.Datanode)), "/", "", 200, "dr.who tls=true own=false"},
		{"datanode's certificate, from a trusted network", friend, l.tls(machine(l.authority, authority.Datanode)), "/?user.name=bob", "", 401, `machine m (datanode) may not act as "bob"`},
		{"certificate of another cluster", stranger, l.tls(issue(t, other, authority.Name{User: "ann"}, time.Now())), "/", "", 403, "the certificate is not of this cluster"},
		{"certificate of another cluster, here", local, l.tls(machine(other, authority.Namenode)), "/?user.name=7001", "", 403, "the certificate is not of this cluster"},
		{"certificate of another cluster, from a trusted network", friend, l.tls(issue(t, other, authority.Name{User: "ann"}, time.Now())), "/?user.name=ann", "", 403, "not of this cluster"},
		{"a name of the machine", stranger, l.tls(ann), "/", "files.example:9870", 200, "ann"},
		{"a name of somebody else", stranger, l.tls(), "/", "evil.example", 403, `urn:hops:host host "evil.example" is not served here`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := *l
			l.t = t
			status, says := l.ask(c.from, c.config, c.target, c.host)
			if status != c.status || !strings.Contains(says, c.says) {
				t.Errorf("%d %q, want %d and %q", status, says, c.status, c.says)
			}
		})
	}
}

// TLS 1.1 is nobody's any more, and what only looks like TLS is closed.
func TestWhatIsNoHandshakeIsClosed(t *testing.T) {
	l := newLab(t, 7001)
	l.serve()
	t.Run("TLS 1.1", func(t *testing.T) {
		config := l.tls()
		config.MinVersion, config.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
		c, err := l.dial(stranger, config)
		check(t, err)
		defer c.Close()
		if err := c.(*tls.Conn).Handshake(); err == nil {
			t.Error("it was taken")
		}
	})
	for name, text := range map[string]string{
		"noise":                "\x16\x03\x01\x00\x05hello",
		"SSL 2":                "\x16\x00\x00",
		"a record of 64 KiB":   "\x16\x03\x01\xff\xff" + strings.Repeat("x", 1<<16),
		"half a record, ended": "\x16\x03\x01\x02\x00abc",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := l.dial(stranger, nil)
			check(t, err)
			defer c.Close()
			_, _ = io.WriteString(c, text) // it may be closed in the middle
			_ = c.(*net.TCPConn).CloseWrite()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			got, err := io.ReadAll(io.LimitReader(c, 1<<10))
			if len(got) > 7 || errors.Is(err, context.DeadlineExceeded) { // an alert of TLS, or nothing
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// A process without a certificate takes no TLS, and nobody from elsewhere.
func TestADoorWithoutACertificate(t *testing.T) {
	l := newLab(t, 7001)
	l.door = security.NewDoor(security.Config{Here: here, Owner: func(security.ConnAddrs) (uint32, error) { return 7001, nil }})
	l.serve()
	if status, says := l.ask(local, nil, "/?user.name=7001", ""); status != 200 {
		t.Errorf("%d %s", status, says)
	}
	for name, c := range map[string]struct {
		from   string
		config *tls.Config
	}{"plain": {stranger, nil}, "tls": {stranger, l.tls()}, "tls here": {local, l.tls()}} {
		conn, err := l.dial(c.from, c.config)
		check(t, err)
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: it was answered", name)
		}
		conn.Close()
	}
}

// Who says nothing, or never ends a handshake, holds few places: the oldest goes for the newest.
func TestSilentStrangersAreFew(t *testing.T) {
	l := newLab(t, 7001)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { listener.Close() })
	l.addr = listener.Addr().String()
	guarded := l.door.Guard(listener, security.Doorway{Name: "test"})
	accepted := make(chan net.Conn, 1000)
	go func() {
		for {
			c, err := guarded.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	victim, err := l.dial("127.2.0.8", nil) // another address, with one connection
	check(t, err)
	defer victim.Close()
	(<-accepted).SetReadDeadline(time.Now().Add(time.Minute))
	var clients []net.Conn
	const most = 256
	for range most + 10 {
		c, err := l.dial(stranger, nil)
		check(t, err)
		defer c.Close()
		clients = append(clients, c)
		defer (<-accepted).Close()
	}
	for i, c := range clients[:11] {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("connection %d of those before is open: %v", i, err)
		}
	}
	_ = victim.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := victim.Read(make([]byte, 1)); !strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection of somebody else: %v", err)
	}
}

// Many bytes arrive as they were sent, both ways, in many pieces and in one.
func TestBytesOverTLS(t *testing.T) {
	l := newLab(t, 7001)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { listener.Close() })
	guarded := l.door.Guard(listener, security.Doorway{Name: "test"})
	served := make(chan error, 1)
	go func() {
		c, err := guarded.Accept()
		if err == nil {
			defer c.Close()
			_, err = io.Copy(c, c)
		}
		served <- err
	}()
	nobody := func(netip.Addr, netip.Addr) bool { return false }
	c, err := (&security.Dialer{Member: l.server.Member, Here: nobody}).Dial(t.Context(), listener.Addr().String(), authority.Namenode)
	check(t, err)
	defer c.Close()
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	sent := make(chan error, 1)
	go func() {
		parts := net.Buffers{data[:31], data[31 : 31+512], data[543 : 543+(200<<10)]}
		_, err := c.(*authority.Conn).WriteBuffers(&parts)
		if err == nil {
			_, err = c.Write(data[543+(200<<10):])
		}
		sent <- errors.Join(err, c.(*authority.Conn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	check(t, err)
	check(t, <-sent)
	check(t, <-served)
	if string(got) != string(data) {
		t.Errorf("%d bytes came back, %d were sent, or others", len(got), len(data))
	}
}

// Who may show a block's token to a datanode without a handshake of SASL.
func TestWhereTokensGoInTheOpen(t *testing.T) {
	l := newLab(t, 7001)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { listener.Close() })
	l.addr = listener.Addr().String()
	guarded := l.door.Guard(listener, security.Doorway{Name: "test"})
	other, err := authority.New("CID-other", time.Now())
	check(t, err)
	foreign := l.tls(issue(t, other, authority.Name{User: "ann"}, time.Now()))
	for _, c := range []struct {
		name, from string
		config     *tls.Config
		carries    bool
		refused    bool
	}{
		{"plain here", local, nil, true, false},
		{"plain from a trusted network", friend, nil, true, false},
		{"plain from elsewhere", stranger, nil, false, true},
		{"tls without certificate", stranger, l.tls(), true, false},
		{"user's certificate", stranger, l.tls(l.user("ann", time.Now())), true, false},
		{"certificate of another cluster", stranger, foreign, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			far, err := l.dial(c.from, c.config)
			check(t, err)
			defer far.Close()
			sent := make(chan error, 1)
			go func() {
				_, err := far.Write([]byte{0})
				sent <- err
			}()
			near, err := guarded.Accept()
			check(t, err)
			defer near.Close()
			check(t, security.Enter(near))
			check(t, <-sent)
			p := l.door.Peer(near)
			if got, refused := l.door.Carries(p), p.Refused() != nil; got != c.carries || refused != c.refused {
				t.Errorf("carries tokens: %v, refused: %v (%v)", got, refused, p.Refused())
			}
		})
	}
}

// Who connects to another machine makes sure who answers.
func TestDialersMakeSure(t *testing.T) {
	l := newLab(t, 7001)
	l.serve()
	other, foreign, err := securitytest.Make(security.NewSecret())
	check(t, err)
	_ = foreign
	nobody := func(netip.Addr, netip.Addr) bool { return false }
	trust := &authority.Trust{Cluster: l.authority.Cluster(), Roots: []*x509.Certificate{l.authority.Root()}}
	datanode, err := securitytest.Join(l.authority, security.NewSecret(), authority.Datanode)
	check(t, err)
	alone := newLab(t, 7001)
	alone.authority, alone.server = l.authority, datanode
	alone.door = security.NewDoor(security.Config{Member: datanode.Member, Here: here})
	alone.serve()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer plain.Close()
	go func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "I am no server of TLS\n")
			c.Close()
		}
	}()
	for _, c := range []struct {
		name, addr string
		dialer     security.Dialer
		says       string
	}{
		{"the authority is known", l.addr, security.Dialer{Trust: trust, Here: nobody}, ""},
		{"a server", l.addr, security.Dialer{Member: l.server.Member, Here: nobody}, ""},
		{"a server of another cluster", l.addr, security.Dialer{Member: other.Member, Here: nobody}, "the certificate is not of this cluster"},
		{"nothing is known", l.addr, security.Dialer{Here: nobody}, "run `hops login`, or set hops.cluster.roots"},
		{"in plain, by choice", l.addr, security.Dialer{Plain: true, Here: nobody}, ""},
		{"this machine, nothing is known", l.addr, security.Dialer{}, ""},
		{"a datanode in place of a namenode", alone.addr, security.Dialer{Trust: trust, Here: nobody}, "is not namenode"},
		{"somebody who does not speak TLS", plain.Addr().String(), security.Dialer{Trust: trust, Here: nobody}, "first record does not look like a TLS handshake"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := c.dialer.Dial(t.Context(), c.addr, authority.Namenode)
			if conn != nil {
				conn.Close()
			}
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// A machine that is removed loses the connections that it has.
func TestARemovedMachineLosesItsConnections(t *testing.T) {
	l := newLab(t, 7001)
	l.serve()
	certificate := issue(t, l.authority, authority.Name{Machine: "gone", Generation: 1, Roles: []authority.Role{authority.NodeManager}}, time.Now())
	c, err := l.dial(stranger, l.tls(certificate))
	check(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, err = fmt.Fprintf(c, "GET /?user.name=ann HTTP/1.1\r\nHost: %s\r\n\r\n", l.addr)
	check(t, err)
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, nil)
	check(t, err)
	_, _ = io.Copy(io.Discard, answer.Body)
	l.server.Member.Believe(&authority.Trust{Cluster: l.authority.Cluster(), Roots: []*x509.Certificate{l.authority.Root()}, Removed: map[string]uint64{"gone": 1}})
	if _, err := r.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection is open: %v", err)
	}
	if status, says := l.ask(stranger, l.tls(certificate), "/", ""); status != 403 || !strings.Contains(says, "the machine was removed from the cluster") {
		t.Errorf("%d %s", status, says)
	}
}

// When ServeHTTP returns no handler runs any more, also where its client has gone, or the drain time was too short.
func TestServeHTTPWaitsForHandlers(t *testing.T) {
	for _, stays := range []bool{false, true} {
		l := newLab(t, 0)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		runs, ended := make(chan context.Context, 1), atomic.Bool{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- l.door.ServeHTTP(ctx, listener, security.HTTP{Doorway: security.Doorway{Name: "test"}, Drain: time.Millisecond, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				runs <- r.Context()
				<-r.Context().Done()
				time.Sleep(20 * time.Millisecond)
				ended.Store(true)
			})})
		}()
		c, err := net.Dial("tcp", listener.Addr().String())
		check(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", listener.Addr())
		check(t, err)
		request := <-runs
		if !stays {
			c.Close()
			<-request.Done()
		}
		cancel()
		if check(t, <-done); !ended.Load() {
			t.Errorf("the client stays: %v; ServeHTTP has returned, and its handler runs", stays)
		}
	}
}

// What more follows at once shares a segment with it, and nothing else is different: all of it comes, however slowly it is taken, and who does not take it
// in time, or has gone, is an error.
func TestAheadWaitsForWhatFollows(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pair := func() (near, far *net.TCPConn) {
		t.Helper()
		dialled, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dialled.Close(); accepted.Close() })
		return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
	}
	segments := func(c *net.TCPConn) (n uint32) {
		t.Helper()
		err := security.Raw(c).Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err != nil {
				t.Error(err)
				return
			}
			n = info.Data_segs_out
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	near, far := pair()
	before, got := segments(near), make([]byte, 3000)
	for range 10 {
		if n, err := security.Ahead(near)(got[:1000]); n != 1000 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := near.Write(got[:2000]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, got); err != nil {
			t.Fatal(err)
		}
	}
	if n := segments(near) - before; n > 15 { // 10, and what may be sent again on a busy machine; of two calls of Write each, 20
		t.Errorf("%d segments", n)
	}

	near, far = pair()
	data := make([]byte, 8<<20+1)
	for i := range data {
		data[i] = byte(i / 3)
	}
	var beside sync.WaitGroup
	beside.Go(func() {
		got, err := io.ReadAll(far)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d of %d bytes came as they are, %v", len(got), len(data), err)
		}
	})
	if n, err := security.Ahead(near)(data); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	_ = near.CloseWrite() // nothing follows, so that is all
	beside.Wait()

	near, far = pair()
	much := make([]byte, 64<<20)
	beside.Go(func() { // the deadline is over when something waits to be sent
		for waits := 0; waits == 0; time.Sleep(time.Millisecond) {
			err := security.Raw(near).Control(func(fd uintptr) { waits, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
			if err != nil {
				t.Error(err)
				return
			}
		}
		_ = near.SetWriteDeadline(time.Unix(1, 0))
	})
	n, err := security.Ahead(near)(much)
	beside.Wait()
	if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nobody reads: %d, %v", n, err)
	}
	_ = near.SetWriteDeadline(time.Time{})
	_ = far.SetLinger(0)
	far.Close()
	for i := 0; ; i++ { // the reset may be under way
		if _, err = security.Ahead(near)(data); err != nil || i == 100 {
			break
		}
	}
	if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		t.Errorf("nobody is there: %v", err)
	}
	if client, server := net.Pipe(); security.Ahead(client) != nil || security.Ahead(server) != nil {
		t.Error("a pipe is no socket")
	}
}
