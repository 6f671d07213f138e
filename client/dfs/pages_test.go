package dfs

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A list ends when the server gives pages again, be it the same one or some in turns, and says so.
func TestPagesThatComeAgain(t *testing.T) {
	t.Parallel()
	const enough = 100 // pages, and the client has not noticed
	var mu sync.Mutex
	var page func(n int32) int32
	var asked int32
	next := func() (int32, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked > enough {
			return 0, metadata.Errorf(metadata.ErrInvalidArgument, "asked for %d pages", asked)
		}
		return page(asked), nil
	}
	c, _ := newCluster(t, 0)
	c.addr = c.serve(security.NewDoor(security.Config{}), func(s *hrpc.Server) {
		on(c, s, "getListing", func(*hadooppb.GetListingRequestProto, *hrpc.Call) (hrpc.Message, error) {
			n, err := next()
			return &hadooppb.GetListingResponseProto{DirList: &hadooppb.DirectoryListingProto{
				PartialListing: []*hadooppb.HdfsFileStatusProto{c.status(&fakeFile{dir: true}, fmt.Sprint(n))}, RemainingEntries: new(uint32(1)),
			}}, err
		})
		on(c, s, "listCachePools", func(*hadooppb.ListCachePoolsRequestProto, *hrpc.Call) (hrpc.Message, error) {
			n, err := next()
			return &hadooppb.ListCachePoolsResponseProto{HasMore: new(true), Entries: []*hadooppb.CachePoolEntryProto{{
				Info:  &hadooppb.CachePoolInfoProto{PoolName: new(fmt.Sprint(n))},
				Stats: &hadooppb.CachePoolStatsProto{BytesNeeded: new(int64), BytesCached: new(int64), BytesOverlimit: new(int64), FilesNeeded: new(int64), FilesCached: new(int64)},
			}}}, err
		})
		on(c, s, "listCacheDirectives", func(*hadooppb.ListCacheDirectivesRequestProto, *hrpc.Call) (hrpc.Message, error) {
			n, err := next()
			return &hadooppb.ListCacheDirectivesResponseProto{HasMore: new(true), Elements: []*hadooppb.CacheDirectiveEntryProto{{
				Info:  &hadooppb.CacheDirectiveInfoProto{Id: new(int64(n))},
				Stats: &hadooppb.CacheDirectiveStatsProto{BytesNeeded: new(int64), BytesCached: new(int64), FilesNeeded: new(int64), FilesCached: new(int64), HasExpired: new(bool)},
			}}}, err
		})
		on(c, s, "listOpenFiles", func(*hadooppb.ListOpenFilesRequestProto, *hrpc.Call) (hrpc.Message, error) {
			n, err := next()
			return &hadooppb.ListOpenFilesResponseProto{HasMore: new(true), Entries: []*hadooppb.OpenFilesBatchResponseProto{{
				Id: new(int64(n)), Path: new("/a"), ClientName: new("c"), ClientMachine: new("m"),
			}}}, err
		})
		on(c, s, "getSnapshotDiffReportListing", func(*hadooppb.GetSnapshotDiffReportListingRequestProto, *hrpc.Call) (hrpc.Message, error) {
			n, err := next()
			return &hadooppb.GetSnapshotDiffReportListingResponseProto{DiffReport: &hadooppb.SnapshotDiffReportListingProto{
				IsFromEarlier: new(true), Cursor: &hadooppb.SnapshotDiffReportCursorProto{StartPath: []byte("a"), Index: &n},
			}}, err
		})
		operator := func(method string, request func() hrpc.Message, answer func(n int32) hrpc.Message) {
			s.Handle(operatorProtocol, hrpc.Method{Name: method, Right: security.ByPath, New: request, Handle: func(call *hrpc.Call) {
				n, err := next()
				if err != nil {
					call.Fail(err)
					return
				}
				call.Reply(answer(n))
			}})
		}
		operator("search", func() hrpc.Message { return new(hadooppb.SearchRequestProto) }, func(n int32) hrpc.Message {
			return &hadooppb.SearchResponseProto{Next: new(fmt.Sprint(n)), Found: []*hadooppb.FoundProto{{Path: new("/a")}}}
		})
		operator("getEvents", func() hrpc.Message { return new(hadooppb.GetEventsRequestProto) }, func(n int32) hrpc.Message {
			return &hadooppb.GetEventsResponseProto{Next: new(uint64(n)), Events: []*hadooppb.FeedEventProto{{Position: new(uint64(n))}}}
		})
	})
	client := c.client(Config{})
	lists := map[string]func() error{
		"list":             func() error { _, err := client.List(t.Context(), "/d"); return err },
		"cache pools":      func() error { _, err := client.CachePools(t.Context()); return err },
		"cache directives": func() error { _, err := client.CacheDirectives(t.Context(), namenode.CacheFilter{}); return err },
		"open files":       func() error { return client.OpenFiles(t.Context(), "/", false, func(OpenFile) bool { return true }) },
		"snapshot diff":    func() error { _, err := client.SnapshotDiff(t.Context(), "/d", "a", "b"); return err },
		"find": func() error {
			return client.FindAll(t.Context(), metadata.Query{Path: "/"}, 0, func(metadata.Found) bool { return true })
		},
		"events": func() error {
			return client.Watch(t.Context(), 0, EventsOptions{}, func(*metadata.EventPage) bool { return true })
		},
	}
	again := map[string]func(n int32) int32{
		"the first page":          func(int32) int32 { return 1 },
		"the sixth page":          func(n int32) int32 { return min(n, 6) },
		"two pages in turns":      func(n int32) int32 { return 7 + n%2 },
		"the third to tenth page": func(n int32) int32 { return min(n, 3+(n-3)%8) },
	}
	for pages, f := range again {
		for name, list := range lists {
			mu.Lock()
			page, asked = f, 0
			mu.Unlock()
			err := list()
			mu.Lock()
			n := asked
			mu.Unlock()
			if !errors.Is(err, metadata.ErrIO) || !strings.Contains(err.Error(), "again") || n > 25 {
				t.Errorf("%s of %s: %v, after %d pages", pages, name, err, n)
			}
		}
	}
}

// Many pages that go on are no cause for complaint.
func TestPagesThatGoOn(t *testing.T) {
	t.Parallel()
	turns := pagesFrom("list", "/", "")
	for n := range 100_000 {
		if err := turns.turn(fmt.Sprint(n)); err != nil {
			t.Fatal(n, err)
		}
	}
	if err := turns.turn("99999"); err == nil {
		t.Error("the same page again is taken")
	}
}
