package state

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// chain makes so many directories, each in the one before: a path of them all is too long to say.
func chain(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := at.Mkdir("dddddddddd", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := at.WriteFile("file", nil, 0o400); err != nil {
			t.Fatal(err)
		}
		below, err := at.OpenRoot("dddddddddd")
		at.Close()
		if err != nil {
			t.Fatal(err)
		}
		at = below
	}
	at.Close()
}

// fewDescriptors leaves the test what a busy node manager has left.
func fewDescriptors(t *testing.T) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
}

func TestRemoveAllOfADeepTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	chain(t, dir, 300)
	fewDescriptors(t)
	if err := RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Error("it is still there")
	}
}

func TestRemoveAllOfAHostileTree(t *testing.T) {
	parent := t.TempDir()
	outside := filepath.Join(parent, "outside")
	dir := filepath.Join(parent, "tree")
	for _, d := range []string{outside, dir, filepath.Join(dir, "a"), filepath.Join(dir, ".removed-1"), filepath.Join(dir, "a", "b")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var files []string
	for i := range 2500 { // more than are listed at once
		files = append(files, filepath.Join(dir, "a", fmt.Sprint(i)))
	}
	for _, f := range append(files, filepath.Join(outside, "kept"), filepath.Join(dir, ".removed-1", "x"), filepath.Join(dir, ".removed-2"), filepath.Join(dir, "a", "b", "x")) {
		if err := os.WriteFile(f, nil, 0o000); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"l", "a/l", "a/b/l"} {
		if err := os.Symlink(outside, filepath.Join(dir, l)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "a", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"a/b", "a", ".removed-1", "."} {
		if err := os.Chmod(filepath.Join(dir, d), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadDir(parent)
	if kept, _ := os.ReadDir(outside); len(left) != 1 || len(kept) != 1 {
		t.Errorf("left are %v and outside %v", left, kept)
	}
	for _, name := range []string{dir, strings.Repeat("x", 10)} {
		if err := RemoveAll(filepath.Join(parent, filepath.Base(name))); err != nil {
			t.Errorf("nothing to remove: %v", err)
		}
	}
}
