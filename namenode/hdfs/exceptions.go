// Package hdfs is what Hadoop's wires share: the Java classes by which HDFS clients recognise errors. The protocols
// themselves are in clientprotocol and webhdfs, their messages in hadooppb.
package hdfs

import (
	"errors"
	"strings"

	"github.com/gohops/hops/metadata"
)

// The Java classes of the kinds, binary names with $ before inner classes.
const (
	FileNotFound         = "java.io.FileNotFoundException"
	IOException          = "java.io.IOException"
	AccessControl        = "org.apache.hadoop.security.AccessControlException"
	Authorization        = "org.apache.hadoop.security.authorize.AuthorizationException"
	InvalidToken         = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
	FileAlreadyExists    = "org.apache.hadoop.fs.FileAlreadyExistsException"
	ParentNotDirectory   = "org.apache.hadoop.fs.ParentNotDirectoryException"
	PathIsNotDirectory   = "org.apache.hadoop.fs.PathIsNotDirectoryException"
	PathIsNotEmpty       = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
	InvalidPath          = "org.apache.hadoop.fs.InvalidPathException"
	IllegalArgument      = "org.apache.hadoop.HadoopIllegalArgumentException"
	UnsupportedOperation = "java.lang.UnsupportedOperationException"
	AlreadyBeingCreated  = "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException"
	RecoveryInProgress   = "org.apache.hadoop.hdfs.protocol.RecoveryInProgressException"
	LeaseExpired         = "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException"
	NotReplicatedYet     = "org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException"
	SafeMode             = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"
	Standby              = "org.apache.hadoop.ipc.StandbyException"
	Retriable            = "org.apache.hadoop.ipc.RetriableException"
	NSQuotaExceeded      = "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException"
	DSQuotaExceeded      = "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"
	TypeQuotaExceeded    = "org.apache.hadoop.hdfs.protocol.QuotaByStorageTypeExceededException"
	ACLInvalid           = "org.apache.hadoop.hdfs.protocol.AclException"
	Snapshot             = "org.apache.hadoop.hdfs.protocol.SnapshotException"
	SnapshotAccess       = "org.apache.hadoop.hdfs.protocol.SnapshotAccessControlException"
	InvalidRequest       = "org.apache.hadoop.fs.InvalidRequestException"
	NoECPolicySet        = "org.apache.hadoop.hdfs.protocol.NoECPolicySetException"
	PathComponentTooLong = "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"
	MaxDirectoryItems    = "org.apache.hadoop.hdfs.protocol.FSLimitException$MaxDirectoryItemsExceededException"
	StartAfterNotFound   = "org.apache.hadoop.fs.DirectoryListingStartAfterNotFoundException"
	XAttrNotFound        = "org.apache.hadoop.hdfs.protocol.XAttrNotFoundException"
	ReplicaNotFound      = "org.apache.hadoop.hdfs.server.datanode.ReplicaNotFoundException"
	ChecksumFailure      = "org.apache.hadoop.fs.ChecksumException"
	DiskOutOfSpace       = "org.apache.hadoop.util.DiskChecker$DiskOutOfSpaceException"
	// JavaIllegalArgument is what WebHDFS throws for a parameter; over IPC it is IllegalArgument.
	JavaIllegalArgument = "java.lang.IllegalArgumentException"
	// ObserverRetryOnActive is thrown for a single call; a client understands it as Standby.
	ObserverRetryOnActive = "org.apache.hadoop.ipc.ObserverRetryOnActiveException"
)

// table maps each kind to the class that says it and back. One line per kind, one kind per class.
var table = []struct {
	kind  *metadata.Kind
	class string
}{
	{metadata.ErrNotExist, FileNotFound},
	{metadata.ErrExist, FileAlreadyExists},
	{metadata.ErrParentNotDirectory, ParentNotDirectory},
	{metadata.ErrNotDirectory, PathIsNotDirectory},
	{metadata.ErrNotEmpty, PathIsNotEmpty},
	{metadata.ErrPermission, AccessControl},
	{metadata.ErrUnauthorized, Authorization},
	{metadata.ErrToken, InvalidToken},
	{metadata.ErrInvalidPath, InvalidPath},
	{metadata.ErrInvalidArgument, IllegalArgument},
	{metadata.ErrUnsupported, UnsupportedOperation},
	{metadata.ErrBeingCreated, AlreadyBeingCreated},
	{metadata.ErrRecoveryInProgress, RecoveryInProgress},
	{metadata.ErrLeaseExpired, LeaseExpired},
	{metadata.ErrNotReplicatedYet, NotReplicatedYet},
	{metadata.ErrSafeMode, SafeMode},
	{metadata.ErrStandby, Standby},
	{metadata.ErrAskLeader, ObserverRetryOnActive},
	{metadata.ErrRetriable, Retriable},
	{metadata.ErrNamespaceQuota, NSQuotaExceeded},
	{metadata.ErrSpaceQuota, DSQuotaExceeded},
	{metadata.ErrTypeQuota, TypeQuotaExceeded},
	{metadata.ErrACL, ACLInvalid},
	{metadata.ErrNoAttribute, XAttrNotFound},
	{metadata.ErrSnapshot, Snapshot},
	{metadata.ErrSnapshotReadOnly, SnapshotAccess},
	{metadata.ErrNoErasureCoding, NoECPolicySet},
	{metadata.ErrInvalidRequest, InvalidRequest},
	{metadata.ErrNameTooLong, PathComponentTooLong},
	{metadata.ErrDirectoryFull, MaxDirectoryItems},
	{metadata.ErrCursor, StartAfterNotFound},
	{metadata.ErrReplicaNotFound, ReplicaNotFound},
	{metadata.ErrCorrupt, ChecksumFailure},
	{metadata.ErrNoSpace, DiskOutOfSpace},
	{metadata.ErrIO, IOException},
}

// also lists classes that other servers say for a kind of ours.
var also = map[string]*metadata.Kind{
	JavaIllegalArgument:                                                        metadata.ErrInvalidArgument,
	"java.nio.file.FileAlreadyExistsException":                                 metadata.ErrExist,
	"java.nio.file.NoSuchFileException":                                        metadata.ErrNotExist,
	"org.apache.hadoop.fs.PathNotFoundException":                               metadata.ErrNotExist,
	"org.apache.hadoop.ipc.RpcNoSuchMethodException":                           metadata.ErrUnsupported,
	"org.apache.hadoop.ipc.RpcNoSuchProtocolException":                         metadata.ErrUnsupported,
	"org.apache.hadoop.hdfs.protocol.UnresolvedPathException":                  metadata.ErrUnsupported,
	"org.apache.hadoop.hdfs.server.namenode.ha.ObserverRetryOnActiveException": metadata.ErrStandby,
	"java.lang.SecurityException":                                              metadata.ErrUnauthorized,
}

var (
	classes = map[*metadata.Kind]string{}
	kinds   = map[string]*metadata.Kind{}
)

func init() {
	for _, row := range table {
		classes[row.kind] = row.class
		kinds[row.class] = row.kind
	}
	for class, kind := range also {
		kinds[class] = kind
	}
}

// HDFS hands "Invalid file name: ..." to InvalidPathException as if it were the path, which then says both.
const (
	invalidPath     = "Invalid path name "
	invalidFileName = "Invalid file name: "
)

// Exception is the Java class and message that tell err to a Hadoop client; an error without kind is an IOException.
func Exception(err error) (class, message string) {
	message = err.Error()
	if kind, ok := errors.AsType[*metadata.Kind](err); ok {
		if kind == metadata.ErrInvalidPath && strings.HasPrefix(message, invalidFileName) {
			message = invalidPath + message
		}
		return classes[kind], message
	}
	return IOException, message
}

// Kind is the kind that a Java class means, ErrIO for classes that mean nothing to us.
func Kind(class string) *metadata.Kind {
	if k, ok := kinds[class]; ok {
		return k
	}
	return metadata.ErrIO
}

// Error makes an error from what a Hadoop server said. A Java stack trace behind the message is cut off.
func Error(class, message string) error {
	if i := strings.Index(message, "\n\tat "); i >= 0 {
		message = message[:i]
	}
	if strings.HasPrefix(message, invalidPath+invalidFileName) {
		message = message[len(invalidPath):]
	}
	return &metadata.Error{Kind: Kind(class), Message: message}
}

// Simple is a class's name without its package, and without the outer class: the "exception" of WebHDFS.
func Simple(class string) string {
	if i := strings.LastIndexAny(class, ".$"); i >= 0 {
		return class[i+1:]
	}
	return class
}
