// Package vfs is the disk as the block store needs it: a few calls, each of which can be made to fail and all of which
// can be replayed as they would look after a power cut. The real one is OS; vfs/mem makes crash clones and vfs/faulty
// fails chosen calls.
package vfs

import (
	"errors"
	"io"
	"os"
)

// FS is a tree of files. Implementations are safe for concurrent use. Errors satisfy errors.Is with io/fs's sentinels.
type FS interface {
	// OpenFile is os.OpenFile. A created file is durable after Sync of the file and SyncDir of its directory.
	OpenFile(name string, flag int, perm os.FileMode) (File, error)
	// Rename replaces newname atomically: after a crash one of the two names resolves to the file. Both names are in one
	// directory; the change is durable after SyncDir.
	Rename(oldname, newname string) error
	// Remove unlinks a file or an empty directory. Open files stay readable.
	Remove(name string) error
	// Mkdir makes one directory; it is durable after SyncDir of its parent.
	Mkdir(name string, perm os.FileMode) error
	// ReadDir lists names in no particular order.
	ReadDir(name string) ([]Entry, error)
	// Stat tells size, kind and stamp.
	Stat(name string) (Info, error)
	// SyncDir makes every earlier change of the directory's entries durable.
	SyncDir(name string) error
	// Usage tells how large the file system is and how much of it an ordinary user may still write.
	Usage(name string) (Usage, error)
	// Lock takes an exclusive lock on the named file, creating it, or returns ErrLocked at once. Closing releases it, and
	// so does the end of the process.
	Lock(name string) (io.Closer, error)
}

// File is an open file. ReadAt and WriteAt may run concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the contents and the size durable. After an error the file's contents on disk are unknown: the kernel
	// reports a lost write once and then forgets it, so the caller must not try again (fsync(2), "fsyncgate").
	Sync() error
	// WriteAllAt writes the pieces behind each other, from off on. It may change the slice pieces.
	WriteAllAt(pieces [][]byte, off int64) error
	Truncate(size int64) error
	Size() (int64, error)
	// Allocate asks for room on the disk for the range, without changing the file's size and without any promise: writes
	// that find it there are cheaper. Truncate, also to the size that the file has, gives back what lies behind the end.
	Allocate(off, n int64)
	// Writeback asks the kernel to begin writing the range out, without waiting and without any promise.
	Writeback(off, n int64)
	// Forget drops the clean pages of the range from the cache, without any promise: what is read next comes from the disk,
	// and what was read once does not push out what others need.
	Forget(off, n int64)
	// Punch gives the space of a range back, which reads as zeros then. It is one change: after a crash all of it has
	// happened or none. Where the file system has no holes only the first sector of the range becomes zero. Offset and length
	// are multiples of 4096.
	Punch(off, n int64) error
	// OS is the operating system's file, for sendfile; nil when there is none.
	OS() *os.File
}

// Entry is one name of a directory.
type Entry struct {
	Name string
	Dir  bool
}

// Info describes a file.
type Info struct {
	Size  int64
	Dir   bool
	Stamp Stamp
}

// Stamp is what the file system keeps of the last change of a file, or of a directory's entries. Two changes have different stamps unless
// they come within one tick of its clock, which may be as coarse as a second. After a crash a directory has the stamp of the entries that it has,
// and a file has one that is no older than the last change of its size or the last hole that survived; bytes that were
// overwritten in place may be newer than the stamp.
type Stamp struct {
	Inode uint64
	// Modified and Changed are in Unix nanoseconds.
	Modified, Changed int64
}

// None reports that the file system does not tell.
func (s Stamp) None() bool { return s == Stamp{} }

// Latest is the time of the last change in Unix nanoseconds.
func (s Stamp) Latest() int64 { return max(s.Modified, s.Changed) }

// Usage is the state of a file system, in bytes.
type Usage struct {
	Total int64
	Free  int64
}

// ErrLocked: another process, or another user of the same one, holds the lock.
var ErrLocked = errors.New("locked by another process")
