package namespace

import (
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// The blocks of a file obey the policy that held where it was made, or that it was given itself, whatever is above it gets later, also when they are read from
// a checkpoint, and when only a snapshot has them.
func TestBlocksObeyThePolicyOfTheFilesBirth(t *testing.T) {
	const cold, hot, allSSD = 2, 7, 12
	w := newWorld(t, Config{})
	do := func(op any) {
		t.Helper()
		if r := w.do(super, op); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	policy := func(path string, number uint32) {
		t.Helper()
		do(&logpb.SetStoragePolicy{Target: to(path), Policy: number})
	}
	do(&logpb.Mkdirs{Target: to("/s"), Mode: 0o755, CreateParent: true})
	plain := w.file("/s/before", 5)[0]
	policy("/s", cold)
	old := w.file("/s/cold", 5)[0]
	kept := w.file("/s/snapped", 5)[0]
	own := w.file("/s/own", 5, 7)
	policy("/s/own", allSSD)
	usual := w.file("/s/usual", 5)[0]
	policy("/s/usual", hot)
	do(snapshotChange("/s", allowSnapshots))
	do(snapshotChange("/s", createSnapshot, "one"))
	policy("/s", allSSD)
	fresh := w.file("/s/deep/er/fresh", 5)[0]
	do(&logpb.Delete{Target: to("/s/snapped")})
	do(&logpb.Rename{Source: to("/s/cold"), Target: to("/elsewhere")})
	want := map[metadata.BlockID]uint8{plain: 0, old: cold, kept: cold, own[0]: allSSD, own[1]: allSSD, usual: 0, fresh: allSSD}
	for _, when := range []string{"at once", "after a restart"} {
		got := map[metadata.BlockID]uint8{}
		if err := w.ns.EachBlock(func(o BlockOwner) bool { got[o.Block.ID] = o.Policy; return true }); err != nil {
			t.Fatal(err)
		}
		for id, policy := range want {
			if p, ok := got[id]; !ok || p != policy {
				t.Errorf("%s: block %d obeys %d (%v), want %d", when, id, p, ok, policy)
			}
		}
		w.check()
		w.reopen()
	}
	var told []BlockOwner
	w.cfg.OnEffects = func(e Effects) { told = append(told, e.Changed...) }
	w.open()
	policy("/s/own", cold)
	if len(told) != 2 || told[0].Policy != cold || told[1].Policy != cold {
		t.Errorf("the block manager is told %+v", told)
	}
	if policy("/s/own", 0); len(told) != 4 || told[2].Policy != allSSD {
		t.Errorf("with the policy of the directory again: %+v", told)
	}
}

// Who asks for it has the blocks of files obey what holds for them now: everything below a directory, wherever the policy comes from.
func TestFilesArePlacedAnew(t *testing.T) {
	const cold, hot, allSSD = 2, 7, 12
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/d/deep/er"), Mode: 0o755, CreateParent: true})
	w.must(&logpb.SetStoragePolicy{Target: to("/d"), Policy: allSSD})
	ssd, own := w.file("/d/ssd", 5)[0], w.file("/d/deep/own", 5)[0]
	deep := w.file("/d/deep/er/file", 5, 6)
	w.must(&logpb.SetStoragePolicy{Target: to("/d/deep/own"), Policy: hot})
	w.must(&logpb.SetStoragePolicy{Target: to("/d"), Policy: cold})
	w.must(&logpb.Mkdirs{Target: to("/d/empty"), Mode: 0o755})
	policies := func() map[metadata.BlockID]uint8 {
		got := map[metadata.BlockID]uint8{}
		if err := w.ns.EachBlock(func(o BlockOwner) bool { got[o.Block.ID] = o.Policy; return true }); err != nil {
			t.Fatal(err)
		}
		return got
	}
	walk := func(path string) (stale []uint64, blocks int) {
		st, err := w.ns.Stat(super, path)
		if err != nil || st == nil {
			t.Fatal(path, err)
		}
		if err := w.ns.Files(st.ID, func(files []PlacedFile) error {
			for _, f := range files {
				if f.Stale {
					stale = append(stale, uint64(f.INode))
				}
				blocks += len(f.Blocks)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return stale, blocks
	}
	if stale, blocks := walk("/d/deep/er"); len(stale) != 1 || blocks != 2 {
		t.Fatalf("%v, %d blocks", stale, blocks)
	}
	if stale, blocks := walk("/d/ssd"); len(stale) != 1 || blocks != 1 {
		t.Fatalf("of a file: %v, %d blocks", stale, blocks)
	}
	w.reopen()
	stale, blocks := walk("/d")
	if len(stale) != 2 || blocks != 4 {
		t.Fatalf("%v, %d blocks", stale, blocks)
	}
	if got := policies(); got[ssd] != allSSD || got[deep[1]] != allSSD || got[own] != 0 {
		t.Fatalf("before: %v", got)
	}
	var told []BlockOwner
	w.cfg.OnEffects = func(e Effects) { told = append(told, e.Changed...) }
	w.open()
	w.must(&logpb.PlaceFiles{Inodes: append(stale, stale[0], uint64(metadata.RootID), 1<<40)})
	if len(told) != 3 || told[0].Policy != cold {
		t.Fatalf("the block manager is told %+v", told)
	}
	for range 2 {
		if got := policies(); got[ssd] != cold || got[deep[0]] != cold || got[deep[1]] != cold || got[own] != 0 {
			t.Fatalf("after: %v", got)
		}
		if stale, _ := walk("/d"); len(stale) > 0 {
			t.Fatalf("still %v", stale)
		}
		w.check()
		w.reopen()
	}
	w.refused(metadata.ErrInvalidArgument, &logpb.PlaceFiles{Inodes: make([]uint64, PlaceAtOnce+1)})
}
