// Command spark runs unmodified PySpark on a real cluster of hops processes, with its filesystem as default filesystem: in client
// and cluster mode, with data and event logs, dynamic allocation, GPU executors, and with an executor and a master killed on the
// way. It installs PySpark from PyPI into a cache of its own, and ends with a table. See DESIGN.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// versions of PySpark that are run.
const versions = "4.0.1,3.5.6"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errFailures):
		os.Exit(1)
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case interrupted:
		fmt.Fprintln(os.Stderr, "spark: interrupted; there is no table of half a run")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "spark:", err)
		os.Exit(2)
	}
}

// errFailures: the run is whole, and some case has failed.
var errFailures = errors.New("failures")

var started = time.Now()

// say tells what is going on, and when.
func say(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("spark", flag.ContinueOnError)
	binary := flags.String("hops", "bin/hops", "the program under test")
	wanted := flags.String("versions", versions, "versions of PySpark, separated by commas")
	only := flags.String("cases", "", "run only the cases whose name this regular expression matches")
	keep := flags.Bool("keep", false, "keep the folder with logs and data")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(cases, func(t test) bool { return chosen.MatchString(t.name) }) {
		var names []string
		for _, t := range cases {
			names = append(names, t.name)
		}
		return fmt.Errorf("-cases %q matches none of: %s", *only, strings.Join(names, "; "))
	}
	exe, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	if _, err := os.Stat(exe); err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	java, err := findJava()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hops-spark-")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	defer func() {
		if *keep {
			say("logs and data are in %s", dir)
			return
		}
		os.RemoveAll(dir)
	}()
	var kits []*kit
	for version := range strings.SplitSeq(*wanted, ",") {
		k, err := install(ctx, strings.TrimSpace(version), java)
		if err != nil {
			return err
		}
		kits = append(kits, k)
	}
	say("starting a cluster")
	c, err := startCluster(ctx, exe, dir)
	if err != nil {
		return err
	}
	defer c.stop()
	s := &suite{cluster: c, dir: dir}
	for _, k := range kits {
		for _, t := range cases {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if chosen.MatchString(t.name) {
				s.run(ctx, k, t)
			}
		}
	}
	return s.report()
}
