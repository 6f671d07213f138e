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
// What is written already stays where it is until SatisfyStoragePolicy.
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

// SatisfyStoragePolicy has the blocks of a file, or of all files below a directory, moved to where the storage policies want them that hold there now. It does not wait for it.
func (c *Client) SatisfyStoragePolicy(ctx context.Context, name string) error {
	name, err := clean("satisfy storage policy", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "satisfy storage policy", name, "satisfyStoragePolicy",
		&hadooppb.SatisfyStoragePolicyRequestProto{Src: &name}, new(hadooppb.SatisfyStoragePolicyResponseProto))
}

// Tiered is how far SatisfyStoragePolicy is with a path. Sizes are in bytes.
type Tiered struct {
	// Waiting: it is at work, or waits for others. Known: the namenode knows how it ended, with so many Stuck blocks that could not be moved.
	Waiting, Known bool
	Stuck          int64
	// Paths that wait, and of all of them, since the namenode leads: Blocks that wait, Moving bytes, Moved bytes of Replicas, and Failed copies.
	Paths, Blocks, Moving, Moved, Replicas, Failed int64
}

// Tier asks how far SatisfyStoragePolicy is with a path, and for it if it is to start and was not asked for yet.
func (c *Client) Tier(ctx context.Context, name string, start bool) (Tiered, error) {
	name, err := clean("satisfy storage policy", name)
	if err != nil {
		return Tiered{}, err
	}
	var a hadooppb.TierResponseProto
	err = c.rpc.Call(ctx, operatorProtocol, "tier", &hadooppb.TierRequestProto{Path: &name, Start: &start}, &a)
	return Tiered{
		Waiting: a.GetWaiting(), Known: a.GetKnown(), Stuck: a.GetStuck(), Paths: a.GetPaths(), Blocks: a.GetBlocks(),
		Moving: a.GetMoving(), Moved: a.GetMoved(), Replicas: a.GetReplicas(), Failed: a.GetFailed(),
	}, wrap("satisfy storage policy", name, c.hinted(err))
}
