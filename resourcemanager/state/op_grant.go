package state

import (
	"fmt"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// grant commits a plan. The plan was made from a view that may be older than this state, so everything that it relies on
// is checked again; a group that does not hold any more is refused whole and costs the others nothing.
func (s *State) grant(c *statepb.Grant) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	out := &Result{Groups: make([]GroupResult, len(c.Groups))}
	for i, g := range c.Groups {
		if conflict := s.conflict(g); conflict != "" {
			out.Groups[i].Reason = rm.Reason{Code: rm.ReasonConflict, Text: conflict}
			s.touch.Schedule = true
			continue
		}
		out.Groups[i].Containers = s.grantGroup(g)
	}
	return out
}

// conflict says why a group cannot be granted; empty: it can.
func (s *State) conflict(g *statepb.Group) string {
	a := s.app(appIDOf(g.Application))
	if a == nil || a.State.Final() {
		return "the application has ended"
	}
	t := a.Attempt()
	if t == nil || t.Number != int(g.Attempt) {
		return "the attempt has ended"
	}
	if g.Ask != "" && s.heldBack(a.User, s.config.MaxEndedContainers) {
		s.touch.Applications[a.ID] = true // who plans finds out by this
		return "masters of user " + a.User + " do not acknowledge that their containers have ended"
	}
	if g.Ask != "" && a.Deaf() {
		return "its master does not handle its events"
	}
	want, exclusive := a.Master, false
	if g.Ask == "" {
		if !a.WantsMaster() || len(g.Placements) != 1 {
			return "the master has its container"
		}
	} else {
		ask, ok := s.asks.Get(askRow{app: a.ID, Ask: rm.Ask{ID: g.Ask}})
		if !ok || len(g.Placements) > ask.Count {
			return "the ask wants less now"
		}
		if len(g.Placements) < max(ask.Gang, 1) {
			return "the ask wants a gang now"
		}
		want, exclusive = ask.Resource, ask.Exclusive
	}
	used, more := map[rm.NodeID]rm.Resource{}, map[rm.NodeID]int{}
	taken := map[string]bool{}
	for _, p := range g.Placements {
		n := s.node(rm.NodeID(p.Node))
		if n == nil || !n.Takes() {
			return fmt.Sprintf("node %s takes no work", p.Node)
		}
		if n.Exclusive || exclusive && n.Live+more[n.ID] > 0 {
			return fmt.Sprintf("node %s is not free as a whole", n.ID)
		}
		got := resourceOf(p.Resource)
		if whole := got; exclusive {
			whole.GPUs = n.Capacity.GPUs // all but what is not usable now
			whole.Other = whole.Other.WithInstances(n.Capacity.Other.Instances())
			if whole != n.Capacity || !want.FitsIn(got) {
				return fmt.Sprintf("node %s has changed", n.ID)
			}
		} else if got != want {
			return "the ask has changed"
		}
		used[n.ID] = used[n.ID].Add(got)
		sum := n.Used.Add(used[n.ID])
		sum.Other = sum.Other.WithInstances(rm.Amounts{}) // which are looked at one by one
		if sum.Memory > n.Capacity.Memory || sum.VCores > n.Capacity.VCores || !sum.Other.FitsIn(n.Capacity.Other) {
			return fmt.Sprintf("node %s has no room for %v", n.ID, got)
		}
		if more[n.ID]++; n.Live+more[n.ID] > rm.MaxContainersPerNode {
			return fmt.Sprintf("node %s runs %d containers, as many as a node may", n.ID, n.Live)
		}
		named := got
		named.DropDevices()
		for _, u := range p.Gpus {
			i := slices.IndexFunc(n.GPUs, func(d rm.GPU) bool { return d.UUID == u })
			if i < 0 || !n.GPUs[i].Usable() || s.owners[u] != n.ID {
				return fmt.Sprintf("GPU %s of node %s is not usable", u, n.ID)
			}
			if holder, ok := s.holders[u]; ok || taken[u] {
				return fmt.Sprintf("GPU %s is held by %v", u, holder)
			}
			taken[u] = true
			if holder, ok := s.holders[n.GPUs[i].Parent]; ok { // before it was divided
				return fmt.Sprintf("GPU %s, of which %s is a part, is held by %v", n.GPUs[i].Parent, u, holder)
			}
			named.AddDevice(&n.GPUs[i])
		}
		if named != got {
			return fmt.Sprintf("the devices on node %s are not those of %v", n.ID, got)
		}
	}
	return ""
}

// maxNamesKept bounds the names of nodes in what is kept with each container. One that named more is not moved.
const maxNamesKept = 16

// grantGroup makes the containers of a group that was checked.
func (s *State) grantGroup(g *statepb.Group) []rm.ContainerID {
	a := s.app(appIDOf(g.Application))
	t := a.Attempt()
	var ask askRow
	if g.Ask != "" {
		ask, _ = s.asks.Get(askRow{app: a.ID, Ask: rm.Ask{ID: g.Ask}})
	}
	var ids []rm.ContainerID
	gang := int64(0)
	if g.Gang {
		gang = a.Containers + 1
	}
	var asked *rm.Ask
	if g.KeepsAsk && g.Ask != "" && len(ask.Nodes)+len(ask.Excluded) <= maxNamesKept {
		asked = new(ask.Ask)
		asked.Count, asked.Gang, asked.Launch, asked.Instances, asked.Held = 0, 0, 0, nil, false
	}
	for i, p := range g.Placements {
		a.Containers++
		instance := -1
		if i < len(ask.Instances) {
			instance = int(ask.Instances[i])
		}
		c := &rm.Container{
			ID:   rm.ContainerID{Attempt: rm.AttemptID{Application: a.ID, Number: t.Number}, Epoch: int64(s.epoch), Number: a.Containers},
			Node: rm.NodeID(p.Node), User: a.User, Resource: resourceOf(p.Resource), GPUs: p.Gpus,
			Ask: g.Ask, Priority: ask.Priority, Launch: ask.Launch, Instance: instance, Master: g.Ask == "", Exclusive: ask.Exclusive, Tags: ask.Placement.Tags,
			State: rm.ContainerGranted, Salt: p.Salt, Granted: s.now, Exit: rm.ExitUnknown, Gang: gang, Asked: asked,
		}
		s.containers.Set(c)
		s.byNode.Set(nodeRow{c.Node, c.ID})
		for _, u := range c.GPUs {
			s.holders[u] = c.ID
		}
		s.openLedger(c)
		n := s.node(c.Node)
		n.Used = n.Used.Add(c.Resource)
		n.Live++
		n.Exclusive = c.Exclusive
		s.nodes.Set(n)
		s.touch.Nodes[n.ID] = true
		a.Used = a.Used.Add(c.Resource)
		a.Live++
		if c.Master {
			t.State, t.Container, t.Node = rm.AttemptAllocated, c.ID, c.Node
		} else {
			if c.Held() {
				s.onHold.Set(heldRow{c.Granted, c.ID})
			} else {
				s.uses[launchKey{a.ID, c.Launch}]++
			}
			s.event(a, Event{Granted: c.ID})
		}
		ids = append(ids, c.ID)
	}
	if g.Ask != "" {
		before := askBytes(&ask.Ask)
		ask.Count -= len(g.Placements)
		ask.Gang = 0
		ask.Instances = ask.Instances[min(len(g.Placements), len(ask.Instances)):]
		s.use(a.User, a.ID, askBytes(&ask.Ask)-before)
		if ask.Count > 0 {
			s.asks.Set(ask)
		} else {
			s.dropAsk(ask)
		}
	}
	s.setApp(a)
	return ids
}
