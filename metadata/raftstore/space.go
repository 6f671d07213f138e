package raftstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
)

// spaceInterval is how often free space is looked up. At 1 GB/s of log the reserve has to cover 250 MB of surprise.
const spaceInterval = 250 * time.Millisecond

// defaultReserve is min(5 % of the disk, this).
const defaultReserve = 1 << 30

// space watches the disk under a directory, so that the store turns read-only before writes fail: a full disk kills a
// memory-mapped checkpoint with SIGBUS and leaves half a segment behind.
type space struct {
	dir string
	// reserve is 0 until the size of the disk is known.
	reserve atomic.Int64
	// lookup returns free and total bytes.
	lookup func(dir string) (free, total int64, err error)
	free   atomic.Int64
}

func newSpace(dir string, reserve int64) *space {
	s := &space{dir: dir, lookup: statfs}
	s.reserve.Store(reserve)
	s.free.Store(1 << 62)
	return s
}

func statfs(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	for {
		err = unix.Statfs(dir, &st)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, err
}

func (s *space) check() error {
	free, total, err := s.lookup(s.dir)
	if err != nil {
		return err
	}
	s.reserve.CompareAndSwap(0, min(total/20, defaultReserve))
	s.free.Store(free)
	return nil
}

func (s *space) run(ctx context.Context) error {
	t := time.NewTicker(spaceInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if err := s.check(); err != nil {
				return err
			}
		}
	}
}

// admit refuses proposals when less than the reserve is free.
func (s *space) admit() error { return s.atLeast(s.reserve.Load()) }

// append refuses entries of other leaders, and this one's own bookkeeping, when half the reserve is gone. raft takes the
// error for "not stored": a follower falls behind until there is space, a leader steps down.
func (s *space) append() error { return s.atLeast(s.reserve.Load() / 2) }

func (s *space) atLeast(reserve int64) error {
	if free := s.free.Load(); reserve > 0 && free < reserve {
		return metadata.Errorf(metadata.ErrNoSpace, "%s has %d MiB free, %d MiB are reserved: nothing is written until there is space",
			s.dir, free>>20, reserve>>20)
	}
	return nil
}
