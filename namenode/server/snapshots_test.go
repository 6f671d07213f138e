package server

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

func TestSnapshotsOverTheWire(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	fs, ctx := c.root(), t.Context()
	if err := fs.Mkdirs(ctx, "/d/e", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := fs.AllowSnapshot(ctx, "/d", true); !errors.Is(err, metadata.ErrUnsupported) {
		t.Errorf("before the cluster was raised: %v", err)
	}
	m := c.leader()
	if err := m.group.Raise(release.Snapshots); err != nil {
		t.Fatal(err)
	}
	if err := fs.AllowSnapshot(ctx, "/d", true); err != nil {
		t.Fatal(err)
	}
	if st, err := fs.Stat(ctx, "/d"); err != nil || !st.Snapshottable {
		t.Errorf("status %+v (%v)", st, err)
	}
	dirs, err := fs.SnapshottableDirs(ctx)
	if err != nil || len(dirs) != 1 || dirs[0].Parent != "/" || dirs[0].Status.Name != "d" || dirs[0].Limit != 65536 {
		t.Errorf("snapshottable %+v (%v)", dirs, err)
	}

	w := m.begin(t, "/d/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	block := w.block(1000)
	dn.has(block, pb.ReplicaState_FINALIZED)
	eventually(t, "the file is closed", func() bool {
		w.block(1000)
		done, err := w.complete()
		return err == nil && done
	})
	path, err := fs.CreateSnapshot(ctx, "/d", "s1")
	if err != nil || path != "/d/.snapshot/s1" {
		t.Fatal(path, err)
	}
	if path, err = fs.CreateSnapshot(ctx, "/d", ""); err != nil || len(path) != len("/d/.snapshot/s20061122-163000.123") {
		t.Errorf("a snapshot without a name is %s (%v)", path, err)
	}
	if err := fs.RenameSnapshot(ctx, "/d", path[len("/d/.snapshot/"):], "s2"); err != nil {
		t.Error(err)
	}
	if ok, err := fs.Delete(ctx, "/d/f", false); err != nil || !ok {
		t.Fatal(ok, err)
	}
	all, err := fs.Snapshots(ctx, "/d")
	if err != nil || len(all) != 2 || all[0].Status.Name != "s1" || all[1].Status.Name != "s2" || all[0].Parent != "/d" {
		t.Errorf("snapshots %+v (%v)", all, err)
	}
	if st, err := fs.Stat(ctx, "/d/.snapshot/s1/f"); err != nil || st.Length != 1000 || st.UnderConstruction {
		t.Errorf("what was deleted is %+v (%v)", st, err)
	}
	has := func() bool {
		m.soft.mu.Lock()
		defer m.soft.mu.Unlock()
		return m.soft.m.Has(block.ID)
	}
	// The block of the deleted file has its replica still, and it is read at the door for files.
	if !has() {
		t.Error("the block manager does not know the block any more")
	}
	if _, err := fs.Delete(ctx, "/d/.snapshot/s1/f", false); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("delete in a snapshot: %v", err)
	}
	diff, err := fs.SnapshotDiff(ctx, "/d", "s1", "")
	if want := []metadata.DiffEntry{{Type: metadata.DiffModify}, {Type: metadata.DiffDelete, Path: "f"}}; err != nil || !slices.Equal(diff, want) {
		t.Errorf("difference %+v (%v)", diff, err)
	}
	sum, err := fs.ContentSummary(ctx, "/d")
	if err != nil || sum.Files != 1 || sum.Snapshot.Files != 1 || sum.Present().Length != 0 {
		t.Errorf("summary %+v (%v)", sum, err)
	}
	if err := fs.AllowSnapshot(ctx, "/d", false); !errors.Is(err, metadata.ErrSnapshot) {
		t.Errorf("disallowed: %v", err)
	}
	for _, name := range []string{"s1", "s2"} {
		if err := fs.DeleteSnapshot(ctx, "/d", name); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the block goes with the last snapshot", func() bool { return !has() && m.ns.Counts().Snapshots == 0 })
	if err := fs.AllowSnapshot(ctx, "/d", false); err != nil {
		t.Error(err)
	}
	var known *dfs.Error
	if _, err := fs.CreateSnapshot(ctx, "/d", "s"); !errors.As(err, &known) || known.Message != "Directory is not a snapshottable directory: /d" {
		t.Errorf("a directory that is not snapshottable any more: %v", err)
	}
}

func TestTruncateInsideABlockOfASnapshotCopiesIt(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	m := c.leader()
	if err := m.group.Raise(release.Snapshots); err != nil {
		t.Fatal(err)
	}
	fs, ctx := c.root(), t.Context()
	if err := errors.Join(fs.Mkdirs(ctx, "/d", 0o755, true), fs.AllowSnapshot(ctx, "/d", true)); err != nil {
		t.Fatal(err)
	}
	w := m.begin(t, "/d/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	block := w.block(1000)
	dn.has(block, pb.ReplicaState_FINALIZED)
	eventually(t, "the file is closed", func() bool {
		w.block(1000)
		done, err := w.complete()
		return err == nil && done
	})
	if _, err := fs.CreateSnapshot(ctx, "/d", "s"); err != nil {
		t.Fatal(err)
	}
	if done, err := fs.Truncate(ctx, "/d/f", 300); err != nil || done {
		t.Fatalf("truncate: %t, %v", done, err)
	}
	eventually(t, "the file is shorter", func() bool {
		st, err := fs.Stat(ctx, "/d/f")
		closed, cerr := fs.IsFileClosed(ctx, "/d/f")
		return err == nil && cerr == nil && closed && st.Length == 300
	})
	dn.received("copy the replica", func(o *pb.Orders) bool {
		return len(o.Recover) == 1 && o.Recover[0].Truncate == 301 && o.Recover[0].Source.GetId() == int64(block.ID) && o.Recover[0].Block.Id != int64(block.ID)
	})
	for path, length := range map[string]int64{"/d/f": 300, "/d/.snapshot/s/f": 1000} {
		eventually(t, "both can be read", func() bool {
			blocks, err := fs.BlockLocations(ctx, path, 0, 1<<40)
			return err == nil && len(blocks) == 1 && blocks[0].Length == length && len(blocks[0].Datanodes) == 1
		})
	}
	if err := fs.DeleteSnapshot(ctx, "/d", "s"); err != nil {
		t.Fatal(err)
	}
	dn.received("delete what only the snapshot had", func(o *pb.Orders) bool { return len(o.Delete) == 1 && o.Delete[0].Id == int64(block.ID) })
}

func TestDifferencesByPages(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	if err := m.group.Raise(release.Snapshots); err != nil {
		t.Fatal(err)
	}
	fs, ctx := c.root(), t.Context()
	if err := errors.Join(fs.Mkdirs(ctx, "/d/old/sub", 0o755, true), fs.AllowSnapshot(ctx, "/d", true)); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.CreateSnapshot(ctx, "/d", "s1"); err != nil {
		t.Fatal(err)
	}
	for i := range 2*diffPage + 1 {
		if err := fs.Mkdirs(ctx, fmt.Sprintf("/d/n%04d", i), 0o755, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := fs.Rename(ctx, "/d/old/sub", "/d/sub"); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.CreateSnapshot(ctx, "/d", "s2"); err != nil {
		t.Fatal(err)
	}
	there, err := fs.SnapshotDiff(ctx, "/d", "s1", "s2")
	if err != nil {
		t.Fatal(err)
	}
	if len(there) != 2*diffPage+4 || there[0] != (metadata.DiffEntry{Type: metadata.DiffModify}) ||
		there[1] != (metadata.DiffEntry{Type: metadata.DiffCreate, Path: "n0000"}) || there[len(there)-1] != (metadata.DiffEntry{Type: metadata.DiffRename, Path: "old/sub", Target: "sub"}) {
		t.Errorf("%d differences: %+v ... %+v", len(there), there[:2], there[len(there)-2:])
	}
	back, err := fs.SnapshotDiff(ctx, "/d", "s2", "s1")
	if err != nil || len(back) != len(there) || back[1].Type != metadata.DiffDelete || back[len(back)-1] != (metadata.DiffEntry{Type: metadata.DiffRename, Path: "sub", Target: "old/sub"}) {
		t.Errorf("%d differences (%v): %+v", len(back), err, back[len(back)-2:])
	}
	now, err := fs.SnapshotDiff(ctx, "/d", "s1", "") // in one piece
	if err != nil || len(now) != len(there) {
		t.Errorf("%d differences (%v)", len(now), err)
	}
}
