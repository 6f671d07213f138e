// Package search keeps an index of a namespace: names, tags and sizes of files and directories. Each member of a group has its own, which follows the
// feed of changes by position. It is no part of the state: nothing waits for it, and it can be made anew at any time.
//
// DESIGN.md tells what is in it, what an answer promises, and why no crash makes it wrong.
package search

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/namespace"
)

// Config describes an Index. Store, Namespace, Feed and Applied are required.
type Config struct {
	// Store has the index and nothing else. The caller closes it, after Run.
	Store     kv.Store
	Namespace *namespace.Namespace
	Feed      *feed.Log
	// Applied is the last entry of the log of which the feed has all events.
	Applied func() uint64
	// Checkpoint has the namespace write a checkpoint: an index is made of one. nil: it is never asked to.
	Checkpoint func() error
	// Memory is how many bytes of changes may wait in memory, about; they are written earlier if they are older than a minute. Default 8 MiB.
	Memory int
	// Pause is how long changes are collected before they are looked at; searches see them after that. Default 50 ms.
	Pause time.Duration
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

const (
	defaultMemory = 8 << 20
	defaultPause  = 50 * time.Millisecond
	// eventsPerTurn and bytesPerTurn are how much of the feed is looked at with the lock held.
	eventsPerTurn = 256
	bytesPerTurn  = 1 << 20
	// flushAge is after how long changes are written, if they are few.
	flushAge = time.Minute
	// patience is how long the index waits after a failure, and firstPatience after the first one of reading the feed, which may pass.
	patience      = 5 * time.Second
	firstPatience = 100 * time.Millisecond
	// wakeful is how long who waits for the index does not look again, however often it moves.
	wakeful = 5 * time.Millisecond
)

// State is what an index does.
type State string

// The states.
const (
	// Following: it is up to date but for the lag.
	Following State = "following"
	// Rebuilding: it is being made anew, and answers nothing.
	Rebuilding State = "rebuilding"
	// Failing: it cannot go on; Status.Problem says why. It tries again every few seconds.
	Failing State = "failing"
)

// Status is what there is to say of an index.
type Status struct {
	State State
	// Problem is why it is failing, or why it does not follow at the moment: the feed cannot be read, which may pass.
	Problem string
	// Done and Total are how many files and directories a rebuild has looked at, and about how many there are.
	Done, Total int64
	// Position: everything in front of it can be searched. FeedEnd is where the feed ends.
	Position, FeedEnd metadata.Position
	// Lag is how long the last change took until it could be searched, or how long it has been waiting.
	Lag time.Duration
	// Entries are the files and directories in the index, those of deleted trees that are not yet removed included.
	Entries int64
	// Waiting is how many bytes of changes are in memory only.
	Waiting int64
	// Rebuilds is how often it was made anew since the start.
	Rebuilds int64
	// Surprises is how many events were of something that is not in the index. There should be none.
	Surprises int64
}

// Index is the index of one member.
type Index struct {
	cfg Config
	log *slog.Logger

	wake chan struct{} // capacity 1: there is something to do beside the feed
	pins pins

	// exchange is held shared by who reads the store, and alone while its content is replaced.
	exchange sync.RWMutex

	mu       sync.Mutex
	recent   layer
	frozen   layer // is being written; its changes are in front of frozenAt
	frozenAt marker
	stored   uint64 // timestamp of what is durable; 0: nothing is
	position metadata.Position
	entries  int64
	born     time.Time // when recent had its first change
	state    State
	problem  string
	done     int64
	total    int64
	closed   bool
	wanted   bool // somebody wants it to be made anew
	lag      time.Duration
	progress time.Time     // when the position moved, or was known to be that of the end
	moved    chan struct{} // closed when any of it changes
	rebuilds int64
	odd      int64
	// flushing is nil, or gives how the writing of frozen has ended.
	flushing chan error
	failed   error     // of the last attempt
	retry    time.Time // when the next one is

	// Of Run's goroutine alone.
	sweep  sweep
	damage error // why what is in the store cannot be trusted
}

// Open reads up to where the index is. One without a sound beginning is made anew by Run.
func Open(cfg Config) (*Index, error) {
	if cfg.Memory <= 0 {
		cfg.Memory = defaultMemory
	}
	if cfg.Pause <= 0 {
		cfg.Pause = defaultPause
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	x := &Index{
		cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), moved: make(chan struct{}), recent: newLayer(), frozen: newLayer(), state: Following, progress: time.Now(),
	}
	view := cfg.Store.View(kv.Newest)
	defer view.Close()
	m, err := readMarker(view, markerKey)
	var swept marker
	if err == nil {
		if swept, err = readMarker(view, sweptKey); errors.Is(err, kv.ErrNotFound) {
			err = nil
		}
	}
	switch {
	case errors.Is(err, kv.ErrNotFound):
	case err == nil && swept.position > m.position:
		x.log.Warn("the search index is made anew: what a sweep has taken out of it was written in part")
	case errors.Is(err, errDamaged):
		x.log.Warn("the beginning of the search index cannot be read", "error", err)
	case err != nil:
		return nil, fmt.Errorf("search index: %w", err)
	default:
		x.stored, x.position, x.entries = uint64(m.position), m.position, m.entries
		return x, nil
	}
	x.wanted, x.state = true, Rebuilding
	return x, nil
}

func readMarker(view kv.View, key []byte) (m marker, err error) {
	value, err := view.Get(key)
	if err != nil {
		return m, err
	}
	return decodeMarker(value)
}

// Close waits for who searches; later searches are refused. It comes after Run.
func (x *Index) Close() {
	x.exchange.Lock()
	defer x.exchange.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	x.tell()
}

// Rebuild has the index made anew, from nothing. It does not wait for that.
func (x *Index) Rebuild() {
	x.mu.Lock()
	x.wanted, x.state, x.done, x.total = true, Rebuilding, 0, 0
	x.tell()
	x.mu.Unlock()
	x.nudge()
}

func (x *Index) nudge() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// tell wakes who waits for something to change. It is called with mu held.
func (x *Index) tell() {
	close(x.moved)
	x.moved = make(chan struct{})
}

// Status says how the index is.
func (x *Index) Status() Status {
	x.settle()
	end := x.cfg.Feed.End()
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Status{
		State: x.state, Problem: x.problem, Done: x.done, Total: x.total, Position: x.position, FeedEnd: end, Lag: x.lag, Entries: x.entries,
		Waiting: int64(x.recent.bytes + x.frozen.bytes), Rebuilds: x.rebuilds, Surprises: x.odd,
	}
	if end > x.position {
		s.Lag = max(s.Lag, time.Since(x.progress))
	}
	return s
}

// settle moves the position to the end of what was applied, if nothing of the feed is left to look at.
func (x *Index) settle() {
	applied := x.cfg.Applied() // before the look at the feed: it has all events up to here
	end := x.cfg.Feed.End()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state == Following && end <= x.position {
		x.reach(metadata.EndOf(applied))
	}
}

// reach moves the position forward. It is called with mu held.
func (x *Index) reach(p metadata.Position) {
	if x.progress = time.Now(); p > x.position {
		x.position = p
		x.tell()
	}
}

// Await waits until everything in front of a position can be searched, which this member has applied.
//
// Errors: ErrRetriable when the index is not following; that of ctx; fs.ErrClosed.
func (x *Index) Await(ctx context.Context, p metadata.Position) error {
	for {
		x.settle()
		x.mu.Lock()
		err, at, moved := x.refusal(), x.position, x.moved
		x.mu.Unlock()
		if err != nil || at >= p {
			return err
		}
		select {
		case <-moved:
			_ = pause(ctx, wakeful) // the next look hears of ctx
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refusal is why there are no answers. It is called with mu held.
func (x *Index) refusal() error {
	if x.closed {
		return fs.ErrClosed
	}
	switch x.state {
	case Rebuilding:
		if x.problem != "" {
			return metadata.Errorf(metadata.ErrRetriable, "the search index of this namenode cannot be rebuilt, and tries again: %s", x.problem)
		}
		percent := int64(0)
		if x.total > 0 {
			percent = min(100*x.done/x.total, 99)
		}
		return metadata.Errorf(metadata.ErrRetriable, "the search index of this namenode is being rebuilt: %d %% of %d files and directories; come again, or search without it", percent, x.total)
	case Failing:
		return metadata.Errorf(metadata.ErrRetriable, "the search index of this namenode cannot go on, and would not be up to date: %s", x.problem)
	}
	return nil
}

// Run follows the feed until ctx ends, and writes then what is in memory. Whatever happens to the index, Run goes on: it is nobody else's trouble.
func (x *Index) Run(ctx context.Context) {
	defer x.finish()
	wait := firstPatience
	for ctx.Err() == nil {
		more, err := x.turn(ctx)
		if err == nil {
			wait = firstPatience
		}
		_, passes := errors.AsType[unread](err)
		switch {
		case err != nil && ctx.Err() != nil:
		case passes: // what is in the index is as good as before
			x.hold(err)
			x.rest(ctx, wait)
			wait = min(2*wait, patience)
		case err != nil:
			x.fail(err)
			x.rest(ctx, patience)
		case !more:
			x.idle(ctx)
		}
	}
}

// rest waits for a while, or until somebody wants something.
func (x *Index) rest(ctx context.Context, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-x.wake:
	case <-ctx.Done():
	}
}

// damaged is an error of reading the store: what is in there cannot be trusted any more.
type damaged struct{ error }

func (d damaged) Unwrap() error { return d.error }

// unread is an error of reading the feed. It may pass; what stays, the feed itself takes for missing.
type unread struct{ error }

func (u unread) Unwrap() error { return u.error }

// errLost: what comes next in the feed is not there, so the index cannot go on.
var errLost = errors.New("the feed of changes does not have what comes next")

// turn does some of what there is to do; more: there is more.
func (x *Index) turn(ctx context.Context) (more bool, err error) {
	x.mu.Lock()
	wanted := x.wanted
	x.mu.Unlock()
	if wanted {
		return true, x.rebuild(ctx)
	}
	if err := x.save(); err != nil {
		return false, err
	}
	if more, err = x.follow(); err == nil && !more {
		more, err = x.sweepSome()
	}
	bad, isDamaged := errors.AsType[damaged](err)
	switch {
	case isDamaged:
		x.log.Warn("the search index is made anew: it cannot be read", "error", err)
		x.damage = bad
		x.Rebuild()
		return true, nil
	case errors.Is(err, errLost):
		x.log.Warn("the search index is made anew: the feed of changes does not have what comes next", "position", x.at())
		x.Rebuild()
		return true, nil
	case err != nil:
		return false, err
	}
	x.well()
	return more, nil
}

// idle waits for events, and a little longer for more of them; or until there is something else to do.
func (x *Index) idle(ctx context.Context) {
	waiting, cancel := context.WithTimeout(ctx, flushAge/4)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-x.wake:
			cancel()
		case <-waiting.Done():
		}
	}()
	_ = x.cfg.Feed.Wait(waiting, x.at()) // why it has ended does not matter
	cancel()
	<-ended
	x.rest(ctx, x.cfg.Pause)
}

func (x *Index) at() metadata.Position {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.position
}

// hold notes why it is not up to date. Searches go on, and say up to where they have looked.
func (x *Index) hold(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.problem == "" {
		x.log.Warn("the search index does not follow: the feed of changes cannot be read", "error", err)
	}
	x.problem = "the feed of changes cannot be read: " + err.Error()
	x.tell()
}

// fail notes why the index does not go on.
func (x *Index) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.problem != err.Error() {
		x.log.Warn("the search index cannot go on, and tries again", "error", err)
	}
	if x.problem = err.Error(); !x.wanted {
		x.state = Failing
	}
	x.tell()
}

// well notes that it goes on.
func (x *Index) well() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state == Failing {
		x.state = Following
		x.tell()
	}
	if x.state == Following && x.problem != "" {
		x.problem = ""
		x.log.Info("the search index follows again")
	}
}

// follow takes the next events into the index. more: there may be more of them.
func (x *Index) follow() (more bool, err error) {
	if err := x.full(); err != nil {
		return false, err
	}
	x.exchange.RLock()
	defer x.exchange.RUnlock()
	applied, at := x.cfg.Applied(), x.at()
	page, err := x.cfg.Feed.Read(at, eventsPerTurn, bytesPerTurn)
	if err != nil {
		return false, unread{err}
	}
	if page.Missing {
		return false, errLost
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wanted {
		return true, nil
	}
	if len(page.Events) == 0 {
		x.reach(max(page.Next, metadata.EndOf(applied)))
		return false, nil
	}
	view := x.cfg.Store.View(x.stored)
	defer view.Close()
	w := writer{layers: layers{x.recent, x.frozen, view}, entries: x.entries}
	for i := range page.Events {
		if err := w.take(&page.Events[i]); err != nil { // half of the page was taken
			return false, damaged{err}
		}
	}
	if x.recent.keys.Len() > 0 && x.born.IsZero() {
		x.born = time.Now()
	}
	x.recent.bytes, x.entries, x.odd = w.recent.bytes, w.entries, x.odd+w.odd
	x.sweep.orphans = x.sweep.orphans || w.orphans
	x.lag = max(time.Since(page.Events[len(page.Events)-1].Time.Time()), 0)
	x.reach(page.Next)
	return true, nil
}

// full is nil while more may wait in memory.
func (x *Index) full() error {
	x.mu.Lock()
	flushing, limit := x.flushing, x.cfg.Memory
	over, failed := x.recent.bytes > limit && x.frozen.bytes > 0, x.failed
	x.mu.Unlock()
	if !over || failed == nil && flushing == nil {
		return nil
	}
	if failed != nil {
		return failed
	}
	x.ended(<-flushing)
	return nil
}
