package server

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// BenchmarkGrantToProcess is the node's part of the way from a grant to the first thing that a user's program does: from the order of the
// resource manager to a shell of the container that has opened a pipe, which is a fork and an exec more than the first instruction.
// HOPS_BENCH_BINARY is the hops binary whose supervisor is started; without it, it is that of these tests. HOPS_BENCH_ISOLATION is any, auto or
// off. cpu-ms is the processor time of a whole container, of node manager, supervisor and command.
func BenchmarkGrantToProcess(b *testing.B) {
	m, work := newManager(b, ""), b.TempDir()
	c := baseConfig(b, work, m.address)
	c.Poll = 0
	if exe := os.Getenv("HOPS_BENCH_BINARY"); exe != "" {
		c.Supervisor[0] = exe
	}
	if i := os.Getenv("HOPS_BENCH_ISOLATION"); i != "" {
		c.Isolation = Isolation(i)
	}
	run(b, c)
	m.more(1)
	pipe := filepath.Join(b.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o666); err != nil {
		b.Fatal(err)
	}
	one := func(n int) time.Duration {
		s := spec(b, n, "/bin/sh", "-c", "echo >"+pipe)
		begin := time.Now()
		m.mu.Lock()
		term, push := m.term, m.push
		m.mu.Unlock()
		if err := push(&rmpb.NodeOrders{Term: term, LeaseMs: 10_000, Start: []*rmpb.ContainerSpec{s}}); err != nil {
			b.Fatal(err)
		}
		if _, err := os.ReadFile(pipe); err != nil {
			b.Fatal(err)
		}
		took := time.Since(begin)
		m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
		m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
		m.until("oblivion", func(r *rmpb.NodeReport) bool { return find(r, s.ContainerId) == nil })
		return took
	}
	one(1)
	var all []time.Duration
	before := processorTime(b)
	n := 1
	for b.Loop() {
		n++
		all = append(all, one(n))
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2])/1e6, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100])/1e6, "p99-ms")
	b.ReportMetric(float64(processorTime(b)-before)/float64(len(all))/1e6, "cpu-ms")
	b.ReportMetric(0, "ns/op")
}

// processorTime is what this process and those that it has collected have used.
func processorTime(b *testing.B) (sum time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var use syscall.Rusage
		if err := syscall.Getrusage(who, &use); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	return sum
}
