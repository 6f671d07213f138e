package namespace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/outline"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// shortForms are those of what commands name.
var shortForms = outline.Writer{
	(*logpb.Target)(nil).ProtoReflect().Descriptor().FullName(): func(m protoreflect.Message) string {
		t, _ := m.Interface().(*logpb.Target)
		if t.GetBase() == 0 {
			return outline.Text("/" + t.GetPath())
		}
		return outline.Text(fmt.Sprintf("inode:%d/%s", t.GetBase(), t.GetPath()))
	},
	(*logpb.Block)(nil).ProtoReflect().Descriptor().FullName(): func(m protoreflect.Message) string {
		b, _ := m.Interface().(*logpb.Block)
		return fmt.Sprintf("blk_%d_%d:%d", b.GetId(), b.GetGeneration(), b.GetLength())
	},
}

// Describe says what a command of the log is.
//
// Errors: release.ErrOlder for one that has something in it which this program does not know; metadata.ErrCorrupt.
func Describe(command []byte) (outline.Command, error) {
	cmd := new(logpb.Command)
	if err := cmd.UnmarshalVT(command); err != nil {
		return outline.Command{}, metadata.Errorf(metadata.ErrCorrupt, "no command of a namespace: %v", err)
	}
	if err := checkShape(cmd); errors.Is(err, release.ErrOlder) {
		return outline.Command{}, err
	}
	c, ok := shortForms.Of(cmd, "op")
	if !ok {
		return c, metadata.Errorf(metadata.ErrCorrupt, "no command of a namespace: it has no operation")
	}
	c.Caller = cmd.GetCaller().GetUser()
	if c.Caller != "" {
		c.Caller = outline.Text(c.Caller)
	}
	return c, nil
}

// classes are those of records, in the order of their keys.
var classes = []struct {
	class byte
	name  string
}{
	{classSnapshotBlock, "blocks that only snapshots have"},
	{classDirectory, "directories"},
	{classSnapshotEntry, "entries as snapshots have them"},
	{classBlock, "blocks"},
	{classCache, "cache directives"},
	{classEntry, "entries"},
	{classINode, "ways to inodes"},
	{classItem, "items of the register"},
	{classLease, "leases"},
	{classSnapshot, "snapshots"},
	{classOpen, "open files"},
	{classPool, "cache pools"},
	{classRetry, "answers"},
	{classSnapshotINode, "inodes as snapshots have them"},
	{classToken, "delegation tokens"},
	{classSnapshotIndex, "what was kept for a snapshot"},
	{classSnapshottable, "snapshottable directories"},
}

// Census is what a whole state of a namespace has in it.
type Census struct {
	Index uint64 `json:"index"`
	// Hash is that of the state, as hexadecimal digits.
	Hash        string `json:"hash"`
	Version     uint32 `json:"version"`
	Cluster     string `json:"cluster"`
	Files       uint64 `json:"files"`
	Directories uint64 `json:"directories"`
	Blocks      uint64 `json:"blocks"`
	// Bodies of small files, those of snapshots included, and their bytes; BodiesMissing are those that a copy should have and does not.
	Bodies        uint64          `json:"bodies,omitempty"`
	BodyBytes     uint64          `json:"bodyBytes,omitempty"`
	BodiesMissing uint64          `json:"bodiesMissing,omitempty"`
	Classes       []outline.Class `json:"classes"`
}

// counting is a verifier that counts bytes.
type counting struct {
	verifier
	sizes [256]uint64
}

func (c *counting) census(version uint32) (Census, error) {
	m, err := decodeMarker(c.marker)
	if err != nil {
		return Census{}, err
	}
	out := Census{
		Index: m.Index, Hash: fmt.Sprintf("%016x", m.Hash), Version: version, Cluster: m.ClusterId, Files: m.Files, Directories: m.Directories, Blocks: m.Blocks,
		Bodies: m.Bodies, BodyBytes: m.BodyBytes, BodiesMissing: c.gaps,
	}
	for _, k := range classes {
		out.Classes = append(out.Classes, outline.Class{Key: string(k.class), Name: k.name, Records: c.classes[k.class], Bytes: c.sizes[k.class]})
	}
	return out, nil
}

// CopyMagic is what a copy of a namespace begins with.
const CopyMagic = streamMagic

// InspectCopy reads a copy of a namespace to its end and checks all of it.
//
// Errors: metadata.ErrCorrupt; metadata.ErrUnsupported for one of another version.
func InspectCopy(r io.Reader) (Census, error) {
	index, version, err := readHeader(r)
	if err != nil {
		return Census{}, err
	}
	c := counting{verifier: verifier{index: index}}
	for buf := []byte(nil); ; {
		kind, payload, err := readFrame(r, &buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = c.frame(kind, payload, func(key, value []byte) error {
				c.sizes[key[0]] += uint64(len(key) + len(value))
				return nil
			})
		}
		if err != nil {
			return Census{}, err
		}
	}
	if c.marker == nil {
		return Census{}, corrupt("the copy ends early, behind record %d", c.count)
	}
	return c.census(uint32(version))
}

// Record is one of a checkpoint for people: its class, its key and its value in words.
type Record struct {
	Class string `json:"class"`
	Key   string `json:"key"`
	Value string `json:"value"`
}

// InspectCheckpoint reads the newest complete checkpoint of a store and checks all of it. visit is called for each record, which is good until it
// returns, until it returns an error.
//
// Errors: that the store has no checkpoint; metadata.ErrCorrupt; metadata.ErrUnsupported for one of another version.
func InspectCheckpoint(store kv.Store, visit func(key, value []byte) error) (Census, error) {
	newest := store.View(kv.Newest)
	m, value, err := markerOf(newest)
	newest.Close()
	if err == nil && m == nil {
		err = errors.New("there is no complete checkpoint in it")
	}
	if err != nil {
		return Census{}, err
	}
	view := store.View(m.Index)
	defer view.Close()
	c := counting{verifier: verifier{index: m.Index}}
	scanned := view.Scan(nil, nil, func(key, value []byte) bool {
		if key[0] == classMarker {
			return true
		}
		if err = c.record(key, value); err != nil {
			return false
		}
		c.sizes[key[0]] += uint64(len(key) + len(value))
		err = visit(key, value)
		return err == nil
	})
	if err = errors.Join(scanned, err); err == nil {
		err = c.end(value, func(_, _ []byte) error { return nil })
	}
	if err != nil {
		return Census{}, err
	}
	return c.census(m.Version)
}

// ClassKnown reports whether there are records of a class.
func ClassKnown(class string) bool { return len(class) == 1 && classKnown(class[0]) }

// describeWays says what a record of class inode is.
func describeWays(key, value []byte, place func([]byte) string) (inode, where string) {
	var ids []metadata.INodeID
	sheet, err := eachWay(key, value, func(id metadata.INodeID) { ids = append(ids, id) })
	if len(ids) > 0 {
		inode = strconv.FormatUint(uint64(ids[0]), 10)
	} else {
		inode = outline.Text(string(key[1:]))
	}
	switch {
	case err != nil:
		return inode, "cannot be read: " + outline.Text(err.Error())
	case !sheet:
		return inode, place(value)
	}
	ways, _ := readWays(nil, sheetOf(ids[0]), value)
	var b strings.Builder
	for i, p := range ways {
		if i > 0 {
			fmt.Fprintf(&b, ", %d ", p.id)
		}
		b.WriteString(place(p.where))
	}
	return inode, b.String()
}

// DescribeRecord says what a record of a known class is.
func DescribeRecord(key, value []byte) Record {
	r := Record{Class: string(key[:1])}
	place := func(b []byte) string {
		parent, name, ok := splitEntry(b)
		if !ok {
			return outline.Text(string(b))
		}
		return fmt.Sprintf("%d/%s", parent, outline.Text(name))
	}
	number := func(b []byte) string {
		if len(b) != 8 {
			return outline.Text(string(b))
		}
		return strconv.FormatUint(binary.BigEndian.Uint64(b), 10)
	}
	// kept is the key, without its class, of what a snapshot has: an inode, or a name in a directory.
	kept := func(class byte, b []byte) string {
		if class == classSnapshotEntry {
			return place(bytes.TrimSuffix(b, []byte{0}))
		}
		return number(b)
	}
	var m proto.Message
	switch rest := key[1:]; key[0] {
	case classEntry, classDirectory:
		r.Key, m = place(rest), new(logpb.INode)
	case classINode:
		r.Key, r.Value = describeWays(key, value, place)
	case classBlock:
		r.Key, r.Value = number(rest), number(value[:min(len(value), 8)])
	case classOpen:
		r.Key, r.Value = number(rest), outline.Text(string(value))
	case classLease:
		r.Key, m = outline.Text(string(rest)), new(logpb.Lease)
	case classItem:
		r.Key, m = outline.Text(string(rest)), new(logpb.Item)
	case classPool:
		r.Key, m = outline.Text(string(rest)), new(logpb.CachePool)
	case classCache:
		r.Key, m = number(rest), new(logpb.CacheDirective)
	case classToken:
		r.Key, m = number(rest), new(logpb.DelegationToken)
	case classRetry:
		r.Key, r.Value = number(rest), fmt.Sprintf("(%d bytes)", len(value))
	case classSnapshottable:
		r.Key, m = number(rest), new(logpb.Snapshottable)
	case classSnapshotBlock:
		r.Key, m = number(rest), new(logpb.SnapshotBlock)
	case classSnapshot, classSnapshotINode, classSnapshotEntry, classSnapshotIndex:
		if len(rest) < 4 {
			r.Key = outline.Text(string(rest))
			break
		}
		if key[0] == classSnapshotIndex {
			s, of := binary.BigEndian.Uint32(rest), rest[4:]
			if r.Key = fmt.Sprint(s); len(of) > 0 {
				r.Key += fmt.Sprintf(" %c %s", of[0], kept(of[0], of[1:]))
			}
			break
		}
		prefix, s := splitKept(string(rest))
		if r.Key = fmt.Sprint(s); key[0] != classSnapshot {
			r.Key = fmt.Sprintf("%s snapshot %d", kept(key[0], []byte(prefix)), s)
		}
		m = map[byte]proto.Message{classSnapshot: new(logpb.Snapshot), classSnapshotINode: new(logpb.SnapshotINode), classSnapshotEntry: new(logpb.SnapshotEntry)}[key[0]]
	}
	if m != nil {
		if err := proto.Unmarshal(value, m); err != nil {
			r.Value = "cannot be read: " + outline.Text(err.Error())
		} else {
			r.Value = shortForms.Record(m)
		}
	}
	if was, ok := m.(*logpb.SnapshotINode); ok {
		n := new(logpb.INode)
		if err := proto.Unmarshal(was.Inode, n); err != nil {
			r.Value += " cannot be read: " + outline.Text(err.Error())
		} else {
			r.Value += " " + shortForms.Record(n)
		}
	}
	return r
}
