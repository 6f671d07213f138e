package namespace

import (
	"bytes"
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

// offset is its place on its sheet.
func (w *way) offset() int { return int(w.id % inodesPerSheet) }

// appendSheet encodes a sheet: what the former one had, and what has changed since, in ascending order. Nothing is appended if nothing is left. What changed of
// the inodes before known has to be on the former one: a store that cannot read a block may take it for one that has nothing, and the others would be lost.
//
// Errors: ErrCorrupt for a sheet or a way that is none, and for a former sheet that lacks one.
func appendSheet(b, former []byte, changed []way, known metadata.INodeID) ([]byte, error) {
	before := uint64(0)
	add := func(offset int, parent uint64, name []byte) {
		b = append(b, byte(offset))
		if parent == before {
			parent = 0
		} else {
			before = parent
		}
		b = binary.AppendUvarint(b, parent)
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
	}
	r := readSheet(former)
	more, err := r.next()
	for err == nil && (more || len(changed) > 0) {
		if len(changed) == 0 || more && r.offset < changed[0].offset() {
			add(r.offset, r.parent, r.name)
			more, err = r.next()
			continue
		}
		w := changed[0]
		changed = changed[1:]
		if more && r.offset == w.offset() {
			more, err = r.next()
		} else if w.id < known {
			return nil, corrupt("the sheet that has the way to inode %d lacks it", w.id)
		}
		switch {
		case w.where == nil:
		case len(w.where) <= 8:
			return nil, corrupt("inode %d is at %x", w.id, w.where)
		default:
			add(w.offset(), binary.BigEndian.Uint64(w.where), w.where[8:])
		}
	}
	return b, err
}

var errSheet = fmt.Errorf("a sheet of ways makes no sense: %w", metadata.ErrCorrupt)

// sheetReader goes through the ways on a sheet.
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
	singles := len(ways)
	if v.sheets != 0 {
		singles, _ = slices.BinarySearchFunc(ways, v.sheets, func(w way, id metadata.INodeID) int { return cmp.Compare(w.id, id) })
	}
	var sheets []sheet
	var value []byte
	for rest := ways[singles:]; len(rest) > 0; {
		sheets = sheets[:0]
		for len(rest) > 0 && len(sheets) < sheetsAtOnce {
			s := sheet{first: sheetOf(rest[len(rest)-1].id)}
			start := len(rest) - 1
			for start > 0 && rest[start-1].id >= s.first {
				start--
			}
			s.changed, rest = rest[start:], rest[:start]
			sheets = append(sheets, s)
		}
		if err := v.readSheets(sheets); err != nil {
			return err
		}
		for i := range sheets {
			s := &sheets[i]
			var err error
			known := v.nextINode
			if !s.read {
				known = 0
			}
			if value, err = appendSheet(value[:0], s.former, s.changed, known); err != nil {
				return err
			}
			r := record{key: sheetKey(s.first)}
			if len(value) > 0 {
				r.value = value
			}
			if err := put(b, r); err != nil {
				return err
			}
		}
	}
	for _, w := range slices.Backward(ways[:singles]) {
		if err := put(b, record{appendID(nil, classINode, uint64(w.id)), w.where}); err != nil {
			return err
		}
	}
	return nil
}

// sheet is one that is written anew.
type sheet struct {
	first   metadata.INodeID
	changed []way
	read    bool   // former was looked for
	former  []byte // nil: there is none
}

const (
	// sheetsAtOnce is how many are read together.
	sheetsAtOnce = 1024
	// sheetsPassed is how many sheets one goes through to find one, rather than look for each: a look takes about eight times as long.
	sheetsPassed = 8
)

// readSheets reads what the checkpoint has of sheets, the last of which comes first, unless all on them is new or has changed.
func (v *checkpointView) readSheets(sheets []sheet) error {
	var old []*sheet
	for i := range sheets {
		if s := &sheets[i]; s.first < v.nextINode && len(s.changed) < inodesPerSheet {
			s.read = true
			old = append(old, s)
		}
	}
	if len(old) == 0 {
		return nil
	}
	last := old[0].first
	if span := uint64(last-old[len(old)-1].first)/inodesPerSheet + 1; span > sheetsPassed*uint64(len(old)) {
		for _, s := range old {
			var err error
			if s.former, err = v.get(sheetKey(s.first)); err != nil {
				return err
			}
		}
		return nil
	}
	slices.Reverse(old)
	return v.Scan([]byte{classINode}, sheetKey(old[0].first), func(key, value []byte) bool {
		first := metadata.INodeID(binary.BigEndian.Uint64(key[1:]))
		for len(old) > 0 && old[0].first < first {
			old = old[1:] // it had none
		}
		if len(old) > 0 && old[0].first == first {
			old[0].former = bytes.Clone(value)
			old = old[1:]
		}
		return len(old) > 0
	})
}
