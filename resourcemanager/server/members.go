package server

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// enlistTime is how long a new member may take to receive everything.
const enlistTime = 2 * time.Minute

// resourceManagers is for the other resource managers.
type resourceManagers struct {
	pb.UnimplementedResourceManagersServer
	s *Server
}

// Enlist implements the service. Who asks becomes a member by the name of its machine, and of no other.
func (m *resourceManagers) Enlist(ctx context.Context, r *pb.EnlistRequest) (*pb.EnlistResponse, error) {
	who, _ := security.PrincipalOf(ctx)
	if who.Server == nil || who.Server.Machine == "" {
		return nil, status.Error(codes.PermissionDenied, "this is for machines")
	}
	ctx, cancel := context.WithTimeout(ctx, enlistTime)
	defer cancel()
	s := m.s
	if s.reign.Load() == nil {
		return nil, s.notLeader()
	}
	one, err := raftstore.ParseMember(who.Server.Machine, r.Raft)
	if err == nil {
		err = s.group.Load().AddMember(ctx, one)
	}
	d := security.Decision{Allowed: err == nil, Caller: metadata.Caller{User: "machine " + who.Server.Machine}, Port: "grpc", Command: "enlist", Source: who.Server.Machine, Target: r.Raft}
	if err != nil {
		d.Reason = err.Error()
	}
	s.config.Door.Record(d)
	if err != nil {
		return nil, s.wire(err)
	}
	s.log.Info("a resource manager joined the group", "resourcemanager", one.ID, "raft", one.Address)
	return &pb.EnlistResponse{}, nil
}
