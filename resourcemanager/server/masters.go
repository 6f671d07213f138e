package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// applicationMasters serves the masters. Their connections have proved the token of the master's container.
type applicationMasters struct {
	pb.UnimplementedApplicationMastersServer
	s *Server
}

// eventStream is one open Events call.
type eventStream struct{ wake chan struct{} }

// tokenOf is the token of a container, by which its master's connection is known.
func (s *Server) tokenOf(container string) (string, bool) {
	id, err := rm.ParseContainerID(container)
	if err != nil {
		return "", false
	}
	c := s.state.View().Container(id)
	if c == nil || !c.Master {
		return "", false
	}
	return s.token(c.Salt), true
}

// authenticate checks that the container whose token was proved is that of the attempt that the caller claims to be. Only
// then does it say that a newer attempt exists.
func (m *applicationMasters) authenticate(ctx context.Context, application string, attempt int32) (*reign, rm.AttemptID, error) {
	r := m.s.reign.Load()
	if r == nil {
		return nil, rm.AttemptID{}, m.s.notLeader()
	}
	id, err := rm.ParseApplicationID(application)
	if err != nil {
		return nil, rm.AttemptID{}, status.Error(codes.InvalidArgument, err.Error())
	}
	refused := status.Error(codes.Unauthenticated, "the token is not that of this attempt's container")
	who, _ := security.PrincipalOf(ctx)
	view := m.s.state.View()
	a := view.Application(id)
	if a == nil || attempt < 1 || int(attempt) > len(a.Attempts) {
		return nil, rm.AttemptID{}, refused
	}
	c := view.Container(a.Attempts[attempt-1].Container)
	if c == nil || who.Container == "" || c.ID.String() != who.Container {
		return nil, rm.AttemptID{}, refused
	}
	r.mu.Lock()
	if soft := r.masters[c.ID.Attempt]; soft != nil {
		soft.seen = time.Now()
	}
	r.mu.Unlock()
	return r, c.ID.Attempt, nil
}

// Register implements the service.
func (m *applicationMasters) Register(ctx context.Context, q *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	_, id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	if len(q.TrackingUrl) > maxWord {
		return nil, status.Errorf(codes.InvalidArgument, "tracking_url is longer than %d bytes", maxWord)
	}
	view := m.s.state.View()
	c := view.Master(view.Application(id.Application))
	if c == nil {
		return nil, m.s.wire(fmt.Errorf("%w: %v has no container", rm.ErrStaleAttempt, id))
	}
	http, err := masterAddress(q.HttpAddress, q.HttpCertificate, view.Node(c.Node))
	if err != nil {
		return nil, m.s.wire(err)
	}
	result, err := m.s.propose(ctx, &statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{
		Application: state.ApplicationID(id.Application), Attempt: q.Attempt, Http: http, TrackingUrl: q.TrackingUrl, HttpCertificate: q.HttpCertificate,
	}}})
	if err != nil {
		return nil, m.s.wire(err)
	}
	view = m.s.state.View()
	out := &pb.RegisterResponse{Epoch: result.Epoch, Maximum: resourcesOf(largest(view)), Queue: view.Application(id.Application).Queue}
	for _, k := range result.Containers {
		if c := view.Container(k); c != nil {
			out.Containers = append(out.Containers, m.s.containerOf(view, c))
		}
	}
	m.s.log.Info("master registered", "app", id.Application, "attempt", id.Number, "http", http)
	return out, nil
}

// endedPerPage and endedBytes bound a page of Ended: diagnostics are of 4 KiB each.
const (
	endedPerPage = 1_000
	endedBytes   = 1 << 20
)

// Ended implements the service.
func (m *applicationMasters) Ended(ctx context.Context, q *pb.EndedRequest) (*pb.EndedResponse, error) {
	_, id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	var after rm.ContainerID
	if q.After != "" {
		if after, err = rm.ParseContainerID(q.After); err != nil {
			return nil, m.s.wire(err)
		}
	}
	if err := m.s.group.Load().ReadWait(ctx); err != nil {
		return nil, m.s.wire(err)
	}
	out, size := &pb.EndedResponse{}, 0
	for _, c := range m.s.state.View().Containers(id.Application) {
		if c.Live() || c.Master || !after.IsZero() && c.ID.Compare(after) <= 0 {
			continue
		}
		if len(out.Ended) == m.s.config.endedPerPage || size > endedBytes {
			out.More = true
			break
		}
		out.Ended = append(out.Ended, m.s.completedOf(c))
		size += len(c.Diagnostics)
	}
	return out, nil
}

// masterAddress checks the address of a master's HTTP server: users reach it through this process, so it must be on the
// master's own node and nowhere else, and have a certificate there unless it is reached by loopback.
func masterAddress(address string, certificate []byte, node *rm.Node) (string, error) {
	if n := len(certificate); n != 0 && (n != sha256.Size || address == "") {
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "http_certificate has %d bytes; it is the SHA-256 of the certificate of the server at http_address", n)
	}
	if address == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" || len(address) > maxWord || node == nil {
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "http_address %.100q is not host:port", address)
	}
	nodeHTTP, _, _ := net.SplitHostPort(node.HTTP)
	nodeID, _, _ := net.SplitHostPort(string(node.ID))
	own := []string{node.Host, nodeHTTP, nodeID}
	switch {
	case host == "":
		host, address = nodeHTTP, net.JoinHostPort(nodeHTTP, port)
	case slices.Contains(own, host), security.Loopback(host) && slices.ContainsFunc(own, security.Loopback):
	default:
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "http_address %s is not on the master's node %s", address, node.ID)
	}
	if len(certificate) == 0 && !security.Loopback(host) {
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "http_address %s is reached over the network: serve TLS there and register http_certificate", address)
	}
	return address, nil
}

// largest is the most that one container could get of each resource.
func largest(view *state.View) rm.Resource {
	var out rm.Resource
	for n := range view.Nodes() {
		if n.State != rm.NodeLost {
			out = out.Max(n.Capacity)
		}
	}
	return out
}

// Allocate implements the service.
func (m *applicationMasters) Allocate(ctx context.Context, q *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	r, id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	c := &statepb.Allocate{
		Application: state.ApplicationID(id.Application), Attempt: q.Attempt, Epoch: q.Epoch, Sequence: q.Sequence,
		Cancel: q.Cancel, Acknowledged: q.Acknowledged,
	}
	for _, a := range q.Asks {
		w, err := wantedAsk(a, m.s.config.Minimum)
		if err != nil {
			return nil, m.s.wire(err)
		}
		if len(w.Ask.Resource.Other) > 0 && m.s.group.Load().Level() < release.Requests {
			return nil, status.Errorf(codes.InvalidArgument, "ask %.100q: resources by name are not supported until the cluster is raised (`hops cluster finalize`)", a.AskId)
		}
		c.Asks = append(c.Asks, w)
	}
	for _, text := range q.Release {
		id, err := rm.ParseContainerID(text)
		if err != nil {
			return nil, m.s.wire(err)
		}
		c.Release = append(c.Release, state.ContainerID(id))
	}
	if q.Progress >= 0 && q.Progress <= 1 {
		r.mu.Lock()
		if soft := r.masters[id]; soft != nil {
			soft.progress = q.Progress
		}
		r.mu.Unlock()
	}
	if len(c.Asks)+len(c.Cancel)+len(c.Release) == 0 {
		// A sign of life: nothing to replicate, unless events were handled.
		a := m.s.state.View().Application(id.Application)
		if t := a.Attempt(); !a.State.Final() && t.Number == id.Number && t.Epoch == q.Epoch && q.Epoch != 0 && q.Acknowledged <= a.Acknowledged {
			return &pb.AllocateResponse{Sequence: q.Sequence}, nil
		}
	}
	if t := m.s.state.View().Application(id.Application).Attempt(); q.Sequence == 0 || q.Sequence > t.Sequence {
		if err := m.s.state.RoomForAsks(id.Application, c.Asks); err != nil {
			return nil, m.s.wire(err)
		}
	}
	if _, err := m.s.propose(ctx, &statepb.Command{Op: &statepb.Command_Allocate{Allocate: c}}); err != nil {
		return nil, m.s.wire(err)
	}
	return &pb.AllocateResponse{Sequence: q.Sequence}, nil
}

// badInstances reports whether numbers are negative or stand twice.
func badInstances(numbers []int32) bool {
	seen := make(map[int32]bool, len(numbers))
	for _, n := range numbers {
		if n < 0 || seen[n] {
			return true
		}
		seen[n] = true
	}
	return false
}

// wantedAsk checks an ask and translates it. What it wants less of than the minimum is raised to that.
func wantedAsk(a *pb.Ask, minimum rm.Resource) (*statepb.WantedAsk, error) {
	bad := func(format string, args ...any) (*statepb.WantedAsk, error) {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "ask %.100q: "+format, append([]any{a.AskId}, args...)...)
	}
	r, err := resourceOf(a.Resources)
	switch {
	case err != nil:
		return bad("%v", err)
	case a.AskId == "" || len(a.AskId) > 255:
		return bad("an id has 1 to 255 bytes")
	case a.Count < 0 || a.Count > 100_000:
		return bad("count %d is not between 0 and 100,000", a.Count)
	case len(a.Instances) > 0 && len(a.Instances) != int(a.Count):
		return bad("count %d and %d instances do not go together", a.Count, len(a.Instances))
	case len(a.Instances) > job.MaxInstances || badInstances(a.Instances):
		return bad("instances are up to %d different numbers that are not negative", job.MaxInstances)
	case a.GangMin < 0 || a.GangMin > 1_000 || a.GangMin > a.Count && a.Count > 0:
		return bad("gang_min %d is negative, above 1,000 or above the count %d", a.GangMin, a.Count)
	case len(a.Nodes) > 1_000 || len(a.ExcludedNodes) > 10_000 || len(a.GpuModel) > maxWord || len(a.Label) > maxWord:
		return bad("too many nodes, or a word that is too long")
	case a.Count > 0 && (a.Launch == nil || len(a.Launch.Argv) == 0 || a.Launch.Argv[0] == ""):
		return bad("there is nothing to run: launch.argv is empty")
	}
	out := &statepb.WantedAsk{
		Ask: state.Ask(rm.Ask{
			ID: a.AskId, Priority: int(a.Priority), Resource: r.Raise(minimum),
			Count: int(a.Count), Gang: int(a.GangMin), Model: a.GpuModel, Island: a.GpuIsland, Nodes: a.Nodes, Strict: a.StrictLocality,
			Excluded: a.ExcludedNodes, Label: a.Label, Instances: a.Instances,
		}),
	}
	if a.Launch == nil {
		return out, nil
	}
	l := &rm.Launch{
		Argv: a.Launch.Argv, Env: job.Env(a.Launch.Env), Grace: time.Duration(a.Launch.GraceMs) * time.Millisecond,
		Fenced: a.Launch.Fencing == pb.Fencing_FENCING_STRICT,
	}
	for _, f := range a.Launch.Artifacts {
		if !job.LocalName(f.Name) {
			return bad("artifact %.100q is no path inside the work directory", f.Name)
		}
		l.Artifacts = append(l.Artifacts, rm.Artifact{
			Name: f.Name, URI: f.Uri, Kind: f.Kind, Size: f.Size, SHA256: f.Sha256, Timestamp: f.Timestamp,
			Visibility: f.Visibility, Content: f.Content, Pattern: f.Pattern,
		})
	}
	out.Launch = state.Launch(l)
	return out, nil
}

// Finish implements the service.
func (m *applicationMasters) Finish(ctx context.Context, q *pb.FinishRequest) (*pb.FinishResponse, error) {
	_, id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	final := rm.FinalStatus(q.FinalStatus)
	if final != rm.FinalSucceeded && final != rm.FinalFailed && final != rm.FinalKilled {
		return nil, status.Errorf(codes.InvalidArgument, "final_status %.100q is not SUCCEEDED, FAILED or KILLED", q.FinalStatus)
	}
	if len(q.TrackingUrl) > maxWord {
		return nil, status.Errorf(codes.InvalidArgument, "tracking_url is longer than %d bytes", maxWord)
	}
	_, err = m.s.propose(ctx, &statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{
		Application: state.ApplicationID(id.Application),
		Attempt:     q.Attempt, Epoch: q.Epoch, Final: string(final), Diagnostics: cut(q.Diagnostics, 4*maxDiagnostics), TrackingUrl: q.TrackingUrl,
	}}})
	if err != nil {
		return nil, m.s.wire(err)
	}
	m.s.log.Info("application finished", "app", id.Application, "final", final)
	return &pb.FinishResponse{}, nil
}

// Fate implements the service.
func (m *applicationMasters) Fate(ctx context.Context, q *pb.FateRequest) (*pb.FateResponse, error) {
	_, id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	if err := m.s.group.Load().ReadWait(ctx); err != nil {
		return nil, m.s.wire(err)
	}
	a := m.s.state.View().Application(id.Application)
	return &pb.FateResponse{State: string(a.State), Diagnostics: a.Diagnostics}, nil
}

// Events implements the service: who the resource managers are, what is not acknowledged, again and from the start, then what comes.
func (m *applicationMasters) Events(q *pb.EventsRequest, stream pb.ApplicationMasters_EventsServer) error {
	ctx := stream.Context()
	r, id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return err
	}
	// Checks the attempt and its epoch, and records the acknowledgement.
	if _, err := m.s.propose(ctx, &statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
		Application: state.ApplicationID(id.Application), Attempt: q.Attempt, Epoch: q.Epoch, Acknowledged: q.Acknowledged,
	}}}); err != nil {
		return m.s.wire(err)
	}
	x := &eventStream{wake: make(chan struct{}, 1)}
	leave, ok := r.join(id, x)
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "%v has %d streams of events open, which is all that it may have", id, maxStreams)
	}
	defer leave()
	sent := q.Acknowledged
	told := map[string]rm.Reason{}
	var managers []string
	for {
		view := m.s.state.View()
		a := view.Application(id.Application)
		if a == nil || a.Attempt().Number != id.Number || a.Attempt().Epoch != q.Epoch || a.State.Final() {
			return m.s.wire(fmt.Errorf("%w: %v is not the current attempt, or its application has ended", rm.ErrStaleAttempt, id))
		}
		if now := m.s.managers(); !slices.Equal(now, managers) {
			managers = now
			if err := stream.Send(&pb.Event{Event: &pb.Event_Managers{Managers: &pb.Managers{Addresses: now}}}); err != nil {
				return err
			}
		}
		for _, e := range view.Events(id.Application, sent) {
			if err := stream.Send(m.s.eventOf(view, e)); err != nil {
				return err
			}
			sent = e.Sequence
		}
		now := map[string]rm.Reason{}
		for _, w := range r.waitingFor(id.Application) {
			now[w.Ask] = w.Reason
			if told[w.Ask] == w.Reason {
				continue
			}
			if err := stream.Send(&pb.Event{Event: &pb.Event_Pending{Pending: &pb.Pending{AskId: w.Ask, Code: string(w.Reason.Code), Message: w.Reason.Text}}}); err != nil {
				return err
			}
		}
		told = now
		select {
		case <-ctx.Done():
			return nil
		case <-r.ctx.Done():
			return m.s.notLeader()
		case <-x.wake:
		}
	}
}

// maxStreams bounds the streams of events of one application: a master needs one, and those that broke off live on until
// their connection is found dead.
const maxStreams = 16

// join registers a stream of events for wake-ups; the returned function takes it off again. ok is false when there are
// enough.
func (r *reign) join(id rm.AttemptID, x *eventStream) (leave func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.streams[id.Application]) >= maxStreams {
		return nil, false
	}
	if r.streams[id.Application] == nil {
		r.streams[id.Application] = map[*eventStream]bool{}
	}
	r.streams[id.Application][x] = true
	soft := r.masters[id]
	if soft == nil {
		soft = &softMaster{}
		r.masters[id] = soft
	}
	soft.streams++
	soft.seen = time.Now()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.streams[id.Application], x)
		if len(r.streams[id.Application]) == 0 {
			delete(r.streams, id.Application)
		}
		soft.streams--
		soft.seen = time.Now()
	}, true
}

// wakeMasters has every stream of events look for what is new.
func (r *reign) wakeMasters() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, streams := range r.streams {
		for x := range streams {
			kick(x.wake)
		}
	}
}

func (s *Server) completedOf(c *rm.Container) *pb.Completed {
	return &pb.Completed{
		ContainerId: c.ID.String(), ExitStatus: int32(c.Exit), Diagnostics: c.Diagnostics, NodeId: string(c.Node), AskId: c.Ask,
		LogDir: s.logDir(c.User, c.ID), Instance: int32(max(c.Instance, 0)),
	}
}

func (s *Server) eventOf(view *state.View, e state.Event) *pb.Event {
	out := &pb.Event{Sequence: e.Sequence}
	switch {
	case !e.Granted.IsZero():
		if c := view.Container(e.Granted); c != nil {
			out.Event = &pb.Event_Granted{Granted: s.containerOf(view, c)}
		}
	case !e.Completed.IsZero():
		if c := view.Container(e.Completed); c != nil {
			out.Event = &pb.Event_Completed{Completed: s.completedOf(c)}
		}
	case e.NodeLost != "":
		out.Event = &pb.Event_NodeLost{NodeLost: &pb.NodeLost{NodeId: string(e.NodeLost)}}
	case !e.Preempt.IsZero():
		if c := view.Container(e.Preempt); c != nil && c.Live() {
			if n := view.Node(c.Node); n != nil && n.Wish != nil {
				out.Event = &pb.Event_Preempt{Preempt: &pb.Preempt{ContainerId: c.ID.String(), DeadlineMs: int64(n.Wish.Deadline), Reason: n.Why()}}
			}
		}
	}
	return out
}
