package dfs

import (
	"context"
	"sync"
	"time"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// renewInterval is how often the lease on all open files is renewed; others may take a file away 60 s after the last
// renewal.
const renewInterval = 30 * time.Second

// leaseRenewer keeps the lease of a client while it has files open for writing.
type leaseRenewer struct {
	c *Client

	mu      sync.Mutex
	open    map[*Writer]struct{}
	cancel  context.CancelFunc // of the goroutine; nil while none runs
	done    chan struct{}
	stopped bool
}

func newLeaseRenewer(c *Client) *leaseRenewer {
	return &leaseRenewer{c: c, open: map[*Writer]struct{}{}}
}

// add keeps the lease for w too.
func (l *leaseRenewer) add(w *Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[w] = struct{}{}
	if l.cancel != nil || l.stopped {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	done := make(chan struct{})
	l.done = done
	go func() {
		defer close(done)
		l.renew(ctx)
	}()
}

// remove forgets w; the goroutine ends with the last one.
func (l *leaseRenewer) remove(w *Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, w)
	if len(l.open) == 0 && l.cancel != nil {
		l.cancel()
		l.cancel = nil
	}
}

// stop ends renewing for good and breaks the pipelines that are still open.
func (l *leaseRenewer) stop() {
	l.mu.Lock()
	l.stopped = true
	var writers []*Writer
	for w := range l.open {
		writers = append(writers, w)
	}
	clear(l.open)
	if l.cancel != nil {
		l.cancel()
		l.cancel = nil
	}
	done := l.done
	l.mu.Unlock()
	if done != nil {
		<-done
	}
	for _, w := range writers {
		w.kill()
		w.abandon()
	}
}

func (l *leaseRenewer) renew(ctx context.Context) {
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := l.c.call(ctx, "renew lease", "", "renewLease", &hadooppb.RenewLeaseRequestProto{ClientName: &l.c.name}, new(hadooppb.RenewLeaseResponseProto))
		if err != nil && ctx.Err() == nil {
			l.c.log.Warn("cannot renew the lease on files open for writing", "holder", l.c.name, "error", err)
		}
	}
}
