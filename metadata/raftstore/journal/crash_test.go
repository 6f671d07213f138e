package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// image is what a journal is expected to hold: a dumb model of one.
type image struct {
	first    uint64 // where the log may begin at the latest: whole segments go
	log      []*raft.Log
	term     uint64
	vote     string
	voteTerm uint64
	covered  Covered
}

func (m *image) last() uint64 {
	if len(m.log) == 0 {
		return 0
	}
	return m.log[len(m.log)-1].Index
}

func (m *image) clone() *image {
	c := *m
	c.log = slices.Clone(m.log)
	return &c
}

// matches compares a journal with the model.
func (m *image) matches(j *Journal) error {
	first, _ := j.FirstIndex()
	last, _ := j.LastIndex()
	if last == 0 && m.last() <= m.covered.Index {
		m = m.clone() // raft goes on behind the snapshot
		m.log = nil
	}
	if last != m.last() {
		return fmt.Errorf("the log ends at %d, want %d", last, m.last())
	}
	if len(m.log) > 0 && (first < m.log[0].Index || first > max(m.first, m.log[0].Index)) {
		return fmt.Errorf("the log begins at %d, want %d to %d", first, m.log[0].Index, m.first)
	}
	for _, want := range m.log {
		if want.Index < first {
			continue
		}
		var got raft.Log
		if err := j.GetLog(want.Index, &got); err != nil {
			return err
		}
		if got.Index != want.Index || got.Term != want.Term || got.Type != want.Type || !bytes.Equal(got.Data, want.Data) {
			return fmt.Errorf("entry %d: %+v, want %+v", want.Index, got, want)
		}
	}
	term, _ := j.GetUint64([]byte(keyTerm))
	voteTerm, _ := j.GetUint64([]byte(keyVoteTerm))
	vote, _ := j.Get([]byte(keyCandidate))
	if term != m.term || voteTerm != m.voteTerm || string(vote) != m.vote {
		return fmt.Errorf("term %d, vote %q in %d; want %d, %q in %d", term, vote, voteTerm, m.term, m.vote, m.voteTerm)
	}
	return nil
}

// life makes random calls of a journal until one fails. It returns what the journal may hold then.
type life struct {
	rng *rand.Rand
	j   *Journal
	now *image
	// maybe is what it holds if the call under way has got to the disk; several for an append of several entries.
	maybe []*image
}

func (l *life) may(change func(m *image)) *image {
	m := l.now.clone()
	change(m)
	l.maybe = append(l.maybe, m)
	return m
}

// step makes one call.
func (l *life) step() error {
	l.maybe = nil
	done := l.now
	var err error
	switch n := l.rng.IntN(20); {
	case n < 10: // as a leader or a follower
		next := max(l.now.last(), l.now.covered.Index) + 1
		term := l.now.term
		var batch []*raft.Log
		for range 1 + l.rng.IntN(6) {
			data := make([]byte, l.rng.IntN(1<<l.rng.IntN(13)))
			for i := range data {
				data[i] = byte(l.rng.Uint32())
			}
			batch = append(batch, &raft.Log{Index: next + uint64(len(batch)), Term: term, Type: raft.LogCommand, Data: data})
			sofar := slices.Clone(batch)
			done = l.may(func(m *image) {
				m.log = append(m.log, sofar...)
				m.first = max(m.first, m.log[0].Index)
			})
		}
		err = l.j.StoreLogs(batch)
	case n < 12: // a tail that conflicts; entries of a lower term may follow
		if len(l.now.log) < 2 {
			return nil
		}
		low := max(l.now.covered.Index+1, l.now.last()-uint64(l.rng.IntN(12)))
		if low > l.now.last() {
			return nil
		}
		done = l.may(func(m *image) {
			m.log = slices.DeleteFunc(m.log, func(e *raft.Log) bool { return e.Index >= low })
		})
		err = l.j.DeleteRange(low, l.now.last())
	case n < 14: // a snapshot is taken, and the head goes
		if len(l.now.log) < 5 {
			return nil
		}
		at := l.now.log[l.rng.IntN(len(l.now.log)-2)]
		if at.Index <= l.now.covered.Index {
			return nil
		}
		l.now.covered = Covered{at.Index, at.Term}
		l.now.first = at.Index + 1
		l.j.Cover(l.now.covered)
		l.j.Keep(at.Index)
		done = l.now
		if l.rng.IntN(3) == 0 { // or later, because the disk is nearly full
			err = l.j.Trim()
		} else {
			err = l.j.DeleteRange(l.now.log[0].Index, at.Index)
		}
	case n < 15: // a snapshot is installed
		before := l.now.covered
		l.now.covered = Covered{max(l.now.last(), l.now.covered.Index) + uint64(l.rng.IntN(50)), l.now.term}
		goes := true
		if n := len(l.now.log); n > 0 && l.rng.IntN(2) == 0 { // one that is in the log, which stays
			if e := l.now.log[max(0, n-1-l.rng.IntN(20))]; e.Index > before.Index {
				l.now.covered, goes = Covered{e.Index, e.Term}, false
			}
		}
		if n, e := len(l.now.log), l.now.last(); goes && e == l.now.covered.Index && e > 0 { // it is the end of the log, which stays
			l.now.covered.Term, goes = l.now.log[n-1].Term, false
		}
		l.j.Cover(l.now.covered)
		if l.now.first = l.now.covered.Index + 1; goes {
			// Opened behind the crash the log may be dropped too.
			done = l.may(func(m *image) { m.log, m.first = nil, 0 })
		} else {
			l.j.Keep(l.now.covered.Index)
			done = l.now
		}
		if err = l.j.usable(); err == nil && len(l.now.log) > 0 {
			err = l.j.DeleteRange(l.now.log[0].Index, l.now.last())
		}
	case n < 17:
		done = l.may(func(m *image) { m.term += uint64(l.rng.IntN(3)) })
		err = l.j.SetUint64([]byte(keyTerm), done.term)
	default:
		done = l.may(func(m *image) { m.vote, m.voteTerm = fmt.Sprint("c", l.rng.IntN(100)), m.term })
		if err = l.j.SetUint64([]byte(keyVoteTerm), done.voteTerm); err == nil {
			err = l.j.Set([]byte(keyCandidate), []byte(done.vote))
		}
	}
	if err == nil {
		l.now = done
	}
	return err
}

// live makes calls until one fails.
func (l *life) live(steps int) error {
	for range steps {
		if err := l.step(); err != nil {
			return err
		}
		l.j.makers.Wait() // so that a seed always makes the same calls
	}
	l.maybe = nil
	return nil
}

func crashConfig(disk Disk, covered Covered) Config {
	cfg := testConfig("/log")
	cfg.Disk, cfg.SegmentBytes, cfg.Covered, cfg.CacheBytes, cfg.Deadline = disk, 8<<10, covered, 1, -1
	cfg.Fatal = func(error) {}
	return cfg
}

// reborn opens the journal and finds which of the images it is that it holds.
func (l *life) reborn(disk Disk) error {
	var err error
	if l.j, err = Open(crashConfig(disk, l.now.covered)); err != nil {
		return err
	}
	var mistakes error
	for _, m := range append([]*image{l.now}, l.maybe...) {
		m.covered = l.now.covered
		if last, _ := l.j.LastIndex(); m.last() < m.covered.Index || last == 0 && m.last() == m.covered.Index {
			m = m.clone()
			m.log = nil
		}
		wrong := m.matches(l.j)
		if wrong == nil {
			l.now, l.maybe = m, nil
			return nil
		}
		mistakes = errors.Join(mistakes, wrong)
	}
	return mistakes
}

// TestPowerCutAtEveryCallOfTheDisk runs random histories once for each call that changes the disk, cuts the power there, lets any
// sectors and names survive that were not synced, opens, and goes on. Every other time the power fails again while the
// log is being opened.
func TestPowerCutAtEveryCallOfTheDisk(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	runs := 0
	for seed := range seeds {
		for cut := 1; ; cut++ {
			rng := rand.New(rand.NewPCG(seed, 17))
			chance := rand.New(rand.NewPCG(seed, uint64(cut)))
			disk := newMemoryDisk()
			disk.cutAt = cut
			l := &life{rng: rng, now: &image{}}
			fatal := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("seed %d, power cut at call %d: %v", seed, cut, err)
				}
			}
			var err error
			if l.j, err = Open(crashConfig(disk, Covered{})); err == nil {
				if err = l.live(60); err == nil && disk.calls < cut {
					l.j.Close()
					break
				}
				l.j.Close()
			}
			if err != nil && !errors.Is(err, errPower) {
				fatal(err)
			}
			runs++
			after := disk.crash(chance)
			if cut%2 == 0 {
				after.cutAt = 1 + chance.IntN(8)
				if j, err := Open(crashConfig(after, l.now.covered)); err == nil {
					j.Close()
				} else if !errors.Is(err, errPower) {
					fatal(err)
				}
				after = after.crash(chance)
			}
			fatal(l.reborn(after))
			fatal(l.live(10))
			fatal(l.now.matches(l.j))
			l.j.Close()
			fatal(l.reborn(after.restart()))
			fatal(l.now.matches(l.j))
			l.j.Close()
		}
	}
	t.Logf("%d power cuts", runs)
}

// Many lives on one disk: leftovers of all of them lie in its files.
func TestManyLivesOnOneDisk(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 23))
		disk := newMemoryDisk()
		l := &life{rng: rng, now: &image{}}
		for n := range 40 {
			if err := l.reborn(disk); err != nil {
				t.Fatalf("seed %d, life %d: %v", seed, n, err)
			}
			disk.mu.Lock()
			disk.cutAt = disk.calls + 1 + rng.IntN(60)
			disk.mu.Unlock()
			if err := l.live(1 + rng.IntN(60)); err != nil && !errors.Is(err, errPower) {
				t.Fatalf("seed %d, life %d: %v", seed, n, err)
			}
			l.j.Close()
			if rng.IntN(3) == 0 {
				disk = disk.restart()
			} else {
				disk = disk.crash(rng)
			}
		}
	}
}

// A call that fails ends the journal, or changes nothing; whoever opens it afterwards finds what was acknowledged.
func TestEveryCallOfTheDiskFails(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			for nth := 1; ; nth++ {
				disk := newMemoryDisk()
				n := 0
				disk.before = func(op, path string) error {
					if n++; n == nth {
						return fmt.Errorf("%s %s: %w", op, path, cause)
					}
					return nil
				}
				l := &life{rng: rand.New(rand.NewPCG(seed, 29)), now: &image{}}
				var err error
				if l.j, err = Open(crashConfig(disk, Covered{})); err == nil {
					err = l.live(60)
					l.j.Close()
				}
				if err == nil && n < nth {
					break
				}
				if err != nil && !errors.Is(err, cause) && !errors.Is(err, metadata.ErrNoSpace) {
					t.Fatalf("seed %d, call %d: %v", seed, nth, err)
				}
				disk.before = nil
				if err := l.reborn(disk.restart()); err != nil {
					t.Fatalf("seed %d, call %d fails with %v: %v", seed, nth, cause, err)
				}
				if err := l.live(10); err != nil {
					t.Fatalf("seed %d, call %d fails with %v: %v", seed, nth, cause, err)
				}
				l.j.Close()
			}
		}
	}
}

// A disk that says that it has written what it has not loses entries; the member must not go on as if they had never been. The
// watermark tells, if it was written for whatever reason.
func TestLyingDiskIsFoundOut(t *testing.T) {
	found := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 31))
		disk := newMemoryDisk()
		j, err := Open(crashConfig(disk, Covered{}))
		if err != nil {
			t.Fatal(err)
		}
		fill(t, j, 1, 10)
		disk.mu.Lock()
		disk.lies = true
		disk.mu.Unlock()
		fill(t, j, 11, 30)
		if err := j.SetUint64([]byte(keyTerm), 3); err != nil { // syncs the state
			t.Fatal(err)
		}
		j.Close()
		j, err = Open(crashConfig(disk.crash(rng), Covered{}))
		if err != nil {
			if !errors.Is(err, metadata.ErrCorrupt) {
				t.Fatal(err)
			}
			found++
			continue
		}
		holds(t, j, 1, 30) // by chance all of it was there
		j.Close()
	}
	if found < 10 {
		t.Fatalf("%d of 20 were found", found)
	}
}
