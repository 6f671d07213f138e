package blockstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// A replica moves to another volume of its store by being copied there under names of its own,
//
//	blk_<id>_<generation>.moving       data
//	blk_<id>_<generation>.movingsums   checksums, as FORMAT.md has them
//
// while everybody goes on with the one that is there. When the copy is durable and the replica is still what was copied, the files get the names of a finalized
// replica, and then the old ones go, durably, before anybody can change the new one: a start that finds both has two of the same bytes. What a start finds under the names above is
// removed.
const (
	movingData = ".moving"
	movingSums = ".movingsums"
)

func (v *volume) movingPath(b metadata.Block, ext string) string {
	return filepath.Join(v.dirOf(b.ID), fmt.Sprintf("blk_%d_%d%s", b.ID, b.Generation, ext))
}

// isMoving reports whether a file is of a move that has not ended.
func isMoving(name string) bool {
	return strings.HasPrefix(name, "blk_") && (strings.HasSuffix(name, movingData) || strings.HasSuffix(name, movingSums))
}

// again does something with the replica of b, which it holds meanwhile, and repeats what did not find it because it was moved to another volume.
func again[T any](s *Store, b metadata.Block, do func(*replica) (T, error)) (T, error) {
	for {
		r := s.get(b.ID)
		if r == nil {
			var none T
			return none, notFound(b)
		}
		out, err := do(r)
		moved := r.away.Load()
		s.letGo(r)
		if err == nil || !moved {
			return out, err
		}
	}
}

// Move puts the finalized replica of b on a volume of a type, and announces it as received there; one that is on such a volume already is only announced. Every byte is
// compared with its checksum on the way. Readers go on, also those that have the replica open. pace, unless nil, is called before n bytes are copied; it may wait, and an error ends the move.
//
// Errors: ErrReplicaNotFound; ErrInvalidArgument, the replica is not finalized or not b's generation; ErrCorrupt; ErrNoSpace, no volume of the type has room; ErrRetriable, it is
// being moved, or changed meanwhile; ErrIO.
func (s *Store) Move(ctx context.Context, b metadata.Block, typ datanode.StorageType, pace func(n int64) error) error {
	if err := s.move(ctx, b, typ, "", pace); err != nil {
		return fmt.Errorf("move %v to %v: %w", b, typ, err)
	}
	return nil
}

// MoveTo is Move to the volume with a storage uuid, for whoever evens out the volumes of a type. ErrNoSpace: that one has no room, or is not there.
func (s *Store) MoveTo(ctx context.Context, b metadata.Block, storage string, pace func(n int64) error) error {
	if err := s.move(ctx, b, 0, storage, pace); err != nil {
		return fmt.Errorf("move %v to %s: %w", b, storage, err)
	}
	return nil
}

// move is Move; with a storage, only to that volume.
func (s *Store) move(ctx context.Context, b metadata.Block, typ datanode.StorageType, storage string, pace func(n int64) error) error {
	m, err := s.beginMove(b.ID)
	if err != nil {
		return err
	}
	defer s.moves.CompareAndDelete(b.ID, m)
	r := s.get(b.ID)
	defer s.letGo(r)
	if r == nil || !r.acquire(&r.mu) {
		return notFound(b)
	}
	view, bad, gone := r.viewLocked(), r.bad, r.gone
	there := r.vol.typ == typ && storage == "" || r.vol.id.Storage == storage
	if there && !gone && view.State == datanode.Finalized && !bad {
		s.emit(datanode.Received, view)
	}
	r.mu.Unlock()
	switch {
	case gone:
		return notFound(b)
	case bad:
		return metadata.Errorf(metadata.ErrCorrupt, "the replica is damaged")
	case view.State != datanode.Finalized || view.Block.Generation != b.Generation:
		return metadata.Errorf(metadata.ErrInvalidArgument, "the replica %v is %v", view.Block, view.State) // by now it may be another
	case there:
		return nil
	case s.leaveTo(r, typ, storage):
		return nil
	}
	b = view.Block
	v, err := s.chooseFor(typ, storage, b.Length)
	if err != nil {
		return err
	}
	m.Store(v)
	v.expected.Add(b.Length)
	defer v.expected.Add(-b.Length)
	c, err := s.copyAway(ctx, r, b, v, pace)
	if err != nil {
		return err
	}
	return s.swap(r, c)
}

// beginMove notes that a block's replica is copied to the volume that the caller puts into what is returned, when it is known. One that is copied to a volume
// which has failed since, and whose copier waits for its disk, is not: that volume takes no changes any more.
func (s *Store) beginMove(id metadata.BlockID) (*atomic.Pointer[volume], error) {
	m := new(atomic.Pointer[volume])
	for {
		other, busy := s.moves.LoadOrStore(id, m)
		if !busy {
			return m, nil
		}
		if to := other.(*atomic.Pointer[volume]).Load(); to == nil || to.err() == nil {
			return nil, metadata.Errorf(metadata.ErrRetriable, "the replica is being moved")
		}
		if s.moves.CompareAndSwap(id, other, m) {
			return m, nil
		}
	}
}

// leaveTo makes a copy that was saved where a replica in memory is to go the replica.
func (s *Store) leaveTo(r *replica, typ datanode.StorageType, storage string) bool {
	c := r.saved.Load()
	if c == nil || storage == "" && c.v.typ != typ || storage != "" && c.v.id.Storage != storage || !r.acquire(&r.io) {
		return false
	}
	defer r.io.Unlock()
	return s.instead(r, false)
}

// chooseFor picks a volume of a type, or the one with a storage uuid, that has room for n bytes, a slow one only where there is no other. Nothing moves to memory.
func (s *Store) chooseFor(typ datanode.StorageType, storage string, n int64) (*volume, error) {
	start, all := int(s.next.Add(1)), s.all()
	var firstErr error
	for i := range 2 * len(all) {
		v := all[(start+i)%len(all)]
		if v.err() != nil || v.slow.Load() != (i >= len(all)) || v.inMemory() || storage == "" && v.typ != typ || storage != "" && v.id.Storage != storage {
			continue
		}
		room, err := v.room(n)
		switch {
		case err == nil && room > 0 && room >= n:
			return v, nil
		case err != nil && firstErr == nil:
			firstErr = err
		}
	}
	if firstErr != nil {
		return nil, firstErr
	}
	if storage != "" {
		return nil, metadata.Errorf(metadata.ErrNoSpace, "volume %s does not work, or has less than %d bytes left above its reserve", storage, max(1, n))
	}
	return nil, metadata.Errorf(metadata.ErrNoSpace, "no volume of type %v has %d bytes left above its reserve", typ, max(1, n))
}

// moved is a copy of a replica on another volume that nobody knows yet.
type moved struct {
	b metadata.Block
	v *volume
	// named: the files have the names of a finalized replica.
	named atomic.Bool
}

// discard removes the files, durably if a start would take them for a replica.
func (c *moved) discard() error {
	var errs []error
	if c.named.Load() {
		if errs = append(errs, c.v.remove(c.b.ID, c.b.Generation, sufMeta)); errs[0] == nil {
			errs = append(errs, c.v.commit(&commit{dir: c.v.dirOf(c.b.ID)}))
		}
	}
	for _, ext := range []string{movingSums, movingData} {
		errs = append(errs, c.v.check(removeFile(c.v.fs, c.v.movingPath(c.b, ext))))
	}
	return errors.Join(errs...)
}

// copyAway copies a replica to another volume, durably, under names that mean nothing.
func (s *Store) copyAway(ctx context.Context, r *replica, b metadata.Block, v *volume, pace func(n int64) error) (*moved, error) {
	rd, err := s.openReader(r, b)
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	if rd.view.State != datanode.Finalized || rd.view.Block != b {
		return nil, errChanged
	}
	if err := rd.checkSizes(); err != nil {
		return nil, err
	}
	if err := v.ensureDir(b.ID); err != nil {
		return nil, err
	}
	const flag = os.O_RDWR | os.O_CREATE | os.O_TRUNC
	c := &moved{b: b, v: v}
	data, err := v.fs.OpenFile(v.movingPath(b, movingData), flag, 0o600)
	if err != nil {
		return nil, v.check(err)
	}
	defer data.Close()
	sums, err := v.fs.OpenFile(v.movingPath(b, movingSums), flag, 0o600)
	if err != nil {
		return nil, errors.Join(v.check(err), c.discard())
	}
	defer sums.Close()
	if err := rd.copyTo(ctx, v, data, sums, pace); err != nil {
		return nil, errors.Join(err, c.discard())
	}
	if err := v.commit(&commit{files: []vfs.File{data, sums}}); err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

var errChanged = metadata.Errorf(metadata.ErrRetriable, "the replica changed meanwhile")

// copyTo writes all that is read, verified, into two files, as finalize would leave them.
func (rd *reader) copyTo(ctx context.Context, v *volume, data, sums vfs.File, pace func(n int64) error) error {
	length := rd.view.Visible
	if _, err := sums.WriteAt(encodeHeader(rd.view.Block.ID, rd.sum), 0); err != nil {
		return v.check(err)
	}
	if length%chunk != 0 {
		t := tail{length: length, crc: rd.lastCRC, seq: 1}
		if _, err := sums.WriteAt(t.encode(), t.offset()); err != nil {
			return v.check(err)
		}
	}
	buf := make([]byte, min(verifyStep, length))
	var crcs []byte
	for off := int64(0); off < length; off += verifyStep {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(verifyStep, length-off)]
		if pace != nil {
			if err := pace(int64(len(p))); err != nil {
				return err
			}
		}
		var err error
		if crcs, err = rd.Sums(crcs[:0], off, off+int64(len(p))); err != nil {
			return err
		}
		if _, err := rd.ReadAt(p, off); err != nil {
			return err
		}
		if err := verify(tableOf(rd.sum), p, crcs); err != nil {
			return rd.mismatch(off, err)
		}
		rd.forget(off, off+int64(len(p)))
		if _, err := data.WriteAt(p, off); err != nil {
			return v.check(err)
		}
		if _, err := sums.WriteAt(crcs, sumOffset(off)); err != nil {
			return v.check(err)
		}
		data.Writeback(off, int64(len(p)))
	}
	return nil
}

// swap makes the copy the block's replica, if the old one is still what was copied. What is left of the old one goes durably, before anybody changes the new one: of two with the
// same generation a start would take the finished one, which might be the old one.
func (s *Store) swap(r *replica, c *moved) (err error) {
	if !r.acquire(&r.io) {
		return errors.Join(r.vol.err(), c.discard())
	}
	defer r.io.Unlock()
	defer func() {
		if err != nil { // before anybody changes the old one, for the same reason
			err = errors.Join(err, c.discard())
		}
	}()
	if !c.copies(r) || !s.is(r) { // on a volume that has failed: another one may have its place
		return errors.Join(errChanged, r.vol.err())
	}
	if err := r.unsave(); err != nil { // it may be where this one is to be
		return err
	}
	if err := c.name(); err != nil {
		return err
	}
	return s.replace(r, c, false)
}

// arrives reports whether a copy of a replica, whose volume may have failed, has the names of a replica on another volume, or is about to get them:
// it takes the replica's place, and no other replica of the block may have those names. The lock of the replica's shard is held.
func (s *Store) arrives(r *replica) bool {
	_, moves := s.moves.Load(r.id)
	c, onto := r.saved.Load(), r.onto.Load()
	return moves || c != nil && c.v.err() == nil || onto != nil && onto.err() == nil
}

// copies reports whether a replica is what was copied, and nobody is about to change it. r.io is held.
func (c *moved) copies(r *replica) bool {
	if !r.acquire(&r.mu) {
		return false
	}
	defer r.mu.Unlock()
	return c.copiesLocked(r)
}

// copiesLocked is copies with r.mu held.
func (c *moved) copiesLocked(r *replica) bool {
	return !r.bad && c.isOf(r)
}

// isOf is copiesLocked of a replica that may be damaged.
func (c *moved) isOf(r *replica) bool {
	return !r.gone && r.recovery == 0 && r.state == datanode.Finalized && r.blockLocked() == c.b
}

// size is what the files take.
func (c *moved) size() int64 { return c.b.Length + sumsSize(c.b.Length) }

// name gives the files the names of a finalized replica, durably.
func (c *moved) name() error {
	v, b := c.v, c.b
	return v.commit(&commit{dir: v.dirOf(b.ID), rename: func() error {
		if err := v.dropStrays(b.ID); err != nil {
			return err
		}
		if err := v.fs.Rename(v.movingPath(b, movingData), v.dataPath(b.ID)); err != nil {
			return err
		}
		c.named.Store(true)
		return v.fs.Rename(v.movingPath(b, movingSums), v.sumsPath(b.ID, b.Generation, sufMeta))
	}})
}

// replace makes a copy that has its names the block's replica, and removes the old one, which may be damaged if the caller says so. r.io is held.
func (s *Store) replace(r *replica, c *moved, damaged bool) error {
	v, b := c.v, c.b
	n := &replica{vol: v, id: b.ID, gen: b.Generation, length: b.Length, state: datanode.Finalized, suffix: sufMeta}
	n.users.Add(1)
	defer s.letGo(n)
	n.io.Lock()
	defer n.io.Unlock()
	n.mu.Lock()
	r.mu.Lock()
	sh := s.shard(b.ID)
	sh.mu.Lock()
	if !(c.copiesLocked(r) || damaged && c.isOf(r)) || sh.replicas[b.ID] != r || v.leaving.Load() || v.failed.Load() != nil { // a recovery has begun, or the volume goes
		sh.mu.Unlock()
		r.mu.Unlock()
		n.mu.Unlock()
		return errChanged
	}
	r.gone = true
	r.away.Store(true)
	s.enterLocked(sh, n)
	sh.mu.Unlock()
	size := c.size()
	r.vol.replicas.Add(-1)
	r.vol.used.Add(-size)
	v.replicas.Add(1)
	v.used.Add(size)
	r.mu.Unlock()
	view := n.viewLocked()
	s.emit(datanode.Received, view)
	n.mu.Unlock()
	if r.vol.err() != nil {
		return nil
	}
	if err := r.discardDurably(); err != nil {
		s.log.Warn("what a replica that was moved has left is not removed", "block", b.String(), "volume", r.vol.id.Storage, "err", err)
	}
	return nil
}

// discardDurably removes what is on disk of a replica that nobody can reach any more, so that no start finds it. r.io is held.
func (r *replica) discardDurably() error {
	v := r.vol
	if at := r.packed; at != nil {
		at.p.live.Add(1) // not removed before it was synced
		err := at.drop()
		if err == nil {
			err = v.commit(&commit{pack: at.p})
		}
		at.p.release()
		return err
	}
	if err := r.discard(); err != nil {
		return err
	}
	return v.commit(&commit{dir: v.dirOf(r.id)})
}
