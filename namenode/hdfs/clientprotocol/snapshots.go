package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Without snapshots no directory can be a snapshottable one: that is what a client hears who wants to make, rename or
// remove one, in the words that HDFS has for it.

func (p *protocol) noSnapshots(c *hrpc.Call, path string) {
	p.service.Stat(c.Caller, path, func(f *metadata.FileStatus, err error) {
		switch {
		case err != nil:
		case f == nil || !f.IsDir():
			err = metadata.Errorf(metadata.ErrNotExist, "Directory does not exist: %s", path)
		case !c.Caller.Superuser && f.Owner != c.Caller.User:
			err = metadata.Errorf(metadata.ErrPermission, "Permission denied. user=%s is not the owner of inode=%s", c.Caller.User, path)
		default:
			err = metadata.Errorf(metadata.ErrSnapshot, "Directory is not a snapshottable directory: %s", path)
		}
		c.Fail(err)
	})
}

func (p *protocol) createSnapshot(c *hrpc.Call, r *pb.CreateSnapshotRequestProto) {
	p.noSnapshots(c, r.GetSnapshotRoot())
}

func (p *protocol) deleteSnapshot(c *hrpc.Call, r *pb.DeleteSnapshotRequestProto) {
	p.noSnapshots(c, r.GetSnapshotRoot())
}

func (p *protocol) renameSnapshot(c *hrpc.Call, r *pb.RenameSnapshotRequestProto) {
	p.noSnapshots(c, r.GetSnapshotRoot())
}
