package raftstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/gohops/hops/metadata"
)

// A snapshot travels and lies as a sequence of frames, little endian:
//
//	 0      1        5     9
//	+------+--------+-----+---------+
//	| type | length | crc | payload |
//	+------+--------+-----+---------+
//
// crc is CRC32C over the frame's ordinal number (8 bytes), type, length and payload, so that frames cannot be lost,
// doubled or swapped. The first frame is a header (version byte, index of the state), then come data frames, then an end
// frame with the number of data bytes; nothing follows it.
const (
	frameHeader byte = 1
	frameData   byte = 2
	frameEnd    byte = 3

	framesVersion = 1
	frameOverhead = 9
	maxFrame      = 256 << 10
	headerPayload = 9
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func frameSum(ordinal uint64, head, payload []byte) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], ordinal)
	sum := crc32.Update(0, castagnoli, b[:])
	sum = crc32.Update(sum, castagnoli, head[:5])
	return crc32.Update(sum, castagnoli, payload)
}

// frameWriter frames what a state machine writes. Close writes the end frame and does not close the writer below.
type frameWriter struct {
	w       io.Writer
	buf     []byte // head and payload of the data frame being filled
	ordinal uint64
	total   uint64
}

func newFrameWriter(w io.Writer, state uint64) (*frameWriter, error) {
	f := &frameWriter{w: w, buf: make([]byte, frameOverhead, frameOverhead+maxFrame)}
	payload := binary.LittleEndian.AppendUint64([]byte{framesVersion}, state)
	return f, f.frame(frameHeader, append(f.buf, payload...))
}

// frame writes one frame; b has room for the head in front of the payload.
func (f *frameWriter) frame(kind byte, b []byte) error {
	payload := b[frameOverhead:]
	b[0] = kind
	binary.LittleEndian.PutUint32(b[1:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[5:], frameSum(f.ordinal, b, payload))
	f.ordinal++
	_, err := f.w.Write(b)
	return err
}

func (f *frameWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		take := min(len(p), frameOverhead+maxFrame-len(f.buf))
		f.buf = append(f.buf, p[:take]...)
		p = p[take:]
		n += take
		if len(f.buf) == cap(f.buf) {
			if err := f.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (f *frameWriter) flush() error {
	if len(f.buf) == frameOverhead {
		return nil
	}
	f.total += uint64(len(f.buf) - frameOverhead)
	err := f.frame(frameData, f.buf)
	f.buf = f.buf[:frameOverhead]
	return err
}

func (f *frameWriter) Close() error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.frame(frameEnd, binary.LittleEndian.AppendUint64(f.buf, f.total))
}

// frameReader gives back what went into a frameWriter. Errors of kind metadata.ErrCorrupt: the stream is damaged or
// ends early. io.EOF comes only behind a good end frame and nothing after it.
type frameReader struct {
	r       *bufio.Reader
	state   uint64
	ordinal uint64
	total   uint64
	buf     []byte
	rest    []byte
	err     error
}

func newFrameReader(r io.Reader) (*frameReader, error) {
	f := &frameReader{r: bufio.NewReaderSize(r, 64<<10)}
	kind, payload, err := f.frame()
	if err != nil {
		return nil, err
	}
	if kind != frameHeader || len(payload) != headerPayload {
		return nil, metadata.Errorf(metadata.ErrCorrupt, "the snapshot does not begin with a header")
	}
	if payload[0] != framesVersion {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the snapshot has version %d, this program reads %d", payload[0], framesVersion)
	}
	f.state = binary.LittleEndian.Uint64(payload[1:])
	return f, nil
}

func (f *frameReader) frame() (kind byte, payload []byte, err error) {
	var head [frameOverhead]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, nil, cutShort(err)
	}
	size := binary.LittleEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, metadata.Errorf(metadata.ErrCorrupt, "frame %d of the snapshot claims %d bytes", f.ordinal, size)
	}
	if cap(f.buf) < int(size) {
		f.buf = make([]byte, size)
	}
	payload = f.buf[:size]
	if _, err := io.ReadFull(f.r, payload); err != nil {
		return 0, nil, cutShort(err)
	}
	if frameSum(f.ordinal, head[:], payload) != binary.LittleEndian.Uint32(head[5:]) {
		return 0, nil, metadata.Errorf(metadata.ErrCorrupt, "frame %d of the snapshot does not match its checksum", f.ordinal)
	}
	f.ordinal++
	return head[0], payload, nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return metadata.Errorf(metadata.ErrCorrupt, "the snapshot ends early")
	}
	return err
}

func (f *frameReader) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		f.err = f.next()
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// next fetches a data frame into rest; io.EOF behind the end frame.
func (f *frameReader) next() error {
	kind, payload, err := f.frame()
	if err != nil {
		return err
	}
	switch {
	case kind == frameData:
		f.total += uint64(len(payload))
		f.rest = payload
		return nil
	case kind == frameEnd && len(payload) == 8 && binary.LittleEndian.Uint64(payload) == f.total:
		if _, err := f.r.ReadByte(); !errors.Is(err, io.EOF) {
			if err == nil {
				err = metadata.Errorf(metadata.ErrCorrupt, "there is more behind the end of the snapshot")
			}
			return err
		}
		return io.EOF
	}
	return metadata.Errorf(metadata.ErrCorrupt, "frame %d of the snapshot is out of place", f.ordinal-1)
}

// verifyFrames reads a whole stream.
func verifyFrames(r io.Reader) error {
	f, err := newFrameReader(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, f)
	return err
}
