package dfs

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ChecksumMode is how the checksum of a file is made of those of its chunks (Hadoop's dfs.checksum.combine.mode).
type ChecksumMode int

// The modes.
const (
	// MD5MD5CRC hashes the CRCs; it depends on the sizes of chunks and blocks.
	MD5MD5CRC ChecksumMode = iota
	// CompositeCRC is the CRC of the whole file, however it is stored.
	CompositeCRC
)

// FileChecksum is a checksum with the name of how it was made. The zero value is that of a file that has none: its blocks are not checked, or in
// different ways.
type FileChecksum struct {
	// Algorithm is as Hadoop names it, like MD5-of-0MD5-of-512CRC32C.
	Algorithm string
	// Bytes are Hadoop's: for an MD5 the bytes per CRC (int32), the CRCs per block (int64) and the hash, big-endian; for a
	// composite CRC the CRC.
	Bytes []byte
}

// Checksum returns the MD5MD5CRC checksum of a file.
func (c *Client) Checksum(ctx context.Context, name string) (FileChecksum, error) {
	return c.ChecksumOf(ctx, name, MD5MD5CRC)
}

// ChecksumOf returns the checksum of a file in a mode. The datanodes compute it from what they store, no data is moved.
func (c *Client) ChecksumOf(ctx context.Context, name string, mode ChecksumMode) (FileChecksum, error) {
	name, err := clean("checksum", name)
	if err != nil {
		return FileChecksum{}, err
	}
	list, err := c.locate(ctx, c.read, name, 0, 1<<62)
	if err != nil {
		return FileChecksum{}, err
	}
	length := int64(list.GetFileLength())
	var all bytes.Buffer // the hashes of the blocks
	var sum dtp.Checksum
	var composite uint32
	var perBlock int64
	n, mixed := 0, false
	for _, b := range list.GetBlocks() {
		size := min(int64(b.GetB().GetNumBytes()), length-int64(b.GetOffset()))
		if size <= 0 {
			continue
		}
		answer, err := c.blockChecksum(ctx, name, b, list.GetEcPolicy(), size, mode)
		if err != nil {
			return FileChecksum{}, err
		}
		s := kindOf(answer)
		switch {
		case n == 0:
			sum, perBlock = s, int64(answer.GetCrcPerBlock())
		case mode == MD5MD5CRC && s.BytesPer != sum.BytesPer:
			return FileChecksum{}, &Error{
				Op: "checksum", Path: name, Kind: metadata.ErrIO, Message: fmt.Sprintf("Byte-per-checksum not matched: bpc=%d but bytesPerCRC=%d", s.BytesPer, sum.BytesPer),
			}
		case mode == CompositeCRC && s.Type != sum.Type:
			return FileChecksum{}, &Error{Op: "checksum", Path: name, Kind: metadata.ErrIO, Message: "DataChecksum.Type.MIXED is not supported for COMPOSITE_CRC"}
		}
		mixed = mixed || s.Type != sum.Type
		hash := answer.GetBlockChecksum()
		if mode == CompositeCRC {
			if len(hash) != 4 {
				return FileChecksum{}, &Error{Op: "checksum", Path: name, Kind: metadata.ErrIO, Message: "a datanode has no composite CRC"}
			}
			crc := binary.BigEndian.Uint32(hash)
			if n == 0 {
				composite = crc
			} else {
				composite = sum.Combine(composite, crc, size)
			}
		} else if len(hash) != md5.Size {
			return FileChecksum{}, &Error{Op: "checksum", Path: name, Kind: metadata.ErrIO, Message: fmt.Sprintf("a datanode answered with a hash of %d bytes", len(hash))}
		}
		all.Write(hash)
		n++
	}
	if mode == CompositeCRC && n > 0 {
		return FileChecksum{Algorithm: "COMPOSITE-" + sum.Type.String(), Bytes: binary.BigEndian.AppendUint32(nil, composite)}, nil
	}
	if mixed || n > 0 && sum.Type == dtp.Null {
		return FileChecksum{}, nil
	}
	if n <= 1 {
		perBlock = 0
	}
	if n == 0 {
		sum = dtp.Checksum{Type: dtp.CRC32} // what Hadoop says of an empty file
	}
	// Hadoop hashes the buffer that it collected the hashes in: 32 bytes, doubled until they fit, the rest zero.
	padded := 32
	for padded < all.Len() {
		padded *= 2
	}
	all.Write(make([]byte, padded-all.Len()))
	hash := md5.Sum(all.Bytes())
	value := binary.BigEndian.AppendUint32(nil, uint32(sum.BytesPer))
	value = binary.BigEndian.AppendUint64(value, uint64(perBlock))
	return FileChecksum{
		Algorithm: fmt.Sprintf("MD5-of-%dMD5-of-%d%v", perBlock, sum.BytesPer, sum.Type),
		Bytes:     append(value, hash[:]...),
	}, nil
}

// kindOf is how a block is checked.
func kindOf(answer *hadooppb.OpBlockChecksumResponseProto) dtp.Checksum {
	s := dtp.Checksum{Type: dtp.CRC32C, BytesPer: int(answer.GetBytesPerCrc())}
	if answer.CrcType != nil {
		s.Type = dtp.ChecksumType(answer.GetCrcType())
	}
	return s
}

// blockChecksum asks the datanodes of a block, one after the other, for the checksum of its first size bytes. That of a block group is put together by one
// of them of what all have: a composite CRC is that of the same bytes in replicated blocks, an MD5 is not.
func (c *Client) blockChecksum(
	ctx context.Context, name string, b *hadooppb.LocatedBlockProto, policy *hadooppb.ErasureCodingPolicyProto, size int64, mode ChecksumMode,
) (*hadooppb.OpBlockChecksumResponseProto, error) {
	block := &hadooppb.ExtendedBlockProto{
		PoolId: b.GetB().PoolId, BlockId: b.GetB().BlockId, GenerationStamp: b.GetB().GenerationStamp, NumBytes: new(uint64(size)),
	}
	kind := hadooppb.BlockChecksumTypeProto_MD5CRC
	if mode == CompositeCRC {
		kind = hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC
	}
	nodes := c.preferred(b.GetLocs())
	sums, causes := firstAnswer(ctx, c, nodes, func(ctx context.Context, node *hadooppb.DatanodeInfoProto) (*hadooppb.OpBlockChecksumResponseProto, error) {
		op, request := checksumRequest(b, block, policy, &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: &kind})
		p, answer, err := c.ask(ctx, node.GetId(), op, request)
		if refusedToken(err) {
			var again *hadooppb.LocatedBlockProto
			if again, err = c.relocated(ctx, name, b); err == nil {
				op, request = checksumRequest(again, block, policy, &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: &kind})
				p, answer, err = c.ask(ctx, node.GetId(), op, request)
			}
		}
		if err == nil {
			p.close() // datanodes close after this operation
			if sums := answer.GetChecksumResponse(); sums != nil {
				return sums, nil
			}
			err = fmt.Errorf("%w: the answer holds no checksum", dtp.ErrProtocol)
		}
		return nil, fmt.Errorf("%s: %w", c.transferAddr(node), err)
	})
	if sums != nil {
		return sums, nil
	}
	if ctx.Err() != nil {
		return nil, wrap("checksum", name, ctx.Err())
	}
	return nil, &Error{
		Op: "checksum", Path: name, Kind: metadata.ErrIO,
		Message: fmt.Sprintf("no datanode answers for block blk_%d: %s", int64(block.GetBlockId()), strings.ReplaceAll(errors.Join(causes...).Error(), "\n", "; ")),
	}
}

// checksumRequest asks for the checksum of a block, or of a block group: whoever gets that asks the datanodes of the others.
func checksumRequest(
	b *hadooppb.LocatedBlockProto, block *hadooppb.ExtendedBlockProto, policy *hadooppb.ErasureCodingPolicyProto, options *hadooppb.BlockChecksumOptionsProto,
) (dtp.Op, dtp.Message) {
	header := &hadooppb.BaseHeaderProto{Block: block, Token: tokenOf(b.GetBlockToken())}
	if !striped(b) {
		return dtp.OpBlockChecksum, &hadooppb.OpBlockChecksumProto{Header: header, BlockChecksumOptions: options}
	}
	request := &hadooppb.OpBlockGroupChecksumProto{
		Header: header, Datanodes: &hadooppb.DatanodeInfosProto{Datanodes: b.GetLocs()}, BlockTokens: b.GetBlockTokens(), EcPolicy: policy,
		RequestedNumBytes: new(block.GetNumBytes()), BlockChecksumOptions: options,
	}
	for _, unit := range b.GetBlockIndices() {
		request.BlockIndices = append(request.BlockIndices, uint32(unit))
	}
	// The group's own length says how long its internal blocks are, however much of it is asked for.
	request.Header.Block = &hadooppb.ExtendedBlockProto{PoolId: block.PoolId, BlockId: block.BlockId, GenerationStamp: block.GenerationStamp, NumBytes: b.GetB().NumBytes}
	return dtp.OpGroupChecksum, request
}

// relocated asks the namenode for a block of a file again, in place of one whose tokens have expired.
func (c *Client) relocated(ctx context.Context, name string, b *hadooppb.LocatedBlockProto) (*hadooppb.LocatedBlockProto, error) {
	list, err := c.locate(ctx, c.call, name, int64(b.GetOffset()), 1)
	if err != nil {
		return nil, err
	}
	for _, again := range list.GetBlocks() {
		if again.GetB().GetBlockId() == b.GetB().GetBlockId() {
			return again, nil
		}
	}
	return nil, &Error{Op: "checksum", Path: name, Kind: metadata.ErrIO, Message: "the file has been replaced meanwhile"}
}
