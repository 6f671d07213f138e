package feed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata/raftstore/journal"
)

// header is what a file begins with (FORMAT.md).
type header struct {
	// base: the file has the events of entries behind it, up to its end.
	base uint64
	// began is the log time when it began.
	began int64
	// former is the base of the file that this one continues, and formerSize how much of that counts; none: what is in front of base is missing.
	former     uint64
	formerSize int64
}

const (
	magic      = "hopsFED2"
	headerSize = 48
	// none is no base.
	none = math.MaxUint64
)

func (h *header) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[8:], h.base)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.began))
	binary.LittleEndian.PutUint64(b[24:], h.former)
	binary.LittleEndian.PutUint64(b[32:], uint64(h.formerSize))
	binary.LittleEndian.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
	return b
}

func decodeHeader(b []byte) (h header, err error) {
	if len(b) < headerSize || string(b[:8]) != magic || crc32.Checksum(b[:40], castagnoli) != binary.LittleEndian.Uint32(b[40:]) {
		return h, errDamaged
	}
	h.base = binary.LittleEndian.Uint64(b[8:])
	h.began = int64(binary.LittleEndian.Uint64(b[16:]))
	h.former = binary.LittleEndian.Uint64(b[24:])
	h.formerSize = int64(binary.LittleEndian.Uint64(b[32:]))
	if h.base > math.MaxInt64>>20 || h.former != none && h.formerSize < headerSize {
		return h, errDamaged
	}
	return h, nil
}

// name is the file's.
func (h *header) name() string { return fmt.Sprintf("%0*x%s", nameDigits, h.base, suffix) }

func baseOf(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != nameDigits {
		return 0, false
	}
	base, err := strconv.ParseUint(digits, 16, 64)
	return base, err == nil
}

// follows reports whether nothing is missing between former and s.
func (s *segment) follows(former *segment) bool { return s.former == former.base }

func readHeader(disk journal.Disk, path string) (h header, size int64, err error) {
	f, err := disk.Open(path)
	if err != nil {
		return h, 0, err
	}
	defer f.Close()
	if size, err = f.Size(); err != nil {
		return h, 0, err
	}
	b := make([]byte, headerSize)
	if n, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return h, 0, err
	} else if n < headerSize {
		return h, 0, errDamaged
	}
	h, err = decodeHeader(b)
	return h, size, err
}

// survey finds the pieces of a file that is not written any more, where its sound records end, the entry and log time of the last one.
func (l *Log) survey(s *segment) (covered uint64, logTime int64, err error) {
	f, err := l.disk.Open(filepath.Join(l.cfg.Dir, s.name()))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	l.mu.Lock()
	end := s.size
	l.mu.Unlock()
	at := int64(headerSize)
	source := bufio.NewReaderSize(io.NewSectionReader(f, at, max(end-at, 0)), 4*pieceSize)
	var pieces []piece
	var record []byte
	for {
		head, err := source.Peek(recordHeader)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		if len(head) < recordHeader {
			break
		}
		n := int64(binary.LittleEndian.Uint32(head)) + recordHeader
		if n > end-at {
			break
		}
		if int64(cap(record)) < n {
			record = make([]byte, n)
		}
		record = record[:n]
		if _, err := io.ReadFull(source, record); err != nil {
			return 0, 0, err
		}
		payload, size := payloadAt(record)
		if size == 0 {
			break
		}
		r := &reader{b: payload}
		h, _ := readHead(r)
		if r.err != nil || h.index <= max(s.base, covered) {
			break
		}
		if k := len(pieces); k == 0 || pieces[k-1].size >= pieceSize {
			pieces = append(pieces, piece{first: h.index, at: at})
		}
		p := &pieces[len(pieces)-1]
		p.size, p.last = p.size+n, h.index
		at += n
		covered, logTime = h.index, max(logTime, h.logTime)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.known {
		s.pieces, s.known = pieces, true
		s.damaged = s.short || at < end
		s.size = at
	}
	return covered, logTime, nil
}
