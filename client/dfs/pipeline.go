package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
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

// pipeline is one connection to the first datanode of a block that is being written. Whoever has the Writer's turn sends
// packets; one goroutine takes acknowledgements, and one keeps watch: it sends heartbeats, for which it needs nothing but
// the connection, and when nothing is acknowledged it finds out which datanode is silent.
type pipeline struct {
	b     *blockWriter
	peer  *peer
	nodes []*hadooppb.DatanodeInfoProto
	life  context.Context // ends with the connection
	end   context.CancelFunc
	going sync.WaitGroup
	acks  chan struct{} // closed when no acknowledgement comes any more

	writing  sync.Mutex // one packet at a time
	lastSend time.Time  // guarded by writing

	// What the pipeline is sent is the queue from its first packet on, without a gap, whatever a call has left undone.
	due  int64    // seqno of the first packet that it was not sent; guarded by b.mu
	out  int64    // of the first one of which the connection has not taken all; guarded by b.mu
	wire [][]byte // what is being sent
	// sending: the call that has the turn waits for the connection to take packets; guarded by b.mu.
	sending bool
}

// start makes a pipeline of a connection on which it has been set up. b.mu is not held.
func (b *blockWriter) start(p *peer) {
	pipe := &pipeline{b: b, peer: p, nodes: b.nodes, acks: make(chan struct{}), lastSend: time.Now()}
	pipe.life, pipe.end = context.WithCancel(context.Background())
	p.timeout = 0 // the watch sees to it
	_ = p.conn.SetDeadline(time.Time{})
	b.mu.Lock()
	b.pipe = pipe
	b.failure = nil
	pipe.due = b.ackedSeq + 1
	pipe.out = pipe.due
	b.most = windowBytes
	if _, near := p.conn.(*net.UnixConn); near && len(b.nodes) == 1 {
		b.most = windowNear
	}
	if b.ended() {
		b.moveLocked(blockEnding)
	} else {
		b.moveLocked(blockStreaming)
	}
	b.mu.Unlock()
	pipe.going.Go(pipe.takeAcks)
	pipe.going.Go(pipe.watch)
	b.w.breakWith(func() { pipe.cut(context.Canceled) })
}

// patience is how long a pipeline of so many datanodes may acknowledge nothing of what it was sent.
func (c *Client) patience(nodes int) time.Duration {
	timeout := c.config.DatanodeTimeout
	return timeout + time.Duration(nodes)*timeout/nodeShare
}

// sentTogether is how many packets are sent with one system call where several are due.
const sentTogether = 4

// sendDue sends the packets of the queue that were not sent through this pipeline; false: it is broken, be it because the
// call was cut short.
func (l *pipeline) sendDue() bool {
	b := l.b
	for {
		b.mu.Lock()
		if b.pipe == l && b.cutShort {
			l.cutLocked(context.Canceled)
		}
		if b.pipe != l || !b.upLocked() {
			b.mu.Unlock()
			return false
		}
		l.wire = l.wire[:0]
		if len(b.queue) > 0 {
			if l.due == b.queue[0].seqno {
				b.waiting = time.Now()
			}
			first := l.due - b.queue[0].seqno
			for _, p := range b.queue[first:min(first+sentTogether, int64(len(b.queue)))] {
				l.wire = append(l.wire, p.Bytes())
				l.due = p.seqno + 1
			}
		}
		due := l.due
		l.sending = len(l.wire) > 0
		b.mu.Unlock()
		if len(l.wire) == 0 {
			return true
		}
		sent := l.send(l.wire)
		b.mu.Lock()
		l.sending = false
		if !sent {
			b.mu.Unlock()
			return false
		}
		l.out = due
		done := len(b.queue) == 0 || b.queue[len(b.queue)-1].seqno < due
		b.mu.Unlock()
		if done { // the end may be acknowledged by now, and the pipeline up no more
			return true
		}
	}
}

// send sends packets; false: the pipeline is broken.
func (l *pipeline) send(wire [][]byte) bool {
	l.writing.Lock()
	err := l.peer.send(wire...)
	l.lastSend = time.Now()
	l.writing.Unlock()
	if err == nil {
		return true
	}
	if l.peer.cut.Load() != nil { // somebody has said why
		return false
	}
	// What the datanode said before it hung up may blame another one.
	_ = l.peer.conn.SetReadDeadline(time.Now().Add(lastWords))
	<-l.acks
	l.fault(err)
	return false
}

// fault records why the pipeline is broken and which nodes are at fault, the first reason only.
func (l *pipeline) fault(err error, nodes ...int) {
	b := l.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pipe == l && b.upLocked() {
		b.failure = &pipelineError{nodes: nodes, err: err}
		b.moveLocked(blockBroken)
	}
}

// cut breaks the pipeline although nobody is at fault, because somebody does not want to wait any longer.
func (l *pipeline) cut(cause error) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.cutLocked(cause)
}

// cutLocked is cut; b.mu is held.
func (l *pipeline) cutLocked(cause error) {
	if l.b.pipe == l && l.b.upLocked() {
		l.b.moveLocked(blockRepairing)
	}
	l.peer.interrupt(cause)
}

// takeAcks takes acknowledgements until the connection breaks or the block is stored.
func (l *pipeline) takeAcks() {
	defer close(l.acks)
	var ack dtp.Ack
	for {
		if err := dtp.ReadAck(l.peer.r, &ack); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			l.fault(fmt.Errorf("waiting for an acknowledgement: %w", err))
			return
		}
		finished, node, err := l.acknowledge(&ack)
		switch {
		case err != nil && node >= 0:
			l.fault(err, node)
			return
		case err != nil:
			l.fault(err)
			return
		case finished:
			return
		}
	}
}

// watch keeps the datanodes from giving an idle pipeline up, and gives up those that are silent.
//
//	nothing sent for heartbeat          a heartbeat goes out, unless a packet is on its way out
//	nothing acknowledged for stall      every datanode is asked for a word; those that are silent while others are not
//	                                    are at fault (a frozen process, a machine that is gone without a word)
//	nothing acknowledged for patience   the first one is at fault, as in Hadoop
func (l *pipeline) watch() {
	b := l.b
	t := b.c.times
	patience := b.c.patience(len(l.nodes))
	stall := min(t.stall, patience)
	asked := time.Time{}
	pause := time.NewTimer(min(t.heartbeat, stall/2))
	defer pause.Stop()
	for {
		select {
		case <-l.life.Done():
			return
		case <-l.acks:
			return
		case <-pause.C:
		}
		b.mu.Lock()
		silent := time.Duration(0)
		if len(b.queue) > 0 && b.queue[0].seqno < l.due {
			silent = time.Since(b.waiting)
		}
		up := b.upLocked()
		b.mu.Unlock()
		if !up {
			return
		}
		if silent >= patience {
			l.fault(fmt.Errorf("waiting for an acknowledgement: %w after %v", os.ErrDeadlineExceeded, silent.Round(time.Millisecond)))
			l.peer.interrupt(os.ErrDeadlineExceeded)
			return
		}
		if silent >= stall && time.Since(asked) >= stall {
			if at := b.c.silent(l.life, l.nodes, b.named(), b.token); len(at) > 0 && len(at) < len(l.nodes) {
				l.fault(silence(b.c.transferAddr(l.nodes[at[0]]), silent), at...)
				l.peer.interrupt(os.ErrDeadlineExceeded)
				return
			}
			asked = time.Now()
		}
		idle := l.beat(t.heartbeat)
		next := min(stall/2, max(patience-silent, time.Millisecond))
		if silent < stall {
			next = min(next, stall-silent)
		}
		if silent == 0 {
			next = min(next, max(t.heartbeat-idle, time.Millisecond))
		}
		pause.Reset(next)
	}
}

// named is the block as requests name it.
func (b *blockWriter) named() *hadooppb.ExtendedBlockProto {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &hadooppb.ExtendedBlockProto{PoolId: b.block.PoolId, BlockId: b.block.BlockId, GenerationStamp: b.block.GenerationStamp, NumBytes: new(uint64(0))}
}

// beat sends a heartbeat if nothing has been sent for interval, and returns for how long nothing has. Nothing may follow
// the end of a block.
func (l *pipeline) beat(interval time.Duration) (idle time.Duration) {
	if !l.writing.TryLock() {
		return 0
	}
	defer l.writing.Unlock()
	if idle = time.Since(l.lastSend); idle < interval || l.b.at() != blockStreaming {
		return min(idle, interval/2)
	}
	if err := l.peer.send(dtp.AppendHeader(nil, dtp.Header{Seqno: dtp.HeartbeatSeqno}, 0)); err == nil {
		l.lastSend = time.Now()
	}
	return 0
}

// close breaks the connection and waits for its goroutines.
func (l *pipeline) close() {
	l.b.w.breakWith(nil)
	l.end()
	if l.peer.lends() {
		l.b.mu.Lock()
		l.b.lent = true
		l.b.mu.Unlock()
	}
	l.peer.interrupt(net.ErrClosed)
	l.going.Wait()
	l.peer.close()
}

// part gives the connection back after the block is stored.
func (l *pipeline) part() {
	l.b.w.breakWith(nil)
	<-l.acks
	l.end()
	l.going.Wait()
	l.b.c.peers.put(l.peer, true)
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

// connect sets up a pipeline over nodes and starts it. generation is the new stamp of the replicas, 0 to leave it. An error
// that is a *pipelineError says which nodes are at fault; the others are that ctx has ended.
func (b *blockWriter) connect(ctx context.Context, s stage, generation uint64) error {
	p, err := b.request(ctx, b.pipelineRequest(s, generation), s)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return &pipelineError{b.blamed(err), err}
	}
	if s == stageCloseRecovery { // the replicas are finished, nothing follows
		p.close()
		return nil
	}
	b.start(p)
	return nil
}

// request asks the first node for a pipeline. A kept connection that turns out to be closed is replaced by a new one.
func (b *blockWriter) request(ctx context.Context, request *hadooppb.OpWriteBlockProto, s stage) (*peer, error) {
	for fresh := s != stageCreate; ; fresh = true {
		p, err := b.c.peers.toWrite(ctx, b.nodes[0].GetId(), tokenOfRequest(request), b.c.config.DatanodeTimeout, fresh)
		if err != nil {
			return nil, err
		}
		p.timeout = b.c.patience(len(b.nodes))
		over := b.watchSetup(p, s)
		answer, err := p.exchange(ctx, dtp.OpWriteBlock, request)
		over()
		if err != nil && p.reused && p.cut.Load() == nil {
			b.c.peers.stale(p)
			continue
		}
		if err == nil {
			err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
		}
		if err == nil && p.cut.Load() != nil {
			err = p.ended(nil)
		}
		if err != nil {
			p.close()
			return nil, err
		}
		b.c.peers.answered(p)
		b.w.large.Store(answer.GetPacketData() >= dtp.LargeSize)
		return p, nil
	}
}

// watchSetup asks the datanodes of a pipeline for a word while its set-up takes long, and interrupts the set-up with those
// at fault. over ends that.
func (b *blockWriter) watchSetup(p *peer, s stage) (over func()) {
	if s == stageCreate && b.w.lastResort {
		return func() {} // there are no others to turn to
	}
	ctx, cancel := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	started := time.Now()
	asking.Add(1)
	timer := time.AfterFunc(b.c.times.stall, func() {
		defer asking.Done()
		for ctx.Err() == nil {
			at := b.c.silent(ctx, b.nodes, b.named(), b.token)
			if len(at) > 0 && (len(at) < len(b.nodes) || s == stageCreate) && ctx.Err() == nil {
				p.interrupt(&pipelineError{at, silence(b.c.transferAddr(b.nodes[at[0]]), time.Since(started))})
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(b.c.times.stall):
			}
		}
	})
	return func() {
		cancel()
		if timer.Stop() {
			asking.Done()
		}
		asking.Wait()
	}
}
