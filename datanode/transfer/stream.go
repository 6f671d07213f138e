package transfer

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
)

const (
	// batchData and batchPackets end a batch. One long write costs half of what eight short ones do, and clients send 5 MiB
	// ahead, so they do not wait for its acknowledgement. Twice as much gains nothing: it does not stay in the CPU's cache.
	batchData    = 512 << 10
	batchPackets = 512
	// smallPacket is up to what size a packet is stored at once when nothing came with it: what hflush sends is small and
	// its sender waits.
	smallPacket = 8 << 10

	// smallBuffer is what every write receives into (a packet of dtp.LargeSize fits), largeBuffer those that have brought a batchData already: it holds a
	// batch, and what comes of the next packet meanwhile. At most maxLarge writes have one.
	smallBuffer = 256 << 10
	largeBuffer = 704 << 10
	maxLarge    = 64
)

var (
	smallBuffers = sync.Pool{New: func() any { return new(make([]byte, smallBuffer)) }}
	largeBuffers = sync.Pool{New: func() any { return new(make([]byte, largeBuffer)) }}
	largeInUse   atomic.Int32
)

// stream takes the packets of one request off its connection, in batches: what has come is passed on as it is, then
// stored together. A batch ends when nothing more is there, and at batchData.
type stream struct {
	in      *receiver
	account *security.Account
	paid    int64 // what the account holds
	buf     *dtp.PacketBuffer
	bytes   *[]byte // the memory of buf; nil while nothing comes
	batch   []dtp.Packet
	data    int // bytes of data in batch
	total   int // in all batches before

	// forward passes packets on; store handles a batch, and is called at least once for each packet given to forward.
	forward func(raw []byte)
	store   func(batch []dtp.Packet) error

	// way is set if the packets come from this process: they are stored from where they lie. borrowed are those of the batch.
	way      *way
	borrowed int

	await func() error // until something comes; nil where only a read can do that
	now   func(p []byte) (int, error)
}

// newStream begins with what the connection has read ahead. close gives its memory back.
func (in *receiver) newStream(forward func([]byte), store func([]dtp.Packet) error) *stream {
	s := &stream{in: in, forward: forward, store: store, buf: dtp.NewPacketBuffer(nil)}
	s.account = in.cfg.Packets.Account(in.share())
	s.await, s.now = waits(in.nc)
	if l, ok := in.nc.(*lane); ok {
		s.way = l.in
	}
	return s
}

func (s *stream) close() {
	s.rest()
	s.account.Close()
}

// begin takes a buffer, which may have to be waited for. What the connection has read ahead goes into the first one.
func (s *stream) begin(ctx context.Context) error {
	if err := s.pay(ctx, smallBuffer); err != nil {
		return err
	}
	s.bytes = smallBuffers.Get().(*[]byte)
	s.buf.Resize(*s.bytes)
	ahead, _ := s.in.r.Peek(s.in.r.Buffered())
	s.buf.Filled(copy(s.buf.Free(), ahead))
	_, _ = s.in.r.Discard(len(ahead))
	return nil
}

// rest gives the buffer back, and with it whatever lies in it.
func (s *stream) rest() {
	if s.bytes != nil {
		if len(*s.bytes) == largeBuffer {
			largeBuffers.Put(s.bytes)
			largeInUse.Add(-1)
		} else {
			smallBuffers.Put(s.bytes)
		}
		s.bytes, s.total = nil, 0
		s.buf = dtp.NewPacketBuffer(nil)
	}
	s.account.Give(s.paid)
	s.account.Rest()
	s.paid = 0
}

// pay makes the account hold n bytes. Who gets none is held up, and with it whoever sends.
func (s *stream) pay(ctx context.Context, n int64) error {
	if n <= s.paid {
		s.account.Give(s.paid - n)
	} else if err := s.account.Take(ctx, n-s.paid); err != nil {
		return err
	}
	s.paid = n
	return nil
}

// run returns nil after the last packet, otherwise why there are no more packets.
func (s *stream) run(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	for {
		s.in.refresh()
		mark := s.buf.Mark()
		full, last, bad := s.collect()
		if s.buf.Mark() > mark {
			s.forward(s.buf.Since(mark))
		}
		if !full && bad == nil && s.way != nil && s.buf.Waiting() == 0 {
			full, last = s.borrow()
		}
		if bad != nil {
			return errors.Join(s.flush(), bad)
		}
		if full || s.buf.Full() {
			if err := s.flush(); err != nil || last {
				return err
			}
			continue
		}
		if err := s.read(ctx); err != nil {
			return errors.Join(s.flush(), unexpected(err))
		}
	}
}

// collect moves the packets that are there into the batch. full: no more belong into it; last: nor into any other.
func (s *stream) collect() (full, last bool, err error) {
	for {
		p, ok, err := s.buf.Next()
		if !ok {
			return false, false, err
		}
		if s.add(p) {
			return true, p.Last, nil
		}
	}
}

// add puts a packet into the batch and reports whether that is full.
func (s *stream) add(p dtp.Packet) bool {
	s.batch = append(s.batch, p)
	s.data += p.DataLen
	return p.Last || p.Sync || s.data >= batchData || len(s.batch) == batchPackets
}

// borrow is collect for packets that lie in the sender's memory.
func (s *stream) borrow() (full, last bool) {
	for {
		p, ok := s.way.packet()
		if !ok {
			return false, false
		}
		s.borrowed++
		s.forward(p.Raw)
		if s.add(p) {
			return true, p.Last
		}
	}
}

// flush stores the batch.
func (s *stream) flush() error {
	if len(s.batch) == 0 {
		return nil
	}
	s.in.summed = s.borrowed == len(s.batch)
	err := s.store(s.batch)
	s.total += s.data
	clear(s.batch)
	if s.batch, s.data = s.batch[:0], 0; s.borrowed > 0 {
		s.borrowed, s.total = 0, 0 // the buffer is not what they lay in
	}
	if s.total >= batchData && len(*s.bytes) == smallBuffer && s.buf.Waiting() <= smallBuffer {
		if countLarge() {
			if s.paid >= largeBuffer || s.account.Try(largeBuffer-s.paid) {
				s.account.Give(max(0, s.paid-largeBuffer))
				s.paid = largeBuffer
				large := largeBuffers.Get().(*[]byte)
				s.buf.Resize(*large)
				smallBuffers.Put(s.bytes)
				s.bytes = large
				return err
			}
			largeInUse.Add(-1)
		}
		s.total = 0 // another try after as much again
	}
	s.buf.Release()
	if home := int64(len(*s.bytes)); s.paid > home && !s.buf.Grown() {
		s.account.Give(s.paid - home)
		s.paid = home
	}
	return err
}

// countLarge counts one more large buffer as in use, unless maxLarge are: who is refused is never counted, and so keeps
// nobody else from the last one.
func countLarge() bool {
	for {
		n := largeInUse.Load()
		if n >= maxLarge {
			return false
		}
		if largeInUse.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// read gets more. If that takes a wait, the batch is stored first.
func (s *stream) read(ctx context.Context) error {
	if need := s.buf.Grows(); need > 0 { // it is larger than the buffer: nothing else is there
		if err := s.pay(ctx, int64(len(*s.bytes))+min(int64(need), s.in.cfg.Packets.Most())); err != nil {
			return err
		}
	}
	if s.way != nil && s.buf.Waiting() == 0 {
		if s.data > smallPacket && s.way.packets(batchData-s.data) {
			return nil
		}
		if err := s.flush(); err != nil {
			return err
		}
		if s.way.something() == nil && s.way.packets(0) {
			return nil
		}
	}
	if len(s.batch) > 0 {
		if s.now != nil && (s.data > smallPacket || s.buf.Waiting() > 0) {
			if n, err := s.now(s.buf.Free()); n > 0 || err != nil {
				s.buf.Filled(n)
				return err
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
	n, err := s.in.nc.Read(s.buf.Free())
	s.buf.Filled(n)
	switch {
	case n > 0:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return s.quiet(ctx)
	}
	return err
}

// quiet waits on for a peer that has said nothing for a while, without a buffer if nothing lies in it: files may be open
// for long, and many of them.
func (s *stream) quiet(ctx context.Context) error {
	s.in.silence()
	if s.await == nil || s.buf.Waiting() > 0 {
		n, err := s.in.nc.Read(s.buf.Free())
		s.buf.Filled(n)
		if n > 0 {
			return nil
		}
		return err
	}
	s.rest()
	if err := s.await(); err != nil {
		return err
	}
	return s.begin(ctx)
}

// peek reports whether a socket has something to read, or its end.
func peek(fd uintptr) bool {
	_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return !errors.Is(err, unix.EAGAIN)
}

// bare reports whether a packet comes without the checksums that were announced: Hadoop's client makes none for the only replica of a lazily persisted file. It is taken as if none were
// wanted for it.
func (in *receiver) bare(p *dtp.Packet) bool { return len(p.Sums) == 0 && len(in.op.Targets) == 0 }

// translated is what is stored of a packet with checksums that are not those of the replica. The new ones are made before the data is compared with its own,
// so that what changes in memory meanwhile matches one or the other no more.
func (in *receiver) translated(p *dtp.Packet) (datanode.Piece, error) {
	piece := datanode.Piece{Off: p.Offset, Data: p.Data}
	if p.Offset%datanode.ChunkSize == 0 {
		at := len(in.sums)
		in.sums = in.stored.Append(in.sums, p.Data)
		piece.Sums, piece.Summed = in.sums[at:], true
	}
	if in.bare(p) {
		return piece, nil
	}
	return piece, in.sum.Verify(p.Sums, p.Data)
}

// keep stores packets in order and returns how many of them are stored, all unless there is an error. Only checksums of
// the stored kind are passed on; others are verified here.
func (in *receiver) keep(packets []dtp.Packet) (int, error) {
	n := 0
	for n < len(packets) {
		in.pieces, in.sums = in.pieces[:0], in.sums[:0]
		var bad error
		for i := range packets[n:] {
			p := &packets[n+i]
			if p.DataLen == 0 {
				break
			}
			piece := datanode.Piece{Off: p.Offset, Data: p.Data, Sums: p.Sums, Summed: in.summed}
			if in.sum != in.stored || in.bare(p) {
				piece, bad = in.translated(p)
			}
			if bad != nil {
				break
			}
			in.pieces = append(in.pieces, piece)
		}
		if len(in.pieces) > 0 {
			began := time.Now()
			k, err := in.w.WriteAll(in.pieces)
			in.wroteDisk(began)
			clear(in.pieces)
			if n += k; err != nil {
				return n, err
			}
		}
		if bad != nil {
			return n, bad
		}
		if n < len(packets) && packets[n].DataLen == 0 {
			n++
		}
	}
	if i := len(packets) - 1; i >= 0 && packets[i].Sync && (!packets[i].Last || !in.w.Durable()) { // the end of a block may be synced anyway
		began := time.Now()
		if err := in.w.Sync(); err != nil {
			return i, err
		}
		in.flushed(began)
	}
	return n, nil
}
