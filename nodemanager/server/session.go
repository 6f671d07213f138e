package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

const (
	// maxOrders bounds one message of orders in bytes.
	maxOrders = 64 << 20
	// maxPatience is how long a resource manager that says nothing is waited for before the next one is tried, however long
	// the lease is.
	maxPatience = 5 * time.Second
	// firstLease is assumed until a resource manager says how long the lease is.
	firstLease = 10 * time.Second
)

// recordTerm has the term written that is obeyed, when the disk takes it.
func (s *Server) recordTerm() {
	if !s.recording.CompareAndSwap(false, true) {
		return // somebody is at it
	}
	s.work.Go(func() {
		goesOn := true
		for failed := false; goesOn && s.store.Term() > s.store.RecordedTerm(); failed = true {
			err := s.store.RecordTerm()
			if err == nil {
				continue
			}
			if !failed {
				s.log.Error("the term of the resource manager is obeyed, but cannot be recorded; trying again", "term", s.store.Term(), "error", err)
			}
			goesOn = s.pause(time.Second)
		}
		s.recording.Store(false)
		if goesOn && s.store.Term() > s.store.RecordedTerm() { // whoever obeyed it saw somebody at it
			s.recordTerm()
		}
	})
}

// speak keeps a session with the leading resource manager until ctx is done, trying the configured ones in turn. work is the
// context of the containers that orders start.
func (s *Server) speak(ctx, work context.Context) {
	// Sequences rise over restarts of this process too, because the resource manager remembers the last one.
	sequence := uint64(time.Now().UnixMilli())
	var conns []*grpc.ClientConn
	hangUp := func() {
		for _, conn := range conns {
			if conn != nil {
				conn.Close()
			}
		}
	}
	defer func() { hangUp() }()
	managers := []string{""} // not what any list is
	at, failures, complained := 0, 0, ""
	stranger := &security.Stranger{Logger: s.log}
	for ctx.Err() == nil {
		if now := s.place().managers; !slices.Equal(now, managers) {
			hangUp()
			managers, at, failures = now, 0, 0
			conns = s.connect(managers)
			if len(managers) == 0 {
				s.log.Warn("the cluster has no resource manager: containers go on, and nothing new starts")
			}
		}
		if len(managers) == 0 {
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		if conns[at] == nil {
			at = (at + 1) % len(conns)
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		acknowledged, err := s.session(ctx, work, conns[at], &sequence)
		if ctx.Err() != nil {
			return
		}
		if acknowledged {
			stranger.Tried("", nil)
			s.log.Warn("session with the resource manager ended", "address", managers[at], "error", err)
			failures, complained = 0, ""
		} else if text := fmt.Sprint(err); text != complained && status.Code(err) != codes.FailedPrecondition {
			s.log.Warn("resource manager does not take reports", "address", managers[at], "error", err)
			complained = text
		}
		if !acknowledged && err != nil {
			stranger.Tried(managers[at], err)
		}
		failures++
		at = nextManager(managers, at, err)
		// A full round without a leader is worth a pause; within a round the next one is asked at once.
		if failures%len(conns) == 0 {
			pause := min(500*time.Millisecond, 25*time.Millisecond<<min(failures/len(conns), 6))
			sleep(ctx, pause/2+rand.N(pause/2+1))
		}
	}
}

// managerIdle is after how long a connection is let go of that has no session: those who do not lead keep none for every node.
const managerIdle = 10 * time.Second

// connect makes a connection to each resource manager; nil where the address cannot be used.
func (s *Server) connect(managers []string) []*grpc.ClientConn {
	conns := make([]*grpc.ClientConn, len(managers))
	for i, address := range managers {
		conn, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(s.config.Credentials.Key(authority.ResourceManager).Credentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxOrders)), grpc.WithIdleTimeout(managerIdle),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: 2 * time.Second,
			}))
		if err != nil {
			s.log.Error("resource manager's address cannot be used", "address", address, "error", err)
			continue
		}
		conns[i] = conn
	}
	return conns
}

// nextManager is the leader, if the refusal names one that we know, and the next in the list otherwise.
func nextManager(managers []string, at int, err error) int {
	if status.Code(err) == codes.FailedPrecondition {
		text := status.Convert(err).Message()
		for i, address := range managers {
			if i != at && strings.Contains(text, address) {
				return i
			}
		}
	}
	return (at + 1) % len(managers)
}

var errSilent = errors.New("the resource manager does not acknowledge reports")

// session is one stream of reports and orders.
type session struct {
	server *Server
	conn   *grpc.ClientConn
	stream grpc.BidiStreamingClient[rmpb.NodeReport, rmpb.NodeOrders]
	ended  chan struct{} // closed when the reader has ended, for the reason in readErr
	// readErr belongs to the reader until ended is closed.
	readErr error

	mu    sync.Mutex
	sent  map[uint64]supervisor.Instant // when the reports were sent that are not acknowledged yet
	heard time.Time                     // of the last acknowledgement
	lease time.Duration
	every time.Duration // that the resource manager wants between reports when nothing changes; 0: it does not say
	acked bool
}

// session speaks to one resource manager until something fails. acknowledged: it took at least one report.
func (s *Server) session(ctx, work context.Context, conn *grpc.ClientConn, sequence *uint64) (acknowledged bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := rmpb.NewNodeManagersClient(conn).Session(ctx)
	if err != nil {
		return false, err
	}
	n := &session{
		server: s, conn: conn, stream: stream, ended: make(chan struct{}), sent: map[uint64]supervisor.Instant{}, heard: time.Now(), lease: firstLease,
	}
	go n.read(work)
	err = n.write(ctx, cancel, sequence)
	cancel(err)
	<-n.ended
	if err == nil {
		err = n.readErr
	}
	return n.acked, err
}

// read takes in acknowledgements and orders until the stream ends.
func (n *session) read(work context.Context) {
	defer close(n.ended)
	s := n.server
	for {
		orders, err := n.stream.Recv()
		if err != nil {
			n.readErr = err
			return
		}
		if term := s.store.Term(); orders.GetTerm() < term {
			n.readErr = fmt.Errorf("orders of term %d, but term %d has begun", orders.GetTerm(), term)
			return
		}
		// The term counts from now on, the lease too: neither waits for the disk, and no order is obeyed before.
		if s.store.Obey(orders.GetTerm()) {
			s.recordTerm()
		}
		if sent, lease, ok := n.acknowledge(orders); ok {
			s.extendLease(sent, lease)
			s.readyOnce.Do(func() { close(s.ready) })
		}
		s.serve(orders.GetService())
		s.takeKeys(orders.GetTokenKeys())
		s.obey(work, orders)
	}
}

// acknowledge returns when the acknowledged report was sent and for how long it keeps the node's containers alive. ok is
// false for an acknowledgement of a report that was not sent on this stream, from which nothing can be counted.
func (n *session) acknowledge(orders *rmpb.NodeOrders) (sent supervisor.Instant, lease time.Duration, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ms := orders.GetLeaseMs(); ms > 0 {
		n.lease = time.Duration(ms) * time.Millisecond
	}
	n.every = time.Duration(orders.GetReportMs()) * time.Millisecond
	sent, ok = n.sent[orders.GetAcknowledged()]
	for sequence := range n.sent {
		if sequence <= orders.GetAcknowledged() {
			delete(n.sent, sequence)
		}
	}
	if ok {
		n.heard, n.acked = time.Now(), true
		n.server.leader.Store(n.conn)
	}
	return sent, n.lease, ok
}

// pace is how long a node waits between reports when nothing changes: its heartbeat, or longer if the resource manager wants that, and never
// more than a sixth of the lease; and how long a resource manager may leave reports without an answer before the next one is tried.
func pace(heartbeat, wanted, lease time.Duration) (interval, patience time.Duration) {
	interval = min(max(heartbeat, wanted), lease/6)
	return interval, max(min(lease/3, maxPatience), 3*heartbeat, 3*interval/2)
}

// write sends reports, at every change and at least once a heartbeat. nil: the reader knows why it ended.
func (n *session) write(ctx context.Context, cancel context.CancelCauseFunc, sequence *uint64) error {
	s := n.server
	beat := time.NewTimer(0)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.ended:
			return nil
		case <-beat.C:
		case <-s.nudged:
			sleep(ctx, 2*time.Millisecond) // what changes together is told together
		}
		n.mu.Lock()
		interval, patience := pace(s.config.Heartbeat, n.every, n.lease)
		silent := time.Since(n.heard) > patience
		n.mu.Unlock()
		if silent {
			return errSilent
		}
		*sequence++
		report := s.report(*sequence)
		n.mu.Lock()
		n.sent[*sequence] = supervisor.Now() // before sending: the lease must not count from a later moment
		n.mu.Unlock()
		// Send blocks when the other side stops reading; the end of the context ends that too.
		guard := time.AfterFunc(patience, func() { cancel(errSilent) })
		err := n.stream.Send(report)
		guard.Stop()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return nil
		}
		beat.Reset(interval)
	}
}
