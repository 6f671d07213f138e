package server

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
	"github.com/gohops/hops/metadata/smallfile"
)

// Of a state that was lost twice, all bodies are looked through that were here; one that cannot be read keeps no other one back, and no file is deleted meanwhile.
func TestFormerBodiesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	lead := c.raised()
	c.datanode("dn1")
	eventually(t, "safe mode is over", func() bool { return lead.SafeMode() == "" })
	kept := map[string][]byte{}
	blocks := map[string]metadata.Block{}
	store := func(path string, by byte) {
		t.Helper()
		data := noise(5000)
		for i := range data {
			data[i] ^= by
		}
		if _, err := lead.store(t, storing(path), data); err != nil {
			t.Fatal(err)
		}
		kept[path], blocks[path] = data, lead.locate(t, path).Blocks[0].Block
	}
	store("/x", 0)
	store("/y", 0x55)
	c.level(t, c.servers())
	c.crowd(t, "crowd")
	lead = c.leader()
	at := 1 - slices.Index(c.nodes, lead)
	sick := c.nodes[at]
	var unreadable atomic.Bool
	unreadable.Store(true)
	x := blocks["/x"].ID
	c.change = func(conf *Config) {
		conf.readFormer = func(id metadata.BlockID, get func(metadata.BlockID) ([]byte, error)) ([]byte, error) {
			if id == x && unreadable.Load() {
				return nil, syscall.EIO
			}
			return get(id)
		}
	}
	lose := func(gaps uint64, paths ...string) {
		t.Helper()
		eventually(t, "both have it", func() bool { return sick.ns.AppliedIndex() >= lead.ns.AppliedIndex() })
		must(t, sick.bodies.Sync())
		for _, path := range paths {
			lead.damage(t, kept[path])
			lead.finds(t, blocks[path])
		}
		must(t, sick.Server.store.Condemn())
		sick.stop()
		c.start(at)
		c.await(at)
		sick = c.nodes[at]
		c.level(t, c.servers())
		if n := sick.ns.BodyGaps(); uint64(n) != gaps {
			t.Fatalf("%d bodies did not come: this shows nothing", n)
		}
	}
	lose(2, "/x", "/y")
	eventually(t, "what can be read is taken", func() bool { return sick.bodies.Has(blocks["/y"].ID) })
	eventually(t, "it is noted that the state has come", func() bool { _, err := os.Lstat(sick.cameFile()); return err == nil })
	if !sick.formerPending.Load() {
		t.Fatal("nothing is to be looked through any more")
	}
	for range 2 {
		lead = c.leader()
		code, text := lead.fsck(t, lead.config.Door.Daemon(), "path", "/x", "delete", "1")
		if code != http.StatusOK || !strings.Contains(text, errUnanswered.Error()) {
			t.Errorf("%d %s", code, text)
		}
		if st, err := lead.ns.Stat(lead.caller(), "/x"); err != nil || st == nil {
			t.Fatal("the file is gone", err)
		}
		if lead == sick {
			break
		}
		must(t, lead.group.TransferLeadership(t.Context(), sick.config.ID))
		eventually(t, "the other one leads", func() bool { return sick.Active() && sick.SafeMode() == "" })
	}
	if lead != sick {
		t.Error("the one with former bodies was not asked")
	}
	other := c.nodes[1-at]
	must(t, sick.group.TransferLeadership(t.Context(), other.config.ID))
	eventually(t, "the first one leads again", func() bool { return other.Active() && other.SafeMode() == "" })
	lead = other
	if got, err := lead.Body(t.Context(), blocks["/y"].ID, 0); err != nil || !bytes.Equal(got, kept["/y"]) {
		t.Fatal(err)
	}
	store("/z", 0xaa)
	c.crowd(t, "more")
	unreadable.Store(false)
	lose(2, "/z") // and x
	eventually(t, "the former bodies have been looked through", func() bool {
		dirs, err := sick.formers()
		return err == nil && len(dirs) == 0 && !sick.formerPending.Load()
	})
	eventually(t, "nothing is left of it", func() bool { _, err := os.Lstat(sick.cameFile()); return errors.Is(err, os.ErrNotExist) })
	for path, data := range kept {
		if got, err := sick.ns.FindBody(blocks[path].ID, 0); err != nil || got == nil {
			t.Error(path, got, err)
		} else if b, err := sick.ns.ReadBody(*got); err != nil || !bytes.Equal(b, data) {
			t.Error(path, err)
		}
	}
}

// Former bodies that can never be read are given up after a time.
func TestFormerBodiesAreGivenUp(t *testing.T) {
	t.Parallel()
	lead := newCluster(t, 1, nil).raised()
	dir := lead.formerDir()
	must(t, os.WriteFile(dir, nil, 0o600)) // which is no directory
	lead.formerPending.Store(true)
	if wait := lead.lookThrough(t.Context(), []string{dir}, false); wait != formerRest || !lead.formerPending.Load() {
		t.Error("they are given up at once, or never tried again:", wait)
	}
	lead.lookThrough(t.Context(), []string{dir}, true)
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) || lead.formerPending.Load() {
		t.Error("they stay", err)
	}
}

// onceBad is the operating system's disk, which cannot read at one place, once for each time that bad is set.
type onceBad struct {
	journal.FileSystem
	bad *atomic.Bool
}

func (d onceBad) Open(path string) (journal.File, error) {
	f, err := d.FileSystem.Open(path)
	return onceBadFile{f, d.bad}, err
}

type onceBadFile struct {
	journal.File
	bad *atomic.Bool
}

func (f onceBadFile) ReadAt(b []byte, at int64) (int, error) {
	if at == 0 && f.bad.CompareAndSwap(true, false) {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(b, at)
}

// formerOf makes a directory of former bodies, with a segment for each of the files, of which the namenode's own bodies are damaged then. Segments that are not sealed have no index.
func (m *member) formerOf(t *testing.T, sealed bool, paths ...string) (dir string, blocks []metadata.Block) {
	t.Helper()
	dir = m.formerDir()
	must(t, os.Mkdir(dir, 0o700))
	for i, path := range paths {
		data := noise(5000)
		data[0] = byte(i)
		if _, err := m.store(t, storing(path), data); err != nil {
			t.Fatal(err)
		}
		b := m.locate(t, path).Blocks[0].Block
		s, err := smallfile.Open(smallfile.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Live: func(ids []metadata.BlockID) ([]bool, error) { return nil, errors.New("nobody") }})
		must(t, err)
		s.Put(b.ID, data)
		must(t, s.Sync())
		if !sealed {
			s.Abandon()
		}
		must(t, s.Close())
		m.damage(t, data)
		m.finds(t, b)
		blocks = append(blocks, b)
	}
	return dir, blocks
}

// A segment of former bodies that cannot be opened keeps the others' from nobody, and nothing is removed while it may be readable again.
func TestFormerSegmentsThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	lead := newCluster(t, 1, nil).raised()
	dir, blocks := lead.formerOf(t, true, "/x", "/y")
	segments, err := filepath.Glob(filepath.Join(dir, "*.bodies"))
	if err != nil || len(segments) != 2 {
		t.Fatal(segments, err)
	}
	aside := filepath.Join(t.TempDir(), "aside")
	must(t, os.Rename(segments[0], aside))
	must(t, os.Mkdir(segments[0], 0o700))
	taken, _, err := lead.takeFormer(t.Context(), dir)
	if taken != 1 || !errors.As(err, new(*unreadFormer)) || !strings.Contains(err.Error(), segments[0]) {
		t.Error(taken, err)
	}
	if !lead.bodies.Has(blocks[1].ID) || lead.bodies.Has(blocks[0].ID) {
		t.Error("what can be read is not here")
	}
	must(t, os.Remove(segments[0]))
	must(t, os.Rename(aside, segments[0]))
	if taken, _, err := lead.takeFormer(t.Context(), dir); taken != 1 || err != nil || !lead.bodies.Has(blocks[0].ID) {
		t.Error(taken, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("it stays:", err)
	}
}

// While it cannot be noted that the state has come nothing is removed: if the state were lost again, what is here would count as what came in part, and go.
func TestFormerBodiesStayUntilItIsNotedThatTheStateHasCome(t *testing.T) {
	t.Parallel()
	lead := newCluster(t, 1, nil).raised()
	dir, blocks := lead.formerOf(t, true, "/x")
	s := &Server{config: lead.config, ns: lead.ns, bodies: lead.bodies, log: lead.log}
	s.config.Dir = filepath.Join(t.TempDir(), "not there")
	s.formerPending.Store(true)
	if wait := s.lookThrough(t.Context(), []string{dir}, true); wait != formerRest || !s.formerPending.Load() {
		t.Error("it is gone on after", wait)
	}
	if _, err := os.Lstat(dir); err != nil {
		t.Error(err)
	}
	must(t, os.Mkdir(s.config.Dir, 0o700))
	if wait := s.lookThrough(t.Context(), []string{dir}, false); wait != 0 || s.formerPending.Load() || !s.bodies.Has(blocks[0].ID) {
		t.Error("they are not taken then, but after", wait)
	}
}

// A process without descriptors has not tried to read former bodies: they are not given up for that.
func TestFormerBodiesOfAProcessWithoutDescriptors(t *testing.T) {
	t.Parallel()
	var none atomic.Bool
	lead := newCluster(t, 1, func(conf *Config) {
		conf.readFormer = func(id metadata.BlockID, get func(metadata.BlockID) ([]byte, error)) ([]byte, error) {
			if none.Load() {
				return nil, syscall.EMFILE
			}
			return get(id)
		}
	}).raised()
	dir, blocks := lead.formerOf(t, true, "/x")
	none.Store(true)
	lead.formerPending.Store(true)
	if wait := lead.lookThrough(t.Context(), []string{dir}, true); wait != formerRest || !lead.formerPending.Load() {
		t.Error("they are given up, and looked for after", wait)
	}
	none.Store(false)
	if lead.lookThrough(t.Context(), []string{dir}, true); !lead.bodies.Has(blocks[0].ID) || lead.formerPending.Load() {
		t.Error("they are not taken")
	}
}

// What a disk does not give for a moment of a segment without an index is taken the next time.
func TestFormerBodiesOnADiskThatFailsForAMoment(t *testing.T) {
	t.Parallel()
	var bad atomic.Bool
	c := newCluster(t, 1, func(conf *Config) { conf.formerDisk = onceBad{bad: &bad} })
	lead := c.raised()
	dir, blocks := lead.formerOf(t, false, "/x")
	bad.Store(true)
	taken, _, err := lead.takeFormer(t.Context(), dir)
	if taken != 0 || !errors.As(err, new(*unreadFormer)) || !errors.Is(err, syscall.EIO) || bad.Load() {
		t.Error(taken, err)
	}
	if taken, _, err := lead.takeFormer(t.Context(), dir); taken != 1 || err != nil || !lead.bodies.Has(blocks[0].ID) {
		t.Error(taken, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("it stays:", err)
	}
}

// Where more is taken than may wait for the disk, it is waited for.
func TestGivingABodyWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	store, err := smallfile.Open(smallfile.Config{
		Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Live: func(ids []metadata.BlockID) ([]bool, error) { return make([]bool, len(ids)), nil },
		Room: func() error { <-gate; return nil },
	})
	must(t, err)
	b := &bodyStore{Store: store}
	defer b.Close()
	data, id := smallBytes(metadata.MaxBody, 1), metadata.BlockID(1)
	for ; b.Offer(id, data); id++ {
	}
	full := errors.New("full")
	if err := b.give(t.Context(), id, data, func() error { return full }); !errors.Is(err, full) {
		t.Error(err)
	}
	done, waits := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		done <- b.give(t.Context(), id, data, func() error {
			select {
			case waits <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	<-waits
	close(gate)
	if err := <-done; err != nil || !b.Has(id) {
		t.Error(err)
	}
}
