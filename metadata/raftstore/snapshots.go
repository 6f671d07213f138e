package raftstore

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// A snapshot is one file, <index>-<term>-<milliseconds>.snap, little endian:
//
//	 0        8        12    16
//	+--------+--------+-----+-----------+--------+
//	| magic  | length | crc | meta JSON | frames |
//	+--------+--------+-----+-----------+--------+
//
// It is written as .tmp, read back, synced and renamed. Two are kept, and the log back to the older one: when the newer
// turns out to be damaged, the older plus the log are the same state.
const (
	snapshotMagic   = "hopsSNP1"
	snapshotSuffix  = ".snap"
	damagedSuffix   = ".damaged"
	keptSnapshots   = 2
	maxSnapshotMeta = 1 << 20
)

// snapshotMeta is what raft must know of a snapshot.
type snapshotMeta struct {
	Index         uint64             `json:"index"`
	Term          uint64             `json:"term"`
	Configuration raft.Configuration `json:"configuration"`
	ConfigIndex   uint64             `json:"configurationIndex"`
}

// stored is one snapshot on disk.
type stored struct {
	id   string
	meta snapshotMeta
	// state is the state machine's index. It may be below meta.Index: entries of raft itself lie between.
	state uint64
	// offset is where the frames begin, size how long they are.
	offset, size int64
	// verified: all frames have been read and found good since the process started.
	verified bool
}

// snapshots is the raft.SnapshotStore of a group.
type snapshots struct {
	dir string
	log *slog.Logger
	// changed is called after a snapshot was added, with what is there, newest first; lost after one was set aside.
	changed func([]stored)
	lost    func()
	// room, if not nil, is asked while a snapshot is written whether there is space to go on.
	room func(int64) error

	mu   sync.Mutex
	list []stored // newest first
}

// openSnapshots removes what a crash left behind and lists the rest. A file whose head cannot be read is set aside.
func openSnapshots(dir string, log *slog.Logger) (*snapshots, error) {
	s := &snapshots{dir: dir, log: log}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
		if strings.HasSuffix(n.Name(), ".tmp") {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
		}
		if !strings.HasSuffix(n.Name(), snapshotSuffix) {
			continue
		}
		found, err := readSnapshotHead(path)
		if errors.Is(err, metadata.ErrCorrupt) {
			if err := s.setAside(n.Name(), err); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("snapshot %s: %w", path, err)
		}
		s.list = append(s.list, found)
	}
	s.sortLocked()
	return s, nil
}

func (s *snapshots) sortLocked() {
	slices.SortFunc(s.list, func(a, b stored) int {
		if a.meta.Index != b.meta.Index {
			if a.meta.Index > b.meta.Index {
				return -1
			}
			return 1
		}
		return strings.Compare(b.id, a.id)
	})
}

func readSnapshotHead(path string) (stored, error) {
	f, err := os.Open(path)
	if err != nil {
		return stored{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return stored{}, err
	}
	found := stored{id: strings.TrimSuffix(filepath.Base(path), snapshotSuffix)}
	var head [16]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return stored{}, cutShort(err)
	}
	size := binary.LittleEndian.Uint32(head[8:])
	if string(head[:8]) != snapshotMagic || size > maxSnapshotMeta {
		return stored{}, metadata.Errorf(metadata.ErrCorrupt, "not a snapshot")
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(f, text); err != nil {
		return stored{}, cutShort(err)
	}
	if crc32.Checksum(text, castagnoli) != binary.LittleEndian.Uint32(head[12:]) {
		return stored{}, metadata.Errorf(metadata.ErrCorrupt, "the description does not match its checksum")
	}
	if err := json.Unmarshal(text, &found.meta); err != nil {
		return stored{}, metadata.Errorf(metadata.ErrCorrupt, "the description cannot be read: %v", err)
	}
	found.offset = 16 + int64(size)
	found.size = info.Size() - found.offset
	frames, err := newFrameReader(f)
	if err != nil {
		return stored{}, err
	}
	found.state = frames.state
	return found, nil
}

// setAside renames a damaged snapshot so that nobody takes it for one; a person may want to look at it.
func (s *snapshots) setAside(name string, cause error) error {
	s.log.Warn("setting damaged snapshot aside", "snapshot", filepath.Join(s.dir, name), "err", cause)
	if err := os.Rename(filepath.Join(s.dir, name), filepath.Join(s.dir, name+damagedSuffix)); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// all returns what is there, newest first.
func (s *snapshots) all() []stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// verify reads a snapshot's frames once per process. A damaged one is set aside and metadata.ErrCorrupt returned.
func (s *snapshots) verify(id string) error {
	s.mu.Lock()
	i := slices.IndexFunc(s.list, func(c stored) bool { return c.id == id })
	if i < 0 {
		s.mu.Unlock()
		return fmt.Errorf("snapshot %s: %w", id, os.ErrNotExist)
	}
	found := s.list[i]
	s.mu.Unlock()
	if found.verified {
		return nil
	}
	err := func() error {
		f, err := os.Open(s.path(id))
		if err != nil {
			return err
		}
		defer f.Close()
		return verifyFrames(io.NewSectionReader(f, found.offset, found.size))
	}()
	s.mu.Lock()
	if i = slices.IndexFunc(s.list, func(c stored) bool { return c.id == id }); i >= 0 {
		if err == nil {
			s.list[i].verified = true
		} else if errors.Is(err, metadata.ErrCorrupt) {
			s.list = slices.Delete(s.list, i, i+1)
		}
	}
	s.mu.Unlock()
	if errors.Is(err, metadata.ErrCorrupt) {
		err = fmt.Errorf("snapshot %s: %w", s.path(id), err)
		err = errors.Join(err, s.setAside(id+snapshotSuffix, err))
		if s.lost != nil {
			s.lost()
		}
		return err
	}
	return err
}

func (s *snapshots) path(id string) string { return filepath.Join(s.dir, id+snapshotSuffix) }

// List implements raft.SnapshotStore.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	var metas []*raft.SnapshotMeta
	for _, c := range s.all() {
		metas = append(metas, c.raftMeta())
	}
	return metas, nil
}

func (c stored) raftMeta() *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: 1, ID: c.id, Index: c.meta.Index, Term: c.meta.Term,
		Configuration: c.meta.Configuration, ConfigurationIndex: c.meta.ConfigIndex, Size: c.size,
	}
}

// Open implements raft.SnapshotStore: the frames, all of which have been verified.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if err := s.verify(id); err != nil {
		return nil, nil, err
	}
	for _, c := range s.all() {
		if c.id != id {
			continue
		}
		f, err := os.Open(s.path(id))
		if err != nil {
			return nil, nil, err
		}
		return c.raftMeta(), &sectionCloser{io.NewSectionReader(f, c.offset, c.size), f}, nil
	}
	return nil, nil, fmt.Errorf("snapshot %s: %w", id, os.ErrNotExist)
}

type sectionCloser struct {
	*io.SectionReader
	f *os.File
}

func (s *sectionCloser) Close() error { return s.f.Close() }

// Create implements raft.SnapshotStore. What is written to the sink are frames, from a frameWriter here or on the leader.
func (s *snapshots) Create(_ raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	meta := snapshotMeta{Index: index, Term: term, Configuration: c, ConfigIndex: configIndex}
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("%020d-%d-%d", index, term, time.Now().UnixMilli())
	f, err := os.OpenFile(s.path(id)+".tmp", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	sink := &snapshotSink{
		store: s, f: f, w: bufio.NewWriterSize(f, 256<<10),
		stored: stored{id: id, meta: meta, offset: 16 + int64(len(text)), verified: true},
	}
	head := append([]byte(snapshotMagic), 0, 0, 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(head[8:], uint32(len(text)))
	binary.LittleEndian.PutUint32(head[12:], crc32.Checksum(text, castagnoli))
	if _, err := sink.w.Write(append(head, text...)); err != nil {
		return nil, errors.Join(err, sink.Cancel())
	}
	return sink, nil
}

// snapshotSink is a snapshot being written.
type snapshotSink struct {
	store *snapshots
	f     *os.File
	w     *bufio.Writer
	stored
	// unasked is what was written since room was asked.
	unasked int64
	done    bool
}

// askEvery is how much of a snapshot is written between two looks at the disk.
const askEvery = 4 << 20

func (k *snapshotSink) ID() string { return k.id }

// Write implements raft.SnapshotSink. It fails with metadata.ErrNoSpace before the disk is full.
func (k *snapshotSink) Write(p []byte) (int, error) {
	if k.unasked += int64(len(p)); k.unasked >= askEvery && k.store.room != nil {
		k.unasked = 0
		if err := k.store.room(0); err != nil {
			return 0, fmt.Errorf("snapshot at %d: %w", k.meta.Index, err)
		}
	}
	n, err := k.w.Write(p)
	k.size += int64(n)
	return n, err
}

// Cancel implements raft.SnapshotSink.
func (k *snapshotSink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	return errors.Join(k.f.Close(), os.Remove(k.f.Name()))
}

// Close makes the snapshot durable after it has been read back. Older ones beyond the kept number go.
func (k *snapshotSink) Close() error {
	if k.done {
		return nil
	}
	err := k.w.Flush()
	if err == nil {
		err = k.f.Sync()
	}
	if err == nil {
		var frames *frameReader
		if frames, err = newFrameReader(io.NewSectionReader(k.f, k.offset, k.size)); err == nil {
			k.state = frames.state
			_, err = io.Copy(io.Discard, frames)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("snapshot at %d: %w", k.meta.Index, err), k.Cancel())
	}
	k.done = true
	if err := k.f.Close(); err != nil {
		return err
	}
	if err := os.Rename(k.f.Name(), k.store.path(k.id)); err != nil {
		return err
	}
	if err := syncDir(k.store.dir); err != nil {
		return err
	}
	return k.store.add(k.stored)
}

func (s *snapshots) add(c stored) error {
	s.mu.Lock()
	s.list = append(s.list, c)
	s.sortLocked()
	var drop []stored
	if len(s.list) > keptSnapshots {
		drop = slices.Clone(s.list[keptSnapshots:])
		s.list = s.list[:keptSnapshots]
	}
	now := slices.Clone(s.list)
	s.mu.Unlock()
	for _, d := range drop {
		if err := os.Remove(s.path(d.id)); err != nil {
			s.log.Warn("cannot remove old snapshot", "snapshot", s.path(d.id), "err", err)
		}
	}
	if s.changed != nil {
		s.changed(now)
	}
	return nil
}
