// Package pace holds work to a rate, and waits.
package pace

import (
	"context"
	"sync"
	"time"
)

// Wait returns nil after d, at once if that is not positive, or the error of ctx if that ends before.
func Wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Beat is a ticker whose ticks come at multiples of its interval since the process began: those of all Beats with such an interval come together, and a process that has nothing to do but to look at many
// things now and then wakes up once for all of them. To wake up costs more than most looks. A tick that comes while nobody waits is left out.
type Beat struct {
	// C gets a tick when Next was called since the last one.
	C     <-chan time.Time
	timer *time.Timer
	every time.Duration
}

// began is what Beats count from.
var began = time.Now()

// NewBeat returns a Beat whose first tick comes after every, or before, which has to be above 0. It has to be stopped.
func NewBeat(every time.Duration) *Beat {
	t := time.NewTimer(untilNext(time.Now(), every))
	return &Beat{C: t.C, timer: t, every: every}
}

// Next lets the next tick come. It is called when one was taken.
func (b *Beat) Next() { b.timer.Reset(untilNext(time.Now(), b.every)) }

// Stop ends the ticks.
func (b *Beat) Stop() { b.timer.Stop() }

// untilNext is how long it is from now to a multiple of every.
func untilNext(now time.Time, every time.Duration) time.Duration {
	return every - now.Sub(began)%every
}

// Burst is how much may go at once after a pause, where that does no harm.
const Burst = 100 * time.Millisecond

// Budget is shared by all who take from it. The zero value is usable; a Budget must not be copied.
type Budget struct {
	// Burst is of how long a pause what was not taken in it may be taken at once.
	Burst time.Duration

	mu   sync.Mutex
	next time.Time // when the next byte may go
}

// Reserve is how long to wait from now before n more bytes may go, at rate bytes a second.
func (b *Budget) Reserve(now time.Time, n, rate int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if earliest := now.Add(-b.Burst); b.next.Before(earliest) {
		b.next = earliest
	}
	wait := b.next.Sub(now)
	b.next = b.next.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return max(wait, 0)
}

// Take waits until n more bytes may go. Its error is that of ctx.
func (b *Budget) Take(ctx context.Context, n, rate int64) error {
	return Wait(ctx, b.Reserve(time.Now(), n, rate))
}
