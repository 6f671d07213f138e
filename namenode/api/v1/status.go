// Package namenodepb is the control plane between datanodes and namenodes: the generated protocol, and the gRPC codes of
// errors in it.
package namenodepb

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/metadata"
)

// statusTable maps each kind to the gRPC code that says it. Several kinds share a code; the kind in front of the message tells
// them apart, the code is for people and foreign tools.
var statusTable = []struct {
	kind *metadata.Kind
	code codes.Code
}{
	{metadata.ErrNotExist, codes.NotFound},
	{metadata.ErrExist, codes.AlreadyExists},
	{metadata.ErrParentNotDirectory, codes.FailedPrecondition},
	{metadata.ErrNotDirectory, codes.FailedPrecondition},
	{metadata.ErrNotEmpty, codes.FailedPrecondition},
	{metadata.ErrPermission, codes.PermissionDenied},
	{metadata.ErrUnauthorized, codes.Unauthenticated},
	{metadata.ErrInvalidPath, codes.InvalidArgument},
	{metadata.ErrInvalidArgument, codes.InvalidArgument},
	{metadata.ErrUnsupported, codes.Unimplemented},
	{metadata.ErrBeingCreated, codes.FailedPrecondition},
	{metadata.ErrRecoveryInProgress, codes.FailedPrecondition},
	{metadata.ErrLeaseExpired, codes.FailedPrecondition},
	{metadata.ErrNotReplicatedYet, codes.FailedPrecondition},
	{metadata.ErrSafeMode, codes.Unavailable},
	{metadata.ErrStandby, codes.FailedPrecondition},
	{metadata.ErrAskLeader, codes.FailedPrecondition},
	{metadata.ErrRetriable, codes.Unavailable},
	{metadata.ErrNamespaceQuota, codes.ResourceExhausted},
	{metadata.ErrSpaceQuota, codes.ResourceExhausted},
	{metadata.ErrTypeQuota, codes.ResourceExhausted},
	{metadata.ErrACL, codes.InvalidArgument},
	{metadata.ErrNoAttribute, codes.NotFound},
	{metadata.ErrSnapshot, codes.FailedPrecondition},
	{metadata.ErrNameTooLong, codes.InvalidArgument},
	{metadata.ErrDirectoryFull, codes.ResourceExhausted},
	{metadata.ErrCursor, codes.NotFound},
	{metadata.ErrReplicaNotFound, codes.NotFound},
	{metadata.ErrCorrupt, codes.DataLoss},
	{metadata.ErrNoSpace, codes.ResourceExhausted},
	{metadata.ErrIO, codes.Unknown},
}

// Status tells err over gRPC: the kind as code and, in the clear, in front of the message ("standby: nn1 does not lead").
func Status(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	kind := metadata.KindOf(err)
	for _, row := range statusTable {
		if row.kind == kind {
			return status.Error(row.code, kind.Error()+": "+err.Error())
		}
	}
	return status.Error(codes.Unknown, err.Error())
}

// FromStatus finds the kind again in what Status made of an error. Other gRPC errors stay what they are.
func FromStatus(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for _, row := range statusTable {
		prefix := row.kind.Error() + ": "
		if m := s.Message(); row.code == s.Code() && len(m) >= len(prefix) && m[:len(prefix)] == prefix {
			return &metadata.Error{Kind: row.kind, Message: m[len(prefix):]}
		}
	}
	return err
}
