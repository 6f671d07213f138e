package dtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrProtocol marks bytes that the protocol does not allow.
var ErrProtocol = errors.New("data transfer protocol violated")

// MaxMessage is the largest delimited message that is read, in bytes. The largest real ones are write requests, which
// name every datanode of a pipeline.
const MaxMessage = 1 << 20

// Message is a protobuf message with generated codecs; those of hadooppb are.
type Message interface {
	MarshalToSizedBufferVT([]byte) (int, error)
	SizeVT() int
	UnmarshalVT([]byte) error
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// AppendMessage appends m with its length in front.
func AppendMessage(dst []byte, m Message) ([]byte, error) {
	size := m.SizeVT()
	dst = binary.AppendUvarint(dst, uint64(size))
	dst = append(dst, make([]byte, size)...)
	if _, err := m.MarshalToSizedBufferVT(dst[len(dst)-size:]); err != nil {
		return nil, err
	}
	return dst, nil
}

// WriteMessage writes m with its length in front, in one Write: hdfs-native needs both in one segment.
func WriteMessage(w io.Writer, m Message) error {
	b, err := AppendMessage(nil, m)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// ReadMessage reads a message with its length in front into m.
func ReadMessage(r *bufio.Reader, m Message) error {
	size, err := readLength(r)
	if err != nil {
		return err
	}
	if size <= r.Size() {
		b, err := r.Peek(size)
		if err != nil {
			return inside(err)
		}
		err = m.UnmarshalVT(b)
		_, _ = r.Discard(size) // what was peeked at can be discarded
		return decoded(m, err)
	}
	b, err := readGrowing(r, nil, size)
	if err != nil {
		return err
	}
	return decoded(m, m.UnmarshalVT(b))
}

// ReadUnbuffered is ReadMessage for who must not read beyond the message: what follows may bring descriptors.
func ReadUnbuffered(r io.Reader, m Message) error {
	return ReadMessage(bufio.NewReaderSize(&exact{r: r}, 16), m)
}

// exact gives no more bytes than a message has.
type exact struct {
	r    io.Reader
	head []byte // the length, while it is read
	left int    // of the message
	all  bool   // left is known
}

func (e *exact) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if e.all {
		if e.left == 0 {
			return 0, io.EOF
		}
		n, err := e.r.Read(p[:min(len(p), e.left)])
		e.left -= n
		return n, err
	}
	n, err := e.r.Read(p[:1])
	e.head = append(e.head, p[:n]...)
	if n > 0 && p[0] < 0x80 || len(e.head) > 5 { // one that is no length ends the message
		size, _ := binary.Uvarint(e.head)
		e.left, e.all = int(min(size, MaxMessage)), true
	}
	return n, err
}

func decoded(m Message, err error) error {
	if err != nil {
		return violation("%T: %v", m, err)
	}
	return nil
}

// readLength reads the varint in front of a message.
func readLength(r *bufio.Reader) (int, error) {
	var size uint64
	for shift := 0; ; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			if shift == 0 {
				return 0, err
			}
			return 0, inside(err)
		}
		if shift > 28 {
			return 0, violation("length of a message is no varint")
		}
		size |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	if size > MaxMessage {
		return 0, violation("message of %d bytes, %d are allowed", size, MaxMessage)
	}
	return int(size), nil
}

// readGrowing reads exactly n bytes into buf's memory, which grows as they arrive.
func readGrowing(r io.Reader, buf []byte, n int) ([]byte, error) {
	const step = 256 << 10
	buf = buf[:0]
	for len(buf) < n {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(n, max(2*len(buf), step)))
			copy(grown, buf)
			buf = grown
		}
		got, err := io.ReadFull(r, buf[len(buf):min(n, cap(buf))])
		buf = buf[:len(buf)+got]
		if err != nil {
			return nil, inside(err)
		}
	}
	return buf, nil
}

// inside turns the end of the stream into one that came too early.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
