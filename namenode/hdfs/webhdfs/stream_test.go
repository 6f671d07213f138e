package webhdfs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// directory is a service with one directory, whose entries are made as they are asked for; other calls panic on the nil
// interface.
type directory struct {
	namenode.Service
	size, page int
	// broken: pages after the first one fail.
	broken bool
	pages  atomic.Int64
}

func (d *directory) Active() bool                { return true }
func (d *directory) Defaults() namenode.Defaults { return namenode.Defaults{ListLimit: d.page} }

func entry(i int) metadata.FileStatus {
	return metadata.FileStatus{
		ID: metadata.INodeID(i + 1), Type: metadata.TypeFile, Name: fmt.Sprintf("%07d <ü&\u2028>", i), Owner: "alice", Group: "users",
		Mode: 0o644, Length: int64(i), MTime: 1700000000000, Replication: 3, BlockSize: 128 << 20, ACL: i%3 == 0,
	}
}

func (d *directory) List(_ metadata.Caller, r namenode.ListRequest, done func(*namenode.Listing, error)) {
	from := 0
	if r.After != "" {
		_, _ = fmt.Sscanf(r.After, "%d", &from)
		from++
		if d.broken {
			done(nil, metadata.Errorf(metadata.ErrRetriable, "the leader has changed"))
			return
		}
	}
	d.pages.Add(1)
	l := &namenode.Listing{}
	for i := from; i < min(from+d.page, d.size); i++ {
		l.Entries = append(l.Entries, entry(i))
	}
	l.Remaining = d.size - from - len(l.Entries)
	done(l, nil)
}

func serve(t *testing.T, d *directory, answers *security.Budget) *httptest.Server {
	door := security.NewDoor(security.Config{Owner: func(security.ConnAddrs) (uint32, error) { return 70001, nil }})
	s := httptest.NewServer(New(d, door, answers, slog.New(slog.DiscardHandler)))
	t.Cleanup(s.Close)
	return s
}

func TestStreamedListingHasTheBytesOfAWholeOne(t *testing.T) {
	for _, size := range []int{0, 1, 2, 3, 7, 500} {
		s := serve(t, &directory{size: size, page: 3}, nil)
		response, err := http.Get(s.URL + Prefix + "/d?op=LISTSTATUS")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%d entries: %s, %v", size, response.Status, err)
		}
		var all []metadata.FileStatus
		for i := range size {
			all = append(all, entry(i))
		}
		var want bytes.Buffer
		encoder := json.NewEncoder(&want)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(statusesOf(all)); err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimSuffix(want.String(), "\n"); string(got) != want {
			t.Errorf("%d entries:\ngot  %.300s\nwant %.300s", size, got, want)
		}
	}
}

// Requests for a directory of a million that nobody reads hold a page each.
func TestListingThatNobodyReadsHoldsAPage(t *testing.T) {
	answers := security.NewBudget(security.BudgetConfig{Purpose: "answers", Total: 64 << 20})
	d := &directory{size: 1_000_000, page: 1000}
	s := serve(t, d, answers)
	const clients = 5
	for range clients {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		_, _ = io.WriteString(conn, "GET "+Prefix+"/d?op=LISTSTATUS HTTP/1.1\r\nHost: h\r\n\r\n")
		one := make([]byte, 1)
		if _, err := conn.Read(one); err != nil {
			t.Fatal(err)
		}
	}
	for last := int64(-1); last != d.pages.Load(); time.Sleep(50 * time.Millisecond) { // until all of them are stuck
		last = d.pages.Load()
	}
	if n := d.pages.Load(); n > clients*100 { // of 1000, and most of that in the sockets
		t.Errorf("%d pages were made for %d clients that read nothing", n, clients)
	}
	want := int64(clients * 1000 * entrySize)
	for begun := time.Now(); answers.Used() < want; time.Sleep(10 * time.Millisecond) { // one may be between two pages yet
		if time.Since(begun) > time.Minute {
			t.Fatalf("%d bytes are held, want about %d", answers.Used(), want)
		}
	}
	if answers.Peak() > 2*want {
		t.Errorf("at most %d bytes were held, want about %d", answers.Peak(), want)
	}
}

func TestListingThatBreaksOffDoesNotLookComplete(t *testing.T) {
	s := serve(t, &directory{size: 100, page: 10, broken: true}, nil)
	response, err := http.Get(s.URL + Prefix + "/d?op=LISTSTATUS")
	if err == nil {
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
	}
	if err == nil {
		t.Error("half of a listing was taken for all of it")
	}
}

func TestFullBudgetAnswers503AndSaysForHowLong(t *testing.T) {
	answers := security.NewBudget(security.BudgetConfig{Purpose: "answers", Total: 1 << 20, Patience: 10 * time.Millisecond})
	other := answers.Account(70001)
	defer other.Close()
	other.Force(1 << 20)
	s := serve(t, &directory{size: 10, page: 1000}, answers)
	for _, op := range []string{"LISTSTATUS", "LISTSTATUS_BATCH", "GETFILEBLOCKLOCATIONS"} {
		response, err := http.Get(s.URL + Prefix + "/d?op=" + op)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "1" ||
			!strings.Contains(string(got), "org.apache.hadoop.ipc.RetriableException") {
			t.Errorf("%s: %s, Retry-After %q, %s, %v", op, response.Status, response.Header.Get("Retry-After"), got, err)
		}
	}
	other.Give(1 << 20)
	other.Rest()
	response, err := http.Get(s.URL + Prefix + "/d?op=LISTSTATUS")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %s", response.Status)
	}
	for range 6000 {
		if answers.Used() == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d bytes are still held", answers.Used())
}

// What is admitted after the request has ended is given back at once.
func TestLateAdmissionIsGivenBack(t *testing.T) {
	answers := security.NewBudget(security.BudgetConfig{Purpose: "answers", Total: 1 << 20})
	q := &request{Handler: New(&directory{}, security.NewDoor(security.Config{}), answers, nil), http: httptest.NewRequest(http.MethodGet, "/", nil)}
	if err := q.take(1000); err != nil {
		t.Fatal(err)
	}
	q.tab.settle()
	if err := q.take(1000); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if n := answers.Used(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
}

// looker is a body that ends in an error when it is read, after it has looked.
type looker func()

func (b looker) Read([]byte) (int, error) {
	b()
	return 0, io.ErrUnexpectedEOF
}

// What a request that is being received holds is not of the answers' budget, of which it wants more later: many would wait for each other.
func TestWhatIsReceivedIsNoAnswer(t *testing.T) {
	requests, answers := security.NewBudget(security.BudgetConfig{Purpose: "requests", Total: 64 << 20}), security.NewBudget(security.BudgetConfig{Purpose: "answers", Total: 64 << 20})
	h := New(&directory{}, security.NewDoor(security.Config{}), answers, nil)
	h.requests = requests
	for name, operation := range map[string]func(*request) (response, error){"OPENMANY": (*request).openMany, "READMANY": (*request).readMany} {
		looked := false
		q := &request{Handler: h, http: httptest.NewRequest(http.MethodPost, "/", looker(func() {
			if looked = true; requests.Used() == 0 || answers.Used() != 0 {
				t.Errorf("%s: %d bytes of requests are held, %d of answers", name, requests.Used(), answers.Used())
			}
		}))}
		if _, err := operation(q); err == nil || !looked {
			t.Errorf("%s: %v, looked %v", name, err, looked)
		}
		q.said.settle()
		q.tab.settle()
		if n := requests.Used(); n != 0 {
			t.Errorf("%s: %d bytes are still held", name, n)
		}
	}
}
