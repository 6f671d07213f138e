// Package am is the application master of command jobs, and the client that any master written in Go talks to the
// resource manager with.
package am

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// SessionConfig says whom a master talks to and as whom. ResourceManagers, Application, Attempt, Token and Trust are required.
type SessionConfig struct {
	// ResourceManagers are the gRPC addresses of all of them; the session finds the leader, and follows the list as it changes.
	ResourceManagers []string
	Application      rm.ApplicationID
	Attempt          int
	// Container is the master's own, and Token is its token, which connections prove without showing it.
	Container, Token string
	// Trust is by whom it knows the resource managers.
	Trust  *authority.Trust
	Logger *slog.Logger
}

// Session is a master's connection to the resource managers. Calls go to the leader, wherever it is, and are repeated
// until they are answered or ctx ends; all of them may be repeated. Methods are safe for concurrent use.
//
// An error that is rm.ErrStaleAttempt means that the application goes on, or has ended, without this process: it exits.
type Session struct {
	config SessionConfig
	log    *slog.Logger

	mu       sync.Mutex
	managers []string // of now: those of the configuration, until a resource manager says others
	conns    map[string]*grpc.ClientConn
	at       int    // index into managers
	leader   string // where the last one said the leader is; empty: try managers[at]
	epoch    uint64
	next     uint64 // sequence of the next Allocate
	handled  uint64 // the last event that was handled
}

// Dial checks the configuration. Connections are made by the first call.
func Dial(c SessionConfig) (*Session, error) {
	if len(c.ResourceManagers) == 0 || c.Container == "" || c.Token == "" || c.Trust == nil || c.Application.IsZero() || c.Attempt < 1 {
		return nil, errors.New("a master's session needs the resource managers' addresses, its application, its attempt, its container and the token of that")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Session{config: c, log: c.Logger, managers: c.ResourceManagers, conns: map[string]*grpc.ClientConn{}, next: 1}, nil
}

// Close closes the connections.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, c := range s.conns {
		errs = append(errs, c.Close())
	}
	clear(s.conns)
	return errors.Join(errs...)
}

// client is the stub for the resource manager that is tried now.
func (s *Session) client() (pb.ApplicationMastersClient, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := s.leader
	if address == "" {
		address = s.managers[s.at%len(s.managers)]
	}
	c := s.conns[address]
	if c == nil {
		var err error
		c, err = grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(security.TokenKey(s.config.Trust, s.config.Container, s.config.Token, authority.ResourceManager).Credentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(idle),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 2 * time.Second,
			}))
		if err != nil {
			return nil, address, err
		}
		s.conns[address] = c
	}
	return pb.NewApplicationMastersClient(c), address, nil
}

// moveOn chooses another resource manager after one at address could not answer. It reports whether there is hope to be
// answered by asking again.
func (s *Session) moveOn(address string, err error) bool {
	st, _ := status.FromError(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch st.Code() {
	case codes.FailedPrecondition:
		if _, leader, ok := strings.Cut(st.Message(), "leader="); ok && leader != address {
			s.leader = leader
			return true
		}
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
	default:
		return false
	}
	s.leader = ""
	s.at++
	return true
}

// follow takes the resource managers of now. The connections stay: one may be in use, and gRPC lets go of those that are not.
func (s *Session) follow(addresses []string) {
	if !rm.AreManagers(addresses) {
		s.log.Warn("a list of resource managers that is not followed", "addresses", addresses)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(addresses, s.managers) {
		s.managers = addresses
		s.log.Info("resource managers", "addresses", addresses)
	}
}

// idle is after how long without a call a connection is let go of, so that nobody goes on looking for a server that is gone.
const idle = time.Minute

const (
	// callTimeout bounds one try of one call.
	callTimeout = 10 * time.Second
	// longestWait lies between two tries.
	longestWait = 250 * time.Millisecond
)

// call repeats f until it is answered. The error is rm.ErrStaleAttempt, ctx's, or one that repeating will not cure.
func (s *Session) call(ctx context.Context, what string, f func(context.Context, pb.ApplicationMastersClient) error) error {
	wait := 20 * time.Millisecond
	for {
		client, address, err := s.client()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		try, cancel := context.WithTimeout(ctx, callTimeout)
		err = f(try, client)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.Aborted && strings.HasPrefix(status.Convert(err).Message(), rm.ErrStaleAttempt.Error()):
			return fmt.Errorf("%w: %s", rm.ErrStaleAttempt, status.Convert(err).Message())
		case !s.moveOn(address, err):
			return fmt.Errorf("%s: %w", what, err)
		}
		s.log.Debug("resource manager does not answer", "call", what, "address", address, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

// Register begins the attempt. http is host:port of the master's HTTP server, empty when it has none. Containers in the
// answer run already; Ended lists those that have run before.
func (s *Session) Register(ctx context.Context, http, trackingURL string) (*pb.RegisterResponse, error) {
	var out *pb.RegisterResponse
	err := s.call(ctx, "register", func(ctx context.Context, c pb.ApplicationMastersClient) (err error) {
		out, err = c.Register(ctx, &pb.RegisterRequest{
			ApplicationId: s.config.Application.String(), Attempt: int32(s.config.Attempt),
			HttpAddress: http, TrackingUrl: trackingURL,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.epoch = out.Epoch
	s.mu.Unlock()
	return out, nil
}

// Ended lists the application's containers that have ended, oldest first.
func (s *Session) Ended(ctx context.Context) ([]*pb.Completed, error) {
	s.mu.Lock()
	q := &pb.EndedRequest{ApplicationId: s.config.Application.String(), Attempt: int32(s.config.Attempt), Epoch: s.epoch}
	s.mu.Unlock()
	var out []*pb.Completed
	for {
		var page *pb.EndedResponse
		err := s.call(ctx, "ended", func(ctx context.Context, c pb.ApplicationMastersClient) (err error) {
			page, err = c.Ended(ctx, q)
			return err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, page.Ended...)
		if !page.More || len(page.Ended) == 0 {
			return out, nil
		}
		q.After = page.Ended[len(page.Ended)-1].ContainerId
	}
}

// Request is what a master wants. Asks replace those of the same id; see pb.Ask for Count.
type Request struct {
	Asks     []*pb.Ask
	Cancel   []string
	Release  []string
	Progress float32
}

// Allocate tells the resource manager what is wanted. Calls must not overlap, or the later may be taken for a repeat of
// the earlier.
func (s *Session) Allocate(ctx context.Context, r Request) error {
	s.mu.Lock()
	q := &pb.AllocateRequest{
		ApplicationId: s.config.Application.String(), Attempt: int32(s.config.Attempt), Epoch: s.epoch, Sequence: s.next,
		Asks: r.Asks, Cancel: r.Cancel, Release: r.Release, Progress: r.Progress, Acknowledged: s.handled,
	}
	s.next++
	s.mu.Unlock()
	return s.call(ctx, "allocate", func(ctx context.Context, c pb.ApplicationMastersClient) error {
		_, err := c.Allocate(ctx, q)
		return err
	})
}

// Events calls handle for each event, in order and once each, until ctx ends, handle fails, or the attempt is stale. An
// event counts as handled when handle returns nil; it is acknowledged with the next Allocate or reconnection. Events
// with sequence 0 are hints about what waits.
func (s *Session) Events(ctx context.Context, handle func(*pb.Event) error) error {
	for {
		var failed error
		err := s.call(ctx, "events", func(_ context.Context, c pb.ApplicationMastersClient) error {
			s.mu.Lock()
			q := &pb.EventsRequest{ApplicationId: s.config.Application.String(), Attempt: int32(s.config.Attempt), Epoch: s.epoch, Acknowledged: s.handled}
			s.mu.Unlock()
			stream, err := c.Events(ctx, q) // as long as it lasts
			if err != nil {
				return err
			}
			for {
				e, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					err = status.Error(codes.Unavailable, "the stream of events ended")
				}
				if err != nil {
					return err
				}
				if m := e.GetManagers(); m != nil {
					s.follow(m.Addresses)
					continue
				}
				if e.Sequence != 0 && e.Sequence <= q.Acknowledged {
					continue
				}
				if failed = handle(e); failed != nil {
					return nil
				}
				if e.Sequence != 0 {
					s.mu.Lock()
					s.handled = max(s.handled, e.Sequence)
					q.Acknowledged = s.handled
					s.mu.Unlock()
				}
			}
		})
		if failed != nil || err != nil {
			return errors.Join(failed, err)
		}
	}
}

// Checkpointed says that containers of the application have saved their work up to a step, a number of its own that grows. One that is to make
// room for others is ended then. Error: gRPC's NOT_FOUND when none of them lives.
func (s *Session) Checkpointed(ctx context.Context, containers []string, step int64) error {
	q := &pb.CheckpointedRequest{
		Attempt: rm.AttemptID{Application: s.config.Application, Number: s.config.Attempt}.String(), ContainerIds: containers, Step: step,
	}
	return s.call(ctx, "checkpoint", func(ctx context.Context, c pb.ApplicationMastersClient) error {
		_, err := c.Checkpointed(ctx, q)
		return err
	})
}

// Finish ends the application. It is durable when nil is returned.
func (s *Session) Finish(ctx context.Context, final rm.FinalStatus, diagnostics string) error {
	s.mu.Lock()
	q := &pb.FinishRequest{
		ApplicationId: s.config.Application.String(), Attempt: int32(s.config.Attempt), Epoch: s.epoch, FinalStatus: string(final),
		Diagnostics: diagnostics,
	}
	s.mu.Unlock()
	return s.call(ctx, "finish", func(ctx context.Context, c pb.ApplicationMastersClient) error {
		_, err := c.Finish(ctx, q)
		return err
	})
}
