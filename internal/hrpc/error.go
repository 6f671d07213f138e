package hrpc

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The Java classes that the protocol itself needs.
const (
	classIOException       = "java.io.IOException"
	classAccessControl     = "org.apache.hadoop.security.AccessControlException"
	classIllegalArgument   = "org.apache.hadoop.HadoopIllegalArgumentException"
	classAuthorization     = "org.apache.hadoop.security.authorize.AuthorizationException"
	classNoSuchProtocol    = "org.apache.hadoop.ipc.RpcNoSuchProtocolException"
	classNoSuchMethod      = "org.apache.hadoop.ipc.RpcNoSuchMethodException"
	classVersionMismatch   = "org.apache.hadoop.ipc.RPC$VersionMismatch"
	classRPCServer         = "org.apache.hadoop.ipc.RpcServerException"
	classSASL              = "javax.security.sasl.SaslException"
	classStandby           = "org.apache.hadoop.ipc.StandbyException"
	classObserverRetry     = "org.apache.hadoop.ipc.ObserverRetryOnActiveException"
	classRetriable         = "org.apache.hadoop.ipc.RetriableException"
	detailApplication      = hadooppb.RpcResponseHeaderProto_ERROR_APPLICATION
	detailFatalUnknown     = hadooppb.RpcResponseHeaderProto_FATAL_UNKNOWN
	detailInvalidHeader    = hadooppb.RpcResponseHeaderProto_FATAL_INVALID_RPC_HEADER
	detailDeserializing    = hadooppb.RpcResponseHeaderProto_FATAL_DESERIALIZING_REQUEST
	detailVersionMismatch  = hadooppb.RpcResponseHeaderProto_FATAL_VERSION_MISMATCH
	detailUnauthorized     = hadooppb.RpcResponseHeaderProto_FATAL_UNAUTHORIZED
	detailProtocolMismatch = hadooppb.RpcResponseHeaderProto_ERROR_RPC_VERSION_MISMATCH
	detailNoSuchProtocol   = hadooppb.RpcResponseHeaderProto_ERROR_NO_SUCH_PROTOCOL
	detailNoSuchMethod     = hadooppb.RpcResponseHeaderProto_ERROR_NO_SUCH_METHOD
	detailSerializing      = hadooppb.RpcResponseHeaderProto_ERROR_SERIALIZING_RESPONSE
	detailServer           = hadooppb.RpcResponseHeaderProto_ERROR_RPC_SERVER
)

// RemoteError is an exception that the server answered with: a Java class in its binary name, inner classes behind '$',
// and a message. Handlers may Fail with one to choose the class themselves.
type RemoteError struct {
	Class   string
	Message string
	// Fatal: the server closes the connection.
	Fatal bool
	// Detail is what failed in the protocol's own terms.
	Detail hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto
}

// Error is the class without its package, and the first line of the message: Java servers append their stack.
func (e *RemoteError) Error() string {
	class := e.Class[strings.LastIndexByte(e.Class, '.')+1:]
	return fmt.Sprintf("%s: %s", class, e.Text())
}

// Text is the message without a Java stack.
func (e *RemoteError) Text() string {
	text, _, _ := strings.Cut(e.Message, "\n")
	return text
}

// Standby reports whether another server has to be asked.
func (e *RemoteError) Standby() bool { return e.Class == classStandby || e.Class == classObserverRetry }

// OneCall reports whether another server has to be asked for this call alone.
func (e *RemoteError) OneCall() bool { return e.Class == classObserverRetry }

// Retriable reports whether the same server has to be asked again.
func (e *RemoteError) Retriable() bool { return e.Class == classRetriable }
