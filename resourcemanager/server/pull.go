package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// opensAtOnce is for how many containers secrets are read at a time, of which one user's are half at most.
const opensAtOnce = 16

// places bounds what is under way, and how much of it is one user's.
type places struct {
	all chan struct{}

	mu    sync.Mutex
	users map[string]chan struct{} // with who uses and waits for it
	in    map[string]int
}

func newPlaces(n int) *places {
	return &places{all: make(chan struct{}, n), users: map[string]chan struct{}{}, in: map[string]int{}}
}

// enter takes a place, or waits for one. Error: that of the context.
func (p *places) enter(ctx context.Context, user string) (leave func(), err error) {
	p.mu.Lock()
	own := p.users[user]
	if own == nil {
		own = make(chan struct{}, max(cap(p.all)/2, 1))
		p.users[user] = own
	}
	p.in[user]++
	p.mu.Unlock()
	gone := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.in[user]--; p.in[user] == 0 {
			delete(p.in, user)
			delete(p.users, user)
		}
	}
	for i, door := range []chan struct{}{own, p.all} {
		select {
		case door <- struct{}{}:
		case <-ctx.Done():
			if i == 1 {
				<-own
			}
			gone()
			return nil, ctx.Err()
		}
	}
	return func() { <-p.all; <-own; gone() }, nil
}

// Credentials implements the service.
func (n *nodeManagers) Credentials(ctx context.Context, q *pb.CredentialsRequest) (*pb.CredentialsResponse, error) {
	s := n.s
	if s.reign.Load() == nil {
		return nil, s.notLeader()
	}
	id, err := rm.ParseContainerID(q.ContainerId)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.group.Load().ReadWait(ctx); err != nil { // another one may lead, and know of its end
		return nil, s.wire(err)
	}
	view := s.state.View()
	c, a := view.Container(id), view.Application(id.Attempt.Application)
	machine := machineOf(ctx)
	if c == nil || a == nil || !n.isOn(view.Node(c.Node), machine) {
		s.log.Warn("a node manager asks for the credentials of a container that is not on its machine", "machine", machine, "container", id)
		return nil, status.Errorf(codes.PermissionDenied, "%v is no container of machine %s", id, machine)
	}
	switch {
	case !c.Live() || c.StopStatus != 0:
		return nil, status.Errorf(codes.NotFound, "%v has ended, or is to end", id)
	case a.State.Final():
		return nil, status.Errorf(codes.NotFound, "%v has ended", a.ID)
	}
	out := &pb.CredentialsResponse{}
	if s.config.Tokens != nil {
		all := view.Credentials(a.ID)
		if len(all) == 0 {
			return nil, status.Errorf(codes.Unavailable, "the filesystem has given no delegation token for user %s yet", a.User)
		}
		last := all[len(all)-1]
		t, err := s.unseal(last)
		if err != nil {
			return nil, s.wire(err)
		}
		out.Token = &pb.Token{Identifier: t.Identifier, Password: t.Password, Kind: t.Kind}
		out.AgainMs = min(max(life(last)/32, minAgain), maxAgain).Milliseconds()
	}
	if q.Secrets {
		if out.LaunchTokens, err = s.launchTokens(view, a, c); err != nil {
			return nil, s.wire(err)
		}
		if ownProgram(a, c) {
			if out.Secrets, err = s.openSecrets(ctx, a); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// minAgain and maxAgain bound the time after which a node manager asks for another token.
const minAgain, maxAgain = 250 * time.Millisecond, time.Hour

// machineOf is the name in the certificate of a call's connection.
func machineOf(ctx context.Context) string {
	if who, ok := security.PrincipalOf(ctx); ok && who.Server != nil {
		return who.Server.Machine
	}
	return ""
}

// isOn reports whether a node is on a machine.
func (n *nodeManagers) isOn(node *rm.Node, machine string) bool {
	return node != nil && machine != "" && node.Machine == machine
}

// openSecrets reads the secrets that an application's job names.
func (s *Server) openSecrets(ctx context.Context, a *rm.Application) (map[string][]byte, error) {
	names := secretsOf(a)
	if len(names) == 0 {
		return nil, nil
	}
	if s.config.Secrets == nil {
		return nil, status.Error(codes.InvalidArgument, "this resource manager has no filesystem that keeps secrets")
	}
	leave, err := s.opening.enter(ctx, a.User)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer leave()
	opened, err := s.config.Secrets.Open(ctx, a.User, names)
	switch {
	case err == nil:
		return opened, nil
	case errors.Is(err, security.ErrSealed), errors.Is(err, metadata.ErrNotExist), errors.Is(err, metadata.ErrPermission), errors.Is(err, metadata.ErrInvalidArgument):
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return nil, status.Errorf(codes.Unavailable, "the secrets of the job cannot be read now: %v", err)
}
