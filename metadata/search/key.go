package search

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"

	"github.com/gohops/hops/metadata"
)

// The classes of records, told apart by the first byte of the key. FORMAT.md has the table.
const (
	classINode  = 'i' // inode: what there is to know of it
	className   = 'n' // name, 0, inode
	classSize   = 's' // size, inode
	classTag    = 't' // name, 0, value, inode
	classMarker = 'm'
)

var markerKey = []byte{classMarker}

// sweptKey has the position of the last layer whose writing began out of which a sweep has taken something.
var sweptKey = []byte{classMarker, 's'}

const (
	// keptValue is how many bytes of a tag's value are in the index. Longer ones are compared with the namespace.
	keptValue = 100
	// maxKeptName is the longest name of a tag that is in the index.
	maxKeptName = 255
)

// node is what the index knows of a file or directory.
type node struct {
	parent metadata.INodeID
	name   string
	dir    bool
	// sized: the file was closed once, and size is how many bytes it had then.
	sized bool
	size  int64
	tags  []tag // in the order of their names
}

// tag is an attribute of the namespace user. value has keptValue bytes at most, length is that of the whole.
type tag struct {
	name   string
	value  string
	length int
}

// tagOf makes a tag of an attribute, if it is one.
func tagOf(a metadata.XAttr) (t tag, ok bool) {
	if a.Namespace != metadata.XAttrUser || len(a.Name) == 0 || len(a.Name) > maxKeptName || strings.IndexByte(a.Name, 0) >= 0 {
		return t, false
	}
	return tag{name: a.Name, value: string(a.Value[:min(len(a.Value), keptValue)]), length: len(a.Value)}, true
}

func idKey(class byte, id metadata.INodeID) string {
	return string(binary.BigEndian.AppendUint64([]byte{class}, uint64(id)))
}

func nameKey(name string, id metadata.INodeID) string {
	b := make([]byte, 0, len(name)+10)
	b = append(append(append(b, className), name...), 0)
	return string(binary.BigEndian.AppendUint64(b, uint64(id)))
}

// sizePlace is what the keys of files with a size begin with.
func sizePlace(size int64) string {
	return string(binary.BigEndian.AppendUint64([]byte{classSize}, uint64(size)))
}

func sizeKey(size int64, id metadata.INodeID) string {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 17), uint64(size))
	return string(classSize) + string(binary.BigEndian.AppendUint64(b, uint64(id)))
}

// tagPlace is what the keys of inodes begin with that have a tag with a value. Longer values than keptValue share one place with others.
func tagPlace(t tag) string {
	return tagNamed(t.name) + string([]byte{byte(min(t.length, keptValue+1))}) + t.value
}

// tagNamed is what the keys of inodes begin with that have a tag.
func tagNamed(name string) string { return string(classTag) + name + "\x00" }

func tagKey(t tag, id metadata.INodeID) string {
	return string(binary.BigEndian.AppendUint64([]byte(tagPlace(t)), uint64(id)))
}

// idOf is the inode of a key of any class but the marker's; 0 if it is none.
func idOf(key []byte) metadata.INodeID {
	if len(key) < 9 {
		return 0
	}
	return metadata.INodeID(binary.BigEndian.Uint64(key[len(key)-8:]))
}

// each calls fn with the keys under which n is found.
func (n *node) each(id metadata.INodeID, fn func(key string)) {
	if n.name != "" {
		fn(nameKey(n.name, id))
	}
	if n.sized {
		fn(sizeKey(n.size, id))
	}
	for _, t := range n.tags {
		fn(tagKey(t, id))
	}
}

const (
	flagDir = 1 << iota
	flagSized
	flagTags
)

func (n *node) encode() []byte {
	b := make([]byte, 0, 24+len(n.name))
	flags := byte(0)
	if n.dir {
		flags |= flagDir
	}
	if n.sized {
		flags |= flagSized
	}
	if len(n.tags) > 0 {
		flags |= flagTags
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(n.parent))
	if n.sized {
		b = binary.AppendUvarint(b, uint64(n.size))
	}
	b = appendString(b, n.name)
	if len(n.tags) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(len(n.tags)))
	for _, t := range n.tags {
		b = appendString(appendString(b, t.name), t.value)
		b = binary.AppendUvarint(b, uint64(t.length))
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errDamaged = errors.New("damaged record")

// decode is the inverse of encode.
func decode(b []byte) (*node, error) {
	r := reader{b: b}
	flags := r.uvarint(flagDir | flagSized | flagTags)
	n := &node{dir: flags&flagDir != 0, sized: flags&flagSized != 0, parent: metadata.INodeID(r.uvarint(math.MaxUint64))}
	if n.sized {
		n.size = int64(r.uvarint(math.MaxInt64))
	}
	n.name = r.string()
	if flags&flagTags != 0 {
		for range r.uvarint(uint64(len(r.b))) {
			n.tags = append(n.tags, tag{name: r.string(), value: r.string(), length: int(r.uvarint(math.MaxInt32))})
		}
	}
	if r.bad || len(r.b) > 0 {
		return nil, errDamaged
	}
	return n, nil
}

// reader takes values off the front of bytes; after the first that is none it gives zeros and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint(most uint64) uint64 {
	v, size := binary.Uvarint(r.b)
	if size <= 0 || v > most {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[size:]
	return v
}

func (r *reader) string() string {
	n := r.uvarint(math.MaxInt32)
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// marker says up to where the index is durable.
type marker struct {
	position metadata.Position
	// entries is how many inodes have a record.
	entries int64
}

const markerVersion = 1

func (m marker) encode() []byte {
	b := binary.AppendUvarint([]byte{markerVersion}, uint64(m.position))
	return binary.AppendUvarint(b, uint64(m.entries))
}

func decodeMarker(b []byte) (m marker, err error) {
	r := reader{b: b}
	version := r.uvarint(math.MaxUint64)
	m.position, m.entries = metadata.Position(r.uvarint(math.MaxInt64)), int64(r.uvarint(math.MaxInt64))
	if r.bad || version != markerVersion || len(r.b) > 0 {
		return marker{}, errDamaged
	}
	return m, nil
}
