package localizer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

// free is what a disk can still take. inodes is -1 where the filesystem does not count them.
type free struct {
	bytes, inodes int64
}

// freeAt asks the filesystem of a directory.
func freeAt(dir string) (free, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return free{}, fmt.Errorf("statfs %s: %w", dir, err)
	}
	f := free{int64(st.Bavail) * st.Bsize, -1}
	if st.Files > 0 {
		f.inodes = int64(st.Ffree)
	}
	return f, nil
}

// reservedInodes stay free, as reserve bytes do.
const reservedInodes = 1000

// disk refuses what would fill a disk up.
type disk struct {
	reserve int64
	look    func(dir string) (free, error)
}

// takes returns nil when the disk of dir takes so many bytes and files more and keeps its reserve.
func (d *disk) takes(dir string, bytes int64, files int64) error {
	f, err := d.look(dir)
	if err != nil {
		return err
	}
	if bytes > f.bytes-d.reserve {
		return fmt.Errorf("needs %s, but of the %s free on the disk of %s %s stay in reserve: free some space there, or submit less",
			nodemanager.ByteSize(bytes), nodemanager.ByteSize(f.bytes), dir, nodemanager.ByteSize(d.reserve))
	}
	if f.inodes >= 0 && files > f.inodes-reservedInodes {
		return fmt.Errorf("makes %d files, but of the %d inodes free on the disk of %s %d stay in reserve: remove files there, or submit fewer",
			files, f.inodes, dir, reservedInodes)
	}
	return nil
}

// budget is what the artifacts of one container may still take. Everything is counted as it comes out, whatever a header
// promised before.
type budget struct {
	ctx   context.Context
	disk  *disk
	dir   string
	bytes int64
	// entries counts what archives list, inodes what is made: a name of three components may make three.
	entries, inodes int
	// links bounds the names of symbolic links, in bytes: they are remembered until all can be resolved.
	links int
	// unseen bytes were written since the disk was looked at.
	unseen int64
}

// lookEvery is how many bytes are written between two looks at the disk.
const lookEvery = 16 << 20

// entry takes one entry of an announced size from the budget before anything is made of it.
func (b *budget) entry(size int64) error {
	if err := b.ctx.Err(); err != nil {
		return err
	}
	if b.entries--; b.entries < 0 {
		return errMany
	}
	if size > b.bytes {
		return errLarge
	}
	b.unseen = 0
	return b.disk.takes(b.dir, max(0, size), 1)
}

// charge takes what is there already.
func (b *budget) charge(e extent) error {
	b.bytes, b.entries, b.inodes = b.bytes-e.content(), b.entries-e.Files, b.inodes-e.Files
	switch {
	case b.bytes < 0:
		return errLarge
	case b.entries < 0 || b.inodes < 0:
		return errMany
	}
	return nil
}

var (
	errMany  = errors.New("has more entries than a node unpacks for one container")
	errLarge = errors.New("unpacks to more bytes than a node takes for one container")
)

// inode takes one file, directory or link that is about to be made.
func (b *budget) inode() error {
	if b.inodes <= 0 {
		return errMany
	}
	b.inodes--
	return b.ctx.Err()
}

// spending is a writer that takes its bytes from the budget.
type spending struct {
	*budget
	to io.Writer
}

func (s *spending) Write(p []byte) (int, error) {
	n := int64(len(p))
	if s.bytes -= n; s.bytes < 0 {
		return 0, errLarge
	}
	if s.unseen += n; s.unseen >= lookEvery {
		s.unseen = 0
		if err := s.disk.takes(s.dir, n, 0); err != nil {
			return 0, err
		}
	}
	return s.to.Write(p)
}
