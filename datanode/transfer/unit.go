package transfer

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What a datanode moves to compute internal blocks of groups: parts of them come, and new ones go. It is signed by the datanode itself, which the
// namenode, or a client that may read the group, has asked.

const (
	// fetchedPacket is the largest packet that is taken of another datanode.
	fetchedPacket = 2 << 20
	// accuseTime is how long it may take to tell a datanode that its replica is damaged.
	accuseTime = 5 * time.Second
)

// Fetch reads n bytes of a finalized replica of another datanode from off on, which is a multiple of the chunk. What it returns was compared with its checksums; the
// first mismatch is an error, of which the other datanode hears.
func (s *Server) Fetch(ctx context.Context, pool string, b metadata.Block, from *hadooppb.DatanodeInfoProto, off, n int64) (io.ReadCloser, error) {
	f, err := s.fetchBy(ctx, dtp.OpReadBlock, pool, b, from, off, n)
	if err != nil {
		return nil, fmt.Errorf("read of %v from %s: %w", b, dtp.TransferAddr(from.GetId(), false), err)
	}
	return f, nil
}

// fetchBy is Fetch by READ_BLOCK, or of the whole block by COPY_BLOCK, which is at the pace of balancers, and from a datanode that is left when it is silent: no other one is asked.
func (s *Server) fetchBy(ctx context.Context, op dtp.Op, pool string, b metadata.Block, from *hadooppb.DatanodeInfoProto, off, n int64) (*fetched, error) {
	token := tokenProto(s.cfg.Trust.Sign(pool, b.ID, security.ReadBlock))
	p, err := s.dial(ctx, from, token)
	if err != nil {
		return nil, err
	}
	f := &fetched{server: s, peer: p, close: p.Close, ctx: ctx, pool: pool, block: b, from: from, off: off, end: off + n}
	if op == dtp.OpCopyBlock {
		f.close = s.watch(ctx, p, pool, b, from, false).Close
	}
	if err := f.ask(op, token); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// fetched is a part of a replica that another datanode sends.
type fetched struct {
	server *Server
	peer   *peer
	close  func() error
	ctx    context.Context //nolint:containedctx // of the stream
	pool   string
	block  metadata.Block
	from   *hadooppb.DatanodeInfoProto
	sum    dtp.Checksum
	in     *dtp.PacketReader
	off    int64 // of what is returned next
	end    int64
	rest   []byte // of the last packet
	err    error
}

// ask sends the request and reads its answer.
func (f *fetched) ask(op dtp.Op, token *hadooppb.TokenProto) error {
	f.peer.deadlines(f.server.cfg.Read, f.server.cfg.Read)
	header := &hadooppb.BaseHeaderProto{Block: protoOf(f.pool, f.block), Token: token}
	var request dtp.Message = &hadooppb.OpCopyBlockProto{Header: header}
	if op == dtp.OpReadBlock {
		request = &hadooppb.OpReadBlockProto{
			Header: &hadooppb.ClientOperationHeaderProto{BaseHeader: header, ClientName: new("datanode")},
			Offset: new(uint64(f.off)), Len: new(uint64(f.end - f.off)), SendChecksums: new(true),
		}
	}
	if err := dtp.WriteOp(f.peer, op, request); err != nil {
		return err
	}
	answer, err := dtp.ReadResponse(f.peer.r)
	if err == nil {
		err = dtp.CheckResponse(op, answer)
	}
	if err != nil {
		return unexpected(err)
	}
	info := answer.GetReadOpChecksumInfo()
	if f.sum, err = dtp.ChecksumOf(info.GetChecksum()); err != nil {
		return err
	}
	if f.sum.Type == dtp.Null {
		return metadata.Errorf(metadata.ErrInvalidArgument, "it comes without checksums")
	}
	if int64(info.GetChunkOffset()) != f.off {
		return metadata.Errorf(metadata.ErrInvalidArgument, "it begins at %d, %d was asked for", info.GetChunkOffset(), f.off)
	}
	f.in = dtp.NewPacketReader(f.peer.r)
	f.in.Limit(fetchedPacket)
	return nil
}

func (f *fetched) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.err == nil && f.off >= f.end {
			f.err = io.EOF
		}
		if f.err != nil {
			return 0, f.err
		}
		f.err = f.next()
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	f.off += int64(n)
	return n, nil
}

// next takes a packet.
func (f *fetched) next() error {
	_ = f.peer.SetReadDeadline(time.Now().Add(f.server.cfg.Read))
	packet, err := f.in.Next()
	switch {
	case err != nil:
		return fmt.Errorf("read of %v from %s: %w", f.block, f.peer.addr, unexpected(err))
	case packet.Heartbeat():
		return nil
	case packet.Offset != f.off || packet.Last || len(packet.Data) == 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "read of %v from %s: a packet of %d bytes at %d, where %d is next", f.block, f.peer.addr, len(packet.Data), packet.Offset, f.off)
	}
	if err := f.sum.Verify(packet.Sums, packet.Data); err != nil {
		f.accuse(f.off)
		return fmt.Errorf("read of %v from %s: %w", f.block, f.peer.addr, err)
	}
	f.rest = packet.Data[:min(int64(len(packet.Data)), f.end-f.off)]
	return nil
}

// accuse reads what was damaged again, to its end, because only then the other datanode hears how it was.
func (f *fetched) accuse(off int64) {
	ctx, cancel := context.WithTimeout(f.ctx, accuseTime)
	defer cancel()
	again, err := f.server.fetchBy(ctx, dtp.OpReadBlock, f.pool, f.block, f.from, off, min(f.end-off, int64(f.sum.BytesPer)))
	if err == nil {
		defer again.Close()
		for err == nil {
			var packet dtp.Packet
			if packet, err = again.in.Next(); err == nil && packet.Last {
				err = dtp.WriteMessage(again.peer, &hadooppb.ClientReadStatusProto{Status: hadooppb.Status_ERROR_CHECKSUM.Enum()})
				break
			}
		}
	}
	if err != nil {
		f.server.log.Warn("a datanode could not be told that its replica is damaged", "block", f.block.String(), "node", f.peer.addr, "err", err)
	}
}

// Close ends the stream wherever it is.
func (f *fetched) Close() error {
	f.in, f.rest, f.err = nil, nil, io.ErrClosedPipe
	return f.close()
}

// Wanted asks a datanode what the writer of a block wants it to be checked by.
func (s *Server) Wanted(ctx context.Context, pool string, b metadata.Block, from *hadooppb.DatanodeInfoProto) (datanode.Checksum, error) {
	b.Length = 0 // of which the checksum is had for nothing
	answer, err := s.checksumBy(ctx, pool, b, from, &hadooppb.BlockChecksumOptionsProto{})
	if err != nil {
		return datanode.Checksum{}, err
	}
	sum, err := dtp.ChecksumOf(&hadooppb.ChecksumProto{Type: new(answer.GetCrcType()), BytesPerChecksum: new(answer.GetBytesPerCrc())})
	return kept(sum), err
}

// checksumBy asks another datanode for the checksum of a block, and leaves it when it is silent.
func (s *Server) checksumBy(ctx context.Context, pool string, b metadata.Block, at *hadooppb.DatanodeInfoProto, o *hadooppb.BlockChecksumOptionsProto) (*hadooppb.OpBlockChecksumResponseProto, error) {
	token := tokenProto(s.cfg.Trust.Sign(pool, b.ID, security.ReadBlock))
	p, err := s.dial(ctx, at, token)
	if err != nil {
		return nil, err
	}
	defer s.watch(ctx, p, pool, b, at, false).Close()
	p.deadlines(s.cfg.Read, s.cfg.Read)
	err = dtp.WriteOp(p, dtp.OpBlockChecksum, &hadooppb.OpBlockChecksumProto{
		Header: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: token}, BlockChecksumOptions: o,
	})
	var m *hadooppb.BlockOpResponseProto
	if err == nil {
		m, err = dtp.ReadResponse(p.r)
	}
	if err == nil {
		err = dtp.CheckResponse(dtp.OpBlockChecksum, m)
	}
	if err != nil {
		return nil, fmt.Errorf("checksum of %v by %s: %w", b, p.addr, unexpected(err))
	}
	return m.GetChecksumResponse(), nil
}

// Placed is a replica that is being made at another datanode. It is there after Finish.
type Placed struct {
	server *Server
	to     *watched
	block  metadata.Block
	out    *dtp.PacketWriter
	sums   []byte
	off    int64
	seqno  int64
	there  bool // the other datanode had it before
}

// Place begins to make a finalized replica of b, with the checksums that are wanted, at another datanode, on a volume of a kind, as a client's order to copy does (TRANSFER_BLOCK): that is answered.
// Nothing of it stays there if it is closed before Finish. hurried: others wait for it, so it has failed when the other one's disk does not answer for 3 s.
func (s *Server) Place(ctx context.Context, pool string, b metadata.Block, to *hadooppb.DatanodeInfoProto, kind hadooppb.StorageTypeProto, wanted datanode.Checksum, hurried bool) (*Placed, error) {
	token := s.ownToken(pool, b.ID)
	p, err := s.dial(ctx, to, token)
	if err != nil {
		return nil, fmt.Errorf("write of %v: %w", b, err)
	}
	w := &Placed{server: s, to: s.watch(ctx, p, pool, b, to, hurried), block: b}
	w.out = dtp.NewPacketWriter(w.to)
	p.deadlines(s.cfg.Read+perHop, s.cfg.Write)
	request := &hadooppb.OpWriteBlockProto{
		Header: &hadooppb.ClientOperationHeaderProto{BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: token}, ClientName: new("datanode")},
		Stage:  stageTransferFinalized.Enum(), PipelineSize: new(uint32), MinBytesRcvd: new(uint64), MaxBytesRcvd: new(uint64), LatestGenerationStamp: new(uint64),
		RequestedChecksum: dtp.DefaultChecksum.Proto(), StorageType: kind.Enum(),
	}
	if wanted != datanode.DefaultChecksum {
		request.WantedChecksum = wantedOf(wanted).Proto()
	}
	if err = dtp.WriteOp(w.to, dtp.OpWriteBlock, request); err != nil {
		_ = w.Close()
		return nil, w.failed(err)
	}
	return w, nil
}

// Write sends data in packets. Only the last Write may have a length that is no multiple of the chunk.
func (w *Placed) Write(data []byte) (int, error) {
	sent := 0
	for sent < len(data) && !w.there {
		piece := data[sent:min(len(data), sent+packetData)]
		w.sums = dtp.DefaultChecksum.Append(w.sums[:0], piece)
		w.to.refresh(w.server.cfg.Write)
		if err := w.out.Write(dtp.Header{Offset: w.off, Seqno: w.seqno}, w.sums, piece); err != nil {
			if err = w.to.refused(err); err != nil {
				return sent, w.failed(err)
			}
			w.there = true
		}
		sent, w.off, w.seqno = sent+len(piece), w.off+int64(len(piece)), w.seqno+1
	}
	return len(data), nil
}

// Finish ends the replica, and returns when it is on the other datanode's disk.
func (w *Placed) Finish() error {
	if w.there {
		return nil
	}
	w.to.deadlines(w.server.cfg.Read+perHop, w.server.cfg.Write)
	if err := w.out.Write(dtp.Header{Offset: w.off, Seqno: w.seqno, Last: true}, nil, nil); err != nil {
		if err = w.to.refused(err); err != nil {
			return w.failed(err)
		}
		w.there = true
		return nil
	}
	answer, err := dtp.ReadResponse(w.to.r)
	if err == nil {
		err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
	}
	if err == nil {
		w.there = answer.GetMessage() != ""
		return nil
	}
	return w.failed(unexpected(err))
}

func (w *Placed) failed(err error) error {
	return fmt.Errorf("write of %v to %s: %w", w.block, w.to.addr, err)
}

// Made reports, after Finish, whether the other datanode did not have it before.
func (w *Placed) Made() bool { return !w.there }

// Close gives the replica up, unless it was finished.
func (w *Placed) Close() error { return w.to.Close() }
