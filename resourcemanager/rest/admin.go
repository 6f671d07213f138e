package rest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Operator does what `hops rmadmin` asks for. Its methods are safe for concurrent use.
type Operator interface {
	// Administer takes nodes out of service or back into it, by machine, address or id, and answers their ids; all or none.
	//
	// Errors: ErrNotExist for a name that no node has; ErrInvalidArgument.
	Administer(ctx context.Context, caller metadata.Caller, names []string, w Wish) ([]string, error)
	// ChangeLabels adds labels to those that the cluster knows, or takes others away, also from the nodes that carry them.
	//
	// Errors: ErrInvalidArgument; ErrUnsupported before the cluster has been raised to release.Requests.
	ChangeLabels(ctx context.Context, caller metadata.Caller, add []rm.NodeLabel, remove []string) error
	// MarkNodes sets labels and attributes of nodes over those of their node managers; all or none. Known: labels that the cluster does
	// not know are an error.
	//
	// Errors: those of ChangeLabels; ErrNotExist for a name that no node has.
	MarkNodes(ctx context.Context, caller metadata.Caller, marks []NodeMarks, known bool) error
	// RefreshNodes reads the list of excluded nodes anew. What runs on nodes that it names has until timeout, or for ever if that is
	// negative. A list that cannot be read changes nothing.
	RefreshNodes(ctx context.Context, caller metadata.Caller, timeout time.Duration) error
	// Resize sets memory and vcores of a node in place of those that it reports; zero: as it reports.
	Resize(ctx context.Context, caller metadata.Caller, id rm.NodeID, r rm.Resource) error
	// JudgeGPU has a device's node manager take it back into service (rm.GPUHealthy) or out of it for good (rm.GPURetired), as soon as
	// the node speaks. The node's reports show whether it has.
	//
	// Errors: ErrNotExist, ErrInvalidArgument; ErrRetriable: the node does not speak at the moment.
	JudgeGPU(ctx context.Context, caller metadata.Caller, uuid string, health rm.GPUHealth) error
	// RefreshQueues reads the queues of this member's file anew and, unless it is a dry run, makes them the cluster's if this member
	// leads. Queues that are wrong change nothing.
	RefreshQueues(ctx context.Context, caller metadata.Caller, o QueueOptions) (QueueChange, error)
	// ChangeQueues makes the cluster's queues what change makes of them. What it is given is its own to change.
	//
	// Errors: ErrInvalidArgument, around what rm.NewQueues says, and change's own; ErrExist when applications are affected and it is not
	// forced; ErrUnsupported before the cluster has been raised to release.Requests; those of the group.
	ChangeQueues(ctx context.Context, caller metadata.Caller, o QueueOptions, change func(rm.QueueConfig) (rm.QueueConfig, error)) (QueueChange, error)
	// RefreshUsers reads anew who may act for others (proxies), or who is a superuser.
	RefreshUsers(ctx context.Context, caller metadata.Caller, proxies bool) error
}

// NodeMarks are labels and attributes of a node, named by machine, address or id (port 0: any): the body of POST /api/v1/admin/marks
// lists them.
type NodeMarks struct {
	Node string `json:"node"`
	// Labels in place of all that it has; absent: see the next two.
	Labels []string `json:"labels,omitempty"`
	// AddLabels and DropLabels change those that it has, which may be there or gone already; OwnLabels: it has its node manager's again.
	AddLabels  []string `json:"add_labels,omitempty"`
	DropLabels []string `json:"drop_labels,omitempty"`
	OwnLabels  bool     `json:"own_labels,omitempty"`
	// SetAttributes are set over the node manager's own, and DropAttributes are the node manager's own again.
	SetAttributes  map[string]string `json:"set_attributes,omitempty"`
	DropAttributes []string          `json:"drop_attributes,omitempty"`
}

// MarksRequest is the body of POST /api/v1/admin/marks.
type MarksRequest struct {
	Marks []NodeMarks `json:"marks"`
}

// Wish is what an operator wants of nodes.
type Wish struct {
	// Leave: they are to leave; otherwise they serve again. Maintenance: they are to come back, after Life if that is not 0.
	// Cordon: they get nothing new, and what runs there goes on.
	Leave, Maintenance, Cordon bool
	// Reason is why, in the operator's words.
	Reason string
	// Timeout is how long what runs there may go on; negative: however long it takes.
	Timeout, Life time.Duration
}

// adminRoutes are those of `hops rmadmin`. Method is YARN's (ResourceManagerAdministrationProtocol), for the words of a refusal; those
// that are of each member are not passed on to the leader.
var adminRoutes = []Route{
	{Method: "POST", Path: "/api/v1/admin/nodes", Right: security.Superuser, handle: (*request).administer, admin: "refreshNodes"},
	{Method: "POST", Path: "/api/v1/admin/marks", Right: security.Superuser, handle: (*request).markNodes, admin: "replaceLabelsOnNode"},
	{Method: "POST", Path: "/api/v1/admin/refresh-nodes", Right: security.Superuser, handle: (*request).refreshNodes, admin: "refreshNodes"},
	{Method: "PUT", Path: "/api/v1/admin/nodes/{node}/resource", Right: security.Superuser, handle: (*request).resize, admin: "updateNodeResource"},
	{Method: "POST", Path: "/api/v1/admin/refresh-queues", Right: security.Superuser, handle: (*request).refreshQueues, admin: "refreshQueues", each: true},
	{Method: "POST", Path: "/api/v1/admin/refresh-groups", Right: security.Superuser, handle: (*request).refreshGroups, admin: "refreshUserToGroupsMappings", each: true},
	{Method: "POST", Path: "/api/v1/admin/refresh-proxy-users", Right: security.Superuser, handle: (*request).refreshProxyUsers, admin: "refreshSuperUserGroupsConfiguration", each: true},
	{Method: "POST", Path: "/api/v1/admin/refresh-superusers", Right: security.Superuser, handle: (*request).refreshSuperusers, admin: "refreshAdminAcls", each: true},
	{Method: "PUT", Path: "/api/v1/admin/gpus/{uuid}/health", Right: security.Superuser, handle: (*request).judgeGPU, admin: "judgeGPU"},
	{Method: "GET", Path: "/api/v1/groups/{user}", Right: security.Named, handle: (*request).groups},
}

// AdminRequest is the body of POST /api/v1/admin/nodes.
type AdminRequest struct {
	// Action is decommission, maintenance, cordon or recommission.
	Action string `json:"action"`
	// Nodes are names of machines, addresses or node ids.
	Nodes []string `json:"nodes"`
	// Timeout is how long what runs there may go on, in seconds; negative: however long it takes; absent: the same.
	Timeout *int64 `json:"timeout_s,omitempty"`
	// For is how long a maintenance or a cordon takes, in seconds; 0: until an operator says so.
	For int64 `json:"for_s,omitempty"`
	// Reason is why, for people.
	Reason string `json:"reason,omitempty"`
}

// AdminAnswer names the nodes that it is about.
type AdminAnswer struct {
	Nodes []string `json:"nodes"`
}

// operated answers and reports false where there is nobody who could do it.
func (q *request) operated() bool {
	if q.Operator == nil {
		q.fail(metadata.Errorf(metadata.ErrUnsupported, "this resource manager has no operator's commands"))
	}
	return q.Operator != nil
}

// answered ends a request with an answer or an error.
func (q *request) answered(v any, err error) {
	if err != nil {
		q.fail(err)
		return
	}
	writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", v)
}

// maxSeconds bounds numbers of seconds, so that they are durations.
const maxSeconds = 1 << 32

func (q *request) administer() {
	if !q.operated() {
		return
	}
	var body AdminRequest
	if !q.body(&body) {
		return
	}
	w := Wish{Timeout: -1}
	switch body.Action {
	case "decommission":
		w.Leave = true
	case "maintenance":
		w.Leave, w.Maintenance = true, true
	case "cordon":
		w.Leave, w.Cordon = true, true
	case "recommission":
	default:
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "action %.40q is not decommission, maintenance, cordon or recommission", body.Action))
		return
	}
	if body.Timeout != nil {
		w.Timeout = time.Duration(max(-1, min(*body.Timeout, maxSeconds))) * time.Second
	}
	w.Life = time.Duration(max(-1, min(body.For, maxSeconds))) * time.Second
	w.Reason = body.Reason
	nodes, err := q.Operator.Administer(q.r.Context(), q.caller, body.Nodes, w)
	q.answered(AdminAnswer{nodes}, err)
}

// markNodes changes labels and attributes of nodes.
func (q *request) markNodes() {
	var body MarksRequest
	if q.operated() && q.body(&body, "set_attributes") {
		q.answered(struct{}{}, q.Operator.MarkNodes(q.r.Context(), q.caller, body.Marks, false))
	}
}

// number reads a parameter that is a whole number.
func (q *request) number(name string, otherwise int64) (int64, bool) {
	text := q.r.URL.Query().Get(name)
	if text == "" {
		return otherwise, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > maxSeconds || n < -1 {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%s: %.40q is no number from -1 to %d", name, text, int64(maxSeconds)))
		return 0, false
	}
	return n, true
}

// truth reads a parameter that is true or false; absent: false. What it guards is not to happen because of a misspelling.
func (q *request) truth(name string) (value, ok bool) {
	switch text := q.r.URL.Query().Get(name); text {
	case "", "false":
		return false, true
	case "true":
		return true, true
	default:
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%s: %.100q is neither true nor false: nothing was done", name, text))
		return false, false
	}
}

func (q *request) refreshNodes() {
	timeout, ok := q.number("timeout_s", 0)
	if !ok || !q.operated() {
		return
	}
	q.answered(struct{}{}, q.Operator.RefreshNodes(q.r.Context(), q.caller, time.Duration(timeout)*time.Second))
}

func (q *request) resize() {
	memory, ok := q.number("memory_mib", -1)
	if !ok {
		return
	}
	vcores, ok := q.number("vcores", -1)
	if !ok || !q.operated() {
		return
	}
	if memory < 0 || vcores < 0 || memory > 1<<30 || vcores > 1<<20 {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "memory_mib %d and vcores %d: give both, from 0 to %d and %d", memory, vcores, 1<<30, 1<<20))
		return
	}
	q.answered(struct{}{}, q.Operator.Resize(q.r.Context(), q.caller, rm.NodeID(q.r.PathValue("node")), rm.Resource{Memory: memory * rm.MiB, VCores: int(vcores)}))
}

// judgeGPU takes ?health=HEALTHY or RETIRED.
func (q *request) judgeGPU() {
	if !q.operated() {
		return
	}
	q.answered(struct{}{}, q.Operator.JudgeGPU(q.r.Context(), q.caller, q.r.PathValue("uuid"), rm.GPUHealth(strings.ToUpper(q.r.URL.Query().Get("health")))))
}

func (q *request) refreshQueues() {
	if !q.operated() {
		return
	}
	check, ok := q.truth("check")
	if !ok {
		return
	}
	force, ok := q.truth("force")
	if !ok {
		return
	}
	change, err := q.Operator.RefreshQueues(q.r.Context(), q.caller, QueueOptions{DryRun: check, Force: force})
	q.answered(change, err)
}

func (q *request) refreshGroups() {
	q.Door.ForgetGroups()
	q.answered(struct{}{}, nil)
}

func (q *request) refreshProxyUsers() {
	if q.operated() {
		q.answered(struct{}{}, q.Operator.RefreshUsers(q.r.Context(), q.caller, true))
	}
}

func (q *request) refreshSuperusers() {
	if q.operated() {
		q.answered(struct{}{}, q.Operator.RefreshUsers(q.r.Context(), q.caller, false))
	}
}

// Groups are a user's.
type Groups struct {
	User   string   `json:"user"`
	Groups []string `json:"groups"`
}

func (q *request) groups() {
	user := q.r.PathValue("user")
	if len(user) > security.MaxUserName {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "a user's name has %d bytes at most", security.MaxUserName))
		return
	}
	list := q.Door.Caller(user).Groups
	if list == nil {
		list = []string{}
	}
	q.answered(Groups{user, list}, nil)
}
