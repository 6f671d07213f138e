package runs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/kvtest"
	"github.com/gohops/hops/metadata/kv/mem"
)

func open(t testing.TB, dir string, chunk int) *Store {
	t.Helper()
	s, err := Open(dir, Options{Chunk: chunk, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStore(t *testing.T) {
	for _, chunk := range []int{0, 100} {
		t.Run(fmt.Sprintf("chunks of %d", chunk), func(t *testing.T) {
			dirs := map[kv.Store]string{}
			kvtest.Run(t,
				func(t *testing.T) kv.Store {
					dir := t.TempDir()
					s := open(t, dir, chunk)
					dirs[s] = dir
					return s
				},
				func(t *testing.T, s kv.Store) kv.Store {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					again := open(t, dirs[s], chunk)
					dirs[again] = dirs[s]
					return again
				})
		})
	}
}

func put(t testing.TB, s kv.Store, at uint64, key, value string) {
	t.Helper()
	b := s.Batch(at)
	defer b.Cancel()
	if err := errors.Join(b.Put([]byte(key), []byte(value)), b.Flush(), s.Sync()); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, s kv.Store, key string) string {
	t.Helper()
	v := s.View(kv.Newest)
	defer v.Close()
	value, err := v.Get([]byte(key))
	if err != nil {
		return "error: " + err.Error()
	}
	return string(value)
}

func content(t testing.TB, s kv.Store, at uint64) string {
	t.Helper()
	v := s.View(at)
	defer v.Close()
	var b strings.Builder
	if err := v.Scan(nil, nil, func(key, value []byte) bool {
		fmt.Fprintf(&b, "%s=%s ", key, value)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Random checkpoints, merges, cancelled batches, restarts and kills say what a store in memory says. A kill loses what no
// Sync covered, and nothing else; views that were open before a merge see what they saw.
func TestLikeTheStoreInMemory(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		dir := t.TempDir()
		s, model := open(t, dir, 50+r.IntN(300)), mem.New()
		at, marked := uint64(0), uint64(0)
		write := func(stores ...kv.Store) {
			touched := map[string]string{}
			for range r.IntN(40) {
				key := fmt.Sprintf("%c%08d", 'a'+r.IntN(3), r.IntN(60))
				if r.IntN(3) == 0 {
					key = key[:1+r.IntN(8)]
				}
				touched[key] = strings.Repeat("v", r.IntN(30))
			}
			deletes := map[string]bool{}
			for key := range touched {
				deletes[key] = r.IntN(3) == 0
			}
			for _, s := range stores {
				b := s.Batch(at)
				for key, value := range touched {
					var err error
					if deletes[key] {
						err = b.Delete([]byte(key))
					} else {
						err = b.Put([]byte(key), []byte(value))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if err := b.Flush(); err != nil {
					t.Fatal(err)
				}
				b.Cancel()
			}
		}
		for range 60 {
			at++
			write(s, model)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			switch r.IntN(8) {
			case 0:
				b := s.Batch(at)
				b.Put([]byte("given up"), bytes.Repeat([]byte("x"), 200))
				b.Put([]byte("given up too"), nil)
				b.Cancel()
			case 1:
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = open(t, dir, 100)
			case 2:
				at++
				write(s) // killed before the Sync: as if it had not been
				copied := filepath.Join(t.TempDir(), "copy")
				if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				s.Close()
				dir = copied
				s = open(t, dir, 100)
			default:
				marked = at
				v := s.View(marked)
				before := content(t, s, marked)
				s.Discard(marked)
				model.Discard(marked)
				for {
					again, err := s.mergeSome()
					if err != nil {
						t.Fatal(err)
					}
					if !again {
						break
					}
				}
				var b strings.Builder
				v.Scan(nil, nil, func(key, value []byte) bool { fmt.Fprintf(&b, "%s=%s ", key, value); return true })
				v.Close()
				if b.String() != before {
					t.Fatalf("seed %d: an open view changed with a merge", seed)
				}
			}
			if got, want := content(t, s, at), content(t, model, at); got != want {
				t.Fatalf("seed %d at %d:\n%s\nwant\n%s", seed, at, got, want)
			}
			v, w := s.View(at), model.View(at)
			for range 20 {
				key := fmt.Appendf(nil, "%c%08d", 'a'+r.IntN(3), r.IntN(60))
				got, err := v.Get(key)
				want, wantErr := w.Get(key)
				if !bytes.Equal(got, want) || !errors.Is(err, wantErr) {
					t.Fatalf("seed %d at %d: %s is %q, %v; want %q, %v", seed, at, key, got, err, want, wantErr)
				}
			}
			v.Close()
		}
	}
}

// What a checkpoint that was cut has left above the marker is not merged into what views at the marker see.
func TestMergeLeavesWhatLiesAboveTheMarker(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	for at := uint64(1); at <= 12; at++ {
		put(t, s, at, "a", fmt.Sprint(at))
	}
	put(t, s, 50, "a", "left over")
	s.Discard(12)
	if _, err := s.mergeSome(); err != nil {
		t.Fatal(err)
	}
	put(t, s, 13, "a", "13")
	if got := content(t, s, 13); got != "a=13 " {
		t.Error(got)
	}
	if got := content(t, s, 12); got != "a=12 " {
		t.Error(got)
	}
	if got := content(t, s, 50); got != "a=left over " {
		t.Error(got)
	}
}

// However many checkpoints there were, few runs are left, and records are not merged again and again for it.
func TestMergesKeepRunsFew(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var list []*run
	written, merged, most := int64(0), int64(0), 0
	for at := uint64(1); at <= 4000; at++ {
		for _, size := range []int64{1 + r.Int64N(1000), 1} { // what changed, and the marker
			list = append(list, &run{at: at, size: size})
			written += size
		}
		for {
			from, to := choose(list, at)
			if from == to {
				break
			}
			whole := &run{at: at}
			for _, p := range list[from:to] {
				whole.size += p.size
			}
			merged += whole.size
			list = append(list[:from:from], append([]*run{whole}, list[to:]...)...)
		}
		most = max(most, len(list))
	}
	if most > 24 || merged > 12*written {
		t.Errorf("up to %d runs, each byte was written %.1f times", most, 1+float64(merged)/float64(written))
	}
	t.Logf("up to %d runs, each byte was written %.1f times", most, 1+float64(merged)/float64(written))
}

func runFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+runSuffix))
	if err != nil || len(files) == 0 {
		t.Fatal("no runs", err)
	}
	return files
}

// A flipped bit or a cut in a run is an error, or an empty start when it hits what is read at the start. It is never
// another value.
func TestDamageIsFound(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	b := s.Batch(1)
	for i := range 2000 {
		b.Put(fmt.Appendf(nil, "key%05d", i), fmt.Appendf(nil, "value%05d", i))
	}
	if err := errors.Join(b.Flush(), s.Sync(), s.Close()); err != nil {
		t.Fatal(err)
	}
	file := runFiles(t, dir)[0]
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for step := range 60 {
		bad := bytes.Clone(good)
		if at := step * len(good) / 60; step%10 == 9 {
			bad = bad[:at]
		} else {
			bad[at] ^= 1 << (step % 8)
		}
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copied, filepath.Base(file)), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(copied, Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		v := s.View(1)
		failed, missing := 0, 0
		for i := range 2000 {
			got, err := v.Get(fmt.Appendf(nil, "key%05d", i))
			switch {
			case errors.Is(err, metadata.ErrCorrupt):
				failed++
			case errors.Is(err, kv.ErrNotFound):
				missing++
			case err != nil:
				t.Fatal(err)
			case string(got) != fmt.Sprintf("value%05d", i):
				t.Fatalf("key %d has the value %q", i, got)
			}
		}
		if missing != 0 && missing != 2000 || missing == 0 && failed == 0 {
			t.Errorf("step %d: %d keys are missing, %d failed", step, missing, failed)
		}
		v.Close()
		s.Close()
	}
}

// A damaged manifest, or one that names a file that is not there, is an empty start.
func TestDamagedManifestStartsEmpty(t *testing.T) {
	damage := map[string]func(t *testing.T, dir string) error{
		"noise": func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, manifestName), []byte("not a manifest"), 0o600)
		},
		"a run is gone": func(t *testing.T, dir string) error { return os.Remove(runFiles(t, dir)[0]) },
	}
	for name, damage := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, 0)
			put(t, s, 1, "a", "1")
			put(t, s, 1, "b", "1")
			s.Close()
			if err := damage(t, dir); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, 0)
			if got := content(t, s, kv.Newest); got != "" {
				t.Error(got)
			}
			put(t, s, 1, "a", "2")
			s.Close()
			if got := get(t, open(t, dir, 0), "a"); got != "2" {
				t.Errorf("a is %q", got)
			}
		})
	}
}

// Two processes cannot have one store, and the second one does not throw it away.
func TestStoreInUseIsAnError(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	put(t, s, 1, "a", "1")
	if _, err := Open(dir, Options{}); err == nil {
		t.Fatal("it opened twice")
	}
	if got := get(t, s, "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
}

// What an earlier format and a crash have left in the directory goes at Open.
func TestOpenRemovesLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"data/000001.sst", "data.old/MANIFEST", "0000000009.run", "manifest.tmp"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir, 0)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != lockName {
		t.Errorf("there is %v, %v", left, err)
	}
}

// A run that a merge finds damaged stops the next checkpoint, and the next start is from the snapshot.
func TestMergeOfDamageCondemnsTheStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	for at := uint64(1); at <= 12; at++ {
		put(t, s, at, "a", strings.Repeat("v", 100))
	}
	data, err := os.ReadFile(runFiles(t, dir)[3])
	if err != nil {
		t.Fatal(err)
	}
	data[20] ^= 1
	if err := os.WriteFile(runFiles(t, dir)[3], data, 0o600); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.discarded = 12
	s.mu.Unlock()
	_, err = s.mergeSome()
	if !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("merging gave %v", err)
	}
	s.fail(err)
	if err := s.Sync(); !errors.Is(err, metadata.ErrCorrupt) {
		t.Errorf("sync gave %v", err)
	}
	s.Close()
	if got := content(t, open(t, dir, 0), kv.Newest); got != "" {
		t.Error("the next start trusts it")
	}
}

func BenchmarkBatch(b *testing.B) {
	s := open(b, b.TempDir(), 0)
	batch := s.Batch(1)
	for i := range b.N {
		key := fmt.Appendf(nil, "d\x00\x00\x00\x00\x00\x00%c%cfile%08d", byte(i%64>>4), byte(i%16), i)
		if err := batch.Put(key, key); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(batch.Flush(), s.Sync()); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	size := int64(0)
	for _, r := range s.runs {
		size += r.size
	}
	b.ReportMetric(float64(size)/float64(b.N), "B/record")
}
