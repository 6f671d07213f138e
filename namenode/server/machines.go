package server

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/roster"
)

// clusterRoutes are the requests about the machines of the cluster, which `hops cluster` makes.
var clusterRoutes = []operation{
	{"POST /api/v1/cluster/tokens", "createJoinToken", (*Server).createToken},
	{"DELETE /api/v1/cluster/tokens/{id}", "withdrawJoinToken", silent((*Server).withdrawToken)},
	{"GET /api/v1/cluster/machines", "listMachines", (*Server).listMachines},
	{"GET /api/v1/cluster/machines/{id}/holds", "machineHolds", (*Server).holds},
	{"DELETE /api/v1/cluster/machines/{id}", "removeMachine", silent((*Server).removeMachine)},
	{"POST /api/v1/cluster/rotation", "rotateAuthority", (*Server).rotate},
	{"GET /api/v1/cluster/level", "showLevel", (*Server).showLevel},
	{"POST /api/v1/cluster/level", "raiseLevel", (*Server).raiseLevel},
}

// Token is the answer to a request for a token to join with.
type Token struct {
	Token   string           `json:"token"`
	Roles   []authority.Role `json:"roles"`
	Expires time.Time        `json:"expires"`
	Uses    int              `json:"uses"`
	// Address of a namenode to join at.
	Address string `json:"address"`
}

// Machines is the answer to a request for the machines of the cluster.
type Machines struct {
	Cluster  string          `json:"cluster"`
	Machines []ListedMachine `json:"machines"`
	// Tokens are those that may still be used, by their ids.
	Tokens   []ListedToken   `json:"tokens"`
	Rotation roster.Rotation `json:"rotation"`
	// Level is what the cluster has been raised to, with the live processes and their versions.
	Level *Level `json:"level"`
	// Authority is the newest one's fingerprint.
	Authority authority.Fingerprint `json:"authority"`
}

// ListedMachine is one machine of the list.
type ListedMachine struct {
	Name string `json:"name"`
	roster.Machine
}

// ListedToken is one token of the list.
type ListedToken struct {
	ID      string           `json:"id"`
	Roles   []authority.Role `json:"roles"`
	Expires time.Time        `json:"expires"`
	Uses    int              `json:"uses"`
}

// leads is an error where somebody else leads: nobody but the leader decides about members.
func (s *Server) leads() error {
	if s.reign.Load() == nil {
		return namenode.ErrStandbyWrite
	}
	return nil
}

func (s *Server) createToken(ctx context.Context, r *http.Request) (any, error) {
	if err := s.leads(); err != nil {
		return nil, err
	}
	q := r.URL.Query()
	roles, err := authority.ParseRoles(q.Get("roles"))
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "roles: %v", err)
	}
	life, err := time.ParseDuration(q.Get("ttl"))
	if err != nil || life <= 0 || life > roster.MaxInvitation {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "ttl %q: want a time up to %v, as 24h", q.Get("ttl"), roster.MaxInvitation)
	}
	uses, err := strconv.Atoi(q.Get("uses"))
	if err != nil || uses < 1 || uses > roster.MaxUses {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "uses %q: want 1 to %d", q.Get("uses"), roster.MaxUses)
	}
	token, err := s.roster.Invite(ctx, roles, life, uses)
	if err != nil {
		return nil, err
	}
	answer := Token{Token: token.String(), Roles: roles, Expires: time.Now().Add(life), Uses: uses, Address: s.config.GRPC.Addr().String()}
	servers, err := s.roster.Servers()
	if err != nil {
		return nil, err
	}
	for _, n := range servers.Namenodes {
		if n.ID == s.config.ID {
			answer.Address = n.GRPC
		}
	}
	return answer, nil
}

func (s *Server) withdrawToken(ctx context.Context, r *http.Request) error {
	if err := s.leads(); err != nil {
		return err
	}
	return s.roster.Withdraw(ctx, r.PathValue("id"))
}

func (s *Server) listMachines(ctx context.Context, _ *http.Request) (any, error) {
	if err := s.leads(); err != nil {
		return nil, err
	}
	trust, err := s.roster.Trust()
	if err != nil {
		return nil, err
	}
	if trust == nil {
		return nil, roster.ErrNone
	}
	out := Machines{Cluster: trust.Cluster, Machines: []ListedMachine{}, Tokens: []ListedToken{}, Authority: authority.FingerprintOf(trust.Roots[len(trust.Roots)-1])}
	all, err := s.roster.Machines()
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		out.Machines = append(out.Machines, ListedMachine{m.Name, m})
	}
	invitations, err := s.roster.Invitations()
	if err != nil {
		return nil, err
	}
	for _, i := range invitations {
		out.Tokens = append(out.Tokens, ListedToken{i.ID, i.Roles, i.Expires, i.Uses})
	}
	if out.Rotation, err = s.roster.Rotation(); err != nil {
		return nil, err
	}
	out.Level, err = s.level(ctx)
	return out, err
}

// removeMachine takes a machine out, with its namenode's vote.
func (s *Server) removeMachine(ctx context.Context, r *http.Request) error {
	if err := s.leads(); err != nil {
		return err
	}
	name, last := r.PathValue("id"), r.URL.Query().Get("last_resourcemanager")
	if !slices.Contains([]string{"", "true", "false"}, last) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "last_resourcemanager is true or false")
	}
	if name == s.config.ID {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the namenode of %s leads: hand that over first (`hops cluster transfer namenode`)", name)
	}
	for _, m := range s.group.Status().Members {
		if m.ID == name {
			if err := s.group.Dismiss(ctx, name); err != nil {
				return err
			}
		}
	}
	return s.roster.Remove(ctx, name, last == "true")
}

// rotate begins to replace the authority, which with compromised does not vouch for the next, or with finish takes the next step at once,
// whoever is not ready for it.
func (s *Server) rotate(ctx context.Context, r *http.Request) (any, error) {
	if err := s.leads(); err != nil {
		return nil, err
	}
	q := r.URL.Query()
	for _, name := range []string{"finish", "compromised"} {
		if !slices.Contains([]string{"", "true", "false"}, q.Get(name)) {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%s is true or false", name)
		}
	}
	now, err := s.roster.Rotation()
	if err != nil {
		return nil, err
	}
	finish, compromised := q.Get("finish") == "true", q.Get("compromised") == "true"
	switch {
	case finish && compromised:
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "finish and compromised are two steps")
	case finish && now.Step == roster.Unrotated:
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "no authority follows another: there is nothing to finish")
	case finish:
		err = s.roster.Advance(ctx, true)
	default:
		err = s.roster.Rotate(ctx, compromised)
	}
	if err != nil {
		return nil, err
	}
	return s.roster.Rotation()
}
