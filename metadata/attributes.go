package metadata

import "math"

// XAttrNamespace says who may use an extended attribute. The values are those of Hadoop's XAttrNamespaceProto.
type XAttrNamespace uint8

// The namespaces: user ones need the rights of the file, trusted ones the superuser; security and system ones are the
// file system's own; raw ones exist below /.reserved/raw only.
const (
	XAttrUser XAttrNamespace = iota
	XAttrTrusted
	XAttrSecurity
	XAttrSystem
	XAttrRaw
)

// String is the prefix of names in the namespace, without the dot.
func (n XAttrNamespace) String() string {
	if n > XAttrRaw {
		return "unknown"
	}
	return [...]string{"user", "trusted", "security", "system", "raw"}[n]
}

// XAttr is an extended attribute of a file or directory. Name is without the prefix of the namespace.
type XAttr struct {
	Namespace XAttrNamespace
	Name      string
	Value     []byte
}

// FullName is the name with its prefix: user.name.
func (x XAttr) FullName() string { return x.Namespace.String() + "." + x.Name }

// The limits that HDFS ships with: attributes of an inode, and bytes of name and value together.
const (
	MaxXAttrs    = 32
	MaxXAttrSize = 16384
)

// ACLType is what an entry of an access control list is about. The values are those of Hadoop's AclEntryTypeProto.
type ACLType uint8

// The types of entries.
const (
	ACLUser ACLType = iota
	ACLGroup
	ACLMask
	ACLOther
)

// String is the word for the type in the text form of a list.
func (t ACLType) String() string { return [...]string{"user", "group", "mask", "other"}[t&3] }

// ACLEntry is a line of an access control list (POSIX.1e draft 17). An empty name is the owner or the owning group.
type ACLEntry struct {
	// Default: the entry is of the list that new entries of a directory inherit.
	Default bool
	Type    ACLType
	Name    string
	Rights  Access
}

// String is the text form: default:user:alice:r-x.
func (e ACLEntry) String() string {
	prefix := ""
	if e.Default {
		prefix = "default:"
	}
	return prefix + e.Type.String() + ":" + e.Name + ":" + e.Rights.Symbol()
}

// Symbol is the three letters of a mode's digit: r-x.
func (a Access) Symbol() string {
	return [...]string{"---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"}[a&7]
}

// MaxACLEntries is how many access entries, and how many default entries, a list may have.
const MaxACLEntries = 32

// ACL is the access control list of an inode. Entries are those that the mode does not hold: named users, the owning
// group and named groups if there are named ones, then all default entries. With such access entries the group digit of
// the mode is the mask.
type ACL struct {
	Owner, Group string
	Mode         Mode
	Entries      []ACLEntry
}

// Quotas: no limit; and, of a request, leave it as it is. The name quota of "/" is never unset, it is QuotaKeep then.
const (
	QuotaUnset int64 = -1
	QuotaKeep  int64 = math.MaxInt64
)

// QuotaOperation is what HDFS calls setting these quotas (FSNamesystem.getQuotaCommand).
func QuotaOperation(names, space int64) string {
	switch {
	case names == QuotaUnset && space == QuotaKeep:
		return "clearQuota"
	case names == QuotaKeep && space == QuotaUnset:
		return "clearSpaceQuota"
	case space == QuotaKeep:
		return "setQuota"
	}
	return "setSpaceQuota"
}

// QuotaUsage is what a tree uses of its quotas: inodes and bytes in all replicas. Quotas are QuotaUnset when unset.
type QuotaUsage struct {
	Names, NameQuota  int64
	Space, SpaceQuota int64
	// Types are the quotas of types of volumes; nil: there are none.
	Types []TypeQuota
}
