package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// lines are events in short.
func lines(events []metadata.Event) (out []string) {
	for _, e := range events {
		line := e.Kind.String() + " " + e.Path
		if e.Target != "" {
			line += " " + e.Target
		}
		if e.Kind == metadata.EventMetadata {
			line += " " + e.Update.String()
		}
		out = append(out, line)
	}
	return out
}

// watched reads n events behind a position.
func watched(t *testing.T, c *dfs.Client, after metadata.Position, path string, n int) (events []metadata.Event) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	err := c.Watch(ctx, after, dfs.EventsOptions{Path: path}, func(p *metadata.EventPage) bool {
		if p.Missing {
			t.Errorf("events are missing: %+v", p)
		}
		events = append(events, p.Events...)
		return len(events) < n
	})
	if err != nil {
		t.Fatalf("%v; of %d events there are %q", err, n, lines(events))
	}
	return events
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// change makes one of each kind of changes below a directory, which take the events that it returns.
func change(t *testing.T, fs *dfs.Client, dir string) (want []string) {
	t.Helper()
	ctx := t.Context()
	must(t, fs.Mkdirs(ctx, dir+"/a", 0o755, true))
	must(t, fs.WriteFile(ctx, dir+"/a/f", nil, false))
	must(t, fs.SetPermission(ctx, dir+"/a/f", 0o600))
	must(t, fs.SetTimes(ctx, dir+"/a/f", 5, -1))
	must(t, fs.SetXAttr(ctx, dir+"/a/f", metadata.XAttr{Name: "tag", Value: []byte("v")}, dfs.XAttrCreate))
	_, err := fs.Rename(ctx, dir+"/a/f", dir+"/g")
	must(t, err)
	_, err = fs.Delete(ctx, dir+"/a", true)
	must(t, err)
	return []string{
		"CREATE " + dir, "CREATE " + dir + "/a", "CREATE " + dir + "/a/f", "CLOSE " + dir + "/a/f", "METADATA " + dir + "/a/f PERMS", "METADATA " + dir + "/a/f TIMES",
		"METADATA " + dir + "/a/f XATTRS", "RENAME " + dir + "/a/f " + dir + "/g", "UNLINK " + dir + "/a",
	}
}

// Whoever reads slowly holds little: also events with much in them come in small pages, and all of them.
func TestFeedPagesAreSmall(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	fs := c.root()
	must(t, fs.WriteFile(t.Context(), "/f", nil, false))
	begin, err := fs.EventsEnd(t.Context())
	must(t, err)
	const changes, size = 60, 12 << 10
	for i := range changes {
		must(t, fs.SetXAttr(t.Context(), "/f", metadata.XAttr{Name: "big", Value: []byte(strings.Repeat(string(rune('a'+i%26)), size))}, dfs.XAttrCreate|dfs.XAttrReplace))
	}
	got, pages := 0, 0
	for at := begin; got < changes; pages++ {
		page, err := fs.Events(t.Context(), at, dfs.EventsOptions{Wait: 10 * time.Second})
		must(t, err)
		if held := sizeOfEvents(page.Events); held > 2*maxEventBytes {
			t.Fatalf("a page takes %d bytes", held)
		}
		got, at = got+len(page.Events), page.Next
		if pages > 100*changes {
			t.Fatalf("%d of %d events in %d pages", got, changes, pages)
		}
	}
	if got != changes || pages < 2 {
		t.Fatalf("%d events in %d pages, want %d", got, pages, changes)
	}
}

func TestFeed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	fs := c.root()
	begin, err := fs.EventsEnd(t.Context())
	must(t, err)
	want := change(t, fs, "/d")
	events := watched(t, fs, begin, "", len(want))
	if got := lines(events); !slices.Equal(got, want) {
		t.Fatalf("%q\nwant %q", got, want)
	}
	// The same at the same positions after a stop and a start, and what comes then behind it.
	c.nodes[0].stop()
	c.start(0)
	c.await(0)
	fs = c.root()
	want = append(want, change(t, fs, "/e")...)
	again := watched(t, fs, begin, "", len(want))
	if got := lines(again); !slices.Equal(got, want) {
		t.Fatalf("%q\nwant %q", got, want)
	}
	for i, e := range events {
		if again[i].Position != e.Position {
			t.Errorf("%v is at %d after a start, and was at %d", lines(again[i:i+1]), again[i].Position, e.Position)
		}
	}
	if got := lines(watched(t, fs, again[3].Position, "/d/a", 5)); !slices.Equal(got, want[4:9]) {
		t.Errorf("in a directory: %q", got)
	}
	// What is ahead of everything, or no request.
	if _, err := fs.Events(t.Context(), metadata.EndOf(1<<40), dfs.EventsOptions{}); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("a position ahead: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := fs.Watch(ctx, again[len(again)-1].Position, dfs.EventsOptions{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Users see what happens in directories that they may list, and no more.
func TestFeedKeepsSecrets(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	root, ann, bob := c.root(), c.client("ann"), c.client("bob")
	ctx := t.Context()
	begin, err := bob.EventsEnd(ctx)
	must(t, err)
	must(t, root.Mkdirs(ctx, "/public", 0o777, true))
	must(t, root.Mkdirs(ctx, "/ann", 0o755, true))
	must(t, root.SetOwner(ctx, "/ann", "ann", "ann"))
	must(t, root.SetPermission(ctx, "/public", 0o777))
	must(t, ann.Mkdirs(ctx, "/ann/secret", 0o700, true))
	must(t, ann.WriteFile(ctx, "/ann/secret/plan", nil, false))
	must(t, ann.WriteFile(ctx, "/public/f", nil, false))
	must(t, ann.SetPermission(ctx, "/public/f", 0o600))
	must(t, ann.SetXAttr(ctx, "/public/f", metadata.XAttr{Name: "tag", Value: []byte("v")}, dfs.XAttrCreate))
	_, err = ann.Rename(ctx, "/ann/secret/plan", "/public/g")
	must(t, err)
	_, err = ann.Rename(ctx, "/public/f", "/ann/secret/f")
	must(t, err)
	must(t, bob.WriteFile(ctx, "/public/end", nil, false))
	want := []string{
		"CREATE /public", "CREATE /ann", "METADATA /ann OWNER", "METADATA /public PERMS", "CREATE /ann/secret", "CREATE /public/f", "CLOSE /public/f",
		"METADATA /public/f PERMS", "RENAME  /public/g", "RENAME /public/f", "CREATE /public/end", "CLOSE /public/end",
	}
	if got := lines(watched(t, bob, begin, "", len(want))); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := lines(watched(t, ann, begin, "", 15)); len(got) != 15 || !slices.Contains(got, "METADATA /public/f XATTRS") || !slices.Contains(got, "RENAME /ann/secret/plan /public/g") {
		t.Errorf("the owner sees %q", got)
	}
	// Nor can they try where it came from.
	for _, guess := range []string{"/ann/secret", "/ann/secret/plan"} {
		page, err := bob.Events(ctx, begin, dfs.EventsOptions{Path: guess})
		must(t, err)
		for _, line := range lines(page.Events) {
			if strings.Contains(line, "/public/g") {
				t.Errorf("asked about %s: %s", guess, line)
			}
		}
	}
	// What was in a directory is told to nobody who makes one of its name.
	_, err = ann.Delete(ctx, "/ann/secret", true)
	must(t, err)
	must(t, ann.SetPermission(ctx, "/ann", 0o777))
	must(t, bob.Mkdirs(ctx, "/ann/secret", 0o777, true))
	want = append(want[:10:10], "CREATE /public/end", "CLOSE /public/end", "UNLINK /ann/secret", "METADATA /ann PERMS", "CREATE /ann/secret")
	if got := lines(watched(t, bob, begin, "", len(want))); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// inotify follows the edits as DFSInotifyEventInputStream does, and notices what is missing as it does.
type inotify struct {
	t        *testing.T
	rpc      *hrpc.Client
	lastRead int64
	missing  int
}

func (i *inotify) poll() (batches []*hadoop.EventBatchProto) {
	i.t.Helper()
	var answer hadoop.GetEditsFromTxidResponseProto
	must(i.t, i.rpc.Call(i.t.Context(), clientprotocol.Name, "getEditsFromTxid", &hadoop.GetEditsFromTxidRequestProto{Txid: ptr(i.lastRead + 1)}, &answer))
	l := answer.GetEventsList()
	if l.GetLastTxid() == -1 {
		return nil
	}
	former := i.lastRead
	if i.lastRead = l.GetLastTxid(); l.GetSyncTxid() < i.lastRead {
		i.t.Errorf("synced to %d, and read to %d", l.GetSyncTxid(), i.lastRead)
	}
	if l.GetFirstTxid() != former+1 {
		i.missing++
	}
	return l.GetBatch()
}

func TestInotify(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(c *Config) { c.FeedBytes = 1 << 20 })
	c.datanode("d1")
	m := c.leader()
	fs := c.root()
	i := &inotify{t: t, rpc: m.rpc(t)}
	var current hadoop.GetCurrentEditLogTxidResponseProto
	must(t, i.rpc.Call(t.Context(), clientprotocol.Name, "getCurrentEditLogTxid", &hadoop.GetCurrentEditLogTxidRequestProto{}, &current))
	begin := current.GetTxid()
	i.lastRead = begin
	if got := i.poll(); len(got) > 0 {
		t.Errorf("before anything happened: %v", got)
	}
	want := change(t, fs, "/d")
	var got []string
	eventually(t, "all events have come", func() bool {
		for _, b := range i.poll() {
			for _, e := range b.GetEvents() {
				var line string
				switch e.GetType() {
				case hadoop.EventType_EVENT_CREATE:
					m := new(hadoop.CreateEventProto)
					must(t, m.UnmarshalVT(e.GetContents()))
					line = m.GetPath()
				case hadoop.EventType_EVENT_CLOSE:
					m := new(hadoop.CloseEventProto)
					must(t, m.UnmarshalVT(e.GetContents()))
					line = m.GetPath()
				case hadoop.EventType_EVENT_RENAME:
					m := new(hadoop.RenameEventProto)
					must(t, m.UnmarshalVT(e.GetContents()))
					line = m.GetSrcPath() + " " + m.GetDestPath()
				case hadoop.EventType_EVENT_UNLINK:
					m := new(hadoop.UnlinkEventProto)
					must(t, m.UnmarshalVT(e.GetContents()))
					line = m.GetPath()
				case hadoop.EventType_EVENT_METADATA:
					m := new(hadoop.MetadataUpdateEventProto)
					must(t, m.UnmarshalVT(e.GetContents()))
					line = m.GetPath() + " " + strings.TrimPrefix(m.GetType().String(), "META_TYPE_")
				}
				got = append(got, strings.TrimPrefix(e.GetType().String(), "EVENT_")+" "+line)
			}
		}
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) || i.missing > 0 {
		t.Fatalf("%q\nwant %q; %d times events were missing", got, want, i.missing)
	}
	// Who has read a batch goes on behind its transaction, and reads what comes after it.
	for _, path := range []string{"/small", "/another"} {
		_, err := c.raised().store(t, storing(path), smallBytes(300, 1))
		must(t, err)
	}
	i.lastRead = begin
	several, batches := 0, i.poll()
	for k, b := range batches {
		if len(b.GetEvents()) > 1 {
			several++
		}
		i.lastRead = b.GetTxid()
		if next := i.poll(); len(next) != len(batches)-k-1 {
			t.Errorf("behind batch %d of %d, of %d events, are %d", k+1, len(batches), len(b.GetEvents()), len(next))
		}
	}
	if several == 0 {
		t.Error("no batch has several events")
	}
	// Others may not.
	ann, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: "ann", DialTimeout: limit})
	must(t, err)
	defer ann.Close()
	for _, method := range []string{"getCurrentEditLogTxid", "getEditsFromTxid"} {
		err := ann.Call(t.Context(), clientprotocol.Name, method, &hadoop.GetEditsFromTxidRequestProto{Txid: ptr(int64(1))}, &hadoop.GetEditsFromTxidResponseProto{})
		if err == nil || !strings.Contains(err.Error(), "Superuser privilege is required") {
			t.Errorf("%s of a user: %v", method, err)
		}
	}
	// What is not kept any more is missing, and what follows is not.
	i.lastRead = begin
	m.feed.Reset(m.ns.AppliedIndex() + 1)
	if i.poll(); i.missing > 0 {
		t.Error("the events in front of a hole are not missing")
	}
	if i.poll(); i.missing != 1 {
		t.Errorf("%d times events were missing", i.missing)
	}
}

// A page begins where it was asked for, however much in front of its events the caller did not ask for: inotify takes another beginning for a hole.
func TestFeedPagesBeginWhereTheyWereAskedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	fs := c.root()
	begin, err := fs.EventsEnd(t.Context())
	must(t, err)
	for _, dir := range []string{"/a", "/b", "/c"} {
		must(t, fs.Mkdirs(t.Context(), dir, 0o755, true))
	}
	page, err := fs.Events(t.Context(), begin, dfs.EventsOptions{Path: "/c", Most: 1})
	must(t, err)
	if page.From != begin || page.Missing || len(page.Events) != 1 {
		t.Errorf("a page behind %d: %+v", begin, page)
	}
}

// Who is told of a part of an operation only is not told that it belongs to the one before.
func TestFeedOfAPartOfAnOperation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.raised()
	fs, ctx := c.root(), t.Context()
	for _, dir := range []string{"/mine/a", "/other/a"} {
		if err := fs.Mkdirs(ctx, dir, 0o755, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{fs.SetOwner(ctx, "/mine", "bob", ""), fs.SetPermission(ctx, "/other", 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	begin, err := fs.EventsEnd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := fs.Rename(ctx, "/mine/a", "/mine/b"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := fs.Publish(ctx, dfs.RenameStep{From: "/other/a", To: "/other/b"}, dfs.RenameStep{From: "/mine/b", To: "/mine/c"}, dfs.RenameStep{From: "/mine/c", To: "/mine/d"}); err != nil {
		t.Fatal(err)
	}
	for _, reader := range []struct {
		who  string
		fs   *dfs.Client
		path string
		want []string
	}{
		{"all of it", fs, "", []string{"/mine/b false", "/other/b false", "/mine/c true", "/mine/d true"}},
		{"by a path", fs, "/mine", []string{"/mine/b false", "/mine/c false", "/mine/d true"}},
		{"by rights", c.client("bob"), "", []string{"/mine/b false", "/mine/c false", "/mine/d true"}},
	} {
		var got []string
		for at := begin; len(got) < len(reader.want); {
			page, err := reader.fs.Events(ctx, at, dfs.EventsOptions{Path: reader.path, Wait: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Events {
				got = append(got, fmt.Sprint(e.Target, " ", e.Continued))
			}
			at = page.Next
		}
		if !slices.Equal(got, reader.want) {
			t.Errorf("%s: %q, want %q", reader.who, got, reader.want)
		}
	}
}

func TestFeedOnHTTP(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m, fs := c.leader(), c.root()
	begin, err := fs.EventsEnd(t.Context())
	must(t, err)
	want := change(t, fs, "/d")
	get := func(query, accept, last string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m.http+"/api/v1/events?"+query, nil)
		must(t, err)
		r.Header.Set("Accept", accept)
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	root := "&user.name=" + m.config.Door.Daemon()
	none, err := io.ReadAll(get("after=now"+root, "", "").Body)
	if must(t, err); !strings.Contains(string(none), `"events":[]`) {
		t.Errorf("nothing has happened: %s", none)
	}
	var page struct {
		From, Next string
		Missing    bool
		Events     []struct{ Position, Type, Path, Target, Update string }
	}
	answer := get("after="+begin.String()+root, "", "")
	must(t, json.NewDecoder(answer.Body).Decode(&page))
	var got []string
	for _, e := range page.Events {
		got = append(got, strings.TrimRight(e.Type+" "+e.Path+" "+e.Target+e.Update, " "))
	}
	if !slices.Equal(got, want) || page.Missing || page.From != begin.String() {
		t.Errorf("%q\nwant %q; %+v", got, want, page)
	}
	// A stream, which is broken and goes on.
	next := func(answer *http.Response) (events []string, ids []string) {
		t.Helper()
		if kind := answer.Header.Get("Content-Type"); kind != "text/event-stream" {
			text, _ := io.ReadAll(answer.Body)
			t.Fatalf("%s: %s %s", kind, answer.Status, text)
		}
		for lines := bufio.NewScanner(answer.Body); len(events) < 4 && lines.Scan(); {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				events = append(events, name)
			}
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				ids = append(ids, id)
			}
		}
		answer.Body.Close()
		return events, ids
	}
	events, ids := next(get("after="+begin.String()+root, "text/event-stream", ""))
	if fmt.Sprint(events) != "[CREATE CREATE CREATE CLOSE]" || ids[0] != begin.String() {
		t.Errorf("%q %q", events, ids)
	}
	events, _ = next(get("after=now"+root, "text/event-stream", ids[len(ids)-1]))
	if fmt.Sprint(events) != "[METADATA METADATA METADATA RENAME]" {
		t.Errorf("%q", events)
	}
	for _, bad := range []string{"after=x", "path=d", "limit=0", "limit=1000000", "wait=1h", "wait=x", "befor=1", "after=99999999999999999999999", "after=9000000000000000000", "path=/a&path=/b", "path=/a%zz", "path=/a;b"} {
		if answer := get(bad+root, "", ""); answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", bad, answer.Status)
		}
	}
}

// All members have the same feed, and who reads it goes on with another leader.
func TestFeedOfThree(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	fs := c.root()
	begin, err := fs.EventsEnd(t.Context())
	must(t, err)
	want := change(t, fs, "/d")
	first := watched(t, fs, begin, "", len(want))
	lead := c.leader()
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" has the feed", func() bool {
			page, err := m.feed.Read(begin, 1000, 1<<20)
			must(t, err)
			if len(page.Events) < len(want) || page.Missing {
				return false
			}
			for i, e := range page.Events {
				if e.Position != first[i].Position || e.Path != first[i].Path {
					t.Fatalf("%s: %+v, another one has %+v", m.config.ID, e, first[i])
				}
			}
			return true
		})
	}
	lead.stop()
	for i, m := range c.nodes {
		if m.Server == lead.Server {
			c.nodes[i] = nil
		}
	}
	c.leader()
	want = change(t, fs, "/e")
	if got := lines(watched(t, fs, first[len(first)-1].Position, "", len(want))); !slices.Equal(got, want) {
		t.Errorf("after a failover: %q\nwant %q", got, want)
	}
}
