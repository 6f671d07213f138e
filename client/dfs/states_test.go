package dfs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
)

// Faults at every call, of namenode and datanodes: whatever comes, no call panics or hangs, the states of a block follow
// the table (TestMain sees to that), an error that ends the writer is the answer to all later calls, what a flush has
// acknowledged is on every datanode that the namenode lists, and a file that was closed holds what was written.
func TestWriterUnderFaults(t *testing.T) {
	seeds := 16
	if testing.Short() {
		seeds = 10
	}
	var closed, failed atomic.Int32
	t.Run("seeds", func(t *testing.T) {
		for seed := range seeds {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				if faultyWrite(t, uint64(seed)) {
					closed.Add(1)
				} else {
					failed.Add(1)
				}
			})
		}
	})
	t.Logf("%d files were closed, %d writers failed", closed.Load(), failed.Load())
	if closed.Load() == 0 {
		t.Error("no file was ever closed")
	}
}

// faultyWrite writes one file; whether it was closed in the end.
func faultyWrite(t *testing.T, seed uint64) bool {
	rnd := rand.New(rand.NewPCG(seed, 7))
	c, _ := newCluster(t, 5)
	client := c.client(Config{BlockSize: 64 << 10, DatanodeTimeout: 2 * time.Second, CloseTimeout: time.Second, ReplaceDatanode: ReplacePolicy{MinReplication: int(seed%2) + 1}})
	client.times.stall, client.times.probe, client.times.heartbeat = 150*time.Millisecond, 300*time.Millisecond, 5*time.Millisecond
	for _, n := range c.nodes {
		n.set(func() { n.keeps = seed%3 == 0 })
	}
	var mu sync.Mutex // of rnd
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n) == 0
	}
	number := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	var calm atomic.Bool
	c.mu.Lock()
	c.before = func(method string, _ *hrpc.Call) error {
		if calm.Load() || method == "create" || method == "getServerDefaults" {
			return nil
		}
		switch number(12) {
		case 0:
			return metadata.Errorf(metadata.ErrRetriable, "not yet")
		case 1, 2:
			time.Sleep(time.Duration(number(40)) * time.Millisecond)
		}
		return nil
	}
	c.mu.Unlock()
	dead := 0
	fault := func() {
		n := c.nodes[number(len(c.nodes))]
		switch number(6) {
		case 0:
			n.set(func() { n.badAck = 1 + number(4) })
		case 1:
			n.freeze()
			time.AfterFunc(time.Duration(number(600))*time.Millisecond, n.thaw)
		case 2:
			n.set(func() { n.refuse = true })
			time.AfterFunc(time.Duration(number(100))*time.Millisecond, func() { n.set(func() { n.refuse = false }) })
		case 3:
			n.set(func() { // its connections break
				for conn := range n.conns {
					conn.Close()
				}
			})
		case 4:
			if dead < 2 {
				dead++
				c.mu.Lock()
				n.hidden = true
				c.mu.Unlock()
				n.set(func() {
					if chance(2) {
						n.dieAfter = 1 + number(3)
					} else {
						n.dieAtEnd = true
					}
				})
			}
		}
	}
	w, err := client.Create(t.Context(), "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var data []byte
	fatal := error(nil)
	// Nothing may be the answer to a call once another call has ended the writer.
	did := func(what string, err error, bounded context.Context) {
		switch {
		case err == nil && fatal != nil:
			t.Errorf("%s succeeded after %v", what, fatal)
		case err != nil && bounded != nil && bounded.Err() != nil && contextual(err):
		case err != nil && fatal == nil:
			fatal = err
		}
	}
	for range 60 {
		if chance(6) {
			fault()
		}
		part := pattern(1 + number(9000))
		var n int
		within(t, "write", func() { n, err = w.Write(part) })
		data = append(data, part[:n]...)
		did("write", err, nil)
		if !chance(3) {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		if chance(2) {
			ctx, cancel = context.WithTimeout(t.Context(), time.Duration(number(30))*time.Millisecond)
		}
		sync := chance(4)
		within(t, "flush", func() { err = w.flush(ctx, sync) })
		did("flush", err, ctx)
		if err == nil {
			c.holds(t, data)
		}
		cancel()
	}
	calm.Store(true)
	for _, n := range c.nodes {
		n.thaw()
	}
	within(t, "close", func() { err = w.Close() })
	did("close", err, nil)
	if err != nil {
		within(t, "abort", w.Abort)
		return false
	}
	sameBytes(t, "stored", c.content("/f"), data)
	return true
}

// holds checks that every datanode listed for the blocks of /f has the bytes that were flushed.
func (c *cluster) holds(t *testing.T, want []byte) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, b := range c.files["/f"].blocks {
		start := i * 64 << 10
		if start >= len(want) {
			return
		}
		part := want[start:min(start+64<<10, len(want))]
		nodes := slices.Clone(b.nodes)
		held := 0
		for _, n := range nodes {
			n.set(func() {
				if r := n.replicas[b.id]; r != nil && r.gs == b.gs && len(r.data) >= len(part) && string(r.data[:len(part)]) == string(part) {
					held++
				} else if r != nil && !n.dead && r.gs == b.gs {
					t.Errorf("%s has %d bytes of block %d, %d were flushed", n.uuid, len(r.data), b.id, len(part))
				}
			})
		}
		if held == 0 {
			t.Errorf("nobody of %d holds the %d flushed bytes of block %d", len(nodes), len(part), b.id)
		}
	}
}
