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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// options are the command line.
type options struct {
	hops    string
	quick   bool
	rounds  int
	phase   time.Duration
	warm    time.Duration
	groups  string
	cache   string
	dir     string
	out     string
	logs    bool
	million int
}

func main() {
	var o options
	flag.StringVar(&o.hops, "hops", "bin/hops", "the hops `program`")
	flag.BoolVar(&o.quick, "quick", false, "main rows of one server, 3 rounds; at most 15 minutes")
	flag.IntVar(&o.rounds, "rounds", 0, "measured rounds (default 5, quick 3)")
	flag.DurationVar(&o.phase, "phase", 3*time.Second, "how long each operation runs in a round")
	flag.DurationVar(&o.warm, "warm", 0, "how long HDFS is loaded before the first round (default 4m, quick 2m30s)")
	flag.StringVar(&o.groups, "only", "", "`groups` with commas: promises, single, replicated, failover, large (default all, quick promises and single)")
	flag.StringVar(&o.cache, "cache", "", "`directory` with Hadoop's jars (default $HOPS_COMPAT_CACHE, or integration/hadoop/.cache)")
	flag.StringVar(&o.dir, "dir", "", "`directory` for the servers' data, on a disk (default the system's for temporary files)")
	flag.StringVar(&o.out, "out", "integration/bench/results", "`directory` for the results")
	flag.BoolVar(&o.logs, "keep", false, "keep the servers' logs and data")
	flag.IntVar(&o.million, "files", 1_000_000, "files in the rows about a large namespace")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if err := run(ctx, o); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted; nothing was written, and nothing is left running")
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	groups := []string{"promises", "single", "replicated", "failover", "large"}
	rounds, warm := 5, 4*time.Minute
	if o.quick {
		groups, rounds, warm = groups[:2], 3, 150*time.Second
	}
	if o.groups != "" {
		chosen := strings.Split(o.groups, ",")
		for _, g := range chosen {
			if !slices.Contains([]string{"promises", "single", "replicated", "failover", "large"}, g) {
				return fmt.Errorf("-only: there is no group %q", g)
			}
		}
		groups = chosen
	}
	if o.rounds == 0 {
		o.rounds = rounds
	}
	if o.warm == 0 {
		o.warm = warm
	}
	if o.hops, err = filepath.Abs(o.hops); err != nil {
		return err
	}
	if _, err := os.Stat(o.hops); err != nil {
		return fmt.Errorf("%s is not there: run `make build` first", o.hops)
	}
	if o.dir == "" {
		o.dir = os.TempDir()
	}
	if err := checkDisk(o.dir, o.quick); err != nil {
		return err
	}
	if o.dir, err = os.MkdirTemp(o.dir, "hops-bench-"); err != nil {
		return err
	}
	defer func() {
		if o.logs {
			fmt.Fprintln(os.Stderr, "logs and data are in", o.dir)
		} else {
			os.RemoveAll(o.dir)
		}
	}()
	r := &runner{options: o, screen: os.Stdout, live: term.IsTerminal(int(os.Stdout.Fd())), started: time.Now()}
	r.report = &report{Quick: o.quick, Started: r.started.UTC(), Machine: describeMachine(o.dir), Rounds: o.rounds, Phase: o.phase.Seconds(), Version: r.version(ctx), Groups: groups}
	jars, missing := findHadoop(ctx, o.cache, r.say)
	if missing != nil {
		r.say("Apache HDFS is not measured: %v", missing)
		r.report.PeerMissing = missing.Error()
	}
	r.jars = jars
	for _, g := range groups {
		before := time.Now()
		switch g {
		case "promises":
			err = r.promises(ctx)
		case "single":
			err = r.compare(ctx, single)
		case "replicated":
			err = r.compare(ctx, replicated)
		case "failover":
			err = r.failover(ctx)
		case "large":
			err = r.large(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", g, err)
		}
		r.say("%s done in %v", g, time.Since(before).Round(time.Second))
	}
	r.report.Seconds = time.Since(r.started).Seconds()
	return r.write()
}

// runner is one run of the program.
type runner struct {
	options
	screen  io.Writer
	live    bool
	started time.Time
	jars    string // directory with Hadoop's jars, empty: none
	report  *report
}

// say prints a line of progress with the time since the start.
func (r *runner) say(format string, args ...any) {
	fmt.Fprintf(r.screen, "[%6.1fs] %s\n", time.Since(r.started).Seconds(), fmt.Sprintf(format, args...))
}

// checkDisk refuses a directory in memory, and one without space for the run.
func checkDisk(dir string, quick bool) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC {
		return fmt.Errorf("%s is in memory, where an fsync costs nothing: name a directory on a disk with -dir", dir)
	}
	need := int64(40 << 30)
	if quick {
		need = 16 << 30
	}
	if free := int64(s.Bavail) * s.Bsize; free < need {
		return fmt.Errorf("%s has %d GiB free, the run needs %d: make space, or name another disk with -dir", dir, free>>30, need>>30)
	}
	return nil
}
