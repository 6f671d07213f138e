package dfs

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A flush that is cut short between the set-up of a new pipeline and the packets for it: the next call sends what is not
// acknowledged first.
func TestFlushCutShortBeforeAPacketIsSentAgain(t *testing.T) {
	c, client := newCluster(t, 3)
	w := create(t, client, "/f")
	data := pattern(20_000)
	write(t, w, data[:5000])
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	c.mu.Lock()
	c.before = func(method string, _ *hrpc.Call) error {
		if method != "getAdditionalDatanode" {
			return nil
		}
		if asked++; asked == 2 { // for the node that failed, which may come back
			cancel()
			return metadata.Errorf(metadata.ErrIO, "no more datanodes")
		}
		return nil
	}
	c.mu.Unlock()
	c.nodes[1].set(func() { c.nodes[1].badAck = 1 })
	write(t, w, data[5000:9000])
	within(t, "flush", func() {
		if err := w.Hflush(ctx); err == nil {
			t.Error("the flush was not cut short")
		}
	})
	write(t, w, data[9000:])
	within(t, "the flush after it", func() {
		if err := w.Hflush(t.Context()); err != nil {
			t.Error(err)
		}
	})
	c.mu.Lock()
	c.before = nil
	c.mu.Unlock()
	c.holds(t, data)
	within(t, "close", func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	sameBytes(t, "stored", c.content("/f"), data)
}

// Two of three datanodes die before anything is acknowledged. Those that take their place get what there is of the block,
// be it nothing, or they could not go on with it.
func TestDatanodesDieBeforeAnythingIsAcknowledged(t *testing.T) {
	c, client := newCluster(t, 9)
	for _, n := range c.nodes[:2] {
		n.set(func() { n.dieAfter = 1 })
	}
	w := create(t, client, "/f")
	data := pattern(100_000)
	write(t, w, data)
	within(t, "close", func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	sameBytes(t, "stored", c.content("/f"), data)
	for _, n := range c.nodes[4:] { // nobody was asked in vain
		n.set(func() {
			if len(n.stages) > 0 {
				t.Errorf("%s was asked for %v", n.uuid, n.stages)
			}
		})
	}
}

// A datanode that acknowledges what it was not sent is not believed.
func TestAcknowledgementOfWhatWasNotSent(t *testing.T) {
	_, client := newCluster(t, 1)
	w := create(t, client, "/f")
	write(t, w, pattern(1000))
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := w.block
	write(t, w, pattern(1000))
	b.cut(false)
	ack := &dtp.Ack{Seqno: 1, Replies: make([]hadooppb.Status, 1)}
	if _, _, err := b.pipe.acknowledge(ack); !errors.Is(err, dtp.ErrProtocol) {
		t.Errorf("got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// The end is acknowledged when the pipeline has been found to be broken: the block is stored all the same, and there is
// nothing to repair.
func TestEndAcknowledgedByABrokenPipeline(t *testing.T) {
	c, client := newCluster(t, 3)
	w := create(t, client, "/f")
	data := pattern(1000)
	write(t, w, data)
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		n.freeze()
	}
	b := w.block
	p := b.filling
	b.filling = nil
	p.Reset()
	p.start = b.sent
	b.enqueue(p, dtp.Header{Last: true})
	if !b.pipe.sendDue() {
		t.Fatal("the end was not sent")
	}
	b.pipe.fault(errors.New("nobody says anything"))
	for _, n := range c.nodes {
		n.thaw()
	}
	<-b.pipe.acks
	if err := b.recover(t.Context()); err != nil || b.at() != blockStored {
		t.Errorf("the block is %v: %v", b.at(), err)
	}
	within(t, "close", func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	sameBytes(t, "stored", c.content("/f"), data)
	if n := c.count("updatePipeline"); n != 0 {
		t.Errorf("%d pipelines were made", n)
	}
}

// A Close that fails leaves the file open; Abort has the namenode close it then too.
func TestAbortAfterAFailedClose(t *testing.T) {
	c, client := newCluster(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := client.Create(ctx, "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, w, pattern(1000))
	cancel()
	if err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	w.Abort()
	w.Abort()
	if n := c.count("recoverLease"); n != 1 {
		t.Errorf("the namenode was asked %d times to close the file", n)
	}
	w = create(t, client, "/g")
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	w.Abort()
	if n := c.count("recoverLease"); n != 1 {
		t.Error("a file that is closed was given up")
	}
}

// Within bounds the opening, not the Writer.
func TestWithin(t *testing.T) {
	c, client := newCluster(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	open := func(life context.Context) (*Writer, error) {
		return client.Create(life, "/f", CreateOptions{Overwrite: true})
	}
	w, err := Within(ctx, open)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	write(t, w, pattern(1000))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/f"), pattern(1000))
	if w, err := Within(ctx, open); w != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	if w, err := Within(ctx, func(life context.Context) (*Writer, error) { // which ends when all is done
		w, err := open(life)
		cancel()
		<-life.Done()
		return w, err
	}); w != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ends meanwhile: %v", err)
	}
}

// lending is a connection that takes memory without copying it, whose far end may go on reading that after Close: what lies in it then has to
// stay as it is.
type lending struct {
	net.Conn
	mu   sync.Mutex
	lent [][]byte
	was  [][]byte // nil until Close
}

func (l *lending) Lend(parts [][]byte) error {
	l.mu.Lock()
	l.lent = append(l.lent, parts...)
	l.mu.Unlock()
	buffers := net.Buffers(slices.Clone(parts))
	_, err := buffers.WriteTo(l.Conn)
	return err
}

func (l *lending) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.was == nil {
		for _, p := range l.lent[max(0, len(l.lent)-3):] { // these are not acknowledged: see below
			l.was = append(l.was, slices.Clone(p))
		}
	}
	return l.Conn.Close()
}

// Memory that was lent to a datanode of this process is not used again when its pipeline breaks off.
func TestWhatWasLentStaysAsItIs(t *testing.T) {
	c, _ := newCluster(t, 3)
	var mu sync.Mutex
	var all []*lending
	client := c.client(Config{BlockSize: 64 << 20, Within: func(datanode string) net.Conn {
		for _, n := range c.nodes {
			if n.uuid != datanode {
				continue
			}
			conn, err := net.Dial("tcp", n.addr)
			if err != nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, &lending{Conn: conn})
			return all[len(all)-1]
		}
		return nil
	}})
	for _, n := range c.nodes {
		n.set(func() { n.mute, n.large = true, true })
	}
	w := create(t, client, "/f")
	data := pattern(256 << 10) // less than the window, and than the system keeps for who does not read
	write(t, w, data)
	first := w.block.nodes[0].GetId().GetDatanodeUuid()
	for _, n := range c.nodes {
		if n.uuid == first {
			n.kill()
		}
	}
	for _, n := range c.nodes { // only now: nothing of it has been acknowledged
		n.set(func() { n.mute = false })
	}
	more := pattern(20 << 20)
	write(t, w, more)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/f"), append(data, more...))
	mu.Lock()
	defer mu.Unlock()
	for _, l := range all {
		l.mu.Lock() // a connection that nobody uses is closed after a while
		defer l.mu.Unlock()
		for i, p := range l.was {
			if !bytes.Equal(p, l.lent[max(0, len(l.lent)-3)+i]) {
				t.Error("memory that was lent when a pipeline broke off has other bytes now")
			}
		}
	}
	if len(all) == 0 || all[0].was == nil {
		t.Error("no pipeline within the process broke off")
	}
}
