package namespace

import (
	"encoding/binary"
	"math/bits"

	"github.com/gohops/hops/metadata"
)

// The classes of records, told apart by the first byte of the key. FORMAT.md has the table.
const (
	classEntry = 'd' // parent, name: the inode
	// Where a checkpoint has directories apart, their records are here in place of among the entries.
	classDirectory = 'D'
	classINode     = 'i' // inode: parent, name (derived)
	classBlock     = 'b' // block: inode (derived)
	classLease     = 'l' // holder: lease
	classOpen      = 'o' // inode: holder (derived)
	classRetry     = 'r' // sequence: retry
	classItem      = 'k' // name: item of the register
	classToken     = 't' // sequence: delegation token
	classPool      = 'p' // name: cache pool
	classCache     = 'c' // number: cache directive
	classMarker    = 'm'

	classSnapshottable = 'y' // inode: that snapshots may be taken of it
	classSnapshot      = 'n' // snapshot: of what, and its name
	classSnapshotINode = 's' // inode, snapshot: the inode as it was
	classSnapshotEntry = 'S' // parent, name, 0, snapshot: what the name stood for
	classSnapshotIndex = 'x' // snapshot, class and key without the snapshot: what was kept for it (derived)
	classSnapshotBlock = 'B' // block: the inode that had it, and the block (derived)
)

// Apart are the classes that a store should keep apart from all others (badger.Options): ids are given out in order, so new records of inodes and blocks lie
// behind all old ones; and without the directories, which change with each new entry, those of files mostly do.
const Apart = string(classINode) + string(classBlock) + string(classDirectory)

var markerKey = []byte{classMarker}

// classKnown reports whether records of a class are part of a snapshot's stream.
func classKnown(class byte) bool {
	switch class {
	case classEntry, classDirectory, classINode, classBlock, classLease, classOpen, classRetry, classItem, classToken, classPool, classCache,
		classSnapshottable, classSnapshot, classSnapshotINode, classSnapshotEntry, classSnapshotIndex, classSnapshotBlock:
		return true
	}
	return false
}

func appendID(b []byte, class byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, class), id)
}

func appendEntryKey(b []byte, parent metadata.INodeID, name string) []byte {
	return append(appendID(b, classEntry, uint64(parent)), name...)
}

func entryKey(parent metadata.INodeID, name string) string {
	var buf [9 + metadata.MaxNameLength]byte
	return string(appendEntryKey(buf[:0], parent, name))
}

// splitEntry takes an entry's key, or an inode record's value, apart.
func splitEntry(b []byte) (parent metadata.INodeID, name string, ok bool) {
	if len(b) < 8 {
		return 0, "", false
	}
	return metadata.INodeID(binary.BigEndian.Uint64(b)), string(b[8:]), true
}

func idKey(class byte, id uint64) string {
	var buf [9]byte
	return string(appendID(buf[:0], class, id))
}

// hashRecord is the hash of one record. The state's hash is the sum of those of all records that are not derived: it
// does not depend on order, and a change costs one subtraction and one addition. It finds divergence, not malice.
func hashRecord(key, value []byte) uint64 {
	return hashBytes(hashBytes(0x9e3779b97f4a7c15, key), value)
}

// hashBytes folds b into h, eight bytes at a time, by 128-bit multiplication (after wyhash).
func hashBytes(h uint64, b []byte) uint64 {
	n := uint64(len(b))
	for len(b) >= 8 {
		h = mix(h^binary.LittleEndian.Uint64(b), 0xa0761d6478bd642f)
		b = b[8:]
	}
	var tail uint64
	for i, c := range b {
		tail |= uint64(c) << (8 * i)
	}
	return mix(h^tail, 0xe7037ed1a0b428db^n)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
