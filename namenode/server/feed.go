package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// openFeed opens the feed of changes. A namenode whose feed cannot be opened goes on without it: it serves files, and says that it has no feed.
func (s *Server) openFeed() {
	c := &s.config
	if c.FeedBytes < 0 {
		return
	}
	dir := filepath.Join(c.Dir, "feed")
	err := os.MkdirAll(dir, 0o700)
	var l *feed.Log
	if err == nil {
		l, err = feed.Open(feed.Config{Dir: dir, Bytes: c.FeedBytes, Age: c.FeedAge, Applied: s.ns.AppliedIndex(), Room: c.Host.Room, Logger: s.log})
	}
	if err != nil {
		s.log.Error("there is no feed of changes until the next start: it cannot be opened", "dir", dir, "error", err)
		return
	}
	s.feed = l
}

func (s *Server) closeFeed() {
	if s.feed == nil {
		return
	}
	if err := s.feed.Close(); err != nil { // what is not in it comes again with the log
		s.log.Warn("the feed of changes was not closed well", "error", err)
	}
}

// onEvents runs on the goroutine of Apply.
func (s *Server) onEvents(index uint64, logTime namespace.LogTime, events []metadata.Event) {
	if s.feed != nil {
		s.feed.Append(index, int64(logTime), events)
	}
}

// onCheckpoint makes events durable before the log from which they come may go. Where that fails the checkpoint goes on: the namespace does not wait
// for its feed, whose readers are told after the next start if something is missing then.
func (s *Server) onCheckpoint(index uint64) {
	if s.feed == nil {
		return
	}
	if err := s.feed.Sync(index); err != nil {
		s.log.Warn("the feed of changes is not durable: after a power cut events may be missing, and readers are told", "entry", index, "error", err)
	}
}

// How many may wait for events or read them at a time, all together and of one user.
const (
	maxWatchers       = 1000
	maxWatchersOfUser = 100
)

// watchers counts who reads the feed.
type watchers struct {
	mu    sync.Mutex
	all   int
	users map[string]int
}

// take takes a place for a user, or says why there is none.
func (w *watchers) take(user string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all >= maxWatchers || w.users[user] >= maxWatchersOfUser {
		return metadata.Errorf(metadata.ErrRetriable, "too many read the feed of changes: %d, %d of them %s; %d and %d may: come again", w.all, w.users[user], user, maxWatchers, maxWatchersOfUser)
	}
	if w.users == nil {
		w.users = map[string]int{}
	}
	w.users[user]++
	w.all++
	return nil
}

func (w *watchers) give(user string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	if w.users[user]--; w.users[user] == 0 {
		delete(w.users, user)
	}
}

// Each change wakes all who wait. So that what they read in vain, and how often they read at all, does not take the processors from everybody else, a
// reader lets changes gather before it looks: for gather for each of those who read, so that there is one look in that time, and for twice as long
// after each look that found nothing for it, up to gatherMost.
const (
	gather     = 200 * time.Microsecond
	gatherVain = 5 * time.Millisecond
	gatherMost = 500 * time.Millisecond
)

// share is for how long a reader lets changes gather.
func (w *watchers) share() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.all) * gather
}

// nap waits for a time, or until ctx is done.
func nap(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// feedFor is the feed, for a member that may tell of it: one that leads, or has lately had all that was committed, so that it knows about rights.
func (s *Server) feedFor() (*feed.Log, error) {
	switch {
	case s.config.FeedBytes < 0:
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the feed of changes is turned off on this namenode (namenode.feed)")
	case !s.Active() && !s.Observes():
		return nil, namenode.ErrStandbyRead
	case s.feed == nil:
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the feed of changes of this namenode could not be opened: its log tells why")
	}
	return s.feed, nil
}

// EventsEnd implements namenode.Feed.
func (s *Server) EventsEnd(c metadata.Caller, done func(metadata.Position, error)) {
	if _, err := s.feedFor(); err != nil {
		done(0, err)
		return
	}
	end := func(err error) {
		if err != nil {
			done(0, err)
			return
		}
		done(metadata.EndOf(s.ns.AppliedIndex()), nil)
	}
	if s.Active() {
		s.read(&c, end)
		return
	}
	end(nil)
}

// Events implements namenode.Feed.
func (s *Server) Events(ctx context.Context, c metadata.Caller, r namenode.EventsRequest, done func(*metadata.EventPage, error)) {
	if _, err := s.feedFor(); err != nil {
		done(nil, err)
		return
	}
	if r.Path != "" && !strings.HasPrefix(r.Path, "/") {
		done(nil, metadata.Errorf(metadata.ErrInvalidArgument, "path %.100q is not absolute", r.Path))
		return
	}
	if err := s.watchers.take(c.User); err != nil {
		done(nil, err)
		return
	}
	s.beside(func(err error) { done(nil, err) }, func() {
		page, err := func() (*metadata.EventPage, error) {
			defer s.watchers.give(c.User)
			return s.events(ctx, c, r)
		}()
		if err != nil {
			done(nil, err)
			return
		}
		done(page, nil)
	})
}

const (
	// maxEventBytes is about how much memory the events of a page take, but for those of one operation. All that may read at a time hold a
	// page each, and its text, for as long as they do not take it.
	maxEventBytes = 256 << 10
	// maxScanned is how many pages are looked through for one answer: a caller who may see nothing of much gets an empty page that leads on.
	maxScanned = 16
)

func (s *Server) events(ctx context.Context, c metadata.Caller, r namenode.EventsRequest) (*metadata.EventPage, error) {
	asked := ctx
	ctx, stop := context.WithTimeout(ctx, min(max(r.Wait, 0), namenode.MaxEventsWait))
	defer stop()
	defer context.AfterFunc(s.watching, stop)()
	most := r.Most
	if most <= 0 || most > namenode.MaxEvents {
		most = namenode.MaxEvents
	}
	if r.Wait > 0 {
		nap(ctx, s.watchers.share())
	}
	at, vain := r.After, time.Duration(0)
	for scanned := 0; ; scanned++ {
		l, err := s.feedFor()
		if err != nil {
			return nil, err
		}
		if s.isAhead(at) && s.Active() {
			// Another member may have been faster.
			if s.group.ReadWait(asked) != nil {
				return nil, namenode.ErrStandbyRead
			}
		}
		if s.isAhead(at) && s.Active() {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "position %v is ahead of the last change, at %v: it is of another cluster, or of this one before it was restored from a backup", at, l.End())
		}
		page, err := s.pageOf(l, &c, r, at, most)
		if err != nil {
			return nil, err
		}
		ended := page.Next == at && !page.Missing
		at = page.Next
		if !page.Missing { // however much of it was nothing that the caller wants
			page.From = r.After
		}
		if len(page.Events) > 0 || page.Missing {
			if r.Admit != nil {
				err = r.Admit(sizeOfEvents(page.Events))
			}
			return page, err
		}
		if !ended {
			if scanned < maxScanned {
				continue
			}
			return page, nil
		}
		scanned = 0
		if err := l.Wait(ctx, at); errors.Is(err, os.ErrClosed) {
			return nil, namenode.ErrStandbyRead
		} else if err != nil {
			return page, nil
		}
		nap(ctx, max(vain, s.watchers.share()))
		vain = min(max(2*vain, gatherVain), gatherMost)
	}
}

// isAhead reports whether a position is behind everything that this member has applied.
func (s *Server) isAhead(at metadata.Position) bool { return at > metadata.EndOf(s.ns.AppliedIndex()) }

// pageOf is the next page of what a caller asks for, in one's turn.
func (s *Server) pageOf(l *feed.Log, c *metadata.Caller, r namenode.EventsRequest, at metadata.Position, most int) (*metadata.EventPage, error) {
	if !s.long.take(c.User, s.stopped) {
		return nil, namenode.ErrStandbyRead
	}
	defer s.long.give(c.User)
	page, err := l.Read(at, most, maxEventBytes)
	if err != nil { // which may pass
		if now, warned := time.Now().Unix(), s.feedWarned.Load(); now-warned >= 60 && s.feedWarned.CompareAndSwap(warned, now) {
			s.log.Warn("the feed of changes cannot be read", "at", at, "error", err)
		}
		return nil, metadata.Errorf(metadata.ErrRetriable, "the feed of changes of this namenode cannot be read at the moment: its log tells why")
	}
	began := operations(page.Events)
	page.Events = about(page.Events, r.Path)
	if !c.Superuser {
		if page.Events, err = s.ns.VisibleEvents(*c, page.Events); err != nil {
			return nil, err
		}
		page.Events = about(page.Events, r.Path) // whose hidden end of a rename is no answer to a guess
	}
	rejoin(page.Events, began)
	return &page, nil
}

// operations are the positions of the first events of those operations that have several.
func operations(events []metadata.Event) (began []metadata.Position) {
	for i := 1; i < len(events); i++ {
		if events[i].Continued && !events[i-1].Continued {
			began = append(began, events[i-1].Position)
		}
	}
	return began
}

// rejoin makes events go on with what is left of their own operations only: when those before them were left out, they would belong to another one.
func rejoin(events []metadata.Event, began []metadata.Position) {
	at := 0
	for i := range events {
		e := &events[i]
		if !e.Continued {
			continue
		}
		for at+1 < len(began) && began[at+1] <= e.Position {
			at++
		}
		if at < len(began) && began[at] <= e.Position { // else it began before all of these
			e.Continued = i > 0 && events[i-1].Position >= began[at]
		}
	}
}

// about leaves of events those that concern a path, if there is one.
func about(events []metadata.Event, path string) []metadata.Event {
	if path == "" {
		return events
	}
	return slices.DeleteFunc(events, func(e metadata.Event) bool { return !concerns(&e, path) })
}

// concerns reports whether an event is about a path, what is below it, or takes away a directory above it.
func concerns(e *metadata.Event, path string) bool {
	for _, end := range [...]string{e.Path, e.Target} {
		gone := e.Kind == metadata.EventUnlink || e.Kind == metadata.EventRename
		if end != "" && (below(end, path) || gone && below(path, end)) {
			return true
		}
	}
	return false
}

// sizeOfEvents is about how many bytes an answer with events takes.
func sizeOfEvents(events []metadata.Event) (size int64) {
	for i := range events {
		e := &events[i]
		size += 200 + int64(len(e.Path)+len(e.Target)+len(e.Owner)+len(e.Group)+40*len(e.ACL))
		for _, x := range e.XAttrs {
			size += int64(len(x.Name)+len(x.Value)) * 3 / 2
		}
	}
	return size
}

// The door of the feed on HTTP: GET /api/v1/events. docs/reference/rest.md describes it.

const (
	eventsRoute = "GET /api/v1/events"
	// streamLife is how long a stream goes on: its reader comes again then, and shows again who it is.
	streamLife = time.Hour
	// streamKept is how much memory a stream keeps while it has nothing to say.
	streamKept = 16 << 10
)

// serveEvents answers with a page, or, for who accepts that, with a stream of server-sent events.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	caller, err := s.config.Door.HTTPCaller(r)
	var request namenode.EventsRequest
	if err == nil {
		request, err = s.eventsRequest(r, caller)
	}
	err = s.takeReader(caller, "rest", request.Path, err)
	if err != nil {
		eventsProblem(w, err)
		return
	}
	defer s.watchers.give(caller.User)
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		s.streamEvents(w, r, caller, request)
		return
	}
	page, err := s.events(r.Context(), caller, request)
	if err != nil {
		eventsProblem(w, err)
		return
	}
	if page.Events == nil {
		page.Events = []metadata.Event{} // in JSON a list, not null
	}
	s.writePage(w, page)
}

// takeReader takes a place for who reads the feed, to be given back, and records that it was let in. err is what the request was refused for before.
func (s *Server) takeReader(c metadata.Caller, port, path string, err error) error {
	if err == nil {
		_, err = s.feedFor()
	}
	if err == nil {
		err = s.watchers.take(c.User)
	}
	d := security.Decision{Allowed: !security.Refused(err), Caller: c, Port: port, Command: "readEvents", Source: path, Read: true}
	if err != nil {
		d.Reason = err.Error()
	}
	s.config.Door.Record(d)
	return err
}

// writePage answers with a page, for a client who takes it.
func (s *Server) writePage(w http.ResponseWriter, page any) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(s.config.patience)) // recorders in tests have none
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()    // of the next request of the connection
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(page) // fails only when the client is gone
}

func eventsProblem(w http.ResponseWriter, err error) {
	status := userStatus(err)
	if errors.Is(err, metadata.ErrStandby) {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": err.Error()})
}

// eventsRequest reads a query. Who says no position begins at the end.
func (s *Server) eventsRequest(r *http.Request, c metadata.Caller) (e namenode.EventsRequest, err error) {
	query, err := parameters(r, []string{"after", "path", "limit", "wait"})
	if err != nil {
		return e, err
	}
	e.Path = query.Get("path")
	if e.Path != "" && !strings.HasPrefix(e.Path, "/") {
		return e, metadata.Errorf(metadata.ErrInvalidArgument, "path: %.100q is not absolute", e.Path)
	}
	if text := query.Get("limit"); text != "" {
		if e.Most, err = strconv.Atoi(text); err != nil || e.Most < 1 || e.Most > namenode.MaxEvents {
			return e, metadata.Errorf(metadata.ErrInvalidArgument, "limit: %.40q is not a number from 1 to %d", text, namenode.MaxEvents)
		}
	}
	if text := query.Get("wait"); text != "" {
		if e.Wait, err = time.ParseDuration(text); err != nil || e.Wait < 0 || e.Wait > namenode.MaxEventsWait {
			return e, metadata.Errorf(metadata.ErrInvalidArgument, "wait: %.40q is not a duration up to %v (example: 10s)", text, namenode.MaxEventsWait)
		}
	}
	after := query.Get("after")
	if last := r.Header.Get("Last-Event-ID"); last != "" { // a stream that was broken
		after = last
	}
	if after != "" && after != "now" {
		e.After, err = metadata.ParsePosition(after)
		return e, err
	}
	e.After, err = s.endFor(r.Context(), c)
	return e, err
}

// parameters are those of a request's query. What would not be heeded is refused: what cannot be read, parameters that there are none of, and those that are there twice, but for the ones that may be.
func parameters(r *http.Request, known []string, often ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "the query cannot be read: %.200v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch n := len(query[name]); {
		case !slices.Contains(known, name) && !slices.Contains([]string{"user.name", "doas", "delegation"}, name):
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "unknown parameter %.40q: there are %s", name, strings.Join(known, ", "))
		case n > 1 && !slices.Contains(often, name):
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%s is there %d times: once is enough", name, n)
		}
	}
	return query, nil
}

// endFor is EventsEnd for who waits for it.
func (s *Server) endFor(ctx context.Context, c metadata.Caller) (metadata.Position, error) {
	type answer struct {
		position metadata.Position
		err      error
	}
	end := make(chan answer, 1)
	s.EventsEnd(c, func(p metadata.Position, err error) { end <- answer{p, err} })
	select {
	case a := <-end:
		return a.position, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// follow tells pages one behind the other, from after on, until streamLife is over, the reader is gone, the namenode stops, or tell fails. A page that has
// no events, nor misses any, says that the reader is still heard.
func (s *Server) follow(ctx context.Context, c metadata.Caller, r namenode.EventsRequest, tell func(after metadata.Position, page *metadata.EventPage) error) error {
	end := time.Now().Add(streamLife)
	r.Wait = s.config.beat
	for time.Now().Before(end) && ctx.Err() == nil && s.watching.Err() == nil {
		page, err := s.events(ctx, c, r)
		if err == nil {
			err = tell(r.After, page)
		}
		if err != nil {
			return err
		}
		r.After = page.Next
	}
	return nil
}

func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request, caller metadata.Caller, request namenode.EventsRequest) {
	control := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	var b bytes.Buffer
	send := func() error {
		_ = control.SetWriteDeadline(time.Now().Add(s.config.patience)) // recorders in tests have none
		_, err := w.Write(b.Bytes())
		if b.Reset(); b.Cap() > streamKept {
			b = bytes.Buffer{}
		}
		return cmp.Or(err, control.Flush())
	}
	fmt.Fprintf(&b, "retry: 1000\nid: %v\n\n", request.After)
	if send() != nil {
		return
	}
	err := s.follow(r.Context(), caller, request, func(after metadata.Position, page *metadata.EventPage) error {
		if page.Missing {
			writeEvent(&b, page.From.String(), "missing", map[string]metadata.Position{"after": after, "from": page.From})
		}
		for i := range page.Events {
			// In the middle of an operation nobody goes on.
			id := ""
			if i+1 == len(page.Events) || !page.Events[i+1].Continued {
				id = page.Events[i].Position.String()
			}
			writeEvent(&b, id, page.Events[i].Kind.String(), &page.Events[i])
		}
		if len(page.Events) == 0 && !page.Missing {
			fmt.Fprintf(&b, ": still here\nid: %v\n\n", page.Next) // which is no event, but remembered
		}
		return send()
	})
	if err != nil { // which the reader may not hear any more
		writeEvent(&b, "", "problem", map[string]string{"detail": err.Error()})
		_ = send()
	}
}

// writeEvent writes a server-sent event (HTML, 9.2).
func writeEvent(b *bytes.Buffer, id, name string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte(strconv.Quote(err.Error()))
	}
	if id != "" {
		fmt.Fprintf(b, "id: %s\n", id)
	}
	fmt.Fprintf(b, "event: %s\ndata: %s\n\n", name, text)
}
