package dfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// bigFile writes a file of several blocks.
func bigFile(t testing.TB, client *Client, size int) []byte {
	t.Helper()
	data := pattern(size)
	if err := client.WriteFile(t.Context(), "/big", data, true); err != nil {
		t.Fatal(err)
	}
	return data
}

func open(t testing.TB, client *Client, name string) *Reader {
	t.Helper()
	r, err := client.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestReaderKeepsTheRulesOfReaders(t *testing.T) {
	c, _ := newCluster(t, 2)
	client := c.client(Config{BlockSize: 2048})
	data := bigFile(t, client, 5000)
	if err := iotest.TestReader(open(t, client, "/big"), data); err != nil {
		t.Error(err)
	}
}

func TestReaderSeeksAnywhere(t *testing.T) {
	_, client := newCluster(t, 2)
	data := bigFile(t, client, 3<<20+100)
	r := open(t, client, "/big")
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		at := rnd.Int64N(int64(len(data)))
		if rnd.IntN(2) == 0 { // near
			at = min(max(r.pos+rnd.Int64N(20000)-5000, 0), int64(len(data)))
		}
		if got, err := r.Seek(at, io.SeekStart); got != at || err != nil {
			t.Fatalf("seek %d: %d, %v", at, got, err)
		}
		p := make([]byte, rnd.IntN(100_000))
		n, err := io.ReadFull(r, p)
		if err != nil && !errors.Is(err, io.EOF) && err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
		sameBytes(t, "read", p[:n], data[at:min(at+int64(len(p)), int64(len(data)))])
	}
}

func TestReadAtFromManyGoroutines(t *testing.T) {
	_, client := newCluster(t, 2)
	data := bigFile(t, client, 2<<20)
	r := open(t, client, "/big")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(5, uint64(i)))
			for range 30 {
				at, size := rnd.IntN(len(data)), rnd.IntN(50_000)
				p := make([]byte, size)
				n, err := r.ReadAt(p, int64(at))
				if n < size && !errors.Is(err, io.EOF) || err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("%d bytes at %d: %d, %v", size, at, n, err)
				}
				if !bytes.Equal(p[:n], data[at:min(at+size, len(data))]) {
					t.Errorf("%d bytes at %d differ", size, at)
				}
			}
		})
	}
	wg.Wait()
}

// Who reads at several places at once may have to ask where they are, again and again: what the race detector has to say of it.
func TestManyGoroutinesAskWhereBlocksAre(t *testing.T) {
	c, _ := newCluster(t, 1)
	client := c.client(Config{BlockSize: 1024})
	bigFile(t, client, 5000)
	r := open(t, client, "/big")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 25 {
				if b, err := r.at(t.Context(), int64(i)*1024, true); err != nil || b.offset != int64(i)*1024 {
					t.Errorf("block %d: %+v, %v", i, b, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestWriteToCopiesTheRest(t *testing.T) {
	_, client := newCluster(t, 2)
	data := bigFile(t, client, 1<<20+5)
	r := open(t, client, "/big")
	if _, err := r.Seek(1000, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if n, err := io.Copy(&b, r); n != int64(len(data)-1000) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	sameBytes(t, "copied", b.Bytes(), data[1000:])
	// A writer that fails leaves the reader where the writer stopped.
	_, _ = r.Seek(0, io.SeekStart)
	if n, err := r.WriteTo(&failingWriter{room: 70_000}); n != 70_000 || !errors.Is(err, errInjected) {
		t.Fatalf("%d, %v", n, err)
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "the rest", rest, data[70_000:])
}

type failingWriter struct{ room int }

func (w *failingWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.room)
	w.room -= n
	if n < len(p) {
		return n, errInjected
	}
	return n, nil
}

func TestReadsReuseConnections(t *testing.T) {
	c, client := newCluster(t, 1)
	patient(client)
	data := bigFile(t, client, 1<<20)
	r := open(t, client, "/big")
	accepted := func() (n int) {
		c.nodes[0].set(func() { n = c.nodes[0].accepted })
		return n
	}
	before := accepted()
	for i := range 20 {
		p := make([]byte, 1000)
		if _, err := r.ReadAt(p, int64(i*1000)); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "read", p, data[i*1000:][:1000])
	}
	if n := accepted() - before; n != 1 {
		t.Errorf("%d connections for 20 reads", n)
	}
}

func TestWritesReuseConnectionsWhereTheDatanodeLetsThem(t *testing.T) {
	for _, keeps := range []bool{true, false} {
		c, client := newCluster(t, 1)
		patient(client)
		c.nodes[0].set(func() { c.nodes[0].keeps = keeps })
		for i := range 10 {
			data := pattern(1000 + i)
			if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
				t.Fatal(err)
			}
			sameBytes(t, "stored", c.content("/f"), data)
		}
		var n int
		c.nodes[0].set(func() { n = c.nodes[0].accepted })
		if want := map[bool]int{true: 1, false: 10}[keeps]; n != want {
			t.Errorf("%d connections for 10 files where the datanode keeps them: %v", n, keeps)
		}
	}
}

func TestKeptConnectionThatTheDatanodeClosedIsReplaced(t *testing.T) {
	c, client := newCluster(t, 1)
	bigFile(t, client, 10_000)
	r := open(t, client, "/big")
	for range 3 {
		if _, err := r.ReadAt(make([]byte, 10), 0); err != nil {
			t.Fatal(err)
		}
		c.nodes[0].set(func() {
			for conn := range c.nodes[0].conns {
				conn.Close()
			}
		})
	}
}

func TestDeadReplicaIsSkipped(t *testing.T) {
	c, client := newCluster(t, 3)
	data := bigFile(t, client, 2<<20)
	c.nodes[0].kill()
	c.nodes[1].kill()
	got, err := io.ReadAll(open(t, client, "/big"))
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "read", got, data)
}

func TestReplicaThatBreaksOffIsReplacedOnTheWay(t *testing.T) {
	c, client := newCluster(t, 2)
	data := bigFile(t, client, 2<<20)
	c.nodes[0].readFor = 5
	got, err := io.ReadAll(open(t, client, "/big"))
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "read", got, data)
}

func TestCorruptReplicaIsReportedAndReplaced(t *testing.T) {
	c, client := newCluster(t, 2)
	patient(client)
	data := bigFile(t, client, 1<<20)
	c.nodes[0].flip = true
	got, err := client.ReadFile(t.Context(), "/big")
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "read", got, data)
	if len(c.bad) != 1 || c.bad[0] != "node-0" {
		t.Errorf("reported: %v", c.bad)
	}
}

// A client for which no replica of several matches takes that for its own fault, as Hadoop's does: one with bad memory that
// reads a tree would else report every replica of it.
func TestReaderWithItsBytesWaitsForNoNamenode(t *testing.T) {
	c, client := newCluster(t, 2)
	bigFile(t, client, 100_000)
	c.nodes[0].set(func() { c.nodes[0].flip = true })
	c.nodes[1].set(func() { c.nodes[1].flip = false })
	client.times.tell = time.Nanosecond // no namenode answers as fast
	if _, err := client.ReadFile(t.Context(), "/big"); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.bad) != 0 {
		t.Errorf("reported: %v", c.bad)
	}
}

func TestClientThatFindsEveryReplicaCorruptReportsNone(t *testing.T) {
	c, client := newCluster(t, 3)
	patient(client)
	bigFile(t, client, 100_000)
	flip := func(at int, flip bool) { c.nodes[at].set(func() { c.nodes[at].flip = flip }) }
	for at := range 3 {
		flip(at, true)
	}
	client.times.retry = time.Millisecond
	r := open(t, client, "/big")
	for name, read := range map[string]func() error{
		"Read":   func() error { _, err := r.Read(make([]byte, 1000)); return err },
		"ReadAt": func() error { _, err := r.ReadAt(make([]byte, 1000), 5000); return err },
	} {
		if err := read(); !errors.Is(err, metadata.ErrIO) || !strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s: %v", name, err)
		}
	}
	reported := func() []string {
		c.mu.Lock()
		defer c.mu.Unlock()
		bad := c.bad
		c.bad = nil
		slices.Sort(bad)
		return bad
	}
	if bad := reported(); len(bad) != 0 {
		t.Errorf("reported: %v", bad)
	}
	flip(2, false)
	if _, err := client.ReadFile(t.Context(), "/big"); err != nil {
		t.Fatal(err)
	}
	if bad := reported(); !slices.Equal(bad, []string{"node-0", "node-1"}) {
		t.Errorf("reported when another replica gave the bytes: %v", bad)
	}
	flip(2, true)
	c.mu.Lock()
	b := c.files["/big"].blocks[0]
	b.nodes = b.nodes[:1]
	c.mu.Unlock()
	if _, err := client.ReadFile(t.Context(), "/big"); err == nil {
		t.Error("a corrupt file was read")
	}
	if bad := reported(); !slices.Equal(bad, []string{"node-0"}) {
		t.Errorf("reported of the only replica: %v", bad)
	}
}

func TestCorruptBytesAreNeverHandedOut(t *testing.T) {
	c, client := newCluster(t, 1)
	bigFile(t, client, 100_000)
	c.nodes[0].flip = true
	r := open(t, client, "/big")
	n, err := io.Copy(io.Discard, r)
	if n != 0 || !errors.Is(err, metadata.ErrIO) || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// A long read has a wide buffer, in which many packets lie at a time, unless all of them are in use; it is given back however the read ends, and no
// byte behind one that does not match is handed out.
func TestLongReadsHaveAWideBuffer(t *testing.T) {
	c, _ := newCluster(t, 1)
	client := c.client(Config{BlockSize: 8 << 20})
	client.times.retry = time.Millisecond
	data := bigFile(t, client, 5<<20+700)
	buffer := func(r *Reader, n int64) int {
		t.Helper()
		if _, err := io.CopyN(io.Discard, r, n); err != nil {
			t.Fatal(err)
		}
		size := r.stream.(*flow).s.peer.r.Size()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		return size
	}
	first := open(t, client, "/big")
	if n := buffer(first, 1); n != wideBuffer {
		t.Errorf("a long read has a buffer of %d bytes", n)
	}
	rest := open(t, client, "/big")
	if _, err := rest.Seek(4<<20, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if n := buffer(rest, 1); n >= wideBuffer {
		t.Errorf("a read of %d bytes has a buffer of %d", len(data)-4<<20, n)
	}
	wideInUse.Store(maxWide)
	if n := buffer(open(t, client, "/big"), 1); n >= wideBuffer || wideInUse.Load() != maxWide {
		t.Errorf("a buffer of %d bytes, and %d wide ones in use, where %d may be", n, wideInUse.Load(), maxWide)
	}
	wideInUse.Store(0)
	node := c.nodes[0]
	for _, f := range []struct {
		what     string
		readFor  int
		flip     bool
		flipFrom int64
		want     int
	}{
		{"whole", 0, false, 0, len(data)},
		{"that breaks off", 20, false, 0, len(data)},
		{"damaged from 2 MiB on", 0, true, 2 << 20, 2 << 20},
		{"damaged from the beginning", 0, true, 0, 0},
	} {
		node.set(func() { node.readFor, node.flip, node.flipFrom = f.readFor, f.flip, f.flipFrom })
		var got bytes.Buffer
		_, err := io.Copy(&got, open(t, client, "/big"))
		sameBytes(t, "a block "+f.what, got.Bytes(), data[:f.want])
		if f.flip != errors.Is(err, metadata.ErrIO) || !f.flip && err != nil {
			t.Errorf("a block %s: %v", f.what, err)
		}
		if n := wideInUse.Load(); n != 0 {
			t.Errorf("a block %s: %d wide buffers are left in use", f.what, n)
		}
	}
}

func TestReplicaThatComesBackIsFound(t *testing.T) {
	c, client := newCluster(t, 2)
	data := bigFile(t, client, 100_000)
	r := open(t, client, "/big")
	c.nodes[0].kill()
	c.nodes[1].flip = true
	calls := 0
	c.mu.Lock()
	c.before = func(method string, _ *hrpc.Call) error {
		if method == "getBlockLocations" {
			calls++
			c.nodes[1].set(func() { c.nodes[1].flip = false })
		}
		return nil
	}
	c.mu.Unlock()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "read", got, data)
	if calls != 1 {
		t.Errorf("locations were asked for %d times more", calls)
	}
}

func TestOpenErrors(t *testing.T) {
	_, client := newCluster(t, 1)
	if err := client.Mkdirs(t.Context(), "/d", 0o777, true); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"/none": fs.ErrNotExist, "/d": metadata.ErrNotExist, "relative": metadata.ErrInvalidPath, "": metadata.ErrInvalidPath, "/a\x00b": fs.ErrInvalid} {
		if _, err := client.Open(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("open %q: %v, want %v", name, err, want)
		}
	}
	bigFile(t, client, 10)
	r := open(t, client, "/big")
	if _, err := r.Seek(-1, io.SeekStart); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("seek: %v", err)
	}
	if _, err := r.ReadAt(make([]byte, 1), -1); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("read at -1: %v", err)
	}
	if n, err := r.ReadAt(make([]byte, 20), 5); n != 5 || !errors.Is(err, io.EOF) {
		t.Errorf("read over the end: %d, %v", n, err)
	}
	r.Close()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

// counted is a context that counts who waits for its end.
type counted struct {
	context.Context
	waiting atomic.Int64
}

func (c *counted) Value(any) any { return nil } // nobody gets past AfterFunc

func (c *counted) AfterFunc(f func()) func() bool {
	c.waiting.Add(1)
	over := sync.OnceFunc(func() { c.waiting.Add(-1) })
	stop := context.AfterFunc(c.Context, f)
	return func() bool {
		over()
		return stop()
	}
}

// A reader that has been closed leaves nothing with the context that it was opened with, which may live as long as the
// program: not for the datanodes that it has asked, not for those that were quicker.
func TestReadsLeaveNothingWithTheirContext(t *testing.T) {
	c, _ := newCluster(t, 2)
	client := c.client(Config{BlockSize: 64 << 10})
	data := bigFile(t, client, 4*64<<10)
	inner, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctx := &counted{Context: inner}
	r, err := client.Open(ctx, "/big")
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1000)
	if _, err := io.ReadFull(r, first); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].freeze()
	within(t, "read", func() {
		rest, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		sameBytes(t, "read", append(first, rest...), data)
		if _, err := r.ReadAt(make([]byte, 100_000), 1000); err != nil {
			t.Error(err)
		}
	})
	r.Close()
	if n := ctx.waiting.Load(); n != 0 {
		t.Errorf("%d still wait for the end of the context", n)
	}
}

// A connection that is kept for the next request is not interrupted any more because another datanode was quicker in the last one.
func TestWhatIsKeptIsNotOvertaken(t *testing.T) {
	_, client := newCluster(t, 1)
	patient(client)
	bigFile(t, client, 1000)
	r := open(t, client, "/big")
	f, err := r.connect(t.Context(), new(attempt), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	one := f.(*flow)
	p := one.s.peer
	given := make(chan struct{})
	kept := func() bool {
		client.peers.mu.Lock()
		defer client.peers.mu.Unlock()
		return slices.Contains(client.peers.idle[p.addr], p)
	}
	h := &hedge{done: make(chan struct{}), cancel: sync.OnceFunc(func() { close(given) })}
	one.h = h
	one.watch()
	go func() { // is quicker as late as it can be
		defer close(h.done)
		for !kept() {
			select {
			case <-given:
				p.interrupt(errOvertaken)
				return
			default:
				time.Sleep(time.Millisecond)
			}
		}
		p.interrupt(errOvertaken)
	}()
	one.h = nil // it is asked during the last read
	if _, err := one.read(); err != nil {
		t.Fatal(err)
	}
	one.h = h
	if _, err := one.read(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if <-h.done; kept() {
		t.Error("a connection is kept that was interrupted")
	}
}

// A block that is being written, all of whose datanodes are down, has no locations.
func TestTheLengthOfABlockThatNobodyHasIsAnError(t *testing.T) {
	c, err := New(Config{Namenodes: []string{"127.0.0.1:1"}, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.visibleLength(t.Context(), "/f", &hadooppb.LocatedBlockProto{B: &hadooppb.ExtendedBlockProto{NumBytes: new(uint64(5))}})
	if !errors.Is(err, metadata.ErrIO) || !strings.Contains(err.Error(), "no datanode that has it") {
		t.Errorf("%v", err)
	}
}
