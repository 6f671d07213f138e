package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// The empty server answers each request of Hadoop's protocol with the bytes that hops answered to one like it: the same client, the same
// messages, and nothing behind them. What it takes is what a request over loopback costs a server written in Go, whatever it does;
// what hops takes above that is hops.

const labelEmpty = "empty server"

// reply is an answer in pieces: the header behind its call id, in which the client's id stands, and the message, with its length in front.
type reply struct {
	Head   []byte `json:"head"`
	Client int    `json:"client"`
	Body   []byte `json:"body"`
}

// noReply is for what nobody has asked hops: a message without fields.
var noReply = &reply{Head: []byte{2 << 3, 0}, Client: -1, Body: []byte{0}}

// clientID is how many bytes the id of a client has.
const clientID = 16

// request is what an answer needs of a request.
type request struct {
	call   int32
	client []byte
	method []byte
}

var errForeign = errors.New("this is not what the benchmark's client says")

// delimited cuts a message with its length in front off b.
func delimited(b []byte) (message, rest []byte, err error) {
	message, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return nil, nil, protowire.ParseError(n)
	}
	return message, b[n:], nil
}

// field finds a field of a message; nil, 0: it has none.
func field(message []byte, number protowire.Number) (text []byte, value uint64, err error) {
	for len(message) > 0 {
		num, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, 0, protowire.ParseError(n)
		}
		message = message[n:]
		switch {
		case num == number && kind == protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case num == number && kind == protowire.BytesType:
			text, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(num, kind, message)
			if n >= 0 {
				message = message[n:]
				continue
			}
		}
		if n < 0 {
			return nil, 0, protowire.ParseError(n)
		}
		return text, value, nil
	}
	return nil, 0, nil
}

func parseRequest(frame []byte) (q request, err error) {
	head, rest, err := delimited(frame)
	if err != nil {
		return q, err
	}
	_, call, err := field(head, 3)
	if err != nil {
		return q, err
	}
	if q.call = int32(protowire.DecodeZigZag(call)); q.call < 0 {
		return q, nil
	}
	if q.client, _, err = field(head, 4); err != nil {
		return q, err
	}
	name, _, err := delimited(rest)
	if err != nil {
		return q, err
	}
	q.method, _, err = field(name, 1)
	return q, err
}

// nextFrame cuts a frame off b; false: not all of it is there.
func nextFrame(b []byte) (frame, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, b, false
	}
	size := int(binary.BigEndian.Uint32(b))
	if len(b)-4 < size {
		return nil, b, false
	}
	return b[4 : 4+size], b[4+size:], true
}

func (p *reply) append(dst []byte, q request) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.AppendUvarint(dst, uint64(1+protowire.SizeVarint(uint64(uint32(q.call)))+len(p.Head)))
	dst = binary.AppendUvarint(append(dst, 1<<3), uint64(uint32(q.call)))
	head := len(dst)
	dst = append(dst, p.Head...)
	if p.Client >= 0 {
		copy(dst[head+p.Client:head+p.Client+clientID], q.client)
	}
	dst = append(dst, p.Body...)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// hello is how many bytes come before the first frame of a connection.
const hello = 7

// serveEmpty is the empty server's process. It says where it listens, and ends when its standard input does.
func serveEmpty(replies string) error {
	raw, err := os.ReadFile(replies)
	if err != nil {
		return err
	}
	var by map[string]*reply
	if err := json.Unmarshal(raw, &by); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = answer(conn, by) // the client knows
			}()
		}
	}()
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func answer(conn net.Conn, by map[string]*reply) error {
	if _, err := io.ReadFull(conn, make([]byte, hello)); err != nil {
		return err
	}
	in, have := make([]byte, 64<<10), 0
	var out []byte
	for {
		n, err := conn.Read(in[have:])
		if err != nil {
			return err
		}
		rest := in[:have+n]
		out = out[:0]
		for {
			var frame []byte
			var ok bool
			if frame, rest, ok = nextFrame(rest); !ok {
				break
			}
			q, err := parseRequest(frame)
			if err != nil {
				return err
			}
			if q.call < 0 {
				continue
			}
			p := by[string(q.method)]
			if p == nil {
				p = noReply
			}
			out = p.append(out, q)
		}
		if have = copy(in, rest); have == len(in) {
			return errForeign
		}
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return err
			}
		}
	}
}

// tap keeps what goes over a connection.
type tap struct {
	net.Conn
	mu         sync.Mutex
	said, told []byte // by the client, and by the server
}

func (t *tap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.mu.Lock()
	t.told = append(t.told, b[:n]...)
	t.mu.Unlock()
	return n, err
}

func (t *tap) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.said = append(t.said, b...)
	t.mu.Unlock()
	return t.Conn.Write(b)
}

// replies are the last answers to each method.
func (t *tap) replies() (map[string]*reply, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked := map[int32]request{}
	for rest := t.said[min(hello, len(t.said)):]; ; {
		frame, next, ok := nextFrame(rest)
		if !ok {
			break
		}
		rest = next
		q, err := parseRequest(frame)
		if err != nil {
			return nil, err
		}
		asked[q.call] = q
	}
	by := map[string]*reply{}
	for rest := t.told; ; {
		frame, next, ok := nextFrame(rest)
		if !ok {
			return by, nil
		}
		rest = next
		head, body, err := delimited(frame)
		if err != nil {
			return nil, err
		}
		_, call, err := field(head, 1)
		if err != nil {
			return nil, err
		}
		q, known := asked[int32(uint32(call))]
		skip := 1 + protowire.SizeVarint(call)
		if !known || len(head) < skip || head[0] != 1<<3 {
			return nil, errForeign
		}
		by[string(q.method)] = &reply{Head: head[skip:], Client: strings.Index(string(head[skip:]), string(q.client)), Body: body}
	}
}

// learn asks a side everything that the benchmark of metadata asks, and returns what it answered.
func learn(ctx context.Context, address string) (by map[string]*reply, err error) {
	var taps []*tap
	var mu sync.Mutex
	c, err := dfs.New(dfs.Config{Namenodes: []string{address}, Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		t := &tap{Conn: conn}
		mu.Lock()
		defer mu.Unlock()
		taps = append(taps, t)
		return t, nil
	}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	const root = "/benchmarks/empty"
	if err := c.Mkdirs(ctx, root, 0o755, true); err != nil {
		return nil, err
	}
	file := func(i int) string { return path.Join(root, fmt.Sprintf("d0/f%d", i)) }
	for i := range bench.PerDirectory {
		w, err := c.Create(ctx, file(i), dfs.CreateOptions{Parents: true, Overwrite: true, Replication: 1})
		if err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
	}
	if _, err := c.BlockLocations(ctx, file(0), 0, 1<<30); err != nil {
		return nil, err
	}
	if _, err := c.List(ctx, path.Dir(file(0))); err != nil {
		return nil, err
	}
	if _, err := c.Stat(ctx, file(0)); err != nil {
		return nil, err
	}
	if _, err := c.Rename(ctx, file(0), file(0)+"r"); err != nil {
		return nil, err
	}
	if _, err := c.Delete(ctx, root, true); err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if len(taps) != 1 {
		return nil, fmt.Errorf("%d connections were made in place of one", len(taps))
	}
	return taps[0].replies()
}

// empty is a side with nothing behind the protocol.
type empty struct {
	cmd     *exec.Cmd
	input   io.Closer
	address string
	gone    chan struct{} // closed when the process has ended
	ending  atomic.Bool
}

// startEmpty starts an empty server that answers as a side does.
func (r *runner) startEmpty(ctx context.Context, like *ours) (*empty, error) {
	by, err := learn(ctx, like.addresses()[0])
	if err != nil {
		return nil, fmt.Errorf("what the empty server has to answer: %w", err)
	}
	raw, err := json.Marshal(by)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(r.dir, "replies.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	e := &empty{cmd: exec.Command(program, "-empty-server", file), gone: make(chan struct{})}
	if e.input, err = e.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.cmd.Stderr = os.Stderr
	if err := processes.Spawn(e.cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	e.address = strings.TrimSpace(line)
	go func() {
		_ = e.cmd.Wait()
		close(e.gone)
	}()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the empty server said nothing: %w", err), e.stop())
	}
	r.watch(e)
	return e, nil
}

func (e *empty) label() string                 { return labelEmpty }
func (e *empty) connect() (*dfs.Client, error) { return plainly([]string{e.address}) }
func (e *empty) servers() map[string]int       { return map[string]int{"empty": e.cmd.Process.Pid} }

func (e *empty) killLeader(context.Context, bool) (func(context.Context) error, error) {
	return nil, errors.New("the empty server leads nothing")
}

func (e *empty) died() error {
	select {
	case <-e.gone:
		if !e.ending.Load() {
			return errors.New("the empty server ended by itself")
		}
	default:
	}
	return nil
}

func (e *empty) stop() error {
	e.ending.Store(true)
	err := e.input.Close()
	<-e.gone
	return err
}
