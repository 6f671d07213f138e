package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

// some are events as a namespace makes them, of the same numbers always.
func some(r *rand.Rand, index uint64) []metadata.Event {
	events := make([]metadata.Event, 1+r.IntN(3))
	for i := range events {
		path := fmt.Sprintf("/dir%d/%d", r.IntN(4), index)
		e := metadata.Event{Position: metadata.PositionOf(index, i), Kind: metadata.EventKind(r.IntN(7)), Time: metadata.Time(1e12 + int64(index)), INode: metadata.INodeID(index), Parent: 7, Path: path}
		switch e.Kind {
		case metadata.EventCreate:
			if e.Dir = r.IntN(2) == 0; !e.Dir {
				e.Replication, e.BlockSize = 3, 128<<20
			}
			e.Owner, e.Group, e.Mode, e.Overwrite = "alice", fmt.Sprint("g", r.IntN(2)), 0o1755, r.IntN(2) == 0
			if e.Overwrite {
				e.Replaced = metadata.INodeID(r.IntN(2)) * 12345
			}
			if r.IntN(4) == 0 {
				e.ACL = []metadata.ACLEntry{{Default: true, Type: metadata.ACLGroup, Name: "x", Rights: 5}, {Rights: 7}}
			}
		case metadata.EventClose, metadata.EventTruncate:
			e.Length = r.Int64N(1 << 40)
		case metadata.EventAppend:
			e.NewBlock = true
		case metadata.EventRename:
			e.Target, e.TargetParent, e.Overwrite = path+"/to", 9, r.IntN(2) == 0
			if e.Overwrite {
				e.Replaced = 777
			}
		case metadata.EventMetadata:
			switch e.Update = metadata.EventUpdate(r.IntN(6)); e.Update {
			case metadata.UpdateTimes:
				e.MTime, e.ATime = -1, 5
			case metadata.UpdateReplication:
				e.Replication = 2
			case metadata.UpdateOwner:
				e.Owner = "bob"
			case metadata.UpdatePermission:
				e.Mode = 0o700
			case metadata.UpdateACL:
				e.Mode = 0o750
			case metadata.UpdateXAttrs:
				e.XAttrs = []metadata.XAttr{{Namespace: metadata.XAttrTrusted, Name: "n", Value: []byte(strings.Repeat("v", r.IntN(300)))}}
				e.XAttrs = append(e.XAttrs, metadata.XAttr{Name: "empty"})
				if e.Removed = r.IntN(2) == 0; len(e.XAttrs[0].Value) == 0 {
					e.XAttrs[0].Value = nil
				}
			}
		}
		e.Continued = i > 0 && r.IntN(3) == 0
		events[i] = e
	}
	return events
}

// history is a log of entries, some of which have events, and what a feed has to say of them.
type history struct {
	seed   uint64
	events map[uint64][]metadata.Event
}

func newHistory(seed uint64) *history {
	return &history{seed: seed, events: map[uint64][]metadata.Event{}}
}

// of are the events of an entry; none for one in three.
func (h *history) of(index uint64) []metadata.Event {
	r := rand.New(rand.NewPCG(h.seed, index))
	if r.IntN(3) == 0 {
		return nil
	}
	if h.events[index] == nil {
		h.events[index] = some(r, index)
	}
	return h.events[index]
}

func (h *history) feed(l *Log, from, to uint64) {
	for i := from; i <= to; i++ {
		l.Append(i, int64(i)*10, h.of(i))
	}
}

func openLog(t testing.TB, c Config) *Log {
	t.Helper()
	if c.Dir == "" {
		c.Dir = "/feed"
	}
	c.Logger = slog.New(slog.DiscardHandler)
	l, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// readAll reads to the end, a page at a time, and returns what it missed.
func readAll(t testing.TB, l *Log, after metadata.Position, page int) (events []metadata.Event, gaps []metadata.EventPage, end metadata.Position) {
	t.Helper()
	for range 1_000_000 {
		p, err := l.Read(after, page, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if p.Missing {
			gaps = append(gaps, metadata.EventPage{From: after, Next: p.From})
		} else if p.From != after {
			t.Fatalf("a page from %d begins at %d", after, p.From)
		}
		if len(p.Events) == 0 {
			return events, gaps, p.Next
		}
		if p.Next <= after {
			t.Fatalf("a page after %d leads to %d", after, p.Next)
		}
		events, after = append(events, p.Events...), p.Next
	}
	t.Fatal("reading does not come to an end")
	return nil, nil, 0
}

// check reads everything, and holds it against the history up to an entry: what is not told has to be in a gap.
func (h *history) check(t testing.TB, l *Log, upTo uint64, page int) (gaps []metadata.EventPage) {
	t.Helper()
	events, gaps, end := readAll(t, l, 0, page)
	lost := func(p metadata.Position) bool {
		for _, g := range gaps {
			if p > g.From && p <= g.Next {
				return true
			}
		}
		return false
	}
	for i := uint64(1); i <= upTo; i++ {
		for _, e := range h.of(i) {
			if len(events) > 0 && events[0].Position == e.Position {
				if !reflect.DeepEqual(events[0], e) {
					t.Fatalf("got %+v\nwant %+v", events[0], e)
				}
				events = events[1:]
				continue
			}
			if !lost(e.Position) {
				t.Fatalf("event %d of entry %d is missing, and nobody says so; gaps %v", e.Position.Event(), i, gaps)
			}
		}
	}
	if len(events) > 0 {
		t.Fatalf("event at %d of entry %d should not be there", events[0].Position, events[0].Position.Entry())
	}
	if end > metadata.EndOf(upTo) {
		t.Fatalf("the end is %d, behind entry %d", end, upTo)
	}
	return gaps
}

func TestReadersSeeEverythingInOrder(t *testing.T) {
	h := newHistory(1)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	defer l.Close()
	h.feed(l, 1, 5000)
	for _, page := range []int{1, 7, 1000} {
		if gaps := h.check(t, l, 5000, page); len(gaps) > 0 {
			t.Fatalf("gaps %v", gaps)
		}
	}
	// From any position on.
	all, _, _ := readAll(t, l, 0, 1000)
	for i := 0; i < len(all); i += 97 {
		rest, gaps, _ := readAll(t, l, all[i].Position, 1000)
		if len(gaps) > 0 || len(rest) != len(all)-i-1 {
			t.Fatalf("after %d: %d events, %v", all[i].Position, len(rest), gaps)
		}
	}
	// Entries that come again change nothing.
	h.feed(l, 1, 5000)
	h.check(t, l, 5000, 1000)
}

// A process is killed, or the power fails, at any moment, also in the middle of what comes after another crash. The namespace's checkpoint is
// made durable behind Sync; the log is applied again from there. No event is missing, and none is there twice.
func TestNothingIsLostInCrashes(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		h := newHistory(seed)
		disk := newDisk()
		var applied, checkpoint uint64
		conf := Config{Disk: disk, Bytes: 1 << 30}
		l := openLog(t, conf)
		l.segmentSize = 4 << 10
		for range 40 {
			switch r.IntN(6) {
			case 0, 1, 2:
				to := applied + 1 + r.Uint64N(60)
				h.feed(l, applied+1, to)
				applied = to
			case 3:
				if r.IntN(2) == 0 { // more comes while the checkpoint is written
					h.feed(l, applied+1, applied+20)
					applied += 20
				}
				at := applied - r.Uint64N(min(applied-checkpoint, 20)+1)
				if err := l.Sync(at); err != nil {
					t.Fatal(err)
				}
				checkpoint = max(checkpoint, at)
			case 4:
				if err := l.flush(false); err != nil {
					t.Fatal(err)
				}
			case 5:
				var source *rand.Rand
				if r.IntN(2) == 0 {
					source = r
				}
				disk = disk.crash(source)
				if r.IntN(4) == 0 { // a stop
					l.Close()
				}
				conf.Disk, conf.Applied = disk, checkpoint
				l = openLog(t, conf)
				l.segmentSize = 4 << 10
				applied = max(checkpoint, applied-r.Uint64N(applied-checkpoint+1)) // a part of the log is applied again first
				h.feed(l, checkpoint+1, applied)
			}
			if l.covered <= applied {
				if gaps := h.check(t, l, applied, 1+r.IntN(100)); len(gaps) > 0 {
					t.Fatalf("seed %d: gaps %v", seed, gaps)
				}
			}
		}
		l.Close()
	}
}

// What does not fit goes, the oldest first, and readers are told.
func TestRetention(t *testing.T) {
	h := newHistory(2)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk, Bytes: 1 << 20})
	h.feed(l, 1, 60_000)
	if err := l.Sync(60_000); err != nil {
		t.Fatal(err)
	}
	if f := l.Figures(); f.Bytes > 1<<20+minSegment || f.Bytes < 1<<19 {
		t.Errorf("%d bytes", f.Bytes)
	}
	if gaps := h.check(t, l, 60_000, 1000); len(gaps) != 1 || gaps[0].From != 0 {
		t.Errorf("gaps %v", gaps)
	}
	if n := len(disk.files); n < 4 || n > 20 {
		t.Errorf("%d files", n)
	}
	l.Close()
	l = openLog(t, Config{Disk: disk, Bytes: 1 << 20, Applied: 60_000})
	defer l.Close()
	if gaps := h.check(t, l, 60_000, 1000); len(gaps) != 1 {
		t.Errorf("after a start: gaps %v", gaps)
	}
}

func TestRetentionByAge(t *testing.T) {
	h := newHistory(3)
	l := openLog(t, Config{Disk: newDisk(), Age: time.Minute})
	defer l.Close()
	for i := uint64(1); i <= 3000; i++ { // a second each
		l.Append(i, int64(i)*1000, h.of(i))
	}
	gaps := h.check(t, l, 3000, 1000)
	if len(gaps) != 1 || gaps[0].Next.Entry() < 2930 || gaps[0].Next.Entry() > 2942 {
		t.Errorf("gaps %v", gaps)
	}
}

// A disk that is full stops nobody. The oldest events make room; what does not fit even so is lost, which readers are told; then it goes on.
func TestFullDisk(t *testing.T) {
	h := newHistory(4)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	defer l.Close()
	l.segmentSize = 64 << 10
	h.feed(l, 1, 10_000)
	if err := l.Sync(10_000); err != nil {
		t.Fatal(err)
	}
	full := true
	disk.mu.Lock()
	before := len(disk.files)
	disk.fail = func(op string) error {
		if full && op != "remove" {
			return syscall.ENOSPC
		}
		return nil
	}
	disk.mu.Unlock()
	h.feed(l, 10_001, 11_000)
	if err := l.Sync(11_000); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	l.flush(false) // which removes what has to go
	disk.mu.Lock()
	if n := len(disk.files); n >= before {
		t.Errorf("%d files, %d before the disk was full", n, before)
	}
	disk.mu.Unlock()
	if gaps := h.check(t, l, 11_000, 1000); len(gaps) == 0 || gaps[len(gaps)-1].Next > metadata.EndOf(10_000) {
		t.Errorf("gaps %v: what waits for the disk can be read", gaps)
	}
	at := uint64(11_000)
	for l.Figures().Gaps == 0 { // as long as memory suffices
		h.feed(l, at+1, at+1000)
		if at += 1000; at > 1_000_000 {
			t.Fatal("it waits in memory for ever")
		}
	}
	disk.mu.Lock()
	full = false
	disk.mu.Unlock()
	h.feed(l, at+1, at+100)
	if err := l.Sync(at + 100); err != nil {
		t.Fatal(err)
	}
	if _, gaps, _ := readAll(t, l, 0, 1000); len(gaps) == 0 {
		t.Error("nobody is told that events were lost")
	}
	last, _, _ := readAll(t, l, metadata.EndOf(at), 1000)
	if len(last) == 0 {
		t.Error("it does not go on")
	}
}

// A member whose state was pulled from another has a hole, and says so; also where that happened before a start, or the files went.
func TestHoles(t *testing.T) {
	h := newHistory(5)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	h.feed(l, 1, 100)
	l.Reset(500)
	h.feed(l, 501, 600)
	want := metadata.EndOf(500)
	gaps := h.check(t, l, 600, 10)
	if len(gaps) != 1 || gaps[0].Next != want {
		t.Fatalf("gaps %v", gaps)
	}
	// Who reads on behind what came before the hole is told, who begins behind it is not.
	for _, at := range []metadata.Position{metadata.EndOf(100), metadata.EndOf(300), want - 1} {
		if p, err := l.Read(at, 10, 1<<20); err != nil || !p.Missing || p.From != want {
			t.Errorf("after %d: %+v, %v", at, p, err)
		}
	}
	if p, err := l.Read(want, 10, 1<<20); err != nil || p.Missing || p.From != want {
		t.Errorf("%+v, %v", p, err)
	}
	if err := l.Sync(600); err != nil {
		t.Fatal(err)
	}
	l.Close()
	l = openLog(t, Config{Disk: disk, Applied: 600})
	if gaps := h.check(t, l, 600, 10); len(gaps) != 1 {
		t.Fatalf("after a start: gaps %v", gaps)
	}
	l.Close()
	l = openLog(t, Config{Disk: disk, Applied: 900}) // a state from elsewhere
	h.feed(l, 901, 1000)
	if gaps := h.check(t, l, 1000, 10); len(gaps) != 2 {
		t.Fatalf("gaps %v", gaps)
	}
	l.Close()
	l = openLog(t, Config{Disk: newDisk(), Applied: 1000})
	defer l.Close()
	h.feed(l, 1001, 1100)
	if gaps := h.check(t, l, 1100, 10); len(gaps) != 1 {
		t.Fatalf("gaps %v", gaps)
	}
}

// A state that goes back may be of a group that was made anew, where other entries have the same numbers.
func TestAStateThatGoesBackTakesTheFeedAlong(t *testing.T) {
	before, h := newHistory(20), newHistory(21)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	l.segmentSize = 2 << 10
	before.feed(l, 1, 200)
	if err := l.Sync(200); err != nil {
		t.Fatal(err)
	}
	before.feed(l, 201, 300)
	l.Reset(150)
	h.feed(l, 151, 250)
	for range 2 {
		if gaps := h.check(t, l, 250, 10); len(gaps) != 1 || gaps[0].Next != metadata.EndOf(150) {
			t.Fatalf("gaps %v", gaps)
		}
		if err := l.Sync(250); err != nil {
			t.Fatal(err)
		}
		l.Close()
		l = openLog(t, Config{Disk: disk, Applied: 250})
	}
	l.Close()
}

// A state that goes back while a file is written may begin one that has the name of one that is to go.
func TestAFileOfANameThatGoesStays(t *testing.T) {
	before, h := newHistory(20), newHistory(21)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	l.segmentSize = 2 << 10
	before.feed(l, 1, 200)
	if err := l.Sync(200); err != nil {
		t.Fatal(err)
	}
	base := l.segments[1].base
	writes, goOn := make(chan struct{}, 100), make(chan struct{})
	disk.failing(func(op string) error {
		if op == "write" {
			writes <- struct{}{}
			<-goOn
		}
		return nil
	})
	before.feed(l, 201, 205)
	synced := make(chan error, 1)
	go func() { synced <- l.flush(true) }() // Sync would, if it came after the next lines, say that entries up to 205 have no events
	<-writes
	l.Reset(base)
	h.feed(l, base+1, 250)
	close(goOn)
	if err := <-synced; err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(250); err != nil {
		t.Fatal(err)
	}
	l.Close()
	l = openLog(t, Config{Disk: disk, Applied: 250})
	defer l.Close()
	if gaps := h.check(t, l, 250, 10); len(gaps) != 1 || gaps[0].Next != metadata.EndOf(base) {
		t.Errorf("gaps %v", gaps)
	}
}

// A disk that is full while a piece is half written loses what is behind, and tells of it, also when the piece is read from the file.
func TestHalfAPieceIsLost(t *testing.T) {
	h := newHistory(22)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	h.feed(l, 1, 100)
	if err := l.Sync(100); err != nil {
		t.Fatal(err)
	}
	h.feed(l, 101, 149)
	l.mu.Lock()
	l.add(150, 1500, h.of(150))
	l.lose() // the last one at least: what is in memory is written at any moment
	l.mu.Unlock()
	h.feed(l, 151, 200)
	for range 2 {
		if gaps := h.check(t, l, 200, 10); len(gaps) != 1 || gaps[0].Next != metadata.EndOf(150) || gaps[0].From.Entry() > 149 || gaps[0].From.Entry() < 95 {
			t.Fatalf("gaps %v", gaps)
		}
		l.Close()
		l = openLog(t, Config{Disk: disk, Applied: 200})
	}
	l.Close()
}

// Bits that flip in any byte of any file are found when it is read, and nothing wrong is told.
func TestRot(t *testing.T) {
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 6))
		h := newHistory(7)
		disk := newDisk()
		l := openLog(t, Config{Disk: disk})
		l.segmentSize = 2 << 10
		h.feed(l, 1, 300)
		if err := l.Sync(300); err != nil {
			t.Fatal(err)
		}
		l.Close()
		var flipped string
		for path, f := range disk.files {
			if flipped = filepath.Base(path); len(f.content) > 0 {
				f.content[r.IntN(len(f.content))] ^= 1 << r.IntN(8)
				break
			}
		}
		l = openLog(t, Config{Disk: disk, Applied: 300})
		h.feed(l, 301, 350)
		h.check(t, l, 350, 50)
		l.Close()
		if t.Failed() {
			t.Fatalf("a bit of %s", flipped)
		}
	}
}

func TestWait(t *testing.T) {
	h := newHistory(8)
	l := openLog(t, Config{Dir: t.TempDir()})
	h.feed(l, 1, 10)
	end := l.End()
	if err := l.Wait(t.Context(), end-1); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := l.Wait(ctx, end); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	woken := make(chan error, 1)
	go func() { woken <- l.Wait(t.Context(), end) }()
	h.feed(l, 11, 20)
	if err := <-woken; err != nil {
		t.Error(err)
	}
	go func() { woken <- l.Wait(t.Context(), metadata.EndOf(1000)) }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// On a real disk, with readers beside who writes.
func TestReadersBesideTheWriter(t *testing.T) {
	h := newHistory(9)
	const entries = 20_000
	for i := uint64(1); i <= entries; i++ {
		h.of(i)
	}
	l := openLog(t, Config{Dir: t.TempDir(), Bytes: 1 << 30})
	defer l.Close()
	l.segmentSize = 128 << 10
	errs := make(chan error)
	for range 4 {
		go func() {
			err := errors.New("a reader could not read all")
			defer func() { errs <- err }()
			at, n := metadata.Position(0), 0
			for at.Entry() < entries {
				if l.Wait(t.Context(), at) != nil {
					break
				}
				p, failed := l.Read(at, 500, 1<<20)
				if failed != nil || p.Missing {
					err = fmt.Errorf("%v, %+v", failed, p)
					return
				}
				at, n = p.Next, n+len(p.Events)
			}
			if all, _, _ := readAll(t, l, 0, 1000); len(all) != n {
				err = fmt.Errorf("%d events of %d", n, len(all))
				return
			}
			err = nil
		}()
	}
	for i := uint64(1); i < entries; i++ {
		l.Append(i, int64(i), h.events[i])
		if i%3000 == 0 {
			if err := l.Sync(i); err != nil {
				t.Error(err)
			}
		}
	}
	l.Append(entries, entries, []metadata.Event{{Path: "/the/end"}})
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	l := openLog(b, Config{Dir: b.TempDir()})
	defer l.Close()
	events := []metadata.Event{{Kind: metadata.EventCreate, Path: "/user/alice/project/data/part-00017", Owner: "alice", Group: "alice", Mode: 0o644, Replication: 3, BlockSize: 128 << 20, INode: 1 << 20, Parent: 1 << 19, Time: 1e12}}
	b.ReportAllocs()
	for i := range b.N {
		l.Append(uint64(i+1), int64(i), events)
	}
	b.ReportMetric(float64(l.Figures().Bytes)/float64(b.N), "bytes/op")
}
