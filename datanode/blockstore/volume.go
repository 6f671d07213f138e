package blockstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// volume is one directory, normally one disk.
type volume struct {
	fs      vfs.FS
	path    string
	typ     datanode.StorageType
	reserve int64
	log     *slog.Logger
	onFail  func(*volume)
	lock    io.Closer
	id      Identity
	places  *places // of the store
	at      uint32  // the place of replicas in files

	used     atomic.Int64 // bytes of replicas and checksums
	expected atomic.Int64 // bytes that open replicas will probably still write
	replicas atomic.Int64
	failed   atomic.Pointer[error]
	calls    calls
	sends    sends
	slow     atomic.Bool   // a call of the disk does not come back
	mute     atomic.Bool   // one that reads does not
	left     bool          // it was told that the volume was given up; only the watchdog looks
	hung     atomic.Bool   // it was given up for that
	gaveUp   atomic.Int64  // when, in Unix nanoseconds
	leaving  atomic.Bool   // its replicas are being taken out, and none comes any more; set before the shards are looked through
	gone     chan struct{} // closed when the volume has failed
	unlocked chan struct{} // closed when the lock of one that was given back is free
	silent   chan struct{} // closed when the disk does not answer while the store is being opened
	telling  sync.Mutex    // held by who writes which others there are
	guessed  bool          // it was never opened, and its name is a guess, see nameBroken
	broken   error         // why it could not be opened; only while the store is being opened
	// unreadable is how many places could not be read when the volume was opened.
	unreadable atomic.Int64

	index     volumeIndex
	trash     trash
	unsettled unsettled
	memory    memory // of one of type RAM_DISK
	// evict lets saved replicas leave such a volume, see Store.evict; else nil.
	evict func(n int64) bool

	usageMu sync.Mutex
	asking  *asking // nil: nobody asks
	// usageWait, endWait and indexWait are the constants, less in tests.
	usageWait, endWait, indexWait time.Duration
	lastUse                       vfs.Usage

	dirMu sync.Mutex
	dirs  map[string]bool // subdirectories that exist durably
	// strays are the replicas that were left alone (Store.admitLate), by block.
	strays map[metadata.BlockID][]stray
	// dropping are the blocks whose strays somebody is removing; closed when that has ended.
	dropping map[metadata.BlockID]chan struct{}

	packMu  sync.Mutex
	pack    *pack  // that records are appended to, nil before the first
	packSeq uint64 // of the newest pack
	// packLimit and packSize are the constants, less in tests.
	packLimit, packSize int64

	lead    chan struct{} // held by whoever runs a batch of commits
	queueMu sync.Mutex
	queue   []*commit
	batches atomic.Int64
	commits atomic.Int64
}

func newVolume(fsys vfs.FS, path string, typ datanode.StorageType, reserve int64, log *slog.Logger) *volume {
	v := &volume{gone: make(chan struct{}), silent: make(chan struct{}), path: path, typ: typ, reserve: reserve, log: log, dirs: map[string]bool{}, lead: make(chan struct{}, 1), packLimit: packLimit, packSize: packSize}
	v.fs = watched{fsys, v}
	v.trash.up = upTime
	v.trash.now, v.usageWait, v.endWait, v.indexWait = time.Now, usageWait, endWait, indexLast
	return v
}

// fail gives the volume up. An error of a disk is final: after a failed fsync nobody knows what is on it.
func (v *volume) fail(cause error) {
	if v.failed.CompareAndSwap(nil, &cause) {
		close(v.gone)
		v.log.Error("volume failed", "volume", v.id.Storage, "path", v.path, "err", cause)
		v.onFail(v)
	}
}

// err is why the volume cannot be used, nil while it can.
func (v *volume) err() error {
	if p := v.failed.Load(); p != nil {
		return fmt.Errorf("volume %s failed: %w: %w", v.path, *p, metadata.ErrIO)
	}
	return nil
}

// check turns an error of a disk operation into one of metadata's kinds, and fails the volume unless the disk is merely
// full.
func (v *volume) check(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("volume %s: %w: %w", v.path, err, metadata.ErrNoSpace)
	case ofProcess(err):
		return fmt.Errorf("volume %s: %w: %w", v.path, err, metadata.ErrIO)
	case errors.Is(err, fs.ErrNotExist):
		if _, gone := v.fs.Stat(filepath.Join(v.path, versionFile)); gone == nil {
			return fmt.Errorf("volume %s: %w: %w", v.path, err, metadata.ErrCorrupt) // a file is missing, not the disk
		}
	}
	v.fail(err)
	return fmt.Errorf("volume %s: %w: %w", v.path, err, metadata.ErrIO)
}

// ofProcess reports whether an error is one of this process or its machine, which has too many files open or no memory left: it says nothing of a disk, nor of what is on it.
func ofProcess(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// checkSync is check for fsync, after whose failure, even for want of space, nobody knows what is on the disk.
func (v *volume) checkSync(err error) error {
	if err != nil {
		v.fail(err)
	}
	return v.check(err)
}

// probe finds out whether the disk still takes writes, after a read failed. An error, of kind ErrIO: it does not, and the volume has failed, or this process cannot ask it just now, and what could not
// be read is as good as it was.
func (v *volume) probe() error {
	name := filepath.Join(v.path, probeFile)
	f, err := v.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteAt([]byte("probe"), 0)
		if err == nil {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close(), v.fs.Remove(name))
	}
	err = v.check(err)
	if failed := v.err(); failed != nil {
		return failed
	}
	if ofProcess(err) {
		return err
	}
	return nil
}

// ofMedium reports whether an error says that the disk cannot read what is there.
func ofMedium(err error) bool {
	for _, e := range []syscall.Errno{syscall.EIO, syscall.EBADMSG, syscall.ENODATA, syscall.EILSEQ} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// mostUnread is how many places that cannot be read a volume may have when it is opened: each takes a disk seconds, and one that has more is about to fail.
const mostUnread = 256

// skip judges an error of reading something while the volume is opened. nil: it is of what was to be read, which is counted, and the rest is worth to be opened, as the volume takes a write.
func (v *volume) skip(err error) error {
	if !ofMedium(err) {
		return err
	}
	if n := v.unreadable.Add(1); n > mostUnread {
		return fmt.Errorf("%d places cannot be read, the last one because of: %w", n, err)
	}
	return v.cannotTell(err)
}

// readUpTo reads as much of p as the disk can read; the error says why that is not all. It is nil where the file ends.
func readUpTo(f vfs.File, p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	if err == nil || errors.Is(err, io.EOF) {
		return n, nil
	}
	for n = 0; n < len(p); {
		step := min(len(p)-n, int(pageSize-(off+int64(n))%pageSize))
		k, err := f.ReadAt(p[n:n+step], off+int64(n))
		n += k
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// cannotTell is why an error of a read says nothing of what was to be read; nil: the volume works otherwise, so it does.
func (v *volume) cannotTell(err error) error {
	if ofProcess(err) {
		return v.check(err)
	}
	return v.probe()
}

// room is how many bytes new replicas may take: what is free, less the reserve, less what open ones will take. If that is
// less than want, the trash makes room, or saved replicas leave memory.
func (v *volume) room(want int64) (int64, error) {
	for {
		u, err := v.usage()
		if errors.Is(err, errSilent) {
			return 0, fmt.Errorf("volume %s: %w", v.path, err)
		}
		if err != nil {
			return 0, v.check(err)
		}
		free := u.Free - v.reserve - v.expected.Load()
		lacks := max(want, 1) - free
		if lacks > 0 && lacks <= v.memory.bytes.Load() && v.evict(lacks) {
			continue
		}
		if lacks <= 0 || lacks > v.trash.bytes.Load() {
			return max(0, free), nil
		}
		var on atomic.Pointer[volume]
		on.Store(v)
		if err := patiently(&on, func() error { return v.emptyTrash(lacks) }); err != nil {
			return 0, err
		}
	}
}

func (v *volume) status() datanode.VolumeStatus {
	s := datanode.VolumeStatus{ID: v.id.Storage, Path: v.path, Type: v.typ}
	if err := v.err(); err != nil {
		s.Failed = err
		return s
	}
	s.Used, s.Replicas, s.Slow = v.used.Load(), int(v.replicas.Load()), v.slow.Load()
	s.Opened = datanode.Opened{Indexed: int(v.index.taken.Load()), Scanned: int(v.index.scanned.Load()), Unread: int(v.unreadable.Load()), Took: time.Duration(v.index.took.Load())}
	if u, err := v.usage(); err == nil || errors.Is(err, errSilent) {
		s.Capacity = max(0, u.Total-v.reserve)
		s.Remaining = max(0, u.Free+v.trash.bytes.Load()+v.memory.bytes.Load()-v.reserve) // the trash makes room, and so does what was saved
	}
	return s
}

// ensureDir makes the directory of a block, durably.
func (v *volume) ensureDir(id metadata.BlockID) error {
	dir := v.dirOf(id)
	v.dirMu.Lock()
	defer v.dirMu.Unlock()
	if v.dirs[dir] {
		return nil
	}
	if err := v.mkdir(dir); err != nil {
		return v.check(err)
	}
	v.dirs[dir] = true
	return nil
}

// stray is a replica that was found on a volume and is none that anybody knows: a record, which keeps its pack, or files.
type stray struct {
	gen    metadata.Generation
	packed *slot
	sums   string // the checksum file of one in files
}

// leaveAlone notes that a replica that was found on the volume is none that anybody knows.
func (v *volume) leaveAlone(r *replica) {
	one := stray{gen: r.gen, packed: r.packed}
	if r.packed == nil {
		one.sums = r.sumsPath()
	}
	v.dirMu.Lock()
	defer v.dirMu.Unlock()
	if v.strays == nil {
		v.strays = map[metadata.BlockID][]stray{}
	}
	v.strays[r.id] = append(v.strays[r.id], one)
}

// hasStray reports whether a replica of a block was left alone that is of a generation or a newer one.
func (v *volume) hasStray(id metadata.BlockID, gen metadata.Generation) bool {
	v.dirMu.Lock()
	defer v.dirMu.Unlock()
	return slices.ContainsFunc(v.strays[id], func(one stray) bool { return one.gen >= gen })
}

// dropStrays removes what was left alone of a block, durably, before other data gets the name of its data, or a record of the block is written: no start may take the files for
// those of the other data, nor keep a record or files of what was left alone in place of what came later. It commits nothing, as it runs in commits. Of two who come for a block one waits for the other; what could not be removed is
// left for whoever comes next. Nobody else waits for the disk.
func (v *volume) dropStrays(id metadata.BlockID) error {
	v.dirMu.Lock()
	defer v.dirMu.Unlock()
	for len(v.strays[id]) > 0 {
		if busy := v.dropping[id]; busy != nil {
			v.dirMu.Unlock()
			select {
			case <-busy:
			case <-v.gone: // who is busy may never come back
			}
			v.dirMu.Lock()
			if err := v.err(); err != nil {
				return err
			}
			continue
		}
		one := v.strays[id][0] // it stays there until it is gone
		done := make(chan struct{})
		if v.dropping == nil {
			v.dropping = map[metadata.BlockID]chan struct{}{}
		}
		v.dropping[id] = done
		v.dirMu.Unlock()
		err := v.dropStray(id, &one)
		v.dirMu.Lock()
		delete(v.dropping, id)
		close(done)
		if err != nil {
			return err
		}
		if v.strays[id] = v.strays[id][1:]; len(v.strays[id]) == 0 {
			delete(v.strays, id)
		}
	}
	return nil
}

func (v *volume) dropStray(id metadata.BlockID, one *stray) error {
	if at := one.packed; at != nil {
		return at.dropDurably()
	}
	if err := removeFile(v.fs, one.sums); err != nil {
		return v.check(err)
	}
	return v.checkSync(v.fs.SyncDir(v.dirOf(id)))
}

// mkdir makes a directory of the volume, durably. Where the volume itself is gone, because its disk is not mounted any more, nothing is made: it
// would lie on another disk.
func (v *volume) mkdir(dir string) error {
	if _, err := v.fs.Stat(filepath.Join(v.path, versionFile)); err != nil {
		return err
	}
	return mkdirAll(v.fs, dir)
}

// commit is a change to be made durable: first the files, then a rename, then the directory; or a pack with all that has
// been appended to it.
type commit struct {
	pack  *pack
	files []vfs.File
	// tail is written to the last file when those before it are durable: it may only speak of data that is. Nil: there is none to write.
	tail *tail
	// rename runs when the files are durable, may be nil.
	rename func() error
	// dir is synced at the end, unless it is empty.
	dir  string
	done chan error
}

// flushers is how many files of a batch are synced at the same time.
const flushers = 4

// commit performs c. Commits that come while another batch runs are put together in the next one, where one fsync of a
// directory, or of a pack, serves all of them. There is no goroutine to start: whoever comes first runs the batch.
func (v *volume) commit(c *commit) error {
	c.done = make(chan error, 1)
	v.queueMu.Lock()
	v.queue = append(v.queue, c)
	v.queueMu.Unlock()
	select {
	case err := <-c.done:
		return err
	case <-v.gone: // who runs a batch may never come back
		return v.err()
	case v.lead <- struct{}{}:
		runtime.Gosched() // who is about to commit comes along; when nothing else runs this costs nothing
		v.queueMu.Lock()
		batch := v.queue
		v.queue = nil
		v.queueMu.Unlock()
		if len(batch) > 0 {
			v.run(batch)
		}
		<-v.lead
		return <-c.done
	}
}

func (v *volume) run(batch []*commit) {
	v.batches.Add(1)
	v.commits.Add(int64(len(batch)))
	if p := batch[0].pack; p != nil && !slices.ContainsFunc(batch, func(c *commit) bool { return c.pack != p }) {
		err := v.err() // small blocks only: there is nothing to do side by side
		if err == nil {
			err = v.checkSync(p.sync())
		}
		for _, c := range batch {
			c.done <- err
		}
		return
	}
	errs := make([]error, len(batch))
	var g errgroup.Group
	g.SetLimit(flushers)
	packs := map[*pack]*error{}
	for i, c := range batch {
		if c.pack != nil {
			if packs[c.pack] == nil {
				err := new(error)
				packs[c.pack] = err
				g.Go(func() error {
					if *err = v.err(); *err == nil {
						*err = v.checkSync(c.pack.sync())
					}
					return nil
				})
			}
			continue
		}
		g.Go(func() error {
			for k, f := range c.files {
				if errs[i] = v.err(); errs[i] == nil && c.tail != nil && k == len(c.files)-1 {
					_, err := f.WriteAt(c.tail.encode(), c.tail.offset())
					errs[i] = v.check(err)
				}
				if errs[i] == nil {
					errs[i] = v.checkSync(f.Sync())
				}
				if errs[i] != nil {
					break
				}
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs and packs
	dirs := map[string]error{}
	for i, c := range batch {
		if c.pack != nil {
			errs[i] = *packs[c.pack]
		}
		if errs[i] == nil && c.rename != nil {
			if errs[i] = v.err(); errs[i] == nil { // who waited has gone, and takes it for not done
				errs[i] = v.check(c.rename())
			}
		}
		if errs[i] == nil && c.dir != "" {
			dirs[c.dir] = nil
		}
	}
	for d := range dirs {
		dirs[d] = v.checkSync(v.fs.SyncDir(d))
	}
	for i, c := range batch {
		if errs[i] == nil && c.dir != "" {
			errs[i] = dirs[c.dir]
		}
		c.done <- errs[i]
	}
}

// remove deletes a replica's files, the checksum file first: without it the data is no replica.
func (v *volume) remove(id metadata.BlockID, gen metadata.Generation, s suffix) error {
	return v.removeFiles(v.sumsPath(id, gen, s), v.dataPath(id))
}

// removeFiles removes files that may be gone already.
func (v *volume) removeFiles(names ...string) error {
	for _, name := range names {
		if err := v.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return v.check(err)
		}
	}
	return nil
}
