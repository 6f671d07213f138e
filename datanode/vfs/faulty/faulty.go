// Package faulty wraps a file system so that chosen calls fail, for tests of what happens then.
package faulty

import (
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/datanode/vfs"
)

// Op is one call about to be made.
type Op struct {
	// Call is open, rename, remove, mkdir, readdir, stat, syncdir, usage, lock, read, write, sync, truncate, punch or size.
	Call string
	Name string
	// Off and N are what is to be read.
	Off, N int64
}

// Rule decides whether a call fails: a non-nil error is returned instead of making it. Rules run concurrently.
type Rule func(Op) error

// FS is the wrapper.
type FS struct {
	inner vfs.FS
	calls atomic.Int64
	mu    sync.RWMutex
	rule  Rule
}

// New wraps inner; nothing fails until Set.
func New(inner vfs.FS) *FS { return &FS{inner: inner} }

// Set replaces the rule; nil lets everything pass.
func (f *FS) Set(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rule = r
}

// Calls counts the calls made so far.
func (f *FS) Calls() int64 { return f.calls.Load() }

// Nth fails the nth matching call from now, counting from 1, and all after it when forever is set. An empty call or path
// matches everything; path is a substring.
func Nth(n int, call, path string, forever bool, err error) Rule {
	var seen atomic.Int64
	return func(op Op) error {
		if call != "" && op.Call != call || path != "" && !strings.Contains(op.Name, path) {
			return nil
		}
		if k := seen.Add(1); k == int64(n) || forever && k > int64(n) {
			return err
		}
		return nil
	}
}

func (f *FS) check(call, name string) error { return f.judge(Op{Call: call, Name: name}) }

func (f *FS) judge(op Op) error {
	f.calls.Add(1)
	f.mu.RLock()
	r := f.rule
	f.mu.RUnlock()
	if r == nil {
		return nil
	}
	if err := r(op); err != nil {
		return &os.PathError{Op: op.Call, Path: op.Name, Err: err}
	}
	return nil
}

// OpenFile implements vfs.FS.
func (f *FS) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	if err := f.check("open", name); err != nil {
		return nil, err
	}
	g, err := f.inner.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &file{g, f, name}, nil
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldname, newname string) error {
	if err := f.check("rename", newname); err != nil {
		return err
	}
	return f.inner.Rename(oldname, newname)
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	if err := f.check("remove", name); err != nil {
		return err
	}
	return f.inner.Remove(name)
}

// Mkdir implements vfs.FS.
func (f *FS) Mkdir(name string, perm os.FileMode) error {
	if err := f.check("mkdir", name); err != nil {
		return err
	}
	return f.inner.Mkdir(name, perm)
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(name string) ([]vfs.Entry, error) {
	if err := f.check("readdir", name); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(name)
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.Info, error) {
	if err := f.check("stat", name); err != nil {
		return vfs.Info{}, err
	}
	return f.inner.Stat(name)
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(name string) error {
	if err := f.check("syncdir", name); err != nil {
		return err
	}
	return f.inner.SyncDir(name)
}

// Usage implements vfs.FS.
func (f *FS) Usage(name string) (vfs.Usage, error) {
	if err := f.check("usage", name); err != nil {
		return vfs.Usage{}, err
	}
	return f.inner.Usage(name)
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	if err := f.check("lock", name); err != nil {
		return nil, err
	}
	return f.inner.Lock(name)
}

type file struct {
	vfs.File
	fs   *FS
	name string
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.judge(Op{Call: "read", Name: f.name, Off: off, N: int64(len(p))}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.check("write", f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *file) WriteAllAt(pieces [][]byte, off int64) error {
	if err := f.fs.check("write", f.name); err != nil {
		return err
	}
	return f.File.WriteAllAt(pieces, off)
}

func (f *file) Sync() error {
	if err := f.fs.check("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *file) Truncate(size int64) error {
	if err := f.fs.check("truncate", f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *file) Punch(off, n int64) error {
	if err := f.fs.check("punch", f.name); err != nil {
		return err
	}
	return f.File.Punch(off, n)
}

func (f *file) Size() (int64, error) {
	if err := f.fs.check("size", f.name); err != nil {
		return 0, err
	}
	return f.File.Size()
}

// OS hides the inner file, so that reads go through ReadAt and can fail.
func (f *file) OS() *os.File { return nil }
