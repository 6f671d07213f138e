package hrpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func notFound(err error) (string, string) {
	if metadata.KindOf(err) == metadata.ErrNotExist {
		return "java.io.FileNotFoundException", err.Error()
	}
	return classIOException, err.Error()
}

func TestServerAnswersHadoopsBytesWithHadoopsBytes(t *testing.T) {
	addr := start(t, newServer(t, ServerConfig{Exception: notFound}))
	conn := dialRaw(t, addr)
	// Java sends preamble, context and first call before it reads anything.
	_, _ = conn.Write(unhex(t, helloHex+contextHex+statRootHex))
	readHex(t, conn, absentHex)
	_, _ = conn.Write(unhex(t, pingHex))
	_, _ = conn.Write(request(7, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/x")}))
	readHex(t, conn, errorHex)
}

func TestClientSendsHadoopsBytes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	want := unhex(t, helloHex+contextHex+statRootHex)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
			done <- fmt.Errorf("got  %x (%w)\nwant %x", got, err, want)
			return
		}
		_, err = conn.Write(unhex(t, absentHex))
		done <- err
		_, _ = io.Copy(io.Discard, conn)
	}()
	c, err := Dial(t.Context(), l.Addr().String(), DialConfig{Protocol: nn, User: "alice", ClientID: ClientID([]byte("0123456789abcdef")), DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var answer hadooppb.GetFileInfoResponseProto
	if err := c.call(t.Context(), 0, 0, false, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/")}, &answer); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// request encodes a call of client 0123456789abcdef.
func request(id, retry int32, protocol, method string, m Message) []byte {
	dst, at := beginFrame(nil)
	dst = appendDelimited(dst, appendRequestHeader(nil, id, retry, []byte("0123456789abcdef")))
	dst = appendDelimited(dst, appendCallHeader(nil, protocol, method))
	dst, err := appendMessage(dst, m)
	if err != nil {
		panic(err)
	}
	return endFrame(dst, at)
}

func TestSASLIsAnsweredWithSimpleWillDo(t *testing.T) {
	addr := start(t, newServer(t, ServerConfig{}))
	conn := dialRaw(t, addr)
	_, _ = conn.Write(unhex(t, "687270630900df"))
	_, _ = conn.Write(frameOf(header(2, 0, callSASL), &hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_NEGOTIATE.Enum()}))
	readHex(t, conn, saslOKHex)
	_, _ = conn.Write(unhex(t, contextHex+statRootHex))
	readHex(t, conn, absentHex)
}

// frameOf is a frame with a given header.
func frameOf(header []byte, m Message) []byte {
	dst, at := beginFrame(nil)
	dst = appendDelimited(dst, header)
	if m != nil {
		var err error
		if dst, err = appendMessage(dst, m); err != nil {
			panic(err)
		}
	}
	return endFrame(dst, at)
}

func header(kind, op, id int32) []byte {
	h := &hadooppb.RpcRequestHeaderProto{CallId: &id, ClientId: []byte("0123456789abcdef")}
	if kind >= 0 {
		h.RpcKind = hadooppb.RpcKindProto(kind).Enum()
	}
	if op >= 0 {
		h.RpcOp = hadooppb.RpcRequestHeaderProto_OperationProto(op).Enum()
	}
	b, err := h.MarshalVT()
	if err != nil {
		panic(err)
	}
	return b
}

func TestChecksOfARequest(t *testing.T) {
	addr := start(t, newServer(t, ServerConfig{}))
	hello, who := unhex(t, helloHex), unhex(t, contextHex)
	stat := &hadooppb.GetFileInfoRequestProto{Src: new("/")}
	badVersion := &hadooppb.RequestHeaderProto{MethodName: new("getFileInfo"), DeclaringClassProtocolName: new(nn), ClientProtocolVersion: new(uint64(2))}
	for _, c := range []struct {
		name   string
		send   [][]byte
		id     int32
		status hadooppb.RpcResponseHeaderProto_RpcStatusProto
		detail hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto
		class  string
		text   string
	}{
		{"header is no message", [][]byte{hello, who, {0, 0, 0, 2, 1, 0xff}}, callInvalid, 2, detailDeserializing, classRPCServer, ""},
		{"operation absent", [][]byte{hello, who, frameOf(header(2, -1, 3), nil)}, 3, 2, detailInvalidHeader, classRPCServer, ""},
		{"operation not final", [][]byte{hello, who, frameOf(header(2, 1, 3), nil)}, 3, 2, detailInvalidHeader, classRPCServer, ""},
		{"kind absent", [][]byte{hello, who, frameOf(header(-1, 0, 3), nil)}, 3, 2, detailInvalidHeader, classRPCServer, ""},
		{"kind writable", [][]byte{hello, who, frameOf(header(1, 0, 3), nil)}, 3, 2, detailInvalidHeader, classRPCServer, ""},
		{"call before context", [][]byte{hello, request(3, 0, nn, "getFileInfo", stat)}, 3, 2, detailInvalidHeader, classRPCServer, "connection context not established"},
		{"second context", [][]byte{hello, who, who}, callContext, 2, detailInvalidHeader, classRPCServer, ""},
		{"unknown protocol", [][]byte{hello, who, request(4, 0, "no.such", "getFileInfo", stat)}, 4, 1, detailNoSuchProtocol, classNoSuchProtocol, "no.such"},
		{"protocol version", [][]byte{hello, who, frameOf2(header(2, 0, 5), badVersion, stat)}, 5, 1, detailProtocolMismatch, classVersionMismatch, ""},
		{"unknown method", [][]byte{hello, who, request(6, 0, nn, "fly", stat)}, 6, 1, detailNoSuchMethod, classNoSuchMethod, "Unknown method fly called on " + nn + " protocol."},
		{"request lacks a field", [][]byte{hello, who, frameOf2(header(2, 0, 7), &hadooppb.RequestHeaderProto{
			MethodName: new("getFileInfo"), DeclaringClassProtocolName: new(nn), ClientProtocolVersion: new(uint64(1)),
		}, &hadooppb.RollEditsRequestProto{})}, 7, 2, detailDeserializing, classRPCServer, "src"},
		{"superuser needed", [][]byte{hello, who, request(8, 0, nn, "rollEdits", &hadooppb.RollEditsRequestProto{})}, 8, 1, detailApplication, classAccessControl, "Superuser privilege is required"},
		{"handler panics", [][]byte{hello, who, request(9, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/panic")})}, 9, 1, detailServer, classIOException, "getFileInfo"},
		{"IPC version", [][]byte{unhex(t, "68727063080000")}, callUnauthorized, 2, detailVersionMismatch, classVersionMismatch, "version 8"},
		{"authentication", [][]byte{unhex(t, "68727063090050")}, callUnauthorized, 2, detailUnauthorized, classIOException, "80"},
		{"nobody", [][]byte{hello, frameOf(header(2, 0, callContext), &hadooppb.IpcConnectionContextProto{})}, callUnauthorized, 2, detailUnauthorized, classAccessControl, ""},
		{"not a proxy", [][]byte{hello, frameOf(header(2, 0, callContext), &hadooppb.IpcConnectionContextProto{
			UserInfo: &hadooppb.UserInformationProto{EffectiveUser: new("alice"), RealUser: new("bob")},
		})}, callUnauthorized, 2, detailUnauthorized, classAuthorization, "impersonate alice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dialRaw(t, addr)
			_, _ = conn.Write(bytes.Join(c.send, nil))
			h, rest := readFrame(t, conn)
			if h.callID != c.id || h.status != c.status || h.detail != c.detail || h.class != c.class || !strings.Contains(h.message, c.text) {
				t.Errorf("got %+v", h)
			}
			if len(rest) != 0 {
				t.Errorf("%d bytes behind an error's header", len(rest))
			}
			if c.status == hadooppb.RpcResponseHeaderProto_FATAL {
				wantClosed(t, conn)
				return
			}
			_, _ = conn.Write(unhex(t, statRootHex))
			readHex(t, conn, absentHex)
		})
	}
}

// Prefetch is told the paths of calls that have come together before the first of them is served, and no more: what is wrong with a
// call is found, and answered, when it is its turn.
func TestPathsOfCallsThatComeTogetherAreToldFirst(t *testing.T) {
	told := make(chan string, 100)
	answered := 0 // on the connection's reader, as Prefetch is called
	s := newServer(t, ServerConfig{Prefetch: func(paths [][]byte) {
		told <- fmt.Sprintf("%q before call %d", paths, answered)
	}})
	s.Handle(nn, Method{
		Name: "other", New: func() Message { return new(hadooppb.GetFileInfoRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { answered++; c.Reply(nil) },
	})
	stat := func(id int32, path string) []byte {
		return request(id, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &path})
	}
	other := func(id int32) []byte {
		return request(id, 0, nn, "other", &hadooppb.GetFileInfoRequestProto{Src: new("/other")})
	}
	badVersion := &hadooppb.RequestHeaderProto{MethodName: new("getFileInfo"), DeclaringClassProtocolName: new(nn), ClientProtocolVersion: new(uint64(2))}
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	send := func(want hadooppb.RpcResponseHeaderProto_RpcStatusProto, calls ...[]byte) {
		t.Helper()
		_, _ = conn.Write(bytes.Join(calls, nil))
		for range calls {
			if h, _ := readFrame(t, conn); h.status != want {
				t.Errorf("got %+v, want %v", h, want)
			}
		}
	}
	const ok, failed = hadooppb.RpcResponseHeaderProto_SUCCESS, hadooppb.RpcResponseHeaderProto_ERROR
	send(ok, stat(0, "/a"))
	send(ok, stat(1, "/a"), other(2), stat(3, "/b"), other(4))
	send(failed, request(5, 0, nn, "fly", &hadooppb.GetFileInfoRequestProto{Src: new("/c")}), frameOf2(header(2, 0, 6), badVersion, &hadooppb.GetFileInfoRequestProto{Src: new("/c")}),
		request(7, 0, "no.such", "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/c")}), stat(8, "/x"), stat(9, "/x"))
	var many [][]byte
	for i := range int32(MaxBatch) {
		many = append(many, other(10+i))
	}
	send(ok, append(many, stat(100, "/d"), other(101), stat(102, "/e"))...)
	var got []string
	for range len(told) {
		got = append(got, <-told)
	}
	want := []string{`["/a" "/b"] before call 0`, `["/c" "/x" "/x"] before call 2`, fmt.Sprintf(`["/d" "/e"] before call %d`, 2+MaxBatch)}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}

	// Frames that hold no call are refused as ever.
	for _, bad := range [][]byte{{}, {0}, {1}, {0, 0}, {0, 0, 1<<3 | 2}, {1, 0xff}, {0, 5, 1}} {
		conn := dialRaw(t, start(t, s))
		frame := append([]byte{0, 0, 0, byte(len(bad))}, bad...)
		_, _ = conn.Write(slices.Concat(unhex(t, helloHex+contextHex), stat(0, "/a"), frame, frame))
		if h, _ := readFrame(t, conn); h.callID != 0 || h.status != ok {
			t.Errorf("got %+v", h)
		}
		if h, _ := readFrame(t, conn); h.status != hadooppb.RpcResponseHeaderProto_FATAL {
			t.Errorf("%x was answered with %+v", bad, h)
		}
		wantClosed(t, conn)
	}
}

func frameOf2(header []byte, m1, m2 Message) []byte {
	dst, at := beginFrame(nil)
	dst = appendDelimited(dst, header)
	for _, m := range []Message{m1, m2} {
		var err error
		if dst, err = appendMessage(dst, m); err != nil {
			panic(err)
		}
	}
	return endFrame(dst, at)
}

func TestBadBytesCloseTheConnectionWithOneLine(t *testing.T) {
	for _, c := range []struct {
		name string
		send string
		fin  bool
	}{
		{"wrong magic", "48525043090000", false},
		{"length 2^31-1", helloHex + contextHex + "7fffffff08", false},
		{"length 2^32-1", helloHex + contextHex + "ffffffff08", false},
		{"length over the limit of strangers", helloHex + "00010001", false},
		{"truncated preamble", "687270", true},
		{"truncated frame", helloHex + contextHex + statRootHex[:40], true},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := new(journal)
			s := newServer(t, ServerConfig{Logger: slog.New(slog.NewTextHandler(j, nil))})
			conn := dialRaw(t, start(t, s))
			_, _ = conn.Write(unhex(t, c.send))
			if c.fin {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("read %d, %v, want the connection closed", n, err)
			}
			eventually(t, func() bool { return s.Counts().Connections == 0 })
			if lines := j.all(); len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") {
				t.Errorf("log: %q, want one warning", lines)
			}
		})
	}
}

func TestPeerThatLeavesAtAFrameBoundaryIsNoNews(t *testing.T) {
	j := new(journal)
	s := newServer(t, ServerConfig{Logger: slog.New(slog.NewTextHandler(j, nil))})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex+statRootHex))
	readHex(t, conn, absentHex)
	conn.Close()
	eventually(t, func() bool { return s.Counts().Connections == 0 })
	if lines := j.all(); len(lines) != 0 {
		t.Errorf("log: %q, want none", lines)
	}
}

func TestBrowserGetsAnAnswer(t *testing.T) {
	conn := dialRaw(t, start(t, newServer(t, ServerConfig{})))
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	b, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 404") || !strings.Contains(string(b), "Hadoop IPC") {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestSilentStrangerIsSentAway(t *testing.T) {
	s := newServer(t, ServerConfig{FirstByte: 50 * time.Millisecond})
	addr := start(t, s)
	for _, send := range []string{"", "6872", helloHex, helloHex + contextHex[:20]} {
		conn := dialRaw(t, addr)
		_, _ = conn.Write(unhex(t, send))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("after %q: read %d, %v", send, n, err)
		}
	}
}

func TestCallsInFlightAreBounded(t *testing.T) {
	s := newServer(t, ServerConfig{MaxInFlight: 3})
	held := make(chan *Call, 100)
	s.Handle(nn, Method{
		Name: "hold", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { held <- c },
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	for i := range int32(10) {
		_, _ = conn.Write(request(i, 0, nn, "hold", &hadooppb.RollEditsRequestProto{}))
	}
	eventually(t, func() bool { return len(held) == 3 })
	time.Sleep(20 * time.Millisecond)
	if len(held) != 3 {
		t.Fatalf("%d calls in flight, want 3", len(held))
	}
	for range 10 {
		(<-held).Reply(nil)
		readFrame(t, conn)
	}
}

func TestAnswersComeInAnyOrderAndOnlyOnce(t *testing.T) {
	s := newServer(t, ServerConfig{})
	var first *Call
	s.Handle(nn, Method{
		Name: "swap", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) {
			if first == nil {
				first = c
				return
			}
			c.Reply(nil)
			c.Reply(nil)
			c.Fail(io.EOF)
			first.Reply(nil)
		},
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	for i := range int32(2) {
		_, _ = conn.Write(request(i, 0, nn, "swap", &hadooppb.RollEditsRequestProto{}))
	}
	_, _ = conn.Write(request(2, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/")}))
	for _, want := range []int32{1, 0, 2} {
		if h, _ := readFrame(t, conn); h.callID != want || h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
			t.Errorf("got %+v, want call %d", h, want)
		}
	}
}

func TestAnswerThatCannotBeEncodedIsAnError(t *testing.T) {
	s := newServer(t, ServerConfig{})
	s.Handle(nn, Method{
		Name: "half", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { c.Reply(&hadooppb.RollEditsResponseProto{}) },
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(request(0, 0, nn, "half", &hadooppb.RollEditsRequestProto{}))
	if h, _ := readFrame(t, conn); h.status != hadooppb.RpcResponseHeaderProto_ERROR || h.detail != detailSerializing {
		t.Errorf("got %+v", h)
	}
}

func TestMethodWithoutRightIsRefusedAtRegistration(t *testing.T) {
	s := NewServer(ServerConfig{Door: security.NewDoor(security.Config{})})
	good := Method{Name: "m", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone, Handle: func(*Call) {}}
	s.Handle(nn, good)
	noRight := good
	noRight.Name, noRight.Right = "n", 0
	for _, m := range []Method{good, noRight, {Name: "o", Right: security.Anyone}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("method %q with right %v was registered", m.Name, m.Right)
				}
			}()
			s.Handle(nn, m)
		}()
	}
}

func TestStopAnswersWhatIsInFlight(t *testing.T) {
	s := newServer(t, ServerConfig{Drain: time.Minute})
	held := make(chan *Call, 1)
	s.Handle(nn, Method{
		Name: "hold", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { held <- c },
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	conn := dialRaw(t, l.Addr().String())
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(request(1, 0, nn, "hold", &hadooppb.RollEditsRequestProto{}))
	call := <-held
	cancel()
	eventually(t, call.conn.stopping.Load)
	call.Reply(nil)
	if h, _ := readFrame(t, conn); h.callID != 1 || h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
		t.Errorf("got %+v", h)
	}
	wantClosed(t, conn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// When Serve returns nothing of a call runs any more, also where the caller has gone, or the drain time was too short.
func TestServeWaitsForCallsWhoseCallersHaveGone(t *testing.T) {
	for _, stays := range []bool{false, true} {
		s := newServer(t, ServerConfig{Drain: time.Millisecond})
		held := make(chan *Call, 1)
		var ended atomic.Bool
		s.Handle(nn, Method{
			Name: "hold", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
			Handle: func(c *Call) {
				c.Go(func() {
					held <- c
					<-c.Context().Done()
					time.Sleep(20 * time.Millisecond)
					ended.Store(true)
					c.Reply(nil)
				})
			},
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		stop := startOn(t, s, l)
		conn := dialRaw(t, l.Addr().String())
		_, _ = conn.Write(unhex(t, helloHex+contextHex))
		_, _ = conn.Write(request(1, 0, nn, "hold", &hadooppb.RollEditsRequestProto{}))
		call := <-held
		if !stays {
			conn.Close()
			<-call.Context().Done()
		}
		if stop(); !ended.Load() {
			t.Errorf("the caller stays: %v; Serve has returned, and the call runs", stays)
		}
	}
}

func TestAPanicOfWhatACallRunsIsAnswered(t *testing.T) {
	s := newServer(t, ServerConfig{})
	s.Handle(nn, Method{
		Name: "hold", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone, Handle: func(c *Call) { c.Go(func() { panic("as asked") }) },
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(request(1, 0, nn, "hold", &hadooppb.RollEditsRequestProto{}))
	if h, _ := readFrame(t, conn); h.callID != 1 || h.message != "internal error in hold" {
		t.Errorf("got %+v", h)
	}
}

func TestLargeAnswersReachASlowReader(t *testing.T) {
	s := newServer(t, ServerConfig{})
	big := strings.Repeat("g", 1<<20)
	s.Handle(nn, Method{
		Name: "big", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { c.Reply(&hadooppb.GetGroupsForUserResponseProto{Groups: []string{big}}) },
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range int32(30) {
			_, _ = conn.Write(request(i, 0, nn, "big", &hadooppb.RollEditsRequestProto{}))
		}
	})
	time.Sleep(50 * time.Millisecond)
	for i := range int32(30) {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			t.Fatal(err)
		}
		n := int64(binary.BigEndian.Uint32(head[:]))
		if got, err := io.CopyN(io.Discard, conn, n); err != nil || n < 1<<20 {
			t.Fatalf("answer %d: %d of %d bytes, %v", i, got, n, err)
		}
	}
	wg.Wait()
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("did not come true in 30 s")
}

func TestPeerThatEndsItsSideWithItsLastRequestIsAnsweredAndClosed(t *testing.T) {
	conn := dialRaw(t, start(t, newServer(t, ServerConfig{})))
	if _, err := conn.Write(unhex(t, helloHex+contextHex+statRootHex)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	readHex(t, conn, absentHex)
	wantClosed(t, conn)
}

func TestCallsOnAServerThatReadsNothingEndWithTheirContexts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(t.Context(), l.Addr().String(), DialConfig{Protocol: nn, User: "alice", DialTimeout: time.Minute, CallTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := strings.Repeat("p", 60<<10)
	for range 200 { // more than the buffers of the sockets take
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		err := c.Call(ctx, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &path}, new(hadooppb.GetFileInfoResponseProto))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a call that nobody reads ended in %v", err)
		}
	}
}

func TestAHeaderHasItsLengthInFront(t *testing.T) {
	for _, n := range []int{0, 60, 95, 96, 97, 98, 99, 100, 200, 16 << 10, 17 << 10} {
		h := &responseHeader{callID: 7, retry: -1, status: hadooppb.RpcResponseHeaderProto_ERROR, message: strings.Repeat("x", n), clientID: []byte("0123456789abcdef")}
		want := appendDelimited([]byte("before"), appendResponseHeader(nil, h))
		if got := appendDelimitedHeader([]byte("before"), h); !bytes.Equal(got, want) {
			t.Errorf("%d bytes of message: %x, want %x", n, got, want)
		}
	}
}

// lineWriter tells of each line of a log as long as somebody listens.
type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default:
	}
	return len(b), nil
}

// A listener that was shut down, as those of a process that is about to end are, accepts nothing any more: the server ends, and does not fill the log.
func TestAServerEndsWithAListenerThatWasShutDown(t *testing.T) {
	said := make(lineWriter, 1)
	s := newServer(t, ServerConfig{Logger: slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("it ends with %v", err)
		}
		stop()
	case line := <-said:
		t.Errorf("it goes on, and says %s", line)
		stop()
		<-ended
	}
}
