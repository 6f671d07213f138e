package dfs

import (
	"context"
	"errors"
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
