package clientprotocol

import (
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func TestReusedListingsHoldOnlyTheirOwn(t *testing.T) {
	var e encoder
	encode := func(l *namenode.Listing) *pb.GetListingResponseProto {
		r := listReplies.New().(*listReply)
		for _, other := range []*namenode.Listing{
			{Entries: []metadata.FileStatus{{Name: "a", Owner: "o"}, {Name: "bc"}}, Remaining: 7}, nil, l,
		} {
			data, err := r.set(&e, other).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			if other == l {
				var back pb.GetListingResponseProto
				if err := back.UnmarshalVT(data); err != nil {
					t.Fatal(err)
				}
				return &back
			}
			r.release()
		}
		return nil
	}
	// Of a file the listing is the file itself, with an empty name, which Hadoop requires to be there; also when the
	// message is used for the first time.
	file := &namenode.Listing{Entries: []metadata.FileStatus{{Owner: "me"}}}
	if _, err := listReplies.New().(*listReply).set(&e, file).MarshalVT(); err != nil {
		t.Fatal(err)
	}
	got := encode(file).GetDirList()
	if len(got.GetPartialListing()) != 1 || got.GetRemainingEntries() != 0 || got.PartialListing[0].GetOwner() != "me" || len(got.PartialListing[0].GetPath()) != 0 {
		t.Fatalf("a file lists as %v", got)
	}
	if got := encode(&namenode.Listing{}).GetDirList(); got == nil || len(got.GetPartialListing()) != 0 {
		t.Fatalf("an empty directory lists as %v", got)
	}
}
