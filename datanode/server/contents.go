package server

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/datanode"
	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/scrub"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

const (
	// maxSmallBlocks and maxSmallBytes are how much a request of ReadSmall is about.
	maxSmallBlocks = 1024
	maxSmallBytes  = 1 << 20
	// maxSmallReads is how many such requests are being answered: so many may be reading where a disk begins to hang.
	maxSmallReads = 4
)

// contentsService serves the bytes of small blocks to the namenode that leads, which keeps them itself from then on.
type contentsService struct {
	datanodepb.UnimplementedContentsServer
	store  *blockstore.Store
	scrub  *scrub.Scrubber
	places chan struct{} // one for each request
}

func newContents(s *Server) *contentsService {
	return &contentsService{store: s.store, scrub: s.scrub, places: make(chan struct{}, maxSmallReads)}
}

// ReadSmall implements datanodepb.ContentsServer.
func (c *contentsService) ReadSmall(ctx context.Context, r *datanodepb.ReadSmallRequest) (*datanodepb.ReadSmallResponse, error) {
	left := int64(maxSmallBytes)
	for _, b := range r.Blocks {
		if b.GetLength() < 1 || b.GetLength() > left || len(r.Blocks) > maxSmallBlocks {
			return nil, pb.Status(metadata.Errorf(metadata.ErrInvalidArgument, "%d blocks, one of %d bytes: at most %d blocks are read at a time, of %d bytes in all", len(r.Blocks), b.GetLength(), maxSmallBlocks, maxSmallBytes))
		}
		left -= b.GetLength()
	}
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	default:
		return nil, status.Error(codes.ResourceExhausted, "small blocks are being read already")
	}
	answer := &datanodepb.ReadSmallResponse{}
	for _, b := range r.Blocks {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		out, err := c.readPatiently(blockOf(b))
		if err != nil {
			out = &datanodepb.SmallReplica{Error: err.Error()}
		}
		answer.Replicas = append(answer.Replicas, out)
	}
	return answer, nil
}

// readPatiently is read that waits for no disk which does not answer: one that is known not to is left alone, and where it turns out the reader is left behind, with what it has.
func (c *contentsService) readPatiently(b metadata.Block) (out *datanodepb.SmallReplica, err error) {
	if volume, there := c.store.VolumeOf(b.ID); there && c.store.Silent(volume) {
		return nil, metadata.Errorf(metadata.ErrIO, "%v is on a disk that does not answer", b)
	}
	read := make(chan *datanodepb.SmallReplica, 1)
	err = c.store.Patiently(b.ID, func() error {
		r, err := c.read(b)
		read <- r
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-read, nil
}

// read reads all of a finalized replica.
func (c *contentsService) read(b metadata.Block) (*datanodepb.SmallReplica, error) {
	rd, err := c.store.Open(b)
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	if r := rd.Replica(); r.State != datanode.Finalized || r.Block != b {
		return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "the replica is %v, asked for %v", r, b)
	}
	sums, err := rd.Sums(nil, 0, b.Length)
	if err != nil {
		return nil, err
	}
	data := make([]byte, b.Length)
	if n, err := rd.ReadAt(data, 0); n < len(data) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	wanted := rd.Checksum()
	stored := dtp.Checksum{Type: dtp.ChecksumType(wanted.Stored()), BytesPer: datanode.ChunkSize}
	if err := stored.Verify(sums, data); err != nil {
		c.scrub.Order(b.ID)
		return nil, metadata.Errorf(metadata.ErrCorrupt, "%v: %v", b, err)
	}
	return &datanodepb.SmallReplica{Data: data, Checksum: uint32(wanted.Type), BytesPerChecksum: wanted.BytesPer}, nil
}
