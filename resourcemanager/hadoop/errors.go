package hadoop

import (
	"errors"
	"fmt"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode/hdfs"
	rm "github.com/gohops/hops/resourcemanager"
)

// The classes of YARN's exceptions, as its clients know them.
const (
	yarnExceptions       = "org.apache.hadoop.yarn.exceptions."
	yarnException        = yarnExceptions + "YarnException"
	appNotFound          = yarnExceptions + "ApplicationNotFoundException"
	attemptNotFound      = yarnExceptions + "ApplicationAttemptNotFoundException"
	containerNotFound    = yarnExceptions + "ContainerNotFoundException"
	invalidRequest       = yarnExceptions + "InvalidResourceRequestException"
	invalidMasterRequest = yarnExceptions + "InvalidApplicationMasterRequestException"
	masterNotRegistered  = yarnExceptions + "ApplicationMasterNotRegisteredException"
	invalidRelease       = yarnExceptions + "InvalidContainerReleaseException"
	invalidBlacklist     = yarnExceptions + "InvalidResourceBlacklistRequestException"
	featureNotEnabled    = yarnExceptions + "YARNFeatureNotEnabledException"
	illegalArgument      = "java.lang.IllegalArgumentException"
	accessControl        = "org.apache.hadoop.security.AccessControlException"
)

// errStandby sends clients to the next resource manager.
var errStandby = metadata.Errorf(metadata.ErrStandby, "ResourceManager is not Active!")

// thrown is an exception of a class of YARN's.
func thrown(class, format string, args ...any) error {
	return &hrpc.RemoteError{Class: class, Message: fmt.Sprintf(format, args...)}
}

// exception names the class of what the handlers fail with.
func exception(err error) (class, message string) {
	switch {
	case errors.Is(err, rm.ErrStaleAttempt):
		return attemptNotFound, err.Error()
	case errors.Is(err, rm.ErrStaleEpoch):
		return hdfs.Standby, err.Error()
	case errors.Is(err, rm.ErrBusy), errors.Is(err, rm.ErrKeyReused), errors.Is(err, rm.ErrLaunched), errors.Is(err, raftstore.ErrUnknown):
		return yarnException, err.Error()
	}
	switch metadata.KindOf(err) {
	case metadata.ErrStandby, metadata.ErrRetriable, metadata.ErrToken, metadata.ErrUnauthorized, metadata.ErrPermission, metadata.ErrUnsupported:
		return hdfs.Exception(err)
	}
	return yarnException, err.Error()
}

// noApplication is YARN's answer for an application that is not known.
func noApplication(id rm.ApplicationID) error {
	return thrown(appNotFound, "Application with id '%v' doesn't exist in RM. Please check that the job submission was successful.", id)
}
