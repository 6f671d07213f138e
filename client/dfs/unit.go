package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// unitWriter writes an internal block of a group to its datanode. One goroutine connects and sends, from the first cell on, another one takes
// acknowledgements. When anything goes wrong the internal block is given up, for good.
type unitWriter struct {
	g      *groupWriter
	number int
	node   *hadooppb.DatanodeInfoProto
	kind   *hadooppb.StorageTypeProto
	volume *string
	block  *hadooppb.ExtendedBlockProto
	life   context.Context // ends with the group's, or with err as the cause
	end    context.CancelCauseFunc

	// writing is held by who sends; nobody else uses what follows but acks.
	writing  sync.Mutex
	peer     *peer
	lastSend time.Time
	acks     chan struct{} // closed when no acknowledgement comes any more
	unwatch  func() bool   // the peer is not interrupted with life any more
	done     chan struct{} // closed when run ends

	// Guarded by g.mu.
	token  *hadooppb.TokenProto
	begun  bool // there is something to write
	queue  []*stripeCells
	busy   bool // with something that is not in the queue any more
	flight []sentPacket
	since  time.Time // when it was heard of last, or the first of flight was sent
	sent   int64
	acked  int64
	ending bool  // all has been queued
	closed bool  // the connection is given up, with nobody at fault
	stored bool  // the datanode has finished it
	err    error // why it is given up
}

// sentPacket is a packet that is not acknowledged: up to where it goes.
type sentPacket struct {
	seqno, end int64
	last       bool
}

// begin gives the unit its life.
func (u *unitWriter) begin(life context.Context) { u.life, u.end = context.WithCancelCause(life) }

// hand queues the unit's cell of a stripe.
func (u *unitWriter) hand(s *stripeCells) {
	g := u.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if u.err != nil {
		return
	}
	s.users++
	u.queue = append(u.queue, s)
	if !u.begun {
		u.begun, u.since, u.done = true, time.Now(), make(chan struct{})
		g.going.Go(u.run)
	}
	g.moved.Broadcast()
}

// drainedLocked reports whether the datanode has all that was queued. g.mu is held.
func (u *unitWriter) drainedLocked() bool { return len(u.queue) == 0 && !u.busy && len(u.flight) == 0 }

// silentLocked is for how long the datanode is waited for. g.mu is held.
func (u *unitWriter) silentLocked() time.Duration {
	if u.peer != nil && len(u.flight) == 0 {
		return 0
	}
	return time.Since(u.since)
}

// fail gives the internal block up.
func (u *unitWriter) fail(err error) {
	g := u.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if u.err != nil || u.stored || u.closed || g.life.Err() != nil {
		return
	}
	u.err = err
	g.w.log(g.life, "datanode leaves the block group", "path", g.w.path, "block", u.block.GetBlockId(), "node", g.c.transferAddr(u.node), "error", err)
	for _, s := range u.queue {
		g.releaseLocked(s)
	}
	u.queue = nil
	u.end(err)
	g.moved.Broadcast()
}

// dropLocked gives up what is queued. g.mu is held, and the goroutines of the unit have ended.
func (u *unitWriter) dropLocked() {
	for _, s := range u.queue {
		u.g.releaseLocked(s)
	}
	u.queue = nil
	u.end(nil)
}

// run sends what is queued, and the end.
func (u *unitWriter) run() {
	defer close(u.done)
	g := u.g
	stop := context.AfterFunc(u.life, func() { // who waits below
		g.mu.Lock()
		defer g.mu.Unlock()
		g.moved.Broadcast()
	})
	defer stop()
	var seqno int64
	for {
		g.mu.Lock()
		for len(u.queue) == 0 && !u.ending && !u.closed && u.life.Err() == nil {
			g.moved.Wait()
		}
		if u.closed || u.life.Err() != nil {
			g.mu.Unlock()
			u.disconnect()
			return
		}
		var s *stripeCells
		if len(u.queue) > 0 {
			s = u.queue[0]
			u.queue = u.queue[1:]
			u.busy = true
		}
		g.mu.Unlock()
		var err error
		if u.acks == nil {
			err = u.connect()
		}
		if err == nil && s != nil {
			seqno, err = u.sendCell(seqno, s.cells[u.number])
		} else if err == nil {
			err = u.sendEnd(seqno)
		}
		if err != nil {
			u.fail(err)
		}
		if s != nil {
			g.mu.Lock()
			u.busy = false
			g.releaseLocked(s)
			g.moved.Broadcast()
			g.mu.Unlock()
			continue
		}
		if err == nil {
			u.part()
			return
		}
	}
}

// connect has the datanode begin the internal block.
func (u *unitWriter) connect() error {
	p, err := u.request(stageCreate, 0)
	if err != nil {
		return err
	}
	u.acks = make(chan struct{})
	p.timeout = 0 // the watch of the group sees to it
	_ = p.conn.SetDeadline(time.Time{})
	u.g.mu.Lock()
	u.peer, u.since = p, time.Now()
	u.g.mu.Unlock()
	u.unwatch = p.during(u.life)
	u.writing.Lock()
	u.lastSend = time.Now()
	u.writing.Unlock()
	go u.takeAcks(p)
	return nil
}

// request asks the datanode for the internal block: to begin it, or to end it under a new generation.
func (u *unitWriter) request(s stage, generation uint64) (*peer, error) {
	g := u.g
	header := u.block
	if s == stageCreate {
		header = &hadooppb.ExtendedBlockProto{
			PoolId: u.block.PoolId, BlockId: u.block.BlockId, GenerationStamp: u.block.GenerationStamp, NumBytes: new(uint64(g.w.blockSize)),
		}
	}
	length := u.block.GetNumBytes()
	g.mu.Lock()
	token := u.token
	g.mu.Unlock()
	request := &hadooppb.OpWriteBlockProto{
		Header: g.c.opHeader(header, token), Stage: s.Enum(), PipelineSize: new(uint32(1)), MinBytesRcvd: &length, MaxBytesRcvd: &length,
		LatestGenerationStamp: &generation, RequestedChecksum: g.w.sum.Proto(), StorageType: u.kind, StorageId: u.volume,
	}
	for fresh := s != stageCreate; ; fresh = true {
		p, err := g.c.peers.get(u.life, u.node.GetId(), tokenOfRequest(request), g.c.config.DatanodeTimeout, fresh)
		if err != nil {
			return nil, err
		}
		p.timeout = g.c.patience(1)
		answer, err := p.exchange(u.life, dtp.OpWriteBlock, request)
		if err != nil && p.reused && p.cut.Load() == nil {
			g.c.peers.stale(p)
			continue
		}
		if err == nil {
			err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
		}
		if err != nil {
			p.close()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		g.c.peers.answered(p)
		return p, nil
	}
}

// sendCell sends a cell in packets.
func (u *unitWriter) sendCell(seqno int64, cell []byte) (next int64, err error) {
	p := u.g.w.packet()
	defer u.g.c.putPacket(p)
	for len(cell) > 0 && err == nil {
		p.Reset()
		n := p.Append(cell)
		err = u.send(p, dtp.Header{Seqno: seqno, Offset: u.sent}, int64(n))
		cell = cell[n:]
		seqno++
	}
	return seqno, err
}

// sendEnd says that no more comes.
func (u *unitWriter) sendEnd(seqno int64) error {
	p := u.g.w.packet()
	defer u.g.c.putPacket(p)
	return u.send(p, dtp.Header{Seqno: seqno, Offset: u.sent, Last: true}, 0)
}

func (u *unitWriter) send(p *outPacket, h dtp.Header, n int64) error {
	p.Finish(h)
	g := u.g
	g.mu.Lock()
	if len(u.flight) == 0 {
		u.since = time.Now()
	}
	u.sent += n
	u.flight = append(u.flight, sentPacket{h.Seqno, u.sent, h.Last})
	g.mu.Unlock()
	u.writing.Lock()
	err := u.peer.send(p.Bytes())
	u.lastSend = time.Now()
	u.writing.Unlock()
	return err
}

// beat sends a heartbeat if nothing has been sent for interval and no packet is on its way out.
func (u *unitWriter) beat(interval time.Duration) {
	if !u.writing.TryLock() { // under which the end goes out as well, and nothing may follow that
		return
	}
	defer u.writing.Unlock()
	u.g.mu.Lock()
	p, idle := u.peer, !u.ending && len(u.flight) == 0
	u.g.mu.Unlock()
	if p != nil && idle && time.Since(u.lastSend) >= interval && p.send(dtp.AppendHeader(nil, dtp.Header{Seqno: dtp.HeartbeatSeqno}, 0)) == nil {
		u.lastSend = time.Now()
	}
}

// takeAcks takes acknowledgements until the connection breaks or the internal block is stored.
func (u *unitWriter) takeAcks(p *peer) {
	defer close(u.acks)
	var ack dtp.Ack
	for {
		err := dtp.ReadAck(p.r, &ack)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			u.fail(fmt.Errorf("waiting for an acknowledgement: %w", err))
			return
		}
		stored, err := u.acknowledge(&ack)
		if err != nil {
			u.fail(err)
		}
		if err != nil || stored {
			return
		}
	}
}

func (u *unitWriter) acknowledge(ack *dtp.Ack) (stored bool, err error) {
	if node, status := ack.Blame(); node >= 0 {
		return false, fmt.Errorf("packet %d is acknowledged with %v", ack.Seqno, status)
	}
	if ack.Seqno == dtp.HeartbeatSeqno {
		return false, nil
	}
	g := u.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(u.flight) == 0 || u.flight[0].seqno != ack.Seqno || len(ack.Replies) != 1 {
		return false, fmt.Errorf("%w: acknowledgement of packet %d by %d datanodes is not expected", dtp.ErrProtocol, ack.Seqno, len(ack.Replies))
	}
	first := u.flight[0]
	u.flight = u.flight[1:]
	u.acked, u.since = first.end, time.Now()
	if first.last && u.err == nil {
		u.stored = true
	}
	g.moved.Broadcast()
	return first.last, nil
}

// part gives the connection back when the internal block is stored.
func (u *unitWriter) part() {
	<-u.acks
	u.g.mu.Lock()
	stored := u.stored
	u.g.mu.Unlock()
	if stored && u.unwatch() {
		u.g.c.peers.put(u.peer, true)
		u.g.mu.Lock()
		u.peer = nil
		u.g.mu.Unlock()
		return
	}
	u.disconnect()
}

// disconnect ends the connection, if there is one.
func (u *unitWriter) disconnect() {
	if u.peer == nil {
		return
	}
	u.peer.interrupt(context.Canceled)
	<-u.acks
	u.peer.close()
	u.g.mu.Lock()
	u.peer = nil
	u.g.mu.Unlock()
}

// closeAt has the datanode end the internal block, of which it has all bytes, under a new generation.
func (u *unitWriter) closeAt(generation uint64) {
	g := u.g
	g.mu.Lock()
	u.closed = true
	g.moved.Broadcast()
	g.mu.Unlock()
	<-u.done
	g.mu.Lock()
	u.closed, u.stored, u.since = false, false, time.Now() // the watch sees to this request too
	u.block.NumBytes = new(uint64(u.acked))
	g.mu.Unlock()
	p, err := u.request(stageCloseRecovery, generation)
	if err != nil {
		u.fail(err)
		return
	}
	p.close()
	g.mu.Lock()
	u.stored = u.err == nil // else it was given up meanwhile, and the others get a generation that it does not have
	g.mu.Unlock()
}
