package server

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"

	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// slowReplicas answers questions when it is told to.
type slowReplicas struct {
	datanodepb.UnimplementedReplicasServer
	asked, answer chan struct{}
}

func (r *slowReplicas) InitReplicaRecovery(ctx context.Context, _ *datanodepb.InitReplicaRecoveryRequest) (*datanodepb.InitReplicaRecoveryResponse, error) {
	r.asked <- struct{}{}
	select {
	case <-r.answer:
		return &datanodepb.InitReplicaRecoveryResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startReplicas is another datanode, as far as recoveries ask it.
func startReplicas(t *testing.T, credentials security.Credentials, r datanodepb.ReplicasServer) *pb.DatanodeID {
	t.Helper()
	l := listen(t)
	keys := security.Keyring{Member: credentials.Member}
	srv := grpc.NewServer(grpc.Creds(keys.Credentials()))
	datanodepb.RegisterReplicasServer(srv, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(keys.Listen(l))
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return &pb.DatanodeID{Ip: "127.0.0.1", GrpcPort: uint32(l.Addr().(*net.TCPAddr).Port)}
}

// A connection to another datanode that is used is not given up for one to the next: there are more than are kept meanwhile, and as many as are kept when they are not used any more.
func TestPeersThatAreAskedKeepTheirConnections(t *testing.T) {
	t.Parallel()
	credentials := securitytest.Credentials(t)
	var nodes []*pb.DatanodeID
	var services []*slowReplicas
	for range 3 {
		r := &slowReplicas{asked: make(chan struct{}, 1), answer: make(chan struct{})}
		nodes, services = append(nodes, startReplicas(t, credentials, r)), append(services, r)
	}
	p := peers{credentials: credentials, most: 1}
	defer p.close()
	kept := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.conns)
	}
	answers := make(chan error, len(nodes))
	var releases []func()
	for i, d := range nodes {
		client, release, err := p.get(d)
		check(t, err)
		releases = append(releases, release)
		go func() {
			_, err := client.InitReplicaRecovery(t.Context(), &datanodepb.InitReplicaRecoveryRequest{})
			answers <- err
		}()
		select {
		case <-services[i].asked:
		case err := <-answers:
			t.Fatalf("datanode %d is asked: %v", i, err)
		}
	}
	if n := kept(); n != len(nodes) {
		t.Errorf("%d connections, %d are used", n, len(nodes))
	}
	for _, r := range services {
		close(r.answer)
	}
	for range nodes {
		check(t, <-answers)
	}
	for i, release := range releases {
		release()
		release()
		if n := kept(); n != max(len(nodes)-1-i, 1) {
			t.Errorf("%d connections after %d of %d are not used any more", n, i+1, len(nodes))
		}
	}
	_, release, err := p.get(nodes[0])
	check(t, err)
	defer release()
	if n := kept(); n != 1 {
		t.Errorf("%d connections for one that is used", n)
	}
}
