// Command train runs the examples with real frameworks (PyTorch, TensorFlow, JAX, Optuna, MLflow, Horovod where it is built) on a real cluster of hops processes,
// and kills processes on the way. It installs what it needs from PyPI into a cache of its own, and ends with a table.
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
		fmt.Fprintln(os.Stderr, "train: interrupted; there is no table of half a run")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "train:", err)
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
	flags := flag.NewFlagSet("train", flag.ContinueOnError)
	binary := flags.String("hops", "bin/hops", "the program under test")
	only := flags.String("cases", "", "run only the cases whose name this regular expression matches")
	list := flags.Bool("list", false, "print the names of the cases")
	horovod := flags.Bool("horovod", false, "build Horovod first if that was not done before (six minutes of a core); its cases run whenever it is there")
	keep := flags.Bool("keep", false, "keep the folder with logs and data")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	var names []string
	for _, c := range cases {
		names = append(names, c.name)
	}
	if *list {
		fmt.Println(strings.Join(names, "\n"))
		return nil
	}
	if !slices.ContainsFunc(names, chosen.MatchString) {
		return fmt.Errorf("-cases %q matches none of: %s", *only, strings.Join(names, "; "))
	}
	exe, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	if _, err := os.Stat(exe); err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	k, err := install(ctx)
	if err != nil {
		return err
	}
	if *horovod || k.hasHorovod() {
		if err := k.horovod(ctx); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "hops-train-")
	if err != nil {
		return err
	}
	s := &suite{kit: k, dir: dir}
	defer func() {
		if *keep || s.failed() > 0 {
			say("logs and data are in %s", dir)
			return
		}
		os.RemoveAll(dir)
	}()
	if err := s.start(ctx, exe); err != nil {
		return err
	}
	defer s.stop()
	for _, c := range cases {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case !chosen.MatchString(c.name):
		case c.horovod && !k.hasHorovod():
			s.rows = append(s.rows, row{name: c.name, said: "left out: make train TRAIN=-horovod builds Horovod first", skipped: true})
		default:
			s.run(ctx, c)
		}
	}
	return s.report()
}
