package clientprotocol

import (
	"bytes"
	"testing"

	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The steps of a publish are counted before any is decoded: of too many none is.
func TestStepsOfAPublishAreCountedFirst(t *testing.T) {
	for _, n := range []int{0, 1, namenode.MaxPublishSteps, namenode.MaxPublishSteps + 1, 50_000} {
		one, err := (&pb.PublishRequestProto{Steps: []*pb.PublishStepProto{{Src: ptr("/a")}}}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		b := bytes.Repeat(one, n)
		for _, m := range (&protocol{}).operatorMethods() {
			if m.Name != "publish" {
				continue
			}
			r := m.New()
			if err := r.UnmarshalVT(b); err != nil {
				t.Fatal(err)
			}
			want := n
			if n > namenode.MaxPublishSteps {
				want = 0
			}
			if got := len(r.(interface{ GetSteps() []*pb.PublishStepProto }).GetSteps()); got != want {
				t.Errorf("of %d steps %d were decoded, want %d", n, got, want)
			}
			if err := m.New().UnmarshalVT(append(b, 0x0a, 0xff)); err == nil {
				t.Errorf("a damaged request of %d steps is decoded", n)
			}
		}
	}
}
