package client

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// manager is a resource manager that answers each request as the next step says, and the last step for ever.
func manager(t *testing.T, steps ...http.HandlerFunc) (*Jobs, *[]*http.Request) {
	t.Helper()
	var seen []*http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		step := steps[min(len(seen), len(steps)-1)]
		seen = append(seen, r)
		step(w, r)
	}))
	t.Cleanup(s.Close)
	c, err := New(Config{ResourceManagers: []string{s.URL}, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.Jobs(), &seen
}

func says(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

func nothing(http.ResponseWriter, *http.Request) {} // net/http makes an empty 200 of it

func half(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", strconv.Itoa(1000))
	_, _ = io.WriteString(w, `{"id": "application_1_00`)
	panic(http.ErrAbortHandler)
}

func TestOnlyAWholeAnswerIsSuccess(t *testing.T) {
	for name, step := range map[string]http.HandlerFunc{
		"an empty answer": nothing, "half an answer": half, "a leader that resigns": says(503, ""), "an outcome that nobody knows": says(504, `{"detail": "unknown"}`),
	} {
		t.Run(name, func(t *testing.T) {
			jobs, seen := manager(t, step, says(200, `{"id": "application_1_0001", "state": "KILLED"}`))
			id, err := jobs.Submit(context.Background(), Job{Argv: []string{"true"}}, "")
			if err != nil || id != "application_1_0001" {
				t.Errorf("%q, %v", id, err)
			}
			if n := len(*seen); n != 2 {
				t.Fatalf("%d requests", n)
			}
			if a, b := (*seen)[0].Header.Get("Idempotency-Key"), (*seen)[1].Header.Get("Idempotency-Key"); a == "" || a != b {
				t.Errorf("the repeat has key %q, the first %q", b, a)
			}
			jobs, seen = manager(t, step, says(202, `{"id": "application_1_0001", "state": "KILLED"}`))
			if err := jobs.Stop(context.Background(), "application_1_0001"); err != nil || len(*seen) != 2 {
				t.Errorf("stopped by %d requests: %v", len(*seen), err)
			}
		})
	}
}

// YARN answers some requests with nothing at all, also packed: that is no answer which broke off, and not asked for again.
func TestAnAnswerMayBeEmptyWhereNoneIsRead(t *testing.T) {
	packed := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_ = gzip.NewWriter(w).Close()
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, "\x1f\x8b\x08")
	}
	for name, c := range map[string]struct {
		steps    []http.HandlerFunc
		requests int
	}{
		"plain": {[]http.HandlerFunc{nothing}, 1}, "packed": {[]http.HandlerFunc{packed}, 1}, "packed, and half of it": {[]http.HandlerFunc{cut, packed}, 2},
	} {
		jobs, seen := manager(t, c.steps...)
		if _, err := jobs.Raw(context.Background(), http.MethodPost, "/ws/v1/cluster/add-node-labels", nil); err != nil || len(*seen) != c.requests {
			t.Errorf("%s: %d requests, %v", name, len(*seen), err)
		}
	}
}

// An empty name would make another path of one: that of a list, or of a route of another kind.
func TestEmptyNamesAreSentNowhere(t *testing.T) {
	jobs, seen := manager(t, says(200, `{"id": "application_1_0001"}`))
	for _, path := range []string{"/api/v1/jobs/", "/api/v1/jobs//explain", "/ws/v1/cluster/apps/..", "/ws/v1/cluster/containers/./signal/X?a=b", "/proxy//v1", "/api/v1/jobs//logs?x=/"} {
		_, err := jobs.Raw(context.Background(), http.MethodGet, path, nil)
		if answer, ok := errors.AsType[*Error](err); !ok || answer.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := jobs.Stop(context.Background(), ""); err == nil || !strings.Contains(err.Error(), "no id") || len(*seen) > 0 {
		t.Errorf("%v, %d requests", err, len(*seen))
	}
	for _, path := range []string{"/proxy/application_1_0001/", "/proxy/application_1_0001//x/..", "/api/v1/jobs?name=//"} {
		if _, err := jobs.Raw(context.Background(), http.MethodGet, path, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestRefusalsAreNotTriedAgain(t *testing.T) {
	for _, c := range []struct {
		status     int
		text, want string
	}{
		{400, `{"title": "Bad Request", "status": 400, "detail": "there is no such queue"}`, "there is no such queue"},
		{403, `{"RemoteException": {"message": "not yours"}}`, "not yours"},
		{500, "", "500 Internal Server Error"},
		{200, `<html>`, `GET /api/v1/jobs/x: the answer cannot be read: invalid character '<' looking for beginning of value`},
	} {
		jobs, seen := manager(t, says(c.status, c.text))
		_, err := jobs.Get(context.Background(), "x")
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Status != c.status || e.Error() != c.want || len(*seen) != 1 {
			t.Errorf("%d %s: %v after %d requests, want %q", c.status, c.text, err, len(*seen), c.want)
		}
	}
}

// A caller who asked for it hears why a call takes long, once.
func TestACallThatWaitsSaysSo(t *testing.T) {
	var told atomic.Int32
	jobs, _ := manager(t, func(w http.ResponseWriter, _ *http.Request) {
		if told.Load() == 0 {
			says(503, `{"title": "Service Unavailable", "detail": "nobody leads"}`)(w, nil)
			return
		}
		says(200, `{"id": "application_1_0001", "state": "RUNNING"}`)(w, nil)
	})
	jobs.rest.waiting = func(why error) {
		if !errors.Is(why, ErrUnreachable) || !strings.Contains(why.Error(), "nobody leads") {
			t.Errorf("waits for %v", why)
		}
		told.Add(1)
	}
	if _, err := jobs.Get(context.Background(), "application_1_0001"); err != nil || told.Load() != 1 {
		t.Errorf("told %d times: %v", told.Load(), err)
	}
}

// A resource manager whose process or machine stands still keeps nobody waiting for it while another one leads.
func TestAManagerThatStandsStillIsLeft(t *testing.T) {
	defer func(before time.Duration) { answerTimeout = before }(answerTimeout)
	answerTimeout = 500 * time.Millisecond
	still := make(chan struct{})
	stopped := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-still }))
	defer stopped.Close()
	defer close(still)
	leads := httptest.NewServer(says(200, `{"id": "application_1_0001", "state": "RUNNING"}`))
	defer leads.Close()
	c, err := New(Config{ResourceManagers: []string{stopped.URL, leads.URL}, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if s, err := c.Jobs().Get(ctx, "application_1_0001"); err != nil || s.ID != "application_1_0001" {
		t.Errorf("%q, %v", s.ID, err)
	}
}

// The machine of a resource manager that is off takes no connection and refuses none: the next one is asked, also about a request that
// it had taken before.
func TestAManagerWhoseMachineIsGoneIsLeft(t *testing.T) {
	full, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}) // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	raw, err := full.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	for range 8 { // the queue of the kernel is full then: a SYN is not answered
		if c, err := net.DialTimeout("tcp", full.Addr().String(), 100*time.Millisecond); err == nil {
			defer c.Close()
		}
	}
	leads := httptest.NewServer(says(200, `{"id": "application_1_0001", "state": "RUNNING"}`))
	defer leads.Close()
	c, err := New(Config{ResourceManagers: []string{"http://" + full.Addr().String(), leads.URL}, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if s, err := c.Jobs().Get(ctx, "application_1_0001"); err != nil || s.ID != "application_1_0001" {
		t.Errorf("%q, %v", s.ID, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+full.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := c.Jobs().rest.ask(c.Jobs().rest.http, request, 10*time.Millisecond); !errors.Is(err, errGone) {
		if err == nil {
			answer.Body.Close()
		}
		t.Errorf("%v", err)
	}
	follows := httptest.NewServer(http.RedirectHandler("http://"+full.Addr().String(), http.StatusTemporaryRedirect)) // it has not heard yet
	defer follows.Close()
	if request, err = http.NewRequestWithContext(ctx, http.MethodGet, follows.URL, nil); err != nil {
		t.Fatal(err)
	}
	if answer, err := c.Jobs().rest.ask(c.Jobs().rest.http, request, 100*time.Millisecond); !errors.Is(err, errGone) {
		if err == nil {
			answer.Body.Close()
		}
		t.Errorf("sent on to it: %v", err)
	}
	if accepts(ctx, full.Addr().String(), 200*time.Millisecond) {
		t.Error("silence counts as an answer")
	}
}

// A caller that gives up is not kept waiting.
func TestACallEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	jobs, _ := manager(t, func(w http.ResponseWriter, r *http.Request) { cancel(); nothing(w, r) })
	if _, err := jobs.Get(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
