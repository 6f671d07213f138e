package server

import (
	"context"
	"testing"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// BenchmarkFromSubmissionToStart is the way of a command with nothing before it: submission, its master's grant and start,
// registration, ask, grant, start are seven commits.
func BenchmarkFromSubmissionToStart(b *testing.B) {
	c := newTestCluster(b, 1, nil)
	started := make(chan time.Time, 1)
	c.awaitOpen(c.node("127.0.0.1:1001", 0, programs(c, func(context.Context, *pb.ContainerSpec) int {
		started <- time.Now()
		return 0
	})))
	var sum time.Duration
	for b.Loop() {
		began := time.Now()
		id := c.submit("ann", `{"argv":["true"]}`)
		sum += (<-started).Sub(began)
		b.StopTimer()
		c.await(id, rm.StateFinished)
		b.StartTimer()
	}
	b.ReportMetric(float64(sum.Milliseconds())/float64(b.N), "ms/start")
}
