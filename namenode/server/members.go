package server

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
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
	// memberSilent is how long a member may be silent and still count as one that answers.
	memberSilent = 3 * time.Second
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
	m := raftstore.Member{ID: r.PathValue("id"), Address: r.URL.Query().Get("raft")}
	if _, port, err := net.SplitHostPort(m.Address); err != nil || port == "" || port == "0" {
		return metadata.Errorf(metadata.ErrInvalidArgument, "raft address %q of %s: want host:port", m.Address, m.ID)
	}
	if len(m.ID) > 255 || strings.ContainsAny(m.ID, " \t\n#/") {
		return metadata.Errorf(metadata.ErrInvalidArgument, "namenode id %q: want up to 255 letters, digits and dashes", m.ID)
	}
	return s.group.AddMember(ctx, m)
}

// removeMember takes a namenode out of the group, if those that stay and answer are a majority of those that stay.
func (s *Server) removeMember(ctx context.Context, r *http.Request) error {
	return s.dismiss(ctx, r.PathValue("id"))
}

func (s *Server) dismiss(ctx context.Context, id string) error {
	status := s.group.Status()
	known, voters, answer := false, 0, 0
	for _, m := range status.Members {
		if m.ID == id {
			known = true
			continue
		}
		if m.Voter {
			voters++
			if m.ID == s.config.ID || time.Since(m.Contact) < memberSilent {
				answer++
			}
		}
	}
	switch {
	case !status.Leader:
		return &raftstore.NotLeader{LeaderID: status.LeaderID, LeaderAddress: status.LeaderAddress}
	case !known:
		return metadata.Errorf(metadata.ErrInvalidArgument, "%s is not a member", id)
	case voters == 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "%s is the last member", id)
	case answer <= voters/2:
		return metadata.Errorf(metadata.ErrInvalidArgument, "without %s %d of %d members answer, which is no majority: start the others first", id, answer, voters)
	}
	return s.group.RemoveMember(ctx, id)
}

// transfer hands leadership to a namenode, or to the one that is best.
func (s *Server) transfer(ctx context.Context, r *http.Request) error {
	to := r.URL.Query().Get("to")
	if to != "" && to == s.config.ID && s.group.Leadership().Leader {
		return nil
	}
	return s.group.TransferLeadership(ctx, to)
}
