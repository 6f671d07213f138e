package dtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ChecksumType is the kind of a chunk's checksum, with HDFS's numbers.
type ChecksumType uint8

// The kinds. A CRC is stored and sent as four bytes, big-endian.
const (
	Null   ChecksumType = 0 // no checksums at all
	CRC32  ChecksumType = 1 // IEEE, as zlib
	CRC32C ChecksumType = 2 // Castagnoli
)

func (t ChecksumType) String() string {
	switch t {
	case Null:
		return "NULL"
	case CRC32:
		return "CRC32"
	case CRC32C:
		return "CRC32C"
	default:
		return fmt.Sprintf("checksum type %d", uint8(t))
	}
}

// ErrChecksum marks data that does not match its checksum.
var ErrChecksum = errors.New("checksum does not match")

// ParseChecksumType understands HDFS's names.
func ParseChecksumType(s string) (ChecksumType, bool) {
	for t := Null; t <= CRC32C; t++ {
		if s == t.String() {
			return t, true
		}
	}
	return 0, false
}

// MaxChunk is the largest chunk that one checksum may cover: one has to fit into a packet.
const MaxChunk = 8 << 20

// Checksum says how data is checked: every BytesPer bytes, and what is left at the end, have one of Type.
type Checksum struct {
	Type     ChecksumType
	BytesPer int
}

// DefaultChecksum is what a cluster uses that says nothing else.
var DefaultChecksum = Checksum{Type: CRC32C, BytesPer: 512}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ChecksumOf converts from the wire and refuses what cannot be computed.
func ChecksumOf(p *hadooppb.ChecksumProto) (Checksum, error) {
	c := Checksum{Type: ChecksumType(p.GetType()), BytesPer: int(p.GetBytesPerChecksum())}
	if p.GetType() < 0 || p.GetType() > hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C {
		return Checksum{}, violation("checksum type %d is not known", p.GetType())
	}
	if c.BytesPer <= 0 || c.BytesPer > MaxChunk {
		return Checksum{}, violation("%d bytes per checksum", p.GetBytesPerChecksum())
	}
	return c, nil
}

// Proto converts to the wire.
func (c Checksum) Proto() *hadooppb.ChecksumProto {
	return &hadooppb.ChecksumProto{
		Type:             hadooppb.ChecksumTypeProto(c.Type).Enum(),
		BytesPerChecksum: new(uint32(c.BytesPer)),
	}
}

// Size is the number of bytes of one checksum.
func (c Checksum) Size() int {
	if c.Type == Null {
		return 0
	}
	return 4
}

// Chunks is the number of chunks that n bytes from a chunk's start make.
func (c Checksum) Chunks(n int) int { return (n + c.BytesPer - 1) / c.BytesPer }

// SumsLen is the number of bytes of the checksums of n bytes from a chunk's start.
func (c Checksum) SumsLen(n int) int { return c.Chunks(n) * c.Size() }

// Update continues a CRC over more bytes; a new one starts from 0.
func (c Checksum) Update(crc uint32, data []byte) uint32 {
	if c.Type == CRC32 {
		return crc32.Update(crc, crc32.IEEETable, data)
	}
	return crc32.Update(crc, castagnoli, data)
}

// Sum fills sums, which has SumsLen(len(data)) bytes, with the checksums of data's chunks.
func (c Checksum) Sum(sums, data []byte) {
	if c.Type == Null {
		return
	}
	for len(data) > 0 {
		n := min(c.BytesPer, len(data))
		binary.BigEndian.PutUint32(sums, c.Update(0, data[:n]))
		sums, data = sums[4:], data[n:]
	}
}

// Append appends the checksums of data's chunks to dst.
func (c Checksum) Append(dst, data []byte) []byte {
	for ; c.Type != Null && len(data) > 0; data = data[min(c.BytesPer, len(data)):] {
		dst = binary.BigEndian.AppendUint32(dst, c.Update(0, data[:min(c.BytesPer, len(data))]))
	}
	return dst
}

// Verify checks data, which starts at a chunk's start (or lies within one chunk), against sums. The error wraps
// ErrChecksum and says where the first bad chunk is; a wrong number of sums is a violation of the protocol.
func (c Checksum) Verify(sums, data []byte) error {
	if len(sums) != c.SumsLen(len(data)) {
		return violation("%d bytes of checksums for %d bytes of data", len(sums), len(data))
	}
	if c.Type == Null {
		return nil
	}
	for at := 0; at < len(data); at += c.BytesPer {
		chunk := data[at:min(at+c.BytesPer, len(data))]
		want := binary.BigEndian.Uint32(sums)
		if got := c.Update(0, chunk); got != want {
			return fmt.Errorf("%w: bytes %d to %d of a packet have %v %08x, want %08x", ErrChecksum, at, at+len(chunk), c.Type, got, want)
		}
		sums = sums[4:]
	}
	return nil
}

// Combine returns the CRC of two pieces of data in a row from the CRC of each and the length of the second, as a
// COMPOSITE_CRC needs.
func (c Checksum) Combine(first, second uint32, secondLen int64) uint32 {
	if secondLen <= 0 {
		return first
	}
	return c.Shifted(first, c.Shift(secondLen)) ^ second
}

// Shift is what Shifted moves a CRC over n bytes by: x^(8n) modulo the polynomial. Bits are reflected: x^0 is the top one.
func (c Checksum) Shift(n int64) uint32 {
	power, square := uint32(1)<<31, uint32(1)<<23 // x^0, x^8
	for n := uint64(n); n > 0; n >>= 1 {
		if n&1 != 0 {
			power = multiply(power, square, c.polynomial())
		}
		square = multiply(square, square, c.polynomial())
	}
	return power
}

// Shifted is a CRC moved over as many zero bytes as shift is of, to be combined with that of as many others.
func (c Checksum) Shifted(crc, shift uint32) uint32 { return multiply(crc, shift, c.polynomial()) }

func (c Checksum) polynomial() uint32 {
	if c.Type == CRC32 {
		return crc32.IEEE
	}
	return crc32.Castagnoli
}

// multiply multiplies two reflected polynomials over GF(2) modulo poly.
func multiply(a, b, poly uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		if b&1 != 0 {
			b = b>>1 ^ poly
		} else {
			b >>= 1
		}
	}
	return product
}
