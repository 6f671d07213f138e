package dfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// window is how many packets may be under way; with 64 KiB each, 5 MiB, as in Hadoop.
	window = 80
	// windowBytes is how much data may be under way in packets that are larger.
	windowBytes = window * dtp.DataSize
	// windowNear is the same where there is one datanode, of this machine: what is under way stays in a processor's cache, and
	// acknowledgements come at once.
	windowNear = 2 << 20
)

// blockState is where the writing of a block stands. What is not in it follows from the queue, the generation and the
// counters of blockWriter.
//
//	state      datanodes have                  pipeline  goes on with
//	---------  ------------------------------  --------  ----------------------------------------------------------------
//	new        nothing                         none      open → streaming; sent whole → stored; cut short → spoilt
//	spoilt     perhaps something               none      given back to the namenode → abandoned
//	abandoned  nothing that counts             none      another block with the same bytes takes its place
//	reopening  a finalized replica (append)    none      a new generation is had → repairing, or it is refused → lost
//	streaming  a replica that grows            up        end queued → ending; fault → broken; cut short → repairing
//	ending     all data, or it is in the queue up        end acknowledged → stored; fault → broken; cut short → repairing
//	broken     as before, one of them failed   none      the one at fault leaves → repairing, or nobody is left → lost;
//	                                                     the end is acknowledged all the same → stored
//	repairing  as before                       none      set up anew → streaming, ending or stored; fault → broken;
//	                                                     the namenode refuses → lost; cut short → repairing
//	stored     the finalized block             none      -
//	lost       nothing that can be gone on     none      -, and every call says why
//
// "Cut short" means that the context of a call has ended: nobody is at fault, and the next call goes on from there. lost
// and stored are left for nothing.
type blockState uint8

const (
	blockNew blockState = iota
	blockSpoilt
	blockAbandoned
	blockReopening
	blockStreaming
	blockEnding
	blockBroken
	blockRepairing
	blockStored
	blockLost
	blockStates int = iota
)

func (s blockState) String() string {
	return [...]string{"new", "spoilt", "abandoned", "reopening", "streaming", "ending", "broken", "repairing", "stored", "lost"}[s]
}

// blockMoves are the transitions of the table, as sets of states by the state before.
var blockMoves = [blockStates]uint16{
	blockNew:       1<<blockStreaming | 1<<blockStored | 1<<blockSpoilt,
	blockSpoilt:    1 << blockAbandoned,
	blockReopening: 1<<blockRepairing | 1<<blockLost,
	blockStreaming: 1<<blockEnding | 1<<blockBroken | 1<<blockRepairing | 1<<blockLost,
	blockEnding:    1<<blockStored | 1<<blockBroken | 1<<blockRepairing | 1<<blockLost,
	blockBroken:    1<<blockRepairing | 1<<blockStored | 1<<blockLost,
	blockRepairing: 1<<blockStreaming | 1<<blockEnding | 1<<blockStored | 1<<blockBroken | 1<<blockLost,
}

// blockMoved hears of every transition; only tests set it.
var blockMoved func(from, to blockState)

// outPacket is a packet being filled, sent, or kept until it is acknowledged.
type outPacket struct {
	*dtp.Builder
	sum   dtp.Checksum
	seqno int64
	start int64 // in the block
	last  bool
	large bool // of the client's large ones
}

func (p *outPacket) end() int64 { return p.start + int64(p.Len()) }

// blockWriter writes one block. Packets go out on the goroutine that writes. A packet stays in the queue until every
// datanode has it, so that it can be sent again through another pipeline (recovery.go).
//
//	filling ──full, flush──▶ queue: [unacknowledged ... ] ──ack──▶ free
//	                          │ sent once, in order, through each pipeline (pipeline.sendDue)
//	                          ╰ after a recovery that is once more
//
// The methods are called by whoever has the Writer's turn. mu guards what the goroutines of the pipeline (pipeline.go)
// share.
type blockWriter struct {
	w      *Writer
	c      *Client
	token  *hadooppb.TokenProto
	nodes  []*hadooppb.DatanodeInfoProto
	types  []hadooppb.StorageTypeProto
	ids    []string
	failed []*hadooppb.DatanodeInfoProto // nodes that left the pipeline
	// returning are those of failed that may come back with the next generation; returned, by their ids, had their chance.
	returning []*hadooppb.DatanodeInfoProto
	returned  []string

	appended bool   // opened for append
	base     uint64 // the generation that it was opened with
	promised bool   // to a flush: somebody counts on what is written
	told     uint64 // the generation that the namenode has been told to have such bytes

	filling *outPacket
	prefix  int   // bytes of filling that have been sent before
	sent    int64 // bytes of the block in packets that have been queued
	synced  int64 // of which a packet says that they have to be on disk
	seqno   int64 // of the next packet

	fruitless int   // recoveries without progress
	progress  int64 // acknowledged at the last recovery

	mu       sync.Mutex
	moved    *sync.Cond // state, queue or ackedSeq has changed
	state    blockState
	failure  *pipelineError               // of blockBroken
	err      error                        // of blockLost
	pipe     *pipeline                    // nil while there is none
	lent     bool                         // a pipeline within this process was broken off: its datanode may still read what it was lent
	block    *hadooppb.ExtendedBlockProto // NumBytes is what is acknowledged
	queue    []*outPacket
	ackedSeq int64
	most     int64 // how many bytes may be under way through the pipeline
	// cutShort: the context that bounds the call which has the turn has ended.
	cutShort bool
	// waiting is since when the first packet of the queue is waited for, if it has been sent.
	waiting time.Time
}

// newBlockWriter prepares to write a located block. appended: its bytes so far stay.
func newBlockWriter(w *Writer, b *hadooppb.LocatedBlockProto, appended bool) *blockWriter {
	bw := &blockWriter{
		w: w, c: w.c,
		block:    b.GetB(),
		base:     b.GetB().GetGenerationStamp(),
		token:    tokenOf(b.GetBlockToken()),
		appended: appended,
		ackedSeq: -1,
	}
	bw.moved = sync.NewCond(&bw.mu)
	bw.adopt(b)
	if appended {
		bw.state = blockReopening
		bw.sent = int64(b.GetB().GetNumBytes())
		bw.synced = bw.sent
	} else {
		bw.block.NumBytes = new(uint64(0))
	}
	bw.progress = -1
	w.large.Store(false) // until this block's datanodes have said so
	bw.begin(bw.sent, nil, false)
	return bw
}

// adopt takes over the datanodes of b.
func (b *blockWriter) adopt(l *hadooppb.LocatedBlockProto) {
	b.nodes = slices.Clone(l.GetLocs())
	b.types = slices.Clone(l.GetStorageTypes())
	b.ids = slices.Clone(l.GetStorageIDs())
	if len(b.types) != len(b.nodes) {
		b.types = nil
	}
	if len(b.ids) != len(b.nodes) {
		b.ids = nil
	}
}

// moveLocked goes to another state. b.mu is held.
func (b *blockWriter) moveLocked(to blockState) {
	if blockMoved != nil && b.state != to {
		blockMoved(b.state, to)
	}
	b.state = to
	b.moved.Broadcast()
}

func (b *blockWriter) move(to blockState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moveLocked(to)
}

// at is the state.
func (b *blockWriter) at() blockState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// up reports whether packets can be sent. b.mu is held.
func (b *blockWriter) upLocked() bool { return b.state == blockStreaming || b.state == blockEnding }

// untouched reports whether an append has not changed the block yet.
func (b *blockWriter) untouched() bool { return b.appended && b.block.GetGenerationStamp() == b.base }

// empty reports whether nothing was written to a block, which is not an older one that was opened again.
func (b *blockWriter) empty() bool { return !b.appended && b.sent == 0 && b.filling.Len() == 0 }

// acked is how many bytes of the block every datanode has.
func (b *blockWriter) acked() int64 { return int64(b.block.GetNumBytes()) }

// lose ends the block for good.
func (b *blockWriter) lose(err error) error {
	b.disconnect()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.moveLocked(blockLost)
	return err
}

// begin starts a packet at an offset of the block with bytes that were sent before. bulk: more comes than a small one holds.
func (b *blockWriter) begin(start int64, prefix []byte, bulk bool) {
	p := b.w.packetOf(bulk)
	p.start = start
	p.Append(prefix)
	b.filling, b.prefix = p, len(prefix)
}

// release gives the packets back.
func (b *blockWriter) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.queue {
		b.free(p)
	}
	b.queue = nil
	if b.filling != nil {
		b.free(b.filling)
		b.filling = nil
	}
}

// free gives a packet back that nobody needs any more, unless a datanode of this process may still be reading it. b.mu is held, or there is
// no pipeline.
func (b *blockWriter) free(p *outPacket) {
	if !b.lent {
		b.c.putPacket(p)
	}
}

// room is how many bytes the packet being filled may still take: up to the packet size, the end of the block, and, if it
// starts inside a chunk, that chunk's end, because such a packet's checksum covers only its own bytes.
func (b *blockWriter) room() int {
	return int(max(min(int64(b.filling.Room()), b.behind(b.filling)), 0))
}

// behind is how many bytes may follow in a packet, however large it is.
func (b *blockWriter) behind(p *outPacket) int64 {
	room := b.w.blockSize - p.end()
	if inside := p.start % int64(b.w.sum.BytesPer); inside != 0 {
		room = min(room, int64(b.w.sum.BytesPer)-inside-int64(p.Len()))
	}
	return room
}

// put copies as much of p as there is room for, and returns how much that is.
func (b *blockWriter) put(p []byte) int { return b.filling.Append(p[:min(len(p), b.room())]) }

// exchange makes p, which has been filled elsewhere, the packet being filled if that is empty and could be filled; false: it
// is not, and the bytes have to be copied.
func (b *blockWriter) exchange(p *outPacket) bool {
	if b.filling.Len() > 0 || b.behind(b.filling) < int64(max(p.Len(), b.filling.Room())) {
		return false
	}
	p.start = b.filling.start
	b.free(b.filling)
	b.filling = p
	return true
}

// send queues the packet being filled, sends it, and begins the next. If the packet ends inside a chunk that it has the
// start of, that chunk is sent again with what follows, so that its checksum can cover all of it.
func (b *blockWriter) send(ctx context.Context, sync bool) error {
	if err := b.await(ctx); err != nil {
		return err
	}
	b.cut(sync)
	return b.transmit(ctx)
}

// cut queues the packet being filled and begins the next one.
func (b *blockWriter) cut(sync bool) {
	p := b.filling
	bytesPer := int64(b.w.sum.BytesPer)
	var tail []byte // stays where it is until p is acknowledged, and so sent, which is later
	next := p.end()
	if start := next - next%bytesPer; start >= p.start && start < next {
		tail = p.Data()[start-p.start:]
		next = start
	}
	b.sent = p.end()
	if sync {
		b.synced = b.sent
	}
	// Who has a packet sent before it is full may do so for long: what waits for the next bytes is a small one.
	bulk := p.Room() == 0 && b.w.large.Load() && b.w.length.Load() >= largeFrom
	b.enqueue(p, dtp.Header{Sync: sync})
	b.begin(next, tail, bulk)
}

// await waits for room in the window. A pipeline that breaks makes room: what is queued is sent again anyhow.
func (b *blockWriter) await(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for (len(b.queue) >= window || len(b.queue) > 0 && b.sent-b.acked() >= b.most) && b.upLocked() && ctx.Err() == nil {
		b.moved.Wait()
	}
	return ctx.Err()
}

// boundBy ends the waits of the call that has the turn when ctx ends: for acknowledgements, and for a pipeline that takes no
// packets, which is broken for that. release says that the call is over. What the life of the writer ends needs no such
// thing: abandon breaks the pipeline.
func (b *blockWriter) boundBy(ctx context.Context) (release func()) {
	stop := context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.cutShort = true
		if b.pipe != nil && b.pipe.sending {
			b.pipe.cutLocked(context.Cause(ctx))
		}
		b.moved.Broadcast()
	})
	return func() {
		if stop() {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for !b.cutShort { // it is on its way, and must not come upon a later call
			b.moved.Wait()
		}
		b.cutShort = false
	}
}

// enqueue gives a packet its number and puts it into the queue.
func (b *blockWriter) enqueue(p *outPacket, h dtp.Header) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.seqno, p.last = b.seqno, h.Last
	b.seqno++
	h.Seqno, h.Offset = p.seqno, p.start
	p.Finish(h)
	b.queue = append(b.queue, p)
	if h.Last && b.state == blockStreaming {
		b.moveLocked(blockEnding)
	}
}

// transmit sends what has been queued, or, if the pipeline is broken, all of the queue through another one.
func (b *blockWriter) transmit(ctx context.Context) error {
	b.mu.Lock()
	pipe := b.pipe
	b.mu.Unlock()
	if pipe != nil && pipe.sendDue() {
		return nil
	}
	return b.recover(ctx)
}

// wait returns when every packet up to seqno is acknowledged, however many pipelines that takes.
func (b *blockWriter) wait(ctx context.Context, seqno int64) error {
	for {
		b.mu.Lock()
		for b.ackedSeq < seqno && b.upLocked() && ctx.Err() == nil {
			b.moved.Wait()
		}
		done := b.ackedSeq >= seqno
		b.mu.Unlock()
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if err := b.recover(ctx); err != nil {
			return err
		}
	}
}

// flush sends what is there and waits until all datanodes have it, with sync on disk.
func (b *blockWriter) flush(ctx context.Context, sync bool) error {
	defer b.boundBy(ctx)()
	switch {
	case b.filling.Len() > b.prefix:
		if err := b.send(ctx, sync); err != nil {
			return err
		}
	case sync && b.synced < b.sent: // nothing new, but what was sent has to be synced: an empty packet says so
		if err := b.await(ctx); err != nil {
			return err
		}
		p := b.w.packetOf(false)
		p.start = b.sent
		b.synced = b.sent
		b.enqueue(p, dtp.Header{Sync: true})
		if err := b.transmit(ctx); err != nil {
			return err
		}
	}
	b.promised = true
	if err := b.wait(ctx, b.seqno-1); err != nil {
		return err
	}
	return b.tell(ctx)
}

// tell says to the namenode, once for every generation, that the block has bytes which somebody counts on.
func (b *blockWriter) tell(ctx context.Context) error {
	generation := b.block.GetGenerationStamp()
	if b.told == generation {
		return nil
	}
	ctx, done := b.w.alive(ctx)
	defer done()
	if err := b.fsync(ctx); err != nil {
		return err
	}
	b.told = generation
	return nil
}

// fsync also says whether the file is there and still this client's.
func (b *blockWriter) fsync(ctx context.Context) error {
	return b.c.call(ctx, "flush", b.w.path, "fsync", &hadooppb.FsyncRequestProto{
		Src: &b.w.path, Client: &b.c.name, LastBlockLength: new(int64(-1)), FileId: new(b.w.fileID.Load()),
	}, new(hadooppb.FsyncResponseProto))
}

// finish sends what is left and the end of the block, and waits until the datanodes have stored it.
func (b *blockWriter) finish(ctx context.Context) error {
	if b.ended() { // an earlier try was cut short
		return b.conclude(ctx)
	}
	more := b.filling.Len() > b.prefix
	if more {
		if err := b.await(ctx); err != nil {
			return err
		}
		b.cut(false)
	}
	// The end goes out only when all data is acknowledged: a datanode that has finished its replica cannot take data
	// again from a new pipeline. If there is but one, its failure is the end anyhow.
	if len(b.nodes) > 1 && b.seqno > 0 {
		if more {
			if err := b.transmit(ctx); err != nil {
				return err
			}
		}
		if err := b.wait(ctx, b.seqno-1); err != nil {
			return err
		}
	}
	p := b.filling
	b.filling = nil
	p.Reset()
	p.start = b.sent
	b.enqueue(p, dtp.Header{Last: true})
	if err := b.transmit(ctx); err != nil {
		return err
	}
	return b.conclude(ctx)
}

// conclude waits for the end of the block.
func (b *blockWriter) conclude(ctx context.Context) error {
	if err := b.wait(ctx, b.seqno-1); err != nil {
		return err
	}
	b.part()
	return nil
}

// ended reports whether the end of the block has been queued, at one time or another.
func (b *blockWriter) ended() bool { return b.filling == nil }

// acknowledge takes the first packet, which a pipeline of so many nodes acknowledges, out of the queue, or says which node
// is at fault.
func (l *pipeline) acknowledge(ack *dtp.Ack) (finished bool, node int, err error) {
	b, nodes := l.b, len(l.nodes)
	if node, status := ack.Blame(); node >= 0 {
		return false, min(node, nodes-1), fmt.Errorf("datanode %d of %d acknowledges packet %d with %v", node+1, nodes, ack.Seqno, status)
	}
	if ack.Seqno == dtp.HeartbeatSeqno {
		return false, -1, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 || b.queue[0].seqno != ack.Seqno || ack.Seqno >= l.due || len(ack.Replies) != nodes {
		return false, -1, fmt.Errorf("%w: acknowledgement of packet %d by %d datanodes is not expected", dtp.ErrProtocol, ack.Seqno, len(ack.Replies))
	}
	p := b.queue[0]
	n := copy(b.queue, b.queue[1:])
	b.queue[n] = nil
	b.queue = b.queue[:n]
	b.ackedSeq = p.seqno
	if end := uint64(p.end()); end > b.block.GetNumBytes() {
		b.block.NumBytes = &end
	}
	b.waiting = time.Now()
	if finished = p.last; finished {
		b.moveLocked(blockStored)
	}
	if p.seqno < l.out { // else its bytes are still being sent: nobody else may have them
		b.free(p)
	}
	b.moved.Broadcast()
	return finished, -1, nil
}

// disconnect ends the connection and waits for its goroutines.
func (b *blockWriter) disconnect() {
	b.mu.Lock()
	pipe := b.pipe
	b.pipe = nil
	b.mu.Unlock()
	if pipe != nil {
		pipe.close()
	}
}

// part lets go of the connection after the block is stored, for the next request on it.
func (b *blockWriter) part() {
	b.mu.Lock()
	pipe := b.pipe
	b.pipe = nil
	b.mu.Unlock()
	if pipe != nil {
		pipe.part()
	}
}

// pipelineError is why a pipeline broke and whose fault it is.
type pipelineError struct {
	nodes []int // positions of those at fault; none: not known, which means the first, the only one we talk to
	err   error
}

func (e *pipelineError) Error() string { return e.err.Error() }
func (e *pipelineError) Unwrap() error { return e.err }

// blamed finds the nodes that an error of setting up a pipeline is about: those that it names, else the first.
func (b *blockWriter) blamed(err error) []int {
	if p, ok := errors.AsType[*pipelineError](err); ok && len(p.nodes) > 0 {
		return p.nodes
	}
	if answer, ok := errors.AsType[*dtp.ResponseError](err); ok && answer.BadLink != "" {
		for i, node := range b.nodes {
			if dtp.TransferAddr(node.GetId(), false) == answer.BadLink || dtp.TransferAddr(node.GetId(), true) == answer.BadLink {
				return []int{i}
			}
		}
	}
	return []int{0}
}
