package hrpc

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// explosive is a message whose encoder panics, after it has written something.
type explosive struct {
	hadooppb.RollEditsResponseProto
}

func (*explosive) SizeVT() int { return 3 }

func (*explosive) MarshalToSizedBufferVT(to []byte) (int, error) {
	to[2] = 1
	panic("as asked")
}

// TestAPanicOfAnEncoderFailsTheCallAlone: the lock that everybody on the connection needs is given back, whoever has answered, and nothing of the answer goes out.
func TestAPanicOfAnEncoderFailsTheCallAlone(t *testing.T) {
	log := &journal{}
	requests, answers := budgets()
	s := newServer(t, ServerConfig{Logger: slog.New(slog.NewTextHandler(log, nil)), Requests: requests, Answers: answers})
	handle := func(name string, fn func(*Call)) {
		s.Handle(nn, Method{Name: name, New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone, Handle: fn})
	}
	left := make(chan struct{})
	handle("now", func(c *Call) { c.Reply(&explosive{}) })
	handle("go", func(c *Call) { c.Go(func() { c.Reply(&explosive{}) }) })
	handle("elsewhere", func(c *Call) { // where a panic would end the process
		go func() { c.Reply(&explosive{}); close(left) }()
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	for i, name := range []string{"now", "go", "elsewhere"} {
		_, _ = conn.Write(request(int32(2*i), 0, nn, name, &hadooppb.RollEditsRequestProto{}))
		h, _ := readFrame(t, conn)
		if want := "the answer of " + name + " cannot be encoded: its encoder panicked: as asked"; h.callID != int32(2*i) || h.status != answerFailed || h.message != want {
			t.Fatalf("got %+v, want %q", h, want)
		}
		_, _ = conn.Write(request(int32(2*i+1), 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/")}))
		wantStats(t, conn, answerOK, int32(2*i+1), 1)
	}
	<-left
	if n := len(slices.DeleteFunc(log.all(), func(line string) bool {
		return !strings.Contains(line, "answer cannot be encoded") || !strings.Contains(line, "MarshalToSizedBufferVT")
	})); n != 3 {
		t.Errorf("%d of three lines say where it was:\n%s", n, strings.Join(log.all(), "\n"))
	}
	conn.Close()
	atTheEnd(t, s, nil)
}

// TestAPanicOfABatchsAnswerFailsItsCallAlone: the other calls of the batch are answered.
func TestAPanicOfABatchsAnswerFailsItsCallAlone(t *testing.T) {
	s := newServer(t, ServerConfig{})
	answer := func(path string) Message {
		if path == "/bad" {
			return &explosive{}
		}
		return nil
	}
	given := 0 // on the connection's reader
	s.Handle(nn, Method{
		Name: "stat", New: func() Message { return new(hadooppb.GetFileInfoRequestProto) }, Right: security.ByPath, Source: true, Passing: true,
		Handle: func(c *Call) { c.Reply(answer(c.Request.(*hadooppb.GetFileInfoRequestProto).GetSrc())) },
		Batch: func(b *Batch) {
			given += len(b.Paths)
			var answers []Message
			for _, path := range b.Paths {
				answers = append(answers, answer(path))
			}
			b.Reply(answers)
		},
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(stats(0, "/first"))
	wantStats(t, conn, answerOK, 0, 1)
	_, _ = conn.Write(stats(1, "/a", "/b", "/bad", "/c"))
	wantStats(t, conn, answerOK, 1, 2)
	wantStats(t, conn, answerFailed, 3, 1)
	wantStats(t, conn, answerOK, 4, 1)
	if given < 4 {
		t.Errorf("%d calls were given to the batch", given)
	}
}

// TestAPanicWhileAnsweringEndsTheConnection: nobody else can answer the call any more.
func TestAPanicWhileAnsweringEndsTheConnection(t *testing.T) {
	log := &journal{}
	requests, answers := budgets()
	s := newServer(t, ServerConfig{
		Logger: slog.New(slog.NewTextHandler(log, nil)), Requests: requests, Answers: answers,
		Exception: func(error) (string, string) { panic("as asked") },
	})
	s.Handle(nn, Method{
		Name: "later", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { go c.Fail(metadata.ErrNotExist) },
	})
	s.Handle(nn, Method{
		Name: "doubtful", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { c.Doubt = func() error { panic("as asked") }; c.Reply(nil) },
	})
	addr := start(t, s)
	for _, call := range [][]byte{
		request(0, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/x")}),
		request(0, 0, nn, "later", &hadooppb.RollEditsRequestProto{}),
		request(0, 0, nn, "doubtful", &hadooppb.RollEditsRequestProto{}),
	} {
		conn := dialRaw(t, addr)
		_, _ = conn.Write(bytes.Join([][]byte{unhex(t, helloHex+contextHex), call}, nil))
		wantClosed(t, conn)
	}
	atTheEnd(t, s, nil)
	if n := strings.Count(strings.Join(log.all(), "\n"), "answering panicked"); n != 3 {
		t.Errorf("%d lines of three:\n%s", n, strings.Join(log.all(), "\n"))
	}
}

// TestAPanicOfARequestsEncoderFailsTheCallAlone: the client's other calls go on.
func TestAPanicOfARequestsEncoderFailsTheCallAlone(t *testing.T) {
	c, err := Dial(t.Context(), start(t, newServer(t, ServerConfig{})), DialConfig{Protocol: nn, User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if err := c.Call(t.Context(), nn, "getFileInfo", &explosive{}, &hadooppb.GetFileInfoResponseProto{}); err == nil || !strings.Contains(err.Error(), "request of getFileInfo") || !strings.Contains(err.Error(), "panicked: as asked") {
			t.Errorf("got %v", err)
		}
		if err := c.Call(t.Context(), nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/")}, &hadooppb.GetFileInfoResponseProto{}); err != nil {
			t.Error(err)
		}
	}
}
