//go:build linux

package cache

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// stage is a store on a disk with a cache, and what was told of it.
type stage struct {
	*blockstore.Store
	*Cache
	t   *testing.T
	dir string

	mu   sync.Mutex
	told []string
}

func newStage(t *testing.T, most int64) *stage {
	if err := vfs.PinLimit(max(most, 1)); err != nil {
		t.Skip(err)
	}
	s := &stage{t: t, dir: t.TempDir()}
	var err error
	s.Store, err = blockstore.Open(blockstore.Config{
		Volumes: []blockstore.VolumeConfig{{Path: s.dir}}, FS: vfs.OS, Reserve: -1, Logger: slog.New(slog.DiscardHandler),
		OnChange: func(c datanode.Change) {
			if s.Cache != nil {
				s.Changed(c)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Cache = New(Config{Store: s.Store, Most: most, Logger: slog.New(slog.DiscardHandler), Told: func(b metadata.Block, there bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, fmt.Sprint(int64(b.ID), there))
	}})
	t.Cleanup(func() {
		s.Cache.Close()
		s.wantLocked(0)
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *stage) heard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.told, " ")
	s.told = nil
	return out
}

func (s *stage) write(id metadata.BlockID, size int) metadata.Block {
	s.t.Helper()
	b := metadata.Block{ID: id, Generation: 1001}
	w, err := s.Create(b, datanode.CreateOptions{})
	if err == nil && size > 0 {
		err = w.Write(0, make([]byte, size), nil)
	}
	var r datanode.Replica
	if err == nil {
		w.Acked(int64(size))
		r, err = w.Finalize()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Block
}

// locked is how much of this process the kernel keeps in memory, in bytes.
func locked(t *testing.T) int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmLck:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatal("the kernel does not say what is locked")
	}
	n, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return n << 10
}

// wantLocked waits for it: what a change drives out goes in the background.
func (s *stage) wantLocked(want int64) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); locked(s.t) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%d bytes are locked, want %d", locked(s.t), want)
		}
	}
}

func TestReplicasAreKeptInMemory(t *testing.T) {
	s := newStage(t, 7<<20)
	ctx := t.Context()
	large, small, empty := s.write(1, 5<<20+7), s.write(2, 3000), s.write(3, 0)
	size, none := blockstore.PinSize(5<<20+7), blockstore.PinSize(0)
	s.Cache.Add(ctx, large)
	s.wantLocked(size)
	s.Cache.Add(ctx, small) // lies in a pack
	s.Cache.Add(ctx, empty)
	if got := s.heard(); got != "1 true 2 true 3 true" {
		t.Error(got)
	}
	capacity, used, n := s.Figures()
	if capacity != 7<<20 || used != size+none+4096 || n != 3 {
		t.Error(capacity, used, n)
	}
	s.wantLocked(used)
	s.Cache.Add(ctx, large) // again: the namenode has not heard
	s.Drop(2)
	s.Drop(3)
	s.Drop(7)
	if got := s.heard(); got != "1 true 2 false 3 false 7 false" {
		t.Error(got)
	}
	s.wantLocked(size)
	rd, err := s.Open(large)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	s.Drop(1)
	p := make([]byte, 1000)
	if n, err := rd.ReadAt(p, 5<<20-500); n != 507 { // who reads notices nothing
		t.Error(n, err)
	}
	s.wantLocked(0)
}

func TestWhatChangesLeavesMemory(t *testing.T) {
	for name, change := range map[string]func(*stage, metadata.Block) error{
		"deleted":   func(s *stage, b metadata.Block) error { return s.Delete(b) },
		"discarded": func(s *stage, b metadata.Block) error { return s.Discard(b) },
		"appended": func(s *stage, b metadata.Block) error {
			w, err := s.Append(b, b.Generation+1, false)
			if err == nil {
				err = w.Close()
			}
			return err
		},
		"recovered": func(s *stage, b metadata.Block) error {
			_, err := s.InitRecovery(b, b.Generation+1)
			if err == nil {
				_, err = s.UpdateReplica(b, b.Generation+1, b.Length-5)
			}
			return err
		},
		"damaged": func(s *stage, b metadata.Block) error {
			files, _ := filepath.Glob(filepath.Join(s.dir, "*", "*", "*"))
			more, _ := filepath.Glob(filepath.Join(s.dir, "*", "*", "*", "*"))
			for _, f := range slices.Concat(files, more) {
				if i, err := os.Stat(f); err == nil && i.Size() == b.Length {
					h, err := os.OpenFile(f, os.O_RDWR, 0)
					if err != nil {
						return err
					}
					_, _ = h.WriteAt([]byte("x"), 70_000)
					h.Close()
				}
			}
			if s.Verify(s.t.Context(), b.ID, datanode.VerifyOptions{}) == nil {
				return fmt.Errorf("no damage was found")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 7<<20)
			b := s.write(1, 200_000)
			s.Cache.Add(t.Context(), b)
			s.wantLocked(blockstore.PinSize(200_000))
			s.heard()
			if err := change(s, b); err != nil {
				t.Fatal(err)
			}
			if got := s.heard(); got != "1 false" || s.Has(1) {
				t.Errorf("told %q", got)
			}
			s.wantLocked(0)
		})
	}
}

// pinning is a store after whose pinning something happens.
type pinning struct {
	Store
	then func()
}

func (p pinning) Pin(ctx context.Context, b metadata.Block, memory func(n int64) error) (*blockstore.Pin, error) {
	defer p.then()
	return p.Store.Pin(ctx, b, memory)
}

// A replica whose volume fails while it is taken into memory is not kept there.
func TestWhatIsOnItsWayLeavesWithItsVolume(t *testing.T) {
	s := newStage(t, 7<<20)
	b := s.write(1, 200_000)
	volume, _ := s.VolumeOf(1)
	var c *Cache
	told := ""
	for failing, want := range map[string]string{"DS-other": "1 true", volume: "1 false"} {
		told = ""
		c = New(Config{
			Store: pinning{s.Store, func() { c.VolumeFailed(failing) }}, Most: 7 << 20, Logger: slog.New(slog.DiscardHandler),
			Told: func(b metadata.Block, there bool) { told += fmt.Sprint(int64(b.ID), there) },
		})
		c.Add(t.Context(), b)
		if _, used, n := c.Figures(); told != want || c.Has(1) != (failing != volume) || (used > 0) != (n == 1) {
			t.Errorf("%s fails: told %q, %d bytes of %d replicas", failing, told, used, n)
		}
		c.Close()
		s.wantLocked(0)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	one := blockstore.PinSize(100_000)
	s := newStage(t, 2*one+1)
	for id := range metadata.BlockID(4) {
		s.Cache.Add(t.Context(), s.write(id+1, 100_000))
	}
	if got := s.heard(); got != "1 true 2 true 3 false 4 false" {
		t.Error(got)
	}
	s.wantLocked(2 * one)
	s.Drop(1)
	s.Cache.Add(t.Context(), metadata.Block{ID: 4, Generation: 1001, Length: 100_000})
	if got := s.heard(); got != "1 false 4 true" {
		t.Error(got)
	}
}

func TestNothingIsKeptInMemoryByDefault(t *testing.T) {
	none := newStage(t, 0)
	none.Cache.Add(t.Context(), none.write(1, 100_000))
	if got := none.heard(); got != "1 false" {
		t.Error(got)
	}
}

// What is not as the namenode believes is not taken, nor what does not match its checksums.
func TestOnlyTheReplicaThatIsMeantIsTaken(t *testing.T) {
	s := newStage(t, 7<<20)
	b := s.write(1, 100_000)
	b.Generation++
	s.Cache.Add(t.Context(), b)
	b.Generation -= 2
	s.Cache.Add(t.Context(), b)
	s.Cache.Add(t.Context(), metadata.Block{ID: 9, Generation: 1001})
	if got := s.heard(); got != "1 false 1 false 9 false" {
		t.Error(got)
	}
	_, used, n := s.Figures()
	if used != 0 || n != 0 {
		t.Error(used, n)
	}
}
