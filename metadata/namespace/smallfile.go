package namespace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// A small file has a body: bytes that came with the command that made it, and that the namenodes have. It is the first block of its file, with the id,
// generation and length of one, so that all that counts, lists and keeps blocks knows it; but no datanode has it, and it is in no Effects. A few bytes
// are in the record of the file, more are in Config.Bodies under the id. Neither is ever changed: what is appended goes to blocks behind the body, and a
// cut inside of it makes another one. Concat brings bodies behind the first block as well: see laterBody.

// inlineBody is how many bytes of a body are in the record of its file. It is a part of the state machine.
const inlineBody = 1 << 10

// Bodies has the bytes of small files. What was put is durable when Sync has returned; until then the log has it. metadata/smallfile is one.
type Bodies interface {
	// Put keeps a body, which nobody changes any more. One that is there already is left as it is. It waits when the disk is far behind.
	Put(id metadata.BlockID, body []byte)
	// Get is a body, which is not to be changed. Errors: fs.ErrNotExist; metadata.ErrCorrupt.
	Get(id metadata.BlockID) ([]byte, error)
	// GetMany calls each with what Get returns for every id, i being its place, in the order that is quickest.
	GetMany(ids []metadata.BlockID, each func(i int, body []byte, err error))
	// Has reports whether there is one, without looking at its bytes.
	Has(id metadata.BlockID) bool
	// Lack says that a body of a length does not come with the version that is being taken in, since its sender does not have it sound. It may be here all the same; else it has to come from
	// another member, and that is known after a restart, too. It waits as Put does.
	Lack(id metadata.BlockID, length int)
	// Removed says that a body is not in the state any more. Versions may have it: LiveBodies tells.
	Removed(id metadata.BlockID, length int)
	// Hold keeps what is there, whatever LiveBodies says, until release is called.
	Hold() (release func())
	Sync() error
}

// arrival is a body that came with the entry that is being applied.
type arrival struct {
	id   metadata.BlockID
	data []byte
}

// laterBody is a block behind the first that is a body: where, and the CRC-32C of its bytes, which are in Config.Bodies however few they are.
type laterBody struct{ at, crc uint32 }

// later finds the ith block of n among the bodies behind the first.
func (n *inode) later(i int) (at int, found bool) {
	if n.extra == nil || len(n.extra.later) == 0 {
		return 0, false
	}
	return slices.BinarySearchFunc(n.extra.later, i, func(l laterBody, i int) int { return int(l.at) - i })
}

// isBody reports whether the ith block of a file is a body.
func (n *inode) isBody(i int) bool {
	if i == 0 {
		return n.file.small
	}
	_, found := n.later(i)
	return found
}

// hasBodies reports whether any block is one.
func (n *inode) hasBodies() bool { return n.file.small || n.extra != nil && len(n.extra.later) > 0 }

// endsWithBody reports whether the last block is a body.
func (n *inode) endsWithBody() bool { return n.isBody(len(n.file.blocks) - 1) }

// unaligned reports whether bodies end in the middle of what would be blocks before the last one. Hadoop's clients take the place in a block where they go on
// appending to be that in the file, and fail where it is not: they get a new block.
func (n *inode) unaligned() bool {
	f := n.file
	return n.hasBodies() && len(f.blocks) > 1 && (f.length-f.last().Length)%f.blockSize != 0
}

// summed is of how many bytes Hadoop's clients have a checksum, unless somebody wants otherwise.
const summed = 512

// misleads reports whether a client of Hadoop's would fail in the last block of a file, which is not full. Of how long the file is it reckons how much of the last checksum's
// bytes are there, and whether the block is full. So it can go on where the block begins at a multiple of the block size, as of what it has checksums of, or of summed; but not if the file ends at
// one of the block size.
func (f *file) misleads() bool {
	begins := f.length - f.last().Length
	return begins%f.blockSize != 0 && begins%summed != 0 || f.length%f.blockSize == 0
}

// bodyPlaces are the places of the blocks that are bodies.
func (n *inode) bodyPlaces() (places []int) {
	if n.file.small {
		places = append(places, 0)
	}
	if n.extra != nil {
		for _, l := range n.extra.later {
			places = append(places, int(l.at))
		}
	}
	return places
}

// IsBody reports whether the ith block is a body.
func (f *FileInfo) IsBody(i int) bool {
	_, found := slices.BinarySearch(f.Bodies, i)
	return found
}

// hasInlined reports whether the ith block is a body with its bytes in the record of the file.
func (n *inode) hasInlined(i int) bool { return i == 0 && len(n.inlined()) > 0 }

// inlined are the bytes of n's body that are in its record; nil for none.
func (n *inode) inlined() []byte {
	if n.extra == nil {
		return nil
	}
	return n.extra.data
}

// soundBody checks what commands never make otherwise.
func (n *inode) soundBody() bool {
	f, data := n.file, n.inlined()
	if n.hasBodies() && (len(f.blocks) == 0 || f.coded() || n.endsWithBody() && f.lastState() != Complete) {
		return false
	}
	if n.extra != nil {
		before := uint32(0)
		for _, l := range n.extra.later {
			if l.at <= before || int64(l.at) >= int64(len(f.blocks)) || f.blocks[l.at].Length < 1 || f.blocks[l.at].Length > metadata.MaxBody {
				return false
			}
			before = l.at
		}
	}
	if !f.small {
		return len(data) == 0
	}
	length := f.blocks[0].Length
	return length > 0 && length <= metadata.MaxBody && (length > inlineBody && len(data) == 0 || length <= inlineBody && int64(len(data)) == length)
}

func sumOf(body []byte) uint32 { return crc32.Checksum(body, castagnoli) }

// checkBody checks a body that a command brings.
//
// Errors: ErrInvalidArgument when it is not what the command says, or no new block of a reserved range.
func (ns *Namespace) checkBody(b metadata.Block, crc uint32, data []byte) error {
	switch {
	case len(data) > metadata.MaxBody:
		return metadata.Errorf(metadata.ErrInvalidArgument, "A small file of %d bytes, %d is the limit", len(data), metadata.MaxBody)
	case b.Length != int64(len(data)) || b.ID <= 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "Block %v is not one of %d bytes: the command comes from a faulty program", b, len(data))
	case sumOf(data) != crc:
		return metadata.Errorf(metadata.ErrInvalidArgument, "The bytes of block %v are not those that were sent: CRC-32C %08x, not %08x", b, sumOf(data), crc)
	}
	b.Length = 0
	return ns.checkNewBlock(b)
}

// giveBody gives a touched file a body, which came with the command, as its next block.
func (ns *Namespace) giveBody(n *inode, b metadata.Block, crc uint32, data []byte) {
	ns.appendBlock(n, b)
	ns.meta.bodies++
	ns.meta.bodyBytes += uint64(b.Length)
	if ns.markBody(n, crc); len(n.file.blocks) == 1 && len(data) <= inlineBody {
		n.own().data = data
		return
	}
	ns.arriving = append(ns.arriving, arrival{b.ID, data})
}

// markBody notes that the last block of a touched file is a body.
func (ns *Namespace) markBody(n *inode, crc uint32) {
	last := len(n.file.blocks) - 1
	if last == 0 {
		n.file.small, n.file.crc = true, crc
		return
	}
	x := n.own()
	x.later = append(x.later, laterBody{uint32(last), crc})
	b := n.file.blocks[last]
	ns.pending[idKey(classBlock, uint64(b.ID))] = blockRecord(n.id, &BodyRef{Block: b, CRC: crc})
}

// adoptBody moves a body, whose file goes, to the end of a touched file. Few bytes, which were in the record of the one, do not go to that of the other,
// which would have those of many.
func (ns *Namespace) adoptBody(n *inode, r *BodyRef) {
	ns.adoptBlock(n, r.Block)
	ns.markBody(n, r.CRC)
	switch {
	case r.Data == nil:
	case len(n.file.blocks) == 1:
		n.own().data = r.Data
	default:
		ns.arriving = append(ns.arriving, arrival{r.Block.ID, r.Data})
	}
}

// looseBody notes that the last block of a touched file, which is a body, is one no more.
func (n *inode) looseBody() {
	if x := n.extra; x != nil && len(x.later) > 0 {
		x.later = x.later[:len(x.later)-1]
	} else if n.file.small, n.file.crc = false, 0; x != nil {
		x.data = nil
	}
	n.tidy()
}

// blockRecord is the record that leads from a block to its inode. That of a body behind the first, which r is, says all that is to be known to get it.
func blockRecord(id metadata.INodeID, r *BodyRef) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(id))
	if r != nil {
		b = binary.BigEndian.AppendUint32(b, r.CRC)
		b = binary.BigEndian.AppendUint64(b, uint64(r.Block.Generation))
		b = binary.BigEndian.AppendUint32(b, uint32(r.Block.Length))
	}
	return b
}

// The lengths of records of blocks.
const (
	blockRecordSize     = 8
	laterBodyRecordSize = blockRecordSize + 4 + 8 + 4
)

// decodeBlockRecord says which inode a block belongs to.
func decodeBlockRecord(id metadata.BlockID, value []byte) (metadata.INodeID, error) {
	if len(value) != blockRecordSize && len(value) != laterBodyRecordSize {
		return 0, corrupt("record of block %d", id)
	}
	return metadata.INodeID(binary.BigEndian.Uint64(value)), nil
}

// bodyOfRecord is the body that the record of a block is of; nil: it is of another block, or damaged.
func bodyOfRecord(id metadata.BlockID, value []byte) *BodyRef {
	if len(value) != laterBodyRecordSize {
		return nil
	}
	value = value[blockRecordSize:]
	r := &BodyRef{CRC: binary.BigEndian.Uint32(value), Block: metadata.Block{
		ID: id, Generation: metadata.Generation(binary.BigEndian.Uint64(value[4:])), Length: int64(binary.BigEndian.Uint32(value[12:])),
	}}
	if r.Block.Length < 1 || r.Block.Length > metadata.MaxBody {
		return nil
	}
	return r
}

// bodyGone counts a body that neither the state nor a snapshot has any more.
func (ns *Namespace) bodyGone(b metadata.Block, inlined bool) {
	ns.meta.bodies--
	ns.meta.bodyBytes -= uint64(b.Length)
	if !inlined {
		ns.goneBodies = append(ns.goneBodies, b)
	}
}

// handOver gives what came with an entry to Bodies, before anybody is told that it was applied, and tells what is gone. It runs on the goroutine of
// Apply, which may wait here for a disk; readers do not.
func (ns *Namespace) handOver(arriving []arrival, gone []metadata.Block) {
	if len(arriving)+len(gone) == 0 {
		return
	}
	if ns.cfg.Bodies != nil {
		for _, a := range arriving {
			ns.cfg.Bodies.Put(a.id, a.data)
		}
		for _, b := range gone {
			ns.cfg.Bodies.Removed(b.ID, int(b.Length))
		}
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.arriving, ns.goneBodies = nil, nil
}

// errBodies: Bodies could not make bodies durable. The checkpoint's own store is sound.
var errBodies = errors.New("the bodies of small files are not durable")

// syncBodies makes all bodies durable that were put. The log has them until a checkpoint is.
func (ns *Namespace) syncBodies() error {
	if ns.cfg.Bodies == nil {
		return nil
	}
	if err := ns.cfg.Bodies.Sync(); err != nil {
		return fmt.Errorf("%w: %w", errBodies, err)
	}
	return nil
}

// BodyGaps counts the bodies that versions came without from other members, which did not have them sound.
func (ns *Namespace) BodyGaps() int64 { return ns.gaps.Load() }

// Bodies counts the bodies of small files, those that only snapshots have included, and their bytes.
func (ns *Namespace) Bodies() (n, bytes uint64) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.meta.bodies, ns.meta.bodyBytes
}

// BodyRef is what the state knows of a body.
type BodyRef struct {
	Block metadata.Block
	CRC   uint32
	// Data are its bytes where the record of its file has them, nil otherwise.
	Data []byte
}

// Verify checks bytes that somebody says are the body's. Errors: metadata.ErrCorrupt.
func (r *BodyRef) Verify(data []byte) error {
	if int64(len(data)) != r.Block.Length || sumOf(data) != r.CRC {
		return fmt.Errorf("body %v is damaged: %d bytes with the CRC-32C %08x, not %08x: %w", r.Block, len(data), sumOf(data), r.CRC, metadata.ErrCorrupt)
	}
	return nil
}

// ReadBody is the body that r names, as this member has it: verified. It may read a disk.
//
// Errors: metadata.ErrReplicaNotFound when this member lacks it; metadata.ErrCorrupt when what it has is damaged.
func (ns *Namespace) ReadBody(r BodyRef) ([]byte, error) {
	data, err := ns.readBody(&r)
	switch {
	case err == nil:
		return data, r.Verify(data)
	case errors.Is(err, metadata.ErrCorrupt):
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "this namenode does not have the body %v", r.Block)
	}
	return nil, fmt.Errorf("body %v: %w", r.Block, err)
}

// GlanceBody is ReadBody of what is in memory, verified; it waits for no disk. False: ReadBody tells.
func (ns *Namespace) GlanceBody(r BodyRef) ([]byte, bool) {
	data := r.Data
	if data == nil {
		bodies, ok := ns.cfg.Bodies.(interface {
			GetNow(id metadata.BlockID) ([]byte, bool)
		})
		if !ok {
			return nil, false
		}
		if data, ok = bodies.GetNow(r.Block.ID); !ok {
			return nil, false
		}
	}
	return data, r.Verify(data) == nil
}

// ReadBodies is ReadBody of many, in the order that is quickest: each is called for every one, i being its place.
func (ns *Namespace) ReadBodies(refs []BodyRef, each func(i int, data []byte, err error)) {
	var ids []metadata.BlockID
	var at []int
	for i := range refs {
		if refs[i].Data != nil || ns.cfg.Bodies == nil {
			data, err := ns.ReadBody(refs[i])
			each(i, data, err)
			continue
		}
		ids, at = append(ids, refs[i].Block.ID), append(at, i)
	}
	if len(ids) == 0 {
		return
	}
	ns.cfg.Bodies.GetMany(ids, func(k int, data []byte, err error) {
		r := &refs[at[k]]
		if err == nil {
			err = r.Verify(data)
		} else {
			data, err = ns.ReadBody(*r) // it may be on its way; or the error in its words
		}
		each(at[k], data, err)
	})
}

func (ns *Namespace) readBody(r *BodyRef) ([]byte, error) {
	if r.Data != nil {
		return r.Data, nil
	}
	if ns.cfg.Bodies == nil {
		return nil, fs.ErrNotExist
	}
	data, err := ns.cfg.Bodies.Get(r.Block.ID)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	ns.mu.RLock()
	data, underway := ns.onItsWay(r.Block.ID)
	ns.mu.RUnlock()
	if underway {
		return data, nil
	}
	return ns.cfg.Bodies.Get(r.Block.ID) // or has come meanwhile
}

// onItsWay is a body that came with the entry that was applied last and that Bodies may not have yet. ns.mu is held.
func (ns *Namespace) onItsWay(id metadata.BlockID) ([]byte, bool) {
	for _, a := range ns.arriving {
		if a.id == id {
			return a.data, true
		}
	}
	return nil, false
}

// FindBody finds a body by its id, that of a file or of a snapshot; nil: there is none, or with another generation, of which 0 is any.
func (ns *Namespace) FindBody(id metadata.BlockID, generation metadata.Generation) (*BodyRef, error) {
	var found *BodyRef
	err := ns.read(func() error {
		found = nil
		n, err := ns.byBlock(id)
		if err != nil {
			return err
		}
		if n != nil {
			if i := slices.IndexFunc(n.file.blocks, func(b metadata.Block) bool { return b.ID == id }); i >= 0 && n.isBody(i) {
				found = n.bodyAt(i)
			}
			return nil
		}
		owner, kept, err := ns.keptBlock(id)
		if err != nil || !kept || !owner.body {
			return err
		}
		found = &BodyRef{Block: owner.Block, CRC: owner.crc}
		if owner.inlined {
			found.Data, err = ns.inlinedOf(owner.INode, id)
		}
		return err
	})
	if err != nil || found == nil || generation != 0 && found.Block.Generation != generation {
		return nil, err
	}
	return found, nil
}

// body is what n knows of the body at its beginning; nil for a file that is not small.
func (n *inode) body() *BodyRef {
	if n.file == nil || !n.file.small {
		return nil
	}
	return n.bodyAt(0)
}

// bodyAt is what n knows of its ith block, which is a body.
func (n *inode) bodyAt(i int) *BodyRef {
	r := &BodyRef{Block: n.file.blocks[i], CRC: n.file.crc}
	if i == 0 {
		r.Data = n.inlined()
	} else {
		at, _ := n.later(i)
		r.CRC = n.extra.later[at].crc
	}
	return r
}

// inlinedOf finds the bytes of a body in what was kept of its inode for snapshots.
func (ns *Namespace) inlinedOf(owner metadata.INodeID, id metadata.BlockID) (data []byte, err error) {
	prefix := stateKey(owner)
	var bad error
	err = ns.scanKept(prefix, prefix, func(_, value []byte) bool {
		var was *inode
		if was, _, bad = decodeKept("", value); bad == nil && was.file != nil && was.file.small && was.file.blocks[0].ID == id {
			data = was.inlined()
		}
		return bad == nil && data == nil
	})
	if err == nil {
		err = bad
	}
	if err == nil && data == nil {
		err = corrupt("the bytes of body %d of inode %d are in no record", id, owner)
	}
	return data, err
}

var errUnretained = errors.New("namespace: which bodies are needed is not known before raft has said which versions it refers to")

// LiveBodies says which of some bodies have to stay: those of the state, of the last checkpoint, and of versions that are kept or open, from which this
// member may start or send. An id that is not live becomes so again only by an entry of the log that brings its bytes along, which are put behind that, or
// by a version that is received, which holds Bodies until it counts.
//
// Errors: that it is not known yet; those of the store.
func (ns *Namespace) LiveBodies(ids []metadata.BlockID) ([]bool, error) {
	v := &ns.versions
	v.content.RLock()
	defer v.content.RUnlock()
	v.mu.Lock()
	known := v.retained != nil
	versions := map[uint64]bool{}
	for _, index := range v.retained {
		versions[index] = true
	}
	for index := range v.open {
		versions[index] = true
	}
	v.mu.Unlock()
	if !known {
		return nil, errUnretained
	}
	live := make([]bool, len(ids))
	for start := 0; start < len(ids); start += entriesPerTurn {
		turn := ids[start:min(len(ids), start+entriesPerTurn)]
		ns.mu.RLock()
		versions[ns.view.at] = true // what is neither in memory nor changed is in there
		for i, id := range turn {
			live[start+i] = ns.bodyChanged(id)
		}
		ns.mu.RUnlock()
	}
	delete(versions, 0)
	for index := range versions {
		view := ns.cfg.Store.View(index)
		for i, id := range ids {
			for _, class := range []byte{classBlock, classSnapshotBlock} {
				if live[i] {
					break
				}
				switch _, err := view.Get([]byte(idKey(class, uint64(id)))); {
				case err == nil:
					live[i] = true
				case !errors.Is(err, kv.ErrNotFound):
					view.Close()
					return nil, fmt.Errorf("namespace: which bodies are needed: %w", err)
				}
			}
		}
		view.Close()
	}
	return live, nil
}

// bodyChanged reports whether the state, or what is being written of it, has a block that may not be in the last checkpoint.
func (ns *Namespace) bodyChanged(id metadata.BlockID) bool {
	if ns.blocks[id] != nil {
		return true
	}
	for _, class := range []byte{classBlock, classSnapshotBlock} {
		key := idKey(class, uint64(id))
		if ns.pending[key] != nil || ns.frozen != nil && ns.frozen.pending[key] != nil {
			return true
		}
	}
	return false
}

// The policies of small files, as in records.
const (
	smallFilesOff = 1
	smallFilesOn  = 2
)

// smallFiles is what n or the nearest directory above says of small files; 0: nothing.
func (n *inode) smallFiles() uint8 {
	for ; n != nil; n = n.parent {
		if n.extra != nil && n.extra.small != 0 {
			return n.extra.small
		}
	}
	return 0
}

// setSmallFiles says whether small files may be stored below a directory: 1 + a policy.
func (ns *Namespace) setSmallFiles(t *txn, p *place, n *inode, policy uint32) {
	if n.file != nil {
		t.failf(metadata.ErrNotDirectory, "Whether small files may be stored is said of a directory, not of the file %s", p)
		return
	}
	t.result.OK = true
	if n.extra == nil && policy == 1 {
		return
	}
	ns.touch(n)
	n.own().small = uint8(policy - 1)
	n.tidy()
}

// SmallFilesAt says whether small files may be stored below a directory, or beside a file, and whether the directory itself says so; byDefault holds where
// none says anything.
//
// Errors: ErrNotExist, and those of Stat.
func (ns *Namespace) SmallFilesAt(c metadata.Caller, path string, byDefault bool) (on, own bool, err error) {
	err = ns.find(c, path, func(p *place, _ *caller) error {
		n := p.last()
		if n == nil {
			return metadata.Errorf(metadata.ErrNotExist, "File/Directory does not exist: %s", p)
		}
		on, own = n.mayStore(byDefault), n.extra != nil && n.extra.small != 0
		return nil
	})
	return on, own, err
}
