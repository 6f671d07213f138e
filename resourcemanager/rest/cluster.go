package rest

import (
	"slices"

	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
)

// clusterRoutes are those of nodes and the ledger.
var clusterRoutes = []Route{
	{Method: "GET", Path: "/api/v1/nodes", Right: security.Anyone, handle: (*request).listNodes},
	{Method: "GET", Path: "/api/v1/grants", Right: security.Anyone, handle: (*request).listGrants},
}

// NodeView is a node as GET /api/v1/nodes shows it.
type NodeView struct {
	ID     string   `json:"id"`
	Host   string   `json:"host"`
	HTTP   string   `json:"http"`
	Rack   string   `json:"rack"`
	Labels []string `json:"labels,omitempty"`
	// Attributes are what is true of the node, by name (YARN-3409).
	Attributes map[string]string `json:"attributes,omitempty"`
	Version    string            `json:"version,omitempty"`
	// Level is the newest of the cluster's formats that its program knows; 0: not known.
	Level   int    `json:"level,omitempty"`
	Machine string `json:"machine,omitempty"`
	// State is YARN's, or DECOMMISSIONED, ENTERING_MAINTENANCE, IN_MAINTENANCE or CORDONED.
	State rm.NodeState `json:"state"`
	// Leaving is what an operator wants of it; absent: it serves.
	Leaving *LeavingView `json:"leaving,omitempty"`
	// Open: the node takes work now.
	Open         bool      `json:"open"`
	HealthReport string    `json:"health_report,omitempty"`
	LastHeard    int64     `json:"last_heard"`
	Capacity     Amount    `json:"capacity"`
	Used         Amount    `json:"used"`
	Containers   []string  `json:"containers,omitempty"`
	GPUs         []GPUView `json:"gpus,omitempty"`
	// Divided are its GPUs in MIG mode: nobody gets them, but the instances of them, which are among its GPUs.
	Divided []DividedGPU `json:"divided_gpus,omitempty"`
}

// DividedGPU is a GPU in MIG mode.
type DividedGPU struct {
	UUID   string `json:"uuid"`
	Model  string `json:"model"`
	Memory int64  `json:"memory"`
	Minor  int    `json:"minor"`
	PCI    string `json:"pci,omitempty"`
	// Instances are how many MIG instances it has; with none, nobody gets anything of it.
	Instances    int          `json:"instances"`
	Simulated    bool         `json:"simulated"`
	Health       rm.GPUHealth `json:"health"`
	HealthReason string       `json:"health_reason,omitempty"`
	Load         *GPULoad     `json:"load,omitempty"`
}

// LeavingView is what an operator wants of a node. Times are in milliseconds since 1970; 0: there is none.
type LeavingView struct {
	By    string `json:"by"`
	Since int64  `json:"since"`
	// Deadline is when what still runs there is ended, Until when a maintenance is over.
	Deadline int64 `json:"deadline"`
	Until    int64 `json:"until"`
	// Listed: the list of excluded nodes names it.
	Listed bool `json:"listed"`
	// Cordon: it gets nothing new, and what runs there goes on.
	Cordon bool   `json:"cordon,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// GPUView is a device.
type GPUView struct {
	UUID         string       `json:"uuid"`
	Model        string       `json:"model"`
	Memory       int64        `json:"memory"`
	Minor        int          `json:"minor"`
	PCI          string       `json:"pci,omitempty"`
	Island       string       `json:"island,omitempty"`
	Simulated    bool         `json:"simulated"`
	Health       rm.GPUHealth `json:"health"`
	HealthReason string       `json:"health_reason,omitempty"`
	// Profile is that of a MIG instance, Parent the UUID of its GPU; absent: it is a whole GPU.
	Profile string `json:"profile,omitempty"`
	Parent  string `json:"parent,omitempty"`
	// Container that holds the device; empty: none.
	Container string `json:"container,omitempty"`
	// Load is what it does now, Use what the container that holds it has done with it; absent: the node does not tell.
	Load *GPULoad `json:"load,omitempty"`
	Use  *GPUUse  `json:"use,omitempty"`
}

func (q *request) listNodes() {
	nodes := []NodeView{}
	holders := q.view.Holders()
	for n := range q.view.Nodes() {
		live := q.Cluster.Liveness(n.ID)
		v := NodeView{
			ID: string(n.ID), Host: n.Host, HTTP: n.HTTP, Rack: n.Rack, Labels: n.Labels, Attributes: n.Attributes.Map(), Version: n.Version, Level: n.Level, Machine: n.Machine, State: n.ShownHere(),
			Open: live.Open && n.Wish == nil, HealthReport: healthOf(n), Capacity: amountOf(n.Capacity), Used: amountOf(n.Used),
		}
		if w := n.Wish; w != nil {
			v.Leaving = &LeavingView{w.By, int64(w.Since), int64(w.Deadline), int64(w.Until), w.Listed, w.Cordon, w.Reason}
		}
		if !live.Heard.IsZero() {
			v.LastHeard = live.Heard.UnixMilli()
		}
		if live.Refused != "" {
			v.HealthReport = "its report is refused: " + live.Refused
		}
		for _, c := range q.view.On(n.ID) {
			v.Containers = append(v.Containers, c.ID.String())
		}
		for _, g := range n.GPUs {
			d := GPUView{
				UUID: g.UUID, Model: g.Model, Memory: g.Memory, Minor: g.Minor, PCI: g.PCI, Island: g.Island, Simulated: g.Simulated,
				Health: g.Health, HealthReason: g.HealthReason, Profile: g.Profile, Parent: g.Parent,
			}
			if d.Health == "" {
				d.Health = rm.GPUHealthy
			}
			if c, ok := holders[g.UUID]; ok {
				d.Container = c.String()
				if i := slices.IndexFunc(live.Uses[c], func(u GPUUse) bool { return u.UUID == g.UUID }); i >= 0 {
					d.Use = &live.Uses[c][i]
				}
			}
			if l, ok := live.GPUs[g.UUID]; ok {
				d.Load = &l
			}
			v.GPUs = append(v.GPUs, d)
		}
		v.Divided = live.Divided
		nodes = append(nodes, v)
	}
	q.json(map[string][]NodeView{"nodes": nodes})
}

// GrantView is a line of the ledger of GPUs. To is 0 while the container holds them.
type GrantView struct {
	Container   string   `json:"container"`
	Application string   `json:"application"`
	Node        string   `json:"node"`
	GPUs        []string `json:"gpus"`
	From        int64    `json:"from"`
	To          int64    `json:"to"`
}

// listGrants answers the ledger in the order of the grants, ?application= of one alone.
func (q *request) listGrants() {
	only := q.r.URL.Query().Get("application")
	stream(q, `{"grants":[`, `]}`, "", func(yield func(GrantView) bool) {
		for g := range q.view.Ledger() {
			app := g.Container.Attempt.Application.String()
			if only != "" && only != app {
				continue
			}
			if !yield(GrantView{g.Container.String(), app, string(g.Node), g.GPUs, int64(g.From), int64(g.To)}) {
				return
			}
		}
	})
}
