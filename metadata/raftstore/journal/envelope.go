package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// salt is the random number of one use of a segment. It tells its entries from those of an earlier use, and lets their
// envelopes be found in raw bytes, in which clients cannot have placed one.
type salt [8]byte

// header is the beginning of a segment, little endian; entries begin at 4096, so that no write of theirs touches it:
//
//	 0       8          16     24    28
//	+-------+----------+------+-----+
//	| magic | sequence | salt | crc |
//	+-------+----------+------+-----+
//
// sequence is the number in the file's name: entries of a segment lie before those of one with a higher number. A file has its
// name only when its header is durable.
type header struct {
	sequence uint64
	salt     salt
}

const (
	headerMagic  = "hopsSEG2"
	headerBytes  = 28
	entriesBegin = 4096
)

func (h header) encode() []byte {
	b := append(make([]byte, 0, headerBytes), headerMagic...)
	b = binary.LittleEndian.AppendUint64(b, h.sequence)
	b = append(b, h.salt[:]...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHeader reads the header of the segment with a sequence number, which it has also when there is an error: metadata.ErrUnsupported
// for one of another format, else metadata.ErrCorrupt.
func decodeHeader(b []byte, sequence uint64) (h header, err error) {
	h.sequence = sequence
	name := segmentName(sequence, segmentSuffix)
	if err := otherFormat(b, headerMagic); err != nil {
		return h, fmt.Errorf("%s at 0: %w", name, err)
	}
	if len(b) < headerBytes || string(b[:8]) != headerMagic || crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) {
		return h, metadata.Errorf(metadata.ErrCorrupt, "%s at 0: the header is damaged", name)
	}
	if says := binary.LittleEndian.Uint64(b[8:]); says != sequence {
		return h, metadata.Errorf(metadata.ErrCorrupt, "%s at 8: the file is %s", name, segmentName(says, segmentSuffix))
	}
	copy(h.salt[:], b[16:])
	return h, nil
}

// otherFormat is an error if what begins with b is of the same kind as magic says, but with another number at its end.
func otherFormat(b []byte, magic string) error {
	last := len(magic) - 1
	if len(b) <= last || string(b[:last]) != magic[:last] || b[last] == magic[last] || b[last] < '0' || b[last] > '9' {
		return nil
	}
	return metadata.Errorf(metadata.ErrUnsupported, "format %c, this program reads %c: use the version that wrote it", b[last], magic[last])
}

// envelope is what stands before an entry, little endian:
//
//	 0      8       16     24          32         40      44        48       52     53    56         60           64
//	+------+-------+------+-----------+----------+-------+---------+--------+------+-----+----------+------------+
//	| salt | index | term | watermark | appended | epoch | ext len | length | type | 0 0 | body crc | header crc |
//	+------+-------+------+-----------+----------+-------+---------+--------+------+-----+----------+------------+
//
// and then extensions and data. watermark is the last entry that was durable when this one was written. appended is the
// leader's clock in nanoseconds since 1970. epoch is that of the state. Body crc covers extensions and data; header crc the 60
// bytes before it. Both are CRC32C.
type envelope struct {
	salt       salt
	index      uint64
	term       uint64
	watermark  uint64
	appended   int64
	epoch      uint32
	extensions uint32
	length     uint32
	kind       raft.LogType
	body       uint32
}

const (
	envelopeBytes = 64
	// maxEntry limits what an entry carries, in bytes.
	maxEntry = 1 << 30
)

// size is how many bytes the entry takes with its envelope.
func (e *envelope) size() int { return envelopeBytes + int(e.extensions) + int(e.length) }

// sizeOf is how many bytes an entry will take.
func sizeOf(e *raft.Log) int { return envelopeBytes + len(e.Extensions) + len(e.Data) }

// appendEntry appends an entry in its envelope.
func appendEntry(b []byte, s salt, epoch uint32, watermark uint64, e *raft.Log) []byte {
	start := len(b)
	b = append(b, s[:]...)
	b = binary.LittleEndian.AppendUint64(b, e.Index)
	b = binary.LittleEndian.AppendUint64(b, e.Term)
	b = binary.LittleEndian.AppendUint64(b, watermark)
	appended := int64(0)
	if !e.AppendedAt.IsZero() {
		appended = e.AppendedAt.UnixNano()
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(appended))
	b = binary.LittleEndian.AppendUint32(b, epoch)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Extensions)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Data)))
	b = append(b, byte(e.Type), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(crc32.Checksum(e.Extensions, castagnoli), castagnoli, e.Data))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
	b = append(b, e.Extensions...)
	return append(b, e.Data...)
}

// decodeEnvelope reads an envelope of a segment; ok is false where there is none.
func decodeEnvelope(b []byte, s salt) (e envelope, ok bool) {
	if len(b) < envelopeBytes || salt(b[:8]) != s || crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]) {
		return e, false
	}
	e = envelope{
		salt: s, index: binary.LittleEndian.Uint64(b[8:]), term: binary.LittleEndian.Uint64(b[16:]),
		watermark: binary.LittleEndian.Uint64(b[24:]), appended: int64(binary.LittleEndian.Uint64(b[32:])),
		epoch: binary.LittleEndian.Uint32(b[40:]), extensions: binary.LittleEndian.Uint32(b[44:]), length: binary.LittleEndian.Uint32(b[48:]),
		kind: raft.LogType(b[52]), body: binary.LittleEndian.Uint32(b[56:]),
	}
	return e, e.index > 0 && e.index < math.MaxUint64 && uint64(e.extensions)+uint64(e.length) <= maxEntry
}

// entry makes the entry of what stands behind the envelope, of which it keeps a part.
func (e *envelope) entry(body []byte) (*raft.Log, error) {
	if len(body) < int(e.extensions)+int(e.length) {
		return nil, metadata.Errorf(metadata.ErrCorrupt, "entry %d is cut off", e.index)
	}
	body = body[:int(e.extensions)+int(e.length)]
	if got := crc32.Checksum(body, castagnoli); got != e.body {
		return nil, metadata.Errorf(metadata.ErrCorrupt, "entry %d: checksum %08x, stored %08x", e.index, got, e.body)
	}
	l := &raft.Log{Index: e.index, Term: e.term, Type: e.kind, Data: body[e.extensions:len(body):len(body)]}
	if e.extensions > 0 {
		l.Extensions = body[:e.extensions:e.extensions]
	}
	if e.appended != 0 {
		l.AppendedAt = time.Unix(0, e.appended)
	}
	return l, nil
}
