package transfer

import (
	"crypto/md5" //nolint:gosec // HDFS's file checksum is made of it
	"encoding/binary"
	"hash"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// checksum serves BLOCK_CHECKSUM, of the first numBytes of the block.
func (c *conn) checksum(op *hadooppb.OpBlockChecksumProto) error {
	b, err := c.blockOf(op.GetHeader().GetBlock())
	if err != nil {
		return c.refuse(dtp.OpBlockChecksum, hadooppb.Status_ERROR, "", err)
	}
	answer, err := c.blockChecksum(b, op.GetBlockChecksumOptions())
	if err != nil {
		return c.refuse(dtp.OpBlockChecksum, statusOf(err), "", err)
	}
	response := dtp.Success()
	response.ChecksumResponse = answer
	if err := dtp.WriteResponse(c.nc, response); err != nil {
		return err
	}
	return errDone
}

// sumStep is how much of a block's data one read of its checksums covers: a multiple of the chunk.
const sumStep = 4 << 20

func (s *Server) blockChecksum(b metadata.Block, o *hadooppb.BlockChecksumOptionsProto) (*hadooppb.OpBlockChecksumResponseProto, error) {
	rd, err := s.source.Open(b)
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	visible := rd.Replica().Visible
	if b.Length > visible {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "checksum of %v, but the replica has %d bytes", b, visible)
	}
	if o == nil {
		o = &hadooppb.BlockChecksumOptionsProto{}
	}
	total, err := newSummary(o.GetBlockChecksumType(), int64(o.GetStripeLength()))
	if err != nil {
		return nil, err
	}
	var sums []byte
	for off := int64(0); off < b.Length; off += sumStep {
		end := min(off+sumStep, b.Length)
		if sums, err = firstSums(rd, sums[:0], off, end, visible); err != nil {
			return nil, err
		}
		total.add(sums, end-off)
	}
	return &hadooppb.OpBlockChecksumResponseProto{
		BytesPerCrc:          new(uint32(dtp.DefaultChecksum.BytesPer)),
		CrcPerBlock:          new(uint64(dtp.DefaultChecksum.Chunks(int(visible)))),
		CrcType:              hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
		BlockChecksumOptions: &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: total.kind.Enum(), StripeLength: o.StripeLength},
		BlockChecksum:        total.finish(),
	}, nil
}

// summary is the checksum of a block, of those of its chunks: their MD5, or their combination.
type summary struct {
	kind      hadooppb.BlockChecksumTypeProto
	digest    hash.Hash
	composite composite
}

// newSummary begins one; a stripe, of a combination, is after how many bytes another begins, and 0 never.
func newSummary(kind hadooppb.BlockChecksumTypeProto, stripe int64) (*summary, error) {
	if kind != hadooppb.BlockChecksumTypeProto_MD5CRC && kind != hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "block checksum type %v is not known", kind)
	}
	return &summary{kind: kind, digest: md5.New(), composite: composite{sum: dtp.DefaultChecksum, stripe: stripe}}, nil //nolint:gosec // see above
}

// add takes the checksums of the next n bytes. Only the last chunk may be short.
func (s *summary) add(sums []byte, n int64) {
	if s.kind == hadooppb.BlockChecksumTypeProto_MD5CRC {
		s.digest.Write(sums)
		return
	}
	for i := 0; i < len(sums); i += 4 {
		s.composite.add(binary.BigEndian.Uint32(sums[i:]), min(datanode.ChunkSize, n-int64(i/4)*datanode.ChunkSize))
	}
}

func (s *summary) finish() []byte {
	if s.kind == hadooppb.BlockChecksumTypeProto_MD5CRC {
		return s.digest.Sum(nil)
	}
	return s.composite.finish()
}

// firstSums reads the checksums of [off, end); that of a chunk which end cuts, and which goes on in the replica, is
// computed from the data.
func firstSums(rd datanode.Reader, dst []byte, off, end, visible int64) ([]byte, error) {
	cut := end % datanode.ChunkSize
	if cut == 0 || end == visible {
		return rd.Sums(dst, off, end)
	}
	dst, err := rd.Sums(dst, off, end-cut)
	if err != nil {
		return dst, err
	}
	last := make([]byte, cut)
	if _, err := rd.ReadAt(last, end-cut); err != nil {
		return dst, err
	}
	return dtp.DefaultChecksum.Append(dst, last), nil
}

// composite combines chunk checksums to one of everything, or of each stripe.
type composite struct {
	sum    dtp.Checksum
	stripe int64 // 0: one for all
	crc    uint32
	n      int64 // bytes in crc
	out    []byte
}

func (c *composite) add(crc uint32, n int64) {
	c.crc = c.sum.Combine(c.crc, crc, n)
	c.n += n
	if c.stripe > 0 && c.n >= c.stripe {
		c.out = binary.BigEndian.AppendUint32(c.out, c.crc)
		c.crc, c.n = 0, 0
	}
}

func (c *composite) finish() []byte {
	if c.n > 0 || len(c.out) == 0 {
		c.out = binary.BigEndian.AppendUint32(c.out, c.crc)
	}
	return c.out
}
