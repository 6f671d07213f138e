package scheduler

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// The benchmarks are those of `make bench-scheduler`: nodes of 8 GPUs in racks of 32, 100 queues of one guarantee, 1,000 applications.

func benchModel(b *testing.B, nodes int, free func(node, gpu int) bool) *Model {
	root := rm.QueueConfig{Children: map[string]rm.QueueConfig{}}
	for i := range 100 {
		root.Children[fmt.Sprintf("q%03d", i)] = rm.QueueConfig{Capacity: "1%"}
	}
	q, err := rm.NewQueues(root)
	if err != nil {
		b.Fatal(err)
	}
	m := NewModel(Config{Queues: q, GroupBytes: 3 << 18})
	for i := range nodes {
		host := fmt.Sprintf("node%05d", i)
		n := Node{ID: rm.NodeID(host + ":8042"), Host: host, Rack: fmt.Sprintf("/rack%d", i/32), Capacity: rm.Resource{Memory: 512 << 30, VCores: 128, GPUs: 8}}
		for g := range 8 {
			f := free(i, g)
			n.GPUs = append(n.GPUs, GPU{UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", i, g), Model: "NVIDIA H100 80GB HBM3", Memory: 80 << 30, Island: "i0", Minor: g, Free: f})
			if !f {
				n.Used = n.Used.Add(rm.Resource{Memory: 32 << 30, VCores: 8, GPUs: 1})
				n.Containers++
			}
		}
		m.SetNode(n)
	}
	return m
}

// cpu is the processor time that this process has used: other than the time of the clock it does not depend on what else runs.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reportCPU(b *testing.B, spent time.Duration) {
	b.ReportMetric(float64(spent.Nanoseconds())/1000/float64(b.N), "cpu-us/op")
}

var oneGPU = rm.Resource{Memory: 32 << 30, VCores: 8, GPUs: 1}

// benchApps asks for containers altogether, with one ask for many or one for each.
func benchApps(m *Model, containers int, each bool) {
	for i := range 1000 {
		a := App{ID: rm.ApplicationID{Cluster: 1, Sequence: int64(i + 1)}, Queue: fmt.Sprintf("root.q%03d", i%100), User: fmt.Sprint(i), Submitted: metadata.Time(i)}
		if each {
			for k := range containers / 1000 {
				a.Asks = append(a.Asks, rm.Ask{ID: fmt.Sprint("command-", k), Priority: 1, Resource: oneGPU, Count: 1, Launch: 1})
			}
		} else {
			a.Asks = []rm.Ask{{ID: "a", Priority: 1, Resource: oneGPU, Count: containers / 1000, Launch: 1}}
		}
		m.SetApp(a)
	}
}

// BenchmarkPlacements fills an empty cluster for which 100,000 containers wait; one operation is one container.
func BenchmarkPlacements(b *testing.B) {
	for _, nodes := range []int{1000, 10_000} {
		for _, each := range []bool{false, true} {
			b.Run(fmt.Sprintf("nodes=%d/each=%v", nodes, each), func(b *testing.B) {
				var m *Model
				var spent time.Duration
				b.ReportAllocs()
				for left := b.N; left > 0; {
					b.StopTimer()
					m = benchModel(b, nodes, func(int, int) bool { return true })
					benchApps(m, 100_000, each)
					b.StartTimer()
					start := cpu()
					done := 0
					for more := true; more && left > 0; {
						p := m.Plan(Budget{Containers: min(1000, left)}, 0)
						more = p.More
						done += len(p.Groups)
						left -= len(p.Groups)
						if len(p.Groups) == 0 {
							break
						}
					}
					spent += cpu() - start
					if done == 0 {
						b.Fatal("nothing granted")
					}
				}
				reportCPU(b, spent)
			})
		}
	}
}

// BenchmarkFull plans on a full cluster for which 100,000 containers wait, one ask for each; one operation is a plan after one node
// has changed, without room for anybody or with room for one container.
func BenchmarkFull(b *testing.B) {
	for _, room := range []bool{false, true} {
		b.Run(fmt.Sprintf("room=%v", room), func(b *testing.B) {
			m := benchModel(b, 10_000, func(int, int) bool { return false })
			benchApps(m, 100_000, true)
			m.Plan(Budget{}, 0)
			i := 0
			b.ReportAllocs()
			start := cpu()
			for b.Loop() {
				n := m.nodes[rm.NodeID(fmt.Sprintf("node%05d:8042", i%10_000))].Node
				i++
				if room {
					n.GPUs = append([]GPU(nil), n.GPUs...)
					n.GPUs[0].Free, n.Used, n.Containers = true, n.Used.Sub(oneGPU), n.Containers-1
				} else {
					n.Used.Memory += 1 - 2*int64(i&1)
				}
				m.SetNode(n)
				p := m.Plan(Budget{}, 0)
				if room != (len(p.Groups) == 1) {
					b.Fatal(len(p.Groups))
				}
				if room {
					n.GPUs = append([]GPU(nil), n.GPUs...)
					n.GPUs[0].Free, n.Used, n.Containers = false, n.Used.Add(oneGPU), n.Containers+1
					m.SetNode(n)
					m.Settle(p.Groups[0].Number)
				}
			}
			reportCPU(b, cpu()-start)
		})
	}
}

// BenchmarkGang looks for 64 times a whole node on a cluster that is 90 % full in fragments, with more whole nodes free than that, or
// fewer, and for 512 single GPUs; one operation is a grant, or a proven no.
func BenchmarkGang(b *testing.B) {
	for _, c := range []struct {
		name        string
		whole, gpus int
		count       int
		granted     bool
	}{{"64x8/granted", 80, 8, 64, true}, {"64x8/no", 40, 8, 64, false}, {"512x1/granted", 80, 1, 512, true}} {
		b.Run(c.name, func(b *testing.B) {
			seed := uint64(1)
			rnd := func() uint64 { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed }
			const nodes = 10_000
			m := benchModel(b, nodes, func(i, _ int) bool { return i%(nodes/c.whole) == 0 || rnd()%10 == 0 })
			m.config.GroupBytes = 0
			m.Plan(Budget{}, 0)
			a := App{ID: rm.ApplicationID{Cluster: 1, Sequence: 1}, Queue: "root.q000", Asks: []rm.Ask{{
				ID: "g", Count: c.count, Gang: c.count,
				Resource: rm.Resource{Memory: 32 << 30 * int64(c.gpus), VCores: 8 * c.gpus, GPUs: c.gpus},
			}}}
			b.ReportAllocs()
			start := cpu()
			for b.Loop() {
				m.SetApp(a)
				p := m.Plan(Budget{}, 0)
				if c.granted != (len(p.Groups) == 1) {
					b.Fatal(len(p.Groups))
				}
				for _, g := range p.Groups {
					m.Settle(g.Number)
				}
				m.RemoveApp(a.ID)
			}
			reportCPU(b, cpu()-start)
		})
	}
}

// BenchmarkExplain explains a gang of 64 whole nodes on a full and fragmented cluster, with 31 other queues to look at.
func BenchmarkExplain(b *testing.B) {
	m := benchModel(b, 10_000, func(node, gpu int) bool { return node%10 == 0 && gpu < 4 })
	whole := rm.Resource{Memory: 256 << 30, VCores: 64, GPUs: 8}
	id := rm.ApplicationID{Cluster: 1, Sequence: 1}
	m.SetApp(App{ID: id, Queue: "root.q000", User: "u", Asks: []rm.Ask{{ID: "g", Resource: whole, Count: 64, Gang: 64}}})
	if plan := m.Plan(Budget{}, 0); len(plan.Groups) > 0 {
		b.Fatal("it was to be full")
	}
	var queues []string
	for i := range MaxOtherQueues {
		queues = append(queues, fmt.Sprintf("root.q%03d", i))
	}
	start := cpu()
	for b.Loop() {
		if e, ok := m.Explain(id, "g", queues, 0); !ok || len(e.Changes) == 0 {
			b.Fatalf("%+v", e)
		}
	}
	reportCPU(b, cpu()-start)
}

// crowded is a cluster of which 90 % is in use, 9 of 10 GPUs here and there, by containers that came alone or in gangs of 16, and an ask for a
// gang of whole nodes, of a queue that uses nothing of what it is guaranteed.
func crowded(b *testing.B, gangs bool, nodes int) (*Model, *lane) {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "20%"}, "b": {Capacity: "80%"}}})
	if err != nil {
		b.Fatal(err)
	}
	m := NewModel(Config{Queues: q, Preempt: Preemption{Enabled: true, Defragment: true}})
	used, number := map[rm.ApplicationID]rm.Resource{}, int64(0)
	asked := &rm.Ask{ID: "b", Resource: oneGPU}
	for i := range 10_000 {
		host := fmt.Sprintf("node%05d", i)
		n := Node{ID: rm.NodeID(host + ":8042"), Host: host, Rack: fmt.Sprintf("/rack%d", i/32), Capacity: rm.Resource{Memory: 512 << 30, VCores: 128, GPUs: 8}}
		for g := range 8 {
			d := GPU{UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", i, g), Model: "NVIDIA H100 80GB HBM3", Memory: 80 << 30, Island: "i0", Minor: g, Free: (i*8+g)%10 == 0}
			n.GPUs = append(n.GPUs, d)
			if d.Free {
				continue
			}
			id := rm.ApplicationID{Cluster: 1, Sequence: number/500 + 1}
			h := Hold{
				App: id, Resource: oneGPU, GPUs: []string{d.UUID}, Container: rm.ContainerID{Attempt: rm.AttemptID{Application: id, Number: 1}, Number: number},
				Saved: metadata.Time(number * 7919 % 3_600_000), Asked: asked, Checkpoints: true,
			}
			if gangs {
				h.Gang = number/16 + 1
			}
			number++
			n.Holds = append(n.Holds, h)
			n.Used = n.Used.Add(oneGPU)
			n.Containers++
			used[id] = used[id].Add(oneGPU)
		}
		m.SetNode(n)
	}
	for id, r := range used {
		m.SetApp(App{ID: id, Queue: "root.b", User: "u", Used: r})
	}
	m.SetApp(App{ID: rm.ApplicationID{Cluster: 1, Sequence: 1 << 40}, Queue: "root.a", User: "v", Asks: []rm.Ask{{ID: "g", Resource: oneGPU.Times(8), Count: nodes, Gang: nodes}}})
	m.Plan(Budget{}, 3_600_000)
	return m, m.starving(m.byQueue[q.Find("root.a")], 0, true, nil)[0]
}

// searches times searches, each of which has to find some victims.
func searches(b *testing.B, search func() []*victim) {
	var times []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := cpu()
		chosen := search()
		times = append(times, cpu()-start)
		if len(chosen) == 0 {
			b.Fatal("no way")
		}
		b.ReportMetric(float64(len(chosen)), "victims")
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-cpu-us")
}

// BenchmarkPreemption looks for who makes room for a gang of 64 whole nodes; one operation is a search with its proof.
func BenchmarkPreemption(b *testing.B) {
	for _, gangs := range []bool{false, true} {
		b.Run(fmt.Sprintf("gangs=%v", gangs), func(b *testing.B) {
			m, l := crowded(b, gangs, 64)
			searches(b, func() []*victim {
				chosen, _ := m.newSearch(l, l.first(), 64).run(nil, m.victims)
				return chosen
			})
		})
	}
}

// BenchmarkPreemptionByMoving looks for who is moved for a gang of 8 whole nodes; one operation is a search with the proof that all have a place again.
func BenchmarkPreemptionByMoving(b *testing.B) {
	m, l := crowded(b, false, 8)
	searches(b, func() []*victim {
		s := m.newSearch(l, l.first(), 8)
		s.moves = true
		chosen, _, _ := s.move(m.victims())
		return chosen
	})
}
