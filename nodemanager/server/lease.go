package server

import (
	"time"

	"github.com/gohops/hops/nodemanager/supervisor"
)

// deadlines divides a lease that ends at until and was granted for d: everything must be dead before its end, so SIGKILL
// is a little earlier, and SIGTERM earlier still.
//
//	sent            Term          Kill   until
//	 │───────────────│─────────────│──────│        d = 10 s: Term 7.5 s, Kill 9.5 s
//	                  d/5, ≤ 2 s    d/20, ≤ 500 ms
func deadlines(until supervisor.Instant, d time.Duration) supervisor.Lease {
	kill := until.Add(-min(d/20, 500*time.Millisecond))
	return supervisor.Lease{Term: kill.Add(-min(d/5, 2*time.Second)), Kill: kill}
}

// extendLease takes a lease of d that counts from sent. A lease never becomes shorter by a late message.
func (s *Server) extendLease(sent supervisor.Instant, d time.Duration) {
	l := deadlines(sent.Add(d), d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Term <= s.lease.Term {
		return
	}
	s.lease = l
	close(s.leaseMoved)
	s.leaseMoved = make(chan struct{})
}

func (s *Server) currentLease() supervisor.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// watchLease returns the lease and a channel that is closed when it has changed.
func (s *Server) watchLease() (supervisor.Lease, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease, s.leaseMoved
}

// leaseHolds reports whether containers may be started now.
func (s *Server) leaseHolds() bool {
	l := s.currentLease()
	return l.Term != 0 && supervisor.Now() < l.Term
}
