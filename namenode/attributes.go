package namenode

import "github.com/gohops/hops/metadata"

// Attributes are the calls about what few files and directories have: extended attributes, access control lists, quotas;
// and those that move whole blocks about.
type Attributes interface {
	SetXAttr(c metadata.Caller, r SetXAttrRequest, done func(error))
	// RemoveXAttr fails when the attribute is not there.
	RemoveXAttr(c metadata.Caller, retry Retry, path string, a metadata.XAttr, done func(error))
	// XAttrs returns the named attributes, or all that the caller may see. It fails when one is not there.
	XAttrs(c metadata.Caller, path string, names []metadata.XAttr, done func([]metadata.XAttr, error))
	// ListXAttrs is for the names of all attributes that the caller may see, and needs no right to read them.
	ListXAttrs(c metadata.Caller, path string, done func([]metadata.XAttr, error))

	SetACL(c metadata.Caller, path string, change ACLChange, entries []metadata.ACLEntry, done func(error))
	ACL(c metadata.Caller, path string, done func(*metadata.ACL, error))

	// SetQuota limits a directory; metadata.QuotaKeep leaves a limit, metadata.QuotaUnset takes it away.
	SetQuota(c metadata.Caller, path string, names, space int64, done func(error))
	// SetTypeQuota limits the bytes on volumes of a type, by HDFS's number of it; metadata.QuotaUnset takes the limit away.
	SetTypeQuota(c metadata.Caller, path string, kind uint32, space int64, done func(error))
	QuotaUsage(c metadata.Caller, path string, done func(*metadata.QuotaUsage, error))

	// SetStoragePolicy says by HDFS's number on what kind of volumes files are to lie; 0: on those of the directory above.
	SetStoragePolicy(c metadata.Caller, path string, policy uint8, done func(error))
	// SatisfyStoragePolicy has what lies below a path moved to where the storage policies want it that hold there now; it does not wait for it. ErrIO: that was asked for already.
	SatisfyStoragePolicy(c metadata.Caller, path string, done func(error))

	// Truncate makes a file shorter. False: the cut goes through a block, which datanodes are cutting; the file is open
	// until they have.
	Truncate(c metadata.Caller, retry Retry, path string, length int64, client string, done func(bool, error))
	// Concat moves the blocks of files of the same directory to the end of the target.
	Concat(c metadata.Caller, retry Retry, target string, sources []string, done func(error))
}

// ACLChange is what to do with an access control list.
type ACLChange uint8

// The changes, as HDFS has them: replace the list, scope by scope; add or change entries; remove entries; remove the
// default entries; remove all but the mode.
const (
	ACLSet ACLChange = iota
	ACLModify
	ACLRemoveEntries
	ACLRemoveDefault
	ACLRemove
)

// SetXAttrRequest asks for an attribute. Create: it may be made. Replace: it may be there.
type SetXAttrRequest struct {
	Retry           Retry
	Path            string
	Attribute       metadata.XAttr
	Create, Replace bool
}

// MkdirsRequest asks for a directory.
type MkdirsRequest struct {
	Path string
	// Mode is what the umask left, Unmasked what there was before: it counts below a directory with a default access
	// control list. Nil: the client did not say.
	Mode     metadata.Mode
	Unmasked *metadata.Mode
	// Parents: those above are made too.
	Parents bool
}
