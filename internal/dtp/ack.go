package dtp

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// maxPipeline is the most replies that an acknowledgement may carry; replication goes to 512.
const maxPipeline = 1024

// Ack acknowledges one packet for the datanode that sends it and all behind it.
type Ack struct {
	Seqno int64
	// Replies holds the status of each datanode, the sender's own first.
	Replies []hadooppb.Status
	// DownstreamNanos is how long the datanodes behind took, 0 if unknown.
	DownstreamNanos uint64
}

// AppendAck appends a, with its length in front. Besides the replies it sends the flags that newer clients prefer: the
// status in the low four bits, congestion and slowness unknown.
func AppendAck(dst []byte, a *Ack) []byte {
	replies := len(a.Replies)
	size := 1 + uvarintLen(zigzag(a.Seqno)) + 2*replies
	if a.Seqno != HeartbeatSeqno {
		size += 1 + uvarintLen(a.DownstreamNanos)
	}
	if replies > 0 {
		size += 1 + uvarintLen(uint64(replies)) + replies
	}
	dst = binary.AppendUvarint(dst, uint64(size))
	dst = append(dst, 1<<3)
	dst = binary.AppendUvarint(dst, zigzag(a.Seqno))
	for _, s := range a.Replies {
		dst = append(dst, 2<<3, byte(s))
	}
	if a.Seqno != HeartbeatSeqno {
		dst = append(dst, 3<<3)
		dst = binary.AppendUvarint(dst, a.DownstreamNanos)
	}
	if replies > 0 {
		dst = append(dst, 4<<3|2)
		dst = binary.AppendUvarint(dst, uint64(replies))
		for _, s := range a.Replies {
			dst = append(dst, byte(s))
		}
	}
	return dst
}

// WriteAck writes a in one Write.
func WriteAck(w io.Writer, a *Ack) error {
	var room [64]byte
	_, err := w.Write(AppendAck(room[:0], a))
	return err
}

// ReadAck reads an acknowledgement into a, whose memory is reused. Where flags are present they decide the status, as
// in Hadoop.
func ReadAck(r *bufio.Reader, a *Ack) error {
	size, err := readLength(r)
	if err != nil {
		return err
	}
	if size > r.Size() || size > 16*maxPipeline {
		return violation("acknowledgement of %d bytes", size)
	}
	b, err := r.Peek(size)
	if err != nil {
		return inside(err)
	}
	defer func() { _, _ = r.Discard(size) }()
	return a.parse(b)
}

func (a *Ack) parse(b []byte) error {
	a.Seqno, a.Replies, a.DownstreamNanos = 0, a.Replies[:0], 0
	hasSeqno := false
	flags := 0
	flag := func(v uint64) bool {
		if flags == len(a.Replies) {
			return false
		}
		a.Replies[flags] = hadooppb.Status(v & 0xf)
		flags++
		return true
	}
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag > math.MaxUint32 {
			return violation("acknowledgement")
		}
		b = b[n:]
		value, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 {
			return violation("acknowledgement")
		}
		b = b[n:]
		switch tag {
		case 1 << 3:
			a.Seqno, hasSeqno = int64(value>>1)^-int64(value&1), true
		case 2 << 3:
			if len(a.Replies) == maxPipeline || flags > 0 {
				return violation("acknowledgement with too many or misplaced replies")
			}
			a.Replies = append(a.Replies, hadooppb.Status(int32(value)))
		case 3 << 3:
			a.DownstreamNanos = value
		case 4 << 3:
			if !flag(value) {
				return violation("acknowledgement with more flags than replies")
			}
		case 4<<3 | 2:
			if value > uint64(len(b)) {
				return violation("acknowledgement")
			}
			packed := b[:value]
			b = b[value:]
			for len(packed) > 0 {
				v, n := binary.Uvarint(packed)
				if n <= 0 || !flag(v) {
					return violation("flags of an acknowledgement")
				}
				packed = packed[n:]
			}
		default:
			// A field of a later version: varints are consumed, of the rest the payload has to be.
			skip := uint64(0)
			switch {
			case tag>>3 > 4 && tag&7 == 0:
			case tag>>3 > 4 && tag&7 == 2:
				skip = value
			default:
				return violation("field %d of an acknowledgement", tag>>3)
			}
			if skip > uint64(len(b)) {
				return violation("acknowledgement")
			}
			b = b[skip:]
		}
	}
	if !hasSeqno {
		return violation("acknowledgement without a sequence number")
	}
	return nil
}

// Blame returns the position of the datanode to blame, the last one in the pipeline that did not succeed (those
// before it only report what is behind them), or -1.
func (a *Ack) Blame() (int, hadooppb.Status) {
	for i := len(a.Replies) - 1; i >= 0; i-- {
		if a.Replies[i] != hadooppb.Status_SUCCESS {
			return i, a.Replies[i]
		}
	}
	return -1, hadooppb.Status_SUCCESS
}

func zigzag(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}
