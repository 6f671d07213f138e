package namenode

import "github.com/gohops/hops/metadata"

// Erasure are the calls about erasure coding.
type Erasure interface {
	// ErasurePolicies lists all policies, by name.
	ErasurePolicies(c metadata.Caller, done func([]ErasurePolicy, error))
	// SwitchErasurePolicy says whether directories and files may be given a policy. What has it keeps it. Superusers only. Errors:
	// ErrInvalidArgument for a name that is none, ErrUnsupported for a code that is not built and below release.ErasureCoding.
	SwitchErasurePolicy(c metadata.Caller, name string, enable bool, done func(error))
	// SetErasurePolicy says by its name how files that are made below a directory from now on are coded: ReplicationPolicy, or one that is
	// enabled; empty is metadata.DefaultErasurePolicy.
	SetErasurePolicy(c metadata.Caller, retry Retry, path, policy string, done func(error))
	// UnsetErasurePolicy leaves it to the directory above. Errors: ErrNoErasureCoding.
	UnsetErasurePolicy(c metadata.Caller, retry Retry, path string, done func(error))
	// ErasurePolicy is that of a file, or of the files that are made in a directory; nil: they are replicated.
	ErasurePolicy(c metadata.Caller, path string, done func(*metadata.ErasurePolicy, error))
	// ErasureTopology says whether there are datanodes and racks enough for the policies with these names, for the enabled ones where none is
	// named, and why not. Superusers only.
	ErasureTopology(c metadata.Caller, policies []string, done func(ErasureTopology, error))
	// BeginRewrite makes a file beside another one for the same bytes in another form, which the caller writes and closes as any file. Errors:
	// ErrUnsupported below release.SealedTails, ErrBeingCreated for a file that is to be converted and open, ErrInvalidArgument for a policy that is not
	// enabled and for a file without an open end that is to be sealed.
	BeginRewrite(c metadata.Caller, r RewriteRequest, done func(*Rewrite, error))
	// EndRewrite puts the blocks of such a file in place of those that it is a copy of, in one command, and removes it. Done is given the last block of a
	// file whose open end was sealed. What is not stored of it yet is waited for. Errors: ErrNotReplicatedYet.
	EndRewrite(c metadata.Caller, r EndRewriteRequest, done func(*LocatedBlock, error))
}

// RewriteRequest asks for a file beside another one.
type RewriteRequest struct {
	Retry  Retry
	File   FileRef
	Client string
	// Tail: groups are to take the place of the replicated end of the file, which Client writes; else all of a closed file gets another form.
	Tail bool
	// Policy is the name of the erasure coding policy of the other form, or ReplicationPolicy, with so many replicas, 0 for the default.
	Policy      string
	Replication int
}

// Rewrite is a file beside another one.
type Rewrite struct {
	// Status is that of the file that was made.
	Status metadata.FileStatus
	// Blocks says what the blocks of the other one are, and Length how long it is.
	Blocks uint64
	Length int64
}

// EndRewriteRequest has the blocks of Source take the place of those of File: with Tail, which Client has finished, of that one, else of all, if they are
// still those that Blocks says.
type EndRewriteRequest struct {
	Retry  Retry
	File   FileRef
	Client string
	Tail   *metadata.Block
	Source metadata.INodeID
	Blocks uint64
}

// ReplicationPolicy is the name of the policy that says that there is none.
const ReplicationPolicy = "replication"

// ErasurePolicy is a policy and whether it may be given to directories.
type ErasurePolicy struct {
	metadata.ErasurePolicy
	Enabled bool
}

// ErasureTopology is HDFS's ECTopologyVerifierResult.
type ErasureTopology struct {
	Supported bool
	Message   string
}
