package transfer

import (
	"fmt"
	"io"
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
//	upstream ──packets──▶ receive loop ──packets──▶ mirror (the next datanode)
//	                          │ copies of packets
//	                          ▼
//	                        keeper     verify, write, sync
//	                          │ handled
//	                          ▼
//	upstream ◀──acks──── responder ◀──────acks───── mirror
//
// The responder has a goroutine only if there is a mirror to wait for, the keeper only once a packet waits.
func (in *receiver) pipeline() error {
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
	err := in.receive(r, k)
	if err != nil && !k.failed.Load() {
		r.abandon() // upstream is gone: those behind must learn it, and nobody waits for their answers
	}
	k.end()
	if r.queue != nil {
		close(r.queue)
		answering.Wait()
	}
	close(stopped)
	watching.Wait()
	if k.err != nil {
		err = k.err
	}
	switch {
	case err != nil:
		return fmt.Errorf("write of %v: %w", in.block, err)
	case in.r.Buffered() > 0 || r.deaf || r.broken.Load():
		return errDone
	}
	return nil // another request may follow
}

// receive is the receive loop. It returns nil after the last packet, and an error when there is no more to read: because
// upstream is gone, or because the keeper failed.
func (in *receiver) receive(r *responder, k *keeper) error {
	packets := dtp.NewPacketReader(in.r)
	defer packets.Done()
	for {
		in.refresh()
		if k.failed.Load() { // it may have moved the deadline before refresh did
			return io.ErrUnexpectedEOF
		}
		p, err := packets.Next()
		if err != nil {
			return unexpected(err)
		}
		if in.mirror != nil && !r.broken.Load() {
			in.mirror.refresh(in.cfg.Write)
			if _, err := in.mirror.Write(p.Raw); err != nil {
				r.breakMirror(err)
			}
		}
		k.take(&p)
		if p.Last {
			return nil
		}
	}
}

const (
	// ackBatch is how many bytes of acknowledgements are collected while packets wait: a dozen packets, of the 80 that
	// clients send ahead.
	ackBatch = 256
	// maxArrivals is how many packets may wait for the disk, and maxCopied up to which size they are copied for that.
	maxArrivals = 8
	maxCopied   = 128 << 10
	// smallPacket is up to which size a packet is handled at once when nothing waits: what hflush sends is small and
	// its sender waits.
	smallPacket = 8 << 10
)

// keeper writes packets to the replica while the receive loop reads the next ones.
type keeper struct {
	in       *receiver
	out      *responder
	arrivals chan arrival // nil before the first
	running  sync.WaitGroup
	waiting  atomic.Int32 // arrivals that are not handled yet
	failed   atomic.Bool
	err      error // set before failed

	// Only for handle, which runs in one goroutine at a time.
	begun bool
	next  int64 // sequence number that is due
}

// arrival is a packet for the keeper: a copy, or one that the receive loop keeps until done is closed.
type arrival struct {
	packet dtp.Packet
	copied *[]byte
	done   chan struct{}
}

var packetCopies = sync.Pool{New: func() any { return new(make([]byte, maxCopied)) }}

// take hands a packet over; the caller may reuse its memory afterwards.
func (k *keeper) take(p *dtp.Packet) {
	if p.DataLen <= smallPacket && k.waiting.Load() == 0 {
		k.handle(p)
		if k.in.r.Buffered() <= len(p.Raw) { // nothing follows at once
			k.out.idle()
		}
		return
	}
	a := arrival{packet: *p}
	k.waiting.Add(1)
	if k.arrivals == nil {
		k.arrivals = make(chan arrival, maxArrivals)
		k.running.Go(k.run)
	}
	if len(p.Raw) > maxCopied {
		a.done = make(chan struct{})
		k.arrivals <- a
		<-a.done
		return
	}
	a.copied = packetCopies.Get().(*[]byte)
	b := (*a.copied)[:0]
	b = append(append(b, p.Sums...), p.Data...)
	a.packet.Sums, a.packet.Data, a.packet.Raw = b[:len(p.Sums)], b[len(p.Sums):], nil
	k.arrivals <- a
}

// end returns when everything taken is handled.
func (k *keeper) end() {
	if k.arrivals != nil {
		close(k.arrivals)
		k.running.Wait()
	}
}

func (k *keeper) run() {
	for a := range k.arrivals {
		k.handle(&a.packet)
		if a.copied != nil {
			packetCopies.Put(a.copied)
		} else {
			close(a.done)
		}
		if k.waiting.Load() == 1 { // before the receive loop may handle packets again
			k.out.idle()
		}
		k.waiting.Add(-1)
	}
}

// handle stores a packet and passes it on to be acknowledged. After an error it does nothing any more.
func (k *keeper) handle(p *dtp.Packet) {
	if k.failed.Load() {
		return
	}
	if p.Heartbeat() {
		k.out.take(handled{seqno: p.Seqno})
		return
	}
	var err error
	if k.begun && p.Seqno != k.next {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "packet %d where %d was due", p.Seqno, k.next)
	}
	k.begun, k.next = true, p.Seqno+1
	if err == nil {
		err = k.in.storePacket(p)
	}
	if err == nil && p.Last {
		err = k.in.finish(p.Offset)
	}
	if err != nil {
		k.out.take(handled{seqno: p.Seqno, status: statusOf(err)}) // the client is told
		k.out.idle()
		k.err = err
		k.failed.Store(true)
		_ = k.in.nc.SetReadDeadline(time.Unix(1, 0)) // wakes the receive loop
		return
	}
	k.out.take(handled{seqno: p.Seqno, end: p.Offset + int64(p.DataLen)})
}

// finish finalizes the replica after the last packet.
func (in *receiver) finish(length int64) error {
	if have := in.w.Replica().Block.Length; have != length {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the last packet ends the block at %d, the replica has %d bytes", length, have)
	}
	_, err := in.w.Finalize()
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

// idle says that the keeper has nothing to do.
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
		if _, err := r.in.nc.Write(r.out); err != nil {
			r.deaf = true
			r.in.nc.Close() // wakes the receive loop
		}
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
