package raftstore

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

var update = flag.Bool("update", false, "write the golden snapshots of the present format anew")

// goldenSnapshots were written when the format was made: each kind of snapshot.
var goldenSnapshots = filepath.Join("testdata", "snapshots-"+snapshotMagic[7:])

const goldenContent = "the state of a state machine"

func writeGoldenSnapshots(t *testing.T) {
	if err := errors.Join(os.RemoveAll(goldenSnapshots), os.MkdirAll(goldenSnapshots, 0o755)); err != nil {
		t.Fatal(err)
	}
	members := raft.Configuration{Servers: []raft.Server{{ID: "nn1", Address: "host:8485"}, {ID: "nn2", Address: "other:8485", Suffrage: raft.Nonvoter}}}
	for name, kind := range map[string]struct{ reference, content bool }{"reference": {true, false}, "copy": {true, true}, "frames": {false, true}} {
		dir := t.TempDir()
		s, err := openSnapshots(dir, 0, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		sink, err := s.Create(1, 51, 2, members, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if kind.reference {
			own, _ := sink.(*snapshotSink)
			err = own.refer(Reference{Index: 50, Hash: 7, Bytes: 1234})
		}
		if kind.content {
			w, werr := newFrameWriter(sink, 50)
			_, cerr := io.WriteString(w, goldenContent)
			err = errors.Join(err, werr, cerr, w.Close())
		}
		if err := errors.Join(err, sink.Close(), os.Rename(filepath.Join(dir, s.all()[0].id+snapshotSuffix), filepath.Join(goldenSnapshots, name+snapshotSuffix))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGoldenSnapshotsAreRead(t *testing.T) {
	if *update {
		writeGoldenSnapshots(t)
	}
	inspect := func(path string) (head SnapshotHead, content string, err error) {
		err = InspectSnapshot(path, func(h SnapshotHead) error { head = h; return nil }, func(r io.Reader) error {
			all, err := io.ReadAll(r)
			content = string(all)
			return err
		})
		return head, content, err
	}
	paths, err := Snapshots(goldenSnapshots)
	if err != nil || len(paths) != 3 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		h, content, err := inspect(path)
		reference, whole := !strings.Contains(path, "frames"), !strings.Contains(path, "reference")
		if err != nil || h.Index != 51 || h.Term != 2 || h.State != 50 || len(h.Configuration) != 2 || h.Configuration[1].Voter || (h.Reference != nil) != reference || h.Whole != whole || (content == goldenContent) != whole {
			t.Errorf("%s: %+v, %q, %v", path, h, content, err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := filepath.Join(t.TempDir(), "bad.snap")
		refused := func(what string, content []byte, want error) {
			if err := os.WriteFile(bad, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, _, err := inspect(bad); !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %s: %v", path, what, err)
			}
		}
		for at := range raw {
			if at != len(snapshotMagic)-1 { // another format
				flipped := bytes.Clone(raw)
				flipped[at] ^= 0x80
				refused("flipped", flipped, metadata.ErrCorrupt)
			}
		}
		refused("empty", nil, metadata.ErrCorrupt)
		refused("cut", raw[:len(raw)-5], metadata.ErrCorrupt)
		refused("of another format", append([]byte("hopsSNP9"), raw[8:]...), metadata.ErrUnsupported)
		refused("of another program", []byte("#!/bin/sh\necho of another program\n"), metadata.ErrCorrupt)
	}
}
