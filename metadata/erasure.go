package metadata

import (
	"slices"

	"github.com/gohops/hops/internal/stripe"
)

// ErasurePolicyID is HDFS's number of an erasure coding policy. 0 is none where nothing was said, and replication where something was.
type ErasurePolicyID uint8

// ErasurePolicy says how the files below a directory are striped and coded.
type ErasurePolicy struct {
	ID ErasurePolicyID
	// Name is HDFS's: codec, data and parity blocks, cell.
	Name string
	// Codec is the schema's name of the code: rs, rs-legacy, xor.
	Codec  string
	Layout stripe.Layout
}

// The policies that every HDFS has (SystemErasureCodingPolicies), by id.
var erasurePolicies = []ErasurePolicy{
	{1, "RS-6-3-1024k", "rs", stripe.Layout{Data: 6, Parity: 3, Cell: 1 << 20}},
	{2, "RS-3-2-1024k", "rs", stripe.Layout{Data: 3, Parity: 2, Cell: 1 << 20}},
	{3, "RS-LEGACY-6-3-1024k", "rs-legacy", stripe.Layout{Data: 6, Parity: 3, Cell: 1 << 20}},
	{4, "XOR-2-1-1024k", "xor", stripe.Layout{Data: 2, Parity: 1, Cell: 1 << 20}},
	{5, "RS-10-4-1024k", "rs", stripe.Layout{Data: 10, Parity: 4, Cell: 1 << 20}},
}

// DefaultErasurePolicy is the one that is meant where a request names none.
const DefaultErasurePolicy = "RS-6-3-1024k"

// ErasurePolicies are all policies, by id. Only those that are Built can be used.
func ErasurePolicies() []ErasurePolicy { return slices.Clone(erasurePolicies) }

// ErasurePolicyOf is the policy with an id.
func ErasurePolicyOf(id ErasurePolicyID) (ErasurePolicy, bool) {
	if id < 1 || int(id) > len(erasurePolicies) {
		return ErasurePolicy{}, false
	}
	return erasurePolicies[id-1], true
}

// ErasurePolicyNamed is the policy with a name.
func ErasurePolicyNamed(name string) (ErasurePolicy, bool) {
	i := slices.IndexFunc(erasurePolicies, func(p ErasurePolicy) bool { return p.Name == name })
	if i < 0 {
		return ErasurePolicy{}, false
	}
	return erasurePolicies[i], true
}

// Built says whether there is a coder for the policy: rs-legacy, which is another code and slower, has none.
func (p ErasurePolicy) Built() bool { return p.Codec == "rs" || p.Codec == "xor" }

// Block groups. Replicated blocks have positive ids, groups negative ones whose four low bits are 0; the internal block with number i of a group
// has the group's id and i in those bits (SequentialBlockGroupIdGenerator).
const (
	// FirstGroupID is the first id of a group in a new namespace, as in HDFS.
	FirstGroupID BlockID = -1<<63 + GroupStep
	// GroupStep is the distance of two groups.
	GroupStep BlockID = stripe.MaxUnits
)

// Striped says whether the id is one of a group, or of an internal block.
func (id BlockID) Striped() bool { return id < 0 }

// Group is the id of the group that an internal block is of. A group and a replicated block are their own.
func (id BlockID) Group() BlockID {
	if id.Striped() {
		return id &^ (GroupStep - 1)
	}
	return id
}

// Unit is which internal block of its group the id is; 0 for a replicated block.
func (id BlockID) Unit() int {
	if id.Striped() {
		return int(id & (GroupStep - 1))
	}
	return 0
}

// Internal is the id of an internal block of the group.
func (id BlockID) Internal(unit int) BlockID { return id + BlockID(unit) }
