package mem_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/kvtest"
	"github.com/gohops/hops/metadata/kv/mem"
)

func TestStore(t *testing.T) {
	kvtest.Run(t,
		func(*testing.T) kv.Store { return mem.New() },
		func(_ *testing.T, s kv.Store) kv.Store { return s.(*mem.Store).Crash(nil) })
}

// A power cut may take any of the writes after the last sync, and none before it.
func TestCrashTakesUnsyncedWritesOnly(t *testing.T) {
	s := mem.New()
	b := s.Batch(1)
	b.Put([]byte("a"), []byte("1"))
	b.Flush()
	s.Sync()
	b = s.Batch(2)
	b.Put([]byte("b"), []byte("2"))
	b.Flush()
	source := rand.New(rand.NewPCG(1, 2))
	lost, kept := 0, 0
	for range 100 {
		v := s.Crash(source).View(2)
		if _, err := v.Get([]byte("a")); err != nil {
			t.Fatal("a synced write is gone")
		}
		if _, err := v.Get([]byte("b")); err != nil {
			lost++
		} else {
			kept++
		}
	}
	if lost == 0 || kept == 0 {
		t.Errorf("of 100 power cuts %d took the write and %d did not", lost, kept)
	}
}
