package server

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
)

var (
	errNodeLost = status.Error(codes.Aborted, "the node was silent for longer than its lease and is declared lost: open a new session")
	errReplaced = status.Error(codes.Aborted, "a newer session of this node has begun")
)

// notLeader tells where the leader is, if that is known: "not the leader; leader=host:port".
func (s *Server) notLeader() error {
	text := "not the leader"
	if group := s.group.Load(); group != nil {
		if l := group.Leadership(); l.LeaderID != s.config.ID {
			if p := s.peer(l.LeaderID); p.GRPC != "" {
				text += "; leader=" + p.GRPC
			}
		}
	}
	return status.Error(codes.FailedPrecondition, text)
}

// wire translates an error for a gRPC caller.
func (s *Server) wire(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	switch {
	case errors.Is(err, rm.ErrStaleAttempt):
		code = codes.Aborted // the text begins with STALE_ATTEMPT
	case errors.Is(err, rm.ErrStaleEpoch), errors.Is(err, metadata.ErrStandby):
		return s.notLeader()
	case errors.Is(err, raftstore.ErrUnknown), errors.Is(err, metadata.ErrRetriable), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded):
		code = codes.Unavailable
	case errors.Is(err, metadata.ErrInvalidArgument):
		code = codes.InvalidArgument
	case errors.Is(err, metadata.ErrNotExist):
		code = codes.NotFound
	case errors.Is(err, metadata.ErrExist), errors.Is(err, rm.ErrLaunched):
		code = codes.AlreadyExists
	case errors.Is(err, metadata.ErrPermission):
		code = codes.PermissionDenied
	case errors.Is(err, metadata.ErrUnauthorized):
		code = codes.Unauthenticated
	case errors.Is(err, metadata.ErrNoSpace), errors.Is(err, rm.ErrBusy):
		code = codes.ResourceExhausted
	}
	return status.Error(code, err.Error())
}
