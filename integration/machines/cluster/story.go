package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gohops/hops/integration/machines"
)

// step is one thing that an operator or a user does, or that happens to them.
type step struct {
	name, what string
	// needs are the steps that have to have gone well.
	needs []string
	// commands are the words of commands that have to be there; a step without one of them is not built, and the story has failed.
	commands []string
	// run does it and says what was seen. It is nil for what no command exists for.
	run func(ctx context.Context, t *teller) (seen string, err error)
}

// The ends of a step.
const (
	ok       = "ok"
	failed   = "FAILED"
	notBuilt = "not built"
	notTried = "not tried"
)

// result is how a step ended.
type result struct {
	step
	end, seen string
	took      time.Duration
}

// teller has the machines and what the story has come to.
type teller struct {
	lab      *machines.Lab
	out      io.Writer
	verbose  bool
	examples string
	replaced bool // the program is not the package's
	results  []result
	// how commands of users find the cluster, if not by a login
	shellConf, jobConf []string
	pasted             string // the line by which machines join
}

// names of the machines; the last one is not of the cluster.
var names = []string{"m1", "m2", "m3", "m4", "m5", "alone"}

// user is who is not root, on all machines.
const user = "ada"

func newTeller(ctx context.Context, deb string, o options, out io.Writer) (*teller, error) {
	began := time.Now()
	prepare := []func(string) error{machines.Deb(ctx, deb), machines.User(ctx, user, 5001), machines.User(ctx, "bob", 5002)}
	if o.hops != "" {
		prepare = append(prepare, machines.File(o.hops, "/usr/bin/hops", 0o755))
	}
	lab, err := machines.New(ctx, prepare...)
	if err != nil {
		return nil, err
	}
	if err := lab.Add(ctx, names...); err != nil {
		return nil, err
	}
	for _, m := range lab.Machines() {
		if err := m.Write(serveCommand, serveScript, 0o755); err != nil {
			return nil, err
		}
	}
	t := &teller{lab: lab, out: out, verbose: o.verbose, replaced: o.hops != "", examples: o.examples}
	t.say("%d machines with %s in %.1f s", len(names), deb, time.Since(began).Seconds())
	return t, nil
}

func (t *teller) say(format string, args ...any) {
	fmt.Fprintf(t.out, "[%s] %s\n", time.Now().UTC().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// m is a machine by name.
func (t *teller) m(name string) *machines.Machine {
	return t.lab.Machines()[slices.Index(names, name)]
}

// do runs a command on a machine, as the user types it.
func (t *teller) do(ctx context.Context, machine, user string, words ...string) (string, error) {
	began := time.Now()
	out, err := t.m(machine).Run(ctx, user, words...)
	if t.verbose {
		t.say("%s@%s$ %s  (%.2f s, %v)\n%s", user, machine, strings.Join(words, " "), time.Since(began).Seconds(), err, strings.TrimRight(out, "\n"))
	}
	return out, err
}

// built reports whether the program has a command.
func (t *teller) built(ctx context.Context, command string) bool {
	_, err := t.do(ctx, "alone", "root", append(append([]string{"hops"}, strings.Fields(command)...), "--help")...)
	return err == nil
}

// await tries until it goes well or the time is over.
func await(ctx context.Context, limit time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// pick takes the steps whose names match, with those that they need.
func pick(all []step, only *regexp.Regexp) (picked []step) {
	wanted := map[string]bool{}
	for _, s := range slices.Backward(all) {
		if only.MatchString(s.name) || wanted[s.name] {
			wanted[s.name] = true
			for _, n := range s.needs {
				wanted[n] = true
			}
		}
	}
	for _, s := range all {
		if wanted[s.name] {
			picked = append(picked, s)
		}
	}
	return picked
}

// tell goes through the steps, all of them whatever happens, shows a table and reports whether all went well.
func (t *teller) tell(ctx context.Context, steps []step) bool {
	for _, s := range steps {
		r := t.try(ctx, s)
		t.results = append(t.results, r)
		t.say("%-10s %s: %s", r.end, s.name, r.seen)
	}
	fmt.Fprintln(t.out, render(t.results))
	return len(steps) > 0 && !slices.ContainsFunc(t.results, func(r result) bool { return r.end != ok })
}

// keepLogs copies the logs of the servers that ran last to dir, a file for each.
func (t *teller) keepLogs(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		found, _ := t.m(name).Run(ctx, "root", "find", "/run", "/var/lib/hops/logs", "-maxdepth", "1", "-name", "*.log") // one of them may not be there
		for _, file := range strings.Fields(found) {
			if text, err := t.m(name).Run(ctx, "root", "cat", file); err == nil {
				if err := os.WriteFile(filepath.Join(dir, name+strings.ReplaceAll(file, "/", "-")), []byte(text), 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (t *teller) try(ctx context.Context, s step) (r result) {
	r = result{step: s}
	for _, c := range s.commands {
		if !t.built(ctx, c) {
			r.end, r.seen = notBuilt, "there is no hops "+c
			return r
		}
	}
	if s.run == nil {
		r.end, r.seen = notBuilt, "no step tries it"
		return r
	}
	for _, n := range s.needs {
		if i := slices.IndexFunc(t.results, func(r result) bool { return r.name == n }); i < 0 || t.results[i].end != ok {
			r.end, r.seen = notTried, "needs "+n
			return r
		}
	}
	began := time.Now()
	seen, err := s.run(ctx, t)
	r.end, r.seen, r.took = ok, seen, time.Since(began)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(errors.New("interrupted, or longer than everything may take"), err)
		}
		r.end, r.seen = failed, err.Error()
	}
	return r
}

func render(results []result) string {
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"step", "what", "seen", "time", "end"})
	w.SetColumnConfigs([]table.ColumnConfig{{Name: "what", WidthMax: 46}, {Name: "seen", WidthMax: 80}})
	counts := map[string]int{}
	for _, r := range results {
		took := ""
		if r.took > 0 {
			took = fmt.Sprintf("%.1f s", r.took.Seconds())
		}
		w.AppendRow(table.Row{r.name, r.what, strings.TrimSpace(r.seen), took, r.end})
		counts[r.end]++
	}
	return fmt.Sprintf("%s\n%d ok, %d failed, %d not tried, %d not built", w.Render(), counts[ok], counts[failed], counts[notTried], counts[notBuilt])
}
