// Package mem is a file system in memory that knows which bytes and names would survive a power cut.
//
// What it assumes of a disk is what the block store assumes, and no more:
//   - bytes written before the last Sync of a file survive; of the bytes written later any set of 512-byte sectors
//     may, and the file may have any length between the synced one and the last one, with zeros in the gaps;
//   - a sector that is rewritten holds, byte for byte, the old or the new content;
//   - entries of a directory survive up to its last SyncDir; of the later changes a prefix survives (journaled metadata);
//   - a rename is one change, and so is a hole;
//   - a directory has the stamp of the last change that survived; a file that of the last one of its size, or the last hole, that did: Sync does not make
//     the times of bytes durable that were overwritten in place (fdatasync).
package mem

import (
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/datanode/vfs"
)

// FS is the file system. The zero value is not usable; New makes one.
type FS struct {
	mu    sync.Mutex
	root  *dir
	locks map[string]bool
	total int64
	used  int64
	now   func() time.Time
	inode uint64 // the last one
}

// New makes an empty file system of the given size in bytes; writes beyond it end in ENOSPC.
func New(total int64) *FS {
	m := &FS{locks: map[string]bool{}, total: total, now: time.Now}
	m.root = m.newDir()
	return m
}

// SetClock replaces the clock that stamps are taken from, which is time.Now; also that of the crash clones made later.
func (m *FS) SetClock(now func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// stamps are those of a file or directory: the last one, and the one that it has after a crash if nothing that is not synced survives.
type stamps struct {
	inode         uint64
	last, certain int64
}

func (m *FS) newStamps() stamps {
	m.inode++
	now := m.now().UnixNano()
	return stamps{inode: m.inode, last: now, certain: now}
}

func (s *stamps) stamp() vfs.Stamp {
	return vfs.Stamp{Inode: s.inode, Modified: s.last, Changed: s.last}
}

type dir struct {
	stamps
	entries map[string]any // *dir or *file
	durable map[string]any
	pending []dirChange
}

func (m *FS) newDir() *dir {
	return &dir{stamps: m.newStamps(), entries: map[string]any{}, durable: map[string]any{}}
}

// dirChange removes a name, then adds one; either may be empty.
type dirChange struct {
	remove, add string
	node        any
	at          int64
}

func (m *FS) change(d *dir, c dirChange) {
	c.at = m.now().UnixNano()
	d.last = c.at
	c.applyTo(d.entries)
	d.pending = append(d.pending, c)
}

func (c dirChange) applyTo(m map[string]any) {
	if c.remove != "" {
		delete(m, c.remove)
	}
	if c.add != "" {
		m[c.add] = c.node
	}
}

type file struct {
	stamps
	data    []byte
	durable []byte
	pending []fileChange
}

// fileChange is a write, or a truncation when data is nil, or a hole of so many bytes.
type fileChange struct {
	off  int64
	data []byte
	hole int64
	at   int64
}

// Crash returns the disk as a machine finds it that lost power now: of everything that was not synced, a random part is
// there. survive is the probability of each part, 0 for none and 1 for all. Locks are gone. The original goes on unharmed.
func (m *FS) Crash(r *rand.Rand, survive float64) *FS {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := New(m.total)
	c.now, c.inode = m.now, m.inode
	c.root = crashDir(m.root, r, survive, map[*file]*file{}, &c.used)
	return c
}

func crashDir(d *dir, r *rand.Rand, survive float64, seen map[*file]*file, used *int64) *dir {
	entries := map[string]any{}
	for k, v := range d.durable {
		entries[k] = v
	}
	stamp := d.stamps
	stamp.last = stamp.certain
	for _, c := range d.pending {
		if r.Float64() >= survive {
			break
		}
		c.applyTo(entries)
		stamp.last = c.at
	}
	stamp.certain = stamp.last
	out := &dir{stamps: stamp, entries: map[string]any{}, durable: map[string]any{}}
	for _, k := range slices.Sorted(maps.Keys(entries)) { // the same r gives the same disk
		v := entries[k]
		var n any
		switch v := v.(type) {
		case *dir:
			n = crashDir(v, r, survive, seen, used)
		case *file:
			f, ok := seen[v]
			if !ok {
				f = crashFile(v, r, survive)
				seen[v] = f
				*used += int64(len(f.data))
			}
			n = f
		}
		out.entries[k], out.durable[k] = n, n
	}
	return out
}

const sector = 512

func crashFile(f *file, r *rand.Rand, survive float64) *file {
	data := append([]byte(nil), f.durable...)
	stamp := f.stamps
	stamp.last = stamp.certain
	for _, c := range f.pending {
		if c.hole > 0 {
			if r.Float64() < survive && c.off < int64(len(data)) {
				clear(data[c.off:min(c.off+c.hole, int64(len(data)))])
				stamp.last = c.at
			}
			continue
		}
		if c.data == nil {
			if r.Float64() < survive {
				data = resize(data, c.off)
				stamp.last = c.at
			}
			continue
		}
		for i := int64(0); i < int64(len(c.data)); {
			n := min(sector-(c.off+i)%sector, int64(len(c.data))-i)
			if r.Float64() < survive {
				if end := c.off + i + n; end > int64(len(data)) {
					data = resize(data, end)
					stamp.last = max(stamp.last, c.at)
				}
				copy(data[c.off+i:], c.data[i:i+n])
			}
			i += n
		}
	}
	if n := len(f.data); n > len(data) && r.Float64() < survive {
		data = resize(data, int64(len(data)+r.IntN(n-len(data)+1)))
		stamp.last = f.last
	}
	stamp.certain = stamp.last
	return &file{stamps: stamp, data: data, durable: append([]byte(nil), data...)}
}

func resize(b []byte, n int64) []byte {
	if n <= int64(len(b)) {
		return b[:n:n]
	}
	return append(b, make([]byte, n-int64(len(b)))...)
}

// find resolves a cleaned name; the last return is the directory that holds it.
func (m *FS) find(name string) (node any, parent *dir, base string, err error) {
	name = filepath.Clean(name)
	parts := strings.Split(strings.Trim(filepath.ToSlash(name), "/"), "/")
	var n any = m.root
	for i, p := range parts {
		if p == "" || p == "." {
			continue
		}
		d, ok := n.(*dir)
		if !ok {
			return nil, nil, "", syscall.ENOTDIR
		}
		parent, base = d, p
		n, ok = d.entries[p]
		if !ok {
			if i == len(parts)-1 {
				return nil, parent, base, nil
			}
			return nil, nil, "", fs.ErrNotExist
		}
	}
	return n, parent, base, nil
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// OpenFile implements vfs.FS.
func (m *FS) OpenFile(name string, flag int, _ os.FileMode) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, parent, base, err := m.find(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	switch v := n.(type) {
	case *dir:
		return nil, pathError("open", name, syscall.EISDIR)
	case *file:
		if flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL {
			return nil, pathError("open", name, fs.ErrExist)
		}
		h := &handle{fs: m, f: v, name: name}
		if flag&os.O_TRUNC != 0 {
			h.truncateLocked(0)
		}
		return h, nil
	}
	if flag&os.O_CREATE == 0 {
		return nil, pathError("open", name, fs.ErrNotExist)
	}
	f := &file{stamps: m.newStamps()}
	m.change(parent, dirChange{add: base, node: f})
	return &handle{fs: m, f: f, name: name}, nil
}

// Rename implements vfs.FS.
func (m *FS) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, from, oldBase, err := m.find(oldname)
	if err == nil && n == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return pathError("rename", oldname, err)
	}
	old, to, newBase, err := m.find(newname)
	if err == nil && to != from {
		err = syscall.EXDEV
	}
	if err != nil {
		return pathError("rename", newname, err)
	}
	if f, ok := old.(*file); ok && old != n {
		m.used -= int64(len(f.data))
	}
	m.change(from, dirChange{remove: oldBase, add: newBase, node: n})
	return nil
}

// Remove implements vfs.FS.
func (m *FS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, parent, base, err := m.find(name)
	if err == nil && n == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return pathError("remove", name, err)
	}
	if d, ok := n.(*dir); ok && len(d.entries) > 0 {
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	if f, ok := n.(*file); ok {
		m.used -= int64(len(f.data))
	}
	m.change(parent, dirChange{remove: base})
	return nil
}

// Mkdir implements vfs.FS.
func (m *FS) Mkdir(name string, _ os.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, parent, base, err := m.find(name)
	if err == nil && n != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return pathError("mkdir", name, err)
	}
	m.change(parent, dirChange{add: base, node: m.newDir()})
	return nil
}

func (m *FS) dir(op, name string) (*dir, error) {
	n, _, _, err := m.find(name)
	if err == nil && n == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, pathError(op, name, err)
	}
	d, ok := n.(*dir)
	if !ok {
		return nil, pathError(op, name, syscall.ENOTDIR)
	}
	return d, nil
}

// ReadDir implements vfs.FS.
func (m *FS) ReadDir(name string) ([]vfs.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.dir("readdir", name)
	if err != nil {
		return nil, err
	}
	var out []vfs.Entry
	for _, k := range slices.Sorted(maps.Keys(d.entries)) {
		_, isDir := d.entries[k].(*dir)
		out = append(out, vfs.Entry{Name: k, Dir: isDir})
	}
	return out, nil
}

// Stat implements vfs.FS.
func (m *FS) Stat(name string) (vfs.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _, _, err := m.find(name)
	if err == nil && n == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return vfs.Info{}, pathError("stat", name, err)
	}
	if f, ok := n.(*file); ok {
		return vfs.Info{Size: int64(len(f.data)), Stamp: f.stamp()}, nil
	}
	return vfs.Info{Dir: true, Stamp: n.(*dir).stamp()}, nil
}

// SyncDir implements vfs.FS.
func (m *FS) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.dir("fsync", name)
	if err != nil {
		return err
	}
	for _, c := range d.pending {
		c.applyTo(d.durable)
	}
	d.pending = nil
	d.certain = d.last
	return nil
}

// Usage implements vfs.FS.
func (m *FS) Usage(string) (vfs.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return vfs.Usage{Total: m.total, Free: m.total - m.used}, nil
}

// Lock implements vfs.FS.
func (m *FS) Lock(name string) (io.Closer, error) {
	if _, err := m.OpenFile(name, os.O_CREATE, 0); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	name = filepath.Clean(name)
	if m.locks[name] {
		return nil, vfs.ErrLocked
	}
	m.locks[name] = true
	return unlock{m, name}, nil
}

type unlock struct {
	fs   *FS
	name string
}

func (u unlock) Close() error {
	u.fs.mu.Lock()
	defer u.fs.mu.Unlock()
	delete(u.fs.locks, u.name)
	return nil
}

type handle struct {
	fs     *FS
	f      *file
	name   string
	closed bool
}

func (h *handle) check(op string) error {
	if h.closed {
		return pathError(op, h.name, fs.ErrClosed)
	}
	return nil
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.check("read"); err != nil {
		return 0, err
	}
	if off >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.check("write"); err != nil {
		return 0, err
	}
	if grow := off + int64(len(p)) - int64(len(h.f.data)); grow > 0 {
		if h.fs.used+grow > h.fs.total {
			return 0, pathError("write", h.name, syscall.ENOSPC)
		}
		h.fs.used += grow
		h.f.data = resize(h.f.data, off+int64(len(p)))
	}
	copy(h.f.data[off:], p)
	h.changeLocked(fileChange{off: off, data: append([]byte{}, p...)})
	return len(p), nil
}

// WriteAllAt implements vfs.File; after a full disk the first pieces are written.
func (h *handle) WriteAllAt(pieces [][]byte, off int64) error {
	for _, p := range pieces {
		n, err := h.WriteAt(p, off)
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// Allocate implements vfs.File; there is nothing to gain here.
func (h *handle) Allocate(int64, int64) {}

func (h *handle) Truncate(size int64) error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.check("truncate"); err != nil {
		return err
	}
	h.truncateLocked(size)
	return nil
}

func (h *handle) changeLocked(c fileChange) {
	c.at = h.fs.now().UnixNano()
	h.f.last = c.at
	h.f.pending = append(h.f.pending, c)
}

func (h *handle) truncateLocked(size int64) {
	h.fs.used += size - int64(len(h.f.data))
	h.f.data = resize(h.f.data, size)
	h.changeLocked(fileChange{off: size})
}

func (h *handle) Size() (int64, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	return int64(len(h.f.data)), h.check("stat")
}

func (h *handle) Sync() error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.check("fsync"); err != nil {
		return err
	}
	for _, c := range h.f.pending {
		if c.data == nil || c.off+int64(len(c.data)) > int64(len(h.f.durable)) {
			h.f.certain = c.at
		}
	}
	h.f.durable = append(h.f.durable[:0:0], h.f.data...)
	h.f.pending = nil
	return nil
}

func (h *handle) Close() error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.check("close"); err != nil {
		return err
	}
	h.closed = true
	return nil
}

func (h *handle) Writeback(int64, int64) {}
func (h *handle) Forget(int64, int64)    {}

// Punch clears the range; its space counts as used until the file is gone.
func (h *handle) Punch(off, n int64) error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.check("punch"); err != nil {
		return err
	}
	size := int64(len(h.f.data))
	clear(h.f.data[min(off, size):min(off+n, size)])
	h.changeLocked(fileChange{off: off, hole: n})
	return nil
}

func (h *handle) OS() *os.File { return nil }
