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
	if len(c.Remove) > 0 {
		known := s.knownLabels(labels)
		for _, name := range c.Remove {
			if at := known[name]; at != "" {
				return bad("label %s is in the configuration of node manager %s (nodemanager.labels): take it out there", name, at)
			}
			if _, ok := known[name]; !ok {
				return bad("Node label=%s to be removed doesn't existed in cluster node labels collection.", name)
			}
		}
		labels = slices.DeleteFunc(labels, func(o rm.NodeLabel) bool { return slices.Contains(c.Remove, o.Name) })
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

// knownLabels are labels, and those that nodes carry or could carry, each with the first node in whose configuration it is.
func (t *tables) knownLabels(labels []rm.NodeLabel) map[string]rm.NodeID {
	known := map[string]rm.NodeID{}
	for _, l := range labels {
		known[l.Name] = ""
	}
	t.nodes.Scan(func(n *rm.Node) bool {
		for _, l := range n.Labels {
			if _, ok := known[l]; !ok {
				known[l] = ""
			}
		}
		for _, l := range n.OwnLabels {
			if known[l] == "" {
				known[l] = n.ID
			}
		}
		return true
	})
	return known
}

// markNodes sets labels and attributes of nodes over their node managers' own, in their order; all of them or, when one is refused, none. What
// runs there stays.
//
// Errors: ErrNotExist; ErrInvalidArgument.
func (s *State) markNodes(c *statepb.MarkNodes) *Result {
	bad := func(format string, args ...any) *Result {
		return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, format, args...)}
	}
	var nodes []*rm.Node
	byID := map[string]*rm.Node{} // one may be named twice
	var known map[string]rm.NodeID
	if c.Known {
		known = s.knownLabels(s.labels)
	}
	for _, m := range c.Nodes {
		n := byID[m.Node]
		if n == nil {
			if n = s.node(rm.NodeID(m.Node)); n == nil {
				return &Result{Err: metadata.Errorf(metadata.ErrNotExist, "no node %s", m.Node)}
			}
			byID[m.Node] = n
			nodes = append(nodes, n)
		}
		if m.Labels != nil {
			for _, l := range m.Labels.Names {
				if _, ok := known[l]; c.Known && !ok {
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
