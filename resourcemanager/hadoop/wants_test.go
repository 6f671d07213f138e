package hadoop

import (
	"testing"

	"github.com/gohops/hops/internal/token"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

func TestTheIdOfAnAskSaysWhatItIsFor(t *testing.T) {
	for _, key := range []askKey{{3, 5, "ab12"}, {0, -1, sizeOf(rm.Resource{Memory: 1 << 30})}, {2147483647, 1 << 62, "0"}} {
		if got, ok := parseAsk(key.String()); !ok || got != key {
			t.Errorf("%v: %v %v", key, got, ok)
		}
	}
	for _, other := range []string{"", "workers", "yarn/1/2", "yarn/x/2/3", "yarn/1/2/3/4"} {
		if got, ok := parseAsk(other); ok || got.request != -1 {
			t.Errorf("%q: %v %v", other, got, ok)
		}
	}
}

func TestResourcesOfTheWire(t *testing.T) {
	other, err := rm.NewAmounts(map[string]int64{"acme.com/fpga": 2})
	if err != nil {
		t.Fatal(err)
	}
	want := rm.Resource{Memory: 896 << 20, VCores: 1, GPUs: 1, Other: other}
	if got, err := pb.ParseResource(pb.Resource(want, want.Names())); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	for what, spoil := range map[string]func(*pb.ResourceProto){
		"memory below 0":    func(p *pb.ResourceProto) { p.Memory = new(int64(-1)) },
		"memory over all":   func(p *pb.ResourceProto) { p.Memory = new(int64(1 << 62)) },
		"vcores below 0":    func(p *pb.ResourceProto) { p.VirtualCores = new(int32(-1)) },
		"GPUs below 0":      func(p *pb.ResourceProto) { p.ResourceValueMap[2].Value = new(int64(-1)) },
		"a unit of nothing": func(p *pb.ResourceProto) { p.ResourceValueMap[2].Units = new("furlong") },
		"an overflow": func(p *pb.ResourceProto) {
			p.ResourceValueMap[2].Value, p.ResourceValueMap[2].Units = new(int64(1<<40)), new("Ti")
		},
	} {
		p := pb.Resource(want, []string{rm.GPUName})
		spoil(p)
		if got, err := pb.ParseResource(p); err == nil {
			t.Errorf("%s: taken for %v", what, got)
		}
	}
}

// FuzzSubmission reads what users submit, as far as no cluster is needed for it.
func FuzzSubmission(f *testing.F) {
	seed, err := (&pb.ApplicationSubmissionContextProto{
		ApplicationId: pb.Application(rm.ApplicationID{Cluster: 1, Sequence: 1}), Resource: pb.Resource(rm.Resource{Memory: 1 << 29, VCores: 1}, nil),
		AmContainerSpec: &pb.ContainerLaunchContextProto{Command: []string{"true"}, LocalResources: []*pb.StringLocalResourceMapProto{{Key: new("x"), Value: &pb.LocalResourceProto{
			Resource: &pb.URLProto{Scheme: new("hdfs"), Host: new("nn"), File: new("/x")}, Type: pb.LocalResourceTypeProto_FILE.Enum(),
		}}}},
	}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, token.Credentials{{Alias: "a", Token: token.Token{Kind: "k"}}}.Encode())
	f.Fuzz(func(t *testing.T, b, credentials []byte) {
		var p pb.ApplicationSubmissionContextProto
		if p.UnmarshalVT(b) == nil {
			if c, err := submissionContext(&p); err == nil {
				_, _ = c.Submission()
			}
		}
		if more, err := token.Prepend(credentials, token.Token{Identifier: []byte("i"), Kind: "K"}); err == nil {
			if was, err := token.Parse(credentials); err == nil {
				now, err := token.Parse(more)
				if err != nil || len(now) != len(was)+1 || now[0].Token.Kind != "K" {
					t.Fatalf("%x with a token in front: %x: %v", credentials, more, err)
				}
			}
		}
	})
}
