package journal

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// The envelope of an entry is put in front of the entry's Extensions, little endian:
//
//	 0      8       16     24          32          36            40
//	+------+-------+------+-----------+-----------+-------------+
//	| salt | index | term | watermark | body crc  | header crc  |
//	+------+-------+------+-----------+-----------+-------------+
//
// salt is the journal's random number, so that the header can be found in raw bytes in which clients cannot have placed
// one. watermark is the last entry that was durable when this one was written. Body crc covers type, extensions and
// data; header crc the 36 bytes before it. Both are CRC32C.
const envelopeBytes = 40

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// salt tells the journals of the world apart.
type salt [8]byte

func bodyCRC(t raft.LogType, extensions, data []byte) uint32 {
	sum := crc32.Update(0, castagnoli, []byte{byte(t)})
	sum = crc32.Update(sum, castagnoli, extensions)
	return crc32.Update(sum, castagnoli, data)
}

// wrap returns copies of the entries with envelopes; data is shared.
func wrap(entries []*raft.Log, s salt, acked uint64) []*raft.Log {
	copies := make([]raft.Log, len(entries))
	wrapped := make([]*raft.Log, len(entries))
	headers := make([]byte, 0, len(entries)*envelopeBytes)
	for i, e := range entries {
		start := len(headers)
		headers = append(headers, s[:]...)
		headers = binary.LittleEndian.AppendUint64(headers, e.Index)
		headers = binary.LittleEndian.AppendUint64(headers, e.Term)
		headers = binary.LittleEndian.AppendUint64(headers, acked)
		headers = binary.LittleEndian.AppendUint32(headers, bodyCRC(e.Type, e.Extensions, e.Data))
		headers = binary.LittleEndian.AppendUint32(headers, crc32.Checksum(headers[start:], castagnoli))
		copies[i] = *e
		copies[i].Extensions = headers[start:len(headers):len(headers)]
		if len(e.Extensions) > 0 {
			copies[i].Extensions = append(copies[i].Extensions, e.Extensions...)
		}
		wrapped[i] = &copies[i]
	}
	return wrapped
}

// unwrap checks the envelope of an entry that was stored under index, takes it off, and returns its watermark.
func unwrap(index uint64, e *raft.Log) (acked uint64, err error) {
	h := e.Extensions
	if len(h) < envelopeBytes || crc32.Checksum(h[:36], castagnoli) != binary.LittleEndian.Uint32(h[36:]) {
		return 0, metadata.Errorf(metadata.ErrCorrupt, "entry %d: the envelope is damaged", index)
	}
	e.Extensions = h[envelopeBytes:]
	if len(e.Extensions) == 0 {
		e.Extensions = nil
	}
	wantIndex, wantTerm := binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[16:])
	if e.Index != index || wantIndex != index || e.Term != wantTerm {
		return 0, metadata.Errorf(metadata.ErrCorrupt, "entry %d: found entry %d of term %d in an envelope for %d of term %d",
			index, e.Index, e.Term, wantIndex, wantTerm)
	}
	if got, want := bodyCRC(e.Type, e.Extensions, e.Data), binary.LittleEndian.Uint32(h[32:]); got != want {
		return 0, metadata.Errorf(metadata.ErrCorrupt, "entry %d: checksum %08x, stored %08x", index, got, want)
	}
	return binary.LittleEndian.Uint64(h[24:]), nil
}

// scanAcked finds the highest watermark in raw bytes of a log file, whether or not the log store can still reach the
// entries in it.
func scanAcked(raw []byte, s salt) uint64 {
	var acked uint64
	for {
		at := bytes.Index(raw, s[:])
		if at < 0 || len(raw)-at < envelopeBytes {
			return acked
		}
		h := raw[at : at+envelopeBytes]
		if crc32.Checksum(h[:36], castagnoli) == binary.LittleEndian.Uint32(h[36:]) {
			acked = max(acked, binary.LittleEndian.Uint64(h[24:]))
		}
		raw = raw[at+1:]
	}
}
