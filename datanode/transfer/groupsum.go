package transfer

import (
	"context"
	"crypto/md5" //nolint:gosec // HDFS's checksum is made of it
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/datanode/rebuild"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// maxRecalculating is how many checksums of lost internal blocks are computed at a time; each reads as much as the policy has data blocks.
const maxRecalculating = 2

// groupChecksum serves BLOCK_GROUP_CHECKSUM, of the first requestedNumBytes of a block group (HDFS's BlockGroupNonStripedChecksumComputer): this datanode asks those
// that have the data blocks for theirs. That of one that is lost is computed from others.
func (c *conn) groupChecksum(ctx context.Context, op *hadooppb.OpBlockGroupChecksumProto) error {
	q, err := c.groupSum(ctx, op)
	if err != nil {
		return c.refuse(dtp.OpGroupChecksum, hadooppb.Status_ERROR, "", err)
	}
	answer, err := q.answer(ctx)
	if err != nil {
		return c.refuse(dtp.OpGroupChecksum, statusOf(err), "", err)
	}
	response := dtp.Success()
	response.ChecksumResponse = answer
	if err := dtp.WriteResponse(c.nc, response); err != nil {
		return err
	}
	return errDone
}

// groupSum is a BLOCK_GROUP_CHECKSUM.
type groupSum struct {
	*Server
	pool   string
	group  metadata.Block
	length int64 // asked for
	coder  *erasure.Coder
	kind   hadooppb.BlockChecksumTypeProto
	wanted *dtp.Checksum // by the group's writer; nil until a datanode has said it
	units  []int         // that are somewhere
	at     [stripe.MaxUnits]*hadooppb.DatanodeInfoProto
}

// groupSum checks a request.
func (c *conn) groupSum(ctx context.Context, op *hadooppb.OpBlockGroupChecksumProto) (*groupSum, error) {
	group, err := c.blockOf(op.GetHeader().GetBlock())
	if err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) error {
		return metadata.Errorf(metadata.ErrInvalidArgument, "checksum of group %v: "+format, append([]any{group}, args...)...)
	}
	if !group.ID.Striped() || group.ID.Group() != group.ID {
		return nil, bad("it is no block group")
	}
	policy, known := metadata.ErasurePolicyOf(metadata.ErasurePolicyID(min(op.GetEcPolicy().GetId(), 255)))
	if !known {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "erasure coding policy %d is not known", op.GetEcPolicy().GetId())
	}
	q := &groupSum{
		Server: c.Server, pool: op.GetHeader().GetBlock().GetPoolId(), group: group, length: int64(op.GetRequestedNumBytes()),
		kind: op.GetBlockChecksumOptions().GetBlockChecksumType(),
	}
	if q.coder, err = erasure.New(policy); err != nil {
		return nil, err
	}
	if _, err = newSummary(q.kind, dtp.DefaultChecksum, 0); err != nil {
		return nil, err
	}
	nodes, units := op.GetDatanodes().GetDatanodes(), op.GetBlockIndices()
	if len(nodes) != len(units) {
		return nil, bad("%d datanodes for %d internal blocks", len(nodes), len(units))
	}
	if q.length < 0 || q.length > group.Length {
		return nil, bad("of %d bytes", op.GetRequestedNumBytes())
	}
	for i, unit := range units {
		if unit >= uint32(policy.Layout.Units()) || q.at[unit] != nil {
			return nil, bad("internal block %d of %d is named, or twice", unit, policy.Layout.Units())
		}
		if err := c.checkTarget(ctx, nodes[i]); err != nil {
			return nil, err
		}
		q.at[unit] = nodes[i]
		q.units = append(q.units, int(unit))
	}
	return q, nil
}

// unit is an internal block with all its bytes.
func (q *groupSum) unit(i int) metadata.Block {
	return metadata.Block{ID: q.group.ID.Internal(i), Generation: q.group.Generation, Length: q.coder.Layout().UnitLength(q.group.Length, i)}
}

// answer puts the checksums of the data blocks together.
func (q *groupSum) answer(ctx context.Context) (*hadooppb.OpBlockChecksumResponseProto, error) {
	layout := q.coder.Layout()
	parts := make([][]byte, 0, layout.Data)
	for i := range layout.Data {
		length := layout.UnitLength(q.length, i)
		if i > 0 && length == 0 {
			break
		}
		part, err := q.ask(ctx, i, length)
		if errors.Is(err, errOthers) || ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			q.log.Info("the checksum of an internal block is computed from others", "group", q.group.String(), "unit", i, "err", err)
		}
		parts = append(parts, part)
	}
	for i := range layout.Units() { // those of parity say it, too
		if q.wanted == nil && q.at[i] != nil {
			if _, err := q.ask(ctx, i, 0); err != nil {
				q.log.Info("a datanode does not say how an internal block is checked", "group", q.group.String(), "unit", i, "err", err)
			}
		}
	}
	if q.wanted == nil {
		return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "no datanode has anything of group %v", q.group)
	}
	for i, part := range parts {
		if part == nil {
			var err error
			if parts[i], err = q.recalculate(ctx, i, layout.UnitLength(q.length, i)); err != nil {
				return nil, err
			}
		}
	}
	answer := &hadooppb.OpBlockChecksumResponseProto{
		BytesPerCrc: new(uint32(q.wanted.BytesPer)), CrcType: hadooppb.ChecksumTypeProto(q.wanted.Type).Enum(),
		CrcPerBlock:          new(perBlock(*q.wanted, q.unit(0).Length)),
		BlockChecksumOptions: &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: q.kind.Enum()},
	}
	if q.kind == hadooppb.BlockChecksumTypeProto_MD5CRC {
		answer.BlockChecksum = sumOfSums(parts)
	} else {
		answer.BlockChecksum = q.inOrder(parts)
	}
	return answer, nil
}

// sumOfSums is the MD5 of MD5s and of the zeros behind them: HDFS's datanode takes all of the buffer that it has written them to, which begins with 32 bytes
// and doubles (DataOutputBuffer).
func sumOfSums(parts [][]byte) []byte {
	size := 32
	for size < len(parts)*md5.Size {
		size *= 2
	}
	buffer := make([]byte, 0, size)
	for _, p := range parts {
		buffer = append(buffer, p...)
	}
	sum := md5.Sum(buffer[:size]) //nolint:gosec // see above
	return sum[:]
}

// inOrder combines the checksums of cells, which the parts have by internal block, to that of the group's bytes.
func (q *groupSum) inOrder(parts [][]byte) []byte {
	layout := q.coder.Layout()
	total := composite{sum: *q.wanted}
	for cell := range layout.Pieces(0, q.length) {
		at := cell.Within / layout.Cell * 4
		total.add(binary.BigEndian.Uint32(parts[cell.Unit][at:]), cell.Length)
	}
	return total.finish()
}

// options are those of the request to the datanode of an internal block.
func (q *groupSum) options() *hadooppb.BlockChecksumOptionsProto {
	o := &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: q.kind.Enum()}
	if q.kind == hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC {
		o.StripeLength = new(uint64(q.coder.Layout().Cell))
	}
	return o
}

// ask asks the datanode of an internal block for the checksum of its beginning; of each cell of it, if they are combined.
func (q *groupSum) ask(ctx context.Context, unit int, length int64) ([]byte, error) {
	at := q.at[unit]
	if at == nil {
		return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "internal block %d is nowhere", unit)
	}
	b := q.unit(unit)
	b.Length = length
	answer, err := q.checksumBy(ctx, q.pool, b, at, q.options())
	if err != nil {
		return nil, err
	}
	want := md5.Size
	if q.kind == hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC {
		cell := q.coder.Layout().Cell
		want = 4 * int(max(1, (length+cell-1)/cell))
	}
	wanted, err := dtp.ChecksumOf(&hadooppb.ChecksumProto{Type: new(answer.GetCrcType()), BytesPerChecksum: new(answer.GetBytesPerCrc())})
	if err != nil || len(answer.GetBlockChecksum()) != want {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "checksum of %v by %s: %d bytes of type %v, one for each %d bytes", b, dtp.TransferAddr(at.GetId(), false), len(answer.GetBlockChecksum()), answer.GetCrcType(), answer.GetBytesPerCrc())
	}
	if q.wanted != nil && *q.wanted != wanted {
		return nil, fmt.Errorf("%w: %v has %v of %d bytes, another one %v of %d", errOthers, b, wanted.Type, wanted.BytesPer, q.wanted.Type, q.wanted.BytesPer)
	}
	q.wanted = &wanted
	return answer.GetBlockChecksum(), nil
}

// errOthers: there is no checksum of all.
var errOthers = metadata.Errorf(metadata.ErrInvalidArgument, "the internal blocks of a group have checksums of different kinds")

// recalculate is the answer to ask of an internal block that is lost.
func (q *groupSum) recalculate(ctx context.Context, unit int, length int64) ([]byte, error) {
	select {
	case q.recalculating <- struct{}{}:
		defer func() { <-q.recalculating }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	total, err := newSummary(q.kind, *q.wanted, int64(q.options().GetStripeLength()))
	if err != nil {
		return nil, err
	}
	job := &rebuild.Job{
		Group: q.group, Coder: q.coder, Sources: q.units,
		Open: func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error) {
			return q.Fetch(ctx, q.pool, q.unit(unit), q.at[unit], off, n)
		},
		Targets: []rebuild.Target{{Unit: unit, Length: length, Writer: summing{total}}},
	}
	failed, err := job.Run(ctx)
	if err = errors.Join(append(failed, err)...); err != nil {
		return nil, err
	}
	return total.finish(), nil
}

// summing sums up what is written.
type summing struct{ total *summary }

func (s summing) Write(p []byte) (int, error) {
	s.total.addData(p)
	return len(p), nil
}
