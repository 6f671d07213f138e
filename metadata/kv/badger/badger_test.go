package badger_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/kvtest"
)

func open(t testing.TB, dir string) *badger.Store { return openApart(t, dir, "") }

func openApart(t testing.TB, dir, apart string) *badger.Store {
	t.Helper()
	s, err := badger.Open(dir, badger.Options{Apart: apart, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStore(t *testing.T) {
	for _, apart := range []string{"", "koab0"} {
		t.Run("apart "+apart, func(t *testing.T) {
			dirs := map[kv.Store]string{}
			kvtest.Run(t,
				func(t *testing.T) kv.Store {
					dir := t.TempDir()
					s := openApart(t, dir, apart)
					dirs[s] = dir
					return s
				},
				func(t *testing.T, s kv.Store) kv.Store {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					again := openApart(t, dirs[s], apart)
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
	if err := b.Put([]byte(key), []byte(value)); err != nil {
		t.Fatal(err)
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
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

// A store whose files are not a database any more starts empty instead of keeping the namenode from starting.
func TestDamagedStoreStartsEmpty(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, 1, "a", "1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "MANIFEST"), []byte("not a manifest"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if got := get(t, s, "a"); !strings.Contains(got, "not found") {
		t.Errorf("a is %q", got)
	}
	put(t, s, 1, "a", "2")
}

// Two processes cannot have one store, and the second one does not throw it away.
func TestStoreInUseIsAnError(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, 1, "a", "1")
	if _, err := badger.Open(dir, badger.Options{}); err == nil {
		t.Fatal("it opened twice")
	}
	if got := get(t, s, "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
}

// Replace exchanges folders; a crash at any step leaves the former or the new content.
func TestCrashBetweenRenamesOfReplace(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, 1, "a", "old")
	s.Close()
	at := func(name string) string { return filepath.Join(dir, name) }

	t.Run("before the first", func(t *testing.T) {
		if err := os.Mkdir(at("data.new"), 0o700); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		defer s.Close()
		if got := get(t, s, "a"); got != "old" {
			t.Errorf("a is %q", got)
		}
		if _, err := os.Stat(at("data.new")); err == nil {
			t.Error("the unfinished store is still there")
		}
	})
	t.Run("between them", func(t *testing.T) {
		if err := os.Rename(at("data"), at("data.old")); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		defer s.Close()
		if got := get(t, s, "a"); got != "old" {
			t.Errorf("a is %q", got)
		}
	})
	t.Run("after the second", func(t *testing.T) {
		if err := os.CopyFS(at("data.old"), os.DirFS(at("data"))); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		defer s.Close()
		if got := get(t, s, "a"); got != "old" {
			t.Errorf("a is %q", got)
		}
		if _, err := os.Stat(at("data.old")); err == nil {
			t.Error("the former store is still there")
		}
	})
}

// A flipped bit in a table of a small store is found when the store is opened: it starts empty, and the files are kept. In a larger one it is
// found a little later, and all reads fail from then on. It never is another value.
func TestFlippedBitIsFound(t *testing.T) {
	t.Run("small", func(t *testing.T) { flippedBitIsFound(t, 2000, "") })
	t.Run("large", func(t *testing.T) { flippedBitIsFound(t, 70_000, "") })
	t.Run("large, apart", func(t *testing.T) { flippedBitIsFound(t, 70_000, "k") })
}

func flippedBitIsFound(t *testing.T, keys int, apart string) {
	open := func(t *testing.T, dir string) *badger.Store { return openApart(t, dir, apart) }
	value := func(i int) string { return fmt.Sprintf("value%05d%s", i, strings.Repeat("-", 1000)) }
	large := keys*1000 > 64<<20
	dir := t.TempDir()
	s := open(t, dir)
	b := s.Batch(1)
	for i := range keys {
		b.Put(fmt.Appendf(nil, "key%05d", i), []byte(value(i)))
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // writes the memory table out
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "data", apart, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal("no table", err)
	}
	data, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/4] ^= 4
	if err := os.WriteFile(tables[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	_, err = os.Stat(filepath.Join(dir, "data.damaged"))
	if large == (err == nil) {
		t.Errorf("set aside: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		v := s.View(1)
		got, err := v.Get([]byte("key00001"))
		v.Close()
		if err == nil && string(got) != value(1) {
			t.Fatalf("the value %q", got)
		}
		if !large && errors.Is(err, kv.ErrNotFound) || large && err != nil && !errors.Is(err, kv.ErrNotFound) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody noticed")
		}
	}
	if !large {
		return
	}
	if err := s.Sync(); err == nil {
		t.Error("a checkpoint would be taken for good")
	}
	v := s.View(1)
	if err := v.Scan(nil, nil, func([]byte, []byte) bool { return true }); err == nil {
		t.Error("a scan ends without an error")
	}
	v.Close()
	s.Close()
	s = open(t, dir)
	if got := get(t, s, "key00001"); !strings.Contains(got, "not found") {
		t.Errorf("it starts with %q", got)
	}
}

// Versions that nothing shows any more go: a store in which the same keys are written again and again stays small.
func TestGarbageIsBounded(t *testing.T) {
	const keys = 20_000
	dir := t.TempDir()
	s, err := badger.Open(dir, badger.Options{Memtable: 8 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	value := []byte(strings.Repeat("v", 200))
	for round := range uint64(40) {
		b := s.Batch(round + 1)
		for i := range keys {
			if err := b.Put(fmt.Appendf(nil, "key%08d", i), value); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			s.Discard(round) // the last two stay
		}
	}
	size := func() (sum int64) {
		tables, _ := filepath.Glob(filepath.Join(dir, "data", "*.sst"))
		for _, path := range tables {
			if info, err := os.Stat(path); err == nil {
				sum += info.Size()
			}
		}
		return sum
	}
	live := int64(keys * (len(value) + 11))
	const newest = 8 * 8 << 20 // tables that are not merged yet
	for deadline := time.Now().Add(time.Minute); size() > 3*live+newest; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d MiB on disk, %d MiB are live", size()>>20, live>>20)
		}
	}
	t.Logf("%d MiB on disk, %d MiB are live", size()>>20, live>>20)
}

// When the new content cannot take the place of the former one, that can still be read.
func TestReplaceThatFailsAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	b := s.Batch(1)
	if err := errors.Join(b.Put([]byte("a"), []byte("1")), b.Flush(), s.Sync()); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "data.old", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := s.Replace(2, func(put func(key, value []byte) error) error { return put([]byte("a"), []byte("2")) })
	if err == nil {
		t.Fatal("nothing was in the way")
	}
	v := s.View(kv.Newest)
	defer v.Close()
	if got, err := v.Get([]byte("a")); err != nil || string(got) != "1" {
		t.Errorf("a is %q, %v", got, err)
	}
}

// Who reads a store that is being closed, at the end of a process, does not have its content thrown away at the next start.
func TestClosedStoreIsNotCondemned(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	b := s.Batch(1)
	if err := errors.Join(b.Put([]byte("a"), []byte("1")), b.Flush(), s.Sync()); err != nil {
		t.Fatal(err)
	}
	v := s.View(1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Get([]byte("a")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Get: %v", err)
	}
	if err := v.Scan(nil, nil, func(_, _ []byte) bool { return true }); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Scan: %v", err)
	}
	if err := s.Condemn(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Condemn: %v", err)
	}
	v = open(t, dir).View(1)
	defer v.Close()
	if got, err := v.Get([]byte("a")); err != nil || string(got) != "1" {
		t.Errorf("a is %q, %v", got, err)
	}
}

// A call that is under way when the store is closed comes to its end first: what it looks at is memory that goes with the store.
func TestCloseWaitsForReaders(t *testing.T) {
	s := open(t, t.TempDir())
	b := s.Batch(1)
	for i := range 1000 {
		if err := b.Put(fmt.Appendf(nil, "k%03d", i), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(b.Flush(), s.Sync()); err != nil {
		t.Fatal(err)
	}
	v := s.View(1)
	defer v.Close()
	inside, goOn := make(chan struct{}), make(chan struct{})
	scanned, closed := make(chan error, 1), make(chan error, 1)
	seen := 0
	go func() {
		scanned <- v.Scan(nil, nil, func(_, _ []byte) bool {
			if seen++; seen == 10 {
				close(inside)
				<-goOn
			}
			return true
		})
	}()
	<-inside
	go func() { closed <- s.Close() }()
	for { // until it is being closed
		if _, err := v.Get([]byte("k000")); errors.Is(err, fs.ErrClosed) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-closed:
		t.Fatal("closed under a reader:", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	if err := <-scanned; !errors.Is(err, fs.ErrClosed) || seen != 10 {
		t.Errorf("the scan saw %d and ended with %v", seen, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
