package namespace

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// load reads the marker, the two top directories, leases and retry cache. Errors: ErrCorrupt when the checkpoint cannot
// be one, others when the store fails.
func (ns *Namespace) load() error {
	ns.clear()
	ns.leftover = ns.cfg.Store.Last()
	ns.loading = always
	defer func() { ns.loading = never }()
	latest := ns.cfg.Store.View(kv.Newest)
	value, err := latest.Get(markerKey)
	latest.Close()
	if errors.Is(err, kv.ErrNotFound) {
		if ns.leftover > 0 { // of a first checkpoint that was cut
			if err := ns.cfg.Store.Replace(0, func(func(key, value []byte) error) error { return nil }); err != nil {
				return err
			}
			ns.leftover = 0
		}
		ns.openView(0, ids{}, layout{})
		ns.format()
		ns.publishMeta()
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
	ns.publishMeta()
	ns.hash, ns.published, ns.metaHash = marker.Hash, marker.Hash, ns.meta.hash()
	ns.openView(marker.Index, ns.meta.ids, layoutOf(marker))
	ns.apart, ns.decided = marker.DirectoriesApart, true
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
		ns.enter(n)
		ns.reweigh(n)
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
	if err := ns.loadCaching(); err != nil {
		return err
	}
	if err := ns.loadSnapshots(); err != nil {
		return err
	}
	return ns.loadRetries()
}

func decodeMarker(value []byte) (*logpb.Marker, error) {
	m := new(logpb.Marker)
	if err := m.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("marker: %w: %w", err, metadata.ErrCorrupt)
	}
	if m.Version != formatVersion {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the checkpoint has version %d, this program reads and writes %d: start the version that wrote it", m.Version, formatVersion)
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
	if m.LastCacheDirective < 0 {
		return nil, fmt.Errorf("marker with a damaged number of cache directives: %w", metadata.ErrCorrupt)
	}
	if first := metadata.INodeID(m.Sheets); first != sheetOf(first) {
		return nil, fmt.Errorf("marker with sheets from inode %d on: %w", first, metadata.ErrCorrupt)
	}
	if !soundForgotten(m.Forgotten) {
		return nil, fmt.Errorf("marker with damaged ids of datanodes: %w", metadata.ErrCorrupt)
	}
	return m, nil
}

// changedRecord is a record as it has become since the last complete checkpoint, nil if it is gone; not ok: it is as it was
// there. Live entries that changed are in memory and not found here.
func (ns *Namespace) changedRecord(key string) (value []byte, ok bool) {
	if key[0] == classINode {
		return nil, ns.gone.has(key) || ns.frozen != nil && ns.frozen.gone.has(key)
	}
	if key[0] == classEntry {
		return nil, ns.deleted(key)
	}
	if value, ok = ns.pending[key]; !ok && ns.frozen != nil {
		value, ok = ns.frozen.pending[key]
	}
	return value, ok
}

// getNow reads a record of the state with the lock held: of the changes since the last complete checkpoint, else of that;
// nil: there is none.
func (ns *Namespace) getNow(key string) ([]byte, error) {
	if value, ok := ns.changedRecord(key); ok {
		return value, nil
	}
	return ns.view.record(key)
}

// get is getNow for who can start over. Errors: *cold; those of the store.
func (ns *Namespace) get(key string) ([]byte, error) {
	if value, ok := ns.changedRecord(key); ok {
		return value, nil
	}
	if value, ok := ns.view.notes.get(key); ok {
		return value, nil
	}
	if !ns.inline() {
		return nil, &cold{key: key}
	}
	return ns.view.record(key)
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
	if ns.loading != never {
		ns.loaded++
	}
	ns.enter(n)
	ns.reweigh(n)
	ns.ring.vain = 0
	if n.file != nil {
		for _, b := range n.file.blocks {
			ns.blocks[b.ID] = n
		}
	}
	parent.dir.children.add(n)
	return nil
}

// lookup finds the entry name of the directory dir; nil when there is none. Errors: *cold; those of the store.
func (ns *Namespace) lookup(dir *inode, name string) (*inode, error) {
	if n := dir.dir.children.get(name); n != nil {
		n.use()
		return n, nil
	}
	if dir.complete() || len(name) > metadata.MaxNameLength {
		return nil, nil
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

// loadAll brings all entries of a directory into memory. Errors: *cold, for a small one; those of the store.
func (ns *Namespace) loadAll(dir *inode) error {
	if dir.complete() {
		return nil
	}
	if dir.dir.entries <= smallDirectory && !ns.inline() {
		return &cold{dir: dir.id}
	}
	if _, err := ns.loadSome(dir, "", math.MaxInt); err != nil {
		return err
	}
	return dir.mustBeComplete()
}

// loadSmall is loadAll for who can do without, if they take much memory. Errors: *cold.
func (ns *Namespace) loadSmall(dir *inode) error {
	if dir.complete() || dir.dir.entries > smallDirectory || ns.inline() {
		return nil
	}
	if _, heavy := ns.view.notes.get(heavyKey(dir.id)); heavy {
		return nil
	}
	return &cold{dir: dir.id, room: pageBytes}
}

func (n *inode) mustBeComplete() error {
	if !n.complete() {
		return fmt.Errorf("directory %d has %d entries, %d are there: %w", n.id, n.dir.entries, n.dir.children.count(), metadata.ErrCorrupt)
	}
	return nil
}

// loadSome brings entries of a directory from a name on into memory, so many that the checkpoint has and that have not gone
// since. Up to and including upTo, unless that is empty, all are there then. mu is held alone.
func (ns *Namespace) loadSome(dir *inode, from string, most int) (upTo string, err error) {
	var bad error
	prefix := appendID(nil, classEntry, uint64(dir.id))
	err = ns.view.eachEntry(prefix, append(appendID(nil, classEntry, uint64(dir.id)), from...), most, func(key, value []byte) bool {
		if ns.deletedKey(key) {
			return true
		}
		if most--; most < 0 {
			return false
		}
		name := string(key[len(prefix):])
		upTo = name
		if dir.dir.children.get(name) != nil {
			return true
		}
		var n *inode
		if n, bad = decodeEntry(name, key, value); bad == nil {
			bad = ns.install(dir, n)
		}
		return bad == nil
	})
	if most >= 0 {
		upTo = ""
	}
	return upTo, errors.Join(err, bad)
}

// turn calls fn for the entries of a directory with names after a name, as many as one turn allows, in their order. It
// returns the last name seen and whether there may be more. page is the reader's own, for a directory that is not in memory.
//
// Errors: *cold; those of fn.
func (ns *Namespace) turn(dir *inode, after string, page *page, fn func(n *inode) error) (last string, more bool, err error) {
	seen, want, most := 0, pageEntries, entriesPerTurn
	if ns.meta.snapshots > 0 { // and something may have been kept of each
		want, most = historiesPerTurn, historiesPerTurn
	}
	last, more, cold := ns.merge(dir, after, page, want, func(n *inode) bool {
		seen++
		err = fn(n)
		return err == nil && seen < most
	})
	if err == nil {
		err = cold
	}
	return last, more, err
}

// byID finds an inode, attached or not; nil when there is none.
func (ns *Namespace) byID(id metadata.INodeID) (*inode, error) {
	if n, ok := ns.inodes[id]; ok {
		n.use()
		return n, nil
	}
	if id == 0 || id >= ns.meta.nextINode {
		return nil, nil
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
		key := idKey(classINode, uint64(at))
		value, changed := ns.changedRecord(key)
		if !changed && at < ns.view.nextINode {
			var err error
			if value, err = ns.get(key); err != nil {
				return nil, err
			}
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
		child, err := ns.lookup(n, up[i].name)
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
func (ns *Namespace) byBlock(id metadata.BlockID) (*inode, error) {
	if n, ok := ns.blocks[id]; ok {
		return n, nil
	}
	if !ns.meta.given(id) {
		return nil, nil
	}
	key := idKey(classBlock, uint64(id))
	value, changed := ns.changedRecord(key)
	if !changed && ns.view.given(id) {
		var err error
		if value, err = ns.get(key); err != nil {
			return nil, err
		}
	}
	if value == nil {
		return nil, nil
	}
	owner, err := decodeBlockRecord(id, value)
	if err != nil {
		return nil, err
	}
	n, err := ns.byID(owner)
	if err != nil {
		return nil, err
	}
	if n == nil || n.file == nil || ns.blocks[id] != n {
		return nil, fmt.Errorf("block %d is not of inode %d: %w", id, owner, metadata.ErrCorrupt)
	}
	return n, nil
}

// read runs fn, which must not change anything, with the lock shared. Where it misses something it starts from scratch when
// that was read.
func (ns *Namespace) read(fn func() error) error {
	for range maxTries {
		ns.mu.RLock()
		broken := ns.broken
		err := broken
		if err == nil {
			err = fn()
		}
		ns.mu.RUnlock()
		if err == nil || broken != nil || isAnswer(err) {
			return err
		}
		miss, ok := errors.AsType[*cold](err)
		if !ok { // what was read makes no sense
			ns.mu.Lock()
			defer ns.mu.Unlock()
			ns.doubt(err)
			return err
		}
		if err := ns.fetch(miss); err != nil {
			return err
		}
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.broken != nil {
		return ns.broken
	}
	ns.loading = always
	err := fn()
	ns.loading = never
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

// kindOf tells by the record of an entry whether it is a file, and an open one; not ok: it makes no sense.
func kindOf(value []byte) (file, open, ok bool) {
	const inodeFile, fileConstruction = 8, 6 // logpb.INode, logpb.FileState
	content, ok := field(value, inodeFile)
	if content == nil || !ok {
		return false, false, ok
	}
	construction, ok := field(content, fileConstruction)
	return true, construction != nil, ok
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
