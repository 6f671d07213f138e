package dfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/metadata"
)

func TestMain(m *testing.M) {
	blockMoved = func(from, to blockState) {
		if blockMoves[from]&(1<<to) == 0 {
			panic("a block goes from " + from.String() + " to " + to.String())
		}
	}
	os.Exit(leaktest.Run(m))
}

func create(t testing.TB, client *Client, name string) *Writer {
	t.Helper()
	w, err := client.Create(t.Context(), name, CreateOptions{Overwrite: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func write(t testing.TB, w *Writer, data []byte) {
	t.Helper()
	if n, err := w.Write(data); n != len(data) || err != nil {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(data), err)
	}
}

func TestFilesOfAllSizesComeBack(t *testing.T) {
	c, client := newCluster(t, 3)
	for _, size := range []int{0, 1, 511, 512, 513, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 777} {
		data := pattern(size)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		got, err := client.ReadFile(t.Context(), "/f")
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		sameBytes(t, "read", got, data)
		for i, n := range c.replicas("/f") {
			if n != 3 {
				t.Errorf("block %d of %d bytes has %d replicas", i, size, n)
			}
		}
	}
}

func TestReadFromFillsPackets(t *testing.T) {
	c, client := newCluster(t, 2)
	data := pattern(1<<20 + 99)
	for _, r := range []io.Reader{bytes.NewReader(data), iotest.HalfReader(bytes.NewReader(data)), iotest.DataErrReader(bytes.NewReader(data))} {
		w := create(t, client, "/f")
		if n, err := w.ReadFrom(r); n != int64(len(data)) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
	}
}

// Flushes at odd places and appends at odd lengths must leave what was written, whatever that does to chunks.
func TestFlushesAndAppendsKeepEveryByte(t *testing.T) {
	c, client := newCluster(t, 2)
	rnd := rand.New(rand.NewPCG(1, 2))
	var data []byte
	w := create(t, client, "/f")
	for range 150 {
		part := pattern(rnd.IntN(3000))
		write(t, w, part)
		data = append(data, part...)
		var err error
		switch rnd.IntN(6) {
		case 0, 1:
			err = w.Hflush(t.Context())
		case 2:
			err = w.Hsync(t.Context())
		case 3:
			if err = w.Close(); err == nil {
				w, err = client.Append(t.Context(), "/f")
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if w.Size() != int64(len(data)) {
			t.Fatalf("size %d, want %d", w.Size(), len(data))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/f"), data)
	got, err := client.ReadFile(t.Context(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "read", got, data)
}

func TestFlushedBytesAreVisibleToNewReaders(t *testing.T) {
	_, client := newCluster(t, 2)
	w := create(t, client, "/log")
	defer w.Abort()
	if r, err := client.Open(t.Context(), "/log"); err != nil || r.Size() != 0 {
		t.Fatalf("new file: %v", err)
	}
	var want []byte
	for i := range 5 {
		line := pattern(100 + i)
		write(t, w, line)
		want = append(want, line...)
		if err := w.Hflush(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := client.ReadFile(t.Context(), "/log")
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "after a flush", got, want)
	}
}

func TestNamenodeIsToldOnceOfAFlushedBlock(t *testing.T) {
	c, client := newCluster(t, 1)
	w := create(t, client, "/log")
	for range 5 {
		write(t, w, []byte("line\n"))
		if err := w.Hflush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.count("fsync"); n != 1 {
		t.Errorf("fsync was called %d times", n)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSyncReachesTheDiskEvenOfBytesFlushedBefore(t *testing.T) {
	c, client := newCluster(t, 1)
	w := create(t, client, "/log")
	write(t, w, pattern(700))
	for _, step := range []struct {
		sync bool
		want int
	}{{false, 0}, {true, 1}, {true, 1}, {false, 1}} {
		if err := w.flush(t.Context(), step.sync); err != nil {
			t.Fatal(err)
		}
		var synced int
		c.nodes[0].set(func() { synced = c.nodes[0].synced })
		if synced != step.want {
			t.Errorf("%d packets with sync, want %d", synced, step.want)
		}
	}
	write(t, w, pattern(5))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/log"), append(pattern(700), pattern(5)...))
}

func TestDatanodeThatRefusesIsLeftOut(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 4)
		c.nodes[at].refuse = true
		data := pattern(100_000)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		if n := c.replicas("/f")[0]; n != 3 {
			t.Errorf("%d replicas, want 3", n)
		}
		if n := c.count("abandonBlock"); n != 1 {
			t.Errorf("%d blocks were abandoned, want 1", n)
		}
	}
}

func TestNoDatanodeIsAnErrorThatNamesThem(t *testing.T) {
	c, client := newCluster(t, 2)
	for _, n := range c.nodes {
		n.kill()
	}
	w := create(t, client, "/f")
	_, err := w.Write(pattern(10))
	if err == nil {
		err = w.Close()
	}
	if err == nil || !strings.Contains(err.Error(), c.nodes[0].addr) || !strings.Contains(err.Error(), c.nodes[1].addr) {
		t.Errorf("got %v", err)
	}
	if _, err2 := w.Write([]byte("x")); err2 == nil {
		t.Error("a failed writer takes more")
	}
}

// A datanode dies in the middle of a block; the rest goes on and nothing is lost.
func TestDatanodeDiesWhileWriting(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 3)
		c.nodes[at].dieAfter = 5
		data := pattern(2<<20 + 12345)
		w := create(t, client, "/f")
		for part := range slices.Chunk(data, 50_000) {
			write(t, w, part)
		}
		if err := w.Close(); err != nil {
			t.Fatalf("node %d: %v", at, err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		if n := c.replicas("/f"); slices.Min(n) < 2 {
			t.Errorf("node %d: replicas %v", at, n)
		}
		if c.count("updatePipeline") == 0 {
			t.Errorf("node %d: the pipeline was never updated", at)
		}
	}
}

func TestAllButOneDatanodeDie(t *testing.T) {
	for name, policy := range map[string]ReplacePolicy{
		"best effort": {BestEffort: true}, "floor of one": {MinReplication: 1}, "never replaced": {When: ReplaceNever},
	} {
		c, _ := newCluster(t, 3)
		client := c.client(Config{ReplaceDatanode: policy})
		c.nodes[0].dieAfter = 3
		c.nodes[2].dieAfter = 9
		data := pattern(1 << 20)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
	}
}

// One copy of three is not what was asked for: without a replacement the write fails, by default, and says what to set.
func TestTooFewDatanodesAreAnError(t *testing.T) {
	c, client := newCluster(t, 3)
	w := create(t, client, "/f")
	data := pattern(1000)
	write(t, w, data)
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].kill()
	write(t, w, data)
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatalf("with two of three: %v", err)
	}
	c.nodes[1].kill()
	write(t, w, data)
	err := w.Hflush(t.Context())
	if !errors.Is(err, metadata.ErrIO) || !strings.Contains(err.Error(), minReplicationProperty) {
		t.Errorf("with one of three: %v", err)
	}
	w.Abort()
	strict := c.client(Config{ReplaceDatanode: ReplacePolicy{MinReplication: -1}})
	c.nodes[2].dieAfter = 0
	if asks, floor := strict.config.ReplaceDatanode.asks(3, 2, false, true), strict.config.ReplaceDatanode.goesOn(2); !asks || floor {
		t.Errorf("Hadoop's own default: asks %v, goes on %v", asks, floor)
	}
}

// The conditions of Hadoop's ReplaceDatanodeOnFailure.
func TestReplacePolicies(t *testing.T) {
	for _, at := range []struct {
		when               ReplaceWhen
		replication, have  int
		appended, promised bool
		want               bool
	}{
		{ReplaceDefault, 3, 2, false, false, false},
		{ReplaceDefault, 3, 2, false, true, true},
		{ReplaceDefault, 3, 2, true, false, true},
		{ReplaceDefault, 3, 1, false, false, true},
		{ReplaceDefault, 2, 1, true, true, false},
		{ReplaceDefault, 5, 3, false, false, false},
		{ReplaceDefault, 5, 2, false, false, true},
		{ReplaceAlways, 2, 1, false, false, true},
		{ReplaceAlways, 3, 3, true, true, false},
		{ReplaceNever, 3, 1, true, true, false},
		{ReplaceAlways, 3, 0, true, true, false},
	} {
		if got := (ReplacePolicy{When: at.when}).asks(at.replication, at.have, at.appended, at.promised); got != at.want {
			t.Errorf("%+v: %v", at, got)
		}
	}
}

func TestAllDatanodesDie(t *testing.T) {
	c, client := newCluster(t, 2)
	c.nodes[0].dieAfter = 3
	c.nodes[1].dieAfter = 9
	err := client.WriteFile(t.Context(), "/f", pattern(1<<20), true)
	if !errors.Is(err, metadata.ErrIO) || !strings.Contains(err.Error(), "bad") {
		t.Errorf("got %v", err)
	}
	if _, err := client.Stat(t.Context(), "/f"); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

// A datanode that drops the block of a deleted file looks broken to its writer, who is told what has happened.
func TestWriterOfADeletedFileIsToldSo(t *testing.T) {
	c, client := newCluster(t, 1)
	w := create(t, client, "/f")
	write(t, w, pattern(10))
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	delete(c.files, "/f")
	c.mu.Unlock()
	c.nodes[0].kill()
	_, err := w.Write(pattern(10))
	if err == nil {
		err = w.Hflush(t.Context())
	}
	if !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	w.Abort()
}

func TestErrorInAnAcknowledgementBlamesItsNode(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 3)
		c.nodes[at].badAck = 4
		data := pattern(900_000)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatalf("node %d: %v", at, err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		c.mu.Lock()
		for _, n := range c.files["/f"].blocks[0].nodes {
			if n == c.nodes[at] {
				t.Errorf("node %d is still in the pipeline", at)
			}
		}
		c.mu.Unlock()
	}
}

func TestDatanodeDiesAtTheEndOfABlock(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 3)
		c.nodes[at].dieAtEnd = true
		data := pattern(300_000)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatalf("node %d: %v", at, err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		for i, n := range c.nodes {
			if i != at && !slices.Contains(n.stages, stageCloseRecovery) {
				t.Errorf("node %d saw %v, no close recovery", i, n.stages)
			}
		}
	}
}

func TestDatanodeDiesBetweenFlushes(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 4)
		c.nodes[3].hidden = true
		w := create(t, client, "/log")
		var data []byte
		for i := range 20 {
			line := pattern(200 + i)
			write(t, w, line)
			data = append(data, line...)
			if i == 7 {
				c.nodes[at].kill()
				c.mu.Lock()
				c.nodes[at].hidden, c.nodes[3].hidden = true, false
				c.mu.Unlock()
			}
			if err := w.Hflush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "stored", c.content("/log"), data)
		// Somebody counts on the bytes, so another node takes the place and gets what was written before.
		if n := c.replicas("/log")[0]; n != 3 {
			t.Errorf("node %d: %d replicas, want 3", at, n)
		}
	}
}

func TestAppendToABlockThatLostANode(t *testing.T) {
	for at := range 3 {
		c, client := newCluster(t, 3)
		data := pattern(1000)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatal(err)
		}
		c.nodes[at].kill()
		w, err := client.Append(t.Context(), "/f")
		if err != nil {
			t.Fatalf("node %d: %v", at, err)
		}
		write(t, w, data)
		if err := w.Close(); err != nil {
			t.Fatalf("node %d: %v", at, err)
		}
		sameBytes(t, "stored", c.content("/f"), append(data, data...))
	}
}

// A block that lost replicas while it was written gets others before it is appended to: what is flushed then is on as many disks as the file wants.
func TestAppendToABlockWithFewReplicas(t *testing.T) {
	for _, alive := range []int{4, 2, 1} {
		c, client := newCluster(t, 4)
		data := pattern(1000)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		b := c.files["/f"].blocks[0]
		for _, n := range b.nodes[1:] {
			n.set(func() { delete(n.replicas, b.id) })
		}
		b.nodes = b.nodes[:1]
		left := b.nodes[0]
		c.mu.Unlock()
		killed := 0
		for _, n := range c.nodes {
			if n != left && killed < 4-alive {
				n.kill()
				killed++
			}
		}
		w, err := client.Append(t.Context(), "/f")
		if err != nil {
			t.Fatalf("%d alive: %v", alive, err)
		}
		write(t, w, data)
		if err := w.Close(); err != nil {
			t.Fatalf("%d alive: %v", alive, err)
		}
		sameBytes(t, "stored", c.content("/f"), append(data, data...))
		if n := c.replicas("/f")[0]; n != min(alive, 3) {
			t.Errorf("%d alive: %d replicas", alive, n)
		}
	}
}

// An append that fails when the namenode has opened the file leaves nothing open, although the client has another file, whose lease it keeps.
func TestAppendThatFailsLeavesTheFileClosed(t *testing.T) {
	for _, cut := range []bool{false, true} {
		c, client := newCluster(t, 3)
		data := pattern(1000)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatal(err)
		}
		other := create(t, client, "/other")
		write(t, other, data)
		refuse := func(refuse bool) {
			for _, n := range c.nodes {
				n.set(func() { n.refuse = refuse })
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if cut {
			c.mu.Lock()
			c.before = func(method string, call *hrpc.Call) error {
				if method == "updateBlockForPipeline" {
					cancel()
				}
				return nil
			}
			c.mu.Unlock()
		} else {
			refuse(true)
		}
		_, err := Within(ctx, func(life context.Context) (*Writer, error) { return client.Append(life, "/f") })
		if err == nil || errors.Is(err, context.Canceled) != cut {
			t.Fatalf("cut %t: %v", cut, err)
		}
		c.mu.Lock()
		c.before = nil
		if holder := c.files["/f"].holder; holder != "" {
			t.Errorf("cut %t: the file is open for %s after %v", cut, holder, err)
		}
		c.mu.Unlock()
		refuse(false)
		w, err := client.Append(t.Context(), "/f")
		if err != nil {
			t.Errorf("cut %t: again: %v", cut, err)
			continue
		}
		write(t, w, data)
		for _, w := range []*Writer{w, other} {
			if err := w.Close(); err != nil {
				t.Fatalf("cut %t: %v", cut, err)
			}
		}
		sameBytes(t, "appended", c.content("/f"), append(data[:1000:1000], data...))
		sameBytes(t, "beside it", c.content("/other"), data)
	}
}

func TestAppendOfNothingKeepsTheFile(t *testing.T) {
	c, client := newCluster(t, 2)
	for _, size := range []int{0, 700, 1 << 20} {
		data := pattern(size)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatal(err)
		}
		w, err := client.Append(t.Context(), "/f")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
	}
}

func TestMuteDatanodeIsGivenUp(t *testing.T) {
	c, _ := newCluster(t, 2)
	client := c.client(Config{DatanodeTimeout: 200 * time.Millisecond})
	c.nodes[1].mute = true
	w := create(t, client, "/f")
	// The first node waits for the second and cannot tell; the client blames the first, and then the second too.
	within(t, "close", func() {
		_, err := w.Write(pattern(1000))
		if err == nil {
			err = w.Close()
		}
		if err == nil {
			t.Error("nobody acknowledged and Close succeeded")
		}
	})
}

func TestCloseWaitsForReplicas(t *testing.T) {
	c, client := newCluster(t, 1)
	c.notYet = 4
	if err := client.WriteFile(t.Context(), "/f", pattern(10), true); err != nil {
		t.Fatal(err)
	}
	if n := c.count("complete"); n != 5 {
		t.Errorf("complete was called %d times", n)
	}
	c.mu.Lock()
	c.notYet = 3
	c.mu.Unlock()
	data := pattern(2<<20 + 1)
	if err := client.WriteFile(t.Context(), "/g", data, true); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/g"), data)
}

func TestCloseGivesUpInTime(t *testing.T) {
	c, _ := newCluster(t, 1)
	client := c.client(Config{CloseTimeout: 50 * time.Millisecond})
	c.notYet = 1 << 30
	w := create(t, client, "/f")
	if err := w.Close(); !errors.Is(err, metadata.ErrNotReplicatedYet) {
		t.Errorf("got %v", err)
	}
}

func TestLostLeaseEndsTheWriter(t *testing.T) {
	c, client := newCluster(t, 1)
	w := create(t, client, "/f")
	write(t, w, pattern(10))
	c.mu.Lock()
	c.files["/f"].holder = "somebody else"
	c.mu.Unlock()
	if err := w.Close(); !errors.Is(err, metadata.ErrLeaseExpired) {
		t.Errorf("got %v", err)
	}
}

func TestAbortClosesTheFileForOthersWhereverItIs(t *testing.T) {
	c, client := newCluster(t, 1)
	w := create(t, client, "/f")
	write(t, w, pattern(10))
	c.mu.Lock()
	c.files["/renamed"] = c.files["/f"]
	delete(c.files, "/f")
	c.mu.Unlock()
	create(t, client, "/f")
	w.Abort()
	w.Abort()
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("an aborted writer takes more")
	}
	if err := w.Close(); err == nil {
		t.Error("an aborted writer can be closed")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files["/renamed"].holder != "" {
		t.Error("the file is still open")
	}
	if c.files["/f"].holder == "" {
		t.Error("another file with the former name is not its writer's any more")
	}
}

func TestFlushStopsWaitingWithItsContext(t *testing.T) {
	c, client := newCluster(t, 1)
	c.nodes[0].mute = true
	w := create(t, client, "/f")
	write(t, w, pattern(10))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := w.Hflush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	w.Abort()
}

func TestClientCloseFreesAWriterThatHangs(t *testing.T) {
	c, client := newCluster(t, 1)
	c.nodes[0].mute = true
	w := create(t, client, "/f")
	write(t, w, pattern(10))
	done := make(chan error, 1)
	go func() { done <- w.Close() }()
	time.Sleep(20 * time.Millisecond)
	client.Close()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Close succeeded")
		}
	case <-time.After(limit):
		t.Fatal("Close hangs")
	}
}

func TestRepeatedCallKeepsItsIdentity(t *testing.T) {
	c, client := newCluster(t, 1)
	var ids []int32
	c.before = func(method string, call *hrpc.Call) error {
		if method != "rename" {
			return nil
		}
		ids = append(ids, call.CallID)
		if len(ids) < 3 {
			return metadata.Errorf(metadata.ErrRetriable, "not yet")
		}
		return nil
	}
	if _, err := client.Rename(t.Context(), "/a", "/b"); err != nil {
		t.Fatal(err)
	}
	if len(ids) != 3 || ids[0] != ids[1] || ids[1] != ids[2] || c.retries["rename"] != 2 {
		t.Errorf("call ids %v, highest retry %d", ids, c.retries["rename"])
	}
}

// Packets are large where all datanodes have said that they take such, in bulk, and nowhere else.
func TestLargePackets(t *testing.T) {
	for _, java := range []int{-1, 0, 1, 2} {
		c, client := newCluster(t, 3)
		for i, n := range c.nodes {
			n.set(func() { n.large = i != java })
		}
		w, err := client.Create(t.Context(), "/f", CreateOptions{BlockSize: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		data := pattern(7<<20 + 100)
		write(t, w, data[:6<<20])
		for at := 6 << 20; at < 6<<20+1000; at += 200 { // records that are flushed are in small ones
			write(t, w, data[at:at+200])
			if err := w.Hflush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if most := w.block.filling.Room(); most > dtp.DataSize {
				t.Errorf("%d bytes of memory wait for the next record", most)
			}
		}
		write(t, w, data[6<<20+1000:])
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		for _, n := range c.nodes {
			n.mu.Lock()
			packets := slices.Clone(n.packets)
			n.mu.Unlock()
			largest := 0
			for i, size := range packets {
				largest = max(largest, size)
				if i < 16 && size > dtp.DataSize {
					t.Errorf("packet %d has %d bytes", i, size)
				}
			}
			if want := map[bool]int{true: dtp.LargeSize, false: dtp.DataSize}[java < 0]; largest != want {
				t.Errorf("without large ones at %d: the largest packet has %d bytes, want %d", java, largest, want)
			}
		}
	}
}

// Whatever a datanode says, packets are of one of the two sizes.
func TestPacketsWhateverADatanodeSays(t *testing.T) {
	for says, want := range map[uint32]int{
		0: dtp.DataSize, 1: dtp.DataSize, dtp.LargeSize - 1: dtp.DataSize, dtp.LargeSize: dtp.LargeSize, 1 << 31: dtp.LargeSize, math.MaxUint32: dtp.LargeSize,
	} {
		c, client := newCluster(t, 1)
		c.nodes[0].set(func() { n := c.nodes[0]; n.says = &says })
		w, err := client.Create(t.Context(), "/f", CreateOptions{BlockSize: 4 << 20, Replication: 1})
		if err != nil {
			t.Fatal(err)
		}
		data := pattern(5<<20 + 100)
		write(t, w, data)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		c.nodes[0].mu.Lock()
		if got := slices.Max(c.nodes[0].packets); got != want {
			t.Errorf("it says %d: the largest packet has %d bytes, want %d", says, got, want)
		}
		c.nodes[0].mu.Unlock()
	}
}
