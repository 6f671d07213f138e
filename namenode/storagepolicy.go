package namenode

// StoragePolicy says on volumes of which types the replicas of a file's blocks are to lie: HDFS's BlockStoragePolicy.
type StoragePolicy struct {
	ID   uint8
	Name string
	// Types are those of the replicas in turn; the last is that of all further ones, too.
	Types []StorageType
	// CreationFallback and ReplicationFallback are tried in their order where no volume of a type can take a replica: of a new block, and of
	// one that lacks replicas.
	CreationFallback    []StorageType
	ReplicationFallback []StorageType
}

// StoragePolicies are HDFS's, in the order in which it lists them.
var StoragePolicies = []StoragePolicy{
	{1, "PROVIDED", types(Provided, Disk), types(Provided, Disk), types(Provided, Disk)},
	{2, "COLD", types(Archive), nil, nil},
	{5, "WARM", types(Disk, Archive), types(Disk, Archive), types(Disk, Archive)},
	{7, "HOT", types(Disk), nil, types(Archive)},
	{10, "ONE_SSD", types(SSD, Disk), types(SSD, Disk), types(SSD, Disk)},
	{12, "ALL_SSD", types(SSD), types(Disk), types(Disk)},
	{14, "ALL_NVDIMM", types(NVDIMM), types(Disk), types(Disk)},
	{15, "LAZY_PERSIST", types(RAMDisk, Disk), types(Disk), types(Disk)},
}

func types(ts ...StorageType) []StorageType { return ts }

// HotPolicy is the policy where none was set.
var HotPolicy = &StoragePolicies[3]

// StoragePolicyByID finds a policy by HDFS's number: HotPolicy for 0 and for numbers that are none.
func StoragePolicyByID(id uint8) *StoragePolicy {
	for i := range StoragePolicies {
		if StoragePolicies[i].ID == id {
			return &StoragePolicies[i]
		}
	}
	return HotPolicy
}
