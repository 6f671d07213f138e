package state

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// registerNode sets what a node is and has. A new incarnation of a known node has lost its containers: they end here.
//
// Errors: ErrStaleEpoch; ErrExist when a device is another node's that is not lost, or listed twice; ErrPermission when the node is another
// machine's and not lost.
func (s *State) registerNode(c *statepb.RegisterNode) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	n := nodeOf(c.Node)
	if old := s.node(n.ID); old != nil && old.Machine != "" && old.Machine != n.Machine && old.State != rm.NodeLost {
		return &Result{Err: metadata.Errorf(metadata.ErrPermission, "node %s is on machine %s, and the certificate is that of machine %s", n.ID, old.Machine, n.Machine)}
	}
	seen := map[string]bool{}
	for _, g := range n.GPUs {
		if seen[g.UUID] {
			return &Result{Err: metadata.Errorf(metadata.ErrExist, "node %s reports GPU %s twice", n.ID, g.UUID)}
		}
		seen[g.UUID] = true
		if owner, ok := s.owners[g.UUID]; ok && owner != n.ID {
			return &Result{Err: metadata.Errorf(metadata.ErrExist, "node %s reports GPU %s, which is node %s's", n.ID, g.UUID, owner)}
		}
	}
	n.Registered, n.Resized, n.Wish, n.Retired = s.now, rm.Resource{}, nil, false // these are not the node's to say
	n.Labelled, n.SetLabels, n.SetAttributes = false, nil, rm.Attributes{}
	old := s.node(n.ID)
	if old != nil {
		if old.Incarnation == n.Incarnation {
			n.Registered = old.Registered
		} else {
			s.endAllOn(n.ID, fmt.Sprintf("node manager %s has lost its state and with it this container", n.ID))
			old = s.node(n.ID)
		}
		n.Used, n.Live, n.Exclusive = old.Used, old.Live, old.Exclusive
		n.Resized, n.Wish, n.Retired = old.Resized, old.Wish, old.Retired
		n.Labelled, n.SetLabels, n.SetAttributes = old.Labelled, old.SetLabels, old.SetAttributes
		s.disown(old)
	}
	n.Reported = n.Capacity
	resize(n)
	n.Mark()
	s.heedList(n)
	for _, g := range n.GPUs {
		s.owners[g.UUID] = n.ID
	}
	s.sized = s.touch.Index
	s.nodes.Set(n)
	s.touch.Nodes[n.ID] = true
	s.touch.Schedule = true
	return &Result{}
}

func (s *State) disown(n *rm.Node) {
	for _, g := range n.GPUs {
		if s.owners[g.UUID] == n.ID {
			delete(s.owners, g.UUID)
		}
	}
}

// loseNode declares a node lost and everything on it ended. The leader proposes it only when the node's lease, and with
// it every process there, is certainly over.
func (s *State) loseNode(c *statepb.LoseNode) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	n := s.node(rm.NodeID(c.Node))
	if n == nil {
		return &Result{Err: metadata.Errorf(metadata.ErrNotExist, "no node %s", c.Node)}
	}
	n.State, n.HealthReport = rm.NodeLost, c.Reason
	s.sized = s.touch.Index
	s.nodes.Set(n)
	s.disown(n)
	told := map[rm.ApplicationID]bool{}
	for _, id := range s.endAllOn(n.ID, fmt.Sprintf("node %s is lost: %s", n.ID, c.Reason)) {
		told[id.Attempt.Application] = true
	}
	for _, id := range slices.SortedFunc(maps.Keys(told), rm.ApplicationID.Compare) {
		if a := s.app(id); a != nil && !a.State.Final() {
			s.event(a, Event{NodeLost: n.ID})
			s.setApp(a)
		}
	}
	s.touch.Nodes[n.ID] = true
	return &Result{}
}

// endAllOn ends the live containers of a node and returns them.
func (s *State) endAllOn(id rm.NodeID, why string) []rm.ContainerID {
	ids := s.liveOn(id)
	for _, c := range ids {
		if row := s.container(c); row != nil && row.Live() { // what is held ends with its master
			s.endContainer(row, rm.ExitAborted, why)
		}
	}
	return ids
}

// liveOn lists the live containers of a node.
func (t *tables) liveOn(id rm.NodeID) []rm.ContainerID {
	var ids []rm.ContainerID
	t.byNode.Ascend(nodeRow{node: id}, func(r nodeRow) bool {
		if r.node != id {
			return false
		}
		ids = append(ids, r.container)
		return true
	})
	return ids
}

// statuses takes what a node says of its containers. Containers that are not live, or not the node's, are skipped.
//
// Errors: ErrStaleEpoch; ErrInvalidArgument when the node is not registered in that incarnation.
func (s *State) statuses(c *statepb.Statuses) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	n := s.node(rm.NodeID(c.Node))
	if n == nil || n.Incarnation != c.Incarnation {
		return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, "node %s is not registered as %q", c.Node, c.Incarnation)}
	}
	for _, st := range c.Statuses {
		row := s.container(containerIDOf(st.Container))
		if row == nil || !row.Live() || row.Node != n.ID {
			continue
		}
		state := rm.ContainerState(st.State)
		if !state.After(row.State) || row.Held() && state != rm.ContainerComplete {
			continue // a node knows nothing of what is held
		}
		if row.Started == 0 && (st.StartedMs > 0 || state == rm.ContainerRunning) {
			row.Started = s.now // it may have ended before it was seen running
		}
		if state == rm.ContainerComplete {
			s.endContainer(row, rm.ExitStatus(st.Exit), st.Diagnostics)
			continue
		}
		row.State = state
		s.containers.Set(row)
		if row.Master && state == rm.ContainerRunning {
			s.launched(row)
		}
	}
	return &Result{}
}

// launched notes that a master runs.
func (s *State) launched(c *rm.Container) {
	a := s.app(c.ID.Attempt.Application)
	if a == nil {
		return
	}
	if t := a.Attempt(); t.Container == c.ID && t.State == rm.AttemptAllocated {
		t.State = rm.AttemptLaunched
	}
	if a.Launched == 0 {
		a.Launched = s.now
		s.settle(a)
	}
	s.setApp(a)
}
