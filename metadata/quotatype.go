package metadata

// Types of volumes can have quotas of their own. QuotaTypes are those, in the order in which records have them; the numbers are HDFS's StorageTypeProto.
var QuotaTypes = [...]QuotaType{{1, "DISK"}, {2, "SSD"}, {3, "ARCHIVE"}, {5, "PROVIDED"}, {6, "NVDIMM"}}

// QuotaType is a type of volumes that can have a quota.
type QuotaType struct {
	Number uint32
	Name   string
}

// TypeQuota is a quota for a type of volumes, and what is used of it, in bytes in all replicas.
type TypeQuota struct {
	QuotaType
	Quota, Consumed int64
}

// QuotaTypeOf finds a type by HDFS's number, as index in QuotaTypes.
func QuotaTypeOf(number uint32) (int, bool) {
	for i, t := range QuotaTypes {
		if t.Number == number {
			return i, true
		}
	}
	return 0, false
}
