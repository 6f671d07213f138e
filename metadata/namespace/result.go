package namespace

import (
	"unique"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Result is what one command answers. Fields that an operation does not mention in its comment are zero.
type Result struct {
	// Err is the refusal, with a kind of package metadata; the command changed nothing then.
	Err error
	// OK is the boolean that HDFS answers: mkdirs, rename, delete, complete, setReplication, ...
	OK bool
	// Replayed: the answer is that of an earlier command with the same client id and call id; nothing was done.
	Replayed bool
	// What Changed says. There is a Result for each command.
	mode         metadata.Mode
	owner, group unique.Handle[string]
	// Status is the file after Create and Append.
	Status *metadata.FileStatus
	// Block is the block that AddBlock appended (or had appended, for a repetition), or that Append reopened.
	Block *metadata.Block
	// Offset is where Block starts in its file.
	Offset int64
	// File is the file after AddBlock, Append, StartRecovery and CommitRecovery.
	File *FileInfo
	// Reserved are the ranges of ReserveIDs.
	Reserved *IDRange
	// Token is the delegation token after IssueToken and RenewToken.
	Token *DelegationToken
	// Survey is the number of the survey that SurveyTree began, and INode the tree's directory. After Delete and Rename INode is
	// a large tree that has to be surveyed before.
	Survey uint64
	INode  metadata.INodeID
	// Step is which of its steps a Publish failed in, from 1 on; 0 where it is none of them. If INode is set, that is a large tree that has to be
	// surveyed for this step before.
	Step int
	// Snapshot is the path of the snapshot that ChangeSnapshots or Publish made; INode is its number then.
	Snapshot string
	// Directive is the number of the directive that AddCacheDirective made.
	Directive int64
	// Expired is set when Create or Append found the lease of a writer that was not heard of for SoftLimit: a recovery
	// of that file should be started.
	Expired *ExpiredLease
}

// Changed is what HDFS's audit log says of the inode that was made, changed or moved; the zero value for commands of which it says nothing.
func (r *Result) Changed() metadata.Changed {
	if r.owner == (unique.Handle[string]{}) {
		return metadata.Changed{}
	}
	return metadata.Changed{Owner: r.owner.Value(), Group: r.group.Value(), Mode: r.mode}
}

// changed says that a command has done what was asked for, with n.
func (t *txn) changed(n *inode) {
	t.result.OK = true
	t.show(n)
}

// show has the audit log say how n is now.
func (t *txn) show(n *inode) {
	t.result.owner, t.result.group, t.result.mode = n.owner, n.group, n.mode
}

// IDRange are ids that belong to the proposer of a ReserveIDs command: from First up to but not including End.
type IDRange struct {
	FirstBlock, EndBlock           metadata.BlockID
	FirstGroup, EndGroup           metadata.BlockID // groups are metadata.GroupStep apart
	FirstGeneration, EndGeneration metadata.Generation
}

// ExpiredLease names an open file whose writer is silent.
type ExpiredLease struct {
	INode  metadata.INodeID
	Holder string
}

// FileInfo is a file as the namenode itself needs it.
type FileInfo struct {
	Path   string
	Status metadata.FileStatus
	// Policy is the storage policy that the blocks obey; 0: the default.
	Policy uint8
	Blocks []metadata.Block
	// Bodies are the places of those blocks that are bodies, which no datanode has, in ascending order.
	Bodies []int
	// Open files only.
	UnderConstruction bool
	Holder            string
	ClientNode        string
	ClientHost        string
	LastState         BlockState
	RecoveryID        metadata.Generation
	// Synced: bytes of the last block, which is not complete, were synced, whatever its length says. Nodes are the
	// datanodes of its pipeline.
	Synced bool
	Nodes  []string
	// Truncating: the recovery is to leave TruncateTo bytes of the last block.
	Truncating bool
	TruncateTo int64
	// Source is the block that the recovery makes the last one of, as a snapshot has it; its ID is 0 where there is none.
	Source metadata.Block
}

// BlockOwner is a block with the file that it belongs to.
type BlockOwner struct {
	INode       metadata.INodeID
	Block       metadata.Block
	Replication uint16
	// Policy is HDFS's number of the storage policy that the block obeys; 0: the default.
	Policy uint8
	// Erasure is the policy of a block group; 0: the block is replicated.
	Erasure metadata.ErasurePolicyID
	// OpenEnd: the replicated block at the end of a file with an erasure coding policy.
	OpenEnd bool
	// UnderConstruction: the last block of an open file, being written or recovered.
	UnderConstruction bool
	// RecoveryID is the generation under which the block is being recovered; 0 when it is not.
	RecoveryID metadata.Generation
	// Truncate: the recovery is to leave Truncate - 1 bytes of the block; 0: it is no truncation.
	Truncate int64
	// Source is the block that the recovery makes this one of, up to Truncate - 1 bytes; its ID is 0 where there is none.
	Source metadata.Block

	// body: it is the body of a small file, which datanodes do not have. inlined: with its bytes in the record of the file.
	body, inlined bool
	crc           uint32
}

// Effects is what a log entry did to blocks that datanodes have. A block may be in several lists: they are to be taken in this order.
type Effects struct {
	Index uint64
	// Reset: everything was replaced by a snapshot; what was known of blocks is void.
	Reset   bool
	Added   []BlockOwner
	Changed []BlockOwner // generation, length, replication, state
	Removed []metadata.Block
}

func (e *Effects) empty() bool {
	return !e.Reset && len(e.Added) == 0 && len(e.Changed) == 0 && len(e.Removed) == 0
}

func blockOf(b *logpb.Block) metadata.Block {
	return metadata.Block{
		ID:         metadata.BlockID(b.GetId()),
		Generation: metadata.Generation(b.GetGeneration()),
		Length:     b.GetLength(),
	}
}

func (n *inode) info() *FileInfo {
	f := &FileInfo{Path: n.path(), Status: n.status(), Policy: n.placed(), Blocks: append([]metadata.Block(nil), n.file.blocks...), Bodies: n.bodyPlaces()}
	if o := n.file.open; o != nil {
		f.UnderConstruction = true
		f.Holder, f.ClientNode, f.ClientHost = o.holder, o.clientNode, o.clientHost
		f.LastState, f.RecoveryID = o.state, o.recovery
		f.Synced, f.Nodes = o.synced, o.nodes
		if o.truncate > 0 {
			f.Truncating, f.TruncateTo, f.Source = true, o.truncate-1, o.source
		}
	}
	return f
}

// owner describes the ith block of n.
func (n *inode) blockOwner(i int) BlockOwner {
	b := BlockOwner{INode: n.id, Block: n.file.blocks[i], Replication: n.file.replicas(), Policy: n.placed(), Erasure: n.file.codingOf(n.file.blocks[i].ID)}
	b.OpenEnd = n.file.coded() && !b.Block.ID.Striped()
	if o := n.file.open; o != nil && i == len(n.file.blocks)-1 && o.state != Complete {
		b.UnderConstruction = true
		if o.state == UnderRecovery {
			b.RecoveryID, b.Truncate, b.Source = o.recovery, o.truncate, o.source
		}
	}
	return b
}

// lastAdded and lastChanged report the last block of n.
func (ns *Namespace) lastAdded(n *inode) {
	ns.effects.Added = append(ns.effects.Added, n.blockOwner(len(n.file.blocks)-1))
}

func (ns *Namespace) lastChanged(n *inode) {
	if last := len(n.file.blocks) - 1; last >= 0 && !n.isBody(last) {
		ns.effects.Changed = append(ns.effects.Changed, n.blockOwner(last))
	}
}

// allChanged reports all blocks of n that datanodes have.
func (ns *Namespace) allChanged(n *inode) {
	for i := range n.file.blocks {
		if !n.isBody(i) {
			ns.effects.Changed = append(ns.effects.Changed, n.blockOwner(i))
		}
	}
}
