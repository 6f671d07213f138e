package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/release"
)

// A directory that a later version has written is refused in one line, and not a byte of it is changed.
func TestADirectoryOfALevelThatIsNotKnown(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 1)
	c.start("g")
	c.propose("g", []byte("set a 1"))
	g := c.leader("g")
	if g.Level() != 1 {
		t.Errorf("a new directory is of level %d", g.Level())
	}
	if err := g.Raise(release.Level + 1); err != nil {
		t.Fatal(err)
	}
	if err := g.Raise(1); err != nil || g.Level() != release.Level+1 {
		t.Errorf("level %d, %v", g.Level(), err)
	}
	dir := g.dir.path
	c.stop("m1")
	if err := os.WriteFile(filepath.Join(dir, "x.tmp"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	want := fmt.Sprintf("was written at level %d, this program knows levels up to %d", release.Level+1, release.Level)
	h := c.host("m1")
	for what, err := range map[string]error{
		"Clear": h.host.Clear("g"),
		"Open":  func() error { _, err := h.host.Open(c.config("g", true), newMachine()); return err }(),
	} {
		if !errors.Is(err, release.ErrOlder) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	if after := contents(t, dir); after != before {
		t.Errorf("the directory was changed:\n%s\nis now\n%s", before, after)
	}
}

// A backup keeps the level, and is refused by a program that does not know it before anything is made of it.
func TestABackupOfALevelThatIsNotKnown(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 1)
	c.tune = func(cfg *GroupConfig) { cfg.Cluster = "CID-1" }
	c.start("g")
	c.propose("g", []byte("set a 1"))
	g := c.leader("g")
	if err := g.Raise(release.Level); err != nil {
		t.Fatal(err)
	}
	b, err := g.Backup()
	if err != nil || b.Level != release.Level {
		t.Fatalf("%+v %v", b, err)
	}
	snapshot, err := os.ReadFile(filepath.Join(g.dir.path, b.Snapshot))
	if err != nil {
		t.Fatal(err)
	}
	c.stop("m1")
	c.nodes["m1"].dir = t.TempDir()
	h := c.host("m1").host
	later := b
	later.Level++
	if err := h.Restore(c.config("g", false), later, bytes.NewReader(snapshot)); !errors.Is(err, release.ErrOlder) {
		t.Errorf("%v", err)
	}
	if left := contents(t, c.nodes["m1"].dir); left != "" {
		t.Errorf("it leaves %s", left)
	}
	if err := h.Restore(c.config("g", false), b, bytes.NewReader(snapshot)); err != nil {
		t.Fatal(err)
	}
	if again := c.open("m1", "g", false, nil); again.Level() != release.Level {
		t.Errorf("level %d", again.Level())
	}
}

// contents are the files of a directory, with what is in them.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(&b, "%s %d %x\n", name, len(text), crc32.Checksum(text, castagnoli))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A member that is older than the leader stops at a command that it does not know: with one line, and without a part of it.
func TestAnOlderMemberStopsAtACommandThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	stopped := make(chan error, 1)
	c := newCalmCluster(t, 3)
	c.configure = func(cfg *HostConfig) {
		if cfg.ID == "m3" {
			cfg.OnFatal = func(err error) {
				stopped <- err
				runtime.Goexit() // the process ends, in truth
			}
		}
	}
	c.start("g")
	eventually(t, "another member than m3 leads", func() bool {
		g := c.leader("g")
		return g != c.nodes["m3"].groups["g"] || g.TransferLeadership(ctx(t), "m1") == nil
	})
	older := c.nodes["m3"].machines["g"]
	older.mu.Lock()
	older.unknown = "new"
	older.mu.Unlock()
	c.propose("g", []byte("set a 1"), "m3")
	c.propose("g", []byte("new a 2"), "m3")
	err := <-stopped
	if !errors.Is(err, release.ErrOlder) || strings.Contains(err.Error(), "\n") {
		t.Errorf("it stops with %v", err)
	}
	if got := older.get("a"); got != "1" {
		t.Errorf("it has %q", got)
	}
	c.propose("g", []byte("set a 3"), "m3") // the others go on
}
