package hrpc

import (
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ofSnapshots is what a call about snapshots is about, in the words of HDFS's audit log: a snapshot is the path of its directory in
// there, and one that is made is what the answer calls it.
func ofSnapshots(request interface{ GetSnapshotRoot() string }, answer Message) (source, target string) {
	root := request.GetSnapshotRoot()
	switch r := request.(type) {
	case interface {
		GetSnapshotOldName() string
		GetSnapshotNewName() string
	}:
		return security.SnapshotPath(root, r.GetSnapshotOldName()), security.SnapshotPath(root, r.GetSnapshotNewName())
	case interface {
		GetFromSnapshot() string
		GetToSnapshot() string
	}:
		return security.SnapshotPath(root, r.GetFromSnapshot()), security.SnapshotPath(root, r.GetToSnapshot())
	case *hadooppb.DeleteSnapshotRequestProto:
		return security.SnapshotPath(root, r.GetSnapshotName()), ""
	}
	if made, ok := answer.(interface{ GetSnapshotPath() string }); ok {
		return root, made.GetSnapshotPath()
	}
	return root, ""
}
