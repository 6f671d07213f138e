package rest

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
)

// A page of an application is a stranger to this server: it gets an origin of its own, and what it then asks for, as
// browsers mark such requests, is refused, whoever reads it.
func TestAProxiedPageIsAStranger(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	posts := 0
	master := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			posts++
		}
		h := w.Header()
		h.Set("Content-Type", "text/html")
		h.Set("Content-Security-Policy", "default-src *")
		h.Set("Set-Cookie", "a=b; Path=/")
		h.Set("Access-Control-Allow-Origin", "null")
		h.Set("Clear-Site-Data", `"cookies"`)
		io.WriteString(w, "<script>fetch('/api/v1/jobs?user.name=alice', {method: 'POST'})</script>")
	}))
	defer master.Close()
	c.register(running, strings.TrimPrefix(master.URL, "http://"))
	s := httptest.NewServer(security.GuardHTTP(New(Config{Cluster: c, Door: security.NewDoor(security.Config{})}), nil))
	defer s.Close()
	page := "/proxy/" + running.String() + "/page?user.name=alice"
	code, h, body := call(t, s, "GET", page, "", "Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	if code != 200 || !strings.Contains(body, "<script>") {
		t.Fatalf("the page: %d %s", code, body)
	}
	policies := h.Values("Content-Security-Policy")
	if len(policies) != 2 || !strings.HasPrefix(policies[1], "sandbox allow-scripts") || strings.Contains(strings.Join(policies, " "), "allow-same-origin") || strings.Contains(policies[1], "top-navigation") {
		t.Errorf("policies %q", policies)
	}
	for _, name := range []string{"Set-Cookie", "Access-Control-Allow-Origin", "Clear-Site-Data"} {
		if v := h.Get(name); v != "" {
			t.Errorf("%s: %s", name, v)
		}
	}
	other := "/proxy/application_1_0404/"
	for _, test := range []struct {
		what, method, path string
		headers            []string
	}{
		{"fetch of a list", "GET", "/api/v1/jobs", []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}},
		{"submission", "POST", "/api/v1/jobs?user.name=alice", []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}},
		{"form", "POST", "/api/v1/jobs?user.name=alice", []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Content-Type", "text/plain"}},
		{"form, of an old browser", "POST", "/api/v1/jobs?user.name=alice", []string{"Origin", "null", "Content-Type", "text/plain"}},
		{"kill", "PUT", "/ws/v1/cluster/apps/" + running.String() + "/state?user.name=alice", []string{"Origin", "null"}},
		{"another application", "POST", other, []string{"Origin", "null", "Sec-Fetch-Site", "cross-site"}},
		{"its own application", "POST", page, []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}},
		{"script", "GET", page, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}},
		{"frame", "GET", page, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}},
	} {
		if code, h, body := call(t, s, test.method, test.path, `{"argv":["x"]}`, test.headers...); code != http.StatusForbidden || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %s", test.what, code, body)
		}
	}
	if posts != 0 {
		t.Errorf("%d requests of the page reached the master", posts)
	}
}

// A master on another machine is who has the certificate that it has registered: nobody else gets what users send it.
func TestAMasterOnAnotherMachine(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	key := c.ProxyKey(nil)
	serve := func(who string, config *tls.Config, own *authority.Pinned) (string, *atomic.Int32) {
		var got atomic.Int32
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got.Add(1)
			sig, ok := security.ParseSignature(r)
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %v %s", who, ok && r.TLS != nil && key.Signed(r, r.Context().Value(http.LocalAddrContextKey).(net.Addr).String(), sig), b)
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		if own != nil {
			door := security.NewDoor(security.Config{Pinned: own, Here: func(_, _ netip.Addr) bool { return false }})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- door.ServeHTTP(ctx, l, security.HTTP{Handler: handler}) }()
			t.Cleanup(func() { cancel(); <-done })
			return address, &got
		}
		server := &http.Server{Handler: handler, TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0)}
		t.Cleanup(func() { server.Close() })
		if config == nil {
			go server.Serve(l)
		} else {
			go server.ServeTLS(l, "", "")
		}
		return address, &got
	}
	pin := func() (*authority.Pinned, []byte) {
		p, err := authority.NewPinned(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		sum := p.Fingerprint()
		return p, sum[:]
	}
	own, sum := pin()
	other, _ := pin()
	master, _ := serve("master", nil, own)
	stranger, strangers := serve("stranger", nil, other)
	plain, plains := serve("plain", nil, nil)
	known := httptest.NewTLSServer(nil)
	known.Close()
	foreign, foreigns := serve("foreign", &tls.Config{Certificates: known.TLS.Certificates, MaxVersion: tls.VersionTLS12}, nil)
	foreignSum := sha256.Sum256(known.Certificate().Raw)
	s := httptest.NewServer(New(Config{Cluster: c, Door: security.NewDoor(security.Config{})}))
	defer s.Close()
	for _, test := range []struct {
		who, address string
		certificate  []byte
		code         int
		says         string
	}{
		{"the master", master, sum, 200, "master true secret"},
		{"somebody with another certificate, at its address", stranger, sum, 503, "shows another certificate than the one that was registered"},
		{"somebody in plain, at its address", plain, sum, 503, "does not look like a TLS handshake"},
		{"TLS 1.2", foreign, foreignSum[:], 503, "protocol version"},
		{"the master again", master, sum, 200, "master true secret"},
	} {
		t.Run(test.who, func(t *testing.T) {
			c.register(running, test.address, test.certificate...)
			code, _, body := call(t, s, "POST", "/proxy/"+running.String()+"/v1/x?user.name=alice", "secret")
			if code != test.code || !strings.Contains(body, test.says) {
				t.Errorf("%d %s, want %d %q", code, body, test.code, test.says)
			}
		})
	}
	if n := strangers.Load() + plains.Load() + foreigns.Load(); n != 0 {
		t.Errorf("%d requests reached somebody else", n)
	}
}
