package hadoop

import (
	"strings"
	"testing"

	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// TestALaunchContextOf100MB is refused when its length is announced, whatever is in it, and the next caller finds the server well.
func TestALaunchContextOf100MB(t *testing.T) {
	node := new(fakeNode)
	addr := serve(t, node)
	huge := sparks()
	huge.Tokens = []byte(strings.Repeat("x", 100<<20))
	start := func(c *pb.ContainerLaunchContextProto) (*pb.StartContainersResponseProto, error) {
		answer := new(pb.StartContainersResponseProto)
		err := call(t, addr, nmToken(), "startContainers", &pb.StartContainersRequestProto{StartContainerRequest: []*pb.StartContainerRequestProto{
			{ContainerLaunchContext: c, ContainerToken: containerToken(nil)},
		}}, answer)
		return answer, err
	}
	if answer, err := start(huge); err == nil {
		t.Errorf("taken: %.200v", answer)
	}
	if answer, err := start(sparks()); err != nil || len(answer.SucceededRequests) != 1 {
		t.Errorf("the next one: %v %v", answer, err)
	}
}
