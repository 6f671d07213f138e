package state

import (
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// changeLabels adds labels to those that the cluster knows, or takes others away, also from the nodes that carry them.
//
// Error: ErrInvalidArgument, in YARN's words: another exclusivity than before, a label that is not known, one that a node manager's
// configuration has, too many.
func (s *State) changeLabels(c *statepb.ChangeLabels) *Result {
	bad := func(format string, args ...any) *Result {
		return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, format, args...)}
	}
	labels := slices.Clone(s.labels)
	for _, l := range c.Add {
		at := slices.IndexFunc(labels, func(o rm.NodeLabel) bool { return o.Name == l.Name })
		if at >= 0 && labels[at].Exclusive != l.Exclusive {
			return bad("Exclusivity cannot be modified for an existing label with : <%s:exclusivity=%v>", l.Name, labels[at].Exclusive)
		}
		if at < 0 {
			labels = append(labels, rm.NodeLabel{Name: l.Name, Exclusive: l.Exclusive})
		}
	}
	if len(labels) > rm.MaxLabels {
		return bad("%d labels: at most %d", len(labels), rm.MaxLabels)
	}
	for _, name := range c.Remove {
		for _, n := range s.nodes.Items() {
			if slices.Contains(n.OwnLabels, name) {
				return bad("label %s is in the configuration of node manager %s (nodemanager.labels): take it out there", name, n.ID)
			}
		}
		if !s.knowsLabel(labels, name) {
			return bad("Node label=%s to be removed doesn't existed in cluster node labels collection.", name)
		}
		labels = slices.DeleteFunc(labels, func(o rm.NodeLabel) bool { return o.Name == name })
	}
	for _, row := range s.nodes.Items() {
		if row.Labelled && slices.ContainsFunc(row.SetLabels, func(l string) bool { return slices.Contains(c.Remove, l) }) {
			n := s.node(row.ID)
			n.SetLabels = slices.DeleteFunc(slices.Clone(n.SetLabels), func(l string) bool { return slices.Contains(c.Remove, l) })
			s.marked(n)
		}
	}
	slices.SortFunc(labels, func(a, b rm.NodeLabel) int { return strings.Compare(a.Name, b.Name) })
	s.labels = labels
	return &Result{}
}

// knowsLabel reports whether a label is one of those, or a node carries it.
func (t *tables) knowsLabel(labels []rm.NodeLabel, name string) bool {
	return slices.ContainsFunc(labels, func(l rm.NodeLabel) bool { return l.Name == name }) ||
		slices.ContainsFunc(t.nodes.Items(), func(n *rm.Node) bool { return n.Carries(name) || slices.Contains(n.OwnLabels, name) })
}

// markNodes sets labels and attributes of nodes over their node managers' own; all of them or, when one is refused, none. What runs there
// stays.
//
// Errors: ErrNotExist; ErrInvalidArgument.
func (s *State) markNodes(c *statepb.MarkNodes) *Result {
	bad := func(format string, args ...any) *Result {
		return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, format, args...)}
	}
	var nodes []*rm.Node
	for _, m := range c.Nodes {
		n := s.node(rm.NodeID(m.Node))
		if n == nil {
			return &Result{Err: metadata.Errorf(metadata.ErrNotExist, "no node %s", m.Node)}
		}
		if m.Labels != nil {
			for _, l := range m.Labels.Names {
				if c.Known && !s.knowsLabel(s.labels, l) {
					return bad("Not all labels being replaced contained by known label collections, please check, new labels=[%s]", strings.Join(m.Labels.Names, ","))
				}
			}
			n.Labelled, n.SetLabels = true, slices.Compact(slices.Sorted(slices.Values(m.Labels.Names)))
		}
		if m.OwnLabels {
			n.Labelled, n.SetLabels = false, nil
		}
		set := n.SetAttributes.Map()
		if set == nil {
			set = map[string]string{}
		}
		for _, name := range m.Drop {
			if _, ok := set[name]; !ok {
				if _, own := n.OwnAttributes.Get(name); own {
					return bad("attribute %s of node %s is its node manager's own (nodemanager.attributes): set another value in its place, or take it out there", name, n.ID)
				}
				continue // it is gone already: a repeat of a request whose answer was lost
			}
			delete(set, name)
		}
		for name, value := range m.Set {
			set[name] = value
		}
		all := n.OwnAttributes.Map()
		if all == nil {
			all = map[string]string{}
		}
		for name, value := range set {
			all[name] = value
		}
		if _, err := rm.NewAttributes(all); err != nil {
			return &Result{Err: err}
		}
		n.SetAttributes, _ = rm.NewAttributes(set)
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		s.marked(n)
	}
	return &Result{}
}

// marked sets the row of a node of which an operator has set something.
func (s *State) marked(n *rm.Node) {
	n.Mark()
	s.nodes.Set(n)
	s.touch.Nodes[n.ID] = true
	s.touch.Schedule = true
}
