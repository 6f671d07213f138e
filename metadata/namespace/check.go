package namespace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// maxFindings bounds what Check reports.
const maxFindings = 100

// Check looks at everything, in memory or not, and reports what does not fit together: nil for a sound namespace. It is
// fsck for the namespace; commands wait while it runs, and it needs memory for every inode and block.
func (ns *Namespace) Check() []error {
	ns.mu.RLock()
	for ns.applying { // between two turns of a large entry
		ns.mu.RUnlock()
		runtime.Gosched()
		ns.mu.RLock()
	}
	defer ns.mu.RUnlock()
	c := &checker{ns: ns, inodes: map[metadata.INodeID]*seen{}, blocks: map[metadata.BlockID]metadata.INodeID{}}
	if ns.broken != nil {
		return []error{ns.broken}
	}
	c.hash = ns.meta.hash()
	if err := ns.eachINode(c.visit); err != nil {
		c.report("reading the checkpoint: %w", err)
	}
	c.tree()
	c.open()
	c.retries()
	c.register()
	c.tokens()
	c.caching()
	c.snapshots()
	c.quotaUsage()
	c.derived()
	c.totals()
	return c.findings
}

// seen is what the checker remembers of an inode.
type seen struct {
	parent   metadata.INodeID
	name     string
	dir      bool
	entries  int // as the record says
	children int // as counted
	holder   string
	open     bool
	visiting bool
	rooted   bool
	usage    usage  // by itself, with what only snapshots have of a file, or were taken of a directory
	quota    *quota // nil: none
	kept     total
	claim    claim
}

type checker struct {
	ns     *Namespace
	inodes map[metadata.INodeID]*seen
	blocks map[metadata.BlockID]metadata.INodeID
	hash   uint64
	enc    encoder
	files  uint64
	dirs   uint64
	quotas uint64
	// typeQuotas are those that limit types of volumes.
	typeQuotas uint64
	kept       uint64 // blocks that only snapshots have
	bodies     uint64
	bytes      uint64 // of bodies
	findings   []error
}

func (c *checker) report(format string, args ...any) {
	if len(c.findings) < maxFindings {
		c.findings = append(c.findings, fmt.Errorf(format, args...))
	}
}

// visit looks at one inode by itself.
func (c *checker) visit(n *inode, parent metadata.INodeID) bool {
	ns := c.ns
	if c.inodes[n.id] != nil {
		c.report("inode %d is there twice: below %d as %q and below %d as %q",
			n.id, c.inodes[n.id].parent, c.inodes[n.id].name, parent, n.name)
		return true
	}
	s := &seen{parent: parent, name: n.name, dir: n.isDir()}
	c.inodes[n.id] = s
	if n.id == 0 || n.id >= ns.meta.nextINode {
		c.report("inode %d was never given out", n.id)
	}
	if n.mode > modeMask {
		c.report("inode %d has mode %o", n.id, uint16(n.mode))
	}
	c.visitExtra(n, s)
	c.enc.entry(n)
	// entry takes the parent's id from n, which an inode from the checkpoint does not have.
	key := appendEntryKey(nil, parent, n.name)
	h := hashRecord(key, c.enc.value)
	c.hash += h
	if resident := ns.inodes[n.id]; resident != nil {
		if n.dead {
			c.report("inode %d is dead and can be found", n.id)
		}
		if n.hash != h {
			c.report("inode %d changed without being announced", n.id)
		}
		if p := n.parent; p != nil {
			if p.dir == nil {
				c.report("inode %d is below inode %d, which is a file", n.id, p.id)
			} else if p.dir.children.get(n.name) != n {
				c.report("inode %d is not the entry %q of its parent %d", n.id, n.name, p.id)
			}
		}
	} else if value, err := ns.getNow(idKey(classINode, uint64(n.id))); err != nil || !bytes.Equal(value, key[1:]) {
		c.report("record of inode %d leads to %q, it is entry %q of %d (%v)", n.id, value, n.name, parent, err)
	}
	if n.isDir() {
		s.entries = n.dir.entries
		if n.id != reclaimID {
			c.dirs++
		}
		return true
	}
	c.files++
	c.visitFile(n, s)
	return true
}

func (c *checker) visitFile(n *inode, s *seen) {
	f := n.file
	if f.replication < 1 || f.replication > metadata.MaxReplication {
		c.report("inode %d has replication %d", n.id, f.replication)
	}
	var length int64
	for i, b := range f.blocks {
		if !f.mayHave(b.ID, i) {
			c.report("block %d of inode %d, whose policy is %d, is %v", i, n.id, f.erasure, b)
		}
		length += b.Length
		if b.Length < 0 {
			c.report("block %v of inode %d has a negative length", b, n.id)
		}
		if !c.ns.meta.given(b.ID) || b.Generation >= c.ns.meta.nextGeneration {
			c.report("block %v of inode %d is not of a reserved range", b, n.id)
		}
		if other, ok := c.blocks[b.ID]; ok {
			c.report("block %v belongs to inode %d and to inode %d", b, other, n.id)
		}
		c.blocks[b.ID] = n.id
	}
	for i := range f.blocks {
		if n.isBody(i) {
			c.body(n.id, n.bodyAt(i))
		}
	}
	if !n.soundBody() {
		c.report("inode %d has a body that is none: %v, %d bytes in the record", n.id, f.blocks, len(n.inlined()))
	}
	if length != f.length {
		c.report("inode %d has length %d, its blocks %d", n.id, f.length, length)
	}
	if f.open == nil {
		return
	}
	s.open, s.holder = true, f.open.holder
	if f.open.state != Complete && len(f.blocks) == 0 {
		c.report("inode %d has no block that could be %v", n.id, f.open.state)
	}
	if f.open.state == UnderRecovery && (f.open.recovery <= f.last().Generation || f.open.holder != RecoveryHolder) {
		c.report("inode %d is under recovery %d by %s, its block is %v", n.id, f.open.recovery, f.open.holder, *f.last())
	}
}

// body counts a body, and looks whether this member has it.
func (c *checker) body(owner metadata.INodeID, r *BodyRef) {
	c.bodies++
	c.bytes += uint64(r.Block.Length)
	if r.Data != nil {
		if err := r.Verify(r.Data); err != nil {
			c.report("inode %d: %w", owner, err)
		}
		return
	}
	if bodies := c.ns.cfg.Bodies; bodies != nil && !bodies.Has(r.Block.ID) {
		if _, underway := c.ns.onItsWay(r.Block.ID); underway {
			return
		}
		c.report("body %v of inode %d is missing on this member", r.Block, owner)
	}
}

// tree looks at how inodes hang together.
func (c *checker) tree() {
	ids := slices.Sorted(maps.Keys(c.inodes))
	for _, id := range ids {
		s := c.inodes[id]
		if id == metadata.RootID || id == reclaimID {
			if s.parent != 0 {
				c.report("top directory %d is below %d", id, s.parent)
			}
			s.rooted = true
			continue
		}
		p := c.inodes[s.parent]
		if p == nil {
			c.report("inode %d, %q, is below %d, which is missing", id, s.name, s.parent)
			continue
		}
		if !p.dir {
			c.report("inode %d, %q, is below %d, which is a file", id, s.name, s.parent)
			continue
		}
		p.children++
		if s.name == "" || len(s.name) > metadata.MaxNameLength || bytes.IndexByte([]byte(s.name), '/') >= 0 {
			c.report("inode %d has the name %q", id, s.name)
		}
	}
	for _, id := range ids {
		s := c.inodes[id]
		if s.dir && s.entries != s.children {
			c.report("directory %d says it has %d entries, and has %d", id, s.entries, s.children)
		}
		if !c.climb(id) {
			c.report("inode %d, %q, is below itself", id, s.name)
		}
	}
}

// climb reports whether the way up from id ends.
func (c *checker) climb(id metadata.INodeID) bool {
	var way []*seen
	ok := true
	for s := c.inodes[id]; s != nil && !s.rooted; s = c.inodes[s.parent] {
		if s.visiting {
			ok = false
			break
		}
		s.visiting = true
		way = append(way, s)
	}
	for _, s := range way {
		s.visiting = false
		s.rooted = true // also of a cycle, which is reported once
	}
	return ok
}

// open compares open files and leases.
func (c *checker) open() {
	held := 0
	for _, l := range c.ns.leases {
		c.hash += l.hash
		value := marshal(nil, &logpb.Lease{Renewed: int64(l.renewed), ClientNode: l.clientNode})
		if hashRecord([]byte(leaseKey(l.holder)), value) != l.hash {
			c.report("lease of %s changed without being announced", l.holder)
		}
		if len(l.files) == 0 {
			c.report("lease of %s is for no file", l.holder)
		}
		for id := range l.files {
			held++
			if s := c.inodes[id]; s == nil || !s.open || s.holder != l.holder {
				c.report("lease of %s is for inode %d, which it does not have open", l.holder, id)
			}
		}
	}
	opened := 0
	for id, s := range c.inodes {
		if !s.open {
			continue
		}
		opened++
		l := c.ns.leases[s.holder]
		if l == nil {
			c.report("inode %d is open by %s, which has no lease", id, s.holder)
			continue
		}
		if _, ok := l.files[id]; !ok {
			c.report("inode %d is open by %s, whose lease does not have it", id, s.holder)
		}
	}
	if held != opened || held != c.ns.openFiles {
		c.report("%d files are open, leases are for %d, %d are counted", opened, held, c.ns.openFiles)
	}
}

func (c *checker) register() {
	bytes := 0
	for name, it := range c.ns.items {
		key := itemKey(name)
		value, err := c.ns.getNow(key)
		if err != nil {
			c.report("item %s of the register: %w", name, err)
			continue
		}
		var r logpb.Item
		if err := r.UnmarshalVT(value); err != nil || r.Version != it.version || !slices.Equal(r.Value, it.value) || r.Version > c.ns.meta.itemVersion {
			c.report("item %s of the register is not that of its record (%v)", name, err)
		}
		h := hashRecord([]byte(key), value)
		if h != it.hash {
			c.report("item %s of the register changed", name)
		}
		c.hash += h
		bytes += itemSize(name, it.value)
	}
	if bytes != c.ns.itemBytes {
		c.report("the register has %d bytes, %d are counted", bytes, c.ns.itemBytes)
	}
}

func (c *checker) tokens() {
	held := map[string]int{}
	for sequence, tok := range c.ns.tokens.all {
		key := tokenKey(sequence)
		value, err := c.ns.getNow(key)
		if err != nil {
			c.report("delegation token %d: %w", sequence, err)
			continue
		}
		if string(value) != string(tok.encode()) || tok.Sequence != sequence {
			c.report("delegation token %d is not that of its record", sequence)
		}
		h := hashRecord([]byte(key), value)
		if h != tok.hash {
			c.report("delegation token %d changed", sequence)
		}
		c.hash += h
		held[tok.holder()]++
	}
	if !maps.Equal(held, c.ns.tokens.held) {
		c.report("users have %v delegation tokens, %v are counted", held, c.ns.tokens.held)
	}
}

func (c *checker) retries() {
	r := c.ns.retries
	live := map[uint32]uint32{}
	answers := 0
	for i, one := range r.chunks {
		if one.sequence != r.chunks[0].sequence+uint64(i) || one.sequence >= c.ns.meta.nextRetry {
			c.report("answers %d are not where they should be", one.sequence)
		}
		for j, client := range one.client[:one.n] {
			live[client]++
			answers++
			if _, ok := r.find(retryKey{r.table[client].key, one.call[j]}); !ok {
				c.report("answer to %x/%d is not found", r.table[client].key, one.call[j])
			}
		}
		key := idKey(classRetry, one.sequence)
		value, err := c.ns.getNow(key)
		if err != nil {
			c.report("answers %d: %w", one.sequence, err)
			continue
		}
		again := newRetryCache()
		copied := &chunk{sequence: one.sequence}
		again.chunks = append(again.chunks, copied)
		if err := again.decode(copied, value, true); err != nil || copied.n != one.n || copied.what != one.what || copied.call != one.call || copied.last != one.last {
			c.report("answers %d are not those of their record (%v)", one.sequence, err)
		}
		h := hashRecord([]byte(key), value)
		if h != one.hash {
			c.report("answers %d changed", one.sequence)
		}
		c.hash += h
	}
	if answers != r.answers || len(live) != len(r.clients) {
		c.report("%d answers to %d clients are kept, %d to %d counted", answers, len(live), r.answers, len(r.clients))
	}
	for client, n := range live {
		if r.table[client].live != n {
			c.report("client %x has %d answers, %d are counted", r.table[client].key, n, r.table[client].live)
		}
	}
}

// derived looks for records that lead to something, and do not have to be there.
func (c *checker) derived() {
	ns := c.ns
	for id, owner := range c.blocks {
		if n := ns.blocks[id]; n != nil {
			if n.id != owner {
				c.report("block %d leads to inode %d, it belongs to %d", id, n.id, owner)
			}
			continue
		}
		value, err := ns.getNow(idKey(classBlock, uint64(id)))
		to, bad := decodeBlockRecord(id, value)
		if err != nil || bad != nil || to != owner {
			c.report("record of block %d leads to %x, it belongs to inode %d (%v)", id, value, owner, err)
		}
	}
	for id, n := range ns.blocks {
		if owner, ok := c.blocks[id]; !ok || owner != n.id {
			c.report("block %d leads to inode %d, which does not have it", id, n.id)
		}
	}
	changing := map[uint64]bool{} // inodes whose records a running checkpoint puts right
	if ns.frozen != nil {
		for _, list := range ns.frozen.dirty {
			for _, n := range list {
				changing[uint64(n.id)] = true
			}
		}
	}
	err := ns.view.Scan([]byte{classINode}, nil, func(key, value []byte) bool {
		sheet, err := eachWay(key, value, func(id metadata.INodeID) {
			if c.inodes[id] == nil && !ns.deleted(idKey(classINode, uint64(id))) {
				c.report("there is a way to inode %d, which is not there", id)
			}
		})
		if err != nil {
			c.report("reading the checkpoint: %w", err)
		} else if first := metadata.INodeID(binary.BigEndian.Uint64(key[1:])); sheet != ns.view.onSheet(first) {
			c.report("record %x: sheets begin at inode %d", key, ns.view.sheets)
		}
		return true
	})
	if err != nil {
		c.report("reading the checkpoint: %w", err)
	}
	for _, class := range []byte{classEntry, classDirectory} {
		err := ns.view.Scan([]byte{class}, nil, func(key, value []byte) bool {
			file, _, ok := kindOf(value)
			if want := !file && ns.view.apart; !ok || want != (class == classDirectory) {
				c.report("record %x is of the wrong class; directories are apart: %t", key, ns.view.apart)
			}
			return true
		})
		if err != nil {
			c.report("reading the checkpoint: %w", err)
		}
	}
	for _, class := range []byte{classBlock, classOpen} {
		err := ns.view.Scan([]byte{class}, nil, func(key, _ []byte) bool {
			if ns.deleted(string(key)) {
				return true
			}
			if len(key) != 9 {
				c.report("record with the key %x", key)
				return true
			}
			id := binary.BigEndian.Uint64(key[1:])
			found := false
			switch class {
			case classBlock:
				_, found = c.blocks[metadata.BlockID(id)]
			case classOpen:
				// That of an inode in memory is put right with the inode.
				s := c.inodes[metadata.INodeID(id)]
				found = s != nil && s.open || ns.inodes[metadata.INodeID(id)] != nil || changing[id]
			}
			if !found {
				c.report("record %c%d is of something that is not there", class, id)
			}
			return true
		})
		if err != nil {
			c.report("reading the checkpoint: %w", err)
		}
	}
}

func (c *checker) totals() {
	m := &c.ns.meta
	if m.quotas != c.quotas || m.typeQuotas != c.typeQuotas {
		c.report("%d directories have a quota, %d are counted; %d have one of types, %d are counted", c.quotas, m.quotas, c.typeQuotas, m.typeQuotas)
	}
	if m.files != c.files || m.directories != c.dirs || m.blocks != uint64(len(c.blocks))+c.kept {
		c.report("%d files, %d directories, %d blocks are there; %d, %d, %d are counted",
			c.files, c.dirs, uint64(len(c.blocks))+c.kept, m.files, m.directories, m.blocks)
	}
	if m.bodies != c.bodies || m.bodyBytes != c.bytes {
		c.report("%d bodies of %d bytes are there; %d of %d are counted", c.bodies, c.bytes, m.bodies, m.bodyBytes)
	}
	if c.hash != c.ns.published {
		c.report("state hash is %016x, the records make %016x", c.ns.published, c.hash)
	}
	if !soundTokenKeys(m.tokenKeys) {
		c.report("the %d keys of delegation tokens are not in order", len(m.tokenKeys))
	}
	if !soundKeys(m.keys) {
		c.report("the %d block keys are not in order", len(m.keys))
	}
	for _, top := range []metadata.INodeID{metadata.RootID, reclaimID} {
		if s := c.inodes[top]; s == nil || !s.dir {
			c.report("top directory %d is missing", top)
		}
	}
}
