package dfs

import (
	"context"

	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// StoragePolicies lists the storage policies of the file system: on volumes of which types the replicas of files are to lie.
func (c *Client) StoragePolicies(ctx context.Context) ([]namenode.StoragePolicy, error) {
	var answer hadooppb.GetStoragePoliciesResponseProto
	if err := c.call(ctx, "storage policies", "", "getStoragePolicies", new(hadooppb.GetStoragePoliciesRequestProto), &answer); err != nil {
		return nil, err
	}
	var all []namenode.StoragePolicy
	for _, p := range answer.GetPolicies() {
		all = append(all, namenode.StoragePolicy{
			ID: uint8(p.GetPolicyId()), Name: p.GetName(), Types: storageTypesOf(p.GetCreationPolicy()),
			CreationFallback: storageTypesOf(p.GetCreationFallbackPolicy()), ReplicationFallback: storageTypesOf(p.GetReplicationFallbackPolicy()),
		})
	}
	return all, nil
}

// SetStoragePolicy says on volumes of which types the blocks of a file, or of the files below a directory, are to lie: the name of a policy.
// What is written already stays where it is.
func (c *Client) SetStoragePolicy(ctx context.Context, name, policy string) error {
	name, err := clean("set storage policy", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "set storage policy", name, "setStoragePolicy",
		&hadooppb.SetStoragePolicyRequestProto{Src: &name, PolicyName: &policy}, new(hadooppb.SetStoragePolicyResponseProto))
}

// UnsetStoragePolicy leaves it to the directory above on which volumes blocks lie.
func (c *Client) UnsetStoragePolicy(ctx context.Context, name string) error {
	name, err := clean("unset storage policy", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "unset storage policy", name, "unsetStoragePolicy",
		&hadooppb.UnsetStoragePolicyRequestProto{Src: &name}, new(hadooppb.UnsetStoragePolicyResponseProto))
}

func storageTypesOf(m *hadooppb.StorageTypesProto) []namenode.StorageType {
	var types []namenode.StorageType
	for _, t := range m.GetStorageTypes() {
		types = append(types, namenode.StorageType(t)) // the numbers are HDFS's
	}
	return types
}
