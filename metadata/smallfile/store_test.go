package smallfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/gohops/hops/metadata"
)

var errNoSpace = fmt.Errorf("write: %w", syscall.ENOSPC)

const firstID = metadata.FirstBlockID

// bodyOf is the body of an id, the same always.
func bodyOf(id metadata.BlockID, most int) []byte {
	h := uint64(id) * 0x9e3779b97f4a7c15
	from, n := int(h>>16%MaxBody), 1+int(h>>40)%most
	return noise[from : from+n : from+n]
}

// noise is what bodies are cut from.
var noise = func() []byte {
	r := rand.New(rand.NewPCG(1, 7))
	b := make([]byte, 2*MaxBody)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

// living is a namespace: what lives.
type living struct {
	mu  sync.Mutex
	ids map[metadata.BlockID]bool
}

func newLiving() *living { return &living{ids: map[metadata.BlockID]bool{}} }

func (l *living) live(ids []metadata.BlockID) ([]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lives := make([]bool, len(ids))
	for i, id := range ids {
		lives[i] = l.ids[id]
	}
	return lives, nil
}

func (l *living) set(id metadata.BlockID, lives bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lives {
		l.ids[id] = true
	} else {
		delete(l.ids, id)
	}
}

func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := tryOpen(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(c Config) (*Store, error) {
	if c.Dir == "" {
		c.Dir = "/bodies"
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = leastSegment
	}
	if c.Live == nil {
		c.Live = func(ids []metadata.BlockID) ([]bool, error) { return make([]bool, len(ids)), nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := Open(c)
	if err == nil {
		s.rate = 1 << 40
	}
	return s, err
}

func TestPutAndGet(t *testing.T) {
	disk, names := newDisk(), newLiving()
	s := open(t, Config{Disk: disk, Live: names.live})
	const n = 300
	check := func(s *Store) {
		t.Helper()
		for id := firstID; id < firstID+n; id++ {
			b, err := s.Get(id)
			if err != nil || !bytes.Equal(b, bodyOf(id, 500)) {
				t.Fatalf("%d: %v", id, err)
			}
		}
		if _, err := s.Get(firstID + n); !errors.Is(err, fs.ErrNotExist) || s.Has(firstID+n) {
			t.Fatal(err)
		}
	}
	for id := firstID; id < firstID+n; id++ {
		s.Put(id, bodyOf(id, 500))
		names.set(id, true)
	}
	check(s)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Disk: disk, Live: names.live})
	check(s)
	for id := firstID; id < firstID+n; id += 2 {
		names.set(id, false)
	}
	freed, err := s.Compact(context.Background())
	if err != nil || freed == 0 {
		t.Fatal(freed, err)
	}
	t.Logf("%+v", s.Figures())
	for id := firstID; id < firstID+n; id++ {
		if b, err := s.Get(id); err != nil && id%2 == (firstID+1)%2 || err == nil && !bytes.Equal(b, bodyOf(id, 500)) {
			t.Fatalf("%d: %v", id, err)
		}
	}
	s.Close()
}
