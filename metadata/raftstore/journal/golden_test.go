package journal

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

var update = flag.Bool("update", false, "write the golden log of the present format anew")

// goldenDir has a log that was written when the format was made. Its name tells the number in the magics.
var goldenDir = filepath.Join("testdata", "format-"+headerMagic[7:])

func goldenEntry(i uint64) *raft.Log {
	e := &raft.Log{Index: i, Term: 1 + i/10, Type: raft.LogCommand, Data: fmt.Appendf(nil, "command %d %s", i, strings.Repeat("x", int(i*17%900))), AppendedAt: time.Unix(1700000000, int64(i))}
	switch {
	case i%13 == 0:
		e.Type, e.Data = raft.LogNoop, nil
	case i%7 == 0:
		e.Extensions = []byte("extensions")
	}
	return e
}

// writeGolden makes a log of several segments, restarts, a cut tail, a head that went, a spare and a vote.
func writeGolden(t *testing.T) {
	if err := os.RemoveAll(goldenDir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(goldenDir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(goldenDir)
	cfg.SegmentBytes = minSegment
	j := open(t, cfg)
	put := func(from, to uint64) {
		for i := from; i <= to; i++ {
			if err := j.StoreLog(goldenEntry(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(1, 45)
	if err := j.DeleteRange(41, 45); err != nil {
		t.Fatal(err)
	}
	put(41, 42)
	j.Keep(20)
	if err := errors.Join(j.DeleteRange(1, 20), j.SetUint64([]byte(keyTerm), 9), j.SetUint64([]byte(keyVoteTerm), 9), j.Set([]byte(keyCandidate), []byte("nn2:8485")), j.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestGoldenLogIsRead(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	dir := filepath.Join(t.TempDir(), "log")
	if err := os.CopyFS(dir, os.DirFS(goldenDir)); err != nil {
		t.Fatal(err)
	}
	h, err := ReadHead(dir)
	if err != nil || h.Term != 9 || h.VoteTerm != 9 || h.Candidate != "nn2:8485" || h.Acked != 42 || h.Spares == 0 || h.Segments < 2 {
		t.Fatalf("%+v, %v", h, err)
	}
	var next uint64
	c, err := Read(dir, func(e *raft.Log, _ int) error {
		if next == 0 {
			next = e.Index
		}
		want := goldenEntry(next)
		if e.Index != next || e.Term != want.Term || e.Type != want.Type || string(e.Data) != string(want.Data) || string(e.Extensions) != string(want.Extensions) || !e.AppendedAt.Equal(want.AppendedAt) {
			t.Fatalf("entry %d: %+v", next, e)
		}
		next++
		return nil
	})
	if err != nil || c.First > 21 || c.First < 2 || c.Last != 42 || c.Acked != 42 || len(c.Damage) > 0 || next != 43 {
		t.Fatalf("%+v, %v", c, err)
	}
	cfg := testConfig(dir)
	cfg.SegmentBytes, cfg.Covered = minSegment, Covered{Index: 20, Term: 3}
	j := open(t, cfg)
	if first, last := j.firstLocked(), j.lastLocked(); first != c.First || last != 42 {
		t.Fatalf("opened, it has entries %d to %d", first, last)
	}
	j.Close()
}

// What is of a later format is not said to be damaged.
func TestLogOfAnotherFormatIsRefused(t *testing.T) {
	for _, which := range []string{stateName, "*" + segmentSuffix} {
		dir := filepath.Join(t.TempDir(), "log")
		if err := os.CopyFS(dir, os.DirFS(goldenDir)); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, which))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, at := range []int{0, recordApart} { // both records of the state; in a segment the second one is an entry
			if which == stateName || at == 0 {
				overwrite(t, files[0], int64(at)+7, []byte("3"))
			}
		}
		const want = "format 3, this program reads 2"
		c, err := Read(dir, func(*raft.Log, int) error { return nil })
		if which == stateName {
			if !errors.Is(err, metadata.ErrUnsupported) || !strings.Contains(err.Error(), want) {
				t.Errorf("state: %v", err)
			}
		} else if err != nil || len(c.Damage) == 0 || !strings.Contains(c.Damage[0], want) {
			t.Errorf("segment: %+v, %v", c, err)
		}
		if _, err := Open(testConfig(dir)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("opened: %v", err)
		}
	}
}

// A log of anything is told to be damaged, or read: never a panic, and nothing waits.
func TestReadOfWhatIsNoLog(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"nothing":        func(string) error { return nil },
		"an empty state": func(dir string) error { return os.Truncate(filepath.Join(dir, stateName), 0) },
		"half a state":   func(dir string) error { return os.Truncate(filepath.Join(dir, stateName), 30) },
		"a directory as state": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, stateName)), os.Mkdir(filepath.Join(dir, stateName), 0o700))
		},
		"a huge state":     func(dir string) error { return os.Truncate(filepath.Join(dir, stateName), 1<<40) },
		"a huge segment":   func(dir string) error { return os.Truncate(first(dir), 1<<40) },
		"an empty segment": func(dir string) error { return os.Truncate(first(dir), 0) },
		"half a segment":   func(dir string) error { return os.Truncate(first(dir), entriesBegin+200) },
		"a directory": func(dir string) error {
			return errors.Join(os.Rename(first(dir), first(dir)+"x"), os.Mkdir(filepath.Join(dir, segmentName(1, segmentSuffix)), 0o700))
		},
	} {
		dir := filepath.Join(t.TempDir(), "log")
		if err := errors.Join(os.CopyFS(dir, os.DirFS(goldenDir)), make(dir)); err != nil {
			t.Fatal(err)
		}
		c, err := Read(dir, func(*raft.Log, int) error { return nil })
		if sound := err == nil && len(c.Damage) == 0; sound != (name == "nothing") {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		for _, d := range c.Damage {
			if !strings.Contains(d, segmentSuffix+" at ") || strings.Contains(d, "\n") {
				t.Errorf("%s: %q", name, d)
			}
		}
	}
}

func first(dir string) string {
	files, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	return files[0]
}
