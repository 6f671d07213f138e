package server

import (
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/status"
)

// latency sums durations, for Prometheus to divide.
type latency struct{ count, nanoseconds atomic.Int64 }

func (l *latency) add(d time.Duration) {
	l.count.Add(1)
	l.nanoseconds.Add(max(0, d.Nanoseconds()))
}

// figures are what this process has done, as a leader.
type figures struct {
	// passes of the scheduler, without the recording of their grants; commits of grants; starts from the grant of a container until
	// its node says that it runs.
	passes, commits, starts latency
	preempted               atomic.Int64
	// evicted were ended so that others find room; moved are those of them for whom room elsewhere was kept.
	evicted, moved atomic.Int64
	// lost is the work of those that were evicted, since it was last known to be saved, in GPU-milliseconds.
	lost atomic.Int64
	// missingCells are too few for what queues are guaranteed, as the leader saw last.
	missingCells atomic.Int64
}

// Figures are those of the server that the replicated state has not.
func (s *Server) Figures(to status.Sample) {
	f := &s.figures
	for _, l := range []struct {
		name, what string
		of         *latency
	}{
		{"hops_resourcemanager_schedule", "passes of the scheduler", &f.passes},
		{"hops_resourcemanager_grant_commit", "recordings of grants", &f.commits},
		{"hops_resourcemanager_container_start", "starts of containers, from grant to running", &f.starts},
	} {
		to.Counter(l.name+"_seconds_total", "Time of "+l.what+".", time.Duration(l.of.nanoseconds.Load()).Seconds())
		to.Counter(l.name+"s_total", "Number of "+l.what+".", float64(l.of.count.Load()))
	}
	to.Counter("hops_resourcemanager_evicted_containers_total", "Containers that were ended so that others find room.", float64(f.evicted.Load()))
	to.Counter("hops_resourcemanager_moved_containers_total", "Containers of those for which room elsewhere was kept.", float64(f.moved.Load()))
	to.Counter("hops_resourcemanager_evicted_gpu_seconds_total", "Work of those containers since it was last known to be saved.", float64(f.lost.Load())/1000)
	to.Counter("hops_resourcemanager_preempted_containers_total", "Containers that were ended because their node leaves.", float64(f.preempted.Load()))
	to.Gauge("hops_resourcemanager_missing_cells", "Whole nodes that are too few for what queues are guaranteed, as this server saw when it led last.", float64(f.missingCells.Load()))
}
