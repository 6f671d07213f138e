package localizer

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
)

// FuzzArchive unpacks anything and looks at what lies in and beside the work directory then: nothing beside it was touched,
// no more was made in it than may be, and a container that may start finds no link in it that leads out.
func FuzzArchive(f *testing.F) {
	link := byte(tar.TypeSymlink)
	f.Add(false, tarOf(f, false, entry{name: "a", body: "1"}, entry{name: "b", link: "a", kind: link}))
	f.Add(false, tarOf(f, true, entry{name: "a/b", body: "1"}))
	f.Add(false, tarOf(f, false, entry{name: "a/b/c/l", link: "../../..", kind: link}, entry{name: "m", link: "a/b/c/l/../../..", kind: link}))
	f.Add(false, tarOf(f, false, entry{name: "a/b/l", link: "../..", kind: link}, entry{name: "m", link: "a/b/l", kind: tar.TypeLink}))
	f.Add(false, tarOf(f, false, entry{name: strings.Repeat("d/", 99) + "f", body: "x"}, entry{name: strings.Repeat("e/", 99) + "f"}))
	f.Add(false, zipOf(f, entry{name: "a/b", body: "1"}, entry{name: "l", link: "a"}))
	f.Add(false, zipOf(f, entry{name: "a/b/c/l", link: "../../.."}, entry{name: "m", link: "a/b/c/l/../../.."}))
	f.Add(false, listing(3, 3))
	f.Add(true, zipOf(f, entry{name: "a.py", body: "1"}, manifestOf(map[string]string{"a.py": sum([]byte("1"))})))
	f.Fuzz(func(t *testing.T, code bool, data []byte) {
		const most = 100
		parent := t.TempDir()
		dir, secret := filepath.Join(parent, "work"), filepath.Join(parent, "secret")
		for _, d := range []string{dir, secret} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(secret, "file"), []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := New(Config{Cache: filepath.Join(parent, "cache"), MaxUnpacked: 1 << 20, MaxFiles: most})
		if err != nil {
			t.Fatal(err)
		}
		kind := nodemanager.Archive
		if code {
			kind = nodemanager.Code
		}
		err = l.Localize(t.Context(), nil, "mallory", dir, []nodemanager.Artifact{{Name: "a", Kind: kind, Content: data}})
		if beside, _ := os.ReadDir(parent); len(beside) != 4 { // cache, secret, trees, work
			t.Errorf("escaped: %v", beside)
		}
		if text, err := os.ReadFile(filepath.Join(secret, "file")); err != nil || string(text) != "secret" || names(t, secret) != 1 {
			t.Errorf("what lies beside was touched: %q, %v", text, err)
		}
		if n := names(t, dir); n > most {
			t.Errorf("%d files and directories were made, %d may be", n, most)
		}
		if err == nil {
			linksStay(t, filepath.Join(dir, "a"))
		}
	})
}

// linksStay resolves every link below dir as the kernel does.
func linksStay(t *testing.T, dir string) {
	t.Helper()
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return err
		}
		if _, err := os.Stat(name); err != nil {
			return nil // leads nowhere
		}
		to, err := filepath.EvalSymlinks(name)
		if err != nil {
			return err
		}
		if to != real && !strings.HasPrefix(to, real+"/") {
			t.Errorf("%s leads to %s", name, to)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// FuzzZipDirectory compares with archive/zip: what both read of a file's list is the same.
func FuzzZipDirectory(f *testing.F) {
	data := zipOf(f, entry{name: "a/b", body: "1"}, entry{name: "c", body: "2"})
	f.Add(data)
	f.Add(listing(3, 3))
	f.Add(listing(3, 2))
	d, err := findDirectory(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(append([]byte(nil), data[:d.at+d.size]...), endOf(d.at, int(d.size), int(d.records))...))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		d, err := findDirectory(in, int64(len(data)))
		if err != nil {
			return
		}
		if d.at < 0 || d.size < 0 || d.at+d.size > int64(len(data)) {
			t.Fatalf("a directory of %d bytes at %d in %d bytes", d.size, d.at, len(data))
		}
		var ours []string
		var sizes []uint64
		if err := d.walk(in, func(header []byte) error { sizes = append(sizes, announced(header)); return nil }); err != nil {
			return
		}
		if err := d.each(in, func(f *zip.File) error { ours = append(ours, f.Name); return nil }); err != nil {
			return
		}
		if uint64(len(ours)) != d.records {
			t.Errorf("%d entries of %d", len(ours), d.records)
		}
		z, err := zip.NewReader(in, int64(len(data)))
		if err != nil || len(z.File) != len(ours) {
			return // it looks for the end, the base and the count in other ways
		}
		for i, file := range z.File {
			if file.Name != ours[i] || file.UncompressedSize64 != sizes[i] {
				t.Errorf("entry %d is %q of %d bytes, archive/zip reads %q of %d", i, ours[i], sizes[i], file.Name, file.UncompressedSize64)
			}
		}
	})
}

// FuzzManifest reads anything: every file that is listed comes once, and nothing else ends the reading than the end or an
// error.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"files": {"a.py": "00"}, "entry": "a:f"}`))
	f.Add([]byte(`{"files": [{"path": "a.py", "sha256": "00"}, {"name": "b"}], "x": [1, {"y": null}]}`))
	f.Add([]byte(`{"files": null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		read := func() (names []string, err error) {
			err = readManifest(bytes.NewReader(text), func(name, _ string) error { names = append(names, name); return nil })
			return names, err
		}
		names, err := read()
		again, errAgain := read()
		if len(names) != len(again) || (err == nil) != (errAgain == nil) {
			t.Errorf("%d files, %v; then %d, %v", len(names), err, len(again), errAgain)
		}
		if err != nil {
			return
		}
		if trimmed := bytes.TrimSpace(text); len(trimmed) == 0 || trimmed[0] != '{' || trimmed[len(trimmed)-1] != '}' {
			t.Errorf("taken for an object: %.80q", text)
		}
		if len(names) > len(text)/2 {
			t.Errorf("%d files in %d bytes", len(names), len(text))
		}
	})
}
