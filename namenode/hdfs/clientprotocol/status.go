package clientprotocol

import (
	"sync"

	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Values that many messages point to. They are shared and never written.
var (
	zero32 = new(uint32)
	yes    = ptr(true)
	no     = ptr(false)
	empty  = ptr("")
)

func ptr[T any](v T) *T { return &v }

// encoder makes Hadoop's messages of a namenode's words.
type encoder struct {
	pool  func() *string
	nodes sync.Map // *namenode.Node: []byte
}

func datanodeInfo(n *namenode.Node) *pb.DatanodeInfoProto {
	return &pb.DatanodeInfoProto{
		Id: &pb.DatanodeIDProto{
			IpAddr: &n.IP, HostName: &n.Host, DatanodeUuid: ptr(string(n.ID)),
			XferPort: &n.TransferPort, InfoPort: &n.HTTPPort, IpcPort: &n.IPCPort, InfoSecurePort: zero32,
		},
		Location:   &n.Rack, // absent it becomes null in Java, which Spark does not survive
		AdminState: pb.DatanodeInfoProto_AdminState(n.Admin).Enum(),
	}
}

func storageType(t namenode.StorageType) pb.StorageTypeProto {
	if t == 0 {
		return pb.StorageTypeProto_DISK
	}
	return pb.StorageTypeProto(t)
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
	m.CacheCapacity, m.CacheUsed = ptr(uint64(r.CacheCapacity)), ptr(uint64(r.CacheUsed))
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
