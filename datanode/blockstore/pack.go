package blockstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// Small blocks are packed: a replica that arrives in one write of at most packLimit bytes becomes a record in a pack, a
// file to which records are appended, and one fsync makes all of a batch durable. Whatever else is to happen to such a
// replica first moves it into files of its own (writer.unpack).
//
// A pack, numbers big-endian:
//
//	offset  size
//	  0      8   magic "HOPSPAK1"; the digit is the version
//	  8     16   salt, random: without it nobody can write data that looks like a record
//	 24      4   CRC32C of bytes 0 to 23
//	4096         records, each at a multiple of 4096
//
// A record is its head, its checksums and its data:
//
//	 0      8   magic "HOPSREC1"
//	 8      8   block id
//	16      8   generation
//	24      4   length of the data
//	28      8   how many bytes of the pack were durable when the record was written
//	36      4   CRC32C of the checksums
//	40      4   CRC32C of the salt and bytes 0 to 39
//	44      1   state: 'R' being written, 'F' finalized
//	45      3   zero
//	48     4n   CRC32C of chunk 0, 1, ...
//	48+4n       data
//
// Head and checksums lie in one sector. Only the state is ever rewritten, and only from R to F. A deleted record is a hole.
const (
	packsDir    = "packs"
	packExt     = ".pack"
	packMagic   = "HOPSPAK1"
	recordMagic = "HOPSREC1"
	packAlign   = 4096
	recordHead  = 48
	stateAt     = 44
	saltSize    = 16

	stateOpen  = 'R'
	stateFinal = 'F'

	// packLimit is the largest packed block. It stays well below a full packet, with which large blocks begin.
	packLimit = 32 << 10
	// packSize is at which size a pack gets no more records.
	packSize = 256 << 20
	// recordMax is the size of the largest record without the padding behind it.
	recordMax = recordHead + packLimit/chunk*4 + packLimit
)

// pack is one file of records.
type pack struct {
	v    *volume
	at   uint32 // of the store's places
	seq  uint64
	f    vfs.File
	salt []byte
	live atomic.Int64 // records in use, and one more while records are appended, while it is unsettled, and if it is unread
	// unsettled: a record was finalized since the pack was synced.
	unsettled atomic.Bool
	// unread: a page that may be a record's could not be read at the start, see skip.
	unread bool

	mu      sync.Mutex // guards what follows, and makes appending one at a time
	end     int64      // where the next record goes; everything below is written
	durable int64      // everything below survives a power cut
}

// slot is where a packed replica lies.
type slot struct {
	p      *pack
	off    int64
	length int64
}

func recordSize(length int64) int64 {
	return (recordHead + 4*chunksOf(length) + length + packAlign - 1) / packAlign * packAlign
}

func (v *volume) packPath(seq uint64) string {
	return filepath.Join(v.path, packsDir, strconv.FormatUint(seq, 10)+packExt)
}

// encodeRecord appends a record in state R to dst.
func (p *pack) encodeRecord(dst []byte, id metadata.BlockID, gen metadata.Generation, durable int64, sums, data []byte) []byte {
	at := len(dst)
	dst = append(dst, recordMagic...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	dst = binary.BigEndian.AppendUint64(dst, uint64(gen))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(data)))
	dst = binary.BigEndian.AppendUint64(dst, uint64(durable))
	dst = binary.BigEndian.AppendUint32(dst, crcOf(sums))
	dst = binary.BigEndian.AppendUint32(dst, extend(crcOf(p.salt), dst[at:]))
	dst = append(dst, stateOpen, 0, 0, 0)
	dst = append(dst, sums...)
	return append(dst, data...)
}

// record is what the head of a record says.
type record struct {
	id      metadata.BlockID
	gen     metadata.Generation
	length  int64
	durable int64
	state   byte
}

// decodeRecord takes apart what lies at an offset of a pack; b is the first sector there, or less at the pack's end.
func (p *pack) decodeRecord(b []byte) (record, bool) {
	if len(b) < recordHead || string(b[:8]) != recordMagic || binary.BigEndian.Uint32(b[40:]) != extend(crcOf(p.salt), b[:40]) {
		return record{}, false
	}
	r := record{
		id: metadata.BlockID(binary.BigEndian.Uint64(b[8:])), gen: metadata.Generation(binary.BigEndian.Uint64(b[16:])),
		length: int64(binary.BigEndian.Uint32(b[24:])), durable: int64(binary.BigEndian.Uint64(b[28:])), state: b[stateAt],
	}
	n := recordHead + 4*chunksOf(r.length)
	if r.length > packLimit || n > int64(len(b)) || r.state != stateOpen && r.state != stateFinal {
		return record{}, false
	}
	return r, crcOf(b[recordHead:n]) == binary.BigEndian.Uint32(b[36:])
}

// recordBuffers hold whole records.
var recordBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, recordMax)) }}

// addRecord appends a record in state R: it survives the end of the process. Its slot is not synced. What was left alone of the block goes before that:
// the next start would drop the record for it.
func (v *volume) addRecord(id metadata.BlockID, gen metadata.Generation, sums, data []byte) (*slot, error) {
	if err := v.dropStrays(id); err != nil {
		return nil, err
	}
	v.packMu.Lock()
	defer v.packMu.Unlock()
	if v.pack != nil && v.pack.end >= v.packSize {
		v.endPackLocked()
	}
	p := v.pack
	if p == nil {
		var err error
		if p, err = v.newPack(); err != nil {
			return nil, v.check(err)
		}
		v.pack = p
	}
	buf := recordBuffers.Get().(*[]byte)
	defer recordBuffers.Put(buf)
	p.mu.Lock()
	defer p.mu.Unlock()
	*buf = p.encodeRecord((*buf)[:0], id, gen, p.durable, sums, data)
	if _, err := p.f.WriteAt(*buf, p.end); err != nil {
		return nil, v.check(err) // the next record takes its place
	}
	s := &slot{p: p, off: p.end, length: int64(len(data))}
	p.end += recordSize(s.length)
	p.live.Add(1)
	return s, nil
}

// endPack has the next record begin another pack.
func (v *volume) endPack() {
	v.packMu.Lock()
	defer v.packMu.Unlock()
	v.endPackLocked()
}

func (v *volume) endPackLocked() {
	if p := v.pack; p != nil {
		v.pack = nil
		p.release()
	}
}

// newPack starts a pack, durably: what is appended to it can be found after one fsync of the file. v.packMu is held.
func (v *volume) newPack() (*pack, error) {
	dir := filepath.Join(v.path, packsDir)
	if err := v.mkdir(dir); err != nil {
		return nil, err
	}
	p := &pack{v: v, seq: v.packSeq + 1, end: packAlign, durable: packAlign, salt: make([]byte, saltSize)}
	_, _ = rand.Read(p.salt) // never fails
	f, err := v.fs.OpenFile(v.packPath(p.seq), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	head := append([]byte(packMagic), p.salt...)
	if _, err = f.WriteAt(binary.BigEndian.AppendUint32(head, crcOf(head)), 0); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = v.fs.SyncDir(dir)
	}
	if err != nil {
		f.Close()
		return nil, errors.Join(err, removeFile(v.fs, v.packPath(p.seq)))
	}
	p.f = f
	p.live.Add(1)
	p.at = v.places.add(place{v, p})
	v.packSeq = p.seq
	return p, nil
}

// finish marks the record as finalized; it counts when the pack has been synced.
func (s *slot) finish() error {
	_, err := s.p.f.WriteAt([]byte{stateFinal}, s.off+stateAt)
	return s.p.v.check(err)
}

// read reads checksums and data into buf, which is made larger if necessary.
func (s *slot) read(buf []byte) (sums, data []byte, err error) {
	n := int(4*chunksOf(s.length) + s.length)
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if k, err := s.p.f.ReadAt(buf, s.off+recordHead); k < n {
		return nil, nil, fmt.Errorf("record at %d of pack %d: %w", s.off, s.p.seq, err)
	}
	sums = buf[:4*chunksOf(s.length)]
	return sums, buf[len(sums):], nil
}

// readSome is read as far as the disk can read: the data may end early.
func (s *slot) readSome() (sums, data []byte) {
	n := 4 * chunksOf(s.length)
	buf := make([]byte, n+s.length)
	k, _ := readUpTo(s.p.f, buf, s.off+recordHead) // read has said why
	if int64(k) < n {
		return nil, nil
	}
	return buf[:n], buf[n:k]
}

// drop deletes the record. Nobody may have the slot any more.
func (s *slot) drop() error {
	err := s.p.f.Punch(s.off, recordSize(s.length))
	s.p.release()
	return s.p.v.check(err)
}

// dropDurably is drop of a record that no start may find again; after an error it may be tried again.
func (s *slot) dropDurably() error {
	if err := s.p.v.check(s.p.f.Punch(s.off, recordSize(s.length))); err != nil {
		return err
	}
	if err := s.p.v.checkSync(s.p.sync()); err != nil {
		return err
	}
	s.p.release()
	return nil
}

// release removes the pack when nothing in it is in use. An error leaves an empty pack for the next start.
func (p *pack) release() {
	if p.live.Add(-1) == 0 {
		p.v.places.drop(p.at, place{p.v, p})
		p.f.Close()
		_ = removeFile(p.v.fs, p.v.packPath(p.seq))
	}
}

// sync makes everything that is in the pack durable.
func (p *pack) sync() error {
	p.mu.Lock()
	end := p.end
	p.mu.Unlock()
	if err := p.f.Sync(); err != nil {
		return err
	}
	p.mu.Lock()
	p.durable = max(p.durable, end)
	p.mu.Unlock()
	return nil
}

// closePacks closes the files of all packs that are in use.
func (s *Store) closePacks() {
	for _, p := range s.places.packs() {
		p.f.Close()
	}
}

// parsePackName is the inverse of packPath.
func parsePackName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, packExt)
	if !ok {
		return 0, false
	}
	seq, err := strconv.ParseUint(digits, 10, 63)
	return seq, err == nil && strconv.FormatUint(seq, 10) == digits
}

// loadPacks enters the packed replicas, and returns the names of the packs. It comes after the files: of two replicas of a block the better one stays.
func (s *Store) loadPacks(v *volume) (there map[string]bool, err error) {
	dir := filepath.Join(v.path, packsDir)
	entries, err := v.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	there = map[string]bool{}
	for _, e := range entries {
		seq, ok := parsePackName(e.Name)
		if !ok || e.Dir {
			s.log.Warn("foreign file among the packs", "path", filepath.Join(dir, e.Name))
			continue
		}
		v.packSeq = max(v.packSeq, seq)
		there[e.Name] = true
		if err := s.loadPack(v, seq); err != nil {
			return nil, fmt.Errorf("pack %d: %w", seq, err)
		}
	}
	return there, nil
}

func (s *Store) loadPack(v *volume, seq uint64) error {
	f, err := v.fs.OpenFile(v.packPath(seq), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	p := &pack{v: v, seq: seq, f: f}
	p.live.Store(1)
	size, err := f.Size()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	sound, err := p.readHead()
	var l *listing
	switch {
	case err != nil: // without the salt nothing in it can be told from what clients write, but the index may know it
		if err := v.skip(err); err != nil {
			return errors.Join(err, f.Close())
		}
		if l = v.recall(v.packPart(seq), nil); l == nil {
			s.log.Error("head of a pack cannot be read, the pack is left alone until the next start", "path", v.packPath(seq), "bytes", size, "err", err)
			return f.Close()
		}
		s.log.Error("head of a pack cannot be read, what is in it is known by its index", "path", v.packPath(seq), "bytes", size, "err", err)
		p.salt = l.salt
	case sound:
		l = v.recall(v.packPart(seq), p.salt)
	case size <= packAlign: // it was being made
		p.release()
		return nil
	default:
		s.log.Error("pack is damaged and left alone", "path", v.packPath(seq), "bytes", size)
		return f.Close()
	}
	p.at = v.places.add(place{v, p})
	if l != nil {
		if err := s.recallPack(p, l); err != nil {
			return errors.Join(err, f.Close())
		}
		p.release()
		return nil
	}
	slots, records, err := p.scan(size, p.skip)
	if err == nil {
		// A state that was rewritten shortly before the process ended: what is announced as finalized must be durable.
		err = p.sync()
	}
	durable := p.durable // what is entered is everybody's, who may sync the pack
	for i := 0; i < len(slots) && err == nil; i++ {
		p.live.Add(1)
		err = s.loadRecord(slots[i], &records[i], durable)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	p.release()
	return nil
}

// skip lets a start go on where the disk cannot read what may be a record. The pack stays then, whatever becomes of the records that are known: the next start looks again.
func (p *pack) skip(off int64, err error) error {
	if err := p.v.skip(err); err != nil {
		return err
	}
	p.v.log.Error("a page of a pack cannot be read: if a record begins there it is left alone until the next start", "path", p.v.packPath(p.seq), "at", off, "err", err)
	if !p.unread {
		p.unread = true
		p.live.Add(1)
	}
	return nil
}

// readHead reads the head; false: it is damaged. The error says that the disk cannot read it.
func (p *pack) readHead() (bool, error) {
	head := make([]byte, len(packMagic)+saltSize+4)
	n, err := p.f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("head of pack %d: %w", p.seq, err)
	}
	sealed := len(head) - 4
	p.salt = head[8:sealed]
	return n == len(head) && string(head[:8]) == packMagic && binary.BigEndian.Uint32(head[sealed:]) == crcOf(head[:sealed]), nil
}

// recallPack enters the records of a pack by its index.
func (s *Store) recallPack(p *pack, l *listing) error {
	p.durable = l.durable
	p.live.Add(int64(len(l.final)))
	for _, e := range s.enterAllResting(p.v, p.at, l.final) {
		if err := s.loadRecord(&slot{p: p, off: e.at, length: e.length}, &record{id: e.id, gen: e.gen, length: e.length, state: stateFinal}, math.MaxInt64); err != nil {
			return err
		}
	}
	if len(l.other) == 0 {
		return nil
	}
	if err := p.sync(); err != nil { // as in loadPack
		return err
	}
	sector := make([]byte, 512)
	for _, digits := range l.other {
		off, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return err
		}
		r, ok, err := p.recordAt(off, l.size, sector)
		if err != nil {
			err = p.skip(off, err)
		}
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		p.live.Add(1)
		if err := s.loadRecord(&slot{p: p, off: off, length: r.length}, &r, l.durable); err != nil {
			return err
		}
	}
	return nil
}

// recordAt is the record at an offset of a pack of a size; there may be none. sector is used.
func (p *pack) recordAt(off, size int64, sector []byte) (record, bool, error) {
	n, err := p.f.ReadAt(sector, off)
	if n < len(sector) && off+int64(n) < size {
		return record{}, false, err
	}
	r, ok := p.decodeRecord(sector[:n])
	return r, ok, nil
}

// scan finds the records, and sets durable to what is known to have been durable. Where the disk cannot read skip decides: without an error the scan goes on with the next page, as in a hole. Nothing there is
// taken for a record that is none, as the salt tells.
func (p *pack) scan(size int64, skip func(off int64, err error) error) (slots []*slot, records []record, err error) {
	sector := make([]byte, 512)
	for off := int64(packAlign); off < size; {
		r, ok, err := p.recordAt(off, size, sector)
		if err != nil {
			err = skip(off, err)
		}
		if err != nil {
			return nil, nil, err
		}
		if !ok { // a hole, or the torn end
			off += packAlign
			continue
		}
		slots, records = append(slots, &slot{p: p, off: off, length: r.length}), append(records, r)
		p.durable = max(p.durable, r.durable)
		off += recordSize(r.length)
	}
	return slots, records, nil
}

// loadRecord enters a replica that was finalized, and moves one that was being written into files of its own. A record
// that ends behind durable may be torn: its state counts if its data matches the checksums. Where the disk cannot read its data a finalized one is corrupt, and one that was being
// written ends there; the record stays what it is.
func (s *Store) loadRecord(at *slot, rec *record, durable int64) error {
	v := at.p.v
	r := &replica{vol: v, id: rec.id, gen: rec.gen, length: rec.length, state: datanode.Finalized, packed: at}
	old := s.hold(r.id)
	defer s.letGo(old)
	if old != nil && old.vol != v {
		old = nil
	}
	if old != nil {
		if !old.acquire(&old.mu) {
			return v.err()
		}
		gen := old.gen
		old.mu.Unlock()
		if gen >= r.gen { // it has left the pack
			return at.drop()
		}
	}
	if v.hasStray(r.id, r.gen) { // likewise
		return at.drop()
	}
	final := rec.state == stateFinal
	if final && at.off+recordSize(at.length) <= durable {
		return s.admit(r)
	}
	sums, data, err := at.read(nil)
	unread := err != nil && !errors.Is(err, io.EOF) // the pack may end early
	if unread {
		if err := v.skip(err); err != nil {
			return err
		}
		s.log.Error("data of a record cannot be read", "block", r.blockLocked().String(), "volume", v.id.Storage, "finalized", final, "err", err)
		if final {
			r.bad = true
			return s.admit(r)
		}
		sums, data = at.readSome()
	}
	good := int64(0)
	for good < int64(len(data)) {
		n := min(chunk, int64(len(data))-good)
		if verify(castagnoli, data[good:good+n], sums[4*(good/chunk):][:4]) != nil {
			break
		}
		good += n
	}
	if final && good == rec.length {
		return s.admit(r)
	}
	if good == 0 && unread {
		v.leaveAlone(r)
		return nil
	}
	if good == 0 {
		return at.drop()
	}
	if old != nil && s.opened.Load() { // as in admitLate: somebody may work on it
		s.log.Warn("block is here twice, one replica is left alone until the next start", "block", r.blockLocked().String(), "volume", v.id.Storage)
		v.leaveAlone(r)
		return nil
	}
	if old != nil { // its files are in the way
		s.forget(old)
		v.used.Add(-(old.length + sumsSize(old.length)))
		if err := old.discard(); err != nil {
			return err
		}
	}
	d, m, err := v.writeFiles(r.id, r.gen, sufRBW, sums[:4*chunksOf(good)], data[:good])
	if err != nil {
		return err
	}
	if err := errors.Join(d.Close(), m.Close()); err != nil {
		return err
	}
	if unread {
		v.leaveAlone(r) // the next start drops it, for the files, unless something drops it before
	} else if err := at.drop(); err != nil {
		return err
	}
	r.length, r.state, r.suffix, r.packed = good, datanode.RWR, sufRBW, nil
	return s.admit(r)
}

// writeFiles makes the files of a replica that was packed until now; they get their final name last. A finalized one is
// durable on return. Errors are checked.
func (v *volume) writeFiles(id metadata.BlockID, gen metadata.Generation, suf suffix, sums, data []byte) (d, m vfs.File, err error) {
	if err := v.ensureDir(id); err != nil {
		return nil, nil, err
	}
	if d, m, err = v.createFiles(id, gen, sufTmp, datanode.DefaultChecksum); err != nil {
		return nil, nil, err
	}
	length := int64(len(data))
	if suf == sufMeta && length%chunk != 0 { // as finalize writes it
		t := tail{length: length, crc: binary.BigEndian.Uint32(sums[len(sums)-4:]), seq: 1}
		_, err = m.WriteAt(t.encode(), t.offset())
	}
	if err == nil {
		_, err = d.WriteAt(data, 0)
	}
	if err == nil {
		_, err = m.WriteAt(sums, headerSize)
	}
	err = v.check(err)
	if err == nil && suf == sufMeta {
		if err = v.checkSync(d.Sync()); err == nil {
			err = v.checkSync(m.Sync())
		}
	}
	if err == nil {
		err = v.check(v.fs.Rename(v.sumsPath(id, gen, sufTmp), v.sumsPath(id, gen, suf)))
	}
	if err == nil && suf == sufMeta {
		err = v.checkSync(v.fs.SyncDir(v.dirOf(id)))
	}
	if err != nil {
		return nil, nil, errors.Join(err, d.Close(), m.Close(), v.remove(id, gen, sufTmp))
	}
	return d, m, nil
}

// createFiles makes empty files in the block's directory, which exists. Errors are checked.
func (v *volume) createFiles(id metadata.BlockID, gen metadata.Generation, suf suffix, sum datanode.Checksum) (d, m vfs.File, err error) {
	const flag = os.O_RDWR | os.O_CREATE | os.O_TRUNC
	if err = v.dropStrays(id); err != nil {
		return nil, nil, err
	}
	if d, err = v.fs.OpenFile(v.dataPath(id), flag, 0o600); err != nil {
		return nil, nil, v.check(err)
	}
	if m, err = v.fs.OpenFile(v.sumsPath(id, gen, suf), flag, 0o600); err == nil {
		if _, err = m.WriteAt(encodeHeader(id, sum), 0); err == nil {
			return d, m, nil
		}
		m.Close()
	}
	d.Close()
	return nil, nil, errors.Join(v.check(err), v.remove(id, gen, suf))
}

// unpack moves the replica out of its pack into files of its own, which it opens. r.io is held.
func (w *writer) unpack() error {
	r, v := w.r(), w.r().vol
	r.mu.Lock()
	gen, suf := r.gen, sufRBW
	if r.state == datanode.Finalized {
		suf = sufMeta
	}
	r.mu.Unlock()
	at := r.packed
	sums, data, err := at.read(nil)
	if err != nil {
		return w.store.readFailed(r, err)
	}
	if err := verify(castagnoli, data, sums); err != nil {
		w.store.markCorrupt(r)
		return fmt.Errorf("block %d: %w", r.id, err)
	}
	if w.data, w.sums, err = v.writeFiles(r.id, gen, suf, sums, data); err != nil {
		return err
	}
	r.mu.Lock()
	r.packed, r.suffix = nil, suf
	r.mu.Unlock()
	return at.drop()
}

// discard removes what is on disk of a replica.
func (r *replica) discard() error {
	if r.packed != nil {
		return r.packed.drop()
	}
	if r.suffix == 0 {
		return nil
	}
	return r.vol.removeFiles(r.sumsPath(), r.vol.dataPath(r.id))
}
