package namespace

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
)

// sometimes says that there may be sheets: from the first checkpoint on, never, or from any.
func sometimes(r *rand.Rand, seed uint64) func() bool {
	return func() bool { return seed%4 == 0 || seed%4 > 1 && r.IntN(4) == 0 }
}

// A checkpoint is cut, the process dies, and the next one goes on: what the cut one had written, of files that are gone or
// closed by the time of a later checkpoint, is not in that. Processes die again and again, and also take checkpoints while
// they are still behind the one that was cut.
func TestLeftoversOfCutCheckpoints(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		inner := mem.New()
		store := faulty.New(inner, nil)
		w := newWorld(t, Config{Store: store, Memory: int64(r.IntN(2)), Sheets: sometimes(r, seed)})
		for life := range 5 {
			scribble(w, r, 5+r.IntN(20))
			w.snapshot()
			scribble(w, r, 1+r.IntN(40))
			s, err := w.ns.Freeze()
			if err != nil {
				t.Fatal(err)
			}
			store.Reset(faulty.FailAt(1 + r.IntN(100)))
			s.WriteTo(io.Discard)
			store.Reset(nil)

			var source *rand.Rand // a kill
			if r.IntN(2) == 0 {
				source = r
			}
			inner = inner.Crash(source)
			store = faulty.New(inner, nil)
			w.cfg.Store = store
			w.open()
			for i := w.ns.AppliedIndex(); i < w.index; i++ {
				w.ns.Apply(i+1, w.log[i])
				if r.IntN(30) == 0 {
					takeSnapshot(t, w.ns, io.Discard)
				}
			}
			scribble(w, r, r.IntN(40))
			w.check()
			w.snapshot()
			w.check() // what the checkpoint shows now, leftovers included
			w.catchUp(t, fmt.Sprintf("seed %d life %d", seed, life), fresh(t, inner.Crash(nil), 0))
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}
