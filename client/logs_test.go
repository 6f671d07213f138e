package client

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// A node that stands still after its container has ended is not waited for: what it has not copied into the filesystem is
// missed, and the follower says so.
func TestFollowLeavesANodeThatStandsStill(t *testing.T) {
	defer func(before time.Duration, first func(*logFile) time.Duration) {
		logPatience, firstPatience = before, first
	}(logPatience, firstPatience)
	logPatience = 200 * time.Millisecond
	firstPatience = func(l *logFile) time.Duration {
		if l.file == "stdout" && l.offset == 0 { // what there is comes, however late the node is on a busy machine
			return time.Minute
		}
		return logPatience
	}
	still := make(chan struct{})
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/stdout") && r.URL.Query().Get("offset") == "0" {
			_, _ = w.Write([]byte("begun\n"))
		}
		_ = http.NewResponseController(w).Flush()
		<-still
	}))
	defer node.Close()
	defer close(still)
	status := fmt.Sprintf(`{"id": "application_1_0001", "state": "FINISHED", "final_status": "FAILED", "phase": "FAILED",
		"containers": [{"id": "container_1_0001_01_000002", "node": %q, "started": 1, "exit_status": 1}]}`, strings.TrimPrefix(node.URL, "http://"))
	for _, follow := range []bool{true, false} {
		jobs, _ := manager(t, says(200, status))
		c := &Client{rest: jobs.rest, jobs: jobs, fs: nowhere(t)}
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() {
			_, err := c.Follow(t.Context(), "application_1_0001", LogOptions{Follow: follow}, &out, &out)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || out.String() != "begun\n" {
				t.Errorf("follow %v: %q, %v", follow, out.String(), err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("follow %v: the follower waits for the node", follow)
		}
	}
}

// nowhere is the client of a filesystem that is not there.
func nowhere(t *testing.T) *dfs.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	fs, err := dfs.New(dfs.Config{Namenodes: []string{l.Addr().String()}, Unreachable: 10 * time.Millisecond, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fs.Close() })
	return fs
}

// A node that has no more of a log than its end says where that begins, also in the middle of a reader's way: what is missing is told, and
// nothing comes twice.
func TestFollowPassesOverWhatWasRolled(t *testing.T) {
	defer func(before time.Duration) { logPatience = before }(logPatience)
	logPatience = time.Minute // the node answers, however late on a busy machine
	answers := map[string]struct{ begin, text string }{
		"0": {"100", ""}, "100": {"100", "line 1\nlin"}, "110": {"500", ""}, "500": {"500", "line 9\n"},
	}
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/stderr") {
			w.Header().Set("Hops-Log-Offset", "0")
			return
		}
		offset := r.URL.Query().Get("offset")
		a := answers[offset]
		w.Header().Set("Hops-Log-Offset", a.begin)
		_, _ = w.Write([]byte(a.text))
		if offset == "100" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler) // cut under the reader
		}
	}))
	defer node.Close()
	status := fmt.Sprintf(`{"id": "application_1_0001", "state": "FINISHED", "final_status": "SUCCEEDED", "phase": "SUCCEEDED",
		"containers": [{"id": "container_1_0001_01_000002", "node": %q, "started": 1, "exit_status": 0}]}`, strings.TrimPrefix(node.URL, "http://"))
	jobs, _ := manager(t, says(200, status))
	c := &Client{rest: jobs.rest, jobs: jobs, fs: nowhere(t)}
	var out, notes bytes.Buffer
	if _, err := c.Follow(t.Context(), "application_1_0001", LogOptions{Follow: true}, &out, &notes); err != nil {
		t.Error(err)
	}
	if out.String() != "line 1\nlin\nline 9\n" {
		t.Errorf("%q", out.String())
	}
	for _, want := range []string{"was rolled: 100 bytes from byte 0 on are not kept", "was rolled: 390 bytes from byte 110 on are not kept"} {
		if strings.Count(notes.String(), want) != 1 {
			t.Errorf("%q is not said once: %s", want, notes.String())
		}
	}
}
