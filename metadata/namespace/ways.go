package namespace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// A checkpoint has the way to each inode, the name in a directory that leads to it, in a record of its own or on a sheet: the record of sixteen inodes
// with numbers in a row, under the first of them and a byte more. Which it is says Marker.Sheets, the first inode on one. FORMAT.md has the bytes.

// inodesPerSheet is how many inodes, by number, share a sheet. It is a power of two.
const inodesPerSheet = 16

// sheetMark is behind the number in the key of a sheet.
const sheetMark = 1

// sheetOf is the first inode of the sheet that has one.
func sheetOf(id metadata.INodeID) metadata.INodeID { return id &^ (inodesPerSheet - 1) }

func sheetKey(first metadata.INodeID) []byte {
	return append(appendID(make([]byte, 0, 10), classINode, uint64(first)), sheetMark)
}

// sheetsFrom is the first inode on a sheet when those before next are in records of their own.
func sheetsFrom(next metadata.INodeID) metadata.INodeID {
	return sheetOf(next + inodesPerSheet - 1)
}

// way is where an inode is.
type way struct {
	id    metadata.INodeID
	where []byte // parent(8) name; nil: it is gone
}

// appendSheet encodes the ways to one sheet, in ascending order, and passes over those that are gone.
//
// Errors: ErrCorrupt for a way that is none.
func appendSheet(b []byte, ways []way) ([]byte, error) {
	before := metadata.INodeID(0)
	for _, p := range ways {
		if p.where == nil {
			continue
		}
		if len(p.where) <= 8 {
			return nil, corrupt("inode %d is at %x", p.id, p.where)
		}
		parent := metadata.INodeID(binary.BigEndian.Uint64(p.where))
		b = append(b, byte(p.id%inodesPerSheet))
		if parent == before {
			b = append(b, 0)
		} else {
			b = binary.AppendUvarint(b, uint64(parent))
		}
		before = parent
		b = binary.AppendUvarint(b, uint64(len(p.where)-8))
		b = append(b, p.where[8:]...)
	}
	return b, nil
}

var errSheet = fmt.Errorf("a sheet of ways makes no sense: %w", metadata.ErrCorrupt)

// sheetReader goes through the ways to a sheet.
type sheetReader struct {
	rest   []byte
	offset int // of the way that next came to, within its sheet
	parent uint64
	name   []byte
}

func readSheet(value []byte) sheetReader { return sheetReader{rest: value, offset: -1} }

// next goes to the next way. more is false behind the last one. Errors: ErrCorrupt.
func (r *sheetReader) next() (more bool, err error) {
	if len(r.rest) == 0 {
		return false, nil
	}
	offset := int(r.rest[0])
	parent, n := binary.Uvarint(r.rest[1:])
	if n <= 0 || offset <= r.offset || offset >= inodesPerSheet {
		return false, errSheet
	}
	rest := r.rest[1+n:]
	size, n := binary.Uvarint(rest)
	if n <= 0 || size == 0 || size > metadata.MaxNameLength || size > uint64(len(rest)-n) {
		return false, errSheet
	}
	if parent != 0 {
		r.parent = parent
	}
	if r.parent == 0 {
		return false, errSheet
	}
	r.offset, r.name, r.rest = offset, rest[n:n+int(size)], rest[n+int(size):]
	return true, nil
}

// where is the way that next came to, as a record of its own has it.
func (r *sheetReader) where() []byte {
	b := make([]byte, 0, 8+len(r.name))
	return append(binary.BigEndian.AppendUint64(b, r.parent), r.name...)
}

// readWays decodes a sheet.
func readWays(into []way, first metadata.INodeID, value []byte) ([]way, error) {
	r := readSheet(value)
	for {
		more, err := r.next()
		if !more {
			return into, err
		}
		into = append(into, way{first + metadata.INodeID(r.offset), r.where()})
	}
}

// eachWay tells of which inodes a record of class inode has the ways, and whether it is a sheet.
//
// Errors: ErrCorrupt for one that is neither a sheet nor a record of one way.
func eachWay(key, value []byte, fn func(metadata.INodeID)) (sheet bool, err error) {
	if len(key) < 9 {
		return false, corrupt("record %x: %x", key, value)
	}
	id := metadata.INodeID(binary.BigEndian.Uint64(key[1:]))
	switch {
	case len(key) == 9 && len(value) >= 8:
		fn(id)
		return false, nil
	case len(key) != 10 || key[9] != sheetMark || sheetOf(id) != id || len(value) == 0:
		return false, corrupt("record %x: %x", key, value)
	}
	r := readSheet(value)
	for {
		more, err := r.next()
		if !more {
			return true, err
		}
		fn(id + metadata.INodeID(r.offset))
	}
}

// onSheet reports whether the way to an inode is on a sheet.
func (v *checkpointView) onSheet(id metadata.INodeID) bool { return v.sheets != 0 && id >= v.sheets }

// way is: parent(8) name. nil: it has none.
func (v *checkpointView) way(id metadata.INodeID) ([]byte, error) {
	if !v.onSheet(id) {
		return v.get(appendID(nil, classINode, uint64(id)))
	}
	value, err := v.get(sheetKey(sheetOf(id)))
	if value == nil || err != nil {
		return nil, err
	}
	r := readSheet(value)
	for {
		more, err := r.next()
		if !more {
			return nil, err
		}
		if r.offset == int(id%inodesPerSheet) {
			return r.where(), nil
		}
	}
}

// writeWays writes the ways that have changed since the checkpoint v, from the last to the first: each sheet as a whole and once, as it is when
// all of them have (DESIGN.md, Checkpoint and crash argument, 3).
func writeWays(b kv.Batch, v *checkpointView, ways []way) error {
	slices.SortFunc(ways, func(a, b way) int { return cmp.Compare(a.id, b.id) })
	var sheet []way
	var value []byte
	for end := len(ways); end > 0; {
		last := ways[end-1]
		if !v.onSheet(last.id) {
			if err := put(b, record{appendID(nil, classINode, uint64(last.id)), last.where}); err != nil {
				return err
			}
			end--
			continue
		}
		first, start := sheetOf(last.id), end-1
		for start > 0 && ways[start-1].id >= first {
			start--
		}
		changed := ways[start:end]
		end = start
		sheet = sheet[:0]
		if first < v.nextINode && len(changed) < inodesPerSheet {
			former, err := v.get(sheetKey(first))
			if err == nil {
				sheet, err = readWays(sheet, first, former)
			}
			if err != nil {
				return err
			}
		}
		sheet = mergeWays(sheet, changed)
		var err error
		if value, err = appendSheet(value[:0], sheet); err != nil {
			return err
		}
		r := record{key: sheetKey(first)}
		if len(value) > 0 {
			r.value = value
		}
		if err := put(b, r); err != nil {
			return err
		}
	}
	return nil
}

// mergeWays brings changed into ways, both in ascending order and of one sheet.
func mergeWays(ways, changed []way) []way {
	for _, c := range changed {
		i, found := slices.BinarySearchFunc(ways, c.id, func(p way, id metadata.INodeID) int { return cmp.Compare(p.id, id) })
		if found {
			ways[i] = c
		} else {
			ways = slices.Insert(ways, i, c)
		}
	}
	return ways
}
