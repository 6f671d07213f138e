package simulator

import (
	"fmt"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// matches reports whether a model of GPU is what an ask names, as the scheduler reads it.
func matches(model, want string) bool {
	return want == "" || strings.EqualFold(want, "any") || strings.Contains(strings.ToLower(model), strings.ToLower(want))
}

// grant gives a part a container. What is not there cannot be granted: that is an error of the policy, and ends the simulation.
func (w *world) grant(p *part, n *machine, devices []int) {
	wrong := func(format string, args ...any) {
		if w.err == nil {
			w.err = fmt.Errorf("a grant to job %s on %s: "+format, append([]any{p.run.ID, n.Name}, args...)...)
		}
	}
	switch {
	case !p.open || p.wanted == 0:
		wrong("nothing is wanted")
		return
	case n.down || !n.admits(p):
		wrong("the node is down, or not what was asked for")
		return
	case len(devices) != p.GPUs || len(n.live) == rm.MaxContainersPerNode:
		wrong("%d devices for %d GPUs, beside %d containers", len(devices), p.GPUs, len(n.live))
		return
	}
	used := n.used.Add(p.Resource())
	if !used.FitsIn(n.Resource()) {
		wrong("there would be %v used of %v", used, n.Resource())
		return
	}
	w.serial++
	c := &container{part: p, node: n, gpus: devices, granted: w.now, serial: w.serial, marked: -1}
	for _, k := range devices {
		if n.devices[k].holder != nil {
			wrong("GPU %s is held by job %s", n.devices[k].uuid, n.devices[k].holder.part.run.ID)
			return
		}
		n.devices[k].holder = c
	}
	n.used, n.freeGPUs = used, n.freeGPUs-p.GPUs
	n.live = append(n.live, c)
	p.wanted--
	w.touch(n)
	w.touchRun(p.run)
	p.reason = ""
	w.stats.grants++
	w.stats.hold(p, 1)
	switch {
	case p.master:
		p.live = append(p.live, c)
		w.open(p.run)
		w.again = true
	case p.Gang == 0:
		p.live = append(p.live, c)
		c.work = work{left: p.Duration, saved: p.Duration}
		if len(p.resume) > 0 {
			c.work, p.resume = p.resume[0], p.resume[1:]
		}
		c.work.at = w.now
		c.work.version++
		w.stats.busy(p, 1)
		w.begin(p.run)
		w.at(event{at: w.now + c.work.left, kind: containerEnds, held: c, version: c.work.version})
	default:
		w.resize(p, func() { p.live = append(p.live, c) })
	}
}

// begin notes that a job works for the first time.
func (w *world) begin(r *run) {
	if r.begun < 0 {
		r.begun = w.now
		w.progressed = w.now
	}
}

// resize changes the members of a gang, which then runs, or waits, and ends at another time.
func (w *world) resize(p *part, change func()) {
	if p.running {
		p.work.advance(w.now, len(p.live), p.run.Checkpoint)
		w.stats.busy(p, -len(p.live))
	}
	change()
	was := p.running
	p.running = len(p.live) >= p.Gang
	p.work.at = w.now
	p.work.version++
	switch {
	case p.running:
		p.heldSince = -1
		w.stats.busy(p, len(p.live))
		w.begin(p.run)
		n := int64(len(p.live))
		w.at(event{at: w.now + (p.work.left+n-1)/n, kind: partEnds, part: p, version: p.work.version})
		if !was {
			p.run.spread(p)
		}
	case len(p.live) == 0:
		p.heldSince = -1
	case p.heldSince < 0 || was:
		p.heldSince = w.now
	}
}

// spread notes over how many nodes and racks the largest gang of a job is spread.
func (r *run) spread(p *part) {
	if p.GPUs == 0 || p.Gang < 2 && p.Count < 2 {
		return
	}
	nodes, racks := map[*machine]bool{}, map[string]bool{}
	gpus := 1
	for _, c := range p.live {
		nodes[c.node], racks[c.node.Rack] = true, true
		gpus = max(gpus, c.node.GPUs)
	}
	r.nodes, r.racks = len(nodes), len(racks)
	r.least = (len(p.live)*p.GPUs + gpus - 1) / gpus
}

// free takes a container off its node.
func (w *world) free(c *container) {
	n := c.node
	c.gone = true
	w.touch(n)
	w.touchRun(c.part.run) // whatever becomes of it, what it has or wants is another
	for _, k := range c.gpus {
		n.devices[k].holder = nil
	}
	n.used, n.freeGPUs = n.used.Sub(c.part.Resource()), n.freeGPUs+c.part.GPUs
	n.live = slices.DeleteFunc(n.live, func(x *container) bool { return x == c })
	w.stats.hold(c.part, -1)
}

// drop is free, and takes the container out of its part.
func (w *world) drop(c *container) {
	w.free(c)
	c.part.live = slices.DeleteFunc(c.part.live, func(x *container) bool { return x == c })
}

// lose ends a container before its time. What it, or its gang, has done since the last checkpoint is done again, and counted in
// lost as GPU-milliseconds. With whole the rest of the gang is given back.
func (w *world) lose(c *container, lost *int64, whole bool) {
	p := c.part
	if c.gone {
		return
	}
	switch {
	case p.master: // the job begins again from what is saved
		w.drop(c)
		p.wanted++
		for _, other := range p.run.parts {
			if !other.master {
				for _, c := range slices.Clone(other.live) {
					w.lose(c, lost, false)
				}
				other.open = false
				if other.Delay > 0 {
					other.work.version++ // it may not have opened yet
				}
			}
		}
	case p.Gang == 0:
		c.work.advance(w.now, 1, p.run.Checkpoint)
		*lost += c.work.interrupt() * int64(p.GPUs)
		p.resume = append(p.resume, c.work)
		w.stats.busy(p, -1)
		w.drop(c)
		p.wanted++
	default:
		was := p.running
		w.resize(p, func() {
			if was {
				*lost += p.work.interrupt() * int64(p.GPUs)
			}
			w.drop(c)
		})
		p.wanted++
		if whole && !p.running {
			w.release(p)
		}
	}
}

// release gives back what a gang that does not run holds.
func (w *world) release(p *part) {
	held := slices.Clone(p.live)
	w.resize(p, func() {
		for _, c := range held {
			w.drop(c)
		}
	})
	p.wanted += len(held)
}

func (w *world) finishGang(p *part) {
	p.work.advance(w.now, len(p.live), p.run.Checkpoint)
	p.work.version++
	w.stats.busy(p, -len(p.live))
	for _, c := range slices.Clone(p.live) {
		w.free(c)
	}
	p.live, p.running, p.open, p.wanted, p.heldSince = nil, false, false, 0, -1
	w.finishPart(p.run)
}

func (w *world) finishSingle(c *container) {
	p := c.part
	w.stats.busy(p, -1)
	w.drop(c)
	if p.done++; p.done == p.Count {
		p.open = false
		w.finishPart(p.run)
	}
}

func (w *world) finishPart(r *run) {
	w.progressed = w.now
	if r.left--; r.left > 0 {
		return
	}
	if r.master != nil {
		for _, c := range slices.Clone(r.master.live) {
			w.drop(c)
		}
		r.master.open = false
	}
	r.ended = w.now
	w.touchRun(r)
	w.live = slices.DeleteFunc(w.live, func(x *run) bool { return x == r })
	w.stats.finish(w, r)
}

// lowest picks the first free devices of a node, as YARN's node manager does.
func (n *machine) lowest(k int) []int {
	var out []int
	for i := range n.devices {
		if len(out) == k {
			break
		}
		if n.devices[i].holder == nil {
			out = append(out, i)
		}
	}
	return out
}
