// Package logfile writes logs into files of a bounded size and number. Whoever writes does not wait for the disk: one that is full or
// hangs stops no server.
package logfile

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"
)

// Config describes a log. Path is required.
type Config struct {
	Path string
	// Size is where a file ends and the next one begins, in bytes; where that cannot be made, a file gets twice as large. Keep is how many ended ones stay, as PATH.1, the newest, and so on.
	// Defaults 64 MiB, 10.
	Size int64
	Keep int
	// Linger is how long what is written may wait for more, so that it goes to the disk together. Default: not at all.
	Linger time.Duration
	// Lost makes the line that says how many writes are missing; Failed is told when the file cannot be written, and Again when it can.
	// Each may be nil.
	Lost   func(n int) string
	Failed func(error)
	Again  func()
}

const (
	// buffered is how much may wait to be written; what comes when it is full is counted, and the count is written.
	buffered = 4 << 20
	// lookEvery is how often it is looked whether somebody has taken the file away (logrotate).
	lookEvery = time.Second
)

// File is a log. It is safe for concurrent use.
type File struct {
	config Config

	mu      sync.Mutex
	pending []byte
	lines   int // writes in pending
	lost    int
	wake    chan struct{} // capacity 1: something is pending
	full    chan struct{} // capacity 1: much is

	// Of Run.
	file   *os.File
	size   int64
	failed error
	spare  []byte
	looked time.Time
	astray error // what the last look has met
}

// Open opens a log for appending. Run writes it.
func Open(c Config) (*File, error) {
	c.Size, c.Keep = cmp.Or(c.Size, 64<<20), cmp.Or(c.Keep, 10)
	f := &File{config: c, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	if err := f.open(c.Path); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) open(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Write keeps p to be written. It never fails: what does not fit is counted.
func (f *File) Write(p []byte) (int, error) {
	f.Append(func(b []byte) []byte { return append(b, p...) })
	return len(p), nil
}

// Append is Write of what add appends.
func (f *File) Append(add func([]byte) []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.pending) >= buffered {
		f.lost++
		return
	}
	f.pending = add(f.pending)
	f.lines++
	signal(f.wake)
	if len(f.pending) >= buffered/4 {
		signal(f.full)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run writes until ctx is done, and then what is left.
func (f *File) Run(ctx context.Context) error {
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			f.flush()
			return f.file.Close()
		}
		if f.config.Linger > 0 {
			t := time.NewTimer(f.config.Linger)
			select {
			case <-t.C:
			case <-f.full:
			case <-ctx.Done():
			}
			t.Stop()
		}
		f.flush()
	}
}

// flush writes what is pending.
func (f *File) flush() {
	f.mu.Lock()
	out, lost, lines := f.pending, f.lost, f.lines
	f.pending, f.lost, f.lines = f.spare[:0], 0, 0
	f.mu.Unlock()
	if lost > 0 && f.config.Lost != nil {
		out = append(out, f.config.Lost(lost)...)
		lines += lost // whoever loses this loses the count
	}
	if len(out) == 0 {
		f.spare = out // the other one is in use now
		return
	}
	err := f.write(out, lines)
	switch {
	case err != nil && f.failed == nil && f.config.Failed != nil:
		f.config.Failed(err)
	case err == nil && f.failed != nil && f.config.Again != nil:
		f.config.Again()
	}
	f.failed, f.spare = err, out[:0]
}

// write writes a number of lines, wherever it can: where no other file can be begun it goes on with the one that is open, and says so. What cannot be
// written is counted as lost.
func (f *File) write(out []byte, lines int) error {
	err := f.look()
	if f.size > 0 && f.size+int64(len(out)) > f.config.Size {
		if rotated := f.rotate(); rotated != nil {
			err = errors.Join(err, rotated)
			if f.size > 2*f.config.Size { // it is bounded all the same
				f.lose(lines)
				return err
			}
		}
	}
	n, failed := f.file.Write(out)
	if f.size += int64(n); failed != nil {
		f.lose(lines)
	}
	return errors.Join(err, failed)
}

// lose counts writes of which nothing, or a part, is in the file.
func (f *File) lose(lines int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost += lines
}

// look begins a new file when somebody has moved or removed the one that is being written, so that logrotate needs to tell nobody.
func (f *File) look() error {
	now := time.Now()
	if now.Sub(f.looked) < lookEvery {
		return f.astray
	}
	f.looked = now
	f.astray = f.follow()
	return f.astray
}

func (f *File) follow() error {
	mine, err := f.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(f.config.Path)
	if err == nil && os.SameFile(mine, there) {
		f.size = there.Size() // perhaps it was cut (copytruncate)
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	old := f.file
	if err := f.open(f.config.Path); err != nil {
		return err
	}
	return old.Close()
}

// rotate makes the file the first of the ended ones and begins a new one, which is opened first: where that fails nothing has moved, and
// the next write tries again.
func (f *File) rotate() error {
	old, size, fresh := f.file, f.size, f.config.Path+".new"
	if err := f.open(fresh); err != nil {
		return err
	}
	if err := f.shift(fresh); err != nil {
		f.file.Close()
		f.file, f.size = old, size
		return err
	}
	return old.Close()
}

// shift moves the files on, and the fresh one into the place of the current one.
func (f *File) shift(fresh string) error {
	name := func(i int) string { return f.config.Path + "." + strconv.Itoa(i) }
	if _, err := os.Lstat(f.config.Path); errors.Is(err, os.ErrNotExist) { // somebody has taken it away, or it was moved when this failed before
		return os.Rename(fresh, f.config.Path)
	}
	vacant := 1
	for vacant < f.config.Keep {
		if _, err := os.Lstat(name(vacant)); errors.Is(err, os.ErrNotExist) {
			break // what is behind it stays: a shift that failed and is tried again moves nothing twice
		}
		vacant++
	}
	for i := vacant - 1; i >= 1; i-- {
		if err := os.Rename(name(i), name(i+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(f.config.Path, name(1)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(fresh, f.config.Path)
}
