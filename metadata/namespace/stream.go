package namespace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// The stream of a snapshot, all numbers little-endian:
//
//	"HOPSNS" version(2)  index(8)  crc32c(4) of the 16 bytes before
//	frame*
//	frame = type(1) length(4) crc32c(4) payload      crc over type, length and payload
//	type 'R': records, each uvarint(len key) key uvarint(len value) value, in ascending order of keys
//	type 'E': the end: uvarint(number of records), then the marker's record value
const (
	streamMagic   = "HOPSNS"
	streamVersion = 2
	headerSize    = 20
	frameHeader   = 9
	frameTarget   = 64 << 10
	// maxFrame bounds what a reader allocates: one record of the greatest size must fit.
	maxFrame = kv.MaxKey + kv.MaxValue + 1<<10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), metadata.ErrCorrupt)
}

type streamWriter struct {
	w     io.Writer
	n     int64
	frame []byte // header space and payload
	count uint64
}

// writeStream streams all records that view shows. marker is that of the checkpoint.
func writeStream(w io.Writer, view kv.View, marker []byte) (int64, error) {
	m, err := decodeMarker(marker)
	if err != nil {
		return 0, err
	}
	s := &streamWriter{w: w, frame: make([]byte, frameHeader, frameHeader+frameTarget+4096)}
	header := append(make([]byte, 0, headerSize), streamMagic...)
	header = binary.LittleEndian.AppendUint16(header, streamVersion)
	header = binary.LittleEndian.AppendUint64(header, m.Index)
	header = binary.LittleEndian.AppendUint32(header, crc32.Checksum(header, castagnoli))
	if err := s.write(header); err != nil {
		return s.n, err
	}
	var bad error
	err = view.Scan(nil, nil, func(key, value []byte) bool {
		if key[0] == classMarker {
			return true
		}
		if bad = s.record(key, value); bad != nil {
			return false
		}
		return true
	})
	if err == nil {
		err = bad
	}
	if err == nil {
		err = s.flush('R')
	}
	if err == nil {
		s.frame = append(binary.AppendUvarint(s.frame, s.count), marker...)
		err = s.flush('E')
	}
	return s.n, err
}

func (s *streamWriter) write(b []byte) error {
	n, err := s.w.Write(b)
	s.n += int64(n)
	return err
}

func (s *streamWriter) record(key, value []byte) error {
	s.frame = binary.AppendUvarint(s.frame, uint64(len(key)))
	s.frame = append(s.frame, key...)
	s.frame = binary.AppendUvarint(s.frame, uint64(len(value)))
	s.frame = append(s.frame, value...)
	s.count++
	if len(s.frame) >= frameTarget {
		return s.flush('R')
	}
	return nil
}

func (s *streamWriter) flush(kind byte) error {
	if len(s.frame) == frameHeader {
		return nil
	}
	s.frame[0] = kind
	binary.LittleEndian.PutUint32(s.frame[1:], uint32(len(s.frame)-frameHeader))
	sum := crc32.Checksum(s.frame[:5], castagnoli)
	binary.LittleEndian.PutUint32(s.frame[5:], crc32.Update(sum, castagnoli, s.frame[frameHeader:]))
	err := s.write(s.frame)
	s.frame = s.frame[:frameHeader]
	return err
}

// streamReader reads a stream and checks it: sums, order, completeness.
type streamReader struct {
	r       *bufio.Reader
	index   uint64
	marker  []byte // after io.EOF
	frame   []byte
	rest    []byte // of frame
	lastKey []byte
	count   uint64
	done    bool
}

func newStreamReader(r io.Reader) (*streamReader, error) {
	s := &streamReader{r: bufio.NewReaderSize(r, frameTarget)}
	var header [headerSize]byte
	if _, err := io.ReadFull(s.r, header[:]); err != nil {
		return nil, corrupt("header: %v", err)
	}
	if string(header[:6]) != streamMagic {
		return nil, corrupt("not a snapshot of a namespace")
	}
	if v := binary.LittleEndian.Uint16(header[6:]); v != streamVersion {
		return nil, corrupt("snapshot of version %d, this program reads %d", v, streamVersion)
	}
	if crc32.Checksum(header[:16], castagnoli) != binary.LittleEndian.Uint32(header[16:]) {
		return nil, corrupt("checksum of the header")
	}
	if s.index = binary.LittleEndian.Uint64(header[8:]); s.index == 0 {
		return nil, corrupt("snapshot without an index")
	}
	return s, nil
}

// next returns the next record, whose slices are good until the call after it, or io.EOF after the last one of a
// complete stream.
func (s *streamReader) next() (key, value []byte, err error) {
	for len(s.rest) == 0 {
		if s.done {
			return nil, nil, io.EOF
		}
		if err := s.readFrame(); err != nil {
			return nil, nil, err
		}
	}
	if key, err = s.field(); err != nil {
		return nil, nil, err
	}
	if value, err = s.field(); err != nil {
		return nil, nil, err
	}
	if len(key) == 0 || !classKnown(key[0]) {
		return nil, nil, corrupt("record %d: key %q", s.count, key)
	}
	if bytes.Compare(key, s.lastKey) <= 0 {
		return nil, nil, corrupt("record %d: key %q after %q", s.count, key, s.lastKey)
	}
	s.lastKey = append(s.lastKey[:0], key...)
	s.count++
	return key, value, nil
}

func (s *streamReader) field() ([]byte, error) {
	size, n := binary.Uvarint(s.rest)
	if n <= 0 || size > uint64(len(s.rest)-n) {
		return nil, corrupt("record %d runs over its frame", s.count)
	}
	field := s.rest[n : n+int(size)]
	s.rest = s.rest[n+int(size):]
	return field, nil
}

func (s *streamReader) readFrame() error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(s.r, header[:]); err != nil {
		return corrupt("frame after record %d: %v", s.count, err)
	}
	size := binary.LittleEndian.Uint32(header[1:])
	if size == 0 || size > maxFrame+frameTarget {
		return corrupt("frame of %d bytes after record %d", size, s.count)
	}
	if cap(s.frame) < int(size) {
		s.frame = make([]byte, size)
	}
	s.frame = s.frame[:size]
	if _, err := io.ReadFull(s.r, s.frame); err != nil {
		return corrupt("frame after record %d: %v", s.count, err)
	}
	sum := crc32.Update(crc32.Checksum(header[:5], castagnoli), castagnoli, s.frame)
	if sum != binary.LittleEndian.Uint32(header[5:]) {
		return corrupt("checksum of the frame after record %d", s.count)
	}
	switch header[0] {
	case 'R':
		s.rest = s.frame
	case 'E':
		count, n := binary.Uvarint(s.frame)
		if n <= 0 || count != s.count {
			return corrupt("stream has %d records, %d were written", s.count, count)
		}
		s.marker, s.done = s.frame[n:], true
	default:
		return corrupt("frame of type %q", header[0])
	}
	return nil
}
