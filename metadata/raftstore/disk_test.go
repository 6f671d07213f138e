package raftstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

func TestDirectoryOfSomebodyElseIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tune = func(g *GroupConfig) { g.Cluster = "c1" }
	c.start("a")
	c.propose("a", set("x", 1))
	dir := c.nodes["m1"].dir
	other := c.add("m2", false)
	other.dir = dir
	c.host("m2")
	refused := func(what string, want string, change func(*GroupConfig)) {
		t.Helper()
		cfg := GroupConfig{Name: "a", Cluster: "c1"}
		change(&cfg)
		_, err := other.host.Open(cfg, newMachine())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%s: got %v, want it to say %q", what, err, want)
		}
		t.Log(err)
	}
	same := func(*GroupConfig) {}
	refused("running", "in use by another process", same)
	c.stop("m1")
	refused("another member's", "belongs to member m1, not to m2", same)
	refused("another cluster's", "belongs to cluster c1, not to c2", func(g *GroupConfig) { g.Cluster = "c2" })
	file := filepath.Join(dir, "a", "member.json")
	var id identity
	raw, _ := os.ReadFile(file)
	if err := json.Unmarshal(raw, &id); err != nil {
		t.Fatal(err)
	}
	id.Format = 7
	raw, _ = json.Marshal(id)
	os.WriteFile(file, raw, 0o600)
	refused("another version's", "has format 7, this program reads and writes 2", same)
	os.WriteFile(file, []byte("{"), 0o600)
	refused("damaged", "is damaged", same)
	os.Remove(file)
	refused("without identity", "no member.json", same)
}

func TestConfigurationMistakesAreAllNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	nd := c.host("m1")
	_, err := nd.host.Open(GroupConfig{
		Name: "A/..", Bootstrap: true, SnapshotBytes: -1,
		Members: []Member{{"x", "127.0.0.1:1"}, {"x", "127.0.0.1:2"}, {"", "q"}}, Timers: Timers{Heartbeat: 1, Lease: 2},
	}, newMachine())
	for _, want := range []string{"lower-case", "twice", "missing", "not among the members", "timers", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
	if _, err := NewHost(HostConfig{}); err == nil || !strings.Contains(err.Error(), "listener") || !strings.Contains(err.Error(), "id") {
		t.Errorf("got %v", err)
	}
}

// snapshotTwice leaves a stopped member with two snapshots and some log behind them.
func snapshotTwice(t *testing.T, c *cluster) (dir string) {
	t.Helper()
	c.host("m1")
	c.open("m1", "a", true, nil)
	for round := range 3 {
		for i := range 5 {
			c.propose("a", set(fmt.Sprintf("k%d", i), round))
		}
		if round < 2 {
			if err := c.leader("a").raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.stop("m1")
	return filepath.Join(c.nodes["m1"].dir, "a", "snapshots")
}

func reopen(t *testing.T, c *cluster, m *machine) {
	t.Helper()
	c.host("m1")
	c.open("m1", "a", true, m)
	if err := c.leader("a").ReadWait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if got := m.get(fmt.Sprintf("k%d", i)); got != "2" {
			t.Fatalf("k%d = %q after the restart, want 2", i, got)
		}
	}
	c.propose("a", set("more", 1))
	c.stop("m1")
}

func TestRestartReplaysOnlyWhatLiesBehindTheSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	snapshotTwice(t, c)
	m := newMachine()
	reopen(t, c, m)
	if len(m.applied) > 7 || m.restored != 1 {
		t.Fatalf("replayed entries %v after %d restores", m.applied, m.restored)
	}
	// A state machine that has its state keeps it.
	again := &machine{index: m.index, values: m.values}
	reopen(t, c, again)
	if again.restored != 0 || len(again.applied) != 1 {
		t.Fatalf("restored %d times, applied %v", again.restored, again.applied)
	}
}

func TestDamagedSnapshotIsReplacedByTheOlderOneAndTheLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tune = func(g *GroupConfig) { g.SegmentBytes = 8 << 10 }
	c.start("a")
	for range 3 { // whole files of the log go
		c.propose("a", set("x", strings.Repeat("x", 4<<10)))
	}
	c.stop("m1")
	dir := snapshotTwice(t, c)
	names, _ := filepath.Glob(filepath.Join(dir, "*"+snapshotSuffix))
	if len(names) != 2 {
		t.Fatalf("kept %v", names)
	}
	raw, _ := os.ReadFile(names[1])
	raw[len(raw)-30] ^= 1
	os.WriteFile(names[1], raw, 0o600)
	m := newMachine()
	reopen(t, c, m)
	if _, err := os.Stat(names[1] + damagedSuffix); err != nil {
		t.Fatal(err)
	}
	// Both damaged: the log does not reach back.
	raw, _ = os.ReadFile(names[0])
	os.WriteFile(names[0], raw[:len(raw)-1], 0o600)
	c.host("m1")
	_, err := c.nodes["m1"].host.Open(c.config("a", true), newMachine())
	if !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("opened without a sound snapshot: %v", err)
	}
	t.Log(err)
}

func TestStateAheadOfTheLogIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start("a")
	c.propose("a", set("x", 1))
	c.stop("m1")
	c.host("m1")
	_, err := c.nodes["m1"].host.Open(c.config("a", true), &machine{index: 1000})
	if !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("a log shorter than the state opened: %v", err)
	}
	_, err = c.nodes["m1"].host.Open(c.config("b", true), &machine{index: 1000})
	if err == nil || !strings.Contains(err.Error(), "another life") {
		t.Fatalf("an empty directory under an old checkpoint opened: %v", err)
	}
	t.Log(err)
}

func TestLogStaysBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tune = func(g *GroupConfig) { g.SnapshotBytes, g.SegmentBytes = 100<<10, 64<<10 }
	c.start("a")
	value := strings.Repeat("v", 10<<10)
	eventually(t, "snapshots are taken and the log's head goes", func() bool {
		c.propose("a", set("x", value))
		return c.leader("a").Status().First > 20
	})
	files, _ := filepath.Glob(filepath.Join(c.nodes["m1"].dir, "a", "snapshots", "*"))
	if len(files) > keptSnapshots+1 { // one may be under way
		t.Fatalf("kept %v", files)
	}
}

func TestFramesDetectEveryChange(t *testing.T) {
	var b bytes.Buffer
	w, err := newFrameWriter(&b, 42)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 3*maxFrame+1000)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1+rng.IntN(100_000))
		if _, err := w.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	r, err := newFrameReader(bytes.NewReader(good))
	if err != nil || r.state != 42 {
		t.Fatal(r, err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for range 200 {
		bad := bytes.Clone(good)
		bad[rng.IntN(len(bad))] ^= 1 << rng.IntN(8)
		if err := verifyFrames(bytes.NewReader(bad)); !errors.Is(err, metadata.ErrCorrupt) && !errors.Is(err, metadata.ErrUnsupported) {
			t.Fatalf("a flipped bit: %v", err)
		}
	}
	first, second := frameOverhead+headerPayload, frameOverhead+headerPayload+frameOverhead+maxFrame
	third := second + frameOverhead + maxFrame
	for name, bad := range map[string][]byte{
		"cut":           good[:len(good)-1],
		"end missing":   good[:len(good)-frameOverhead-8],
		"more":          append(bytes.Clone(good), 0),
		"frame missing": append(bytes.Clone(good[:first]), good[second:]...),
		"frames swapped": append(append(append(bytes.Clone(good[:first]), good[second:third]...),
			good[first:second]...), good[third:]...),
		"empty": nil,
	} {
		if err := verifyFrames(bytes.NewReader(bad)); !errors.Is(err, metadata.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// raft's snapshot and a copy of the one before may be of one entry, and be begun within one millisecond.
func TestSnapshotsOfOneEntryHaveNamesOfTheirOwn(t *testing.T) {
	s, err := openSnapshots(t.TempDir(), 0, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		sink, err := s.Create(1, 10, 2, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Cancel()
	}
}

func TestHalfWrittenSnapshotIsNeverListed(t *testing.T) {
	dir := t.TempDir()
	s, err := openSnapshots(dir, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	sink, err := s.Create(1, 10, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, _ := newFrameWriter(sink, 9)
	w.Write(make([]byte, 1000))
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); !errors.Is(err, metadata.ErrCorrupt) { // the end frame is missing
		t.Fatalf("half a snapshot was stored: %v", err)
	}
	os.WriteFile(filepath.Join(dir, "left.snap.tmp"), []byte("x"), 0o600)
	if s, err = openSnapshots(dir, 0, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 || len(s.all()) != 0 {
		t.Fatalf("left behind: %v", files)
	}
}
