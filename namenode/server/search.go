package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/search"
	"github.com/gohops/hops/namenode"
)

// searching is the index of names, tags and sizes, and what it lies in.
type searching struct {
	index *search.Index // nil: there is none
	store *badger.Store
	dir   string
	// turns are half as many as there are processors, and half of them one user's. One that takes long is busy for half of the time (search.Index.Find).
	turns turns

	mu    sync.Mutex
	at    time.Time
	bytes int64 // on disk, then
}

// searchMemtable is the size of the memory tables of the index's store. There are up to four.
const searchMemtable = 8 << 20

// openSearch opens the index. A namenode whose index cannot be opened goes on without it.
func (s *Server) openSearch() {
	c := &s.config
	if !c.Search || s.feed == nil {
		return
	}
	dir := filepath.Join(c.Dir, "search")
	err := openable(dir)
	var store *badger.Store
	if err == nil {
		store, err = badger.Open(dir, badger.Options{Memtable: searchMemtable, Logger: s.log.With("store", "search")})
	}
	var x *search.Index
	if err == nil {
		x, err = search.Open(search.Config{
			Store: guarded{store, c.Host.Room}, Namespace: s.ns, Feed: s.feed, Applied: func() uint64 { return s.group.Applied() },
			Checkpoint: func() error { return s.group.Save() }, Logger: s.log,
		})
	}
	if err != nil {
		if store != nil {
			err = errors.Join(err, store.Close())
		}
		s.log.Error("there is no search index until the next start: it cannot be opened", "dir", dir, "error", err)
		return
	}
	s.search.index, s.search.store, s.search.dir = x, store, dir
	s.search.turns.most = max(2, runtime.GOMAXPROCS(0)/2)
	s.search.turns.mostOfOne = s.search.turns.most / 2
}

// runSearch has the index follow until ctx ends.
func (s *Server) runSearch(ctx context.Context) error {
	if s.search.index != nil {
		s.search.index.Run(ctx)
	}
	return nil
}

func (s *Server) closeSearch() {
	if s.search.store == nil {
		return
	}
	s.search.index.Close() // who searches has ended then
	if err := s.search.store.Close(); err != nil {
		s.log.Warn("the search index was not closed well", "error", err)
	}
}

// size is what the index takes on disk. It looks every ten seconds.
func (s *searching) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() && time.Since(s.at) < 10*time.Second {
		return s.bytes
	}
	s.bytes = 0
	// A file that goes while this looks does not matter.
	_ = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(path, ".sst") {
			if info, err := d.Info(); err == nil {
				s.bytes += info.Size()
			}
		}
		return nil
	})
	s.at = time.Now()
	return s.bytes
}

func (s *searching) status() *namenode.SearchStatus {
	if s.index == nil {
		return nil
	}
	st := s.index.Status()
	return &namenode.SearchStatus{
		State: string(st.State), Problem: st.Problem, Done: st.Done, Total: st.Total, Position: st.Position, FeedEnd: st.FeedEnd, Lag: st.Lag.Milliseconds(),
		Entries: st.Entries, Bytes: s.size(), Waiting: st.Waiting, Rebuilds: st.Rebuilds,
	}
}

// searchIndex is the index, if there is one.
func (s *Server) searchIndex() (*search.Index, error) {
	switch {
	case !s.config.Search:
		return nil, metadata.Errorf(metadata.ErrUnsupported, "search is turned off on namenode %s: search: true in the section namenode of its configuration turns it on", s.config.ID)
	case s.search.index == nil:
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the search index of namenode %s could not be opened: its log tells why", s.config.ID)
	}
	return s.search.index, nil
}

// searchPlace is the index, and a place among those who wait or read, to be given back.
func (s *Server) searchPlace(c metadata.Caller) (*search.Index, error) {
	x, err := s.searchIndex()
	if err == nil && !s.Active() && !s.Observes() {
		err = namenode.ErrStandbyRead
	}
	if err == nil {
		err = s.watchers.take(c.User)
	}
	return x, err
}

// Search implements namenode.Search.
func (s *Server) Search(ctx context.Context, c metadata.Caller, r namenode.SearchRequest, done func(*metadata.FoundPage, error)) {
	x, err := s.searchPlace(c)
	if err != nil {
		done(nil, err)
		return
	}
	go func() {
		page, err := s.find(ctx, x, c, r)
		s.watchers.give(c.User)
		if err == nil && r.Admit != nil {
			err = r.Admit(page.Size())
		}
		if err != nil {
			done(nil, err)
			return
		}
		done(page, nil)
	}()
}

func (s *Server) find(ctx context.Context, x *search.Index, c metadata.Caller, r namenode.SearchRequest) (*metadata.FoundPage, error) {
	if r.After > 0 {
		if err := s.awaitSearch(ctx, x, r); err != nil {
			return nil, err
		}
	}
	q, of := r.Query, cursorOf(c, r.Query)
	if q.Cursor != "" {
		sealed, err := base64.RawURLEncoding.DecodeString(q.Cursor[:min(len(q.Cursor), maxCursor)])
		var key []byte
		if err == nil {
			key, err = s.config.Credentials.Open(cursorPurpose, of, sealed)
		}
		if err != nil {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "search: the cursor %.60q is not one of this query, of this user", q.Cursor)
		}
		q.Cursor = string(key)
	}
	if !s.search.turns.take(c.User, s.stopped) {
		return nil, namenode.ErrStandbyRead
	}
	defer s.search.turns.give(c.User)
	page, err := x.Find(ctx, c, q)
	switch {
	case errors.Is(err, os.ErrClosed):
		return nil, namenode.ErrStandbyRead
	case err != nil:
		return nil, err
	}
	if page.Next != "" {
		page.Next = base64.RawURLEncoding.EncodeToString(s.config.Credentials.Seal(cursorPurpose, of, []byte(page.Next)))
	}
	if !c.Superuser {
		page.Looked = 0
	}
	return page, nil
}

// A cursor is a key of the index, perhaps with the name or the tag of a file that the caller may not see. So it is sealed, and good for one caller and
// one query, on all namenodes of the cluster.
const (
	cursorPurpose = "search cursor"
	maxCursor     = 4096
)

// cursorOf is what a cursor belongs to.
func cursorOf(c metadata.Caller, q metadata.Query) string {
	q.Cursor, q.Limit = "", 0
	text, _ := json.Marshal(struct { // of strings, numbers and the like: it does not fail
		User  string
		Query metadata.Query
	}{c.User, q})
	return string(text)
}

// awaitSearch waits until what is in front of a position can be searched.
func (s *Server) awaitSearch(ctx context.Context, x *search.Index, r namenode.SearchRequest) error {
	wait := r.Wait
	if wait <= 0 {
		wait = namenode.DefaultSearchWait
	}
	ctx, stop := context.WithTimeout(ctx, min(wait, namenode.MaxSearchWait))
	defer stop()
	defer context.AfterFunc(s.watching, stop)()
	if now := metadata.EndOf(s.ns.AppliedIndex()); r.After > now && s.Active() {
		return metadata.Errorf(metadata.ErrInvalidArgument, "position %v is ahead of the last change, at %v: it is of another cluster, or of this one before it was restored from a backup", r.After, now)
	}
	err := s.group.AwaitApplied(ctx, r.After.Entry())
	if err == nil {
		err = x.Await(ctx, r.After)
	}
	if err != nil && ctx.Err() != nil {
		st := x.Status()
		why := st.Problem
		if why == "" {
			why = "it is behind"
		}
		return metadata.Errorf(metadata.ErrRetriable, "the search index of this namenode is at position %v, and has not come to %v in %v: %s; come again", st.Position, r.After, wait, why)
	}
	return err
}

// SearchStatus implements namenode.Search.
func (s *Server) SearchStatus(_ metadata.Caller, done func(*namenode.SearchStatus, error)) {
	if _, err := s.searchIndex(); err != nil {
		done(nil, err)
		return
	}
	done(s.search.status(), nil)
}

// RebuildSearch implements namenode.Search.
func (s *Server) RebuildSearch(c metadata.Caller, done func(error)) {
	x, err := s.searchIndex()
	if err == nil && !c.Superuser {
		err = metadata.NeedsSuperuser(c.User, "rebuildSearch")
	}
	if err == nil {
		x.Rebuild()
	}
	done(err)
}

// The door of search on HTTP: GET /api/v1/search. docs/reference/rest.md describes it.

const searchRoute = "GET /api/v1/search"

func (s *Server) serveSearch(w http.ResponseWriter, r *http.Request) {
	caller, err := s.config.Door.HTTPCaller(r)
	var request namenode.SearchRequest
	if err == nil {
		request, err = searchRequest(r)
	}
	page, give, err := s.searchFor(r.Context(), caller, "rest", request, err)
	if err != nil {
		eventsProblem(w, err)
		return
	}
	defer give() // when the answer is read
	if page.Found == nil {
		page.Found = []metadata.Found{} // in JSON a list, not null
	}
	s.writePage(w, page)
}

// searchFor is a page for who waits for it, by a port, and records that it was let in; the place it took is given back by give. err is what the
// request was refused for before.
func (s *Server) searchFor(ctx context.Context, c metadata.Caller, port string, r namenode.SearchRequest, err error) (page *metadata.FoundPage, give func(), _ error) {
	var x *search.Index
	if err == nil {
		x, err = s.searchPlace(c)
	}
	if err == nil {
		give = func() { s.watchers.give(c.User) }
		if page, err = s.find(ctx, x, c, r); err != nil {
			give()
		}
	}
	d := security.Decision{Allowed: !security.Refused(err), Caller: c, Port: port, Command: "search", Source: r.Path, Read: true}
	if err != nil {
		d.Reason = err.Error()
	}
	s.config.Door.Record(d)
	return page, give, err
}

// searchRequest reads a query.
func searchRequest(r *http.Request) (q namenode.SearchRequest, err error) {
	bad := func(format string, args ...any) (namenode.SearchRequest, error) {
		return q, metadata.Errorf(metadata.ErrInvalidArgument, format, args...)
	}
	query, err := parameters(r, []string{"path", "name", "iname", "tag", "size", "type", "limit", "cursor", "after", "wait"}, "tag", "size")
	if err != nil {
		return q, err
	}
	q.Path, q.Name, q.Cursor = query.Get("path"), query.Get("name"), query.Get("cursor")
	if q.Path == "" {
		q.Path = "/"
	}
	if folded := query.Get("iname"); folded != "" {
		if q.Name != "" {
			return bad("there are name and iname: one of them is enough")
		}
		q.Name, q.Fold = folded, true
	}
	for _, text := range query["tag"] {
		q.Tags = append(q.Tags, metadata.ParseTag(text))
	}
	for _, text := range query["size"] {
		if err := size.Bound(text, &q.Min, &q.Max); err != nil {
			return bad("size: %v", err)
		}
	}
	switch kind := query.Get("type"); kind {
	case "", "f", "d":
		q.Files, q.Directories = kind == "f", kind == "d"
	default:
		return bad("type: %.40q is neither f nor d", kind)
	}
	if text := query.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > metadata.MaxQueryLimit {
			return bad("limit: %.40q is not a number from 1 to %d", text, metadata.MaxQueryLimit)
		}
	}
	if text := query.Get("wait"); text != "" {
		if q.Wait, err = time.ParseDuration(text); err != nil || q.Wait < 0 || q.Wait > namenode.MaxSearchWait {
			return bad("wait: %.40q is not a duration up to %v (example: 10s)", text, namenode.MaxSearchWait)
		}
	}
	if text := query.Get("after"); text != "" {
		q.After, err = metadata.ParsePosition(text)
	}
	return q, err
}
