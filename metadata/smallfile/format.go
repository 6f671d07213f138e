package smallfile

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"

	"github.com/gohops/hops/metadata"
)

// The bytes of a segment are in FORMAT.md.
const (
	magic       = "hopsSML1"
	footerMagic = "hopsSMLX"
	// headerSize is that of one of the two equal headers that a segment begins with.
	headerSize   = 24
	recordsBegin = 2 * headerSize
	recordHeader = 20
	trailerSize  = 32
	indexEntry   = 14
	// lostBit marks a record that says that a body is lost, and such an entry of an index.
	lostBit = 1 << 31
	// maxSegment is how large a file may be that is taken for a segment. Places in it have 31 bits.
	maxSegment = 1<<30 + maxRecords*indexEntry
	// maxRecords is how many records a segment has at most.
	maxRecords = 1 << 17
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errDamaged = errors.New("damaged record")

// encodeHeader makes the beginning of a segment: the header twice, so that a damaged sector more or less costs no segment.
func encodeHeader(salt uint64) []byte {
	b := make([]byte, headerSize, recordsBegin)
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[8:], salt)
	binary.LittleEndian.PutUint32(b[16:], crc32.Checksum(b[:16], castagnoli))
	return append(b, b...)
}

// decodeHeader finds the salt of a segment.
func decodeHeader(b []byte) (salt uint64, ok bool) {
	for range 2 {
		if len(b) < headerSize {
			return 0, false
		}
		if string(b[:8]) == magic && crc32.Checksum(b[:16], castagnoli) == binary.LittleEndian.Uint32(b[16:]) {
			return binary.LittleEndian.Uint64(b[8:]), true
		}
		b = b[headerSize:]
	}
	return 0, false
}

// record is the head of a body in a segment.
type record struct {
	id     metadata.BlockID
	length uint32
	sum    uint32 // of the body
	lost   bool   // there is no body: it was damaged
}

// size is what the record takes with its body, in bytes.
func (r *record) size() int {
	if r.lost {
		return recordHeader
	}
	return recordHeader + int(r.length)
}

// headSum is the sum of a head, without its first four bytes. It depends on segment and place: what clients store is never taken for a record.
func headSum(salt uint64, at uint32, head []byte) uint32 {
	var b [12 + recordHeader - 4]byte
	binary.LittleEndian.PutUint64(b[:], salt)
	binary.LittleEndian.PutUint32(b[8:], at)
	copy(b[12:], head)
	return crc32.Checksum(b[:], castagnoli)
}

// appendRecord appends a body, or without one the record that says that a body of a length is lost.
func appendRecord(b []byte, salt uint64, at uint32, p *pending) []byte {
	var head [recordHeader]byte
	length := uint32(len(p.body))
	if p.body == nil {
		length = p.lost | lostBit
	}
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(p.body, castagnoli))
	binary.LittleEndian.PutUint32(head[8:], length)
	binary.LittleEndian.PutUint64(head[12:], uint64(p.id))
	binary.LittleEndian.PutUint32(head[:], headSum(salt, at, head[4:]))
	return append(append(b, head[:]...), p.body...)
}

// recordAt reads the head at the start of b, which lies at a place in a segment.
func recordAt(b []byte, salt uint64, at uint32) (r record, ok bool) {
	if len(b) < recordHeader {
		return r, false
	}
	length := binary.LittleEndian.Uint32(b[8:])
	r = record{
		id: metadata.BlockID(binary.LittleEndian.Uint64(b[12:])), length: length &^ lostBit, sum: binary.LittleEndian.Uint32(b[4:]),
		lost: length&lostBit != 0,
	}
	if r.length == 0 || r.length > MaxBody || r.id <= 0 {
		return r, false
	}
	return r, headSum(salt, at, b[4:recordHeader]) == binary.LittleEndian.Uint32(b)
}

// bodyAt is the body of a record at the start of b; errDamaged if it is not what was written.
func bodyAt(b []byte, salt uint64, at uint32, id metadata.BlockID) ([]byte, error) {
	r, ok := recordAt(b, salt, at)
	if !ok || r.id != id || r.lost || len(b) < r.size() {
		return nil, errDamaged
	}
	body := b[recordHeader:r.size():r.size()]
	if crc32.Checksum(body, castagnoli) != r.sum {
		return nil, errDamaged
	}
	return body, nil
}

// entry is where a body lies in a segment.
type entry struct {
	id     metadata.BlockID
	at     uint32
	length uint32
	lost   bool
}

func (e *entry) size() int64 { return recordHeader + int64(e.length) }

// parse finds the records of a segment without its index. Behind what is none it looks for the next one, byte by byte. A record whose head is
// sound and whose body is not is a lost one. unreadable is how many bytes belong to no record.
func parse(b []byte, salt uint64) (entries []entry, unreadable int64) {
	for at := recordsBegin; at < len(b); {
		r, ok := recordAt(b[at:], salt, uint32(at))
		if !ok {
			at++
			unreadable++
			continue
		}
		e := entry{id: r.id, at: uint32(at), length: r.length, lost: r.lost}
		if !r.lost {
			_, err := bodyAt(b[at:], salt, uint32(at), r.id)
			e.lost = err != nil
		}
		entries = append(entries, e)
		at += r.size()
	}
	return entries, unreadable
}

// index says where the bodies of a segment lie: three columns in the order of ids, 14 bytes a body in memory and on disk.
type index struct {
	ids  []metadata.BlockID
	at   []uint32 // and lostBit
	size []uint16 // length - 1
}

// newIndex makes the index of entries, which come in any order. Of two with one id the last counts that is not lost.
func newIndex(entries []entry) index {
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.id, b.id) })
	n := 0
	for i, e := range entries {
		if i > 0 && entries[n-1].id == e.id {
			if !e.lost {
				entries[n-1] = e
			}
			continue
		}
		entries[n] = e
		n++
	}
	x := index{make([]metadata.BlockID, n), make([]uint32, n), make([]uint16, n)}
	for i, e := range entries[:n] {
		x.ids[i], x.at[i], x.size[i] = e.id, e.at, uint16(e.length-1)
		if e.lost {
			x.at[i] |= lostBit
		}
	}
	return x
}

func (x *index) len() int { return len(x.ids) }

func (x *index) entry(i int) entry {
	return entry{id: x.ids[i], at: x.at[i] &^ lostBit, length: uint32(x.size[i]) + 1, lost: x.at[i]&lostBit != 0}
}

// find finds an id.
func (x *index) find(id metadata.BlockID) (e entry, ok bool) {
	i, ok := slices.BinarySearch(x.ids, id)
	if !ok {
		return e, false
	}
	return x.entry(i), true
}

// encodeFooter makes the end of a sealed segment: its index and a trailer.
func (x *index) encodeFooter(salt uint64, start int64) []byte {
	b := make([]byte, 0, x.len()*indexEntry+trailerSize)
	for _, id := range x.ids {
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
	}
	for _, at := range x.at {
		b = binary.LittleEndian.AppendUint32(b, at)
	}
	for _, size := range x.size {
		b = binary.LittleEndian.AppendUint16(b, size)
	}
	b = binary.LittleEndian.AppendUint64(b, salt)
	b = binary.LittleEndian.AppendUint64(b, uint64(start))
	b = binary.LittleEndian.AppendUint32(b, uint32(x.len()))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(b, footerMagic...)
}

// decodeTrailer reads the last bytes of a segment: where its index begins and how many entries it has.
func decodeTrailer(b []byte, size int64) (start int64, n int, ok bool) {
	if len(b) < trailerSize || string(b[24:32]) != footerMagic {
		return 0, 0, false
	}
	at, count := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:])
	if at < recordsBegin || at > math.MaxInt32 || count > maxRecords || int64(at)+int64(count)*indexEntry+trailerSize != size {
		return 0, 0, false
	}
	return int64(at), int(count), true
}

// decodeFooter reads the index and the salt of a sealed segment. start is where the footer lies in it.
func decodeFooter(b []byte, start int64, n int) (x index, salt uint64, ok bool) {
	if len(b) != n*indexEntry+trailerSize {
		return x, 0, false
	}
	trailer := b[n*indexEntry:]
	if crc32.Checksum(b[:len(b)-12], castagnoli) != binary.LittleEndian.Uint32(trailer[20:]) {
		return x, 0, false
	}
	x = index{make([]metadata.BlockID, n), make([]uint32, n), make([]uint16, n)}
	for i := range n {
		x.ids[i] = metadata.BlockID(binary.LittleEndian.Uint64(b[8*i:]))
		x.at[i] = binary.LittleEndian.Uint32(b[8*n+4*i:])
		x.size[i] = binary.LittleEndian.Uint16(b[12*n+2*i:])
		if x.ids[i] <= 0 || i > 0 && x.ids[i] <= x.ids[i-1] || int64(x.at[i]&^lostBit) < recordsBegin || int64(x.at[i]&^lostBit) >= start {
			return x, 0, false
		}
	}
	return x, binary.LittleEndian.Uint64(trailer), true
}
