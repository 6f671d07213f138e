package hrpc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// statAnswer is what stat says of a path.
func statAnswer(c metadata.Caller, path string) Message {
	if path == "" || strings.HasSuffix(path, "none") {
		return nil
	}
	return &hadooppb.GetGroupsForUserResponseProto{Groups: []string{c.User, path}}
}

// refusesStat tells the paths at which stat ends in an error.
func refusesStat(path string) bool { return strings.HasSuffix(path, "no") }

// batched counts what a server's batches have done.
type batched struct {
	calls, answered atomic.Int64
	panics          atomic.Bool
	answer          int64 // what the method says of its answers
}

// statServer has a method stat, with a Batch where b is not nil, and one that is no path's.
func statServer(t testing.TB, config ServerConfig, b *batched) *Server {
	s := newServer(t, config)
	m := Method{
		Name: "stat", New: func() Message { return new(hadooppb.GetFileInfoRequestProto) }, Right: security.ByPath, Source: true, Passing: true,
		Command: "getfileinfo", Read: true,
		Handle: func(c *Call) {
			path := c.Request.(*hadooppb.GetFileInfoRequestProto).GetSrc()
			if refusesStat(path) {
				c.Fail(metadata.Errorf(metadata.ErrPermission, "no: %s", path))
				return
			}
			c.Reply(statAnswer(c.Caller, path))
		},
	}
	if b != nil {
		m.Answer = b.answer
		m.Batch = func(calls *Batch) {
			b.calls.Add(int64(len(calls.Paths)))
			if b.panics.Load() {
				panic("as asked")
			}
			var answers []Message
			for _, path := range calls.Paths {
				if refusesStat(path) {
					break
				}
				answers = append(answers, statAnswer(calls.Caller, path))
			}
			calls.Reply(answers)
			b.answered.Add(int64(len(answers)))
		}
	}
	s.Handle(nn, m)
	return s
}

// talk sends frames over a connection, in writes of any length, and returns all that is answered until the server has nothing more to say.
func talk(t *testing.T, addr string, sent []byte, r *rand.Rand) []byte {
	t.Helper()
	conn := dialRaw(t, addr)
	defer conn.Close()
	got := make(chan []byte, 1)
	go func() {
		b, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	for sent = append(unhex(t, helloHex+contextHex), sent...); len(sent) > 0; {
		n := 1 + r.IntN(min(len(sent), 4096))
		if _, err := conn.Write(sent[:n]); err != nil {
			t.Fatal(err)
		}
		sent = sent[n:]
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	return <-got
}

// TestCallsThatComeTogetherAreAnsweredAsByThemselves sends the same bytes to a server whose stat has a Batch, and to one where it has none: calls of stat that are all in
// order, refused, of other methods, of other clients, repeated, told states, and with fields that nobody knows.
func TestCallsThatComeTogetherAreAnsweredAsByThemselves(t *testing.T) {
	config := func() ServerConfig {
		requests, answers := budgets()
		return ServerConfig{Requests: requests, Answers: answers, Exception: notFound, State: func() int64 { return 77 }}
	}
	var b batched
	plain, together := statServer(t, config(), nil), statServer(t, config(), &b)
	plainAddr, addr := start(t, plain), start(t, together)
	paths := []string{"/a/b", "/a/c", "/none", "/no", "", "/a/" + strings.Repeat("x", 300), "/a/d", "/a/e", "/\n\x01"}
	for round := range 120 {
		odd := 40 // every second round has few calls that are not in order
		if round%2 == 1 {
			odd = 1000
		}
		r := rand.New(rand.NewPCG(3, uint64(round)))
		var sent []byte
		call := func(id int32) []byte {
			path := paths[r.IntN(len(paths))]
			m := &hadooppb.GetFileInfoRequestProto{Src: &path}
			switch r.IntN(odd) {
			case 0:
				return request(id, 0, nn, "getFileInfo", m)
			case 1:
				return request(id, 1, nn, "stat", m)
			case 2:
				return request(id, 0, nn, "nothing", m)
			case 3:
				return request(id, 0, "no.such", "stat", m)
			case 4:
				return unhex(t, pingHex)
			case 5: // another client, on the same connection
				dst, at := beginFrame(nil)
				dst = appendDelimited(dst, appendRequestHeader(nil, id, 0, []byte("fedcba9876543210")))
				dst = appendDelimited(dst, appendCallHeader(nil, nn, "stat"))
				dst, _ = appendMessage(dst, m)
				return endFrame(dst, at)
			case 6, 7: // that says what it has seen
				dst, at := beginFrame(nil)
				dst = appendDelimited(dst, append(appendRequestHeader(nil, id, 0, []byte("0123456789abcdef")), 8<<3, byte(r.IntN(2))))
				dst = appendDelimited(dst, appendCallHeader(nil, nn, "stat"))
				dst, _ = appendMessage(dst, m)
				return endFrame(dst, at)
			case 8: // the path twice: the last one counts
				dst, at := beginFrame(nil)
				dst = appendDelimited(dst, appendRequestHeader(nil, id, 0, []byte("0123456789abcdef")))
				dst = appendDelimited(dst, appendCallHeader(nil, nn, "stat"))
				dst = appendDelimited(dst, []byte("\x0a\x02/p\x0a\x02/q"))
				return endFrame(dst, at)
			case 9: // a field that nobody knows, and bytes behind the request
				dst, at := beginFrame(nil)
				dst = appendDelimited(dst, appendRequestHeader(nil, id, 0, []byte("0123456789abcdef")))
				dst = appendDelimited(dst, appendCallHeader(nil, nn, "stat"))
				dst = appendDelimited(dst, []byte("\x0a\x02/p\x50\x01"))
				return endFrame(append(dst, 1, 2, 3), at)
			default:
				return request(id, 0, nn, "stat", m)
			}
		}
		for id := range int32(20 + r.IntN(100)) {
			sent = append(sent, call(id)...)
		}
		if r.IntN(4) == 0 { // it ends with something that is no call
			sent = append(sent, 0, 0, 0, 3, 0, 5, 1)
		}
		want, got := talk(t, plainAddr, sent, r), talk(t, addr, sent, r)
		if !bytes.Equal(got, want) {
			t.Fatalf("round %d: got %d bytes\n%q\nwant %d\n%q", round, len(got), got, len(want), want)
		}
	}
	if n := b.answered.Load(); n < 500 {
		t.Errorf("only %d calls were answered together", n)
	}
	atTheEnd(t, plain, nil)
	atTheEnd(t, together, nil)
	one, other := plain.Counts(), together.Counts()
	if one.Calls != other.Calls || one.Answered != other.Answered || one.Failures != other.Failures || other.Took <= 0 || other.Again != 0 {
		t.Errorf("counted %+v, and %+v where calls are answered together", one, other)
	}
}

// stats are calls of stat.
func stats(first int32, paths ...string) (sent []byte) {
	for i, path := range paths {
		sent = append(sent, request(first+int32(i), 0, nn, "stat", &hadooppb.GetFileInfoRequestProto{Src: &path})...)
	}
	return sent
}

// wantStats reads the answers to as many calls.
func wantStats(t *testing.T, conn net.Conn, want hadooppb.RpcResponseHeaderProto_RpcStatusProto, first, n int32) {
	t.Helper()
	for id := first; id < first+n; id++ {
		if h, _ := readFrame(t, conn); h.callID != id || h.status != want {
			t.Fatalf("got %+v, want call %d and %v", h, id, want)
		}
	}
}

const (
	answerOK     = hadooppb.RpcResponseHeaderProto_SUCCESS
	answerFailed = hadooppb.RpcResponseHeaderProto_ERROR
)

// TestNoBatchWhereEachCallIsLookedAt: the audit log keeps reads one by one, refusals always.
func TestNoBatchWhereEachCallIsLookedAt(t *testing.T) {
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprintf("reads are kept: %v", reads), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "audit")
			audit, err := security.OpenAudit(security.AuditConfig{Path: file, Reads: reads})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			written := make(chan error, 1)
			go func() { written <- audit.Run(ctx) }()
			door := security.NewDoor(security.Config{})
			door.SetAudit(audit)
			var b batched
			conn := dialRaw(t, start(t, statServer(t, ServerConfig{Door: door}, &b)))
			_, _ = conn.Write(unhex(t, helloHex+contextHex))
			_, _ = conn.Write(stats(0, "/first"))
			wantStats(t, conn, answerOK, 0, 1)
			_, _ = conn.Write(stats(1, "/a", "/b", "/no", "/c"))
			wantStats(t, conn, answerOK, 1, 2)
			wantStats(t, conn, answerFailed, 3, 1)
			wantStats(t, conn, answerOK, 4, 1)
			stop()
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := 1
			if reads {
				want = 5
			}
			if n := strings.Count(string(text), "cmd=getfileinfo"); n != want || strings.Count(string(text), "allowed=false") != 1 {
				t.Errorf("%d lines, want %d:\n%s", n, want, text)
			}
			if n := b.calls.Load(); reads == (n > 0) {
				t.Errorf("%d calls were given to the batch", n)
			}
		})
	}
}

// TestBatchThatPanics: its calls are answered by Handle.
func TestBatchThatPanics(t *testing.T) {
	log := &journal{}
	var b batched
	b.panics.Store(true)
	conn := dialRaw(t, start(t, statServer(t, ServerConfig{Logger: slog.New(slog.NewTextHandler(log, nil))}, &b)))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(stats(0, "/first"))
	wantStats(t, conn, answerOK, 0, 1)
	_, _ = conn.Write(stats(1, "/a", "/b"))
	wantStats(t, conn, answerOK, 1, 2)
	if b.calls.Load() == 0 || !slices.ContainsFunc(log.all(), func(line string) bool { return strings.Contains(line, "handler panicked") }) {
		t.Errorf("%d calls were given to the batch, the log has %q", b.calls.Load(), log.all())
	}
}

// TestNoBatchWithoutRoom: calls whose answers are too much together are answered one by one.
func TestNoBatchWithoutRoom(t *testing.T) {
	requests, answers := budgets()
	b := batched{answer: answers.Total()/2 + 1}
	s := statServer(t, ServerConfig{Requests: requests, Answers: answers}, &b)
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(stats(0, "/first"))
	wantStats(t, conn, answerOK, 0, 1)
	_, _ = conn.Write(stats(1, "/a", "/b", "/c"))
	wantStats(t, conn, answerOK, 1, 3)
	if n := b.calls.Load(); n != 0 {
		t.Errorf("%d calls were given to the batch", n)
	}
	atTheEnd(t, s, []net.Conn{conn})
}

// TestSlowBatch: each of its calls counts, and is told of when it was slow.
func TestSlowBatch(t *testing.T) {
	log := &journal{}
	slow := &slowlog.Log{Logger: slog.New(slog.NewTextHandler(log, nil))}
	var b batched
	s := statServer(t, ServerConfig{Slow: slow.Operation("rpc", time.Nanosecond)}, &b) // every call takes that long
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(stats(0, "/first"))
	wantStats(t, conn, answerOK, 0, 1)
	_, _ = conn.Write(stats(1, "/a", "/b", "/c"))
	wantStats(t, conn, answerOK, 1, 3)
	eventually(t, func() bool { return s.Counts().Answered == 4 && len(log.all()) == 4 })
	for _, line := range log.all() {
		if !strings.Contains(line, "Slow RPC : stat took") || !strings.Contains(line, "from client 127.0.0.1:") || !strings.Contains(line, " of ") {
			t.Error(line)
		}
	}
	if b.answered.Load() == 0 {
		t.Error("nothing was answered together")
	}
}

// TestCallsBehindOneThatCannotBeBatchedAreServedTogether sends what arrives in one piece, and looks at which calls each batch had.
func TestCallsBehindOneThatCannotBeBatchedAreServedTogether(t *testing.T) {
	requests, answers := budgets()
	s := newServer(t, ServerConfig{Requests: requests, Answers: answers, Exception: notFound})
	var had []string // on the connection's reader
	down := false
	for _, name := range []string{"stat", "look"} {
		s.Handle(nn, Method{
			Name: name, New: func() Message { return new(hadooppb.GetFileInfoRequestProto) }, Right: security.ByPath, Source: true, Passing: true,
			Handle: func(c *Call) {
				path := c.Request.(*hadooppb.GetFileInfoRequestProto).GetSrc()
				had = append(had, path)
				if refusesStat(path) {
					c.Fail(metadata.ErrPermission)
					return
				}
				c.Reply(statAnswer(c.Caller, path))
			},
			Batch: func(b *Batch) {
				var out []Message
				for _, path := range b.Paths {
					if down || refusesStat(path) {
						break
					}
					out = append(out, statAnswer(b.Caller, path))
				}
				had = append(had, fmt.Sprintf("%s %d of %q", name, len(out), b.Paths))
				b.Reply(out)
			},
		})
	}
	held, goOn := make(chan struct{}), make(chan struct{})
	s.Handle(nn, Method{
		Name: "hold", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { held <- struct{}{}; <-goOn; c.Reply(nil) },
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	for _, test := range []struct {
		name  string
		calls string // "path" of stat, "look path", "get path" of a method without a Batch, "other path": of another client
		down  bool
		want  []string
	}{
		{"one that has none in front, and one between", "get /x /a /b get /y /c /d", false, []string{`stat 2 of ["/a" "/b"]`, `stat 2 of ["/c" "/d"]`}},
		{"refused ones", "/no /a /b /no /c /no /no /d", false, []string{
			`stat 0 of ["/no" "/a" "/b" "/no" "/c" "/no" "/no" "/d"]`, "/no", `stat 2 of ["/a" "/b" "/no" "/c" "/no" "/no" "/d"]`, "/no", `stat 1 of ["/c" "/no" "/no" "/d"]`, "/no", `stat 0 of ["/no" "/d"]`, "/no", `stat 1 of ["/d"]`,
		}},
		{"another method's", "/a /b look /c look /d /e", false, []string{`stat 2 of ["/a" "/b"]`, `look 2 of ["/c" "/d"]`, `stat 1 of ["/e"]`}},
		{"another client's", "/a /b other /c /d other /e other /f", false, []string{`stat 2 of ["/a" "/b"]`, "/c", "/d", "/e", `stat 1 of ["/f"]`}},
		{"none is answered", "/a /b /c /d", true, []string{`stat 0 of ["/a" "/b" "/c" "/d"]`, "/a", `stat 0 of ["/b" "/c" "/d"]`, "/b", "/c", "/d"}},
		{"more than are looked at", "get /x " + strings.Repeat("/a ", MaxBatch), false, []string{
			fmt.Sprintf("stat %d of %q", MaxBatch-1, slices.Repeat([]string{"/a"}, MaxBatch-1)), `stat 1 of ["/a"]`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _ = conn.Write(request(0, 0, nn, "hold", &hadooppb.RollEditsRequestProto{}))
			<-held
			had, down = nil, test.down
			var sent []byte
			want := []hadooppb.RpcResponseHeaderProto_RpcStatusProto{answerOK}
			method, client := "stat", "0123456789abcdef"
			for _, word := range strings.Fields(test.calls) {
				switch word {
				case "get":
					method = "getFileInfo"
				case "look":
					method = word
				case "other":
					client = "fedcba9876543210"
				default:
					dst, at := beginFrame(sent)
					dst = appendDelimited(dst, appendRequestHeader(nil, int32(len(want)), 0, []byte(client)))
					dst = appendDelimited(dst, appendCallHeader(nil, nn, method))
					dst, err := appendMessage(dst, &hadooppb.GetFileInfoRequestProto{Src: &word})
					if err != nil {
						t.Fatal(err)
					}
					sent = endFrame(dst, at)
					if want = append(want, answerOK); refusesStat(word) || word == "/x" {
						want[len(want)-1] = answerFailed
					}
					method, client = "stat", "0123456789abcdef"
				}
			}
			_, _ = conn.Write(sent)
			goOn <- struct{}{}
			for id, status := range want {
				wantStats(t, conn, status, int32(id), 1)
			}
			_, _ = conn.Write(request(0, 0, nn, "hold", &hadooppb.RollEditsRequestProto{}))
			<-held // what the reader has noted is there to be read
			if !slices.Equal(had, test.want) {
				t.Errorf("got  %q\nwant %q", had, test.want)
			}
			goOn <- struct{}{}
			wantStats(t, conn, answerOK, 0, 1)
		})
	}
	if n := s.Counts(); n.Again != 0 {
		t.Errorf("counted %+v", n)
	}
	atTheEnd(t, s, []net.Conn{conn})
}
