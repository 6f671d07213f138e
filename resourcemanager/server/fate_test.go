package server

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// A master hears at once which resource managers there are, and asks what has become of its application with its container's token, also
// after its end. Another container's token tells nothing.
func TestAMasterHearsOfResourceManagersAndOfItsEnd(t *testing.T) {
	c := newTestCluster(t, 1, steady)
	specs := make(chan *pb.ContainerSpec, 2)
	n := c.node("127.0.0.1:1001", 0, func(ctx context.Context, spec *pb.ContainerSpec) int {
		specs <- spec
		return untilStopped(ctx, spec)
	})
	c.awaitOpen(n)
	id, other := c.submit("ann", map[string]any{"argv": []string{"x"}}), c.submit("bob", map[string]any{"argv": []string{"x"}})
	of := map[string]*pb.ContainerSpec{}
	for range 2 {
		s := <-specs
		of[s.ApplicationId] = s
	}
	dial := func(s *pb.ContainerSpec) pb.ApplicationMastersClient {
		return mastersAt(t, c.peers[0].GRPC, security.TokenKey(trustOf(c), s.ContainerId, s.Token, authority.ResourceManager))
	}
	master := dial(of[id.String()])
	r, err := master.Register(t.Context(), &pb.RegisterRequest{ApplicationId: id.String(), Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := master.Events(t.Context(), &pb.EventsRequest{ApplicationId: id.String(), Attempt: 1, Epoch: r.Epoch})
	if err != nil {
		t.Fatal(err)
	}
	hear := func(want ...string) {
		t.Helper()
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m := e.GetManagers(); m != nil {
				if e.Sequence != 0 || !slices.Equal(m.Addresses, want) {
					t.Errorf("%v, want %v", e, want)
				}
				return
			}
		}
	}
	hear(c.peers[0].GRPC)
	c.leader().SetPeers([]Peer{c.peers[0], {ID: "rm2", HTTP: "127.0.0.1:2", GRPC: "127.0.0.1:3"}})
	hear(c.peers[0].GRPC, "127.0.0.1:3")
	ask := &pb.FateRequest{ApplicationId: id.String(), Attempt: 1}
	if f, err := master.Fate(t.Context(), ask); err != nil || rm.State(f.State).Final() {
		t.Errorf("while it runs: %v, %v", f, err)
	}
	jobs := func(container, token string) int {
		t.Helper()
		request, err := http.NewRequest("GET", "http://"+c.peers[0].HTTP+"/api/v1/jobs", nil)
		if err != nil {
			t.Fatal(err)
		}
		security.NewRequestKey(token, security.ManagerRequests).Sign(request, security.Signature{Container: container, Number: time.Now().UnixNano(), Body: security.BodySum(nil)})
		var text string
		code, _ := c.do(request, &text)
		return code
	}
	mine, others := of[id.String()], of[other.String()]
	if code := jobs(mine.ContainerId, mine.Token); code != http.StatusOK {
		t.Errorf("a container's signed request: %d", code)
	}
	if code := jobs(mine.ContainerId, others.Token); code != http.StatusUnauthorized {
		t.Errorf("signed with another container's token: %d", code)
	}
	if code, _ := c.http("DELETE", "/api/v1/jobs/"+id.String(), "ann", nil, nil); code >= 300 {
		t.Fatalf("killed: %d", code)
	}
	c.await(id, rm.StateKilled)
	eventually(t, "the end of the container, whose signature is of no use then", func() bool { return jobs(mine.ContainerId, mine.Token) == http.StatusUnauthorized })
	if f, err := master.Fate(t.Context(), ask); err != nil || f.State != string(rm.StateKilled) || f.Diagnostics == "" {
		t.Errorf("after it was killed: %v, %v", f, err)
	}
	if _, err := dial(of[other.String()]).Fate(t.Context(), ask); status.Code(err) != codes.Unauthenticated {
		t.Errorf("another container's token: %v", err)
	}
}
