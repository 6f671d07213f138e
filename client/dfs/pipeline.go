package dfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// window is how many packets may be under way; with 64 KiB each, 5 MiB, as in Hadoop.
	window = 80
	// heartbeat is how long a pipeline may be silent.
	heartbeat = 30 * time.Second
	// lastWords is how long acknowledgements are still taken from a connection that takes no packets any more.
	lastWords = time.Second
	// nodeShare is the share of the datanode timeout that each datanode of a pipeline adds: 5 s of 60, as in Hadoop.
	nodeShare = 12
)

type stage = hadooppb.OpWriteBlockProto_BlockConstructionStage

const (
	stageCreate         = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_CREATE
	stageAppend         = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_APPEND
	stageAppendRecovery = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_APPEND_RECOVERY
	stageRecovery       = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY
	stageCloseRecovery  = hadooppb.OpWriteBlockProto_PIPELINE_CLOSE_RECOVERY
)

// outPacket is a packet being filled, sent, or kept until it is acknowledged.
type outPacket struct {
	*dtp.Builder
	sum   dtp.Checksum
	seqno int64
	start int64 // in the block
	last  bool
}

func (p *outPacket) end() int64 { return p.start + int64(p.Len()) }

// blockWriter writes one block. Packets go out on the goroutine that writes; one goroutine per connection takes the
// acknowledgements. A packet stays in the queue until every datanode has it, so that it can be sent again through
// another pipeline (recovery.go).
//
//	filling ──full, flush──▶ queue: [unacknowledged ... ] ──ack──▶ free
//	                          │ sent when it enters
//	                          ╰ sent again after recovery
//
// The methods are called with the Writer's mu held. mu of this struct guards what the goroutine of acknowledgements
// shares.
type blockWriter struct {
	w      *Writer
	c      *Client
	token  *hadooppb.TokenProto
	nodes  []*hadooppb.DatanodeInfoProto
	types  []hadooppb.StorageTypeProto
	ids    []string
	failed []*hadooppb.DatanodeInfoProto // nodes that left the pipeline

	postponed bool // small so far, and nothing has been set up
	appending bool // opened for append and nothing has been set up yet
	appended  bool // opened for append
	flushed   bool // something has been promised to a flush
	closing   bool // the last packet has been queued
	persisted bool // the namenode knows that the block is being written

	packetSize int
	filling    *outPacket
	prefix     int // bytes of filling that have been sent before
	sent       int64
	seqno      int64 // of the next packet
	unsynced   bool  // something was sent since the last packet with sync
	hold       bool  // the next packet goes out together with the one after it
	held       []byte

	fruitless int   // recoveries without progress
	progress  int64 // acknowledged at the last recovery

	conn net.Conn // of peer, nil while there is no pipeline
	peer *peer
	acks chan struct{} // closed when the goroutine of conn has ended

	mu       sync.Mutex
	moved    *sync.Cond                   // queue, acked or failure has changed
	block    *hadooppb.ExtendedBlockProto // NumBytes is what is acknowledged
	queue    []*outPacket
	ackedSeq int64
	failure  *pipelineError
	lastSend time.Time
	beat     *time.Timer
}

// pipelineError is why a pipeline broke and whose fault it is.
type pipelineError struct {
	node int // in nodes; -1: not known, which means the first, the only one we talk to
	err  error
}

func (e *pipelineError) Error() string { return e.err.Error() }
func (e *pipelineError) Unwrap() error { return e.err }

// newBlockWriter prepares to write a located block. appended: its bytes so far stay.
func newBlockWriter(w *Writer, b *hadooppb.LocatedBlockProto, appended bool) *blockWriter {
	bw := &blockWriter{
		w: w, c: w.c,
		block:     b.GetB(),
		token:     tokenOf(b.GetBlockToken()),
		appending: appended,
		appended:  appended,
		ackedSeq:  -1,
	}
	bw.moved = sync.NewCond(&bw.mu)
	bw.packetSize = max(dtp.DataSize/w.sum.BytesPer, 1) * w.sum.BytesPer
	bw.take(b)
	if appended {
		bw.sent = int64(b.GetB().GetNumBytes())
	} else {
		bw.block.NumBytes = new(uint64(0))
	}
	bw.progress = -1
	bw.begin(bw.sent, nil)
	return bw
}

// take adopts the datanodes of b.
func (b *blockWriter) take(l *hadooppb.LocatedBlockProto) {
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

func (b *blockWriter) addr(node *hadooppb.DatanodeInfoProto) string {
	return dtp.TransferAddr(node.GetId(), b.c.config.UseHostname)
}

// acked is how many bytes of the block every datanode has.
func (b *blockWriter) acked() int64 { return int64(b.block.GetNumBytes()) }

// begin starts a packet at an offset of the block with bytes that were sent before.
func (b *blockWriter) begin(start int64, prefix []byte) {
	p, _ := b.c.packets.Get().(*outPacket)
	if p == nil || p.sum != b.w.sum {
		p = &outPacket{Builder: dtp.NewBuilder(b.w.sum, b.packetSize), sum: b.w.sum}
	}
	p.Reset()
	p.start, p.last = start, false
	p.Append(prefix)
	b.filling, b.prefix = p, len(prefix)
}

// release gives the packets back.
func (b *blockWriter) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.queue {
		b.c.packets.Put(p)
	}
	b.queue = nil
	if b.filling != nil {
		b.c.packets.Put(b.filling)
		b.filling = nil
	}
}

// room is how many bytes the packet being filled may still take: up to the packet size, the end of the block, and, if it
// starts inside a chunk, that chunk's end, because such a packet's checksum covers only its own bytes.
func (b *blockWriter) room() int {
	p := b.filling
	room := min(int64(p.Room()), b.w.blockSize-p.end())
	if inside := p.start % int64(b.w.sum.BytesPer); inside != 0 {
		room = min(room, int64(b.w.sum.BytesPer)-inside-int64(p.Len()))
	}
	return int(max(room, 0))
}

// space is where the next bytes go.
func (b *blockWriter) space() []byte { return b.filling.Space()[:b.room()] }

// filled counts n bytes put into space, and sends the packet if that was the last room in it. It reports whether the
// block is full.
func (b *blockWriter) filled(n int) (full bool, err error) {
	b.filling.Grow(n)
	if b.room() > 0 {
		return false, nil
	}
	if err := b.send(false); err != nil {
		return false, err
	}
	return b.sent == b.w.blockSize, nil
}

// send queues the packet being filled, sends it, and begins the next. If the packet ends inside a chunk that it has the
// start of, that chunk is sent again with what follows, so that its checksum can cover all of it.
func (b *blockWriter) send(sync bool) error {
	p := b.filling
	b.filling = nil
	bytesPer := int64(b.w.sum.BytesPer)
	var tail []byte
	next := p.end()
	if start := next - next%bytesPer; start >= p.start && start < next {
		tail = append(make([]byte, 0, bytesPer), p.Data()[start-p.start:]...)
		next = start
	}
	b.sent = p.end()
	b.unsynced = !sync
	err := b.push(p, dtp.Header{Sync: sync})
	b.begin(next, tail)
	return err
}

// push queues a packet and sends it, or, if the pipeline is broken, sends all of the queue through another one.
func (b *blockWriter) push(p *outPacket, h dtp.Header) error {
	b.mu.Lock()
	for len(b.queue) >= window && b.failure == nil && b.conn != nil {
		b.moved.Wait()
	}
	p.seqno = b.seqno
	b.seqno++
	p.last = h.Last
	h.Seqno, h.Offset = p.seqno, p.start
	wire := p.Finish(h)
	if len(b.queue) == 0 && b.conn != nil {
		_ = b.conn.SetReadDeadline(time.Now().Add(b.patience()))
	}
	b.queue = append(b.queue, p)
	b.lastSend = time.Now()
	broken := b.failure != nil || b.conn == nil
	b.mu.Unlock()
	if !broken && b.hold {
		b.hold, b.held = false, wire
		return nil
	}
	if !broken {
		broken = !b.write(b.held, wire)
	}
	b.hold, b.held = false, nil
	if broken {
		return b.recover(b.w.life) // sends what was held too
	}
	return nil
}

// write sends bytes; false: the pipeline is broken.
func (b *blockWriter) write(wire ...[]byte) bool {
	_ = b.conn.SetWriteDeadline(time.Now().Add(b.patience()))
	if _, err := (*net.Buffers)(&wire).WriteTo(b.conn); err != nil {
		// What the datanode said before it hung up may blame another one.
		_ = b.conn.SetReadDeadline(time.Now().Add(lastWords))
		<-b.acks
		b.fault(-1, err)
		return false
	}
	return true
}

func (b *blockWriter) patience() time.Duration {
	timeout := b.c.config.DatanodeTimeout
	return timeout + time.Duration(len(b.nodes))*timeout/nodeShare
}

// fault records why the pipeline is broken, the first reason only.
func (b *blockWriter) fault(node int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure == nil {
		b.failure = &pipelineError{node: node, err: err}
	}
	b.moved.Broadcast()
}

// wait returns when every packet up to seqno is acknowledged, however many pipelines that takes.
func (b *blockWriter) wait(ctx context.Context, seqno int64) error {
	stop := context.AfterFunc(ctx, func() {
		b.mu.Lock()
		b.moved.Broadcast()
		b.mu.Unlock()
	})
	defer stop()
	for {
		b.mu.Lock()
		for b.ackedSeq < seqno && b.failure == nil && b.conn != nil && ctx.Err() == nil {
			b.moved.Wait()
		}
		done, broken := b.ackedSeq >= seqno, b.failure != nil || b.conn == nil
		b.mu.Unlock()
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case broken:
			if err := b.recover(ctx); err != nil {
				return err
			}
		}
	}
}

// flush sends what is there and waits until all datanodes have it, with sync on disk.
func (b *blockWriter) flush(ctx context.Context, sync bool) error {
	fresh := b.filling.Len() > b.prefix
	if fresh || sync && b.unsynced {
		if !fresh { // nothing new, but what was sent has to be synced: an empty packet says so
			tail := append([]byte(nil), b.filling.Data()...)
			start := b.filling.start
			b.filling.Reset()
			b.filling.start = b.sent
			p := b.filling
			b.filling = nil
			b.unsynced = false
			err := b.push(p, dtp.Header{Sync: true})
			b.begin(start, tail)
			if err != nil {
				return err
			}
		} else if err := b.send(sync); err != nil {
			return err
		}
	}
	b.flushed = true
	if err := b.wait(ctx, b.seqno-1); err != nil {
		return err
	}
	return b.persist(ctx)
}

// persist tells the namenode once that the block has bytes which somebody counts on.
func (b *blockWriter) persist(ctx context.Context) error {
	if b.persisted {
		return nil
	}
	err := b.c.call(ctx, "flush", b.w.path, "fsync", &hadooppb.FsyncRequestProto{
		Src: &b.w.path, Client: &b.c.name, LastBlockLength: new(int64(-1)), FileId: &b.w.fileID,
	}, new(hadooppb.FsyncResponseProto))
	b.persisted = err == nil
	return err
}

// finish sends what is left and the end of the block, and waits until the datanodes have stored it.
func (b *blockWriter) finish(ctx context.Context) error {
	alone := len(b.nodes) == 1
	if b.filling.Len() > b.prefix {
		b.hold = alone
		if err := b.send(false); err != nil {
			return err
		}
	}
	// The end goes out only when all data is acknowledged: a datanode that has finished its replica cannot take data
	// again from a new pipeline. If there is but one, its failure is the end anyhow.
	if !alone {
		if err := b.wait(ctx, b.seqno-1); err != nil {
			return err
		}
	}
	p := b.filling
	b.filling = nil
	p.Reset()
	p.start = b.sent
	b.closing = true
	if err := b.push(p, dtp.Header{Last: true}); err != nil {
		return err
	}
	if err := b.wait(ctx, b.seqno-1); err != nil {
		return err
	}
	b.part()
	return nil
}

// create sets up the first pipeline of a new block.
func (b *blockWriter) create(ctx context.Context) error {
	return b.connect(ctx, stageCreate, 0)
}

// pipelineRequest asks for a pipeline over nodes. generation is the new stamp of the replicas, 0 to leave it.
func (b *blockWriter) pipelineRequest(s stage, generation uint64) *hadooppb.OpWriteBlockProto {
	header := b.block
	if s == stageCreate {
		header = &hadooppb.ExtendedBlockProto{
			PoolId: b.block.PoolId, BlockId: b.block.BlockId, GenerationStamp: b.block.GenerationStamp, NumBytes: new(uint64(b.w.blockSize)),
		}
	}
	request := &hadooppb.OpWriteBlockProto{
		Header:                b.c.opHeader(header, b.token),
		Targets:               b.nodes[1:],
		Stage:                 s.Enum(),
		PipelineSize:          new(uint32(len(b.nodes))),
		MinBytesRcvd:          new(uint64(b.acked())),
		MaxBytesRcvd:          new(uint64(b.sent)),
		LatestGenerationStamp: &generation,
		RequestedChecksum:     b.w.sum.Proto(),
		TargetPinnings:        make([]bool, len(b.nodes)-1),
	}
	if b.types != nil {
		request.StorageType = b.types[0].Enum()
		request.TargetStorageTypes = b.types[1:]
	}
	if b.ids != nil {
		request.StorageId = &b.ids[0]
		request.TargetStorageIds = b.ids[1:]
	}
	return request
}

// connect sets up a pipeline over nodes and starts taking acknowledgements. generation is the new stamp of the replicas,
// 0 to leave it. An error that is a *pipelineError says which node is at fault.
func (b *blockWriter) connect(ctx context.Context, s stage, generation uint64) error {
	p, err := b.request(ctx, b.pipelineRequest(s, generation), s != stageCreate)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return &pipelineError{b.blamed(err), err}
	}
	if s == stageCloseRecovery { // the replicas are finished, nothing follows
		p.close()
		return nil
	}
	conn := p.conn
	_ = conn.SetDeadline(time.Time{})
	b.mu.Lock()
	b.conn, b.peer = conn, p
	b.failure = nil
	b.lastSend = time.Now()
	b.beat = time.AfterFunc(heartbeat, b.sendHeartbeat)
	b.mu.Unlock()
	done := make(chan struct{})
	b.acks = done
	nodes := len(b.nodes)
	go func() {
		defer close(done)
		b.readAcks(conn, p.r, nodes)
	}()
	b.w.breakMu.Lock()
	b.w.breakup = func() { conn.Close() }
	b.w.breakMu.Unlock()
	return nil
}

// request asks the first node for a pipeline. A kept connection that turns out to be closed is replaced by a new one.
func (b *blockWriter) request(ctx context.Context, request *hadooppb.OpWriteBlockProto, fresh bool) (*peer, error) {
	for ; ; fresh = true {
		p, err := b.c.peers.get(ctx, b.nodes[0].GetId(), b.c.config.DatanodeTimeout, fresh)
		if err != nil {
			return nil, err
		}
		_ = p.conn.SetDeadline(time.Now().Add(b.patience()))
		var answer *hadooppb.BlockOpResponseProto
		if err = p.request(dtp.OpWriteBlock, request); err == nil {
			answer, err = dtp.ReadResponse(p.r)
		}
		if err != nil && p.reused {
			b.c.peers.stale(p)
			continue
		}
		if err == nil {
			err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
		}
		if err != nil {
			p.close()
			return nil, err
		}
		b.c.peers.answered(p)
		return p, nil
	}
}

// blamed finds the node that an error of setting up a pipeline is about: the one that a datanode named, else the first.
func (b *blockWriter) blamed(err error) int {
	if p, ok := errors.AsType[*pipelineError](err); ok {
		return p.node
	}
	if answer, ok := errors.AsType[*dtp.ResponseError](err); ok && answer.BadLink != "" {
		for i, node := range b.nodes {
			if dtp.TransferAddr(node.GetId(), false) == answer.BadLink || dtp.TransferAddr(node.GetId(), true) == answer.BadLink {
				return i
			}
		}
	}
	return 0
}

// readAcks takes the acknowledgements of one connection until it breaks or the block is stored.
func (b *blockWriter) readAcks(conn net.Conn, r *bufio.Reader, nodes int) {
	var ack dtp.Ack
	for {
		if err := dtp.ReadAck(r, &ack); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			b.fault(-1, fmt.Errorf("waiting for an acknowledgement: %w", err))
			return
		}
		finished, node, err := b.acknowledge(conn, &ack, nodes)
		if err != nil {
			b.fault(node, err)
			return
		}
		if finished {
			return
		}
	}
}

// acknowledge takes the first packet out of the queue, or says which node is at fault.
func (b *blockWriter) acknowledge(conn net.Conn, ack *dtp.Ack, nodes int) (finished bool, node int, err error) {
	if node, status := ack.Blame(); node >= 0 {
		return false, min(node, nodes-1), fmt.Errorf("datanode %d of %d acknowledges packet %d with %v", node+1, nodes, ack.Seqno, status)
	}
	if ack.Seqno == dtp.HeartbeatSeqno {
		return false, -1, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 || b.queue[0].seqno != ack.Seqno || len(ack.Replies) != nodes {
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
	finished = p.last
	b.c.packets.Put(p)
	deadline := time.Time{}
	if n > 0 {
		deadline = time.Now().Add(b.patience())
	}
	_ = conn.SetReadDeadline(deadline)
	b.moved.Broadcast()
	return finished, -1, nil
}

// disconnect ends the connection and waits for its goroutine.
func (b *blockWriter) disconnect() {
	if b.conn == nil {
		return
	}
	b.beat.Stop()
	b.conn.Close()
	<-b.acks
	b.peer.close()
	b.mu.Lock()
	b.conn = nil
	b.mu.Unlock()
}

// part lets go of the connection after the block is stored.
func (b *blockWriter) part() {
	if b.conn == nil {
		return
	}
	b.beat.Stop()
	<-b.acks
	b.w.breakMu.Lock()
	b.w.breakup = nil
	b.w.breakMu.Unlock()
	b.mu.Lock()
	b.conn = nil
	b.mu.Unlock()
	b.c.peers.put(b.peer, true)
}

// sendHeartbeat keeps an idle pipeline from being given up by its datanodes. It runs every heartbeat; while a call works
// on the writer there is no need.
func (b *blockWriter) sendHeartbeat() {
	if b.w.mu.TryLock() {
		defer b.w.mu.Unlock()
		b.mu.Lock()
		idle := b.conn != nil && b.failure == nil && !b.closing && time.Since(b.lastSend) >= heartbeat
		b.mu.Unlock()
		if idle {
			b.write(dtp.AppendHeader(nil, dtp.Header{Seqno: dtp.HeartbeatSeqno}, 0))
		}
	}
	b.rearm()
}

func (b *blockWriter) rearm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.failure == nil {
		b.beat.Reset(heartbeat)
	}
}
