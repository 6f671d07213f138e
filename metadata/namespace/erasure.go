package namespace

import (
	"cmp"

	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
)

// A file has one erasure coding policy, that of its directory when it was made or that which it was converted to, as in HDFS, whose clients are told one
// for all blocks of a file. Its blocks are groups, which have negative ids, but that the last may be replicated, the open end: what is appended to such a
// file, and has to be on disks before a stripe is full, goes there, and a group is put in its place when it is finished (op_exchange.go).

// coded says whether the file has a policy, and layout what it is.
func (f *file) coded() bool { return f.erasure != 0 }

func (f *file) layout() stripe.Layout {
	p, _ := metadata.ErasurePolicyOf(f.erasure) // records with others are refused
	return p.Layout
}

// mayHave says whether a block with this id may be the ith of the file, or follow as the ith.
func (f *file) mayHave(id metadata.BlockID, i int) bool {
	if !f.coded() {
		return !id.Striped()
	}
	return (id.Striped() && id.Group() == id || i >= len(f.blocks)-1) && (i == 0 || f.blocks[i-1].ID.Striped())
}

// codingOf is the policy of a block of the file; 0: it is replicated.
func (f *file) codingOf(id metadata.BlockID) metadata.ErasurePolicyID {
	if id.Striped() {
		return f.erasure
	}
	return 0
}

// room is how much data a block of the file may have.
func (f *file) room(id metadata.BlockID) int64 {
	if id.Striped() {
		return f.layout().Capacity(f.blockSize)
	}
	return f.blockSize
}

// replicas is how many replicas a replicated block of the file is to have. That at the end of a file with a policy outlives as many losses as a group.
func (f *file) replicas() uint16 {
	if f.coded() {
		return uint16(f.layout().Parity + 1)
	}
	return f.replication
}

// openEnd reports whether the file's last block is the replicated one of a file with a policy.
func (f *file) openEnd() bool {
	last := f.last()
	return f.coded() && last != nil && !last.ID.Striped()
}

// blockSpace is what a complete block takes in all its replicas, or internal blocks.
func (f *file) blockSpace(b metadata.Block) int64 {
	if b.ID.Striped() {
		return f.layout().Space(b.Length)
	}
	return b.Length * int64(f.replicas())
}

// fullSpace is what a block counts for that is not complete (INodeFile.storagespaceConsumedStriped).
func (f *file) fullSpace(id metadata.BlockID) int64 {
	if id.Striped() {
		return f.blockSize * int64(f.layout().Units())
	}
	return f.blockSize * int64(f.replicas())
}

// space is what a file uses of a space quota.
func (f *file) space() int64 {
	if !f.coded() { // the same, without looking at all blocks
		size := f.length
		if last := f.last(); last != nil && f.lastState() != Complete {
			size += f.blockSize - last.Length
		}
		return size * int64(f.replication)
	}
	sum := int64(0)
	for i, b := range f.blocks {
		if i == len(f.blocks)-1 && f.lastState() != Complete {
			sum += f.fullSpace(b.ID)
		} else {
			sum += f.blockSpace(b)
		}
	}
	return sum
}

// shownReplication is what clients are told; HDFS tells 1 of files with a policy.
func (f *file) shownReplication() uint16 {
	if f.coded() {
		return 1
	}
	return f.replication
}

// policies are what an inode is told of storage and of erasure coding, by itself or by what is above it.
type policies struct {
	storage uint8 // HDFS's number; 0: nothing
	erasure uint8 // 1 + HDFS's number; 0: nothing
}

func (n *inode) policies() (p policies) {
	for ; n != nil && (p.storage == 0 || p.erasure == 0); n = n.parent {
		p = p.below(n.ownPolicies(policies{}))
	}
	return p
}

// ownPolicies are those of an entry of a directory that is told of these.
func (n *inode) ownPolicies(above policies) policies {
	if n.extra == nil {
		return above
	}
	return policies{n.extra.policy, n.extra.erasure}.below(above)
}

func (p policies) below(above policies) policies {
	return policies{cmp.Or(p.storage, above.storage), cmp.Or(p.erasure, above.erasure)}
}

// coding is the policy of the file n, or of files that are made in the directory n.
func (p policies) coding(n *inode) metadata.ErasurePolicyID {
	if n.file != nil {
		return n.file.erasure
	}
	if p.erasure == 0 {
		return 0
	}
	return metadata.ErasurePolicyID(p.erasure - 1)
}

// checkErasure checks 1 + the number of a policy.
func checkErasure(policy uint32) error {
	if policy == 1 {
		return nil
	}
	if policy > 1 && policy <= 1<<8 {
		if p, known := metadata.ErasurePolicyOf(metadata.ErasurePolicyID(policy - 1)); known && p.Built() {
			return nil
		}
	}
	return metadata.Errorf(metadata.ErrInvalidArgument, "There is no erasure coding policy with the number %d", int64(policy)-1)
}
