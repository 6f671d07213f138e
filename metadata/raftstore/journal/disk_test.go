package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
)

const sector = 512

var errPower = errors.New("the power is gone")

// memoryDisk is a disk in memory that knows what is durable: what a power cut leaves of it is the choice of crash.
type memoryDisk struct {
	mu    sync.Mutex
	names map[string]*memoryInode
	// durable are the names that a power cut leaves, and renames what was done since.
	durable map[string]*memoryInode
	changes []func(map[string]*memoryInode)
	// calls counts those that change something. The power fails at call cutAt, if that is not 0.
	calls, cutAt int
	// before, if not nil, is asked before each call that changes something.
	before func(op, path string) error
	// lies: fdatasync of a segment does nothing.
	lies bool
}

type memoryInode struct {
	path    string // the newest
	content []byte
	durable []byte
	dirty   map[int64]bool // sectors
}

type memoryFile struct {
	disk   *memoryDisk
	inode  *memoryInode
	mu     sync.Mutex
	closed bool
}

func newMemoryDisk() *memoryDisk {
	return &memoryDisk{names: make(map[string]*memoryInode), durable: make(map[string]*memoryInode)}
}

// content is a copy of a file, which a journal that is open may be making ready or writing meanwhile.
func (d *memoryDisk) content(path string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.names[path].content)
}

// clean marks what is not durable of a file as if it were.
func (d *memoryDisk) clean(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.names[path].dirty)
}

// overwrite puts bytes into a file behind the back of whoever has it open.
func (d *memoryDisk) overwrite(path string, at int64, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.names[path].content[at:], data)
}

// change is called with mu held in front of every call that changes something.
func (d *memoryDisk) change(op, path string) error {
	d.calls++
	if d.cutAt > 0 && d.calls >= d.cutAt {
		return errPower
	}
	if d.before != nil {
		d.mu.Unlock()
		defer d.mu.Lock()
		return d.before(op, path)
	}
	return nil
}

func (d *memoryDisk) List(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for path := range d.names {
		if filepath.Dir(path) == dir {
			names = append(names, filepath.Base(path))
		}
	}
	return names, nil
}

func (d *memoryDisk) Open(path string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[path] == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return &memoryFile{disk: d, inode: d.names[path]}, nil
}

func (d *memoryDisk) Create(path string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change("create", path); err != nil {
		return nil, err
	}
	inode := &memoryInode{path: path, dirty: make(map[int64]bool)}
	d.alter(func(names map[string]*memoryInode) { names[path] = inode })
	return &memoryFile{disk: d, inode: inode}, nil
}

func (d *memoryDisk) alter(change func(map[string]*memoryInode)) {
	change(d.names)
	d.changes = append(d.changes, change)
}

func (d *memoryDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change("rename", from); err != nil {
		return err
	}
	inode := d.names[from]
	if inode == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	inode.path = to
	d.alter(func(names map[string]*memoryInode) {
		if names[from] == inode { // or a change in front of this one did not get to the disk
			delete(names, from)
			names[to] = inode
		}
	})
	return nil
}

func (d *memoryDisk) Remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change("remove", path); err != nil {
		return err
	}
	if d.names[path] == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	d.alter(func(names map[string]*memoryInode) { delete(names, path) })
	return nil
}

func (d *memoryDisk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change("syncdir", dir); err != nil {
		return err
	}
	d.durable, d.changes = maps.Clone(d.names), nil
	return nil
}

// crash returns the disk after a power cut: of what was not synced, any sectors and any changes of names have got to it.
func (d *memoryDisk) crash(rng *rand.Rand) *memoryDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := maps.Clone(d.durable)
	for _, change := range d.changes {
		if rng.IntN(2) == 0 {
			change(names)
		}
	}
	after := newMemoryDisk()
	for path, inode := range names {
		content := slices.Clone(inode.durable)
		for _, s := range slices.Sorted(maps.Keys(inode.dirty)) {
			if rng.IntN(2) == 0 {
				continue
			}
			from, to := s*sector, min((s+1)*sector, int64(len(inode.content)))
			if missing := to - int64(len(content)); missing > 0 {
				content = append(content, make([]byte, missing)...)
			}
			copy(content[from:to], inode.content[from:to])
		}
		after.names[path] = &memoryInode{path: path, content: content, durable: slices.Clone(content), dirty: make(map[int64]bool)}
	}
	after.durable = maps.Clone(after.names)
	return after
}

// restart returns the disk as another process finds it after this one was killed: nothing is lost.
func (d *memoryDisk) restart() *memoryDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &memoryDisk{names: maps.Clone(d.names), durable: d.durable, changes: d.changes}
}

func (f *memoryFile) open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fs.ErrClosed
	}
	return nil
}

func (f *memoryFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	return nil
}

func (f *memoryFile) ReadAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.open(); err != nil {
		return 0, err
	}
	if at >= int64(len(f.inode.content)) {
		return 0, io.EOF
	}
	n := copy(b, f.inode.content[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := errors.Join(f.open(), f.disk.change("write", f.inode.path))
	if err != nil && !errors.Is(err, errPower) {
		return 0, err
	}
	i := f.inode
	if missing := at + int64(len(b)) - int64(len(i.content)); missing > 0 {
		i.content = append(i.content, make([]byte, missing)...)
	}
	copy(i.content[at:], b)
	for s := at / sector; s*sector < at+int64(len(b)); s++ {
		i.dirty[s] = true
	}
	return len(b), err // when the power fails, some of it may have got there
}

func (f *memoryFile) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.inode.content)), nil
}

func (f *memoryFile) Allocate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.change("allocate", f.inode.path)
}

func (f *memoryFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := errors.Join(f.open(), f.disk.change("sync", f.inode.path)); err != nil {
		return err
	}
	if f.disk.lies && filepath.Ext(f.inode.path) == segmentSuffix {
		return nil
	}
	i := f.inode
	if missing := len(i.content) - len(i.durable); missing > 0 {
		i.durable = append(i.durable, make([]byte, missing)...)
	}
	for s := range i.dirty {
		copy(i.durable[s*sector:min((s+1)*sector, int64(len(i.content)))], i.content[s*sector:])
	}
	clear(i.dirty)
	return nil
}

// failing makes the nth call of a kind fail from now on, and all others of that kind after it.
func (d *memoryDisk) failing(op string, nth int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	d.before = func(o, path string) error {
		if o != op {
			return nil
		}
		if n++; n >= nth {
			return fmt.Errorf("%s %s: %w", op, path, err)
		}
		return nil
	}
}
