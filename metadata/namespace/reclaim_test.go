package namespace

import (
	"fmt"
	"strings"
	"testing"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Trees that were moved below each other are deeper than any path. Taking one apart costs what it has, not its depth for each of its inodes:
// some dozens of commands of one user would stop all others for seconds.
func TestDeepTreeIsTakenApartInOneWalk(t *testing.T) {
	for name, snapshot := range map[string]string{"alone": "", "beside a snapshot": "/z8", "in a snapshot": "/"} {
		t.Run(name, func(t *testing.T) { testDeepTree(t, snapshot) })
	}
}

func testDeepTree(t *testing.T, snapshotted string) {
	const trees, levels = 24, 150
	var hashes []uint64
	for variant, memory := range []int64{0, 1, 1 << 20} {
		w := newWorld(t, Config{Memory: memory})
		for i := range 9 {
			w.do(super, &logpb.Mkdirs{Target: to(fmt.Sprintf("/z%d/a", i)), Mode: 0o755, CreateParent: true})
		}
		tree := func(i int) string { return fmt.Sprintf("/x%d", i) + strings.Repeat("/a", levels) }
		for i := range trees {
			if r := w.do(super, &logpb.Mkdirs{Target: to(tree(i)), Mode: 0o755, CreateParent: true}); r.Err != nil {
				t.Fatal(r.Err)
			}
			if i == 0 {
				continue
			}
			if r := w.do(super, &logpb.Rename{Source: to(fmt.Sprintf("/x%d", i-1)), Target: to(tree(i)), Legacy: true}); r.Err != nil || !r.OK {
				t.Fatal(r.Err)
			}
		}
		if snapshotted != "" {
			w.must(snapshotChange(snapshotted, allowSnapshots))
			w.must(snapshotChange(snapshotted, createSnapshot, "s"))
		}
		w.must(&logpb.SurveyTree{Target: to("/z7")}) // which nothing of this is about
		before := w.ns.Counts().Directories
		w.ns.snaps.climbed = 0
		if r := w.do(super, &logpb.Delete{Target: to(fmt.Sprintf("/x%d", trees-1)), Recursive: true}); r.Err != nil || !r.OK {
			t.Fatal(r.Err)
		}
		for i := 0; w.ns.Counts().Reclaiming > 0; i++ { // others are deleted meanwhile, which come first or last
			w.do(super, &logpb.Mkdirs{Target: to(fmt.Sprintf("/y%d/a/b", i%7)), Mode: 0o755, CreateParent: true})
			switch i % 40 {
			case 9, 29:
				w.do(super, &logpb.Delete{Target: to(fmt.Sprintf("/z%d", i/20)), Recursive: true})
			case 39:
				w.do(super, &logpb.Delete{Target: to(fmt.Sprintf("/y%d", i%7)), Recursive: true})
			}
			switch variant * (i % 50) {
			case 10, 20:
				w.checkpoint()
			case 30, 60:
				w.snapshot()
				w.reopen()
				w.ns.sweep.steps = 0
			}
			if variant == 0 {
				hashes = append(hashes, w.ns.Hash())
			} else if got := w.ns.Hash(); got != hashes[i] {
				t.Fatalf("memory %d: after command %d the hash is %x, not %x", memory, i, got, hashes[i])
			}
		}
		if removed := before - w.ns.Counts().Directories; removed < trees*levels {
			t.Errorf("%d directories are gone, of %d", removed, trees*levels)
		}
		if steps := w.ns.sweep.steps; steps > 3*trees*levels {
			t.Errorf("memory %d: %d steps for %d directories", memory, steps, trees*levels)
		}
		if climbed := w.ns.snaps.climbed; climbed > 1000*trees*levels {
			t.Errorf("memory %d: %d steps up for %d directories", memory, climbed, trees*levels)
		}
		w.check()
	}
}
