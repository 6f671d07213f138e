// Package namenode names what a namenode knows beside the namespace: datanodes, their volumes, the replicas on them,
// and where a reader or writer is sent. The contract by which the wires (namenode/hdfs/clientprotocol,
// namenode/hdfs/webhdfs) reach the server is Service.
package namenode

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// NodeID is a datanode's uuid, stable for the life of its data.
type NodeID string

// NoNode is what stands in the pipeline of a block group for the datanode of an internal block that failed, by clients (DatanodeID.EMPTY_DATANODE_ID). No datanode has it.
const NoNode NodeID = "null"

// VolumeID is a storage uuid, stable for the life of the volume's data.
type VolumeID string

// StorageType is the medium of a volume. The values are those of Hadoop's StorageTypeProto.
type StorageType uint8

// The storage types.
const (
	Disk StorageType = iota + 1
	SSD
	Archive
	RAMDisk
	Provided
	NVDIMM
)

var storageTypes = [...]string{Disk: "DISK", SSD: "SSD", Archive: "ARCHIVE", RAMDisk: "RAM_DISK", Provided: "PROVIDED", NVDIMM: "NVDIMM"}

func (t StorageType) String() string {
	if int(t) < len(storageTypes) && t != 0 {
		return storageTypes[t]
	}
	return storageTypes[Disk]
}

// ParseStorageType reads Hadoop's name of a storage type. Unknown names are disks, as in HDFS.
func ParseStorageType(name string) StorageType {
	for t, n := range storageTypes {
		if n == name && n != "" {
			return StorageType(t)
		}
	}
	return Disk
}

// DefaultRack is where every node stands for which no topology says otherwise.
const DefaultRack = "/default-rack"

// Node is how a datanode is found and recognised. It never changes: a registration with other addresses, or another
// AdminState, makes a new Node of the same ID.
type Node struct {
	ID           NodeID
	IP           string
	Host         string
	Rack         string
	TransferPort uint32
	HTTPPort     uint32
	IPCPort      uint32
	GRPCPort     uint32
	// Machine is the name in the datanode's certificate; empty: it shows none that has one.
	Machine string
	// Admin is what an operator has made of it, as far as it has come.
	Admin AdminState
}

// TransferAddr is the address of the data-transfer port, Hadoop's getXferAddr.
func (n *Node) TransferAddr() string {
	return net.JoinHostPort(n.IP, strconv.FormatUint(uint64(n.TransferPort), 10))
}

func (n *Node) String() string { return fmt.Sprintf("%s(%s)", n.ID, n.TransferAddr()) }

// Volume is one storage directory of a datanode. Sizes are in bytes; Remaining is what may still be written.
type Volume struct {
	ID        VolumeID
	Type      StorageType
	Capacity  int64
	Used      int64
	Remaining int64
	Failed    bool
	// Slow: a call of its disk has not come back for seconds. Who can do without it leaves it alone.
	Slow bool
}

// ReplicaState is what a datanode says of a replica. The values are those of namenode/api/v1.
type ReplicaState uint8

// The replica states: finalized; being written (Hadoop's RBW); was being written when the datanode stopped (RWR).
const (
	Finalized ReplicaState = iota + 1
	Writing
	Waiting
)

func (s ReplicaState) String() string {
	return [...]string{"UNKNOWN", "FINALIZED", "RBW", "RWR"}[s&3]
}

// Replica is one reported replica.
type Replica struct {
	Block metadata.Block
	State ReplicaState
}

// ChangeKind is the kind of an incremental report. The values are those of namenode/api/v1.
type ChangeKind uint8

// The kinds of changes.
const (
	Receiving ChangeKind = iota + 1
	Received
	Deleted
	Corrupt
	Verified
	Cached
	Uncached
)

func (k ChangeKind) String() string {
	return [...]string{"UNKNOWN", "RECEIVING", "RECEIVED", "DELETED", "CORRUPT", "VERIFIED", "CACHED", "UNCACHED"}[k&7]
}

// Change says that a replica came, went, was found damaged or intact, or is in memory or not any more.
type Change struct {
	Kind   ChangeKind
	Block  metadata.Block
	Volume VolumeID
	// Instead is the node whose replica is one too many since this one was received; empty: nobody says so.
	Instead NodeID
}

// Location is a place of a replica, or one chosen for it.
type Location struct {
	Node   *Node
	Volume VolumeID
	Type   StorageType
	// Cached: it is in the datanode's memory.
	Cached bool
}

// LocatedBlock is a block with the places where it can be read or is to be written, the best one first.
type LocatedBlock struct {
	Block     metadata.Block
	Offset    int64
	Locations []Location
	// Corrupt: every known replica is damaged.
	Corrupt bool
	// Small: it is the body of a small file. No datanode has it: Locations are the data-transfer doors of the namenodes.
	Small bool
	// Token lets its bearer do at the datanodes what the block was located for. Empty where nobody asked to.
	Token security.Token
	// Units are, of a group, the numbers of the internal blocks at Locations, each of which has a token of its own. Nil for a replicated block.
	Units      []byte
	UnitTokens []security.Token
}

// LocatedFile is what a reader needs to know.
type LocatedFile struct {
	Status metadata.FileStatus
	// Length in bytes of the complete blocks.
	Length            int64
	Blocks            []LocatedBlock
	UnderConstruction bool
	// Last is the file's last block whatever range was asked for; nil when the file has none.
	Last         *LocatedBlock
	LastComplete bool
	// Tails: it was asked for with tails.
	Tails bool
}

// NodeReport is the state of a datanode as reports and beats tell it.
type NodeReport struct {
	Node     *Node
	Volumes  []Volume
	Xceivers int
	// CacheCapacity is how many bytes of replicas it may keep in memory, CacheUsed how many it does, and Cached how many blocks.
	CacheCapacity, CacheUsed int64
	Cached                   int
	LastBeat                 time.Time
	// LastReport is when the last full block report ended; zero: none yet.
	LastReport time.Time
	Blocks     int
	Alive      bool
	Stale      bool
	// Leaving is why it is not let go yet, of one that is decommissioned or enters maintenance.
	Leaving Leaving
}

// Slow counts the volumes of a live node that are slow.
func (r NodeReport) Slow() (n int) {
	for _, v := range r.Volumes {
		if r.Alive && v.Slow && !v.Failed {
			n++
		}
	}
	return n
}

// Capacity, Used and Remaining sum over the working volumes, in bytes.
func (r NodeReport) Capacity() (n int64) { return r.sum(func(v Volume) int64 { return v.Capacity }) }

// Used sums over the working volumes, in bytes.
func (r NodeReport) Used() (n int64) { return r.sum(func(v Volume) int64 { return v.Used }) }

// Remaining sums over the working volumes, in bytes.
func (r NodeReport) Remaining() (n int64) { return r.sum(func(v Volume) int64 { return v.Remaining }) }

func (r NodeReport) sum(f func(Volume) int64) (n int64) {
	for _, v := range r.Volumes {
		if !v.Failed {
			n += f(v)
		}
	}
	return n
}

// Statistics are the counters of getFsStats. Sizes in bytes.
type Statistics struct {
	Capacity, Used, Remaining int64
	Blocks                    int64
	UnderReplicated           int64
	Corrupt                   int64
	Missing                   int64
	MissingReplicationOne     int64
	PendingDeletion           int64
	// Critical blocks have one replica left of several.
	Critical int64
	// Groups are those of the blocks above that are block groups.
	Groups GroupStatistics
}

// GroupStatistics count complete block groups.
type GroupStatistics struct {
	All int64
	// UnderReplicated ones lack internal blocks. Missing ones cannot be read, Corrupt ones among them because of damage.
	UnderReplicated, Missing, Corrupt int64
}
