package badger

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"
)

// compactors is how many goroutines of badger look for something to merge.
func compactors() int {
	all := make([]byte, 1<<20)
	for n := len(all); n == len(all); {
		all = make([]byte, 2*len(all))
		n = runtime.Stack(all, true)
	}
	return bytes.Count(all, []byte("levelsController).runCompactor("))
}

// Nobody looks for something to merge in a store that nobody writes, and everybody does in one that is written. What there is to merge is merged before they rest.
func TestNobodyLooksForSomethingToMergeAtRest(t *testing.T) {
	before := compactors()
	s, err := Open(t.TempDir(), Options{Memtable: apartMemtable, Apart: "ab", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := func(what string, after time.Duration, n int) {
		t.Helper()
		at := time.Now().Add(after) // the store looks, too, at its own time
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if s.look(at); compactors()-before == n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d look for something to merge, want %d", what, compactors()-before, n)
			}
		}
	}
	want("opened", 0, 6)
	want("opened a moment ago", restsAfter/2, 6)
	want("at rest", 2*restsAfter, 0)

	b := s.Batch(1)
	want("while somebody writes", 0, 6)
	want("while somebody writes for long", 4*restsAfter, 6)
	value := make([]byte, 512<<10)
	for i := range 20 << 4 { // 20 memory tables
		if err := b.Put(fmt.Appendf(nil, "k%04d", i), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	b.Cancel() // which comes after a Flush, too
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s.look(time.Now().Add(5 * restsAfter))
		if level := s.db[0].Levels()[0]; level.NumTables < s.db[0].Opts().NumLevelZeroTables {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d tables are in level 0: nobody merges", level.NumTables)
		}
	}
	want("at rest again", 10*restsAfter, 0)
	v := s.View(1)
	defer v.Close()
	if got, err := v.Get([]byte("k0007")); err != nil || len(got) != len(value) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
