package badger_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/badger"
)

// A scan over all classes is in order, whichever of them are apart, from anywhere and as far as it goes on.
func TestScanOfAllClasses(t *testing.T) {
	var want []string
	for class := 'a'; class <= 'f'; class++ {
		for i := range 3 {
			want = append(want, fmt.Sprintf("%c%d", class, i))
		}
	}
	for _, apart := range []string{"", "a", "f", "cd", "fca", "abcdef"} {
		s := openApart(t, t.TempDir(), apart)
		for _, key := range want {
			put(t, s, 1, key, key)
		}
		v := s.View(1)
		for first, from := range append(want, "g") {
			for most := 1; most <= len(want)+1; most++ {
				var got []string
				if err := v.Scan(nil, []byte(from), func(key, value []byte) bool {
					got = append(got, string(key))
					return len(got) < most
				}); err != nil {
					t.Fatal(err)
				}
				if w := want[first:min(first+most, len(want))]; strings.Join(got, " ") != strings.Join(w, " ") {
					t.Fatalf("apart %q, %d from %s: %q, want %q", apart, most, from, got, w)
				}
			}
		}
		v.Close()
	}
}

// filled is the directory of a closed store with keys of two classes, one of which is apart.
func filled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := openApart(t, dir, "b")
	put(t, s, 1, "a", "1")
	put(t, s, 1, "b", "1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A content of which one database is damaged or lost makes no sense: all of it is set aside.
func TestDamagedPartSetsAllAside(t *testing.T) {
	tables := func(dir string) string {
		found, err := filepath.Glob(filepath.Join(dir, "*.sst"))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return found[0]
	}
	for what, damage := range map[string]func(data string) error{
		"the folder is lost":        func(data string) error { return os.RemoveAll(filepath.Join(data, "b")) },
		"its manifest is lost":      func(data string) error { return os.Remove(filepath.Join(data, "b", "MANIFEST")) },
		"its manifest is damaged":   func(data string) error { return os.WriteFile(filepath.Join(data, "b", "MANIFEST"), []byte("x"), 0o600) },
		"a table is lost":           func(data string) error { return os.Remove(tables(filepath.Join(data, "b"))) },
		"the first one's is lost":   func(data string) error { return os.Remove(filepath.Join(data, "MANIFEST")) },
		"a bit of a table is wrong": func(data string) error { return flip(tables(filepath.Join(data, "b"))) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := filled(t)
			if err := damage(filepath.Join(dir, "data")); err != nil {
				t.Fatal(err)
			}
			if r, err := badger.Read(dir); err == nil {
				t.Error("it can be read", r.Close())
			}
			s := openApart(t, dir, "b")
			for _, key := range []string{"a", "b"} {
				if got := get(t, s, key); !strings.Contains(got, "not found") {
					t.Errorf("%s is %q", key, got)
				}
			}
			if got := s.Last(); got != 0 {
				t.Errorf("the last timestamp is %d", got)
			}
			if _, err := os.Stat(filepath.Join(dir, "data.damaged")); err != nil {
				t.Error(err)
			}
			put(t, s, 1, "b", "2")
			if got := get(t, s, "b"); got != "2" {
				t.Errorf("b is %q", got)
			}
		})
	}
}

func flip(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	raw[3] ^= 1
	return os.WriteFile(path, raw, 0o600)
}

// A crash while a store is made leaves databases without the first one: the next start makes that.
func TestStoreHalfMade(t *testing.T) {
	dir := t.TempDir()
	if err := openApart(t, dir, "bc").Close(); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n.Name() != "b" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, "data", n.Name())))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	s := openApart(t, dir, "bc")
	put(t, s, 1, "b", "1")
	if got := get(t, s, "b"); got != "1" {
		t.Errorf("b is %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "data.damaged")); err == nil {
		t.Error("it was set aside")
	}
}

func TestStoreWithPartsInUseIsAnError(t *testing.T) {
	dir := filled(t)
	s := openApart(t, dir, "b")
	if _, err := badger.Open(dir, badger.Options{Apart: "b"}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatal(err)
	}
	if _, err := badger.Read(dir); err == nil || !strings.Contains(err.Error(), "a server has it open") {
		t.Fatal(err)
	}
	if got := get(t, s, "b"); got != "1" {
		t.Errorf("b is %q", got)
	}
}

// What a process that was killed had in memory tables is read from all databases, and versions come and go in all of them.
func TestReadOfAllParts(t *testing.T) {
	dir := t.TempDir()
	s := openApart(t, dir, "b")
	put(t, s, 1, "a", "1")
	put(t, s, 2, "b", "2")
	if got := s.Last(); got != 2 {
		t.Errorf("the last timestamp is %d", got)
	}
	killed := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	before := listing(t, killed)
	r, err := badger.Read(killed)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if a, b := get(t, r, "a"), get(t, r, "b"); a != "1" || b != "2" {
		t.Errorf("a is %q, b is %q", a, b)
	}
	v := r.View(1)
	defer v.Close()
	if _, err := v.Get([]byte("b")); !errors.Is(err, kv.ErrNotFound) {
		t.Errorf("b before it was: %v", err)
	}
	if after := listing(t, killed); after != before {
		t.Errorf("was\n%sis\n%s", before, after)
	}

	if err := os.RemoveAll(filepath.Join(killed, "data", "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := badger.Read(killed); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "is lost") {
		t.Errorf("a part is not there: %v", err)
	}
}

// A content keeps the classes apart that it was made with, whatever those of the program are by now, until another takes its place.
func TestContentKeepsItsClassesApart(t *testing.T) {
	for _, unnamed := range []bool{false, true} {
		for _, made := range []string{"", "b"} {
			t.Run(fmt.Sprintf("%q without the file: %t", made, unnamed), func(t *testing.T) {
				dir := t.TempDir()
				s := openApart(t, dir, made)
				put(t, s, 1, "b", "1")
				put(t, s, 1, "c", "1")
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if unnamed { // as programs before made it
					if err := os.Remove(filepath.Join(dir, "data", "APART")); err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Fatal(err)
					}
				}
				s = openApart(t, dir, "bc")
				if named, err := os.ReadFile(filepath.Join(dir, "data", "APART")); err != nil || string(named) != made {
					t.Errorf("APART has %q, %v", named, err)
				}
				put(t, s, 2, "c", "2")
				for key, want := range map[string]string{"b": "1", "c": "2"} {
					if got := get(t, s, key); got != want {
						t.Errorf("%s is %q, want %q", key, got, want)
					}
				}
				for class, want := range map[string]bool{"b": made == "b", "c": false} {
					if _, err := os.Stat(filepath.Join(dir, "data", class)); err == nil != want {
						t.Errorf("class %s: %v", class, err)
					}
				}
				if err := s.Replace(3, func(put func(key, value []byte) error) error { return put([]byte("c"), []byte("3")) }); err != nil {
					t.Fatal(err)
				}
				if got := get(t, s, "c"); got != "3" {
					t.Errorf("c is %q", got)
				}
				if _, err := os.Stat(filepath.Join(dir, "data", "c", "MANIFEST")); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(filepath.Join(dir, "data.damaged")); err == nil {
					t.Error("it was set aside")
				}
			})
		}
	}
}

// The file that names the classes is damaged: nobody knows what is missing.
func TestDamagedNamesOfClasses(t *testing.T) {
	for _, names := range []string{"ba", "bb", "b/", "b\x80", strings.Repeat("b", 1<<20), "", "c"} {
		dir := filled(t)
		if err := os.WriteFile(filepath.Join(dir, "data", "APART"), []byte(names), 0o600); err != nil {
			t.Fatal(err)
		}
		want := "does not have letters and digits in their order"
		if len(names) < 2 {
			want = "does not name class b"
		}
		if _, err := badger.Read(dir); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
			t.Errorf("%.10q: %v", names, err)
		}
		s := openApart(t, dir, "b")
		if got := get(t, s, "a"); !strings.Contains(got, "not found") {
			t.Errorf("%.10q: a is %q", names, got)
		}
	}
}

// Where it cannot be noted which classes are apart in a content that does not say so yet, or a crash has cut that, the content is there all the same.
func TestNamesOfClassesThatCannotBeWritten(t *testing.T) {
	dir := filled(t)
	data := filepath.Join(dir, "data")
	part := filepath.Join(data, "APART.part")
	if err := errors.Join(os.Remove(filepath.Join(data, "APART")), os.Mkdir(part, 0o700)); err != nil { // in whose place no file can be made
		t.Fatal(err)
	}
	opens := func(named bool) {
		t.Helper()
		s := openApart(t, dir, "bc")
		if a, b := get(t, s, "a"), get(t, s, "b"); a != "1" || b != "1" {
			t.Errorf("a is %q, b is %q", a, b)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(data, "APART")); err == nil != named {
			t.Errorf("APART: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "data.damaged")); err == nil {
			t.Fatal("it was set aside")
		}
	}
	opens(false)
	if err := errors.Join(os.Remove(part), os.WriteFile(part, []byte("?"), 0o600)); err != nil { // what a crash leaves
		t.Fatal(err)
	}
	opens(true)
}
