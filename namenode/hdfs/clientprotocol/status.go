package clientprotocol

import (
	"sync"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Values that many messages point to. They are shared and never written.
var (
	isDir  = pb.HdfsFileStatusProto_IS_DIR.Enum()
	isFile = pb.HdfsFileStatusProto_IS_FILE.Enum()
	zero32 = new(uint32)
	hasACL = ptr(uint32(pb.HdfsFileStatusProto_HAS_ACL))
	yes    = ptr(true)
	no     = ptr(false)
	empty  = ptr("")
	// emptyToken has all its required fields, empty: security is off.
	emptyToken = &pb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: empty, Service: empty}
)

func ptr[T any](v T) *T { return &v }

// status is a HdfsFileStatusProto with room for everything its fields point to, so that one allocation makes it.
type status struct {
	message              pb.HdfsFileStatusProto
	permission           pb.FsPermissionProto
	perm, replication    uint32
	policy               uint32
	length, mtime, atime uint64
	blockSize, id        uint64
	children             int32
	owner, group         string
}

// noPath is the path of a status whose request named the file: required, and empty.
var noPath = []byte{}

// set fills in the message. name is the local name for entries of a listing, noPath otherwise.
func (s *status) set(f *metadata.FileStatus, name []byte) *pb.HdfsFileStatusProto {
	m := &s.message
	m.FileType = isFile
	if f.IsDir() {
		m.FileType = isDir
	}
	s.perm = uint32(f.Mode & 0o1777)
	s.permission.Perm = &s.perm
	s.replication, s.children = uint32(f.Replication), int32(f.Children)
	s.length, s.mtime, s.atime = uint64(f.Length), uint64(f.MTime), uint64(f.ATime)
	s.blockSize, s.id = uint64(f.BlockSize), uint64(f.ID)
	s.owner, s.group = f.Owner, f.Group
	m.Path = name
	m.Length, m.ModificationTime, m.AccessTime = &s.length, &s.mtime, &s.atime
	m.Permission, m.Owner, m.Group = &s.permission, &s.owner, &s.group
	m.BlockReplication, m.Blocksize, m.FileId, m.ChildrenNum = &s.replication, &s.blockSize, &s.id, &s.children
	// Absent flags make Java look for them in the high bits of the permission.
	s.policy = uint32(f.StoragePolicy)
	m.StoragePolicy, m.Flags = &s.policy, zero32
	if f.ACL {
		m.Flags = hasACL
	}
	m.Locations = nil
	return m
}

func fileStatus(f *metadata.FileStatus) *pb.HdfsFileStatusProto {
	return new(status).set(f, noPath)
}

// encoder makes Hadoop's messages of a namenode's words.
type encoder struct {
	pool  func() *string
	nodes sync.Map // *namenode.Node: *pb.DatanodeInfoProto
}

func (e *encoder) block(b metadata.Block) *pb.ExtendedBlockProto {
	m := &struct {
		message                pb.ExtendedBlockProto
		id, generation, length uint64
	}{id: uint64(b.ID), generation: uint64(b.Generation), length: uint64(b.Length)}
	m.message.PoolId, m.message.BlockId, m.message.GenerationStamp, m.message.NumBytes = e.pool(), &m.id, &m.generation, &m.length
	return &m.message
}

// node is what clients need to reach a datanode; one message per registration, shared by all answers.
func (e *encoder) node(n *namenode.Node) *pb.DatanodeInfoProto {
	if m, ok := e.nodes.Load(n); ok {
		return m.(*pb.DatanodeInfoProto)
	}
	m := datanodeInfo(n)
	e.nodes.Store(n, m)
	return m
}

func datanodeInfo(n *namenode.Node) *pb.DatanodeInfoProto {
	return &pb.DatanodeInfoProto{
		Id: &pb.DatanodeIDProto{
			IpAddr: &n.IP, HostName: &n.Host, DatanodeUuid: ptr(string(n.ID)),
			XferPort: &n.TransferPort, InfoPort: &n.HTTPPort, IpcPort: &n.IPCPort, InfoSecurePort: zero32,
		},
		Location:   &n.Rack, // absent it becomes null in Java, which Spark does not survive
		AdminState: pb.DatanodeInfoProto_NORMAL.Enum(),
	}
}

func storageType(t namenode.StorageType) pb.StorageTypeProto {
	if t == 0 {
		return pb.StorageTypeProto_DISK
	}
	return pb.StorageTypeProto(t)
}

// located has locs, storageTypes and storageIDs of equal length: clients index one by the other.
func (e *encoder) located(b *namenode.LocatedBlock) *pb.LocatedBlockProto {
	m := &pb.LocatedBlockProto{
		B: e.block(b.Block), Offset: ptr(uint64(b.Offset)), Corrupt: no, BlockToken: emptyToken,
	}
	if b.Corrupt {
		m.Corrupt = yes
	}
	if n := len(b.Locations); n > 0 {
		m.Locs = make([]*pb.DatanodeInfoProto, n)
		m.StorageTypes = make([]pb.StorageTypeProto, n)
		m.StorageIDs = make([]string, n)
		for i, l := range b.Locations {
			m.Locs[i], m.StorageTypes[i], m.StorageIDs[i] = e.node(l.Node), storageType(l.Type), string(l.Volume)
		}
	}
	return m
}

func (e *encoder) locatedFile(f *namenode.LocatedFile) *pb.LocatedBlocksProto {
	m := &pb.LocatedBlocksProto{
		FileLength: ptr(uint64(f.Length)), UnderConstruction: ptr(f.UnderConstruction), IsLastBlockComplete: ptr(f.LastComplete),
		Blocks: make([]*pb.LocatedBlockProto, len(f.Blocks)),
	}
	for i := range f.Blocks {
		m.Blocks[i] = e.located(&f.Blocks[i])
	}
	if f.Last != nil {
		m.LastBlock = e.located(f.Last)
	}
	return m
}

// report is a datanode with its figures.
func report(r *namenode.NodeReport) *pb.DatanodeInfoProto {
	m := datanodeInfo(r.Node)
	used := uint64(r.Used())
	capacity, remaining := uint64(r.Capacity()), uint64(r.Remaining())
	m.Capacity, m.DfsUsed, m.Remaining, m.BlockPoolUsed = &capacity, &used, &remaining, &used
	m.NonDfsUsed = ptr(uint64(max(0, r.Capacity()-r.Used()-r.Remaining())))
	m.XceiverCount = ptr(uint32(r.Xceivers))
	m.NumBlocks = ptr(uint32(r.Blocks))
	m.CacheCapacity, m.CacheUsed = new(uint64), new(uint64)
	beat := uint64(r.LastBeat.UnixMilli())
	m.LastUpdate, m.LastUpdateMonotonic = &beat, &beat
	if !r.LastReport.IsZero() {
		at := uint64(r.LastReport.UnixMilli())
		m.LastBlockReportTime, m.LastBlockReportMonotonic = &at, &at
	}
	return m
}

func storages(r *namenode.NodeReport) []*pb.StorageReportProto {
	out := make([]*pb.StorageReportProto, len(r.Volumes))
	for i := range r.Volumes {
		v := &r.Volumes[i]
		id := string(v.ID)
		used := uint64(v.Used)
		out[i] = &pb.StorageReportProto{
			StorageUuid: &id, //nolint:staticcheck // deprecated in Hadoop, and required on its wire
			Failed:      &v.Failed, Capacity: ptr(uint64(v.Capacity)), DfsUsed: &used,
			Remaining: ptr(uint64(v.Remaining)), BlockPoolUsed: &used,
			Storage: &pb.DatanodeStorageProto{
				StorageUuid: &id, State: pb.DatanodeStorageProto_NORMAL.Enum(), StorageType: storageType(v.Type).Enum(),
			},
			NonDfsUsed: ptr(uint64(max(0, v.Capacity-v.Used-v.Remaining))),
		}
	}
	return out
}

func ids(nodes []*pb.DatanodeInfoProto) []namenode.NodeID {
	var out []namenode.NodeID
	for _, n := range nodes {
		out = append(out, namenode.NodeID(n.GetId().GetDatanodeUuid()))
	}
	return out
}
