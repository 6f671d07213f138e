package clientprotocol

import (
	"hash/crc32"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// NamenodeProtocol, as far as administrators' tools of Hadoop speak it: the balancer, the mover and the disk balancer. What namenodes of Hadoop ask each other there has no meaning
// here.

func (p *protocol) namenodeMethods() []hrpc.Method {
	const superuser = security.Superuser
	methods := []hrpc.Method{
		on("versionRequest", security.Anyone, p.versionRequest),
		on("getBlockKeys", superuser, p.getBlockKeys),
		on("getBlocks", superuser, p.getBlocks),
		on("isUpgradeFinalized", superuser, p.isUpgradeFinalized),
		on("isRollingUpgrade", superuser, p.isRollingUpgrade),
		unsupported("getNextSPSPath", superuser, "the namenode that leads satisfies storage policies itself; a satisfier beside it is"),
		called("getTransactionID", unsupported("getTransactionId", superuser, "there are no edit logs; that call is")),
		unsupported("getMostRecentCheckpointTxId", superuser, "there are no edit logs; that call is"),
		unsupported("rollEditLog", superuser, "there are no edit logs; that call is"),
		unsupported("getEditLogManifest", superuser, "there are no edit logs; that call is"),
		unsupported("errorReport", superuser, "namenodes are members of a group of their own; that call is"),
		unsupported("registerSubordinateNamenode", superuser, "namenodes are members of a group of their own; that call is"),
		unsupported("startCheckpoint", superuser, "every namenode writes its own checkpoints; that call is"),
		unsupported("endCheckpoint", superuser, "every namenode writes its own checkpoints; that call is"),
	}
	for i := range methods {
		methods[i] = withAudit(methods[i])
	}
	return methods
}

// layoutVersion is that of namenodes of Hadoop 3.4, -67, which its tools would compare with their own.
const layoutVersion = math.MaxUint32 - 67 + 1

func (p *protocol) versionRequest(c *hrpc.Call, _ *pb.VersionRequestProto) {
	cluster := p.service.ClusterID()
	c.Reply(&pb.VersionResponseProto{Info: &pb.NamespaceInfoProto{
		BuildVersion: ptr(status.Version), SoftwareVersion: ptr(status.Version), Unused: zero32, BlockPoolID: p.blockPool(),
		StorageInfo: &pb.StorageInfoProto{
			LayoutVersion: ptr(uint32(layoutVersion)), ClusterID: &cluster, CTime: new(uint64),
			NamespceID: ptr(crc32.ChecksumIEEE([]byte(cluster)) & math.MaxInt32),
		},
		State: pb.NamenodeStateProto_NAMENODE_ACTIVE.Enum(), // others do not answer
	}})
}

func (p *protocol) getBlockKeys(c *hrpc.Call, _ *pb.GetBlockKeysRequestProto) {
	k, err := p.service.MoveKey(c.Caller)
	if err != nil {
		c.Fail(err)
		return
	}
	key := &pb.BlockKeyProto{KeyId: ptr(uint32(k.ID)), ExpiryDate: ptr(uint64(time.Now().Add(k.Interval + k.Life).UnixMilli())), KeyBytes: k.Key}
	c.Reply(&pb.GetBlockKeysResponseProto{Keys: &pb.ExportedBlockKeysProto{
		IsBlockTokenEnabled: yes, KeyUpdateInterval: ptr(uint64(k.Interval.Milliseconds())), TokenLifeTime: ptr(uint64(k.Life.Milliseconds())),
		CurrentKey: key, AllKeys: []*pb.BlockKeyProto{key},
	}})
}

func (p *protocol) getBlocks(c *hrpc.Call, r *pb.GetBlocksRequestProto) {
	node := r.GetDatanode()
	request := namenode.HostedRequest{
		Node: namenode.NodeID(node.GetDatanodeUuid()), Name: datanodeName(node), Size: int64(min(r.GetSize(), math.MaxInt64)), Min: int64(min(r.GetMinBlockSize(), math.MaxInt64)),
		Hot: time.Duration(min(r.GetTimeInterval(), uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond, Admit: c.Admit,
	}
	if r.StorageType != nil {
		request.Type = namenode.StorageType(r.GetStorageType())
	}
	p.service.Hosted(c.Caller, request, result(c, func(blocks []namenode.HostedBlock) hrpc.Message {
		list := &pb.BlocksWithLocationsProto{Blocks: make([]*pb.BlockWithLocationsProto, len(blocks))}
		for i := range blocks {
			list.Blocks[i] = hosted(&blocks[i])
		}
		return &pb.GetBlocksResponseProto{Blocks: list}
	}))
}

// datanodeName is a datanode as Java prints its DatanodeInfo.
func datanodeName(n *pb.DatanodeIDProto) string {
	return net.JoinHostPort(n.GetIpAddr(), strconv.FormatUint(uint64(n.GetXferPort()), 10))
}

func hosted(b *namenode.HostedBlock) *pb.BlockWithLocationsProto {
	m := &pb.BlockWithLocationsProto{Block: &pb.BlockProto{
		BlockId: ptr(uint64(b.Block.ID)), GenStamp: ptr(uint64(b.Block.Generation)), NumBytes: ptr(uint64(b.Block.Length)),
	}}
	for i := range b.Locations {
		l := &b.Locations[i]
		m.DatanodeUuids = append(m.DatanodeUuids, string(l.Node.ID))
		m.StorageUuids = append(m.StorageUuids, string(l.Volume))
		m.StorageTypes = append(m.StorageTypes, storageType(l.Type))
	}
	if policy, known := metadata.ErasurePolicyOf(b.Erasure); known {
		m.Indices, m.DataBlockNum, m.CellSize = b.Units, ptr(uint32(policy.Layout.Data)), ptr(uint32(policy.Layout.Cell))
	}
	return m
}

// isUpgradeFinalized: there is nothing on disk to go back to, also while an upgrade goes on.
func (p *protocol) isUpgradeFinalized(c *hrpc.Call, _ *pb.IsUpgradeFinalizedRequestProto) {
	c.Reply(&pb.IsUpgradeFinalizedResponseProto{IsUpgradeFinalized: yes})
}

func (p *protocol) isRollingUpgrade(c *hrpc.Call, _ *pb.IsRollingUpgradeRequestProto) {
	p.service.RollingUpgrade(c.Caller, namenode.QueryUpgrade, result(c, func(u *namenode.Upgrade) hrpc.Message {
		return &pb.IsRollingUpgradeResponseProto{IsRollingUpgrade: ptr(u != nil && u.Finalized.IsZero())}
	}))
}
