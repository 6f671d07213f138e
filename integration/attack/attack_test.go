package main

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func TestEveryAttackIsNamedOnceAndEveryTaskExists(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks() {
		if a.name == "" || a.what == "" || a.run == nil || seen[a.name] {
			t.Errorf("attack %q: no name, description or function, or named twice", a.name)
		}
		seen[a.name] = true
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, begin := range []string{`order{"`, `attackerID, "`, `s.once(ctx, "`} {
			for _, rest := range strings.Split(string(text), begin)[1:] {
				if task, _, _ := strings.Cut(rest, `"`); name != "attack_test.go" && tasks()[task] == nil {
					t.Errorf("%s: there is no task %q", name, task)
				}
			}
		}
	}
}

func TestVerdicts(t *testing.T) {
	calm := []waits{{Name: "stat", Worst: 300}}
	for _, c := range []struct {
		name string
		r    result
		want string
	}{
		{"within bounds", result{Memory: true, Grown: 512 * mib, Calm: calm, Beside: []waits{{Name: "stat", Worst: 799}}}, "held"},
		{"memory", result{Memory: true, Grown: 513 * mib}, "FAIL: grew by 513 MiB"},
		{"memory that was not watched", result{Grown: 513 * mib}, "held"},
		{"a death", result{Died: []string{"nn1", "nn1"}}, "FAIL: nn1 died"},
		{"a wait above that in calm", result{Calm: calm, Beside: []waits{{Name: "stat", Worst: 801}}}, "FAIL: stat waited 801 ms"},
		{"a refusal", result{Calm: calm, Beside: []waits{{Name: "stat", Done: 9, Failed: 1, First: "no"}}}, "FAIL: 1 of 9 stat failed: no"},
		{"informative", result{Informative: true, Memory: true, Grown: 513 * mib}, "seen"},
		{"left out", result{Skipped: "needs root"}, "left out: needs root"},
		{"failed itself", result{Error: "no python", Missed: []string{"x"}}, "ERROR: no python"},
	} {
		c.r.judge()
		if got := c.r.verdict(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if (&report{Results: []*result{{Skipped: "needs root"}, {}}}).held() != true || (&report{Results: []*result{{Error: "x"}}}).held() {
		t.Error("a run is held when nothing was missed and nothing failed")
	}
}

func TestTheTableShowsBeforeAndAfter(t *testing.T) {
	old := &report{Version: "hops 1", Results: []*result{{
		Name: "frames", Memory: true, Target: "nn1", Grown: 3 << 30, Cut: true, Sent: 5 * mib, Died: []string{"nn1"}, Killed: true,
		Calm: []waits{{Name: "stat", Worst: 2}}, Beside: []waits{{Name: "stat", Worst: 4200, Done: 7, Failed: 2}},
	}}}
	now := &report{Version: "hops 2", Results: []*result{
		{Name: "frames", What: "large ones", Memory: true, Target: "nn1", Grown: 20 * mib, Calm: []waits{{Name: "stat", Worst: 2}}, Beside: []waits{{Name: "stat", Worst: 40}}},
		{Name: "newer", What: "one more"},
	}}
	for _, r := range append(slices.Clone(old.Results), now.Results...) {
		r.judge()
	}
	var b bytes.Buffer
	now.print(&b, old)
	for _, want := range []string{"nn1 +3.0 GiB, then ended", "→ nn1 +20 MiB", "nn1 (killed at", "stat 4.2 s (calm 2 ms), 2 of 7 failed", "→ stat 40 ms (calm 2 ms)", "FAIL", "→ held", "left out: not run"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

func TestResultsOfOtherAttacksOnTheSameBinaryStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result.json")
	write := func(version string, names ...string) []string {
		t.Helper()
		r := &report{Version: version}
		for _, name := range names {
			r.Results = append(r.Results, &result{Name: name, Seconds: float64(len(names))})
		}
		if err := r.write(path); err != nil {
			t.Fatal(err)
		}
		all, err := readReport(path)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, one := range all.Results {
			out = append(out, one.Name)
		}
		return out
	}
	write("hops 1", "closed-socket", "noise")
	if got := write("hops 1", "frames"); !slices.Equal(got, []string{"closed-socket", "frames", "noise"}) {
		t.Errorf("after another attack: %v", got)
	}
	if got := write("hops 2", "noise"); !slices.Equal(got, []string{"noise"}) {
		t.Errorf("after an attack on another binary: %v", got)
	}
	if err := os.WriteFile(path, []byte("not json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (&report{}).write(path); err == nil {
		t.Error("a file that is something else was replaced")
	}
}

func TestSizesTimesAndFieldsOfStatus(t *testing.T) {
	for n, want := range map[int64]string{0: "0 KiB", 300 << 10: "300 KiB", 3 * mib / 2: "1.5 MiB", 700 * mib: "700 MiB", 3 << 29: "1.5 GiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	if a, b := duration(999), duration(1234); a != "999 ms" || b != "1.2 s" {
		t.Errorf("durations %q, %q", a, b)
	}
	const status = "Name:\thops\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nVmX:\n"
	if a, b, c, d := statusField(status, "VmRSS"), statusField(status, "VmHWM"), statusField(status, "Vm"), statusField(status, "VmX"); a != mib || b != 2*mib || c != 0 || d != 0 {
		t.Error(a, b, c, d)
	}
	if resident(os.Getpid(), "VmRSS") == 0 {
		t.Error("this process has no memory")
	}
}

func TestWhatIsWrittenByHandIsIPC(t *testing.T) {
	s := hrpc.NewServer(hrpc.ServerConfig{Door: security.NewDoor(security.Config{})})
	got := make(chan string, 2)
	s.Handle(clientProtocol, hrpc.Method{
		Name: "getListing", Right: security.Anyone, New: func() hrpc.Message { return &hadooppb.GetListingRequestProto{} },
		Handle: func(c *hrpc.Call) {
			got <- c.Caller.User + " " + c.Request.(*hadooppb.GetListingRequestProto).GetSrc()
			c.Reply(nil)
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-served })
	request := &hadooppb.GetListingRequestProto{Src: new("/some/where"), StartAfter: []byte{}, NeedLocation: new(false)}
	body := appendDelimited(nil, request)[1:]
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all := append(greeting(ownName()), callFrame(1, "getListing", request)...)
	all = append(all, rawFrame(2, "getListing", body[:4], len(body)-4)...)
	if _, err := c.Write(append(all, body[4:]...)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if text := <-got; text != ownName()+" /some/where" {
			t.Errorf("the server understood %q", text)
		}
	}
}

func TestArchivesAreWhatTheySay(t *testing.T) {
	var b bytes.Buffer
	open := func() *zip.Reader {
		t.Helper()
		z, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		return z
	}
	if err := largeManifest(&b, 5*mib); err != nil {
		t.Fatal(err)
	}
	f, err := open().Open("manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(f) // checks the CRC
	if err != nil || len(text) != 5*mib || b.Len() > mib {
		t.Errorf("the manifest has %d bytes in an archive of %d: %v", len(text), b.Len(), err)
	}
	b.Reset()
	if err := manyEntries(&b, 100_000); err != nil {
		t.Fatal(err)
	}
	if z := open(); len(z.File) != 100_000 || z.File[99_999].Name != "0099999" {
		t.Errorf("%d entries", len(z.File))
	} else if f, err := z.File[7].Open(); err != nil {
		t.Error(err)
	} else if err := iotest.TestReader(f, nil); err != nil {
		t.Error(err)
	}
	b.Reset()
	if err := deepEntries(&b, 3, 2000); err != nil {
		t.Fatal(err)
	}
	if z := open(); len(z.File) != 3 || strings.Count(z.File[2].Name, "/") != 2001 {
		t.Errorf("%d entries", len(z.File))
	}
}

// challenger stands for servers that want to be answered before they speak.
type challenger struct{ net.Listener }

const question, answer = "who is there?", "a friend"

func (l challenger) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		got := make([]byte, len(answer))
		if _, err := io.WriteString(c, question); err == nil {
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, err = io.ReadFull(c, got)
			if err == nil && string(got) == answer {
				_ = c.SetReadDeadline(time.Time{})
				return c, nil
			}
		}
		c.Close()
	}
}

// Behind a challenge that is not bound to where the client meant to go, whoever passes it on is let in: the squatter has
// to find that.
func TestASquatterPassesAChallengeOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	live := grpc.NewServer()
	go live.Serve(challenger{l})
	defer live.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	squatted, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatted.Close()
	s := &squatter{order: squatOrder{Relay: l.Addr().String(), Knock: registerDatanode}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := squatted.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		s.serve(ctx, c)
	}()
	c, err := net.Dial("tcp", squatted.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(question))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, answer); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, preface+"\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-done
	if s.catch.Relayed != 1 || len(s.catch.Knocked) != 1 || !strings.HasPrefix(s.catch.Knocked[0], "Unimplemented") {
		t.Errorf("%+v", s.catch)
	}
	for text, want := range map[string]string{"proofPRI * HTTP/2.0\r\n": "proof", "proofPRI *": "proof", "proofPRI": "proofPRI", "": ""} {
		if got, _ := beforePreface([]byte(text)); string(got) != want {
			t.Errorf("before the preface in %q is %q", text, got)
		}
	}
}

func TestASquatterKeepsWhatItIsShown(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		name string
		say  func(net.Conn)
	}{
		{"HTTP", func(c net.Conn) {
			io.WriteString(c, "GET /v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesame\r\n\r\n")
			io.Copy(io.Discard, c)
		}},
		{"gRPC", func(c net.Conn) {
			knockOver(ctx, c, registerDatanode, map[string]string{"authorization": "Bearer sesame"})
		}},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err = errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		s := &squatter{silence: time.Minute}
		go func() {
			defer client.Close()
			c.say(client)
		}()
		s.serve(ctx, server)
		server.Close()
		if !heard(s.catch.Headers, "sesame") {
			t.Errorf("%s: %+v", c.name, s.catch)
		}
	}
}
