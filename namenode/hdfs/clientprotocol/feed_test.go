package clientprotocol

import (
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// closedWith are the lengths that the events CLOSE of a list tell.
func closedWith(t *testing.T, l *pb.EventsListProto) (lengths []int64) {
	t.Helper()
	for _, b := range l.Batch {
		for _, e := range b.Events {
			if e.GetType() != pb.EventType_EVENT_CLOSE {
				continue
			}
			m := new(pb.CloseEventProto)
			if err := m.UnmarshalVT(e.GetContents()); err != nil {
				t.Fatal(err)
			}
			lengths = append(lengths, m.GetFileSize())
		}
	}
	return lengths
}

// A small file is made and closed by one operation, and its length is told as that of any file; a concat is the only operation whose CLOSE has none.
func TestCloseHasNoLengthInAConcatAlone(t *testing.T) {
	page := &metadata.EventPage{From: 10, Next: 100, Events: []metadata.Event{
		{Position: 16, Kind: metadata.EventCreate, Path: "/small"},
		{Position: 17, Kind: metadata.EventClose, Path: "/small", Length: 300, Continued: true},
		{Position: 32, Kind: metadata.EventAppend, Path: "/joined"},
		{Position: 33, Kind: metadata.EventUnlink, Path: "/part", Continued: true},
		{Position: 34, Kind: metadata.EventClose, Path: "/joined", Length: 900, Continued: true},
		{Position: 48, Kind: metadata.EventAppend, Path: "/more"},
		{Position: 64, Kind: metadata.EventClose, Path: "/more", Length: 500},
		{Position: 80, Kind: metadata.EventCreate, Path: "/next"},
		{Position: 81, Kind: metadata.EventClose, Path: "/next", Length: 7, Continued: true},
	}}
	if got := closedWith(t, eventsList(page, 100)); !slices.Equal(got, []int64{300, -1, 500, 7}) {
		t.Errorf("the lengths are told as %v", got)
	}
}

// Who has read a batch and goes on behind its transaction gets what comes after it, none of it again.
func TestABatchHasTheTransactionOfItsLastEvent(t *testing.T) {
	page := &metadata.EventPage{From: 10, Next: 100, Events: []metadata.Event{
		{Position: 16, Kind: metadata.EventCreate, Path: "/a"},
		{Position: 17, Kind: metadata.EventCreate, Path: "/a/b", Continued: true},
		{Position: 18, Kind: metadata.EventCreate, Path: "/a/b/c", Continued: true},
		{Position: 32, Kind: metadata.EventUnlink, Path: "/a"},
	}}
	l := eventsList(page, 120)
	if l.GetFirstTxid() != 11 || l.GetLastTxid() != 100 || l.GetSyncTxid() != 120 || len(l.Batch) != 2 {
		t.Fatal(l)
	}
	if a, b := l.Batch[0], l.Batch[1]; a.GetTxid() != 18 || len(a.Events) != 3 || b.GetTxid() != 32 || len(b.Events) != 1 {
		t.Error(a, b)
	}
}
