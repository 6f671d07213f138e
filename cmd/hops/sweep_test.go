package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// What `hops dev --ephemeral` left behind when it was killed goes away with the next one; what is in use, has just been
// made or is something else stays.
func TestDirectoriesOfKilledClustersAreSwept(t *testing.T) {
	parent := t.TempDir()
	made := func(name string, lock bool, age time.Duration) string {
		dir := filepath.Join(parent, name)
		if err := os.MkdirAll(filepath.Join(dir, "nn"), 0o755); err != nil {
			t.Fatal(err)
		}
		if lock {
			file := filepath.Join(dir, devLock)
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			then := time.Now().Add(-age)
			if err := os.Chtimes(file, then, then); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	made("hops-dev-killed", true, time.Hour)
	made("hops-dev-new", true, 0)
	made("hops-dev-being-made", false, 0)
	made("other", true, time.Hour)
	unlock, err := lockDev(t.Context(), made("hops-dev-runs", true, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()

	sweepEphemeral(parent)
	var left []string
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"hops-dev-being-made", "hops-dev-new", "hops-dev-runs", "other"}; !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
}
