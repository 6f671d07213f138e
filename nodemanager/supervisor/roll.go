package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// largeBlock is a multiple of every filesystem's block and of huge pages: holes begin and end at one where that is little of what is kept.
const largeBlock = 2 << 20

// rolls reports whether a file of the log directory is rolled.
func (l *Launch) rolls(name string) bool {
	if l.LogKeep <= 0 {
		return false
	}
	for _, pattern := range l.Rolled {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}

// roll cuts a file that is rolled when it has become too long on the disk, and says how many bytes of it count: no more than are kept, but
// for what cutting did not free. What is cut is a hole, so that the offsets of everybody who writes or reads stay true, whoever has it
// open and however it was opened.
func (s *supervisor) roll(root *os.Root, name string, info fs.FileInfo) (bytes int64) {
	keep := s.launch.LogKeep
	have := onDisk(info)
	if s.unrolled.Load() {
		return have
	}
	if have > keep+keep/4 {
		left, err := cut(root, name, keep)
		switch {
		case err == nil:
			have = left
		case errors.Is(err, errNoHoles) && !s.unrolled.Swap(true):
			s.log.Warn("log files are not rolled: the container ends when they are too long", "container", s.launch.Container, "file", name, "error", err)
		}
	}
	if have > keep+keep/4 {
		return have
	}
	return min(have, keep) // whatever was written since
}

// onDisk is what a file takes of the disk, or its length if that is less.
func onDisk(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(info.Size(), st.Blocks*512)
	}
	return info.Size()
}

// Why cut leaves a file alone: it is not a file of the container's, or the filesystem cannot free a part of one.
var (
	errForeign = errors.New("not a file of the directory's owner")
	errNoHoles = errors.New("punch a hole")
)

// cut frees what lies between the first block of a file, which has what a program says at its start, and the last keep bytes, and says what
// the file has on the disk after that. The container may have made the name a link to another's file, which we, as root, could open for
// writing: so the open file must have the owner of the directory.
func cut(root *os.Root, name string, keep int64) (left int64, err error) {
	f, err := root.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var file, dir unix.Stat_t
	var space unix.Statfs_t
	fd := int(f.Fd())
	if err := errors.Join(unix.Fstat(fd, &file), unix.Fstatfs(fd, &space)); err != nil {
		return 0, err
	}
	d, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer d.Close()
	if err := unix.Fstat(int(d.Fd()), &dir); err != nil {
		return 0, err
	}
	if file.Mode&unix.S_IFMT != unix.S_IFREG || file.Uid != dir.Uid {
		return 0, errForeign
	}
	block := max(4096, space.Bsize)
	if keep >= 8*largeBlock {
		block = largeBlock
	}
	end := (file.Size - keep) / block * block
	if end <= block {
		return min(file.Size, file.Blocks*512), nil // it was made shorter meanwhile
	}
	// All of it, even where it has no data: what was preallocated there takes room too.
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) { // by a signal of the runtime's, of which nothing follows about the filesystem
		err = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, block, end-block)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoHoles, err)
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	// A filesystem that frees later may say so later; no more than that was left. What was written meanwhile, which is much where this process has
	// to wait for a processor, is for the next look.
	return min(max(0, onDisk(info)-max(0, info.Size()-file.Size)), block+file.Size-end), nil
}
