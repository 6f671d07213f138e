package badger_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/kvtest"
)

func open(t testing.TB, dir string) *badger.Store {
	t.Helper()
	s, err := badger.Open(dir, badger.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStore(t *testing.T) {
	dirs := map[kv.Store]string{}
	kvtest.Run(t,
		func(t *testing.T) kv.Store {
			dir := t.TempDir()
			s := open(t, dir)
			dirs[s] = dir
			return s
		},
		func(t *testing.T, s kv.Store) kv.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again := open(t, dirs[s])
			dirs[again] = dirs[s]
			return again
		})
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

// A flipped bit in a table is an error of the read, never another value.
func TestFlippedBitIsFound(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	b := s.Batch(1)
	for i := range 2000 {
		b.Put(fmt.Appendf(nil, "key%05d", i), fmt.Appendf(nil, "value%05d", i))
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // writes the memory table out
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "data", "*.sst"))
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
	v := s.View(1)
	defer v.Close()
	failed := 0
	for i := range 2000 {
		got, err := v.Get(fmt.Appendf(nil, "key%05d", i))
		if err != nil {
			failed++
		} else if string(got) != fmt.Sprintf("value%05d", i) {
			t.Fatalf("key %d has the value %q", i, got)
		}
	}
	if failed == 0 {
		t.Error("nobody noticed")
	}
}
