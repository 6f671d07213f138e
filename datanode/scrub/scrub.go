// Package scrub reads the replicas of a datanode before somebody needs them: bits that rotted where nobody reads are found
// while other replicas are intact. It verifies first what somebody had trouble with, then, in passes, everything. Each volume
// has a worker and a budget of its own; a disk that hangs holds up nobody else.
package scrub

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
)

// Store is what the scrubber needs of a block store, which announces what it finds.
type Store interface {
	Volumes() []datanode.VolumeStatus
	Each(volume string, fn func(datanode.Replica) bool)
	// VolumeOf is where a replica lies; it waits for no disk.
	VolumeOf(id metadata.BlockID) (string, bool)
	Verify(ctx context.Context, id metadata.BlockID, o datanode.VerifyOptions) error
	// CheckSizes finds a replica whose files vanished or have another length.
	CheckSizes(id metadata.BlockID) error
	EmptyTrash(volume string) error
	// Cursor and SetCursor keep how far a volume's pass has come, over restarts.
	Cursor(volume string) (datanode.Cursor, error)
	SetCursor(volume string, c datanode.Cursor) error
}

// Config configures a Scrubber.
type Config struct {
	Store Store
	// Rate is how many bytes a second are read on each volume, of suspects too. 0 is 8 MiB. More finds damage sooner and
	// takes more of the disk from readers and writers.
	Rate int64
	// Every is the least time from the beginning of a pass over all replicas of a volume to that of the next. 0 is 21 days,
	// HDFS's dfs.datanode.scan.period.hours.
	Every time.Duration
	// Scan is how often the sizes of all files are compared with what they should be. 0 is 6 h, HDFS's
	// dfs.datanode.directoryscan.interval.
	Scan time.Duration
	// Now and Sleep are the clock; nil is the real one. Sleep returns early, with its error, when ctx is done.
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Defaults and limits.
const (
	DefaultRate  = 8 << 20
	DefaultEvery = 21 * 24 * time.Hour
	DefaultScan  = 6 * time.Hour
	// maxOrders and maxWords bound what waits on a volume; the namenode repeats its orders. A user's words have a share.
	maxOrders  = 4096
	maxWords   = 256
	wordsOfOne = 32
	// again is how soon a replica is looked at again on a client's word.
	again     = 10 * time.Minute
	maxLately = 4096
	// saveEvery is after how many replicas the cursor is saved.
	saveEvery = 256
	// idle is how often a worker without work looks whether a pass is due.
	idle = time.Minute
	// sizeCost is what comparing a replica's sizes counts against the rate, in bytes.
	sizeCost = 4 << 10
)

// Scrubber verifies replicas. Its methods do not block, except Run.
type Scrubber struct {
	cfg     Config
	changed chan struct{} // capacity 1: the workers are not those of before

	mu      sync.Mutex // guards the map
	workers map[string]*worker
}

// Status is how far the scrubber is on a volume.
type Status struct {
	// Begun is when the pass under way, or the last one, began; zero: none yet. Done: it is over.
	Begun time.Time
	Done  bool
	// Replicas and Bytes were verified since the start of the process, and Damaged replicas were found damaged, each once until it is found intact or is gone. Waiting are
	// suspects.
	Replicas, Bytes, Damaged, Waiting int64
}

// worker verifies the replicas of one volume.
type worker struct {
	*Scrubber
	volume string
	wake   chan struct{} // capacity 1
	budget pace.Budget   // of reads
	scanAt time.Time
	scan   []metadata.BlockID // sizes still to be compared
	pass   []metadata.BlockID // still to be verified
	saved  int                // replicas since the cursor was saved

	mu     sync.Mutex
	orders []metadata.BlockID
	words  []word
	queued map[metadata.BlockID]struct{}
	byUser map[uint32]int
	lately map[metadata.BlockID]time.Time
	bad    map[metadata.BlockID]struct{} // found damaged, and counted
	cursor datanode.Cursor
	status Status
}

// word is what a client said of a replica.
type word struct {
	id   metadata.BlockID
	user uint32
}

// New makes a scrubber of the volumes that the store has now; Refresh takes those that it has later.
func New(cfg Config) *Scrubber {
	if cfg.Rate <= 0 {
		cfg.Rate = DefaultRate
	}
	if cfg.Every <= 0 {
		cfg.Every = DefaultEvery
	}
	if cfg.Scan <= 0 {
		cfg.Scan = DefaultScan
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Sleep == nil {
		cfg.Sleep = pace.Wait
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Scrubber{cfg: cfg, changed: make(chan struct{}, 1), workers: map[string]*worker{}}
	s.Refresh()
	return s
}

// Refresh takes the volumes that the store has now: it may have got others, and have lost some.
func (s *Scrubber) Refresh() {
	there := map[string]*worker{}
	volumes := s.cfg.Store.Volumes() // which may wait for a disk
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range volumes {
		w := s.workers[v.ID]
		if w == nil {
			w = &worker{
				Scrubber: s, volume: v.ID, wake: make(chan struct{}, 1), scanAt: s.cfg.Now().Add(s.cfg.Scan),
				queued: map[metadata.BlockID]struct{}{}, byUser: map[uint32]int{}, lately: map[metadata.BlockID]time.Time{}, bad: map[metadata.BlockID]struct{}{},
			}
		}
		there[v.ID] = w
	}
	s.workers = there
	poke(s.changed)
}

// worker is the one of a volume, nil if there is none.
func (s *Scrubber) worker(volume string) *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workers[volume]
}

// Run works until ctx is done.
func (s *Scrubber) Run(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	running := map[*worker]context.CancelFunc{}
	for {
		s.mu.Lock()
		now := maps.Clone(s.workers)
		s.mu.Unlock()
		for w, end := range running {
			if now[w.volume] != w {
				end()
				delete(running, w)
			}
		}
		for _, w := range now {
			if running[w] == nil {
				own, end := context.WithCancel(ctx)
				running[w] = end
				g.Go(func() {
					defer end()
					w.run(own)
				})
			}
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Scrubber) workerOf(id metadata.BlockID) *worker {
	v, ok := s.cfg.Store.VolumeOf(id)
	if !ok {
		return nil
	}
	return s.worker(v)
}

// Order has a replica verified before everything else, and the outcome told: the namenode wants to know, or this datanode
// had trouble itself.
func (s *Scrubber) Order(id metadata.BlockID) {
	w := s.workerOf(id)
	if w == nil {
		// There is none, which is told at once.
		_ = s.cfg.Store.Verify(context.Background(), id, datanode.VerifyOptions{Tell: true})
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.orders) < maxOrders && !slices.Contains(w.orders, id) {
		w.orders = append(w.orders, id)
		poke(w.wake)
	}
}

// Accuse takes a client's word that a replica is damaged. It is looked into unless that was done lately or too many wait.
func (s *Scrubber) Accuse(id metadata.BlockID, user uint32) {
	w := s.workerOf(id)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.queued[id]; ok || len(w.words) >= maxWords || w.byUser[user] >= wordsOfOne {
		return
	}
	if at, ok := w.lately[id]; ok && s.cfg.Now().Sub(at) < again {
		return
	}
	w.words = append(w.words, word{id, user})
	w.queued[id] = struct{}{}
	w.byUser[user]++
	poke(w.wake)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Status describes the scrubbing of a volume.
func (s *Scrubber) Status(volume string) (Status, bool) {
	w := s.worker(volume)
	if w == nil {
		return Status{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.status
	st.Begun, st.Done, st.Waiting = w.cursor.Begun, w.cursor.Done, int64(len(w.orders)+len(w.words))
	return st, true
}

func (w *worker) run(ctx context.Context) {
	c, err := w.cfg.Store.Cursor(w.volume)
	if err != nil {
		w.cfg.Logger.Warn("how far the volume was scrubbed is not known, a pass begins", "volume", w.volume, "err", err)
	}
	w.mu.Lock()
	w.cursor = c
	w.mu.Unlock()
	if !c.Begun.IsZero() && !c.Done {
		w.pass = w.finalized(c.After)
	}
	defer func() {
		if w.worker(w.volume) == w { // otherwise the volume was given back
			w.save()
		}
	}()
	for ctx.Err() == nil {
		if w.step(ctx) {
			continue
		}
		t := time.NewTimer(idle)
		select {
		case <-w.wake:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// step does one piece of work; false: there is none.
func (w *worker) step(ctx context.Context) bool {
	if id, tell, ok := w.suspect(); ok {
		w.verify(ctx, id, tell)
		return true
	}
	now := w.cfg.Now()
	if err := w.cfg.Store.EmptyTrash(w.volume); err != nil {
		w.cfg.Logger.Warn("trash not emptied", "volume", w.volume, "err", err)
	}
	if !now.Before(w.scanAt) {
		w.scanAt = now.Add(w.cfg.Scan)
		w.scan = w.finalized(first)
	}
	w.mu.Lock()
	c := w.cursor
	w.mu.Unlock()
	switch {
	case len(w.scan) > 0:
		id := w.scan[0]
		w.scan = w.scan[1:]
		w.compare(ctx, id)
		return true
	case len(w.pass) > 0:
		id := w.pass[0]
		w.pass = w.pass[1:]
		w.verify(ctx, id, false)
		if ctx.Err() == nil {
			w.advance(datanode.Cursor{Begun: c.Begun, After: id, Done: len(w.pass) == 0})
		}
		return true
	case c.Begun.IsZero() || c.Done && (now.Sub(c.Begun) >= w.cfg.Every || c.Begun.After(now)): // in the future: by a clock that was wrong
		w.pass = w.finalized(first)
		w.forgetGone()
		w.advance(datanode.Cursor{Begun: now, After: first, Done: len(w.pass) == 0})
		return true
	case !c.Done: // what was left of it at the last restart is gone
		w.advance(datanode.Cursor{Begun: c.Begun, After: c.After, Done: true})
		return true
	}
	return false
}

// suspect takes the next replica that somebody had trouble with.
func (w *worker) suspect() (id metadata.BlockID, tell, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.orders) > 0:
		id, tell = w.orders[0], true
		w.orders = w.orders[1:]
	case len(w.words) > 0:
		x := w.words[0]
		w.words = w.words[1:]
		delete(w.queued, x.id)
		if w.byUser[x.user]--; w.byUser[x.user] <= 0 {
			delete(w.byUser, x.user)
		}
		id = x.id
	default:
		return 0, false, false
	}
	if len(w.lately) >= maxLately {
		clear(w.lately)
	}
	w.lately[id] = w.cfg.Now()
	return id, tell, true
}

func (w *worker) verify(ctx context.Context, id metadata.BlockID, tell bool) {
	var bytes int64
	err := w.cfg.Store.Verify(ctx, id, datanode.VerifyOptions{Tell: tell, Pace: func(n int64) error {
		bytes += n
		return w.pace(ctx, n)
	}})
	if ctx.Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, metadata.ErrReplicaNotFound) && !errors.Is(err, metadata.ErrRetriable) {
		w.cfg.Logger.Warn("replica does not verify", "block", int64(id), "volume", w.volume, "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Replicas++
	w.status.Bytes += bytes
	switch {
	case errors.Is(err, metadata.ErrCorrupt):
		w.foundLocked(id)
	case err == nil, errors.Is(err, metadata.ErrReplicaNotFound):
		delete(w.bad, id)
	}
}

// foundLocked counts a damaged replica, unless it is known to be. w.mu is held.
func (w *worker) foundLocked(id metadata.BlockID) {
	if _, known := w.bad[id]; !known {
		w.bad[id] = struct{}{}
		w.status.Damaged++
	}
}

// forgetGone forgets damaged replicas that are not here any more, by the list of a pass that begins.
func (w *worker) forgetGone() {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.bad, func(id metadata.BlockID, _ struct{}) bool {
		_, here := slices.BinarySearch(w.pass, id)
		return !here
	})
}

// pace waits until the budget allows to read n bytes.
func (w *worker) pace(ctx context.Context, n int64) error {
	return w.cfg.Sleep(ctx, w.budget.Reserve(w.cfg.Now(), n, w.cfg.Rate))
}

// first is below the ids of all blocks: those of internal blocks of groups are negative.
const first = metadata.BlockID(math.MinInt64)

// finalized lists the finalized replicas behind a block id, in order.
func (w *worker) finalized(after metadata.BlockID) (ids []metadata.BlockID) {
	w.cfg.Store.Each(w.volume, func(r datanode.Replica) bool {
		if r.Block.ID > after && r.State == datanode.Finalized {
			ids = append(ids, r.Block.ID)
		}
		return true
	})
	slices.Sort(ids)
	return ids
}

func (w *worker) advance(c datanode.Cursor) {
	w.mu.Lock()
	w.cursor = c
	w.mu.Unlock()
	if w.saved++; c.Done || w.saved >= saveEvery {
		w.save()
	}
}

func (w *worker) save() {
	w.mu.Lock()
	c := w.cursor
	w.mu.Unlock()
	if w.saved = 0; c.Begun.IsZero() {
		return
	}
	if err := w.cfg.Store.SetCursor(w.volume, c); err != nil {
		w.cfg.Logger.Warn("how far the volume was scrubbed is not saved", "volume", w.volume, "err", err)
	}
}

// compare compares the sizes of a replica's files with what they should be.
func (w *worker) compare(ctx context.Context, id metadata.BlockID) {
	if w.pace(ctx, sizeCost) != nil {
		return
	}
	if err := w.cfg.Store.CheckSizes(id); errors.Is(err, metadata.ErrCorrupt) {
		w.cfg.Logger.Warn("replica is not as long as it was", "block", int64(id), "volume", w.volume, "err", err)
		w.mu.Lock()
		w.foundLocked(id)
		w.mu.Unlock()
	}
}
