package transfer

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// sendWhole sends a block behind its request on c and returns the answer.
func (c *client) sendWhole(b metadata.Block, data []byte, announced int, damage bool, behind ...*node) *hadooppb.BlockOpResponseProto {
	c.t.Helper()
	b.Length = int64(announced)
	op := &hadooppb.OpWriteBlockProto{
		Header: header(b, "DFSClient_NONMAPREDUCE_1"), Stage: stageCreate.Enum(), PipelineSize: new(uint32(1 + len(behind))),
		MinBytesRcvd: new(uint64), MaxBytesRcvd: new(uint64(announced)), LatestGenerationStamp: new(uint64),
		RequestedChecksum: dtp.DefaultChecksum.Proto(),
	}
	for _, d := range behind {
		op.Targets = append(op.Targets, d.info)
	}
	var message bytes.Buffer
	check(c.t, dtp.WriteOp(&message, dtp.OpWriteBlock, op))
	sums := dtp.DefaultChecksum.Append(nil, data)
	if damage {
		sums[0] ^= 1
	}
	packets := dtp.NewPacketWriter(&message)
	check(c.t, packets.Write(dtp.Header{}, sums, data))
	check(c.t, packets.Write(dtp.Header{Offset: int64(len(data)), Seqno: 1, Last: true}, nil, nil))
	_, err := c.Write(message.Bytes())
	check(c.t, err)
	m, err := dtp.ReadResponse(c.r)
	check(c.t, err)
	return m
}

func (c *client) wantStored(m *hadooppb.BlockOpResponseProto, acks string) {
	c.t.Helper()
	check(c.t, dtp.CheckResponse(dtp.OpWriteBlock, m))
	c.wantAck(0, acks)
	c.wantAck(1, acks)
}

func (d *node) idleMirrors() int {
	d.srv.mirrors.mu.Lock()
	defer d.srv.mirrors.mu.Unlock()
	n := 0
	for _, list := range d.srv.mirrors.idle {
		n += len(list)
	}
	return n
}

func (d *node) wantNone(id metadata.BlockID) {
	d.t.Helper()
	d.await("nothing of a block that was refused is left", func() bool { _, ok := d.store.Replica(id); return !ok })
}

func TestSmallBlocksFollowTheirRequests(t *testing.T) {
	var nodes []*node
	for range 3 { // that keep connections for longer than a busy machine needs
		nodes = append(nodes, startOne(t, func(c *Config) { c.KeepAlive = time.Minute }))
	}
	c := dial(t, nodes[0])
	for i, size := range []int{1, 511, 512, 4096, 5000, 32 << 10, 64 << 10} {
		b, data := block(int64(i+1), 1001, 0), pattern(size)
		c.wantStored(c.sendWhole(b, data, size, false, nodes[1:]...), "S S S")
		for _, d := range nodes {
			d.wantContent(b, data)
		}
	}
	for i, want := range []int{1, 1, 0} {
		nodes[i].await(fmt.Sprintf("datanode %d keeps %d connections to the next one", i, want), func() bool { return nodes[i].idleMirrors() == want })
	}
}

func TestSmallBlockThatCannotBeStoredEverywhereIsStoredNowhere(t *testing.T) {
	data := pattern(4096)
	bad := func(d *node) string { return dtp.TransferAddr(d.info.GetId(), false) }

	t.Run("unreachable datanode", func(t *testing.T) {
		nodes := start(t, 3)
		nodes[2].kill()
		m := dial(t, nodes[0]).sendWhole(block(7, 1001, 0), data, 4096, false, nodes[1:]...)
		if m.GetStatus() != hadooppb.Status_ERROR || m.GetFirstBadLink() != bad(nodes[2]) {
			t.Errorf("answer %v", m)
		}
		nodes[0].wantNone(7)
		nodes[1].wantNone(7)
	})
	t.Run("last datanode has the block already", func(t *testing.T) {
		nodes := start(t, 3)
		dial(t, nodes[2]).sendWhole(block(7, 1001, 0), pattern(10), 10, false)
		m := dial(t, nodes[0]).sendWhole(block(7, 1001, 0), data, 4096, false, nodes[1:]...)
		if m.GetStatus() != hadooppb.Status_ERROR || m.GetFirstBadLink() != bad(nodes[2]) {
			t.Errorf("answer %v", m)
		}
		nodes[0].wantNone(7)
		nodes[1].wantNone(7)
		nodes[2].wantContent(block(7, 1001, 0), pattern(10))
	})
	t.Run("damaged data", func(t *testing.T) {
		nodes := start(t, 2)
		if m := dial(t, nodes[0]).sendWhole(block(7, 1001, 0), data, 4096, true, nodes[1:]...); m.GetStatus() != hadooppb.Status_ERROR_CHECKSUM {
			t.Errorf("answer %v", m)
		}
		nodes[0].wantNone(7)
	})
	t.Run("other length than announced", func(t *testing.T) {
		nodes := start(t, 2)
		if m := dial(t, nodes[0]).sendWhole(block(7, 1001, 0), data, 4000, false, nodes[1:]...); m.GetStatus() != hadooppb.Status_ERROR {
			t.Errorf("answer %v", m)
		}
		nodes[0].wantNone(7)
		nodes[1].wantNone(7)
	})
}

// The next datanode closes a connection that is kept for it; the block that finds out goes through a new one.
func TestKeptConnectionThatWasClosedIsReplaced(t *testing.T) {
	var nodes []*node
	for range 3 {
		nodes = append(nodes, startOne(t, func(c *Config) { c.KeepAlive = 50 * time.Millisecond }))
	}
	data := pattern(4096)
	stale := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); nodes[1].srv.Active()+nodes[2].srv.Active() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("an idle connection stays open")
			}
		}
		nodes[0].await("there are connections that were kept too long", func() bool { return nodes[0].idleMirrors() == 1 && nodes[1].idleMirrors() == 1 })
	}
	for _, d := range nodes {
		d.srv.mirrors.keep = time.Hour // longer than the others wait
	}
	mustBegin(t, block(1, 1001, 0), setup{stage: stageCreate}, nodes...).writeAll(0, data, "S S S")
	stale()
	c := dial(t, nodes[0])
	c.wantStored(c.sendWhole(block(2, 1001, 0), data, 4096, false, nodes[1:]...), "S S S")
	stale()
	mustBegin(t, block(3, 1001, 0), setup{stage: stageCreate}, nodes...).writeAll(0, data, "S S S")
	for id := range int64(3) {
		for _, d := range nodes {
			d.wantContent(block(id+1, 1001, 0), data)
		}
	}
}
