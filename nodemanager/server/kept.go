package server

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// lineSearch is how far the beginning of a line is looked for after a hole, in bytes.
const lineSearch = 64 << 10

// rolls reports whether a log file's beginning is given up when it is long (supervisor.Launch.Rolled).
func (c *Config) rolls(name string) bool {
	if c.LogKeep >= c.LogLimit {
		return false
	}
	for _, pattern := range c.LogRolled {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}

// logReader reads a log file which its supervisor may cut while it is read: what is cut is passed over, up to the next line.
type logReader struct {
	file   *os.File
	rolled bool
}

// readFrom reads at offset, or where the file has something again after it, and says where that was. The error is io.EOF at the end, which
// is also where only a hole is left: a program may make its file as long as it likes (truncate, fallocate) and print nothing.
func (l logReader) readFrom(p []byte, offset int64) (at int64, n int, err error) {
	if !l.rolled {
		n, err = l.file.ReadAt(p, offset)
		return offset, n, err
	}
	for at = offset; ; {
		at = l.kept(at)
		piece := p
		switch hole, holes := l.file.Seek(at, unix.SEEK_HOLE); {
		case holes == nil && hole > at:
			piece = p[:min(int64(len(p)), hole-at)]
		case holes == nil && hole == at:
			if _, err := l.file.Seek(at, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
				return at, 0, io.EOF
			}
			continue // it was cut meanwhile, or the line ended with what is kept between two holes
		}
		if n, err = l.file.ReadAt(piece, at); n == 0 {
			return at, n, err
		}
		if hole, holes := l.file.Seek(at, unix.SEEK_HOLE); holes != nil || hole >= at+int64(n) {
			return at, n, err // otherwise some of it was cut meanwhile, and may read as zeros
		}
	}
}

// data is where the file has data from an offset on; ok is false when it has none there, or the filesystem does not tell.
func (l logReader) data(offset int64) (int64, bool) {
	at, err := l.file.Seek(offset, unix.SEEK_DATA)
	return at, err == nil
}

// kept is offset, or if that is cut the beginning of the next line that is not.
func (l logReader) kept(offset int64) int64 {
	if !l.rolled {
		return offset
	}
	at, ok := l.data(offset)
	if !ok || at == offset {
		return offset
	}
	buffer := make([]byte, lineSearch)
	n, _ := l.file.ReadAt(buffer, at) // an error shows at the next read
	if i := bytes.IndexByte(buffer[:n], '\n'); i >= 0 && i+1 < n {
		return at + int64(i) + 1
	}
	return at
}

// section reads what is kept between two offsets.
type section struct {
	from   logReader
	at, to int64
}

// Read implements io.Reader.
func (s *section) Read(p []byte) (int, error) {
	if s.at >= s.to {
		return 0, io.EOF
	}
	at, n, err := s.from.readFrom(p[:min(int64(len(p)), s.to-s.at)], s.at)
	if at >= s.to || n == 0 && (err == nil || errors.Is(err, io.EOF)) {
		return 0, io.EOF
	}
	n = int(min(int64(n), s.to-at))
	s.at = at + int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}
