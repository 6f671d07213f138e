package dtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func TestRequestsComeBack(t *testing.T) {
	header := &hadooppb.ClientOperationHeaderProto{ClientName: new("c"), BaseHeader: &hadooppb.BaseHeaderProto{
		Block: &hadooppb.ExtendedBlockProto{PoolId: new("BP"), BlockId: new(uint64(1)), GenerationStamp: new(uint64(2))},
	}}
	want := &hadooppb.OpReadBlockProto{Header: header, Offset: new(uint64(3)), Len: new(uint64(4))}
	var b bytes.Buffer
	for range 2 {
		if err := WriteOp(&b, OpReadBlock, want); err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(iotest.OneByteReader(&b))
	for range 2 {
		op, got, err := ReadOp(r)
		if err != nil || op != OpReadBlock || !proto.Equal(got.(proto.Message), want) {
			t.Fatalf("got %v %v, %v", op, got, err)
		}
	}
	if _, _, err := ReadOp(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	for name, hexes := range map[string]string{
		"version":         "001b5100",
		"unknown op":      "001c0100",
		"read metadata":   "001c5200",
		"SASL":            "deadbeef",
		"huge length":     "001c51ffffffff07",
		"endless length":  "001c51ffffffffffffffffff",
		"lacks a field":   "001c5100",
		"not a message":   "001c5102ffff",
		"checksum type 9": "",
	} {
		_, _, err := ReadOp(NewReader(bytes.NewReader(unhex(t, hexes))))
		if hexes != "" && !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, cut := range []string{"00", "001c", "001c51", "001c5105", "001c5105aabb"} {
		if _, _, err := ReadOp(NewReader(bytes.NewReader(unhex(t, cut)))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %s: %v", cut, err)
		}
	}
	for _, p := range []*hadooppb.ChecksumProto{
		{Type: hadooppb.ChecksumTypeProto(9).Enum(), BytesPerChecksum: new(uint32(512))},
		{Type: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(), BytesPerChecksum: new(uint32(0))},
		{Type: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(), BytesPerChecksum: new(uint32(1 << 31))},
	} {
		if _, err := ChecksumOf(p); !errors.Is(err, ErrProtocol) {
			t.Errorf("%v: %v", p, err)
		}
	}
}

func TestPacketsOfAllSizesComeBack(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for _, sum := range []Checksum{DefaultChecksum, {CRC32, 1000}, {Null, 512}} {
		var b bytes.Buffer
		w := NewPacketWriter(&b)
		var want []Header
		sizes := []int{1, 511, 512, 513, DataSize, 200_000, 1 << 20, 2<<20 + 1, 0}
		for i, size := range sizes {
			h := Header{Offset: int64(i) << 33, Seqno: int64(i), DataLen: size, Last: size == 0, Sync: i%2 == 1}
			want = append(want, h)
			if i%3 == 0 {
				builder := NewBuilder(sum, size)
				if n := builder.Append(data); n != size || builder.Room() != 0 {
					t.Fatalf("a builder of %d took %d", size, n)
				}
				b.Write(builder.Finish(h))
			} else if err := w.Write(h, sum.Append(nil, data[:size]), data[:size]); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range []io.Reader{bytes.NewReader(b.Bytes()), iotest.HalfReader(bytes.NewReader(b.Bytes()))} {
			packets := NewPacketReader(NewReader(r))
			for i, h := range want {
				p, err := packets.Next()
				if err != nil || p.Header != h || !bytes.Equal(p.Data, data[:sizes[i]]) {
					t.Fatalf("%v, packet %d: %+v, %v", sum, i, p.Header, err)
				}
				if err := sum.Verify(p.Sums, p.Data); err != nil {
					t.Error(err)
				}
				again, err := NewPacketReader(NewReader(bytes.NewReader(p.Raw))).Next()
				if err != nil || again.Header != h {
					t.Errorf("the raw packet: %+v, %v", again.Header, err)
				}
			}
			if _, err := packets.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %v", err)
			}
		}
	}
}

func TestBadPacketsAreRefused(t *testing.T) {
	good := AppendHeader(nil, Header{Seqno: 1, DataLen: 4}, 4)
	packet := append(good, "sumsdata"...)
	for name, change := range map[string]func([]byte) []byte{
		"PLEN below 4":         func(b []byte) []byte { binary.BigEndian.PutUint32(b, 3); return b },
		"PLEN negative":        func(b []byte) []byte { binary.BigEndian.PutUint32(b, 1<<31); return b },
		"over 16 MiB":          func(b []byte) []byte { binary.BigEndian.PutUint32(b, 16<<20); return b },
		"huge header":          func(b []byte) []byte { binary.BigEndian.PutUint16(b[4:], 0xffff); return b },
		"no header":            func(b []byte) []byte { binary.BigEndian.PutUint16(b[4:], 0); return b },
		"more data than bytes": func(b []byte) []byte { b[6+22] = 9; return b },
		"negative data":        func(b []byte) []byte { b[6+24] = 0xff; return b },
		"last with data":       func(b []byte) []byte { b[6+19] = 1; return b },
		"negative offset":      func(b []byte) []byte { b[6+8] = 0xff; return b },
	} {
		b := change(bytes.Clone(packet))
		if _, err := NewPacketReader(NewReader(bytes.NewReader(b))).Next(); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := 1; n < len(packet); n++ {
		if _, err := NewPacketReader(NewReader(bytes.NewReader(packet[:n]))).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestDamageIsFoundAndPlaced(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 200)
	sums := DefaultChecksum.Append(nil, data)
	if err := DefaultChecksum.Verify(sums, data); err != nil {
		t.Fatal(err)
	}
	data[1030] ^= 4
	if err := DefaultChecksum.Verify(sums, data); !errors.Is(err, ErrChecksum) || !strings.Contains(err.Error(), "1024") {
		t.Errorf("got %v", err)
	}
	if err := DefaultChecksum.Verify(sums[4:], data); !errors.Is(err, ErrProtocol) {
		t.Errorf("a checksum missing: %v", err)
	}
	if got := DefaultChecksum.Update(0, []byte("123456789")); got != 0xe3069283 {
		t.Errorf("check value %08x", got)
	}
}

func TestCombinedSumsAreThoseOfTheWhole(t *testing.T) {
	data := make([]byte, 70_000)
	for i := range data {
		data[i] = byte(i * i)
	}
	for _, c := range []struct {
		sum   Checksum
		table *crc32.Table
	}{{Checksum{CRC32, 512}, crc32.IEEETable}, {Checksum{CRC32C, 512}, castagnoli}} {
		for _, at := range []int{0, 1, 511, 40_000, 70_000} {
			got := c.sum.Combine(c.sum.Update(0, data[:at]), c.sum.Update(0, data[at:]), int64(len(data)-at))
			if want := crc32.Checksum(data, c.table); got != want {
				t.Errorf("%v cut at %d: %08x, want %08x", c.sum.Type, at, got, want)
			}
		}
	}
}

func TestAckBlamesTheLastNodeThatFailed(t *testing.T) {
	const ok, bad = hadooppb.Status_SUCCESS, hadooppb.Status_ERROR
	for _, c := range []struct {
		replies []hadooppb.Status
		want    int
	}{{nil, -1}, {[]hadooppb.Status{ok, ok}, -1}, {[]hadooppb.Status{ok, bad, ok}, 1}, {[]hadooppb.Status{bad, ok, bad}, 2}} {
		ack := Ack{Seqno: 5, Replies: c.replies, DownstreamNanos: 1 << 40}
		var got Ack
		if err := ReadAck(bufio.NewReader(bytes.NewReader(AppendAck(nil, &ack))), &got); err != nil {
			t.Fatal(err)
		}
		if at, _ := got.Blame(); at != c.want || got.DownstreamNanos != 1<<40 {
			t.Errorf("%v: blames %d, want %d", c.replies, at, c.want)
		}
	}
}

func TestAckPrefersFlagsToReplies(t *testing.T) {
	m := &hadooppb.PipelineAckProto{Seqno: new(int64(3)), Reply: []hadooppb.Status{0, 0}, Flag: []uint32{0x20, 0x31}}
	b, err := AppendMessage(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	var got Ack
	if err := ReadAck(bufio.NewReader(bytes.NewReader(b)), &got); err != nil {
		t.Fatal(err)
	}
	if at, status := got.Blame(); at != 1 || status != hadooppb.Status_ERROR {
		t.Errorf("blames %d with %v", at, status)
	}
}
