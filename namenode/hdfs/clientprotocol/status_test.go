package clientprotocol

import (
	"bytes"
	"math"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func marshal(t *testing.T, m interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
},
) []byte {
	t.Helper()
	b := make([]byte, m.SizeVT())
	if _, err := m.MarshalToSizedBufferVT(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStatusesAreEncodedAsTheGeneratedCodeDoes(t *testing.T) {
	statuses := []metadata.FileStatus{
		{},
		{Type: metadata.TypeDirectory, ID: metadata.RootID, Mode: 0o1777, Owner: "root", Group: "supergroup", Children: 200, ACL: true},
		{
			Type: metadata.TypeFile, ID: math.MaxInt64, Name: "n\u00e4me", Length: math.MaxInt64, Mode: 0o644, Owner: "o", Group: "g",
			MTime: 1795000000000, ATime: -1, Replication: 512, BlockSize: 128 << 20, StoragePolicy: 7,
		},
		{Name: string(make([]byte, 300)), StoragePolicy: 200, Children: 127},
	}
	var e encoder
	e.pool = func() *string { return ptr("pool") }
	located := &namenode.LocatedFile{Blocks: []namenode.LocatedBlock{{Block: metadata.Block{ID: 1, Generation: 2, Length: 300}}}}
	want := &pb.DirectoryListingProto{RemainingEntries: ptr(uint32(300))}
	list := &namenode.Listing{Entries: statuses, Remaining: 300}
	for i := range statuses {
		m := new(status).set(&statuses[i], []byte(statuses[i].Name))
		info := &infoAnswer{status: &statuses[i]}
		if got, want := marshal(t, info), marshal(t, &pb.GetFileInfoResponseProto{Fs: m}); !bytes.Equal(got, want) {
			t.Errorf("status %d is encoded as\n%x, want\n%x", i, got, want)
		}
		want.PartialListing = append(want.PartialListing, m)
	}
	var a listAnswer
	for _, withBlocks := range []bool{false, true} {
		if withBlocks {
			list.Files = make([]*namenode.LocatedFile, len(statuses))
			list.Files[2] = located
			want.PartialListing[2].Locations = e.locatedFile(located)
		}
		a.set(&e, list)
		if got, want := marshal(t, &a), marshal(t, &pb.GetListingResponseProto{DirList: want}); !bytes.Equal(got, want) {
			t.Errorf("a listing, blocks %t, is encoded as\n%x, want\n%x", withBlocks, got, want)
		}
	}
	// Again, with less: nothing of the listing before is in it.
	a.set(&e, &namenode.Listing{})
	if got, want := marshal(t, &a), marshal(t, &pb.GetListingResponseProto{DirList: &pb.DirectoryListingProto{RemainingEntries: ptr(uint32(0))}}); !bytes.Equal(got, want) {
		t.Errorf("an empty directory is encoded as %x, want %x", got, want)
	}
	a.set(&e, nil)
	if got := marshal(t, &a); len(got) != 0 {
		t.Errorf("what is missing is encoded as %x", got)
	}
	if got := marshal(t, &infoAnswer{}); len(got) != 0 {
		t.Errorf("what is missing is encoded as %x", got)
	}
}

func BenchmarkListing(b *testing.B) {
	entries := make([]metadata.FileStatus, 16)
	for i := range entries {
		entries[i] = metadata.FileStatus{
			Type: metadata.TypeFile, ID: 17000, Name: "part-00001", Mode: 0o644, Owner: "alice", Group: "supergroup",
			MTime: 1795000000000, ATime: 1795000000000, Replication: 3, BlockSize: 128 << 20,
		}
	}
	list := &namenode.Listing{Entries: entries}
	room := make([]byte, 4096)
	var e encoder
	b.ReportAllocs()
	for b.Loop() {
		a := listAnswers.Get().(*listAnswer)
		a.set(&e, list)
		if _, err := a.MarshalToSizedBufferVT(room[:a.SizeVT()]); err != nil {
			b.Fatal(err)
		}
		a.release()
	}
}
