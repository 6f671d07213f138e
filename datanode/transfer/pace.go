package transfer

import (
	"context"
	"io"
	"sync"
	"time"
)

// pace holds copies for the balancer to a bandwidth that they share, so that clients have the rest (dfs.datanode.balance.bandwidthPerSec), and what is read to
// compute internal blocks of groups to another one.
type pace struct {
	mu   sync.Mutex
	next time.Time // when the next byte may go
}

// burst is how much may go at once after a pause.
const burst = 100 * time.Millisecond

// reserve is how long to wait before n more bytes may go, at rate bytes a second.
func (p *pace) reserve(now time.Time, n int, rate int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if earliest := now.Add(-burst); p.next.Before(earliest) {
		p.next = earliest
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return max(wait, 0)
}

// paced writes at a pace.
type paced struct {
	w    io.Writer
	pace *pace
	rate int64
	ctx  context.Context
}

func (p *paced) Write(b []byte) (int, error) {
	if err := p.pace.wait(p.ctx, len(b), p.rate); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// wait returns when n more bytes may go.
func (p *pace) wait(ctx context.Context, n int, rate int64) error {
	wait := p.reserve(time.Now(), n, rate)
	if wait <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PaceRebuild waits until n more bytes may be read to compute internal blocks of groups, so that all such work of this datanode takes no more than rate
// bytes a second.
func (s *Server) PaceRebuild(ctx context.Context, n, rate int64) error {
	return s.rebuilding.wait(ctx, int(n), rate)
}

// PaceMove waits until n more bytes may be copied for the balancer, or to where a storage policy wants them, so that all such work of this datanode takes no more than rate
// bytes a second.
func (s *Server) PaceMove(ctx context.Context, n, rate int64) error {
	return s.balancing.wait(ctx, int(n), rate)
}
