package server

import (
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

var snapshotVerbs = [...]logpb.ChangeSnapshots_Change{
	namenode.SnapshotAllow:    logpb.ChangeSnapshots_ALLOW,
	namenode.SnapshotDisallow: logpb.ChangeSnapshots_DISALLOW,
	namenode.SnapshotCreate:   logpb.ChangeSnapshots_CREATE,
	namenode.SnapshotDelete:   logpb.ChangeSnapshots_DELETE,
	namenode.SnapshotRename:   logpb.ChangeSnapshots_RENAME,
}

// ChangeSnapshots implements namenode.Snapshots.
func (s *Server) ChangeSnapshots(c metadata.Caller, r namenode.SnapshotChange, done func(string, error)) {
	t, err := target(r.Path)
	if err == nil && r.What == namenode.SnapshotCreate {
		err = namespace.CheckLength("createSnapshot", r.Path)
	}
	if err != nil {
		done("", err)
		return
	}
	if s.group.Level() < release.Snapshots {
		s.noSnapshots(c, r, done)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_ChangeSnapshots{ChangeSnapshots: &logpb.ChangeSnapshots{
		Target: t, Change: snapshotVerbs[r.What], Name: r.Name, NewName: r.NewName,
	}}
	s.change(&c, r.Retry, e, func(r *namespace.Result, err error) {
		if err != nil {
			done("", err)
			return
		}
		done(r.Snapshot, nil)
	})
}

// noSnapshots refuses a change while members may run that do not know snapshots: no directory is snapshottable then.
func (s *Server) noSnapshots(c metadata.Caller, r namenode.SnapshotChange, done func(string, error)) {
	s.Stat(c, r.Path, func(f *metadata.FileStatus, err error) {
		switch {
		case err != nil:
		case r.What == namenode.SnapshotAllow:
			err = metadata.Errorf(metadata.ErrUnsupported, "snapshots need a cluster of level %d: raise it (`hops cluster finalize`)", release.Snapshots)
		case f == nil || !f.IsDir():
			err = metadata.Errorf(metadata.ErrNotExist, "Directory does not exist: %s", r.Path)
		case !c.Superuser && f.Owner != c.User:
			err = metadata.Errorf(metadata.ErrPermission, "Permission denied. user=%s is not the owner of inode=%s", c.User, r.Path)
		case r.What != namenode.SnapshotDisallow:
			err = metadata.Errorf(metadata.ErrSnapshot, "Directory is not a snapshottable directory: %s", r.Path)
		}
		done("", err)
	})
}

// Snapshottable implements namenode.Snapshots.
func (s *Server) Snapshottable(c metadata.Caller, done func([]metadata.SnapshottableDir, error)) {
	s.readLong(&c, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(s.ns.Snapshottable(c))
	})
}

// Snapshots implements namenode.Snapshots.
func (s *Server) Snapshots(c metadata.Caller, path string, admit namenode.Admit, done func([]metadata.Snapshot, error)) {
	askLong(s, c, admit, done, func() ([]metadata.Snapshot, error) { return s.ns.Snapshots(c, path) },
		func(one *metadata.Snapshot) int { return 256 + len(one.Status.Name) + len(one.Parent) })
}

// SnapshotDiff implements namenode.Snapshots.
func (s *Server) SnapshotDiff(c metadata.Caller, path, from, to string, admit namenode.Admit, done func([]metadata.DiffEntry, error)) {
	askLong(s, c, admit, done, func() ([]metadata.DiffEntry, error) { return s.ns.SnapshotDiff(c, path, from, to) },
		func(one *metadata.DiffEntry) int { return 64 + len(one.Path) + len(one.Target) })
}

// diffPage is how many differences there are in a page, HDFS's dfs.snapshotdiff.listing-limit.
const diffPage = 1000

// SnapshotDiffPage implements namenode.Snapshots.
func (s *Server) SnapshotDiffPage(c metadata.Caller, path, from, to, after string, done func(*metadata.DiffPage, error)) {
	s.readLong(&c, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(s.ns.SnapshotDiffPage(c, path, from, to, after, diffPage))
	})
}

// maxReport is the size of the longest list that is told: a client of HDFS takes messages of 64 MiB.
const maxReport = 48 << 20

// askLong answers a read that may take long with a list, which waits until there is room for it.
func askLong[T any](s *Server, c metadata.Caller, admit namenode.Admit, done func([]T, error), read func() ([]T, error), size func(*T) int) {
	s.readLong(&c, func(err error) {
		var list []T
		if err == nil {
			list, err = read()
		}
		bytes := 0
		for i := range list {
			bytes += size(&list[i])
		}
		if err == nil && bytes > maxReport {
			err = metadata.Errorf(metadata.ErrSnapshot, "The answer has %d entries, which are more than fit into a message: compare snapshots that are less far apart", len(list))
		}
		if err == nil && admit != nil {
			err = admit(int64(bytes))
		}
		if err != nil {
			list = nil
		}
		done(list, err)
	})
}
