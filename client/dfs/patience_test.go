package dfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
)

// limit is how long a test waits for what has to happen soon.
const limit = time.Minute

// within fails the test if f takes longer than limit.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s: nothing for %v", what, limit)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for started := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(started) > limit {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

// silence makes the namenode hold the calls of some methods back until it ends.
func (c *cluster) silence(methods ...string) (end func()) {
	held := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = func(method string, _ *hrpc.Call) error {
		for _, m := range methods {
			if m == method {
				<-held
			}
		}
		return nil
	}
	end = sync.OnceFunc(func() {
		c.mu.Lock()
		c.before = nil
		c.mu.Unlock()
		close(held)
	})
	c.t.Cleanup(end)
	return end
}

// A flush whose context ends while the namenode is asked about a pipeline that has lost its last datanode: the block is
// lost, and every later call says so.
func TestFlushCutShortDoesNotForgetThatTheBlockIsLost(t *testing.T) {
	c, client := newCluster(t, 1)
	w := create(t, client, "/f")
	write(t, w, pattern(1000))
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	end := c.silence("fsync", "updateBlockForPipeline")
	c.nodes[0].kill()
	write(t, w, pattern(1000))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	within(t, "flush", func() {
		if err := w.Hflush(ctx); err == nil {
			t.Error("a flush to nobody succeeded")
		}
	})
	end()
	within(t, "the calls after it", func() {
		if err := w.Hflush(t.Context()); err == nil {
			t.Error("flush again succeeded")
		}
		if _, err := w.Write(pattern(10)); err == nil {
			t.Error("the writer takes more")
		}
		if err := w.Close(); err == nil {
			t.Error("the file was closed")
		}
	})
}

func TestFlushEndsWithItsContextWhileTheNamenodeIsSilent(t *testing.T) {
	c, client := newCluster(t, 3)
	w := create(t, client, "/f")
	write(t, w, pattern(1000))
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	end := c.silence("updateBlockForPipeline")
	c.nodes[0].kill()
	write(t, w, pattern(500))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	within(t, "flush", func() {
		if err := w.Hflush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	end()
	within(t, "close", func() { // the wait was over, the file is not
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	sameBytes(t, "stored", c.content("/f"), append(pattern(1000), pattern(500)...))
}

// A producer may take its time: nothing is asked of datanodes before it has said something, and others may use the writer.
func TestSlowProducerHoldsNothing(t *testing.T) {
	c, client := newCluster(t, 2)
	w := create(t, client, "/f")
	r, producer := io.Pipe()
	read := make(chan error, 1)
	go func() {
		_, err := w.ReadFrom(r)
		read <- err
	}()
	eventually(t, "a read of the producer", func() bool { // which has nothing to say
		return w.Size() == 0
	})
	time.Sleep(20 * time.Millisecond)
	if n := c.count("addBlock"); n != 0 {
		t.Errorf("%d blocks were asked for before the first byte was there", n)
	}
	if _, err := producer.Write(pattern(700)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first bytes", func() bool { return w.Size() == 700 })
	within(t, "a flush while the producer pauses", func() {
		if err := w.Hflush(t.Context()); err != nil {
			t.Error(err)
		}
	})
	producer.Close()
	within(t, "the end of the producer", func() {
		if err := <-read; err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	sameBytes(t, "stored", c.content("/f"), pattern(700))
}

func TestFileOfWholeBlocksEndsWithoutAnEmptyOne(t *testing.T) {
	c, client := newCluster(t, 2)
	for _, blocks := range []int{1, 3} {
		data := pattern(blocks << 20)
		w := create(t, client, "/f")
		if _, err := w.ReadFrom(bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if n := len(c.replicas("/f")); n != blocks {
			t.Errorf("a file of %d full blocks has %d", blocks, n)
		}
		sameBytes(t, "stored", c.content("/f"), data)
	}
}

func TestReadsEndWithTheirContext(t *testing.T) {
	for name, read := range map[string]func(context.Context, *Reader) error{
		"Read":    func(_ context.Context, r *Reader) error { _, err := r.Read(make([]byte, 1000)); return err },
		"WriteTo": func(_ context.Context, r *Reader) error { _, err := r.WriteTo(io.Discard); return err },
		"ReadAtContext": func(ctx context.Context, r *Reader) error {
			_, err := r.ReadAtContext(ctx, make([]byte, 1000), 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, client := newCluster(t, 1)
			bigFile(t, client, 1<<20)
			ctx, cancel := context.WithCancel(t.Context())
			r, err := client.Open(ctx, "/big")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			c.nodes[0].freeze()
			time.AfterFunc(50*time.Millisecond, cancel)
			within(t, name, func() {
				if err := read(ctx, r); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestWritesEndWithTheContextOfTheirWriter(t *testing.T) {
	c, client := newCluster(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := client.Create(ctx, "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	write(t, w, pattern(1000))
	c.nodes[0].freeze()
	time.AfterFunc(50*time.Millisecond, cancel)
	within(t, "a write into a window that is full", func() {
		if _, err := w.Write(make([]byte, 16<<20)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	within(t, "close", func() {
		if err := w.Close(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// A datanode that is frozen costs a reader a moment once, not the timeout for each block.
func TestFrozenDatanodeCostsAReaderAMoment(t *testing.T) {
	c, _ := newCluster(t, 2)
	client := c.client(Config{BlockSize: 64 << 10})
	data := bigFile(t, client, 12*64<<10)
	r := open(t, client, "/big")
	half := make([]byte, 3*64<<10+100)
	if _, err := io.ReadFull(r, half); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].freeze()
	within(t, "read", func() {
		rest, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		sameBytes(t, "read", append(half, rest...), data)
		again, err := client.ReadFile(t.Context(), "/big")
		if err != nil {
			t.Error(err)
		}
		sameBytes(t, "read at", again, data)
	})
}

// A datanode that is frozen leaves the pipeline long before the timeout; another one takes its place.
func TestFrozenDatanodeLeavesThePipeline(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 4)
		c.nodes[3].hidden = true
		c.hasten(client)
		w := create(t, client, "/f")
		data := pattern(700_000)
		write(t, w, data[:100_000])
		if err := w.Hflush(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.nodes[at].freeze()
		c.mu.Lock()
		c.nodes[at].hidden, c.nodes[3].hidden = true, false
		c.mu.Unlock()
		within(t, "write", func() {
			write(t, w, data[100_000:])
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		c.nodes[at].thaw()
		sameBytes(t, "stored", c.content("/f"), data)
		if n := c.replicas("/f")[0]; n != 3 {
			t.Errorf("node %d: %d replicas, want 3", at, n)
		}
	}
}

// A new block is written by others when one of its datanodes is frozen.
func TestFrozenDatanodeIsLeftOutOfNewBlocks(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 4)
		c.hasten(client)
		c.nodes[at].freeze()
		within(t, "write", func() {
			for range 3 {
				if err := client.WriteFile(t.Context(), "/f", pattern(100_000), true); err != nil {
					t.Errorf("node %d: %v", at, err)
				}
			}
		})
		sameBytes(t, "stored", c.content("/f"), pattern(100_000))
		if n := c.replicas("/f")[0]; n != 3 {
			t.Errorf("node %d: %d replicas, want 3", at, n)
		}
		if n := c.count("abandonBlock"); n != 1 {
			t.Errorf("node %d: %d blocks were given up, want 1: the client knows the datanode after that", at, n)
		}
		c.nodes[at].thaw()
	}
}

// A datanode whose connection broke is taken back where there is no other one: a copy replaces what it has.
func TestDatanodeComesBackIntoThePipeline(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 3)
		w := create(t, client, "/f")
		data := pattern(300_000)
		write(t, w, data[:100_000])
		if err := w.Hflush(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.nodes[at].set(func() {
			for conn := range c.nodes[at].conns {
				conn.Close()
			}
		})
		write(t, w, data[100_000:])
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		if n := c.replicas("/f")[0]; n != 3 {
			t.Errorf("node %d: %d replicas, want 3", at, n)
		}
		copies := 0
		c.nodes[at].set(func() { copies = c.nodes[at].copies })
		if copies != 1 {
			t.Errorf("node %d got %d copies, want 1", at, copies)
		}
	}
}

// A flush whose context ends while a datanode is taken back leaves a pipeline through which nothing has been sent again:
// what is written next must not go out ahead of it.
func TestCallCutShortWhileADatanodeComesBackLeavesNoGap(t *testing.T) {
	c, client := newCluster(t, 3)
	w := create(t, client, "/f")
	data := pattern(300_000)
	write(t, w, data[:100_000])
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	c.mu.Lock()
	c.before = func(method string, _ *hrpc.Call) error {
		if method == "getAdditionalDatanode" {
			if asked++; asked == 2 { // the first one found nobody else
				cancel()
			}
		}
		return nil
	}
	c.mu.Unlock()
	c.nodes[0].set(func() {
		for conn := range c.nodes[0].conns {
			conn.Close()
		}
	})
	write(t, w, data[100_000:100_500])
	within(t, "flush", func() {
		if err := w.Hflush(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	write(t, w, data[100_500:])
	within(t, "close", func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	sameBytes(t, "stored", c.content("/f"), data)
}

// A pipeline is never silent for long: not while nothing is written, and not while a producer is waited for.
func TestIdlePipelineHasHeartbeats(t *testing.T) {
	c, client := newCluster(t, 1)
	client.times.heartbeat = 5 * time.Millisecond
	w := create(t, client, "/f")
	r, producer := io.Pipe()
	read := make(chan error, 1)
	go func() {
		_, err := w.ReadFrom(r)
		read <- err
	}()
	if _, err := producer.Write(pattern(100)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "heartbeats while the producer pauses", func() bool {
		beats := 0
		c.nodes[0].set(func() { beats = c.nodes[0].beats })
		return beats >= 3
	})
	producer.Close()
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/f"), pattern(100))
}

// Who gives a file up wants no warnings about it.
func TestGivingUpIsQuiet(t *testing.T) {
	c, _ := newCluster(t, 3)
	var log bytes.Buffer
	client := c.client(Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	ctx, cancel := context.WithCancel(t.Context())
	w, err := client.Create(ctx, "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		n.freeze()
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 16<<20))
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.Abort()
	client.Close()
	if log.Len() > 0 {
		t.Errorf("warnings: %s", log.String())
	}
}

// A flush whose datanode takes no more bytes ends with its context, and breaks the pipeline, of which nobody knows how much
// of a packet it has; nothing of the file is lost by that.
func TestFlushThatCannotSendEndsWithItsContext(t *testing.T) {
	c, _ := newCluster(t, 1)
	client := c.client(Config{BlockSize: 4 << 20})
	w := create(t, client, "/f")
	data := pattern(1000)
	write(t, w, data)
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].freeze()
	_ = w.block.pipe.peer.conn.(*net.TCPConn).SetWriteBuffer(1)
	c.nodes[0].set(func() {
		for conn := range c.nodes[0].conns {
			_ = conn.(*net.TCPConn).SetReadBuffer(1)
		}
	})
	b := w.block
	for flushes := 0; b.at() != blockRepairing; flushes++ {
		if flushes == window-1 {
			t.Fatalf("%d packets fit into small buffers", flushes)
		}
		part := pattern(60_000)
		write(t, w, part)
		data = append(data, part...)
		ctx, cancel := context.WithCancel(t.Context())
		b.mu.Lock()
		next := b.seqno
		b.mu.Unlock()
		flushed := make(chan error, 1)
		go func() { flushed <- w.Hflush(ctx) }()
		eventually(t, "the packet is on its way, or sent", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.seqno > next && (b.pipe.sending || b.pipe.out > next)
		})
		cancel()
		within(t, "flush", func() {
			if err := <-flushed; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	c.nodes[0].thaw()
	within(t, "close", func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	sameBytes(t, "stored", c.content("/f"), data)
}

func BenchmarkHflush(b *testing.B) {
	_, client := newCluster(b, 1)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	w, err := client.Create(ctx, "/f", CreateOptions{BlockSize: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	record := pattern(200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Write(record); err != nil {
			b.Fatal(err)
		}
		if err := w.Hflush(ctx); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}
