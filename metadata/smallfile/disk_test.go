package smallfile

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/gohops/hops/metadata/raftstore/journal"
)

var errPower = errors.New("the power is gone")

// memoryDisk is a disk that knows what is durable.
type memoryDisk struct {
	mu             sync.Mutex
	files, durable map[string]*memoryFile
	changes        []func(map[string]*memoryFile)
	// calls counts those that change something. The power fails at call cutAt, if that is not 0.
	calls, cutAt int
	// before, if not nil, is asked before each call with its name and the file's, without the disk's lock.
	before func(op, path string) error
	cold   bool
	// room, if not negative, is how many bytes files may have together.
	room int64
}

type memoryFile struct {
	disk      *memoryDisk
	path      string
	content   []byte
	durable   []byte
	removed   bool
	opened    int
	dirty     map[int]bool // sectors
	reads     int
	readBytes int64
}

func newDisk() *memoryDisk {
	return &memoryDisk{files: map[string]*memoryFile{}, durable: map[string]*memoryFile{}, room: -1}
}

// trouble says what fails from now on.
func (d *memoryDisk) trouble(before func(op, path string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = before
}

// call begins a call; mu is held when it returns.
func (d *memoryDisk) call(op, path string, changes bool) error {
	d.mu.Lock()
	before := d.before
	d.mu.Unlock()
	var err error
	if before != nil {
		err = before(op, path)
	}
	d.mu.Lock()
	if changes {
		d.calls++
	}
	if d.cutAt > 0 && d.calls >= d.cutAt {
		return errPower
	}
	return err
}

func (d *memoryDisk) alter(change func(map[string]*memoryFile)) {
	change(d.files)
	d.changes = append(d.changes, change)
}

func (d *memoryDisk) List(string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path := range d.files {
		names = append(names, filepath.Base(path))
	}
	return names, nil
}

func (d *memoryDisk) Open(path string) (journal.File, error) {
	err := d.call("open", path, false)
	defer d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f := d.files[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	f.opened++
	return &openFile{memoryFile: f}, nil
}

func (d *memoryDisk) Create(path string) (journal.File, error) {
	err := d.call("create", path, true)
	defer d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f := &memoryFile{disk: d, path: path, dirty: map[int]bool{}, opened: 1}
	d.alter(func(files map[string]*memoryFile) { files[path] = f })
	return &openFile{memoryFile: f}, nil
}

func (d *memoryDisk) Rename(from, to string) error {
	err := d.call("rename", from, true)
	defer d.mu.Unlock()
	f := d.files[from]
	if err != nil || f == nil {
		return cmp.Or(err, fs.ErrNotExist)
	}
	f.path = to
	d.alter(func(files map[string]*memoryFile) {
		delete(files, from)
		files[to] = f
	})
	return nil
}

func (d *memoryDisk) Remove(path string) error {
	err := d.call("remove", path, true)
	defer d.mu.Unlock()
	if err != nil {
		return err
	}
	f := d.files[path]
	if f == nil {
		return fs.ErrNotExist
	}
	f.removed = true
	d.alter(func(files map[string]*memoryFile) { delete(files, path) })
	return nil
}

func (d *memoryDisk) SyncDir(string) error {
	err := d.call("syncdir", "", true)
	defer d.mu.Unlock()
	if err != nil {
		return err
	}
	d.durable, d.changes = maps.Clone(d.files), nil
	return nil
}

const sector = 64

// crash is what a kill leaves, or, with a source of chance, a power cut: any sectors and any changes of names since they were synced.
func (d *memoryDisk) crash(r *rand.Rand) *memoryDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := maps.Clone(d.files)
	if r != nil {
		files = maps.Clone(d.durable)
		for _, change := range d.changes {
			if r.IntN(2) == 0 {
				change(files)
			}
		}
	}
	after := newDisk()
	for path, f := range files {
		content := slices.Clone(f.content)
		if r != nil {
			content = slices.Clone(f.durable)
			for _, n := range slices.Sorted(maps.Keys(f.dirty)) {
				if r.IntN(3) > 0 {
					continue
				}
				from, to := n*sector, min((n+1)*sector, len(f.content))
				if missing := to - len(content); missing > 0 {
					content = append(content, make([]byte, missing)...)
				}
				copy(content[from:to], f.content[from:to])
			}
		}
		g := &memoryFile{disk: after, path: path, content: content, durable: slices.Clone(content), dirty: map[int]bool{}}
		if r == nil {
			g.durable, g.dirty = slices.Clone(f.durable), maps.Clone(f.dirty)
		}
		after.files[path] = g
	}
	after.durable = maps.Clone(after.files)
	if r == nil {
		// Names that are not durable may still be lost by a power cut that follows.
		after.durable = map[string]*memoryFile{}
		for path := range d.durable {
			if g := after.files[path]; g != nil {
				after.durable[path] = g
			}
		}
		for path, g := range after.files {
			if after.durable[path] == nil {
				after.changes = append(after.changes, func(files map[string]*memoryFile) { files[path] = g })
			}
		}
	}
	return after
}

// size is what all files have.
func (d *memoryDisk) size() (n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		n += int64(len(f.content))
	}
	return n
}

// openFile is a descriptor.
type openFile struct {
	*memoryFile
	closed bool
}

func (f *openFile) ReadAt(b []byte, at int64) (int, error) {
	err := f.disk.call("read", f.path, false)
	defer f.disk.mu.Unlock()
	if f.closed {
		return 0, fs.ErrClosed
	}
	if err != nil && !errors.Is(err, errPower) {
		return 0, err
	}
	f.reads++
	if at >= int64(len(f.content)) {
		return 0, io.EOF
	}
	n := copy(b, f.content[at:])
	f.readBytes += int64(n)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// ReadNow waits for nothing: a disk that is cold has nothing in memory.
func (f *openFile) ReadNow(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	cold := f.disk.cold
	f.disk.mu.Unlock()
	if cold {
		return 0, syscall.EAGAIN
	}
	return f.ReadAt(b, at)
}

func (f *openFile) WriteAt(b []byte, at int64) (int, error) {
	err := f.disk.call("write", f.path, true)
	defer f.disk.mu.Unlock()
	if f.closed {
		return 0, fs.ErrClosed
	}
	if f.disk.room >= 0 {
		used := int64(0)
		for _, g := range f.disk.files {
			if g != f.memoryFile {
				used += int64(len(g.content))
			}
		}
		if fits := f.disk.room - used - at; fits < int64(len(b)) && err == nil {
			b, err = b[:max(fits, 0)], errNoSpace // as much as fits is written
		}
	}
	if err != nil && !errors.Is(err, errPower) && !errors.Is(err, errNoSpace) {
		b = b[:len(b)/2] // so far it went well
	}
	if len(b) == 0 {
		return 0, err
	}
	end := int(at) + len(b)
	if len(f.content) < end {
		f.content = append(f.content, make([]byte, end-len(f.content))...)
	}
	for n := int(at) / sector; n*sector < end; n++ {
		f.dirty[n] = true
	}
	return copy(f.content[at:], b), err // when the power fails, some of it may have got there
}

func (f *openFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	f.opened--
	return nil
}

func (f *openFile) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.content)), nil
}

func (f *openFile) Allocate(int64) error { return nil }

func (f *openFile) Sync() error {
	err := f.disk.call("sync", f.path, true)
	defer f.disk.mu.Unlock()
	if errors.Is(err, errPower) {
		return err
	}
	for n := range f.dirty {
		from, to := n*sector, min((n+1)*sector, len(f.content))
		if err == nil {
			if missing := to - len(f.durable); missing > 0 {
				f.durable = append(f.durable, make([]byte, missing)...)
			}
			copy(f.durable[from:to], f.content[from:to])
		}
	}
	clear(f.dirty) // after an error, too: a later sync does not write what this one did not
	return err
}
