package dfs

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// CreateSnapshot makes a snapshot of a directory and returns its path; an empty name lets the server choose.
func (c *Client) CreateSnapshot(ctx context.Context, dir, name string) (string, error) {
	dir, err := clean("snapshot", dir)
	if err != nil {
		return "", err
	}
	request := &hadooppb.CreateSnapshotRequestProto{SnapshotRoot: &dir}
	if name != "" {
		request.SnapshotName = &name
	}
	var answer hadooppb.CreateSnapshotResponseProto
	err = c.call(ctx, "snapshot", dir, "createSnapshot", request, &answer)
	return answer.GetSnapshotPath(), err
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, dir, name string) error {
	dir, err := clean("snapshot", dir)
	if err != nil {
		return err
	}
	return c.call(ctx, "snapshot", dir, "deleteSnapshot",
		&hadooppb.DeleteSnapshotRequestProto{SnapshotRoot: &dir, SnapshotName: &name}, new(hadooppb.DeleteSnapshotResponseProto))
}

// RenameSnapshot gives a snapshot another name.
func (c *Client) RenameSnapshot(ctx context.Context, dir, from, to string) error {
	dir, err := clean("snapshot", dir)
	if err != nil {
		return err
	}
	return c.call(ctx, "snapshot", dir, "renameSnapshot",
		&hadooppb.RenameSnapshotRequestProto{SnapshotRoot: &dir, SnapshotOldName: &from, SnapshotNewName: &to}, new(hadooppb.RenameSnapshotResponseProto))
}

// SnapshottableDirs lists the directories that snapshots may be taken of: all for the superuser, their own for others.
func (c *Client) SnapshottableDirs(ctx context.Context) ([]metadata.SnapshottableDir, error) {
	var answer hadooppb.GetSnapshottableDirListingResponseProto
	if err := c.call(ctx, "snapshottable directories", "", "getSnapshottableDirListing", new(hadooppb.GetSnapshottableDirListingRequestProto), &answer); err != nil {
		return nil, err
	}
	var dirs []metadata.SnapshottableDir
	for _, d := range answer.GetSnapshottableDirList().GetSnapshottableDirListing() {
		dirs = append(dirs, metadata.SnapshottableDir{
			Status: directoryStatus(d.GetDirStatus()), Parent: string(d.GetParentFullpath()), Snapshots: int(d.GetSnapshotNumber()), Limit: int(d.GetSnapshotQuota()),
		})
	}
	return dirs, nil
}

// Snapshots lists those of a directory.
func (c *Client) Snapshots(ctx context.Context, dir string) ([]metadata.Snapshot, error) {
	dir, err := clean("snapshots", dir)
	if err != nil {
		return nil, err
	}
	var answer hadooppb.GetSnapshotListingResponseProto
	if err := c.call(ctx, "snapshots", dir, "getSnapshotListing", &hadooppb.GetSnapshotListingRequestProto{SnapshotRoot: &dir}, &answer); err != nil {
		return nil, err
	}
	var all []metadata.Snapshot
	for _, s := range answer.GetSnapshotList().GetSnapshotListing() {
		all = append(all, metadata.Snapshot{Status: directoryStatus(s.GetDirStatus()), Parent: string(s.GetParentFullpath()), ID: s.GetSnapshotID()})
	}
	return all, nil
}

// SnapshotDiff lists what is different in a directory between two of its snapshots; an empty name is its present state. Two
// snapshots are compared page by page, so that there may be as many differences as memory holds.
func (c *Client) SnapshotDiff(ctx context.Context, dir, from, to string) ([]metadata.DiffEntry, error) {
	dir, err := clean("difference of snapshots", dir)
	if err != nil {
		return nil, err
	}
	if from != "" && to != "" {
		return c.snapshotDiffPages(ctx, dir, from, to)
	}
	var answer hadooppb.GetSnapshotDiffReportResponseProto
	err = c.call(ctx, "difference of snapshots", dir, "getSnapshotDiffReport",
		&hadooppb.GetSnapshotDiffReportRequestProto{SnapshotRoot: &dir, FromSnapshot: &from, ToSnapshot: &to}, &answer)
	if err != nil {
		return nil, err
	}
	types := map[string]metadata.DiffType{}
	for t := metadata.DiffCreate; t <= metadata.DiffRename; t++ {
		types[t.Label()] = t
	}
	var entries []metadata.DiffEntry
	for _, e := range answer.GetDiffReport().GetDiffReportEntries() {
		t, ok := types[e.GetModificationLabel()]
		if !ok {
			return nil, fmt.Errorf("difference of snapshots of %s: the server says %q of %s", dir, e.GetModificationLabel(), e.GetFullpath())
		}
		entries = append(entries, metadata.DiffEntry{Type: t, Path: string(e.GetFullpath()), Target: string(e.GetTargetPath())})
	}
	return entries, nil
}

// snapshotDiffPages lists the differences page by page and puts them into the order of HDFS's clients: what was modified by its
// path, and below a directory what came and then what went.
func (c *Client) snapshotDiffPages(ctx context.Context, dir, from, to string) ([]metadata.DiffEntry, error) {
	type record = *hadooppb.SnapshotDiffReportListingEntryProto
	var modified []record
	created, deleted := map[uint64][]record{}, map[uint64][]record{}
	backwards := false
	type place struct {
		path  string
		index int32
	}
	for turns := pagesFrom("difference of snapshots", dir, place{"", -1}); ; {
		cursor := &hadooppb.SnapshotDiffReportCursorProto{StartPath: []byte(turns.last.path), Index: &turns.last.index}
		var answer hadooppb.GetSnapshotDiffReportListingResponseProto
		err := c.call(ctx, "difference of snapshots", dir, "getSnapshotDiffReportListing",
			&hadooppb.GetSnapshotDiffReportListingRequestProto{SnapshotRoot: &dir, FromSnapshot: &from, ToSnapshot: &to, Cursor: cursor}, &answer)
		if err != nil {
			return nil, err
		}
		page := answer.GetDiffReport()
		modified = append(modified, page.GetModifiedEntries()...)
		for _, e := range page.GetCreatedEntries() {
			created[e.GetDirId()] = append(created[e.GetDirId()], e)
		}
		for _, e := range page.GetDeletedEntries() {
			deleted[e.GetDirId()] = append(deleted[e.GetDirId()], e)
		}
		backwards = !page.GetIsFromEarlier()
		next := page.GetCursor()
		if next == nil || len(next.GetStartPath()) == 0 && next.GetIndex() == -1 {
			break
		}
		if err := turns.turn(place{string(next.GetStartPath()), next.GetIndex()}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(modified, func(a, b record) int { return compareDiffPaths(a.GetFullpath(), b.GetFullpath()) })
	renamed := map[uint64]bool{}
	for _, all := range deleted {
		for _, e := range all {
			if e.GetIsReference() && len(e.GetTargetPath()) > 0 {
				renamed[e.GetFileId()] = true
			}
		}
	}
	came, went := metadata.DiffCreate, metadata.DiffDelete
	if backwards {
		came, went = went, came
	}
	var entries []metadata.DiffEntry
	for _, m := range modified {
		entries = append(entries, metadata.DiffEntry{Type: metadata.DiffModify, Path: string(m.GetFullpath())})
		if !m.GetIsReference() {
			continue
		}
		for _, e := range created[m.GetDirId()] {
			if !renamed[e.GetFileId()] {
				entries = append(entries, metadata.DiffEntry{Type: came, Path: string(e.GetFullpath())})
			}
		}
		for _, e := range deleted[m.GetDirId()] {
			path, target := string(e.GetFullpath()), string(e.GetTargetPath())
			switch {
			case !renamed[e.GetFileId()]:
				entries = append(entries, metadata.DiffEntry{Type: went, Path: path})
			case backwards:
				entries = append(entries, metadata.DiffEntry{Type: metadata.DiffRename, Path: target, Target: path})
			default:
				entries = append(entries, metadata.DiffEntry{Type: metadata.DiffRename, Path: path, Target: target})
			}
		}
	}
	return entries, nil
}

// compareDiffPaths compares paths name by name, and bytes as Java does.
func compareDiffPaths(a, b []byte) int {
	return slices.CompareFunc(a, b, func(x, y byte) int {
		if x == y {
			return 0
		}
		if x == '/' { // the end of a name
			return -1
		}
		if y == '/' {
			return 1
		}
		return cmp.Compare(int8(x), int8(y))
	})
}

// directoryStatus is a directory of a list.
func directoryStatus(p *hadooppb.HdfsFileStatusProto) metadata.FileStatus {
	return metadata.FileStatus{
		ID: metadata.INodeID(p.GetFileId()), Type: metadata.TypeDirectory, Name: string(p.GetPath()), Mode: metadata.Mode(p.GetPermission().GetPerm() & 0o1777),
		Owner: p.GetOwner(), Group: p.GetGroup(), MTime: metadata.Time(p.GetModificationTime()), ATime: metadata.Time(p.GetAccessTime()),
		Children: int(p.GetChildrenNum()), Snapshottable: p.GetFlags()&uint32(hadooppb.HdfsFileStatusProto_SNAPSHOT_ENABLED) != 0,
	}
}
