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

// roll cuts a file that is rolled when it has become too long on the disk, and says how many bytes of it count. What is cut is a hole, so
// that the offsets of everybody who writes or reads stay true, whoever has it open and however it was opened.
func (s *supervisor) roll(root *os.Root, name string, info fs.FileInfo) (bytes int64) {
	keep := s.launch.LogKeep
	have := onDisk(info)
	if s.unrolled.Load() || have <= keep+keep/4 {
		return have
	}
	err := cut(root, name, keep)
	if err == nil {
		return min(have, keep) // whatever was written since
	}
	if errors.Is(err, errNoHoles) && !s.unrolled.Swap(true) {
		s.log.Warn("log files are not rolled: the container ends when they are too long", "container", s.launch.Container, "file", name, "error", err)
	}
	return have
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

// cut frees what lies between the first block of a file, which has what a program says at its start, and the last keep bytes. The container may have made the name a link to another's file, which we, as
// root, could open for writing: so the open file must have the owner of the directory.
func cut(root *os.Root, name string, keep int64) error {
	f, err := root.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var file, dir unix.Stat_t
	var space unix.Statfs_t
	fd := int(f.Fd())
	if err := errors.Join(unix.Fstat(fd, &file), unix.Fstatfs(fd, &space)); err != nil {
		return err
	}
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Fstat(int(d.Fd()), &dir); err != nil {
		return err
	}
	if file.Mode&unix.S_IFMT != unix.S_IFREG || file.Uid != dir.Uid {
		return errForeign
	}
	block := max(4096, space.Bsize)
	if keep >= 8*largeBlock {
		block = largeBlock
	}
	end := (file.Size - keep) / block * block
	if end <= block {
		return nil
	}
	begin, err := f.Seek(block, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || begin >= end {
		return nil // nothing is left there
	}
	if err != nil {
		return err
	}
	begin = max(block, begin/block*block)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, begin, end-begin); err != nil {
		return fmt.Errorf("%w: %w", errNoHoles, err)
	}
	return nil
}
