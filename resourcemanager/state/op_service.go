package state

import (
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// administerNodes takes nodes out of service or back into it; all of them or, when one is unknown or the list's, none. Masters hear
// which of their containers are to leave, once.
//
// Errors: ErrNotExist; ErrInvalidArgument for taking back what the list excludes, and for cordoning what is to leave.
func (s *State) administerNodes(c *statepb.AdministerNodes) *Result {
	w := wishOf(c.Wish)
	for _, id := range c.Nodes {
		n := s.node(rm.NodeID(id))
		switch {
		case n == nil:
			return &Result{Err: metadata.Errorf(metadata.ErrNotExist, "no node %s", id)}
		case w == nil && !c.Over && s.listed(n):
			return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, "node %s is on the list of excluded nodes: take it off the file, then `hops rmadmin -refreshNodes`", id)}
		case w != nil && w.Cordon && n.Leaves():
			return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, "%s: it gets nothing new already; `hops node uncordon` has it serve again", n.Why())}
		}
	}
	for _, id := range c.Nodes {
		n := s.node(rm.NodeID(id))
		if c.Over && (n.Wish == nil || n.Wish.Until == 0 || n.Wish.Until > s.now) {
			continue // another wish has taken its place
		}
		s.wish(n, w)
		if w == nil {
			s.heedList(n)
		}
		s.nodes.Set(n)
	}
	return &Result{}
}

// excludeNodes replaces the list of excluded nodes. Nodes that it names leave, unless an operator has them leave by name; those that
// it names no more serve again.
func (s *State) excludeNodes(c *statepb.ExcludeNodes) *Result {
	s.excluded = slices.Compact(slices.Sorted(slices.Values(c.Names)))
	s.excludedBy = c.By
	for _, row := range s.nodes.Items() {
		n := s.node(row.ID)
		switch {
		case !s.listed(n):
			if n.Wish != nil && n.Wish.Listed {
				s.wish(n, nil)
			}
		case !n.Leaves():
			s.wish(n, &rm.Wish{Listed: true, Since: s.now, Deadline: metadata.Time(c.DeadlineMs), By: c.By})
		case n.Wish.Listed && !n.Retired:
			w := *n.Wish
			w.Deadline = metadata.Time(c.DeadlineMs)
			n.Wish = &w
			s.touch.Nodes[n.ID] = true
		}
		s.nodes.Set(n)
	}
	return &Result{}
}

func (s *State) listed(n *rm.Node) bool { return slices.ContainsFunc(s.excluded, n.Named) }

// heedList has a node leave that the list names: one that was not known when the list was read holds nothing that could be waited for.
func (s *State) heedList(n *rm.Node) {
	if n.Wish == nil && len(s.excluded) > 0 && s.listed(n) {
		s.wish(n, &rm.Wish{Listed: true, Since: s.now, By: s.excludedBy})
	}
}

// wish sets what an operator wants of a node. The caller sets the row.
func (s *State) wish(n *rm.Node, w *rm.Wish) {
	left := n.Leaves()
	if w == nil {
		n.Retired = false
	}
	n.Wish = w
	s.touch.Nodes[n.ID] = true
	s.touch.Schedule = true
	if left || !n.Leaves() {
		return
	}
	for _, id := range s.liveOn(n.ID) {
		if a := s.app(id.Attempt.Application); a != nil && !a.State.Final() && !s.container(id).Master {
			s.event(a, Event{Preempt: id})
			s.setApp(a)
		}
	}
}

// retireNode lets a node go that holds nothing any more.
//
// Errors: ErrStaleEpoch; ErrInvalidArgument when it holds something, or is not to leave.
func (s *State) retireNode(c *statepb.RetireNode) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	n := s.node(rm.NodeID(c.Node))
	if n == nil || !n.Leaves() || n.Live > 0 {
		return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, "node %s cannot be let go now", c.Node)}
	}
	n.Retired = true
	s.nodes.Set(n)
	s.touch.Nodes[n.ID] = true
	return &Result{}
}

// resizeNode sets memory and vcores in place of those that a node reports; zero: as it reports. What it holds beyond goes on.
//
// Errors: ErrNotExist.
func (s *State) resizeNode(c *statepb.ResizeNode) *Result {
	n := s.node(rm.NodeID(c.Node))
	if n == nil {
		return &Result{Err: metadata.Errorf(metadata.ErrNotExist, "no node %s", c.Node)}
	}
	n.Resized = resourceOf(c.Resource)
	n.Resized.GPUs, n.Resized.Other = 0, rm.Amounts{}
	resize(n)
	s.sized = s.touch.Index
	s.nodes.Set(n)
	s.touch.Nodes[n.ID] = true
	s.touch.Schedule = true
	return &Result{}
}

// resize works out what a node has for containers.
func resize(n *rm.Node) {
	n.Capacity = n.Reported
	if !n.Resized.IsZero() {
		n.Capacity.Memory, n.Capacity.VCores = n.Resized.Memory, n.Resized.VCores
	}
}
