package hrpc

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

const nn = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// journal collects log lines.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, strings.TrimSpace(string(b)))
	return len(b), nil
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.lines...)
}

func newServer(t testing.TB, config ServerConfig) *Server {
	if config.Door == nil {
		config.Door = security.NewDoor(security.Config{})
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	s := NewServer(config)
	s.Handle(nn, Method{
		Name:   "getFileInfo",
		New:    func() Message { return new(hadooppb.GetFileInfoRequestProto) },
		Right:  security.ByPath,
		Source: true,
		Handle: func(c *Call) {
			switch src := c.Request.(*hadooppb.GetFileInfoRequestProto).GetSrc(); src {
			case "/x":
				c.Fail(metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", src))
			case "/panic":
				panic("as asked")
			case "/later":
				go c.Reply(&hadooppb.GetFileInfoResponseProto{})
			default:
				c.Reply(&hadooppb.GetFileInfoResponseProto{})
			}
		},
	})
	s.Handle(nn, Method{
		Name:   "rollEdits",
		New:    func() Message { return new(hadooppb.RollEditsRequestProto) },
		Right:  security.Superuser,
		Handle: func(c *Call) { c.Reply(&hadooppb.RollEditsResponseProto{NewSegmentTxId: new(uint64)}) },
	})
	s.Handle(nn, Method{
		Name:  "getGroups",
		New:   func() Message { return new(hadooppb.GetGroupsForUserRequestProto) },
		Right: security.Anyone,
		Handle: func(c *Call) {
			c.Reply(&hadooppb.GetGroupsForUserResponseProto{Groups: []string{c.Caller.User, c.Caller.RealUser}})
		},
	})
	return s
}

// start serves s on loopback until the test ends, and returns its address.
func start(t testing.TB, s *Server) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	startOn(t, s, l)
	return l.Addr().String()
}

func startOn(t testing.TB, s *Server, l net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The golden vectors of the wire reference.
const (
	helloHex    = "68727063090000"
	contextHex  = "000000551a08021000180522103031323334353637383961626364656628013912070a05616c6963651a2e6f72672e6170616368652e6861646f6f702e686466732e70726f746f636f6c2e436c69656e7450726f746f636f6c"
	statRootHex = "0000005f1a08021000180022103031323334353637383961626364656628003f0a0b67657446696c65496e666f122e6f72672e6170616368652e6861646f6f702e686466732e70726f746f636f6c2e436c69656e7450726f746f636f6c1801030a012f"
	absentHex   = "0000001c1a0800100018093a1030313233343536373839616263646566400000"
	errorHex    = "0000005554080710011809221d6a6176612e696f2e46696c654e6f74466f756e64457863657074696f6e2a1746696c6520646f6573206e6f742065786973743a202f7830013a10303132333435363738396162636465664000"
	saslOKHex   = "000000120e08dfffffff0f100018093a004001021000"
	pingHex     = "0000001b1a0802100018072210303132333435363738396162636465662801"
)

func dialRaw(t testing.TB, addr string) net.Conn {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

func readHex(t testing.TB, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want)/2)
	n, err := io.ReadFull(conn, got)
	if err != nil || hex.EncodeToString(got) != want {
		t.Fatalf("got  %x (%v)\nwant %s", got[:n], err, want)
	}
}

// readFrame reads an answer's header and body.
func readFrame(t testing.TB, conn net.Conn) (responseHeader, []byte) {
	t.Helper()
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, int(head[2])<<8|int(head[3]))
	if _, err := io.ReadFull(conn, frame); err != nil {
		t.Fatal(err)
	}
	b, n := cut(frame)
	h, err := parseResponseHeader(b)
	if err != nil || n == 0 {
		t.Fatalf("answer %x: %v", frame, err)
	}
	return h, frame[n:]
}

func wantClosed(t testing.TB, conn net.Conn) {
	t.Helper()
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read %d, %v, want the connection closed", n, err)
	}
}
