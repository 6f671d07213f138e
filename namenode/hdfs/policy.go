package hdfs

import (
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// PolicyByName finds a storage policy by its name, as HDFS does: in its own letters.
func PolicyByName(name string) (*namenode.StoragePolicy, error) {
	for i := range namenode.StoragePolicies {
		if namenode.StoragePolicies[i].Name == name {
			return &namenode.StoragePolicies[i], nil
		}
	}
	return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Cannot find a block policy with the name %s", name)
}

// ReplicationPolicy is the policy of erasure coding that says that there is none. A directory can be given it, as MapReduce does with the one
// of a job before it writes there: all are replicated.
const ReplicationPolicy = "replication"

// NotADirectory is the answer to a policy of erasure coding for a file, nil for a directory.
func NotADirectory(path string, f *metadata.FileStatus) error {
	if f.IsDir() {
		return nil
	}
	return metadata.Errorf(metadata.ErrIO, "Attempt to set an erasure coding policy for a file %s", path)
}

// NoErasureCoding is the answer to setting a policy of erasure coding: none is enabled.
func NoErasureCoding(policy string) error {
	if policy == "" {
		policy = "RS-6-3-1024k" // HDFS's default
	}
	return metadata.Errorf(metadata.ErrInvalidArgument, "Policy '%s' does not match any enabled erasure coding policies: []. "+
		"An erasure coding policy can be enabled by enableErasureCodingPolicy API.", policy)
}

// NoErasureCodingSet is the answer to taking a policy of erasure coding away.
func NoErasureCodingSet(path string) error {
	return metadata.Errorf(metadata.ErrNoErasureCoding, "No erasure coding policy explicitly set on %s", path)
}
