// Command bench measures hops on this machine: its own promises, and its speed beside Apache HDFS, driven by the same
// client in the same run. `make bench` runs all of it, `make bench-quick` the main rows of one server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// options are the command line.
type options struct {
	hops   string
	quick  bool
	alone  bool
	rounds int
	phase  time.Duration
	warm   time.Duration
	budget time.Duration
	groups string
	cache  string
	dir    string
	out    string
	logs   bool
	bytes  int64
	files  int
	huge   int
	empty  string
}

// group is a part of the run that can be run by itself, with about how many minutes it takes on two cores.
type group struct {
	name           string
	minutes, quick float64
}

var groups = []group{
	{"promises", 2, 2},
	{"rmfailover", 4, 0},
	{"single", 22, 15},
	{"replicated", 17, 0},
	{"failover", 4, 0},
	{"large", 5, 0},
	{"huge", 12, 0},
	{"erasure", 16, 0},
	{"repair", 5, 0},
	{"tls", 13, 5}, // last: it compares hops with itself
}

func main() {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	var o options
	flag.StringVar(&o.hops, "hops", "bin/hops", "the hops `program`")
	flag.BoolVar(&o.quick, "quick", false, "main rows of one server, 3 rounds; at most 20 minutes")
	flag.BoolVar(&o.alone, "alone", false, "measure hops without Apache HDFS: no ratios, and no JDK is needed")
	flag.IntVar(&o.rounds, "rounds", 0, "measured rounds (default 5, quick 3)")
	flag.DurationVar(&o.phase, "phase", 0, "how long each operation runs in a round (default 2s, quick 3s)")
	flag.DurationVar(&o.warm, "warm", 0, "how long HDFS is loaded before the first round (default 2m30s)")
	flag.DurationVar(&o.budget, "budget", time.Hour, "a group that would end later is left out, and the result says so")
	flag.StringVar(&o.groups, "only", "", "`groups` with commas: "+strings.Join(names, ", ")+" (default all, quick promises and single)")
	flag.StringVar(&o.cache, "cache", "", "`directory` with Hadoop's jars (default $HOPS_COMPAT_CACHE, or integration/hadoop/.cache)")
	flag.StringVar(&o.dir, "dir", "", "`directory` for the servers' data, on a disk (default the system's for temporary files)")
	flag.StringVar(&o.out, "out", "integration/bench/results", "`directory` for the results")
	flag.BoolVar(&o.logs, "keep", false, "keep the servers' logs and data")
	flag.Int64Var(&o.bytes, "bytes", 1<<30, "size of the sequential files")
	flag.IntVar(&o.files, "files", 1_000_000, "files in the group large")
	flag.IntVar(&o.huge, "huge-files", 10_000_000, "files in the group huge")
	flag.StringVar(&o.empty, "empty-server", "", "be the empty server, with the answers in `file`; for the benchmark itself")
	flag.Parse()
	if o.empty != "" {
		if err := serveEmpty(o.empty); err != nil {
			fmt.Fprintln(os.Stderr, "empty server:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once; its children die with it
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if err := run(ctx, o); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted; nothing was written, and nothing is left running")
		}
		fmt.Fprintln(os.Stderr, "bench:", oneLine(err.Error()))
		os.Exit(1)
	}
}

// oneLine puts a message on one line.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// chosen are the groups of this run.
func chosen(o options) ([]group, error) {
	if o.groups == "" {
		if o.quick {
			return slices.DeleteFunc(slices.Clone(groups), func(g group) bool { return g.quick == 0 }), nil
		}
		return groups, nil
	}
	var out []group
	for name := range strings.SplitSeq(o.groups, ",") {
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no group %q", name)
		}
		out = append(out, groups[i])
	}
	return out, nil
}

func run(ctx context.Context, o options) (err error) {
	parts, err := chosen(o)
	if err != nil {
		return err
	}
	setDefault(&o.rounds, 5, 3, o.quick)
	setDefault(&o.phase, 2*time.Second, 3*time.Second, o.quick)
	setDefault(&o.warm, 150*time.Second, 150*time.Second, o.quick)
	if o.hops, err = filepath.Abs(o.hops); err != nil {
		return err
	}
	if _, err := os.Stat(o.hops); err != nil {
		return fmt.Errorf("%s is not there: run `make build` first", o.hops)
	}
	if o.dir == "" {
		o.dir = os.TempDir()
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil { // for sockets
		return err
	}
	if err := checkMachine(o); err != nil {
		return err
	}
	r := &runner{options: o, screen: os.Stdout, live: term.IsTerminal(int(os.Stdout.Fd())), started: time.Now()}
	if !o.alone {
		if r.jars, err = findHadoop(ctx, o.cache, r.say); err != nil {
			return fmt.Errorf("%w; or run with -alone, which measures hops without Apache HDFS", err)
		}
	}
	if r.dir, err = os.MkdirTemp(o.dir, "hops-bench-"); err != nil {
		return err
	}
	defer func() {
		if o.logs {
			fmt.Fprintln(os.Stderr, "logs and data are in", r.dir)
		} else {
			err = errors.Join(err, os.RemoveAll(r.dir))
		}
	}()
	r.report = &report{
		Quick: o.quick, Alone: o.alone, Started: r.started.UTC(), Machine: describeMachine(r.dir), Rounds: o.rounds, Phase: o.phase.Seconds(),
		Version: r.version(ctx), Took: map[string]float64{},
	}
	for _, g := range parts {
		r.estimate += r.minutes(g)
	}
	r.say("%d groups, about %.0f minutes; others use %.2f cores of this machine now", len(parts), r.estimate, r.report.Machine.Busy)
	for _, g := range parts {
		if err := r.group(ctx, g, slices.ContainsFunc(parts, func(g group) bool { return g.name == "failover" })); err != nil {
			return err
		}
	}
	r.report.Seconds = time.Since(r.started).Seconds()
	r.report.LoadAfter = loadAverage()
	return r.write()
}

func setDefault[T comparable](field *T, full, quick T, isQuick bool) {
	var zero T
	if *field != zero {
		return
	}
	*field = full
	if isQuick {
		*field = quick
	}
}

// group measures one group. What does not work there is noted in the report; the error is for what ends the run.
func (r *runner) group(ctx context.Context, g group, failover bool) (err error) {
	before := time.Now()
	if passed := before.Sub(r.started); passed+time.Duration(r.minutes(g)*float64(time.Minute)) > r.budget {
		r.report.Cut = append(r.report.Cut, fmt.Sprintf("%s, which takes about %.0f minutes: %.0f of %.0f had passed; `-only %s` runs it alone", g.name, r.minutes(g), passed.Minutes(), r.budget.Minutes(), g.name))
		r.say("%s is left out: it takes about %.0f minutes", g.name, r.minutes(g))
		return nil
	}
	r.label = g.name
	outside := ctx
	ctx, stop := r.guard(ctx)
	defer stop(nil)
	switch g.name {
	case "promises":
		err = r.promises(ctx)
	case "rmfailover":
		err = r.managers(ctx)
	case "single":
		var then func(context.Context, []side) error
		if r.jars != "" && !r.quick {
			then = r.javaSmall
		}
		err = r.compare(ctx, single, then)
	case "replicated":
		var then func(context.Context, []side) error
		if failover {
			then = r.failover
		}
		err = r.compare(ctx, replicated, then)
	case "tls":
		if err = r.compare(ctx, tlsSingle, nil); err == nil && !r.quick {
			err = r.compare(ctx, tlsReplicated, nil)
		}
	case "failover":
		if len(r.report.Failovers) > 0 {
			return nil // done with the servers of the group before
		}
		err = r.failoverAlone(ctx)
	case "erasure":
		err = r.erasure(ctx)
	case "repair":
		err = r.repair(ctx)
	case "large":
		err = r.large(ctx)
	case "huge":
		err = r.hugeNamespace(ctx)
	}
	if outside.Err() != nil {
		return outside.Err()
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		text := oneLine(err.Error())
		r.say("%s FAILED: %s", g.name, text)
		r.report.Missing = append(r.report.Missing, g.name+": "+text)
		return nil
	}
	took := time.Since(before)
	r.report.Took[g.name] += took.Minutes()
	r.say("%s done in %.1f minutes (%.0f were expected)", g.name, took.Minutes(), r.minutes(g))
	return nil
}

func (r *runner) minutes(g group) float64 {
	if r.quick {
		return g.quick
	}
	return g.minutes
}

// runner is one run of the program.
type runner struct {
	options
	screen   io.Writer
	live     bool
	started  time.Time
	estimate float64       // minutes that the run takes
	label    string        // what is being done, for progress
	waited   time.Duration // for calm
	jars     string        // directory with Hadoop's jars, empty: it is not measured
	report   *report

	mu      sync.Mutex
	running []side // of the group, guarded by mu
}

// watch has the servers of a side looked after until the group's end.
func (r *runner) watch(s side) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, s)
}

// guard ends a group when a server ends by itself or the disk is full, in which clients would wait for long.
func (r *runner) guard(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, stop := context.WithCancelCause(ctx)
	r.mu.Lock()
	r.running = nil
	r.mu.Unlock()
	go func() {
		for tick := time.NewTicker(500 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			err := r.space(1)
			r.mu.Lock()
			for _, s := range r.running {
				err = errors.Join(err, s.died())
			}
			r.mu.Unlock()
			if err != nil {
				stop(err)
			}
		}
	}()
	return ctx, stop
}

// say prints a line of progress with the time since the start.
func (r *runner) say(format string, args ...any) {
	fmt.Fprintf(r.screen, "[%4.1f of %.0f min] %s\n", time.Since(r.started).Minutes(), r.estimate, fmt.Sprintf(format, args...))
}

// checkMachine refuses a directory in memory, and a machine without space for the run.
func checkMachine(o options) error {
	var s unix.Statfs_t
	if err := unix.Statfs(o.dir, &s); err != nil {
		return fmt.Errorf("-dir: %s: %w", o.dir, err)
	}
	if s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC {
		return fmt.Errorf("%s is in memory, where an fsync costs nothing: name a directory on a disk with -dir", o.dir)
	}
	disk, memory := 40.0, 18.0
	if o.quick || o.groups != "" {
		disk, memory = 16, 10
	}
	if free := float64(s.Bavail) * float64(s.Bsize) / (1 << 30); free < disk {
		return fmt.Errorf("%s has %.0f GiB free, the run needs %.0f: make space, or name another disk with -dir", o.dir, free, disk)
	}
	if free := memoryAvailable(); free < memory && !o.alone {
		return fmt.Errorf("%.0f GiB of memory are free, the run needs %.0f: end other programs, or run some groups with -only", free, memory)
	}
	return nil
}

// space says when less than so many GiB of the disk are free, before servers do in their ways.
func (r *runner) space(need float64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(r.dir, &s); err != nil {
		return err
	}
	if free := float64(s.Bavail) * float64(s.Bsize) / (1 << 30); free < need {
		return fmt.Errorf("the disk of %s has %.1f GiB left, and %.0f are needed: make space, or name another disk with -dir, and run again", r.options.dir, free, need)
	}
	return nil
}
