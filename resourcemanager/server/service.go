package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

const (
	// nodesAtOnce is how many nodes one request may name.
	nodesAtOnce = 1_000
	// longestMaintenance bounds the length of a maintenance, and of the time that what runs may have.
	longestMaintenance = 365 * 24 * time.Hour
	// largestList bounds the file of excluded nodes, in bytes.
	largestList = 4 << 20
	// maxReason bounds what an operator says why, in bytes.
	maxReason = 250
)

// named finds the nodes that names mean, by id.
func named(view *state.View, names []string) ([]string, error) {
	if len(names) == 0 || len(names) > nodesAtOnce {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%d nodes at once, want 1 to %d", len(names), nodesAtOnce)
	}
	var ids []string
	for _, name := range names {
		found := false
		for n := range view.Nodes() {
			if n.Named(name) {
				ids, found = append(ids, string(n.ID)), true
			}
		}
		if !found {
			return nil, metadata.Errorf(metadata.ErrNotExist, "no node %.100q: give a machine's name, an address or a node id, as `hops node -list -all` shows them", name)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Administer implements rest.Operator.
func (s *Server) Administer(ctx context.Context, caller metadata.Caller, names []string, w rest.Wish) ([]string, error) {
	if w.Cordon || w.Reason != "" {
		if err := s.raised("a cordon, or a reason"); err != nil {
			return nil, err
		}
	}
	if len(w.Reason) > maxReason || strings.ContainsFunc(w.Reason, func(r rune) bool { return r < ' ' }) {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a reason of %d bytes: at most %d, in one line", len(w.Reason), maxReason)
	}
	if w.Timeout > longestMaintenance || w.Life < 0 || w.Life > longestMaintenance || w.Life > 0 && !w.Maintenance && !w.Cordon || w.Cordon && w.Timeout >= 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a timeout of %v and a duration of %v: up to %v each, only a maintenance or a cordon ends by itself, and what runs behind a cordon is not ended", w.Timeout, w.Life, longestMaintenance)
	}
	ids, err := named(s.state.View(), names)
	if err != nil {
		return nil, err
	}
	c := &statepb.AdministerNodes{Nodes: ids}
	if w.Leave {
		now := s.clock.moment()
		wish := &rm.Wish{Maintenance: w.Maintenance, Since: now.State, By: caller.User, Deadline: deadline(now, w.Timeout), Cordon: w.Cordon, Reason: w.Reason}
		if w.Life > 0 {
			wish.Until = now.after(w.Life)
		}
		c.Wish = state.Wish(wish)
	}
	if _, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_AdministerNodes{AdministerNodes: c}}); err != nil {
		return nil, err
	}
	s.log.Info("nodes set by an operator", "nodes", strings.Join(ids, " "), "leave", w.Leave, "maintenance", w.Maintenance, "cordon", w.Cordon, "why", w.Reason, "timeout", w.Timeout, "for", w.Life, "by", caller.User)
	return ids, nil
}

// deadline is when what runs is ended; a negative timeout is none, and 0 is now.
func deadline(now moment, timeout time.Duration) metadata.Time {
	if timeout < 0 {
		return 0
	}
	return now.after(timeout)
}

// RefreshNodes implements rest.Operator.
func (s *Server) RefreshNodes(ctx context.Context, caller metadata.Caller, timeout time.Duration) error {
	if timeout > longestMaintenance {
		return metadata.Errorf(metadata.ErrInvalidArgument, "a timeout of %v: up to %v", timeout, longestMaintenance)
	}
	names, err := readExcluded(s.config.NodesExclude)
	if err != nil {
		return err
	}
	_, err = s.propose(ctx, &statepb.Command{Op: &statepb.Command_ExcludeNodes{ExcludeNodes: &statepb.ExcludeNodes{
		Names: names, DeadlineMs: int64(deadline(s.clock.moment(), timeout)), By: caller.User,
	}}})
	if err == nil {
		s.log.Info("list of excluded nodes read", "names", len(names), "file", s.config.NodesExclude, "by", caller.User)
	}
	return err
}

// readExcluded reads a file of names of nodes, separated by white space, with comments behind #, as YARN does; without a path there
// are none.
func readExcluded(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, metadata.Errorf(metadata.ErrNotExist, "%s, which yarn.resourcemanager.nodes.exclude-path names, is not there", path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, largestList+1))
	if err != nil {
		return nil, err
	}
	return parseExcluded(path, string(text))
}

func parseExcluded(path, text string) ([]string, error) {
	bad := func(format string, args ...any) ([]string, error) {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, path+": "+format+"; the list stays as it was", args...)
	}
	if len(text) > largestList {
		return bad("more than %d bytes", largestList)
	}
	if strings.HasPrefix(strings.TrimSpace(text), "<") {
		return bad("XML is not supported: write one name, address or node id a line, and give the timeout to -refreshNodes -g")
	}
	var names []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			if len(word) > 255 || strings.ContainsFunc(word, func(r rune) bool { return r < '!' || r > '~' }) {
				return bad("line %d: %.40q is no name, address or node id", number, word)
			}
			if names = append(names, word); len(names) > state.MaxExcluded {
				return bad("more than %d nodes", state.MaxExcluded)
			}
		}
	}
	return names, nil
}

// Resize implements rest.Operator.
func (s *Server) Resize(ctx context.Context, caller metadata.Caller, id rm.NodeID, r rm.Resource) error {
	_, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_ResizeNode{ResizeNode: &statepb.ResizeNode{Node: string(id), Resource: state.Resource(r)}}})
	if err == nil {
		s.log.Info("node resized by an operator", "node", id, "resource", r.String(), "by", caller.User)
	}
	return err
}

// JudgeGPU implements rest.Operator.
func (s *Server) JudgeGPU(_ context.Context, caller metadata.Caller, uuid string, health rm.GPUHealth) error {
	if health != rm.GPUHealthy && health != rm.GPURetired {
		return metadata.Errorf(metadata.ErrInvalidArgument, "health %.100q: give HEALTHY, for a device that was reset or repaired, or RETIRED", health)
	}
	r := s.reign.Load()
	if r == nil {
		return metadata.Errorf(metadata.ErrStandby, "resource manager %s does not lead", s.config.ID)
	}
	for n := range s.state.View().Nodes() {
		r.mu.Lock()
		soft := r.nodes[n.ID]
		if !slices.ContainsFunc(n.GPUs, func(g rm.GPU) bool { return g.UUID == uuid }) && !soft.divides(uuid) {
			r.mu.Unlock()
			continue
		}
		defer r.mu.Unlock()
		if soft == nil || soft.session == nil || len(soft.devices) >= maxSignals {
			return metadata.Errorf(metadata.ErrRetriable, "node %s, which has GPU %s, does not speak at the moment", n.ID, uuid)
		}
		soft.devices = append(soft.devices, &pb.DeviceOrder{Uuid: uuid, Health: string(health), By: caller.User})
		kick(soft.session.wake)
		s.log.Info("a GPU judged by an operator", "gpu", uuid, "node", n.ID, "health", health, "by", caller.User)
		return nil
	}
	return metadata.Errorf(metadata.ErrNotExist, "no node has a GPU %.100q", uuid)
}

// tend brings nodes that are to leave further: what outlives its time there is ended, a node that holds nothing is let go, and a
// maintenance ends. What a node holds are its containers, and their logs that are not in the filesystem yet.
func (r *reign) tend(now moment) {
	view := r.s.state.View()
	at := now.State
	var over []string
	for n := range view.Nodes() {
		w := n.Wish
		switch {
		case w == nil:
		case w.Until > 0 && at >= w.Until:
			over = append(over, string(n.ID))
		case n.Retired || w.Cordon:
		case n.Live > 0:
			if w.Deadline > 0 && at >= w.Deadline && r.heeded(now, w.Since, w.Deadline) {
				r.preempt(view, n)
			}
		case n.State == rm.NodeLost || r.emptied(n.ID):
			r.retire(n)
		}
	}
	if len(over) > 0 {
		_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_AdministerNodes{AdministerNodes: &statepb.AdministerNodes{Nodes: over, Over: true}}})
		if err == nil {
			r.s.log.Info("the maintenance of nodes is over", "nodes", strings.Join(over, " "))
		} else if r.ctx.Err() == nil {
			r.s.log.Warn("the end of a maintenance is not recorded yet", "nodes", strings.Join(over, " "), "err", err)
		}
	}
}

// preempt ends what runs on a node whose time is over. Each has its grace between SIGTERM and SIGKILL.
func (r *reign) preempt(view *state.View, n *rm.Node) {
	c := &statepb.Stop{Epoch: r.epoch, Status: int32(rm.ExitPreempted)}
	for _, on := range view.On(n.ID) {
		if on.StopStatus == 0 {
			c.Containers = append(c.Containers, state.ContainerID(on.ID))
		}
	}
	if len(c.Containers) == 0 {
		return // they have been told
	}
	c.Reason = fmt.Sprintf("node %s is taken out of service by %s: what runs there had until %s", n.ID, n.Wish.By,
		time.UnixMilli(int64(n.Wish.Deadline)).UTC().Format("2006-01-02 15:04:05 UTC"))
	_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_Stop{Stop: c}})
	if err == nil {
		r.s.figures.preempted.Add(int64(len(c.Containers)))
		r.s.log.Info("containers of a node that leaves are ended", "node", n.ID, "containers", len(c.Containers))
	} else if r.ctx.Err() == nil {
		r.s.log.Warn("containers of a node that leaves are not ended yet", "node", n.ID, "err", err)
	}
}

// emptied: the node has said to this leader what it has, and it has nothing.
func (r *reign) emptied(id rm.NodeID) bool {
	r.mu.Lock()
	n := r.nodes[id]
	ok := n != nil && n.open && n.strangers == 0
	r.mu.Unlock()
	return ok && !r.s.logs.holds(id)
}

func (r *reign) retire(n *rm.Node) {
	_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_RetireNode{RetireNode: &statepb.RetireNode{Epoch: r.epoch, Node: string(n.ID)}}})
	if err == nil {
		r.s.log.Info("node holds nothing any more and is let go", "node", n.ID, "maintenance", n.Wish.Maintenance)
	} else if r.ctx.Err() == nil {
		r.s.log.Warn("a node that leaves is not let go yet", "node", n.ID, "err", err)
	}
}
