package transfer

import (
	"context"
	"io"

	"github.com/gohops/hops/internal/pace"
)

// Copies for the balancer are held to a bandwidth that they share, so that clients have the rest (dfs.datanode.balance.bandwidthPerSec), and copies that mend, with what is read to compute
// internal blocks of groups, to another one.

// paced writes at a pace.
type paced struct {
	w      io.Writer
	budget *pace.Budget
	rate   int64
	ctx    context.Context
}

func (p *paced) Write(b []byte) (int, error) {
	if err := p.budget.Take(p.ctx, int64(len(b)), p.rate); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// PaceRebuild waits until n more bytes may be read to compute internal blocks of groups, so that all such work of this datanode, copies that
// mend included, takes no more than rate bytes a second.
func (s *Server) PaceRebuild(ctx context.Context, n, rate int64) error {
	return s.mending.Take(ctx, n, rate)
}

// PaceMove waits until n more bytes may be copied for the balancer, or to where a storage policy wants them, so that all such work of this datanode takes no more than rate
// bytes a second.
func (s *Server) PaceMove(ctx context.Context, n, rate int64) error {
	return s.balancing.Take(ctx, n, rate)
}
