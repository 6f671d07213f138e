package server

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/hadoop"
	"github.com/gohops/hops/nodemanager/state"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// ipcAddress is host:port under which masters reach the port for YARN's protocol; empty: there is none.
func (s *Server) ipcAddress() string {
	if s.config.IPC == nil {
		return ""
	}
	_, port, _ := net.SplitHostPort(s.config.IPC.Addr().String())
	return net.JoinHostPort(s.config.Host, port)
}

func (s *Server) serveIPC(ctx context.Context) error {
	if s.config.IPC == nil {
		return nil
	}
	return hadoop.NewServer(hadoop.Config{
		Node: (*yarnNode)(s), Door: s.config.Door, Qualities: s.config.RPCProtection, Address: s.ipcAddress, Logger: s.log,
	}).Serve(ctx, s.config.Door.Guard(s.config.IPC, security.Doorway{Name: "node manager IPC"}))
}

// takeKeys keeps the keys of tokens that the resource manager has sent, if it has.
func (s *Server) takeKeys(keys []*rmpb.TokenKey) {
	if len(keys) == 0 {
		return
	}
	var all []yarntoken.NodeKey
	for _, k := range keys {
		all = append(all, yarntoken.NodeKey{ID: k.GetId(), Node: k.GetNode(), Container: k.GetContainer()})
	}
	s.verifier.Store(yarntoken.NewVerifier(all))
}

// yarnNode is the node manager as hadoop.Node.
type yarnNode Server

// Verifier implements hadoop.Node.
func (y *yarnNode) Verifier() *yarntoken.Verifier {
	if v := y.verifier.Load(); v != nil {
		return v
	}
	return yarntoken.NewVerifier(nil)
}

// launchTime is how long the resource manager may take to record launches. YARN's clients wait a minute.
const launchTime = 45 * time.Second

// Launch implements hadoop.Node. A resource manager that does not answer is asked again: the same launch twice is no error.
func (y *yarnNode) Launch(ctx context.Context, attempt rm.AttemptID, launches []*rmpb.ContainerLaunch) ([]*rmpb.LaunchOutcome, error) {
	s := (*Server)(y)
	ctx, cancel := context.WithTimeout(ctx, launchTime)
	defer cancel()
	q := &rmpb.LaunchContainersRequest{NodeId: s.config.NodeID, Attempt: attempt.String(), Launches: launches}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := errors.New("no resource manager leads that is known here")
		if conn := s.leader.Load(); conn != nil {
			var answer *rmpb.LaunchContainersResponse
			if answer, err = rmpb.NewNodeManagersClient(conn).LaunchContainers(ctx, q); err == nil {
				s.expect(answer.GetOutcomes())
				return answer.GetOutcomes(), nil
			}
			switch status.Code(err) {
			case codes.Unavailable, codes.FailedPrecondition, codes.Canceled, codes.Aborted:
			default:
				return nil, errors.New(status.Convert(err).Message())
			}
			err = errors.New(status.Convert(err).Message())
		}
		if !sleep(ctx, pause) {
			return nil, err
		}
	}
}

// expectation is how long a container that was launched is taken for one of ours although the order to start it has not come.
const expectation = time.Minute

// expect remembers what was launched through here.
func (s *Server) expect(outcomes []*rmpb.LaunchOutcome) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.expected {
		if now.Sub(at) > expectation || s.containers[id] != nil {
			delete(s.expected, id)
		}
	}
	for _, o := range outcomes {
		if id := nodemanager.ContainerID(o.GetContainerId()); codes.Code(o.GetCode()) == codes.OK && s.containers[id] == nil && !s.forgotten.set[id] {
			s.expected[id] = now
		}
	}
}

// expects reports whether the order to start a container is on its way.
func (s *Server) expects(id nodemanager.ContainerID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.expected[id]
	return ok && s.containers[id] == nil && time.Since(at) <= expectation
}

// Status implements hadoop.Node.
func (y *yarnNode) Status(id rm.ContainerID) (hadoop.Status, bool) {
	s, name := (*Server)(y), nodemanager.ContainerID(id.String())
	c := s.find(name)
	if c == nil {
		return hadoop.Status{New: true, Exit: int32(nodemanager.Invalid)}, s.expects(name)
	}
	r, _, _ := c.view()
	st := hadoop.Status{Running: r.State != nodemanager.Complete, Exit: int32(nodemanager.Invalid), Diagnostics: c.waiting()}
	if r.Exit != nil {
		st.Exit, st.Diagnostics = int32(r.Exit.Status), r.Exit.Diagnostics
	}
	return st, true
}

// Stop implements hadoop.Node.
func (y *yarnNode) Stop(id rm.ContainerID, reason string) bool {
	s, name := (*Server)(y), nodemanager.ContainerID(id.String())
	stop := &state.StopOrder{Status: nodemanager.KilledByAppMaster, Reason: reason}
	if c := s.find(name); c != nil {
		c.order(stop, -1)
		return true
	}
	if !s.expects(name) {
		return false
	}
	s.neverStarted(s.lifetime, name, stop)
	return true
}

// Signal implements hadoop.Node. To be killed at once is a stop, which nothing escapes.
func (y *yarnNode) Signal(id rm.ContainerID, signal int) bool {
	s := (*Server)(y)
	c := s.find(nodemanager.ContainerID(id.String()))
	if c == nil {
		return false
	}
	if signal == int(syscall.SIGKILL) {
		c.order(&state.StopOrder{Status: nodemanager.KilledByAppMaster, Reason: "Container killed by the ApplicationMaster."}, 0)
		return true
	}
	s.work.Go(func() { c.signal(s.lifetime, signal) })
	return true
}

// closeListeners is for a node manager that will serve nobody.
func (s *Server) closeListeners() {
	s.config.HTTP.Close()
	for _, l := range []net.Listener{s.config.IPC, s.config.Shuffle} {
		if l != nil {
			l.Close()
		}
	}
}
