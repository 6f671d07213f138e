package localizer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/nodemanager"
)

// link puts artifacts into a new work directory.
func link(t *testing.T, l *Localizer, fsys Filesystem, who Consumer, artifacts ...nodemanager.Artifact) (dir string, held []string, err error) {
	t.Helper()
	dir = t.TempDir()
	held, err = l.Link(context.Background(), fsys, who, dir, artifacts)
	return dir, held, err
}

func mustLink(t *testing.T, l *Localizer, fsys Filesystem, who Consumer, artifacts ...nodemanager.Artifact) (dir string, held []string) {
	t.Helper()
	dir, held, err := link(t, l, fsys, who, artifacts...)
	if err != nil {
		t.Fatal(err)
	}
	return dir, held
}

func content(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var alice = Consumer{"alice", "application_1_0001"}

func TestLinkUnpacksOnce(t *testing.T) {
	libs := zipOf(t, entry{name: "a.jar", body: "A"}, entry{name: "sub/b.jar", body: "B"})
	m := &memory{files: map[string][]byte{"/libs.zip": libs, "/pi.py": []byte("print(3)")}}
	l := newLocalizer(t, Config{})
	artifacts := []nodemanager.Artifact{
		{Name: "__spark_libs__", URI: "hdfs://nn:8020/libs.zip", Kind: nodemanager.Archive, Size: int64(len(libs)), Timestamp: 1000},
		{Name: "job/pi.py", URI: "/pi.py", Kind: nodemanager.File, Size: 8, Timestamp: 1000},
	}
	dirs := make([]string, 8)
	var all sync.WaitGroup
	for i := range dirs {
		dirs[i] = t.TempDir()
		all.Go(func() {
			held, err := l.Link(context.Background(), m, alice, dirs[i], artifacts)
			if err != nil || len(held) != 2 {
				t.Errorf("%v %v", held, err)
			}
		})
	}
	all.Wait()
	if n := m.opens.Load(); n != 2 {
		t.Errorf("%d downloads for two files", n)
	}
	for _, dir := range dirs {
		if got := content(t, filepath.Join(dir, "__spark_libs__/sub/b.jar")) + content(t, filepath.Join(dir, "job/pi.py")); got != "Bprint(3)" {
			t.Errorf("%q", got)
		}
	}
	target, err := os.Readlink(filepath.Join(dirs[0], "__spark_libs__"))
	if err != nil || filepath.Base(target) != "libs.zip" {
		t.Fatal(target, err)
	}
	for _, name := range []string{"", "a.jar", "sub", "sub/b.jar"} {
		if info, err := os.Stat(filepath.Join(target, name)); err != nil || info.Mode().Perm() != 0o555 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(target)); err != nil || len(left) != 2 {
		t.Errorf("beside the tree: %v %v", left, err)
	}
}

func TestLinkKeepsUsersApart(t *testing.T) {
	s := newShared(map[string]string{"/open/x": "X", "/closed/x": "X"})
	s.put("/open", "hdfs", 0o755)
	s.put("/open/x", "hdfs", 0o644)
	s.put("/closed", "alice", 0o750)
	s.put("/closed/x", "alice", 0o644)
	l := newLocalizer(t, Config{})
	open := nodemanager.Artifact{Name: "x", URI: "/open/x", Visibility: "private"}
	bob := Consumer{"bob", "application_1_0002"}
	key := func(who Consumer, a nodemanager.Artifact) string {
		t.Helper()
		_, held := mustLink(t, l, view{s, string(who.User)}, who, a)
		return held[0]
	}
	if a, b := key(alice, open), key(bob, open); a == b {
		t.Error("two users share a private resource")
	}
	open.Visibility = nodemanager.Public
	if a, b := key(alice, open), key(bob, open); a != b {
		t.Error("two users do not share a public resource")
	}
	open.Visibility = nodemanager.OfApplication
	other := Consumer{"alice", "application_1_0003"}
	if a, b := key(alice, open), key(other, open); a == b {
		t.Error("two applications share a resource of one of them")
	}
	open.Visibility, open.Kind = "private", nodemanager.Archive
	if _, _, err := link(t, l, view{s, "alice"}, alice, open); err == nil || !strings.Contains(err.Error(), "neither zip, tar nor tar.gz") {
		t.Errorf("the same file as an archive: %v", err)
	}
	closed := nodemanager.Artifact{Name: "x", URI: "/closed/x", Visibility: nodemanager.Public}
	_, _, err := link(t, l, view{s, "alice"}, alice, closed)
	if err == nil || !strings.Contains(err.Error(), "Resource /closed/x is not publicly accessible and as such cannot be part of the public cache.") {
		t.Errorf("public resource in a closed directory: %v", err)
	}
	closed.Visibility = "private"
	key(alice, closed)
	if _, _, err := link(t, l, view{s, "bob"}, bob, closed); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("bob is given alice's file: %v", err)
	}
}

func TestLinkRefuses(t *testing.T) {
	m := &memory{files: map[string][]byte{
		"/x": []byte("x"), "/evil.zip": zipOf(t, entry{name: "ok", body: "1"}, entry{name: "../evil", body: "2"}),
		"/linked.tgz": tarOf(t, true, entry{name: "etc", link: "/etc", kind: '2'}),
		"/bomb.zip":   zipOf(t, entry{name: "zeros", body: strings.Repeat("\x00", 1<<20)}),
		"/pipe.tar":   tarOf(t, false, entry{name: "pipe", kind: '6'}),
	}}
	l := newLocalizer(t, Config{MaxUnpacked: 1 << 19})
	for name, c := range map[string]struct {
		a    nodemanager.Artifact
		want string
	}{
		"timestamp": {nodemanager.Artifact{Name: "x", URI: "/x", Size: 1, Timestamp: 999}, "changed on src filesystem (expected 999, was 1000)"},
		"size":      {nodemanager.Artifact{Name: "x", URI: "/x", Size: 2, Timestamp: 1000}, "has 1 bytes, expected 2"},
		"hash":      {nodemanager.Artifact{Name: "x", URI: "/x", SHA256: sum([]byte("y"))}, "sha256 is"},
		"climbs":    {nodemanager.Artifact{Name: "x", URI: "/evil.zip", Kind: nodemanager.Archive}, "leads out of its directory"},
		"absolute":  {nodemanager.Artifact{Name: "x", URI: "/linked.tgz", Kind: nodemanager.Archive}, "symbolic link"},
		"bomb":      {nodemanager.Artifact{Name: "x", URI: "/bomb.zip", Kind: nodemanager.Archive}, "more bytes than a node takes"},
		"pipe":      {nodemanager.Artifact{Name: "x", URI: "/pipe.tar", Kind: nodemanager.Archive}, "a device, a pipe"},
		"name":      {nodemanager.Artifact{Name: "../x", URI: "/x"}, "leads out of its directory"},
		"scheme":    {nodemanager.Artifact{Name: "x", URI: "file:///etc/passwd"}, `scheme "file" is not served`},
		"pattern":   {nodemanager.Artifact{Name: "x", URI: "/x", Kind: nodemanager.Pattern, Pattern: "("}, "no regular expression"},
		"no zip":    {nodemanager.Artifact{Name: "x", URI: "/x", Kind: nodemanager.Pattern, Pattern: "x"}, "a pattern wants a zip"},
		"directory": {nodemanager.Artifact{Name: "x", URI: "/"}, "is a directory"},
	} {
		m.modes = map[string]fs.FileMode{"/": 0o755}
		good := nodemanager.Artifact{Name: "good", URI: "/x"}
		_, held, err := link(t, l, m, alice, good, c.a)
		if err == nil || !strings.Contains(err.Error(), c.want) || held != nil {
			t.Errorf("%s: %v %v", name, err, held)
		}
	}
	entries, _ := os.ReadDir(l.trees.dir)
	if len(entries) != 1 || len(l.trees.all) != 1 {
		t.Errorf("left in the cache: %v", entries)
	}
	for _, tree := range l.trees.all {
		if tree.uses != 0 {
			t.Errorf("%d uses after errors", tree.uses)
		}
	}
}

func TestLinkPattern(t *testing.T) {
	jar := zipOf(t, entry{name: "Main.class", body: "M"}, entry{name: "lib/a.jar", body: "A"}, entry{name: "classes/B.class", body: "B"})
	m := &memory{files: map[string][]byte{"/job.jar": jar}}
	dir, _ := mustLink(t, newLocalizer(t, Config{}), m, alice,
		nodemanager.Artifact{Name: "job.jar", URI: "/job.jar", Kind: nodemanager.Pattern, Pattern: "(?:classes/|lib/).*"})
	if got := content(t, filepath.Join(dir, "job.jar/lib/a.jar")) + content(t, filepath.Join(dir, "job.jar/classes/B.class")); got != "AB" {
		t.Error(got)
	}
	if got := content(t, filepath.Join(dir, "job.jar/job.jar")); got != string(jar) {
		t.Error("the jar itself is not there")
	}
	if _, err := os.Stat(filepath.Join(dir, "job.jar/Main.class")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that does not match: %v", err)
	}
}

func TestTreesInUseStay(t *testing.T) {
	m := &memory{files: map[string][]byte{}}
	file := func(name string) nodemanager.Artifact {
		m.files["/"+name] = []byte(strings.Repeat(name, 50_000))
		return nodemanager.Artifact{Name: name, URI: "/" + name}
	}
	a, bb, ccc := file("a"), file("bb"), file("ccc")
	config := Config{Cache: filepath.Join(t.TempDir(), "cache"), CacheSize: 250_000, Boot: "first"}
	open := func() *Localizer {
		t.Helper()
		l, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	_, used := mustLink(t, l, m, alice, a)
	_, unused := mustLink(t, l, m, alice, bb)
	l.Release(unused)
	mustLink(t, l, m, alice, ccc)
	has := func(key string) bool { _, err := os.Stat(l.Tree(key)); return err == nil }
	if !has(used[0]) || has(unused[0]) {
		t.Errorf("used %v, unused %v", has(used[0]), has(unused[0]))
	}
	// Another node manager of the same boot finds all, and what its containers use stays.
	if err := os.Mkdir(filepath.Join(l.trees.dir, "x.part"), 0o755); err != nil {
		t.Fatal(err)
	}
	opens := m.opens.Load()
	l = open()
	l.Hold(used)
	if _, held := mustLink(t, l, m, alice, a); held[0] != used[0] || m.opens.Load() != opens {
		t.Error("fetched again after a restart")
	}
	l.Release(used)
	mustLink(t, l, m, alice, bb)
	if !has(used[0]) || len(l.trees.all) != 2 {
		t.Errorf("after a restart: used %v, %d trees", has(used[0]), len(l.trees.all))
	}
	config.Boot = "second"
	l = open()
	if entries, _ := os.ReadDir(l.trees.dir); len(entries) != 0 {
		t.Errorf("of an earlier boot: %v", entries)
	}
}

// What is linked to has one budget, as if it had been unpacked for this container alone: whether it is in the cache or not.
func TestLinkHasOneBudget(t *testing.T) {
	m := &memory{files: map[string][]byte{}}
	var all []nodemanager.Artifact
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		m.files["/"+name+".zip"] = zipOf(t, entry{name: "f", body: strings.Repeat(name, 400<<10)}, entry{name: "g", body: name})
		all = append(all, nodemanager.Artifact{Name: name, URI: "/" + name + ".zip", Kind: nodemanager.Archive})
	}
	l := newLocalizer(t, Config{MaxUnpacked: 1 << 20})
	for _, what := range []string{"bytes", "bytes that are there already"} {
		if _, held, err := link(t, l, m, alice, all...); err == nil || !strings.Contains(err.Error(), "more bytes than a node takes") || len(held) != 0 {
			t.Errorf("%s: %d trees, %v", what, len(held), err)
		}
	}
	for i := range all {
		_, held := mustLink(t, l, m, alice, all[i])
		l.Release(held)
	}
	opens := m.opens.Load()
	if _, _, err := link(t, l, m, alice, all...); err == nil || m.opens.Load() != opens {
		t.Errorf("all in the cache, and more than a container may have: %v", err)
	}
	if _, held := mustLink(t, l, m, alice, all[0], all[1]); l.Size(append(held, held...)) < 800<<10 || l.Size(held) > 900<<10 {
		t.Errorf("they take %d bytes", l.Size(held))
	}
	again := all[1]
	again.Name = "the same once more"
	mustLink(t, l, m, alice, all[0], all[1], again)

	l = newLocalizer(t, Config{MaxFiles: 8}) // each has a directory and two files
	for range 2 {
		if _, _, err := link(t, l, m, alice, all[:3]...); err == nil || !strings.Contains(err.Error(), "more entries than a node unpacks") {
			t.Errorf("files: %v", err)
		}
	}
	mustLink(t, l, m, alice, all[:2]...)
}

// The record of a tree is ours, whatever its artifact is called.
func TestAnArtifactThatIsNamedAsTheRecord(t *testing.T) {
	m := &memory{files: map[string][]byte{"/" + treeFile: []byte("mine")}}
	l := newLocalizer(t, Config{})
	dir, _ := mustLink(t, l, m, alice, nodemanager.Artifact{Name: "x", URI: "/" + treeFile, Kind: nodemanager.File})
	if got := content(t, filepath.Join(dir, "x")); got != "mine" {
		t.Errorf("%q", got)
	}
}

// Copy treats a pattern as Link does, and refuses what is not public as Link does.
func TestPatternsWithoutTheCache(t *testing.T) {
	jar := zipOf(t, entry{name: "classes/a", body: "A"}, entry{name: "other", body: "B"})
	m := &memory{files: map[string][]byte{"/p.jar": jar}}
	l := newLocalizer(t, Config{})
	dir := t.TempDir()
	pattern := nodemanager.Artifact{Name: "p", URI: "/p.jar", Kind: nodemanager.Pattern, Pattern: "classes/.*"}
	if err := l.Copy(context.Background(), m, "alice", dir, []nodemanager.Artifact{pattern}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, filepath.Join(dir, "p/classes/a")); got != "A" || content(t, filepath.Join(dir, "p/p.jar")) != string(jar) {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "p/other")); err == nil {
		t.Error("what the pattern does not name is there")
	}
	s := newShared(map[string]string{"/closed": "X"})
	s.put("/closed", "alice", 0o600)
	err := l.Copy(context.Background(), view{s, "alice"}, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "x", URI: "/closed", Kind: nodemanager.File, Visibility: nodemanager.Public}})
	if err == nil || !strings.Contains(err.Error(), "is not publicly accessible") {
		t.Errorf("a private file that is declared public: %v", err)
	}
}

// cut is a filesystem whose files end early.
type cut struct{ *memory }

func (c cut) Open(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("h")), nil
}

func TestLinkTriesAgain(t *testing.T) {
	m := &memory{files: map[string][]byte{"/x": []byte("hello")}}
	l := newLocalizer(t, Config{})
	a := nodemanager.Artifact{Name: "x", URI: "/x"}
	if _, _, err := link(t, l, cut{m}, alice, a); err == nil {
		t.Fatal("half a file is taken")
	}
	dir, _ := mustLink(t, l, m, alice, a)
	if got := content(t, filepath.Join(dir, "x")); got != "hello" {
		t.Error(got)
	}
}
