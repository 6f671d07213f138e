package blockstore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// The trash keeps what the namenode does not want, but nobody has deleted: replicas that were being written when their
// datanode went away and that came back after the block had been recovered without them, those of old generations, and
// damaged ones that were replaced. A person can put such bytes together by hand; nothing here reads them.
//
// A replica goes there by its two files getting other names in their directory, first the data:
//
//	blk_<id>_<generation>_<seconds>.lost       data
//	blk_<id>_<generation>_<seconds>.lostsums   checksums, as FORMAT.md has them
//
// where seconds is the Unix time. It is removed after Config.Keep, of which a process that finds it takes the part to be over that its clock says then, earlier when new replicas need the room or when the
// trash is larger than a twentieth of the volume, the oldest first.
const (
	lostData = ".lost"
	lostSums = ".lostsums"
	// trashShare is the part of a volume that the trash may take.
	trashShare = 20
	// DefaultKeep is how long the trash keeps a replica.
	DefaultKeep = 24 * time.Hour
)

// trash is what a volume keeps of replicas that are gone.
type trash struct {
	mu    sync.Mutex
	items []lost // the oldest first
	// bytes of all items.
	bytes atomic.Int64
	// keep is how long; negative: nothing is kept. limit is how many bytes.
	keep  time.Duration
	limit int64
	// now is the clock, which names are made of. It may be wrong, or be set; age goes by up, how long this process has been up.
	now func() time.Time
	up  func() time.Duration
}

// lost is one replica in the trash.
type lost struct {
	id   metadata.BlockID
	gen  metadata.Generation
	at   int64 // Unix seconds
	size int64 // of both files
	// since when it is there, as trash.up has it; of one that was found at the start that may be before 0.
	since time.Duration
}

// startedAt is when this process did.
var startedAt = time.Now()

// upTime is how long this process has been up, whatever is done to the clock.
func upTime() time.Duration { return time.Since(startedAt) }

// sinceOf is since when an item is there that was found with a time in its name: not since a time that has not come, by a clock that was ahead when it was made, or is behind now.
func (t *trash) sinceOf(at int64) time.Duration {
	return t.up() - max(t.now().Sub(time.Unix(at, 0)), 0)
}

// path is the name of one of the two files.
func (v *volume) lostPath(l lost, ext string) string {
	return filepath.Join(v.dirOf(l.id), fmt.Sprintf("blk_%d_%d_%d%s", l.id, l.gen, l.at, ext))
}

// parseLost is the inverse of lostPath.
func parseLost(name string) (l lost, ext string, ok bool) {
	base, ok := strings.CutSuffix(name, lostSums)
	ext = lostSums
	if !ok {
		base, ok = strings.CutSuffix(name, lostData)
		ext = lostData
	}
	parts := strings.Split(base, "_")
	if !ok || len(parts) != 4 || parts[0] != "blk" {
		return lost{}, "", false
	}
	id, err1 := strconv.ParseInt(parts[1], 10, 64)
	gen, err2 := strconv.ParseUint(parts[2], 10, 64)
	at, err3 := strconv.ParseInt(parts[3], 10, 64)
	l = lost{id: metadata.BlockID(id), gen: metadata.Generation(gen), at: at}
	return l, ext, errors.Join(err1, err2, err3) == nil && name == fmt.Sprintf("blk_%d_%d_%d%s", id, gen, at, ext)
}

// add enters an item.
func (t *trash) add(l lost) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.items = append(t.items, l)
	t.bytes.Add(l.size)
}

// sort brings the items that were found at start into their order.
func (t *trash) sort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.items, func(a, b lost) int { return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.at, b.at)) })
}

// oldest takes the first item out if it is due: it has been kept long enough, the trash is too large, or its room is wanted.
func (t *trash) oldest(wanted bool) (lost, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.items) == 0 {
		return lost{}, false
	}
	l := t.items[0]
	if !wanted && t.bytes.Load() <= t.limit && t.up()-l.since < t.keep {
		return lost{}, false
	}
	t.items = t.items[1:]
	t.bytes.Add(-l.size)
	return l, true
}

// emptyTrash removes what is due, and more until about want bytes are free again.
func (v *volume) emptyTrash(want int64) error {
	for v.err() == nil {
		l, ok := v.trash.oldest(want > 0)
		if !ok {
			return nil
		}
		want -= l.size
		if err := v.removeLost(l); err != nil {
			return err
		}
	}
	return nil
}

// removeLost removes the files of an item.
func (v *volume) removeLost(l lost) error {
	for _, ext := range []string{lostSums, lostData} {
		if err := removeFile(v.fs, v.lostPath(l, ext)); err != nil {
			return v.check(err)
		}
	}
	return nil
}

// EmptyTrash removes from a volume's trash what has been there long enough.
func (s *Store) EmptyTrash(storage string) error {
	for _, v := range s.all() {
		if v.id.Storage == storage {
			return v.emptyTrash(0)
		}
	}
	return nil
}

// Discard implements datanode.BlockStore.
func (s *Store) Discard(b metadata.Block) error { return s.delete(b, true) }

// bin moves what is on disk of a replica into the trash. r.io is held.
func (r *replica) bin() error {
	v := r.vol
	l := lost{id: r.id, gen: r.gen, at: v.trash.now().Unix(), since: v.trash.up(), size: r.length + sumsSize(r.length)}
	if v.trash.keep < 0 || r.length == 0 || r.state == datanode.Temporary || l.size > v.trash.limit {
		return r.discard()
	}
	if r.packed != nil {
		sums, data, err := r.packed.read(nil)
		if ofProcess(err) {
			v.leaveAlone(r) // the next start finds it again, unless the block comes again before
			return v.check(err)
		}
		if err != nil {
			return r.discard() // there is nothing left of it
		}
		if err := v.writeLost(l, sums, data); errors.Is(err, metadata.ErrNoSpace) {
			v.log.Warn("replica not kept in the trash", "block", int64(r.id), "volume", v.id.Storage, "err", err)
			return errors.Join(v.removeLost(l), r.discard())
		} else if err != nil {
			return err
		}
		v.trash.add(l)
		return errors.Join(r.packed.drop(), v.emptyTrash(0))
	}
	if err := v.fs.Rename(v.dataPath(r.id), v.lostPath(l, lostData)); ofProcess(err) {
		v.leaveAlone(r) // as above
		return v.check(err)
	} else if err != nil {
		return errors.Join(v.check(err), r.discard()) // vanished behind our back
	}
	if err := v.fs.Rename(r.sumsPath(), v.lostPath(l, lostSums)); err != nil {
		return errors.Join(v.check(err), r.discard())
	}
	v.trash.add(l)
	return v.emptyTrash(0)
}

// writeLost makes files in the trash for a packed replica.
func (v *volume) writeLost(l lost, sums, data []byte) error {
	if err := v.ensureDir(l.id); err != nil {
		return err
	}
	write := func(ext string, pieces ...[]byte) error {
		f, err := v.fs.OpenFile(v.lostPath(l, ext), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err == nil {
			err = errors.Join(f.WriteAllAt(pieces, 0), f.Close())
		}
		return v.check(err)
	}
	if err := write(lostData, data); err != nil {
		return err
	}
	return write(lostSums, encodeHeader(l.id, datanode.DefaultChecksum), sums)
}

// loadLost enters a file of the trash that was found at start. A pair is one item, entered with its data.
func (s *Store) loadLost(v *volume, l lost, ext string) error {
	if ext != lostData {
		return nil
	}
	for _, e := range []string{lostData, lostSums} {
		info, err := v.fs.Stat(v.lostPath(l, e))
		if err == nil {
			l.size += info.Size
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	l.since = v.trash.sinceOf(l.at)
	v.trash.add(l)
	return nil
}
