package namespace

import (
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Bodies of small files travel right behind the frame with the records that name them, in the order of these, one frame each:
//
//	type 'F': id(8) generation(8) crc32c(4), then the bytes
//	type 'G': id(8) generation(8): the sender does not have it sound
const (
	frameBody = 'F'
	frameGap  = 'G'

	// bodiesTarget is how many bytes the bodies have that a frame of records names, before it ends.
	bodiesTarget = 256 << 10
)

// bodyNamed is the body that a record names and that is in none itself; nil: there is none.
func bodyNamed(key, value []byte) (*BodyRef, error) {
	switch key[0] {
	case classEntry:
		const inodeFile, fileData, fileBody = 8, 8, 9 // logpb.INode, logpb.FileState
		content, ok := field(value, inodeFile)
		if !ok || content == nil || !hasField(content, fileBody) || hasField(content, fileData) {
			return nil, nil
		}
		var f logpb.FileState
		if err := f.UnmarshalVT(content); err != nil || len(f.BlockId) == 0 || len(f.BlockGeneration) == 0 || len(f.BlockLength) == 0 {
			return nil, corrupt("record %q: %v", key, err)
		}
		return refOf(metadata.Block{
			ID: metadata.BlockID(f.BlockId[0]), Generation: metadata.Generation(f.BlockGeneration[0]), Length: f.BlockLength[0],
		}, f.Body.GetCrc())
	case classBlock:
		if len(key) != 9 {
			return nil, nil
		}
		return bodyOfRecord(metadata.BlockID(binary.BigEndian.Uint64(key[1:])), value), nil
	case classSnapshotBlock:
		if len(key) != 9 {
			return nil, corrupt("record %q", key)
		}
		owner, err := decodeKeptBlock(metadata.BlockID(binary.BigEndian.Uint64(key[1:])), value)
		if err != nil || !owner.body || owner.inlined {
			return nil, err
		}
		return refOf(owner.Block, owner.crc)
	}
	return nil, nil
}

func refOf(b metadata.Block, crc uint32) (*BodyRef, error) {
	if b.Length < 1 || b.Length > metadata.MaxBody {
		return nil, corrupt("body %v", b)
	}
	return &BodyRef{Block: b, CRC: crc}, nil
}

// hasField reports whether a message, which can be read, has a field.
func hasField(message []byte, number protowire.Number) bool {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return false
		}
		message = message[size:]
		if n == number {
			return true
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return false
		}
		message = message[size:]
	}
	return false
}

// name notes that a record of the frame that is being filled names a body.
func (c *piece) name(r *BodyRef) {
	c.named = append(c.named, *r)
	c.namedBytes += int(r.Block.Length) + frameHeader + bodyHeader
}

const bodyHeader = 8 + 8 + 4

// bodies adds the frames of the bodies that the frame before named, and begins a frame again. Errors: those of reading them, but that they are missing or
// damaged.
func (c *piece) bodies(read func(BodyRef) ([]byte, error)) error {
	for _, r := range c.named {
		data, err := read(r)
		kind := byte(frameBody)
		if errors.Is(err, metadata.ErrReplicaNotFound) || errors.Is(err, metadata.ErrCorrupt) {
			kind, err = frameGap, nil
		}
		if err != nil {
			return err
		}
		c.bytes = binary.LittleEndian.AppendUint64(c.bytes, uint64(r.Block.ID))
		c.bytes = binary.LittleEndian.AppendUint64(c.bytes, uint64(r.Block.Generation))
		if kind == frameBody {
			c.bytes = binary.LittleEndian.AppendUint32(c.bytes, r.CRC)
			c.bytes = append(c.bytes, data...)
		}
		c.close(kind)
		c.open()
	}
	c.named, c.namedBytes = c.named[:0], 0
	return nil
}

// body takes the frame of one, which has to be the next that was named.
func (c *verifier) body(kind byte, payload []byte) error {
	if len(payload) < 16 || len(c.named) == 0 {
		return corrupt("a body of %d bytes that no record names", len(payload))
	}
	r := c.named[0]
	id, generation := metadata.BlockID(binary.LittleEndian.Uint64(payload)), metadata.Generation(binary.LittleEndian.Uint64(payload[8:]))
	if id != r.Block.ID || generation != r.Block.Generation {
		return corrupt("body %d_%d comes in place of %v", id, generation, r.Block)
	}
	c.named = c.named[1:]
	if kind == frameGap {
		c.gaps++
		if c.lacked != nil {
			c.lacked(&r)
		}
		return nil
	}
	if len(payload) < bodyHeader || binary.LittleEndian.Uint32(payload[16:]) != r.CRC {
		return corrupt("checksum of body %v", r.Block)
	}
	data := payload[bodyHeader:]
	if err := r.Verify(data); err != nil {
		return err
	}
	if c.arrived != nil {
		c.arrived(id, data)
	}
	return nil
}
