package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/gohops/hops/datanode"
	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// copyBlock is the primary's part of a truncation inside of a block that a snapshot has: every datanode that has the block makes
// another one of its beginning, and the leader is told which did. The block itself is finished and stays as it is, so that nothing
// has to be agreed on.
func (s *Server) copyBlock(ctx context.Context, order *pb.Recover, log *slog.Logger) {
	source, b := blockOf(order.Source), blockOf(order.Block)
	b.Generation, b.Length = metadata.Generation(order.RecoveryId), order.Truncate-1
	if b.Length < 0 || b.Length > source.Length {
		log.Warn("block not copied: the order is of more than there is", "source", source.String(), "length", b.Length)
		return
	}
	errs := make([]error, len(order.Replicas))
	var g sync.WaitGroup
	for i, d := range order.Replicas {
		g.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, commitTime)
			defer cancel()
			if d.GetUuid() == s.id.Uuid {
				_, errs[i] = s.answered(ctx, func() (datanode.Replica, error) { return datanode.Replica{}, copyReplica(ctx, s.store, source, b) })
				return
			}
			peer, release, err := s.peers.get(d)
			if err == nil {
				defer release()
				_, err = peer.CopyReplica(ctx, &datanodepb.CopyReplicaRequest{Source: wireBlock(source), Block: wireBlock(b)})
			}
			errs[i] = pb.FromStatus(err)
		})
	}
	g.Wait()
	request := &pb.CommitBlockSynchronizationRequest{Block: order.Block, RecoveryId: order.RecoveryId, Length: b.Length, Close: true}
	for i, d := range order.Replicas {
		if errs[i] == nil {
			request.Locations = append(request.Locations, d)
		}
	}
	if len(request.Locations) == 0 {
		log.Warn("block not copied", "source", source.String(), "err", errors.Join(errs...))
		return
	}
	if err := s.commit(ctx, request); err != nil {
		log.Warn("copy of a block not committed", "source", source.String(), "err", err)
		return
	}
	log.Info("block copied", "source", source.String(), "length", b.Length, "replicas", len(request.Locations))
}

// copyPiece is how much is copied at a time.
const copyPiece = 1 << 20

// copyReplica makes a finished replica of b of the first b.Length bytes of a finished one of source. What an earlier attempt has
// left of b, under a lower generation, goes.
func copyReplica(ctx context.Context, store datanode.BlockStore, source, b metadata.Block) error {
	if b.Length < 0 || b.ID == source.ID {
		return metadata.Errorf(metadata.ErrInvalidArgument, "a copy of %v of %d bytes under the name %v", source, b.Length, b)
	}
	if old, ok := store.Replica(b.ID); ok {
		switch {
		case old.Block.Generation == b.Generation && old.State == datanode.Finalized && old.Block.Length == b.Length:
			return nil
		case old.Block.Generation >= b.Generation:
			return metadata.Errorf(metadata.ErrRecoveryInProgress, "replica %v is not older than recovery %d", old.Block, b.Generation)
		}
		if err := store.Delete(old.Block); err != nil {
			return err
		}
	}
	r, err := store.Open(source)
	if err != nil {
		return err
	}
	defer r.Close()
	if have := r.Replica(); have.State != datanode.Finalized || have.Visible < b.Length {
		return metadata.Errorf(metadata.ErrReplicaNotFound, "replica %v has less than %d finished bytes", have, b.Length)
	}
	w, err := store.Create(b, datanode.CreateOptions{Temporary: true, Expect: b.Length, Checksum: r.Checksum()})
	if err != nil {
		return err
	}
	defer w.Close()
	whole := (b.Length + datanode.ChunkSize - 1) / datanode.ChunkSize * datanode.ChunkSize
	whole = min(whole, r.Replica().Visible) // a checksum covers a whole chunk
	data := make([]byte, min(whole, copyPiece))
	var sums []byte
	for off := int64(0); off < b.Length; {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := data[:min(whole-off, copyPiece)]
		if _, err := r.ReadAt(piece, off); err != nil {
			return err
		}
		if sums, err = r.Sums(sums[:0], off, off+int64(len(piece))); err != nil {
			return err
		}
		if keep := b.Length - off; keep < int64(len(piece)) { // the last chunk is cut: its own checksum cannot vouch for it
			full := keep / datanode.ChunkSize * datanode.ChunkSize
			stored := dtp.Checksum{Type: dtp.ChecksumType(r.Checksum().Stored()), BytesPer: datanode.ChunkSize}
			if err := stored.Verify(sums[full/datanode.ChunkSize*4:], piece[full:]); err != nil {
				return err
			}
			if full > 0 {
				if err := w.Write(off, piece[:full], sums[:full/datanode.ChunkSize*4]); err != nil {
					return err
				}
			}
			if err := w.Write(off+full, piece[full:keep], nil); err != nil {
				return err
			}
			break
		}
		if err := w.Write(off, piece, sums); err != nil {
			return err
		}
		off += int64(len(piece))
	}
	_, err = w.Finalize()
	return err
}
