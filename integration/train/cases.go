package main

import (
	"context"
	"fmt"
	"regexp"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
)

// example is a program of examples/ that is run to its end.
type example struct {
	name, script string
	args         []string
	prepare      [][]string // commands of hops before it
	prints       []string   // regular expressions of what it prints
	// disturb does harm while it runs. log is what it prints; ended is closed at its end.
	disturb func(ctx context.Context, s *suite, log string, ended <-chan struct{}) error
	// check looks at what is left, given what it printed.
	check func(ctx context.Context, s *suite, output string) error
}

var cases = []example{
	{
		name: "digits, plain Python", script: "digits.yaml",
		prepare: [][]string{{"fs", "-mkdir", "-p", "/data"}, {"fs", "-put", "-f", "examples/data/digits.csv.gz", "/data/"}},
		prints:  []string{`FINISHED`},
	},
	{
		name: "PyTorch, ASHA; controller and executor killed", script: "pytorch_search.py",
		prints: []string{`RESULT 18 trials`}, disturb: killed("controller", "hops.executor"), check: deterministic,
	},
	{name: "Keras, random search, median rule", script: "keras_search.py", prints: []string{`RESULT 8 trials`}},
}

// killed ends processes of an experiment by SIGKILL, one of each command after the other, once trials run.
func killed(commands ...string) func(context.Context, *suite, string, <-chan struct{}) error {
	return func(ctx context.Context, s *suite, log string, ended <-chan struct{}) error {
		for _, command := range commands {
			// What the client prints tells of progress; half a second later somebody is in the middle of something.
			if err := when(log, `application_\d+_\d+`, ended); err != nil {
				return err
			}
			pids := []int{}
			for len(pids) == 0 {
				select {
				case <-ended:
					return fmt.Errorf("no process of %q was found before the end", command)
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(2 * time.Second):
				}
				pids = processes.Find(s.dir+"/", command)
			}
			if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
				return err
			}
			say("  killed %s, process %d", command, pids[0])
		}
		return nil
	}
}

var experimentID = regexp.MustCompile(`application_\d+_\d+`)

// deterministic reads the journal of the experiment back: each suggestion in it follows from the seed and what was before.
func deterministic(ctx context.Context, s *suite, output string) error {
	id := experimentID.FindString(output)
	if id == "" {
		return fmt.Errorf("no experiment was printed")
	}
	_, err := s.hops(ctx, "experiment", "replay", id)
	return err
}
