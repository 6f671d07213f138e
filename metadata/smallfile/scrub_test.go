package smallfile

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func atOnce(int64) error { return nil }

// scrubbed makes a whole pass.
func scrubbed(t *testing.T, s *Store) (all Scrubbed) {
	t.Helper()
	p := s.NewPass(time.Unix(1000, 0))
	for !p.Done {
		done, err := s.Scrub(t.Context(), &p, atOnce)
		if err != nil {
			t.Fatal(err)
		}
		all.Records, all.Bytes, all.Damaged = all.Records+done.Records, all.Bytes+done.Bytes, all.Damaged+done.Damaged
	}
	return all
}

// worn are the segments in which a pass has found something.
func worn(s *Store) (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.segments {
		if g.worn.Load() {
			n++
		}
	}
	return n
}

// Whatever bit of a segment turns while the store is open, in one that is sealed or in the one that grows, a pass finds it though nobody reads: the body is known to be
// damaged, and putting it again heals it; and Compact copies the segment, also where only its index or its header is another one.
func TestScrubFindsFlippedBits(t *testing.T) {
	const n, most = 90, 300
	offsets := 1000
	if testing.Short() {
		offsets = 150
	}
	sealed, names := stored(t, n, most, true)
	r := rand.New(rand.NewPCG(5, 5))
	found, ends := 0, 0
	for range offsets {
		d := sealed.crash(nil)
		s := open(t, Config{Disk: d, Live: names.live})
		for id := firstID + n; id < firstID+n+20; id++ { // they are in the segment that grows
			s.Put(id, bodyOf(id, most))
			names.set(id, true)
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		paths := slices.Sorted(maps.Keys(d.files))
		f := d.files[paths[r.IntN(len(paths))]]
		at := r.IntN(len(f.content))
		f.content[at] ^= 1 << r.IntN(8)
		grows := strings.HasSuffix(f.path, segmentName(s.grows.seq))
		d.mu.Unlock()
		all := scrubbed(t, s)
		if all.Records != n+20 || all.Bytes == 0 {
			t.Fatalf("%+v", all)
		}
		known := s.Damaged(n)
		if bad := flawed(t, s, n+20, most); len(known) > 1 || !slices.Equal(bad, known) || all.Damaged != len(known) {
			t.Fatalf("a bit at %d of %s: %v is damaged, and was found to be: %v, %+v", at, f.path, bad, known, all)
		}
		found += len(known)
		switch {
		case !grows && worn(s) != 1:
			t.Fatalf("a bit at %d of %s: %d segments are damaged", at, f.path, worn(s))
		case !grows && len(known) == 0:
			ends++
		}
		for _, id := range known {
			s.Put(id, bodyOf(id, most))
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		if worn(s) != 0 || len(s.Damaged(n)) != 0 {
			t.Fatalf("a bit at %d of %s: %d segments are damaged when they have been copied", at, f.path, worn(s))
		}
		if bad := flawed(t, s, n+20, most); len(bad) > 0 {
			t.Fatal(bad)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if grows {
			continue // its record stays in the segment, behind which the body is once more
		}
		s = open(t, Config{Disk: d, Live: names.live})
		if all := scrubbed(t, s); all.Damaged != 0 || worn(s) != 0 || s.Figures().Unreadable != 0 {
			t.Fatalf("a bit at %d of %s: %+v after a restart, %d segments are damaged", at, f.path, all, worn(s))
		}
		s.Close()
	}
	if found == 0 || ends == 0 {
		t.Errorf("%d bodies and %d indexes were damaged: this shows nothing", found, ends)
	}
}

// Damage of what nobody needs is none, and goes with the segment.
func TestScrubLeavesTheDeadAlone(t *testing.T) {
	const n, most = 60, 300
	d, names := stored(t, n, most, true)
	s := open(t, Config{Disk: d, Live: names.live})
	defer s.Close()
	d.mu.Lock()
	for _, f := range d.files {
		for at := recordsBegin + recordHeader; at < len(f.content)-trailerSize; at += 100 {
			f.content[at] ^= 1
		}
	}
	d.mu.Unlock()
	for id := firstID; id < firstID+n; id++ {
		names.set(id, false)
	}
	if all := scrubbed(t, s); all.Damaged != 0 || len(s.Damaged(n)) != 0 || worn(s) != len(s.segments) {
		t.Fatalf("%+v, %d of %d segments are damaged", all, worn(s), len(s.segments))
	}
	if _, err := s.Compact(t.Context()); err != nil || len(s.segments) != 0 {
		t.Fatal(len(s.segments), err)
	}
}

// A disk that cannot read a segment: all its bodies are damaged until they are put again, or the disk reads again.
func TestScrubOfADiskThatCannotRead(t *testing.T) {
	const n, most = 60, 300
	d, names := stored(t, n, most, true)
	s := open(t, Config{Disk: d, Live: names.live})
	defer s.Close()
	sick := s.segments[0]
	d.trouble(func(op, path string) error {
		if op == "read" && strings.HasSuffix(path, segmentName(sick.seq)) {
			return syscall.EIO
		}
		return nil
	})
	if all := scrubbed(t, s); all.Damaged != sick.len() || len(s.Damaged(n)) != sick.len() {
		t.Fatalf("%+v, and %d bodies cannot be read", all, sick.len())
	}
	d.trouble(nil)
	if bad := flawed(t, s, n, most); len(bad) != 0 || len(s.Damaged(n)) != 0 {
		t.Fatal(bad)
	}
	// No descriptors say nothing of bytes: the pass goes on, and tells.
	d.trouble(func(op, _ string) error {
		if op == "read" {
			return syscall.EMFILE
		}
		return nil
	})
	p := s.NewPass(time.Unix(1000, 0))
	if done, err := s.Scrub(t.Context(), &p, atOnce); !errors.Is(err, syscall.EMFILE) || done.Damaged != 0 || p.After == 0 {
		t.Fatal(done, p, err)
	}
}

// A disk that hangs holds up nobody: others put and read what is in memory, and the scrubber ends when it is to.
func TestScrubOfADiskThatHangs(t *testing.T) {
	d, names := stored(t, 60, 300, true)
	s := open(t, Config{Disk: d, Live: names.live})
	hangs, reading := make(chan struct{}), make(chan struct{}, 1)
	d.trouble(func(op, _ string) error {
		if op == "read" {
			select {
			case reading <- struct{}{}:
			default:
			}
			<-hangs
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	p := s.NewPass(time.Unix(1000, 0))
	ended := make(chan error, 1)
	go func() {
		_, err := s.Scrub(ctx, &p, atOnce)
		ended <- err
	}()
	<-reading
	s.Put(firstID+100, bodyOf(firstID+100, 300))
	if _, err := s.Get(firstID + 100); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	s.Figures()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || p.After != 0 {
		t.Fatal(p, err)
	}
	close(hangs)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Scrub(t.Context(), &p, atOnce); err == nil {
		t.Error("a store that is closed is scrubbed")
	}
}

// A pass goes on after a restart where it was; pace may end it; what is not known begins anew.
func TestPassesGoOnAfterARestart(t *testing.T) {
	d, names := stored(t, 60, 300, true)
	s := open(t, Config{Disk: d, Live: names.live})
	if p, err := s.LastPass(t.Context()); err != nil || p != (Pass{}) {
		t.Fatal(p, err)
	}
	p := s.NewPass(time.Unix(1000, 0))
	if _, err := s.Scrub(t.Context(), &p, atOnce); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	before := p
	if _, err := s.Scrub(t.Context(), &p, func(int64) error { return enough }); !errors.Is(err, enough) || p != before {
		t.Fatal(p, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Disk: d, Live: names.live})
	defer s.Close()
	if q, err := s.LastPass(t.Context()); err != nil || !q.Begun.Equal(p.Begun) || q.After != p.After || q.Last != p.Last || q.Done {
		t.Fatal(q, p, err)
	}
	for !p.Done {
		if _, err := s.Scrub(t.Context(), &p, atOnce); err != nil {
			t.Fatal(err)
		}
	}
	if q, err := s.LastPass(t.Context()); err != nil || !q.Done {
		t.Fatal(q, err)
	}
	d.mu.Lock()
	f := d.files["/bodies/"+scrubFile]
	whole := slices.Clone(f.content)
	d.mu.Unlock()
	for at := range whole {
		for _, content := range [][]byte{whole[:at], append(append(slices.Clone(whole[:at]), whole[at]^1), whole[at+1:]...), append(slices.Clone(whole), make([]byte, 1<<20)...)} {
			d.mu.Lock()
			f.content = content
			d.mu.Unlock()
			if q, err := s.LastPass(t.Context()); err == nil && !q.Done {
				t.Fatalf("of %q %+v is read", content[:min(len(content), len(whole))], q)
			}
		}
	}
}

// While bodies are put, removed and copied a pass finds nothing that is not so.
func TestScrubBesideEverythingElse(t *testing.T) {
	d, names := newDisk(), newLiving()
	s := open(t, Config{Disk: d, Live: names.live, SegmentBytes: leastSegment})
	var others sync.WaitGroup
	others.Go(func() {
		for id := firstID; id < firstID+600; id++ {
			names.set(id, true)
			s.Put(id, bodyOf(id, 300))
			if id%3 != 0 {
				names.set(id, false)
				s.Removed(id, len(bodyOf(id, 300)))
			}
			if id%50 == 0 {
				if err := s.Sync(); err != nil {
					t.Error(err)
				}
				if _, err := s.Compact(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
	ended := make(chan struct{})
	go func() { others.Wait(); close(ended) }()
	for passes := 0; ; passes++ {
		if all := scrubbed(t, s); all.Damaged != 0 || worn(s) != 0 {
			t.Fatalf("%+v in pass %d", all, passes)
		}
		select {
		case <-ended:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// Who offers a body does not wait for a full disk.
func TestOfferDoesNotWait(t *testing.T) {
	d := newDisk()
	s := open(t, Config{Disk: d})
	s.limit, s.pause = 1<<10, time.Millisecond
	d.mu.Lock()
	d.room = 0
	d.mu.Unlock()
	id := firstID
	for ; s.Offer(id, bodyOf(id, 300)); id++ {
		if id > firstID+100 {
			t.Fatal("everything is taken")
		}
	}
	if s.Has(id) {
		t.Error("what was not taken is here")
	}
	d.mu.Lock()
	d.room = -1
	d.mu.Unlock()
	until(t, "it is taken when there is room", func() bool { return s.Offer(id, bodyOf(id, 300)) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s.Offer(id+1, bodyOf(id+1, 300)) {
		t.Error("a store that is closed takes a body")
	}
}
