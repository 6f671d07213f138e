package blockstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// reader implements datanode.Reader. It has files of its own and a snapshot of the length with the checksum of the
// chunk that it cuts; the bytes below that length do not change while it reads, whatever writers do.
type reader struct {
	store      *Store
	r          *replica
	holds      bool // r, until it is closed
	view       datanode.Replica
	sum        datanode.Checksum
	lastCRC    uint32
	data, sums vfs.File // nil if the replica is packed, or empty
	record     *[]byte  // of a packed replica, which was read as a whole
	packedSums []byte
	packedData []byte
	sending    sending
}

// Open implements datanode.BlockStore.
func (s *Store) Open(b metadata.Block) (datanode.Reader, error) {
	rd, err := again(s, b, func(r *replica) (*reader, error) {
		rd, err := s.openReader(r, b)
		if err != nil {
			return nil, fmt.Errorf("open %v: %w", b, err)
		}
		return rd, nil
	})
	if err != nil {
		return nil, err
	}
	return rd, nil
}

// openReader is Open for who holds the replica. So does the reader, until it is closed.
func (s *Store) openReader(r *replica, b metadata.Block) (*reader, error) {
	rd, err := s.openReaderOf(r, b)
	if errors.Is(err, errVanished) {
		if gone, cannot := s.vanished(r); cannot != nil {
			err = cannot
		} else if !gone {
			err = s.readFailed(r, err)
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	r.users.Add(1)
	rd.holds = true
	return rd, nil
}

// errVanished: the data of a finalized replica has no file.
var errVanished = metadata.Errorf(metadata.ErrReplicaNotFound, "its file is gone")

// vanished forgets a finalized replica whose data is gone although its volume is there and works: there is nothing to keep, nor to mend,
// and the namenode hears that it is not here any more, as from HDFS's datanode. A start that finds the file again reports it. The error says why that cannot be found out just now.
func (s *Store) vanished(r *replica) (bool, error) {
	if !r.acquire(&r.io) {
		return false, nil
	}
	defer r.io.Unlock()
	if !r.acquire(&r.mu) {
		return false, nil
	}
	gen, still := r.gen, !r.gone && r.state == datanode.Finalized && r.packed == nil && r.suffix != 0
	view := r.viewLocked()
	r.mu.Unlock()
	if !still {
		return true, nil // it is something else by now
	}
	v := r.vol
	_, err := v.fs.Stat(v.dataPath(r.id))
	_, there := v.fs.Stat(filepath.Join(v.path, versionFile)) // of a volume that was unmounted everything is gone
	if either := errors.Join(err, there); ofProcess(either) {
		return false, v.check(either)
	}
	if !errors.Is(err, fs.ErrNotExist) || there != nil {
		return false, nil
	}
	if err := v.probe(); err != nil {
		return false, err
	}
	s.log.Error("replica is gone: its file has vanished", "block", view.Block.String(), "volume", view.Volume)
	if s.instead(r, true) { // it was saved
		return true, nil
	}
	if err := s.removeReplica(r, gen, false); err != nil {
		s.log.Warn("what is left of a replica is not removed", "block", view.Block.String(), "err", err)
	}
	return true, nil
}

// openReaderOf is openReader that only says that the data has vanished.
func (s *Store) openReaderOf(r *replica, b metadata.Block) (*reader, error) {
	if !r.acquire(&r.mu) {
		return nil, r.vol.err()
	}
	defer r.mu.Unlock()
	switch {
	case r.gone:
		return nil, notFound(b)
	case r.state != datanode.Finalized && r.state != datanode.RBW:
		return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "Replica is not readable: blk_%d_%d, %v", r.id, r.gen, r.state)
	case r.gen < b.Generation:
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Replica gen stamp < block genstamp, block=%v, replica=%v", b, r.blockLocked())
	}
	rd := &reader{store: s, r: r, view: r.viewLocked(), sum: datanode.DefaultChecksum}
	r.read.Store(true)
	if r.packed != nil {
		return rd, rd.readPacked()
	}
	if r.open != nil {
		rd.sum = r.open.sum
	}
	if r.suffix == 0 {
		return rd, nil
	}
	var err error
	if rd.data, err = r.vol.fs.OpenFile(r.vol.dataPath(r.id), os.O_RDONLY, 0); err != nil {
		if errors.Is(err, fs.ErrNotExist) && r.state == datanode.Finalized {
			return nil, fmt.Errorf("block %d on %s: %w", r.id, r.vol.path, errVanished)
		}
		return nil, s.openFailed(r, err)
	}
	if rd.sums, err = r.vol.fs.OpenFile(r.sumsPath(), os.O_RDONLY, 0); err != nil {
		rd.data.Close()
		return nil, s.openFailed(r, err)
	}
	if r.open == nil && !r.usual {
		if err := rd.readHeader(); err != nil {
			rd.Close()
			return nil, s.readFailedLocked(r, err)
		}
		r.usual = rd.sum == datanode.DefaultChecksum
	}
	if rd.view.Visible%chunk == 0 {
		return rd, nil
	}
	if r.state == datanode.RBW {
		rd.lastCRC = r.open.visibleCRC
		return rd, nil
	}
	var sum [4]byte
	if _, err := rd.sums.ReadAt(sum[:], sumOffset(rd.view.Visible)); err != nil {
		rd.Close()
		return nil, s.readFailedLocked(r, err)
	}
	rd.lastCRC = binary.BigEndian.Uint32(sum[:])
	return rd, nil
}

// readHeader finds out which checksums the replica has.
func (rd *reader) readHeader() error {
	header := make([]byte, headerSize)
	n, err := rd.sums.ReadAt(header, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	rd.sum, err = decodeHeader(header[:n], rd.r.id)
	return err
}

func (rd *reader) Replica() datanode.Replica { return rd.view }

func (rd *reader) Checksum() datanode.Checksum { return rd.sum }

// readPacked reads the record of the replica; what happens to it later does not matter then. r.mu is held.
func (rd *reader) readPacked() error {
	r := rd.r
	rd.record = recordBuffers.Get().(*[]byte)
	var err error
	if rd.packedSums, rd.packedData, err = r.packed.read((*rd.record)[:0]); err != nil {
		rd.Close()
		return rd.store.readFailedLocked(r, err)
	}
	if rd.view.Visible%chunk != 0 {
		rd.lastCRC = binary.BigEndian.Uint32(rd.packedSums[len(rd.packedSums)-4:])
	}
	return nil
}

func (rd *reader) File() *os.File {
	if rd.data == nil {
		return nil
	}
	return rd.data.OS()
}

func (rd *reader) Close() error {
	if rd.record != nil {
		recordBuffers.Put(rd.record)
		rd.record, rd.packedSums, rd.packedData = nil, nil, nil
	}
	if rd.holds {
		rd.holds = false
		rd.store.letGo(rd.r)
	}
	if rd.data == nil {
		return nil
	}
	rd.r.vol.sends.remove(rd)
	return errors.Join(rd.data.Close(), rd.sums.Close())
}

// ReadAt implements datanode.Reader.
func (rd *reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= rd.view.Visible {
		return 0, io.EOF
	}
	n := min(int64(len(p)), rd.view.Visible-off)
	if rd.data == nil {
		copy(p[:n], rd.packedData[off:])
	} else if k, err := rd.data.ReadAt(p[:n], off); int64(k) < n {
		return k, rd.failed(err)
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// Sums implements datanode.Reader.
func (rd *reader) Sums(dst []byte, off, end int64) ([]byte, error) {
	if off < 0 || off%chunk != 0 || end > rd.view.Visible || end%chunk != 0 && end != rd.view.Visible || off > end {
		return dst, metadata.Errorf(metadata.ErrInvalidArgument, "checksums of bytes %d to %d of %v", off, end, rd.view)
	}
	n := int(4 * (chunksOf(end) - off/chunk))
	at := len(dst)
	for cap(dst) < at+n {
		dst = append(dst[:cap(dst)], 0)
	}
	dst = dst[:at+n]
	if n == 0 {
		return dst, nil
	}
	if rd.data == nil {
		copy(dst[at:], rd.packedSums[4*(off/chunk):])
	} else if k, err := rd.sums.ReadAt(dst[at:], sumOffset(off)); k < n {
		return dst[:at], rd.failed(err)
	}
	if end%chunk != 0 {
		binary.BigEndian.PutUint32(dst[len(dst)-4:], rd.lastCRC)
	}
	return dst, nil
}

// openFailed and readFailed judge an error of reading a replica: the replica is corrupt, and the disk is asked whether
// it still works. What this process has not enough of (ofProcess) says nothing of either. r.mu is held in those that end in Locked and in openFailed.
func (s *Store) openFailed(r *replica, err error) error {
	if errors.Is(err, fs.ErrNotExist) || !errors.Is(err, fs.ErrPermission) {
		return s.readFailedLocked(r, err)
	}
	return r.vol.check(err)
}

func (s *Store) readFailedLocked(r *replica, err error) error {
	if err := r.vol.cannotTell(err); err != nil {
		return err
	}
	return s.unreadableLocked(r, err)
}

// unreadableLocked is readFailedLocked of a disk that works.
func (s *Store) unreadableLocked(r *replica, err error) error {
	s.corruptLocked(r)
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read of block %d on %s: %w: %w", r.id, r.vol.path, err, metadata.ErrCorrupt)
}

func (s *Store) readFailed(r *replica, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.readFailedLocked(r, err)
}

// failed is readFailed, but what is not any more what was opened is not corrupt.
func (rd *reader) failed(err error) error {
	r := rd.r
	if err := r.vol.cannotTell(err); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rd.changedLocked() {
		return errMeanwhile
	}
	return rd.store.unreadableLocked(r, err)
}

// mismatch judges bytes that do not match their checksums.
func (rd *reader) mismatch(off int64, err error) error {
	rd.r.mu.Lock()
	defer rd.r.mu.Unlock()
	if rd.changedLocked() {
		return errMeanwhile
	}
	rd.store.corruptLocked(rd.r)
	return fmt.Errorf("at %d: %w", off, err)
}

// changedLocked reports whether the replica is not any more what was opened, or has less: a recovery cuts it before it gets its new generation. r.mu is held.
func (rd *reader) changedLocked() bool {
	r := rd.r
	return r.gone || r.gen != rd.view.Block.Generation || r.viewLocked().Visible < rd.view.Visible
}

var errMeanwhile = metadata.Errorf(metadata.ErrRetriable, "the replica changed while it was read")

// corruptLocked marks the replica, and announces it unless that was done before. One on a volume that has failed is not corrupt but gone, and the block may have another one here. r.mu is held.
func (s *Store) corruptLocked(r *replica) {
	if r.bad || r.gone || r.vol.failed.Load() != nil {
		return
	}
	r.bad = true
	view := r.viewLocked()
	s.log.Error("replica is corrupt", "block", view.Block.String(), "volume", view.Volume)
	s.emit(datanode.Corrupt, view)
}

func (s *Store) markCorrupt(r *replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.corruptLocked(r)
}

// Corrupt lists the replicas that were found corrupt and are still here.
func (s *Store) Corrupt() []datanode.Replica {
	var out []datanode.Replica
	s.EachCorrupt(func(r datanode.Replica) { out = append(out, r) })
	return out
}

// EachCorrupt calls tell for each replica that was found corrupt and is still here; they are announced again with a full report. What is announced of the block later, as that a copy has taken the
// replica's place, comes behind: tell is called with the lock of the replica, must be quick and must not call the store.
func (s *Store) EachCorrupt(tell func(datanode.Replica)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.RLock()
		var all []*replica
		for _, r := range sh.replicas { // none that is at rest
			all = append(all, r)
		}
		sh.mu.RUnlock()
		for _, r := range all {
			if r.vol.failed.Load() != nil || !r.acquire(&r.mu) {
				continue
			}
			if r.bad && !r.gone {
				tell(r.viewLocked())
			}
			r.mu.Unlock()
		}
	}
}

// Confirm implements datanode.BlockStore. It opens the replica: what lost its file behind the store's back is found out so.
func (s *Store) Confirm(b metadata.Block) bool {
	there, err := again(s, b, func(r *replica) (bool, error) {
		rd, err := s.openReader(r, b)
		if err != nil {
			return false, err
		}
		if err := rd.Close(); err != nil || !r.acquire(&r.mu) {
			return false, err
		}
		defer r.mu.Unlock()
		if r.gone {
			return false, errMeanwhile
		}
		if r.bad || r.state != datanode.Finalized || r.blockLocked() != b {
			return false, nil
		}
		s.emit(datanode.Received, r.viewLocked())
		return true, nil
	})
	return err == nil && there
}

// verifyStep is how many bytes are compared at a time.
const verifyStep = 256 << 10

// Verify implements datanode.BlockStore.
func (s *Store) Verify(ctx context.Context, id metadata.BlockID, o datanode.VerifyOptions) error {
	r := s.get(id)
	if r == nil {
		if o.Tell {
			s.Disown(id)
		}
		return notFound(metadata.Block{ID: id})
	}
	defer s.letGo(r)
	rd, err := s.openReader(r, metadata.Block{ID: id})
	if err == nil {
		err = rd.verify(ctx, o.Pace)
		rd.Close()
	}
	if err != nil {
		return fmt.Errorf("verify block %d: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.gen != rd.view.Block.Generation || r.vol.failed.Load() != nil { // as in corruptLocked
		return nil
	}
	healed := r.bad && r.length == rd.view.Visible
	if healed {
		r.bad = false
		if r.suffix == sufUnsynced { // see judge
			r.vol.unsettled.put(unsettledOne{r: r})
		}
		s.log.Warn("replica that was corrupt is intact", "block", r.blockLocked().String(), "volume", r.vol.id.Storage)
	}
	if healed || o.Tell {
		s.emit(datanode.Verified, r.viewLocked())
	}
	return nil
}

// verify reads everything that can be read and compares it with the checksums.
func (rd *reader) verify(ctx context.Context, pace func(int64) error) error {
	if err := rd.checkSizes(); err != nil {
		return err
	}
	if rd.sums != nil && rd.view.State == datanode.Finalized {
		if err := rd.readHeader(); err != nil {
			return rd.failed(err)
		}
	}
	data := make([]byte, min(verifyStep, rd.view.Visible))
	var sums []byte
	var err error
	for off := int64(0); off < rd.view.Visible; off += verifyStep {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := min(off+verifyStep, rd.view.Visible)
		if pace != nil {
			if err := pace(end - off); err != nil {
				return err
			}
		}
		rd.forget(off, end)
		if sums, err = rd.Sums(sums[:0], off, end); err != nil {
			return err
		}
		p := data[:end-off]
		if _, err := rd.ReadAt(p, off); err != nil {
			return err
		}
		rd.forget(off, end)
		if err := verify(tableOf(rd.sum), p, sums); err != nil {
			return rd.mismatch(off, err)
		}
	}
	return nil
}

func (rd *reader) forget(off, end int64) {
	if rd.data != nil {
		rd.data.Forget(off, end-off)
		rd.sums.Forget(sumOffset(off), sumOffset(end)-sumOffset(off)+4)
	}
}

// checkSizes finds a replica whose files lost or got something behind the store's back.
func (rd *reader) checkSizes() error {
	if rd.data == nil || rd.view.State != datanode.Finalized {
		return nil
	}
	length, err := rd.data.Size()
	var sums int64
	if err == nil {
		sums, err = rd.sums.Size()
	}
	if err != nil {
		return rd.store.readFailed(rd.r, err)
	}
	if length == rd.view.Visible && sums == sumsSize(length) {
		return nil
	}
	r := rd.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.viewLocked(); r.gone || now.State != datanode.Finalized || now.Block != rd.view.Block {
		return errMeanwhile
	}
	rd.store.corruptLocked(r)
	return fmt.Errorf("its files have %d and %d bytes, not %d and %d: %w", length, sums, rd.view.Visible, sumsSize(rd.view.Visible), metadata.ErrCorrupt)
}

// CheckSizes compares the sizes of a finalized replica's files with what they should be, which takes two calls of the disk.
// ErrCorrupt, also when the file of the sums is gone, is announced as a Change; where that of the data is gone, the error is ErrReplicaNotFound and the
// Change Deleted.
func (s *Store) CheckSizes(id metadata.BlockID) error {
	r := s.get(id)
	defer s.letGo(r)
	if r == nil || r.view().State != datanode.Finalized {
		return nil
	}
	rd, err := s.openReader(r, metadata.Block{ID: id})
	if err == nil {
		err = rd.checkSizes()
		rd.Close()
	}
	if err != nil {
		return fmt.Errorf("check block %d: %w", id, err)
	}
	return nil
}
