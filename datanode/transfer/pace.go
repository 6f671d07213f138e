package transfer

import (
	"context"
	"io"

	"github.com/gohops/hops/internal/pace"
)

// Copies for the balancer are held to a bandwidth that they share, so that clients have the rest (dfs.datanode.balance.bandwidthPerSec), and copies that mend, with what is read to compute
// internal blocks of groups, to another one.

// paced writes at a pace, and tells how much.
type paced struct {
	w      io.Writer
	budget *pace.Budget
	rate   int64         // bytes a second; 0: as fast as it goes
	sent   func(n int64) // may be nil
	ctx    context.Context
}

func (p *paced) Write(b []byte) (int, error) {
	if p.rate > 0 {
		if err := p.budget.Take(p.ctx, int64(len(b)), p.rate); err != nil {
			return 0, err
		}
	}
	n, err := p.w.Write(b)
	if p.sent != nil {
		p.sent(int64(n))
	}
	return n, err
}

// PaceRebuild waits until n more bytes may be read to compute internal blocks of groups, so that all such work of this datanode, copies that
// mend included, takes no more than rate bytes a second.
func (s *Server) PaceRebuild(ctx context.Context, n, rate int64) error {
	for ; n > 0; n -= packetData { // as much at a time as a copy takes: each of those who share the rate gets a like part of it
		if err := s.mending.Take(ctx, min(n, packetData), rate); err != nil {
			return err
		}
	}
	return nil
}

// PaceMove waits until n more bytes may be copied for the balancer, or to where a storage policy wants them, so that all such work of this datanode takes no more than rate
// bytes a second.
func (s *Server) PaceMove(ctx context.Context, n, rate int64) error {
	return s.balancing.Take(ctx, n, rate)
}
