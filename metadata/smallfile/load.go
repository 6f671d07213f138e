package smallfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gohops/hops/metadata"
)

const (
	suffix     = ".bodies"
	nameDigits = 16
	// scanPiece is how much is read at a time from a segment whose index is missing: so much is given up where the disk cannot read.
	scanPiece = 64 << 10
	// named is how many ids a line of the log has at most.
	named = 20
)

func segmentName(seq uint64) string { return fmt.Sprintf("%0*x%s", nameDigits, seq, suffix) }

func sequenceOf(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != nameDigits {
		return 0, false
	}
	seq, err := strconv.ParseUint(digits, 16, 64)
	return seq, err == nil && segmentName(seq) == name
}

// load finds the segments.
func (s *Store) load() error {
	names, err := s.disk.List(s.cfg.Dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		seq, ok := sequenceOf(name)
		if !ok {
			continue
		}
		s.next = seq + 1
		g, err := s.read(seq)
		if err != nil {
			err = fmt.Errorf("segment %s of small files: %w", filepath.Join(s.cfg.Dir, name), err)
		}
		switch {
		case err == nil:
			s.segments = append(s.segments, g)
		case s.cfg.Lenient && !exhausted(err):
			s.unread = append(s.unread, err)
		default:
			return err
		}
	}
	s.table = newTable(s.segments)
	for _, g := range s.segments {
		var lost []metadata.BlockID
		for i := range g.len() {
			if e := g.entry(i); e.lost && len(s.places(e.id, nil)) == 0 {
				s.damaged[e.id] = struct{}{}
				lost = append(lost, e.id)
			}
		}
		if len(lost) > 0 {
			s.log.Warn("bodies of small files are damaged; those that were not durable come again from the log, others have to come from another namenode",
				"file", segmentName(g.seq), "bodies", len(lost), "ids", lost[:min(len(lost), named)])
		}
	}
	return nil
}

// exhausted reports whether an error is that of a process, or a machine, that has no descriptors or no memory left.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// Unread is what Open could not read and has gone on without, which may pass: parts of segments without an index where the disk had an error, and, of a lenient
// Store, whole segments. nil: everything was read, and what is not here is not in these files.
func (s *Store) Unread() error { return errors.Join(s.unread...) }

// read finds the index of a segment: in its footer, or by reading all of it.
func (s *Store) read(seq uint64) (*segment, error) {
	h, err := s.files.take(seq)
	if err != nil {
		return nil, err
	}
	defer s.files.release(h)
	size, err := h.Size()
	if err != nil {
		return nil, err
	}
	if size > maxSegment {
		return nil, fmt.Errorf("it has %d bytes, more than a segment can have: move it away if it does not belong here", size)
	}
	g := &segment{seq: seq, bytes: size}
	trailer := make([]byte, min(trailerSize, size))
	if err := lossy(readFull(h, trailer, size-int64(len(trailer)))); err != nil {
		return nil, err
	}
	if start, n, ok := decodeTrailer(trailer, size); ok {
		footer := make([]byte, size-start)
		if err := lossy(readFull(h, footer, start)); err != nil {
			return nil, err
		}
		if g.index, g.salt, ok = decodeFooter(footer, start, n); ok {
			return g, nil
		}
	}
	g.suspect = true
	content := make([]byte, size)
	var unread error
	for at := int64(0); at < size; at += scanPiece {
		err := readFull(h, content[at:min(at+scanPiece, size)], at)
		if lossy(err) != nil {
			return nil, err
		}
		unread = cmp.Or(unread, err)
	}
	if unread != nil {
		s.unread = append(s.unread, fmt.Errorf("segment %s of small files, which has no index, was not read in all its parts: %w", s.files.path(seq), unread))
	}
	salt, ok := decodeHeader(content)
	unreadable := size
	if ok {
		var entries []entry
		entries, unreadable = parse(content, salt)
		g.salt, g.index = salt, newIndex(entries)
	}
	s.unreadable += unreadable
	s.log.Info("a segment of small files was not finished, or its index is damaged: it was read through", "file", segmentName(seq), "bodies", g.len(), "unreadable", unreadable)
	return g, nil
}

// readFull reads up to the end of the file.
func readFull(r io.ReaderAt, b []byte, at int64) error {
	_, err := r.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// lossy takes what a disk cannot read for zeros, which the sums find.
func lossy(err error) error {
	if errors.Is(err, syscall.EIO) {
		return nil
	}
	return err
}
