package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// The methods of this file are rest.Cluster.

// Leading implements rest.Cluster.
func (s *Server) Leading() bool { return s.reign.Load() != nil }

// LeaderHTTP implements rest.Cluster.
func (s *Server) LeaderHTTP() string {
	if s.Leading() {
		return s.peer(s.config.ID).HTTP
	}
	group := s.group.Load()
	if group == nil {
		return ""
	}
	if l := group.Leadership(); l.LeaderID != s.config.ID { // one that is only about to lead cannot answer yet
		return s.peer(l.LeaderID).HTTP
	}
	return ""
}

// Started implements rest.Cluster.
func (s *Server) Started() time.Time { return s.started }

// View implements rest.Cluster.
func (s *Server) View() *state.View { return s.state.View() }

// Queues implements rest.Cluster.
func (s *Server) Queues() *rm.Queues {
	if t := s.state.View().Queues(); t != nil {
		return t
	}
	return s.queues.Load()
}

// Limits implements rest.Cluster.
func (s *Server) Limits() (minimum, maximum rm.Resource) { return s.config.Minimum, s.config.Maximum }

// NewApplication implements rest.Cluster.
func (s *Server) NewApplication(ctx context.Context) (rm.ApplicationID, error) {
	r, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_NewApplication{NewApplication: &statepb.NewApplication{}}})
	if err != nil {
		return rm.ApplicationID{}, err
	}
	return r.Application, nil
}

// Submit implements rest.Cluster.
//
// Errors: metadata.ErrPermission (the queue's list, or it is stopped, or a rule of the mapping), metadata.ErrInvalidArgument (no such queue,
// or one that holds queues), those of the state, and those of the group.
func (s *Server) Submit(ctx context.Context, caller metadata.Caller, b rest.Submission) (rm.ApplicationID, bool, error) {
	a, failure, err := s.admit(caller, b)
	if err != nil {
		return a.ID, false, err
	}
	submit := func() (*state.Result, error) {
		return s.propose(ctx, &statepb.Command{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: state.Application(a)}}})
	}
	result, err := submit()
	if errors.Is(err, rm.ErrQueueFull) && failure == "" { // by one that came at the same time
		if a.Diagnostics, err = full(err, b); err == nil {
			a.State = rm.StateFailed
			result, err = submit()
		}
	}
	if err != nil {
		return a.ID, false, err
	}
	if !result.Existing {
		s.log.Info("application submitted", "app", result.Application, "user", a.User, "queue", a.Queue, "kind", a.Kind, "name", a.Name)
	}
	return result.Application, result.Existing, nil
}

// admit makes the application of a submission, or says why it is not taken. One with a failure is taken and has failed.
func (s *Server) admit(caller metadata.Caller, b rest.Submission) (a *rm.Application, failure string, err error) {
	a = &rm.Application{
		ID: b.ID, Name: b.Name, User: caller.User, Queue: b.Queue, Kind: b.Kind, Type: b.Type, Tags: b.Tags,
		Priority: b.Priority, Document: b.Document, MaxAttempts: s.config.MaxAttempts, KeepContainers: b.KeepContainers,
		Timeout: b.Timeout, IdempotencyKey: b.Key, Digest: b.Digest, Master: s.config.CommandMaster,
	}
	switch b.Kind {
	case rm.KindExperiment:
		a.Master = s.config.ExperimentMaster
	case rm.KindMaster:
		if err := s.raised("a job of kind master"); err != nil {
			return a, "", err
		}
		spec, err := job.Parse(b.Document)
		if err != nil {
			return a, "", err
		}
		a.Master = spec.Resources.Amount().Raise(s.config.Minimum)
	}
	if len(b.Tokens) > 0 {
		switch {
		case b.Kind != rm.KindMaster || b.ID.IsZero():
			return a, "", metadata.Errorf(metadata.ErrInvalidArgument, "only a job of kind master that has its id already brings tokens")
		case len(b.Tokens) > maxLaunchToken:
			return a, "", metadata.Errorf(metadata.ErrInvalidArgument, "tokens of %d bytes: at most %d", len(b.Tokens), maxLaunchToken)
		}
		a.Tokens = s.sealLaunch(b.ID, b.Tokens)
	}
	if b.Array {
		if err := s.raised("an array"); err != nil {
			return a, "", err
		}
	}
	if len(b.After) > 0 || b.Deadline > 0 {
		if err := s.raised("after and deadline"); err != nil {
			return a, "", err
		}
		a.After, a.Deadline = b.After, b.Deadline
		if err := s.state.After(a); err != nil {
			return a, "", err
		}
		if now := metadata.TimeOf(s.clock.now()); a.Late(now) && !s.state.Known(a) {
			return a, "", metadata.Errorf(metadata.ErrInvalidArgument, "%s", lateText(a, now))
		}
	}
	if b.MaxAttempts > 0 {
		a.MaxAttempts = min(b.MaxAttempts, s.config.MaxAttempts)
	}
	failure = b.Failure
	tree := s.Queues()
	q, refused := place(tree, caller, b)
	switch {
	case refused != "":
		return a, "", refusal(caller, b, refused)
	case q == nil && b.AcceptAnyQueue:
		failure = fmt.Sprintf("Application %v submitted by user %s to unknown queue: %s", b.ID, caller.User, b.Queue)
	case q == nil:
		return a, "", metadata.Errorf(metadata.ErrInvalidArgument, "there is no queue %q", b.Queue)
	case !q.Leaf():
		return a, "", refusal(caller, b, "which holds queues, not applications")
	case q.State == rm.QueueStopped:
		return a, "", refusal(caller, b, "which is stopped")
	case !q.MaySubmit(caller.User, caller.Groups...) && !q.MayAdminister(caller.User, caller.Groups...) && !caller.Superuser:
		return a, "", refusal(caller, b, "")
	case b.Foreign && !q.Invites(caller.User, caller.Groups...) && !q.MayAdminister(caller.User, caller.Groups...) && !caller.Superuser:
		return a, "", refusal(caller, b, "whose acl_submit does not name them: containers run as the user of the servers, so other users of this machine need to be let in by name")
	case q.Created && s.state.View().Queues() == nil:
		return a, "", metadata.Errorf(metadata.ErrUnsupported, "queue %s would be made, which needs a cluster of level %d: raise it (`hops cluster finalize`)", q.Path, release.Requests)
	default:
		a.Queue, a.Priority = q.Path, q.ApplicationPriority(b.Priority)
		if err := s.state.QueueRoom(tree, a); err != nil && failure == "" {
			if failure, err = full(err, b); err != nil {
				return a, "", err
			}
		}
	}
	if failure != "" {
		a.State, a.Diagnostics = rm.StateFailed, failure
	}
	if err := s.state.Room(a); err != nil {
		return a, "", err
	}
	return a, failure, nil
}

// lateText says why an application that has not started cannot end in time.
func lateText(a *rm.Application, now metadata.Time) string {
	deadline := a.Deadline.Time().UTC().Format(time.RFC3339)
	if now >= a.Deadline || a.Timeout == 0 {
		return fmt.Sprintf("its deadline, %s, is over", deadline)
	}
	return fmt.Sprintf("its deadline, %s, is nearer than its timeout of %v: it could not end in time", deadline, a.Timeout)
}

// place finds the queue of a submission, by the mapping where it names none. A reason: a rule refuses it.
func place(tree *rm.Queues, caller metadata.Caller, b rest.Submission) (q *rm.Queue, refused string) {
	if b.Queue == "default" {
		if q, _, refused := tree.Map(caller.User, caller.Groups, b.Name); q != nil || refused != "" {
			return q, refused
		}
	}
	return tree.Place(b.Queue), ""
}

// full is what becomes of an application whose queue has too many: in YARN it is taken and fails.
func full(err error, b rest.Submission) (failure string, refused error) {
	if !b.AcceptAnyQueue || !errors.Is(err, rm.ErrQueueFull) {
		return "", err
	}
	return "org.apache.hadoop.security.AccessControlException: " + strings.TrimPrefix(err.Error(), rm.ErrQueueFull.Error()+": "), nil
}

// refusal is YARN's sentence for a submission that the queue does not take.
func refusal(caller metadata.Caller, b rest.Submission, why string) error {
	what := "an application"
	if !b.ID.IsZero() {
		what = b.ID.String()
	}
	text := fmt.Sprintf("User %s does not have permission to submit %s to queue %s", caller.User, what, b.Queue)
	if why != "" {
		text += ", " + why
	}
	return metadata.Errorf(metadata.ErrPermission, "%s", text)
}

// Kill implements rest.Cluster.
func (s *Server) Kill(ctx context.Context, id rm.ApplicationID, diagnostics string) (rm.State, error) {
	r, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: state.ApplicationID(id), Diagnostics: diagnostics}}})
	if err != nil {
		return "", err
	}
	return r.State, nil
}

// Update implements rest.Cluster.
//
// Errors: metadata.ErrUnsupported before the cluster has been raised to the level of it, metadata.ErrNotExist, metadata.ErrInvalidArgument
// for a queue that is no leaf, those of state.QueueRoom, those of the group.
func (s *Server) Update(ctx context.Context, id rm.ApplicationID, u rest.Update) (rm.State, error) {
	if g := s.group.Load(); g == nil || g.Level() < release.Requests {
		return "", metadata.Errorf(metadata.ErrUnsupported, "applications can be changed once the cluster has been raised to level %d: `hops cluster finalize`", release.Requests)
	}
	a := s.state.View().Application(id)
	if a == nil {
		return "", metadata.Errorf(metadata.ErrNotExist, "there is no application %v", id)
	}
	tree := s.Queues()
	q := tree.Find(a.Queue)
	c := &statepb.UpdateApplication{Application: state.ApplicationID(id), ExpiresMs: int64(u.Expires)}
	if u.Queue != "" {
		q = tree.Place(u.Queue)
		if q == nil || !q.Leaf() {
			return "", metadata.Errorf(metadata.ErrInvalidArgument, "there is no queue %q that holds applications", u.Queue)
		}
		if q.Created && s.state.View().Queues() == nil { // until the leader has installed its own
			return "", metadata.Errorf(metadata.ErrRetriable, "queue %s would be made, and the queues are not yet the cluster's: try again", q.Path)
		}
		c.Queue = q.Path
	}
	if u.Priority != nil {
		priority := int32(max(0, min(*u.Priority, q.HighestPriority())))
		c.Priority = &priority
	}
	r, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_UpdateApplication{UpdateApplication: c}})
	if err != nil {
		return "", err
	}
	return r.State, nil
}

// maxSignals bounds those that wait for a node's next orders.
const maxSignals = 100

// Signal implements rest.Cluster.
func (s *Server) Signal(id rm.ContainerID, signal syscall.Signal) error {
	r := s.reign.Load()
	c := s.state.View().Container(id)
	if r == nil || c == nil {
		return metadata.Errorf(metadata.ErrRetriable, "%v: its node is not known here now", id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[c.Node]
	if n == nil || n.session == nil {
		return metadata.Errorf(metadata.ErrRetriable, "%v: its node %s does not speak at the moment", id, c.Node)
	}
	if len(n.signals) >= maxSignals {
		return metadata.Errorf(metadata.ErrRetriable, "%v: %d signals wait for node %s", id, len(n.signals), c.Node)
	}
	n.signals = append(n.signals, &pb.Signal{ContainerId: id.String(), Signal: int32(signal)})
	kick(n.session.wake)
	return nil
}

// Waiting implements rest.Cluster.
func (s *Server) Waiting(id rm.ApplicationID) []rest.Waiting {
	r := s.reign.Load()
	if r == nil {
		return nil
	}
	var out []rest.Waiting
	for _, w := range r.waitingFor(id) {
		out = append(out, rest.Waiting{Ask: w.Ask, Reason: w.Reason})
	}
	return append(out, s.starting(r, id)...)
}

// starting are the containers of an application that are granted and have not started.
func (s *Server) starting(r *reign, id rm.ApplicationID) (out []rest.Waiting) {
	for _, c := range s.state.View().Containers(id) {
		if !c.Live() || c.Started > 0 {
			continue
		}
		if text := r.waitsFor(c); text != "" {
			out = append(out, rest.Waiting{Ask: c.Ask, Reason: rm.Reason{Code: rm.ReasonStarting, Text: fmt.Sprintf("%v on %s %s", c.ID, c.Node, text)}})
		}
	}
	return out
}

// Progress implements rest.Cluster.
func (s *Server) Progress(id rm.ApplicationID) float64 {
	a := s.state.View().Application(id)
	if a == nil {
		return 0
	}
	if a.State == rm.StateFinished && a.Final == rm.FinalSucceeded {
		return 1
	}
	if r := s.reign.Load(); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if m := r.masters[rm.AttemptID{Application: id, Number: len(a.Attempts)}]; m != nil {
			return float64(m.progress)
		}
	}
	return 0
}

// Liveness implements rest.Cluster.
func (s *Server) Liveness(id rm.NodeID) rest.Liveness {
	r := s.reign.Load()
	if r == nil {
		return rest.Liveness{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[id]
	if n == nil {
		return rest.Liveness{}
	}
	return rest.Liveness{Open: n.open && n.healthy && !n.losing, Heard: n.heard, Refused: n.refused, Memory: n.memory, GPUs: gpuLoads(n.loads), Uses: gpuUses(n.uses)}
}

// ProxyKey implements rest.Cluster.
func (s *Server) ProxyKey(c *rm.Container) security.RequestKey {
	return security.NewRequestKey(s.token(c.Salt), security.ProxiedRequests)
}

// ContainerOf implements rest.Cluster.
func (s *Server) ContainerOf(container string) (rest.Container, bool) {
	id, err := rm.ParseContainerID(container)
	if err != nil {
		return rest.Container{}, false
	}
	view := s.state.View()
	c := view.Container(id)
	a := view.Application(id.Attempt.Application)
	if c == nil || a == nil || !c.Live() {
		return rest.Container{}, false
	}
	return rest.Container{Token: s.token(c.Salt), User: a.User, MaySubmit: func() bool {
		var document struct{ Env map[string]string }
		_ = json.Unmarshal(a.Document, &document) // one that was submitted by YARN's protocol has none
		return document.Env["HOPS_MAY_SUBMIT"] == "1"
	}}, true
}

// LogDir implements rest.Cluster.
func (s *Server) LogDir(a *rm.Application) string {
	return path.Join(s.config.LogRoot, a.User, a.ID.String())
}
