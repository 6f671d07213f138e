package durable

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFailedWriteLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := WriteJSON(name, map[string]int{"a": 1}, 0o600); err != nil {
		t.Fatal(err)
	}
	// The first name of the new content cannot be made.
	if err := os.Mkdir(name+".tmp", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(name, map[string]int{"a": 2}, 0o600); err == nil {
		t.Fatal("no error")
	}
	var got map[string]int
	if err := ReadJSON(name, &got); err != nil || got["a"] != 1 {
		t.Errorf("%v %v", got, err)
	}
	if err := WriteJSON(name, make(chan int), 0o600); err == nil || !strings.Contains(err.Error(), "encode f") {
		t.Errorf("got %v", err)
	}
}

func TestReadRefusesWhatIsNotOurs(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(name, new(any)); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("got %v", err)
	}
	if err := os.Truncate(name, 65<<20); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(name, new(any)); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("got %v", err)
	}
	pipe, link := name+".pipe", name+".link"
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("f", link)); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{pipe, link, filepath.Dir(name)} {
		if err := ReadJSON(other, new(any)); err == nil {
			t.Errorf("%s was read", other)
		}
	}
}
