// Package bench loads a filesystem and says what it did: operations per second, latencies, and the CPU time of servers
// and client per operation. It drives hops and stock HDFS with the same client, so that a ratio compares servers.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client/dfs"
)

// Options say what is loaded and how hard.
type Options struct {
	// Clients makes the n-th client; each has a connection of its own.
	Clients func(n int) (*dfs.Client, error)
	// Connections and Outstanding: so many clients, and so many requests at once over all of them.
	Connections, Outstanding int
	// Ops bounds each measured phase by number, Time by duration; the first reached ends it.
	Ops  int
	Time time.Duration
	// Root is the directory that the load works in; it is made, and removed at the end.
	Root string
	// Servers are process ids by name, whose CPU time is read.
	Servers map[string]int
	// Client is the process whose CPU time is the client's; 0: this one.
	Client int
	// Replication of files with data.
	Replication int
	// Bytes of the sequential files.
	Bytes int64
	// Progress, if not nil, gets a line per phase; Live: a line that counts too, for terminals.
	Progress io.Writer
	Live     bool
	// Label stands before the line that counts.
	Label string
}

// Result is one measured phase.
type Result struct {
	Name    string  `json:"name"`
	Ops     int64   `json:"ops"`
	Errors  int64   `json:"errors,omitempty"`
	Seconds float64 `json:"seconds"`
	// PerSecond is operations, or for sequential work megabytes (10^6), per second.
	PerSecond float64 `json:"per_second"`
	Unit      string  `json:"unit"`
	// Latencies in milliseconds.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	// CPU time in microseconds per operation, or per megabyte.
	ServerCPU float64            `json:"server_cpu_us"`
	ClientCPU float64            `json:"client_cpu_us"`
	ByServer  map[string]float64 `json:"by_server_us,omitempty"`
	// Others is how many cores other processes of the machine kept busy meanwhile.
	Others float64 `json:"others_cores"`
	// FirstError is what went wrong first, if anything did.
	FirstError string `json:"first_error,omitempty"`
}

// String is the result on one line.
func (r Result) String() string {
	s := fmt.Sprintf("%-14s %10.0f %-6s p50 %8.3f ms  p99 %8.3f ms  cpu %7.1f us servers %6.1f us client  (%d in %.1f s, others %.1f cores)",
		r.Name, r.PerSecond, r.Unit, r.P50, r.P99, r.ServerCPU, r.ClientCPU, r.Ops, r.Seconds, r.Others)
	if r.Errors > 0 {
		s += fmt.Sprintf("  %d ERRORS: %s", r.Errors, r.FirstError)
	}
	return s
}

// Bench is a load on one filesystem.
type Bench struct {
	Options
	clients []*dfs.Client
	// moved counts the bytes of a large file, for progress.
	moved *atomic.Int64
}

// New connects the clients and makes the working directory.
func New(ctx context.Context, o Options) (*Bench, error) {
	setDefault(&o.Connections, 4)
	setDefault(&o.Outstanding, 64)
	setDefault(&o.Ops, 1<<40)
	setDefault(&o.Time, 10*time.Second)
	setDefault(&o.Root, "/benchmarks/hops-"+strconv.Itoa(os.Getpid()))
	setDefault(&o.Replication, 1)
	setDefault(&o.Bytes, 1<<30)
	b := &Bench{Options: o, moved: new(atomic.Int64)}
	for i := range o.Connections {
		c, err := o.Clients(i)
		if err != nil {
			b.Close(ctx)
			return nil, err
		}
		b.clients = append(b.clients, c)
	}
	return b, b.clients[0].Mkdirs(ctx, o.Root, 0o755, true)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Close removes the working directory and ends the clients.
func (b *Bench) Close(ctx context.Context) error {
	var errs []error
	if len(b.clients) > 0 {
		_, err := b.clients[0].Delete(ctx, b.Root, true)
		errs = append(errs, err)
	}
	for _, c := range b.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// operation does the n-th operation of worker w.
type operation func(ctx context.Context, c *dfs.Client, w, n int) error

// measure runs an operation from all workers until the bound of number or time, and accounts for it. perWorker bounds
// what one worker does; 0: nothing but the bounds.
func (b *Bench) measure(ctx context.Context, name string, perWorker int, op operation) (Result, error) {
	return b.measureUnits(ctx, name, "ops/s", 1, perWorker, op)
}

func (b *Bench) measureUnits(ctx context.Context, name, unit string, units float64, perWorker int, op operation) (Result, error) {
	var left, count, failures atomic.Int64
	left.Store(int64(b.Ops))
	var first atomic.Pointer[string]
	latencies := make([][]time.Duration, b.Outstanding)
	before := b.usage()
	started := time.Now()
	deadline := started.Add(b.Time)
	hide := b.show(name, unit, func() (part, perSecond float64) {
		passed, n := time.Since(started), count.Load()
		done := float64(n) * units
		part = max(float64(passed)/float64(b.Time), float64(n)/float64(b.Ops))
		if moved := b.moved.Load(); moved > 0 { // operations of many bytes
			done = float64(moved) / 1e6
			part = done / (units * float64(b.Ops))
		}
		return part, done / passed.Seconds()
	})
	defer hide()
	var group sync.WaitGroup
	for w := range b.Outstanding {
		group.Go(func() {
			c := b.clients[w%len(b.clients)]
			for n := 0; perWorker == 0 || n < perWorker; n++ {
				if left.Add(-1) < 0 || ctx.Err() != nil {
					return
				}
				t := time.Now()
				if t.After(deadline) {
					return
				}
				err := op(ctx, c, w, n)
				latencies[w] = append(latencies[w], time.Since(t))
				count.Add(1)
				if err != nil {
					failures.Add(1)
					text := err.Error()
					first.CompareAndSwap(nil, &text)
				}
			}
		})
	}
	group.Wait()
	seconds := time.Since(started).Seconds()
	used := b.usage().since(before)
	hide()
	all := slices.Concat(latencies...)
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if len(all) == 0 {
		return Result{}, fmt.Errorf("%s: nothing was done", name)
	}
	slices.Sort(all)
	at := func(q float64) float64 { return quantile(all, q) }
	done := float64(len(all)) * units
	r := Result{
		Name: name, Ops: int64(len(all)), Errors: failures.Load(), Seconds: seconds, PerSecond: done / seconds, Unit: unit,
		P50: at(0.5), P99: at(0.99), Max: at(1), ClientCPU: used.self / done, ByServer: map[string]float64{},
		Others: max(0, (used.machine-used.self-used.servers())/1e6/seconds),
	}
	if text := first.Load(); text != nil {
		r.FirstError = *text
	}
	for server, us := range used.byServer {
		r.ServerCPU += us / done
		r.ByServer[server] = us / done
	}
	if b.Progress != nil {
		fmt.Fprintln(b.Progress, r)
	}
	return r, nil
}

// quantile of durations that are sorted, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]) / float64(time.Millisecond)
}

// show keeps a line up to date while a phase runs, with the part that is done; the function it returns removes the line.
func (b *Bench) show(name, unit string, state func() (part, perSecond float64)) (hide func()) {
	if b.Progress == nil || !b.Live {
		return func() {}
	}
	const width = 24
	done := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(b.Progress, "\r\x1b[K")
				return
			case <-t.C:
			}
			part, perSecond := state()
			full := max(0, min(width, int(part*width)))
			line := fmt.Sprintf("%s %-14s [%s%s] %.0f %s", b.Label, name, strings.Repeat("#", full), strings.Repeat("-", width-full), perSecond, unit)
			fmt.Fprintf(b.Progress, "\r%s\x1b[K", strings.TrimSpace(line))
		}
	}()
	return sync.OnceFunc(func() {
		close(done)
		<-gone
	})
}

// usage is CPU time in microseconds.
type usage struct {
	self, machine float64
	byServer      map[string]float64
}

func (u usage) since(v usage) usage {
	d := usage{u.self - v.self, u.machine - v.machine, map[string]float64{}}
	for name, us := range u.byServer {
		d.byServer[name] = us - v.byServer[name]
	}
	return d
}

func (u usage) servers() float64 {
	total := 0.0
	for _, us := range u.byServer {
		total += us
	}
	return total
}

func (b *Bench) usage() usage {
	u := usage{byServer: map[string]float64{}}
	var self unix.Rusage
	if b.Client != 0 {
		u.self = ProcessCPU(b.Client)
	} else if unix.Getrusage(unix.RUSAGE_SELF, &self) == nil {
		u.self = float64(self.Utime.Nano()+self.Stime.Nano()) / 1e3
	}
	for name, pid := range b.Servers {
		u.byServer[name] = ProcessCPU(pid)
	}
	u.machine = MachineCPU()
	return u
}

// tick is a clock tick of /proc in microseconds: USER_HZ is 100 on every Linux.
const tick = 1e4

// ProcessCPU is what a process and its threads have used, in microseconds; 0 when there is none.
func ProcessCPU(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) * tick
}

// MachineCPU is the busy time of all cores, in microseconds.
func MachineCPU() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	busy := 0.0
	for i, f := range strings.Fields(line)[1:] {
		v, _ := strconv.ParseFloat(f, 64)
		if i != 3 && i != 4 && i < 8 { // neither idle nor waiting for disks
			busy += v
		}
	}
	return busy * tick
}
