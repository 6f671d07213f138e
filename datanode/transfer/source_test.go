package transfer

import (
	"bytes"
	"net"
	"testing"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A server without a store of its own, as a namenode has one for small files, reads as a datanode does and does nothing else.
func TestASourceIsOnlyRead(t *testing.T) {
	d := start(t, 1)[0]
	data := pattern(10_000)
	b := block(1, 1, 0)
	mustBegin(t, b, setup{stage: stageCreate}, d).writeAll(0, data, "S")
	b.Length = int64(len(data))
	door := startOne(t, func(c *Config) { c.Store, c.Source = nil, d.store })

	for _, at := range [][2]int64{{0, 10_000}, {0, 1}, {511, 2}, {700, 5000}, {9999, 1}, {10_000, 0}} {
		got, err := dial(t, door).read(b, at[0], at[1])
		check(t, err)
		if want := data[at[0]:][:at[1]]; !bytes.Contains(got, want) { // from a chunk's start
			t.Errorf("%d bytes at %d: %d bytes came", at[1], at[0], len(got))
		}
	}
	for _, kind := range []hadooppb.BlockChecksumTypeProto{hadooppb.BlockChecksumTypeProto_MD5CRC, hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC} {
		o := &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: kind.Enum()}
		if got, want := dial(t, door).checksum(b, o), dial(t, d).checksum(b, o); !bytes.Equal(got.GetBlockChecksum(), want.GetBlockChecksum()) || got.GetBytesPerCrc() != want.GetBytesPerCrc() || got.GetCrcPerBlock() != want.GetCrcPerBlock() {
			t.Errorf("%v is %v, of the datanode %v", kind, got, want)
		}
	}
	_, answer := begin(t, block(2, 1, 0), setup{stage: stageCreate}, door)
	if answer.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED {
		t.Errorf("a write is answered %v", answer)
	}
	for op, m := range map[dtp.Op]dtp.Message{
		dtp.OpTransferBlock:   &hadooppb.OpTransferBlockProto{Header: header(b, "c"), Targets: []*hadooppb.DatanodeInfoProto{d.info}},
		dtp.OpShortCircuitFDs: &hadooppb.OpRequestShortCircuitAccessProto{Header: header(b, "").BaseHeader, MaxVersion: new(uint32(1))},
		dtp.OpReplaceBlock:    &hadooppb.OpReplaceBlockProto{Header: header(b, "").BaseHeader, DelHint: new("x"), Source: d.info},
	} {
		c := dial(t, door)
		check(t, dtp.WriteOp(c, op, m))
		answer, err := dtp.ReadResponse(c.r)
		check(t, err)
		if answer.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED {
			t.Errorf("%v is answered %v", op, answer)
		}
	}
	// Without a right to the block nothing is told of it.
	for _, id := range []metadata.BlockID{1, 77} {
		h := header(block(int64(id), 1, 0), "c")
		h.BaseHeader.Token = tokenFor(grant(5, security.ReadBlock))
		c := dial(t, door)
		check(t, dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: h, Offset: new(uint64(0)), Len: new(uint64(1))}))
		if m, err := dtp.ReadResponse(c.r); err != nil || m.GetStatus() != hadooppb.Status_ERROR_ACCESS_TOKEN {
			t.Errorf("block %d is answered %v, %v", id, m, err)
		}
	}
	var _ net.Conn = dial(t, door) // one that says nothing does not keep the server from ending
}

// A client takes two packets with one call, so that none has to be moved to the front of its buffer half read.
func TestTwoPacketsFitIntoAClientsReader(t *testing.T) {
	packet := dtp.MaxHeaderLen + dtp.DefaultChecksum.SumsLen(packetData) + packetData
	if size := dtp.NewReader(nil).Size(); size < 2*packet {
		t.Errorf("a buffer of %d bytes for packets of %d", size, packet)
	}
}
