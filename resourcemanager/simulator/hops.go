package simulator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/scheduler"
)

// Hops is the real scheduler, with the real tree of queues.
type Hops struct {
	// Preempt takes back what queues borrowed, and what applications of lower priority have, as the resource manager does.
	Preempt bool
	// Answers: programs that write checkpoints write one when they are told to go, within half of their notice.
	Answers bool
	// Defragment moves what writes checkpoints so that others find room in one piece, as the resource manager does when that is switched on.
	Defragment bool
}

// Name is hops, with how it preempts.
func (p Hops) Name() string {
	name := "hops"
	switch {
	case p.Preempt && p.Answers:
		name = "hops with preemption, programs answer"
	case p.Preempt:
		name = "hops with preemption"
	}
	if p.Preempt && p.Defragment {
		name += ", who writes checkpoints is moved"
	}
	return name
}

func (p Hops) begin(w *world) decider {
	c := scheduler.Config{Queues: w.queues, Preempt: scheduler.Preemption{Enabled: p.Preempt, Defragment: p.Defragment}}
	h := &hops{Hops: p, world: w, model: scheduler.NewModel(c), byID: map[rm.ApplicationID]*run{}}
	for _, n := range w.nodes {
		w.touch(n)
	}
	return h
}

type hops struct {
	Hops
	*world
	model *scheduler.Model
	byID  map[rm.ApplicationID]*run
	asked int64 // when reasons were asked for last
}

// whole: a gang whose member is lost waits for all of its members again, as hops am lets it.
func (h *hops) whole() bool { return true }

// tick is how often a plan is made while something waits, though nothing happens: reservations depend on the time. The resource
// manager does so every second.
const tick = minute

// pass tells the scheduler's model what has changed, as the resource manager's leader does, and follows its plan.
func (h *hops) pass() error {
	h.tell()
	for more := true; more; {
		plan := h.model.Plan(scheduler.Budget{}, metadata.Time(h.now))
		more = plan.More && len(plan.Groups) > 0
		numbers := make([]int64, 0, len(plan.Groups))
		for _, g := range plan.Groups {
			numbers = append(numbers, g.Number)
			p := h.byID[g.App].part(g.Ask)
			first := h.serial + 1
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
				if len(g.Placements) > 1 && len(n.live) > 0 {
					n.live[len(n.live)-1].gang = first
				}
			}
		}
		h.tell()
		h.model.Settle(numbers...)
	}
	waits := slices.ContainsFunc(h.live, func(r *run) bool {
		return slices.ContainsFunc(r.parts, func(p *part) bool { return p.open && p.wanted > 0 })
	})
	if !waits {
		return nil
	}
	h.wake((h.now/tick + 1) * tick)
	if h.Preempt {
		h.preempt()
	}
	if h.now >= h.asked+tick {
		h.asked = h.now
		for _, x := range h.model.Waiting() {
			h.byID[x.App].part(x.Ask).reason = x.Reason.Code
		}
	}
	return nil
}

// tell tells the model of nodes and jobs that have changed.
func (h *hops) tell() {
	for _, n := range h.touchedNodes {
		n.touched = false
		own := scheduler.Node{
			ID: n.id, Host: n.Name, Rack: n.Rack, Labels: n.Labels, Capacity: n.Resource(), Used: n.used, Containers: len(n.live), Closed: n.down,
		}
		for k := range n.devices {
			d := &n.devices[k]
			own.GPUs = append(own.GPUs, scheduler.GPU{UUID: d.uuid, Model: n.Model, Island: d.island, Minor: k, Free: d.holder == nil})
		}
		for _, c := range n.live {
			hold := scheduler.Hold{
				App: c.part.run.id(), Resource: c.part.Resource(), Container: c.id(), Master: c.part.master, Gang: c.gang, For: c.markedFor,
				Saved: metadata.Time(c.saved(h.now)),
			}
			if h.Defragment {
				a, every := ask(c.part), c.part.run.Checkpoint
				hold.Asked, hold.Began, hold.Moves = &a, metadata.Time(c.granted), c.moves
				hold.Checkpoints = every > 0 && h.now-c.granted >= every
			}
			for _, k := range c.gpus {
				hold.GPUs = append(hold.GPUs, n.devices[k].uuid)
			}
			own.Holds = append(own.Holds, hold)
		}
		h.model.SetNode(own)
	}
	for _, r := range h.touchedRuns {
		r.touched = false
		if r.ended >= 0 {
			h.model.RemoveApp(r.id())
			continue
		}
		h.byID[r.id()] = r
		app := scheduler.App{
			ID: r.id(), Queue: r.queue.Path, User: r.User, Priority: r.Priority, Submitted: metadata.Time(r.Arrival),
			Lasts: time.Duration(r.Walltime) * time.Millisecond,
		}
		if r.begun >= 0 && r.Walltime > 0 {
			app.Ends = metadata.Time(r.begun + r.Walltime)
		}
		for _, p := range r.parts {
			app.Used = app.Used.Add(p.Resource().Times(len(p.live)))
			if p.master {
				app.Masters = app.Masters.Add(p.Resource().Times(len(p.live)))
			}
			if p.open && p.wanted > 0 {
				app.Asks = append(app.Asks, ask(p))
			}
		}
		h.model.SetApp(app)
	}
	h.touchedNodes, h.touchedRuns = h.touchedNodes[:0], h.touchedRuns[:0]
}

// id is a job's as the scheduler knows it.
func (r *run) id() rm.ApplicationID { return rm.ApplicationID{Cluster: 1, Sequence: int64(r.number)} }

// ask is a part's wish as the resource manager knows it.
func ask(p *part) rm.Ask {
	a := rm.Ask{
		ID: p.askID(), Priority: p.Priority, Resource: p.Resource(), Count: p.wanted, Model: p.Model, Island: p.Island, Label: p.Label,
		Walltime: time.Duration(p.run.Walltime) * time.Millisecond,
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
