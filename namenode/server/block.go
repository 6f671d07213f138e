package server

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
	"github.com/gohops/hops/namenode/placement"
)

// file finds the inode that a request means.
func (s *Server) file(c metadata.Caller, f namenode.FileRef) (metadata.INodeID, error) {
	if f.INode != 0 {
		return f.INode, nil
	}
	return s.ns.Resolve(c, f.Path)
}

// AddBlock implements namenode.Writer. A leader's own state has everything that it has acknowledged, so what is checked
// before the command needs no round to the others; the command checks the lease again.
func (s *Server) AddBlock(c metadata.Caller, r namenode.AddBlockRequest, done func(*namenode.LocatedBlock, error)) {
	reign, err := s.leading()
	if err == nil {
		err = s.safe.check(s)
	}
	var id metadata.INodeID
	if err == nil {
		id, err = s.file(c, r.File)
	}
	if err == nil {
		err = s.ns.CheckLease(c, id, r.Client)
	}
	if err != nil {
		done(nil, err)
		return
	}
	f, ok := s.ns.FileByID(id)
	if !ok {
		done(nil, metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s (inode %d)", r.File.Path, id))
		return
	}
	if err := s.mayGrow(f, r.Previous); err != nil {
		done(nil, err)
		return
	}
	// The block before the one just finished must be safe before a third is begun.
	if n := len(f.Blocks); n >= 2 && !f.IsBody(n-2) && r.Previous != nil && r.Previous.ID == f.Blocks[n-1].ID {
		s.soft.await(f.Blocks[n-2:n-1], func(durable bool) {
			if !durable {
				done(nil, s.orStandby(metadata.Errorf(metadata.ErrNotReplicatedYet, "Not replicated yet: %s", f.Path)))
				return
			}
			s.allocate(reign, c, id, f, r, done)
		})
		return
	}
	s.allocate(reign, c, id, f, r, done)
}

// orStandby is err, unless this namenode has ceased to lead meanwhile.
func (s *Server) orStandby(err error) error {
	if s.reign.Load() == nil {
		return namenode.ErrStandbyWrite
	}
	return err
}

func (s *Server) allocate(r *reign, c metadata.Caller, id metadata.INodeID, f *namespace.FileInfo, req namenode.AddBlockRequest, done func(*namenode.LocatedBlock, error)) {
	want := placement.Request{
		Want: int(f.Status.Replication), BlockSize: f.Status.BlockSize, Writer: c.Host, NoLocal: req.NoLocal,
		Favoured: req.Favoured, Exclude: req.Exclude, Policy: namenode.StoragePolicyByID(s.placing(f)),
	}
	if door := namenode.WriterNode(req.Client); door != "" { // of several datanodes of a host the one that has the bytes already
		want.Writer = string(door)
	}
	if req.Anywhere {
		want.Writer = ""
	}
	kind := blockID
	policy, coded := metadata.ErasurePolicyOf(f.Status.Erasure)
	if coded && want.Policy.Types[0] == namenode.RAMDisk { // of a group nothing is written to memory first
		want.Policy = namenode.HotPolicy
	}
	switch {
	case req.Tail && (!coded || s.group.Level() < release.SealedTails):
		done(nil, metadata.Errorf(metadata.ErrUnsupported, "%s cannot end with a replicated block: it has no erasure coding policy, or the cluster is below level %d", f.Path, release.SealedTails))
		return
	case req.Tail:
		want.Want, coded = policy.Layout.Parity+1, false
	case coded:
		kind, want.Want, want.Spread = groupID, policy.Layout.Units(), true
	}
	s.soft.mu.Lock()
	choice := s.soft.m.Choose(want)
	s.soft.mu.Unlock()
	if len(choice.Targets) < want.Want {
		s.few.tell(s.log, time.Now(), f.Path, want.Want, choice)
	}
	err := choice.Err(f.Path)
	if coded {
		err = choice.GroupErr(f.Path, policy)
	}
	if err != nil {
		done(nil, err)
		return
	}
	s.newBlock(r, kind, func(b metadata.Block, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		op := &logpb.AddBlock{Inode: uint64(id), ClientName: req.Client, Block: blockOf(b)}
		for _, at := range choice.Targets {
			op.Nodes = append(op.Nodes, string(at.Node.ID))
		}
		if req.Previous != nil {
			op.Previous = blockOf(*req.Previous)
		}
		e := newEnvelope()
		e.command.Op = &logpb.Command_AddBlock{AddBlock: op}
		s.change(&c, namenode.Retry{}, e, func(result *namespace.Result, err error) {
			if err != nil {
				done(nil, err)
				return
			}
			l := &namenode.LocatedBlock{Block: *result.Block, Offset: result.Offset, Locations: choice.Targets}
			if coded {
				s.expectGroup(l, b.ID, policy)
				s.signWrite(&c, l, policy)
				done(l, nil)
				return
			}
			s.soft.mu.Lock()
			if l.Block.ID == b.ID {
				s.soft.m.Expect(b.ID, choice.Targets)
			} else if at, _ := s.soft.m.Locate(l.Block.ID, c.Host); len(at) > 0 {
				l.Locations = at // the request was a repetition, and its block has a pipeline
			} else {
				s.soft.m.Expect(l.Block.ID, choice.Targets)
			}
			s.soft.mu.Unlock()
			l.Token = s.sign(&c, l.Block.ID, security.WriteBlock)
			done(l, nil)
		})
	})
}

// expectGroup notes where the internal blocks of a group are being written to: internal block i at location i. If the group is not the one that was to be
// made, the request was a repetition, and the group may have its places.
func (s *Server) expectGroup(l *namenode.LocatedBlock, made metadata.BlockID, policy metadata.ErasurePolicy) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if l.Block.ID != made {
		before := namenode.LocatedBlock{Block: l.Block}
		if s.place(&before, policy.ID, ""); len(before.Locations) >= policy.Layout.Data {
			l.Locations, l.Units = before.Locations, before.Units
			return
		}
	}
	placed := make([]blockmanager.Placed, len(l.Locations))
	for i, at := range l.Locations {
		placed[i] = blockmanager.Placed{Unit: i, Location: at}
		l.Units = append(l.Units, byte(i))
	}
	s.soft.m.ExpectGroup(l.Block.ID, placed)
}

// signWrite gives a group, and each of its internal blocks, a token to write it. Where no location is told there is one for each number.
func (s *Server) signWrite(c *metadata.Caller, l *namenode.LocatedBlock, policy metadata.ErasurePolicy) {
	l.Token = s.sign(c, l.Block.ID, security.WriteBlock)
	if l.Units == nil {
		for i := range policy.Layout.Units() {
			l.Units = append(l.Units, byte(i))
		}
	}
	for _, unit := range l.Units {
		l.UnitTokens = append(l.UnitTokens, s.sign(c, l.Block.ID.Internal(int(unit)), security.WriteBlock))
	}
}

// AbandonBlock implements namenode.Writer.
func (s *Server) AbandonBlock(c metadata.Caller, f namenode.FileRef, client string, b metadata.Block, done func(error)) {
	id, err := s.file(c, f)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_AbandonBlock{AbandonBlock: &logpb.AbandonBlock{Inode: uint64(id), ClientName: client, Block: blockOf(b)}}
	s.simple(&c, namenode.Retry{}, e, done)
}

// MoreTargets implements namenode.Writer.
func (s *Server) MoreTargets(c metadata.Caller, r namenode.MoreTargetsRequest, done func(*namenode.LocatedBlock, error)) {
	_, err := s.leading()
	if err == nil {
		err = s.safe.check(s)
	}
	var id metadata.INodeID
	if err == nil {
		id, err = s.file(c, r.File)
	}
	if err == nil {
		err = s.ns.CheckLease(c, id, r.Client)
	}
	if err != nil {
		done(nil, err)
		return
	}
	f, ok := s.ns.FileByID(id)
	if !ok {
		done(nil, metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s (inode %d)", r.File.Path, id))
		return
	}
	if n := len(f.Blocks); n == 0 || f.Blocks[n-1].ID != r.Block.ID {
		done(nil, metadata.Errorf(metadata.ErrIO, "block %d is not the last one of %s", r.Block.ID, f.Path))
		return
	}
	if r.Block.ID.Striped() {
		done(nil, metadata.Errorf(metadata.ErrUnsupported, "block group %d of %s is written to one datanode for each internal block: none takes another's place", r.Block.ID, f.Path))
		return
	}
	l := &namenode.LocatedBlock{Block: r.Block, Token: s.sign(&c, r.Block.ID, security.CopyBlock)}
	want := placement.Request{Want: r.Want, BlockSize: f.Status.BlockSize, Exclude: r.Exclude, Policy: namenode.StoragePolicyByID(f.Policy)}
	if want.Policy.Types[0] == namenode.RAMDisk { // what there is may have been synced
		want.Policy = namenode.HotPolicy
	}
	s.soft.mu.Lock()
	for _, e := range r.Existing {
		at, ok := s.soft.m.Location(e.Node.ID, e.Volume)
		if !ok {
			err = metadata.Errorf(metadata.ErrIO, "datanode %s is not registered", e.Node.ID)
			break
		}
		l.Locations = append(l.Locations, at)
		want.Have, want.HaveTypes = append(want.Have, at.Node), append(want.HaveTypes, at.Type)
	}
	if err == nil {
		l.Locations = append(l.Locations, s.soft.m.Choose(want).Targets...)
	}
	s.soft.mu.Unlock()
	if err != nil {
		done(nil, err)
		return
	}
	done(l, nil)
}

// Complete implements namenode.Writer. Whether the blocks have replicas is soft state, which only the leader's block
// manager knows: it is checked here, and the command that closes the file is proposed when they have.
func (s *Server) Complete(c metadata.Caller, ref namenode.FileRef, client string, last *metadata.Block, done func(bool, error)) {
	_, err := s.leading()
	if err == nil {
		err = s.safe.check(s)
	}
	var id metadata.INodeID
	if err == nil {
		id, err = s.file(c, ref)
	}
	if err != nil {
		done(false, err)
		return
	}
	e := newEnvelope()
	e.complete = logpb.Complete{Inode: uint64(id), ClientName: client}
	if last != nil {
		e.complete.Last = blockOf(*last)
	}
	e.command.Op = &e.kinds.complete
	if must := s.mustBeDurable(id, client, last); len(must) > 0 {
		s.completeWhenDurable(c, e, must, done)
		return
	}
	s.yesNo(&c, namenode.Retry{}, e, done)
}

// completeWhenDurable proposes to close a file when its blocks have replicas.
func (s *Server) completeWhenDurable(c metadata.Caller, e *envelope, must []metadata.Block, done func(bool, error)) {
	s.soft.await(must, func(durable bool) {
		if !durable {
			done(false, s.orStandby(nil))
			return
		}
		s.yesNo(&c, namenode.Retry{}, e, done)
	})
}

// mustBeDurable lists the blocks that need replicas before a file may be closed. Those before the last two had them when
// the block after the next was added. What the command will refuse, or has done already, needs none.
func (s *Server) mustBeDurable(id metadata.INodeID, client string, last *metadata.Block) []metadata.Block {
	blocks, state := s.ns.LastBlocks(id, client)
	if len(blocks) == 0 {
		return nil
	}
	stored := &blocks[len(blocks)-1]
	if last != nil {
		if last.ID != stored.ID || last.Generation != stored.Generation {
			return nil
		}
		if state != namespace.Complete {
			stored.Length = last.Length
		}
	} else if state != namespace.Complete {
		return nil // the client has not said how long it is; the command says no
	}
	return blocks
}

// BumpBlock implements namenode.Writer.
func (s *Server) BumpBlock(c metadata.Caller, client string, b metadata.Block, done func(*namenode.LocatedBlock, error)) {
	r, err := s.leading()
	if err == nil {
		err = s.safe.check(s)
	}
	if err == nil {
		err = s.ns.CheckPipeline(c, b, client)
	}
	if err != nil {
		done(nil, err)
		return
	}
	s.newGeneration(r, func(g metadata.Generation, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		b.Generation = g
		l := &namenode.LocatedBlock{Block: b}
		if o, _ := s.ns.BlockOwner(b.ID); o.Erasure != 0 {
			policy, _ := metadata.ErasurePolicyOf(o.Erasure)
			s.signWrite(&c, l, policy)
		} else {
			l.Token = s.sign(&c, b.ID, security.WriteBlock)
		}
		done(l, nil)
	})
}

// UpdatePipeline implements namenode.Writer.
func (s *Server) UpdatePipeline(c metadata.Caller, r namenode.UpdatePipelineRequest, done func(error)) {
	op := &logpb.UpdatePipeline{ClientName: r.Client, OldBlock: blockOf(r.Old), NewBlock: blockOf(r.New)}
	for _, id := range r.Nodes {
		op.Nodes = append(op.Nodes, string(id))
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_UpdatePipeline{UpdatePipeline: op}
	s.change(&c, r.Retry, e, func(_ *namespace.Result, err error) {
		if err != nil {
			done(err)
			return
		}
		var at []namenode.Location
		var placed []blockmanager.Placed // of a group node i has internal block i
		s.soft.mu.Lock()
		for i, id := range r.Nodes {
			var volume namenode.VolumeID
			if i < len(r.Volumes) {
				volume = r.Volumes[i]
			}
			if l, ok := s.soft.m.Location(id, volume); ok {
				at = append(at, l)
				placed = append(placed, blockmanager.Placed{Unit: i, Location: l})
			}
		}
		if r.New.ID.Striped() {
			s.soft.m.ExpectGroup(r.New.ID, placed)
		} else {
			s.soft.m.Expect(r.New.ID, at)
		}
		s.soft.mu.Unlock()
		done(nil)
	})
}

// Fsync implements namenode.Writer.
func (s *Server) Fsync(c metadata.Caller, f namenode.FileRef, client string, length int64, done func(error)) {
	id, err := s.file(c, f)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_Fsync{Fsync: &logpb.Fsync{Inode: uint64(id), ClientName: client, LastBlockLength: length}}
	s.simple(&c, namenode.Retry{}, e, done)
}

// DoorFor implements namenode.Cluster.
func (s *Server) DoorFor(c metadata.Caller, r namenode.DoorRequest, done func(*namenode.Node, error)) {
	excluded := func(n *namenode.Node) bool {
		return slices.Contains(r.Exclude, n.TransferAddr()) || slices.Contains(r.Exclude, n.IP) || slices.Contains(r.Exclude, n.Host) || n.HTTPPort == 0
	}
	anyDoor := func() (*namenode.Node, error) {
		s.soft.mu.Lock()
		defer s.soft.mu.Unlock()
		want := placement.Request{Want: 1, BlockSize: 1, Writer: c.Host}
		for _, n := range s.soft.m.Nodes() {
			if excluded(n.Node) {
				want.Exclude = append(want.Exclude, n.Node.ID)
			}
		}
		choice := s.soft.m.Choose(want)
		if len(choice.Targets) > 0 {
			return choice.Targets[0].Node, nil
		}
		kind := metadata.ErrIO
		if choice.Live == 0 { // as when all of the cluster has just started: clients may wait for one
			kind = metadata.ErrRetriable
		}
		return nil, metadata.Errorf(kind, "Failed to find datanode, suggest to check cluster health. excludeDatanodes=%v", r.Exclude)
	}
	if !r.Read {
		if _, err := s.leading(); err != nil {
			done(nil, err)
			return
		}
		done(anyDoor())
		return
	}
	s.read(&c, func(err error) {
		var f *namespace.FileBlocks
		if err == nil {
			f, err = s.ns.Blocks(c, r.Path, r.Offset, 1)
		}
		l := new(namenode.LocatedFile)
		if err == nil {
			err = s.locate(l, f, &c)
		}
		if err != nil {
			done(nil, err)
			return
		}
		if len(l.Blocks) > 0 {
			for _, at := range l.Blocks[0].Locations {
				if !excluded(at.Node) {
					done(at.Node, nil)
					return
				}
			}
		}
		done(anyDoor())
	})
}

// fewEvery is how often it is said that blocks get fewer datanodes than they want.
const fewEvery = 10 * time.Second

// few tells of blocks that get fewer datanodes than they want.
type few struct {
	mu   sync.Mutex
	said time.Time
	more int // of which nothing was said since
}

func (f *few) tell(log *slog.Logger, now time.Time, path string, want int, c placement.Choice) {
	f.mu.Lock()
	if now.Sub(f.said) < fewEvery {
		f.more++
		f.mu.Unlock()
		return
	}
	more := f.more
	f.said, f.more = now, 0
	f.mu.Unlock()
	log.Warn("a block gets fewer datanodes than it wants", "path", path, "want", want, "chosen", len(c.Targets), "live", c.Live, "excluded", c.Excluded,
		"refused", c.Reasons.String(), "blocks_before", more)
}
