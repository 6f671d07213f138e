package controller

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// member is one resource manager of a group; only the leader serves.
type member struct {
	rmpb.UnimplementedApplicationMastersServer
	mu     sync.Mutex
	leader bool
	stale  bool
	calls  int
}

func (m *member) check(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if md, _ := metadata.FromIncomingContext(ctx); len(md["authorization"]) != 1 || md["authorization"][0] != "Bearer secret" {
		return status.Error(codes.Unauthenticated, "no token")
	}
	if !m.leader {
		return status.Error(codes.FailedPrecondition, "not the leader")
	}
	if m.stale {
		return status.Error(codes.Aborted, "STALE_ATTEMPT")
	}
	return nil
}

func (m *member) Register(ctx context.Context, _ *rmpb.RegisterRequest) (*rmpb.RegisterResponse, error) {
	return &rmpb.RegisterResponse{Epoch: 7}, m.check(ctx)
}

func (m *member) Events(r *rmpb.EventsRequest, s rmpb.ApplicationMasters_EventsServer) error {
	if err := m.check(s.Context()); err != nil {
		return err
	}
	for seq := r.Acknowledged + 1; seq <= 3; seq++ {
		if err := s.Send(&rmpb.Event{Sequence: seq}); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

func group(t *testing.T, token string, members ...*member) ResourceManager {
	t.Helper()
	var addresses []string
	for _, m := range members {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		rmpb.RegisterApplicationMastersServer(s, m)
		go s.Serve(l)
		t.Cleanup(s.Stop)
		addresses = append(addresses, l.Addr().String())
	}
	rm, closer, err := DialResourceManagers(addresses, token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	return rm
}

func TestTheLeaderOfTheResourceManagersIsFound(t *testing.T) {
	a, b := &member{}, &member{leader: true}
	rm := group(t, "secret", a, b)
	for range 3 {
		r, err := rm.Register(t.Context(), &rmpb.RegisterRequest{})
		if err != nil || r.Epoch != 7 {
			t.Fatal(r, err)
		}
	}
	if a.calls != 1 {
		t.Errorf("the follower was asked %d times, want once", a.calls)
	}
	var seen []uint64
	ctx, cancel := context.WithCancel(t.Context())
	_ = rm.Events(ctx, &rmpb.EventsRequest{Acknowledged: 1}, func(e *rmpb.Event) error {
		if seen = append(seen, e.Sequence); len(seen) == 2 {
			cancel()
		}
		return nil
	})
	if len(seen) != 2 || seen[0] != 2 {
		t.Errorf("events %v", seen)
	}
	b.mu.Lock()
	b.stale = true
	b.mu.Unlock()
	if _, err := rm.Register(t.Context(), &rmpb.RegisterRequest{}); err != errStaleAttempt {
		t.Errorf("an old attempt: %v", err)
	}
}

func TestAWrongTokenIsNotTriedForEver(t *testing.T) {
	rm := group(t, "wrong", &member{leader: true})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := rm.Register(ctx, &rmpb.RegisterRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("%v", err)
	}
}
