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
	wanted, visible := wantedOf(rd.Checksum()), rd.Replica().Visible
	if b.Length > visible {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "checksum of %v, but the replica has %d bytes", b, visible)
	}
	if o == nil {
		o = &hadooppb.BlockChecksumOptionsProto{}
	}
	total, err := newSummary(o.GetBlockChecksumType(), wanted, int64(o.GetStripeLength()))
	if err != nil {
		return nil, err
	}
	var memory []byte
	for off := int64(0); off < b.Length; off += sumStep {
		end := min(off+sumStep, b.Length)
		if total.fromData() {
			memory, err = dataFor(rd, memory, off, end)
			total.addData(memory)
		} else if memory, err = firstSums(rd, memory[:0], off, end, visible); err == nil {
			total.addSums(memory, end-off)
		}
		if err != nil {
			return nil, err
		}
	}
	answer := &hadooppb.OpBlockChecksumResponseProto{
		BytesPerCrc:          new(uint32(wanted.BytesPer)),
		CrcPerBlock:          new(perBlock(wanted, visible)),
		CrcType:              hadooppb.ChecksumTypeProto(wanted.Type).Enum(),
		BlockChecksumOptions: &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: total.kind.Enum(), StripeLength: o.StripeLength},
		BlockChecksum:        total.finish(),
	}
	return answer, nil
}

// wantedOf and kept convert what the writer of a block wants; storedOf is what the store has of such a block.
func wantedOf(c datanode.Checksum) dtp.Checksum {
	return dtp.Checksum{Type: dtp.ChecksumType(c.Type), BytesPer: int(c.BytesPer)}
}

func kept(c dtp.Checksum) datanode.Checksum {
	return datanode.Checksum{Type: datanode.ChecksumType(c.Type), BytesPer: uint32(c.BytesPer)}
}

func storedOf(c datanode.Checksum) dtp.Checksum {
	return dtp.Checksum{Type: dtp.ChecksumType(c.Stored()), BytesPer: datanode.ChunkSize}
}

// perBlock is how many checksums its writer wants of so many bytes.
func perBlock(wanted dtp.Checksum, length int64) uint64 {
	if wanted.Type == dtp.Null {
		return 0
	}
	return uint64((length + int64(wanted.BytesPer) - 1) / int64(wanted.BytesPer))
}

// summary is the checksum of a block, of those that its writer wants of its chunks: their MD5, or their combination. What is stored are those of other
// chunks where the writer wants others: larger ones are combined of them, and for what is no multiple the data is needed.
type summary struct {
	kind      hadooppb.BlockChecksumTypeProto
	wanted    dtp.Checksum
	digest    hash.Hash
	composite composite
	// crc is that of the n bytes of data since the last whole chunk, which has size bytes.
	crc     uint32
	n, size int
}

// newSummary begins one; a stripe, of a combination, is after how many bytes another begins, and 0 never.
func newSummary(kind hadooppb.BlockChecksumTypeProto, wanted dtp.Checksum, stripe int64) (*summary, error) {
	s := &summary{kind: kind, wanted: wanted, composite: composite{sum: wanted, stripe: stripe}, size: datanode.ChunkSize}
	switch {
	case kind == hadooppb.BlockChecksumTypeProto_MD5CRC:
		s.digest = md5.New() //nolint:gosec // see above
		s.size, s.composite.stripe = wanted.BytesPer, int64(wanted.BytesPer)
	case kind != hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC:
		return nil, metadata.Errorf(metadata.ErrUnsupported, "block checksum type %v is not known", kind)
	case wanted.Type == dtp.Null:
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "No CRC polynomial could be associated with type: %v", wanted.Type)
	}
	return s, nil
}

// fromData: it needs the data, and stored checksums are of no use.
func (s *summary) fromData() bool {
	return s.digest != nil && s.wanted.Type != dtp.Null && s.wanted.BytesPer%datanode.ChunkSize != 0
}

// addSums takes the stored checksums of the next n bytes. Only the last chunk may be short.
func (s *summary) addSums(sums []byte, n int64) {
	switch {
	case s.wanted.Type == dtp.Null:
		return
	case s.digest != nil && s.wanted.BytesPer == datanode.ChunkSize:
		s.digest.Write(sums)
		return
	}
	for i := 0; i < len(sums); i += 4 {
		s.composite.add(binary.BigEndian.Uint32(sums[i:]), min(datanode.ChunkSize, n-int64(i/4)*datanode.ChunkSize))
	}
	s.drain()
}

// addData takes the next bytes themselves.
func (s *summary) addData(p []byte) {
	for len(p) > 0 && s.wanted.Type != dtp.Null {
		k := min(len(p), s.size-s.n)
		s.crc, s.n = s.wanted.Update(s.crc, p[:k]), s.n+k
		if p = p[k:]; s.n == s.size {
			s.endChunk()
		}
	}
	s.drain()
}

func (s *summary) endChunk() {
	s.composite.add(s.crc, int64(s.n))
	s.crc, s.n = 0, 0
}

// drain hashes the checksums of whole chunks.
func (s *summary) drain() {
	if s.digest != nil {
		s.digest.Write(s.composite.out)
		s.composite.out = s.composite.out[:0]
	}
}

func (s *summary) finish() []byte {
	if s.n > 0 {
		s.endChunk()
	}
	if s.digest == nil {
		return s.composite.finish()
	}
	if s.composite.n > 0 {
		s.composite.finish()
	}
	s.drain()
	return s.digest.Sum(nil)
}

// dataFor reads data, compared with its checksums.
func dataFor(rd datanode.Reader, memory []byte, off, end int64) ([]byte, error) {
	visible := rd.Replica().Visible
	whole := min((end+datanode.ChunkSize-1)/datanode.ChunkSize*datanode.ChunkSize, visible)
	if int64(cap(memory)) < whole-off {
		memory = make([]byte, whole-off)
	}
	memory = memory[:whole-off]
	if _, err := rd.ReadAt(memory, off); err != nil {
		return memory, err
	}
	sums, err := rd.Sums(nil, off, whole)
	if err == nil {
		err = storedOf(rd.Checksum()).Verify(sums, memory)
	}
	return memory[:end-off], err
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
	last, err := dataFor(rd, nil, end-cut, end)
	if err != nil {
		return dst, err
	}
	return storedOf(rd.Checksum()).Append(dst, last), nil
}

// composite combines chunk checksums to one of everything, or of each stripe.
type composite struct {
	sum    dtp.Checksum
	stripe int64 // 0: one for all
	crc    uint32
	n      int64 // bytes in crc
	out    []byte
	// shift moves a CRC over so many bytes.
	shift uint32
	over  int64
}

func (c *composite) add(crc uint32, n int64) {
	if c.n == 0 {
		c.crc = crc
	} else {
		if n != c.over {
			c.shift, c.over = c.sum.Shift(n), n
		}
		c.crc = c.sum.Shifted(c.crc, c.shift) ^ crc
	}
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
