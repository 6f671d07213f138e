package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// changeSnapshots carries out a change whose answer is empty.
func (p *protocol) changeSnapshots(c *hrpc.Call, r namenode.SnapshotChange, answer hrpc.Message) {
	r.Retry = retry(c)
	p.service.ChangeSnapshots(c.Caller, r, result(c, func(string) hrpc.Message { return answer }))
}

func (p *protocol) allowSnapshot(c *hrpc.Call, r *pb.AllowSnapshotRequestProto) {
	p.changeSnapshots(c, namenode.SnapshotChange{Path: r.GetSnapshotRoot(), What: namenode.SnapshotAllow}, &pb.AllowSnapshotResponseProto{})
}

func (p *protocol) disallowSnapshot(c *hrpc.Call, r *pb.DisallowSnapshotRequestProto) {
	p.changeSnapshots(c, namenode.SnapshotChange{Path: r.GetSnapshotRoot(), What: namenode.SnapshotDisallow}, &pb.DisallowSnapshotResponseProto{})
}

func (p *protocol) createSnapshot(c *hrpc.Call, r *pb.CreateSnapshotRequestProto) {
	change := namenode.SnapshotChange{Retry: retry(c), Path: r.GetSnapshotRoot(), What: namenode.SnapshotCreate, Name: r.GetSnapshotName()}
	p.service.ChangeSnapshots(c.Caller, change, result(c, func(path string) hrpc.Message {
		return &pb.CreateSnapshotResponseProto{SnapshotPath: &path}
	}))
}

func (p *protocol) deleteSnapshot(c *hrpc.Call, r *pb.DeleteSnapshotRequestProto) {
	p.changeSnapshots(c, namenode.SnapshotChange{Path: r.GetSnapshotRoot(), What: namenode.SnapshotDelete, Name: r.GetSnapshotName()},
		&pb.DeleteSnapshotResponseProto{})
}

func (p *protocol) renameSnapshot(c *hrpc.Call, r *pb.RenameSnapshotRequestProto) {
	p.changeSnapshots(c, namenode.SnapshotChange{
		Path: r.GetSnapshotRoot(), What: namenode.SnapshotRename, Name: r.GetSnapshotOldName(), NewName: r.GetSnapshotNewName(),
	}, &pb.RenameSnapshotResponseProto{})
}

func (p *protocol) getSnapshottableDirListing(c *hrpc.Call, _ *pb.GetSnapshottableDirListingRequestProto) {
	p.service.Snapshottable(c.Caller, result(c, func(dirs []metadata.SnapshottableDir) hrpc.Message {
		if len(dirs) == 0 { // HDFS leaves the list out, and its client makes nothing of an empty one
			return &pb.GetSnapshottableDirListingResponseProto{}
		}
		list := &pb.SnapshottableDirectoryListingProto{}
		for _, d := range dirs {
			list.SnapshottableDirListing = append(list.SnapshottableDirListing, &pb.SnapshottableDirectoryStatusProto{
				DirStatus: plainStatus(&d.Status), SnapshotQuota: ptr(uint32(d.Limit)), SnapshotNumber: ptr(uint32(d.Snapshots)),
				ParentFullpath: []byte(d.Parent),
			})
		}
		return &pb.GetSnapshottableDirListingResponseProto{SnapshottableDirList: list}
	}))
}

func (p *protocol) getSnapshotListing(c *hrpc.Call, r *pb.GetSnapshotListingRequestProto) {
	p.service.Snapshots(c.Caller, r.GetSnapshotRoot(), c.Admit, result(c, func(all []metadata.Snapshot) hrpc.Message {
		list := &pb.SnapshotListingProto{}
		for _, s := range all {
			list.SnapshotListing = append(list.SnapshotListing, &pb.SnapshotStatusProto{
				DirStatus: plainStatus(&s.Status), SnapshotID: ptr(s.ID), ParentFullpath: []byte(s.Parent), IsDeleted: no,
			})
		}
		return &pb.GetSnapshotListingResponseProto{SnapshotList: list}
	}))
}

func (p *protocol) getSnapshotDiffReport(c *hrpc.Call, r *pb.GetSnapshotDiffReportRequestProto) {
	root, from, to := r.GetSnapshotRoot(), r.GetFromSnapshot(), r.GetToSnapshot()
	p.service.SnapshotDiff(c.Caller, root, from, to, c.Admit, result(c, func(entries []metadata.DiffEntry) hrpc.Message {
		report := &pb.SnapshotDiffReportProto{SnapshotRoot: &root, FromSnapshot: &from, ToSnapshot: &to}
		for _, e := range entries {
			one := &pb.SnapshotDiffReportEntryProto{Fullpath: []byte(e.Path), ModificationLabel: ptr(e.Type.Label())}
			if e.Type == metadata.DiffRename {
				one.TargetPath = []byte(e.Target)
			}
			report.DiffReportEntries = append(report.DiffReportEntries, one)
		}
		return &pb.GetSnapshotDiffReportResponseProto{DiffReport: report}
	}))
}

// getSnapshotDiffReportListing answers a page. The client puts them together, and gives the cursor back as it is.
func (p *protocol) getSnapshotDiffReportListing(c *hrpc.Call, r *pb.GetSnapshotDiffReportListingRequestProto) {
	after := string(r.GetCursor().GetStartPath())
	p.service.SnapshotDiffPage(c.Caller, r.GetSnapshotRoot(), r.GetFromSnapshot(), r.GetToSnapshot(), after, result(c, func(page *metadata.DiffPage) hrpc.Message {
		records := func(all []metadata.DiffRecord) []*pb.SnapshotDiffReportListingEntryProto {
			var out []*pb.SnapshotDiffReportListingEntryProto
			for _, one := range all {
				e := &pb.SnapshotDiffReportListingEntryProto{
					Fullpath: []byte(one.Path), DirId: ptr(uint64(one.Dir)), FileId: ptr(uint64(one.INode)), IsReference: ptr(one.Reference()),
				}
				if one.Target != "" {
					e.TargetPath = []byte(one.Target)
				}
				out = append(out, e)
			}
			return out
		}
		index := int32(-1)
		if page.Next != "" {
			index = 0
		}
		return &pb.GetSnapshotDiffReportListingResponseProto{DiffReport: &pb.SnapshotDiffReportListingProto{
			ModifiedEntries: records(page.Modified), CreatedEntries: records(page.Created), DeletedEntries: records(page.Deleted),
			IsFromEarlier: ptr(!page.Backwards), Cursor: &pb.SnapshotDiffReportCursorProto{StartPath: []byte(page.Next), Index: &index},
		}}
	}))
}

// plainStatus is the message of a directory, for the lists that carry one.
func plainStatus(f *metadata.FileStatus) *pb.HdfsFileStatusProto {
	flags := uint32(0)
	if f.ACL {
		flags |= uint32(pb.HdfsFileStatusProto_HAS_ACL)
	}
	if f.Snapshottable {
		flags |= uint32(pb.HdfsFileStatusProto_SNAPSHOT_ENABLED)
	}
	return &pb.HdfsFileStatusProto{
		FileType: pb.HdfsFileStatusProto_IS_DIR.Enum(), Path: []byte(f.Name), Length: new(uint64), Owner: &f.Owner, Group: &f.Group,
		Permission:       &pb.FsPermissionProto{Perm: ptr(uint32(f.Mode & 0o1777))},
		ModificationTime: ptr(uint64(f.MTime)), AccessTime: ptr(uint64(f.ATime)), BlockReplication: zero32, Blocksize: new(uint64),
		FileId: ptr(uint64(f.ID)), ChildrenNum: ptr(int32(f.Children)), StoragePolicy: ptr(uint32(f.StoragePolicy)), Flags: &flags,
	}
}
