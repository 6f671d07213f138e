package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// packetData is how much data a packet of a read carries: a multiple of the chunk, and two packets fit into the
	// reader of a client that uses internal/dtp.
	packetData = 2 * dtp.DataSize
	// inlineData is up to how many bytes a read is answered from memory with one system call.
	inlineData = 64 << 10
	// growWait is how long a reader that is ahead of a writer waits for bytes.
	growWait = 3 * time.Second
)

// wantsWord reports whether a request wants no byte of a block: so our clients ask whether a datanode is of use for the block, readers
// and writers.
func wantsWord(request dtp.Message) bool {
	m, ok := request.(*hadooppb.OpReadBlockProto)
	return ok && m.GetLen() == 0
}

// read serves READ_BLOCK.
func (c *conn) read(ctx context.Context, op *hadooppb.OpReadBlockProto) error {
	b, err := c.blockOf(op.GetHeader().GetBaseHeader().GetBlock())
	if err != nil {
		return c.refuse(dtp.OpReadBlock, hadooppb.Status_ERROR, "", err)
	}
	off, end := int64(op.GetOffset()), int64(op.GetOffset()+op.GetLen())
	if off < 0 || end < off {
		err := metadata.Errorf(metadata.ErrInvalidArgument, "read of %v at offset %d, %d bytes", b, op.GetOffset(), op.GetLen())
		return c.refuse(dtp.OpReadBlock, hadooppb.Status_ERROR, "", err)
	}
	if wantsWord(op) && c.cfg.Answers != nil && !c.cfg.Answers(ctx, b.ID) { // any answer would mean that it is
		c.log.Info("client is not answered, because the disk does not answer", "block", b.String())
		return errDone
	}
	rd, err := c.openFor(ctx, b, end)
	if err != nil {
		return c.refuse(dtp.OpReadBlock, statusOf(err), "", err)
	}
	sent, err := c.answer(op, rd, off, end)
	rd.Close()
	if err != nil {
		c.broken(b.ID)
		return err
	}
	if !sent {
		// Clients leave when they have what they want; that says nothing about the replica (HDFS's BlockSender, too, takes
		// no notice of a broken pipe).
		return errDone
	}
	c.work.Store(nil) // what is waited for is not the disk
	status := new(hadooppb.ClientReadStatusProto)
	_ = c.nc.SetReadDeadline(time.Now().Add(c.cfg.Read))
	if err := dtp.ReadMessage(c.r, status); err != nil { // our client sends it with its next request
		if errors.Is(err, dtp.ErrProtocol) {
			return err
		}
		return errDone
	}
	switch status.GetStatus() {
	case hadooppb.Status_SUCCESS, hadooppb.Status_CHECKSUM_OK:
		return nil
	case hadooppb.Status_ERROR_CHECKSUM:
		if c.cfg.Accused != nil {
			c.cfg.Accused(b.ID, c.share())
		}
	}
	return errDone
}

// answer sends what a READ_BLOCK asks for. sent: all of it. An error is the replica's fault.
func (c *conn) answer(op *hadooppb.OpReadBlockProto, rd datanode.Reader, off, end int64) (sent bool, err error) {
	out := &sender{w: c.nc, rd: rd, refresh: func() { _ = c.nc.SetWriteDeadline(time.Now().Add(c.cfg.Write)) }}
	out.sum = storedOf(rd.Checksum())
	if op.SendChecksums != nil && !op.GetSendChecksums() {
		out.sum.Type = dtp.Null
	}
	start := off - off%datanode.ChunkSize
	buf := sendBuffers.Get().(*[]byte)
	defer func() {
		*buf = out.buf
		sendBuffers.Put(buf)
	}()
	if out.buf, err = dtp.AppendMessage((*buf)[:0], dtp.ReadSuccess(out.sum, start)); err != nil {
		return false, err
	}
	if end > off {
		end = min((end+datanode.ChunkSize-1)/datanode.ChunkSize*datanode.ChunkSize, rd.Replica().Visible)
	} else {
		start, end = off, off
	}
	return out.send(start, end) == nil, out.failed
}

func (s *Server) broken(id metadata.BlockID) {
	if s.cfg.Broken != nil {
		s.cfg.Broken(id)
	}
}

// openFor opens a replica of which bytes up to end are wanted. One that is being written may have them soon.
func (s *Server) openFor(ctx context.Context, b metadata.Block, end int64) (datanode.Reader, error) {
	var waited bool
	for {
		rd, err := s.source.Open(b)
		if err != nil {
			return nil, err
		}
		r := rd.Replica()
		if end <= r.Visible {
			return rd, nil
		}
		rd.Close()
		if r.State != datanode.RBW || waited {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "read of %v up to %d, but the replica has %d bytes", b, end, r.Visible)
		}
		waited = true
		wait, cancel := context.WithTimeout(ctx, s.growWait)
		s.source.Wait(wait, b.ID, end)
		cancel()
	}
}

// sendBuffers are the senders' buffers, grown to what they were used for.
var sendBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, 2*idleBuffer)) }}

// sender streams a range of a replica as packets.
type sender struct {
	w   io.Writer
	rd  datanode.Reader
	sum dtp.Checksum // what is stored, or Null for packets without checksums
	// verify compares data with its checksums before it is sent, which costs the copy that sendfile saves.
	verify bool
	// refresh moves the deadline of w.
	refresh func()
	// buf begins with what is to be sent first.
	buf   []byte
	seqno int64
	// failed is an error of the replica; what Write returns is one of the peer.
	failed error
}

// send sends [start, end), start at a chunk's start, and the empty packet that ends a block.
//
// Small ranges are copied into one buffer with all headers. Of large ones the kernel sends the data from the page cache
// behind a buffer with header and checksums, which shares a segment with the first of them.
func (o *sender) send(start, end int64) error {
	tcp, _ := o.w.(io.ReaderFrom) // a socket: sendfile
	file := o.rd.File()
	direct := tcp != nil && security.Plain(o.w) && file != nil && !o.verify && end-start > inlineData
	ahead := o.w.Write
	if direct {
		if _, err := file.Seek(start, io.SeekStart); err != nil {
			return o.broken(err)
		}
		if c, ok := o.w.(net.Conn); ok {
			if more := security.Ahead(c); more != nil {
				ahead = more
			}
		}
	}
	for off := start; off < end; {
		n := min(packetData, end-off)
		if err := o.header(off, n); err != nil {
			return err
		}
		if direct {
			if err := o.flush(ahead); err != nil {
				return err
			}
			o.rd.Sending(off, n)
			k, err := tcp.ReadFrom(&io.LimitedReader{R: file, N: n})
			o.rd.Sending(off, 0)
			if diskFailed(err) {
				return o.broken(err)
			}
			if err != nil {
				return err
			}
			if k < n {
				return o.broken(io.ErrUnexpectedEOF)
			}
		} else if err := o.copyData(off, n); err != nil {
			return err
		}
		off += n
	}
	o.buf = dtp.AppendHeader(o.buf, dtp.Header{Offset: end, Seqno: o.seqno, Last: true}, 0)
	return o.flush(o.w.Write)
}

// diskFailed tells an error of sendfile that comes from the file from those of the socket.
func diskFailed(err error) bool {
	for _, e := range []syscall.Errno{syscall.EIO, syscall.EBADMSG, syscall.ENODATA, syscall.ENXIO, syscall.EROFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (o *sender) broken(err error) error {
	o.failed = fmt.Errorf("read of %v: %w", o.rd.Replica().Block, err)
	return o.failed
}

// header appends a packet's header and checksums.
func (o *sender) header(off, n int64) error {
	sums := o.sum.SumsLen(int(n))
	o.buf = dtp.AppendHeader(o.buf, dtp.Header{Offset: off, Seqno: o.seqno, DataLen: int(n)}, sums)
	o.seqno++
	if sums == 0 {
		return nil
	}
	var err error
	if o.buf, err = o.rd.Sums(o.buf, off, off+n); err != nil {
		return o.broken(err)
	}
	return nil
}

// copyData appends a packet's data and sends what is there, except before the end of a small range.
func (o *sender) copyData(off, n int64) error {
	at := len(o.buf)
	for cap(o.buf) < at+int(n) {
		o.buf = append(o.buf[:cap(o.buf)], 0)
	}
	o.buf = o.buf[:at+int(n)]
	if _, err := o.rd.ReadAt(o.buf[at:], off); err != nil {
		return o.broken(err)
	}
	if o.verify {
		sums := o.buf[at-o.sum.SumsLen(int(n)) : at]
		if err := o.sum.Verify(sums, o.buf[at:]); err != nil {
			return o.broken(err)
		}
	}
	if len(o.buf) < inlineData+idleBuffer {
		return nil
	}
	return o.flush(o.w.Write)
}

func (o *sender) flush(write func([]byte) (int, error)) error {
	o.refresh()
	_, err := write(o.buf)
	o.buf = o.buf[:0]
	return err
}
