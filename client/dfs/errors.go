package dfs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
)

// Error is an operation that failed for a reason the server, or this client, can name. errors.Is finds Kind, and through
// it the standard library's word: errors.Is(err, fs.ErrNotExist).
type Error struct {
	Op, Path string
	Kind     *metadata.Kind
	// Class is the Java class of the server's exception, empty if the server was not asked.
	Class string
	// Message is the server's, one line.
	Message string
}

func (e *Error) Error() string {
	message := e.Message
	if message == "" {
		message = e.Kind.Error()
	}
	if e.Path == "" {
		return e.Op + ": " + message
	}
	return e.Op + " " + e.Path + ": " + message
}

func (e *Error) Unwrap() error { return e.Kind }

// kinds is what the Java classes mean here. namenode/hdfs holds the way back.
var kinds = map[string]*metadata.Kind{
	"java.io.FileNotFoundException":                                                       metadata.ErrNotExist,
	"java.io.IOException":                                                                 metadata.ErrIO,
	"java.lang.IllegalArgumentException":                                                  metadata.ErrInvalidArgument,
	"java.lang.UnsupportedOperationException":                                             metadata.ErrUnsupported,
	"javax.security.sasl.SaslException":                                                   metadata.ErrUnauthorized,
	"org.apache.hadoop.HadoopIllegalArgumentException":                                    metadata.ErrInvalidArgument,
	"org.apache.hadoop.fs.DirectoryListingStartAfterNotFoundException":                    metadata.ErrCursor,
	"org.apache.hadoop.fs.FileAlreadyExistsException":                                     metadata.ErrExist,
	"org.apache.hadoop.fs.InvalidPathException":                                           metadata.ErrInvalidPath,
	"org.apache.hadoop.fs.InvalidRequestException":                                        metadata.ErrInvalidRequest,
	"org.apache.hadoop.fs.ParentNotDirectoryException":                                    metadata.ErrParentNotDirectory,
	"org.apache.hadoop.fs.PathIsNotDirectoryException":                                    metadata.ErrNotDirectory,
	"org.apache.hadoop.fs.PathIsNotEmptyDirectoryException":                               metadata.ErrNotEmpty,
	"org.apache.hadoop.hdfs.protocol.AclException":                                        metadata.ErrACL,
	"org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException":                        metadata.ErrBeingCreated,
	"org.apache.hadoop.hdfs.protocol.DSQuotaExceededException":                            metadata.ErrSpaceQuota,
	"org.apache.hadoop.hdfs.protocol.FSLimitException$MaxDirectoryItemsExceededException": metadata.ErrDirectoryFull,
	"org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException":      metadata.ErrNameTooLong,
	"org.apache.hadoop.hdfs.protocol.NSQuotaExceededException":                            metadata.ErrNamespaceQuota,
	"org.apache.hadoop.hdfs.protocol.NoECPolicySetException":                              metadata.ErrNoErasureCoding,
	"org.apache.hadoop.hdfs.protocol.QuotaByStorageTypeExceededException":                 metadata.ErrTypeQuota,
	"org.apache.hadoop.hdfs.protocol.RecoveryInProgressException":                         metadata.ErrRecoveryInProgress,
	"org.apache.hadoop.hdfs.protocol.XAttrNotFoundException":                              metadata.ErrNoAttribute,
	"org.apache.hadoop.hdfs.protocol.SnapshotException":                                   metadata.ErrSnapshot,
	"org.apache.hadoop.hdfs.protocol.SnapshotAccessControlException":                      metadata.ErrPermission,
	"org.apache.hadoop.hdfs.server.datanode.ReplicaNotFoundException":                     metadata.ErrReplicaNotFound,
	"org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException":                        metadata.ErrLeaseExpired,
	"org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException":                    metadata.ErrNotReplicatedYet,
	"org.apache.hadoop.hdfs.server.namenode.RetryStartFileException":                      metadata.ErrRetriable,
	"org.apache.hadoop.hdfs.server.namenode.SafeModeException":                            metadata.ErrSafeMode,
	"org.apache.hadoop.ipc.ObserverRetryOnActiveException":                                metadata.ErrAskLeader,
	"org.apache.hadoop.ipc.RetriableException":                                            metadata.ErrRetriable,
	"org.apache.hadoop.ipc.RpcNoSuchMethodException":                                      metadata.ErrUnsupported,
	"org.apache.hadoop.ipc.RpcNoSuchProtocolException":                                    metadata.ErrUnsupported,
	"org.apache.hadoop.ipc.StandbyException":                                              metadata.ErrStandby,
	"org.apache.hadoop.security.AccessControlException":                                   metadata.ErrPermission,
	"org.apache.hadoop.security.authorize.AuthorizationException":                         metadata.ErrUnauthorized,
	"org.apache.hadoop.security.token.SecretManager$InvalidToken":                         metadata.ErrToken,
}

// wrap turns what a call ended in into the error of an operation. One that begins with that already stays as it is.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if remote, ok := errors.AsType[*hrpc.RemoteError](err); ok {
		kind, known := kinds[remote.Class]
		if !known {
			kind = metadata.ErrIO
		}
		text := remote.Text()
		// Java prefixes the text of a wrapped exception with its class.
		text = strings.TrimPrefix(text, remote.Class+": ")
		if nobody, ok := errors.AsType[*hrpc.UnreachableError](err); ok { // what one of the standbys says is not the reason
			text = nobody.Error()
		}
		return &Error{Op: op, Path: name, Kind: kind, Class: remote.Class, Message: text}
	}
	of := op
	if name != "" {
		of += " " + name
	}
	if strings.HasPrefix(err.Error(), of+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", of, err)
}
