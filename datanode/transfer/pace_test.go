package transfer

import (
	"testing"
	"time"
)

func TestCopiesForTheBalancerShareABandwidth(t *testing.T) {
	t.Parallel()
	var p pace
	now := time.Unix(1000, 0)
	const rate = 1 << 20
	var waited time.Duration
	for range 32 { // 2 MiB, by whichever copy
		wait := p.reserve(now, 64<<10, rate)
		waited += wait
		now = now.Add(wait)
	}
	if low, high := 2*time.Second-burst-100*time.Millisecond, 2*time.Second; waited < low || waited > high {
		t.Errorf("2 MiB at 1 MiB/s waited %v, want %v to %v", waited, low, high)
	}
	now = now.Add(time.Hour)
	if wait := p.reserve(now, 64<<10, rate); wait != 0 {
		t.Errorf("after a pause: %v", wait)
	}
}
