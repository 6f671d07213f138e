package raftstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
)

// Whatever bit of member.json flips: nobody becomes a member of something else.
func TestDamagedIdentityIsNoOthers(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	want := identity{Format: formatVersion, Cluster: "c1", Group: "a", Member: "m1", Recovered: 2, Level: 1}
	d, err := openDirectory(path, want, false)
	if err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(d.file())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "log", "something"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(text []byte, anew bool) (identity, error) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(path, "member.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := openDirectory(path, want, anew)
		if err != nil {
			return identity{}, err
		}
		return d.identity, d.close()
	}
	for i := range 8 * len(sound) {
		text := append([]byte(nil), sound...)
		text[i/8] ^= 1 << (i % 8)
		got, err := open(text, false)
		if err == nil && got != want || err != nil && !errors.Is(err, metadata.ErrCorrupt) {
			t.Fatalf("bit %d of byte %d: %+v, %v", i%8, i/8, got, err)
		}
		// Who empties the directory gets along with all of it.
		if got, err := open(text, true); err != nil || got != want {
			t.Fatalf("bit %d of byte %d: %+v, %v", i%8, i/8, got, err)
		}
	}
	for n := range len(sound) - 1 {
		if _, err := open(sound[:n], false); n < len(sound)-1 && !errors.Is(err, metadata.ErrCorrupt) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// A program that wrote no checksum, and a later one.
	if got, err := open([]byte(`{"format":2,"cluster":"c1","group":"a","member":"m1","recovered":2,"level":1}`), false); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	later := seal([]byte(`{"format":3,"group":"a","owner":"m1"`))
	if _, err := open(later, false); err == nil || !strings.Contains(err.Error(), "has format 3") {
		t.Error(err)
	}
	if _, err := open(later, true); err == nil || !strings.Contains(err.Error(), "has format 3") {
		t.Error(err)
	}
}
