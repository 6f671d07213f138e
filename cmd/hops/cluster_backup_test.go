package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

func TestASpoolIsWholeAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := spool(dir, strings.NewReader("applications and more"), 12)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "applications" {
		t.Errorf("%q %v", text, err)
	}
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	if _, err := spool(dir, strings.NewReader("half"), 12); !errors.Is(err, io.EOF) {
		t.Errorf("half of it: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
