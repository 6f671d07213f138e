package raftstore

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// drive runs b.N operations with a number of them outstanding and reports the processor time of all members together.
func drive(b *testing.B, outstanding int, op func(done func())) {
	slots := make(chan struct{}, outstanding)
	var wait sync.WaitGroup
	used := cpu()
	b.ResetTimer()
	for range b.N {
		slots <- struct{}{}
		wait.Add(1)
		op(func() { <-slots; wait.Done() })
	}
	wait.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64((cpu()-used).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
}

// null is a state machine that does nothing.
type null struct{ machine }

func (n *null) Apply(index uint64, commands [][]byte) []any {
	n.mu.Lock()
	n.index = index
	n.mu.Unlock()
	return make([]any, len(commands))
}

func benchGroup(b *testing.B, members int) *Group {
	c := newCluster(b, members)
	c.tune = func(g *GroupConfig) { g.Timers, g.SegmentBytes = Timers{}, 16<<20 }
	for _, m := range c.members {
		nd := c.host(m.ID)
		g, err := nd.host.Open(c.config("a", true), &null{})
		if err != nil {
			b.Fatal(err)
		}
		nd.groups["a"] = g
	}
	return c.leader("a")
}

func BenchmarkPropose(b *testing.B) {
	command := make([]byte, 150)
	for _, members := range []int{1, 3} {
		for _, outstanding := range []int{1, 16, 256, 1024} {
			b.Run(fmt.Sprintf("members=%d/outstanding=%d", members, outstanding), func(b *testing.B) {
				g := benchGroup(b, members)
				drive(b, outstanding, func(done func()) {
					g.ProposeAsync(command, nil, func(_ any, err error) {
						if err != nil {
							b.Error(err)
						}
						done()
					})
				})
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, members := range []int{1, 3} {
		for _, outstanding := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("members=%d/outstanding=%d", members, outstanding), func(b *testing.B) {
				g := benchGroup(b, members)
				drive(b, outstanding, func(done func()) {
					g.Read(func(err error) {
						if err != nil {
							b.Error(err)
						}
						done()
					})
				})
			})
		}
	}
}
