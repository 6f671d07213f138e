package namespace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// The records of a version travel and lie in pieces of frames, all numbers little-endian:
//
//	frame = type(1) length(4) crc32c(4) payload      crc over type, length and payload
//	type 'P': the first of a piece: where it begins: uvarint(number of records before), then the last key before
//	type 'R': records, each uvarint(len key) key uvarint(len value) value, in ascending order of keys
//	type 'E': the end of the last piece: uvarint(number of records), then the marker's record value
//	types 'F' and 'G': a body of a small file, or that it is missing: see stream_bodies.go
//
// A copy, which is a file, is all of them behind a header:
//
//	"HOPSNS" version(2)  index(8)  crc32c(4) of the 16 bytes before
const (
	streamMagic   = "HOPSNS"
	streamVersion = 3
	// bodiesVersion is that of a copy with bodies of small files, with sheets, or with directories apart.
	bodiesVersion = 4
	headerSize    = 20
	frameHeader   = 9
	frameTarget   = 64 << 10
	// pieceTarget is how large a piece grows before it ends.
	pieceTarget = 1 << 20
	// maxFrame bounds what a reader allocates: one record of the greatest size must fit behind a nearly full frame.
	maxFrame = kv.MaxKey + kv.MaxValue + 1<<10 + frameTarget
)

const (
	framePosition = 'P'
	frameRecords  = 'R'
	frameEnd      = 'E'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), metadata.ErrCorrupt)
}

// piece collects the frames of one.
type piece struct {
	bytes []byte
	start int // of the frame that is being filled; its header is there
	count uint64
	last  []byte // the last key
	// named are the bodies that records of that frame name, namedBytes about what their frames take.
	named      []BodyRef
	namedBytes int
}

// begin makes a piece that continues at a position: behind the key last, with count records before it.
func (c *piece) begin(count uint64, last []byte) {
	c.bytes, c.count, c.last = c.bytes[:0], count, append(c.last[:0], last...)
	c.named, c.namedBytes = c.named[:0], 0
	c.open()
	c.bytes = append(binary.AppendUvarint(c.bytes, count), last...)
	c.close(framePosition)
	c.open()
}

func (c *piece) open() {
	c.start = len(c.bytes)
	c.bytes = append(c.bytes, make([]byte, frameHeader)...)
}

func (c *piece) close(kind byte) {
	frame := c.bytes[c.start:]
	frame[0] = kind
	binary.LittleEndian.PutUint32(frame[1:], uint32(len(frame)-frameHeader))
	sum := crc32.Checksum(frame[:5], castagnoli)
	binary.LittleEndian.PutUint32(frame[5:], crc32.Update(sum, castagnoli, frame[frameHeader:]))
}

// record adds one. read gets the bodies that records name. Errors: those of reading them.
func (c *piece) record(key, value []byte, read func(BodyRef) ([]byte, error)) error {
	c.bytes = binary.AppendUvarint(c.bytes, uint64(len(key)))
	c.bytes = append(c.bytes, key...)
	c.bytes = binary.AppendUvarint(c.bytes, uint64(len(value)))
	c.bytes = append(c.bytes, value...)
	c.count++
	c.last = append(c.last[:0], key...)
	body, err := bodyNamed(key, value)
	if err != nil {
		return err
	}
	if body != nil {
		c.name(body)
	}
	if len(c.bytes)-c.start >= frameTarget || c.namedBytes >= bodiesTarget {
		c.close(frameRecords)
		c.open()
		return c.bodies(read)
	}
	return nil
}

func (c *piece) full() bool { return len(c.bytes)+c.namedBytes >= pieceTarget }

// finish ends the piece; with a marker it is the last.
func (c *piece) finish(marker []byte, read func(BodyRef) ([]byte, error)) error {
	if len(c.bytes) > c.start+frameHeader {
		c.close(frameRecords)
		c.open()
		if err := c.bodies(read); err != nil {
			return err
		}
	}
	if marker == nil {
		c.bytes = c.bytes[:c.start]
		return nil
	}
	c.bytes = append(binary.AppendUvarint(c.bytes, c.count), marker...)
	c.close(frameEnd)
	return nil
}

// A position is where a piece ends and the next one begins; nil: the first.
func appendPosition(b []byte, count uint64, last []byte) []byte {
	return append(binary.AppendUvarint(b, count), last...)
}

func parsePosition(position []byte) (count uint64, last []byte, err error) {
	if len(position) == 0 {
		return 0, nil, nil
	}
	count, n := binary.Uvarint(position)
	if n <= 0 || len(position)-n > kv.MaxKey {
		return 0, nil, metadata.Errorf(metadata.ErrInvalidArgument, "no position of a version: %q", position)
	}
	return count, position[n:], nil
}

func writeHeader(w io.Writer, index uint64, version uint16) error {
	header := append(make([]byte, 0, headerSize), streamMagic...)
	header = binary.LittleEndian.AppendUint16(header, version)
	header = binary.LittleEndian.AppendUint64(header, index)
	header = binary.LittleEndian.AppendUint32(header, crc32.Checksum(header, castagnoli))
	_, err := w.Write(header)
	return err
}

// readHeader returns the index of a copy, and its version.
func readHeader(r io.Reader) (index uint64, version uint16, err error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, 0, corrupt("header: %v", err)
	}
	if string(header[:6]) != streamMagic {
		return 0, 0, corrupt("not a copy of a namespace")
	}
	if crc32.Checksum(header[:16], castagnoli) != binary.LittleEndian.Uint32(header[16:]) {
		return 0, 0, corrupt("checksum of the header")
	}
	if version = binary.LittleEndian.Uint16(header[6:]); version != streamVersion && version != bodiesVersion {
		return 0, 0, metadata.Errorf(metadata.ErrUnsupported, "the copy of a namespace has version %d, this program reads %d and %d", version, streamVersion, bodiesVersion)
	}
	if index = binary.LittleEndian.Uint64(header[8:]); index == 0 {
		return 0, 0, corrupt("a copy without an index")
	}
	return index, version, nil
}

// readFrame reads a frame into buf, which may grow. At the end of r it returns io.EOF.
func readFrame(r io.Reader, buf *[]byte) (kind byte, payload []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, nil, err
		}
		return 0, nil, corrupt("head of a frame: %v", err)
	}
	size := binary.LittleEndian.Uint32(header[1:])
	if size > maxFrame {
		return 0, nil, corrupt("frame of %d bytes", size)
	}
	if cap(*buf) < int(size) {
		*buf = make([]byte, size)
	}
	payload = (*buf)[:size]
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, corrupt("frame of %d bytes: %v", size, err)
	}
	sum := crc32.Update(crc32.Checksum(header[:5], castagnoli), castagnoli, payload)
	if sum != binary.LittleEndian.Uint32(header[5:]) {
		return 0, nil, corrupt("checksum of a frame")
	}
	return header[0], payload, nil
}

// verifier looks at the frames of a version in their order and passes records on: sums, order, completeness, and the state's
// hash at the end.
type verifier struct {
	index uint64
	// hash is what the state's must be; 0: what the marker says.
	hash    uint64
	count   uint64
	last    []byte
	entry   []byte // memory is used again
	sum     uint64
	classes [256]uint64 // how many records of each
	open    uint64      // how many entries are of open files
	among   uint64      // how many records of class entry are of directories
	ways    uint64      // to how many inodes
	// lastSingle is the last inode that a record of its own leads to, firstSheet the one that the first sheet begins at, if there are sheets.
	lastSingle, firstSheet metadata.INodeID
	sheets                 bool
	marker                 []byte // of a complete version, nil before
	// named are bodies that have to come next, gaps how many the sender did not have, each of which lacked gets, if it is not nil. arrived, if not nil, gets the others, which are good until
	// it returns.
	named   []BodyRef
	gaps    uint64
	lacked  func(r *BodyRef)
	arrived func(id metadata.BlockID, data []byte)
}

// frame takes the next one.
func (c *verifier) frame(kind byte, payload []byte, put func(key, value []byte) error) error {
	if c.marker != nil {
		return corrupt("there is more behind the end")
	}
	if kind == frameBody || kind == frameGap {
		return c.body(kind, payload)
	}
	if len(c.named) > 0 {
		return corrupt("body %v is missing", c.named[0].Block)
	}
	switch kind {
	case framePosition:
		count, last, err := parsePosition(payload)
		if err != nil || count != c.count || !bytes.Equal(last, c.last) {
			return corrupt("a piece begins at record %d behind %q, in place of %d behind %q", count, last, c.count, c.last)
		}
		return nil
	case frameRecords:
		return c.records(payload, put)
	case frameEnd:
		count, n := binary.Uvarint(payload)
		if n <= 0 || count != c.count {
			return corrupt("%d records came of %d", c.count, count)
		}
		return c.end(payload[n:], put)
	}
	return corrupt("frame of type %q", kind)
}

func (c *verifier) records(rest []byte, put func(key, value []byte) error) error {
	for len(rest) > 0 {
		var key, value []byte
		var ok bool
		if key, rest, ok = cutField(rest); ok {
			value, rest, ok = cutField(rest)
		}
		if !ok {
			return corrupt("record %d runs over its frame", c.count)
		}
		if err := c.record(key, value); err != nil {
			return err
		}
		body, err := bodyNamed(key, value)
		if err != nil {
			return err
		}
		if body != nil {
			c.named = append(c.named, *body)
		}
		if err := put(key, value); err != nil {
			return err
		}
	}
	return nil
}

// record takes the next one.
func (c *verifier) record(key, value []byte) error {
	if len(key) == 0 || !classKnown(key[0]) {
		return corrupt("record %d: key %q", c.count, key)
	}
	if bytes.Compare(key, c.last) <= 0 {
		return corrupt("record %d: key %q after %q", c.count, key, c.last)
	}
	c.last = append(c.last[:0], key...)
	c.count++
	c.classes[key[0]]++
	switch key[0] {
	case classEntry, classDirectory:
		file, open, ok := kindOf(value)
		switch {
		case !ok, file && key[0] == classDirectory:
			return corrupt("record %x: %x", key, value)
		case open:
			c.open++
		case !file && key[0] == classEntry:
			c.among++
		}
		c.sum += hashRecord(c.entryKey(key), value)
		return nil
	case classINode:
		sheet, err := eachWay(key, value, func(metadata.INodeID) { c.ways++ })
		if err != nil {
			return err
		}
		if id := metadata.INodeID(binary.BigEndian.Uint64(key[1:])); !sheet {
			c.lastSingle = id
		} else if !c.sheets {
			c.sheets, c.firstSheet = true, id
		}
	}
	if hashed(key) {
		c.sum += hashRecord(key, value)
	}
	return nil
}

// entryKey is the key of an entry as the state's hash has it: the state does not know where a checkpoint keeps directories.
func (c *verifier) entryKey(key []byte) []byte {
	if key[0] == classEntry {
		return key
	}
	c.entry = append(append(c.entry[:0], classEntry), key[1:]...)
	return c.entry
}

func cutField(b []byte) (field, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}

// end checks the whole and puts the marker.
func (c *verifier) end(value []byte, put func(key, value []byte) error) error {
	m, err := decodeMarker(value)
	if err != nil {
		return err
	}
	meta := metaOf(m)
	if c.sum += meta.hash(); m.Index != c.index || c.sum != m.Hash || c.hash != 0 && c.hash != m.Hash {
		return corrupt("state hash %016x; the version at %d says %016x at %d, and %016x was promised", c.sum, c.index, m.Hash, m.Index, c.hash)
	}
	// Derived records are in no hash.
	blocks := c.classes[classBlock] + c.classes[classSnapshotBlock]
	kept := c.classes[classSnapshotINode] + c.classes[classSnapshotEntry]
	if first := metadata.INodeID(m.Sheets); first == 0 && c.sheets || first != 0 && (c.lastSingle >= first || c.sheets && c.firstSheet < first) {
		return corrupt("the last record of one way leads to inode %d, the first sheet begins at %d, sheets are to begin at %d", c.lastSingle, c.firstSheet, first)
	}
	entries := c.classes[classEntry] + c.classes[classDirectory]
	if m.DirectoriesApart && c.among > 0 || !m.DirectoriesApart && c.classes[classDirectory] > 0 {
		return corrupt("%d directories are apart and %d are not, the version says apart: %t", c.classes[classDirectory], c.among, m.DirectoriesApart)
	}
	if c.ways != entries || c.classes[classOpen] != c.open || blocks != m.Blocks || c.classes[classSnapshotIndex] != kept {
		return corrupt("%d entries, %d ways to inodes, %d open files of %d, %d blocks of %d, %d records that were kept for snapshots, %d ways to them",
			entries, c.ways, c.classes[classOpen], c.open, blocks, m.Blocks, kept, c.classes[classSnapshotIndex])
	}
	c.marker = bytes.Clone(value)
	return put(markerKey, c.marker)
}

// markerOf reads a view's; nil: there is none.
func markerOf(view kv.View) (*logpb.Marker, []byte, error) {
	value, err := view.Get(markerKey)
	if errors.Is(err, kv.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := decodeMarker(value)
	return m, value, err
}
