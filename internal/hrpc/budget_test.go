package hrpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The users of these tests sit behind addresses of their own: 127.0.0.2 is firstUser, 127.0.0.3 the next one.
const firstUser = 70002

func userAt(ip net.IP) uint32 { return firstUser - 2 + uint32(ip.To4()[3]) }

func severalUsers() *security.Door {
	return security.NewDoor(security.Config{
		Groups: func(string) []string { return nil },
		Owner: func(c security.ConnAddrs) (uint32, error) {
			return userAt(c.Remote.(*net.TCPAddr).IP), nil
		},
	})
}

// dialAs connects as a user and says so.
func dialAs(t testing.TB, addr string, uid uint32) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(uid-firstUser+2))}}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Skipf("this machine has one loopback address only: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	name := strconv.FormatUint(uint64(uid), 10)
	_, _ = conn.Write(unhex(t, helloHex))
	_, _ = conn.Write(frameOf(header(2, 0, callContext), &hadooppb.IpcConnectionContextProto{
		UserInfo: &hadooppb.UserInformationProto{EffectiveUser: &name},
	}))
	return conn
}

func budgets() (requests, answers *security.Budget) {
	return security.NewBudget(security.BudgetConfig{Purpose: "requests", Total: 8 << 20, Patience: 100 * time.Millisecond}),
		security.NewBudget(security.BudgetConfig{Purpose: "answers", Total: 8 << 20, Patience: 100 * time.Millisecond})
}

// atTheEnd checks that a budget was never exceeded, and that all of it comes back when everybody has left.
func atTheEnd(t *testing.T, s *Server, conns []net.Conn) {
	t.Helper()
	for _, c := range conns {
		c.Close()
	}
	eventually(t, func() bool { return s.Counts().Connections == 0 })
	for _, b := range []*security.Budget{s.config.Requests, s.config.Answers} {
		eventually(t, func() bool { return b.Used() == 0 })
		if b.Peak() > b.Total() {
			t.Errorf("%d bytes were held, %d are allowed", b.Peak(), b.Total())
		}
	}
}

// listing is an answer like that of a directory of 1,000 entries.
var listing = &hadooppb.GetGroupsForUserResponseProto{Groups: []string{strings.Repeat("g", 160<<10)}}

// handleList adds a method whose answers are large and are made later, as listings are. made counts their bytes.
func handleList(s *Server, made *atomic.Int64) {
	s.Handle(nn, Method{
		Name: "list", New: func() Message { return new(hadooppb.RollEditsRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) {
			go func() {
				if err := c.Admit(400 << 10); err != nil {
					c.Fail(&RemoteError{Class: classRetriable, Message: err.Error()})
					return
				}
				made.Add(160 << 10)
				c.Reply(listing)
			}()
		},
	})
}

// Clients that ask for listings and read nothing come to hold their user's share, and another user is served.
func TestAnswersThatNobodyReadsAreBounded(t *testing.T) {
	for _, c := range []struct{ connections, calls int }{{40, 50}, {2, 800}} {
		t.Run(fmt.Sprintf("%d connections with %d calls", c.connections, c.calls), func(t *testing.T) {
			requests, answers := budgets()
			s := newServer(t, ServerConfig{Door: severalUsers(), Requests: requests, Answers: answers})
			var made atomic.Int64
			handleList(s, &made)
			addr := start(t, s)
			burst := bytes.Repeat(request(1, 0, nn, "list", &hadooppb.RollEditsRequestProto{}), c.calls)
			var conns []net.Conn
			for range c.connections {
				conn := dialAs(t, addr, firstUser)
				_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
				_, _ = conn.Write(burst)
				conns = append(conns, conn)
			}
			eventually(t, func() bool { return answers.Peak() > answers.Total()/4 })
			healthy := dialAs(t, addr, firstUser+1)
			for i := range int32(20) {
				_, _ = healthy.Write(request(i, 0, nn, "list", &hadooppb.RollEditsRequestProto{}))
				h, n := skimFrame(t, healthy)
				if h.callID != i || h.status != hadooppb.RpcResponseHeaderProto_SUCCESS || n < 160<<10 {
					t.Fatalf("another user got %+v with %d bytes", h, n)
				}
			}
			kernel := int64(c.connections) * 6 << 20 // what the sockets may have taken
			if all := int64(c.connections*c.calls) * 160 << 10; made.Load() > answers.Total()+min(kernel, all/2) {
				t.Errorf("answers of %d MiB were made that nobody reads", made.Load()>>20)
			}
			atTheEnd(t, s, append(conns, healthy))
		})
	}
}

// skimFrame reads an answer, and returns its header and how many bytes came behind it.
func skimFrame(t testing.TB, conn net.Conn) (responseHeader, int) {
	t.Helper()
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(conn, frame); err != nil {
		t.Fatal(err)
	}
	b, n := cut(frame)
	h, err := parseResponseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	return h, len(frame) - n
}

// Frames that never end come to hold their user's share. Who has none left is told when to come again, and another user
// is served.
func TestUnfinishedRequestsAreBounded(t *testing.T) {
	requests, answers := budgets()
	s := newServer(t, ServerConfig{Door: severalUsers(), Requests: requests, Answers: answers})
	addr := start(t, s)
	path := "/" + strings.Repeat("p", 3<<19)
	large := request(7, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &path})
	var conns []net.Conn
	var wg sync.WaitGroup
	var refused atomic.Int32
	for range 12 {
		conn := dialAs(t, addr, firstUser)
		conns = append(conns, conn)
		wg.Go(func() {
			_, _ = conn.Write(large[:len(large)-1])
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			answer := bufio.NewReader(conn)
			first, err := answer.Peek(4)
			for err != nil {
				if refused.Load() > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
					return // it holds a part of the share
				}
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				first, err = answer.Peek(4)
			}
			rest := make([]byte, binary.BigEndian.Uint32(first))
			_, _ = answer.Discard(4)
			if _, err := io.ReadFull(answer, rest); err != nil {
				t.Error(err)
				return
			}
			b, _ := cut(rest)
			h, err := parseResponseHeader(b)
			if err != nil || h.callID != 7 || h.class != classRetriable || !strings.Contains(h.message, "Ask again in 100ms") {
				t.Errorf("got %+v, %v", h, err)
			}
			refused.Add(1)
			// The rest of the frame is skipped, and the connection goes on, perhaps to the next refusal.
			_, _ = conn.Write(append(large[len(large)-1:], unhex(t, statRootHex)...))
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			if h, _ := readFrame(t, conn); h.callID != 0 || h.status != hadooppb.RpcResponseHeaderProto_SUCCESS && h.class != classRetriable {
				t.Errorf("the next call got %+v", h)
			}
		})
	}
	eventually(t, func() bool { return refused.Load() > 0 })
	healthy := dialAs(t, addr, firstUser+1)
	path2 := path[:1<<18] // costs four times as much
	for i := range int32(10) {
		_, _ = healthy.Write(request(i, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &path2}))
		if h, _ := readFrame(t, healthy); h.callID != i || h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
			t.Fatalf("another user got %+v", h)
		}
	}
	wg.Wait()
	atTheEnd(t, s, append(conns, healthy))
}

func TestLargerRequestThanAllowedIsRefusedWhenItIsAnnounced(t *testing.T) {
	requests, answers := budgets()
	s := newServer(t, ServerConfig{Door: severalUsers(), Requests: requests, Answers: answers})
	conn := dialAs(t, start(t, s), firstUser)
	_, _ = conn.Write(binary.BigEndian.AppendUint32(nil, DefaultMaxRequest+1))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d, %v, want the connection closed", n, err)
	}
	atTheEnd(t, s, []net.Conn{conn})
}

// counted is a request that says when it is decoded.
type counted struct {
	hadooppb.ConcatRequestProto
	decoded *atomic.Int32
}

func (c *counted) UnmarshalVT(b []byte) error {
	c.decoded.Add(1)
	return c.ConcatRequestProto.UnmarshalVT(b)
}

// A request of two-byte elements would become a hundred times as large.
func TestRequestWithTooManyElementsIsNotDecoded(t *testing.T) {
	s := newServer(t, ServerConfig{})
	var decoded atomic.Int32
	s.Handle(nn, Method{
		Name: "concat", New: func() Message { return &counted{decoded: &decoded} }, Right: security.Anyone,
		Handle: func(c *Call) { c.Reply(nil) },
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	many := &hadooppb.ConcatRequestProto{Trg: new("/t"), Srcs: make([]string, maxElements)}
	_, _ = conn.Write(request(1, 0, nn, "concat", many))
	h, _ := readFrame(t, conn)
	if h.callID != 1 || h.class != classIllegalArgument || !strings.Contains(h.message, "100000 elements") || decoded.Load() != 0 {
		t.Errorf("got %+v, decoded %d times", h, decoded.Load())
	}
	many.Srcs = many.Srcs[1:]
	_, _ = conn.Write(request(2, 0, nn, "concat", many))
	if h, _ := readFrame(t, conn); h.callID != 2 || h.status != hadooppb.RpcResponseHeaderProto_SUCCESS || decoded.Load() != 1 {
		t.Errorf("got %+v, decoded %d times", h, decoded.Load())
	}
}

// What a request holds once it is decoded counts, and the next ones wait.
func TestDecodedRequestsAreBounded(t *testing.T) {
	requests, answers := budgets()
	s := newServer(t, ServerConfig{Door: severalUsers(), Requests: requests, Answers: answers, MaxHeld: 1 << 20})
	held := make(chan *Call, 100)
	s.Handle(nn, Method{
		Name: "concat", New: func() Message { return new(hadooppb.ConcatRequestProto) }, Right: security.Anyone,
		Handle: func(c *Call) { held <- c },
	})
	conn := dialAs(t, start(t, s), firstUser)
	sources := &hadooppb.ConcatRequestProto{Trg: new("/t"), Srcs: make([]string, 1000)} // 2 KB that become 256
	for i := range int32(10) {
		_, _ = conn.Write(request(i, 0, nn, "concat", sources))
	}
	eventually(t, func() bool { return len(held) == 3 })
	if used := requests.Used(); used < 3*1000*elementCost {
		t.Errorf("%d bytes are held for 3 requests of 1000 elements", used)
	}
	for range 10 {
		(<-held).Reply(nil)
		readFrame(t, conn)
	}
	atTheEnd(t, s, []net.Conn{conn})
}

// A connection that was busy and is quiet holds next to nothing.
func TestQuietConnectionGivesItsMemoryBack(t *testing.T) {
	t.Parallel() // it waits for a second
	requests, answers := budgets()
	s := newServer(t, ServerConfig{Door: severalUsers(), Requests: requests, Answers: answers})
	var made atomic.Int64
	handleList(s, &made)
	conn := dialAs(t, start(t, s), firstUser)
	path := "/" + strings.Repeat("p", 200<<10)
	_, _ = conn.Write(request(1, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &path}))
	skimFrame(t, conn)
	_, _ = conn.Write(request(2, 0, nn, "list", &hadooppb.RollEditsRequestProto{}))
	skimFrame(t, conn)
	eventually(t, func() bool { return requests.Used() == 0 && answers.Used() == 0 })
	_, _ = conn.Write(unhex(t, statRootHex))
	readHex(t, conn, absentHex)
	atTheEnd(t, s, []net.Conn{conn})
}

// A server that stops does not wait for somebody who waits for a share.
func TestStopEndsAConnectionThatWaitsForAShare(t *testing.T) {
	requests := security.NewBudget(security.BudgetConfig{Purpose: "requests", Total: 1 << 20, Patience: time.Hour})
	s := newServer(t, ServerConfig{Door: severalUsers(), Requests: requests})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := startOn(t, s, l)
	other := requests.Account(firstUser)
	defer other.Close()
	other.Force(1 << 20)
	conn := dialAs(t, l.Addr().String(), firstUser)
	_, _ = conn.Write(unhex(t, statRootHex))
	eventually(t, func() bool { return s.Counts().Connections == 1 })
	stop()
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the connection closed", err)
	}
	other.Give(1 << 20)
	other.Rest()
	if n := requests.Used(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
}

// Calls that wait for their share do not hold what others of them need.
func TestAdmittedAnswersDoNotWaitForEachOther(t *testing.T) {
	requests, answers := budgets()
	s := newServer(t, ServerConfig{Door: severalUsers(), Requests: requests, Answers: answers})
	var made atomic.Int64
	handleList(s, &made)
	addr := start(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			conn := dialAs(t, addr, firstUser)
			defer conn.Close()
			for i := range int32(20) {
				_, _ = conn.Write(request(i, 0, nn, "list", &hadooppb.RollEditsRequestProto{}))
			}
			for range 20 {
				if h, _ := skimFrame(t, conn); h.status != hadooppb.RpcResponseHeaderProto_SUCCESS && h.class != classRetriable || ctx.Err() != nil {
					t.Errorf("got %+v", h)
				}
			}
		})
	}
	wg.Wait()
}
