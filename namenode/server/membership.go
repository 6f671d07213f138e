package server

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/roster"
)

// maxJoins is how many machines are taken in at the same time.
const maxJoins = 16

// admission takes machines in. Who calls has proved nothing yet.
type admission struct {
	pb.UnimplementedAdmissionServer
	server *Server
	places chan struct{} // of maxJoins
}

// Join implements pb.AdmissionServer.
func (a *admission) Join(ctx context.Context, r *pb.JoinRequest) (*pb.JoinResponse, error) {
	select {
	case a.places <- struct{}{}:
		defer func() { <-a.places }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d machines join at this moment: try again", maxJoins)
	}
	who, _ := security.PrincipalOf(ctx)
	s := a.server
	if s.reign.Load() == nil {
		return s.elsewhere()
	}
	asked := &pb.Joining{}
	if err := proto.Unmarshal(r.Asked, asked); err != nil {
		return nil, status.Error(codes.InvalidArgument, "what is asked cannot be read")
	}
	answer, err := s.admit(ctx, r, asked, who.Joining)
	d := security.Decision{Allowed: err == nil, Caller: metadata.Caller{User: "token " + printable(r.Token)}, Port: "grpc", Command: "join", Source: printable(asked.Machine)}
	if err != nil {
		d.Reason = err.Error()
	}
	s.config.Door.Record(d)
	if err != nil {
		return nil, memberError(err)
	}
	s.log.Info("a machine joined", "machine", asked.Machine, "roles", asked.Roles, "addresses", asked.Addresses, "token", r.Token)
	return answer, nil
}

// printable is a word of a stranger's for a log.
func printable(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return string(slices.DeleteFunc([]rune(s), func(c rune) bool { return c < ' ' || c > '~' }))
}

// elsewhere names the leader to a machine that joins.
func (s *Server) elsewhere() (*pb.JoinResponse, error) {
	leader := s.group.Leadership().LeaderID
	servers, err := s.roster.Servers()
	if err != nil {
		return nil, memberError(err)
	}
	for _, n := range servers.Namenodes {
		if n.ID == leader && n.ID != s.config.ID {
			return &pb.JoinResponse{Leader: n.GRPC}, nil
		}
	}
	return nil, status.Errorf(codes.Unavailable, "namenode %s does not lead, and knows of none that does: try again", s.config.ID)
}

func (s *Server) admit(ctx context.Context, r *pb.JoinRequest, asked *pb.Joining, bound []byte) (*pb.JoinResponse, error) {
	now := time.Now()
	if behind := now.Sub(time.UnixMilli(asked.NowMs)); behind.Abs() > security.MaxSkew {
		way := "behind"
		if behind < 0 {
			way = "ahead of"
		}
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "the clock of this machine is %v %s the cluster's, and %v are allowed: set both by NTP",
			behind.Abs().Round(time.Second), way, security.MaxSkew)
	}
	level, err := s.roster.Level()
	if err == nil {
		err = release.Program{Level: max(int(asked.Level), 1), Oldest: int(asked.Oldest)}.In(level.Level)
	}
	if err != nil {
		return nil, err
	}
	if len(asked.Machine) > 255 || len(asked.Roles) > len(authority.Roles) {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a name of %d bytes and %d roles: at most 64 and %d are taken", len(asked.Machine), len(asked.Roles), len(authority.Roles))
	}
	j := roster.Joining{
		Token: r.Token, Proof: r.Proof, Bound: bound, Asked: r.Asked, Machine: asked.Machine, Addresses: asked.Addresses, Request: asked.Request,
	}
	for _, role := range asked.Roles {
		j.Roles = append(j.Roles, authority.Role(role))
	}
	slices.Sort(j.Roles)
	if slices.Contains(j.Roles, authority.Namenode) {
		m := namenodeOf(asked.Namenode)
		if m.ID = asked.Machine; m.IPC == "" || m.HTTP == "" || m.GRPC == "" || m.Raft == "" {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a namenode joins with its four addresses")
		}
		j.Namenode = &m
	}
	if slices.Contains(j.Roles, authority.ResourceManager) {
		r := asked.ResourceManager
		j.Manager = &config.ManagerMember{ID: asked.Machine, HTTP: r.GetHttp(), GRPC: r.GetGrpc(), Raft: r.GetRaft(), IPC: r.GetIpc()}
		if s.group.Level() < release.Requests { // namenodes that keep the list, too, would not read it
			j.Manager.IPC = ""
		}
		if j.Manager.HTTP == "" || j.Manager.GRPC == "" || j.Manager.Raft == "" {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a resource manager joins with its three addresses")
		}
	}
	certificate, err := s.roster.Admit(ctx, j)
	if err != nil {
		return nil, err
	}
	members, err := s.members()
	if err != nil {
		return nil, err
	}
	answer := &pb.JoinResponse{
		Certified: &pb.Certified{Certificate: certificate, Roots: members.Roots}, Members: members, Name: s.config.Name, Properties: s.config.Settings,
	}
	if j.Namenode != nil || j.Manager != nil {
		answer.Secret = s.config.Credentials.Reveal()
	}
	return answer, nil
}

// memberError is the status of an error of the roster.
func memberError(err error) error {
	var code codes.Code
	switch {
	case errors.Is(err, authority.ErrToken):
		code = codes.Unauthenticated
	case errors.Is(err, authority.ErrRevoked):
		code = codes.PermissionDenied
	case errors.Is(err, roster.ErrMember), errors.Is(err, roster.ErrAddress):
		code = codes.AlreadyExists
	case errors.Is(err, roster.ErrServer):
		code = codes.Unimplemented
	case errors.Is(err, roster.ErrNone), errors.Is(err, release.ErrOlder), errors.Is(err, release.ErrNewer):
		code = codes.FailedPrecondition
	case errors.Is(err, roster.ErrUnknown):
		code = codes.NotFound
	case errors.Is(err, roster.ErrTooMany):
		code = codes.ResourceExhausted
	case errors.Is(err, raftstore.ErrUnknown):
		code = codes.Aborted
	default:
		if _, ok := errors.AsType[*metadata.Error](err); ok {
			return pb.Status(err)
		}
		code = codes.InvalidArgument
	}
	return status.Error(code, err.Error())
}

// membership is for the servers of every role.
type membership struct {
	pb.UnimplementedMembershipServer
	server *Server
}

// caller is the machine that calls.
func caller(ctx context.Context) (*authority.Name, error) {
	who, _ := security.PrincipalOf(ctx)
	if who.Server == nil || who.Server.Machine == "" {
		return nil, status.Error(codes.PermissionDenied, "this is for machines")
	}
	return who.Server, nil
}

// callerAs is the machine that calls, if it has a role.
func callerAs(ctx context.Context, role authority.Role) (*authority.Name, error) {
	n, err := caller(ctx)
	if err == nil && !n.Has(role) {
		err = status.Errorf(codes.PermissionDenied, "%v: %s is not %s", authority.ErrRole, n, role)
	}
	return n, err
}

// Renew implements pb.MembershipServer.
func (m *membership) Renew(ctx context.Context, r *pb.RenewRequest) (*pb.Certified, error) {
	s := m.server
	n, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if s.reign.Load() == nil {
		return nil, pb.Status(namenode.ErrStandbyWrite)
	}
	certificate, err := s.roster.Renew(ctx, n, r.Request)
	if err != nil {
		return nil, memberError(err)
	}
	members, err := s.members()
	if err != nil {
		return nil, memberError(err)
	}
	s.log.Info("a certificate was renewed", "machine", n.Machine)
	return &pb.Certified{Certificate: certificate, Roots: members.Roots}, nil
}

// Confirm implements pb.MembershipServer.
func (m *membership) Confirm(ctx context.Context, r *pb.ConfirmRequest) (*pb.ConfirmResponse, error) {
	n, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if m.server.reign.Load() == nil {
		return nil, pb.Status(namenode.ErrStandbyWrite)
	}
	var root authority.Fingerprint
	if copy(root[:], r.Root) != len(root) || len(r.Root) != len(root) {
		return nil, status.Error(codes.InvalidArgument, "that is no authority's fingerprint")
	}
	if err := m.server.roster.Confirm(ctx, n, root); err != nil {
		return nil, memberError(err)
	}
	return &pb.ConfirmResponse{}, nil
}

// Enlist implements pb.MembershipServer.
func (m *membership) Enlist(ctx context.Context, _ *pb.EnlistRequest) (*pb.EnlistResponse, error) {
	s := m.server
	n, err := callerAs(ctx, authority.Namenode)
	if err != nil {
		return nil, err
	}
	if s.reign.Load() == nil {
		return nil, pb.Status(namenode.ErrStandbyWrite)
	}
	servers, err := s.roster.Servers()
	if err != nil {
		return nil, memberError(err)
	}
	for _, one := range servers.Namenodes {
		if one.ID != n.Machine {
			continue
		}
		if err := s.group.AddMember(ctx, raftstore.Member{ID: one.ID, Address: one.Raft}); err != nil {
			return nil, pb.Status(err)
		}
		s.log.Info("a namenode joined the group", "namenode", one.ID, "raft", one.Raft)
		return &pb.EnlistResponse{}, nil
	}
	return nil, status.Errorf(codes.NotFound, "machine %s is in no list of namenodes", n.Machine)
}

// Follow implements pb.MembershipServer. A namenode that may lag behind, as one does that has started, begins to tell nobody: removed machines and
// revoked certificates would be back for who has just started, too.
func (m *membership) Follow(r *pb.FollowRequest, g grpc.ServerStreamingServer[pb.Members]) error {
	s := m.server
	n, err := caller(g.Context())
	if err != nil {
		return err
	}
	if !s.group.Current() {
		return status.Errorf(codes.Unavailable, "namenode %s hears of no leader, or has not read its log to the end: try another one", s.config.ID)
	}
	who, _ := security.PrincipalOf(g.Context())
	leave, ok := s.followers.enter(s.followerOf(who, r.Program))
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "%d processes of machine %s follow this namenode", maxFollowing, n.Machine)
	}
	defer leave()
	for last := uint64(0); ; {
		changed := s.news.wait()
		members, err := s.members()
		if err != nil {
			return memberError(err)
		}
		if members.Version != last {
			last = members.Version
			told := &pb.Members{}
			proto.Merge(told, members)
			told.NowMs = time.Now().UnixMilli()
			if err := g.Send(told); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-g.Context().Done():
			return nil
		case <-s.stopped:
			return status.Error(codes.Unavailable, "the namenode stops")
		}
	}
}

// members is what servers are told. Nobody may change it.
func (s *Server) members() (*pb.Members, error) {
	version := s.ns.RegisterVersion() // before it is read: a change in between is seen the next time
	if m := s.membersNow.Load(); m != nil && m.Version == version {
		return m, nil
	}
	trust, err := s.roster.Trust()
	if err != nil {
		return nil, err
	}
	if trust == nil {
		return nil, roster.ErrNone
	}
	servers, err := s.roster.Servers()
	if err != nil {
		return nil, err
	}
	issuer, err := s.roster.Issuer()
	if err != nil {
		return nil, err
	}
	rotation, err := s.roster.Rotation()
	if err != nil {
		return nil, err
	}
	level, err := s.roster.Level()
	if err != nil {
		return nil, err
	}
	of := authority.FingerprintOf(issuer)
	m := &pb.Members{Level: uint32(level.Level), Version: version, Cluster: trust.Cluster, Removed: trust.Removed, Issuer: of[:]}
	for _, r := range trust.Roots {
		m.Roots = append(m.Roots, r.Raw)
		if f := authority.FingerprintOf(r); rotation.Step == roster.Announced && f != of {
			m.Confirm = f[:]
		}
	}
	for _, l := range trust.Links {
		m.Links = append(m.Links, l.Raw)
	}
	for _, n := range servers.Namenodes {
		m.Namenodes = append(m.Namenodes, &pb.NamenodeAddresses{Id: n.ID, Ipc: n.IPC, Http: n.HTTP, Grpc: n.GRPC, Raft: n.Raft})
	}
	for _, r := range servers.ResourceManagers {
		m.ResourceManagers = append(m.ResourceManagers, &pb.ManagerAddresses{Id: r.ID, Http: r.HTTP, Grpc: r.GRPC, Raft: r.Raft, Ipc: r.IPC})
	}
	keys, err := s.users.issuer.Keys()
	if err != nil {
		return nil, err
	}
	if keys != nil {
		m.UserKeys = [][]byte{keys}
	}
	if m.Revoked, err = s.users.issuer.RevokedCertificates(); err != nil {
		return nil, err
	}
	s.membersNow.Store(m)
	return m, nil
}

func namenodeOf(a *pb.NamenodeAddresses) config.NamenodeMember {
	return config.NamenodeMember{ID: a.GetId(), IPC: a.GetIpc(), HTTP: a.GetHttp(), GRPC: a.GetGrpc(), Raft: a.GetRaft()}
}

// Founder is the machine whose certificate it is, as the register knows it.
func Founder(n *authority.Name, certificate *x509.Certificate, now time.Time) roster.Machine {
	m := roster.Machine{
		Name: n.Machine, Generation: n.Generation, Roles: n.Roles, Addresses: slices.Clone(certificate.DNSNames), Joined: now, Expires: certificate.NotAfter,
	}
	for _, ip := range certificate.IPAddresses {
		m.Addresses = append(m.Addresses, ip.String())
	}
	return m
}
