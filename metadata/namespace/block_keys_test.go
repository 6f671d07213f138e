package namespace

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// seeds are n seeds of the right size.
func seeds(n int, mark uint32) [][]byte {
	var out [][]byte
	for i := range n {
		out = append(out, fmt.Appendf(nil, "%0*d", metadata.KeySeedSize, int(mark)*10+i))
	}
	return out
}

// modelKeys is what rolls leave, told plainly: every key that ever came, with the time from which on it is not needed.
type modelKeys struct {
	all    []modelKey
	rolled metadata.Time
}

type modelKey struct {
	id      int32
	seed    string
	until   metadata.Time // 0: for ever
	dropped bool
}

func (m *modelKeys) roll(now metadata.Time, seeds [][]byte, keep int64) {
	for i := range m.all {
		k := &m.all[i]
		k.dropped = k.dropped || k.until != 0 && k.until < now
	}
	for _, s := range seeds {
		m.all = append(m.all, modelKey{id: int32(len(m.all)) + 1, seed: string(s)})
	}
	for i := range m.all {
		if k := &m.all[i]; i < len(m.all)-2 && k.until == 0 {
			k.until = now + metadata.Time(keep)
		}
	}
	m.rolled = now
}

func (m *modelKeys) compare(t *rapid.T, name string, ns *Namespace) {
	var want []metadata.BlockKey
	for _, k := range m.all {
		if !k.dropped {
			want = append(want, metadata.BlockKey{ID: k.id, Seed: metadata.KeySeed(k.seed)})
		}
	}
	if got, rolled := ns.BlockKeys(); !slices.Equal(got, want) || rolled != LogTime(m.rolled) {
		t.Fatalf("%s has %d block keys, rolled at %d; the model %d, rolled at %d", name, len(got), rolled, len(want), m.rolled)
	}
	if got := ns.NewestBlockKey(); int(got) != len(m.all) {
		t.Fatalf("%s: the newest block key is %d, the model's %d", name, got, len(m.all))
	}
}

// rollKeys rolls, sometimes after a key that is not the newest.
func (s *machine) rollKeys(t *rapid.T) {
	late := int32(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "late"))
	fresh := seeds(rapid.IntRange(1, 2).Draw(t, "seeds"), uint32(s.w.index))
	keep := rapid.SampledFrom([]int64{0, 15, 500}).Draw(t, "keep")
	newest := int32(len(s.keys.all))
	kept := 0
	for _, k := range s.keys.all {
		if !k.dropped && (k.until == 0 || k.until >= s.w.now+10) {
			kept++
		}
	}
	if kept > maxBlockKeys-2 {
		t.Skip("too many keys")
	}
	r := s.do(t, super, &logpb.RollBlockKeys{After: newest - late, Seeds: fresh, Keep: keep})
	if r.Err != nil || r.OK != (late == 0) {
		t.Fatalf("roll after %d, the newest is %d: %v, %v", newest-late, newest, r.OK, r.Err)
	}
	if r.OK {
		s.keys.roll(s.w.now, fresh, keep)
	}
	s.keys.compare(t, "the one", s.w.ns)
}

func TestRollsOfBlockKeysThatAreRefused(t *testing.T) {
	w := newWorld(t, Config{})
	good := &logpb.RollBlockKeys{Seeds: seeds(2, 1), Keep: 100}
	if r := w.do(super, good); !r.OK || r.Err != nil {
		t.Fatalf("first roll: %v, %v", r.OK, r.Err)
	}
	before, hash := w.ns.NewestBlockKey(), w.ns.Hash()
	if r := w.do(super, good); r.OK || r.Err != nil { // by a leader who did not know of the first one
		t.Errorf("the same roll again: %v, %v", r.OK, r.Err)
	}
	for name, op := range map[string]*logpb.RollBlockKeys{
		"no seeds":        {After: 2},
		"three seeds":     {After: 2, Seeds: seeds(3, 1)},
		"a short seed":    {After: 2, Seeds: [][]byte{[]byte("short")}},
		"a negative time": {After: 2, Seeds: seeds(1, 1), Keep: -1},
		"an age":          {After: 2, Seeds: seeds(1, 1), Keep: maxKeep + 1},
	} {
		r := w.do(super, op)
		if metadata.KindOf(r.Err) != metadata.ErrInvalidArgument {
			t.Errorf("%s: %v", name, r.Err)
		} else if strings.Contains(r.Err.Error(), "0000000000000000") {
			t.Errorf("%s: the error shows a seed: %v", name, r.Err)
		}
	}
	if after := w.ns.NewestBlockKey(); after != before || w.ns.Hash() != hash {
		t.Errorf("keys changed from %d to %d, hash %x to %x", before, after, hash, w.ns.Hash())
	}
	for i := before; i < 200; i++ { // all of them needed for long
		r := w.do(super, &logpb.RollBlockKeys{After: w.ns.NewestBlockKey(), Seeds: seeds(1, uint32(i)), Keep: maxKeep})
		if keys, _ := w.ns.BlockKeys(); len(keys) > maxBlockKeys || (r.Err == nil) != (int(i) < maxBlockKeys) {
			t.Fatalf("after %d rolls %d keys, %v", i, len(keys), r.Err)
		}
	}
	w.check()
}

// Keys go through snapshots and restarts, and make the hash.
func TestBlockKeysSurviveRestartAndSnapshot(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.RollBlockKeys{Seeds: seeds(2, 1), Keep: 1 << 30})
	for i := range 3 {
		hash := w.ns.Hash()
		w.do(super, &logpb.RollBlockKeys{After: w.ns.NewestBlockKey(), Seeds: seeds(1, uint32(i)+7), Keep: 1 << 30})
		if w.ns.Hash() == hash {
			t.Error("keys do not change the hash")
		}
	}
	want, at := w.ns.BlockKeys()
	if len(want) != 5 {
		t.Fatalf("%d keys", len(want))
	}
	stream := w.snapshot()
	w.reopen()
	for name, ns := range map[string]*Namespace{"restart": w.ns, "snapshot": restore(t, stream), "log": func() *Namespace {
		ns := fresh(t, mem.New(), 0)
		w.replay(ns)
		return ns
	}()} {
		if got, rolled := ns.BlockKeys(); !slices.Equal(got, want) || rolled != at || ns.Hash() != w.ns.Hash() {
			t.Errorf("after %s: %d keys rolled at %d, want %d at %d", name, len(got), rolled, len(want), at)
		}
	}
}
