package clientprotocol

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"sync"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The frequent answers are encoded straight from the namenode's words: filling in a message of pointers first costs more
// than writing the bytes. Those of reads are reused.

// onlyAnswers is the half of hrpc.Message that an answer has no use for.
type onlyAnswers struct{}

var errOnlyAnswer = errors.New("an answer is not decoded here")

func (onlyAnswers) UnmarshalVT([]byte) error { return errOnlyAnswer }

var errSize = errors.New("an answer has not the size that was computed")

// infoAnswer is a GetFileInfoResponseProto, and that of other methods whose field 1 is a HdfsFileStatusProto.
type infoAnswer struct {
	onlyAnswers
	encoder *encoder
	status  *metadata.FileStatus // nil: there is none
	blocks  located
	size    int // of the status
	room    metadata.FileStatus
}

// located is a file's blocks as part of its status.
type located struct {
	file *namenode.LocatedFile // nil: they are no part of it
	pool string
	size int
}

var infoAnswers = sync.Pool{New: func() any { return new(infoAnswer) }}

// release keeps the answer for another status, without what belongs to this one.
func (a *infoAnswer) release() {
	a.status, a.room = nil, metadata.FileStatus{}
	infoAnswers.Put(a)
}

func (a *infoAnswer) SizeVT() int {
	if a.status == nil {
		return 0
	}
	a.size = a.encoder.statusSize(a.status, &a.blocks)
	return delimitedSize(a.size)
}

func (a *infoAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	if a.status == nil {
		return 0, nil
	}
	b := appendLength(to[:0], 1, a.size)
	return whole(a.encoder.appendStatus(b, a.status, &a.blocks), to, nil)
}

// infoBatch is answers to calls that have come together.
type infoBatch struct {
	rooms    [hrpc.MaxBatch]metadata.FileStatus
	answers  [hrpc.MaxBatch]infoAnswer
	messages [hrpc.MaxBatch]hrpc.Message
}

var infoBatches = sync.Pool{New: func() any {
	b := new(infoBatch)
	for i := range b.answers {
		b.messages[i] = &b.answers[i]
	}
	return b
}}

// of returns answers with the first n statuses.
func (b *infoBatch) of(e *encoder, n int) []hrpc.Message {
	for i := range n {
		a := &b.answers[i]
		if a.encoder, a.status = e, &b.rooms[i]; a.status.Type == 0 {
			a.status = nil
		}
	}
	return b.messages[:n]
}

// release keeps the memory for others, without what belongs to the first n.
func (b *infoBatch) release(n int) {
	clear(b.rooms[:n])
	infoBatches.Put(b)
}

// infosAnswer is a GetFileInfosResponseProto. It implements hrpc.ManyAnswers.
type infosAnswer struct {
	onlyAnswers
	encoder *encoder
	found   []namenode.Found
	parts   []infoPart
	size    int
}

// infoPart is a FoundInfoProto.
type infoPart struct {
	size, status       int // of all of it, and of the status in it
	exception, message string
}

func newInfosAnswer(e *encoder, found []namenode.Found) *infosAnswer {
	a := &infosAnswer{encoder: e, found: found, parts: make([]infoPart, len(found))}
	for i := range found {
		switch f, part := &found[i], &a.parts[i]; {
		case f.Err != nil:
			part.exception, part.message = hdfs.Exception(f.Err)
			part.size = delimitedSize(len(part.exception)) + delimitedSize(len(part.message))
		case f.Status != nil:
			part.status = e.statusSize(f.Status, new(located))
			part.size = delimitedSize(part.status)
		}
		a.size += delimitedSize(a.parts[i].size)
	}
	return a
}

func (a *infosAnswer) Outcomes() int       { return len(a.found) }
func (a *infosAnswer) Outcome(i int) error { return a.found[i].Err }
func (a *infosAnswer) SizeVT() int         { return a.size }

func (a *infosAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	b := to[:0]
	var none located
	for i := range a.found {
		part := &a.parts[i]
		b = appendLength(b, 1, part.size)
		switch f := &a.found[i]; {
		case f.Err != nil:
			b = appendText(appendText(b, 2, part.exception), 3, part.message)
		case f.Status != nil:
			b = a.encoder.appendStatus(appendLength(b, 1, part.status), f.Status, &none)
		}
	}
	return whole(b, to, nil)
}

// listAnswer is a GetListingResponseProto.
type listAnswer struct {
	onlyAnswers
	encoder *encoder
	list    *namenode.Listing // nil: there is no such path
	sizes   []int             // of the entries
	size    int               // of the DirectoryListingProto
	blocks  []located         // of the entries; empty: they are no part of the answer
}

var listAnswers = sync.Pool{New: func() any { return new(listAnswer) }}

// keepEntries is of how large a listing the sizes are kept for the next one.
const keepEntries = 4096

// set says what is answered.
func (a *listAnswer) set(e *encoder, l *namenode.Listing) {
	a.encoder, a.list, a.sizes, a.blocks = e, l, a.sizes[:0], nil
	if l == nil || l.Files == nil {
		return
	}
	a.blocks = make([]located, len(l.Files))
	pool := *e.pool()
	for i, f := range l.Files {
		a.blocks[i] = located{file: f, pool: pool}
	}
}

// release keeps the answer for another listing, without what belongs to this one.
func (a *listAnswer) release() {
	a.list, a.blocks = nil, nil
	if cap(a.sizes) <= keepEntries {
		listAnswers.Put(a)
	}
}

func (a *listAnswer) located(i int) *located {
	if a.blocks == nil {
		return &located{}
	}
	return &a.blocks[i]
}

func (a *listAnswer) SizeVT() int {
	if a.list == nil {
		return 0
	}
	a.size = 1 + varintSize(uint64(a.list.Remaining))
	for i := range a.list.Entries {
		n := a.encoder.statusSize(&a.list.Entries[i], a.located(i))
		a.sizes = append(a.sizes, n)
		a.size += delimitedSize(n)
	}
	return delimitedSize(a.size)
}

func (a *listAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	if a.list == nil {
		return 0, nil
	}
	b := appendLength(to[:0], 1, a.size)
	for i := range a.list.Entries {
		b = appendLength(b, 1, a.sizes[i])
		b = a.encoder.appendStatus(b, &a.list.Entries[i], a.located(i))
	}
	b = appendVarint(b, 2, uint64(a.list.Remaining))
	return whole(b, to, nil)
}

// whole checks that an answer fills the room that was made for it: it would not be in it otherwise.
func whole(b, to []byte, err error) (int, error) {
	if err == nil && len(b) != len(to) {
		err = errSize
	}
	return len(b), err
}

func varintSize(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// delimitedSize is the size of a field of n bytes with a tag of one.
func delimitedSize(n int) int { return 1 + varintSize(uint64(n)) + n }

func appendVarint(b []byte, field int, v uint64) []byte {
	b = append(b, byte(field<<3))
	if v < 0x80 {
		return append(b, byte(v))
	}
	return binary.AppendUvarint(b, v)
}

func appendLength(b []byte, field, n int) []byte {
	b = append(b, byte(field<<3|2))
	return binary.AppendUvarint(b, uint64(n))
}

func appendText(b []byte, field int, s string) []byte {
	return append(appendLength(b, field, len(s)), s...)
}

// statusSize is the size of a HdfsFileStatusProto.
func (e *encoder) statusSize(f *metadata.FileStatus, blocks *located) int {
	n := 2 + delimitedSize(len(f.Name)) + delimitedSize(len(f.Owner)) + delimitedSize(len(f.Group)) +
		1 + varintSize(uint64(f.Length)) +
		3 + varintSize(uint64(f.Mode&0o1777)) +
		1 + varintSize(uint64(f.MTime)) +
		1 + varintSize(uint64(f.ATime)) +
		1 + varintSize(uint64(f.Replication)) +
		1 + varintSize(uint64(f.BlockSize)) +
		1 + varintSize(uint64(f.ID)) +
		1 + varintSize(uint64(f.Children)) +
		2 + varintSize(uint64(f.StoragePolicy)) +
		3
	if f.Erasure != 0 {
		n += 1 + erasureSize(f.Erasure)
	}
	if blocks.file != nil {
		blocks.size = e.fileSize(blocks.file, blocks.pool)
		n += delimitedSize(blocks.size)
	}
	return n
}

// appendStatus writes a HdfsFileStatusProto in the order of its fields, after statusSize.
func (e *encoder) appendStatus(b []byte, f *metadata.FileStatus, blocks *located) []byte {
	kind, flags := pb.HdfsFileStatusProto_IS_FILE, byte(0)
	if f.Type == metadata.TypeDirectory {
		kind = pb.HdfsFileStatusProto_IS_DIR
	}
	if f.ACL {
		flags = byte(pb.HdfsFileStatusProto_HAS_ACL)
	}
	if f.Erasure != 0 {
		flags |= byte(pb.HdfsFileStatusProto_HAS_EC)
	}
	if f.Snapshottable {
		flags |= byte(pb.HdfsFileStatusProto_SNAPSHOT_ENABLED)
	}
	mode := uint64(f.Mode & 0o1777)
	b = append(b, 1<<3, byte(kind))
	b = appendText(b, 2, f.Name) // required, and empty where the request named the file
	b = appendVarint(b, 3, uint64(f.Length))
	b = appendLength(b, 4, 1+varintSize(mode))
	b = appendVarint(b, 1, mode)
	b = appendText(b, 5, f.Owner)
	b = appendText(b, 6, f.Group)
	b = appendVarint(b, 7, uint64(f.MTime))
	b = appendVarint(b, 8, uint64(f.ATime))
	b = appendVarint(b, 10, uint64(f.Replication))
	b = appendVarint(b, 11, uint64(f.BlockSize))
	if blocks.file != nil {
		b = e.appendFile(b, 12, blocks.file, blocks.pool, blocks.size)
	}
	b = appendVarint(b, 13, uint64(f.ID))
	b = appendVarint(b, 14, uint64(f.Children))
	b = append(b, 16<<3&0x7f|0x80, 16>>4)
	b = binary.AppendUvarint(b, uint64(f.StoragePolicy))
	if f.Erasure != 0 {
		b = appendErasure(append(b, (17<<3|2)&0x7f|0x80, 17<<3>>7), f.Erasure)
	}
	// Absent flags make Java look for them in the high bits of the permission.
	return append(b, 18<<3&0x7f|0x80, 18>>4, flags)
}
