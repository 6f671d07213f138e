package controller

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// member is one resource manager of a group; only the leader serves.
type member struct {
	rmpb.UnimplementedApplicationMastersServer
	mu     sync.Mutex
	leader bool
	stale  bool
	calls  int
	fate   string
	stop   func()
	// managers are told to who listens to events.
	managers chan []string
}

func (m *member) check(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if who, _ := security.PrincipalOf(ctx); who.Container != "container_1" {
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

func (m *member) Fate(ctx context.Context, _ *rmpb.FateRequest) (*rmpb.FateResponse, error) {
	return &rmpb.FateResponse{State: m.fate, Diagnostics: "killed by user bob\n"}, m.check(ctx)
}

func (m *member) Events(r *rmpb.EventsRequest, s rmpb.ApplicationMasters_EventsServer) error {
	if err := m.check(s.Context()); err != nil {
		return err
	}
	for m.managers != nil {
		addresses, ok := <-m.managers
		if !ok {
			break
		}
		if err := s.Send(&rmpb.Event{Event: &rmpb.Event_Managers{Managers: &rmpb.Managers{Addresses: addresses}}}); err != nil {
			return err
		}
	}
	for seq := r.Acknowledged + 1; seq <= 3; seq++ {
		if err := s.Send(&rmpb.Event{Sequence: seq}); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

// group serves members and returns a client of them all, and of the addresses before them.
func group(t *testing.T, addresses []string, members ...*member) *rmClient {
	t.Helper()
	return groupOf(t, securitytest.Credentials(t), addresses, members...)
}

func groupOf(t *testing.T, credentials security.Credentials, addresses []string, members ...*member) *rmClient {
	t.Helper()
	addresses = append(addresses, serve(t, credentials, members...)...)
	rm, err := dialResourceManagers(addresses, &authority.Trust{Cluster: credentials.Member.Self().Cluster, Roots: credentials.Member.Roots()}, "container_1", "secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rm.Close() })
	return rm
}

// serve starts members and returns their addresses.
func serve(t *testing.T, credentials security.Credentials, members ...*member) (addresses []string) {
	t.Helper()
	keys := security.Keyring{Member: credentials.Member, Token: func(container string) (string, bool) { return "secret", container == "container_1" }}
	for _, m := range members {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(grpc.Creds(keys.Credentials()))
		rmpb.RegisterApplicationMastersServer(s, m)
		go s.Serve(keys.Listen(l))
		m.stop = s.Stop
		t.Cleanup(s.Stop)
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}

func TestTheLeaderOfTheResourceManagersIsFound(t *testing.T) {
	a, b := &member{}, &member{leader: true}
	rm := group(t, nil, a, b)
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

// The resource managers that the master began with go away; those that came are asked, and what is no list changes nothing.
func TestTheListOfResourceManagersIsFollowed(t *testing.T) {
	old, now := &member{leader: true, managers: make(chan []string, 10)}, &member{leader: true}
	credentials := securitytest.Credentials(t)
	rm := groupOf(t, credentials, nil, old)
	next := serve(t, credentials, now)
	for _, bad := range [][]string{{}, {"nowhere"}, make([]string, 101), {":1"}} {
		old.managers <- bad
	}
	old.managers <- append(serve(t, credentials, &member{}), next...)
	close(old.managers)
	ctx, cancel := context.WithCancel(t.Context())
	_ = rm.Events(ctx, &rmpb.EventsRequest{}, func(e *rmpb.Event) error {
		if e.GetManagers() != nil || e.Sequence == 0 {
			t.Errorf("%v", e)
		}
		cancel()
		return nil
	})
	old.stop()
	if r, err := rm.Register(t.Context(), &rmpb.RegisterRequest{}); err != nil || r.Epoch != 7 || now.calls == 0 {
		t.Error(r, err, now.calls)
	}
}

func TestOnlyAnEndedApplicationIsEnded(t *testing.T) {
	m := &member{leader: true, fate: "RUNNING"}
	rm := group(t, []string{"127.0.0.1:1"}, m)
	if why, ok := rm.ended(t.Context(), testApp, 1); ok {
		t.Error(why)
	}
	m.fate = "KILLED"
	if why, ok := rm.ended(t.Context(), testApp, 1); !ok || why != "killed by user bob" {
		t.Error(why, ok)
	}
	m.stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := rm.ended(ctx, testApp, 1); ok {
		t.Error("nobody answers, and it is ended")
	}
}

// Somebody who has taken the port of a resource manager that is down learns nothing of the token, and does not keep the
// master from the one that leads.
func TestTheTokenIsNotShownToWhoHasTakenAPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan []byte, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("HOPS\x02" + strings.Repeat("n", 32)))
			b := make([]byte, 4096)
			n, _ := c.Read(b)
			heard <- b[:n]
			c.Close()
		}
	}()
	rm := group(t, []string{l.Addr().String()}, &member{leader: true})
	if r, err := rm.Register(t.Context(), &rmpb.RegisterRequest{}); err != nil || r.Epoch != 7 {
		t.Fatal(r, err)
	}
	if b := <-heard; len(b) == 0 || bytes.Contains(b, []byte("secret")) {
		t.Errorf("the stranger heard %q", b)
	}
}
