// Package tensorboard writes and reads the event files that TensorBoard shows: TFRecord frames around hand-encoded
// Event messages with scalars. It needs neither TensorFlow nor its schemas.
//
// A file is named events.out.tfevents.<anything>, is append-only, and is a sequence of frames:
//
//	uint64  length           little endian
//	uint32  masked CRC-32C of the 8 bytes of length
//	byte    data[length]     an Event
//	uint32  masked CRC-32C of data
//
// mask(c) = (c>>15 | c<<17) + 0xa282ead8, so that a checksum over checksums does not cancel out
// (tensorflow/core/lib/io/record_writer.h, lib/hash/crc32c.h). The first Event says file_version "brain.Event:2".
package tensorboard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// MaxRecord is the longest record that Reader accepts, in bytes.
const MaxRecord = 64 << 20

// ErrCorrupt marks a frame whose checksum does not match; the error says at which offset.
var ErrCorrupt = errors.New("corrupt event file")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func masked(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// AppendRecord appends one frame to dst.
func AppendRecord(dst, data []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(data)))
	dst = binary.LittleEndian.AppendUint32(dst, masked(dst[len(dst)-8:]))
	dst = append(dst, data...)
	return binary.LittleEndian.AppendUint32(dst, masked(data))
}

// recordReader reads frames one by one.
type recordReader struct {
	r      io.Reader
	offset int64
}

// next is the data of the next frame. io.EOF: the file ends between frames; io.ErrUnexpectedEOF: inside one, as it does
// while a writer is appending; ErrCorrupt: a checksum does not match.
func (r *recordReader) next() ([]byte, error) {
	var head [12]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(head[8:]) != masked(head[:8]) {
		return nil, fmt.Errorf("record at offset %d: checksum of the length: %w", r.offset, ErrCorrupt)
	}
	n := binary.LittleEndian.Uint64(head[:8])
	if n > MaxRecord {
		return nil, fmt.Errorf("record at offset %d: %d bytes, at most %d: %w", r.offset, n, MaxRecord, ErrCorrupt)
	}
	data := make([]byte, n+4)
	if _, err := io.ReadFull(r.r, data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if binary.LittleEndian.Uint32(data[n:]) != masked(data[:n]) {
		return nil, fmt.Errorf("record at offset %d: checksum of the data: %w", r.offset, ErrCorrupt)
	}
	r.offset += int64(n) + 16
	return data[:n], nil
}
