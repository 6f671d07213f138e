package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/gohops/hops/metadata"
)

// A record is what one entry of the log has changed (FORMAT.md):
//
//	length uint32 | CRC-32C uint32 | payload
//
// little endian; the length is the payload's.
const (
	recordHeader = 8
	// maxRecord is the greatest payload. An entry of the log has 64 KiB, or one command; paths of a record are compressed.
	maxRecord = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errDamaged = errors.New("damaged record")

// head is what is the same for all events of a record.
type head struct {
	index   uint64
	logTime int64
	time    metadata.Time
}

// The flags of an event.
const (
	flagContinued = 1 << iota
	flagDir
	flagOverwrite
	flagNewBlock
	flagRemoved
	flagSameOwner // owner and group are those of the event before in the record
	flagACL
	flags = 1<<iota - 1
)

// appendRecord appends the record of an entry to b. Without events it says that the entry, and those before, had none that are not in front
// of it.
func appendRecord(b []byte, index uint64, logTime int64, events []metadata.Event) []byte {
	start := len(b)
	b = append(b, make([]byte, recordHeader)...)
	b = binary.AppendUvarint(b, index)
	b = binary.AppendUvarint(b, uint64(logTime))
	b = binary.AppendUvarint(b, uint64(len(events)))
	if len(events) > 0 {
		now := events[0].Time
		b = binary.AppendVarint(b, int64(now))
		var path, owner, group string
		for i := range events {
			e := &events[i]
			b = appendEvent(b, e, now, &path, &owner, &group)
		}
	}
	payload := b[start+recordHeader:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(payload, castagnoli))
	return b
}

func appendEvent(b []byte, e *metadata.Event, now metadata.Time, path, owner, group *string) []byte {
	flag := byte(0)
	set := func(on bool, f byte) {
		if on {
			flag |= f
		}
	}
	named := hasOwner(e)
	same := named && e.Owner == *owner && e.Group == *group
	set(e.Continued, flagContinued)
	set(e.Dir, flagDir)
	set(e.Overwrite, flagOverwrite)
	set(e.NewBlock, flagNewBlock)
	set(e.Removed, flagRemoved)
	set(same, flagSameOwner)
	set(len(e.ACL) > 0, flagACL)
	b = append(b, byte(e.Kind)|byte(e.Update)<<4, flag)
	b = binary.AppendVarint(b, int64(e.Time-now))
	b = binary.AppendUvarint(b, uint64(e.INode))
	b = binary.AppendUvarint(b, uint64(e.Parent))
	b = appendPath(b, path, e.Path)
	if named && !same {
		b = appendString(appendString(b, e.Owner), e.Group)
		*owner, *group = e.Owner, e.Group
	}
	if flag&flagACL != 0 {
		b = binary.AppendUvarint(b, uint64(len(e.ACL)))
		for _, a := range e.ACL {
			what := byte(a.Type)<<4 | byte(a.Rights)
			if a.Default {
				what |= 1 << 7
			}
			b = appendString(append(b, what), a.Name)
		}
	}
	switch e.Kind {
	case metadata.EventCreate:
		b = binary.AppendUvarint(b, uint64(e.Mode))
		if !e.Dir {
			b = binary.AppendUvarint(b, uint64(e.Replication))
			b = binary.AppendUvarint(b, uint64(e.BlockSize))
		}
		b = appendReplaced(b, e)
	case metadata.EventClose, metadata.EventTruncate:
		b = binary.AppendUvarint(b, uint64(e.Length))
	case metadata.EventRename:
		b = appendPath(b, path, e.Target)
		b = binary.AppendUvarint(b, uint64(e.TargetParent))
		b = appendReplaced(b, e)
	case metadata.EventMetadata:
		switch e.Update {
		case metadata.UpdateTimes:
			b = binary.AppendVarint(b, int64(e.MTime))
			b = binary.AppendVarint(b, int64(e.ATime))
		case metadata.UpdateReplication:
			b = binary.AppendUvarint(b, uint64(e.Replication))
		case metadata.UpdatePermission, metadata.UpdateACL:
			b = binary.AppendUvarint(b, uint64(e.Mode))
		case metadata.UpdateXAttrs:
			b = binary.AppendUvarint(b, uint64(len(e.XAttrs)))
			for _, x := range e.XAttrs {
				b = appendString(append(b, byte(x.Namespace)), x.Name)
				b = binary.AppendUvarint(b, uint64(len(x.Value)))
				b = append(b, x.Value...)
			}
		}
	}
	return b
}

// appendReplaced appends what an event has replaced, if it may have replaced something.
func appendReplaced(b []byte, e *metadata.Event) []byte {
	if e.Overwrite {
		b = binary.AppendUvarint(b, uint64(e.Replaced))
	}
	return b
}

// hasOwner reports whether an event says an owner and a group.
func hasOwner(e *metadata.Event) bool {
	return e.Kind == metadata.EventCreate || e.Kind == metadata.EventMetadata && e.Update == metadata.UpdateOwner
}

// appendPath appends how many bytes a path has in common with the one before in the record, and the rest.
func appendPath(b []byte, before *string, path string) []byte {
	n, most := 0, min(len(*before), len(path))
	for n < most && (*before)[n] == path[n] {
		n++
	}
	b = binary.AppendUvarint(b, uint64(n))
	*before = path
	return appendString(b, path[n:])
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// payloadAt is the payload of the record at the start of b, and the record's size; nil if there is no sound one.
func payloadAt(b []byte) (payload []byte, size int) {
	if len(b) < recordHeader {
		return nil, 0
	}
	n := binary.LittleEndian.Uint32(b)
	if n == 0 || n > maxRecord || uint64(len(b)-recordHeader) < uint64(n) {
		return nil, 0
	}
	payload = b[recordHeader : recordHeader+int(n)]
	if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, 0
	}
	return payload, recordHeader + int(n)
}

// reader takes values off the front of bytes; after the first that is none it gives zeros and err is set.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail() {
	r.err, r.b = errDamaged, nil
}

func (r *reader) uvarint(most uint64) uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > most {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) varint() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) bytes() []byte {
	n := r.uvarint(math.MaxInt64)
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string { return string(r.bytes()) }

func (r *reader) path(before *string) string {
	n := r.uvarint(uint64(len(*before)))
	if r.err != nil {
		return ""
	}
	path := (*before)[:n] + string(r.bytes())
	*before = path
	return path
}

// readHead reads what a payload begins with, and how many events follow.
func readHead(r *reader) (h head, events int) {
	h.index = r.uvarint(math.MaxInt64 >> 20)
	h.logTime = int64(r.uvarint(math.MaxInt64))
	events = int(r.uvarint(metadata.MaxEvents))
	if events > 0 {
		h.time = metadata.Time(r.varint())
	}
	return h, events
}

// decode calls yield with the events of a payload until it returns false.
func decode(payload []byte, yield func(metadata.Event) bool) error {
	r := &reader{b: payload}
	h, events := readHead(r)
	var path, owner, group string
	for i := range events {
		e := readEvent(r, h.time, &path, &owner, &group)
		if r.err != nil {
			return fmt.Errorf("%w: event %d of entry %d", r.err, i, h.index)
		}
		e.Position = metadata.PositionOf(h.index, i)
		if !yield(e) {
			return nil
		}
	}
	if r.err != nil || len(r.b) > 0 {
		return fmt.Errorf("%w: entry %d", errDamaged, h.index)
	}
	return nil
}

func readEvent(r *reader, now metadata.Time, path, owner, group *string) (e metadata.Event) {
	kind, flag := r.byte(), r.byte()
	e.Kind, e.Update = metadata.EventKind(kind&15), metadata.EventUpdate(kind>>4)
	if e.Kind > metadata.EventTruncate || e.Update > metadata.UpdateXAttrs || flag&^flags != 0 {
		r.fail()
		return e
	}
	e.Continued, e.Dir, e.Overwrite = flag&flagContinued != 0, flag&flagDir != 0, flag&flagOverwrite != 0
	e.NewBlock, e.Removed = flag&flagNewBlock != 0, flag&flagRemoved != 0
	e.Time = now + metadata.Time(r.varint())
	e.INode, e.Parent = metadata.INodeID(r.uvarint(math.MaxUint64)), metadata.INodeID(r.uvarint(math.MaxUint64))
	e.Path = r.path(path)
	if hasOwner(&e) {
		if flag&flagSameOwner == 0 {
			*owner, *group = r.string(), r.string()
		}
		e.Owner, e.Group = *owner, *group
	}
	if flag&flagACL != 0 {
		for range r.uvarint(uint64(len(r.b))) {
			what := r.byte()
			e.ACL = append(e.ACL, metadata.ACLEntry{
				Default: what>>7 != 0, Type: metadata.ACLType(what >> 4 & 7), Rights: metadata.Access(what & 7), Name: r.string(),
			})
		}
	}
	switch e.Kind {
	case metadata.EventCreate:
		e.Mode = metadata.Mode(r.uvarint(math.MaxUint16))
		if !e.Dir {
			e.Replication = uint16(r.uvarint(math.MaxUint16))
			e.BlockSize = int64(r.uvarint(math.MaxInt64))
		}
		e.Replaced = readReplaced(r, &e)
	case metadata.EventClose, metadata.EventTruncate:
		e.Length = int64(r.uvarint(math.MaxInt64))
	case metadata.EventRename:
		e.Target = r.path(path)
		e.TargetParent = metadata.INodeID(r.uvarint(math.MaxUint64))
		e.Replaced = readReplaced(r, &e)
	case metadata.EventMetadata:
		switch e.Update {
		case metadata.UpdateTimes:
			e.MTime, e.ATime = metadata.Time(r.varint()), metadata.Time(r.varint())
		case metadata.UpdateReplication:
			e.Replication = uint16(r.uvarint(math.MaxUint16))
		case metadata.UpdatePermission, metadata.UpdateACL:
			e.Mode = metadata.Mode(r.uvarint(math.MaxUint16))
		case metadata.UpdateXAttrs:
			for range r.uvarint(uint64(len(r.b))) {
				x := metadata.XAttr{Namespace: metadata.XAttrNamespace(r.byte()), Name: r.string()}
				if v := r.bytes(); len(v) > 0 {
					x.Value = append([]byte(nil), v...)
				}
				e.XAttrs = append(e.XAttrs, x)
			}
		}
	}
	return e
}

func readReplaced(r *reader, e *metadata.Event) metadata.INodeID {
	if !e.Overwrite {
		return 0
	}
	return metadata.INodeID(r.uvarint(math.MaxUint64))
}
