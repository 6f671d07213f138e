package namenode

import "github.com/gohops/hops/metadata"

// Snapshots are the calls about snapshots of directories. What is in one is read by paths through .snapshot.
type Snapshots interface {
	// ChangeSnapshots is refused with ErrUnsupported before the cluster has been raised to release.Snapshots. The path is that of the
	// snapshot that was made; empty for other changes.
	ChangeSnapshots(c metadata.Caller, r SnapshotChange, done func(string, error))
	// Snapshottable lists the directories that snapshots may be taken of: all for the superuser, their own for others.
	Snapshottable(c metadata.Caller, done func([]metadata.SnapshottableDir, error))
	// Snapshots lists those of a directory. admit may be nil, here and below.
	Snapshots(c metadata.Caller, path string, admit Admit, done func([]metadata.Snapshot, error))
	// SnapshotDiff lists what is different between two snapshots of a directory; an empty name is its present state.
	SnapshotDiff(c metadata.Caller, path, from, to string, admit Admit, done func([]metadata.DiffEntry, error))
	// SnapshotDiffPage lists a part of it; after is DiffPage.Next of the one before.
	SnapshotDiffPage(c metadata.Caller, path, from, to, after string, done func(*metadata.DiffPage, error))
}

// SnapshotChange asks for a change of a directory's snapshots.
type SnapshotChange struct {
	Retry Retry
	Path  string
	What  SnapshotVerb
	// Name is the snapshot's; empty for a new one: made of the time. NewName is for SnapshotRename.
	Name, NewName string
}

// SnapshotVerb is a change of snapshots.
type SnapshotVerb uint8

// The changes: whether there may be any, and which there are.
const (
	SnapshotAllow SnapshotVerb = iota
	SnapshotDisallow
	SnapshotCreate
	SnapshotDelete
	SnapshotRename
)
