package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// MaxQueues bounds the document of the queues, in bytes: it is recorded in one command.
const MaxQueues = raftstore.MaxCommand * 3 / 4

// queuesRow are the cluster's queues: what is written down, and the tree of it, without queues that were made.
type queuesRow struct {
	document []byte
	tree     *rm.Queues
	// version counts the changes.
	version uint64
	by      string
	since   metadata.Time
}

func queuesOf(p *statepb.QueuesRecord) (queuesRow, error) {
	c, err := rm.ParseQueueConfig(p.Document)
	if err != nil {
		return queuesRow{}, err
	}
	t, err := rm.NewQueues(c)
	if err != nil {
		return queuesRow{}, err
	}
	return queuesRow{p.Document, t, p.Version, p.By, metadata.Time(p.SinceMs)}, nil
}

// placeKey is a queue, or what a user has in it.
type placeKey struct{ queue, user string }

// place counts a live application of a queue; n is 1 or -1.
func (x *index) place(queue, user string, n int) {
	for _, k := range []placeKey{{queue, ""}, {queue, user}} {
		x.placed[k] += n
		x.moved = x.moved || k.user == "" && (x.placed[k] == 0 || x.placed[k] == n)
		if x.placed[k] == 0 {
			delete(x.placed, k)
		}
	}
}

// setQueues makes queues those of the cluster, or, without a document, notes by which of its own the leader grants.
//
// Errors: ErrStaleEpoch; ErrRetriable when the queues were changed meanwhile; ErrInvalidArgument for a document that is none; ErrExist
// when applications would lose their queue and it is not forced.
func (s *State) setQueues(c *statepb.SetQueues) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	if len(c.Document) == 0 {
		if s.queues.tree == nil {
			s.queuesHash = c.Hash
		}
		s.touch.Schedule, s.touch.Begun = true, true // as at the beginning: members compare their queues
		return &Result{}
	}
	if c.After != s.queues.version {
		return &Result{Err: metadata.Errorf(metadata.ErrRetriable, "the queues are of version %d, and this is a change of version %d: look at them again", s.queues.version, c.After)}
	}
	row, err := queuesOf(&statepb.QueuesRecord{Document: c.Document, Version: c.After + 1, By: c.By, SinceMs: int64(s.now)})
	if err != nil {
		return &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, "%v", err)}
	}
	if lost := s.homeless(row.tree); len(lost) > 0 && !c.Force {
		return &Result{Err: metadata.Errorf(metadata.ErrExist, "there would be no place for the applications of %s: stop the queue, and take it away when they have ended", strings.Join(lost, ", "))}
	}
	s.queues, s.queuesHash, s.made = row, row.tree.Hash(), nil
	s.touch.Schedule, s.touch.Begun = true, true
	return &Result{Version: row.version}
}

// homeless lists the queues whose live applications have no place in a tree, with their numbers.
func (s *State) homeless(t *rm.Queues) []string {
	var out []string
	for k, n := range s.placed {
		if k.user != "" {
			continue
		}
		if q := t.Place(k.queue); q == nil || !q.Leaf() {
			out = append(out, fmt.Sprintf("%s (%d)", k.queue, n))
		}
	}
	slices.Sort(out)
	return out
}

// madeQueues is the tree with the queues that live applications are in.
func (s *State) madeQueues() *rm.Queues {
	if s.queues.tree == nil {
		return nil
	}
	if s.made != nil && !s.moved {
		return s.made
	}
	s.moved = false
	var paths []string
	for k := range s.placed {
		if k.user == "" && s.queues.tree.Find(k.queue) == nil {
			paths = append(paths, k.queue)
		}
	}
	if s.made == nil {
		s.made = s.queues.tree
	}
	s.made = s.made.With(paths)
	return s.made
}

// QueueRoom says whether a queue of a tree takes an application now: see Room. In the words of YARN's LeafQueue.
//
// Errors: ErrInvalidArgument when there is no such leaf; ErrPermission when it is stopped; ErrQueueFull, also when it would be made and
// there are too many.
func (s *State) QueueRoom(t *rm.Queues, a *rm.Application) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.keys[userKey{a.User, a.IdempotencyKey}]; known && a.IdempotencyKey != "" || s.app(a.ID) != nil || a.State == rm.StateFailed {
		return nil
	}
	return s.queueRoom(t, a)
}

func (s *State) queueRoom(t *rm.Queues, a *rm.Application) error {
	if t == nil {
		return nil // the leader's own queues, which it has looked at
	}
	q := t.Place(a.Queue)
	if q == nil || !q.Leaf() {
		return metadata.Errorf(metadata.ErrInvalidArgument, "there is no queue %q", a.Queue)
	}
	name := "an application of " + a.User
	if !a.ID.IsZero() {
		name = "application: " + a.ID.String()
	}
	if q.State == rm.QueueStopped {
		return metadata.Errorf(metadata.ErrPermission, "Queue %s is STOPPED. Cannot accept submission of %s", q.Path, name)
	}
	if q.Created && s.placed[placeKey{q.Path, ""}] == 0 {
		if err := s.roomToMake(t, q); err != nil {
			return err
		}
	}
	for up := q; up != nil; up = up.Parent {
		if up.MaxApplications > 0 {
			if n := s.placedBelow(up, q, ""); n >= up.MaxApplications {
				return fmt.Errorf("%w: Queue %s already has %d applications, cannot accept submission of %s", rm.ErrQueueFull, up.Path, n, name)
			}
		}
		if up.MaxApplicationsPerUser > 0 {
			if n := s.placedBelow(up, q, a.User); n >= up.MaxApplicationsPerUser {
				return fmt.Errorf("%w: Queue %s already has %d applications from user %s cannot accept submission of %s", rm.ErrQueueFull, up.Path, n, a.User, name)
			}
		}
	}
	return nil
}

// roomToMake says whether a queue may be made beside those that are there.
func (s *State) roomToMake(t *rm.Queues, q *rm.Queue) error {
	made, below := 0, 0
	for k := range s.placed {
		if k.user != "" {
			continue
		}
		if there := t.Find(k.queue); there == nil || there.Created {
			made++
			if i := strings.LastIndexByte(k.queue, '.'); i > 0 && k.queue[:i] == q.Parent.Path {
				below++
			}
		}
	}
	return t.RoomToMake(q.Parent, made, below)
}

// placedBelow counts the live applications, all or a user's, in q, which is leaf or above it.
func (s *State) placedBelow(q, leaf *rm.Queue, user string) int {
	if q.Path == leaf.Path {
		return s.placed[placeKey{q.Path, user}]
	}
	n := 0
	for k, count := range s.placed {
		if k.user == user && (k.queue == q.Path || strings.HasPrefix(k.queue, q.Path+".")) {
			n += count
		}
	}
	return n
}

// Queues are the cluster's, with those that were made; nil: those of the leader's file count.
func (v *View) Queues() *rm.Queues { return v.queues }

// QueuesVersion counts the changes of the cluster's queues, by says who made the last one, and since when they count.
func (v *View) QueuesVersion() (version uint64, by string, since metadata.Time) {
	return v.t.queues.version, v.t.queues.by, v.t.queues.since
}
