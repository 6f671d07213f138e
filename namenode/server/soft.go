package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
)

// soft is the state that is not replicated: where blocks are, and who waits for them.
type soft struct {
	mu      sync.Mutex
	m       *blockmanager.Manager
	waiting map[metadata.BlockID][]*waiter
	// patience is how long a call waits for replicas to be reported before it tells the client to ask again, and whole how long an exchange of blocks does for all of the new ones.
	patience, whole time.Duration
	given           []string // the datanodes that m knows to be given up
	// ends are the open ends of files with an erasure coding policy that nobody writes to, with their inodes.
	ends    map[metadata.BlockID]metadata.INodeID
	listing *listing // of the blocks, in the background; nil: m knows all of them
}

// listing tells the block manager of the blocks that were there when it began. Of what commands do meanwhile it is told by their effects, which are
// newer than what the listing finds.
type listing struct {
	gone   map[metadata.BlockID]struct{} // blocks removed since
	listed int
}

// waiter waits for blocks to become durable enough.
type waiter struct {
	blocks []metadata.Block
	enough enough
	// lacking are those that were not durable enough when they were last looked at.
	lacking map[metadata.BlockID]metadata.Block
	done    func(durable bool)
	timer   *time.Timer
	over    bool
}

// enough reports whether a block is durable enough. places is how many datanodes could have replicas, which is counted once for as many blocks as are looked at together.
type enough func(b metadata.Block, places func() int) bool

func (f *soft) init(c blockmanager.Config) {
	f.m = blockmanager.New(c)
	f.m.Pause(true)
	f.waiting = map[metadata.BlockID][]*waiter{}
	f.ends = map[metadata.BlockID]metadata.INodeID{}
	f.patience, f.whole = time.Second, 10*time.Second
}

// await calls done(true) when all blocks have the minimum of replicas, done(false) after patience.
func (f *soft) await(blocks []metadata.Block, done func(bool)) {
	f.awaitAll(blocks, &f.patience, func(b metadata.Block, _ func() int) bool { return f.m.Durable(b) }, done)
}

// awaitAll calls done(true) when enough is true of all blocks, done(false) after patience, which is one of f's. enough is called with f.mu held.
func (f *soft) awaitAll(blocks []metadata.Block, patience *time.Duration, enough enough, done func(bool)) {
	f.mu.Lock()
	w := &waiter{blocks: blocks, enough: enough, done: done}
	if w.durable(f.places()) {
		f.mu.Unlock()
		done(true)
		return
	}
	for _, b := range blocks {
		f.waiting[b.ID] = append(f.waiting[b.ID], w)
		f.m.Watch(b.ID)
	}
	w.timer = time.AfterFunc(*patience, func() { f.end(w) })
	f.mu.Unlock()
}

// places counts the datanodes that could have replicas when it is first asked. f.mu is held as long as it is in use.
func (f *soft) places() func() int { return sync.OnceValue(f.m.Places) }

// durable looks at all blocks.
func (w *waiter) durable(places func() int) bool {
	w.lacking = nil
	for _, b := range w.blocks {
		if w.enough(b, places) {
			continue
		}
		if w.lacking == nil {
			w.lacking = map[metadata.BlockID]metadata.Block{}
		}
		w.lacking[b.ID] = b
	}
	return len(w.lacking) == 0
}

// end ends a wait in vain.
func (f *soft) end(w *waiter) {
	f.mu.Lock()
	over := w.over
	if !over {
		f.forget(w)
	}
	f.mu.Unlock()
	if !over {
		w.done(false)
	}
}

// forget takes a waiter off the lists. f.mu is held.
func (f *soft) forget(w *waiter) {
	w.over = true
	w.timer.Stop()
	for _, b := range w.blocks {
		f.m.Unwatch(b.ID)
		left := slices.DeleteFunc(f.waiting[b.ID], func(x *waiter) bool { return x == w })
		if len(left) == 0 {
			delete(f.waiting, b.ID)
		} else {
			f.waiting[b.ID] = left
		}
	}
}

// satisfied collects the waiters whose blocks have become durable. Of those that lack something it looks at the blocks only about which something has arrived, each once; at all of them when nothing
// seems to be lacking, as what was enough may have gone since. f.mu is held; the caller calls their done after it has let go.
func (f *soft) satisfied() []*waiter { return f.arrived(f.m.Satisfied()) }

// arrived is satisfied for blocks about which something has arrived.
func (f *soft) arrived(ids []metadata.BlockID) []*waiter {
	slices.Sort(ids)
	places := f.places()
	var ready, out []*waiter
	for _, id := range slices.Compact(ids) {
		for _, w := range f.waiting[id] {
			b, lacks := w.lacking[id]
			if !lacks || !w.enough(b, places) {
				continue
			}
			if delete(w.lacking, id); len(w.lacking) == 0 {
				ready = append(ready, w)
			}
		}
	}
	for _, w := range ready {
		if w.durable(places) {
			f.forget(w)
			out = append(out, w)
		}
	}
	return out
}

// abandon ends all waits in vain.
func (f *soft) abandon() {
	f.mu.Lock()
	var all []*waiter
	for _, list := range f.waiting {
		for _, w := range slices.Clone(list) {
			if !w.over {
				w.over = true
				all = append(all, w)
			}
		}
	}
	for _, w := range all {
		f.forget(w)
	}
	f.mu.Unlock()
	for _, w := range all {
		w.done(false)
	}
}

func wake(ws []*waiter) {
	for _, w := range ws {
		w.done(true)
	}
}

// blockOfOwner is a block in the words of the block manager.
func blockOfOwner(o namespace.BlockOwner) blockmanager.Block {
	return blockmanager.Block{Block: o.Block, Replication: int(o.Replication), Policy: o.Policy, Erasure: o.Erasure, Open: o.UnderConstruction}
}

// put tells the block manager of a block. f.mu is held.
func (f *soft) put(now time.Time, o namespace.BlockOwner) {
	f.m.Put(now, blockOfOwner(o))
	if o.OpenEnd && !o.UnderConstruction {
		f.ends[o.Block.ID] = o.INode
	} else {
		delete(f.ends, o.Block.ID)
	}
}

// relist begins to list the blocks of the namespace: at the start, and when a snapshot has taken its place.
func (s *Server) relist() {
	s.soft.mu.Lock()
	s.soft.m.Reset()
	s.soft.m.List(true)
	clear(s.soft.ends)
	s.soft.listing = &listing{gone: map[metadata.BlockID]struct{}{}}
	s.listing.Store(true)
	s.soft.mu.Unlock()
	select {
	case s.list <- struct{}{}:
	default:
	}
}

// listBlocks carries listings out until ctx is done. The one that is current ends what the one before has not done.
func (s *Server) listBlocks(ctx context.Context) error {
	f := &s.soft
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.list:
		}
		began := time.Now()
		f.mu.Lock()
		l := f.listing
		f.mu.Unlock()
		if l == nil {
			continue
		}
		err := s.ns.EachBlock(func(o namespace.BlockOwner) bool { return ctx.Err() == nil && s.listed(l, o) })
		if err != nil {
			return fmt.Errorf("list the blocks of the namespace: %w", err)
		}
		f.mu.Lock()
		ended := f.listing == l && ctx.Err() == nil
		if ended {
			f.listing = nil
			f.m.List(false)
			s.listing.Store(false)
		}
		f.mu.Unlock()
		if ended {
			s.log.Info("the blocks of the namespace are listed", "blocks", l.listed, "took", time.Since(began).Round(time.Millisecond))
		}
	}
}

// listed takes a block that a listing has found. False: the listing is over.
func (s *Server) listed(l *listing, o namespace.BlockOwner) bool {
	f := &s.soft
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listing != l {
		return false
	}
	l.listed++
	if _, gone := l.gone[o.Block.ID]; !gone && !f.m.Has(o.Block.ID) {
		f.put(time.Now(), o)
	}
	return true
}

// effects tells the block manager what a log entry did to blocks. It runs on the goroutine of Apply.
func (s *Server) effects(e namespace.Effects) {
	if e.Reset {
		if s.feed != nil {
			s.feed.Reset(e.Index)
		}
		if s.search.index != nil {
			s.search.index.Rebuild()
		}
		s.relist()
		s.setCluster(s.ns.ClusterID())
	}
	now := time.Now()
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	for _, o := range e.Added {
		s.soft.put(now, o)
	}
	for _, o := range e.Changed {
		s.soft.put(now, o)
	}
	for _, b := range e.Removed {
		s.soft.m.Remove(b.ID)
		delete(s.soft.ends, b.ID)
		if l := s.soft.listing; l != nil {
			l.gone[b.ID] = struct{}{}
		}
	}
}

// locateFor is locate for a caller who may read the file, and gets tokens to do so.
func (s *Server) locateFor(c *metadata.Caller, f *namespace.FileBlocks) (*namenode.LocatedFile, error) {
	out := new(namenode.LocatedFile)
	if err := s.locateInto(out, c, f); err != nil {
		return nil, err
	}
	return out, nil
}

// locateInto is locateFor in memory that there is; where it fails there is nothing of use in it.
func (s *Server) locateInto(out *namenode.LocatedFile, c *metadata.Caller, f *namespace.FileBlocks) error {
	if err := s.locate(out, f, c); err != nil {
		return err
	}
	for i := range out.Blocks {
		s.signRead(c, &out.Blocks[i])
	}
	if l := out.Last; l != nil && l.Token.Identifier == nil {
		s.signRead(c, l)
	}
	return nil
}

// signRead gives a block, and each internal block of a group, a token to read it.
func (s *Server) signRead(c *metadata.Caller, l *namenode.LocatedBlock) {
	l.Token = s.sign(c, l.Block.ID, security.ReadBlock)
	for _, unit := range l.Units {
		l.UnitTokens = append(l.UnitTokens, s.sign(c, l.Block.ID.Internal(int(unit)), security.ReadBlock))
	}
}

// place adds the places of a block, and reports whether it can be read from them. s.soft.mu is held.
func (s *Server) place(l *namenode.LocatedBlock, code metadata.ErasurePolicyID, reader string) (enough bool) {
	policy, coded := metadata.ErasurePolicyOf(code)
	if !l.Block.ID.Striped() || !coded {
		l.Locations, l.Corrupt = s.soft.m.Locate(l.Block.ID, reader)
		return len(l.Locations) > 0
	}
	var parts []blockmanager.Placed
	parts, l.Corrupt = s.soft.m.LocateGroup(l.Block.ID, reader)
	l.Units = make([]byte, 0, len(parts))
	for _, p := range parts {
		l.Locations, l.Units = append(l.Locations, p.Location), append(l.Units, byte(p.Unit))
	}
	return len(parts) > 0 && len(parts) >= min(policy.Layout.Data, policy.Layout.Used(l.Block.Length)-policy.Layout.Parity)
}

// locate makes out, which is empty, a file with the places of its blocks for a reader. Who asks a namenode that does not lead, and knows no place of one, is to ask the one that does: it may
// have heard of it.
func (s *Server) locate(out *namenode.LocatedFile, f *namespace.FileBlocks, c *metadata.Caller) error {
	blocks := out.Blocks[:0]
	if n := len(f.Blocks); cap(blocks) < n {
		blocks = make([]namenode.LocatedBlock, n)
	} else {
		blocks = blocks[:n]
	}
	out.Status, out.Length, out.UnderConstruction, out.LastComplete, out.Blocks = f.Status, f.Length, f.UnderConstruction, f.LastComplete, blocks
	nowhere, unheard, small := false, false, false
	s.soft.mu.Lock()
	datanodes := s.soft.m.Registered()
	for i, b := range f.Blocks {
		l := &out.Blocks[i]
		l.Block, l.Offset, l.Small = b.Block, b.Offset, b.Small
		if b.Small {
			small = true
			continue
		}
		enough := s.place(l, f.Status.Erasure, c.Host)
		unheard = unheard || !enough
		nowhere = nowhere || !enough && b.Complete
	}
	if f.Last != nil {
		if n := len(out.Blocks); n > 0 && out.Blocks[n-1].Block.ID == f.Last.Block.ID {
			out.Last = &out.Blocks[n-1]
		} else {
			l := &namenode.LocatedBlock{Block: f.Last.Block, Offset: f.Last.Offset, Small: f.Last.Small}
			small = small || l.Small
			enough := l.Small || s.place(l, f.Status.Erasure, c.Host)
			unheard = unheard || !enough
			out.Last = l
		}
	}
	s.soft.mu.Unlock()
	if small {
		s.placeSmall(out, datanodes)
	}
	switch {
	case c.Local && unheard:
		return namenode.ErrRetryOnActive
	case nowhere:
		// Soon after the start a missing replica is most likely one that was not reported yet.
		return s.safe.check(s)
	}
	return nil
}
