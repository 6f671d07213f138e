package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// suspects verifies replicas that somebody had trouble reading. What turns out corrupt the store announces.
type suspects struct {
	store datanode.BlockStore
	log   *slog.Logger
	queue chan metadata.BlockID

	mu     sync.Mutex
	lately map[metadata.BlockID]time.Time // when a block was last queued
}

const (
	// suspectAgain is how soon a block is verified again on mere suspicion: readers often leave early for reasons of
	// their own.
	suspectAgain = 10 * time.Minute
	maxSuspects  = 256
	maxLately    = 4096
)

func newSuspects(store datanode.BlockStore, log *slog.Logger) *suspects {
	return &suspects{store: store, log: log, queue: make(chan metadata.BlockID, maxSuspects), lately: map[metadata.BlockID]time.Time{}}
}

// add queues a block, unless it was looked at lately and nobody is certain. It does not block.
func (s *suspects) add(id metadata.BlockID, certain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if at, ok := s.lately[id]; ok && !certain && now.Sub(at) < suspectAgain {
		return
	}
	if len(s.lately) >= maxLately {
		clear(s.lately)
	}
	select {
	case s.queue <- id:
		s.lately[id] = now
	default:
	}
}

// run verifies one block after the other until ctx is done.
func (s *suspects) run(ctx context.Context) {
	for {
		select {
		case id := <-s.queue:
			err := s.store.Verify(ctx, id)
			if err != nil && ctx.Err() == nil && !errors.Is(err, metadata.ErrReplicaNotFound) {
				s.log.Warn("suspected replica", "block", int64(id), "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}
