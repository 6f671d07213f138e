package transfer

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// otherKinds are what writers may want beside the usual checksums.
var otherKinds = []dtp.Checksum{
	{Type: dtp.CRC32, BytesPer: 512},
	{Type: dtp.CRC32, BytesPer: 4096},
	{Type: dtp.CRC32, BytesPer: 1000},
	{Type: dtp.CRC32C, BytesPer: 1},
	{Type: dtp.CRC32C, BytesPer: 100},
	{Type: dtp.CRC32C, BytesPer: 1536},
	{Type: dtp.CRC32C, BytesPer: 2 << 20},
	{Type: dtp.Null, BytesPer: 512},
	{Type: dtp.Null, BytesPer: 7},
}

// sendBy writes data from off as a Hadoop client does: packets of whole chunks, but that the first one ends a chunk that was begun.
func (c *client) sendBy(sum dtp.Checksum, off int64, data []byte, want string) {
	c.t.Helper()
	from, end := c.seqno, off+int64(len(data))
	for len(data) > 0 {
		n := min(len(data), max(30_000/sum.BytesPer, 1)*sum.BytesPer)
		if inside := int(off % int64(sum.BytesPer)); inside > 0 {
			n = min(n, sum.BytesPer-inside)
		}
		check(c.t, dtp.NewPacketWriter(c).Write(dtp.Header{Offset: off, Seqno: c.seqno}, sum.Append(nil, data[:n]), data[:n]))
		c.seqno++
		off, data = off+int64(n), data[n:]
	}
	c.last(end)
	for s := from; s < c.seqno; s++ {
		c.wantAck(s, want)
	}
}

// wantSums holds the checksums that a datanode has of a block against their definition.
func (d *node) wantSums(b metadata.Block, wanted dtp.Checksum, data []byte) {
	d.t.Helper()
	for _, n := range []int{0, 1, 511, 1000, 4096, len(data) - 3, len(data)} {
		b.Length = int64(n)
		m := dial(d.t, d).checksum(b, nil)
		want := md5.Sum(wanted.Append(nil, data[:n]))
		if !bytes.Equal(m.GetBlockChecksum(), want[:]) {
			d.t.Errorf("%v: the MD5 of the checksums of %d bytes is %x, want %x", wanted, n, m.GetBlockChecksum(), want)
		}
		per := uint64(wanted.Chunks(len(data)))
		if wanted.Type == dtp.Null {
			per = 0
		}
		if m.GetBytesPerCrc() != uint32(wanted.BytesPer) || m.GetCrcType() != hadooppb.ChecksumTypeProto(wanted.Type) || m.GetCrcPerBlock() != per {
			d.t.Errorf("%v: the checksum is of %d bytes each, %v, %d of them", wanted, m.GetBytesPerCrc(), m.GetCrcType(), m.GetCrcPerBlock())
		}
		if wanted.Type == dtp.Null {
			continue
		}
		kind := hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC.Enum()
		m = dial(d.t, d).checksum(b, &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: kind})
		if want := binary.BigEndian.AppendUint32(nil, wanted.Update(0, data[:n])); !bytes.Equal(m.GetBlockChecksum(), want) {
			d.t.Errorf("%v: the combined checksum of %d bytes is %x, want %x", wanted, n, m.GetBlockChecksum(), want)
		}
	}
}

// A block keeps the checksums that its writer wanted: through a pipeline, an append that comes with others, and copies.
func TestBlocksKeepTheirChecksums(t *testing.T) {
	nodes := start(t, 3)
	data := pattern(70_123)
	for i, sum := range append(otherKinds, dtp.DefaultChecksum) {
		b := block(int64(i+1), 1, 0)
		mustBegin(t, b, setup{stage: stageCreate, sum: sum}, nodes[:2]...).sendBy(sum, 0, data[:40_321], "S S")
		// Whoever appends may want something else.
		with := []dtp.Checksum{dtp.DefaultChecksum, sum, {Type: dtp.CRC32, BytesPer: 768}}[i%3]
		mustBegin(t, b, setup{stage: stageAppend, gen: 2, min: 40_321, sum: with}, nodes[:2]...).sendBy(with, 40_321, data[40_321:], "S S")
		b.Generation = 2
		check(t, nodes[0].srv.Replicate(context.Background(), pool, b, nodes[2].info, hadooppb.StorageTypeProto_DISK, 0, nil))
		for _, d := range nodes {
			c := dial(t, d)
			got, err := c.read(b, 0, int64(len(data)))
			check(t, err)
			if !bytes.Equal(got, data) {
				t.Fatalf("%v: read wrong", sum)
			}
			if want := (dtp.Checksum{Type: max(1, sum.Type), BytesPer: 512}); sum.Type == dtp.Null && c.came != dtp.DefaultChecksum || sum.Type != dtp.Null && c.came != want {
				t.Errorf("%v comes as %v", sum, c.came)
			}
			d.wantSums(b, sum, data)
			check(t, d.store.Verify(t.Context(), b.ID, datanode.VerifyOptions{}))
		}
		// A client repairs its pipeline with a datanode that has none of it.
		open := block(int64(i+100), 1, 0)
		w := mustBegin(t, open, setup{stage: stageCreate, sum: sum}, nodes[0])
		first := data[:min(len(data), 3*sum.BytesPer)]
		check(t, dtp.NewPacketWriter(w).Write(dtp.Header{}, sum.Append(nil, first), first))
		w.wantAck(0, "S")
		c := dial(t, nodes[0])
		check(t, dtp.WriteOp(c, dtp.OpTransferBlock, &hadooppb.OpTransferBlockProto{Header: header(open, "c"), Targets: []*hadooppb.DatanodeInfoProto{nodes[2].info}}))
		m, err := dtp.ReadResponse(c.r)
		check(t, err)
		check(t, dtp.CheckResponse(dtp.OpTransferBlock, m))
		if rd, err := nodes[2].store.Open(open); err != nil || rd.Checksum() != kept(sum) || rd.Replica().Visible != int64(len(first)) {
			t.Errorf("%v: a copy of what is open: %v", sum, err)
		} else {
			rd.Close()
		}
		w.Close()
	}
}

// Whatever a packet comes with is compared with it, before anything of it is stored.
func TestOtherChecksumsAreCompared(t *testing.T) {
	d := startOne(t)
	data := pattern(9000)
	for i, sum := range otherKinds {
		if sum.Type == dtp.Null {
			continue
		}
		b := block(int64(i+1), 1, 0)
		c := mustBegin(t, b, setup{stage: stageCreate, sum: sum}, d)
		sums := sum.Append(nil, data)
		sums[len(sums)-1] ^= 1
		check(t, dtp.NewPacketWriter(c).Write(dtp.Header{}, sums, data))
		c.wantAck(0, "ERROR_CHECKSUM")
		if r, ok := d.store.Replica(b.ID); ok && r.Block.Length > 0 {
			t.Errorf("%v: %d bytes are stored", sum, r.Block.Length)
		}
	}
	for _, bad := range []*hadooppb.ChecksumProto{
		{Type: hadooppb.ChecksumTypeProto(3).Enum(), BytesPerChecksum: new(uint32(512))},
		{Type: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32.Enum(), BytesPerChecksum: new(uint32(0))},
		{Type: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32.Enum(), BytesPerChecksum: new(uint32(1 << 30))},
	} {
		for _, wanted := range []bool{false, true} {
			op := &hadooppb.OpWriteBlockProto{
				Header: header(block(99, 1, 0), "c"), Stage: stageCreate.Enum(), PipelineSize: new(uint32(1)), MinBytesRcvd: new(uint64(0)), MaxBytesRcvd: new(uint64(0)),
				LatestGenerationStamp: new(uint64(1)), RequestedChecksum: dtp.DefaultChecksum.Proto(),
			}
			if wanted {
				op.WantedChecksum = bad
			} else {
				op.RequestedChecksum = bad
			}
			c := dial(t, d)
			check(t, dtp.WriteOp(c, dtp.OpWriteBlock, op))
			if m, err := dtp.ReadResponse(c.r); err == nil && dtp.CheckResponse(dtp.OpWriteBlock, m) == nil {
				t.Errorf("%v is taken", bad)
			}
		}
	}
}

// A block without checksums is checked all the same once a datanode has it.
func TestDamageIsFoundWhereNoChecksumIsWanted(t *testing.T) {
	nodes := start(t, 2)
	data := pattern(100_000)
	b := block(1, 1, 0)
	null := dtp.Checksum{Type: dtp.Null, BytesPer: 512}
	mustBegin(t, b, setup{stage: stageCreate, sum: null}, nodes[0]).sendBy(null, 0, data, "S")
	flip(t, nodes[0].dir+"/blocks/00/00/blk_1", 77_777)
	if _, err := dial(t, nodes[0]).read(b, 0, int64(len(data))); !errors.Is(err, dtp.ErrChecksum) {
		t.Errorf("a reader hears %v", err)
	}
	if err := nodes[0].srv.Replicate(context.Background(), pool, b, nodes[1].info, hadooppb.StorageTypeProto_DISK, 0, nil); !errors.Is(err, dtp.ErrChecksum) {
		t.Errorf("a copy: %v", err)
	}
	if err := nodes[0].store.Verify(t.Context(), b.ID, datanode.VerifyOptions{}); !errors.Is(err, metadata.ErrCorrupt) {
		t.Errorf("the scrubber: %v", err)
	}
}

// The checksum of a group is of what its writer wanted, also of internal blocks that are lost, and of those that were made anew.
func TestGroupsKeepTheirChecksums(t *testing.T) {
	for _, sum := range []dtp.Checksum{{Type: dtp.CRC32, BytesPer: 512}, {Type: dtp.CRC32, BytesPer: 1 << 20}, {Type: dtp.CRC32C, BytesPer: 128}} {
		a := newArrayOf(t, "RS-3-2-1024k", 0, 4<<20+1234, sum)
		for _, kind := range []hadooppb.BlockChecksumTypeProto{hadooppb.BlockChecksumTypeProto_MD5CRC, hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC} {
			for _, n := range []int{0, 700, 1<<20 + 700, 4<<20 + 1234} {
				for _, units := range [][]int{{0, 1, 2, 3, 4}, {4, 2, 3}} {
					m, err := a.groupChecksum(t, a.nodes[4], n, units, kind)
					check(t, err)
					if want := a.model(n, kind); n > 0 && !bytes.Equal(m.GetBlockChecksum(), want) {
						t.Errorf("%v, %v of %d bytes, with %v: %x, want %x", sum, kind, n, units, m.GetBlockChecksum(), want)
					}
					if m.GetBytesPerCrc() != uint32(sum.BytesPer) || m.GetCrcPerBlock() != uint64(sum.Chunks(len(a.units[0]))) || m.GetCrcType() != hadooppb.ChecksumTypeProto(sum.Type) {
						t.Errorf("%v: answer %v", sum, m)
					}
				}
			}
		}
		wanted, err := a.nodes[4].srv.Wanted(t.Context(), pool, a.unit(3), a.nodes[3].info)
		check(t, err)
		if wanted != kept(sum) {
			t.Errorf("%v is said to be %v", sum, wanted)
		}
		extra := startOne(t)
		w, err := a.nodes[4].srv.Place(t.Context(), pool, a.unit(0), extra.info, hadooppb.StorageTypeProto_DISK, wanted, false)
		check(t, err)
		in, err := a.nodes[4].srv.Fetch(t.Context(), pool, a.unit(0), a.nodes[0].info, 0, int64(len(a.units[0])))
		check(t, err)
		_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, make([]byte, 256<<10))
		check(t, errors.Join(err, w.Finish(), w.Close(), in.Close()))
		extra.wantSums(a.unit(0), sum, a.units[0])
	}
	// One of another kind among them: no checksum is right.
	a := newArray(t, "RS-3-2-1024k", 0, 3<<20)
	check(t, a.nodes[1].store.Delete(a.unit(1)))
	a.sum = dtp.Checksum{Type: dtp.CRC32, BytesPer: 512}
	a.put(t, 1)
	if _, err := a.groupChecksum(t, a.nodes[4], 3<<20, []int{0, 1, 2, 3, 4}, hadooppb.BlockChecksumTypeProto_MD5CRC); err == nil {
		t.Error("a checksum of different kinds")
	}
}

// Hadoop's client announces checksums, and sends none with the only replica of a lazily persisted file.
func TestPacketsThatLackTheirChecksums(t *testing.T) {
	nodes := start(t, 2)
	data := pattern(70_123)
	for i, sum := range []dtp.Checksum{dtp.DefaultChecksum, {Type: dtp.CRC32, BytesPer: 1000}} {
		b := block(int64(i+1), 1, 0)
		c := mustBegin(t, b, setup{stage: stageCreate, sum: sum}, nodes[0])
		for off := 0; off < len(data); off += 30_000 {
			check(t, dtp.NewPacketWriter(c).Write(dtp.Header{Offset: int64(off), Seqno: c.seqno}, nil, data[off:min(off+30_000, len(data))]))
			c.wantAck(c.seqno, "S")
			c.seqno++
		}
		c.last(int64(len(data)))
		c.wantAck(c.seqno-1, "S")
		got, err := dial(t, nodes[0]).read(b, 0, int64(len(data)))
		check(t, err)
		if !bytes.Equal(got, data) {
			t.Fatal("read wrong")
		}
		nodes[0].wantSums(b, sum, data)
		check(t, nodes[0].store.Verify(t.Context(), b.ID, datanode.VerifyOptions{}))
	}
	// What goes on to another datanode has them.
	c := mustBegin(t, block(9, 1, 0), setup{stage: stageCreate, sum: dtp.DefaultChecksum}, nodes...)
	check(t, dtp.NewPacketWriter(c).Write(dtp.Header{}, nil, data[:1000]))
	if got := c.ack(0); !strings.HasPrefix(got, "ERROR") {
		t.Fatal(got)
	}
}
