package simulator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/scheduler"
)

// Hops is the real scheduler, with the real tree of queues.
type Hops struct{}

// Name is hops.
func (Hops) Name() string { return "hops" }

func (Hops) begin(w *world) decider { return &hops{world: w} }

type hops struct{ *world }

// whole: a gang whose member is lost waits for all of its members again, as hops am lets it.
func (h *hops) whole() bool { return true }

// pass shows the scheduler the cluster as the resource manager's leader does, and follows its plan.
func (h *hops) pass() error {
	s := scheduler.Snapshot{Queues: h.queues}
	for _, n := range h.nodes {
		own := scheduler.Node{
			ID: n.id, Host: n.Name, Rack: n.Rack, Labels: n.Labels, Capacity: n.Resource(), Used: n.used, Containers: len(n.live), Closed: n.down,
		}
		for k := range n.devices {
			d := &n.devices[k]
			own.GPUs = append(own.GPUs, scheduler.GPU{UUID: d.uuid, Model: n.Model, Island: d.island, Minor: k, Free: d.holder == nil})
		}
		s.Nodes = append(s.Nodes, own)
	}
	byID := map[rm.ApplicationID]*run{}
	for _, r := range h.live {
		app := scheduler.App{ID: rm.ApplicationID{Cluster: 1, Sequence: int64(r.number)}, Queue: r.queue.Path, Priority: r.Priority, Submitted: metadata.Time(r.Arrival)}
		for _, p := range r.parts {
			app.Used = app.Used.Add(p.Resource().Times(len(p.live)))
			if p.master {
				app.Masters = app.Masters.Add(p.Resource().Times(len(p.live)))
			}
			if p.open && p.wanted > 0 {
				app.Asks = append(app.Asks, ask(p))
			}
		}
		byID[app.ID] = r
		s.Apps = append(s.Apps, app)
	}
	plan := scheduler.Schedule(s, metadata.Time(h.now))
	for _, g := range plan.Groups {
		p := byID[g.App].part(g.Ask)
		for _, at := range g.Placements {
			n := h.byName[at.Node]
			devices := make([]int, len(at.GPUs))
			for i, uuid := range at.GPUs {
				devices[i] = n.device(uuid)
				if devices[i] < 0 {
					return fmt.Errorf("the plan names GPU %q of node %s", uuid, n.Name)
				}
			}
			h.grant(p, n, devices)
		}
	}
	for _, x := range plan.Waiting {
		byID[x.App].part(x.Ask).reason = x.Reason.Code
	}
	return nil
}

// ask is a part's wish as the resource manager knows it.
func ask(p *part) rm.Ask {
	a := rm.Ask{
		ID: p.askID(), Priority: p.Priority, Resource: p.Resource(), Count: p.wanted, Model: p.Model, Island: p.Island, Label: p.Label,
	}
	if missing := p.Gang - len(p.live); missing > 0 {
		a.Gang = missing
	}
	return a
}

// askID names a part's ask; the master's is empty.
func (p *part) askID() string {
	if p.master {
		return ""
	}
	return strconv.Itoa(p.index)
}

func (r *run) part(ask string) *part {
	return r.parts[slices.IndexFunc(r.parts, func(p *part) bool { return p.askID() == ask })]
}

// device is the number of a GPU by its UUID, which ends in it; -1: the node has none such.
func (n *machine) device(uuid string) int {
	_, number, _ := strings.Cut(uuid, "/")
	k, err := strconv.Atoi(number)
	if err != nil || k < 0 || k >= len(n.devices) || n.devices[k].uuid != uuid {
		return -1
	}
	return k
}
