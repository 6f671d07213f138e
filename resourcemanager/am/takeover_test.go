package am

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/job"
)

// theirs is a resource manager that tells a master what the test wants. What it has told is handled when the last is given back: a container
// that nobody asked for.
type theirs struct {
	pb.UnimplementedApplicationMastersServer
	containers []*pb.Container
	ended      []*pb.Completed
	succeeded  []int32
	events     []*pb.Event

	mu       sync.Mutex
	asks     []*pb.Ask
	released []string
	handled  chan struct{}
	finished *pb.FinishRequest
}

const nobodys = "container_1_0001_02_999999"

func (s *theirs) Register(context.Context, *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	return &pb.RegisterResponse{Epoch: 1, Containers: s.containers, Succeeded: s.succeeded}, nil
}

func (s *theirs) Ended(context.Context, *pb.EndedRequest) (*pb.EndedResponse, error) {
	return &pb.EndedResponse{Ended: s.ended}, nil
}

func (s *theirs) Allocate(_ context.Context, q *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks, s.released = append(s.asks, q.Asks...), append(s.released, q.Release...)
	if slices.Contains(q.Release, nobodys) {
		close(s.handled)
	}
	return &pb.AllocateResponse{Sequence: q.Sequence}, nil
}

func (s *theirs) Events(_ *pb.EventsRequest, stream pb.ApplicationMasters_EventsServer) error {
	for n, e := range append(s.events, granted(nobodys, "nobody", 0)) {
		e.Sequence = uint64(n + 1)
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func (s *theirs) Finish(_ context.Context, q *pb.FinishRequest) (*pb.FinishResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = q
	return &pb.FinishResponse{}, nil
}

func granted(id, ask string, instance int32) *pb.Event {
	return &pb.Event{Event: &pb.Event_Granted{Granted: &pb.Container{ContainerId: id, AskId: ask, Instance: instance}}}
}

func ended(id, ask string, instance, exit int32) *pb.Completed {
	return &pb.Completed{ContainerId: id, AskId: ask, Instance: instance, ExitStatus: exit}
}

func told(c *pb.Completed) *pb.Event { return &pb.Event{Event: &pb.Event_Completed{Completed: c}} }

// takesOver runs the second master of a job until it has handled what it is told, or finished the application.
func (s *theirs) takesOver(t *testing.T, document string) {
	t.Helper()
	const container = "container_1_0001_02_000001"
	credentials := securitytest.Credentials(t)
	keys := security.Keyring{Member: credentials.Member, Token: func(id string) (string, bool) { return "secret", id == container }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(keys.Credentials()))
	pb.RegisterApplicationMastersServer(server, s)
	go server.Serve(keys.Listen(l))
	t.Cleanup(server.Stop)
	app, err := rm.ParseApplicationID("application_1_0001")
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	session, err := Dial(SessionConfig{
		ResourceManagers: []string{l.Addr().String()}, Application: app, Attempt: 2, Container: container, Token: "secret",
		Trust: &authority.Trust{Cluster: credentials.Member.Self().Cluster, Roots: credentials.Member.Roots()}, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	spec, err := job.Parse([]byte(`{"argv":["x"],` + document + `}`))
	if err != nil {
		t.Fatal(err)
	}
	s.handled = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		registered, err := session.Register(ctx, "", "")
		if err == nil {
			err = newMaster(session, spec, quiet).run(ctx, registered)
		}
		over <- err
	}()
	select {
	case <-s.handled:
		cancel()
		<-over
	case err := <-over:
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Minute):
		cancel()
		t.Fatal("the master does nothing")
	}
	s.mu.Lock() // who has written before has written
	defer s.mu.Unlock()
}

// wanted lists the instances that were asked for, with the ask.
func (s *theirs) wanted() (out []string) {
	for _, a := range s.asks {
		for _, n := range a.Instances {
			out = append(out, a.AskId+"/"+string(rune('0'+n)))
		}
	}
	return out
}

// A container that runs when a master registers and has ended when it asks for those that have is one that has ended, once: though the
// registration names it as running, and the events tell of its end again.
func TestAContainerThatEndsWhileItsMasterBeginsHasEndedOnce(t *testing.T) {
	const x, y, z = "container_1_0001_01_000002", "container_1_0001_01_000003", "container_1_0001_02_000002"
	running := func(id string, instance int32) *pb.Container {
		return &pb.Container{ContainerId: id, AskId: "try-1", Instance: instance}
	}

	// The other member of an array of which one runs at a time is asked for.
	gone := ended(x, "try-1", 0, 0)
	s := &theirs{containers: []*pb.Container{running(x, 0)}, ended: []*pb.Completed{gone}, events: []*pb.Event{told(gone)}}
	s.takesOver(t, `"array":{"to":1,"at_once":1}`)
	if got := s.wanted(); len(got) == 0 || slices.ContainsFunc(got, func(w string) bool { return w != "try-1/1" }) || s.finished != nil {
		t.Errorf("an array: %v is asked for, finished %v", got, s.finished)
	}

	// A failure costs one try, and the next one the other.
	gone = ended(x, "try-1", 0, 1)
	s = &theirs{containers: []*pb.Container{running(x, 0)}, ended: []*pb.Completed{gone}, events: []*pb.Event{told(gone)}}
	s.takesOver(t, `"retry":{"max":1}`)
	if got := s.wanted(); !slices.Equal(got, []string{"try-2/0"}) || s.finished != nil {
		t.Errorf("one try: %v is asked for, finished %v", got, s.finished)
	}
	s = &theirs{containers: []*pb.Container{running(x, 0)}, ended: []*pb.Completed{gone}, events: []*pb.Event{told(gone), granted(z, "try-2", 0), told(ended(z, "try-2", 0, 1))}}
	s.takesOver(t, `"retry":{"max":1}`)
	if d := s.finished.GetDiagnostics(); s.finished.GetFinalStatus() != string(rm.FinalFailed) || !strings.Contains(d, "after 2 tries: container "+z) {
		t.Errorf("two tries: %v", s.finished)
	}

	// So it is when the registration's answer was lost, and the next one names what runs then: the events are those since the first.
	s = &theirs{ended: []*pb.Completed{gone}, events: []*pb.Event{told(gone)}}
	s.takesOver(t, `"retry":{"max":1}`)
	if got := s.wanted(); !slices.Equal(got, []string{"try-2/0"}) || s.finished != nil {
		t.Errorf("registered twice: %v is asked for, finished %v", got, s.finished)
	}
	s = &theirs{ended: []*pb.Completed{gone}, events: []*pb.Event{told(gone), granted(z, "try-2", 0), told(ended(z, "try-2", 0, 1))}}
	s.takesOver(t, `"retry":{"max":1}`)
	if d := s.finished.GetDiagnostics(); s.finished.GetFinalStatus() != string(rm.FinalFailed) || !strings.Contains(d, "after 2 tries: container "+z) {
		t.Errorf("registered twice, two tries: %v", s.finished)
	}

	// The rest of a gang is given back, so that it starts again together, and its end is heard of.
	gone = ended(x, "try-1", 0, 1)
	rest := ended(y, "try-1", 1, int32(rm.ExitAborted))
	rest.Diagnostics = released
	s = &theirs{containers: []*pb.Container{running(x, 0), running(y, 1)}, ended: []*pb.Completed{gone}, events: []*pb.Event{told(gone), told(rest)}}
	s.takesOver(t, `"instances":2,"gang":true,"retry":{"max":1}`)
	if got := s.wanted(); !slices.Equal(got, []string{"try-2/0", "try-2/1"}) || !slices.Equal(s.released, []string{y, nobodys}) || s.finished != nil {
		t.Errorf("a gang: %v is asked for, %v released, finished %v", got, s.released, s.finished)
	}
}

// A member that has succeeded does not run again when its container is forgotten.
func TestAMemberWhoseContainerIsForgottenHasSucceeded(t *testing.T) {
	s := &theirs{succeeded: []int32{0, 2, 99}}
	s.takesOver(t, `"array":{"to":3}`)
	if got := s.wanted(); !slices.Equal(got, []string{"try-1/1", "try-1/3"}) || s.finished != nil {
		t.Errorf("%v is asked for, finished %v", got, s.finished)
	}
	s = &theirs{succeeded: []int32{0, 1}}
	s.takesOver(t, `"array":{"to":1}`)
	if s.finished.GetFinalStatus() != string(rm.FinalSucceeded) {
		t.Errorf("all have succeeded: %v", s.finished)
	}
}
