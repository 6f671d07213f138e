package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// sharedQueues: the queues of the cluster are in the replicated state, or will be at once.
func (s *Server) sharedQueues() bool { return s.group.Load().Level() >= release.Requests }

// newQueues is rm.NewQueues for queues that can be recorded.
func newQueues(root rm.QueueConfig) (*rm.Queues, error) {
	t, err := rm.NewQueues(root)
	if err != nil {
		return nil, err
	}
	if n := len(t.Config().Document()); n > state.MaxQueues {
		return nil, fmt.Errorf("the queues take %d bytes as JSON, and there is room for %d: shorten lists of users by groups", n, state.MaxQueues)
	}
	return t, nil
}

// installQueues makes the queues of the leader's file those of the cluster, which has none yet.
func (s *Server) installQueues(ctx context.Context) {
	r := s.reign.Load()
	if r == nil || !s.sharedQueues() || s.state.View().Queues() != nil {
		return
	}
	own := s.queues.Load()
	_, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_SetQueues{SetQueues: &statepb.SetQueues{
		Epoch: r.epoch, Hash: own.Hash(), Document: own.Config().Document(), By: "resourcemanager " + s.config.ID, Force: true,
	}}})
	switch {
	case err == nil:
		s.log.Info("the queues of the file are the cluster's from now on: hops queue, or hops rmadmin -refreshQueues, changes them", "hash", own.Hash())
	case ctx.Err() == nil && !errors.Is(err, metadata.ErrStandby) && !errors.Is(err, rm.ErrStaleEpoch) && !errors.Is(err, metadata.ErrRetriable):
		s.log.Warn("the queues of the file are not recorded yet", "err", err)
	}
}

// compareQueues says when this member's file has other queues than those that count.
func (s *Server) compareQueues() {
	own, view := s.queues.Load(), s.state.View()
	leader, hash := view.Leader()
	switch {
	case hash == "" || hash == own.Hash():
	case view.Queues() != nil:
		s.log.Info("the file has other queues than the cluster, whose own count: hops rmadmin -refreshQueues makes the files' count", "cluster_queues_hash", hash, "queues_hash", own.Hash())
	default:
		s.log.Warn("the queues configured here are not those of the leader, which rule while it leads: make resourcemanager.queues alike on all resource managers, then `hops rmadmin -refreshQueues`",
			"leader", leader, "leader_queues_hash", hash, "queues_hash", own.Hash())
	}
}

// RefreshQueues implements rest.Operator.
func (s *Server) RefreshQueues(ctx context.Context, caller metadata.Caller, o rest.QueueOptions) (rest.QueueChange, error) {
	none := rest.QueueChange{}
	now, err := s.configured()
	if err != nil {
		return none, err
	}
	next, err := newQueues(now.Queues)
	if err != nil {
		return none, metadata.Errorf(metadata.ErrInvalidArgument, "resource manager %s: Failed to re-init queues : %s", s.config.ID, oneLine(err))
	}
	if !s.Leading() || !s.sharedQueues() {
		if err := s.unaffected(next, o, s.sharedQueues()); err != nil {
			return none, err
		}
	}
	change := rest.QueueChange{Hash: next.Hash()}
	if s.sharedQueues() && s.Leading() {
		if change, err = s.ChangeQueues(ctx, caller, o, func(rm.QueueConfig) (rm.QueueConfig, error) { return now.Queues, nil }); err != nil {
			return none, fmt.Errorf("resource manager %s: Failed to re-init queues : %w", s.config.ID, err)
		}
	}
	if o.DryRun {
		return change, nil
	}
	s.queues.Store(next) // before it is said, so that this member agrees with it
	if r := s.reign.Load(); r != nil && !s.sharedQueues() {
		if _, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_SetQueues{SetQueues: &statepb.SetQueues{Epoch: r.epoch, Hash: next.Hash()}}}); err != nil {
			return none, err
		}
	}
	s.log.Info("queues read anew", "hash", next.Hash(), "queues", len(next.All), "by", caller.User)
	return change, nil
}

// unaffected refuses a tree by which applications would lose their queue, where each member goes by its own.
func (s *Server) unaffected(next *rm.Queues, o rest.QueueOptions, shared bool) error {
	if o.Force || shared {
		return nil // the leader looks
	}
	view := s.state.View()
	if list := affected(view, s.Queues(), next, rm.Resource{}); len(list) > 0 {
		return metadata.Errorf(metadata.ErrInvalidArgument, "resource manager %s: Failed to re-init queues : %s", s.config.ID, affectedText(list))
	}
	return nil
}

// changeTries is how often a change is worked out anew because another one came between.
const changeTries = 5

// ChangeQueues implements rest.Operator.
func (s *Server) ChangeQueues(ctx context.Context, caller metadata.Caller, o rest.QueueOptions, change func(rm.QueueConfig) (rm.QueueConfig, error)) (rest.QueueChange, error) {
	for try := 1; ; try++ {
		out, err := s.changeQueues(ctx, caller, o, change)
		if err == nil || o.Version != 0 || try == changeTries || !errors.Is(err, metadata.ErrRetriable) || ctx.Err() != nil {
			return out, err
		}
	}
}

func (s *Server) changeQueues(ctx context.Context, caller metadata.Caller, o rest.QueueOptions, change func(rm.QueueConfig) (rm.QueueConfig, error)) (rest.QueueChange, error) {
	none := rest.QueueChange{}
	r := s.reign.Load()
	if r == nil {
		return none, metadata.Errorf(metadata.ErrStandby, "resource manager %s does not lead", s.config.ID)
	}
	if !s.sharedQueues() {
		return none, metadata.Errorf(metadata.ErrUnsupported, "queues are changed while the cluster runs only from level %d on: raise it (`hops cluster finalize`), or write them into all files and use hops rmadmin -refreshQueues", release.Requests)
	}
	s.installQueues(ctx)
	view := s.state.View()
	old := view.Queues()
	if old == nil {
		return none, metadata.Errorf(metadata.ErrRetriable, "the cluster's queues are not recorded yet")
	}
	version, _, _ := view.QueuesVersion()
	if o.Version != 0 && o.Version != version {
		return none, metadata.Errorf(metadata.ErrExist, "the queues are of version %d by now, not %d: look at them again", version, o.Version)
	}
	copied, err := rm.ParseQueueConfig(old.Config().Document())
	if err != nil {
		return none, err
	}
	config, err := change(copied)
	if err != nil {
		return none, err
	}
	next, err := newQueues(config)
	if err != nil {
		return none, fmt.Errorf("%w: %w", metadata.ErrInvalidArgument, err)
	}
	document := next.Config().Document()
	config = next.Config()
	out := rest.QueueChange{Hash: next.Hash(), Version: version, Affected: affected(view, old, next, capacity(view)), Queues: &config}
	if o.DryRun {
		return out, nil
	}
	if len(out.Affected) > 0 && !o.Force {
		return none, metadata.Errorf(metadata.ErrExist, "%s; nothing was changed", affectedText(out.Affected))
	}
	if next.Hash() == old.Hash() {
		return out, nil
	}
	result, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_SetQueues{SetQueues: &statepb.SetQueues{
		Epoch: r.epoch, Hash: next.Hash(), Document: document, After: version, Force: o.Force, By: caller.User,
	}}})
	if err != nil {
		return none, err
	}
	out.Version = result.Version
	s.log.Info("queues changed", "version", out.Version, "hash", out.Hash, "queues", len(next.All), "affected", len(out.Affected), "by", caller.User)
	return out, nil
}

// capacity is what the nodes have that are not lost.
func capacity(view *state.View) (total rm.Resource) {
	for n := range view.Nodes() {
		if n.State != rm.NodeLost {
			r := n.Capacity
			r.GPUs = n.WholeGPUs()
			total = total.Add(r)
		}
	}
	return total
}

// maxAffected is how much of what is affected is told.
const maxAffected = 100

// affected lists what is beyond a limit of the next tree and was not beyond one of the old. Without a total, what queues use is not
// looked at.
func affected(view *state.View, old, next *rm.Queues, total rm.Resource) []rest.Affected {
	before := map[rest.Affected]bool{}
	for _, a := range beyond(view, old, total) {
		before[a] = true
	}
	var out []rest.Affected
	for _, a := range beyond(view, next, total) {
		if !before[a] && len(out) < maxAffected {
			out = append(out, a)
		}
	}
	return out
}

// beyond lists what is beyond a limit of a tree.
func beyond(view *state.View, t *rm.Queues, total rm.Resource) []rest.Affected {
	type use struct {
		apps  int
		users map[string]int
		used  rm.Resource
	}
	uses := map[string]*use{}
	var out []rest.Affected
	for a := range view.Live() {
		q := t.Place(a.Queue)
		if !a.State.Final() && (q == nil || !q.Leaf()) {
			out = append(out, rest.Affected{Queue: a.Queue, Application: a.ID.String(), Text: fmt.Sprintf("%v of %s loses its queue %s", a.ID, a.User, a.Queue)})
			continue
		}
		if q != nil && !a.State.Final() && outlived(q, a, view.Now()) {
			out = append(out, rest.Affected{Queue: q.Path, Application: a.ID.String(), Text: fmt.Sprintf("%v of %s has taken longer than queue %s lets it, and would be ended", a.ID, a.User, q.Path)})
		}
		for ; q != nil; q = q.Parent {
			u := uses[q.Path]
			if u == nil {
				u = &use{users: map[string]int{}}
				uses[q.Path] = u
			}
			u.apps++
			u.users[a.User]++
			u.used = u.used.Add(a.Used)
		}
	}
	_, high := t.Resolve(total)
	for i, q := range t.All {
		u := uses[q.Path]
		if u == nil {
			continue
		}
		if q.MaxApplications > 0 && u.apps > q.MaxApplications {
			out = append(out, rest.Affected{Queue: q.Path, Text: fmt.Sprintf("queue %s has %d applications, of which it may have %d", q.Path, u.apps, q.MaxApplications)})
		}
		for _, user := range slices.Sorted(maps.Keys(u.users)) {
			if n := u.users[user]; q.MaxApplicationsPerUser > 0 && n > q.MaxApplicationsPerUser {
				out = append(out, rest.Affected{Queue: q.Path, Text: fmt.Sprintf("user %s has %d applications in queue %s, and may have %d", user, n, q.Path, q.MaxApplicationsPerUser)})
			}
		}
		if i > 0 && !total.IsZero() && !u.used.FitsIn(high[i]) {
			out = append(out, rest.Affected{Queue: q.Path, Text: fmt.Sprintf("queue %s uses %v, and may use %v", q.Path, u.used, high[i])})
		}
	}
	return out
}

func affectedText(list []rest.Affected) string {
	const shown = 10
	var lines []string
	for i, a := range list {
		if i == shown {
			lines = append(lines, fmt.Sprintf("and %d more", len(list)-shown))
			break
		}
		lines = append(lines, a.Text)
	}
	return strings.Join(lines, "; ") + ": stop the queue and wait until they have ended, end them, or force the change"
}
