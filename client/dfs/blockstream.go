package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// blockStream reads a range of one block from one datanode and checks every byte of it.
type blockStream struct {
	pool    *peerPool
	peer    *peer
	packets *dtp.PacketReader
	sum     dtp.Checksum
	pos     int64 // in the block, of the next byte to hand out
	end     int64 // of the range
	next    int64 // where the next packet has to start
	data    []byte
	// stop ends the watch over the stream's context; nil: it has none.
	stop func() bool
	// alone returns when nobody interrupts the connection any more for being slow; nil: nobody does.
	alone func()
}

// openStream asks a datanode for length bytes at offset of a block.
func (c *Client) openStream(ctx context.Context, b *located, id *hadooppb.DatanodeIDProto, offset, length int64) (*blockStream, error) {
	request := &hadooppb.OpReadBlockProto{
		Header:        c.opHeader(b.block, b.token),
		Offset:        new(uint64(offset)),
		Len:           new(uint64(length)),
		SendChecksums: new(true),
	}
	started := time.Now()
	p, answer, err := c.ask(ctx, id, dtp.OpReadBlock, request)
	if err != nil {
		return nil, err
	}
	c.hedging.answered(time.Since(started))
	s, err := startStream(c.peers, p, answer, offset, length)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// until ends the stream's reads when ctx ends.
func (s *blockStream) until(ctx context.Context) {
	if s.peer != nil {
		s.stop = s.peer.during(ctx)
	}
}

// startStream reads what a datanode sends behind its answer.
func startStream(pool *peerPool, p *peer, answer *hadooppb.BlockOpResponseProto, offset, length int64) (s *blockStream, err error) {
	s = &blockStream{pool: pool, peer: p, packets: dtp.NewPacketReader(p.r), pos: offset, end: offset + length}
	info := answer.GetReadOpChecksumInfo()
	if info == nil {
		s.close()
		return nil, fmt.Errorf("%w: the answer to a read says nothing about checksums", dtp.ErrProtocol)
	}
	if s.sum, err = dtp.ChecksumOf(info.GetChecksum()); err != nil {
		s.close()
		return nil, err
	}
	s.next = int64(info.GetChunkOffset())
	if s.next > offset || s.next <= offset-int64(s.sum.BytesPer) {
		s.close()
		return nil, fmt.Errorf("%w: asked for offset %d, the answer starts at %d", dtp.ErrProtocol, offset, s.next)
	}
	return s, nil
}

// opHeader opens a request about a block.
func (c *Client) opHeader(b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto) *hadooppb.ClientOperationHeaderProto {
	return &hadooppb.ClientOperationHeaderProto{
		BaseHeader: &hadooppb.BaseHeaderProto{Block: b, Token: token},
		ClientName: &c.name,
	}
}

// read returns the next checked bytes, valid until the next call, and at least one. io.EOF: the range is done and the
// connection back in the pool.
func (s *blockStream) read() ([]byte, error) {
	for len(s.data) == 0 {
		if s.peer == nil {
			return nil, io.EOF
		}
		p, err := s.packets.Next()
		if err != nil {
			return nil, s.broken(err)
		}
		if p.Last {
			if s.pos < s.end {
				return nil, s.broken(fmt.Errorf("%w: the block ends at %d, %d is wanted", dtp.ErrProtocol, s.pos, s.end))
			}
			s.finish()
			continue
		}
		if err := s.accept(p); err != nil {
			return nil, s.broken(err)
		}
	}
	b := s.data
	s.data = nil
	s.pos += int64(len(b))
	return b, nil
}

// accept checks a packet and cuts out what was asked for.
func (s *blockStream) accept(p dtp.Packet) error {
	if p.Offset != s.next || p.DataLen == 0 || s.next >= s.end {
		return fmt.Errorf("%w: a packet with bytes %d to %d where %d to %d are wanted", dtp.ErrProtocol, p.Offset, p.Offset+int64(p.DataLen), s.next, s.end)
	}
	if err := s.sum.Verify(p.Sums, p.Data); err != nil {
		return fmt.Errorf("at offset %d: %w", p.Offset, err)
	}
	s.next += int64(p.DataLen)
	from := s.pos - p.Offset // the first packet starts at a chunk, not at what was asked for
	if from >= int64(p.DataLen) {
		return nil
	}
	s.data = p.Data[from:min(int64(p.DataLen), s.end-p.Offset)]
	return nil
}

// unread gives back what was not used of the bytes that read returned last. What was given back of them before lies behind b in memory.
func (s *blockStream) unread(b []byte) {
	s.data = b[:len(b)+len(s.data)]
	s.pos -= int64(len(b))
}

func (s *blockStream) place() (pos, end int64) { return s.pos, s.end }

// part ends a stream so that its connection can be used again if the range is done.
func (s *blockStream) part() {
	if s.peer != nil {
		s.peer.slow = nil
	}
	if s.pos == s.end && len(s.data) == 0 {
		if _, err := s.read(); errors.Is(err, io.EOF) {
			return
		}
	}
	s.close()
}

// finish keeps the connection, on which the datanode hears next that all was well.
func (s *blockStream) finish() {
	s.packets.Done()
	status := hadooppb.Status_CHECKSUM_OK
	if s.sum.Type == dtp.Null {
		status = hadooppb.Status_SUCCESS
	}
	p := s.peer
	s.peer = nil
	if s.alone != nil {
		s.alone()
	}
	if s.stop != nil && !s.stop() { // and now somebody interrupts it
		p.close()
		return
	}
	p.owed, _ = dtp.AppendMessage(nil, &hadooppb.ClientReadStatusProto{Status: status.Enum()}) // cannot fail
	s.pool.put(p, false)
}

func (s *blockStream) broken(err error) error {
	s.close()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// close gives up; a connection with packets under way is of no more use.
func (s *blockStream) close() {
	s.data = nil
	if s.peer != nil {
		if s.stop != nil {
			s.stop()
		}
		s.peer.close()
		s.peer = nil
	}
}
