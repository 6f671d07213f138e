package namespace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// errCold tells a reader that what it needs is not in memory. It starts again with the lock held alone.
var errCold = errors.New("namespace: not in memory")

// load reads the marker, the two top directories, leases and retry cache. Errors: ErrCorrupt when the checkpoint cannot
// be one, others when the store fails.
func (ns *Namespace) load() error {
	ns.clear()
	latest := ns.cfg.Store.View(kv.Newest)
	value, err := latest.Get(markerKey)
	latest.Close()
	if errors.Is(err, kv.ErrNotFound) {
		ns.openView(0)
		ns.format()
		return nil
	}
	if err != nil {
		return err
	}
	marker, err := decodeMarker(value)
	if err != nil {
		return err
	}
	ns.applied, ns.meta = marker.Index, metaOf(marker)
	ns.safeMode.Store(ns.meta.safeMode)
	ns.publishForgotten()
	ns.hash, ns.published, ns.metaHash = marker.Hash, marker.Hash, ns.meta.hash()
	ns.openView(marker.Index)
	ns.cfg.Store.Discard(marker.Index)
	for _, top := range []struct {
		slot **inode
		name string
	}{{&ns.root, ""}, {&ns.trash, reclaimName}} {
		n, err := ns.readEntry(0, top.name)
		if err != nil {
			return err
		}
		if n == nil || !n.isDir() {
			return fmt.Errorf("checkpoint at %d has no top directory: %w", marker.Index, metadata.ErrCorrupt)
		}
		*top.slot = n
		ns.inodes[n.id] = n
	}
	if err := ns.loadLeases(); err != nil {
		return err
	}
	if err := ns.loadItems(); err != nil {
		return err
	}
	if err := ns.loadTokens(); err != nil {
		return err
	}
	return ns.loadRetries()
}

func (ns *Namespace) openView(at uint64) {
	ns.view, ns.viewAt = ns.cfg.Store.View(at), at
}

func decodeMarker(value []byte) (*logpb.Marker, error) {
	m := new(logpb.Marker)
	if err := m.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("marker: %w: %w", err, metadata.ErrCorrupt)
	}
	if m.Version != formatVersion {
		return nil, fmt.Errorf("marker of version %d, this program reads %d: %w", m.Version, formatVersion, metadata.ErrCorrupt)
	}
	if m.Index == 0 {
		return nil, fmt.Errorf("marker without an index: %w", metadata.ErrCorrupt)
	}
	if len(m.Surveys) > maxSurveys || slices.ContainsFunc(m.Surveys, func(s *logpb.Survey) bool { return s == nil || s.Id > m.LastSurvey }) {
		return nil, fmt.Errorf("marker with damaged surveys: %w", metadata.ErrCorrupt)
	}
	if !soundKeys(m.BlockKeys) {
		return nil, fmt.Errorf("marker with damaged block keys: %w", metadata.ErrCorrupt)
	}
	if !soundTokenKeys(m.TokenKeys) || m.LastToken < 0 {
		return nil, fmt.Errorf("marker with damaged keys of delegation tokens: %w", metadata.ErrCorrupt)
	}
	if !soundForgotten(m.Forgotten) {
		return nil, fmt.Errorf("marker with damaged ids of datanodes: %w", metadata.ErrCorrupt)
	}
	return m, nil
}

// get reads a record of the state: of the changes since the last complete checkpoint, else of that. Live entries that
// changed are in memory and not found here.
func (ns *Namespace) get(key string) ([]byte, error) {
	if value, ok := ns.pending[key]; ok {
		return value, nil
	}
	if ns.frozen != nil {
		if value, ok := ns.frozen.pending[key]; ok {
			return value, nil
		}
	}
	value, err := ns.view.Get([]byte(key))
	if errors.Is(err, kv.ErrNotFound) {
		return nil, nil
	}
	return value, err
}

// readEntry decodes an entry that is not in memory; nil when there is none.
func (ns *Namespace) readEntry(parent metadata.INodeID, name string) (*inode, error) {
	key := entryKey(parent, name)
	value, err := ns.get(key)
	if err != nil || value == nil {
		return nil, err
	}
	return decodeEntry(name, []byte(key), value)
}

// install puts a loaded inode into memory. An inode that is there already means that the checkpoint is no tree.
func (ns *Namespace) install(parent, n *inode) error {
	if other := ns.inodes[n.id]; other != nil {
		return fmt.Errorf("inode %d is entry %q of %d and entry %q: %w", n.id, n.name, parent.id, other.name, metadata.ErrCorrupt)
	}
	n.parent = parent
	ns.inodes[n.id] = n
	ns.loaded++
	if n.file != nil {
		for _, b := range n.file.blocks {
			ns.blocks[b.ID] = n
		}
	}
	parent.dir.children.Set(n.name, n)
	return nil
}

// lookup finds the entry name of the directory dir; nil when there is none.
func (ns *Namespace) lookup(dir *inode, name string, load bool) (*inode, error) {
	if n, ok := dir.dir.children.Get(name); ok {
		return n, nil
	}
	if dir.complete() || len(name) > metadata.MaxNameLength {
		return nil, nil
	}
	if !load {
		return nil, errCold
	}
	n, err := ns.readEntry(dir.id, name)
	if err != nil || n == nil {
		return nil, err
	}
	if err := ns.install(dir, n); err != nil {
		return nil, err
	}
	return n, nil
}

// loadEntry brings an entry of a directory into memory from its record in the last complete checkpoint, unless it is there, or
// has gone since.
func (ns *Namespace) loadEntry(dir *inode, name string, key, value []byte) error {
	if _, ok := dir.dir.children.Get(name); ok || ns.deleted(string(key)) {
		return nil
	}
	n, err := decodeEntry(name, key, value)
	if err != nil {
		return err
	}
	return ns.install(dir, n)
}

// loadAll brings all entries of a directory into memory.
func (ns *Namespace) loadAll(dir *inode, load bool) error {
	if dir.complete() {
		return nil
	}
	if !load {
		return errCold
	}
	var bad error
	prefix := appendID(nil, classEntry, uint64(dir.id))
	err := ns.view.Scan(prefix, nil, func(key, value []byte) bool {
		bad = ns.loadEntry(dir, string(key[len(prefix):]), key, value)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	if !dir.complete() {
		return fmt.Errorf("directory %d has %d entries, %d are there: %w",
			dir.id, dir.dir.entries, dir.dir.children.Len(), metadata.ErrCorrupt)
	}
	return nil
}

// coldSlice is how many records of a directory are read while everybody waits: about a millisecond's work. smallDirectory
// is how many entries a directory may have to be read at once.
const (
	coldSlice      = 256
	smallDirectory = 1024
)

// loadSome brings entries of a directory with names after a name into memory. Up to and including upTo all are there then;
// end: all are. It looks at coldSlice records of the checkpoint, or at all of a small directory. The lock is held alone.
func (ns *Namespace) loadSome(dir *inode, after string) (upTo string, end bool, err error) {
	if dir.dir.entries <= smallDirectory {
		return "", true, ns.loadAll(dir, true)
	}
	var bad error
	prefix := appendID(nil, classEntry, uint64(dir.id))
	seen := 0
	end = true
	err = ns.view.Scan(prefix, append(appendID(nil, classEntry, uint64(dir.id)), after...), func(key, value []byte) bool {
		name := string(key[len(prefix):])
		if name == after {
			return true
		}
		if seen == coldSlice {
			end = false
			return false
		}
		seen, upTo = seen+1, name
		bad = ns.loadEntry(dir, name, key, value)
		return bad == nil
	})
	return upTo, end, errors.Join(err, bad)
}

// turn calls fn for the entries of a directory with names after a name, as many as one turn allows, in their order. It
// returns the last name seen and whether there may be more.
func (ns *Namespace) turn(dir *inode, after string, load bool, fn func(n *inode) error) (last string, more bool, err error) {
	upTo, end := "", true
	if !dir.complete() {
		if !load {
			return after, true, errCold
		}
		if upTo, end, err = ns.loadSome(dir, after); err != nil {
			return after, true, err
		}
	}
	last = after
	seen := 0
	dir.dir.children.Ascend(after, func(name string, n *inode) bool {
		if name == after {
			return true
		}
		if !end && name > upTo {
			return false
		}
		if seen == entriesPerTurn {
			more = true
			return false
		}
		seen, last = seen+1, name
		err = fn(n)
		return err == nil
	})
	if !more && !end {
		return upTo, true, err
	}
	return last, more, err
}

// deleted reports whether the last complete checkpoint's record of a key is gone since.
func (ns *Namespace) deleted(key string) bool {
	if value, ok := ns.pending[key]; ok {
		return value == nil
	}
	if ns.frozen != nil {
		if value, ok := ns.frozen.pending[key]; ok {
			return value == nil
		}
	}
	return false
}

// byID finds an inode, attached or not; nil when there is none.
func (ns *Namespace) byID(id metadata.INodeID, load bool) (*inode, error) {
	if n, ok := ns.inodes[id]; ok {
		return n, nil
	}
	if id == 0 || id >= ns.meta.nextINode {
		return nil, nil
	}
	if !load {
		return nil, errCold
	}
	// The record names the parent, whose record names its own: up to something in memory, then down again.
	type step struct {
		id   metadata.INodeID
		name string
	}
	var up []step
	seen := map[metadata.INodeID]bool{} // a tree may be deeper than any path that a client can name: renames go on below
	at := id
	for ns.inodes[at] == nil {
		value, err := ns.get(idKey(classINode, uint64(at)))
		if err != nil {
			return nil, err
		}
		if value == nil {
			if at == id {
				return nil, nil
			}
			return nil, fmt.Errorf("inode %d, an ancestor of %d, has no record: %w", at, id, metadata.ErrCorrupt)
		}
		parent, name, ok := splitEntry(value)
		if !ok || seen[at] {
			return nil, fmt.Errorf("record of inode %d does not lead to the root: %w", id, metadata.ErrCorrupt)
		}
		seen[at] = true
		up = append(up, step{at, name})
		at = parent
	}
	n := ns.inodes[at]
	for i := len(up) - 1; i >= 0; i-- {
		if !n.isDir() {
			return nil, fmt.Errorf("inode %d is the parent of %d and no directory: %w", n.id, up[i].id, metadata.ErrCorrupt)
		}
		child, err := ns.lookup(n, up[i].name, true)
		if err != nil {
			return nil, err
		}
		if child == nil || child.id != up[i].id {
			return nil, fmt.Errorf("inode %d is not the entry %q of %d: %w", up[i].id, up[i].name, n.id, metadata.ErrCorrupt)
		}
		n = child
	}
	return n, nil
}

// byBlock finds the file that a block belongs to; nil when there is none.
func (ns *Namespace) byBlock(id metadata.BlockID, load bool) (*inode, error) {
	if n, ok := ns.blocks[id]; ok {
		return n, nil
	}
	if id < metadata.FirstBlockID || id >= ns.meta.nextBlock {
		return nil, nil
	}
	if !load {
		return nil, errCold
	}
	value, err := ns.get(idKey(classBlock, uint64(id)))
	if err != nil || value == nil {
		return nil, err
	}
	if len(value) != 8 {
		return nil, fmt.Errorf("record of block %d: %w", id, metadata.ErrCorrupt)
	}
	owner := metadata.INodeID(binary.BigEndian.Uint64(value))
	n, err := ns.byID(owner, true)
	if err != nil {
		return nil, err
	}
	if n == nil || n.file == nil || ns.blocks[id] != n {
		return nil, fmt.Errorf("block %d is not of inode %d: %w", id, owner, metadata.ErrCorrupt)
	}
	return n, nil
}

// read runs fn, which must not change anything but load: with the lock shared and everything needed in memory, or else
// alone. fn may run twice and starts from scratch then.
func (ns *Namespace) read(fn func(load bool) error) error {
	ns.mu.RLock()
	err := ns.broken
	if err == nil {
		err = fn(false)
	}
	ns.mu.RUnlock()
	if !errors.Is(err, errCold) {
		return err
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.broken != nil {
		return ns.broken
	}
	ns.loaded = 0
	err = fn(true)
	ns.loadedMost = max(ns.loadedMost, ns.loaded)
	if err != nil && !isAnswer(err) {
		ns.doubt(err)
	}
	return err
}

// isAnswer tells an answer of the file system from a failure of the checkpoint.
func isAnswer(err error) bool {
	_, ok := errors.AsType[*metadata.Error](err)
	return ok
}

// doubt makes the next start build the checkpoint anew, when what was read from it is damaged.
func (ns *Namespace) doubt(err error) {
	ns.broken = fmt.Errorf("namespace: reading the checkpoint at %d: %w", ns.applied, err)
	if cerr := ns.cfg.Store.Condemn(); cerr != nil {
		ns.broken = errors.Join(ns.broken, cerr)
	}
}

// mayHaveBlocks tells by the record of an entry whether it is a file with blocks, without decoding it: at a start all
// entries are asked, and most of a large namespace may be something else. A record that makes no sense may.
func mayHaveBlocks(value []byte) bool {
	const inodeFile, fileBlockID = 8, 3 // logpb.INode, logpb.FileState
	file, ok := field(value, inodeFile)
	if !ok || file == nil {
		return !ok
	}
	blocks, ok := field(file, fileBlockID)
	return blocks != nil || !ok
}

// field finds a length-delimited field of a message; nil when it is absent, not ok when the message makes no sense.
func field(message []byte, number protowire.Number) (content []byte, ok bool) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil, false
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return nil, false
		}
		if n == number {
			if kind != protowire.BytesType {
				return nil, false
			}
			content, _ = protowire.ConsumeBytes(message)
			return content, true
		}
		message = message[size:]
	}
	return nil, true
}
