package dfs

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// errOvertaken ends a read for which another datanode has the bytes already.
var errOvertaken = errors.New("another datanode was quicker")

// hedging says when a reader asks a second datanode because the first one takes long: after three times what 99 of 100
// requests take, at least hedgeMin and at most hedgeMax. At most one request in ten, beside a few, is hedged, so that
// datanodes which are all slow are not asked twice as much for it.
type hedging struct {
	times *times
	// after is the delay if it is configured (dfs.client.hedged.read.threshold.millis).
	after time.Duration
	// most is how many may be under way (dfs.client.hedged.read.threadpool.size); 0: none ever.
	most int

	mu     sync.Mutex
	count  [40]int // answers by the bits of their microseconds
	total  int
	credit float64
	going  int
}

const (
	// defaultHedges is how many hedged reads may be under way if nothing is configured.
	defaultHedges = 16
	// hedgeShare is how many hedges each request earns, hedgeCredit how many may be saved up.
	hedgeShare  = 0.1
	hedgeCredit = 10
	// hedgeMemory is how many answers count in full; each that follows makes the older ones count less.
	hedgeMemory = 512
)

// answered notes how long a datanode took for an answer.
func (h *hedging) answered(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit = min(h.credit+hedgeShare, hedgeCredit)
	h.count[min(bits.Len64(uint64(max(took.Microseconds(), 0))), len(h.count)-1)]++
	if h.total++; h.total >= hedgeMemory {
		h.total = 0
		for i := range h.count {
			h.count[i] /= 2
			h.total += h.count[i]
		}
	}
}

// delay is how long to wait for a datanode before another one is asked as well.
func (h *hedging) delay() time.Duration {
	if h.after > 0 {
		return h.after
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	left := h.total / 100
	for i := len(h.count) - 1; i >= 0; i-- {
		if left -= h.count[i]; left < 0 {
			return min(max(3*time.Microsecond<<i, h.times.hedgeMin), h.times.hedgeMax)
		}
	}
	return min(4*h.times.hedgeMin, h.times.hedgeMax) // nothing is known yet
}

// begin takes what a hedge costs; false: there is not enough. Beside a datanode that is suspected it costs no credit: that one does nothing for it.
func (h *hedging) begin(suspected bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.going >= h.most || !suspected && h.credit < 1 {
		return false
	}
	h.going++
	if !suspected {
		h.credit--
	}
	return true
}

func (h *hedging) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.going--
}

// hedge is a second request for bytes that a first one is slow with.
type hedge struct {
	node   *hadooppb.DatanodeInfoProto
	cancel context.CancelFunc
	done   chan struct{} // closed when s and err are set
	s      *blockStream
	err    error
}

// hedge asks node beside another one for a range of a block, and calls won when its first bytes are there. patience is that of the reader. nil: there is no budget for it.
func (c *Client) hedge(ctx context.Context, b *located, node, beside *hadooppb.DatanodeInfoProto, offset, length int64, patience time.Duration, won func()) *hedge {
	if !c.hedging.begin(c.suspected(beside)) {
		return nil
	}
	h := &hedge{node: node, done: make(chan struct{})}
	ctx, h.cancel = context.WithCancel(ctx)
	go func() {
		defer c.hedging.end()
		defer close(h.done)
		opening := ctx
		if patience > 0 {
			var end context.CancelFunc
			opening, end = context.WithTimeout(ctx, patience)
			defer end()
		}
		if h.s, h.err = c.openStream(opening, b, node.GetId(), offset, length); h.err != nil {
			return
		}
		if p := h.s.peer; p != nil && patience > 0 {
			p.timeout = patience
		}
		h.s.until(ctx)
		var data []byte
		if data, h.err = h.s.read(); h.err != nil {
			return
		}
		h.s.unread(data)
		won()
	}()
	return h
}

// drop gives a hedge up that is not needed.
func (h *hedge) drop() {
	h.cancel()
	<-h.done
	if h.s != nil {
		h.s.close()
	}
}

// firstAnswer asks nodes in turn until one answers; the next one is asked too when one takes longer than the delay of
// hedged reads. Without an answer it returns the errors of all, in the order of nodes.
func firstAnswer[T any](ctx context.Context, c *Client, nodes []*hadooppb.DatanodeInfoProto, ask func(context.Context, *hadooppb.DatanodeInfoProto) (T, error)) (T, []error) {
	type answer struct {
		at    int
		value T
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	answers := make(chan answer, len(nodes))
	errs := make([]error, len(nodes))
	next, open := 0, 0
	begin := func() {
		if next < len(nodes) {
			at := next
			next++
			open++
			wg.Go(func() {
				value, err := ask(ctx, nodes[at])
				answers <- answer{at, value, err}
			})
		}
	}
	begin()
	for open > 0 {
		slow := time.NewTimer(max(c.hedging.delay(), c.times.hedgeMax/2))
		select {
		case a := <-answers:
			slow.Stop()
			if a.err == nil {
				return a.value, nil
			}
			errs[a.at] = a.err
			if open--; open == 0 {
				begin()
			}
		case <-slow.C:
			begin()
		}
	}
	var zero T
	return zero, errs
}
