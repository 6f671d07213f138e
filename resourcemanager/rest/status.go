package rest

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/internal/status"
	rm "github.com/gohops/hops/resourcemanager"
)

// newPages makes the pages of every server; YARN's page is at /cluster. readyz is 200 when a client that asks now gets an
// answer, from this resource manager or from the leader that it knows.
func (a *API) newPages() *status.Pages {
	return status.New(status.Config{
		Role: "resourcemanager", Port: "resource manager HTTP", Page: "/cluster", Aliases: []string{"/", "/cluster/apps", "/cluster/nodes", "/cluster/scheduler"},
		Report: a.report, Figures: a.figures, Beans: a.beans,
	})
}

// load is what the cluster has and does, counted for a page or a scrape.
type load struct {
	nodes      map[rm.NodeState]int
	apps       map[rm.State]int
	containers int
	pending    int
	total, use rm.Resource
}

func (a *API) load() load {
	l := load{nodes: map[rm.NodeState]int{}, apps: map[rm.State]int{}}
	view := a.Cluster.View()
	for n := range view.Nodes() {
		l.nodes[n.ShownHere()]++
		l.containers += n.Live
		l.use = l.use.Add(n.Used)
		if n.Takes() {
			l.total = l.total.Add(n.Capacity)
		}
	}
	for app := range view.Applications() {
		l.apps[app.State]++
	}
	for app := range view.Live() {
		for _, ask := range view.Asks(app.ID) {
			l.pending += ask.Count
		}
	}
	return l
}

// nodesInWords counts nodes by state; those of which there are none and that are no trouble are left out.
func (l *load) nodesInWords() string {
	text := fmt.Sprintf("%d running, %d lost, %d unhealthy", l.nodes[rm.NodeRunning], l.nodes[rm.NodeLost], l.nodes[rm.NodeUnhealthy])
	for _, s := range leavingStates {
		if n := l.nodes[s]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, strings.ToLower(strings.ReplaceAll(string(s), "_", " ")))
		}
	}
	return text
}

var leavingStates = []rm.NodeState{rm.NodeDecommissioning, rm.NodeDecommissioned, rm.NodeEnteringMaintenance, rm.NodeInMaintenance}

func (a *API) report() status.Report {
	l := a.load()
	leader := a.Cluster.LeaderHTTP()
	r := status.Report{
		ID: a.ID, State: "standby",
		Facts: []status.Fact{
			{Name: "leader", Value: leader},
			{Name: "nodes", Value: l.nodesInWords()},
			{Name: "GPUs", Value: fmt.Sprintf("%d of %d granted", l.use.GPUs, l.total.GPUs)},
			{Name: "vcores", Value: fmt.Sprintf("%d of %d granted", l.use.VCores, l.total.VCores)},
			{Name: "memory", Value: fmt.Sprintf("%s of %s granted", size.About(l.use.Memory), size.About(l.total.Memory))},
			{Name: "applications", Value: fmt.Sprintf("%d running, %d accepted", l.apps[rm.StateRunning], l.apps[rm.StateAccepted])},
			{Name: "containers", Value: fmt.Sprintf("%d, and %d are asked for", l.containers, l.pending)},
		},
		Links: []status.Link{
			{Address: "/ws/v1/cluster/metrics", Text: "YARN's REST interface"},
			{Address: "/api/v1/jobs", Text: "jobs"},
			{Address: "/api/v1/nodes", Text: "nodes and their GPUs"},
			{Address: "/api/v1/queues", Text: "queues"},
		},
		Detail: struct {
			Leader       string `json:"leader"`
			QueuesHash   string `json:"queues_hash"`
			Nodes        int    `json:"nodes"`
			Lost         int    `json:"lost_nodes"`
			GPUs         int    `json:"gpus"`
			Granted      int    `json:"granted_gpus"`
			Applications int    `json:"running_applications"`
		}{leader, a.Cluster.Queues().Hash(), l.nodes[rm.NodeRunning], l.nodes[rm.NodeLost], l.total.GPUs, l.use.GPUs, l.apps[rm.StateRunning]},
	}
	switch {
	case a.Cluster.Leading():
		r.State = "active"
	case leader == "":
		r.Problem = "no leader is known"
	default:
		r.Links = append(r.Links, status.Link{Address: security.PageOf(leader), Text: "the leader"})
	}
	if id, hash := a.Cluster.View().Leader(); hash != "" && hash != a.Cluster.Queues().Hash() {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the queues configured here are not those of the leader %s, which rule while it leads: "+
			"make resourcemanager.queues alike on all resource managers, then `hops rmadmin -refreshQueues`", id))
	}
	if r.State == "active" && l.nodes[rm.NodeRunning] == 0 {
		r.Warnings = append(r.Warnings, "no node is there: jobs wait")
	}
	if n := l.nodes[rm.NodeLost]; r.State == "active" && n > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d nodes are lost", n))
	}
	return r
}

func (a *API) figures(to status.Sample) {
	l := a.load()
	to.Gauge("hops_resourcemanager_active", "1 while this resource manager leads.", status.Bool(a.Cluster.Leading()))
	for _, s := range append([]rm.NodeState{rm.NodeRunning, rm.NodeLost, rm.NodeUnhealthy}, leavingStates...) {
		to.Gauge("hops_resourcemanager_nodes", "Nodes by state.", float64(l.nodes[s]), "state", string(s))
	}
	for _, s := range []rm.State{rm.StateAccepted, rm.StateRunning, rm.StateFinished, rm.StateFailed, rm.StateKilled} { // at 0 too: what is absent alerts nobody
		to.Gauge("hops_resourcemanager_applications", "Applications that are kept, by state.", float64(l.apps[s]), "state", string(s))
	}
	to.Gauge("hops_resourcemanager_containers", "Containers that hold something.", float64(l.containers))
	to.Gauge("hops_resourcemanager_pending_containers", "Containers that are asked for and not granted.", float64(l.pending))
	for _, r := range []struct {
		kind string
		r    rm.Resource
	}{{"total", l.total}, {"granted", l.use}} {
		to.Gauge("hops_resourcemanager_gpus", "GPUs of running nodes, and those that are granted.", float64(r.r.GPUs), "of", r.kind)
		to.Gauge("hops_resourcemanager_vcores", "Vcores of running nodes, and those that are granted.", float64(r.r.VCores), "of", r.kind)
		to.Gauge("hops_resourcemanager_memory_bytes", "Memory of running nodes, and what of it is granted.", float64(r.r.Memory), "of", r.kind)
	}
	a.queueFigures(to)
	if a.Figures != nil {
		a.Figures(to)
	}
	if a.Group != nil {
		g := a.Group.Status()
		g.Figures(to)
	}
	a.Slow.Figures(to)
}

// queueFigures are those of every queue. Shares are of what the nodes have that take work, 0 to 1.
func (a *API) queueFigures(to status.Sample) {
	q := &request{API: a, view: a.Cluster.View()}
	total, _, _ := q.totals()
	uses := q.queueUses()
	for _, k := range q.queues().All {
		u := uses[k]
		to.Gauge("hops_resourcemanager_queue_capacity_ratio", "What a queue is guaranteed of the cluster.", k.AbsoluteCapacity, "queue", k.Path)
		to.Gauge("hops_resourcemanager_queue_maximum_ratio", "What a queue may use of the cluster.", k.AbsoluteMax, "queue", k.Path)
		to.Gauge("hops_resourcemanager_queue_used_ratio", "What a queue uses of the resource of which it uses most.", dominant(u.used, total), "queue", k.Path)
		to.Gauge("hops_resourcemanager_queue_applications", "Applications of a queue that have not ended.", float64(u.apps), "queue", k.Path)
		to.Gauge("hops_resourcemanager_queue_stopped", "1 while a queue takes no new application.", status.Bool(k.State == rm.QueueStopped), "queue", k.Path)
		for _, r := range []struct {
			kind string
			r    rm.Resource
		}{{"granted", u.used}, {"pending", u.pending}} {
			to.Gauge("hops_resourcemanager_queue_gpus", "GPUs of a queue's applications: granted, and asked for.", float64(r.r.GPUs), "queue", k.Path, "of", r.kind)
			to.Gauge("hops_resourcemanager_queue_vcores", "Vcores of a queue's applications: granted, and asked for.", float64(r.r.VCores), "queue", k.Path, "of", r.kind)
			to.Gauge("hops_resourcemanager_queue_memory_bytes", "Memory of a queue's applications: granted, and asked for.", float64(r.r.Memory), "queue", k.Path, "of", r.kind)
		}
	}
}
