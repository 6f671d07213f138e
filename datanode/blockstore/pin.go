package blockstore

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// Pin is a replica that is kept in memory, as the kernel's cache of its files: who reads the replica, by whatever way, reads no disk. The checksums are there too.
type Pin struct {
	// Replica is as it was when it was pinned.
	Replica datanode.Replica
	maps    []io.Closer
}

// Close lets the kernel have the memory again. Readers notice nothing.
func (p *Pin) Close() error {
	var errs []error
	for _, m := range p.maps {
		errs = append(errs, m.Close())
	}
	p.maps = nil
	return errors.Join(errs...)
}

// PinSize is how many bytes of memory a replica of n bytes takes that lies in files of its own.
func PinSize(n int64) int64 { return pages(n) + pages(sumsSize(n)) }

func pages(n int64) int64 { return (n + packAlign - 1) / packAlign * packAlign }

// Pin takes the finalized replica of b into memory and compares it, as it lies there, with its checksums. Memory is asked for as much as it will take before it is taken.
//
// Errors: those of memory; ErrReplicaNotFound; ErrInvalidArgument for one that is not finalized, or not of this generation; ErrCorrupt, which is announced as a Change; others when the
// kernel does not lock the pages.
func (s *Store) Pin(ctx context.Context, b metadata.Block, memory func(n int64) error) (*Pin, error) {
	r := s.get(b.ID)
	if r == nil {
		return nil, notFound(b)
	}
	defer s.letGo(r)
	rd, err := s.openReader(r, b)
	if err != nil {
		return nil, fmt.Errorf("pin %v: %w", b, err)
	}
	defer rd.Close()
	view := rd.view
	if view.State != datanode.Finalized || view.Block.Generation != b.Generation {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "the replica of %v to be kept in memory is %v", b, view)
	}
	p := &Pin{Replica: view}
	lock := func(f vfs.File, off, n int64) error {
		if n == 0 {
			return nil
		}
		file := f.OS()
		if file == nil {
			return metadata.Errorf(metadata.ErrUnsupported, "the replica of %v has no file to keep in memory", b)
		}
		m, err := vfs.Pin(ctx, file, off, n)
		if err == nil {
			p.maps = append(p.maps, m)
		}
		return err
	}
	r.mu.Lock()
	packed := r.packed
	r.mu.Unlock()
	switch {
	case rd.record != nil && packed == nil, rd.record == nil && packed != nil:
		err = metadata.Errorf(metadata.ErrRetriable, "the replica of %v is being moved", b)
	case packed != nil: // a record has its checksums with it
		if err = memory(recordSize(packed.length)); err == nil {
			err = lock(packed.p.f, packed.off, recordHead+4*chunksOf(packed.length)+packed.length)
		}
	case rd.data != nil:
		if err = memory(PinSize(view.Visible)); err == nil {
			err = lock(rd.data, 0, view.Visible)
		}
		if err == nil {
			err = lock(rd.sums, 0, sumsSize(view.Visible))
		}
	default: // it has no bytes
		err = memory(0)
	}
	if err == nil {
		err = rd.verify(ctx, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("pin %v: %w", b, errors.Join(err, p.Close()))
	}
	return p, nil
}
