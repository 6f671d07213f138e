package namespace

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// changeSnapshots changes what snapshots of a directory there are, or whether there may be any. Snapshot of the result is the
// path of the one that was made.
//
// Errors: ErrNotExist, ErrNotDirectory; ErrPermission for all but the superuser, who allows snapshots, and the owner, who makes
// them; ErrSnapshot for a directory that none may be taken of, one that is below or above another, one that has some, a name
// that is taken or is none's, and the limits; ErrInvalidPath, ErrInvalidArgument and ErrNameTooLong for a name that cannot be
// one.
func (ns *Namespace) changeSnapshots(t *txn, op *logpb.ChangeSnapshots) {
	p := newPlace()
	defer p.release()
	allows := op.Change == logpb.ChangeSnapshots_ALLOW || op.Change == logpb.ChangeSnapshots_DISALLOW
	switch {
	case op.Change == logpb.ChangeSnapshots_DELETE && op.Name == "":
		t.failf(metadata.ErrIO, "The snapshot name is null or empty.")
		return
	case op.Change == logpb.ChangeSnapshots_RENAME && op.NewName == "":
		t.failf(metadata.ErrIO, "The new snapshot name is null or empty.")
		return
	}
	if allows && !t.caller.superuser {
		t.fail(metadata.NeedsSuperuser(t.caller.user, strings.ToLower(op.Change.String())+"Snapshot"))
		return
	}
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		if allows {
			err = fileAbove(err)
		}
		t.fail(err)
		return
	}
	if err := ns.check(p, &t.caller, checks{owner: true}); err != nil {
		t.fail(err)
		return
	}
	if !allows && p.last() == nil {
		t.failf(metadata.ErrNotExist, "Directory/File does not exist %s", p)
		return
	}
	var err error
	switch op.Change {
	case logpb.ChangeSnapshots_ALLOW, logpb.ChangeSnapshots_DISALLOW:
		err = ns.allowSnapshots(p, op.Change == logpb.ChangeSnapshots_ALLOW)
	case logpb.ChangeSnapshots_CREATE:
		err = ns.createSnapshot(t, p, op.Name)
	case logpb.ChangeSnapshots_DELETE:
		err = ns.deleteSnapshot(p, op.Name)
	case logpb.ChangeSnapshots_RENAME:
		err = ns.renameSnapshot(p, op.Name, op.NewName)
	default:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "Unknown change of snapshots: %d", op.Change)
	}
	if err != nil {
		t.fail(err)
		return
	}
	t.result.OK = true
}

// fileAbove calls a file on the way to a path so, as HDFS does where it asks for no rights on the way.
func fileAbove(err error) error {
	if metadata.KindOf(err) == metadata.ErrPermission && strings.HasSuffix(err.Error(), "(is not a directory)") {
		return metadata.Errorf(metadata.ErrParentNotDirectory, "%s", err.Error())
	}
	return err
}

func (ns *Namespace) allowSnapshots(p *place, allow bool) error {
	_, err := ns.snapshottable(p)
	if err != nil && metadata.KindOf(err) != metadata.ErrSnapshot {
		return err
	}
	if (err == nil) == allow {
		return nil // it is so already
	}
	n := p.last()
	if !allow {
		if len(ns.snaps.live[n.id]) > 0 {
			return metadata.Errorf(metadata.ErrSnapshot, "The directory %s has snapshot(s). Please redo the operation after removing all the snapshots.", p)
		}
		ns.setAllowed(n.id, false)
		return nil
	}
	if err := ns.checkNested(n, p.String()); err != nil {
		return err
	}
	if len(ns.snaps.allowed) >= MaxSnapshottable {
		return metadata.Errorf(metadata.ErrSnapshot, "There are %d snapshottable directories, %d is the limit", len(ns.snaps.allowed), MaxSnapshottable)
	}
	ns.setAllowed(n.id, true)
	return nil
}

// checkNested refuses path as a snapshottable directory at dir, if another is above or below it. Of several it names the oldest one.
func (ns *Namespace) checkNested(dir *inode, path string) error {
	for _, id := range slices.Sorted(maps.Keys(ns.snaps.allowed)) {
		root, err := ns.byID(id)
		if err != nil {
			return err
		}
		if root == nil || !root.attached() {
			continue
		}
		word := ""
		switch {
		case root != dir && within(root, dir):
			word = "subdirectory"
		case within(dir, root):
			word = "ancestor"
		default:
			continue
		}
		return metadata.Errorf(metadata.ErrSnapshot, "Nested snapshottable directories not allowed: path=%s, the %s %s is already a snapshottable directory.",
			path, word, root.path())
	}
	return nil
}

// within reports whether n is dir or below it.
func within(n, dir *inode) bool {
	for ; n != nil && n != dir; n = n.parent {
	}
	return n != nil
}

// checkUnsnapped refuses to move or delete a directory with snapshots, or one above it (FSDirSnapshotOp.checkSnapshot). It
// reports whether n is, or has below it, a snapshottable directory without any.
func (ns *Namespace) checkUnsnapped(n *inode) (some bool, err error) {
	if ns.meta.snapshottable == 0 || n == nil || !n.isDir() {
		return false, nil
	}
	if err := ns.looked(len(ns.snaps.allowed) / rootsPerLook); err != nil {
		return false, err
	}
	var oldest *inode // with snapshots
	for id := range ns.snaps.allowed {
		if n.dir.entries == 0 && id != n.id {
			continue
		}
		root, err := ns.byID(id)
		if err != nil {
			return false, err
		}
		if root == nil || !within(root, n) {
			continue
		}
		if len(ns.snaps.live[id]) > 0 && (oldest == nil || id < oldest.id) {
			oldest = root
		}
		some = true
	}
	if oldest != nil {
		path := oldest.path()
		return false, metadata.Errorf(metadata.ErrSnapshot, "The directory %s cannot be deleted since %s is snapshottable and already has snapshots", path, path)
	}
	return some, nil
}

// checkSnapshotMove refuses a rename of n to below the directory to for the sake of snapshots.
func (ns *Namespace) checkSnapshotMove(n, old, to *inode, path string) error {
	if ns.meta.snapshottable == 0 {
		return nil
	}
	some, err := ns.checkUnsnapped(n)
	if err == nil && some {
		for above := to; above != nil && err == nil; above = above.parent {
			if _, ok := ns.snaps.allowed[above.id]; ok {
				err = metadata.Errorf(metadata.ErrSnapshot, "Unable to rename because %s has snapshottable descendant directories and %s is a descent of "+
					"a snapshottable directory, and HDFS does not support nested snapshottable directory.", path, to.path())
			}
		}
	}
	if err == nil {
		_, err = ns.checkUnsnapped(old)
	}
	if err != nil {
		return err
	}
	if p := n.past(); p != nil && ns.borderOf(n.parent) != ns.borderOf(to) && len(ns.tidySpans(ns.spansOf(n, nil))) >= maxSpans {
		return metadata.Errorf(metadata.ErrSnapshot, "%s was moved between snapshottable directories too often: delete some of their snapshots first", n.path())
	}
	return nil
}

func (ns *Namespace) createSnapshot(t *txn, p *place, name string) error {
	if name == "" {
		name = time.UnixMilli(int64(ns.meta.now)).UTC().Format("s20060102-150405.000")
	}
	if !validName(name) || strings.Contains(name, "/") || name == snapshotFolder {
		return metadata.Errorf(metadata.ErrInvalidPath, "Invalid path name Invalid snapshot name: %s", printable(name))
	}
	if err := checkSnapshotName(p, name); err != nil {
		return err
	}
	n, err := ns.snapshottable(p)
	if err != nil {
		return err
	}
	m := &ns.meta
	switch had := len(ns.snaps.live[n.id]); {
	case m.lastSnapshot >= maxSnapshotID:
		return metadata.Errorf(metadata.ErrSnapshot, "Failed to create the snapshot. The FileSystem has run out of snapshot IDs and ID rollover is not supported.")
	case had >= MaxSnapshots:
		return metadata.Errorf(metadata.ErrSnapshot, "Failed to add snapshot: there are already %d snapshot(s) and the max snapshot limit is %d", had, MaxSnapshots)
	case m.snapshots >= MaxSnapshots:
		return metadata.Errorf(metadata.ErrSnapshot, "Failed to add snapshot: there are already %d snapshot(s), those that are being deleted included, and the snapshot quota of the file system is %d", m.snapshots, MaxSnapshots)
	case ns.snaps.find(n.id, name) != nil:
		return metadata.Errorf(metadata.ErrSnapshot, "Failed to add snapshot: there is already a snapshot with the same name \"%s\".", name)
	}
	ns.modified(n)
	m.lastSnapshot++
	m.snapshots++
	s := &dirSnapshot{id: m.lastSnapshot, root: n.id, name: strings.Clone(name), created: m.now, nextINode: m.nextINode}
	ns.snaps.add(s)
	ns.putSnapshot(s, nil)
	t.result.Snapshot, t.result.INode = snapshotPath(n.path(), name), metadata.INodeID(s.id)
	return nil
}

// maxSnapshotID is the greatest number of a snapshot. HDFS has 2^24; here one is a field of 32 bits.
const maxSnapshotID = 1<<31 - 1

func snapshotPath(dir, name string) string { return join2(dir, snapshotFolder) + "/" + name }

func checkSnapshotName(p *place, name string) error {
	if strings.Contains(name, "/") {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Snapshot name cannot contain \"/\"")
	}
	return p.checkNew(len(p.nodes)-1, name)
}

// deleteSnapshot takes a snapshot's name away. What it kept is handed on or goes, some of it at once, the rest with the commands that follow.
func (ns *Namespace) deleteSnapshot(p *place, name string) error {
	n, err := ns.snapshottable(p)
	if err != nil {
		return err
	}
	s := ns.snaps.find(n.id, name)
	if s == nil {
		return metadata.Errorf(metadata.ErrSnapshot, "Cannot delete snapshot %s from path %s: the snapshot does not exist.", printable(name), p)
	}
	former := s.encode()
	s.deleted = true
	ns.putSnapshot(s, former)
	without(ns.snaps.live, s)
	ns.snaps.forgetKnown()
	ns.snaps.enqueue(s.id)
	ns.owed = ReclaimDelete
	return nil
}

func (ns *Namespace) renameSnapshot(p *place, name, to string) error {
	if err := checkSnapshotName(p, to); err != nil {
		return err
	}
	n, err := ns.snapshottable(p)
	if err != nil {
		return err
	}
	s := ns.snaps.find(n.id, name)
	switch {
	case s == nil:
		return metadata.Errorf(metadata.ErrSnapshot, "The snapshot %s does not exist for directory %s", printable(name), p)
	case !validName(to): // HDFS takes it, and nobody finds it again
		return metadata.Errorf(metadata.ErrInvalidPath, "Invalid path name Invalid snapshot name: %s", printable(to))
	case name == to:
		return nil
	case ns.snaps.find(n.id, to) != nil:
		return metadata.Errorf(metadata.ErrSnapshot, "The snapshot %s already exists for directory %s", to, p)
	}
	former := s.encode()
	s.name = strings.Clone(to)
	ns.putSnapshot(s, former)
	return nil
}

// replaySnapshot completes the answer to a repeated change: id is the snapshot that was made, 0 for none.
func (ns *Namespace) replaySnapshot(r *Result, id uint32) (*Result, error) {
	if id == 0 {
		return r, nil
	}
	s := ns.snaps.byID[id]
	if s == nil || s.deleted {
		return &Result{Replayed: true, Err: metadata.Errorf(metadata.ErrNotExist, "The snapshot was made, and has been deleted since")}, nil
	}
	n, err := ns.byID(s.root)
	if err == nil && n == nil {
		err = corrupt("snapshot %d is of inode %d, which is not there", id, s.root)
	}
	if err != nil {
		return nil, err
	}
	r.Snapshot = snapshotPath(n.path(), s.name)
	return r, nil
}
