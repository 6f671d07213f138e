package security

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

const aContainer = "container_1_0001_01_000002"

// A container proves by its signature whose it is, for one request to one server, and for its own user.
func TestWhichRequestsOfContainersAreLetIn(t *testing.T) {
	d := NewDoor(Config{})
	find := func(c string) (string, string, bool) { return "secret", "ann", c == aContainer }
	containers := Containers{Another: func(host string) bool { return host == "rm2:8088" }}
	var numbers Numbers
	request := func(target, token, purpose string, s Signature) *http.Request {
		out, err := http.NewRequest("POST", "http://rm1:8088"+target, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		NewRequestKey(token, purpose).Sign(out, s)
		in := received(t, out)
		in.Body = io.NopCloser(strings.NewReader("{}"))
		return in
	}
	good := func() Signature {
		return Signature{Container: aContainer, Number: numbers.Next(), Body: BodySum([]byte("{}"))}
	}
	with := func(f func(*Signature)) Signature {
		s := good()
		f(&s)
		return s
	}
	first := request("/api/v1/jobs", "secret", ManagerRequests, good())
	again := first.Clone(t.Context())
	again.Body = io.NopCloser(strings.NewReader("{}"))
	host := request("/api/v1/jobs", "secret", ManagerRequests, good())
	host.Host = "rm2:8088"
	kept := received(t, func() *http.Request { // caught on its way to rm2, and sent here as it was
		out, err := http.NewRequest("POST", "http://rm2:8088/", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		NewRequestKey("secret", ManagerRequests).Sign(out, good())
		return out
	}())
	kept.Body = io.NopCloser(strings.NewReader("{}"))
	body := request("/api/v1/jobs", "secret", ManagerRequests, good())
	body.Body = io.NopCloser(strings.NewReader(`{"argv": ["evil"]}`))
	large := request("/", "secret", ManagerRequests, good())
	large.Body = io.NopCloser(bytes.NewReader(make([]byte, maxSignedBody+1)))
	for _, c := range []struct {
		what string
		r    *http.Request
		want string // empty: let in
	}{
		{"its own request", first, ""},
		{"its own name", request("/?user.name=ann", "secret", ManagerRequests, good()), ""},
		{"a request a second time", again, "the request was made before"},
		{"a request that was for another server", host, "is not signed by a container that runs, for"},
		{"a request for another server, with its name", kept, `is not signed by a container that runs, for "rm2:8088"`},
		{"another body", body, "the body is not the one that container " + aContainer + " has signed"},
		{"a body that is too large", large, "the body is not the one"},
		{"a body that is not covered", request("/", "secret", ManagerRequests, with(func(s *Signature) { s.Body = UnsignedBody })), "the body is not the one"},
		{"a container that does not run", request("/", "secret", ManagerRequests, with(func(s *Signature) { s.Container = "container_1_0001_01_000003" })), "is not signed by a container that runs"},
		{"another container's token", request("/", "other", ManagerRequests, good()), "is not signed by a container that runs"},
		{"a signature for its controller", request("/", "secret", ExecutorRequests, good()), "is not signed by a container that runs"},
		{"another user's name", request("/?user.name=root", "secret", ManagerRequests, good()), "is of user ann, and acts for nobody else"},
		{"to act for another user", request("/?doas=root", "secret", ManagerRequests, good()), "is of user ann, and acts for nobody else"},
		{"a request of an hour ago", request("/", "secret", ManagerRequests, with(func(s *Signature) { s.Number -= int64(time.Hour) })), "the clocks differ"},
	} {
		t.Run(c.what, func(t *testing.T) {
			caller, container, err := containers.Caller(d, c.r, find)
			if c.want != "" {
				if err == nil || !errors.Is(err, metadata.ErrUnauthorized) || !strings.Contains(err.Error(), c.want) || caller.User != "" {
					t.Errorf("%+v, %v", caller, err)
				}
				return
			}
			if err != nil || caller.User != "ann" || container != aContainer {
				t.Fatalf("%+v of %s, %v", caller, container, err)
			}
			if b, err := io.ReadAll(c.r.Body); err != nil || string(b) != "{}" {
				t.Errorf("the handler reads %q, %v", b, err)
			}
		})
	}
	if _, container, err := containers.Caller(d, httptest.NewRequest("GET", "/", nil), find); err != nil || container != "" {
		t.Errorf("a request that nobody signed: %q, %v", container, err)
	}
	daemon := func(string) (string, string, bool) { return "secret", d.Daemon(), true }
	if caller, _, err := containers.Caller(d, request("/", "secret", ManagerRequests, good()), daemon); err != nil || caller.Superuser {
		t.Errorf("a container of the servers' user: %+v, %v", caller, err)
	}
}

// What has not asked for long is forgotten, and nothing of it is let in again.
func TestContainersThatAskNoMoreAreForgotten(t *testing.T) {
	var c Containers
	old, now := new(Admission), new(Admission)
	c.admissions = map[string]*Admission{"old": old, "now": now}
	if err := old.Admit(time.Now().Add(-MaxSkew+time.Minute).UnixNano(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := now.Admit(time.Now().UnixNano(), time.Now()); err != nil {
		t.Fatal(err)
	}
	old.seen[0] -= int64(2 * time.Minute)
	c.swept = time.Time{}
	if err := c.admit("now", time.Now().UnixNano(), time.Now()); err != nil || c.admissions["now"] != now || c.admissions["old"] != nil {
		t.Errorf("%d are remembered", len(c.admissions))
	}
}

// What goes to another machine is signed anew for each server; what stays on this one is as it was.
func TestRequestsToOtherMachinesAreSigned(t *testing.T) {
	key := NewRequestKey("secret", ManagerRequests)
	var got []*http.Request
	leader := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, r) }))
	defer leader.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r)
		http.Redirect(w, r, leader.URL+r.RequestURI, http.StatusTemporaryRedirect)
	}))
	defer other.Close()
	for _, here := range []bool{false, true} {
		got = nil
		c := &http.Client{Transport: &Signing{Container: aContainer, Token: "secret", Next: http.DefaultTransport, Here: func(string) bool { return here }}}
		answer, err := c.Post(other.URL+"/x?y=1", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if len(got) != 2 {
			t.Fatalf("%d requests", len(got))
		}
		for _, r := range got {
			s, ok := ParseSignature(r)
			if ok == here || !here && (!key.Signed(r, r.Host, s) || s.Body != BodySum([]byte("{}")) || s.Container != aContainer) {
				t.Errorf("here %v: %s", here, r.Header.Get("Authorization"))
			}
		}
	}
	stream, err := http.NewRequest("POST", other.URL, io.NopCloser(strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&Signing{Here: func(string) bool { return false }}).RoundTrip(stream); err == nil || !strings.Contains(err.Error(), "cannot be signed") {
		t.Errorf("a stream: %v", err)
	}
	if !reachedHere("127.0.0.1:1") || !reachedHere("localhost") {
		t.Error("this machine counts as another one")
	}
}
