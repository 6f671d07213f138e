package dfs

import (
	"path"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// statusOf converts from the wire. name is the path that was asked for, or the directory's of an entry.
func statusOf(p *hadooppb.HdfsFileStatusProto, name string) metadata.FileStatus {
	s := metadata.FileStatus{
		ID:          metadata.INodeID(p.GetFileId()),
		Type:        metadata.TypeFile,
		Name:        string(p.GetPath()),
		Length:      int64(p.GetLength()),
		Mode:        metadata.Mode(p.GetPermission().GetPerm() & 0o1777),
		Owner:       p.GetOwner(),
		Group:       p.GetGroup(),
		MTime:       metadata.Time(p.GetModificationTime()),
		ATime:       metadata.Time(p.GetAccessTime()),
		Replication: uint16(p.GetBlockReplication()),
		BlockSize:   int64(p.GetBlocksize()),
		Children:    max(int(p.GetChildrenNum()), 0),
		Path:        name,
		ACL:         p.GetFlags()&uint32(hadooppb.HdfsFileStatusProto_HAS_ACL) != 0,

		StoragePolicy: uint8(p.GetStoragePolicy()),
	}
	if p.GetFileType() == hadooppb.HdfsFileStatusProto_IS_DIR {
		s.Type = metadata.TypeDirectory
	}
	if s.Name != "" {
		s.Path = path.Join(name, s.Name)
	}
	if locations := p.GetLocations(); locations != nil {
		s.UnderConstruction = locations.GetUnderConstruction()
	}
	return s
}
