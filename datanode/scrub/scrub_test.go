package scrub

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stage is a store on a disk, with a clock that moves only when somebody waits.
type stage struct {
	*blockstore.Store
	t   *testing.T
	dir string

	mu      sync.Mutex
	now     time.Time
	waited  time.Duration
	changes []string
}

func (s *stage) open() {
	s.t.Helper()
	var err error
	s.Store, err = blockstore.Open(blockstore.Config{
		Volumes: []blockstore.VolumeConfig{{Path: s.dir}}, FS: vfs.OS, Reserve: -1, Logger: slog.New(slog.DiscardHandler),
		OnChange: func(c datanode.Change) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if c.Kind > datanode.Received {
				s.changes = append(s.changes, fmt.Sprint(c.Kind, " ", int64(c.Block.ID)))
			}
		},
	})
	check(s.t, err)
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, dir: t.TempDir(), now: time.Unix(1e9, 0)}
	s.open()
	return s
}

func (s *stage) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *stage) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// told takes what was announced.
func (s *stage) told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.changes, ", ")
	s.changes = nil
	return out
}

func (s *stage) worker(c Config) *worker {
	c.Store, c.Now, c.Logger = s, s.clock, slog.New(slog.DiscardHandler)
	if c.Sleep == nil {
		c.Sleep = func(ctx context.Context, d time.Duration) error {
			s.pass(d)
			s.waited += d
			return ctx.Err()
		}
	}
	for _, w := range New(c).workers {
		return w
	}
	s.t.Fatal("no volume")
	return nil
}

func (s *stage) put(id int64, n int) {
	s.t.Helper()
	w, err := s.Create(metadata.Block{ID: metadata.BlockID(id), Generation: 1}, datanode.CreateOptions{})
	check(s.t, err)
	check(s.t, w.Write(0, make([]byte, n), nil))
	_, err = w.Finalize()
	check(s.t, err)
}

// find is the path of a file with this beginning of its name.
func (s *stage) find(prefix string) (found string) {
	s.t.Helper()
	check(s.t, filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), prefix) && !d.IsDir() && found == "" {
			found = path
		}
		return err
	}))
	return found
}

func (s *stage) damage(prefix string, off int64) { s.write(prefix, off, 0xff) }

func (s *stage) write(prefix string, off int64, b byte) {
	s.t.Helper()
	f, err := os.OpenFile(s.find(prefix), os.O_RDWR, 0)
	check(s.t, err)
	_, err = f.WriteAt([]byte{b}, off)
	check(s.t, err)
	check(s.t, f.Close())
}

func finish(t *testing.T, w *worker) {
	t.Helper()
	for i := 0; w.step(t.Context()); i++ {
		if i > 10_000 {
			t.Fatal("the scrubber does not come to an end")
		}
	}
}

// Bits that rotted where nobody reads are found, in files and in packs, within the budget, and once per period.
func TestWhatNobodyReadsIsVerified(t *testing.T) {
	s := newStage(t)
	const size = 1 << 20
	for id := int64(1); id <= 4; id++ {
		s.put(id, size)
	}
	s.put(5, 1000) // in a pack
	s.damage("blk_3", 700_000)
	s.damage("1.pack", 4096+48+8+500)
	w := s.worker(Config{Rate: 1 << 20})
	finish(t, w)
	if got, want := s.told(), "CORRUPT 3, CORRUPT 5"; got != want {
		t.Errorf("announced %s, want %s", got, want)
	}
	// Nothing is waited for behind the last read; the damaged replica is not read to its end.
	if least, most := 3*time.Second, 4*time.Second; s.waited < least || s.waited > most {
		t.Errorf("waited %v, want %v to %v", s.waited, least, most)
	}
	finish(t, w)
	if st, _ := w.Scrubber.Status(w.volume); !st.Done || st.Replicas != 5 || st.Damaged != 2 {
		t.Errorf("status %+v", st)
	}
	s.pass(DefaultEvery)
	finish(t, w)
	if st, _ := w.Scrubber.Status(w.volume); st.Replicas != 10 || st.Damaged != 2 {
		t.Errorf("after the period: %+v", st)
	}
	// One that was found intact, or is gone, is counted again; others are not, whatever finds them.
	s.write("blk_3", 700_000, 0) // as it was
	check(t, s.Delete(metadata.Block{ID: 5, Generation: 1 << 40}))
	w.Order(3)
	s.pass(DefaultEvery)
	finish(t, w)
	s.damage("blk_3", 700_000)
	s.put(5, 1000)
	s.damage("1.pack", 8192+48+8+500)
	check(t, os.Truncate(s.find("blk_4"), 100))
	s.pass(DefaultScan)
	for range 2 {
		w.Order(3)
		w.Order(4)
		w.Order(5)
		finish(t, w)
	}
	if st, _ := w.Scrubber.Status(w.volume); st.Damaged != 5 || len(w.bad) != 3 {
		t.Errorf("after all that: %+v, known are %v", st, w.bad)
	}
}

// A pass goes on where it was when the datanode stopped. Internal blocks of groups, whose ids are negative, are part of it.
func TestAPassGoesOnAfterARestart(t *testing.T) {
	s := newStage(t)
	group := int64(metadata.FirstGroupID)
	for _, id := range []int64{group, group + 1, group + 2, 1, 2, 3} {
		s.put(id, 1000)
	}
	ctx, stop := context.WithCancel(t.Context())
	verified := 0
	w := s.worker(Config{Sleep: func(context.Context, time.Duration) error {
		if verified++; verified == 4 {
			stop()
		}
		return ctx.Err()
	}})
	w.run(ctx)
	check(t, s.Shutdown())
	s.open()
	again := s.worker(Config{})
	c, err := s.Cursor(again.volume)
	if err != nil || c.After != metadata.BlockID(group+2) || c.Done {
		t.Fatalf("saved %+v, %v", c, err)
	}
	again.cursor = c
	again.pass = again.finalized(c.After)
	finish(t, again)
	if st, _ := again.Scrubber.Status(again.volume); st.Replicas != 3 || !st.Done || !st.Begun.Equal(c.Begun) {
		t.Errorf("verified after the restart: %+v", st)
	}
}

// Files that vanished or were shortened behind the datanode's back are found without reading them.
func TestSizesAreComparedNowAndThen(t *testing.T) {
	s := newStage(t)
	for id := int64(1); id <= 3; id++ {
		s.put(id, 100_000)
	}
	w := s.worker(Config{})
	finish(t, w)
	check(t, os.Truncate(s.find("blk_1"), 50_000))
	check(t, os.Remove(s.find("blk_2")))
	finish(t, w)
	if got := s.told(); got != "" {
		t.Errorf("announced %s before the scan", got)
	}
	s.pass(DefaultScan)
	finish(t, w)
	got := s.told()
	if got != "CORRUPT 1, DELETED 2" && got != "DELETED 2, CORRUPT 1" { // what vanished is missing, not damaged
		t.Errorf("announced %s", got)
	}
}

// Orders come before words, words before the pass; a client's word has a share, and is not taken twice in a while.
func TestSuspectsComeFirstAndWithinBounds(t *testing.T) {
	s := newStage(t)
	for id := int64(1); id <= 2*wordsOfOne; id++ {
		s.put(id, 1000)
	}
	w := s.worker(Config{})
	for id := metadata.BlockID(1); id <= 2*wordsOfOne; id++ {
		w.Accuse(id, 1000)
		w.Accuse(id, 1000)
	}
	w.Accuse(2*wordsOfOne, 2000)
	w.Order(7)
	w.Order(7)
	w.Order(99)
	if st, _ := w.Scrubber.Status(w.volume); st.Waiting != wordsOfOne+2 {
		t.Errorf("%d wait, want %d", st.Waiting, wordsOfOne+2)
	}
	if got := s.told(); got != "DELETED 99" {
		t.Errorf("announced %s", got)
	}
	w.step(t.Context())
	if got := s.told(); got != "VERIFIED 7" {
		t.Errorf("first came %s", got)
	}
	for range wordsOfOne + 1 {
		w.step(t.Context())
	}
	w.Accuse(1, 1000)
	if st, _ := w.Scrubber.Status(w.volume); st.Waiting != 0 || st.Replicas != wordsOfOne+2 {
		t.Errorf("status %+v", st)
	}
	s.pass(again)
	w.Accuse(1, 1000)
	if st, _ := w.Scrubber.Status(w.volume); st.Waiting != 1 {
		t.Errorf("later: status %+v", st)
	}
}

// A look at the sizes of all files takes as long as there are files; who is suspected does not wait for its end.
func TestASuspectDoesNotWaitForTheSizesOfAll(t *testing.T) {
	s := newStage(t)
	const replicas = 50
	for id := int64(1); id <= replicas; id++ {
		s.put(id, 40_000)
	}
	var w *worker
	ordered, reads := false, 0 // since it was ordered
	scanning := false
	w = s.worker(Config{Sleep: func(context.Context, time.Duration) error {
		s.mu.Lock()
		verified := len(s.changes) > 0
		s.mu.Unlock()
		switch {
		case scanning && !ordered:
			ordered = true
			w.Order(7)
		case ordered && !verified:
			reads++
		}
		return nil
	}})
	finish(t, w)
	scanning = true
	s.pass(DefaultScan)
	finish(t, w)
	if got := s.told(); got != "VERIFIED 7" || reads != 1 {
		t.Errorf("announced %q, after %d reads", got, reads)
	}
}

// A clock that was in the future when a pass began does not put off the next ones until then.
func TestAClockThatWasWrongDoesNotEndTheScrubbing(t *testing.T) {
	s := newStage(t)
	s.put(1, 1000)
	begun := s.clock()
	s.pass(20 * 365 * 24 * time.Hour)
	finish(t, s.worker(Config{}))
	s.now = begun.Add(DefaultEvery)
	w := s.worker(Config{}) // after a restart
	var err error
	w.cursor, err = s.Cursor(w.volume)
	check(t, err)
	finish(t, w)
	if st, _ := w.Scrubber.Status(w.volume); st.Replicas != 1 || !st.Begun.Equal(s.clock()) {
		t.Errorf("status %+v at %v", st, s.clock())
	}
}
