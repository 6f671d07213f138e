package dfs

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// nearSocket is the Unix-domain socket beside a fakeNode. What it hands over of a replica is up to answer.
type nearSocket struct {
	n      *fakeNode
	path   string
	asked  atomic.Int64
	mu     sync.Mutex
	answer func(conn *net.UnixConn, data []byte)
}

// descriptorsOf answers as a datanode does.
func descriptorsOf(t testing.TB) func(*net.UnixConn, []byte) {
	return func(conn *net.UnixConn, data []byte) { handOver(t, conn, data, sheetOf(data)) }
}

// sheetOf is what the second descriptor holds.
func sheetOf(data []byte) []byte {
	return dtp.DefaultChecksum.Append([]byte{0, 1, 2, 0, 0, 2, 0}, data)
}

var success = &hadooppb.BlockOpResponseProto{Status: hadooppb.Status_SUCCESS.Enum(), ShortCircuitAccessVersion: new(uint32(1))}

// handOver sends two files with these contents.
func handOver(t testing.TB, conn *net.UnixConn, contents ...[]byte) {
	var files []*os.File
	for _, c := range contents {
		m, err := localsocket.Seal("test", c)
		if err != nil {
			t.Error(err)
			return
		}
		f, err := m.Reopen()
		if err != nil {
			t.Error(err)
			return
		}
		m.Close()
		defer f.Close()
		files = append(files, f)
	}
	_ = dtp.WriteResponse(conn, success) // the client may be gone
	_ = localsocket.SendFiles(conn, []byte{0}, files...)
}

// besides opens the socket beside a node, and returns the template for clients.
func besides(t testing.TB, nodes ...*fakeNode) (template string, sockets []*nearSocket) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hops-s") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	template = filepath.Join(dir, "dn._PORT")
	for _, n := range nodes {
		s := &nearSocket{n: n, path: localsocket.Path(template, n.addr), answer: descriptorsOf(t)}
		l, err := localsocket.Listen(s.path)
		if err != nil {
			t.Fatal(err)
		}
		var going sync.WaitGroup
		going.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				going.Go(func() {
					defer conn.Close()
					s.serve(conn.(*net.UnixConn))
				})
			}
		})
		t.Cleanup(func() { l.Close(); going.Wait() })
		sockets = append(sockets, s)
	}
	return template, sockets
}

func (s *nearSocket) serve(conn *net.UnixConn) {
	op, request, err := dtp.ReadOp(bufio.NewReader(conn))
	q, ok := request.(*hadooppb.OpRequestShortCircuitAccessProto)
	if err != nil || !ok || op != dtp.OpShortCircuitFDs {
		return
	}
	s.asked.Add(1)
	if !s.n.authorized(request) {
		_ = dtp.WriteResponse(conn, dtp.Failure(hadooppb.Status_ERROR_ACCESS_TOKEN, "", "the token has expired"))
		return
	}
	data := s.n.bytes(q.GetHeader().GetBlock().GetBlockId())
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	answer(conn, data)
}

func (s *nearSocket) set(answer func(*net.UnixConn, []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// newLocalCluster is a cluster of n datanodes on this machine with a file of several blocks, and a client that knows their sockets
// for descriptors only.
func newLocalCluster(t testing.TB, n int, change func(*Config)) (*cluster, *Client, []*nearSocket, []byte) {
	c, client := newCluster(t, n)
	path, sockets := besides(t, c.nodes...)
	config := Config{DomainSocket: path, NoDomainTraffic: true, BlockSize: 1 << 20}
	if change != nil {
		change(&config)
	}
	data := pattern(2<<20 + 300_001)
	w, err := client.Create(t.Context(), "/f", CreateOptions{BlockSize: 1 << 20})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	local := c.client(config)
	patient(local)
	return c, local, sockets, data
}

// patient makes a client take a busy machine for no slow datanode, disk or namenode, and itself for no idle one.
func patient(client *Client) {
	client.hedging.after, client.local.askTime, client.local.patience, client.local.idle, client.local.refusal = limit, limit, limit, limit, limit
	client.times.tell, client.times.stall, client.peers.keep = limit, limit, limit
}

// Without faults nothing is read over TCP.
func TestLocalReadsNeedNoConnection(t *testing.T) {
	_, client, sockets, data := newLocalCluster(t, 1, nil)
	got, err := client.ReadFile(t.Context(), "/f")
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if n := client.LocalCounts(); n.Opened != 3 || n.Abandoned+n.Refused+n.Unreached != 0 || n.Bytes != int64(len(data)) {
		t.Errorf("%+v", n)
	}
	client.peers.mu.Lock()
	defer client.peers.mu.Unlock()
	if len(client.peers.idle[sockets[0].n.addr]) != 0 {
		t.Error("something was read over TCP")
	}
}

// Against a slice of bytes: whatever is read where, and however much at a time, it is what was written.
func TestLocalReadsModel(t *testing.T) {
	_, client, _, data := newLocalCluster(t, 1, nil)
	rapid.Check(t, func(rt *rapid.T) {
		r, err := client.Open(t.Context(), "/f")
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		pos := int64(0)
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			n := rapid.IntRange(1, 300_000).Draw(rt, "n")
			p := make([]byte, n)
			if rapid.Bool().Draw(rt, "at") {
				off := rapid.Int64Range(0, int64(len(data))+10).Draw(rt, "off")
				got, err := r.ReadAt(p, off)
				want := data[min(off, int64(len(data))):min(off+int64(n), int64(len(data)))]
				if !bytes.Equal(p[:got], want) || (err == nil) != (got == n) {
					rt.Fatalf("%d bytes at %d: %d, %v", n, off, got, err)
				}
				continue
			}
			if rapid.Bool().Draw(rt, "seek") {
				pos = rapid.Int64Range(0, int64(len(data))).Draw(rt, "to")
				if _, err := r.Seek(pos, io.SeekStart); err != nil {
					rt.Fatal(err)
				}
			}
			got, err := r.Read(p)
			if !bytes.Equal(p[:got], data[pos:min(pos+int64(got), int64(len(data)))]) || got == 0 && pos < int64(len(data)) {
				rt.Fatalf("%d bytes at %d: %d, %v", n, pos, got, err)
			}
			pos += int64(got)
		}
	})
}

// newAhead is a file of one block that is long enough to be read ahead.
func newAhead(t testing.TB) (client *Client, sockets []*nearSocket, data []byte) {
	c, client, sockets, _ := newLocalCluster(t, 1, nil)
	data = make([]byte, 3<<20+777)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
	w, err := c.client(Config{}).Create(t.Context(), "/long", CreateOptions{BlockSize: 4 << 20})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return client, sockets, data
}

// nothingAhead checks that nothing is read any more, and no descriptors are used.
func nothingAhead(t *testing.T, client *Client) {
	t.Helper()
	if n := client.local.ahead.Load(); n != 0 {
		t.Errorf("%d buffers are read ahead into", n)
	}
	eventually(t, "nobody uses descriptors", func() bool { // who waits for a disk that nobody waits for, does
		client.local.mu.Lock()
		defer client.local.mu.Unlock()
		for _, d := range client.local.kept {
			if d.users != 0 {
				return false
			}
		}
		return true
	})
}

// slowly takes its time over what is written to it, which has to stay as it is meanwhile.
type slowly struct {
	t    testing.TB
	want []byte
	at   int
	each func()
}

func (s *slowly) Write(p []byte) (int, error) {
	for range 2 {
		if !bytes.Equal(p, s.want[s.at:min(s.at+len(p), len(s.want))]) {
			s.t.Errorf("other bytes at %d", s.at)
		}
		s.each()
	}
	s.at += len(p)
	return len(p), nil
}

// What is read ahead comes in order, and stays as it is while it is used; with and without room for it, and wherever it begins and ends.
func TestLocalReadAhead(t *testing.T) {
	client, _, data := newAhead(t)
	for _, from := range []int{0, 1, 300_001, 5 << 19} {
		for _, taken := range []int64{0, localAhead - 1, localAhead} {
			client.local.ahead.Store(taken)
			r := open(t, client, "/long")
			if _, err := r.Seek(int64(from), io.SeekStart); err != nil {
				t.Fatal(err)
			}
			most := int64(0)
			to := &slowly{t, data, from, func() {
				most = max(most, client.local.ahead.Load()-taken)
				time.Sleep(time.Millisecond)
			}}
			if n, err := r.WriteTo(to); err != nil || n != int64(len(data)-from) {
				t.Fatalf("%d bytes from %d, %v", n, from, err)
			}
			wanted := max(min(localWindow, localAhead-taken)-1, 0)
			if from+localSequence > len(data) {
				wanted = 0
			}
			if most != wanted {
				t.Errorf("from %d %d buffers were read ahead into", from, most)
			}
			client.local.ahead.Add(-taken)
			nothingAhead(t, client)
		}
	}
	r := open(t, client, "/long")
	got := make([]byte, 5<<19)
	if n, err := r.ReadAt(got, 300_003); err != nil || !bytes.Equal(got, data[300_003:][:len(got)]) {
		t.Errorf("%d bytes at once, %v", n, err)
	}
	nothingAhead(t, client)
	if n := client.LocalCounts(); n.Abandoned+n.Refused+n.Unreached != 0 {
		t.Errorf("%+v", n)
	}
}

// Against a slice of bytes, with as many steps ahead and aside as reading ahead has to bear.
func TestLocalReadAheadModel(t *testing.T) {
	client, _, data := newAhead(t)
	rapid.Check(t, func(rt *rapid.T) {
		r, err := client.Open(t.Context(), "/long")
		if err != nil {
			rt.Fatal(err)
		}
		pos := rapid.IntRange(0, 1<<20).Draw(rt, "from")
		for range rapid.IntRange(1, 5).Draw(rt, "steps") {
			if _, err := r.Seek(int64(pos), io.SeekStart); err != nil {
				rt.Fatal(err)
			}
			p := make([]byte, rapid.SampledFrom([]int{1, 5000, 256 << 10, 1<<20 + 1}).Draw(rt, "n"))
			n, err := r.Read(p)
			if !bytes.Equal(p[:n], data[min(pos, len(data)):min(pos+n, len(data))]) || n < len(p) && pos+n < len(data) {
				rt.Fatalf("%d bytes at %d: %d, %v", len(p), pos, n, err)
			}
			pos += n + rapid.SampledFrom([]int{0, 0, 0, 1000, skipAhead, 1 << 20}).Draw(rt, "aside")
			pos = min(pos, len(data))
		}
		if err := r.Close(); err != nil {
			rt.Fatal(err)
		}
		nothingAhead(t, client)
	})
}

// What is damaged comes over TCP from the byte on where it begins to be, and what is before it does not, although it is read at the same time.
func TestDamageAhead(t *testing.T) {
	client, sockets, data := newAhead(t)
	const piece = localSequence + localBuffer // where the second one starts that is read ahead
	sockets[0].set(func(c *net.UnixConn, b []byte) {
		sums := sheetOf(b)
		b = bytes.Clone(b)
		b[piece+1000] ^= 1
		handOver(t, c, b, sums)
	})
	r := open(t, client, "/long")
	if n, err := r.WriteTo(&slowly{t, data, 0, func() {}}); err != nil || n != int64(len(data)) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if n := client.LocalCounts(); n.Bytes != piece || n.Abandoned != 1 {
		t.Errorf("%+v, in place of %d bytes", n, piece)
	}
	nothingAhead(t, client)
}

// A Reader may be closed, and its context may end, while it reads ahead.
func TestCloseWhileReadingAhead(t *testing.T) {
	client, _, data := newAhead(t)
	for i := range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := client.Open(ctx, "/long")
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 3<<19)
		if _, err := io.ReadFull(r, p); err != nil || !bytes.Equal(p, data[:len(p)]) {
			t.Fatal(err)
		}
		if i%2 == 0 {
			cancel()
			if _, err := io.ReadAll(r); err == nil {
				t.Error("read to the end")
			}
			nothingAhead(t, client)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		nothingAhead(t, client)
		cancel()
	}
	if n := client.LocalCounts(); n.Abandoned != 0 {
		t.Errorf("the datanode is blamed: %+v", n)
	}
}

// Whatever a datanode hands over, no wrong byte is read, nothing hangs, nothing is left open, and the rest comes over TCP.
func TestDescriptorsThatAreOfNoUse(t *testing.T) {
	_, client, sockets, data := newLocalCluster(t, 1, nil)
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	cut := func(b []byte, n int) []byte { return b[:max(len(b)-n, 0)] }
	for _, bad := range []struct {
		name   string
		answer func(conn *net.UnixConn, data []byte)
	}{
		{"the data is short", func(c *net.UnixConn, b []byte) { handOver(t, c, cut(b, 1), sheetOf(b)) }},
		{"a checksum is missing", func(c *net.UnixConn, b []byte) { handOver(t, c, b, cut(sheetOf(b), 4)) }},
		{"a byte is wrong", func(c *net.UnixConn, b []byte) {
			b = bytes.Clone(b)
			b[len(b)/2] ^= 1
			handOver(t, c, b, sheetOf(pattern(1))) // and there are no checksums either
		}},
		{"a byte does not match", func(c *net.UnixConn, b []byte) {
			sums := sheetOf(b)
			b = bytes.Clone(b)
			b[len(b)/2] ^= 1
			handOver(t, c, b, sums)
		}},
		{"no header", func(c *net.UnixConn, b []byte) { handOver(t, c, b, []byte{0, 1, 2}) }},
		{"another version", func(c *net.UnixConn, b []byte) { handOver(t, c, b, append([]byte{0, 9}, sheetOf(b)[2:]...)) }},
		{"no checksums", func(c *net.UnixConn, b []byte) { handOver(t, c, b, []byte{0, 1, 0, 0, 0, 2, 0}) }},
		{"checksums of nothing", func(c *net.UnixConn, b []byte) { handOver(t, c, b, []byte{0, 1, 2, 0, 0, 0, 0}) }},
		{"checksums of much", func(c *net.UnixConn, b []byte) {
			handOver(t, c, b, append([]byte{0, 1, 2, 0, 255, 255, 255}, make([]byte, 100)...))
		}},
		{"one descriptor", func(c *net.UnixConn, b []byte) { handOver(t, c, b) }},
		{"three descriptors", func(c *net.UnixConn, b []byte) { handOver(t, c, b, sheetOf(b), b) }},
		{"twenty descriptors", func(c *net.UnixConn, b []byte) { handOver(t, c, slices.Repeat([][]byte{{1}}, 20)...) }},
		{"a pipe", func(c *net.UnixConn, _ []byte) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			defer w.Close()
			_ = dtp.WriteResponse(c, success)
			_ = localsocket.SendFiles(c, []byte{0}, r, r)
		}},
		{"no descriptors", func(c *net.UnixConn, _ []byte) {
			_ = dtp.WriteResponse(c, success)
			_, _ = c.Write([]byte{0})
		}},
		{"nothing behind the answer", func(c *net.UnixConn, _ []byte) { _ = dtp.WriteResponse(c, success) }},
		{"an answer of another version", func(c *net.UnixConn, _ []byte) {
			_ = dtp.WriteResponse(c, &hadooppb.BlockOpResponseProto{Status: hadooppb.Status_SUCCESS.Enum(), ShortCircuitAccessVersion: new(uint32(7))})
		}},
		{"nothing", func(*net.UnixConn, []byte) {}},
		{"noise", func(c *net.UnixConn, _ []byte) { _, _ = c.Write(bytes.Repeat([]byte{0xff}, 100)) }},
		{"a refusal", func(c *net.UnixConn, _ []byte) {
			_ = dtp.WriteResponse(c, dtp.Failure(hadooppb.Status_ERROR_UNSUPPORTED, "", "no"))
		}},
	} {
		sockets[0].set(bad.answer)
		fresh := client
		if bad.name != "the data is short" { // descriptors are kept, and refusals remembered
			fresh = sockets[0].n.c.client(client.config)
			patient(fresh)
		}
		before := count()
		got, err := fresh.ReadFile(t.Context(), "/f")
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v", bad.name, len(got), err)
		}
		n := fresh.LocalCounts()
		if n.Refused+n.Abandoned == 0 || n.Bytes > int64(len(data)) {
			t.Errorf("%s: %+v", bad.name, n)
		}
		asked := sockets[0].asked.Load()
		if got, err := fresh.ReadFile(t.Context(), "/f"); err != nil || !bytes.Equal(got, data) || sockets[0].asked.Load() != asked {
			t.Errorf("%s, again: %v, the datanode was asked %d times more", bad.name, err, sockets[0].asked.Load()-asked)
		}
		fresh.Close()
		eventually(t, bad.name+": everything is closed", func() bool { return count() <= before })
	}
}

// Descriptors of many blocks are kept, the oldest make room, and none stays for ever.
func TestDescriptorsAreBounded(t *testing.T) {
	_, client, sockets, data := newLocalCluster(t, 1, nil)
	r := open(t, client, "/f")
	first := make([]byte, 10)
	if _, err := r.ReadAt(first, 0); err != nil {
		t.Fatal(err)
	}
	l := client.local
	node := sockets[0].n.info()
	b := r.known(0)
	in := l.get(t.Context(), b, node)
	if in == nil {
		t.Fatal("no descriptors")
	}
	for i := range localKept + 50 { // of blocks that there are not
		other := *b
		other.block = &hadooppb.ExtendedBlockProto{PoolId: b.block.PoolId, BlockId: b.block.BlockId, GenerationStamp: new(uint64(i)), NumBytes: b.block.NumBytes}
		if d := l.get(t.Context(), &other, node); d != nil {
			l.put(d)
		}
	}
	l.mu.Lock()
	kept, there := len(l.kept), l.kept[in.key] == in
	l.mu.Unlock()
	if kept > localKept || !there {
		t.Errorf("%d are kept; what is in use stays: %v", kept, there)
	}
	p := make([]byte, 1000)
	if err := l.readFile(t.Context(), in, in.data, p, 5); err != nil || !bytes.Equal(p, data[5:1005]) {
		t.Error(err)
	}
	l.mu.Lock()
	for _, d := range l.kept {
		d.used = time.Now().Add(-2 * l.idle)
	}
	l.mu.Unlock()
	l.purgeIdle()
	l.mu.Lock()
	kept = len(l.kept)
	l.mu.Unlock()
	if kept != 1 {
		t.Errorf("%d are kept that nobody uses", kept-1)
	}
	l.put(in)
	client.Close()
	if in.data.File != nil {
		t.Error("they are open after the client's end")
	}
}

// A token that has expired is no reason to leave a datanode: the namenode gives another one, and with that descriptors come.
func TestDescriptorsWithAnExpiredToken(t *testing.T) {
	c, client, _, data := newLocalCluster(t, 1, nil)
	c.mu.Lock()
	c.epoch, c.stale = 1, 1
	c.mu.Unlock()
	for range 2 {
		got, err := client.ReadFile(t.Context(), "/f")
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if n := client.LocalCounts(); n.Opened != 3 || n.Refused != 1 {
		t.Errorf("%+v", n)
	}
}

// A datanode that is stopped keeps its socket: who asks it goes on with another one soon, and what was handed over stays of use.
func TestStoppedDatanodeBesideTheSocket(t *testing.T) {
	_, client, sockets, data := newLocalCluster(t, 1, nil)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	sockets[0].set(func(*net.UnixConn, []byte) { <-hang })
	client.hedging.after = time.Millisecond
	got, err := client.ReadFile(t.Context(), "/f")
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if n := client.LocalCounts(); n.Opened != 0 || n.Bytes != 0 {
		t.Errorf("%+v", n)
	}
}

// A call ends with its context, and so does what it has open.
func TestLocalReadEndsWithItsContext(t *testing.T) {
	_, client, _, _ := newLocalCluster(t, 1, nil)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := client.Open(ctx, "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(r); err == nil {
		t.Error("read to the end")
	}
	client.local.mu.Lock()
	defer client.local.mu.Unlock()
	for _, d := range client.local.kept {
		if d.users != 0 {
			t.Errorf("%d use descriptors still", d.users)
		}
	}
	if client.LocalCounts().Abandoned != 0 {
		t.Error("the datanode is blamed")
	}
}

// Files that a disk has not in its cache are read by another goroutine, with the same bytes.
func TestLocalReadWaitsForTheDisk(t *testing.T) {
	_, client := newCluster(t, 1)
	patient(client)
	data := pattern(1 << 20)
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	d := &descriptors{data: localFile{File: f}, users: 1, dropped: true}
	for range 20 {
		if err := f.Sync(); err == nil {
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
		off := rand.IntN(1 << 19)
		p := make([]byte, 1<<18)
		if err := client.local.readFile(t.Context(), d, d.data, p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+len(p)]) {
			t.Fatalf("at %d: %v", off, err)
		}
	}
	if err := client.local.readFile(t.Context(), d, d.data, make([]byte, 100), 1<<20-50); err == nil {
		t.Error("read beyond the end")
	}
}

// newLocalGroups is a cluster with a file of two block groups, and a template of clients that know the datanodes' sockets for descriptors only.
func newLocalGroups(t testing.TB) (c *cluster, sockets []*nearSocket, config Config, data []byte) {
	c, _ = newGroups(t, 5, codings[1])
	path, sockets := besides(t, c.nodes...)
	config = Config{DomainSocket: path, NoDomainTraffic: true, BlockSize: 2 << 20}
	data = make([]byte, 3*(2<<20)+1<<20+777)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data)
	put(t, c.client(Config{BlockSize: 2 << 20}), "/f", data)
	return c, sockets, config, data
}

// Internal blocks are read as blocks are: without faults nothing over TCP, and nothing of parity.
func TestLocalReadsOfAGroup(t *testing.T) {
	t.Parallel()
	c, _, config, data := newLocalGroups(t)
	client := c.client(config)
	patient(client)
	got, err := client.ReadFile(t.Context(), "/f")
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if n := client.LocalCounts(); n.Opened != 6 || n.Abandoned+n.Refused+n.Unreached != 0 || n.Bytes < int64(len(data)) {
		t.Errorf("%+v", n)
	}
	client.peers.mu.Lock()
	if len(client.peers.idle) != 0 {
		t.Error("something was read over TCP")
	}
	client.peers.mu.Unlock()
	nothingAhead(t, client)
}

// Whatever is wrong with descriptors, with datanodes, or with both, of as many internal blocks as there may be: what is read is what was written, and a
// datanode whose descriptors are wrong is asked before its internal block is computed.
func TestLocalReadsOfAGroupModel(t *testing.T) {
	t.Parallel()
	c, sockets, config, data := newLocalGroups(t)
	units := 5
	wrong := map[string]func(*net.UnixConn, []byte){
		"right": descriptorsOf(t),
		"damaged": func(conn *net.UnixConn, b []byte) {
			damaged := bytes.Clone(b)
			damaged[len(b)-1-len(b)/3] ^= 1
			handOver(t, conn, damaged, sheetOf(b))
		},
		"short": func(conn *net.UnixConn, b []byte) { handOver(t, conn, b[:len(b)/2], sheetOf(b[:len(b)/2])) },
		"refused": func(conn *net.UnixConn, _ []byte) {
			_ = dtp.WriteResponse(conn, dtp.Failure(hadooppb.Status_ERROR_UNSUPPORTED, "", "no"))
		},
	}
	kinds := slices.Sorted(maps.Keys(wrong))
	rapid.Check(t, func(rt *rapid.T) {
		for _, s := range sockets {
			s.set(wrong[rapid.SampledFrom(kinds).Draw(rt, "descriptors")])
		}
		lost := 0
		for range rapid.IntRange(0, 2).Draw(rt, "losses") {
			lost |= 1 << rapid.IntRange(0, units-1).Draw(rt, "lost")
		}
		damage := rapid.SampledFrom([]string{"nowhere", "damaged", "refused"}).Draw(rt, "damage")
		restore := c.lose(damage, lost)
		defer restore()
		client := c.client(config)
		defer client.Close()
		patient(client)
		r, err := client.Open(t.Context(), "/f")
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		pos := int64(0)
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			p := make([]byte, rapid.SampledFrom([]int{1, 2048, 5000, 300_000, 4 << 20}).Draw(rt, "n"))
			if rapid.Bool().Draw(rt, "seek") {
				pos = rapid.Int64Range(0, int64(len(data))).Draw(rt, "to")
				if _, err := r.Seek(pos, io.SeekStart); err != nil {
					rt.Fatal(err)
				}
			}
			n, err := io.ReadFull(r, p)
			want := data[pos:min(pos+int64(len(p)), int64(len(data)))]
			if !bytes.Equal(p[:n], want) || (err == nil) != (n == len(p)) {
				rt.Fatalf("%d bytes at %d: %d, %v", len(p), pos, n, err)
			}
			pos += int64(n)
		}
		if lost == 0 && len(r.bad) > 0 {
			rt.Errorf("datanodes are blamed for their descriptors: %v", r.bad)
		}
	})
}
