package namespace

import (
	"fmt"
	"slices"
	"unique"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// inode is a file or a directory in memory. Whoever is in memory has all ancestors there too.
type inode struct {
	// What finding n and going through it reads; together, because each part of an inode is waited for.
	id     metadata.INodeID
	parent *inode // nil for the root and the reclaim directory
	name   string
	dir    *directory // exactly one of dir and file is set
	file   *file
	extra  *extra // what few inodes have; nil for the others
	// used is 1 when somebody asked for n since the ring's hand was here. Readers set it: it is atomic but for who holds the
	// lock alone.
	used uint32
	mode metadata.Mode
	// weight is what n counts for in memory, in units of weightUnit.
	weight uint16

	// What describes it.
	owner unique.Handle[string]
	group unique.Handle[string]
	mtime metadata.Time
	atime metadata.Time

	// Of the side that writes; readers do not look.
	hash  uint64 // of the record as it is in the state's hash; 0 before the first
	epoch uint32 // the last epoch with a change
	slot  uint32 // in the ring of those in memory
	// touched: changed by the entry that is being applied.
	touched bool
	// dead: not part of the namespace any more.
	dead bool
	// saved: what the frozen epoch knows of it has been encoded.
	saved bool
	// moved: the record of class inode has to be written in this epoch.
	moved bool
	// entryStored, idStored: the checkpoint may have something under the key of the entry, of the inode.
	entryStored, idStored bool
	// openStored: it may have a record of class open.
	openStored bool
}

// directory has its entries in memory as far as they were needed. All are there when children.count() == entries.
type directory struct {
	entries  int
	children children
	// swept: in a directory that is being reclaimed, nothing is left below this name.
	swept string
}

type file struct {
	blocks      []metadata.Block
	length      int64 // sum over blocks
	blockSize   int64
	replication uint16
	// erasure is the policy of the groups among blocks; 0: there are none.
	erasure metadata.ErasurePolicyID
	// small: the first block is a body, and crc is the CRC-32C of its bytes. Few bytes are in extra.data. Others that are bodies are in extra.later.
	small bool
	crc   uint32
	open  *construction // nil when closed
}

// construction is what an open file has beyond a closed one.
type construction struct {
	holder     string
	user       string // who opened the file; empty for RecoveryHolder
	clientNode string
	clientHost string
	state      BlockState // of the last block
	recovery   metadata.Generation
	truncate   int64 // 1 + the length that the recovery is to leave of the last block; 0: no truncation
	// source is the block that the recovery makes the last one of; its ID is 0 where there is none.
	source metadata.Block
	synced bool // bytes of the last block were synced, whatever its length says
	behind behind
	// nodes are the datanodes of the last block's pipeline, where it is not complete. Nobody changes what is in it.
	nodes []string
}

// behind is what the writer of an open file names as the block behind which it wants another one.
type behind uint8

// As in records.
const (
	// behindAny: the file was made, or opened by an append that does not say.
	behindAny behind = iota
	// behindBlock: the last block, which it has been handed or has made.
	behindBlock
	// behindNone: no block, because the append that has opened the file handed out none, and the first one has not been named yet.
	behindNone
)

// completed notes that the last block is complete, or gone.
func (o *construction) completed() {
	o.state, o.recovery, o.truncate, o.source, o.synced, o.nodes = Complete, 0, 0, metadata.Block{}, false, nil
}

// BlockState is how far a block of a file is.
type BlockState uint8

// The states of a block. Only the last block of an open file is not Complete.
const (
	// Complete: length and generation are final, until an append.
	Complete BlockState = iota
	// UnderConstruction: a client writes it.
	UnderConstruction
	// UnderRecovery: its writer is gone, its replicas are being brought to one length (HDFS-265).
	UnderRecovery
)

func (s BlockState) String() string {
	switch s {
	case Complete:
		return "COMPLETE"
	case UnderConstruction:
		return "UNDER_CONSTRUCTION"
	case UnderRecovery:
		return "UNDER_RECOVERY"
	}
	return fmt.Sprintf("BlockState(%d)", uint8(s))
}

func (n *inode) isDir() bool { return n.dir != nil }

func (n *inode) complete() bool { return n.dir.children.count() == n.dir.entries }

func (f *file) last() *metadata.Block {
	if len(f.blocks) == 0 {
		return nil
	}
	return &f.blocks[len(f.blocks)-1]
}

func (f *file) penultimate() *metadata.Block {
	if len(f.blocks) < 2 {
		return nil
	}
	return &f.blocks[len(f.blocks)-2]
}

// lastState is the state of the last block; Complete when there is none.
func (f *file) lastState() BlockState {
	if f.open == nil {
		return Complete
	}
	return f.open.state
}

func (f *file) setLastLength(length int64) {
	last := f.last()
	f.length += length - last.Length
	last.Length = length
}

// path is the absolute path by the names above n.
func (n *inode) path() string {
	if n.parent == nil {
		return "/"
	}
	size := 0
	for x := n; x.parent != nil; x = x.parent {
		size += 1 + len(x.name)
	}
	b := make([]byte, size)
	for x := n; x.parent != nil; x = x.parent {
		size -= len(x.name)
		copy(b[size:], x.name)
		size--
		b[size] = '/'
	}
	return string(b)
}

// attached reports whether n hangs below the root, and not in a subtree that was deleted.
func (n *inode) attached() bool {
	if n.dead {
		return false
	}
	for n.parent != nil {
		n = n.parent
	}
	return n.id == metadata.RootID
}

func (n *inode) status() (s metadata.FileStatus) {
	n.describe(&s, n.policies())
	return s
}

// encoder turns inodes into records, with one set of buffers for all of them.
type encoder struct {
	key, value []byte
	record     logpb.INode
	dir        logpb.DirectoryState
	file       logpb.FileState
	open       logpb.Construction
	body       logpb.Body
	lease      logpb.Lease
}

// entry encodes n as the record of class entry. The slices are good until the next call.
func (e *encoder) entry(n *inode) (key, value []byte) {
	parent := metadata.INodeID(0)
	if n.parent != nil {
		parent = n.parent.id
	}
	e.key = appendEntryKey(e.key[:0], parent, n.name)

	r := &e.record
	r.Id, r.Mode = uint64(n.id), uint32(n.mode)
	r.Owner, r.Group = n.owner.Value(), n.group.Value()
	r.Mtime, r.Atime = int64(n.mtime), int64(n.atime)
	r.Directory, r.File = nil, nil
	if r.Xattrs, r.Acl, r.Quota, r.StoragePolicy, r.PlacedBy, r.Erasure, r.SnapshotPast, r.Kept, r.Claim, r.SmallFiles = nil, nil, nil, 0, 0, 0, nil, nil, nil, 0; n.extra != nil {
		n.extra.encode(r)
	}
	if n.dir != nil {
		e.dir.Entries = uint64(n.dir.entries)
		r.Directory = &e.dir
	} else {
		f := &e.file
		f.BlockSize, f.Replication, f.Erasure = n.file.blockSize, uint32(n.file.replication), uint32(n.file.erasure)
		f.BlockId, f.BlockGeneration, f.BlockLength = f.BlockId[:0], f.BlockGeneration[:0], f.BlockLength[:0]
		for _, b := range n.file.blocks {
			f.BlockId = append(f.BlockId, int64(b.ID))
			f.BlockGeneration = append(f.BlockGeneration, uint64(b.Generation))
			f.BlockLength = append(f.BlockLength, b.Length)
		}
		if f.Body, f.Data = nil, nil; n.file.small {
			e.body.Crc, f.Body, f.Data = n.file.crc, &e.body, n.inlined()
		}
		f.LaterBody, f.LaterCrc = f.LaterBody[:0], f.LaterCrc[:0]
		if n.extra != nil {
			for _, l := range n.extra.later {
				f.LaterBody, f.LaterCrc = append(f.LaterBody, l.at), append(f.LaterCrc, l.crc)
			}
		}
		f.Construction = nil
		if o := n.file.open; o != nil {
			e.open.Holder, e.open.ClientNode, e.open.ClientHost = o.holder, o.clientNode, o.clientHost
			e.open.User = o.user
			e.open.LastBlock = logpb.Construction_LastBlock(o.state)
			e.open.RecoveryId, e.open.Truncate = uint64(o.recovery), uint64(o.truncate)
			e.open.Synced, e.open.Nodes, e.open.Behind = o.synced, o.nodes, logpb.Construction_Behind(o.behind)
			if e.open.Source = nil; o.source.ID != 0 {
				e.open.Source = wireBlock(o.source)
			}
			f.Construction = &e.open
		}
		r.File = f
	}
	e.value = marshal(e.value, r)
	return e.key, e.value
}

// message is a generated record.
type message interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
}

// marshal encodes m into buf, which it grows as needed, or into bytes of its own when buf is nil.
func marshal(buf []byte, m message) []byte {
	size := m.SizeVT()
	switch {
	case buf == nil:
		buf = make([]byte, size)
	case cap(buf) < size:
		buf = make([]byte, size, size+size/2)
	}
	buf = buf[:size]
	if _, err := m.MarshalToSizedBufferVT(buf); err != nil {
		panic(fmt.Sprintf("namespace: encoding a record: %v", err)) // a buffer of the right size always suffices
	}
	return buf
}

// decodeEntry makes the inode of a record of class entry, without parent.
func decodeEntry(name string, key, value []byte) (*inode, error) {
	var r logpb.INode
	if err := r.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("record of entry %q: %w: %w", name, err, metadata.ErrCorrupt)
	}
	var n *inode
	if r.File != nil {
		n = newFile(r.File.BlockSize, uint16(r.File.Replication))
		n.file.erasure = metadata.ErasurePolicyID(r.File.Erasure)
	} else {
		n = new(inode)
	}
	n.id, n.name = metadata.INodeID(r.Id), name
	n.owner, n.group = unique.Make(r.Owner), unique.Make(r.Group)
	n.mtime, n.atime = metadata.Time(r.Mtime), metadata.Time(r.Atime)
	n.mode = metadata.Mode(r.Mode)
	n.hash, n.epoch = hashRecord(key, value), loadedEpoch
	n.entryStored, n.idStored = true, true
	var err error
	if n.extra, err = decodeExtra(&r); err != nil {
		return nil, fmt.Errorf("record of inode %d: %w: %w", r.Id, err, metadata.ErrCorrupt)
	}
	switch {
	case r.Directory != nil && r.File == nil:
		n.dir = &directory{entries: int(r.Directory.Entries)}
	case r.File != nil && r.Directory == nil:
		f := r.File
		if len(f.BlockId) != len(f.BlockGeneration) || len(f.BlockId) != len(f.BlockLength) {
			return nil, fmt.Errorf("record of inode %d: lists of blocks differ in length: %w", r.Id, metadata.ErrCorrupt)
		}
		if len(f.BlockId) > 0 {
			n.file.blocks = make([]metadata.Block, len(f.BlockId))
			for i := range f.BlockId {
				n.file.blocks[i] = metadata.Block{
					ID:         metadata.BlockID(f.BlockId[i]),
					Generation: metadata.Generation(f.BlockGeneration[i]),
					Length:     f.BlockLength[i],
				}
				n.file.length += f.BlockLength[i]
			}
		}
		if b := f.Body; b != nil {
			n.file.small, n.file.crc = true, b.Crc
		}
		if c := f.Construction; c != nil {
			n.file.open = &construction{
				holder: c.Holder, user: c.User, clientNode: c.ClientNode, clientHost: c.ClientHost,
				state: BlockState(c.LastBlock), recovery: metadata.Generation(c.RecoveryId), truncate: int64(c.Truncate),
				source: blockOf(c.Source), synced: c.Synced, nodes: c.Nodes, behind: behind(c.Behind),
			}
		}
	default:
		return nil, fmt.Errorf("record of inode %d is neither a file nor a directory: %w", r.Id, metadata.ErrCorrupt)
	}
	if what := n.implausible(&r); what != "" {
		return nil, fmt.Errorf("record of inode %d: %s: %w", r.Id, what, metadata.ErrCorrupt)
	}
	return n, nil
}

// implausible says what commands, which rely on it, never make of an inode with the record r; empty: nothing.
func (n *inode) implausible(r *logpb.INode) string {
	if r.Mode > modeMask {
		return fmt.Sprintf("mode %o", r.Mode)
	}
	if n.extra.hasACL() {
		list := n.logicalACL()
		if valid, err := validACL(list); err != nil || !slices.Equal(valid, list) || n.file != nil && len(n.extra.inherited) > 0 {
			return "an access control list that is none"
		}
	}
	if n.dir != nil {
		if n.dir.entries < 0 {
			return fmt.Sprintf("%d entries", r.Directory.Entries)
		}
		return ""
	}
	f := n.file
	if n.quota() != nil || f.blockSize < 0 || f.blockSize > maxLength || r.File.Replication < 1 || r.File.Replication > metadata.MaxReplication || len(f.blocks) > MaxBlocks {
		return fmt.Sprintf("block size %d, replication %d, %d blocks, or a quota", f.blockSize, r.File.Replication, len(f.blocks))
	}
	if _, known := metadata.ErasurePolicyOf(f.erasure); r.File.Erasure != 0 && (!known || r.File.Erasure != uint32(f.erasure)) {
		return fmt.Sprintf("erasure coding policy %d", r.File.Erasure)
	}
	for i, b := range f.blocks {
		if b.Length < 0 || b.Length > maxLength || !f.mayHave(b.ID, i) {
			return fmt.Sprintf("block %v", b)
		}
	}
	if !n.soundBody() {
		return fmt.Sprintf("a body that is none, with %d bytes in the record", len(n.inlined()))
	}
	if o := f.open; o != nil {
		if f.checkNodes(f.last(), o.nodes) != nil {
			return fmt.Sprintf("a pipeline of %d datanodes", len(o.nodes))
		}
		if state := r.File.Construction.LastBlock; state < 0 || BlockState(state) > UnderRecovery || o.state != Complete && len(f.blocks) == 0 ||
			o.truncate < 0 || o.truncate > maxLength+1 || o.truncate > 0 && o.state != UnderRecovery || o.source.ID != 0 && o.truncate == 0 {
			return fmt.Sprintf("last of %d blocks is in state %d, to be cut to %d", len(f.blocks), state, o.truncate-1)
		}
		if behind := r.File.Construction.Behind; behind < 0 || behind > logpb.Construction_NO_BLOCK {
			return fmt.Sprintf("the writer names a block in the way %d", behind)
		}
	}
	return ""
}

func wireBlock(b metadata.Block) *logpb.Block {
	return &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: b.Length}
}
