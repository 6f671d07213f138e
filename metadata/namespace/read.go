package namespace

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// find resolves path for a reader and runs fn on it. fn must not keep p; it may run twice.
func (ns *Namespace) find(c metadata.Caller, path string, fn func(p *place, c *caller) error) error {
	base, rest, err := parse(path)
	if err != nil {
		return err
	}
	p := newPlace()
	defer p.release()
	p.reader = callerOf(c)
	return ns.read(func() error {
		if err := ns.resolve(p, &p.reader, base, rest, toUse); err != nil {
			return err
		}
		return fn(p, &p.reader)
	})
}

// Stat returns the status of path; nil when there is nothing.
//
// Errors: ErrPermission for a directory above that c may not search, or, unless c is the superuser, a file above;
// ErrInvalidPath.
func (ns *Namespace) Stat(c metadata.Caller, path string) (*metadata.FileStatus, error) {
	return ns.StatInto(new(metadata.FileStatus), c, path)
}

// StatInto is Stat whose status, if there is one, takes the place of what is in room, which it returns then.
func (ns *Namespace) StatInto(room *metadata.FileStatus, c metadata.Caller, path string) (*metadata.FileStatus, error) {
	if isReservedRoot(path) {
		*room = metadata.FileStatus{Type: metadata.TypeDirectory, Mode: metadata.Sticky | 0o770}
		return room, nil
	}
	var status *metadata.FileStatus
	err := ns.find(c, path, func(p *place, _ *caller) error {
		if status = nil; ns.describeLast(room, p.last()) {
			status = room
		}
		return nil
	})
	if err != nil && c.Superuser && metadata.KindOf(err) == metadata.ErrPermission {
		return nil, nil // only a file above the path can refuse the superuser; HDFS says "missing" then
	}
	return status, err
}

// StatEach is StatInto of several paths, with the lock held once for all of them: of the first ones, up to one that ends in an error, or for which something has to be
// read from the store. It returns how many these are. Where there is nothing at a path its room gets no Type.
func (ns *Namespace) StatEach(rooms []metadata.FileStatus, c metadata.Caller, paths []string) (n int) {
	p := newPlace()
	defer p.release()
	p.reader = callerOf(c)
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if ns.broken != nil {
		return 0
	}
	seekEach(ns.nearby(), paths)
	for n, path := range paths {
		base, rest, err := parse(path)
		if err == nil {
			err = ns.resolve(p, &p.reader, base, rest, toUse)
		}
		if err != nil || isReservedRoot(path) {
			return n
		}
		if !ns.describeLast(&rooms[n], p.last()) {
			rooms[n] = metadata.FileStatus{}
		}
	}
	return len(paths)
}

// describeLast is the status of what a path leads to, in room; false: that is nothing.
func (ns *Namespace) describeLast(room *metadata.FileStatus, n *inode) bool {
	switch {
	case n == nil:
		return false
	case n.isGhost() && n.snapshot() == 0:
		*room = metadata.FileStatus{Type: metadata.TypeDirectory, Mode: 0o777}
	default:
		n.describe(room, n.policies())
		if len(ns.snaps.allowed) > 0 && !n.isGhost() {
			_, room.Snapshottable = ns.snaps.allowed[n.id]
		}
	}
	return true
}

// Listing is a page of a directory.
type Listing struct {
	// Entries are in ascending order of the bytes of Name. A file lists as itself, with an empty Name.
	Entries []metadata.FileStatus
	// Remaining is how many entries come after the page; of a large directory that is not in memory it is 1 behind the first
	// page but before the last.
	Remaining int
	// Files has the blocks of each entry, nil for directories. Only ListWithBlocks fills it in.
	Files []*FileBlocks
}

// List returns up to limit entries of the directory path with names after startAfter; nil when there is nothing. A limit
// of 0 means metadata.DefaultPageSize. startAfter may have the form /.reserved/.inodes/<id>.
//
// Errors: those of Stat; ErrPermission without READ and EXECUTE on the directory; ErrCursor when startAfter names an
// inode that is gone.
func (ns *Namespace) List(c metadata.Caller, path, startAfter string, limit int) (*Listing, error) {
	return ns.list(c, path, startAfter, limit, false, nil)
}

// ListInto is List whose entries take the place of what is in room, if that is large enough.
func (ns *Namespace) ListInto(room []metadata.FileStatus, c metadata.Caller, path, startAfter string, limit int) (*Listing, error) {
	return ns.list(c, path, startAfter, limit, false, room)
}

// ListWithBlocks is List with the blocks of the files. The page ends early when it has limit blocks.
func (ns *Namespace) ListWithBlocks(c metadata.Caller, path, startAfter string, limit int) (*Listing, error) {
	return ns.list(c, path, startAfter, limit, true, nil)
}

func (ns *Namespace) list(c metadata.Caller, path, startAfter string, limit int, withBlocks bool, room []metadata.FileStatus) (*Listing, error) {
	if isReservedRoot(path) {
		return ns.reservedListing(), nil
	}
	if limit <= 0 {
		limit = metadata.DefaultPageSize
	}
	var listing *Listing
	var dir metadata.INodeID
	var pages page
	// A large directory that is not in memory is read in pages, between which others get theirs.
	for more := true; more; {
		err := ns.find(c, path, func(p *place, c *caller) error {
			more = false
			after, err := ns.cursor(startAfter)
			if err != nil {
				return err
			}
			n := p.last()
			if n == nil || dir != 0 && n.id != dir {
				listing = nil
				return nil
			}
			if listing == nil {
				listing = &Listing{Entries: room[:0]}
			}
			if !n.isDir() {
				listing.add(n, "", n.policies(), withBlocks)
				return nil
			}
			if err := checkMode(c, p, len(p.nodes)-1, metadata.Read|metadata.Execute); err != nil {
				return err
			}
			if n.isGhost() {
				dir = n.id
				startAfter, more, err = ns.listGhost(listing, n, after, limit, withBlocks)
				return err
			}
			defer func() { ns.markSnapshottable(listing.Entries) }()
			if err := ns.loadSmall(n); err != nil { // those that are listed are listed again
				return err
			}
			if n.complete() {
				listing.page(n, after, limit, withBlocks)
				return nil
			}
			last, again, err := ns.listPart(listing, n, after, &pages, limit, withBlocks)
			if err != nil {
				return err
			}
			dir, startAfter, more = n.id, last, again
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return listing, nil
}

// listPart adds entries of a directory that is not in memory as a whole. It returns the last name, and whether the page can
// take more.
func (ns *Namespace) listPart(l *Listing, dir *inode, after string, pages *page, limit int, withBlocks bool) (last string, more bool, err error) {
	above := dir.policies()
	blocks := l.blocks()
	before := len(l.Entries)
	full := func() bool { return len(l.Entries) == limit || blocks >= limit && withBlocks }
	last, more, err = ns.merge(dir, after, pages, limit-before, func(n *inode) bool {
		blocks += l.add(n, n.name, n.ownPolicies(above), withBlocks)
		return !full()
	})
	if err != nil {
		return after, true, err
	}
	l.Remaining = 0
	switch {
	case !more:
	case after == "":
		l.Remaining = max(dir.dir.entries-(len(l.Entries)-before), 0)
	default:
		l.Remaining = 1
	}
	return last, more && !full(), nil
}

// blocks is how many blocks the entries have.
func (l *Listing) blocks() (sum int) {
	for _, f := range l.Files {
		if f != nil {
			sum += len(f.Blocks)
		}
	}
	return sum
}

// reservedListing is what HDFS shows in /.reserved to everybody: the directories of inodes and of raw files, which cannot
// be listed further.
func (ns *Namespace) reservedListing() *Listing {
	shown := func(name string) metadata.FileStatus {
		now := ns.Now()
		return metadata.FileStatus{
			Type: metadata.TypeDirectory, Name: name, Mode: 0o770, Group: ns.cfg.Supergroup, MTime: now, ATime: now,
		}
	}
	return &Listing{Entries: []metadata.FileStatus{shown(".inodes"), shown("raw")}, Files: make([]*FileBlocks, 2)}
}

// cursor turns the inode form of a cursor into the name that the inode has now.
func (ns *Namespace) cursor(startAfter string) (string, error) {
	if !strings.HasPrefix(startAfter, "/") {
		return startAfter, nil
	}
	gone := metadata.Errorf(metadata.ErrCursor, "Can't find startAfter %s", printable(startAfter))
	base, rest, err := parse(startAfter)
	if err != nil {
		return "", gone
	}
	rest = strings.Trim(rest, "/")
	if base == 0 || rest != "" {
		return rest[strings.LastIndexByte(rest, '/')+1:], nil
	}
	n, err := ns.byID(base)
	if err != nil {
		return "", err
	}
	if n == nil || !n.attached() {
		return "", gone
	}
	return n.name, nil
}

func (l *Listing) add(n *inode, name string, p policies, withBlocks bool) (blocks int) {
	if len(l.Entries) < cap(l.Entries) {
		l.Entries = l.Entries[:len(l.Entries)+1]
	} else {
		l.Entries = append(l.Entries, metadata.FileStatus{})
	}
	s := &l.Entries[len(l.Entries)-1]
	n.describe(s, p)
	s.Name = name
	if !withBlocks {
		return 0
	}
	var f *FileBlocks
	if n.file != nil {
		f = new(FileBlocks)
		n.blocks(f, 0, n.file.length)
		blocks = len(f.Blocks)
	}
	l.Files = append(l.Files, f)
	return blocks
}

// describe fills in what a client is told of n but for a name; p are the policies of n or of what is above it.
func (n *inode) describe(s *metadata.FileStatus, p policies) {
	*s = metadata.FileStatus{}
	s.ID, s.Mode = n.id, n.mode
	s.Owner, s.Group = n.owner.Value(), n.group.Value()
	s.MTime, s.ATime = n.mtime, n.atime
	s.ACL, s.StoragePolicy, s.Erasure = n.extra.hasACL(), p.storage, p.coding(n)
	if n.dir != nil {
		s.Type, s.Children = metadata.TypeDirectory, n.dir.entries
		return
	}
	f := n.file
	s.Type = metadata.TypeFile
	s.Length, s.Replication, s.BlockSize = f.length, f.shownReplication(), f.blockSize
	s.UnderConstruction = f.open != nil
}

// handful is how many entries of a page are looked up before the first is described.
const handful = 64

// page adds the entries behind after of a directory that is in memory as a whole.
func (l *Listing) page(dir *inode, after string, limit int, withBlocks bool) {
	children := &dir.dir.children
	start := 0
	if after != "" {
		start = children.after(after)
	}
	before := len(l.Entries)
	if most := min(limit, before+children.count()-start); cap(l.Entries) < most {
		l.Entries = append(make([]metadata.FileStatus, 0, most), l.Entries...)
	}
	above := dir.policies()
	blocks := l.blocks()
	var room [handful]*inode
	nodes := room[:0]
	full := func() bool { return len(l.Entries) == limit || blocks >= limit && withBlocks }
	describe := func() bool {
		fetch(nodes)
		for _, n := range nodes {
			if full() {
				return false
			}
			n.use()
			blocks += l.add(n, n.name, n.ownPolicies(above), withBlocks)
		}
		nodes = nodes[:0]
		return !full()
	}
	children.each(after, func(n *inode) bool {
		nodes = append(nodes, n)
		if len(nodes) < handful && len(nodes) < limit-len(l.Entries) {
			return true
		}
		return describe()
	})
	describe()
	l.Remaining = children.count() - start - (len(l.Entries) - before)
}

// fetch reads what describing the nodes will read. Nothing in it waits for what it has read of the node before, so that
// the processor waits for the memory of many nodes at a time; describing one after the other it waits for each, which
// was most of what a listing cost.
//
//go:noinline
func fetch(nodes []*inode) (sum int64) {
	for _, n := range nodes {
		sum += int64(len(n.name)) + int64(n.mode)
	}
	for _, n := range nodes {
		if n.file != nil {
			sum += n.file.length + int64(n.file.replication)
		} else {
			sum += int64(n.dir.entries)
		}
		if len(n.name) > 0 {
			sum += int64(n.name[len(n.name)-1])
		}
	}
	return sum
}

// FileBlocks is a file with the blocks of a range of it.
type FileBlocks struct {
	Status metadata.FileStatus
	// Blocks overlap the range, in order.
	Blocks []BlockAt
	// Length is the length of the complete blocks.
	Length            int64
	UnderConstruction bool
	// Last is the file's last block, whatever the range; nil when there is none. LastComplete tells whether its length is
	// final.
	Last         *BlockAt
	LastComplete bool
	// InSnapshot: it is the file as a snapshot has it.
	InSnapshot bool
	// before is the block before an open end; nil where there is none.
	before *BlockAt
	// Body is that of a small file, its first block, whatever the range; nil for others.
	Body *BodyRef
}

// WithoutOpenEnd takes the replicated block off the end of a file with an erasure coding policy: such a file looks as if it ended with its last group.
func (f *FileBlocks) WithoutOpenEnd() {
	if f.Status.Erasure == 0 || f.Last == nil || f.Last.Block.ID.Striped() {
		return
	}
	if n := len(f.Blocks); n > 0 && f.Blocks[n-1].Block.ID == f.Last.Block.ID {
		f.Blocks = f.Blocks[:n-1]
	}
	f.Length, f.Last, f.LastComplete = f.Last.Offset, f.before, f.before != nil
}

// BlockAt is a block of a file.
type BlockAt struct {
	Block    metadata.Block
	Offset   int64
	Complete bool
	// Small: it is a body, which no datanode has.
	Small bool
}

// blocks collects in r the blocks that overlap [offset, offset+length). A last block under construction is part of a range that
// starts before it and is not over there; Last is where to look for it otherwise.
func (n *inode) blocks(r *FileBlocks, offset, length int64) {
	f := n.file
	*r = FileBlocks{Blocks: r.Blocks[:0], Length: f.length, UnderConstruction: f.open != nil, InSnapshot: n.isGhost(), Body: n.body()}
	n.describe(&r.Status, n.policies())
	end := int64(math.MaxInt64)
	if length <= end-offset {
		end = offset + length
	}
	at := int64(0)
	// As HDFS has it: nothing from the end of what is known on, but an only block whose length is not known yet.
	started := len(f.blocks) > 0 && f.blocks[0].Length == 0
	for i, b := range f.blocks {
		last := i == len(f.blocks)-1
		one := BlockAt{Block: b, Offset: at, Complete: !last || f.lastState() == Complete, Small: n.isBody(i)}
		started = started || at+b.Length > offset
		if started && (at < end || len(r.Blocks) == 0) { // one even for no bytes
			r.Blocks = append(r.Blocks, one)
		}
		if last {
			r.Last, r.LastComplete = new(one), one.Complete
			if !one.Complete {
				r.Length -= b.Length
			}
		} else if i == len(f.blocks)-2 && f.openEnd() {
			r.before = new(one)
		}
		at += b.Length
	}
}

// Blocks returns the blocks of a file that overlap [offset, offset+length).
//
// Errors: ErrNotExist for a missing path and for a directory; ErrInvalidArgument for a negative offset or length;
// ErrPermission without READ on the file, or to the superuser by an attribute of the file. As in HDFS 3.4, what is missing is told before rights are looked at.
func (ns *Namespace) Blocks(c metadata.Caller, path string, offset, length int64) (*FileBlocks, error) {
	return ns.BlocksInto(new(FileBlocks), c, path, offset, length)
}

// BlocksInto is Blocks whose answer takes the place of what is in room, which it returns then; the list of blocks too, if there is room for it.
func (ns *Namespace) BlocksInto(room *FileBlocks, c metadata.Caller, path string, offset, length int64) (*FileBlocks, error) {
	if offset < 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Negative offset is not supported. File: %s", printable(path))
	}
	if length < 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Negative length is not supported. File: %s", printable(path))
	}
	var blocks *FileBlocks
	anybody := metadata.Caller{Superuser: true}
	err := ns.find(anybody, path, func(p *place, _ *caller) error {
		who := callerOf(c)
		n := p.last()
		if n == nil {
			return metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
		}
		if n.file == nil {
			return metadata.Errorf(metadata.ErrNotExist, "Path is not a file: %s", p)
		}
		if err := p.checkTraverse(&who, toUse); err != nil {
			return err
		}
		if err := checkMode(&who, p, len(p.nodes)-1, metadata.Read); err != nil {
			return err
		}
		if n.unreadableBy(&who) {
			return metadata.Errorf(metadata.ErrPermission, "Access is denied for %s since the superuser is not allowed to perform this operation.", who.user)
		}
		blocks = room
		n.blocks(room, offset, length)
		return nil
	})
	return blocks, err
}

// CheckAccess says whether c has the rights a on path. Errors: ErrNotExist, ErrPermission.
func (ns *Namespace) CheckAccess(c metadata.Caller, path string, a metadata.Access) error {
	return ns.checkAccess(c, path, a, false)
}

// CheckChange is CheckAccess with Write, of what is to be changed itself. Errors: ErrSnapshotReadOnly besides.
func (ns *Namespace) CheckChange(c metadata.Caller, path string) error {
	return ns.checkAccess(c, path, metadata.Write, true)
}

func (ns *Namespace) checkAccess(c metadata.Caller, path string, a metadata.Access, change bool) error {
	return ns.find(c, path, func(p *place, c *caller) error {
		if change {
			if err := ns.checkWritable(p); err != nil {
				return err
			}
		}
		if n := p.last(); n == nil || n.isGhost() && n.snapshot() == 0 { // the list of snapshots has no mode of its own
			return metadata.Errorf(metadata.ErrNotExist, "Path not found: %s", p)
		}
		return checkMode(c, p, len(p.nodes)-1, a)
	})
}

// Resolve finds the inode of path, for commands that carry an inode. Errors: ErrNotExist and those of Stat.
func (ns *Namespace) Resolve(c metadata.Caller, path string) (metadata.INodeID, error) {
	var id metadata.INodeID
	err := ns.find(c, path, func(p *place, _ *caller) error {
		n := p.last()
		if n == nil {
			return metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
		}
		id = n.id
		return nil
	})
	return id, err
}

// FileByID returns a file, for the namenode itself: no rights are checked. False when there is none, or it was deleted.
func (ns *Namespace) FileByID(id metadata.INodeID) (*FileInfo, bool) {
	var info *FileInfo
	err := ns.read(func() error {
		n, err := ns.byID(id)
		if err == nil && n != nil && n.file != nil && n.attached() {
			info = n.info()
		}
		return err
	})
	return info, err == nil && info != nil
}

// LastBlocks returns up to two last blocks of a file that holder writes, as far as datanodes have them, and the state of the last one, for the namenode itself: no rights are
// checked. None when holder writes no such file, or it has no blocks.
func (ns *Namespace) LastBlocks(id metadata.INodeID, holder string) (blocks []metadata.Block, last BlockState) {
	err := ns.read(func() error {
		n, err := ns.byID(id)
		if err != nil || n == nil || n.file == nil || !n.attached() {
			return err
		}
		if o := n.file.open; o != nil && o.holder == holder && len(n.file.blocks) > 0 {
			for i := max(0, len(n.file.blocks)-2); i < len(n.file.blocks); i++ {
				if !n.isBody(i) {
					blocks = append(blocks, n.file.blocks[i])
				}
			}
			last = o.state
		}
		return nil
	})
	if err != nil {
		return nil, last
	}
	return blocks, last
}

// BlockOwner returns the file that a block, or the group of an internal block, belongs to. Bodies of small files, which datanodes do not have, are
// nobody's here. Blocks of deleted files count until Effects reported them removed.
func (ns *Namespace) BlockOwner(id metadata.BlockID) (BlockOwner, bool) {
	var owner BlockOwner
	found := false
	id = id.Group()
	err := ns.read(func() error {
		n, err := ns.byBlock(id)
		if err == nil && n == nil {
			owner, found, err = ns.keptBlock(id)
			found = found && !owner.body
		}
		if err != nil || n == nil {
			return err
		}
		i := slices.IndexFunc(n.file.blocks, func(b metadata.Block) bool { return b.ID == id })
		owner, found = n.blockOwner(i), !n.isBody(i)
		return nil
	})
	return owner, err == nil && found
}

// FileOfBlock returns the path of the file that a block belongs to, for the namenode itself: no rights are checked. Of a block that only
// snapshots have it is the path in one of them. False when there is none, or it was deleted.
func (ns *Namespace) FileOfBlock(id metadata.BlockID) (string, bool) {
	var path string
	id = id.Group()
	err := ns.read(func() error {
		path = ""
		n, err := ns.byBlock(id)
		switch {
		case err != nil:
			return err
		case n == nil:
			path, err = ns.keptPath(id)
			return err
		case n.attached():
			path = n.path()
		}
		return nil
	})
	return path, err == nil && path != ""
}

// CheckPipeline says whether holder may get a new generation for a block that it writes
// (ClientProtocol.updateBlockForPipeline, which changes nothing). Errors: those of updatePipeline.
func (ns *Namespace) CheckPipeline(c metadata.Caller, b metadata.Block, holder string) error {
	who := callerOf(c)
	return ns.read(func() error {
		_, err := ns.checkPipeline(&who, b, holder)
		return err
	})
}

// CheckLease says whether c has the inode open for writing under the name holder. Errors: ErrNotExist, ErrLeaseExpired,
// ErrPermission.
func (ns *Namespace) CheckLease(c metadata.Caller, id metadata.INodeID, holder string) error {
	who := callerOf(c)
	return ns.read(func() error {
		_, err := ns.checkLease(&who, id, holder)
		return err
	})
}

// LeaseInfo is a client's lease.
type LeaseInfo struct {
	Holder  string
	Renewed LogTime
	// Files are the inodes that the holder has open, in ascending order. Deleted ones may be among them for a while.
	Files []metadata.INodeID
	// ClientNode is the datanode that writes for the holder; empty: none.
	ClientNode string
}

// Leases returns all leases, in the order of holders.
func (ns *Namespace) Leases() []LeaseInfo {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	all := make([]LeaseInfo, 0, len(ns.leases))
	for _, l := range ns.leases {
		info := LeaseInfo{Holder: l.holder, Renewed: ns.renewed(l), ClientNode: l.clientNode}
		for id := range l.files {
			info.Files = append(info.Files, id)
		}
		slices.Sort(info.Files)
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b LeaseInfo) int { return strings.Compare(a.Holder, b.Holder) })
	return all
}

// Holders returns all leases, in no order and without their files: that is quick however many files are open.
func (ns *Namespace) Holders() []LeaseInfo {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	all := make([]LeaseInfo, 0, len(ns.leases))
	for _, l := range ns.leases {
		all = append(all, LeaseInfo{Holder: l.holder, Renewed: ns.renewed(l), ClientNode: l.clientNode})
	}
	return all
}

// LeaseFiles returns the inodes that a holder has open, in ascending order. Deleted ones may be among them for a while.
func (ns *Namespace) LeaseFiles(holder string) []metadata.INodeID {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	l := ns.leases[holder]
	if l == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(l.files))
}

// Lease returns when a client's lease was renewed last; false when it has none.
func (ns *Namespace) Lease(holder string) (LogTime, bool) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	l := ns.leases[holder]
	if l == nil {
		return 0, false
	}
	return ns.renewed(l), true
}

// blockListing is an EachBlock that has begun.
type blockListing struct {
	changed [][]*inode // what the checkpoints have saved that became current since
}

// EachBlock calls fn for every block that datanodes have, in memory or not, until it returns false. It takes the lock for a moment at a time.
// What comes or goes meanwhile may be in what it tells or not; a block that stays is told of, whatever happens to its file, and
// perhaps more than once, as it is or was since the beginning.
func (ns *Namespace) EachBlock(fn func(BlockOwner) bool) error {
	var found []BlockOwner
	collect := func(n *inode) {
		if n.file != nil {
			for i := range n.file.blocks {
				if !n.isBody(i) {
					found = append(found, n.blockOwner(i))
				}
			}
		}
	}
	tell := func() bool {
		for _, o := range found {
			if !fn(o) {
				return false
			}
		}
		found = found[:0]
		return true
	}
	l := new(blockListing)
	ns.mu.Lock()
	ns.listings = append(ns.listings, l)
	ns.mu.Unlock()
	defer func() {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		ns.listings = slices.DeleteFunc(ns.listings, func(other *blockListing) bool { return other == l })
	}()
	// First what the checkpoint has, unless it has gone. Another checkpoint may come in between.
	for from := []byte{classEntry}; from != nil; {
		v, err := ns.pinned()
		if err != nil {
			return err
		}
		records, next, err := v.files(from)
		ns.unpin(v)
		ns.mu.RLock()
		stale := ns.view != v
		if !stale {
			for _, r := range records {
				if err == nil {
					err = ns.collectStored(r, collect)
				}
			}
		}
		ns.mu.RUnlock()
		if stale {
			continue
		}
		if err != nil {
			ns.mu.Lock()
			defer ns.mu.Unlock()
			ns.doubt(err)
			return err
		}
		if !tell() {
			return nil
		}
		from = next
	}
	// Then what has changed since the checkpoint that was current at the beginning: it may have been somewhere else when that place
	// was looked at. What changes only from here on was met above.
	ns.mu.RLock()
	lists := slices.Concat(l.changed, ns.dirty.lists()) // a checkpoint that becomes current meanwhile goes on writing behind l.changed
	if ns.frozen != nil {
		lists = append(lists, ns.frozen.dirty...)
	}
	ns.mu.RUnlock()
	for _, rest := range lists {
		for len(rest) > 0 {
			turn := rest[:min(len(rest), entriesPerTurn)]
			rest = rest[len(turn):]
			ns.mu.RLock()
			for _, n := range turn {
				if !n.dead {
					collect(n)
				}
			}
			ns.mu.RUnlock()
			if !tell() {
				return nil
			}
		}
	}
	return ns.eachKeptBlock(fn) // what a snapshot alone has by now was a file's before
}

// files returns the records of entries from a key on that may be of files with blocks, of as many as one turn allows, and
// the key to go on from; nil: that was all. No directory that is kept apart is looked at.
func (v *checkpointView) files(from []byte) (records []record, next []byte, err error) {
	seen := 0
	err = v.Scan([]byte{classEntry}, from, func(key, value []byte) bool {
		if seen == entriesPerTurn {
			next = slices.Clone(key)
			return false
		}
		if seen++; mayHaveBlocks(value) {
			records = append(records, record{slices.Clone(key), slices.Clone(value)})
		}
		return true
	})
	return records, next, err
}

// collectStored calls fn with the inode of an entry that the checkpoint has, if it is as it was there.
func (ns *Namespace) collectStored(r record, fn func(*inode)) error {
	parent, name, ok := splitEntry(r.key[1:])
	if !ok {
		return corrupt("key %x", r.key)
	}
	if ns.deletedKey(r.key) {
		return nil
	}
	if dir := ns.inodes[parent]; dir != nil && dir.isDir() {
		if n := dir.dir.children.get(name); n != nil {
			if !ns.unsaved(n) { // else it is on a list of what has changed
				fn(n)
			}
			return nil
		}
	}
	n, err := decodeEntry(name, r.key, r.value)
	if err == nil {
		fn(n)
	}
	return err
}

// eachINode calls fn with every inode and its parent's id: those in memory, then those that are only in the checkpoint
// (decoded for the call). mu is held.
func (ns *Namespace) eachINode(fn func(n *inode, parent metadata.INodeID) bool) error {
	for _, n := range ns.inodes {
		parent := metadata.INodeID(0)
		if n.parent != nil {
			parent = n.parent.id
		}
		if !fn(n, parent) {
			return nil
		}
	}
	var bad error
	err := ns.view.eachEntry([]byte{classEntry}, nil, mostDirectories, func(key, value []byte) bool {
		parent, name, ok := splitEntry(key[1:])
		if !ok {
			bad = corrupt("key %x", key)
			return false
		}
		if ns.deleted(string(key)) {
			return true
		}
		if dir := ns.inodes[parent]; dir != nil && dir.isDir() {
			if dir.dir.children.get(name) != nil {
				return true // that one, or another that took its name
			}
		}
		n, err := decodeEntry(name, key, value)
		if err != nil {
			bad = err
			return false
		}
		if ns.inodes[n.id] != nil {
			return true
		}
		return fn(n, parent)
	})
	if err != nil {
		return err
	}
	return bad
}
