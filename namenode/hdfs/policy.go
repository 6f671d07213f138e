package hdfs

import "github.com/gohops/hops/namenode"

// Policy is one of HDFS's storage policies.
type Policy struct {
	ID                  uint8
	Name                string
	Creation            []namenode.StorageType
	CreationFallback    []namenode.StorageType
	ReplicationFallback []namenode.StorageType
}

// Policies are HDFS's, in the order in which it lists them. Every file here is Hot.
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

func types(ts ...namenode.StorageType) []namenode.StorageType { return ts }
