package localizer

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
)

// allocated is what f allocates in all, however soon it is collected.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// listing is a zip file of which only the list exists: n empty files, and an end that announces records of them.
func listing(n int, records uint16) []byte {
	b := []byte("PK\x03\x04")
	for i := range n {
		header := make([]byte, headerLength)
		binary.LittleEndian.PutUint32(header, headerSignature)
		name := fmt.Sprintf("f%d", i)
		binary.LittleEndian.PutUint16(header[28:], uint16(len(name)))
		b = append(append(b, header...), name...)
	}
	end := make([]byte, endLength)
	binary.LittleEndian.PutUint32(end, endSignature)
	binary.LittleEndian.PutUint16(end[8:], records)
	binary.LittleEndian.PutUint16(end[10:], records)
	binary.LittleEndian.PutUint32(end[12:], uint32(len(b)-4))
	binary.LittleEndian.PutUint32(end[16:], 4)
	return append(b, end...)
}

// TestHostileArchiveTakesLittleMemory: the announcement of an archive, true or not, costs the node next to nothing.
func TestHostileArchiveTakesLittleMemory(t *testing.T) {
	const entries = 65536 + 1000
	huge := zipOf(t, entry{name: ManifestName, body: strings.Repeat("\x00", 16<<20)})
	for name, test := range map[string]struct {
		kind nodemanager.ArtifactKind
		data []byte
		want string
	}{
		"many entries, honest":                {nodemanager.Archive, listing(60000, 60000), "more entries"},
		"many entries, announced modulo 2^16": {nodemanager.Archive, listing(entries, 1000), "entry 1000 of the 1000 in its directory is damaged"},
		"fewer entries than announced":        {nodemanager.Archive, listing(10, 11), "does not hold the 11 entries"},
		"manifest of 16 MiB":                  {nodemanager.Code, huge, "manifest.json is 16 MB, the most is 8 MB"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocalizer(t, Config{MaxFiles: 2000})
			dir := t.TempDir()
			var err error
			took := allocated(func() {
				err = l.Localize(t.Context(), nil, "mallory", dir, []nodemanager.Artifact{{Name: "a", Kind: test.kind, Content: test.data}})
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if took > 4<<20 {
				t.Errorf("took %s of memory", nodemanager.ByteSize(took))
			}
		})
	}
}

// TestZipOfManyEntriesIsReadInPieces compares with archive/zip, which reads the list at once.
func TestZipOfManyEntriesIsReadInPieces(t *testing.T) {
	var entries []entry
	for i := range 2*pieceRecords + 7 {
		entries = append(entries, entry{name: fmt.Sprintf("d%d/f%d", i%3, i), body: strings.Repeat("x", i%5)})
	}
	data := zipOf(t, entries...)
	d, err := findDirectory(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	if err := d.each(bytes.NewReader(data), func(f *zip.File) error {
		if f.Name != whole.File[i].Name || f.UncompressedSize64 != whole.File[i].UncompressedSize64 {
			t.Fatalf("entry %d is %s, %d bytes; want %s, %d", i, f.Name, f.UncompressedSize64, whole.File[i].Name, whole.File[i].UncompressedSize64)
		}
		i++
		return nil
	}); err != nil || i != len(whole.File) {
		t.Errorf("%d entries, %v; want %d", i, err, len(whole.File))
	}
	dir := t.TempDir()
	if err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "alice", dir, []nodemanager.Artifact{{Name: "a", Kind: nodemanager.Archive, Content: data}}); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if got := read(t, dir, "a/"+e.name); got != e.body {
			t.Fatalf("%s = %q, want %q", e.name, got, e.body)
		}
	}
}

// TestLongZip: a directory that only the long records can describe.
func TestLongZip(t *testing.T) {
	data := zipOf(t, entry{name: "a", body: "1"}, entry{name: "b", body: "2"})
	d, err := findDirectory(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	long := append(slices.Clone(data[:d.at+d.size]), endOf(d.at, int(d.size), int(d.records))...)
	dir := t.TempDir()
	if err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "alice", dir, []nodemanager.Artifact{{Name: "z", Kind: nodemanager.Archive, Content: long}}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir, "z/b"); got != "2" {
		t.Errorf("b = %q", got)
	}
	for name, at := range map[string]int{"records": 32, "size": 40, "place": 48, "the record's own place": end64Length + 8} {
		broken := slices.Clone(long)
		binary.LittleEndian.PutUint64(broken[int(d.at+d.size)+at:], math.MaxUint64)
		err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "z", Kind: nodemanager.Archive, Content: broken}})
		if err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// names counts everything below a directory.
func names(t testing.TB, dir string) int {
	t.Helper()
	n := -1
	if err := filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error { n++; return err }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEveryDirectoryMadeIsCounted: a hundred entries of many components each are more than a hundred inodes.
func TestEveryDirectoryMadeIsCounted(t *testing.T) {
	var tars, zips []entry
	for i := range 100 {
		name := fmt.Sprintf("%d%s/f", i, strings.Repeat("/d", 200))
		tars, zips = append(tars, entry{name: name, body: "x"}), append(zips, entry{name: name, body: "x"})
	}
	for name, data := range map[string][]byte{"tar": tarOf(t, true, tars...), "zip": zipOf(t, zips...)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := newLocalizer(t, Config{MaxFiles: 1000}).Localize(t.Context(), nil, "mallory", dir, []nodemanager.Artifact{{Name: "a", Kind: nodemanager.Archive, Content: data}})
			if err == nil || !strings.Contains(err.Error(), "more entries") {
				t.Errorf("got %v", err)
			}
			if n := names(t, dir); n > 1000 {
				t.Errorf("%d inodes were made, 1000 may be", n)
			}
		})
	}
	deep := tarOf(t, false, entry{name: strings.Repeat("d/", maxDepth) + "f", body: "x"})
	err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "mallory", t.TempDir(), []nodemanager.Artifact{{Name: "a", Kind: nodemanager.Archive, Content: deep}})
	if err == nil || !strings.Contains(err.Error(), "more than 256 components") {
		t.Errorf("got %v", err)
	}
}

// TestBudgetIsTheContainers: many artifacts together may not take what one may not.
func TestBudgetIsTheContainers(t *testing.T) {
	one := tarOf(t, false, entry{name: "f", body: strings.Repeat("x", 600)})
	for name, test := range map[string]struct {
		c    Config
		want string
	}{
		"bytes": {Config{MaxUnpacked: 1000}, "unpacks to more bytes"},
		"files": {Config{MaxFiles: 3}, "more entries"},
	} {
		err := newLocalizer(t, test.c).Localize(t.Context(), nil, "mallory", t.TempDir(), []nodemanager.Artifact{
			{Name: "a", Kind: nodemanager.Archive, Content: one}, {Name: "b", Kind: nodemanager.Archive, Content: one},
		})
		if err == nil || !strings.Contains(err.Error(), `artifact "b"`) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestLinksAreResolvedNotRead: links that stay inside by their words and lead out all the same, because of what they lead
// through.
func TestLinksAreResolvedNotRead(t *testing.T) {
	dir, link, hard := byte(tar.TypeDir), byte(tar.TypeSymlink), byte(tar.TypeLink)
	through := []entry{{name: "a/b/c/l", link: "../../..", kind: link}, {name: "m", link: "a/b/c/l/../../..", kind: link}}
	chain := []entry{{name: "a/l0", link: "..", kind: link}}
	for i := range 12 {
		chain = append(chain, entry{name: fmt.Sprintf("a/l%d", i+1), link: fmt.Sprintf("l%d", i), kind: link})
	}
	for name, entries := range map[string][]entry{
		"through another link":    through,
		"before the other link":   {through[1], through[0]},
		"hard link to a link":     {{name: "a/b/l", link: "../..", kind: link}, {name: "m", link: "a/b/l", kind: hard}},
		"over a link to a parent": {{name: "d/e", kind: dir}, {name: "d/up", link: "..", kind: link}, {name: "o", link: "d/up/../..", kind: link}},
		"through a dozen":         append(chain, entry{name: "m", link: "a/l12/../..", kind: link}),
	} {
		t.Run(name, func(t *testing.T) {
			err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "mallory", t.TempDir(), []nodemanager.Artifact{
				{Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entries...)},
			})
			if err == nil || !strings.Contains(err.Error(), "out of its directory") {
				t.Errorf("got %v", err)
			}
		})
	}
	// What environments and packages are full of.
	to := t.TempDir()
	if err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "alice", to, []nodemanager.Artifact{{Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, true,
		entry{name: "lib/x.so.1.2", body: "x"}, entry{name: "lib/x.so.1", link: "x.so.1.2", kind: link}, entry{name: "lib/x.so", link: "x.so.1", kind: link},
		entry{name: "lib64", link: "lib", kind: link}, entry{name: "lib64/y", body: "y"}, entry{name: "bin/lib", link: "../lib64", kind: link},
		entry{name: "dangling", link: "lib/absent", kind: link}, entry{name: "x", link: "lib/x.so.1.2", kind: hard})}}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, to, "a/bin/lib/x.so") + read(t, to, "a/lib/y") + read(t, to, "a/x"); got != "xyx" {
		t.Errorf("got %q", got)
	}
}

// TestDiskKeepsItsReserve: nothing is unpacked, copied or downloaded that would take of it.
func TestDiskKeepsItsReserve(t *testing.T) {
	big := strings.Repeat("x", 2<<20)
	m := &memory{files: map[string][]byte{"/f": []byte(big)}}
	for name, a := range map[string]nodemanager.Artifact{
		"zip":      {Kind: nodemanager.Archive, Content: zipOf(t, entry{name: "small", body: "x"}, entry{name: "big", body: big})},
		"tar":      {Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "small", body: "x"}, entry{name: "big", body: big})},
		"code":     {Kind: nodemanager.Code, Content: zipOf(t, entry{name: "big", body: big})},
		"inline":   {Content: []byte(big)},
		"download": {URI: "/f"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocalizer(t, Config{Reserve: 10 << 20})
			l.disk.look = func(string) (free, error) { return free{11 << 20, -1}, nil }
			dir := t.TempDir()
			a.Name = "a"
			err := l.Localize(t.Context(), m, "alice", dir, []nodemanager.Artifact{a})
			if err == nil || !strings.Contains(err.Error(), "of the 11 MB free on the disk of") || !strings.Contains(err.Error(), "10 MB stay in reserve") {
				t.Errorf("got %v", err)
			}
			if n := names(t, dir); n > 1 {
				t.Errorf("%d files were made before that was noticed", n)
			}
			l.disk.look = func(string) (free, error) { return free{1 << 40, reservedInodes}, nil }
			if err := l.Localize(t.Context(), m, "alice", t.TempDir(), []nodemanager.Artifact{a}); err == nil || !strings.Contains(err.Error(), "inodes free") {
				t.Errorf("without inodes: %v", err)
			}
		})
	}
	// A disk that others fill meanwhile is noticed, and what it cannot keep is not cached.
	l := newLocalizer(t, Config{Reserve: 10 << 20})
	looks := 0
	l.disk.look = func(string) (free, error) { looks++; return free{(64 - int64(looks)*8) << 20, -1}, nil }
	data := tarOf(t, true, entry{name: "big", body: strings.Repeat("\x00", 40<<20)})
	if err := l.Localize(t.Context(), nil, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "a", Kind: nodemanager.Archive, Content: data}}); err == nil || !strings.Contains(err.Error(), "stay in reserve") {
		t.Errorf("got %v", err)
	}
}

func TestCacheMakesRoomBeforeItLoads(t *testing.T) {
	m := &memory{files: map[string][]byte{"/one": make([]byte, 600), "/two": make([]byte, 600), "/large": make([]byte, 2000)}}
	l := newLocalizer(t, Config{CacheSize: 1000})
	get := func(name string) error {
		return l.Localize(t.Context(), m, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "a", URI: name}})
	}
	if err := get("/one"); err != nil {
		t.Fatal(err)
	}
	one := only(t, l.config.Cache)
	// The disk is short: what is cached goes, and then there is room.
	l.disk.look = func(string) (free, error) {
		if _, err := os.Stat(one); err == nil {
			return free{0, -1}, nil
		}
		return free{1 << 30, -1}, nil
	}
	if err := get("/two"); err != nil {
		t.Fatal(err)
	}
	if only(t, l.config.Cache) == one {
		t.Error("the older file stays")
	}
	// One that is larger than the cache is used and not kept.
	if err := get("/large"); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(l.config.Cache); len(left) != 0 {
		t.Errorf("cache holds %v", left)
	}
}

func TestManifests(t *testing.T) {
	files := func(text string) entry { return entry{name: ManifestName, body: text} }
	a := entry{name: "a.py", body: "1"}
	h := sum([]byte("1"))
	for text, want := range map[string]string{
		`{"files": {"a.py": "` + h + `"}, "other": [{"deep": [1, null]}]}`:                              "",
		`{"entry": "a:f", "files": [{"path": "a.py", "sha256": "` + h + `"}]}`:                          "",
		`{"files": [{"name": "a.py", "sha256": "` + h + `"}]}`:                                          "",
		`{"files": [{"path": "a.py", "sha256": "` + h + `"}, {"path": "a.py", "sha256": "` + h + `"}]}`: `lists "a.py" twice`,
		`{"files": {"a.py": 1}}`:              `"files" is neither`,
		`{"files": "a.py"}`:                   `"files" is neither`,
		`{"files": [1]}`:                      `"files" is neither`,
		`{"files": null}`:                     `"a.py" is not listed`,
		`{}`:                                  `"a.py" is not listed`,
		`[]`:                                  "where { should be",
		`{"files": {"a.py"`:                   "manifest.json: ",
		`{"files": {"a.py": "` + h + `"}} {}`: "something follows",
		``:                                    "manifest.json: EOF",
		`{"x": ` + strings.Repeat("[", 20000) + `}`: "manifest.json: ",
	} {
		err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "a", Kind: nodemanager.Code, Content: zipOf(t, a, files(text))}})
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %.200v, want %q", text, err, want)
		}
	}
}
