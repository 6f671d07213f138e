package namespace

import (
	"fmt"
	"testing"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// largeTree has 1,000 directories of 1,000 files, snapshottable at /d.
func largeTree(b *testing.B) *world {
	w := newWorld(b, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.do(super, snapshotChange("/d", allowSnapshots))
	for i := range 1000 {
		var batch [][]byte
		for j := range 1000 {
			cmd := command(super, create(fmt.Sprintf("/d/%03d/%03d", i, j), "writer"))
			cmd.Now, cmd.LogTime = int64(w.now), int64(w.now)
			data, err := cmd.MarshalVT()
			if err != nil {
				b.Fatal(err)
			}
			batch = append(batch, data)
		}
		w.entry(batch...)
	}
	w.log = nil
	return w
}

// What is different after 1,000 changes in a tree of a million files.
func BenchmarkSnapshotDiff(b *testing.B) {
	w := largeTree(b)
	w.do(super, snapshotChange("/d", createSnapshot, "s"))
	for i := range 1000 {
		w.do(super, &logpb.SetPermission{Target: to(fmt.Sprintf("/d/%03d/%03d", i, i)), Mode: 0o600})
	}
	b.ResetTimer()
	for range b.N {
		entries, err := w.ns.SnapshotDiff(super, "/d", "s", "")
		if err != nil || len(entries) != 1000 {
			b.Fatal(len(entries), err)
		}
	}
}

// A snapshot costs the same however large the tree is, and so does deleting it; b.N snapshots of a million files.
func BenchmarkSnapshot(b *testing.B) {
	w := largeTree(b)
	b.ResetTimer()
	for i := range b.N {
		if r := w.do(super, snapshotChange("/d", createSnapshot, fmt.Sprint("s", i))); r.Err != nil {
			b.Fatal(r.Err)
		}
		if r := w.do(super, snapshotChange("/d", deleteSnapshot, fmt.Sprint("s", i))); r.Err != nil {
			b.Fatal(r.Err)
		}
	}
}

// The first change of a file since a snapshot, and of others after it.
func BenchmarkChangeInSnapshot(b *testing.B) {
	for _, name := range []string{"none", "first", "later"} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, Config{})
			w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
			w.do(super, snapshotChange("/d", allowSnapshots))
			files := 1
			if name == "first" {
				files = b.N
			}
			for i := range files {
				w.do(super, create(fmt.Sprintf("/d/%d", i), "writer"))
			}
			if name != "none" {
				w.do(super, snapshotChange("/d", createSnapshot, "s"))
			}
			w.log = nil
			b.ResetTimer()
			for i := range b.N {
				w.do(super, &logpb.SetPermission{Target: to(fmt.Sprintf("/d/%d", i%files)), Mode: uint32(0o600 + i%2)})
			}
		})
	}
}
