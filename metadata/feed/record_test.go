package feed

import (
	"bytes"
	"encoding/hex"
	"flag"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
)

var update = flag.Bool("update", false, "write testdata anew")

// The format on disk does not change unnoticed.
func TestGoldenSegment(t *testing.T) {
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	h := newHistory(11)
	h.feed(l, 1, 40)
	if err := l.Sync(45); err != nil {
		t.Fatal(err)
	}
	l.Close()
	var got strings.Builder
	for _, f := range disk.files {
		d := hex.Dumper(&got)
		d.Write(f.content)
		d.Close()
	}
	const name = "testdata/segment.hex"
	if *update {
		if err := os.WriteFile(name, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the format has changed: go test -update writes %s anew", name)
	}
}

func FuzzRecord(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for i := range uint64(20) {
		payload, _ := payloadAt(appendRecord(nil, i+1, 7, some(r, i+1)))
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var events []metadata.Event
		rd := &reader{b: payload}
		h, _ := readHead(rd)
		if decode(payload, func(e metadata.Event) bool {
			events = append(events, e)
			return len(events) < 10_000
		}) != nil || len(events) == 0 {
			return
		}
		// What can be read can be written, and is the same then.
		again, size := payloadAt(appendRecord(nil, h.index, h.logTime, events))
		if size == 0 {
			t.Fatal("what was written cannot be read")
		}
		var back []metadata.Event
		if err := decode(again, func(e metadata.Event) bool { back = append(back, e); return true }); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back, events) {
			t.Fatalf("%+v\nwant %+v", back, events)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add((&header{base: 7, began: 5, former: 3, formerSize: 100}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err == nil && !bytes.Equal(h.encode()[:40], b[:40]) {
			t.Fatalf("%+v", h)
		}
	})
}
