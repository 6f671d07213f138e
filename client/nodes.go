package client

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"
)

// The actions of NodeService.
const (
	// NodesDecommission and NodesMaintenance give nodes no more work and have what runs there end; after the latter they are to come back.
	NodesDecommission = "decommission"
	NodesMaintenance  = "maintenance"
	// NodesCordon gives nodes no more work, and what runs there goes on.
	NodesCordon = "cordon"
	// NodesServe ends each of them.
	NodesServe = "recommission"
)

// NodeService is what an administrator wants of nodes.
type NodeService struct {
	Action string
	// Nodes are names of machines, addresses or node ids.
	Nodes []string
	// Timeout is how long what runs there may go on; negative: however long it takes.
	Timeout time.Duration
	// For is how long a maintenance or a cordon takes; 0: until NodesServe.
	For time.Duration
	// Reason is shown to those whose jobs wait.
	Reason string
}

// ServeNodes takes nodes out of service, or back into it; all of them or, when one is not known, none. It answers their ids.
//
// Errors: *Error of status 404 for a name that no node has, 403 for who is no administrator, 400.
func (j *Jobs) ServeNodes(ctx context.Context, o NodeService) ([]string, error) {
	request := struct {
		Action  string   `json:"action"`
		Nodes   []string `json:"nodes"`
		Timeout *int64   `json:"timeout_s,omitempty"`
		For     int64    `json:"for_s,omitempty"`
		Reason  string   `json:"reason,omitempty"`
	}{Action: o.Action, Nodes: o.Nodes, For: seconds(o.For), Reason: o.Reason}
	if o.Timeout >= 0 && (o.Action == NodesDecommission || o.Action == NodesMaintenance) {
		s := seconds(o.Timeout)
		request.Timeout = &s
	}
	var answer struct{ Nodes []string }
	err := j.rest.call(ctx, http.MethodPost, "/api/v1/admin/nodes", request, nil, &answer)
	return answer.Nodes, err
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Named reports whether a name means the node: its id, or its host, address or machine, which may be that of several.
func (n *Node) Named(name string) bool {
	host, _, _ := net.SplitHostPort(n.ID)
	return name != "" && (name == n.ID || strings.EqualFold(name, host) || strings.EqualFold(name, n.Host) || strings.EqualFold(name, n.Machine))
}

// NodeMarks are labels and attributes of nodes that an administrator sets over those of their node managers.
type NodeMarks struct {
	// Node is a machine, an address or a node id.
	Node string `json:"node"`
	// Labels are added, and taken away; OwnLabels: they are the node manager's again.
	AddLabels  []string `json:"add_labels,omitempty"`
	DropLabels []string `json:"drop_labels,omitempty"`
	OwnLabels  bool     `json:"own_labels,omitempty"`
	// SetAttributes are set, and DropAttributes are the node manager's own again.
	SetAttributes  map[string]string `json:"set_attributes,omitempty"`
	DropAttributes []string          `json:"drop_attributes,omitempty"`
}

// MarkNodes sets labels and attributes; of all nodes or, when one is refused, of none. What runs there stays.
//
// Errors: as those of ServeNodes.
func (j *Jobs) MarkNodes(ctx context.Context, marks []NodeMarks) error {
	var answer struct{}
	return j.rest.call(ctx, http.MethodPost, "/api/v1/admin/marks", map[string]any{"marks": marks}, nil, &answer)
}
