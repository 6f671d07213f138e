package journal

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func golden(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if want = strings.Join(strings.Fields(want), ""); hex.EncodeToString(got) != want {
		t.Errorf("%s: the format has changed, so raftstore's formatVersion has to:\n got %x\nwant %s", what, got, want)
	}
}

func TestFormatIsWhatItWas(t *testing.T) {
	s := salt{1, 2, 3, 4, 5, 6, 7, 8}
	golden(t, "header", header{sequence: 5, salt: s}.encode(), `686f707353454732 0500000000000000 0102030405060708 5546f8e8`)
	golden(t, "entry", appendEntry(nil, s, 3, 41, &raft.Log{
		Index: 42, Term: 7, Type: raft.LogConfiguration, Extensions: []byte("ext"), Data: []byte("data"), AppendedAt: time.Unix(1, 2),
	}), `0102030405060708 2a00000000000000 0700000000000000 2900000000000000 02ca9a3b00000000
		03000000 03000000 04000000 05 000000 7854eabf c5a8f2e2 657874 64617461`)
	record := state{
		sequence: 1, term: 2, voteTerm: 3, candidate: []byte("c:1"), acked: 4, ackedTerm: 5, cut: 6, epoch: 7,
	}.encode()
	if len(record) != recordBytes {
		t.Fatalf("a record of %d bytes", len(record))
	}
	golden(t, "state", bytes.TrimRight(record, "\x00"), `686f707353544132 0100000000000000 0200000000000000 0300000000000000 0400000000000000
		0500000000000000 0600000000000000 07000000 03 633a31 92f37ce7`)
}

// FuzzSegment reads anything as a segment: no panic, and no entry whose checksums do not match.
func FuzzSegment(f *testing.F) {
	s := salt{1, 2, 3, 4, 5, 6, 7, 8}
	var sound []byte
	for i := range uint64(5) {
		sound = appendEntry(sound, s, uint32(i/2), i, &raft.Log{Index: i + 1, Term: 1, Data: bytes.Repeat([]byte("x"), int(i)*30)})
	}
	f.Add(sound, uint32(2), uint64(3), uint16(0), byte(0))
	f.Add(sound, uint32(2), uint64(5), uint16(70), byte(1))
	f.Add(bytes.Repeat(sound, 2), uint32(9), uint64(0), uint16(200), byte(8))
	f.Fuzz(func(t *testing.T, raw []byte, epoch uint32, cut uint64, at uint16, flip byte) {
		decodeHeader(raw, 1)
		raw = append(make([]byte, entriesBegin), raw...)
		if at := entriesBegin + int(at); at < len(raw) {
			raw[at] ^= flip
		}
		var last uint64
		v := survey{state: state{epoch: epoch, cut: cut}, visit: func(e *raft.Log, where span) {
			if e.Index <= last {
				t.Fatalf("entry %d follows entry %d", e.Index, last)
			}
			last = e.Index
			if got, ok := decodeEnvelope(raw[where.at:][:where.size], s); !ok || got.index != e.Index || got.size() != int(where.size) {
				t.Fatalf("entry %d is not at %v", e.Index, where)
			}
		}}
		v.segment(raw, header{sequence: 1, salt: s}, nil)
		if last > v.last {
			t.Fatalf("the last entry is %d, the survey says %d", last, v.last)
		}
		for _, g := range v.gaps {
			if g.from > g.to || g.damage == nil {
				t.Fatalf("%+v", g)
			}
		}
		newestState(raw[entriesBegin:])
	})
}
