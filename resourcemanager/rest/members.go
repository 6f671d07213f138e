package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
)

// Group is the Raft group of the resource managers, as its operators see it.
type Group interface {
	Status() raftstore.Status
	AddMember(ctx context.Context, m raftstore.Member) error
	Dismiss(ctx context.Context, id string) error
	TransferLeadership(ctx context.Context, id string) error
}

// memberRoutes are the requests about the members of the group, which `hops resourcemanager` makes.
var memberRoutes = []Route{
	{Method: "GET", Path: "/api/v1/resourcemanagers", Right: security.Anyone, handle: (*request).listMembers},
	{Method: "PUT", Path: "/api/v1/resourcemanagers/{id}", Right: security.Superuser, handle: (*request).addMember},
	{Method: "DELETE", Path: "/api/v1/resourcemanagers/{id}", Right: security.Superuser, handle: (*request).dismiss},
	{Method: "POST", Path: "/api/v1/leader", Right: security.Superuser, handle: (*request).transfer},
}

// memberPatience is how long a change of the members may take: a new one receives everything before it gets its vote.
const memberPatience = 2 * time.Minute

// MemberView is a member of the group as GET /api/v1/resourcemanagers shows it.
type MemberView struct {
	ID    string `json:"id"`
	Raft  string `json:"raft"`
	Voter bool   `json:"voter"`
	// Behind is how many entries of the log it lacks.
	Behind uint64 `json:"behind"`
	// Silent is how long it has not answered the leader, in seconds; negative: it never has.
	Silent float64 `json:"silent_s"`
}

// grouped answers and reports false where there is no group.
func (q *request) grouped() bool {
	if q.Group == nil {
		q.fail(metadata.Errorf(metadata.ErrUnsupported, "this resource manager is in no group"))
	}
	return q.Group != nil
}

func (q *request) listMembers() {
	if !q.grouped() {
		return
	}
	list := []MemberView{}
	s := q.Group.Status()
	for _, m := range s.Members {
		v := MemberView{ID: m.ID, Raft: m.Address, Voter: m.Voter, Silent: -1}
		if !m.Contact.IsZero() {
			v.Behind, v.Silent = s.Last-min(m.Match, s.Last), max(time.Since(m.Contact), 0).Seconds()
		}
		list = append(list, v)
	}
	writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", map[string][]MemberView{"members": list})
}

// change runs a change of the group and answers.
func (q *request) change(what string, run func(context.Context) error) {
	if !q.grouped() {
		return
	}
	ctx, cancel := context.WithTimeout(q.r.Context(), memberPatience)
	defer cancel()
	if err := run(ctx); err != nil {
		q.fail(err)
		return
	}
	q.Logger.Info("changed by an operator", "command", what, "of", q.r.PathValue("id"), "by", q.caller.User)
	writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", struct{}{})
}

// addMember makes a resource manager that runs on an empty directory a member, or changes the address of one.
func (q *request) addMember() {
	m, err := raftstore.ParseMember(q.r.PathValue("id"), q.r.URL.Query().Get("raft"))
	if err != nil {
		q.fail(err)
		return
	}
	q.change("addResourceManager", func(ctx context.Context) error { return q.Group.AddMember(ctx, m) })
}

func (q *request) dismiss() {
	q.change("removeResourceManager", func(ctx context.Context) error { return q.Group.Dismiss(ctx, q.r.PathValue("id")) })
}

// transfer hands leadership to a resource manager, or to the one that is best. The answer may be the last thing that this one says
// as the leader.
func (q *request) transfer() {
	to := q.r.URL.Query().Get("to")
	if to != "" && to == q.ID {
		writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", struct{}{})
		return
	}
	q.change("transferLeadership", func(ctx context.Context) error { return q.Group.TransferLeadership(ctx, to) })
}
