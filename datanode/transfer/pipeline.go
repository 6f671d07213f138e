package transfer

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// maxUnacknowledged is how many packets may wait for their acknowledgement before no more are read. Clients stop at 80.
const maxUnacknowledged = 512

// handled is a packet that this datanode is done with.
type handled struct {
	seqno  int64
	end    int64 // where its data ends in the block; 0 for heartbeats
	status hadooppb.Status
}

// pipeline receives a client's packets:
//
//	upstream ──packets──▶ stream ──packets──▶ mirror (the next datanode)
//	                        │ batches of packets
//	                        ▼
//	                      keeper    verify, write, sync
//	                        │ handled
//	                        ▼
//	upstream ◀──acks─── responder ◀───acks─── mirror
//
// All of it is one goroutine, but for the responder's if there is a mirror to wait for.
func (in *receiver) pipeline(ctx context.Context) error {
	r := &responder{in: in, mirror: in.mirror}
	k := &keeper{in: in, out: r}
	stopped := make(chan struct{})
	var answering, watching sync.WaitGroup
	if in.mirror != nil {
		r.behind = len(in.op.Targets)
		r.queue = make(chan handled, maxUnacknowledged)
		answering.Go(r.run)
	}
	watching.Go(func() { // a recovery that takes the replica away must not wait for the client
		select {
		case <-in.w.Lost():
			r.abandon()
			in.nc.Close()
		case <-stopped:
		}
	})
	packets := in.newStream(r.forward, k.handle)
	err := packets.run(ctx)
	more := packets.buf.Waiting() > 0
	packets.close()
	if err != nil && !k.failed {
		r.abandon() // upstream is gone: those behind must learn it, and nobody waits for their answers
	}
	if r.queue != nil {
		close(r.queue)
		answering.Wait()
	}
	close(stopped)
	watching.Wait()
	switch {
	case err != nil:
		return fmt.Errorf("write of %v: %w", in.block, err)
	case more || r.deaf || r.broken.Load():
		return errDone
	}
	in.ended = true
	return nil // another request may follow
}

// ackBatch is how many bytes of acknowledgements are collected: a dozen packets, of the 80 that clients send ahead.
const ackBatch = 256

// keeper stores packets and has them acknowledged.
type keeper struct {
	in     *receiver
	out    *responder
	failed bool
	begun  bool
	next   int64 // sequence number that is due
}

// handle stores packets and passes them on to be acknowledged. After an error, which the client is told with the packet
// that it is about, nothing may follow.
func (k *keeper) handle(batch []dtp.Packet) error {
	good := batch
	bad := k.check(batch)
	if bad.err != nil {
		good = batch[:bad.at]
	}
	n, err := k.in.keep(good)
	if err == nil {
		err = bad.err
	}
	last := &batch[len(batch)-1]
	for i := range batch[:n] {
		p := &batch[i]
		if p.Last {
			break
		}
		h := handled{seqno: p.Seqno}
		if !p.Heartbeat() {
			h.end = p.Offset + int64(p.DataLen)
		}
		k.out.take(h)
	}
	if err == nil && last.Last {
		n = len(batch) - 1
		if err = k.in.finish(last.Offset); err == nil {
			k.out.take(handled{seqno: last.Seqno, end: last.Offset})
		}
	}
	if err != nil {
		k.failed = true
		k.out.take(handled{seqno: batch[n].Seqno, status: statusOf(err)})
	}
	k.out.idle()
	return err
}

// misplaced is a packet whose turn it is not.
type misplaced struct {
	at  int
	err error
}

// check counts sequence numbers and finds the first packet that has another one than is due.
func (k *keeper) check(batch []dtp.Packet) misplaced {
	for i := range batch {
		p := &batch[i]
		if p.Heartbeat() {
			continue
		}
		if k.begun && p.Seqno != k.next {
			return misplaced{i, metadata.Errorf(metadata.ErrInvalidArgument, "packet %d where %d was due", p.Seqno, k.next)}
		}
		k.begun, k.next = true, p.Seqno+1
	}
	return misplaced{}
}

// finish finalizes the replica after the last packet.
func (in *receiver) finish(length int64) error {
	if have := in.w.Replica().Block.Length; have != length {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the last packet ends the block at %d, the replica has %d bytes", length, have)
	}
	began := time.Now()
	_, err := in.w.Finalize()
	in.flushed(began)
	return err
}

// responder sends acknowledgements upstream, in order, each when this datanode and those behind have the packet.
type responder struct {
	in     *receiver
	queue  chan handled // nil without a mirror: then the keeper answers itself
	mirror *peer
	behind int // datanodes behind this one

	out     []byte
	replies []hadooppb.Status
	ack     dtp.Ack
	waited  time.Time // when the mirror's read deadline was last moved
	deaf    bool      // upstream takes nothing any more

	broken    atomic.Bool // the mirror is given up
	abandoned atomic.Bool // because the whole pipeline is
}

// abandon gives the datanodes behind up because there is nobody left in front.
func (r *responder) abandon() {
	r.abandoned.Store(true)
	if r.mirror != nil {
		r.mirror.Close()
	}
}

// breakMirror gives the datanodes behind up. What is written goes on here; the client learns from the acknowledgements
// and builds another pipeline.
func (r *responder) breakMirror(cause error) {
	if r.broken.Swap(true) {
		return
	}
	if !r.abandoned.Load() {
		r.in.log.Warn("pipeline broken behind this datanode", "block", r.in.block.String(), "next", r.mirror.addr, "err", cause)
	}
	r.mirror.Close()
}

// forward sends packets to the mirror.
func (r *responder) forward(raw []byte) {
	if r.mirror == nil || r.broken.Load() {
		return
	}
	r.mirror.refresh(r.in.cfg.Write)
	began := time.Now()
	if _, err := r.mirror.Write(raw); err != nil {
		r.breakMirror(err)
	}
	r.in.wroteMirror(began, r.mirror)
}

// take is the keeper's way in.
func (r *responder) take(h handled) {
	if r.queue != nil {
		r.queue <- h
		return
	}
	r.answer(h)
	if len(r.out) >= ackBatch {
		r.flush()
	}
}

// idle says that the keeper waits for packets.
func (r *responder) idle() {
	if r.queue == nil {
		r.flush()
	}
}

// run ends when the queue is closed and empty. If upstream cannot be written to, the rest is dropped.
func (r *responder) run() {
	for h := range r.queue {
		r.answer(h)
		if len(r.queue) == 0 || len(r.out) >= idleBuffer {
			r.flush()
		}
	}
}

// flush sends the acknowledgements that have been collected, with one call.
func (r *responder) flush() {
	if !r.deaf && len(r.out) > 0 {
		began := time.Now()
		if _, err := r.in.nc.Write(r.out); err != nil {
			r.deaf = true
			r.in.nc.Close() // wakes the receive loop
		}
		r.in.wroteAcks(began)
	}
	r.out = r.out[:0]
}

// answer appends the acknowledgement of one packet, after waiting for that of the datanodes behind.
func (r *responder) answer(h handled) {
	r.replies = append(r.replies[:0], h.status)
	good := h.status == hadooppb.Status_SUCCESS
	if good && r.mirror != nil {
		if err := r.await(h.seqno); err != nil {
			r.breakMirror(err)
			r.replies = append(r.replies, hadooppb.Status_ERROR)
			good = false
		} else {
			r.replies = append(r.replies, r.ack.Replies...)
			i, _ := r.ack.Blame()
			good = i < 0
		}
	}
	if good && h.end > 0 {
		r.in.w.Acked(h.end)
	}
	r.out = dtp.AppendAck(r.out, &dtp.Ack{Seqno: h.seqno, Replies: r.replies})
}

// await reads the next acknowledgement of the datanodes behind, which must be that of seqno.
func (r *responder) await(seqno int64) error {
	if r.broken.Load() {
		return net.ErrClosed
	}
	if r.mirror.r.Buffered() == 0 { // this may take a while
		r.flush()
		if now := time.Now(); now.Sub(r.waited) >= refreshEvery {
			r.waited = now
			_ = r.mirror.SetReadDeadline(now.Add(r.in.cfg.Read + refreshEvery + time.Duration(r.behind)*perHop))
		}
	}
	if err := dtp.ReadAck(r.mirror.r, &r.ack); err != nil {
		return err
	}
	if r.ack.Seqno != seqno {
		return fmt.Errorf("acknowledgement of packet %d where %d was due: %w", r.ack.Seqno, seqno, dtp.ErrProtocol)
	}
	if len(r.ack.Replies) > r.behind {
		return fmt.Errorf("acknowledgement by %d datanodes of %d: %w", len(r.ack.Replies), r.behind, dtp.ErrProtocol)
	}
	return nil
}
