package server

import (
	"testing"
	"time"
)

// TestPace: a resource manager may want fewer reports, but not so few that the lease comes near its end, and not more than the node
// manager's own heartbeat gives.
func TestPace(t *testing.T) {
	const s = time.Second
	for _, c := range []struct{ heartbeat, wanted, lease, interval, patience time.Duration }{
		{s, 0, 60 * s, s, 5 * s},
		{s, s / 2, 60 * s, s, 5 * s},
		{s, 5 * s, 60 * s, 5 * s, 15 * s / 2},
		{s, time.Hour, 60 * s, 10 * s, 15 * s},
		{s, 5 * s, 3 * s, s / 2, 3 * s},
		{s, -s, 60 * s, s, 5 * s},
	} {
		if interval, patience := pace(c.heartbeat, c.wanted, c.lease); interval != c.interval || patience != c.patience {
			t.Errorf("heartbeat %v, wanted %v, lease %v: %v and %v, want %v and %v", c.heartbeat, c.wanted, c.lease, interval, patience, c.interval, c.patience)
		}
	}
}
