package blockstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// load finds the replicas of a volume and repairs what a crash left: files without a partner and temporary replicas are
// removed, open replicas become RWR.
func (s *Store) load(v *volume) error {
	began := time.Now()
	root := filepath.Join(v.path, blocksDir)
	if err := mkdirAll(v.fs, root); err != nil {
		return err
	}
	top, err := subdirsOf(v.fs, root)
	if err != nil {
		return err
	}
	// What is here may have been made by a process that was killed before it was durable, and what is put into it takes it to be.
	for _, dir := range append([]string{v.path, root}, top...) {
		if err := v.fs.SyncDir(dir); err != nil {
			return err
		}
	}
	for _, a := range top {
		inner, err := subdirsOf(v.fs, a)
		if err != nil {
			return err
		}
		for _, dir := range inner {
			v.dirs[dir] = true
			if err := s.loadDir(v, dir); err != nil {
				return err
			}
		}
	}
	v.trash.sort()
	packs, err := s.loadPacks(v)
	if err != nil {
		return err
	}
	v.clearIndex(packs)
	x := &v.index
	took := time.Since(began)
	x.took.Store(int64(took))
	s.log.Info("volume read", "volume", v.id.Storage, "path", v.path, "replicas", v.replicas.Load(), "indexed", x.taken.Load(), "scanned", x.scanned.Load(), "took", took)
	return nil
}

func subdirsOf(fsys vfs.FS, dir string) ([]string, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.Dir {
			out = append(out, filepath.Join(dir, e.Name))
		}
	}
	return out, nil
}

// found is what a directory holds of one block.
type found struct {
	data bool
	sums []sumsFile
}

// sumsFile is what the name of a checksum file says; length only where suffix is sufUnsynced.
type sumsFile struct {
	gen    metadata.Generation
	suffix suffix
	length int64
}

// loadDir takes in one directory, from its index if that is of what is there.
func (s *Store) loadDir(v *volume, dir string) error {
	if err := v.err(); err != nil { // given up meanwhile
		return err
	}
	if l := v.recall(dirPart(dir), nil); l != nil {
		var others []vfs.Entry
		for _, name := range l.other {
			base, isDir := strings.CutSuffix(name, "/")
			others = append(others, vfs.Entry{Name: base, Dir: isDir})
		}
		if err := s.loadNames(v, dir, others); err != nil {
			return err
		}
		for _, e := range s.enterAllResting(v, v.at, l.final) {
			if err := s.admitResting(v, nil, metadata.Block{ID: e.id, Generation: e.gen, Length: e.length}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := v.fs.SyncDir(dir); err != nil { // the names that are found are taken to be durable
		return err
	}
	entries, err := v.fs.ReadDir(dir)
	if err != nil {
		return err
	}
	return s.loadNames(v, dir, entries)
}

// loadNames takes in files of a directory. Unknown names are left alone.
func (s *Store) loadNames(v *volume, dir string, entries []vfs.Entry) error {
	blocks := map[metadata.BlockID]*found{}
	for _, e := range entries {
		if l, ext, ok := parseLost(e.Name); ok && !e.Dir && v.dirOf(l.id) == dir {
			if err := s.loadLost(v, l, ext); err != nil {
				return err
			}
			continue
		}
		if isMoving(e.Name) && !e.Dir { // the replica is where it was
			if err := removeFile(v.fs, filepath.Join(dir, e.Name)); err != nil {
				return err
			}
			continue
		}
		id, sums, ok := parseName(e.Name)
		if !ok || e.Dir || v.dirOf(id) != dir {
			s.log.Warn("foreign file among the blocks", "path", filepath.Join(dir, e.Name))
			continue
		}
		f := blocks[id]
		if f == nil {
			f = &found{}
			blocks[id] = f
		}
		if sums.suffix == 0 {
			f.data = true
		} else {
			f.sums = append(f.sums, sums)
		}
	}
	for id, f := range blocks {
		if err := s.loadBlock(v, id, f); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) loadBlock(v *volume, id metadata.BlockID, f *found) error {
	var best sumsFile
	for _, c := range f.sums {
		if c.suffix != sufTmp && (c.gen > best.gen || c.gen == best.gen && c.suffix > best.suffix) {
			best = c
		}
	}
	keep := f.data && best.suffix != 0
	for _, c := range f.sums {
		if !keep || c != best {
			if err := removeFile(v.fs, (&replica{vol: v, id: id, gen: c.gen, suffix: c.suffix, length: c.length}).sumsPath()); err != nil {
				return err
			}
		}
	}
	if !keep {
		return removeFile(v.fs, v.dataPath(id))
	}
	r := &replica{vol: v, id: id, gen: best.gen, suffix: best.suffix, length: best.length, state: datanode.Finalized}
	var err error
	switch best.suffix {
	case sufRBW:
		r.state = datanode.RWR
		if r.length, err = s.salvage(v, r); isUnread(err) {
			s.log.Error("open replica ends where it cannot be read", "block", r.blockLocked().String(), "volume", v.id.Storage, "err", err)
			err = nil
		}
	case sufUnsynced:
		err = s.judge(v, r)
	default:
		err = s.measure(v, r)
	}
	if err != nil {
		return err
	}
	if err := s.admit(r); err != nil {
		return err
	}
	if r.suffix == sufUnsynced && !r.bad && s.is(r) {
		v.unsettled.add(r)
	}
	return nil
}

// judge finds out whether a replica that was finalized without being synced is whole: all its bytes are there and match their checksums. Then it is
// finalized; else it is what one is that was being written, cut to what is good. Where the disk cannot read all of it, it is finalized and corrupt, and the next start looks again.
func (s *Store) judge(v *volume, r *replica) error {
	good, err := s.salvage(v, r)
	if isUnread(err) {
		s.log.Error("replica is corrupt: it was finalized without being synced, and cannot be read", "block", r.blockLocked().String(), "volume", v.id.Storage, "err", err)
		r.bad = true
		return nil
	}
	if err != nil || good == r.length {
		return err
	}
	s.log.Warn("replica was finalized without being synced, and is not whole", "block", r.blockLocked().String(), "volume", v.id.Storage, "good", good)
	if err := r.rename(r.gen, sufRBW); err != nil {
		return err
	}
	r.length, r.state = good, datanode.RWR
	return nil
}

func removeFile(fsys vfs.FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// admit enters a replica found at start. If the block is on another volume too (which came back after it had failed), or
// in a pack as well as in files (a deletion did not survive), the better replica stays.
func (s *Store) admit(r *replica) error {
	if e, ok := r.entryLocked(); ok && s.enterResting(r.vol, e) { // nobody else knows it yet
		return nil
	}
	if s.opened.Load() {
		return s.admitLate(r)
	}
	sh := s.shard(r.id)
	sh.mu.Lock()
	if err := r.vol.err(); err != nil { // its disk was given up while it was read, and another volume may have the block
		sh.mu.Unlock()
		return err
	}
	old := s.holdLocked(sh, r.id)
	defer s.letGo(old)
	if old != nil && old.vol.err() != nil {
		old = nil
	}
	if old != nil && pair(old, r) {
		sh.mu.Unlock()
		return nil
	}
	if old != nil && pair(r, old) {
		s.enterLocked(sh, r)
		sh.mu.Unlock()
		size := r.length + sumsSize(r.length)
		old.vol.replicas.Add(-1)
		old.vol.used.Add(-size) // which isSaved has counted
		r.vol.replicas.Add(1)
		r.vol.used.Add(size)
		return nil
	}
	loser := old
	if old == nil || better(r, old) {
		s.enterLocked(sh, r)
	} else {
		loser = r
	}
	sh.mu.Unlock()
	if loser != r {
		r.vol.replicas.Add(1)
		r.vol.used.Add(r.length + sumsSize(r.length))
		r.vol.finalized(r)
	}
	if loser == nil {
		return nil
	}
	if loser != r {
		loser.vol.replicas.Add(-1)
		loser.vol.used.Add(-(loser.length + sumsSize(loser.length)))
	}
	s.log.Warn("block is here twice, one replica is removed", "block", loser.blockLocked().String(), "volume", loser.vol.id.Storage)
	return loser.discard()
}

// pair makes a replica on a disk the saved copy of one in memory, if that is what it is.
func pair(inMemory, onDisk *replica) bool {
	if !inMemory.vol.inMemory() || onDisk.vol.inMemory() || onDisk.packed != nil || inMemory.bad || onDisk.bad ||
		inMemory.state != datanode.Finalized || onDisk.state != datanode.Finalized || inMemory.blockLocked() != onDisk.blockLocked() {
		return false
	}
	c := &moved{b: inMemory.blockLocked(), v: onDisk.vol}
	c.named.Store(true)
	inMemory.isSaved(c)
	return true
}

func better(a, b *replica) bool {
	if a.gen != b.gen {
		return a.gen > b.gen
	}
	if a.state != b.state {
		return a.state > b.state
	}
	if a.bad != b.bad {
		return b.bad
	}
	return a.length > b.length
}

// measure finds the length of a finalized replica. Both files were durable before it got its name, so sizes that do not
// fit are damage; it is kept, as corrupt.
func (s *Store) measure(v *volume, r *replica) error {
	d, err := v.fs.Stat(v.dataPath(r.id))
	if err != nil {
		return err
	}
	m, err := v.fs.Stat(r.sumsPath())
	if err != nil {
		return err
	}
	r.length = d.Size
	if m.Size != sumsSize(d.Size) {
		r.bad = true
		s.log.Error("replica is corrupt: its checksum file has another length", "block", r.blockLocked().String(), "volume", v.id.Storage,
			"got", m.Size, "want", sumsSize(d.Size))
	}
	return nil
}

// salvage finds how much of an open replica is good: the chunks from the start that match their checksums, and of the
// first that does not the longest beginning that matches either its checksum (the data went on but the checksum did
// not) or a tail slot (the checksum went on but the data did not). Both files are cut to that. An unreadError: the disk cannot read what comes next, of which nobody knows whether it is good, and nothing is cut.
func (s *Store) salvage(v *volume, r *replica) (int64, error) {
	data, err := v.fs.OpenFile(v.dataPath(r.id), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer data.Close()
	sums, err := v.fs.OpenFile(r.sumsPath(), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer sums.Close()
	dataSize, err := data.Size()
	if err != nil {
		return 0, err
	}
	header := make([]byte, headerSize)
	var sum datanode.Checksum
	if n, err := sums.ReadAt(header, 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, v.unreadAtStart(fmt.Errorf("read header of the checksums: %w", err))
	} else if sum, err = decodeHeader(header[:n], r.id); err != nil {
		// Never synced, so nothing of it was promised.
		s.log.Warn("open replica has no valid checksum file, it starts empty", "block", r.id, "volume", v.id.Storage, "err", err)
		if _, err := sums.WriteAt(encodeHeader(r.id, datanode.DefaultChecksum), 0); err != nil {
			return 0, err
		}
		return 0, errors.Join(data.Truncate(0), sums.Truncate(headerSize))
	}
	length, crc, err := goodLength(tableOf(sum), data, sums, dataSize, decodeTails(header))
	if err != nil {
		return length, v.unreadAtStart(err)
	}
	if length != dataSize {
		s.log.Info("open replica cut to what its checksums cover", "block", r.id, "volume", v.id.Storage, "from", dataSize, "to", length)
	}
	if err := data.Truncate(length); err != nil {
		return 0, err
	}
	if length%chunk != 0 {
		if _, err := sums.WriteAt(binary.BigEndian.AppendUint32(nil, crc), sumOffset(length)); err != nil {
			return 0, err
		}
	}
	return length, sums.Truncate(sumsSize(length))
}

// unreadAtStart turns an error of a read into an unreadError, if what was to be read is to blame.
func (v *volume) unreadAtStart(err error) error {
	if err := v.skip(err); err != nil {
		return err
	}
	return &unreadError{err}
}

func isUnread(err error) bool {
	_, is := errors.AsType[*unreadError](err)
	return is
}

// goodLength returns the length that salvage describes, with the checksum of its last chunk if that is partial. With an error, which is of a read, it is how much is good of what comes before, in whole chunks.
func goodLength(table *crc32.Table, data, sums vfs.File, dataSize int64, tails []tail) (int64, uint32, error) {
	buf := make([]byte, min(verifyStep, dataSize))
	want := make([]byte, 4*chunksOf(int64(len(buf))))
	for off := int64(0); off < dataSize; off += verifyStep {
		p := buf[:min(verifyStep, dataSize-off)]
		n, unread := readUpTo(data, p, off)
		if unread != nil {
			unread = fmt.Errorf("read at %d: %w", off+int64(n), unread)
			p = p[:n/chunk*chunk]
		}
		n, err := readUpTo(sums, want[:4*chunksOf(int64(len(p)))], sumOffset(off))
		if err != nil {
			unread = fmt.Errorf("read checksums at %d: %w", sumOffset(off)+int64(n), err)
			p = p[:min(len(p), n/4*chunk)]
		}
		stored := want[:n/4*4]
		for at := int64(0); at < int64(len(p)); at += chunk {
			c := p[at:min(at+chunk, int64(len(p)))]
			if len(stored) >= 4 && crc32.Checksum(c, table) == binary.BigEndian.Uint32(stored) {
				stored = stored[4:]
				if len(c) < chunk {
					return off + at + int64(len(c)), crc32.Checksum(c, table), nil
				}
				continue
			}
			n, crc := goodPrefix(table, c, stored, off+at, tails)
			return off + at + n, crc, nil
		}
		if unread != nil {
			return off + int64(len(p)), 0, unread
		}
	}
	return dataSize, 0, nil
}

// goodPrefix finds how many bytes of a chunk at start can be trusted.
func goodPrefix(table *crc32.Table, c, stored []byte, start int64, tails []tail) (int64, uint32) {
	crcs := make([]uint32, len(c)+1)
	for i := range c {
		crcs[i+1] = crc32.Update(crcs[i], table, c[i:i+1])
	}
	var best int64
	for n := len(c); n > 0 && len(stored) >= 4; n-- {
		if crcs[n] == binary.BigEndian.Uint32(stored) {
			best = int64(n)
			break
		}
	}
	for _, t := range tails {
		if n := t.length - start; n > 0 && n <= int64(len(c)) && crcs[n] == t.crc {
			best = max(best, n)
		}
	}
	return best, crcs[best]
}
