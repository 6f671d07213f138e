package security

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
)

func loopbackPair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return server, client
}

func TestKernelKnowsWhoOwnsTheOtherEnd(t *testing.T) {
	server, _ := loopbackPair(t)
	uid, err := socketOwner(AddrsOf(server))
	if err != nil || uid != uint32(os.Geteuid()) {
		t.Fatalf("owner = %d, %v, want %d", uid, err, os.Geteuid())
	}
	if _, err := socketOwner(ConnAddrs{Local: server.LocalAddr(), Remote: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}}); err == nil {
		t.Fatal("a connection that does not exist has an owner")
	}
	// Where there is no connection the kernel finds the socket that listens at the address: it is another one.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if uid, err := socketOwner(ConnAddrs{Local: server.LocalAddr(), Remote: l.Addr()}); err == nil {
		t.Fatalf("a connection that does not exist is of user %d, who listens there", uid)
	}
}

func TestManyAskWhoOwnsTheOtherEnd(t *testing.T) {
	server, _ := loopbackPair(t)
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			if uid, err := socketOwner(AddrsOf(server)); err != nil || uid != uint32(os.Geteuid()) {
				t.Errorf("owner = %d, %v", uid, err)
			}
			if uid, err := socketOwner(ConnAddrs{Local: server.LocalAddr(), Remote: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}}); err == nil {
				t.Errorf("a connection that does not exist is of user %d", uid)
			}
		})
	}
	wait.Wait()
}

func BenchmarkOwner(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	ends := ConnAddrs{Local: client.RemoteAddr(), Remote: client.LocalAddr()}
	for b.Loop() {
		if _, err := socketOwner(ends); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAClosedSocketBelongsToNobody(t *testing.T) {
	// The kernel says uid 0 of a socket whose process has closed it: whoever sends a request together with the end of the
	// connection would be root.
	for _, close := range []struct {
		name string
		how  func(net.Conn)
	}{
		{"closed", func(c net.Conn) { c.Close() }},
		{"request and end in one segment, then closed", func(c net.Conn) {
			raw, err := c.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1)
				unix.Write(int(fd), make([]byte, 4096))
				unix.Shutdown(int(fd), unix.SHUT_WR)
			})
			c.Close()
		}},
		{"half closed first, then closed", func(c net.Conn) { c.(*net.TCPConn).CloseWrite(); c.Close() }},
	} {
		t.Run(close.name, func(t *testing.T) {
			server, client := loopbackPair(t)
			close.how(client)
			server.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, server); err != nil {
				t.Fatal(err)
			}
			if uid, err := socketOwner(AddrsOf(server)); err == nil {
				t.Fatalf("a closed socket is said to be of user %d", uid)
			}
			if caller, err := claimAt(NewDoor(Config{}), AddrsOf(server), "root", ""); err == nil {
				t.Fatalf("a closed socket may call itself %s", caller.User)
			}
		})
	}
	// Half closed, as clients do that have sent all they will: the socket is still somebody's.
	server, client := loopbackPair(t)
	client.(*net.TCPConn).CloseWrite()
	if _, err := io.Copy(io.Discard, server); err != nil {
		t.Fatal(err)
	}
	if uid, err := socketOwner(AddrsOf(server)); err != nil || uid != uint32(os.Geteuid()) {
		t.Fatalf("owner of a half-closed socket = %d, %v", uid, err)
	}
}

func claimAt(d *Door, ends ConnAddrs, claimed, real string) (metadata.Caller, error) {
	return d.Claim(d.PeerAt(ends), claimed, real)
}

func TestClaims(t *testing.T) {
	server, _ := loopbackPair(t)
	conn := AddrsOf(server)
	door := func(owner uint32) *Door {
		return NewDoor(Config{
			Groups: func(u string) []string { return map[string][]string{"ann": {"research"}, "root2": {"supergroup"}}[u] },
			Owner:  func(ConnAddrs) (uint32, error) { return owner, nil },
			ProxyUsers: map[string]ProxyRule{
				"hue":   {Users: []string{"*"}, Hosts: []string{"localhost"}},
				"oozie": {Groups: []string{"research"}, Hosts: []string{"10.0.0.1"}},
			},
		})
	}
	self := door(uint32(os.Geteuid()))
	for _, c := range []struct {
		name, claimed, real string
		door                *Door
		user                string
		super               bool
		refused             string
	}{
		{"the daemon's user may claim any name", "ann", "", self, "ann", false, ""},
		{"the daemon's user is superuser", self.Daemon(), "", self, self.Daemon(), true, ""},
		{"a member of the supergroup is superuser", "root2", "", self, "root2", true, ""},
		{"principals are cut to their short name", "ann/host@REALM", "", self, "ann", false, ""},
		{"no name", "", "", self, "", false, "names no user"},
		{"another local user may not claim a name", "ann", "", door(4294000000), "", false, "user 4294000000 may not act as ann"},
		{"another local user is themself", "4294000000", "", door(4294000000), "4294000000", false, ""},
		{"a proxy user acts for others", "ann", "hue", self, "ann", false, ""},
		{"a proxy user's host counts", "ann", "oozie", self, "", false, "User: oozie is not allowed to impersonate ann"},
		{"nobody else acts for others", "ann", "bob", self, "", false, "User: bob is not allowed to impersonate ann"},
		{"acting for oneself is no proxying", "bob", "bob", self, "bob", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := claimAt(c.door, conn, c.claimed, c.real)
			if c.refused != "" {
				if !errors.Is(err, metadata.ErrUnauthorized) || !strings.Contains(err.Error(), c.refused) {
					t.Fatalf("error = %v, want %q", err, c.refused)
				}
				return
			}
			if err != nil || got.User != c.user || got.Superuser != c.super {
				t.Fatalf("caller = %+v, %v", got, err)
			}
		})
	}
	far := ConnAddrs{Local: conn.Local, Remote: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 5}}
	if _, err := claimAt(self, far, "ann", ""); !errors.Is(err, metadata.ErrUnauthorized) {
		t.Errorf("a remote peer was let in: %v", err)
	}
}

func TestHTTPCaller(t *testing.T) {
	door := NewDoor(Config{})
	var got metadata.Caller
	var err error
	s := httptest.NewServer(GuardHTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, err = door.HTTPCaller(r) }), nil))
	defer s.Close()
	get := func(query string) {
		t.Helper()
		r, e := http.Get(s.URL + "/" + query)
		if e != nil {
			t.Fatal(e)
		}
		r.Body.Close()
	}
	if get("?user.name=ann"); err != nil || got.User != "ann" {
		t.Errorf("named: %+v, %v", got, err)
	}
	if get(""); err != nil || got.User != DrWho || got.Superuser {
		t.Errorf("unnamed: %+v, %v", got, err)
	}
	if get("?User.Name=ann&user.name=ann&doas="); err != nil || got.User != "ann" {
		t.Errorf("named twice alike: %+v, %v", got, err)
	}
	for range 20 { // a map of parameters has no order
		if get("?user.name=ann&USER.NAME=root"); !errors.Is(err, metadata.ErrUnauthorized) {
			t.Fatalf("two names: %+v, %v", got, err)
		}
		if get("?user.name=ann&doas=bob&DoAs=root"); !errors.Is(err, metadata.ErrUnauthorized) {
			t.Fatalf("two names to act for: %+v, %v", got, err)
		}
	}
	for _, name := range []string{strings.Repeat("x", MaxUserName+1), "a%00b", "a%0Ab", "%ff"} {
		if get("?user.name=" + name); !errors.Is(err, metadata.ErrUnauthorized) {
			t.Errorf("the name %.10s: %+v, %v", name, got, err)
		}
	}
	if get("?doas=root"); !errors.Is(err, metadata.ErrUnauthorized) {
		t.Errorf("dr.who acts for others: %+v, %v", got, err)
	}
}

func TestWebPagesCannotReachALocalServer(t *testing.T) {
	h := GuardHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(h string) bool { return h == "nn1" })
	for _, c := range []struct {
		host, origin string
		status       int
	}{
		{"127.0.0.1:9870", "", 200},
		{"localhost", "", 200},
		{"[::1]:1", "", 200},
		{"nn1:9870", "", 200},
		{"evil.example", "", 403},
		{"127.0.0.1.evil.example:80", "", 403},
		{"", "", 403},
		{"localhost:1", "http://evil.example", 403},
		{"localhost:1", "null", 403},
		{"localhost:1", "http://localhost:9870", 200},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("host %q origin %q: %d, want %d", c.host, c.origin, w.Code, c.status)
		}
	}
}

func TestPagesOfOtherSitesCannotEvenLoadImages(t *testing.T) {
	h := GuardHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	for _, c := range []struct {
		method, site, mode, dest string
		status                   int
	}{
		{"GET", "", "", "", 200}, // not a browser
		{"GET", "none", "navigate", "document", 200},
		{"GET", "same-origin", "cors", "empty", 200},
		{"GET", "cross-site", "navigate", "document", 200}, // a link was followed
		{"GET", "cross-site", "navigate", "iframe", 403},
		{"GET", "cross-site", "no-cors", "image", 403},
		{"GET", "cross-site", "no-cors", "script", 403},
		{"POST", "cross-site", "navigate", "document", 403}, // a form
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		r.Host = "localhost:1"
		for name, v := range map[string]string{"Site": c.site, "Mode": c.mode, "Dest": c.dest} {
			if v != "" {
				r.Header.Set("Sec-Fetch-"+name, v)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%+v: %d", c, w.Code)
		}
	}
}

func TestCheckBind(t *testing.T) {
	alone := NewDoor(Config{})
	for addr, ok := range map[string]bool{
		"127.0.0.1:0": true, "localhost:1": true, "[::1]:1": true, "127.9.9.9:1": true,
		"0.0.0.0:1": false, ":1": false, "10.0.0.1:1": false, "[::]:1": false, "example.org:1": false, "nonsense": false,
	} {
		if err := alone.CheckBind(addr); (err == nil) != ok {
			t.Errorf("CheckBind(%q) = %v", addr, err)
		}
	}
}

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster", "secret")
	if _, err := LoadOrCreateSecret(path, false); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("missing: %v", err)
	}
	a, err := LoadOrCreateSecret(path, true)
	if err != nil {
		t.Fatal(err)
	}
	b, err := LoadOrCreateSecret(path, true)
	if err != nil || string(a.key) != string(b.key) {
		t.Fatalf("read back: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSecret(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("readable by others: %v", err)
	}
	os.WriteFile(path, []byte("zz"), 0o600)
	os.Chmod(path, 0o600)
	if _, err := LoadSecret(path); err == nil {
		t.Error("a torn file was taken")
	}
}
