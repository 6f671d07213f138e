package metadata

import (
	"errors"
	"fmt"
	"io/fs"
)

// Kind is a sentinel that operations of the file system end in. A kind travels over every wire: to Hadoop clients as a
// Java class (namenode/hdfs/exceptions.go), over gRPC as a code. Where the standard library has a word for it,
// errors.Is finds that too.
type Kind struct {
	name string
	std  error
}

func (k *Kind) Error() string { return k.name }

// Is makes errors.Is(err, fs.ErrNotExist) and its like work.
func (k *Kind) Is(target error) bool { return k.std != nil && target == k.std }

// The kinds.
var (
	// ErrNotExist: the path, or a part of it that had to be there, is not.
	ErrNotExist = &Kind{"no such file or directory", fs.ErrNotExist}
	// ErrExist: something is there that the operation would not replace.
	ErrExist = &Kind{"file exists", fs.ErrExist}
	// ErrParentNotDirectory: an ancestor of the path is a file.
	ErrParentNotDirectory = &Kind{"parent is not a directory", nil}
	// ErrNotDirectory: the path itself is a file, and a directory was asked for.
	ErrNotDirectory = &Kind{"not a directory", nil}
	// ErrNotEmpty: a directory with entries was to go without recursion.
	ErrNotEmpty = &Kind{"directory is not empty", nil}
	// ErrPermission: the caller lacks a right.
	ErrPermission = &Kind{"permission denied", fs.ErrPermission}
	// ErrUnauthorized: the caller may not act as the user claimed.
	ErrUnauthorized = &Kind{"not authorized", fs.ErrPermission}
	// ErrToken: a delegation token is unknown here, cancelled, expired or forged.
	ErrToken = &Kind{"invalid token", fs.ErrPermission}
	// ErrInvalidPath: the name cannot be one.
	ErrInvalidPath = &Kind{"invalid path name", fs.ErrInvalid}
	// ErrInvalidArgument: a value is outside its domain.
	ErrInvalidArgument = &Kind{"invalid argument", fs.ErrInvalid}
	// ErrUnsupported: the operation does not exist here.
	ErrUnsupported = &Kind{"not supported", errors.ErrUnsupported}
	// ErrBeingCreated: another writer holds the file's lease.
	ErrBeingCreated = &Kind{"file is being written by another client", nil}
	// ErrRecoveryInProgress: the lease is being taken away from a dead writer; try again.
	ErrRecoveryInProgress = &Kind{"lease recovery is in progress", nil}
	// ErrLeaseExpired: the caller does not hold the file's lease (any more).
	ErrLeaseExpired = &Kind{"lease expired", nil}
	// ErrNotReplicatedYet: an earlier block has too few replicas; try again.
	ErrNotReplicatedYet = &Kind{"not replicated yet", nil}
	// ErrSafeMode: the namenode does not change anything yet, or any more.
	ErrSafeMode = &Kind{"safe mode", nil}
	// ErrStandby: this member does not lead; ask the next.
	ErrStandby = &Kind{"standby", nil}
	// ErrAskLeader: this member does not lead, and cannot answer this one call: ask the one that leads. It is an ErrStandby, too.
	ErrAskLeader = &Kind{"only the leader answers this call", ErrStandby}
	// ErrRetriable: the server is not ready; ask the same one again.
	ErrRetriable = &Kind{"try again", nil}
	// ErrNamespaceQuota and ErrSpaceQuota: a directory's quota would be exceeded.
	ErrNamespaceQuota = &Kind{"name quota exceeded", nil}
	ErrSpaceQuota     = &Kind{"space quota exceeded", nil}
	// ErrTypeQuota: the quota of a directory for a type of volumes would be exceeded.
	ErrTypeQuota = &Kind{"storage type quota exceeded", nil}
	// ErrACL: an access control list that cannot be one.
	ErrACL = &Kind{"invalid access control list", nil}
	// ErrNoAttribute: an extended attribute that was asked for is not there.
	ErrNoAttribute = &Kind{"attribute not found", nil}
	// ErrSnapshot: a snapshot cannot be, or cannot be made, where it is asked for.
	ErrSnapshot = &Kind{"not snapshottable", nil}
	// ErrSnapshotReadOnly: what is in a snapshot was to be changed.
	ErrSnapshotReadOnly = &Kind{"snapshots are read-only", fs.ErrPermission}
	// ErrNoErasureCoding: the erasure coding of a directory was to be taken away, and it has none.
	ErrNoErasureCoding = &Kind{"no erasure coding policy", nil}
	// ErrInvalidRequest: a change of cache pools or directives that cannot be made.
	ErrInvalidRequest = &Kind{"invalid request", fs.ErrInvalid}
	// ErrNameTooLong: a path component is longer than MaxNameLength.
	ErrNameTooLong = &Kind{"path component too long", nil}
	// ErrDirectoryFull: a directory has MaxDirectory entries.
	ErrDirectoryFull = &Kind{"too many entries in directory", nil}
	// ErrCursor: a listing's start-after inode is gone.
	ErrCursor = &Kind{"listing cursor not found", nil}
	// ErrReplicaNotFound: a datanode lacks the replica.
	ErrReplicaNotFound = &Kind{"replica not found", nil}
	// ErrCorrupt: stored bytes are not what was written.
	ErrCorrupt = &Kind{"corrupt", nil}
	// ErrNoSpace: a disk is, or is about to be, full.
	ErrNoSpace = &Kind{"no space left", nil}
	// ErrIO is everything that Hadoop reports as a plain IOException.
	ErrIO = &Kind{"i/o error", nil}
)

// Error is a kind with the message that goes to the user, worded as HDFS words it.
type Error struct {
	Kind    *Kind
	Message string
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Kind }

// Errorf makes an error of a kind. The message stands alone: the kind is not repeated in it.
func Errorf(kind *Kind, format string, args ...any) error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// NeedsSuperuser refuses a user an operation that only the superuser may do, under HDFS's name of it.
func NeedsSuperuser(user, operation string) error {
	return Errorf(ErrPermission, "Access denied for user %s. Superuser privilege is required for operation %s", user, operation)
}

// KindOf finds the kind of err, ErrIO when it has none.
func KindOf(err error) *Kind {
	if k, ok := errors.AsType[*Kind](err); ok {
		return k
	}
	return ErrIO
}
