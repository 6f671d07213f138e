package namenode

import (
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// Moves are the calls of Hadoop's tools that have datanodes move replicas: its balancer, mover and disk balancer.
type Moves interface {
	// ClusterID is that of the cluster; empty before its first leader.
	ClusterID() string
	// MoveKey is the key with which such a tool signs what it asks of datanodes, until another one does. Superusers only.
	MoveKey(c metadata.Caller) (MoveKey, error)
	// Hosted lists blocks that may be moved away from a datanode, in an order that begins somewhere. Superusers only.
	Hosted(c metadata.Caller, r HostedRequest, done func([]HostedBlock, error))
}

// MoveKey is a key for moves, which lets nobody read or write a block.
type MoveKey struct {
	security.BlockKey
	// Interval is how often another one signs, Life how long a token is good.
	Interval, Life time.Duration
}

// HostedRequest asks for blocks of a datanode.
type HostedRequest struct {
	Node NodeID
	// Name is what a message calls the node.
	Name string
	// Size is of how many bytes together, at least; so many as are there, and MaxHosted at most.
	Size int64
	// Min is the size of the smallest that is wanted.
	Min int64
	// Hot is since when a file was not to be read or changed whose blocks come first: the others fill up what is lacking. 0: it does not matter.
	Hot time.Duration
	// Type is that of the volumes; 0: any.
	Type  StorageType
	Admit Admit
}

// MaxHosted is how many blocks are told at a time.
const MaxHosted = 10_000

// HostedBlock is a block, or a group of the policy Erasure, whose length is that of its data, and where its replicas are.
type HostedBlock struct {
	Block     metadata.Block
	Locations []Location
	// Units are the numbers of the internal blocks at the locations, of a group.
	Units   []byte
	Erasure metadata.ErasurePolicyID
}
