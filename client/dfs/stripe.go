package dfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// stripesAhead is how many stripes of a group are in memory: one is filled while the one before is sent.
const stripesAhead = 2

// groupWriter writes one block group: its data goes round the internal blocks in cells, and with the last cell of a stripe goes the parity. Each
// internal block is sent to a datanode of its own by a goroutine of its own (unit.go).
//
//	put ──▶ cells of the stripe being filled ──full──▶ queue of the unit ──▶ datanode
//	                 ╰─ all full: parity ─────────────▶ queues of the parity units
//
// An internal block whose datanode fails is given up, as many as the policy has parity; what the others have is enough. The group gets another
// generation then before its end, so that the namenode can tell what a failed datanode kept. The methods are called by whoever has the Writer's
// turn. mu guards what the goroutines of the units and the watch share.
type groupWriter struct {
	w      *Writer
	c      *Client
	coder  *erasure.Coder
	layout stripe.Layout
	token  *hadooppb.TokenProto
	units  []*unitWriter // by number; nil: there is no datanode for it
	length int64         // of the data put
	now    *stripeCells  // being filled; nil: none

	life context.Context // ends with the writer's, or when the group is given up
	kill context.CancelFunc
	// going are the goroutines of the units and of the watch.
	going sync.WaitGroup

	mu      sync.Mutex
	moved   *sync.Cond                   // anything below, or of a unit, has changed
	stripes int                          // in memory
	block   *hadooppb.ExtendedBlockProto // changed by who has the turn, who may read it without mu
}

// stripeCells are the cells of a stripe in memory.
type stripeCells struct {
	cells [][]byte // by unit; nil: nothing of it yet
	// users are the units that have not sent theirs, and who fills the stripe. Guarded by the group's mu.
	users int
}

// newGroup prepares to write a located group.
func newGroup(w *Writer, b *hadooppb.LocatedBlockProto) (*groupWriter, error) {
	g := &groupWriter{w: w, c: w.c, coder: w.coder, layout: w.coder.Layout(), block: b.GetB(), token: tokenOf(b.GetBlockToken())}
	g.moved = sync.NewCond(&g.mu)
	g.units = make([]*unitWriter, g.layout.Units())
	locs, indices, tokens := b.GetLocs(), b.GetBlockIndices(), b.GetBlockTokens()
	bad := func(why string) error {
		return &Error{Op: "write", Path: w.path, Kind: metadata.ErrIO, Message: "the namenode gave a block group " + why}
	}
	if len(indices) != len(locs) {
		return nil, bad(fmt.Sprintf("of %d datanodes and %d numbers", len(locs), len(indices)))
	}
	for i, at := range indices {
		if int(at) >= len(g.units) || g.units[at] != nil {
			return nil, bad(fmt.Sprintf("in which internal block %d stands twice, or is none", at))
		}
		u := &unitWriter{g: g, number: int(at), node: locs[i], token: g.token, block: &hadooppb.ExtendedBlockProto{
			PoolId: g.block.PoolId, BlockId: new(g.block.GetBlockId() + uint64(at)), GenerationStamp: g.block.GenerationStamp, NumBytes: new(uint64(0)),
		}}
		if i < len(tokens) {
			u.token = tokenOf(tokens[i])
		}
		if i < len(b.GetStorageTypes()) {
			u.kind = &b.StorageTypes[i]
		}
		if i < len(b.GetStorageIDs()) {
			u.volume = &b.StorageIDs[i]
		}
		g.units[at] = u
	}
	for i := range g.layout.Data {
		if g.units[i] == nil {
			return nil, bad(fmt.Sprintf("without a datanode for the data block %d", i))
		}
	}
	g.life, g.kill = context.WithCancel(w.life)
	for _, u := range g.units {
		if u != nil {
			u.begin(g.life)
		}
	}
	context.AfterFunc(g.life, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.moved.Broadcast()
	})
	g.going.Go(g.watch)
	return g, nil
}

// capacity is how much data the group has room for.
func (g *groupWriter) capacity() int64 { return g.layout.Capacity(g.w.blockSize) }

// room is where the next bytes go: what is left of a cell, or less. Errors: the group cannot be gone on with.
func (g *groupWriter) room() ([]byte, error) {
	if g.now == nil {
		if err := g.wait(func() bool { return g.stripes < stripesAhead }); err != nil {
			return nil, err
		}
		g.now = &stripeCells{cells: make([][]byte, g.layout.Units()), users: 1}
		g.mu.Lock()
		g.stripes++
		g.mu.Unlock()
	}
	unit, _ := g.layout.At(g.length)
	if g.now.cells[unit] == nil {
		g.now.cells[unit] = g.c.cell(g.layout.Cell)
	}
	cell := g.now.cells[unit]
	return cell[len(cell):min(g.layout.Cell, int64(len(cell))+g.capacity()-g.length)], nil
}

// grow takes n bytes that were put into the room.
func (g *groupWriter) grow(n int) error {
	unit, _ := g.layout.At(g.length)
	cell := &g.now.cells[unit]
	*cell = (*cell)[:len(*cell)+n]
	g.length += int64(n)
	if int64(len(*cell)) < g.layout.Cell {
		return nil
	}
	g.units[unit].hand(g.now)
	if unit == g.layout.Data-1 {
		return g.endStripe()
	}
	return nil
}

// endStripe sends the parity of the stripe being filled.
func (g *groupWriter) endStripe() error {
	s := g.now
	g.now = nil
	span := len(s.cells[0])
	for i := g.layout.Data; i < len(s.cells); i++ {
		s.cells[i] = g.c.cell(g.layout.Cell)[:span]
	}
	err := g.coder.Encode(s.cells[:g.layout.Data], s.cells[g.layout.Data:])
	if err == nil {
		for _, u := range g.units[g.layout.Data:] {
			if u != nil {
				u.hand(s)
			}
		}
	}
	g.mu.Lock()
	g.releaseLocked(s)
	g.mu.Unlock()
	return err
}

// releaseLocked is said by each user of a stripe in the end. g.mu is held.
func (g *groupWriter) releaseLocked(s *stripeCells) {
	if s.users--; s.users > 0 {
		return
	}
	for _, cell := range s.cells {
		if cell != nil {
			g.c.putCell(cell)
		}
	}
	g.stripes--
	g.moved.Broadcast()
}

// wait returns when ready says so, with g.mu held. Errors: too many internal blocks are lost, or the writer's life is over.
func (g *groupWriter) wait(ready func() bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		switch {
		case g.life.Err() != nil:
			return g.life.Err()
		case len(g.failedLocked()) > g.layout.Parity:
			return g.lostLocked()
		case ready():
			return nil
		}
		g.moved.Wait()
	}
}

// failedLocked are the numbers of the internal blocks that are lost. g.mu is held.
func (g *groupWriter) failedLocked() []int {
	var all []int
	for i, u := range g.units {
		if u == nil || u.err != nil {
			all = append(all, i)
		}
	}
	return all
}

// lostLocked says why the group cannot be gone on with (DFSStripedOutputStream.checkStreamers). g.mu is held.
func (g *groupWriter) lostLocked() error {
	failed := g.failedLocked()
	var causes []string
	for _, i := range failed {
		if u := g.units[i]; u != nil {
			causes = append(causes, fmt.Sprintf("internal block %d at %s: %v", i, g.c.transferAddr(u.node), u.err))
		} else {
			causes = append(causes, fmt.Sprintf("internal block %d: there was no datanode for it", i))
		}
	}
	return &Error{Op: "write", Path: g.w.path, Kind: metadata.ErrIO, Message: fmt.Sprintf("Failed: the number of failed blocks = %d > the number of parity blocks = %d: %s",
		len(failed), g.layout.Parity, strings.Join(causes, "; "))}
}

// finish sends what is left and waits until the datanodes have stored it.
func (g *groupWriter) finish() error {
	if g.now != nil {
		s := g.now
		last, within := g.layout.At(g.length)
		for i := range g.layout.Data {
			if i == last && within%g.layout.Cell > 0 { // the full ones are on their way
				g.units[i].hand(s)
			}
		}
		if err := g.endStripe(); err != nil {
			return err
		}
	}
	if err := g.wait(g.allLocked((*unitWriter).drainedLocked)); err != nil {
		return err
	}
	g.mu.Lock()
	g.block.NumBytes = new(uint64(g.length))
	lost := slices.ContainsFunc(g.units, func(u *unitWriter) bool { return u != nil && u.err != nil })
	g.mu.Unlock()
	if lost {
		return g.renew()
	}
	g.mu.Lock()
	for _, u := range g.units {
		if u != nil && u.begun && u.err == nil {
			u.ending = true
		}
	}
	g.moved.Broadcast()
	g.mu.Unlock()
	// One that fails now has all its data, and the others are enough.
	return g.wait(g.allLocked(func(u *unitWriter) bool { return u.stored }))
}

// allLocked says whether something is true of all internal blocks that are being written.
func (g *groupWriter) allLocked(is func(*unitWriter) bool) func() bool {
	return func() bool {
		for _, u := range g.units {
			if u != nil && u.begun && u.err == nil && !is(u) {
				return false
			}
		}
		return true
	}
}

// renew ends the internal blocks that are left under a new generation, which those that failed do not have, and tells the namenode which they are.
func (g *groupWriter) renew() error {
	for {
		var answer hadooppb.UpdateBlockForPipelineResponseProto
		err := g.c.call(g.life, "write", g.w.path, "updateBlockForPipeline",
			&hadooppb.UpdateBlockForPipelineRequestProto{Block: g.block, ClientName: &g.c.name}, &answer)
		if err != nil {
			return err
		}
		renewed := answer.GetBlock()
		generation := renewed.GetB().GetGenerationStamp()
		g.mu.Lock()
		for i, at := range renewed.GetBlockIndices() {
			if int(at) < len(g.units) && g.units[at] != nil && i < len(renewed.GetBlockTokens()) {
				g.units[at].token = tokenOf(renewed.GetBlockTokens()[i])
			}
		}
		before := len(g.failedLocked())
		var left []*unitWriter
		for _, u := range g.units {
			if u != nil && u.begun && u.err == nil {
				left = append(left, u)
			}
		}
		g.mu.Unlock()
		var closing sync.WaitGroup
		for _, u := range left {
			closing.Go(func() { u.closeAt(generation) })
		}
		closing.Wait()
		if err := g.wait(func() bool { return true }); err != nil {
			return err
		}
		g.mu.Lock()
		again := len(g.failedLocked()) > before
		g.mu.Unlock()
		if !again {
			return g.update(generation)
		}
	}
}

// nobody stands in updatePipeline for the datanode of an internal block that failed (DatanodeID.EMPTY_DATANODE_ID). An empty UUID is a
// NullPointerException of Hadoop's NameNode.
var nobody = &hadooppb.DatanodeIDProto{
	IpAddr: new("null"), HostName: new("null"), DatanodeUuid: new("null"), XferPort: new(uint32(0)), InfoPort: new(uint32(0)), IpcPort: new(uint32(0)),
}

// update tells the namenode of the generation and of the datanodes that have it.
func (g *groupWriter) update(generation uint64) error {
	next := &hadooppb.ExtendedBlockProto{PoolId: g.block.PoolId, BlockId: g.block.BlockId, GenerationStamp: &generation, NumBytes: g.block.NumBytes}
	request := &hadooppb.UpdatePipelineRequestProto{ClientName: &g.c.name, OldBlock: g.block, NewBlock: next}
	for _, u := range g.units {
		id, volume := nobody, ""
		if u != nil && u.stored {
			id = u.node.GetId()
			if u.volume != nil {
				volume = *u.volume
			}
		}
		request.NewNodes, request.StorageIDs = append(request.NewNodes, id), append(request.StorageIDs, volume)
	}
	if err := g.c.call(g.life, "write", g.w.path, "updatePipeline", request, new(hadooppb.UpdatePipelineResponseProto)); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.block = next
	return nil
}

// named is the group as requests name it.
func (g *groupWriter) named() *hadooppb.ExtendedBlockProto {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &hadooppb.ExtendedBlockProto{PoolId: g.block.PoolId, BlockId: g.block.BlockId, GenerationStamp: g.block.GenerationStamp, NumBytes: new(uint64(0))}
}

// failedNodes are the datanodes that the next group had better not be on.
func (g *groupWriter) failedNodes() []*hadooppb.DatanodeInfoProto {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*hadooppb.DatanodeInfoProto
	for _, u := range g.units {
		if u != nil && u.err != nil {
			all = append(all, u.node)
		}
	}
	return all
}

// close ends all connections, and waits for the goroutines.
func (g *groupWriter) close() {
	g.kill()
	g.going.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, u := range g.units {
		if u != nil {
			u.dropLocked()
		}
	}
	if g.now != nil {
		g.releaseLocked(g.now)
		g.now = nil
	}
}

// watch gives up datanodes that are silent while others are not, and keeps idle ones from giving up the client, as a pipeline's does.
func (g *groupWriter) watch() {
	t := g.c.times
	patience := g.c.patience(1)
	stall := min(t.stall, patience)
	asked := time.Time{}
	tick := time.NewTicker(max(min(t.heartbeat, stall)/2, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-g.life.Done():
			return
		case <-tick.C:
		}
		var waiting, writing, all []*unitWriter
		g.mu.Lock()
		for _, u := range g.units {
			if u == nil || !u.begun || u.err != nil {
				continue
			}
			all = append(all, u)
			if u.stored {
				continue
			}
			writing = append(writing, u)
			if since := u.silentLocked(); since >= stall {
				waiting = append(waiting, u)
			}
		}
		g.mu.Unlock()
		for _, u := range writing {
			u.beat(t.heartbeat)
		}
		if len(waiting) == 0 {
			continue
		}
		for _, u := range waiting {
			g.mu.Lock()
			silent := u.silentLocked()
			g.mu.Unlock()
			if silent >= patience {
				u.fail(silence(g.c.transferAddr(u.node), silent))
			}
		}
		if time.Since(asked) < stall {
			continue
		}
		nodes := make([]*hadooppb.DatanodeInfoProto, len(all))
		for i, u := range all {
			nodes[i] = u.node
		}
		silent := g.c.silent(g.life, nodes, g.named(), g.token)
		for _, at := range silent {
			u := all[at]
			g.mu.Lock()
			still := u.silentLocked() >= stall // it may have been heard of meanwhile
			g.mu.Unlock()
			if still && len(silent) < len(all) && slices.Contains(waiting, u) {
				u.fail(silence(g.c.transferAddr(u.node), stall))
			}
		}
		asked = time.Now()
	}
}

// cell takes a buffer of a cell's length, empty.
func (c *Client) cell(size int64) []byte {
	if b, ok := c.cells.Get().(*[]byte); ok && int64(cap(*b)) >= size {
		return (*b)[:0:size]
	}
	return make([]byte, 0, size)
}

func (c *Client) putCell(b []byte) { c.cells.Put(&b) }

// addStriped is add for a file with a policy.
func (w *Writer) addStriped(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if err := w.haveGroup(); err != nil {
			return n, w.fail(err)
		}
		room, err := w.group.room()
		if err != nil {
			return n, w.fail(err)
		}
		m := copy(room, p[n:])
		if err := w.group.grow(m); err != nil {
			return n, w.fail(err)
		}
		n += m
		w.length.Add(int64(m))
		if w.group.length == w.group.capacity() {
			if err := w.finishGroup(); err != nil {
				return n, w.fail(err)
			}
		}
	}
	return n, nil
}

// haveGroup begins a group if none is being written.
func (w *Writer) haveGroup() error {
	if w.group != nil {
		return nil
	}
	if err := w.sealed(); err != nil {
		return err
	}
	b, err := w.addGroup()
	if err != nil {
		return err
	}
	// One that was slow to answer a reader may be all that a group lacks: who turns to others for want of a word has no others here.
	for try := 0; try < wholeTries && len(b.GetLocs()) < w.coder.Layout().Units() && w.pardoned(w.life); try++ {
		if err := w.giveBack(b.GetB()); err != nil {
			if _, refused := errors.AsType[*Error](err); !refused || w.life.Err() != nil { // without an answer nobody knows whether the group is still there
				return err
			}
			w.log(w.life, "a group that lacks datanodes is written, because it was not taken back", "path", w.path, "error", err)
			break
		}
		if b, err = w.addGroup(); err != nil {
			return err
		}
	}
	w.group, err = newGroup(w, b)
	return err
}

// addGroup gets the next group from the namenode. Where nobody is left but datanodes that failed or are silent, they get another chance.
func (w *Writer) addGroup() (*hadooppb.LocatedBlockProto, error) {
	b, err := w.addBlock(w.life, false)
	if err != nil && len(w.without) > 0 && errors.Is(err, metadata.ErrIO) && w.life.Err() == nil {
		w.exclude, w.lastResort = nil, true
		b, err = w.addBlock(w.life, false)
	}
	return b, err
}

// wholeTries is how often a group is asked for once more that lacks datanodes which have shown to be well since.
const wholeTries = 3

// finishGroup sends what is left of the group and waits until it is stored.
func (w *Writer) finishGroup() error {
	g := w.group
	if err := g.finish(); err != nil {
		return err
	}
	w.exclude = append(w.exclude, g.failedNodes()...)
	w.last, w.group, w.lastResort, w.unseen = g.block, nil, false, true
	g.close()
	return nil
}
