package server

import (
	"context"
	"net"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// ChangeLabels implements rest.Operator.
func (s *Server) ChangeLabels(ctx context.Context, caller metadata.Caller, add []rm.NodeLabel, remove []string) error {
	if err := s.raised("a change of labels"); err != nil {
		return err
	}
	if len(add)+len(remove) == 0 || len(add)+len(remove) > rm.MaxLabels {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%d labels, want 1 to %d", len(add)+len(remove), rm.MaxLabels)
	}
	c := &statepb.ChangeLabels{Remove: remove}
	for _, l := range add {
		if err := rm.ValidLabel(l.Name); err != nil {
			return err
		}
		c.Add = append(c.Add, &statepb.Label{Name: l.Name, Exclusive: l.Exclusive})
	}
	_, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_ChangeLabels{ChangeLabels: c}})
	if err == nil {
		s.log.Info("labels changed by an operator", "added", len(add), "removed", remove, "by", caller.User)
	}
	return err
}

// MarkNodes implements rest.Operator.
func (s *Server) MarkNodes(ctx context.Context, caller metadata.Caller, marks []rest.NodeMarks, known bool) error {
	if err := s.raised("a change of labels and attributes"); err != nil {
		return err
	}
	if len(marks) == 0 || len(marks) > nodesAtOnce {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%d nodes at once, want 1 to %d", len(marks), nodesAtOnce)
	}
	s.marking.Lock() // what is added to or taken from the labels of now must not undo what another operator adds
	defer s.marking.Unlock()
	view := s.state.View()
	c := &statepb.MarkNodes{Known: known}
	marked := map[string]bool{}
	for _, m := range marks {
		if m.Labels == nil && !m.OwnLabels && len(m.AddLabels)+len(m.DropLabels)+len(m.SetAttributes)+len(m.DropAttributes) == 0 {
			return metadata.Errorf(metadata.ErrInvalidArgument, "node %.100q: nothing is said of it", m.Node)
		}
		if len(m.Labels)+len(m.AddLabels)+len(m.DropLabels) > maxLabels || len(m.DropAttributes) > rm.MaxAttributes {
			return metadata.Errorf(metadata.ErrInvalidArgument, "node %.100s: at most %d labels and %d attributes", m.Node, maxLabels, rm.MaxAttributes)
		}
		name := m.Node
		if host, port, err := net.SplitHostPort(name); err == nil && port == "0" { // YARN's wildcard
			name = host
		}
		ids, err := named(view, []string{name})
		if err != nil {
			return err
		}
		if _, err := rm.NewAttributes(m.SetAttributes); err != nil {
			return err
		}
		for _, id := range ids {
			if marked[id] && !known { // of YARN's the last one counts
				return metadata.Errorf(metadata.ErrInvalidArgument, "node %s is named twice: say all of it once", id)
			}
			marked[id] = true
			p := &statepb.NodeMarks{Node: id, OwnLabels: m.OwnLabels, Set: m.SetAttributes, Drop: m.DropAttributes}
			if m.Labels != nil || len(m.AddLabels)+len(m.DropLabels) > 0 {
				labels := m.Labels
				if labels == nil {
					labels = view.Node(rm.NodeID(id)).Labels
				}
				labels = slices.DeleteFunc(append(slices.Clone(labels), m.AddLabels...), func(l string) bool { return slices.Contains(m.DropLabels, l) })
				for _, l := range labels {
					if err := rm.ValidLabel(l); err != nil {
						return err
					}
				}
				if len(labels) > maxLabels {
					return metadata.Errorf(metadata.ErrInvalidArgument, "node %s would have %d labels: at most %d", id, len(labels), maxLabels)
				}
				p.Labels = &statepb.Labels{Names: labels}
			}
			c.Nodes = append(c.Nodes, p)
		}
	}
	_, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_MarkNodes{MarkNodes: c}})
	if err == nil {
		s.log.Info("labels and attributes of nodes set by an operator", "nodes", len(c.Nodes), "by", caller.User)
	}
	return err
}
