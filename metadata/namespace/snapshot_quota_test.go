package namespace

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// uses fails unless a quota says so much is used, and the content summary of the directory says the same.
func (w *world) uses(path string, names, space int64) {
	w.t.Helper()
	u, err := w.ns.QuotaUsage(super, path)
	if err != nil || u.Names != names || u.Space != space {
		w.t.Errorf("%s uses %+v (%v), want %d names and %d bytes", path, u, err, names, space)
	}
	sum, err := w.ns.ContentSummary(super, path)
	if err != nil || sum.Files+sum.Directories != names || sum.SpaceConsumed != space {
		w.t.Errorf("the summary of %s is %+v (%v), want %d names and %d bytes", path, sum, err, names, space)
	}
}

// settleAll takes apart what was deleted.
func (w *world) settleAll() {
	w.t.Helper()
	for w.ns.Counts().Reclaiming > 0 || w.ns.Counts().DeletedSnapshots > 0 {
		w.must(&logpb.Reclaim{Limit: 100})
	}
	w.check()
}

func TestQuotasCountWhatOnlySnapshotsHave(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/q/r/d"), Mode: 0o777, CreateParent: true})
	w.file("/q/r/d/f", 100, 50)
	w.file("/q/r/d/g", 10)
	w.must(snapshotChange("/q/r", allowSnapshots))
	w.must(&logpb.SetQuota{Target: to("/q"), Names: 7, Space: 10 << 20})
	w.must(&logpb.SetQuota{Target: to("/q/r"), Names: 100, Space: 1 << 40})
	for _, dir := range []string{"/q", "/q/r"} {
		up := int64(len("/q/r")-len(dir)) / 2
		w.uses(dir, 4+up, 480)
	}
	w.must(snapshotChange("/q/r", createSnapshot, "s1"))

	w.must(&logpb.Delete{Target: to("/q/r/d/f")})
	w.uses("/q", 5, 480)
	w.uses("/q/r", 4, 480)
	w.file("/q/r/d/f", 7)
	w.uses("/q", 6, 501)
	w.must(&logpb.Delete{Target: to("/q/r/d"), Recursive: true}) // the new file is in no snapshot
	w.uses("/q", 5, 480)
	w.must(&logpb.Mkdirs{Target: to("/q/x/y"), Mode: 0o777, CreateParent: true})
	if r := w.do(super, &logpb.Mkdirs{Target: to("/q/z"), Mode: 0o777}); metadata.KindOf(r.Err) != metadata.ErrNamespaceQuota {
		t.Errorf("one name more than the quota has room for: %v", r.Err)
	}
	w.must(snapshotChange("/q/r", createSnapshot, "s2"))
	w.must(snapshotChange("/q/r", deleteSnapshot, "s2"))
	w.uses("/q", 7, 480)

	// A quota that comes now counts the same.
	w.must(&logpb.SetQuota{Target: to("/q"), Names: metadata.QuotaUnset, Space: metadata.QuotaUnset})
	w.must(&logpb.SetQuota{Target: to("/q"), Names: 7, Space: metadata.QuotaKeep, Count: true})
	w.uses("/q", 7, 480)
	w.reopen()
	w.must(snapshotChange("/q/r", deleteSnapshot, "s1"))
	w.settleAll()
	w.uses("/q", 4, 0)
	w.uses("/q/r", 1, 0)
}

// A file counts with all blocks that it or a snapshot has, and the most replicas.
func TestQuotasCountFilesWithTheirSnapshots(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/q/r/mine"), Mode: 0o777, CreateParent: true})
	w.must(snapshotChange("/q/r", allowSnapshots))
	w.file("/q/r/mine/f", 1<<20, 1<<20)
	for _, dir := range []string{"/q", "/q/r/mine"} {
		w.must(&logpb.SetQuota{Target: to(dir), Names: metadata.QuotaUnset, Space: 9 << 20})
	}
	w.must(snapshotChange("/q/r", createSnapshot, "s1"))

	if r := w.do(super, &logpb.SetReplication{Target: to("/q/r/mine/f"), Replication: 5}); metadata.KindOf(r.Err) != metadata.ErrSpaceQuota {
		t.Errorf("more replicas than the quota has room for: %v", r.Err)
	}
	w.must(&logpb.SetReplication{Target: to("/q/r/mine/f"), Replication: 1})
	w.uses("/q", 4, 6<<20)
	w.uses("/q/r/mine", 2, 6<<20)
	w.must(&logpb.SetReplication{Target: to("/q/r/mine/f"), Replication: 4}) // which takes no more than two replicas of each block more
	w.uses("/q", 4, 8<<20)
	w.must(&logpb.SetReplication{Target: to("/q/r/mine/f"), Replication: 3})

	v := w.must(&logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
	cut := &logpb.Truncate{Target: to("/q/r/mine/f"), Length: 1 << 10, ClientName: "c", RecoveryId: uint64(v.FirstGeneration), NewBlock: int64(v.FirstBlock)}
	w.must(&logpb.SetQuota{Target: to("/q"), Names: metadata.QuotaUnset, Space: 8 << 20})
	if r := w.do(super, cut); metadata.KindOf(r.Err) != metadata.ErrSpaceQuota {
		t.Errorf("a cut that keeps two blocks and makes a third: %v", r.Err)
	}
	w.must(&logpb.SetQuota{Target: to("/q"), Names: metadata.QuotaUnset, Space: 9 << 20})
	r := w.must(cut)
	w.uses("/q", 4, 9<<20)
	last := r.File.Blocks[0]
	w.must(&logpb.CommitRecovery{
		Block: &logpb.Block{Id: int64(last.ID), Generation: uint64(last.Generation)}, RecoveryId: uint64(r.File.RecoveryID), Length: 1 << 10, Close: true,
	})
	w.uses("/q", 4, 6<<20+3<<10)
	w.check()

	// What it takes moves with it, and comes back with the snapshot.
	w.must(&logpb.Mkdirs{Target: to("/elsewhere"), Mode: 0o777})
	w.must(&logpb.SetQuota{Target: to("/elsewhere"), Names: metadata.QuotaUnset, Space: 5 << 20})
	if r := w.do(super, &logpb.Rename{Source: to("/q/r/mine/f"), Target: to("/elsewhere/f")}); metadata.KindOf(r.Err) != metadata.ErrSpaceQuota {
		t.Errorf("a file moves to where its snapshots' blocks have no room: %v", r.Err)
	}
	w.must(snapshotChange("/q/r", deleteSnapshot, "s1"))
	w.settleAll()
	w.uses("/q", 4, 3<<10)
	w.uses("/q/r/mine", 2, 3<<10)
}

// What is replaced and goes on in a snapshot makes no room.
func TestReplacingWhatASnapshotHasNeedsRoom(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/q"), Mode: 0o777})
	w.file("/q/f", 10)
	w.file("/q/g", 10)
	w.must(snapshotChange("/q", allowSnapshots))
	w.must(&logpb.SetQuota{Target: to("/q"), Names: 3, Space: metadata.QuotaUnset})
	again := create("/q/f", "writer")
	again.Overwrite = true
	w.write(w.must(again).Status.ID, 20)
	w.uses("/q", 3, 90)
	w.must(snapshotChange("/q", createSnapshot, "s1"))
	if r := w.do(super, again); metadata.KindOf(r.Err) != metadata.ErrNamespaceQuota {
		t.Errorf("a file in a snapshot is replaced, at the quota: %v", r.Err)
	}
	w.must(&logpb.SetQuota{Target: to("/q"), Names: 4, Space: metadata.QuotaUnset})
	w.write(w.must(again).Status.ID, 20)
	w.uses("/q", 4, 150)
	w.must(&logpb.Rename{Source: to("/q/g"), Target: to("/q/f"), Overwrite: true}) // in the quota, and not more in it
	w.check()
	w.must(snapshotChange("/q", deleteSnapshot, "s1"))
	w.settleAll()
	w.uses("/q", 2, 30)
}

// A large tree that a snapshot has counts as a whole until it was taken apart, whatever happens meanwhile, and then as far as the snapshot has it.
// Members that have it in memory, that have not, that start anew, and that are put back to a copy count the same.
func TestDeletedTreeCountsUntilItIsTakenApart(t *testing.T) {
	const old, late = 400, 300
	var hashes []uint64
	for variant, memory := range []int64{0, 1, 1 << 20} {
		w := newWorld(t, Config{Memory: memory})
		w.must(&logpb.Mkdirs{Target: to("/q/r/d/e"), Mode: 0o777, CreateParent: true})
		w.must(&logpb.SetQuota{Target: to("/q"), Names: 1 << 20, Space: 1 << 40})
		w.must(snapshotChange("/q/r", allowSnapshots))
		w.file("/q/r/d/f", 10)
		for i := range old {
			w.must(&logpb.Mkdirs{Target: to(fmt.Sprintf("/q/r/d/e/old%d", i)), Mode: 0o777})
		}
		w.must(snapshotChange("/q/r", createSnapshot, "s1"))
		for i := range late {
			w.must(&logpb.Mkdirs{Target: to(fmt.Sprintf("/q/r/d/late%d", i)), Mode: 0o777})
		}
		w.uses("/q", 5+old+late, 30)
		survey := w.must(&logpb.SurveyTree{Target: to("/q/r/d")})
		u, err := w.ns.Survey(super, survey.INode)
		if want := (Usage{Names: 3 + old + late, Space: 30, Types: [quotaTypes]int64{onDisk: 30}}); err != nil || u != want {
			t.Fatalf("the tree uses %+v (%v), want %+v", u, err, want)
		}
		w.must(&logpb.Delete{Target: to("/q/r/d"), Recursive: true, Survey: survey.Survey, Names: u.Names, Space: u.Space})
		for step, before := 0, int64(5+old+late); w.ns.Counts().Reclaiming > 0; step++ {
			u, err := w.ns.QuotaUsage(super, "/q")
			if err != nil || u.Names > before || step <= 8 && (u.Names < 5+old || u.Space != 30) {
				t.Fatalf("step %d: %+v (%v), before %d", step, u, err, before)
			}
			before = u.Names
			w.check()
			switch {
			case variant > 0 && step%7 == 3:
				w.reopen()
			case variant > 1 && step%7 == 5:
				if err := w.ns.Restore(bytes.NewReader(w.snapshot())); err != nil {
					t.Fatal(err)
				}
			}
			switch step {
			case 2: // a quota that comes in between counts the same
				w.must(&logpb.SetQuota{Target: to("/q/r"), Names: 1 << 20, Space: 1 << 40})
				if r, err := w.ns.QuotaUsage(super, "/q/r"); err != nil || r.Names != before-1 {
					t.Errorf("%+v (%v), %d in the directory above", r, err, before)
				}
			case 8:
				w.must(snapshotChange("/q/r", createSnapshot, "s2"))
				w.must(snapshotChange("/q/r", deleteSnapshot, "s1"))
			}
			w.must(&logpb.Reclaim{Limit: 20})
			if hash := w.ns.Hash(); variant == 0 {
				hashes = append(hashes, hash)
			} else if step >= len(hashes) || hash != hashes[step] {
				t.Fatalf("memory %d, step %d: the hash is %x", memory, step, hash)
			}
		}
		w.settleAll()
		w.uses("/q", 2, 0)
		w.uses("/q/r", 1, 0)
	}
}
