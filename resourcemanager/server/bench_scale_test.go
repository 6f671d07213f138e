package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// scaled is how many nodes HOPS_BENCH_NODES says; without it a benchmark of a whole cluster is passed over: 10,000 take minutes, and both
// processes may open 20,000 files.
func scaled(b *testing.B) int {
	text := os.Getenv("HOPS_BENCH_NODES")
	if text == "" {
		b.Skip("HOPS_BENCH_NODES does not say how many nodes")
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// profiled writes a profile of what follows, until the function that it returns is called, to the file that HOPS_BENCH_PROFILE names.
func profiled(b *testing.B) func() {
	path := os.Getenv("HOPS_BENCH_PROFILE")
	if path == "" {
		return func() {}
	}
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		b.Fatal(err)
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}
}

// perSecond reports a rate, and the processor time that all members together have used for one.
func perSecond(b *testing.B, n int, took, used time.Duration) {
	b.ReportMetric(float64(n)/took.Seconds(), "per-s")
	b.ReportMetric(float64(used.Microseconds())/float64(n), "cpu-us")
}

// BenchmarkSubmissions is how many applications three members take in a second, each durable on a majority before it is acknowledged.
func BenchmarkSubmissions(b *testing.B) {
	const submitters = 256
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			c := newTestCluster(b, members, func(c *Config) { c.limits.MaxApplications = 10_000_000 })
			c.raise()
			leader := c.leader()
			document := []byte(`{"argv":["python","train.py","--epochs","90"],"name":"resnet","resources":{"memory":"8GiB","vcores":4,"gpus":1},"env":{"SEED":"17"}}`)
			jobs := make(chan int)
			var wg sync.WaitGroup
			began, used := time.Now(), processorTime()
			b.ResetTimer()
			for range submitters {
				wg.Go(func() {
					for i := range jobs {
						user := fmt.Sprint("user", i%100)
						_, _, err := leader.Submit(b.Context(), metadata.Caller{User: user}, rest.Submission{
							Name: "resnet", Queue: "default", Kind: rm.KindCommand, Type: "HOPS", Document: document, Key: fmt.Sprint("key-", i), Digest: "0123456789abcdef",
						})
						if err != nil {
							b.Error(err)
						}
					}
				})
			}
			for i := range b.N {
				jobs <- i
			}
			close(jobs)
			wg.Wait()
			b.StopTimer()
			perSecond(b, b.N, time.Since(began), processorTime()-used)
		})
	}
}

// pretend registers nodes that take work although nobody speaks for them: what is granted there is told to nobody.
func (m *member) pretend(b *testing.B, nodes, gpus int) {
	r := m.reign.Load()
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < nodes; i += 64 {
				n := &rm.Node{
					ID: rm.NodeID(fmt.Sprintf("pretended-%d:8042", i)), Incarnation: "one", Host: fmt.Sprint("pretended-", i), HTTP: fmt.Sprintf("pretended-%d:8042", i), Rack: fmt.Sprintf("/row%d/rack%d", i/640, i/32),
					State: rm.NodeRunning, Capacity: rm.Resource{Memory: 512 << 30, VCores: 96, GPUs: gpus},
				}
				for g := range gpus {
					n.GPUs = append(n.GPUs, rm.GPU{UUID: fmt.Sprintf("GPU-%d-%d", i, g), Model: "NVIDIA H100 80GB HBM3", Memory: 80 << 30, Minor: g, Island: "0", Health: rm.GPUHealthy})
				}
				if _, err := m.propose(b.Context(), &statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: r.epoch, Node: state.Node(n)}}}); err != nil {
					b.Error(err)
					return
				}
				r.mu.Lock()
				r.nodes[n.ID] = &softNode{heard: time.Now().Add(24 * time.Hour), open: true, healthy: true}
				r.stir(n.ID)
				r.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// registered are applications whose masters run and have registered: the benchmark speaks for them.
func (m *member) registered(b *testing.B, count int) []rm.AttemptID {
	ids := make([]rm.AttemptID, count)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			id, _, err := m.Submit(b.Context(), metadata.Caller{User: fmt.Sprint("user", i%100)}, rest.Submission{
				Name: "resnet", Queue: "default", Kind: rm.KindMaster, Type: "HOPS", Document: []byte(`{"kind":"master","argv":["m"],"resources":{"memory":"256MiB"}}`),
			})
			if err != nil {
				b.Error(err)
				return
			}
			ids[i] = rm.AttemptID{Application: id, Number: 1}
			eventually(b, "the master's container", func() bool {
				a := m.View().Application(id)
				c := m.View().Master(a)
				return c != nil
			})
			for end := time.Now().Add(time.Minute); ; {
				_, err := m.RegisterMaster(b.Context(), ids[i], rm.Registration{})
				if err == nil {
					return
				}
				if time.Now().After(end) || errors.Is(err, context.Canceled) {
					b.Error(err)
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	return ids
}

// ask makes each application want containers, and waits until all have them.
func (m *member) ask(b *testing.B, ids []rm.AttemptID, name string, each int, ask rm.WantedAsk) {
	var wg sync.WaitGroup
	before := live(m.View())
	for _, id := range ids {
		wg.Go(func() {
			w := ask
			w.ID, w.Count = name, each
			if err := m.Allocate(b.Context(), id, rm.Request{Asks: []rm.WantedAsk{w}}); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	want := before + len(ids)*each
	for end := time.Now().Add(10 * time.Minute); live(m.View()) < want; time.Sleep(5 * time.Millisecond) {
		if b.Failed() || time.Now().After(end) {
			b.Fatalf("%d containers live, want %d", live(m.View()), want)
		}
	}
}

// live counts the live containers.
func live(v *state.View) int {
	n := 0
	for a := range v.Live() {
		n += a.Live
	}
	return n
}

// BenchmarkGrants is how many containers three members grant in a second, from the asks of 100 masters to the durable grant, one device
// each or none.
func BenchmarkGrants(b *testing.B) {
	for _, gpus := range []int{0, 1} {
		b.Run(fmt.Sprintf("members=3/gpus=%d", gpus), func(b *testing.B) {
			c := newTestCluster(b, 3, nil)
			c.raise()
			leader := c.leader()
			nodes := 1_000
			if gpus > 0 {
				nodes = b.N/8 + 200
			}
			leader.pretend(b, nodes, 8)
			ids := leader.registered(b, 100)
			each := (b.N + len(ids) - 1) / len(ids)
			began, used := time.Now(), processorTime()
			b.ResetTimer()
			leader.ask(b, ids, "w", each, rm.WantedAsk{Ask: rm.Ask{Held: true, Resource: rm.Resource{Memory: 128 << 20, VCores: 1, GPUs: gpus}}})
			b.StopTimer()
			perSecond(b, each*len(ids), time.Since(began), processorTime()-used)
		})
	}
}

// BenchmarkAtRest is what the leader of 10,000 nodes and 10,000 applications does all the time although nothing happens: a look at what has
// run out, and one at the reasons of those whose masters listen (100 of them).
func BenchmarkAtRest(b *testing.B) {
	c := newTestCluster(b, 1, func(c *Config) { c.limits.MaxApplications = 100_000 })
	leader := c.leader()
	c.raise()
	leader.pretend(b, scaled(b), 8)
	ids := leader.registered(b, 100)
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < scaled(b); i += 64 {
				if _, _, err := leader.Submit(b.Context(), metadata.Caller{User: fmt.Sprint("user", i%100)}, rest.Submission{
					Name: "resnet", Queue: "default", Kind: rm.KindCommand, Type: "HOPS", Document: []byte(`{"argv":["true"]}`),
				}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	eventually(b, "all masters to be placed", func() bool {
		for a := range leader.View().Live() {
			if a.WantsMaster() {
				return false
			}
		}
		return true
	})
	r := leader.reign.Load()
	b.Run("watch", func(b *testing.B) {
		used := processorTime()
		for b.Loop() {
			r.mu.Lock()
			r.rests = time.Time{}
			r.mu.Unlock()
			r.look(at(time.Now()))
		}
		b.ReportMetric(float64((processorTime()-used).Microseconds())/float64(b.N), "cpu-us/op")
	})
	b.Run("reasons", func(b *testing.B) {
		for _, id := range ids {
			events, err := leader.MasterEvents(b.Context(), id, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer events.Close()
		}
		used := processorTime()
		for b.Loop() {
			r.tellReasons()
		}
		b.ReportMetric(float64((processorTime()-used).Microseconds())/float64(b.N), "cpu-us/op")
	})
}

// resident is the memory of this process that is in use, after a collection.
func resident() float64 {
	runtime.GC()
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	fmt.Sscan(string(b), &size, &pages)
	return float64(pages*int64(os.Getpagesize())) / (1 << 20)
}

// BenchmarkHeartbeats is what nodes cost three resource managers that only report, by the session of node managers: an operation is
// half a minute of it.
func BenchmarkHeartbeats(b *testing.B) {
	c := newTestCluster(b, 3, func(c *Config) { // this measures no election
		c.Timers = raftstore.Timers{Heartbeat: 20 * time.Second, Election: 20 * time.Second, Lease: 20 * time.Second}
	})
	c.raise()
	nodes := scaled(b)
	f := c.fleet(fleetConfig{Name: "fleet", Nodes: nodes, GPUs: 8, Dials: 50})
	began, used := time.Now(), processorTime()
	f.await("all nodes", 10*time.Minute, func(s fleetState) bool { return s.Open == nodes })
	b.ReportMetric(time.Since(began).Seconds(), "connect-s")
	b.ReportMetric(float64((processorTime()-used).Microseconds())/float64(nodes), "connect-cpu-us")
	f.beat()
	time.Sleep(12 * time.Second) // until all nodes do
	before := f.state().Reports
	defer profiled(b)()
	began, used = time.Now(), processorTime()
	b.ResetTimer()
	time.Sleep(time.Duration(b.N) * 30 * time.Second)
	b.StopTimer()
	took, spent, reports := time.Since(began), processorTime()-used, f.state().Reports-before
	b.ReportMetric(spent.Seconds()/took.Seconds(), "cores")
	b.ReportMetric(float64(reports)/took.Seconds(), "reports/s")
	b.ReportMetric(float64(spent.Microseconds())/float64(max(reports, 1)), "cpu-us/report")
	b.ReportMetric(resident(), "MiB")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapInuse)/(1<<20), "heap-MiB")
	b.ReportMetric(float64(m.StackInuse)/(1<<20), "stacks-MiB")
	if path := os.Getenv("HOPS_BENCH_HEAP"); path != "" {
		if f, err := os.Create(path); err == nil {
			pprof.WriteHeapProfile(f)
			f.Close()
		}
	}
}

// BenchmarkFailover kills the leader of three, a process of its own, with SIGKILL: how long until the next one grants, until it has heard of
// all nodes that speak, and what was lost. There are 10 containers a node. An operation is one such death.
//
// All nodes are in the state and in the model; of them HOPS_BENCH_SPEAKING, by default 300, are in a process that speaks for them, and all
// of those come back at the same moment.
func BenchmarkFailover(b *testing.B) {
	timers := raftstore.Timers{}
	all, nodes := scaled(b), 300
	if text := os.Getenv("HOPS_BENCH_SPEAKING"); text != "" {
		var err error
		if nodes, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	nodes = min(nodes, all)
	for b.Loop() {
		c := newTestCluster(b, 3, func(c *Config) { c.Timers = timers })
		leader := c.leader()
		c.raise()
		victim := 0
		if c.live[victim].Server == leader.Server {
			victim = 1
		}
		c.kill(victim)
		process := c.process(victim, timers)
		f := c.fleet(fleetConfig{Name: "fleet", Nodes: nodes, GPUs: 8, Dials: 50})
		led := func() *member { // the busy machine elects another one at times, which is not the process yet
			eventually(b, "one that is no process to lead", func() bool { leader = c.leader(); return leader.Leading() })
			return leader
		}
		f.await("all nodes", 10*time.Minute, func(s fleetState) bool { return s.Open == nodes })
		f.beat()
		leader = led()
		leader.pretend(b, all-nodes, 8)
		pretended := leader.registered(b, 100)
		if all > nodes {
			leader.ask(b, pretended, "p", (all-nodes)*10/len(pretended), rm.WantedAsk{Ask: rm.Ask{Held: true, Resource: rm.Resource{Memory: 128 << 20, VCores: 1}, Excluded: speaking(nodes)}})
		}
		leader.close(b, all-nodes)
		ids := leader.registered(b, 100)
		each := nodes * 10 / len(ids)
		run := rm.WantedAsk{Ask: rm.Ask{Resource: rm.Resource{Memory: 128 << 20, VCores: 1}}, Run: &rm.Launch{Argv: []string{"sleep", "1000000"}}}
		leader.ask(b, ids, "w", each*9/10, run)
		run.Resource.GPUs = 1
		leader.ask(b, ids, "g", each-each*9/10, run)
		total := len(ids) + each*len(ids)
		everywhere := live(leader.View())
		f.await("all containers to run", 10*time.Minute, func(s fleetState) bool { return s.Running >= total })
		var before fleetState
		for leads := false; !leads; leads = before.Open == nodes && c.leading() == nil { // on a busy machine leaders change without being told to
			if m := c.leading(); m != nil {
				m.group.Load().TransferLeadership(b.Context(), c.peers[victim].ID)
			}
			time.Sleep(100 * time.Millisecond)
			if c.leading() == nil && c.live[(victim+1)%3].LeaderHTTP() == c.peers[victim].HTTP {
				before = f.await("all nodes at the process", 10*time.Minute, func(s fleetState) bool { return s.Open == nodes })
			}
		}

		began, used := time.Now(), processorTime()
		stop := profiled(b)
		process.Process.Kill()
		var next *member
		for next == nil {
			next = c.leading()
			time.Sleep(time.Millisecond)
		}
		elected := time.Since(began)
		ask := rm.WantedAsk{Ask: rm.Ask{ID: "after", Count: 1, Held: true, Resource: rm.Resource{Memory: 128 << 20, VCores: 1}}}
		for next.Allocate(b.Context(), ids[0], rm.Request{Asks: []rm.WantedAsk{ask}}) != nil {
			time.Sleep(time.Millisecond)
			next = c.leader()
		}
		granted := func() bool {
			for _, k := range next.View().Containers(ids[0].Application) {
				if k.Ask == "after" {
					return true
				}
			}
			return false
		}
		for !granted() {
			time.Sleep(time.Millisecond)
		}
		first, cost := time.Since(began), processorTime()-used
		s := f.await("all nodes at the next leader", 10*time.Minute, func(s fleetState) bool { return s.Term > before.Term && s.Open == nodes })
		back := time.Since(began)
		stop()
		b.ReportMetric(elected.Seconds(), "s-elected")
		b.ReportMetric(first.Seconds(), "s-granted")
		b.ReportMetric(cost.Seconds(), "cpu-s-granted")
		b.ReportMetric(back.Seconds(), "s-all-nodes")
		b.ReportMetric((processorTime() - used).Seconds(), "cpu-s-all")
		b.ReportMetric(float64(everywhere), "containers")
		b.ReportMetric(float64(before.Running-s.Running+everywhere+1-live(next.View())), "lost")
		b.ReportMetric(float64(s.Twice), "twice")
		for _, err := range next.state.Check() {
			b.Error(err)
		}
	}
}

// close takes pretended nodes out of what is planned for: nothing more is granted there.
func (m *member) close(b *testing.B, nodes int) {
	r := m.reign.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range nodes {
		id := rm.NodeID(fmt.Sprintf("pretended-%d:8042", i))
		r.nodes[id].open = false
		r.stir(id)
	}
}

// speaking are the names of the nodes of a fleet.
func speaking(nodes int) []string {
	var out []string
	for i := range nodes {
		out = append(out, fmt.Sprint("fleet-", i))
	}
	return out
}

// leading is the member of this process that leads; nil: none does.
func (c *testCluster) leading() *member {
	for _, m := range c.live {
		if m != nil && m.Leading() {
			return m
		}
	}
	return nil
}
