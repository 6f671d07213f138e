package blockstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// The index of a volume remembers what a scan finds, so that a start need not scan again what has not changed: a file for each directory of blocks, and for each pack,
//
//	index/SSTT       of blocks/SS/TT
//	index/<n>.pack   of packs/<n>.pack
//
// which holds for one stamp of the file system. A stamp that is another one, or a file that is not there, torn, damaged, or of another volume, means a scan. FORMAT.md has the argument.
//
// Numbers are big-endian:
//
//	offset  size
//	  0      8   magic "HOPSIDX1"; the digit is the version
//	  8      8   inode number
//	 16     16   times of the last change (mtime, ctime) in Unix nanoseconds
//	 32      8   size of a pack; 0 of a directory
//	 40      8   how much of a pack is known to have been durable before its last record; 0 of a directory
//	 48     16   salt of a pack; zero of a directory
//	 64      4   number of replicas at rest
//	 68      4   number of others
//	 72          storage uuid of the volume, a slash and the file's own name, with their length before them as an uvarint
//	             for each replica at rest, in order: offset in its pack in units of 4096 (0 in a directory) as uvarint, id and generation as varints, each less that
//	             of the one before, and length as uvarint
//	             for each other: its name in the directory (with a slash behind that of a directory), or its offset in the pack in decimal digits, with its length before it as uvarint
//	             CRC32C of everything before
const (
	indexDir   = "index"
	indexMagic = "HOPSIDX1"
	indexHead  = 72
	// indexNew is the end of the name that an index is written under.
	indexNew = ".new"
	// indexClock is a file that is made to learn the time of the file system.
	indexClock = "clock" + indexNew
	// maxIndex is the size of the largest index that is written or read, in bytes: of more than a million replicas. While it is read it takes sixteen times as much at most.
	maxIndex = 16 << 20
)

const (
	// indexEvery is how often it is looked for what has changed.
	indexEvery = 10 * time.Second
	// indexQuiet is for how long something must not have changed before it is indexed while the store serves: it would change again.
	indexQuiet = 30 * time.Second
	// indexSure is how old a stamp has to be so that the next change has another one: more than the tick of any file system's clock.
	indexSure = 2 * time.Second
	// indexShare is the part of the time that is spent on it.
	indexShare = 20
	// indexLast is how long a shutdown may take for it.
	indexLast = 10 * time.Second
	// indexWorth is how many replicas take longer to scan than indexSure.
	indexWorth = 50_000
)

// version is what tells a directory or a pack from itself at another time.
type version struct {
	vfs.Stamp
	size int64 // of a pack
}

func versionOf(info vfs.Info) version {
	if info.Dir {
		return version{Stamp: info.Stamp}
	}
	return version{info.Stamp, info.Size}
}

// listing is what a scan finds in a directory or a pack.
type listing struct {
	version
	salt    []byte // of a pack
	durable int64  // of a pack, see pack.scan
	final   []listed
	// other are the names, or offsets, of everything that a start has to look at: what is open, temporary, damaged, in the trash, foreign.
	other []string
}

// listed is a replica at rest: finalized, durable, with files of the right sizes or in a pack.
type listed struct {
	at     int64 // offset in its pack
	id     metadata.BlockID
	gen    metadata.Generation
	length int64
}

// encode makes the file; owner says what it is of.
func (l *listing) encode(owner string) []byte {
	b := make([]byte, 0, indexHead+len(owner)+12*len(l.final)+48*len(l.other))
	b = append(b, indexMagic...)
	b = binary.BigEndian.AppendUint64(b, l.Inode)
	b = binary.BigEndian.AppendUint64(b, uint64(l.Modified))
	b = binary.BigEndian.AppendUint64(b, uint64(l.Changed))
	b = binary.BigEndian.AppendUint64(b, uint64(l.size))
	b = binary.BigEndian.AppendUint64(b, uint64(l.durable))
	b = append(b, l.salt...)
	b = append(b, make([]byte, saltSize-len(l.salt))...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.final)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.other)))
	b = append(binary.AppendUvarint(b, uint64(len(owner))), owner...)
	var last listed
	for _, e := range l.final {
		b = binary.AppendUvarint(b, uint64(e.at-last.at)/packAlign)
		b = binary.AppendVarint(b, int64(e.id-last.id))
		b = binary.AppendVarint(b, int64(e.gen-last.gen))
		b = binary.AppendUvarint(b, uint64(e.length))
		last = e
	}
	for _, name := range l.other {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	}
	return binary.BigEndian.AppendUint32(b, crcOf(b))
}

// decodeListing is the inverse of encode; nil: b is not whole, or of something else.
func decodeListing(b []byte, owner string) *listing {
	end := len(b) - 4
	if end < indexHead || string(b[:8]) != indexMagic || binary.BigEndian.Uint32(b[end:]) != crcOf(b[:end]) {
		return nil
	}
	l := &listing{
		version: version{vfs.Stamp{Inode: binary.BigEndian.Uint64(b[8:]), Modified: int64(binary.BigEndian.Uint64(b[16:])), Changed: int64(binary.BigEndian.Uint64(b[24:]))}, int64(binary.BigEndian.Uint64(b[32:]))},
		durable: int64(binary.BigEndian.Uint64(b[40:])),
		salt:    slices.Clone(b[48:64]),
	}
	finals, others := int(binary.BigEndian.Uint32(b[64:])), int(binary.BigEndian.Uint32(b[68:]))
	r := varints{b: b[indexHead:end]}
	if r.text() != owner || 4*finals+others > len(r.b) {
		return nil
	}
	l.final = make([]listed, finals)
	var last listed
	for i := range l.final {
		last.at += int64(r.unsigned()) * packAlign
		last.id += metadata.BlockID(r.signed())
		last.gen += metadata.Generation(r.signed())
		last.length = int64(r.unsigned())
		l.final[i] = last
	}
	l.other = make([]string, others)
	for i := range l.other {
		l.other[i] = r.text()
	}
	if r.bad || len(r.b) > 0 {
		return nil
	}
	return l
}

// varints takes numbers and texts off b; bad: there was not enough.
type varints struct {
	b   []byte
	bad bool
}

func (r *varints) unsigned() uint64 {
	x, n := binary.Uvarint(r.b)
	return took(r, x, n)
}

func (r *varints) signed() int64 {
	x, n := binary.Varint(r.b)
	return took(r, x, n)
}

func took[T any](r *varints, x T, n int) T {
	if n <= 0 {
		r.b, r.bad = nil, true
		return *new(T)
	}
	r.b = r.b[n:]
	return x
}

func (r *varints) text() string {
	n := r.unsigned()
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// volumeIndex is what a volume knows of its index.
type volumeIndex struct {
	busy atomic.Bool                        // somebody writes it
	stop atomic.Pointer[context.CancelFunc] // ends who is busy before
	mu   sync.Mutex
	of   map[string]version // by name, what each index is of
	// steps goes on while the index is being written.
	steps atomic.Int64
	// It was said that an index cannot be read, since the volume was opened, and that one cannot be written, since all could.
	unread, unwritten atomic.Bool
	// How many directories and packs were taken from the index, how many were scanned, and how long that took, when the volume was opened.
	taken, scanned atomic.Int64
	took           atomic.Int64 // nanoseconds
}

func (x *volumeIndex) set(key string, is version) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		x.of = map[string]version{}
	}
	x.of[key] = is
}

func (x *volumeIndex) get(key string) version {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.of[key]
}

func (x *volumeIndex) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.of)
}

// warnOnce is warn once, and debug from then on: what keeps one index from being used does so with thousands.
func warnOnce(told *atomic.Bool) slog.Level {
	if told.Swap(true) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// noIndex says, once, why the index is not written.
func (v *volume) noIndex(err error) {
	v.log.Log(context.Background(), warnOnce(&v.index.unwritten), "index cannot be written, the next start scans what has changed; replicas are as safe as with one",
		"volume", v.id.Storage, "path", filepath.Join(v.path, indexDir), "err", err)
}

// checkIndex is check for the index's own files, which nobody needs: what keeps them from being made or changed, but says nothing of the disk, is no end of a volume. One that takes no writes
// ends by the first that is needed.
func (v *volume) checkIndex(err error) error {
	if err == nil || errors.Is(err, syscall.EIO) {
		return v.check(err)
	}
	for _, mild := range []error{syscall.EROFS, syscall.ENOTDIR, syscall.EISDIR, syscall.EACCES, syscall.EPERM, syscall.EEXIST, syscall.ENOTEMPTY, syscall.ELOOP} {
		if errors.Is(err, mild) {
			return fmt.Errorf("volume %s: %w", v.path, err)
		}
	}
	return v.check(err)
}

// checkIndexSync is checkSync for what is synced only to be indexed: where the kernel has not even tried nobody waits for it.
func (v *volume) checkIndexSync(err error) error {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EROFS) {
		return v.checkIndex(err)
	}
	return v.checkSync(err)
}

// removeIndexes removes files of the index that may be gone already.
func (v *volume) removeIndexes(names ...string) error {
	for _, name := range names {
		if err := removeFile(v.fs, name); err != nil {
			return v.checkIndex(err)
		}
	}
	return nil
}

// part is a directory of blocks or a pack.
type part struct {
	key  string // the name of its index
	path string
	pack uint64 // number of a pack; 0 of a directory
	is   version
}

func dirPart(dir string) part {
	return part{key: filepath.Base(filepath.Dir(dir)) + filepath.Base(dir), path: dir}
}

func (v *volume) packPart(seq uint64) part {
	path := v.packPath(seq)
	return part{key: filepath.Base(path), path: path, pack: seq}
}

func (v *volume) indexPath(key string) string { return filepath.Join(v.path, indexDir, key) }

func (v *volume) indexOwner(key string) string { return v.id.Storage + "/" + key }

// recall is what a scan of p, which has a salt if it is a pack, would find; nil if that has to be found out. An index that cannot be read is none.
func (v *volume) recall(p part, salt []byte) *listing {
	var l *listing
	info, err := v.fs.Stat(p.path)
	is := versionOf(info)
	if err == nil && !is.None() {
		b, err := readIndex(v.fs, v.indexPath(p.key))
		switch {
		case err == nil:
			if l = decodeListing(b, v.indexOwner(p.key)); l == nil {
				v.log.Log(context.Background(), warnOnce(&v.index.unread), "index is damaged, or of another version: what it is of is scanned", "path", v.indexPath(p.key))
			}
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR): // of which who writes it speaks
			v.log.Log(context.Background(), warnOnce(&v.index.unread), "index cannot be read, what it is of is scanned", "path", v.indexPath(p.key), "err", err)
		}
	}
	if l == nil || l.version != is || salt != nil && !bytes.Equal(l.salt, salt) {
		v.index.scanned.Add(1)
		return nil
	}
	v.index.taken.Add(1)
	v.index.set(p.key, is)
	return l
}

func readIndex(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, maxIndex))
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// clearIndex removes indexes of packs that are gone, and what was not finished, at start. Errors leave them.
func (v *volume) clearIndex(packs map[string]bool) {
	entries, err := v.fs.ReadDir(filepath.Join(v.path, indexDir))
	if err != nil {
		return
	}
	for _, e := range entries {
		if _, isPack := parsePackName(e.Name); isPack && !packs[e.Name] || strings.HasSuffix(e.Name, indexNew) {
			_ = removeFile(v.fs, v.indexPath(e.Name))
		}
	}
}

// Index writes the index of every volume, of what has changed and is quiet since, until ctx is done. A disk that does not answer keeps no other one waiting.
func (s *Store) Index(ctx context.Context) {
	t := time.NewTicker(indexEvery)
	defer t.Stop()
	var g sync.WaitGroup
	defer g.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.indexTurn(ctx, &g)
		}
	}
}

// indexTurn begins to write the index of each volume on which nobody does.
func (s *Store) indexTurn(ctx context.Context, g *sync.WaitGroup) {
	for _, v := range s.all() {
		if v.quiet() || v.inMemory() || !v.index.busy.CompareAndSwap(false, true) {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		v.index.stop.Store(&stop)
		g.Go(func() {
			defer v.index.busy.Store(false)
			defer stop()
			_, err := s.index(ctx, v, indexQuiet, func(worked time.Duration) {
				select {
				case <-ctx.Done():
				case <-time.After((indexShare - 1) * worked):
				}
			})
			if err != nil && v.err() == nil {
				v.noIndex(err)
			}
		})
	}
}

// index writes the index of all of a volume that has changed since it was written, and not for some time. pause hears how long each took. young is how many have changed since. v.index.busy is held.
func (s *Store) index(ctx context.Context, v *volume, quiet time.Duration, pause func(worked time.Duration)) (young int, err error) {
	stale, err := v.stale(ctx)
	if err != nil || len(stale) == 0 {
		return 0, err
	}
	if soon := time.Now().Add(-quiet).UnixNano(); !slices.ContainsFunc(stale, func(p part) bool { return p.is.Latest() <= soon }) {
		return len(stale), nil // not worth the question
	}
	now, err := v.present()
	if err != nil {
		return 0, err
	}
	failed := 0
	for _, p := range stale {
		if ctx.Err() != nil || v.quiet() {
			return young, err
		}
		if now-p.is.Latest() < int64(quiet) {
			young++
			continue
		}
		began := time.Now()
		if bad := s.indexPart(v, p); bad != nil {
			// One whose file cannot be made does not keep the others from theirs.
			if err = cmp.Or(err, bad); v.err() != nil || errors.Is(bad, syscall.EROFS) {
				return young, err
			}
			if failed++; failed == mostUnwritten {
				return young, err
			}
			continue
		}
		v.index.steps.Add(1)
		pause(time.Since(began))
	}
	if err == nil {
		v.index.unwritten.Store(false)
	}
	return young, err
}

// mostUnwritten is how many indexes that cannot be written end a turn.
const mostUnwritten = 8

// stale are the directories and packs whose index, if there is one, is of another time. A pack that is appended to is not among them. Indexes of packs that are gone are removed. If ctx is done
// before all were looked at there are none.
func (v *volume) stale(ctx context.Context) ([]part, error) {
	v.dirMu.Lock()
	dirs := slices.Sorted(maps.Keys(v.dirs))
	v.dirMu.Unlock()
	var parts []part
	for _, dir := range dirs {
		parts = append(parts, dirPart(dir))
	}
	entries, err := v.fs.ReadDir(filepath.Join(v.path, packsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, v.check(err)
	}
	v.packMu.Lock()
	open := v.pack
	v.packMu.Unlock()
	there := map[string]bool{}
	for _, e := range entries {
		if seq, ok := parsePackName(e.Name); ok && !e.Dir {
			there[e.Name] = true
			if open == nil || seq != open.seq {
				parts = append(parts, v.packPart(seq))
			}
		}
	}
	v.index.mu.Lock()
	var gone []string
	for key := range v.index.of {
		if strings.HasSuffix(key, packExt) && !there[key] {
			gone = append(gone, key)
			delete(v.index.of, key)
		}
	}
	v.index.mu.Unlock()
	for _, key := range gone {
		if err := v.removeIndexes(v.indexPath(key)); err != nil {
			return nil, err
		}
	}
	var stale []part
	for _, p := range parts {
		if ctx.Err() != nil {
			return nil, nil
		}
		info, err := v.fs.Stat(p.path)
		if errors.Is(err, fs.ErrNotExist) { // since; of a disk that is gone present speaks
			continue
		}
		if err != nil {
			return nil, v.check(err)
		}
		v.index.steps.Add(1)
		if p.is = versionOf(info); !p.is.None() && p.is != v.index.get(p.key) {
			stale = append(stale, p)
		}
	}
	return stale, nil
}

// present is the time of the volume's file system, in Unix nanoseconds: what changes from now on has no older stamp.
func (v *volume) present() (int64, error) {
	if err := v.mkdir(filepath.Join(v.path, indexDir)); err != nil {
		return 0, v.checkIndex(err)
	}
	name := v.indexPath(indexClock)
	if err := v.removeIndexes(name); err != nil { // of a process that was killed
		return 0, err
	}
	f, err := v.fs.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, v.checkIndex(err)
	}
	info, err := v.fs.Stat(name)
	if err = errors.Join(err, f.Close(), v.fs.Remove(name)); err != nil {
		return 0, v.checkIndex(err)
	}
	return info.Stamp.Latest(), nil
}

// indexPart writes the index of p, unless it changes meanwhile. Its stamp is old enough for that to show.
func (s *Store) indexPart(v *volume, p part) error {
	var l *listing
	var err error
	if p.pack > 0 {
		l, err = s.listPack(v, p)
	} else {
		l, err = s.listDir(v, p.path)
	}
	if failed, unread := errors.AsType[*unreadError](err); unread {
		return v.unindexed(p, failed.err)
	}
	if err != nil || l == nil {
		return err
	}
	info, err := v.fs.Stat(p.path)
	if errors.Is(err, fs.ErrNotExist) && p.pack > 0 {
		return nil
	}
	if err != nil {
		return v.check(err)
	}
	if versionOf(info) != p.is {
		return nil
	}
	l.version = p.is
	if err := v.writeIndex(p.key, l); err != nil {
		return err
	}
	v.index.set(p.key, p.is)
	return nil
}

// unreadError is why something cannot be indexed: the disk did not read it.
type unreadError struct{ err error }

func (e *unreadError) Error() string { return e.err.Error() }

// unread turns an error of reading what is to be indexed into an unreadError, unless it says more of the volume, or of this process, than of what was to be read.
func (v *volume) unread(err error) error {
	if ofMedium(err) {
		return &unreadError{err}
	}
	return v.check(err)
}

// unindexed leaves p to the scan of the next start, until it changes. As where a replica cannot be read, the volume has failed only if it takes no writes either.
func (v *volume) unindexed(p part, cause error) error {
	if err := v.probe(); err != nil {
		return err
	}
	v.log.Warn("cannot be read, and is not indexed", "path", p.path, "volume", v.id.Storage, "err", cause)
	if err := v.removeIndexes(v.indexPath(p.key)); err != nil {
		return err
	}
	v.index.set(p.key, p.is)
	return nil
}

// writeIndex replaces an index. It is not synced: one that is not whole, or older, says so itself. One that cannot be written is not there.
func (v *volume) writeIndex(key string, l *listing) error {
	name := v.indexPath(key)
	b := l.encode(v.indexOwner(key))
	if len(b) > maxIndex {
		return v.removeIndexes(name)
	}
	f, err := v.fs.OpenFile(name+indexNew, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteAt(b, 0)
		if err = errors.Join(err, f.Close()); err == nil {
			err = v.fs.Rename(name+indexNew, name)
		}
	}
	if err != nil {
		return errors.Join(v.checkIndex(err), v.removeIndexes(name+indexNew, name))
	}
	return nil
}

// listDir is what a scan of a directory finds, whose names it makes durable as a scan does.
func (s *Store) listDir(v *volume, dir string) (*listing, error) {
	if err := v.checkIndexSync(v.fs.SyncDir(dir)); err != nil {
		return nil, err
	}
	entries, err := v.fs.ReadDir(dir)
	if err != nil {
		return nil, v.unread(err)
	}
	type files struct {
		gen         metadata.Generation
		data, final int // files
		other       bool
	}
	of := make(map[metadata.BlockID]files, len(entries)/2)
	for _, e := range entries {
		id, sums, ok := parseName(e.Name)
		if !ok || e.Dir {
			continue
		}
		f := of[id]
		switch sums.suffix {
		case 0:
			f.data++
		case sufMeta:
			f.gen = sums.gen
			f.final++
		default:
			f.other = true
		}
		of[id] = f
	}
	l := &listing{}
	odd := map[metadata.BlockID]bool{}
	for id, f := range of {
		if f.data != 1 || f.final != 1 || f.other || v.dirOf(id) != dir {
			odd[id] = true
			continue
		}
		e := listed{id: id, gen: f.gen}
		if e.length, err = s.lengthAtRest(v, id, f.gen); err != nil {
			return nil, err
		}
		if e.length < 0 {
			odd[id] = true
			continue
		}
		l.final = append(l.final, e)
	}
	slices.SortFunc(l.final, func(a, b listed) int { return cmp.Compare(a.id, b.id) })
	for _, e := range entries {
		if e.Dir {
			l.other = append(l.other, e.Name+"/")
		} else if id, _, ok := parseName(e.Name); !ok || odd[id] {
			l.other = append(l.other, e.Name)
		}
	}
	return l, nil
}

// lengthAtRest is the length of a replica that has the files of a finalized one, negative if they do not fit. What is known of it is as good as a look at its files: nobody changes
// them while it is finalized, with a checksum file of that name. Only those of replicas that are not known so are looked at.
func (s *Store) lengthAtRest(v *volume, id metadata.BlockID, gen metadata.Generation) (int64, error) {
	e, r := s.peek(id)
	if p := s.placeOf(e); p.v == v && p.p == nil && e.gen() == gen {
		return e.length(), nil
	}
	if r != nil && r.mu.TryLock() {
		known := r.vol == v && !r.gone && !r.bad && r.state == datanode.Finalized && r.suffix == sufMeta && r.gen == gen
		length := r.length
		r.mu.Unlock()
		if known {
			return length, nil
		}
	}
	d, err := v.fs.Stat(v.dataPath(id))
	var m vfs.Info
	if err == nil {
		m, err = v.fs.Stat(v.sumsPath(id, gen, sufMeta))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // it is being changed
		return -1, nil
	case err != nil:
		return 0, v.unread(err)
	case m.Size != sumsSize(d.Size):
		return -1, nil
	}
	return d.Size, nil
}

// listPack is what a scan of a pack finds, which it makes durable as a scan does; nil: the pack is gone, or damaged. Only records of finalized replicas that are known are taken to be at rest.
func (s *Store) listPack(v *volume, p part) (*listing, error) {
	f, err := v.fs.OpenFile(p.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, v.checkIndex(err)
	}
	defer f.Close()
	k := &pack{v: v, seq: p.pack, f: f}
	sound, err := k.readHead()
	if err != nil { // it may be known from before
		if k.salt = s.saltOf(v, p.pack); k.salt == nil {
			return nil, v.unread(err)
		}
	} else if !sound {
		return nil, nil
	}
	if err := v.checkIndexSync(f.Sync()); err != nil {
		return nil, err
	}
	slots, records, err := k.scan(p.is.size, func(_ int64, err error) error { return err })
	if err != nil {
		return nil, v.unread(err)
	}
	l := &listing{salt: k.salt, durable: k.durable}
	for i, at := range slots {
		if r := &records[i]; r.state == stateFinal && s.restsAt(v, r, at) {
			l.final = append(l.final, listed{at: at.off, id: r.id, gen: r.gen, length: r.length})
		} else {
			l.other = append(l.other, strconv.FormatInt(at.off, 10))
		}
	}
	return l, nil
}

// saltOf is the salt of a pack that is in use; nil: it is not.
func (s *Store) saltOf(v *volume, seq uint64) []byte {
	for _, p := range s.places.packs() {
		if p.v == v && p.seq == seq {
			return p.salt
		}
	}
	return nil
}

// peek is the entry of a replica at rest, or its handle, without holding it: who has it that way finds it gone once it rests again.
func (s *Store) peek(id metadata.BlockID) (entry, *replica) {
	sh := s.shard(id)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	e, _ := sh.resting.get(id)
	return e, sh.replicas[id]
}

// placeOf is where an entry's replica lies; of none, nowhere.
func (s *Store) placeOf(e entry) place {
	if e.empty() {
		return place{}
	}
	return s.places.at(e)
}

// restsAt reports whether a record is that of a finalized replica.
func (s *Store) restsAt(v *volume, rec *record, at *slot) bool {
	e, r := s.peek(rec.id)
	if p := s.placeOf(e); p.p != nil {
		return p.v == v && p.p.seq == at.p.seq && e.off() == at.off && e.gen() == rec.gen && e.length() == rec.length
	}
	if r == nil || !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	return r.vol == v && !r.gone && !r.bad && r.state == datanode.Finalized && r.gen == rec.gen && r.length == rec.length &&
		r.packed != nil && r.packed.p.seq == at.p.seq && r.packed.off == at.off
}

// indexAll writes the index of all volumes once more: nothing changes any more. A disk that does not answer is not waited for.
func (s *Store) indexAll() {
	if !s.opened.Load() { // what is known is not all
		return
	}
	var g sync.WaitGroup
	for _, v := range s.all() {
		if v.lock != nil {
			g.Go(func() { s.indexAtEnd(v) })
		}
	}
	g.Wait()
}

// indexAtEnd writes the index of a volume once more, before it is closed. A disk that does not answer is not waited for.
func (s *Store) indexAtEnd(v *volume) {
	if v.quiet() || v.inMemory() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), v.indexWait)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !v.index.busy.CompareAndSwap(false, true) { // in pauses, mostly
			if stop := v.index.stop.Load(); stop != nil {
				(*stop)()
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(look):
			}
		}
		defer v.index.busy.Store(false)
		v.endPack()
		none := func(time.Duration) {}
		young, err := s.index(ctx, v, indexSure, none)
		if old := v.index.count(); err == nil && young > 0 && int64(young)*v.replicas.Load()/int64(young+old) > indexWorth {
			select {
			case <-ctx.Done():
			case <-time.After(indexSure):
				_, err = s.index(ctx, v, indexSure, none)
			}
		}
		if err != nil {
			v.noIndex(err)
		}
	}()
	t := time.NewTicker(look)
	defer t.Stop()
	steps, since := v.index.steps.Load(), time.Now()
	for {
		select {
		case <-done:
			return
		case <-t.C:
		}
		if n := v.index.steps.Load(); n != steps {
			steps, since = n, time.Now()
		}
		if v.quiet() || time.Since(since) > v.endWait { // what is written there later harms nobody
			return
		}
	}
}
