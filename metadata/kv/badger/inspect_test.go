package badger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata/kv/badger"
)

// listing is what a directory holds, with sizes and times.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReadChangesNothingAlsoOfAKilledStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, 1, "a", "1")
	if _, err := badger.Read(dir); err == nil || !strings.Contains(err.Error(), "a server has it open") {
		t.Fatalf("read beside its server: %v", err)
	}
	killed := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	for name, of := range map[string]string{"killed": killed, "stopped": dir, "set aside": filepath.Join(dir, "data")} {
		before := listing(t, of)
		r, err := badger.Read(of)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := get(t, r, "a"); got != "1" {
			t.Errorf("%s: a is %q", name, got)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if after := listing(t, of); after != before {
			t.Errorf("%s: was\n%sis\n%s", name, before, after)
		}
	}
	tables, _ := filepath.Glob(filepath.Join(dir, "data", "*.sst"))
	if len(tables) == 0 {
		t.Fatal("no table")
	}
	refused := func(what, want string, change func() error) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, err := badger.Read(dir); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a flipped table", "a table is damaged", func() error {
		raw, err := os.ReadFile(tables[0])
		if err == nil {
			raw[3] ^= 1
			err = os.WriteFile(tables[0], raw, 0o600)
		}
		return err
	})
	refused("an empty table", "a table is damaged", func() error { return os.Truncate(tables[0], 0) })
	refused("no table", "checkpoint ", func() error { return os.Remove(tables[0]) })
	refused("no manifest", "is no checkpoint", func() error { return os.Remove(filepath.Join(dir, "data", "MANIFEST")) })
	refused("an empty manifest", "checkpoint ", func() error { return os.WriteFile(filepath.Join(dir, "data", "MANIFEST"), nil, 0o600) })
	refused("nothing", "no such file", func() error { return os.RemoveAll(dir) })
	refused("a file", "not a directory", func() error { return os.WriteFile(dir, nil, 0o600) })
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("%d directories are left", len(left))
	}
}
