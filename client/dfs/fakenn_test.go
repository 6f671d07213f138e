package dfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// cluster is a namenode and datanodes in memory: just enough of HDFS to hold a client to its rules. What breaks one is
// an error on t.
type cluster struct {
	t     testing.TB
	addr  string
	nodes []*fakeNode

	mu        sync.Mutex
	files     map[string]*fakeFile
	nextID    uint64
	nextBlock uint64
	nextGS    uint64
	calls     map[string]int
	retries   map[string]int32 // highest retry count seen by method
	late      int              // exchanges that are refused because too little is stored
	bad       []string         // uuids reported with bad blocks
	dropped   []uint64         // copies that were given up
	// exchanging runs before an exchange and may refuse it; quiet: what was exchanged is not answered. It is called without mu.
	exchanging func() (quiet bool, err error)
	// epoch is when tokens are signed: datanodes take those of now only. 0: they take all.
	epoch byte
	// strict: they take none. stale: so many located blocks come with a token of before.
	strict bool
	stale  int
	// refused counts requests with other tokens.
	refused int
	// notYet makes complete, addBlock (beyond the first block) and so on ask for patience so often.
	notYet int
	// coding is the erasure coding policy of new files.
	coding *hadooppb.ErasureCodingPolicyProto
	// before runs before a method and may fail it; it is called without mu.
	before func(method string, call *hrpc.Call) error
}

type fakeFile struct {
	id          uint64
	dir         bool
	mode        uint32
	mtime       uint64
	replication uint32
	blockSize   uint64
	holder      string // of the lease; empty: closed
	blocks      []*fakeBlock
	coding      *hadooppb.ErasureCodingPolicyProto
}

type fakeBlock struct {
	id, gs, size uint64
	committed    bool
	nodes        []*fakeNode // of a group by number; nil: nobody has it
	coding       *hadooppb.ErasureCodingPolicyProto
	beside       map[int]*fakeNode // of a group: who has an internal block, too, and is named first
}

func (f *fakeFile) length() (n uint64) {
	for _, b := range f.blocks {
		n += b.size
	}
	return n
}

const pool = "BP-1-127.0.0.1-1"

// newCluster starts a cluster of n datanodes and a client of it.
func newCluster(t testing.TB, n int) (*cluster, *Client) {
	c := &cluster{t: t, files: map[string]*fakeFile{}, nextID: 16386, nextBlock: 1073741825, nextGS: 1001, calls: map[string]int{}, retries: map[string]int32{}}
	c.files["/"] = &fakeFile{id: 16385, dir: true, mode: 0o755}
	c.addr = c.serve(security.NewDoor(security.Config{}), c.register)
	for i := range n {
		c.nodes = append(c.nodes, newFakeNode(c, i))
	}
	return c, c.client(Config{})
}

func (c *cluster) client(config Config) *Client {
	config.Namenodes = []string{c.addr}
	if config.User == "" {
		config.User = "alice"
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	client, err := New(config)
	if err != nil {
		c.t.Fatal(err)
	}
	client.times.probe, client.times.abort = limit, limit // on a busy machine a word may take long
	c.t.Cleanup(func() { client.Close() })
	return client
}

func (c *cluster) serve(door *security.Door, register func(*hrpc.Server)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	s := hrpc.NewServer(hrpc.ServerConfig{Door: door, Exception: exceptionOf, Logger: slog.New(slog.DiscardHandler)})
	register(s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ctx, l)
	}()
	c.t.Cleanup(func() { cancel(); <-done })
	return l.Addr().String()
}

// exceptionOf is the way back of the table of kinds.
func exceptionOf(err error) (string, string) {
	kind := metadata.KindOf(err)
	for class, k := range kinds {
		if k == kind && !strings.Contains(class, "SnapshotAccess") && !strings.Contains(class, "RetryStart") && !strings.Contains(class, "lang.Illegal") {
			return class, err.Error()
		}
	}
	return "java.io.IOException", err.Error()
}

func (c *cluster) count(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[method]
}

// on registers a method.
func on[Q any, P interface {
	*Q
	hrpc.Message
}](c *cluster, s *hrpc.Server, method string, handle func(request P, call *hrpc.Call) (hrpc.Message, error)) {
	s.Handle(clientProtocol, hrpc.Method{
		Name: method, New: func() hrpc.Message { return P(new(Q)) }, Right: security.ByPath,
		Handle: func(call *hrpc.Call) {
			go func() {
				c.mu.Lock()
				c.calls[method]++
				c.retries[method] = max(c.retries[method], call.Retry)
				before := c.before
				c.mu.Unlock()
				if before != nil {
					if err := before(method, call); err != nil {
						call.Fail(err)
						return
					}
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				answer, err := handle(call.Request.(P), call)
				if err != nil {
					call.Fail(err)
					return
				}
				call.Reply(answer)
			}()
		},
	})
}

func missing(name string) error {
	return metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", name)
}

func (c *cluster) lookup(name string) (*fakeFile, error) {
	if f := c.files[name]; f != nil {
		return f, nil
	}
	if id, found := strings.CutPrefix(name, "/.reserved/.inodes/"); found {
		for _, f := range c.files {
			if fmt.Sprint(f.id) == id {
				return f, nil
			}
		}
	}
	return nil, missing(name)
}

// open finds a file that holder writes, by its id where one is given.
func (c *cluster) open(name string, id uint64, holder string) (*fakeFile, error) {
	f := c.files[name]
	if id != 0 {
		f = nil
		for _, x := range c.files {
			if x.id == id {
				f = x
			}
		}
	}
	if f == nil {
		return nil, missing(name)
	}
	if f.holder != holder {
		return nil, metadata.Errorf(metadata.ErrLeaseExpired, "No lease on %s: %q does not hold it", name, holder)
	}
	return f, nil
}

func (c *cluster) status(f *fakeFile, name string) *hadooppb.HdfsFileStatusProto {
	s := &hadooppb.HdfsFileStatusProto{
		FileType: hadooppb.HdfsFileStatusProto_IS_FILE.Enum(), Path: []byte(name), Length: new(f.length()),
		Permission: &hadooppb.FsPermissionProto{Perm: &f.mode}, Owner: new("alice"), Group: new("users"),
		ModificationTime: &f.mtime, AccessTime: new(uint64(0)), BlockReplication: &f.replication, Blocksize: &f.blockSize, FileId: &f.id,
	}
	s.EcPolicy = f.coding
	if f.dir {
		s.FileType = hadooppb.HdfsFileStatusProto_IS_DIR.Enum()
		s.ModificationTime = &f.mtime
	}
	return s
}

func (c *cluster) extended(b *fakeBlock) *hadooppb.ExtendedBlockProto {
	return &hadooppb.ExtendedBlockProto{PoolId: new(pool), BlockId: &b.id, GenerationStamp: &b.gs, NumBytes: &b.size}
}

func (c *cluster) located(b *fakeBlock, offset uint64) *hadooppb.LocatedBlockProto {
	copied := *b
	l := &hadooppb.LocatedBlockProto{B: c.extended(&copied), Offset: &offset, Corrupt: new(false), BlockToken: tokenOf(nil)}
	if c.epoch > 0 {
		l.BlockToken.Identifier = []byte{c.epoch}
		if c.stale > 0 {
			c.stale--
			l.BlockToken.Identifier = []byte{c.epoch - 1}
		}
	}
	for i, n := range b.nodes {
		if b.coding != nil {
			if n == nil {
				continue
			}
			l.BlockIndices, l.BlockTokens = append(l.BlockIndices, byte(i)), append(l.BlockTokens, l.BlockToken)
			if first := b.beside[i]; first != nil {
				l.BlockIndices, l.BlockTokens = append(l.BlockIndices, byte(i)), append(l.BlockTokens, l.BlockToken)
				l.Locs, l.StorageTypes, l.StorageIDs = append(l.Locs, first.info()), append(l.StorageTypes, hadooppb.StorageTypeProto_DISK), append(l.StorageIDs, "DS-"+first.uuid)
			}
		}
		l.Locs = append(l.Locs, n.info())
		l.StorageTypes = append(l.StorageTypes, hadooppb.StorageTypeProto_DISK)
		l.StorageIDs = append(l.StorageIDs, "DS-"+n.uuid)
	}
	return l
}

// choose picks n live nodes that are not excluded.
func (c *cluster) choose(n int, exclude []*hadooppb.DatanodeInfoProto, have []*fakeNode) []*fakeNode {
	var chosen []*fakeNode
	for _, node := range c.nodes {
		out := slices.ContainsFunc(exclude, func(e *hadooppb.DatanodeInfoProto) bool { return e.GetId().GetDatanodeUuid() == node.uuid })
		if len(chosen) < n && !out && !node.hidden && !slices.Contains(have, node) {
			chosen = append(chosen, node)
		}
	}
	return chosen
}

// commit takes over what the client says of its last block.
func (c *cluster) commit(f *fakeFile, last *hadooppb.ExtendedBlockProto) error {
	if last == nil || len(f.blocks) == 0 {
		return nil
	}
	b := f.blocks[len(f.blocks)-1]
	if b.id != last.GetBlockId() || b.gs != last.GetGenerationStamp() {
		return metadata.Errorf(metadata.ErrIO, "Commit block with mismatching GS. NN has blk_%d_%d, client submits blk_%d_%d", b.id, b.gs, last.GetBlockId(), last.GetGenerationStamp())
	}
	b.size, b.committed = last.GetNumBytes(), true
	return nil
}

// stored reports whether some node has finished the block as committed; those that have not leave its list.
func (c *cluster) stored(b *fakeBlock) bool {
	if b.coding != nil {
		return c.storedGroup(b)
	}
	b.nodes = slices.DeleteFunc(slices.Clone(b.nodes), func(n *fakeNode) bool { return !n.has(b) })
	return len(b.nodes) > 0
}

func (c *cluster) patience() bool {
	if c.notYet > 0 {
		c.notYet--
		return true
	}
	return false
}

func (c *cluster) register(s *hrpc.Server) {
	on(c, s, "getServerDefaults", func(*hadooppb.GetServerDefaultsRequestProto, *hrpc.Call) (hrpc.Message, error) {
		return &hadooppb.GetServerDefaultsResponseProto{ServerDefaults: &hadooppb.FsServerDefaultsProto{
			BlockSize: new(uint64(1 << 20)), BytesPerChecksum: new(uint32(512)), WritePacketSize: new(uint32(65536)), Replication: new(uint32(3)),
			FileBufferSize: new(uint32(4096)), ChecksumType: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
		}}, nil
	})
	on(c, s, "getFileInfo", func(q *hadooppb.GetFileInfoRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f := c.files[q.GetSrc()]
		if f == nil {
			return &hadooppb.GetFileInfoResponseProto{}, nil
		}
		return &hadooppb.GetFileInfoResponseProto{Fs: c.status(f, "")}, nil
	})
	on(c, s, "getListing", func(q *hadooppb.GetListingRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		const page = 3
		f := c.files[q.GetSrc()]
		if f == nil {
			return &hadooppb.GetListingResponseProto{}, nil
		}
		list := &hadooppb.DirectoryListingProto{RemainingEntries: new(uint32(0))}
		if !f.dir {
			list.PartialListing = append(list.PartialListing, c.status(f, ""))
			return &hadooppb.GetListingResponseProto{DirList: list}, nil
		}
		var names []string
		for name := range c.files {
			if name != "/" && path.Dir(name) == q.GetSrc() && bytes.Compare([]byte(path.Base(name)), q.GetStartAfter()) > 0 {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		if len(names) > page {
			list.RemainingEntries = new(uint32(len(names) - page))
			names = names[:page]
		}
		for _, name := range names {
			list.PartialListing = append(list.PartialListing, c.status(c.files[name], path.Base(name)))
		}
		return &hadooppb.GetListingResponseProto{DirList: list}, nil
	})
	on(c, s, "getBlockLocations", func(q *hadooppb.GetBlockLocationsRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f, err := c.lookup(q.GetSrc())
		if err != nil {
			return nil, err
		}
		if f.dir {
			return nil, metadata.Errorf(metadata.ErrNotExist, "Path is not a file: %s", q.GetSrc())
		}
		list := &hadooppb.LocatedBlocksProto{FileLength: new(uint64(0)), UnderConstruction: new(f.holder != ""), IsLastBlockComplete: new(f.holder == ""), EcPolicy: f.coding}
		if q.GetTails() {
			list.FileId, list.ModificationTime = &f.id, &f.mtime
		}
		offset := uint64(0)
		for i, b := range f.blocks {
			l := c.located(b, offset)
			if f.holder == "" || i < len(f.blocks)-1 {
				list.FileLength = new(offset + b.size)
			}
			if offset < q.GetOffset()+q.GetLength() && (q.GetOffset() < offset+b.size || f.holder != "" && i == len(f.blocks)-1) {
				list.Blocks = append(list.Blocks, l)
			}
			list.LastBlock = l
			offset += b.size
		}
		return &hadooppb.GetBlockLocationsResponseProto{Locations: list}, nil
	})
	on(c, s, "create", func(q *hadooppb.CreateRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		if f := c.files[q.GetSrc()]; f != nil {
			switch {
			case f.dir:
				return nil, metadata.Errorf(metadata.ErrExist, "%s already exists as a directory", q.GetSrc())
			case q.GetCreateFlag()&flagOverwrite == 0 && f.holder != "":
				return nil, metadata.Errorf(metadata.ErrBeingCreated, "Failed to CREATE_FILE %s", q.GetSrc())
			case q.GetCreateFlag()&flagOverwrite == 0:
				return nil, metadata.Errorf(metadata.ErrExist, "%s for client 127.0.0.1 already exists", q.GetSrc())
			}
		}
		if parent := c.files[path.Dir(q.GetSrc())]; parent == nil {
			if !q.GetCreateParent() {
				return nil, metadata.Errorf(metadata.ErrNotExist, "Parent directory doesn't exist: %s", path.Dir(q.GetSrc()))
			}
			c.mkdirs(path.Dir(q.GetSrc()), 0o755)
		}
		c.nextID++
		f := &fakeFile{id: c.nextID, mode: q.GetMasked().GetPerm(), replication: q.GetReplication(), blockSize: q.GetBlockSize(), holder: q.GetClientName(), mtime: 1700000000000}
		if q.GetCreateFlag()&flagReplicate == 0 {
			f.coding = c.coding
		}
		c.files[q.GetSrc()] = f
		return &hadooppb.CreateResponseProto{Fs: c.status(f, "")}, nil
	})
	on(c, s, "addBlock", func(q *hadooppb.AddBlockRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f, err := c.open(q.GetSrc(), q.GetFileId(), q.GetClientName())
		if err != nil {
			return nil, err
		}
		if err := c.commit(f, q.Previous); err != nil {
			return nil, err
		}
		if len(f.blocks) > 0 && c.patience() {
			return nil, metadata.Errorf(metadata.ErrNotReplicatedYet, "Not replicated yet: %s", q.GetSrc())
		}
		if f.coding != nil {
			return c.addGroup(f, q)
		}
		nodes := c.choose(int(f.replication), q.ExcludeNodes, nil)
		if len(nodes) == 0 {
			return nil, metadata.Errorf(metadata.ErrIO, "File %s could only be written to 0 of the 1 minReplication nodes.", q.GetSrc())
		}
		b := &fakeBlock{id: c.nextBlock, gs: c.nextGS, nodes: nodes}
		c.nextBlock++
		c.nextGS++
		offset := f.length()
		f.blocks = append(f.blocks, b)
		return &hadooppb.AddBlockResponseProto{Block: c.located(b, offset)}, nil
	})
	on(c, s, "abandonBlock", func(q *hadooppb.AbandonBlockRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f, err := c.open(q.GetSrc(), q.GetFileId(), q.GetHolder())
		if err != nil {
			return nil, err
		}
		if n := len(f.blocks) - 1; n >= 0 && f.blocks[n].id == q.GetB().GetBlockId() {
			f.blocks = f.blocks[:n]
		}
		return nil, nil
	})
	on(c, s, "complete", func(q *hadooppb.CompleteRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f, err := c.open(q.GetSrc(), q.GetFileId(), q.GetClientName())
		if err != nil {
			return nil, err
		}
		if err := c.commit(f, q.Last); err != nil {
			return nil, err
		}
		if c.patience() {
			return &hadooppb.CompleteResponseProto{Result: new(false)}, nil
		}
		for _, b := range f.blocks {
			if !c.stored(b) {
				return &hadooppb.CompleteResponseProto{Result: new(false)}, nil
			}
		}
		f.holder = ""
		return &hadooppb.CompleteResponseProto{Result: new(true)}, nil
	})
	on(c, s, "append", func(q *hadooppb.AppendRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f, err := c.lookup(q.GetSrc())
		if err != nil {
			return nil, err
		}
		if f.holder != "" {
			return nil, metadata.Errorf(metadata.ErrBeingCreated, "Failed to APPEND_FILE %s", q.GetSrc())
		}
		f.holder = q.GetClientName()
		answer := &hadooppb.AppendResponseProto{Stat: c.status(f, "")}
		if n := len(f.blocks) - 1; n >= 0 && f.blocks[n].size < f.blockSize {
			answer.Block = c.located(f.blocks[n], f.length()-f.blocks[n].size)
		}
		return answer, nil
	})
	on(c, s, "updateBlockForPipeline", func(q *hadooppb.UpdateBlockForPipelineRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		b := &fakeBlock{id: q.GetBlock().GetBlockId(), gs: c.nextGS, size: q.GetBlock().GetNumBytes()}
		c.nextGS++
		l := c.located(b, 0)
		if striped(l) { // as many tokens as there are internal blocks, whoever has them
			for i := range 16 {
				l.BlockIndices, l.BlockTokens = append(l.BlockIndices, byte(i)), append(l.BlockTokens, l.BlockToken)
			}
		}
		return &hadooppb.UpdateBlockForPipelineResponseProto{Block: l}, nil
	})
	on(c, s, "updatePipeline", func(q *hadooppb.UpdatePipelineRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		for _, f := range c.files {
			for i, b := range f.blocks {
				if b.id != q.GetOldBlock().GetBlockId() {
					continue
				}
				if i != len(f.blocks)-1 || f.holder != q.GetClientName() || q.GetNewBlock().GetGenerationStamp() <= b.gs || q.GetNewBlock().GetNumBytes() < b.size {
					return nil, metadata.Errorf(metadata.ErrIO, "Update blk_%d_%d(%d) to %v", b.id, b.gs, b.size, q.GetNewBlock())
				}
				b.gs, b.size, b.nodes = q.GetNewBlock().GetGenerationStamp(), q.GetNewBlock().GetNumBytes(), nil
				for _, id := range q.GetNewNodes() {
					if b.coding != nil && id.GetDatanodeUuid() == "null" {
						b.nodes = append(b.nodes, nil)
						continue
					}
					b.nodes = append(b.nodes, c.nodes[slices.IndexFunc(c.nodes, func(n *fakeNode) bool { return n.uuid == id.GetDatanodeUuid() })])
				}
				return nil, nil
			}
		}
		return nil, metadata.Errorf(metadata.ErrIO, "no such block")
	})
	on(c, s, "getAdditionalDatanode", func(q *hadooppb.GetAdditionalDatanodeRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		added := c.choose(1, append(slices.Clone(q.Excludes), q.Existings...), nil)
		if len(added) == 0 {
			return nil, metadata.Errorf(metadata.ErrIO, "no more datanodes")
		}
		b := &fakeBlock{id: q.GetBlk().GetBlockId(), gs: q.GetBlk().GetGenerationStamp(), size: q.GetBlk().GetNumBytes()}
		for _, e := range q.Existings {
			b.nodes = append(b.nodes, c.nodes[slices.IndexFunc(c.nodes, func(n *fakeNode) bool { return n.uuid == e.GetId().GetDatanodeUuid() })])
		}
		b.nodes = append(b.nodes, added...)
		return &hadooppb.GetAdditionalDatanodeResponseProto{Block: c.located(b, 0)}, nil
	})
	on(c, s, "fsync", func(q *hadooppb.FsyncRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		_, err := c.open(q.GetSrc(), q.GetFileId(), q.GetClient())
		return nil, err
	})
	on(c, s, "renewLease", func(*hadooppb.RenewLeaseRequestProto, *hrpc.Call) (hrpc.Message, error) { return nil, nil })
	on(c, s, "recoverLease", func(q *hadooppb.RecoverLeaseRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f, err := c.lookup(q.GetSrc())
		if err != nil {
			return nil, err
		}
		f.holder = ""
		return &hadooppb.RecoverLeaseResponseProto{Result: new(true)}, nil
	})
	on(c, s, "reportBadBlocks", func(q *hadooppb.ReportBadBlocksRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		for _, b := range q.GetBlocks() {
			for _, n := range b.GetLocs() {
				c.bad = append(c.bad, n.GetId().GetDatanodeUuid())
			}
		}
		return nil, nil
	})
	on(c, s, "mkdirs", func(q *hadooppb.MkdirsRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		if f := c.files[q.GetSrc()]; f != nil && !f.dir {
			return nil, metadata.Errorf(metadata.ErrExist, "Path is not a directory: %s", q.GetSrc())
		}
		c.mkdirs(q.GetSrc(), q.GetMasked().GetPerm())
		return &hadooppb.MkdirsResponseProto{Result: new(true)}, nil
	})
	on(c, s, "delete", func(q *hadooppb.DeleteRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f := c.files[q.GetSrc()]
		for name := range c.files {
			if strings.HasPrefix(name, q.GetSrc()+"/") {
				if !q.GetRecursive() {
					return nil, metadata.Errorf(metadata.ErrNotEmpty, "%s is non empty", q.GetSrc())
				}
				delete(c.files, name)
			}
		}
		delete(c.files, q.GetSrc())
		return &hadooppb.DeleteResponseProto{Result: new(f != nil)}, nil
	})
	on(c, s, "rename", func(q *hadooppb.RenameRequestProto, _ *hrpc.Call) (hrpc.Message, error) {
		f := c.files[q.GetSrc()]
		if f == nil || c.files[q.GetDst()] != nil {
			return &hadooppb.RenameResponseProto{Result: new(false)}, nil
		}
		delete(c.files, q.GetSrc())
		c.files[q.GetDst()] = f
		return &hadooppb.RenameResponseProto{Result: new(true)}, nil
	})
}

func (c *cluster) mkdirs(name string, mode uint32) {
	for ; c.files[name] == nil; name = path.Dir(name) {
		c.nextID++
		c.files[name] = &fakeFile{id: c.nextID, dir: true, mode: mode, mtime: 1700000000000}
	}
}

// content reads a file straight from the datanodes' memory and requires all replicas that count to be alike.
func (c *cluster) content(name string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[name]
	if f == nil {
		c.t.Fatalf("%s does not exist", name)
	}
	if f.holder != "" {
		c.t.Errorf("%s is still open for %s", name, f.holder)
	}
	var data []byte
	for _, b := range f.blocks {
		if !c.stored(b) {
			c.t.Fatalf("block %d of %s is stored nowhere", b.id, name)
		}
		for _, n := range b.nodes[1:] {
			if !bytes.Equal(n.bytes(b.id), b.nodes[0].bytes(b.id)) {
				c.t.Errorf("replicas of block %d differ", b.id)
			}
		}
		data = append(data, b.nodes[0].bytes(b.id)...)
	}
	return data
}

// replicas is how many datanodes hold each block of a file.
func (c *cluster) replicas(name string) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n []int
	for _, b := range c.files[name].blocks {
		c.stored(b)
		n = append(n, len(b.nodes))
	}
	return n
}

var errInjected = errors.New("as the test wants it")

func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

func sameBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: %d bytes, want %d; the first that differs is at %d", what, len(got), len(want), i)
		}
	}
	t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
}
