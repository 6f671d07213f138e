package hdfs

import (
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Policy is one of HDFS's storage policies.
type Policy struct {
	ID                  uint8
	Name                string
	Creation            []namenode.StorageType
	CreationFallback    []namenode.StorageType
	ReplicationFallback []namenode.StorageType
}

// Policies are HDFS's, in the order in which it lists them.
var Policies = []Policy{
	{1, "PROVIDED", types(namenode.Provided, namenode.Disk), types(namenode.Provided, namenode.Disk), types(namenode.Provided, namenode.Disk)},
	{2, "COLD", types(namenode.Archive), nil, nil},
	{5, "WARM", types(namenode.Disk, namenode.Archive), types(namenode.Disk, namenode.Archive), types(namenode.Disk, namenode.Archive)},
	{7, "HOT", types(namenode.Disk), nil, types(namenode.Archive)},
	{10, "ONE_SSD", types(namenode.SSD, namenode.Disk), types(namenode.SSD, namenode.Disk), types(namenode.SSD, namenode.Disk)},
	{12, "ALL_SSD", types(namenode.SSD), types(namenode.Disk), types(namenode.Disk)},
	{14, "ALL_NVDIMM", types(namenode.NVDIMM), types(namenode.Disk), types(namenode.Disk)},
	{15, "LAZY_PERSIST", types(namenode.RAMDisk, namenode.Disk), types(namenode.Disk), types(namenode.Disk)},
}

// Hot is the default policy.
var Hot = &Policies[3]

// PolicyByName finds a policy by its name, as HDFS does: in its own letters.
func PolicyByName(name string) (*Policy, error) {
	for i := range Policies {
		if Policies[i].Name == name {
			return &Policies[i], nil
		}
	}
	return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Cannot find a block policy with the name %s", name)
}

// PolicyOf is the policy of a file or directory, Hot where none was set.
func PolicyOf(f *metadata.FileStatus) *Policy {
	for i := range Policies {
		if Policies[i].ID == f.StoragePolicy {
			return &Policies[i]
		}
	}
	return Hot
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

func types(ts ...namenode.StorageType) []namenode.StorageType { return ts }
