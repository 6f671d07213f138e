package dtp

import (
	"bufio"
	"bytes"
	"slices"
	"testing"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The parsers written by hand must agree with the generated ones wherever they accept.

func FuzzPacketHeader(f *testing.F) {
	f.Add(AppendHeader(nil, Header{Offset: 65024, Seqno: 1, DataLen: 512}, 4)[6:])
	f.Add(AppendHeader(nil, Header{Seqno: -1, Sync: true}, 0)[6:])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		var want hadooppb.PacketHeaderProto
		if err := want.UnmarshalVT(b); err != nil {
			t.Fatalf("accepted what the generated parser refuses: %v", err)
		}
		if h.Offset != want.GetOffsetInBlock() || h.Seqno != want.GetSeqno() || h.DataLen != int(want.GetDataLen()) ||
			h.Last != want.GetLastPacketInBlock() || h.Sync != want.GetSyncBlock() {
			t.Errorf("got %+v, want %v", h, &want)
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add(AppendAck(nil, &Ack{Seqno: 7, Replies: make([]hadooppb.Status, 3), DownstreamNanos: 9})[1:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var a Ack
		if err := a.parse(b); err != nil {
			return
		}
		var want hadooppb.PipelineAckProto
		if err := want.UnmarshalVT(b); err != nil {
			t.Fatalf("accepted what the generated parser refuses: %v", err)
		}
		replies := slices.Clone(want.GetReply())
		for i, flag := range want.GetFlag() {
			replies[i] = hadooppb.Status(flag & 0xf)
		}
		if a.Seqno != want.GetSeqno() || a.DownstreamNanos != want.GetDownstreamAckTimeNanos() || !slices.Equal(a.Replies, replies) {
			t.Errorf("got %+v, want %v", a, &want)
		}
	})
}

// FuzzPackets reads whatever comes. Memory may not grow beyond twice what has arrived.
func FuzzPackets(f *testing.F) {
	b := NewBuilder(DefaultChecksum, 1000)
	b.Append(make([]byte, 1000))
	f.Add(b.Finish(Header{}))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0, 25, 1, 2, 3})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewPacketReader(bufio.NewReaderSize(bytes.NewReader(stream), 512))
		for {
			p, err := r.Next()
			if most := max(2*len(stream), 256<<10); cap(r.own) > most {
				t.Fatalf("%d bytes of memory for a stream of %d", cap(r.own), len(stream))
			}
			if err != nil {
				break
			}
			if p.DataLen != len(p.Data) {
				t.Fatalf("%d bytes of data, the header says %d", len(p.Data), p.DataLen)
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte{0, 28, 81, 0})
	f.Add([]byte{0, 28, 80, 0xff, 0xff, 0x3f})
	f.Fuzz(func(_ *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		for {
			if _, _, err := ReadOp(r); err != nil {
				return
			}
		}
	})
}
