package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

const (
	// maxInFlight is how many entries of this leader may be under way. The fsync of one overlaps the replication of
	// the one before; with more, entries get smaller and nothing gets faster.
	maxInFlight = 4
	// worthwhile is how many commands, or bytes, make an entry worth sending off while another is under way. An entry
	// costs every member some hundred microseconds of CPU whatever is in it, and what waits for the one under way goes
	// together with all that comes meanwhile.
	worthwhile      = maxBatch / 2
	worthwhileBytes = maxBatchBytes / 2
	// maxQueued and maxQueuedBytes limit what waits for a place in an entry.
	maxQueued      = 1 << 16
	maxQueuedBytes = 64 << 20
	// transferPatience is how long a leader may refuse proposals because of a handover before it is taken for stuck
	// (hashicorp/raft#696).
	transferPatience = 10 * time.Second
)

// proposal is one command on its way.
type proposal struct {
	command []byte
	done    func(any, error)
	// began is when it came, and waits is told how long it took, if somebody asks.
	began time.Time
	waits *metadata.Waits
	// state moves once, from queued to shipped or withdrawn.
	state atomic.Int32
	// lone: nobody has it but the batcher, and its memory serves another one when it is answered.
	lone bool
}

var proposals = sync.Pool{New: func() any { return new(proposal) }}

// answer says what became of the command. The proposal is not to be looked at any more.
func (p *proposal) answer(result any, err error) {
	done := p.done
	if p.lone {
		*p = proposal{}
		proposals.Put(p)
	}
	done(result, err)
}

const (
	queued int32 = iota
	shipped
	withdrawn
)

// flight is one entry under way.
type flight struct {
	commands []*proposal
	future   raft.ApplyFuture
	shipped  time.Time
	answer   chan error // capacity 1
	// abandoned is the reign's in which it went off.
	abandoned <-chan struct{}
}

// batcher packs proposals into entries. An entry goes off when none is under way, with whatever has gathered until then, at once unless the crowd of
// those that the last one has answered is expected back (gathering); while some are, up to maxInFlight, when it is worthwhile.
type batcher struct {
	mu      sync.Mutex
	cond    *sync.Cond // of mu: queue, flying or closed changed
	queue   []*proposal
	bytes   int
	flying  int
	gather  gathering
	bell    *time.Timer // rings when the next entry need not wait any more
	closed  bool
	flights chan flight // capacity maxInFlight: sending never blocks
	// transfer adds up how long a handover has made raft refuse; owned by land.
	transfer journal.Patience
}

func newBatcher() *batcher {
	b := &batcher{flights: make(chan flight, maxInFlight), transfer: journal.Patience{Tick: time.Second}}
	b.cond = sync.NewCond(&b.mu)
	b.bell = time.AfterFunc(time.Hour, b.ring)
	b.bell.Stop()
	return b
}

// Propose replicates a command and returns what the state machine's Apply returned for it. The command is not changed
// and may be kept.
//
// Errors: *NotLeader, metadata.ErrNoSpace, metadata.ErrRetriable (too many commands wait) and metadata.ErrInvalidArgument
// (larger than MaxCommand): nothing happened. ErrUnknown: anything may have. When ctx ends the error is ctx's, and
// ErrUnknown too unless the command can still be withdrawn.
func (g *Group) Propose(ctx context.Context, command []byte) (any, error) {
	type outcome struct {
		result any
		err    error
	}
	back := make(chan outcome, 1)
	p := &proposal{command: command, done: func(result any, err error) { back <- outcome{result, err} }}
	g.enqueue(p)
	select {
	case o := <-back:
		return o.result, o.err
	case <-ctx.Done():
		if p.state.CompareAndSwap(queued, withdrawn) {
			return nil, ctx.Err()
		}
		return nil, errors.Join(ErrUnknown, ctx.Err())
	}
}

// ProposeAsync is Propose for callers that do not wait. done is called once, on a goroutine of the group that must not be
// blocked, or before ProposeAsync returns when the command is refused at once. waits, if not nil, is told before what it waited for. Neither the command
// nor waits is looked at any more from then on.
func (g *Group) ProposeAsync(command []byte, waits *metadata.Waits, done func(result any, err error)) {
	p := proposals.Get().(*proposal)
	p.command, p.done, p.waits, p.lone = command, done, waits, true
	g.enqueue(p)
}

func (g *Group) enqueue(p *proposal) {
	if err := g.admit(p.command); err != nil {
		p.answer(nil, err)
		return
	}
	b := g.batches
	now := time.Now()
	p.began = now
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		p.answer(nil, g.notLeader())
		return
	case len(b.queue) >= maxQueued || b.bytes+len(p.command) > maxQueuedBytes:
		b.mu.Unlock()
		p.answer(nil, metadata.Errorf(metadata.ErrRetriable, "group %s has %d commands waiting", g.name, maxQueued))
		return
	}
	b.queue = append(b.queue, p)
	b.bytes += len(p.command)
	if len(b.queue) == 1 && b.flying == 0 {
		b.gather.first(now)
		b.wait()
	}
	if b.due(now) {
		b.cond.Broadcast()
	}
	b.mu.Unlock()
}

// Writable is nil while this member's disk has space for commands, else metadata.ErrNoSpace, whether it leads or not.
func (g *Group) Writable() error { return g.host.space.admit() }

func (g *Group) admit(command []byte) error {
	if len(command) > MaxCommand {
		return metadata.Errorf(metadata.ErrInvalidArgument, "command of %d bytes, the limit is %d", len(command), MaxCommand)
	}
	if g.over.Load() || g.reign.Load() == nil {
		return g.notLeader()
	}
	return g.host.space.admit()
}

// due reports whether an entry should go off now. mu is held.
func (b *batcher) due(now time.Time) bool {
	switch {
	case len(b.queue) == 0 || b.flying >= maxInFlight:
		return false
	case len(b.queue) >= worthwhile || b.bytes >= worthwhileBytes:
		return true
	}
	return b.flying == 0 && b.gather.over(len(b.queue), now)
}

// wait has the bell ring when the commands that wait for others have waited for long enough. mu is held.
func (b *batcher) wait() {
	if b.gather.target > 0 && len(b.queue) > 0 {
		b.bell.Reset(b.gather.most())
	}
}

// ring has the shipper look again.
func (b *batcher) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.due(time.Now()) {
		b.cond.Broadcast()
	}
}

// take waits for proposals and for a place in flight; nil means closed.
func (b *batcher) take() []*proposal {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for !b.closed && !b.due(time.Now()) {
			b.cond.Wait()
		}
		if b.closed {
			return nil
		}
		batch := make([]*proposal, 0, min(len(b.queue), maxBatch))
		n, size := 0, 0
		for n < len(b.queue) && len(batch) < maxBatch {
			p := b.queue[n]
			if size > 0 && size+len(p.command) > maxBatchBytes {
				break
			}
			n++
			b.bytes -= len(p.command)
			if p.state.CompareAndSwap(queued, shipped) {
				size += len(p.command)
				batch = append(batch, p)
			}
		}
		if rest := b.queue[n:]; len(rest) < n { // its memory is used again
			copy(b.queue, rest)
			clear(b.queue[len(rest):])
			b.queue = b.queue[:len(rest)]
		} else {
			clear(b.queue[:n])
			b.queue = rest
		}
		if len(batch) > 0 {
			b.flying++
			b.gather.target = 0
			return batch
		}
	}
}

// ship sends entries off until the batcher is closed.
func (g *Group) ship() {
	b := g.batches
	defer close(b.flights)
	for {
		batch := b.take()
		if batch == nil {
			return
		}
		r := g.reign.Load()
		if r == nil { // it ended while they waited, and raft may not take anything: see abandon
			b.land()
			refuse(batch, g.notLeader())
			continue
		}
		shipped := time.Now()
		f := flight{batch, g.raft.Apply(encodeBatch(batch), 0), shipped, make(chan error, 1), r.abandoned}
		// On its own goroutine, because raft leaves some futures unanswered when it is shut down.
		go func() { f.answer <- f.future.Error() }()
		b.flights <- f
	}
}

// land waits for the entries in the order in which they went off and hands out the results, before the next one goes off.
func (g *Group) land() {
	b := g.batches
	for f := range b.flights {
		var err error
		select {
		case err = <-f.answer:
		case <-f.abandoned:
			err = raft.ErrLeadershipLost
		case <-g.dying:
			err = errClosed
		}
		var results []any
		took := time.Since(f.shipped)
		if err == nil {
			if a, ok := f.future.Response().(*applied); ok {
				results = a.results
				f.tell(a, g.journal.Took(f.future.Index()))
			}
			b.transfer.Reset()
		} else {
			err = g.outcome(err)
		}
		for i, p := range f.commands {
			switch {
			case err != nil:
				p.answer(nil, err)
			case results == nil:
				p.answer(nil, nil)
			default:
				p.answer(results[i], nil)
			}
		}
		if err == nil {
			b.landed(len(f.commands), took)
		} else {
			b.land()
		}
	}
}

// tell tells whoever asks what the commands waited for.
func (f *flight) tell(a *applied, disk time.Duration) {
	for _, p := range f.commands {
		if w := p.waits; w != nil {
			w.Queue += f.shipped.Sub(p.began)
			w.Disk += disk
			w.Others += max(a.began.Sub(f.shipped)-disk, 0)
			w.Apply += a.took
		}
	}
}

// land notes that an entry is under way no more.
func (b *batcher) land() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flying--
	b.cond.Broadcast()
}

// landed is land for an entry whose commands have been carried out, and answered.
func (b *batcher) landed(n int, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flying--
	now := time.Now()
	if b.flying == 0 {
		b.gather.landed(n, len(b.queue), took, now)
		b.wait()
	}
	if b.closed || b.due(now) {
		b.cond.Broadcast()
	}
}

// refuse answers commands of which none was carried out.
func refuse(batch []*proposal, err error) {
	for _, p := range batch {
		p.answer(nil, err)
	}
}

// outcome says what an error of raft means for the commands of an entry.
func (g *Group) outcome(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return g.notLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		if g.batches.transfer.Pass(time.Now()) > transferPatience {
			g.fail(errStuckTransfer)
		}
		return &NotLeader{}
	case errors.Is(err, metadata.ErrNoSpace):
		return err // refused by the journal before anything was written
	case errors.Is(err, raft.ErrLeadershipLost):
		return ErrUnknown
	}
	return fmt.Errorf("%w (%w)", ErrUnknown, err)
}

// close refuses what waits, and waits up to patience for what is under way.
func (b *batcher) close(refuse func() error, patience time.Duration) {
	b.mu.Lock()
	b.closed = true
	b.bell.Stop()
	waiting := b.queue
	b.queue, b.bytes = nil, 0
	b.cond.Broadcast()
	b.mu.Unlock()
	for _, p := range waiting {
		if p.state.CompareAndSwap(queued, shipped) {
			p.answer(nil, refuse())
		}
	}
	timeout := time.AfterFunc(patience, func() {
		b.mu.Lock()
		patience = 0
		b.cond.Broadcast()
		b.mu.Unlock()
	})
	defer timeout.Stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.flying > 0 && patience > 0 {
		b.cond.Wait()
	}
}
