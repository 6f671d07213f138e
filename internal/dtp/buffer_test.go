package dtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
)

func TestPacketsComeOutOfABufferAsTheyWereSent(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	for round := range 200 {
		var wire []byte
		var want []Header
		for i := range 1 + r.IntN(12) {
			size := []int{0, 1, 600, 5000, 70_000, 300_000}[r.IntN(6)]
			h := Header{Offset: r.Int64N(1 << 40), Seqno: int64(i), DataLen: size, Sync: r.IntN(3) == 0}
			sums := DefaultChecksum.Append(nil, data[:size])
			wire = append(append(AppendHeader(wire, h, len(sums)), sums...), data[:size]...)
			want = append(want, h)
		}
		b := NewPacketBuffer(make([]byte, 64<<10))
		var got []Packet
		var forwarded []byte
		sent, seen := 0, 0
		release := func() {
			for _, p := range got { // not before: what is given out stays as it is until then
				if p.Header != want[seen] || !bytes.Equal(p.Data, data[:p.DataLen]) || DefaultChecksum.Verify(p.Sums, p.Data) != nil {
					t.Fatalf("round %d, packet %d: %+v, want %+v", round, seen, p.Header, want[seen])
				}
				seen++
			}
			got = got[:0]
			if r.IntN(4) == 0 && b.Waiting() <= 32<<10 {
				b.Resize(make([]byte, 32<<10+r.IntN(64<<10)))
			} else {
				b.Release()
			}
		}
		for seen+len(got) < len(want) {
			mark := b.Mark()
			p, ok, err := b.Next()
			if err != nil {
				t.Fatal(err)
			}
			forwarded = append(forwarded, b.Since(mark)...)
			switch {
			case ok:
				got = append(got, p)
			case b.Full() || len(got) > 0 && r.IntN(4) == 0:
				release()
			default:
				free := b.Free()
				if len(free) == 0 {
					t.Fatal("neither full nor free")
				}
				n := copy(free[:1+r.IntN(len(free))], wire[sent:])
				b.Filled(n)
				sent += n
			}
		}
		release()
		if !bytes.Equal(forwarded, wire) || b.Waiting() != 0 {
			t.Fatalf("round %d: %d bytes are passed on of %d, %d wait", round, len(forwarded), len(wire), b.Waiting())
		}
	}
}

func TestABufferDoesNotBelieveAnnouncedSizes(t *testing.T) {
	b := NewPacketBuffer(make([]byte, 1<<10))
	head := binary.BigEndian.AppendUint32(nil, 15<<20)
	b.Filled(copy(b.Free(), binary.BigEndian.AppendUint16(head, 25)))
	for filled := 6; filled < 1<<20; {
		if _, ok, err := b.Next(); ok || err != nil {
			t.Fatal(ok, err)
		}
		free := b.Free()
		if len(free) > max(1<<10, filled) {
			t.Fatalf("%d bytes of memory more after %d have come", len(free), filled)
		}
		b.Filled(len(free))
		filled += len(free)
	}
	b = NewPacketBuffer(make([]byte, 1<<10))
	b.Filled(copy(b.Free(), "\x7f\xff\xff\xff\x00\x19"))
	if _, _, err := b.Next(); !errors.Is(err, ErrProtocol) {
		t.Errorf("2 GiB: %v", err)
	}
}
