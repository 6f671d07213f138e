package controller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// apart makes a controller one whose executors are all on other machines.
func apart(t *testing.T) func(*Env) {
	t.Helper()
	own, err := authority.NewPinned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return func(e *Env) {
		e.Certificate = own
		e.Door = security.NewDoor(security.Config{Pinned: own, Here: func(_, _ netip.Addr) bool { return false }, Logger: e.Logger})
		e.Caller = proxied(e.Door, "the master's token", e.Listener.Addr().String())
	}
}

func whereabouts(fs *memFS) (w protocol.Whereabouts) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.files[testDir+"/"+protocol.WhereaboutsName]; f != nil {
		_ = json.Unmarshal(f.data, &w)
	}
	return w
}

// pinned is an HTTP client of servers with one certificate, in DER.
func pinned(certificate func() []byte) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		out, err := authority.ConnectPinned(ctx, c, sha256.Sum256(certificate()))
		if err != nil {
			return nil, err
		}
		return out, nil
	}}}
}

// manualApart is manual with one executor, on another machine than the controller's.
func manualApart(t *testing.T) (*running, *fakeRM, *memFS, *client, *rmpb.Launch) {
	t.Helper()
	fs := newMemFS()
	type one struct {
		c *client
		l *rmpb.Launch
	}
	started := make(chan one, 100)
	rm := newFakeRM(2, func(_ *fakeRM, c *rmpb.Container, l *rmpb.Launch) {
		k := newClient(t, where(fs), c.ContainerId, c.Token)
		k.http = pinned(func() []byte { return whereabouts(fs).Certificate })
		started <- one{k, l}
	})
	r := launch(t, fs, rm, fmt.Sprintf(randomSpec, 1, 1), 1, fast, apart(t))
	r.url = "https" + strings.TrimPrefix(r.url, "http")
	s := <-started
	if _, err := s.c.register(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return r, rm, fs, s.c, s.l
}

// An executor on another machine runs its trial by TLS, and follows a controller that was restarted to its new certificate.
func TestAnExecutorOnAnotherMachine(t *testing.T) {
	first, rm, fs, c, l := manualApart(t)
	before := whereabouts(fs)
	sum := sha256.Sum256(before.Certificate)
	rm.mu.Lock()
	q := rm.registered
	rm.mu.Unlock()
	if !strings.HasPrefix(before.URL, "https://") || "https://"+q.HttpAddress != before.URL || !bytes.Equal(q.HttpCertificate, sum[:]) {
		t.Errorf("it is at %s with %x, and has registered %v", before.URL, sum, q)
	}
	if l.Env["HOPS_CONTROLLER"] != before.URL || l.Env["HOPS_CONTROLLER_CERTIFICATE"] != base64.StdEncoding.EncodeToString(before.Certificate) {
		t.Errorf("the executor is told %v", l.Env)
	}
	a := c.next("0").Trial
	if out, err := c.report(a, 1, 1, 0.5); err != nil || out.Ack != 1 {
		t.Fatalf("%+v %v", out, err)
	}
	first.cancel()
	<-first.done
	second := launch(t, fs, rm, fmt.Sprintf(randomSpec, 1, 1), 2, fast, apart(t))
	for whereabouts(fs).Attempt != 2 {
		time.Sleep(time.Millisecond)
	}
	if bytes.Equal(whereabouts(fs).Certificate, before.Certificate) {
		t.Error("the second attempt has the key of the first")
	}
	old := pinned(func() []byte { return before.Certificate })
	if _, err := old.Get(whereabouts(fs).URL + "/healthz"); err == nil || !strings.Contains(err.Error(), "shows another certificate") {
		t.Errorf("by the certificate of the first attempt: %v", err)
	}
	if r, err := c.register(t.Context(), &protocol.Held{Trial: a.Trial, Attempt: a.Attempt}); err != nil || r.ControllerAttempt != 2 {
		t.Fatalf("%+v %v", r, err)
	}
	if out, err := c.final(a, protocol.Final{Seq: 1, Status: training.Completed}); err != nil || out.State != training.Completed {
		t.Fatalf("%+v %v", out, err)
	}
	if n := c.next("5"); n.Action != protocol.ActionDrain {
		t.Fatalf("%+v", n)
	}
	rm.complete(c.container, 0)
	second.wait()
}

// Who reaches a controller from another machine gets nothing out of it without the token of a container, or the resource
// manager's signature.
func TestStrangersFromOtherMachines(t *testing.T) {
	r, _, fs, c, _ := manualApart(t)
	certificate := func() []byte { return whereabouts(fs).Certificate }
	own := strings.TrimPrefix(r.url, "https://")
	proxy := func(token string) func(*http.Request) {
		return func(q *http.Request) {
			q.Header.Set(security.UserHeader, "ann")
			security.NewRequestKey(token, security.ProxiedRequests).Sign(q, security.Signature{Container: "m", Number: c.numbers.Next(), Body: security.UnsignedBody})
		}
	}
	status := "/v1/experiments/" + testApp + "_1"
	for _, test := range []struct {
		who, url, path string
		sign           func(*http.Request)
		code           int
		says           string
	}{
		{"in plain", "http://" + own, "/healthz", nil, 403, "an application is reached through the resource manager's /proxy"},
		{"in plain, with a name", "http://" + own, status + "?user.name=ann", nil, 403, "through the resource manager's /proxy"},
		{"by TLS, with a name", r.url, status + "?user.name=ann", nil, 401, "through the resource manager's /proxy"},
		{"by TLS, with a user token", r.url, status, func(q *http.Request) { q.Header.Set("Authorization", "Bearer x") }, 401, "through the resource manager's /proxy"},
		{"without a signature", r.url, "/v1/executors/" + c.executor + "/next", nil, 401, "carries no signature"},
		{"with another container's token", r.url, "/v1/executors/" + c.executor + "/next", func(q *http.Request) {
			security.NewRequestKey("guess", security.ExecutorRequests).Sign(q, security.Signature{Container: c.container, Number: c.numbers.Next(), Body: security.BodySum(nil)})
		}, 401, "not signed with the key of a container of this experiment"},
		{"who plays the resource manager", r.url, status, proxy("guess"), 401, "not signed by the resource manager"},
		{"the resource manager", r.url, status, proxy("the master's token"), 200, testApp},
		{"anybody, whether it is well", r.url, "/healthz", nil, 200, "ok"},
	} {
		t.Run(test.who, func(t *testing.T) {
			q, err := http.NewRequest("GET", test.url+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if test.sign != nil {
				test.sign(q)
			}
			resp, err := pinned(certificate).Do(q)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != test.code || !strings.Contains(string(b), test.says) {
				t.Errorf("%d %s %v, want %d %q", resp.StatusCode, b, err, test.code, test.says)
			}
		})
	}
	t.Run("TLS 1.2", func(t *testing.T) {
		if c, err := tls.Dial("tcp", own, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil || !strings.Contains(err.Error(), "protocol version") {
			t.Errorf("%v %v", c, err)
		}
	})
}

// A master listens where its node is reached: in plain at loopback, elsewhere with a certificate.
func TestAMasterListensAtItsNode(t *testing.T) {
	var e Env
	for _, host := range []string{"", "localhost", "127.0.0.1", "::1"} {
		if err := e.listen(host); err != nil || e.Certificate != nil || !e.Listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
			t.Fatalf("%q: %+v %v", host, e, err)
		}
		e.Listener.Close()
	}
	// An address that is translated on the way to this machine.
	if err := e.listen("203.0.113.9"); err != nil || e.Certificate == nil || !strings.HasPrefix(e.url(), "https://203.0.113.9:") || !e.hasHost("203.0.113.9") || e.hasHost("example") {
		t.Fatalf("%+v %v", e, err)
	}
	e.Listener.Close()
	if err := e.listen("no-such-host.invalid"); err == nil || !strings.Contains(err.Error(), "no address is known for the name") {
		t.Error(err)
	}
}
