// Command cluster is `make cluster`: five machines, made of network namespaces, become a cluster by the commands that an operator types, from the
// deb that `make packages` built; a user searches on it, and then what goes wrong in years goes wrong in minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/gohops/hops/integration/machines"
)

func main() {
	machines.Main()
	var o options
	flag.StringVar(&o.deb, "deb", "", "the `package` to install (default the one in bin/packages)")
	flag.StringVar(&o.hops, "hops", "", "a `program` in place of the package's, to try what is being written")
	flag.StringVar(&o.examples, "examples", "examples", "`directory` of the search that the user runs")
	flag.StringVar(&o.only, "only", "", "`expression` that the names of steps have to match; those that they need are taken too")
	flag.StringVar(&o.logs, "logs", "", "`directory` into which the servers' logs are copied at the end")
	flag.BoolVar(&o.hand, "hand", false, "lay the cluster by hand, without hops cluster and hops join")
	flag.BoolVar(&o.can, "can", false, "make one machine, and say why if this one cannot; nothing else")
	flag.BoolVar(&o.list, "list", false, "list the steps")
	flag.BoolVar(&o.verbose, "v", false, "show every command with what it said")
	flag.Parse()
	os.Exit(run(o, os.Stdout, os.Stderr))
}

// options are the command line.
type options struct {
	deb, hops, examples, only, logs string
	can, hand, list, verbose        bool
}

// Exit statuses.
const (
	exitFailed = 1 // a step failed, or is not built
	exitCannot = 2 // nothing was tried
)

// limit is how long everything may take.
const limit = time.Hour

func run(o options, stdout, stderr io.Writer) int {
	cannot := func(err error) int {
		fmt.Fprintln(stderr, "cluster:", err)
		return exitCannot
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return cannot(fmt.Errorf("-only: %w", err))
	}
	steps := story()
	if o.hand {
		steps = byHand()
	}
	picked := pick(steps, only)
	if len(picked) == 0 {
		return cannot(fmt.Errorf("-only: no step matches %q (-list names them)", o.only))
	}
	if o.list {
		for _, s := range picked {
			fmt.Fprintf(stdout, "%-12s %s\n", s.name, s.what)
		}
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !machines.Inside() {
		if os.Geteuid() != 0 {
			return cannot(machines.ErrNotRoot)
		}
		if _, err := packageOf(o.deb); err != nil && !o.can {
			return cannot(err)
		}
		status, err := machines.Enter(ctx)
		if err != nil {
			return cannot(err)
		}
		return status
	}
	if o.can {
		if err := try(ctx); err != nil {
			return cannot(err)
		}
		return 0
	}
	deb, err := packageOf(o.deb)
	if err != nil {
		return cannot(err)
	}
	t, err := newTeller(ctx, deb, o, stdout)
	if err != nil {
		return cannot(err)
	}
	well := t.tell(ctx, picked)
	if o.logs != "" {
		if err := t.keepLogs(ctx, o.logs); err != nil {
			return cannot(err)
		}
	}
	if !well {
		return exitFailed
	}
	return 0
}

// try makes a lab of one machine.
func try(ctx context.Context) error {
	lab, err := machines.New(ctx)
	if err != nil {
		return err
	}
	if err := lab.Add(ctx, "m1"); err != nil {
		return err
	}
	_, err = lab.Machines()[0].Run(ctx, "root", "true")
	return err
}

// packageOf is the package that is installed.
func packageOf(deb string) (string, error) {
	if deb == "" {
		found, err := filepath.Glob("bin/packages/hops_*.deb")
		if err != nil || len(found) != 1 {
			return "", errors.New("there is no deb in bin/packages: run make packages, or name one with -deb")
		}
		deb = found[0]
	}
	if _, err := os.Stat(deb); err != nil {
		return "", err
	}
	return deb, nil
}
