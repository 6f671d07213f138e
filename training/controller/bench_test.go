package controller

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client/dfs"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

var cluster = flag.String("cluster", "", "benchmarks: `DIR` with core-site.xml of a running cluster (hops dev) that has the journal; default: it is in memory")

// journaled is the filesystem of a benchmark: of the cluster, or in memory.
func journaled(b *testing.B) FS {
	b.Helper()
	if *cluster == "" {
		return newMemFS()
	}
	conf, err := dfs.LoadHadoopConf(*cluster)
	if err != nil {
		b.Fatal(err)
	}
	location, err := conf.LocateAs("", "")
	if err != nil {
		b.Fatal(err)
	}
	files, err := dfs.New(location.Config)
	if err != nil {
		b.Fatal(err)
	}
	remove := func() {
		if err := DFS(files).Delete(context.Background(), "/Projects/lab/Experiments/"+testApp+"_1"); err != nil {
			b.Fatal(err)
		}
	}
	remove() // what a run before has left
	b.Cleanup(func() {
		remove()
		_ = files.Close()
	})
	return DFS(files)
}

// busy is a controller with executors that each have a trial. What is measured is the controller and its HTTP door with signed requests, both
// ends of it on this machine; and the writing of the journal, if it is not in memory.
func busy(b *testing.B, executors, trials int) ([]*client, []*protocol.Assignment) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	fs := journaled(b)
	started := make(chan *client, executors)
	url := "http://" + l.Addr().String()
	rm := newFakeRM(50, func(_ *fakeRM, c *rmpb.Container, _ *rmpb.Launch) {
		started <- newClient(b, func() string { return url }, c.ContainerId, c.Token)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Run(ctx, Env{
			Application: testApp, Attempt: 1, User: "ann", Job: jobOf(fmt.Sprintf(randomSpec, trials, executors)), FS: fs, RM: rm, Listener: l, Logger: slog.New(slog.DiscardHandler),
			Times: Times{Lease: time.Hour, Grace: time.Hour, Start: time.Hour},
		})
	}()
	var clients []*client
	var work []*protocol.Assignment
	for range executors {
		c := <-started
		c.http.Transport.(*http.Transport).MaxIdleConnsPerHost = 1
		if _, err := c.register(ctx, nil); err != nil {
			b.Fatal(err)
		}
		var n protocol.Next
		if err := c.insist(ctx, "GET", "/v1/executors/"+c.executor+"/next?wait=5", nil, &n); err != nil || n.Trial == nil {
			b.Fatal(n, err)
		}
		clients, work = append(clients, c), append(work, n.Trial)
	}
	b.Cleanup(func() {
		cancel()
		<-done
		for _, c := range clients {
			c.http.CloseIdleConnections()
		}
	})
	return clients, work
}

// together has each client do its share of b.N, and reports how many there were in a second and how long one took.
func together(b *testing.B, clients []*client, unit string, each float64, pace <-chan time.Time, do func(i int) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	var mu sync.Mutex
	var all []time.Duration
	b.ResetTimer()
	began, used := time.Now(), processTime(b)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			var took []time.Duration
			for left.Add(-1) >= 0 {
				if pace != nil {
					<-pace
				}
				at := time.Now()
				if err := do(i); err != nil {
					b.Error(err)
					break
				}
				took = append(took, time.Since(at))
			}
			mu.Lock()
			all = append(all, took...)
			mu.Unlock()
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(each*float64(len(all))/time.Since(began).Seconds(), unit+"/s")
	b.ReportMetric(float64((processTime(b)-used).Microseconds())/max(each*float64(len(all)), 1), "cpu-us/"+strings.TrimSuffix(unit, "s"))
	slices.Sort(all)
	if n := len(all); n > 0 {
		b.ReportMetric(float64(all[n/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(all[n*99/100].Microseconds())/1000, "p99-ms")
	}
}

// processTime is the time that this process has had of the processors, clients included: on a machine that others use as well it says
// more than the clock.
func processTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reporting(b *testing.B, executors, events int, do func([]*client, func(i int) error)) {
	clients, work := busy(b, executors, executors)
	seq := make([]int64, executors)
	do(clients, func(i int) error {
		var made protocol.Events
		for range events {
			seq[i]++
			made = append(made, protocol.MetricEvent{Seq: seq[i], Step: seq[i], Time: 1, Metrics: map[string]training.Metric{"acc": training.M(0.5)}})
		}
		text, ok := made.AppendJSON([]byte(`{"events":`))
		if !ok {
			return fmt.Errorf("the events cannot be written")
		}
		var out protocol.Reported
		if err := clients[i].call(context.Background(), "POST", fmt.Sprintf("/v1/trials/%v/1/report", work[i].Trial), json.RawMessage(append(text, '}')), &out); err != nil {
			return err
		}
		if out.Ack != seq[i] {
			return fmt.Errorf("ack %d of %d", out.Ack, seq[i])
		}
		return nil
	})
}

// BenchmarkReports: 200 executors that report one event after the other, each waiting for its answer.
func BenchmarkReports(b *testing.B) {
	reporting(b, 200, 1, func(c []*client, do func(int) error) { together(b, c, "reports", 1, nil, do) })
}

// BenchmarkMetrics: 200 executors with 100 events a report.
func BenchmarkMetrics(b *testing.B) {
	reporting(b, 200, 100, func(c []*client, do func(int) error) { together(b, c, "metrics", 100, nil, do) })
}

// BenchmarkDecisions: 200 executors that report once a second each, as they do: how long one waits for what it is to do.
func BenchmarkDecisions(b *testing.B) {
	pace := time.NewTicker(time.Second / 200)
	defer pace.Stop()
	reporting(b, 200, 1, func(c []*client, do func(int) error) { together(b, c, "reports", 1, pace.C, do) })
}

// BenchmarkAskTell: 16 executors whose trials end at once; each final brings the next trial.
func BenchmarkAskTell(b *testing.B) {
	clients, work := busy(b, 16, training.MaxTrials)
	together(b, clients, "trials", 1, nil, func(i int) error {
		var out protocol.Finished
		err := clients[i].call(context.Background(), "POST", fmt.Sprintf("/v1/trials/%v/1/final", work[i].Trial), protocol.Final{Next: true, Status: training.Completed, Metric: &training.Metric{Value: 0.5}}, &out)
		if err != nil {
			return err
		}
		if out.Next == nil || out.Next.Trial == nil {
			return fmt.Errorf("no next trial: %+v", out)
		}
		work[i] = out.Next.Trial
		return nil
	})
}

// BenchmarkTenThousandTrials: the state machine alone, through 10,000 trials of 27 epochs with ASHA on 200 executors: time for an entry, the
// longest one, a snapshot, and the memory that the state takes.
func BenchmarkTenThousandTrials(b *testing.B) {
	for range b.N {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		spec, err := training.ParseSpec([]byte(`{"entry": "m:f", "metric": "acc", "optimizer": {"type": "asha", "eta": 3, "r_max": 27}, "trials": 10000, "executors": 200, "seed": 1,
			"space": {"lr": ["DOUBLE", [0, 1]], "units": ["INTEGER", [8, 512]]}}`), "ann")
		if err != nil {
			b.Fatal(err)
		}
		x := experiment.New()
		now, longest, entries := training.Millis(1), time.Duration(0), 0
		began := time.Now()
		step := func(do func() error) {
			at := time.Now()
			if err := do(); err != nil {
				b.Fatal(err)
			}
			entries += len(x.Take().Entries)
			longest = max(longest, time.Since(at))
		}
		propose := func(e *experiment.Entry) { step(func() error { _, err := x.Propose(now, e); return err }) }
		propose(&experiment.Entry{Created: &experiment.Created{Version: experiment.Version, ID: "a_1", User: "ann", Directory: "/e", Spec: spec}})
		propose(&experiment.Entry{Started: &experiment.Started{Attempt: 1}})
		for i := range 200 {
			step(func() error {
				_, _, _, err := x.Register(now, protocol.RegisterExecutor{ContainerID: fmt.Sprint("c", i), Instance: "i"}, fmt.Sprint("n", i%50), false)
				return err
			})
		}
		for !x.Over() {
			now++
			for _, w := range x.Executors {
				var n protocol.Next
				step(func() (err error) { n, _, err = x.Next(now, w.ID, 0); return err })
				if n.Trial == nil {
					continue
				}
				a := n.Trial
				for e := a.Budget.From + 1; e <= a.Budget.To; e++ {
					lr, _ := a.Params["lr"].Float()
					step(func() error {
						_, _, err := x.Report(now, w.Container, a.Trial, a.Attempt, protocol.Report{Events: []protocol.MetricEvent{{Seq: int64(e - a.Budget.From), Step: int64(e), Metrics: map[string]training.Metric{"acc": training.M(lr * float64(e))}}}})
						return err
					})
				}
				step(func() error {
					_, _, err := x.Commit(now, w.Container, a.Trial, a.Attempt, protocol.Commit{Step: int64(a.Budget.To), URI: path.Join(a.Dirs.Checkpoints, fmt.Sprint("step-", a.Budget.To)), Files: []training.File{{Name: "m"}}})
					return err
				})
				step(func() error {
					_, _, err := x.Final(now, w.Container, a.Trial, a.Attempt, protocol.Final{Seq: int64(a.Budget.To - a.Budget.From), Status: training.Completed})
					return err
				})
			}
		}
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		at := time.Now()
		snapshot, err := x.Snapshot(0)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(at).Milliseconds()), "snapshot-ms")
		b.ReportMetric(float64(len(snapshot))/1e6, "snapshot-MB")
		b.ReportMetric(float64(took.Nanoseconds())/float64(entries), "ns/entry")
		b.ReportMetric(float64(entries), "entries")
		b.ReportMetric(float64(longest.Microseconds())/1000, "longest-ms")
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/1e6, "heap-MB")
		runtime.KeepAlive(x)
	}
}
