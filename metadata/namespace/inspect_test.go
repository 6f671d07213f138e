package namespace

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Every operation has a description, and so has whatever a log may hold: or an error.
func FuzzDescribe(f *testing.F) {
	ops := new(logpb.Command).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range ops.Len() {
		cmd := &logpb.Command{Caller: &logpb.Caller{User: "alice"}}
		fill(cmd.ProtoReflect().Mutable(ops.Get(i)).Message())
		raw, err := cmd.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		if c, err := Describe(raw); err != nil || c.Operation != string(ops.Get(i).Name()) || c.Caller != "alice" {
			f.Errorf("%s: %+v, %v", ops.Get(i).Name(), c, err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Describe(raw)
		if err != nil && !errors.Is(err, release.ErrOlder) && !errors.Is(err, metadata.ErrCorrupt) {
			t.Fatal(err)
		}
		if strings.ContainsAny(c.String(), "\n\r\x1b") {
			t.Fatalf("%q", c.String())
		}
	})
}

// What snapshots have is counted and described like everything else.
func TestSnapshotsAreInspected(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/s/d"), Mode: 0o755, CreateParent: true})
	w.file("/s/d/gone", 10)
	w.file("/s/d/moved", 20)
	w.must(snapshotChange("/s", allowSnapshots))
	w.must(snapshotChange("/s", createSnapshot, "first"))
	w.must(&logpb.Delete{Target: to("/s/d/gone")})
	w.must(&logpb.Rename{Source: to("/s/d/moved"), Target: to("/s/e")})

	store := mem.New()
	ns := fresh(t, store, 0)
	if err := ns.Restore(bytes.NewReader(w.snapshot())); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	census, err := InspectCheckpoint(store, func(key, value []byte) error {
		r := DescribeRecord(key, value)
		got[r.Class] = append(got[r.Class], r.Key+" = "+r.Value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]uint64{}
	for _, k := range census.Classes {
		counted[k.Key] = k.Records
	}
	for class, records := range got {
		if counted[class] != uint64(len(records)) {
			t.Errorf("class %s: counted %d, read %q", class, counted[class], records)
		}
	}
	for class, words := range map[string][]string{
		"y": {"limit=65536"},
		"n": {"1 = ", "name=first"},
		"s": {"snapshot 1 = ", "name=gone", "owner=", "file={"},
		"S": {"/gone snapshot 1 = ", "/moved snapshot 1 = "},
		"x": {"1 s ", "1 S ", "/gone = "},
		"B": {"length=10"},
	} {
		text := strings.Join(got[class], "\n")
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("class %s lacks %q:\n%s", class, word, text)
			}
		}
		if strings.ContainsAny(text, "\x00") || strings.Contains(text, "cannot be read") {
			t.Errorf("class %s:\n%q", class, text)
		}
	}
}
