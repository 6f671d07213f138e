package localizer

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
)

// memory is a filesystem for tests, as its owner sees it; every file has modification time 1000.
type memory struct {
	files map[string][]byte
	modes map[string]fs.FileMode
	opens atomic.Int64
}

func (m *memory) Stat(_ context.Context, path string) (Info, error) {
	data, ok := m.files[path]
	if _, dir := m.modes[path]; !ok && !dir {
		return Info{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
	}
	return Info{ID: uint64(len(path)), Size: int64(len(data)), Modified: 1000, Dir: path == "/", Mode: m.modes[path]}, nil
}

func (m *memory) Readable(context.Context, string) error { return nil }

func (m *memory) Open(_ context.Context, path string) (io.ReadCloser, error) {
	m.opens.Add(1)
	return io.NopCloser(bytes.NewReader(m.files[path])), nil
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

type entry struct {
	name, body string
	link       string
	kind       byte // of tar
}

func tarOf(t testing.TB, zipped bool, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	var out io.Writer = &b
	var z *gzip.Writer
	if zipped {
		z = gzip.NewWriter(&b)
		out = z
	}
	w := tar.NewWriter(out)
	for _, e := range entries {
		kind := e.kind
		if kind == 0 {
			kind = tar.TypeReg
		}
		if err := w.WriteHeader(&tar.Header{Name: e.name, Typeflag: kind, Linkname: e.link, Size: int64(len(e.body)), Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(e.body))
	}
	w.Close()
	if z != nil {
		z.Close()
	}
	return b.Bytes()
}

func zipOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		h.SetMode(0o644)
		body := e.body
		if e.link != "" {
			h.SetMode(fs.ModeSymlink | 0o777)
			body = e.link
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		f.Write([]byte(body))
	}
	w.Close()
	return b.Bytes()
}

func manifestOf(files map[string]string) entry {
	text, _ := json.Marshal(map[string]any{"entry": "a:f", "files": files})
	return entry{name: ManifestName, body: string(text)}
}

func newLocalizer(t testing.TB, c Config) *Localizer {
	t.Helper()
	c.Cache = filepath.Join(t.TempDir(), "cache")
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // for reading only, so that a test that is not root's could not remove them as others
		if err := state.RemoveAll(l.trees.dir); err != nil {
			t.Error(err)
		}
	})
	return l
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestArtifactsArrive(t *testing.T) {
	code := zipOf(t, entry{name: "a.py", body: "def f(): pass"}, entry{name: "pkg/b.py", body: "x = 1"},
		manifestOf(map[string]string{"a.py": sum([]byte("def f(): pass")), "pkg/b.py": sum([]byte("x = 1"))}))
	m := &memory{files: map[string][]byte{
		"/data/in":  []byte("input"),
		"/x/a.tgz":  tarOf(t, true, entry{name: "./", kind: tar.TypeDir}, entry{name: "d/one", body: "1"}, entry{name: "d/two", link: "one", kind: tar.TypeSymlink}, entry{name: "three", link: "d/one", kind: tar.TypeLink}),
		"/x/a.tar":  tarOf(t, false, entry{name: "one", body: "1"}),
		"/x/a.zip":  zipOf(t, entry{name: "dir/"}, entry{name: "dir/one", body: "1"}, entry{name: "link", link: "dir/one"}),
		"/code/zip": code,
	}}
	l, dir := newLocalizer(t, Config{Authorities: []string{"127.0.0.1:8020"}}), t.TempDir()
	if err := l.Localize(t.Context(), m, "alice", dir, []nodemanager.Artifact{
		{Name: "job.json", Content: []byte(`{}`)},
		{Name: "sub/in", URI: "hdfs://127.0.0.1:8020/data/in", Kind: nodemanager.File, Size: 5, Timestamp: 1000},
		{Name: "tgz", URI: "/x/a.tgz", Kind: nodemanager.Archive},
		{Name: "tar", URI: "hdfs:///x/a.tar", Kind: nodemanager.Archive},
		{Name: "zip", URI: "/x/a.zip", Kind: nodemanager.Archive},
		{Name: "code", URI: "/code/zip", Kind: nodemanager.Code, SHA256: strings.ToUpper(sum(code))},
	}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"job.json": "{}", "sub/in": "input", "tgz/d/one": "1", "tgz/d/two": "1", "tgz/three": "1", "tar/one": "1",
		"zip/dir/one": "1", "zip/link": "1", "code/a.py": "def f(): pass", "code/pkg/b.py": "x = 1",
	} {
		if got := read(t, dir, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "tgz/d/one"))
	if err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("an executable lost its right: %v %v", info, err)
	}
}

// TestNothingEscapes tries every way out of the work directory that we know of, and looks at what lies beside it.
func TestNothingEscapes(t *testing.T) {
	long := strings.Repeat("a/", 3000) + "x"
	for name, a := range map[string]nodemanager.Artifact{
		"dotdot name":       {Name: "../out", Content: []byte("x")},
		"inner dotdot":      {Name: "a/../../out", Content: []byte("x")},
		"absolute name":     {Name: "/tmp/hops-out", Content: []byte("x")},
		"empty name":        {Name: "", Content: []byte("x")},
		"dot name":          {Name: "./", Content: []byte("x")},
		"zero byte":         {Name: "a\x00b", Content: []byte("x")},
		"long name":         {Name: long, Content: []byte("x")},
		"tar dotdot":        {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "../out", body: "x"})},
		"tar deep dotdot":   {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, true, entry{name: "d/../../out", body: "x"})},
		"tar absolute":      {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "/etc/hops-out", body: "x"})},
		"tar backslash":     {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: `..\out`, body: "x"})},
		"tar symlink out":   {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "l", link: "../..", kind: tar.TypeSymlink}, entry{name: "l/out", body: "x"})},
		"tar symlink abs":   {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "l", link: "/etc", kind: tar.TypeSymlink})},
		"tar symlink chain": {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "d/l", link: "../../out", kind: tar.TypeSymlink})},
		"tar hard link":     {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "l", link: "../secret", kind: tar.TypeLink})},
		"tar device":        {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "null", kind: tar.TypeChar})},
		"tar pipe":          {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "pipe", kind: tar.TypeFifo})},
		"tar twice":         {Name: "a", Kind: nodemanager.Archive, Content: tarOf(t, false, entry{name: "x", body: "1"}, entry{name: "x", body: "2"})},
		"zip dotdot":        {Name: "a", Kind: nodemanager.Archive, Content: zipOf(t, entry{name: "../out", body: "x"})},
		"zip symlink":       {Name: "a", Kind: nodemanager.Archive, Content: zipOf(t, entry{name: "l", link: "../../out"})},
		"code dotdot":       {Name: "a", Kind: nodemanager.Code, Content: zipOf(t, manifestOf(map[string]string{"../out": sum([]byte("x"))}), entry{name: "../out", body: "x"})},
		"local file":        {Name: "a", URI: "file:///etc/passwd"},
		"http":              {Name: "a", URI: "http://127.0.0.1/x"},
		"other cluster":     {Name: "a", URI: "hdfs://elsewhere:8020/x"},
		"no path":           {Name: "a", URI: "hdfs://127.0.0.1:8020"},
		"broken uri":        {Name: "a", URI: "hdfs://%zz/"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocalizer(t, Config{Authorities: []string{"127.0.0.1:8020"}})
			parent := t.TempDir()
			dir := filepath.Join(parent, "work")
			for _, d := range []string{dir, filepath.Join(parent, "secret")} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			err := l.Localize(t.Context(), &memory{}, "alice", dir, []nodemanager.Artifact{a})
			if err == nil || !strings.HasPrefix(err.Error(), "artifact ") {
				t.Errorf("got %v", err)
			}
			beside, _ := os.ReadDir(parent)
			if len(beside) != 2 {
				t.Errorf("beside the work directory: %v", beside)
			}
		})
	}
}

// TestSymlinkInWorkDirIsNotFollowedOut: a link that somebody else put there.
func TestSymlinkInWorkDirIsNotFollowedOut(t *testing.T) {
	parent := t.TempDir()
	dir, out := filepath.Join(parent, "work"), filepath.Join(parent, "out")
	os.Mkdir(dir, 0o755)
	os.Mkdir(out, 0o755)
	if err := os.Symlink(out, filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	err := newLocalizer(t, Config{}).Localize(t.Context(), nil, "alice", dir, []nodemanager.Artifact{{Name: "l/x", Content: []byte("x")}})
	if left, _ := os.ReadDir(out); err == nil || len(left) > 0 {
		t.Errorf("written through the link: %v, %v", err, left)
	}
}

func TestPromisesAreChecked(t *testing.T) {
	m := &memory{files: map[string][]byte{"/f": []byte("input"), "/": nil, "/notar": []byte("hello")}}
	goodCode := entry{name: "a.py", body: "1"}
	for _, test := range []struct {
		a    nodemanager.Artifact
		want string
	}{
		{nodemanager.Artifact{Name: "a", URI: "/f", Size: 6}, "has 5 bytes, expected 6"},
		{nodemanager.Artifact{Name: "a", URI: "/f", Timestamp: 999}, "changed on src filesystem (expected 999, was 1000)"},
		{nodemanager.Artifact{Name: "a", URI: "/f", SHA256: sum([]byte("other"))}, "sha256 is " + sum([]byte("input"))},
		{nodemanager.Artifact{Name: "a", URI: "/f", SHA256: "abc"}, "not 64 hexadecimal digits"},
		{nodemanager.Artifact{Name: "a", URI: "/missing"}, "file does not exist"},
		{nodemanager.Artifact{Name: "a", URI: "/"}, "is a directory"},
		{nodemanager.Artifact{Name: "a", URI: "/f", Kind: "folder"}, `kind "folder"`},
		{nodemanager.Artifact{Name: "a", URI: "/notar", Kind: nodemanager.Archive}, "neither zip, tar nor tar.gz"},
		{nodemanager.Artifact{Name: "a", Content: []byte("x"), Size: 2}, "has 1 bytes, expected 2"},
		{nodemanager.Artifact{Name: "a", Kind: nodemanager.Code, Content: zipOf(t, goodCode)}, "has no manifest.json"},
		{nodemanager.Artifact{Name: "a", Kind: nodemanager.Code, Content: zipOf(t, goodCode, manifestOf(nil))}, `"a.py" is not listed`},
		{nodemanager.Artifact{Name: "a", Kind: nodemanager.Code, Content: zipOf(t, goodCode, manifestOf(map[string]string{"a.py": "00"}))}, `"a.py" has sha256`},
		{nodemanager.Artifact{Name: "a", Kind: nodemanager.Code, Content: zipOf(t, manifestOf(map[string]string{"b.py": "00"}))}, `lists "b.py"`},
		{nodemanager.Artifact{Name: "a", Kind: nodemanager.Code, Content: []byte("PK")}, "not a zip file"},
		{nodemanager.Artifact{Name: "a", Kind: nodemanager.Archive, Content: []byte("\x1f\x8bxxxx")}, "not a gzip file"},
	} {
		err := newLocalizer(t, Config{}).Localize(t.Context(), m, "alice", t.TempDir(), []nodemanager.Artifact{test.a})
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), `artifact "a"`) {
			t.Errorf("%+v: got %v, want %s", test.a, err, test.want)
		}
	}
	err := newLocalizer(t, Config{}).Localize(t.Context(), m, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "a"}, {Name: "./a"}})
	if err == nil || !strings.Contains(err.Error(), "same name") {
		t.Errorf("twins: %v", err)
	}
}

func TestLimits(t *testing.T) {
	bomb := zipOf(t, entry{name: "zeros", body: strings.Repeat("\x00", 1<<20)})
	many := tarOf(t, true, entry{name: "a"}, entry{name: "b"}, entry{name: "c"})
	m := &memory{files: map[string][]byte{"/f": make([]byte, 1000)}}
	for _, test := range []struct {
		c    Config
		a    nodemanager.Artifact
		want string
	}{
		{Config{MaxUnpacked: 1 << 19}, nodemanager.Artifact{Name: "a", Kind: nodemanager.Archive, Content: bomb}, "unpacks to more bytes"},
		{Config{MaxFiles: 2}, nodemanager.Artifact{Name: "a", Kind: nodemanager.Archive, Content: many}, "more entries"},
		{Config{MaxDownload: 999}, nodemanager.Artifact{Name: "a", URI: "/f"}, "1000 B is more than the 999 B"},
	} {
		err := newLocalizer(t, test.c).Localize(t.Context(), m, "alice", t.TempDir(), []nodemanager.Artifact{test.a})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newLocalizer(t, Config{}).Localize(ctx, m, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "a", URI: "/f"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestCacheIsSharedVerifiedAndBounded(t *testing.T) {
	one, two := bytes.Repeat([]byte("1"), 600), bytes.Repeat([]byte("2"), 600)
	m := &memory{files: map[string][]byte{"/one": one, "/two": two}}
	l := newLocalizer(t, Config{CacheSize: 1000})
	get := func(uri string, data []byte) {
		dir := t.TempDir()
		if err := l.Localize(t.Context(), m, "alice", dir, []nodemanager.Artifact{{Name: "a", URI: uri, SHA256: sum(data)}}); err != nil {
			t.Error(err)
			return
		}
		if got := read(t, dir, "a"); got != string(data) {
			t.Errorf("%s: %d bytes", uri, len(got))
		}
		os.WriteFile(filepath.Join(dir, "a"), []byte("changed by the container"), 0o644)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { get("/one", one) })
	}
	wg.Wait()
	if n := m.opens.Load(); n != 1 {
		t.Errorf("%d downloads for 8 containers", n)
	}
	cached := only(t, l.config.Cache)
	os.Chmod(cached, 0o600)
	if err := os.WriteFile(cached, bytes.Repeat([]byte("x"), 600), 0o600); err != nil {
		t.Fatal(err)
	}
	get("/one", one)
	if n := m.opens.Load(); n != 2 {
		t.Errorf("a rotten file was not fetched anew: %d downloads", n)
	}
	get("/two", two)
	if text, err := os.ReadFile(only(t, l.config.Cache)); err != nil || !bytes.Equal(text, two) {
		t.Errorf("cache holds %.10q, %v", text, err)
	}
	os.WriteFile(filepath.Join(l.config.Cache, "x.part"), one, 0o600)
	if _, err := New(l.config); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(l.config.Cache, "x.part")); err == nil {
		t.Error("a cut-off download stays")
	}
}

// only is the path of the one file in a directory.
func only(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%s holds %v, %v; want one file", dir, entries, err)
	}
	return filepath.Join(dir, entries[0].Name())
}
