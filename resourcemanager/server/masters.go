package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// The methods of this file, of masters_launch.go and of masters_events.go are rm.Masters: all that masters may ask, whatever their wire.
var _ rm.Masters = (*Server)(nil)

// master finds the application that an attempt speaks for, and notes that its master lives.
//
// Errors: metadata.ErrStandby, rm.ErrStaleAttempt.
func (s *Server) master(id rm.AttemptID) (*reign, *rm.Application, error) {
	r := s.reign.Load()
	if r == nil {
		return nil, nil, metadata.Errorf(metadata.ErrStandby, "this resource manager does not lead")
	}
	a := s.state.View().Application(id.Application)
	if a == nil {
		return nil, nil, fmt.Errorf("%w: there is no %v", rm.ErrStaleAttempt, id.Application)
	}
	r.mu.Lock()
	if soft := r.masters[id]; soft != nil {
		soft.seen = time.Now()
	}
	r.mu.Unlock()
	return r, a, nil
}

// epochOf is the epoch that an attempt has; the state checks whether it is the current one.
func epochOf(a *rm.Application, id rm.AttemptID, said uint64) uint64 {
	if said == 0 && id.Number >= 1 && id.Number <= len(a.Attempts) {
		return a.Attempts[id.Number-1].Epoch
	}
	return said
}

func unregistered(id rm.AttemptID) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, "attempt %d of %v has not registered", id.Number, id.Application)
}

// raised says whether what came with release.Requests may be written.
//
// Error: metadata.ErrUnsupported.
func (s *Server) raised(what string) error {
	if s.group.Load().Level() < release.Requests {
		return metadata.Errorf(metadata.ErrUnsupported, "%s: not supported until the cluster is raised (`hops cluster finalize`)", what)
	}
	return nil
}

// RegisterMaster implements rm.Masters.
func (s *Server) RegisterMaster(ctx context.Context, id rm.AttemptID, q rm.Registration) (*rm.Registered, error) {
	_, a, err := s.master(id)
	if err != nil {
		return nil, err
	}
	if len(q.TrackingURL) > maxWord || len(q.Host) > maxWord || q.Port < -1 || q.Port > 65535 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "the tracking URL or the host has more than %d bytes, or port %d is none", maxWord, q.Port)
	}
	if q.Host != "" || q.Port != 0 {
		if err := s.raised("a registration with a host"); err != nil {
			return nil, err
		}
	}
	view := s.state.View()
	c := view.Master(a)
	if c == nil || c.ID.Attempt != id {
		return nil, fmt.Errorf("%w: %v has no container", rm.ErrStaleAttempt, id)
	}
	http, err := masterAddress(q.HTTP, q.Certificate, view.Node(c.Node))
	if err != nil {
		return nil, err
	}
	level := s.group.Load().Level()
	if level < release.RetoldNotices {
		level = 0
	}
	result, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{
		Application: state.ApplicationID(id.Application), Attempt: int32(id.Number), Http: http, TrackingUrl: q.TrackingURL, HttpCertificate: q.Certificate,
		Host: q.Host, Port: int32(q.Port), Level: int32(level),
	}}})
	if err != nil {
		return nil, err
	}
	view = s.state.View()
	out := &rm.Registered{Epoch: result.Epoch, Silence: s.config.MasterExpiry, Maximum: s.largest(view), Queue: a.Queue, Succeeded: result.Succeeded.List()}
	if a := view.Application(id.Application); a != nil {
		out.Change = rm.JobChange{Size: a.Size, Members: a.Members}
	}
	for _, k := range result.Containers {
		if c := view.Container(k); c != nil {
			out.Containers = append(out.Containers, s.told(view, c))
		}
	}
	s.log.Info("master registered", "app", id.Application, "attempt", id.Number, "http", http)
	return out, nil
}

// told is a container as its master is told of it.
func (s *Server) told(view *state.View, c *rm.Container) rm.MasterContainer {
	out := rm.MasterContainer{Container: c, Token: s.token(c.Salt), LogDir: s.logDir(c.User, c.ID)}
	n := view.Node(c.Node)
	if n == nil {
		return out
	}
	out.Host, out.NodeHTTP = n.Host, n.HTTP
	for _, g := range n.GPUs {
		if slices.Contains(c.GPUs, g.UUID) {
			out.Devices = append(out.Devices, g)
		}
	}
	return out
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

// largest is the most that one container could get of each resource. It is worked out anew when nodes have changed, not for each master.
func (s *Server) largest(view *state.View) rm.Resource {
	if known := s.mostOfNodes.Load(); known != nil && known.sized == view.NodesSized() {
		return known.most
	}
	var out rm.Resource
	for n := range view.Nodes() {
		if n.State != rm.NodeLost {
			out = out.Max(n.Capacity)
		}
	}
	s.mostOfNodes.Store(&mostOfNodes{view.NodesSized(), out})
	return out
}

// mostOfNodes is the most that nodes have, as of a change of them.
type mostOfNodes struct {
	sized uint64
	most  rm.Resource
}

// maxAsks is how many asks an application may have at a time: each is looked at in every pass.
const maxAsks = 10_000

// Allocate implements rm.Masters.
func (s *Server) Allocate(ctx context.Context, id rm.AttemptID, q rm.Request) error {
	r, a, err := s.master(id)
	if err != nil {
		return err
	}
	c := &statepb.Allocate{
		Application: state.ApplicationID(id.Application), Attempt: int32(id.Number), Epoch: epochOf(a, id, q.Epoch), Sequence: q.Sequence,
		Cancel: q.Cancel, Acknowledged: q.Acknowledged,
	}
	if n := len(q.Asks); n > 0 && n+len(s.state.View().Asks(id.Application)) > maxAsks {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%d asks more would be too many for %v: at most %d at a time; an ask has a count", n, id.Application, maxAsks)
	}
	for i := range q.Asks {
		w, err := s.wanted(id.Application, &q.Asks[i])
		if err != nil {
			return err
		}
		c.Asks = append(c.Asks, w)
	}
	for _, k := range q.Release {
		if k.Attempt.Application != id.Application {
			return metadata.Errorf(metadata.ErrPermission, "%v is no container of %v, and cannot be released by it: nothing of the request counts", k, id.Application)
		}
		c.Release = append(c.Release, state.ContainerID(k))
	}
	if q.Progress >= 0 && q.Progress <= 1 {
		r.mu.Lock()
		if soft := r.masters[id]; soft != nil {
			soft.progress = float32(q.Progress)
		}
		r.mu.Unlock()
	}
	if len(c.Asks)+len(c.Cancel)+len(c.Release) == 0 {
		// A sign of life: nothing to replicate, unless events were handled.
		if t := a.Attempt(); !a.State.Final() && t.Number == id.Number && t.Epoch == c.Epoch && c.Epoch != 0 && q.Acknowledged <= a.Acknowledged {
			return nil
		}
	}
	if t := a.Attempt(); q.Sequence == 0 || q.Sequence > t.Sequence {
		if err := s.state.RoomForAsks(id.Application, c.Asks); err != nil {
			return err
		}
	}
	_, err = s.propose(ctx, &statepb.Command{Op: &statepb.Command_Allocate{Allocate: c}})
	return err
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

// maxPreferred nodes may an ask prefer; maxNodes may it require, or exclude: what masters of large clusters want in YARN's protocol.
const (
	maxPreferred = 1_000
	maxNodes     = 20_000
)

// maxWalltime is more than anything runs.
const maxWalltime = 10 * 365 * 24 * time.Hour

func badAsk(id, format string, args ...any) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, "ask %.100q: "+format, append([]any{id}, args...)...)
}

// wanted checks an ask and translates it. What it wants less of than the minimum is raised to that.
func (s *Server) wanted(app rm.ApplicationID, a *rm.WantedAsk) (*statepb.WantedAsk, error) {
	bad := func(format string, args ...any) (*statepb.WantedAsk, error) {
		return nil, badAsk(a.ID, format, args...)
	}
	r, near := a.Resource, 0
	if !a.Near.IsZero() {
		near = len(a.Near.Words().Hosts)
	}
	switch {
	case a.ID == "" || len(a.ID) > 255:
		return bad("an id has 1 to 255 bytes")
	case a.Count < 0 || a.Count > 100_000:
		return bad("count %d is not between 0 and 100,000", a.Count)
	case len(a.Instances) > 0 && len(a.Instances) != a.Count:
		return bad("count %d and %d instances do not go together", a.Count, len(a.Instances))
	case len(a.Instances) > job.MaxInstances || badInstances(a.Instances):
		return bad("instances are up to %d different numbers that are not negative", job.MaxInstances)
	case a.Gang < 0 || a.Gang > 1_000 || a.Gang > a.Count && a.Count > 0:
		return bad("gang_min %d is negative, above 1,000 or above the count %d", a.Gang, a.Count)
	case r.Memory < 0 || r.VCores < 0 || r.GPUs < 0 || r.Memory > 1<<50 || r.VCores > 1<<20 || r.GPUs > maxGPUs || r.Devices() > maxGPUs:
		return bad("the resources are out of range")
	case len(a.Nodes) > maxPreferred && !a.Strict || len(a.Nodes) > maxNodes || len(a.Excluded) > maxNodes || len(a.Model) > maxWord || len(a.Label) > maxWord:
		return bad("too many nodes, or a word that is too long")
	case a.GPUMemory < 0 || a.GPUMemory > 1<<50 || a.Walltime < 0 || a.Walltime > maxWalltime:
		return bad("the memory of its GPUs, or its walltime, is out of range")
	case r.GPUs == 0 && r.Instances() > 0 && (a.Model != "" || a.Island || a.GPUMemory > 0):
		return bad("model, memory and island are words for whole GPUs, and it wants MIG instances: a label or an attribute of nodes says of which model these are")
	case !rm.ValidWithin(a.Within):
		return bad("within %.100q is not node, or the depth of a rack's path", a.Within)
	case near > maxPreferred && !a.Strict:
		return bad("near: %d hosts: at most %d are preferred", near, maxPreferred)
	case a.Strict && a.Near.HasPaths():
		return bad("near: paths are a preference: with strict_locality, name hosts or racks")
	case a.Held && a.Run != nil:
		return bad("it is held, and has a launch: give one of them")
	case a.Count > 0 && !a.Held && a.Run == nil:
		return bad("there is nothing to run: launch is missing")
	}
	if a.Held {
		if err := s.raised(fmt.Sprintf("ask %.100q, which is held", a.ID)); err != nil {
			return nil, err
		}
	}
	if !r.Other.IsZero() {
		if err := s.raised(fmt.Sprintf("ask %.100q, with resources by name", a.ID)); err != nil {
			return nil, err
		}
	}
	if !a.Placement.IsZero() {
		if err := s.raised(fmt.Sprintf("ask %.100q, with words about placement", a.ID)); err != nil {
			return nil, err
		}
	}
	if !a.Near.IsZero() {
		if err := s.raised(fmt.Sprintf("ask %.100q, with where its data lies", a.ID)); err != nil {
			return nil, err
		}
	}
	if a.GPUMemory > 0 || a.Within != "" || a.Walltime > 0 {
		if err := s.raised(fmt.Sprintf("ask %.100q, with the memory of its GPUs, a level of the network or a walltime", a.ID)); err != nil {
			return nil, err
		}
	}
	ask := a.Ask
	ask.Resource = r.Raise(s.config.Minimum)
	out := &statepb.WantedAsk{Ask: state.Ask(ask)}
	if a.Run == nil {
		return out, nil
	}
	if err := s.checkLaunch(a.Run); err != nil {
		return bad("%v", err)
	}
	out.Launch = s.storedLaunch(app, a.Run)
	return out, nil
}

// FinishMaster implements rm.Masters.
func (s *Server) FinishMaster(ctx context.Context, id rm.AttemptID, q rm.Finish) error {
	_, a, err := s.master(id)
	if err != nil {
		return err
	}
	if q.Final != rm.FinalSucceeded && q.Final != rm.FinalFailed && q.Final != rm.FinalKilled {
		return metadata.Errorf(metadata.ErrInvalidArgument, "final_status %.100q is not SUCCEEDED, FAILED or KILLED", q.Final)
	}
	if len(q.TrackingURL) > maxWord {
		return metadata.Errorf(metadata.ErrInvalidArgument, "tracking_url is longer than %d bytes", maxWord)
	}
	_, err = s.propose(ctx, &statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{
		Application: state.ApplicationID(id.Application), Attempt: int32(id.Number), Epoch: epochOf(a, id, q.Epoch), Final: string(q.Final),
		Diagnostics: cut(q.Diagnostics, 4*maxDiagnostics), TrackingUrl: q.TrackingURL,
	}}})
	if err != nil {
		return err
	}
	s.log.Info("application finished", "app", id.Application, "final", q.Final)
	return nil
}
