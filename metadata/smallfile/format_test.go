package smallfile

import (
	"bytes"
	"encoding/hex"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
)

var update = flag.Bool("update", false, "write testdata anew")

// The format on disk does not change unnoticed.
func TestGoldenSegment(t *testing.T) {
	disk := newDisk()
	s := open(t, Config{Disk: disk})
	s.salt = func() uint64 { return 0x1122334455667788 }
	for _, id := range []metadata.BlockID{firstID + 1, firstID, firstID + 7} {
		s.Put(id, bodyOf(id, 40))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got := hex.Dump(disk.files["/bodies/0000000000000001.bodies"].content)
	const name = "testdata/segment.hex"
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the format has changed: go test -update writes %s anew", name)
	}
}

// The table finds what looking at every segment finds.
func TestTableAgreesWithModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9))
		var all []*segment
		for i := range r.IntN(40) {
			from := metadata.BlockID(1 + r.IntN(200))
			var entries []entry
			for range r.IntN(20) {
				entries = append(entries, entry{id: from + metadata.BlockID(r.IntN(1+r.IntN(100))), at: recordsBegin, length: uint32(1 + r.IntN(MaxBody)), lost: r.IntN(9) == 0})
			}
			all = append(all, &segment{seq: uint64(i), index: newIndex(slices.Clone(entries))})
		}
		table := newTable(all)
		for id := metadata.BlockID(0); id < 320; id++ {
			var want, got []uint64
			for _, g := range all {
				if slices.Contains(g.ids, id) {
					want = append(want, g.seq)
				}
			}
			for _, p := range table.places(id, nil) {
				if p.entry.id != id {
					t.Fatalf("%+v for %d", p.entry, id)
				}
				got = append(got, p.seq)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, id %d: %v, want %v", seed, id, got, want)
			}
		}
	}
}

// FuzzSegment reads bytes as a segment without an index. What is found in it can be written, and is the same then.
func FuzzSegment(f *testing.F) {
	whole := encodeHeader(7)
	for id := firstID; id < firstID+4; id++ {
		p := pending{id: id, body: bodyOf(id, 50)}
		if id == firstID+1 {
			p = pending{id: id, lost: 9}
		}
		whole = appendRecord(whole, 7, uint32(len(whole)), &p)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Add(append(append(slices.Clone(whole[:recordsBegin+5]), 1), whole[recordsBegin+5:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		salt, ok := decodeHeader(b)
		if !ok {
			return
		}
		entries, unreadable := parse(b, salt)
		rest := max(int64(len(b))-recordsBegin, 0)
		for _, e := range entries {
			if e.id <= 0 || e.length == 0 || e.length > MaxBody || int64(e.at)+recordHeader > int64(len(b)) {
				t.Fatalf("%+v", e)
			}
			body, err := bodyAt(b[e.at:], salt, e.at, e.id)
			if e.lost != (err != nil) {
				t.Fatalf("%+v: %v", e, err)
			}
			if !e.lost {
				p := pending{id: e.id, body: body}
				if again := appendRecord(nil, salt, e.at, &p); !bytes.Equal(again, b[e.at:int(e.at)+len(again)]) {
					t.Fatalf("%+v is written otherwise", e)
				}
				rest -= e.size()
			}
		}
		if unreadable > rest || unreadable < 0 {
			t.Fatalf("%d bytes are unreadable, %d are no bodies", unreadable, rest)
		}
		x := newIndex(entries)
		footer := x.encodeFooter(salt, int64(len(b)))
		back, s, ok := decodeFooter(footer, int64(len(b)), x.len())
		if !ok || s != salt || !slices.Equal(back.ids, x.ids) || !slices.Equal(back.at, x.at) || !slices.Equal(back.size, x.size) {
			t.Fatal("an index cannot be read")
		}
	})
}

// FuzzFooter reads bytes as the end of a segment.
func FuzzFooter(f *testing.F) {
	x := newIndex([]entry{{id: 3, at: 100, length: 7}, {id: 1, at: 50, length: 20, lost: true}})
	good := x.encodeFooter(5, 200)
	f.Add(good)
	f.Add(good[:40])
	f.Fuzz(func(t *testing.T, b []byte) {
		const before = 200
		trailer := b[max(len(b)-trailerSize, 0):]
		start, n, ok := decodeTrailer(trailer, before+int64(len(b)))
		if !ok || start < before {
			return
		}
		footer := b[start-before:]
		x, salt, ok := decodeFooter(footer, start, n)
		if !ok {
			return
		}
		if again := x.encodeFooter(salt, start); !bytes.Equal(again, footer) {
			t.Fatal("an index is written otherwise")
		}
		for i := range x.len() {
			if e := x.entry(i); e.id <= 0 || e.length == 0 || e.length > MaxBody || int64(e.at) >= start {
				t.Fatalf("%+v", e)
			}
		}
	})
}

// What a client stores is never taken for a record, not even where the segment around it is damaged.
func TestBodiesAreNoRecords(t *testing.T) {
	forged := appendRecord(nil, 7, 5000, &pending{id: 77, body: []byte("forged")})
	whole := encodeHeader(8)
	whole = appendRecord(whole, 8, uint32(len(whole)), &pending{id: 5, body: bytes.Repeat(forged, 100)})
	whole[recordsBegin+3] ^= 1
	entries, unreadable := parse(whole, 8)
	if len(entries) != 0 || unreadable != int64(len(whole)-recordsBegin) {
		t.Fatal(entries, unreadable)
	}
	if strings.Count(string(whole), "forged") != 100 {
		t.Fatal("nothing was tried")
	}
}
