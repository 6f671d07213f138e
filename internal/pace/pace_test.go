package pace

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestWhoSharesABudgetSharesItsRate(t *testing.T) {
	t.Parallel()
	for _, burst := range []time.Duration{0, Burst} {
		b := Budget{Burst: burst}
		now := time.Unix(1000, 0)
		const rate = 1 << 20
		var waited time.Duration
		for range 32 { // 2 MiB, by whoever
			wait := b.Reserve(now, 64<<10, rate)
			waited += wait
			now = now.Add(wait)
		}
		if low, high := 2*time.Second-burst-100*time.Millisecond, 2*time.Second; waited < low || waited > high {
			t.Errorf("2 MiB at 1 MiB/s waited %v, want %v to %v", waited, low, high)
		}
		now = now.Add(time.Hour)
		if wait := b.Reserve(now, 64<<10, rate); wait != 0 {
			t.Errorf("after a pause: %v", wait)
		}
		if wait := b.Reserve(now, 64<<10, rate); (wait == 0) != (burst > 0) {
			t.Errorf("at the same time, with a burst of %v: %v", burst, wait)
		}
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	if err := errors.Join(Wait(ctx, 0), Wait(ctx, -1), Wait(ctx, time.Nanosecond)); err != nil {
		t.Fatal(err)
	}
	cancel()
	var b Budget
	if err := b.Take(t.Context(), 1<<20, 1); err != nil { // the first is never late
		t.Fatal(err)
	}
	for _, err := range []error{Wait(ctx, 0), Wait(ctx, time.Hour), b.Take(ctx, 1, 1)} {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// Beats whose intervals divide each other tick together, whenever they began; one that is late goes on with the others.
func TestBeatsTickTogether(t *testing.T) {
	for _, every := range []time.Duration{time.Microsecond, 3 * time.Millisecond, 250 * time.Millisecond, time.Second} {
		for _, after := range []time.Duration{0, 1, every - 1, every, every + 1, 17*every + every/3} {
			now := began.Add(after)
			wait := untilNext(now, every)
			if at := now.Add(wait).Sub(began); wait <= 0 || wait > every || at%every != 0 {
				t.Errorf("every %v, %v after the beginning: the next tick comes %v later", every, after, wait)
			}
		}
	}
	b := NewBeat(time.Millisecond)
	for range 3 {
		<-b.C
		b.Next()
	}
	b.Stop()
}
