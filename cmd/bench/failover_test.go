package bench

import (
	"testing"
	"time"
)

func TestRecoveryEndsTheLongestGapBehindTheKill(t *testing.T) {
	start := time.Now()
	at := func(ms ...int) []time.Time {
		var out []time.Time
		for _, m := range ms {
			out = append(out, start.Add(time.Duration(m)*time.Millisecond))
		}
		return out
	}
	kill := start.Add(time.Second)
	for _, c := range []struct {
		what  string
		times []time.Time
		want  float64
	}{
		{"what the dead server had sent does not count", at(900, 990, 1002, 1004, 2500, 2510, 2520), 1.5},
		{"a gap before the kill does not count", at(0, 900, 1300, 1310), 0.3},
		{"a later stall that is shorter does not count", at(990, 2000, 2700, 2710), 1.0},
		{"nobody came back", at(0, 990), 0},
	} {
		if got := resumed(c.times, kill); got < c.want-0.001 || got > c.want+0.001 {
			t.Errorf("%s: %v s, want %v", c.what, got, c.want)
		}
	}
}
