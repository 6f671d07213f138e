package dtp

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"net"
)

// A packet on the wire:
//
//	PLEN int32     4 + length of checksums + length of data
//	HLEN int16     length of the header
//	header         PacketHeaderProto: 25 bytes, 27 with syncBlock
//	checksums      one for every chunk of the data
//	data
const (
	// MaxPacket is the largest packet that is read, in bytes, as in Hadoop.
	MaxPacket = 16 << 20
	// DataSize is how much data the packets of a good sender carry.
	DataSize = 64 << 10
	// LargeSize is how much those of our own client carry where all datanodes of a pipeline are ours: fewer calls, acknowledgements and
	// headers for the same bytes. A datanode's smallest buffer holds one.
	LargeSize = 240 << 10
	// HeartbeatSeqno is the sequence number of a packet that only keeps the pipeline awake, and of its acknowledgement.
	HeartbeatSeqno = -1
	// MaxHeaderLen is the most that AppendHeader appends.
	MaxHeaderLen = 6 + 27
	// readerSize holds several packets of DataSize, and two of our datanodes' with twice as much, with headers and checksums.
	readerSize = 264 << 10
	// maxHeaderRead leaves room for fields that later versions may add.
	maxHeaderRead = 1 << 10
)

// NewReader returns a reader with room for whole packets, so that a PacketReader need not copy them.
func NewReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, readerSize) }

// Header describes a packet. Offset is that of the data in its block, in bytes.
type Header struct {
	Offset  int64
	Seqno   int64
	DataLen int
	// Last: the block ends here. The packet has no data and its Offset is the block's length.
	Last bool
	// Sync: the data up to here has to be on disk before the packet is acknowledged.
	Sync bool
}

// Heartbeat reports whether the packet carries nothing and is only to be acknowledged.
func (h Header) Heartbeat() bool { return h.Seqno == HeartbeatSeqno }

// Packet is a packet as it was read. Its slices are valid until the next call of the PacketReader.
type Packet struct {
	Header
	Sums []byte
	Data []byte
	// Raw is the whole packet as it came, for forwarding.
	Raw []byte
}

// AppendHeader appends lengths and header of a packet whose checksums have sumsLen bytes; checksums and h.DataLen bytes
// of data must follow on the wire. Senders that copy data straight from a file use it, others a PacketWriter or Builder.
func AppendHeader(dst []byte, h Header, sumsLen int) []byte {
	size := 25
	if h.Sync {
		size = 27
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+sumsLen+h.DataLen))
	dst = binary.BigEndian.AppendUint16(dst, uint16(size))
	dst = append(dst, 1<<3|1)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Offset))
	dst = append(dst, 2<<3|1)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Seqno))
	dst = append(dst, 3<<3, bit(h.Last), 4<<3|5)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.DataLen))
	if h.Sync {
		dst = append(dst, 5<<3, 1)
	}
	return dst
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// parseHeader decodes a PacketHeaderProto without allocating.
func parseHeader(b []byte) (Header, error) {
	var h Header
	var seen uint
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 || tag > math.MaxUint32 {
			return h, violation("packet header")
		}
		b = b[n:]
		field, kind := tag>>3, tag&7
		var value uint64
		switch kind {
		case 0:
			value, n = binary.Uvarint(b)
		case 1:
			if n = -1; len(b) >= 8 {
				value, n = binary.LittleEndian.Uint64(b), 8
			}
		case 2:
			size, m := binary.Uvarint(b)
			if n = -1; m > 0 && size <= uint64(len(b)-m) {
				n = m + int(size)
			}
		case 5:
			if n = -1; len(b) >= 4 {
				value, n = uint64(binary.LittleEndian.Uint32(b)), 4
			}
		default:
			n = -1
		}
		if n <= 0 {
			return h, violation("packet header")
		}
		b = b[n:]
		switch {
		case field == 1 && kind == 1:
			h.Offset = int64(value)
		case field == 2 && kind == 1:
			h.Seqno = int64(value)
		case field == 3 && kind == 0:
			h.Last = value != 0
		case field == 4 && kind == 5:
			h.DataLen = int(int32(value))
		case field == 5 && kind == 0:
			h.Sync = value != 0
		case field <= 5:
			return h, violation("field %d of a packet header has wire type %d", field, kind)
		}
		if field <= 5 {
			seen |= 1 << field
		}
	}
	if seen&0x1e != 0x1e {
		return h, violation("packet header lacks a field")
	}
	if h.Offset < 0 || h.DataLen < 0 || h.Seqno < math.MinInt32 {
		return h, violation("packet header with offset %d, sequence number %d, data length %d", h.Offset, h.Seqno, h.DataLen)
	}
	return h, nil
}

// PacketReader reads packets one after the other.
type PacketReader struct {
	r     *bufio.Reader
	limit int    // of a packet's length
	taken int    // bytes of r's buffer that the last packet's slices are of
	own   []byte // of a packet larger than r's buffer
}

// NewPacketReader returns a reader of the packets on r. Between packets r may be read directly after Done.
func NewPacketReader(r *bufio.Reader) *PacketReader { return &PacketReader{r: r, limit: MaxPacket} }

// Limit makes the reader refuse packets of more than n bytes, for who knows that they are smaller than MaxPacket.
func (p *PacketReader) Limit(n int) { p.limit = n }

// Done gives the last packet's bytes back; its slices are not valid any more.
func (p *PacketReader) Done() {
	if p.taken > 0 {
		_, _ = p.r.Discard(p.taken)
		p.taken = 0
	}
}

// Next reads a packet. io.EOF means that the stream ended before one.
func (p *PacketReader) Next() (Packet, error) {
	p.Done()
	head, err := p.r.Peek(minPacket)
	if err != nil {
		if len(head) > 0 {
			err = inside(err)
		}
		return Packet{}, err
	}
	headerLen, total, err := sizes(head)
	if err == nil && total > p.limit {
		err = violation("packet of %d bytes, %d are allowed", total, p.limit)
	}
	if err != nil {
		return Packet{}, err
	}
	var raw []byte
	if total <= p.r.Size() {
		if raw, err = p.r.Peek(total); err != nil {
			return Packet{}, inside(err)
		}
		p.taken = total
	} else {
		if raw, err = readGrowing(p.r, p.own, total); err != nil {
			return Packet{}, err
		}
		p.own = raw
	}
	return decode(raw, headerLen)
}

// PacketWriter writes packets whose parts lie in different places, each with one system call where w is a TCP
// connection.
type PacketWriter struct {
	w      io.Writer
	header [MaxHeaderLen]byte
	parts  [3][]byte
	bufs   net.Buffers
}

// NewPacketWriter returns a writer of packets to w.
func NewPacketWriter(w io.Writer) *PacketWriter { return &PacketWriter{w: w} }

// Write writes a packet of the given checksums and data; h.DataLen is taken from data.
func (p *PacketWriter) Write(h Header, sums, data []byte) error {
	h.DataLen = len(data)
	p.parts = [3][]byte{AppendHeader(p.header[:0], h, len(sums)), sums, data}
	p.bufs = p.parts[:]
	_, err := p.bufs.WriteTo(p.w)
	return err
}

// Builder assembles a packet in one piece of memory, so that it can be sent, and sent again, with one Write: data is
// copied in behind room for the checksums and the header.
//
//	| room | header | checksums | data ... | free |
type Builder struct {
	sum  Checksum
	buf  []byte
	data int // where data starts in buf
	n    int // bytes of data
	from int // where the finished packet starts in buf
}

// NewBuilder makes a builder for up to size bytes of data.
func NewBuilder(sum Checksum, size int) *Builder {
	data := MaxHeaderLen + sum.SumsLen(size)
	return &Builder{sum: sum, buf: make([]byte, data+size), data: data}
}

// Reset empties the builder.
func (b *Builder) Reset() { b.n, b.from = 0, 0 }

// Len is the number of bytes of data, Room how many more there is space for.
func (b *Builder) Len() int { return b.n }

// Room is the number of bytes of data that still fit.
func (b *Builder) Room() int { return len(b.buf) - b.data - b.n }

// Append copies as much of p as fits, and returns how much that was.
func (b *Builder) Append(p []byte) int {
	n := copy(b.buf[b.data+b.n:], p)
	b.n += n
	return n
}

// Data is what has been appended.
func (b *Builder) Data() []byte { return b.buf[b.data : b.data+b.n] }

// Finish computes the checksums, puts them and the header (with DataLen set) in front, and returns the packet. Bytes
// returns it again until Reset.
func (b *Builder) Finish(h Header) []byte {
	h.DataLen = b.n
	sums := b.sum.SumsLen(b.n)
	b.sum.Sum(b.buf[b.data-sums:b.data], b.Data())
	var head [MaxHeaderLen]byte
	encoded := AppendHeader(head[:0], h, sums)
	b.from = b.data - sums - len(encoded)
	copy(b.buf[b.from:], encoded)
	return b.Bytes()
}

// Bytes is the finished packet.
func (b *Builder) Bytes() []byte { return b.buf[b.from : b.data+b.n] }

// Space is the free memory behind the data. What is put into it counts after Grow.
func (b *Builder) Space() []byte { return b.buf[b.data+b.n:] }

// Grow counts n bytes that were put into Space as data.
func (b *Builder) Grow(n int) { b.n += n }
