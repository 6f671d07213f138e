package raftstore

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/gohops/hops/metadata"
)

// A reference in a snapshot's file, and what a leader sends of it, is little endian:
//
//	 0       8       16     24      32    36
//	+-------+-------+------+-------+-----+
//	| magic | index | hash | bytes | crc |      crc over the 32 bytes before
//	+-------+-------+------+-------+-----+
const (
	referenceMagic = "hopsREF1"
	referenceSize  = 36
)

func (r Reference) encode() []byte {
	b := append(make([]byte, 0, referenceSize), referenceMagic...)
	b = binary.LittleEndian.AppendUint64(b, r.Index)
	b = binary.LittleEndian.AppendUint64(b, r.Hash)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Bytes))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeReference takes what begins with referenceMagic.
func decodeReference(b []byte) (Reference, error) {
	if len(b) != referenceSize || !bytes.HasPrefix(b, []byte(referenceMagic)) {
		return Reference{}, metadata.Errorf(metadata.ErrCorrupt, "no reference to a version of the state")
	}
	if crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return Reference{}, metadata.Errorf(metadata.ErrCorrupt, "the reference to a version of the state does not match its checksum")
	}
	r := Reference{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), int64(binary.LittleEndian.Uint64(b[24:]))}
	if r.Index == 0 || r.Bytes < 0 {
		return Reference{}, metadata.Errorf(metadata.ErrCorrupt, "a reference to version %d of %d bytes", r.Index, r.Bytes)
	}
	return r, nil
}

// same reports whether two references name one version; sizes are guesses.
func (r Reference) same(other Reference) bool { return r.Index == other.Index && r.Hash == other.Hash }
