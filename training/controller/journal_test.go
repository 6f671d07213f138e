package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

const journalPath = "/e/" + journalName

var quiet = slog.New(slog.DiscardHandler)

// recorded makes an experiment of n entries with its journal's lines.
func recorded(t testing.TB, n int) (x *experiment.Experiment, lines []line) {
	t.Helper()
	spec, err := training.ParseSpec([]byte(ashaSpec), "ann")
	if err != nil {
		t.Fatal(err)
	}
	x = experiment.New()
	now := training.Millis(1_700_000_000_000)
	add := func(e *experiment.Entry, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return
		}
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line{e.N, b})
	}
	add(x.Propose(now, &experiment.Entry{Created: &experiment.Created{Version: experiment.Version, ID: "app_1", User: "ann", Directory: "/e", Spec: spec}}))
	add(x.Propose(now, &experiment.Entry{Started: &experiment.Started{Attempt: 1}}))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3 {
		_, _, e, err := x.Register(now, protocol.RegisterExecutor{ContainerID: fmt.Sprint("c", i), Instance: "i"}, fmt.Sprint("n", i), false)
		add(e, err)
	}
	for len(lines) < n && !x.Over() {
		now++
		w := x.Executors[r.IntN(len(x.Executors))]
		if w.Holds() == 0 {
			_, e, err := x.Next(now, w.ID, 0)
			add(e, err)
			continue
		}
		tr := x.Trial(w.Slots[0])
		switch step := tr.Curve.Len() + 1; {
		case step > tr.Budget.To:
			_, e, err := x.Final(now, w.Container, tr.ID, tr.Attempt, protocol.Final{Seq: tr.Members[0].Seq, Status: training.Completed})
			add(e, err)
		case r.IntN(40) == 0:
			add(x.Propose(now, &experiment.Entry{Lost: &experiment.Lost{Executor: w.ID, Reason: "test"}}))
			_, _, e, err := x.Register(now, protocol.RegisterExecutor{ContainerID: fmt.Sprint("c", len(x.Executors)), Instance: "i"}, "n1", false)
			add(e, err)
		default:
			_, e, err := x.Report(now, w.Container, tr.ID, tr.Attempt, protocol.Report{Events: []protocol.MetricEvent{{Seq: tr.Members[0].Seq + 1, Step: int64(step), Metrics: map[string]training.Metric{"acc": training.M(accuracy(tr.Params, int64(step)))}}}})
			add(e, err)
			if r.IntN(2) == 0 {
				_, e, err := x.Commit(now, w.Container, tr.ID, tr.Attempt, protocol.Commit{Step: int64(step), URI: path.Join(x.Directories(tr, 0).Checkpoints, fmt.Sprint("step-", step)), Files: []training.File{{Name: "m"}}})
				add(e, err)
			}
		}
	}
	return x, lines
}

func stateOf(t testing.TB, x *experiment.Experiment) []byte {
	t.Helper()
	b, err := x.Snapshot(0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A crash after every byte of the journal: what was flushed is read, the part of a line behind it is skipped, writing
// goes on, and the whole is the same experiment.
func TestJournalCutAtEveryByteGoesOn(t *testing.T) {
	x, lines := recorded(t, 60)
	want := stateOf(t, x)
	var whole []byte
	var ends []int // of each line
	for _, l := range lines {
		whole = append(whole, l.data...)
		ends = append(ends, len(whole))
	}
	ctx := t.Context()
	stride := max(1, len(whole)/300)
	cuts := slices.Clone(ends) // every line's end, the bytes around it, and some between
	for cut := 0; cut < len(whole); cut += stride {
		cuts = append(cuts, cut)
	}
	for _, e := range ends {
		cuts = append(cuts, e-1, min(e+1, len(whole)))
	}
	for _, cut := range cuts {
		fs := newMemFS()
		fs.put(journalPath, whole[:cut])
		y := experiment.New()
		j, err := resumeJournal(ctx, fs, journalPath, 0, 0, quiet, y.Apply)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		complete, _ := slices.BinarySearch(ends, cut+1)
		if int(y.N) != complete {
			t.Fatalf("cut at %d: %d entries, want %d", cut, y.N, complete)
		}
		if err := j.append(ctx, lines[complete:]); err != nil {
			t.Fatal(err)
		}
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
		z := experiment.New()
		if _, err := resumeJournal(ctx, fs, journalPath, 0, 0, quiet, z.Apply); err != nil {
			t.Fatalf("cut at %d, then completed: %v", cut, err)
		}
		if got := stateOf(t, z); !bytes.Equal(want, got) {
			t.Fatalf("cut at %d: another state\n%s\n%s", cut, want, got)
		}
	}
}

// After a flush whose outcome is unknown, what arrived is found out and the rest written once.
func TestJournalWritesEachEntryOnceThroughFailedFlushes(t *testing.T) {
	x, lines := recorded(t, 120)
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 0))
		fs := newMemFS()
		fs.keep = func(n int) int { return r.IntN(n + 1) }
		j, err := createJournal(t.Context(), fs, journalPath, quiet)
		if err != nil {
			t.Fatal(err)
		}
		for rest := lines; len(rest) > 0; {
			n := min(1+r.IntN(7), len(rest))
			if r.IntN(20) == 0 {
				fs.failFlush = 1
			}
			if err := j.append(t.Context(), rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		y := experiment.New()
		k, err := resumeJournal(t.Context(), fs, journalPath, 0, 0, quiet, y.Apply)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(stateOf(t, x), stateOf(t, y)) || k.size != int64(len(fs.get(t, journalPath))) {
			t.Fatalf("seed %d: another state, or size %d", seed, k.size)
		}
	}
}

func TestSnapshotAndTailMakeTheSameStateAsTheWholeJournal(t *testing.T) {
	x, lines := recorded(t, 400)
	want := stateOf(t, x)
	fs := newMemFS()
	j, err := createJournal(t.Context(), fs, journalPath, quiet)
	if err != nil {
		t.Fatal(err)
	}
	y := experiment.New()
	type snap struct{ data []byte }
	var snaps []snap
	for _, l := range lines {
		e, err := experiment.DecodeEntry(l.data)
		if err != nil {
			t.Fatal(err)
		}
		if err := y.Apply(e); err != nil {
			t.Fatal(err)
		}
		if err := j.append(t.Context(), []line{l}); err != nil {
			t.Fatal(err)
		}
		b, err := y.Snapshot(j.size)
		if err != nil {
			t.Fatal(err)
		}
		snaps = append(snaps, snap{b})
	}
	for i := 0; i < len(snaps); i += 7 {
		z, offset, err := experiment.Restore(snaps[i].data)
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		_, err = resumeJournal(t.Context(), fs, journalPath, offset, z.N, quiet, func(e *experiment.Entry) error { read++; return z.Apply(e) })
		if err != nil {
			t.Fatal(err)
		}
		if read != len(lines)-i-1 || !bytes.Equal(want, stateOf(t, z)) {
			t.Fatalf("snapshot %d: read %d entries of %d, state differs: %v", i, read, len(lines)-i-1, !bytes.Equal(want, stateOf(t, z)))
		}
	}
}

func TestAControllerWhoseJournalWasTakenOverStops(t *testing.T) {
	_, lines := recorded(t, 20)
	fs := newMemFS()
	old, err := createJournal(t.Context(), fs, journalPath, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.append(t.Context(), lines[:10]); err != nil {
		t.Fatal(err)
	}
	y := experiment.New()
	young, err := resumeJournal(t.Context(), fs, journalPath, 0, 0, quiet, y.Apply)
	if err != nil {
		t.Fatal(err)
	}
	e, err := y.Propose(1, &experiment.Entry{Started: &experiment.Started{Attempt: 2}})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := e.Encode()
	if err := young.append(t.Context(), []line{{e.N, b}}); err != nil {
		t.Fatal(err)
	}
	if err := old.append(t.Context(), lines[10:11]); !errors.Is(err, errSuperseded) {
		t.Fatalf("the old controller wrote: %v", err)
	}
}

func TestAJournalWithAHoleIsCorrupt(t *testing.T) {
	_, lines := recorded(t, 20)
	fs := newMemFS()
	var data []byte
	for i, l := range lines {
		if i == 7 {
			l.data[len(l.data)/2] ^= 0xff
		}
		data = append(data, l.data...)
	}
	fs.put(journalPath, data)
	_, err := resumeJournal(t.Context(), fs, journalPath, 0, 0, quiet, experiment.New().Apply)
	if !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("%v", err)
	}
}

// Another version of the program would have suggested otherwise, be it by the last digit of a float: the journal is gone on
// with as it is. CheckReplay is who tells the difference.
func TestAJournalOfAnotherSearchIsGoneOnWith(t *testing.T) {
	want, lines := recorded(t, 230)
	fs := newMemFS()
	var data []byte
	moved := 0
	for _, l := range lines {
		e, err := experiment.DecodeEntry(l.data)
		if err != nil {
			t.Fatal(err)
		}
		if e.Assigned != nil && e.Assigned.Suggestion != nil && !e.Assigned.Suggestion.Promotion {
			lr, _ := e.Assigned.Suggestion.Params["lr"].Float()
			e.Assigned.Suggestion.Params["lr"] = training.Float(math.Nextafter(lr, 1))
			moved++
		}
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, b...)
	}
	fs.put("/e/"+journalName, data)
	x := experiment.New()
	if _, err := resumeJournal(t.Context(), fs, "/e/"+journalName, 0, 0, quiet, x.Apply); err != nil {
		t.Fatal(err)
	}
	if x.N != want.N || len(x.Trials) != len(want.Trials) || moved < 10 || x.Counters != want.Counters {
		t.Errorf("%d entries, %d trials (%d moved), %+v; want %d, %d, %+v", x.N, len(x.Trials), moved, x.Counters, want.N, len(want.Trials), want.Counters)
	}
	if err := CheckReplay(t.Context(), fs, "/e"); err == nil || !strings.Contains(err.Error(), "where it suggested") {
		t.Errorf("the check says %v", err)
	}
}

func TestTheJournalOfThisSearchReplays(t *testing.T) {
	_, lines := recorded(t, 100)
	fs := newMemFS()
	var data []byte
	for _, l := range lines {
		data = append(data, l.data...)
	}
	fs.put("/e/"+journalName, data)
	if err := CheckReplay(t.Context(), fs, "/e"); err != nil {
		t.Error(err)
	}
	s, err := History(t.Context(), fs, "/e")
	if err != nil {
		t.Fatal(err)
	}
	if s.State != protocol.ExperimentRunning || len(s.Trials) < 10 || s.Best == nil || len(s.Trials[0].Curve) == 0 {
		t.Errorf("%s, %d trials, best %v, %v", s.State, len(s.Trials), s.Best, err)
	}
}

// hflush survives processes and hosts; a power cut of all datanodes takes what was not synced.
func TestEntriesAreOnDisksBeforeTheyAreAcknowledged(t *testing.T) {
	_, lines := recorded(t, 20)
	fs := newMemFS()
	j, err := createJournal(t.Context(), fs, journalPath, quiet)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, l := range lines {
		if err := j.append(t.Context(), []line{l}); err != nil {
			t.Fatal(err)
		}
		total += len(l.data)
		if f := fs.files[journalPath]; f.synced != total {
			t.Fatalf("entry %d: %d bytes are on disks, %d were acknowledged", l.n, f.synced, total)
		}
	}
}

// A flush that fails may have brought its lines to the datanodes: they are found again, but that is not yet on their disks.
func TestEntriesThatOutlivedAFailedFlushAreOnDisksToo(t *testing.T) {
	_, lines := recorded(t, 20)
	fs := newMemFS()
	fs.keep = func(n int) int { return n } // all of it arrived
	j, err := createJournal(t.Context(), fs, journalPath, quiet)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for i, l := range lines {
		fs.failFlush = i % 2
		if err := j.append(t.Context(), []line{l}); err != nil {
			t.Fatal(err)
		}
		total += len(l.data)
		if f := fs.files[journalPath]; f.synced < total {
			t.Fatalf("entry %d: %d bytes are on disks, %d were acknowledged", l.n, f.synced, total)
		}
	}
	x := experiment.New()
	if _, err := resumeJournal(t.Context(), fs, journalPath, 0, 0, quiet, x.Apply); err != nil || x.N != 20 {
		t.Errorf("%d entries are read, %v", x.N, err)
	}
}

// What snapshots cost stays in proportion to the journal, however large the state is.
func TestSnapshotsAreWorthTheirSize(t *testing.T) {
	const entries, line = 2000, 100
	written := int64(0)
	mark := snapshotMark{}
	for n := int64(1); n <= 1_000_000; n++ {
		if mark.due(n, n*line, entries) {
			size := n * line / 2 // a state that grows with the journal
			written += size
			mark = snapshotMark{n, n * line, size}
		}
	}
	if journal := int64(1_000_000 * line); written > journal || mark.n < 300_000 {
		t.Errorf("%d bytes of snapshots for a journal of %d, the last at entry %d", written, journal, mark.n)
	}
	if (snapshotMark{}).due(entries-1, 1<<40, entries) {
		t.Error("a snapshot before its time")
	}
}

func TestJournalGivesUpWithItsContext(t *testing.T) {
	_, lines := recorded(t, 5)
	fs := newMemFS()
	j, err := createJournal(t.Context(), fs, journalPath, quiet)
	if err != nil {
		t.Fatal(err)
	}
	fs.failFlush = 1 << 30
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.append(ctx, lines); !errors.Is(err, metadata.ErrIO) {
		t.Fatalf("%v", err)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	_, lines := recorded(f, 40)
	for _, l := range lines {
		f.Add(l.data)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := experiment.DecodeEntry(b)
		if err != nil {
			return
		}
		x := experiment.New()
		_ = x.Apply(e) // must not panic
	})
}

// Whatever an executor sends, it is refused by name, or recorded so that the journal makes the same experiment again.
func FuzzExecutorBodies(f *testing.F) {
	_, lines := recorded(f, 12)
	files, err := filepath.Glob("testdata/protocol/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var v vectorFile
		if err := json.Unmarshal(b, &v); err != nil {
			f.Fatal(err)
		}
		for call := range byte(5) {
			f.Add(call, []byte(v.Request.Body))
		}
	}
	f.Add(byte(0), []byte(`{"events": [{"seq": 3, "step": 2, "metrics": {"acc": "NaN", "x": "Infinity"}}, {"seq": 4, "step": 1}]}`))
	f.Add(byte(1), []byte(`{"step": -1, "uri": "/e/0001/checkpoints/1/step-1", "files": [{"name": "m"}], "metric": "NaN"}`))
	f.Add(byte(2), []byte(`{"seq": 0, "status": "COMPLETED", "metric": "text", "outputs": {"x": [1, {"a": null}]}}`))
	f.Add(byte(3), []byte(`{"protocol": 1, "container_id": "c9", "instance": "i", "holding": {"trial": "0001", "attempt": 1}}`))
	f.Fuzz(func(t *testing.T, call byte, body []byte) {
		replayed := func(lines []line) *experiment.Experiment {
			x := experiment.New()
			for _, l := range lines {
				e, err := experiment.DecodeEntry(l.data)
				if err != nil {
					t.Fatalf("%s: %v", l.data, err)
				}
				if err := x.Apply(e); err != nil {
					t.Fatalf("%s: %v", l.data, err)
				}
			}
			return x
		}
		x := replayed(lines)
		i := slices.IndexFunc(x.Executors, func(w *experiment.Executor) bool { return w.Alive() && w.Holds() != 0 })
		if i < 0 {
			t.Fatal("no executor has a trial")
		}
		w := x.Executors[i]
		id, attempt, now := w.Slots[0], x.Trial(w.Slots[0]).Attempt, x.Now+1
		read := func(into any) bool { return json.Unmarshal(body, into) == nil }
		var e *experiment.Entry
		var err error
		switch call % 5 {
		case 0:
			var r protocol.Report
			if !read(&r) {
				return
			}
			_, e, err = x.Report(now, w.Container, id, attempt, r)
		case 1:
			var c protocol.Commit
			if !read(&c) {
				return
			}
			_, e, err = x.Commit(now, w.Container, id, attempt, c)
		case 2:
			var r protocol.Final
			if !read(&r) {
				return
			}
			_, e, err = x.Final(now, w.Container, id, attempt, r)
		case 3:
			var r protocol.RegisterExecutor
			if !read(&r) {
				return
			}
			_, _, e, err = x.Register(now, r, "n1", false)
		case 4:
			var j protocol.Join
			if !read(&j) {
				return
			}
			_, e, err = x.Join(now, w.Container, id, attempt, j)
		}
		if _, ok := errors.AsType[*experiment.Refusal](err); err != nil && !ok {
			t.Fatalf("refused with %v", err)
		}
		if e == nil {
			return
		}
		b, err := e.Encode()
		if err != nil {
			t.Fatalf("what was taken cannot be written: %v", err)
		}
		if again := replayed(append(slices.Clone(lines), line{e.N, b})); !bytes.Equal(stateOf(t, again), stateOf(t, x)) {
			t.Errorf("the journal makes another experiment\n%s\nof %s", stateOf(t, again), stateOf(t, x))
		}
		if _, err := json.Marshal(x.Status(now, true)); err != nil {
			t.Errorf("the status cannot be told: %v", err)
		}
	})
}

// A search that finds no room for its first entry says so at once; one that runs waits for room.
func TestAJournalWithoutRoom(t *testing.T) {
	_, lines := recorded(t, 2)
	fs := newMemFS()
	fs.failure = metadata.Errorf(metadata.ErrSpaceQuota, "The DiskSpace quota of /Projects/lab is exceeded")
	j, err := createJournal(t.Context(), fs, journalPath, quiet)
	if err != nil {
		t.Fatal(err)
	}
	fs.failFlush = 1
	err = j.append(t.Context(), lines[:1])
	if err == nil || !strings.Contains(err.Error(), journalPath) || !strings.Contains(err.Error(), "quota of /Projects/lab is exceeded; free space below that quota, or ask for a larger one") {
		t.Fatal(err)
	}
	if err := j.append(t.Context(), lines[:1]); err != nil {
		t.Fatal(err)
	}
	fs.failFlush = 2
	if err := j.append(t.Context(), lines[1:]); err != nil || fs.failFlush != 0 {
		t.Fatal(err, fs.failFlush)
	}
}
