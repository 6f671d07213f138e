package namenode

import "github.com/gohops/hops/metadata"

// Erasure are the calls about erasure coding.
type Erasure interface {
	// ErasurePolicies lists all policies, by id.
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
