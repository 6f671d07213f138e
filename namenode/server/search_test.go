package server

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// found are the paths that a query finds, once the index has what is in front of a position.
func found(t *testing.T, c *dfs.Client, q metadata.Query, after metadata.Position) (paths []string, err error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		paths = nil
		err := c.FindAll(t.Context(), q, after, func(f metadata.Found) bool {
			paths = append(paths, f.Path)
			return true
		})
		if metadata.KindOf(err) == metadata.ErrRetriable && time.Now().Before(deadline) { // it is rebuilt
			time.Sleep(10 * time.Millisecond)
			continue
		}
		slices.Sort(paths)
		return paths, err
	}
}

// What is changed is found, by who waits for the change, with the rights of who asks; after a failover, and after a rebuild, too.
func TestSearch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(conf *Config) { conf.Search = true })
	ctx, fs := t.Context(), c.root()
	want := func(who *dfs.Client, q metadata.Query, paths ...string) {
		t.Helper()
		after, err := fs.EventsEnd(ctx)
		must(t, err)
		got, err := found(t, who, q, after)
		if err != nil || !slices.Equal(got, paths) {
			t.Fatalf("%+v: %q, %v, want %q", q, got, err, paths)
		}
	}
	must(t, fs.Mkdirs(ctx, "/data/closed", 0o755, true))
	must(t, fs.WriteFile(ctx, "/data/part-1", nil, false))
	must(t, fs.WriteFile(ctx, "/data/closed/part-2", nil, false))
	must(t, fs.SetXAttr(ctx, "/data/part-1", metadata.XAttr{Name: "team", Value: []byte("vision")}, dfs.XAttrCreate))
	value := "vision"
	tagged := metadata.Query{Path: "/", Tags: []metadata.TagCondition{{Name: "team", Value: &value}}}
	parts := metadata.Query{Path: "/data", Name: "part-*", Limit: 1}
	want(fs, tagged, "/data/part-1")
	st, err := fs.Stat(ctx, "/data/part-1")
	must(t, err)
	if page, err := fs.Find(ctx, tagged, 0); err != nil || len(page.Found) != 1 || page.Looked != 1 {
		t.Errorf("%+v, %v", page, err)
	} else if f := page.Found[0]; f.ID != st.ID || f.Name != "part-1" || f.Type != st.Type || f.Owner != st.Owner || f.Group != st.Group || f.Mode != st.Mode ||
		f.MTime != st.MTime || f.Replication != st.Replication || f.BlockSize != st.BlockSize || len(f.XAttrs) != 1 || string(f.XAttrs[0].Value) != value {
		t.Errorf("%+v, want %+v", f, st)
	}
	want(fs, parts, "/data/closed/part-2", "/data/part-1")
	alice := c.client("alice")
	want(alice, parts, "/data/closed/part-2", "/data/part-1")
	must(t, fs.SetPermission(ctx, "/data/closed", 0o711))
	want(alice, parts, "/data/part-1")
	_, err = fs.Rename(ctx, "/data", "/moved")
	must(t, err)
	want(fs, tagged, "/moved/part-1")
	if _, err := found(t, fs, parts, 0); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("a path that is gone: %v", err)
	}
	if _, err := fs.Find(ctx, tagged, metadata.EndOf(1<<40)); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("a position ahead: %v", err)
	}
	if err := alice.RebuildSearchAt(ctx, c.leader().ipc); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("anybody has it rebuilt: %v", err)
	}
	must(t, fs.RebuildSearchAt(ctx, c.leader().ipc))
	want(fs, tagged, "/moved/part-1")
	if s, err := fs.SearchStatusAt(ctx, c.leader().ipc); err != nil || s.Rebuilds < 1 || s.State != "following" {
		t.Errorf("%+v, %v", s, err)
	}
	var lags []time.Duration
	for i := range 20 {
		path := fmt.Sprintf("/moved/own-%d", i)
		must(t, fs.WriteFile(ctx, path, nil, false))
		began := time.Now()
		want(fs, metadata.Query{Path: "/", Name: fmt.Sprintf("own-%d", i)}, path)
		lags = append(lags, time.Since(began))
	}
	slices.Sort(lags)
	t.Logf("a change is found after %v, at most %v", lags[len(lags)/2], lags[len(lags)-1])

	old := c.leader()
	old.stop()
	for i, m := range c.nodes {
		if m == old {
			c.nodes[i] = nil
		}
	}
	c.leader()
	must(t, fs.WriteFile(ctx, "/moved/later", nil, false))
	want(fs, metadata.Query{Path: "/moved", Name: "later"}, "/moved/later")
	want(fs, tagged, "/moved/part-1")
}

// REST gives pages of JSON, and problems for what cannot be asked.
func TestSearchByREST(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(conf *Config) { conf.Search = true })
	ctx, fs := t.Context(), c.root()
	must(t, fs.WriteFile(ctx, "/a", nil, false))
	must(t, fs.WriteFile(ctx, "/b", nil, false))
	must(t, fs.SetXAttr(ctx, "/b", metadata.XAttr{Name: "team", Value: []byte("vision")}, dfs.XAttrCreate))
	after, err := fs.EventsEnd(ctx)
	must(t, err)
	_, err = found(t, fs, metadata.Query{Path: "/"}, after)
	must(t, err)
	get := func(query string) (int, map[string]any) {
		t.Helper()
		r, err := http.Get("http://" + c.nodes[0].http + "/api/v1/search?" + query)
		must(t, err)
		defer r.Body.Close()
		var v map[string]any
		must(t, json.NewDecoder(r.Body).Decode(&v))
		return r.StatusCode, v
	}
	who := "user.name=" + url.QueryEscape(c.nodes[0].config.Door.Daemon())
	code, v := get(who + "&tag=team%3Dvision&type=f&size=0&after=" + after.String())
	list, _ := v["found"].([]any)
	if code != 200 || len(list) != 1 {
		t.Fatalf("%d %v", code, v)
	}
	one := list[0].(map[string]any)
	if one["path"] != "/b" || one["type"] != "FILE" || one["tags"].(map[string]any)["team"] != "vision" {
		t.Errorf("%v", one)
	}
	if code, v := get(who + "&name=nothing"); code != 200 || v["found"] == nil {
		t.Errorf("%d, what is not there: %v", code, v)
	}
	for query, want := range map[string]int{
		"path=/d&path=/": 400, "path=/d%zz": 400, "path=/d;e": 400, "tag=a&tag=b": 200, "size=%2B1&size=-5": 200,
		"colour=red": 400, "name=[": 400, "size=big": 400, "type=x": 400, "limit=0": 400, "limit=1001": 400, "cursor=x": 400, "after=-1": 400, "wait=1h": 400,
		"path=a": 400, "path=/none": 404, "name=a&iname=b": 400, "tag=": 400, "size=%2B1&type=d": 400,
	} {
		if code, v := get(who + "&" + query); code != want || v["detail"] == "" {
			t.Errorf("%s: %d %v, want %d", query, code, v, want)
		}
	}
}

// A cursor is good for its user and its query, on every namenode that has an index, and tells nothing.
func TestSearchCursors(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(conf *Config) { conf.Search = true })
	ctx, fs, alice := t.Context(), c.root(), c.client("alice")
	must(t, fs.Mkdirs(ctx, "/open", 0o755, true))
	must(t, fs.Mkdirs(ctx, "/closed", 0o755, true))
	for i := range 3 {
		must(t, fs.WriteFile(ctx, fmt.Sprintf("/open/public-%d", i), nil, false))
	}
	must(t, fs.WriteFile(ctx, "/closed/public-secret", nil, false))
	must(t, fs.SetPermission(ctx, "/closed", 0o700))
	after, err := fs.EventsEnd(ctx)
	must(t, err)
	q := metadata.Query{Path: "/", Name: "public-*", Limit: 2}
	all, err := found(t, alice, q, after)
	if err != nil || len(all) != 3 {
		t.Fatalf("%q, %v", all, err)
	}
	page, err := alice.Find(ctx, q, after)
	must(t, err)
	if page.Next == "" || page.Looked != 0 {
		t.Fatalf("%+v", page)
	}
	if raw, err := base64.RawURLEncoding.DecodeString(page.Next); err != nil || bytes.Contains(raw, []byte("public")) {
		t.Errorf("the cursor %q: %v", page.Next, err)
	}
	q.Cursor, q.Limit = page.Next, 100
	if page, err := alice.Find(ctx, q, after); err != nil || len(page.Found) != 1 || page.Next != "" {
		t.Errorf("the rest, with another limit: %+v, %v", page, err)
	}
	other, changed, long := q, q, q
	other.Name, changed.Cursor, long.Cursor = "public-s*", q.Cursor[:20]+"AAAA"+q.Cursor[24:], strings.Repeat("A", 10_000)
	for what, try := range map[string]struct {
		who *dfs.Client
		q   metadata.Query
	}{"another user's": {fs, q}, "another query's": {alice, other}, "changed": {alice, changed}, "long": {alice, long}} {
		if _, err := try.who.Find(ctx, try.q, after); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.nodes[0].stop()
	c.start(0)
	c.await(0)
	alice = c.client("alice")
	if got, err := found(t, alice, q, after); err != nil || len(got) != 1 {
		t.Errorf("after a start: %q, %v", got, err)
	}
	if s, err := c.root().SearchStatusAt(ctx, c.nodes[0].ipc); err != nil || s.Rebuilds != 0 || s.State != "following" {
		t.Errorf("after a start: %+v, %v", s, err)
	}
	for what, q := range map[string]metadata.Query{
		"many tags":     {Path: "/", Tags: make([]metadata.TagCondition, metadata.MaxQueryTags+1)},
		"a long name":   {Path: "/", Name: strings.Repeat("a", 1025)},
		"a bad pattern": {Path: "/", Name: "["},
		"a snapshot":    {Path: "/open/.snapshot/s1"},
		"no tag's name": {Path: "/", Tags: []metadata.TagCondition{{}}},
	} {
		if _, err := alice.Find(ctx, q, 0); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := alice.Find(ctx, metadata.Query{Path: "/closed/x"}, 0); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("below what is closed: %v", err)
	}
}

// Without an index searches are refused, with how to turn it on.
func TestSearchIsOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	fs := c.root()
	if _, err := fs.Find(t.Context(), metadata.Query{Path: "/"}, 0); !errors.Is(err, metadata.ErrUnsupported) {
		t.Error(err)
	}
	if err := fs.RebuildSearchAt(t.Context(), c.nodes[0].ipc); !errors.Is(err, metadata.ErrUnsupported) {
		t.Error(err)
	}
}
