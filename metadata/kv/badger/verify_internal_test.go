package badger

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Tables come and go while they are verified. One that is being written, and one that badger is removing, is no damage: the whole
// checkpoint would be set aside for it.
func TestTablesThatComeAndGoAreSound(t *testing.T) {
	dir := t.TempDir()
	quiet := Options{Logger: slog.New(slog.DiscardHandler)}
	reopened := func() *Store {
		s, err := Open(dir, quiet)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := reopened()
	b := s.Batch(1)
	for i := range 100 {
		if err := b.Put(fmt.Append(nil, i), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = reopened()
	tables := s.db[0].Tables()
	if len(tables) == 0 {
		t.Fatal("no table")
	}
	if err := os.WriteFile(filepath.Join(dir, current, "777777.sst"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.verify(); err != nil {
		t.Errorf("a table that is being written: %v", err)
	}
	path := filepath.Join(t.TempDir(), "table")
	content, err := os.ReadFile(filepath.Join(dir, current, fmt.Sprintf("%06d.sst", tables[0].ID)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := verifyTable(path, found); err != nil || n != len(content) {
		t.Errorf("a sound one: %d bytes, %v", n, err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := verifyTable(path, found); err != nil {
		t.Errorf("a table that is going: %v", err)
	}
}
