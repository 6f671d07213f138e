package namespace

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

var update = flag.Bool("update", false, "write the golden copy of a namespace of the present format anew")

// goldenCopy was written when the format was made.
func goldenCopy(version int) string {
	return filepath.Join("testdata", fmt.Sprintf("format-%d.copy", version))
}

func TestGoldenCopyIsRead(t *testing.T) {
	if *update {
		if err := os.WriteFile(goldenCopy(bodiesVersion), populated(t).snapshot(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for version, bodies := range map[int]bool{streamVersion: false, bodiesVersion: true} {
		t.Run(fmt.Sprint(version), func(t *testing.T) { testGolden(t, goldenCopy(version), version, bodies) })
	}
}

// Directory snapshots, and what else came after goldenCopy was written, are in a copy of their own.
func TestGoldenCopyOfSnapshotsIsRead(t *testing.T) {
	file := filepath.Join("testdata", "snapshots-4.copy")
	if *update {
		w := populated(t)
		w.must(&logpb.SetQuota{Target: to("/acl"), Names: 100, Space: 1 << 30})
		w.must(snapshotChange("/acl", allowSnapshots))
		w.must(snapshotChange("/acl", createSnapshot, "first"))
		w.must(&logpb.Delete{Target: to("/acl/long")})
		w.must(&logpb.Delete{Target: to("/acl/body")})
		w.must(&logpb.Rename{Source: to("/acl/other"), Target: to("/moved")})
		w.must(snapshotChange("/acl", createSnapshot, "second"))
		if err := os.WriteFile(file, w.snapshot(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	census := testGolden(t, file, bodiesVersion, true)
	for _, k := range census.Classes {
		if strings.Contains("ynsSxBp", k.Key) && k.Records == 0 {
			t.Errorf("the copy has none of the %s", k.Name)
		}
	}
}

// Sheets begin behind the first checkpoint, so they are in a copy of a later one.
func TestGoldenCopyOfSheetsIsRead(t *testing.T) {
	file := filepath.Join("testdata", "sheets-4.copy")
	if *update {
		w := populated(t)
		w.snapshot()
		for i := range 3 * inodesPerSheet {
			w.closedFile(fmt.Sprintf("/sheets/%d/file-%d", i%3, i))
		}
		w.snapshot()
		w.must(&logpb.Delete{Target: to("/sheets/1/file-7")})
		w.must(&logpb.Rename{Source: to("/sheets/0/file-9"), Target: to("/moved")})
		if err := os.WriteFile(file, w.snapshot(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	census := testGolden(t, file, bodiesVersion, true)
	for _, k := range census.Classes {
		if all := census.Files + census.Directories; k.Key == string(classINode) && k.Records+2*inodesPerSheet > all {
			t.Errorf("%d records lead to %d inodes: there are no sheets", k.Records, all)
		}
	}
}

func testGolden(t *testing.T, file string, version int, bodies bool) Census {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	census, err := InspectCopy(bytes.NewReader(raw))
	if census.Version != uint32(version) || (census.Bodies > 0) != bodies || census.BodiesMissing != 0 {
		t.Fatalf("%+v", census)
	}
	entries := uint64(0)
	for _, k := range census.Classes {
		if k.Key == string(classEntry) || k.Key == string(classDirectory) {
			entries += k.Records
		}
	}
	if err != nil || census.Files == 0 || entries < census.Files+census.Directories {
		t.Fatalf("%+v, %v", census, err)
	}
	checkSound(t, restore(t, raw)) // with directories apart
	store := mem.New()
	ns := fresh(t, store, 0)
	ns.cfg.Bodies = newMemBodies()
	ns.cfg.Sheets = func() bool { return false } // as it is
	if err := ns.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	checkSound(t, ns)
	records := map[string]uint64{}
	again, err := InspectCheckpoint(store, func(key, value []byte) error {
		r := DescribeRecord(key, value)
		if records[r.Class]++; r.Key == "" || strings.ContainsAny(r.Key+r.Value, "\n\x00") || strings.Contains(r.Value, "cannot be read") {
			t.Errorf("%+v", r)
		}
		return nil
	})
	if err != nil || again.Hash != census.Hash || again.Index != census.Index {
		t.Fatalf("%+v, %v", again, err)
	}
	for _, k := range census.Classes {
		if records[k.Key] != k.Records {
			t.Errorf("%s: %d records in the store, %d in the copy", k.Name, records[k.Key], k.Records)
		}
	}
	for cut := 0; cut < len(raw); cut += 1 + cut/50 {
		if _, err := InspectCopy(bytes.NewReader(raw[:cut])); !errors.Is(err, metadata.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		flipped := bytes.Clone(raw)
		flipped[cut] ^= 4
		if _, err := InspectCopy(bytes.NewReader(flipped)); !errors.Is(err, metadata.ErrCorrupt) {
			t.Fatalf("flipped at %d: %v", cut, err)
		}
	}
	if _, err := InspectCheckpoint(mem.New(), nil); err == nil {
		t.Error("an empty store has a checkpoint")
	}
	return census
}
