package feed

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gohops/hops/metadata/raftstore/journal"
)

// memoryDisk is a disk that knows what is durable.
type memoryDisk struct {
	mu             sync.Mutex
	files, durable map[string]*memoryFile
	changes        []func(map[string]*memoryFile)
	// fail, if not nil, is asked before each call that changes something.
	fail func(op string) error
	// trouble, if not nil, is asked before each call, those that read included, twice: with its name only, and with that of the file.
	trouble func(op string) error
}

type memoryFile struct {
	disk    *memoryDisk
	path    string
	content []byte
	durable []byte
}

func newDisk() *memoryDisk {
	return &memoryDisk{files: map[string]*memoryFile{}, durable: map[string]*memoryFile{}}
}

// failing says what fails from now on.
func (d *memoryDisk) failing(trouble func(op string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trouble = trouble
}

// troubled is called with mu held.
func (d *memoryDisk) troubled(op, path string) error {
	if d.trouble == nil {
		return nil
	}
	return errors.Join(d.trouble(op), d.trouble(op+" "+path))
}

func (d *memoryDisk) change(op, path string) error {
	if err := d.troubled(op, path); err != nil {
		return err
	}
	if d.fail != nil {
		return d.fail(op)
	}
	return nil
}

func (d *memoryDisk) alter(change func(map[string]*memoryFile)) {
	change(d.files)
	d.changes = append(d.changes, change)
}

func (d *memoryDisk) List(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path := range d.files {
		names = append(names, filepath.Base(path))
	}
	return names, nil
}

func (d *memoryDisk) Open(path string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.troubled("open", path); err != nil {
		return nil, err
	}
	f := d.files[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return f, nil
}

func (d *memoryDisk) Create(path string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change("create", path); err != nil {
		return nil, err
	}
	f := &memoryFile{disk: d, path: path}
	d.alter(func(files map[string]*memoryFile) { files[path] = f })
	return f, nil
}

func (d *memoryDisk) Rename(string, string) error { return errors.ErrUnsupported }

func (d *memoryDisk) Remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change("remove", path); err != nil {
		return err
	}
	if d.files[path] == nil {
		return fs.ErrNotExist
	}
	d.alter(func(files map[string]*memoryFile) { delete(files, path) })
	return nil
}

func (d *memoryDisk) SyncDir(string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change("syncdir", ""); err != nil {
		return err
	}
	d.durable, d.changes = maps.Clone(d.files), nil
	return nil
}

// crash is what a kill leaves, or, with a source of chance, a power cut.
func (d *memoryDisk) crash(r *rand.Rand) *memoryDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := d.files
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
			const sector = 64
			for at := 0; at < len(f.content); at += sector {
				end := min(at+sector, len(f.content))
				if r.IntN(3) == 0 {
					if len(content) < end {
						content = append(content, make([]byte, end-len(content))...)
					}
					copy(content[at:end], f.content[at:end])
				}
			}
		}
		g := &memoryFile{disk: after, path: path, content: content}
		if r != nil {
			g.durable = slices.Clone(content)
		} else {
			g.durable = slices.Clone(f.durable)
		}
		after.files[path] = g
	}
	after.durable = maps.Clone(after.files)
	return after
}

func (f *memoryFile) ReadAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.troubled("read", f.path); err != nil {
		return 0, err
	}
	if at >= int64(len(f.content)) {
		return 0, io.EOF
	}
	n := copy(b, f.content[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.change("write", f.path); err != nil {
		return 0, err
	}
	if end := int(at) + len(b); len(f.content) < end {
		f.content = append(f.content, make([]byte, end-len(f.content))...)
	}
	return copy(f.content[at:], b), nil
}

func (f *memoryFile) Close() error { return nil }

func (f *memoryFile) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.content)), nil
}

func (f *memoryFile) Allocate(int64) error { return nil }

func (f *memoryFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.change("sync", f.path); err != nil {
		return err
	}
	f.durable = slices.Clone(f.content)
	return nil
}
