// Package simulator replays a workload on the real scheduler, and on policies to compare it with, in virtual time: what would
// users have felt. Equal input gives equal results, byte for byte. See DESIGN.md for the model and for what each policy leaves out.
package simulator

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
)

// Config is one simulation.
type Config struct {
	Cluster  *Cluster
	Workload *Workload
	Queues   *rm.Queues
	Policy   Policy
	// Clock measures the scheduler's CPU when it is not nil: a time that only grows. It does not change what is decided.
	Clock func() time.Duration
}

// Policy decides who gets what; see Hops, YARN and Slurm.
type Policy interface {
	// Name is that of results.
	Name() string
	// begin makes what one simulation needs.
	begin(w *world) decider
}

// decider is a policy during one simulation.
type decider interface {
	// pass decides what happens now.
	pass() error
	// whole reports whether a gang that loses a member gives back the others and waits for all again; else it keeps them.
	whole() bool
}

// idleLimit ends a simulation in which nothing works, nothing has begun or ended for so long, and nothing but the policy's clock is to come.
const idleLimit = 7 * day

// Run simulates to the end of the last job that can end. Errors are the context's, or a policy that granted what is not there.
func Run(ctx context.Context, c Config) (*Result, error) {
	w, err := newWorld(c)
	if err != nil {
		return nil, err
	}
	d := c.Policy.begin(w)
	for steps := 0; len(w.events) > 0; steps++ {
		if steps%256 == 0 && ctx.Err() != nil {
			return nil, fmt.Errorf("%w at %s, %d of %d jobs live, %d passes", ctx.Err(), span(w.now), len(w.live), len(w.all), w.stats.passes)
		}
		at := w.events[0].at
		if at > w.progressed+idleLimit && w.arrived == len(w.all) && w.stats.working == 0 && len(w.wakes) == len(w.events) {
			break
		}
		w.stats.pass(w, at)
		w.now = at
		for len(w.events) > 0 && w.events[0].at == at {
			e := heap.Pop(&w.events).(event)
			w.handle(e, d)
		}
		if len(w.live) == 0 {
			continue
		}
		for w.again = true; w.again; {
			w.again = false
			before := w.clock()
			err := d.pass()
			w.stats.cpu += w.clock() - before
			w.stats.passes++
			if err = errors.Join(err, w.err); err != nil {
				return nil, fmt.Errorf("%s at %s: %w", c.Policy.Name(), span(w.now), err)
			}
		}
	}
	return w.result(c), nil
}

// world is the state of a simulation.
type world struct {
	now    int64
	nodes  []*machine
	byName map[rm.NodeID]*machine
	queues *rm.Queues
	total  rm.Resource
	// guaranteed and maximum are what queues have of the whole cluster.
	guaranteed, maximum map[*rm.Queue]rm.Resource
	all                 []*run
	// live are the jobs that have arrived and not ended, by arrival.
	live    []*run
	arrived int
	// progressed is when a job arrived, began or ended last.
	progressed int64
	events     events
	wakes      map[int64]bool // moments at which the policy is asked again
	serial     int64
	stats      *stats
	clock      func() time.Duration
	again      bool  // something is wanted since the pass, which is repeated
	err        error // a grant that cannot be
	// touchedNodes and touchedRuns have changed since a policy took note of them, which only hops does.
	touchedNodes []*machine
	touchedRuns  []*run
}

// machine is a node in a simulation.
type machine struct {
	Node
	id       rm.NodeID
	used     rm.Resource
	devices  []device
	freeGPUs int
	down     bool
	touched  bool
	live     []*container // in the order of their grants
}

// device is a GPU.
type device struct {
	uuid, island string
	holder       *container
}

// run is a job in a simulation.
type run struct {
	*Job
	number   int
	queue    *rm.Queue
	parts    []*part
	master   *part // among the parts; nil: none
	left     int   // parts that are not done, without the master
	begun    int64 // when it worked first; -1: never
	ended    int64 // -1: not
	refused  string
	liveness float64 // the integral of the number of live jobs at its arrival
	nodes    int     // that its largest gang was placed on
	least    int     // that it would have needed at least
	racks    int
	touched  bool
}

// part is a part of a job in a simulation.
type part struct {
	Part
	run    *run
	index  int
	master bool
	open   bool // its containers are wanted
	wanted int  // containers to be granted
	live   []*container
	// running: enough of the gang is there. Always true without a gang.
	running bool
	work    work   // of the gang
	resume  []work // of single containers that were interrupted
	done    int    // single containers that have ended
	reason  rm.ReasonCode
	// heldSince is when a gang that cannot run began to hold containers.
	heldSince int64
}

// container is a grant.
type container struct {
	part    *part
	node    *machine
	gpus    []int
	granted int64
	serial  int64
	work    work // when it is not of a gang
	// marked is when a policy has decided to end it; -1: not. markedFor is the queue for which.
	marked    int64
	markedFor string
	// moves: it is ended to be granted elsewhere.
	moves bool
	// gang is the serial of the first container of those that the real scheduler granted with it; 0: it came alone.
	gang int64
	gone bool
}

// work is what a gang, or a single container, still has to do, in milliseconds of one member.
type work struct {
	left, saved int64 // now and at the last checkpoint
	since       int64 // ms that it has run since the last checkpoint
	at          int64 // when left was true
	version     int   // of its end, which is another one each time
}

// advance does what n members have done until now.
func (k *work) advance(now int64, n int, checkpoint int64) {
	ran := now - k.at
	k.at = now
	if ran <= 0 || n == 0 {
		return
	}
	before := k.left
	k.left = max(0, k.left-ran*int64(n))
	k.since += ran
	if checkpoint > 0 && k.since >= checkpoint {
		late := k.since % checkpoint // has run since the last one
		k.saved = max(0, before-(ran-late)*int64(n))
		k.since = late
	}
}

// interrupt loses what is not saved, in milliseconds of one member.
func (k *work) interrupt() int64 {
	lost := k.saved - k.left
	k.left, k.since = k.saved, 0
	k.version++
	return lost
}

// kind is that of an event; events of one moment happen in this order.
type kind int

const (
	nodeUp kind = iota
	nodeDown
	partEnds
	containerEnds
	jobArrives
	partOpens
	policyWakes
)

type event struct {
	at      int64
	kind    kind
	serial  int64
	run     *run
	part    *part
	held    *container
	node    *machine
	version int
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].kind, e[j].kind), cmp.Compare(e[i].serial, e[j].serial)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func (w *world) at(e event) {
	w.serial++
	e.serial = w.serial
	heap.Push(&w.events, e)
}

// touch notes that a node has changed.
func (w *world) touch(n *machine) {
	if !n.touched {
		n.touched = true
		w.touchedNodes = append(w.touchedNodes, n)
	}
}

// touchRun notes that a job has changed.
func (w *world) touchRun(r *run) {
	if !r.touched {
		r.touched = true
		w.touchedRuns = append(w.touchedRuns, r)
	}
}

// wake has the policy asked again at a moment, even if nothing happens.
func (w *world) wake(at int64) {
	if at = max(at, w.now+1); !w.wakes[at] {
		w.wakes[at] = true
		w.at(event{at: at, kind: policyWakes})
	}
}

func newWorld(c Config) (*world, error) {
	if len(c.Cluster.Nodes) == 0 || len(c.Workload.Jobs) == 0 {
		return nil, errors.New("a simulation needs nodes and jobs")
	}
	w := &world{queues: c.Queues, total: c.Cluster.Total(), byName: map[rm.NodeID]*machine{}, wakes: map[int64]bool{}, clock: c.Clock}
	w.guaranteed, w.maximum = map[*rm.Queue]rm.Resource{}, map[*rm.Queue]rm.Resource{}
	guaranteed, maximum := c.Queues.Resolve(w.total)
	for i, q := range c.Queues.All {
		w.guaranteed[q], w.maximum[q] = guaranteed[i], maximum[i]
	}
	if w.clock == nil {
		w.clock = func() time.Duration { return 0 }
	}
	for _, n := range c.Cluster.Nodes {
		m := &machine{Node: n, id: rm.NodeID(n.Name + ":8042"), freeGPUs: n.GPUs}
		for k := range n.GPUs {
			d := device{uuid: fmt.Sprintf("%s/%d", n.Name, k)}
			if n.Island > 1 {
				d.island = fmt.Sprintf("%s/island%d", n.Name, k/n.Island)
			}
			m.devices = append(m.devices, d)
		}
		w.nodes = append(w.nodes, m)
		w.byName[m.id] = m
	}
	slices.SortFunc(w.nodes, func(a, b *machine) int { return cmp.Compare(a.id, b.id) })
	for _, f := range c.Cluster.Failures {
		n := w.byName[rm.NodeID(f.Node+":8042")]
		w.at(event{at: f.At, kind: nodeDown, node: n})
		w.at(event{at: f.At + f.For, kind: nodeUp, node: n})
	}
	for i := range c.Workload.Jobs {
		r := &run{Job: &c.Workload.Jobs[i], number: i + 1, begun: -1, ended: -1}
		if r.Master != nil {
			r.master = &part{Part: Part{Count: 1, Shape: *r.Master}, run: r, index: -1, master: true, wanted: 1, running: true}
			r.parts = append(r.parts, r.master)
		}
		for k, p := range r.Parts {
			own := &part{Part: p, run: r, index: k, wanted: p.Count, heldSince: -1}
			own.work = work{left: p.Duration * int64(p.Count), saved: p.Duration * int64(p.Count)}
			r.parts = append(r.parts, own)
			r.left++
		}
		w.all = append(w.all, r)
		w.at(event{at: r.Arrival, kind: jobArrives, run: r})
	}
	w.stats = newStats(w)
	return w, nil
}

// handle lets an event happen.
func (w *world) handle(e event, d decider) {
	switch e.kind {
	case nodeUp:
		if e.node.down {
			e.node.down = false
			w.touch(e.node)
			w.stats.gpus += e.node.GPUs
		}
	case nodeDown:
		if e.node.down {
			return
		}
		e.node.down = true
		w.touch(e.node)
		w.stats.gpus -= e.node.GPUs
		for _, c := range slices.Clone(e.node.live) {
			w.lose(c, &w.stats.lostToFailures, d.whole())
		}
	case jobArrives:
		w.arrived++
		w.progressed = w.now
		if e.run.refused = w.refuse(e.run); e.run.refused != "" {
			return
		}
		e.run.liveness = w.stats.liveness
		w.live = append(w.live, e.run)
		w.touchRun(e.run)
		if e.run.master != nil {
			e.run.master.open = true
		} else {
			w.open(e.run)
		}
	case policyWakes:
		delete(w.wakes, w.now)
	case partOpens:
		w.touchRun(e.part.run)
		e.part.open = e.part.run.ended < 0 && e.version == e.part.work.version
	case partEnds:
		if e.version == e.part.work.version {
			w.finishGang(e.part)
		}
	case containerEnds:
		if !e.held.gone && e.version == e.held.work.version {
			w.finishSingle(e.held)
		}
	}
}

// open wants the containers of a job's parts, each after its delay.
func (w *world) open(r *run) {
	for _, p := range r.parts {
		switch {
		case p.master:
		case p.Delay > 0:
			w.at(event{at: w.now + p.Delay, kind: partOpens, part: p, version: p.work.version})
		default:
			p.open = true
		}
	}
}

// refuse says why a job is not taken; empty: it is.
func (w *world) refuse(r *run) string {
	if r.queue = w.queues.Find(r.Queue); r.queue == nil { // a path may leave out the root, as for EvenQueues
		r.queue = w.queues.Find("root." + r.Queue)
	}
	switch {
	case r.queue == nil:
		return "there is no queue " + r.Queue
	case !r.queue.Leaf():
		return "queue " + r.Queue + " holds queues"
	case r.queue.State == rm.QueueStopped:
		return "queue " + r.Queue + " is stopped"
	}
	for _, p := range r.parts {
		room := 0
		for _, n := range w.nodes {
			if n.admits(p) {
				room += n.holds(p, n.Resource(), n.GPUs)
			}
		}
		if room < max(p.Gang, 1) {
			return "it never fits the cluster"
		}
		if !w.within(r.queue, p.Resource().Times(max(p.Gang, 1)), nil) {
			return "it never fits the maximum of its queue"
		}
	}
	return ""
}

// admits reports whether a node could be right for a part, whatever is free there.
func (n *machine) admits(p *part) bool {
	return (p.Label == "" || slices.Contains(n.Labels, p.Label)) && (p.GPUs == 0 || matches(n.Model, p.Model)) &&
		(!p.Island || p.GPUs <= max(n.Island, 1))
}

// holds counts the containers of a part for which there is room in free, of which GPUs are counted apart.
func (n *machine) holds(p *part, free rm.Resource, gpus int) int {
	k := rm.MaxContainersPerNode
	if p.Memory > 0 {
		k = min(k, int(free.Memory/p.Memory))
	}
	if p.VCores > 0 {
		k = min(k, free.VCores/p.VCores)
	}
	if p.GPUs > 0 {
		k = min(k, gpus/p.GPUs)
	}
	return max(k, 0)
}

// fits counts the containers of a part that the node can take now, GPUs by number alone.
func (n *machine) fits(p *part) int {
	if n.down || !n.admits(p) {
		return 0
	}
	return min(n.holds(p, n.Resource().Sub(n.used), n.freeGPUs), rm.MaxContainersPerNode-len(n.live))
}

// within reports whether a queue and those above it may have more, besides what used says that each has; nil: nothing.
func (w *world) within(q *rm.Queue, more rm.Resource, used func(*rm.Queue) rm.Resource) bool {
	for ; q != nil; q = q.Parent {
		limit := w.maximum[q]
		if w.total.FitsIn(limit) {
			continue // the cluster is its limit, and the nodes guard that
		}
		have := more
		if used != nil {
			have = have.Add(used(q))
		}
		if more.Memory > 0 && have.Memory > limit.Memory || more.VCores > 0 && have.VCores > limit.VCores || more.GPUs > 0 && have.GPUs > limit.GPUs {
			return false
		}
	}
	return true
}
