package rest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
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
	// Copy saves the state, which has all that was acknowledged, and opens the file.
	Copy() (raftstore.Backup, *os.File, error)
}

// memberRoutes are the requests about the members of the group, which `hops resourcemanager` makes.
var memberRoutes = []Route{
	{Method: "GET", Path: "/api/v1/resourcemanagers", Right: security.Anyone, handle: (*request).listMembers},
	{Method: "PUT", Path: "/api/v1/resourcemanagers/{id}", Right: security.Superuser, handle: (*request).addMember},
	{Method: "DELETE", Path: "/api/v1/resourcemanagers/{id}", Right: security.Superuser, handle: (*request).dismiss},
	{Method: "POST", Path: "/api/v1/leader", Right: security.Superuser, handle: (*request).transfer},
	{Method: "POST", Path: "/api/v1/backup", Right: security.Superuser, handle: (*request).backup},
}

// BackupHeader is the header of the answer to POST /api/v1/backup with a raftstore.Backup as JSON; the body is the snapshot.
const BackupHeader = "Hops-Backup"

// backup sends a snapshot of the state, for `hops cluster backup`.
func (q *request) backup() {
	if !q.grouped() {
		return
	}
	b, f, err := q.Group.Copy()
	if err != nil {
		q.fail(err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		q.fail(err)
		return
	}
	text, err := json.Marshal(b)
	if err != nil {
		q.fail(err)
		return
	}
	h := q.w.Header()
	h.Set(BackupHeader, string(text))
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	q.w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(q.w)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	for { // a reader that takes nothing holds the file no longer than the deadline of a piece
		_ = control.SetWriteDeadline(time.Now().Add(backupPatience)) // recorders in tests have none
		if _, err := io.CopyN(q.w, f, backupPiece); err != nil {
			return // the end, or the reader has gone: it misses bytes that were announced
		}
	}
}

const (
	backupPiece    = 1 << 20
	backupPatience = 30 * time.Second
)

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
