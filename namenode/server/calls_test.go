package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	headers "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// byGRPC connects to the port of the web server for gRPC.
func (m *member) byGRPC(t *testing.T, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+m.http, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// called says who calls. A test may take long until the last of its calls, and the first one goes on until then.
func called(t *testing.T, ctx context.Context, user string, more ...string) context.Context {
	ctx, stop := context.WithTimeout(ctx, 2*limit)
	t.Cleanup(stop)
	return headers.AppendToOutgoingContext(ctx, append([]string{"user.name", user}, more...)...)
}

// pages reads a stream until n events have come.
func pages(t *testing.T, stream grpc.ServerStreamingClient[pb.EventPage], n int) (events []*pb.Event, next uint64) {
	t.Helper()
	for len(events) < n {
		page, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %d events of %d: %v", len(events), n, err)
		}
		events, next = append(events, page.Events...), page.Next
	}
	return events, next
}

// said are events in short, as lines has them.
func said(events []*pb.Event) (out []string) {
	for _, e := range events {
		line := e.Type.String() + " " + e.Path
		if e.Target != "" {
			line += " " + e.Target
		}
		if e.Type == pb.EventType_METADATA {
			line += " " + e.Update.String()
		}
		out = append(out, line)
	}
	return out
}

func TestFeedByGRPC(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(c *Config) { c.beat = 10 * time.Millisecond })
	m, fs := c.leader(), c.root()
	begin, err := fs.EventsEnd(t.Context())
	must(t, err)
	want := change(t, fs, "/d")
	same := watched(t, fs, begin, "", len(want))
	root := called(t, t.Context(), m.config.Door.Daemon())
	feed := pb.NewFeedClient(m.byGRPC(t))
	stream, err := feed.Watch(root, &pb.WatchRequest{After: new(uint64(begin))})
	must(t, err)
	first, err := stream.Recv()
	if err != nil || len(first.Events) > 0 || first.From != uint64(begin) || first.Next != uint64(begin) {
		t.Fatalf("%v, %v", first, err)
	}
	events, next := pages(t, stream, len(want))
	if got := said(events); !slices.Equal(got, want) {
		t.Fatalf("%q\nwant %q", got, want)
	}
	for i, e := range events {
		if e.Position != uint64(same[i].Position) || e.Inode != uint64(same[i].INode) || e.Time != int64(same[i].Time) || e.Continued != same[i].Continued {
			t.Errorf("%v, want %+v", e, same[i])
		}
	}
	if e := events[2]; e.Directory || e.Owner != m.config.Door.Daemon() || e.Permission == 0 || e.Replication == 0 || e.BlockSize == 0 {
		t.Errorf("a file that was made: %v", e)
	}
	if e := events[5]; e.ModificationTime == nil || *e.ModificationTime != 5 || e.AccessTime != nil {
		t.Errorf("a time that was set: %v", e)
	}
	if e := events[6]; len(e.Attributes) != 1 || e.Attributes[0].Name != "user.tag" || string(e.Attributes[0].Value) != "v" {
		t.Errorf("an attribute: %v", e)
	}
	// A silent stream says that it is there, and goes on.
	for page := first; page.Next != next || len(page.Events) > 0; {
		page, err = stream.Recv()
		must(t, err)
	}
	below, err := feed.Watch(root, &pb.WatchRequest{Path: "/e/a"})
	must(t, err)
	if page, err := below.Recv(); err != nil || len(page.Events) > 0 { // from now on
		t.Fatalf("%v, %v", page, err)
	}
	later := change(t, fs, "/e")
	events, _ = pages(t, stream, len(later))
	if got := said(events); !slices.Equal(got, later) {
		t.Errorf("%q\nwant %q", got, later)
	}
	later = later[1:] // the directory above it that was made takes nothing away
	events, _ = pages(t, below, len(later))
	if got := said(events); !slices.Equal(got, later) {
		t.Errorf("of a directory: %q\nwant %q", got, later)
	}
	for what, q := range map[string]*pb.WatchRequest{"ahead": {After: new(uint64(1 << 62))}, "no position": {After: new(uint64(1 << 63))}, "a relative path": {Path: "d"}} {
		s, err := feed.Watch(root, q)
		for err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Who stops reading is gone at once; the namenode's end is told.
	m.stop()
	for err = nil; err == nil; {
		_, err = stream.Recv()
	}
	if code := status.Code(err); code != codes.Unavailable && code != codes.FailedPrecondition { // the server's end, or that of its leadership just before
		t.Errorf("at the namenode's end: %v", err)
	}
}

// Users see what they may list, by their own name, and one has no more streams than another door would give.
func TestFeedByGRPCKeepsItsRules(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(c *Config) { c.beat = 10 * time.Millisecond })
	m, root, ann := c.leader(), c.root(), c.client("ann")
	ctx := t.Context()
	begin, err := root.EventsEnd(ctx)
	must(t, err)
	must(t, root.Mkdirs(ctx, "/ann", 0o755, true))
	must(t, root.SetOwner(ctx, "/ann", "ann", "ann"))
	must(t, ann.Mkdirs(ctx, "/ann/secret", 0o700, true))
	must(t, ann.WriteFile(ctx, "/ann/secret/plan", nil, false))
	must(t, ann.WriteFile(ctx, "/ann/f", nil, false))
	_, err = ann.Rename(ctx, "/ann/secret/plan", "/ann/g")
	must(t, err)
	feed := pb.NewFeedClient(m.byGRPC(t))
	watch := func(ctx context.Context, feed pb.FeedClient) (grpc.ServerStreamingClient[pb.EventPage], error) {
		s, err := feed.Watch(ctx, &pb.WatchRequest{After: new(uint64(begin))})
		if err == nil {
			_, err = s.Recv()
		}
		return s, err
	}
	bobs, err := watch(called(t, ctx, "bob"), feed)
	must(t, err)
	want := []string{"CREATE /ann", "METADATA /ann OWNER", "CREATE /ann/secret", "CREATE /ann/f", "CLOSE /ann/f", "RENAME  /ann/g"}
	events, _ := pages(t, bobs, len(want))
	if got := said(events); !slices.Equal(got, want) {
		t.Errorf("bob sees %q\nwant %q", got, want)
	}
	for what, ctx := range map[string]context.Context{
		"in another's name":       called(t, ctx, "bob", "doas", "ann"),
		"two names":               called(t, ctx, "bob", "user.name", "ann"),
		"a token that is not one": called(t, ctx, "bob", "authorization", "Bearer x"),
	} {
		if _, err := watch(ctx, feed); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Of one user's readers 100, of which each connection has some.
	var ends []context.CancelFunc
	for i := range maxWatchersOfUser {
		if i%50 == 0 {
			feed = pb.NewFeedClient(m.byGRPC(t))
		}
		one, end := context.WithCancel(called(t, ctx, "carl"))
		defer end()
		ends = append(ends, end)
		_, err := watch(one, feed)
		must(t, err)
	}
	if _, err := watch(called(t, ctx, "carl"), feed); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "100 of them carl") {
		t.Errorf("one too many: %v", err)
	}
	if _, err := watch(called(t, ctx, "dora"), feed); err != nil {
		t.Errorf("another user: %v", err)
	}
	for _, end := range ends {
		end()
	}
	eventually(t, "places of who has gone are free", func() bool { return m.watchers.of("carl") == 0 })
	if _, err := watch(called(t, ctx, "carl"), feed); err != nil {
		t.Errorf("once they are gone: %v", err)
	}
}

// of is how many read in a user's name.
func (w *watchers) of(user string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.users[user]
}

// Who does not read holds two pages for a while, and then nothing; who is gone without a word nothing either.
func TestReadersByGRPCThatDoNotRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(c *Config) { c.beat, c.patience = 10*time.Millisecond, 50*time.Millisecond })
	m, fs := c.leader(), c.root()
	must(t, fs.WriteFile(t.Context(), "/f", nil, false))
	begin, err := fs.EventsEnd(t.Context())
	must(t, err)
	for i := range 60 {
		must(t, fs.SetXAttr(t.Context(), "/f", metadata.XAttr{Name: "big", Value: []byte(strings.Repeat(string(rune('a'+i%26)), 12<<10))}, dfs.XAttrCreate|dfs.XAttrReplace))
	}
	root := m.config.Door.Daemon()
	slow, err := pb.NewFeedClient(m.byGRPC(t, grpc.WithInitialWindowSize(64<<10))).Watch(called(t, t.Context(), root), &pb.WatchRequest{After: new(uint64(begin))})
	must(t, err)
	_, _ = slow.Header() // which comes with the first page, or with the end
	eventually(t, "who does not read is given up", func() bool { return m.watchers.of(root) == 0 })
	for err == nil {
		_, err = slow.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("who was given up does not hear of it")
	}
	gone := m.byGRPC(t)
	stream, err := pb.NewFeedClient(gone).Watch(called(t, t.Context(), root), &pb.WatchRequest{})
	must(t, err)
	_, _ = stream.Header()
	gone.Close()
	eventually(t, "who is gone has no place", func() bool { return m.watchers.of(root) == 0 })
	// Others are served, as ever, also by HTTP/1.1 on the same port.
	var answer *http.Response
	eventually(t, "others are served", func() bool { // an answer that is not taken in 50 ms is cut off
		if answer, err = http.Get("http://" + m.http + "/api/v1/events?user.name=" + root); err == nil {
			answer.Body.Close()
		}
		return err == nil
	})
	if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 1 {
		t.Errorf("%s %s", answer.Proto, answer.Status)
	}
}

func TestSearchByGRPC(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(c *Config) { c.Search = true })
	m, fs, ctx := c.leader(), c.root(), t.Context()
	must(t, fs.WriteFile(ctx, "/b", []byte(nil), false))
	must(t, fs.SetXAttr(ctx, "/b", metadata.XAttr{Name: "team", Value: []byte("vision\xff")}, dfs.XAttrCreate))
	must(t, fs.Mkdirs(ctx, "/closed", 0o700, true))
	must(t, fs.WriteFile(ctx, "/closed/B", nil, false))
	after, err := fs.EventsEnd(ctx)
	must(t, err)
	search := pb.NewSearchClient(m.byGRPC(t))
	find := func(user string, q *pb.FindRequest) (paths []string, page *pb.FindResponse, err error) {
		t.Helper()
		q.After = uint64(after)
		for deadline := time.Now().Add(limit); ; {
			page, err = search.Find(called(t, ctx, user), q)
			if status.Code(err) != codes.Unavailable || time.Now().After(deadline) { // it is made
				break
			}
		}
		for _, f := range page.GetFound() {
			paths = append(paths, f.Path)
		}
		return paths, page, err
	}
	root := m.config.Door.Daemon()
	paths, page, err := find(root, &pb.FindRequest{Name: "b", IgnoreCase: true, Kind: pb.Kind_FILE, MaxSize: new(int64(0))})
	if slices.Sort(paths); err != nil || !slices.Equal(paths, []string{"/b", "/closed/B"}) || page.Position < uint64(after) || page.Looked == 0 {
		t.Errorf("%v, %v", page, err)
	}
	paths, page, err = find("bob", &pb.FindRequest{Name: "b", IgnoreCase: true})
	if err != nil || !slices.Equal(paths, []string{"/b"}) || page.Looked != 0 {
		t.Errorf("bob: %v, %v", page, err)
	}
	_, page, err = find(root, &pb.FindRequest{Tags: []*pb.Tag{{Name: "team"}}})
	if err != nil || len(page.Found) != 1 {
		t.Fatalf("%v, %v", page, err)
	}
	st, err := fs.Stat(ctx, "/b")
	must(t, err)
	if f := page.Found[0]; f.Directory || f.Inode != uint64(st.ID) || f.Owner != st.Owner || f.Permission != uint32(st.Mode) || f.ModificationTime != int64(st.MTime) ||
		len(f.Tags) != 1 || f.Tags[0].Name != "team" || string(f.Tags[0].Value) != "vision\xff" {
		t.Errorf("%v, want %+v", f, st)
	}
	one, page, err := find(root, &pb.FindRequest{Path: "/", Limit: 1})
	if err != nil || len(one) != 1 || page.Next == "" {
		t.Fatalf("%v, %v", page, err)
	}
	if rest, page, err := find(root, &pb.FindRequest{Path: "/", Limit: 1000, Cursor: page.Next}); err != nil || slices.Contains(rest, one[0]) || page.Next != "" {
		t.Errorf("the rest: %v, %v", rest, err)
	}
	for what, want := range map[string]struct {
		q    *pb.FindRequest
		code codes.Code
	}{
		"another user's cursor":   {&pb.FindRequest{Path: "/", Cursor: page.Next + "x"}, codes.InvalidArgument},
		"too many":                {&pb.FindRequest{Limit: 1001}, codes.InvalidArgument},
		"a long wait":             {&pb.FindRequest{WaitMs: 30_001}, codes.InvalidArgument},
		"no kind":                 {&pb.FindRequest{Kind: 7}, codes.InvalidArgument},
		"a pattern that is none":  {&pb.FindRequest{Name: "["}, codes.InvalidArgument},
		"a path that is not":      {&pb.FindRequest{Path: "/none"}, codes.NotFound},
		"a request that is large": {&pb.FindRequest{Name: strings.Repeat("x", 70<<10)}, codes.ResourceExhausted},
	} {
		if _, _, err := find(root, want.q); status.Code(err) != want.code {
			t.Errorf("%s: %v, want %v", what, err, want.code)
		}
	}
	if _, _, err := find("bob", &pb.FindRequest{Path: "/closed/x"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("below a directory that is closed: %v", err)
	}
}
