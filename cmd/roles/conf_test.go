package roles

import (
	"os"
	"path/filepath"
	"testing"
)

// On a full disk nothing can be written, and a server has to start there.
func TestFileWithTheRightContentIsLeftAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "core-site.xml")
	if err := writeFile(name, []byte("same")); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(name, []byte("same")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(name); err != nil || !os.SameFile(before, after) {
		t.Fatalf("it was written again: %v", err)
	}
	if err := writeFile(name, []byte("other")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "other" {
		t.Fatalf("%q, %v", got, err)
	}
}
