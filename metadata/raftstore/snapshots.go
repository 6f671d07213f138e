package raftstore

import (
	"bufio"
	"bytes"
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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// A snapshot is one file, <index>-<term>-<milliseconds>.snap, little endian:
//
//	 0        8        12    16
//	+--------+--------+-----+-----------+-----------+--------+
//	| magic  | length | crc | meta JSON | reference | frames |
//	+--------+--------+-----+-----------+-----------+--------+
//
// The snapshot of a Versioned state machine is a reference; with frames behind it, it is a copy. That of another one is frames.
//
// It is written as .tmp, read back, synced and renamed. Two are kept, and the log back to the older one: when the newer
// turns out to be damaged, the older plus the log are the same state. What a leader has sent is .pulled until the state machine has
// taken over the version.
const (
	snapshotMagic   = "hopsSNP2"
	snapshotSuffix  = ".snap"
	pulledSuffix    = ".pulled"
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
	// ref is nil when the snapshot holds the state itself.
	ref *Reference
	// hollow: the state machine does not have the version, though what came after it.
	hollow bool
	// offset is where the frames begin, size how long they are: 0 for a reference alone.
	offset, size int64
	// verified: all frames have been read and found good since the process started.
	verified bool
}

// whole: a state machine can be restored from the file alone.
func (c stored) whole() bool { return c.size > 0 }

// copied: it is a copy of a version.
func (c stored) copied() bool { return c.ref != nil && c.whole() }

// made is when the snapshot was.
func (c stored) made() time.Time {
	ms, _ := strconv.ParseInt(c.id[strings.LastIndexByte(c.id, '-')+1:], 10, 64)
	return time.UnixMilli(ms)
}

// snapshots is the raft.SnapshotStore of a group.
type snapshots struct {
	dir string
	log *slog.Logger
	// versioned: they are references. wantsCopy reports whether a copy stays although two newer snapshots came.
	versioned bool
	wantsCopy func(newest, s stored) bool
	// changed is called after a snapshot was added, lost after one was set aside.
	changed func()
	lost    func()
	// room, if not nil, is asked while a snapshot is written whether there is space to go on.
	room func(int64) error

	mu   sync.Mutex
	list []stored // newest first
	// pulled is one that a leader has sent; nil: there is none that the state machine has not taken over.
	pulled *stored
	// named is the time in the name that was given last, in milliseconds since 1970.
	named int64
}

// openSnapshots removes what a crash left behind and lists the rest. A file whose head cannot be read is set aside. What a leader has
// sent counts if the state machine is at the index of state, which it came to by taking it over.
func openSnapshots(dir string, state uint64, log *slog.Logger) (*snapshots, error) {
	s := &snapshots{dir: dir, log: log, wantsCopy: func(_, _ stored) bool { return true }}
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
		if strings.HasSuffix(n.Name(), pulledSuffix) {
			if err := settlePulled(path, state); err != nil {
				return nil, err
			}
		}
	}
	if names, err = os.ReadDir(dir); err != nil {
		return nil, err
	}
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
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

// settlePulled decides what became of a snapshot that the state machine was to take over when the process ended.
func settlePulled(path string, state uint64) error {
	found, err := readSnapshotHead(path)
	if err == nil && found.state == state {
		if err := os.Rename(path, strings.TrimSuffix(path, pulledSuffix)+snapshotSuffix); err != nil {
			return err
		}
	} else if err := os.Remove(path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
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
	found := stored{id: strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), snapshotSuffix), pulledSuffix)}
	var head [16]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return stored{}, cutShort(err)
	}
	size := binary.LittleEndian.Uint32(head[8:])
	if bytes.HasPrefix(head[:], []byte("hopsSNP")) && string(head[:8]) != snapshotMagic {
		return stored{}, metadata.Errorf(metadata.ErrUnsupported, "a snapshot of format %q, this program reads and writes %s: start the version that wrote it", head[:8], snapshotMagic)
	}
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
	ref := make([]byte, referenceSize)
	n, err := io.ReadFull(f, ref)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return stored{}, err
	}
	if bytes.HasPrefix(ref[:n], []byte(referenceMagic)) {
		r, err := decodeReference(ref[:n])
		if err != nil {
			return stored{}, err
		}
		found.ref, found.state = &r, r.Index
		found.offset += referenceSize
	}
	if found.size = info.Size() - found.offset; found.size == 0 && found.ref != nil {
		return found, nil
	}
	frames, err := newFrameReader(io.NewSectionReader(f, found.offset, found.size))
	if err != nil {
		return stored{}, err
	}
	if found.ref != nil && frames.state != found.state {
		return stored{}, metadata.Errorf(metadata.ErrCorrupt, "a copy of the state at %d under a reference to %d", frames.state, found.state)
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

// reach is the last entry of any kind that a state of an index contains: a snapshot of it, or of one before, may end in entries of raft alone.
func (s *snapshots) reach(state uint64) uint64 {
	reach := state
	for _, c := range s.all() {
		if c.state <= state {
			reach = max(reach, c.meta.Index)
		}
	}
	return reach
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
	if found.verified || !found.whole() {
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
	size := c.size
	if c.ref != nil {
		size = referenceSize
	}
	return &raft.SnapshotMeta{
		Version: 1, ID: c.id, Index: c.meta.Index, Term: c.meta.Term,
		Configuration: c.meta.Configuration, ConfigurationIndex: c.meta.ConfigIndex, Size: size,
	}
}

// Open implements raft.SnapshotStore: the reference, or else the frames.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	all := s.all()
	s.mu.Lock()
	if s.pulled != nil {
		all = append(all, *s.pulled)
	}
	s.mu.Unlock()
	for _, c := range all {
		if c.id != id || c.ref == nil {
			continue
		}
		if c.hollow {
			if s.lost != nil {
				s.lost()
			}
			return nil, nil, fmt.Errorf("snapshot %s: the version that it refers to is gone; another one is taken", id)
		}
		return c.raftMeta(), io.NopCloser(bytes.NewReader(c.ref.encode())), nil
	}
	return s.openFrames(id)
}

// openFrames opens the frames of a snapshot, all of which have been verified.
func (s *snapshots) openFrames(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
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

// Create implements raft.SnapshotStore. What is written to the sink are frames, from a frameWriter here or on the leader, or a reference
// and then perhaps frames.
func (s *snapshots) Create(_ raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	meta := snapshotMeta{Index: index, Term: term, Configuration: c, ConfigIndex: configIndex}
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	id := s.name(index, term)
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

// name is an id that no other snapshot has, nor one that is being written beside: a copy, or one of raft's, of the same entry.
func (s *snapshots) name(index, term uint64) (id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for named := true; named; named = slices.ContainsFunc(s.list, func(c stored) bool { return c.id == id }) {
		s.named = max(s.named+1, time.Now().UnixMilli())
		id = fmt.Sprintf("%020d-%d-%d", index, term, s.named)
	}
	return id
}

// snapshotSink is a snapshot being written.
type snapshotSink struct {
	store *snapshots
	f     *os.File
	w     *bufio.Writer
	stored
	// own: the version that it refers to is this member's.
	own bool
	// sent is what has come of the reference that a leader sends.
	sent []byte
	// unasked is what was written since room was asked.
	unasked int64
	done    bool
}

// askEvery is how much of a snapshot is written between two looks at the disk.
const askEvery = 4 << 20

func (k *snapshotSink) ID() string { return k.id }

// Write implements raft.SnapshotSink. It fails with metadata.ErrNoSpace before the disk is full.
func (k *snapshotSink) Write(p []byte) (int, error) {
	if k.store.versioned && !k.own {
		if k.sent = append(k.sent, p...); len(k.sent) > referenceSize {
			return 0, metadata.Errorf(metadata.ErrCorrupt, "snapshot at %d: there is more than a reference", k.meta.Index)
		}
		return len(p), nil
	}
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

// refer begins a snapshot of this member's own with a reference.
func (k *snapshotSink) refer(ref Reference) error {
	k.own = true
	return k.reference(ref)
}

func (k *snapshotSink) reference(ref Reference) error {
	k.ref, k.state = &ref, ref.Index
	k.offset += referenceSize
	_, err := k.w.Write(ref.encode())
	return err
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
	sent := k.store.versioned && !k.own
	err := error(nil)
	if sent {
		var ref Reference
		if ref, err = decodeReference(k.sent); err == nil {
			err = k.reference(ref)
		}
	}
	if err == nil {
		err = k.w.Flush()
	}
	if err == nil {
		err = k.f.Sync()
	}
	if err == nil && (k.ref == nil || k.size > 0) {
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
	path := k.store.path(k.id)
	if sent {
		path = k.store.pulledPath(k.id)
	}
	if err := os.Rename(k.f.Name(), path); err != nil {
		return err
	}
	if err := syncDir(k.store.dir); err != nil {
		return err
	}
	if sent {
		k.store.mu.Lock()
		k.store.pulled = &k.stored
		k.store.mu.Unlock()
		return nil
	}
	k.store.add(k.stored)
	return nil
}

func (s *snapshots) pulledPath(id string) string { return filepath.Join(s.dir, id+pulledSuffix) }

// promote makes what a leader has sent a snapshot like others, in place of all others: the state machine has taken over its version.
func (s *snapshots) promote(hollow bool) error {
	s.mu.Lock()
	p := s.pulled
	s.pulled = nil
	s.mu.Unlock()
	if p == nil {
		return errors.New("no snapshot was sent")
	}
	if err := os.Rename(s.pulledPath(p.id), s.path(p.id)); err != nil {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	p.hollow = hollow
	s.mu.Lock()
	drop := s.list
	s.list = []stored{*p}
	s.mu.Unlock()
	s.remove(drop)
	s.tell()
	return nil
}

// refuse removes what a leader has sent.
func (s *snapshots) refuse() {
	s.mu.Lock()
	p := s.pulled
	s.pulled = nil
	s.mu.Unlock()
	if p != nil {
		if err := os.Remove(s.pulledPath(p.id)); err != nil {
			s.log.Warn("cannot remove a snapshot that was not taken over", "snapshot", p.id, "err", err)
		}
	}
}

func (s *snapshots) remove(drop []stored) {
	for _, d := range drop {
		if err := os.Remove(s.path(d.id)); err != nil {
			s.log.Warn("cannot remove old snapshot", "snapshot", s.path(d.id), "err", err)
		}
	}
}

// tell says that there is another one.
func (s *snapshots) tell() {
	if s.changed != nil {
		s.changed()
	}
}

// drop takes a snapshot that leads nowhere off the list.
func (s *snapshots) drop(id string, cause error) error {
	s.mu.Lock()
	s.list = slices.DeleteFunc(s.list, func(c stored) bool { return c.id == id })
	s.mu.Unlock()
	return s.setAside(id+snapshotSuffix, cause)
}

// emptied notes that the version which a snapshot refers to is gone.
func (s *snapshots) emptied(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		if s.list[i].id == id {
			s.list[i].hollow = true
		}
	}
}

// add lists a snapshot. A copy takes the place of the reference that it is a copy of. Two snapshots stay, and the newest copy where it is
// wanted.
func (s *snapshots) add(c stored) {
	s.mu.Lock()
	var drop []stored
	if c.copied() {
		s.list = slices.DeleteFunc(s.list, func(old stored) bool {
			replaced := old.ref != nil && !old.whole() && old.meta.Index == c.meta.Index && old.ref.same(*c.ref)
			if replaced {
				drop = append(drop, old)
			}
			return replaced
		})
	}
	s.list = append(s.list, c)
	s.sortLocked()
	var stay []stored
	copied := false
	for i, c := range s.list {
		if i < keptSnapshots || c.copied() && !copied && s.wantsCopy(s.list[0], c) {
			stay = append(stay, c)
			copied = copied || c.copied()
		} else {
			drop = append(drop, c)
		}
	}
	s.list = stay
	s.mu.Unlock()
	s.remove(drop)
	s.tell()
}
