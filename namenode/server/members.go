package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode/roster"
)

// The operator's door: who is a member of the namenodes' group, who of them leads, and which datanodes are given up. Superusers only, every request is
// in the audit log, and the leader alone carries it out. `hops namenode` calls it.

const (
	// memberPatience is how long a change of the members may take: a new one receives everything before it gets its vote.
	memberPatience = 2 * time.Minute
)

// operation is a request of the operator's door. It answers what is said in JSON, or nil.
type operation struct {
	pattern, command string
	run              func(s *Server, ctx context.Context, r *http.Request) (any, error)
}

// memberRoutes are the requests about namenodes and datanodes.
var memberRoutes = []operation{
	{"PUT /api/v1/namenodes/{id}", "addNamenode", silent((*Server).addMember)},
	{"DELETE /api/v1/namenodes/{id}", "removeNamenode", silent((*Server).removeMember)},
	{"POST /api/v1/leader", "transferLeadership", silent((*Server).transfer)},
	{"POST /api/v1/backup", "backup", (*Server).backup},
	{"DELETE /api/v1/datanodes/{id}", "forgetDatanode", silent((*Server).forgetDatanode)},
}

// silent is an operation with nothing to say.
func silent(run func(*Server, context.Context, *http.Request) error) func(*Server, context.Context, *http.Request) (any, error) {
	return func(s *Server, ctx context.Context, r *http.Request) (any, error) { return struct{}{}, run(s, ctx, r) }
}

// unlessStuck is the operation, of one that reads the namespace.
func (o operation) unlessStuck(s *Server, ctx context.Context, r *http.Request) (any, error) {
	if err := s.stuck(); err != nil {
		return nil, err
	}
	return o.run(s, ctx, r)
}

// administer serves an operation.
func (s *Server) administer(w http.ResponseWriter, r *http.Request, command string, run func(*Server, context.Context, *http.Request) (any, error)) {
	var answer any
	caller, err := s.config.Door.HTTPCaller(r)
	if err == nil && !caller.Superuser {
		err = metadata.Errorf(metadata.ErrPermission, "%s is not a superuser", caller.User)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), memberPatience)
		defer cancel()
		answer, err = run(s, ctx, r)
	}
	d := security.Decision{Allowed: !security.Refused(err), Caller: caller, Port: "rest", Command: command, Source: r.PathValue("id"), Target: r.URL.RawQuery}
	if err != nil {
		d.Reason = err.Error()
	}
	s.config.Door.Record(d)
	w.Header().Set("Content-Type", "application/json")
	if err == nil {
		if r.Method != http.MethodGet {
			s.log.Info("changed by an operator", "command", command, "of", d.Source, "by", caller.User)
		}
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	w.WriteHeader(memberStatus(err))
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

// memberStatus is the HTTP status of an error.
func memberStatus(err error) int {
	if _, stuck := errors.AsType[stuckError](err); stuck {
		return http.StatusServiceUnavailable
	}
	switch {
	case errors.Is(err, metadata.ErrUnauthorized):
		return http.StatusUnauthorized
	case errors.Is(err, metadata.ErrPermission):
		return http.StatusForbidden
	case errors.Is(err, metadata.ErrInvalidArgument):
		return http.StatusBadRequest
	case errors.Is(err, roster.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, metadata.ErrStandby):
		return http.StatusMisdirectedRequest
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusConflict
}

// addMember makes a namenode that runs on an empty directory a member, or changes the address of one.
func (s *Server) addMember(ctx context.Context, r *http.Request) error {
	m, err := raftstore.ParseMember(r.PathValue("id"), r.URL.Query().Get("raft"))
	if err != nil {
		return err
	}
	return s.group.AddMember(ctx, m)
}

// removeMember takes a namenode out of the group, if those that stay and answer are a majority of those that stay.
func (s *Server) removeMember(ctx context.Context, r *http.Request) error {
	return s.group.Dismiss(ctx, r.PathValue("id"))
}

// transfer hands leadership to a namenode, or to the one that is best.
func (s *Server) transfer(ctx context.Context, r *http.Request) error {
	to := r.URL.Query().Get("to")
	if to != "" && to == s.config.ID && s.group.Leadership().Leader {
		return nil
	}
	return s.group.TransferLeadership(ctx, to)
}
