// Command fuzz runs all fuzz targets of the repository, one after the other, and says what became of each: `make fuzz
// SECONDS=60 TARGETS='namespace|dtp'`. It goes on after a target that fails. An input that brings a target down stays in the
// testdata of its package, where `go test` tries it from then on; inputs that only reach new code stay in Go's cache, and
// the next run begins with them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

func main() {
	seconds := flag.Int("seconds", 60, "how long each target is run")
	workers := flag.Int("workers", 2, "how many processes run one target")
	targets := flag.String("targets", "", "regular expression: run only targets that it matches, as in metadata/namespace.FuzzCommand")
	list := flag.Bool("list", false, "name the targets and run none")
	flag.Parse()
	chosen, err := regexp.Compile(*targets)
	if err != nil || *seconds < 1 || *workers < 1 || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "fuzz: -seconds and -workers are at least 1, -targets is a regular expression (%v), and there are no other arguments\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{duration: time.Duration(*seconds) * time.Second, workers: *workers}
	if err := r.run(ctx, chosen, *list); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// runner runs targets.
type runner struct {
	duration time.Duration
	workers  int
	cache    string // Go's folder for the inputs that it has found
	dir      string // for the programs
}

func (r *runner) run(ctx context.Context, chosen *regexp.Regexp, list bool) error {
	packages, err := findTargets(ctx, chosen)
	if err != nil {
		return err
	}
	if list {
		for _, p := range packages {
			for _, name := range p.targets {
				fmt.Println(p.short() + "." + name)
			}
		}
		return nil
	}
	if len(packages) == 0 {
		return fmt.Errorf("no target matches %q (-list names them)", chosen)
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env GOCACHE: %w", err)
	}
	r.cache = filepath.Join(strings.TrimSpace(string(out)), "fuzz")
	if r.dir, err = os.MkdirTemp("", "hops-fuzz-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	var all []outcome
	for _, p := range packages {
		all = append(all, r.runPackage(ctx, p)...)
	}
	return report(ctx, all)
}

// runPackage builds the program of a package once and runs its targets.
func (r *runner) runPackage(ctx context.Context, p pkg) []outcome {
	program := filepath.Join(r.dir, strings.ReplaceAll(p.short(), "/", "-")+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-fuzz", ".", "-o", program, p.path)
	var all []outcome
	if out, err := build.CombinedOutput(); err != nil {
		for _, name := range p.targets {
			all = append(all, outcome{target: p.short() + "." + name, verdict: unbuilt, detail: strings.TrimSpace(string(out))})
		}
		fmt.Printf("%s: cannot be built: %v\n%s\n", p.short(), err, out)
		return all
	}
	defer os.Remove(program)
	for _, name := range p.targets {
		if ctx.Err() != nil {
			break
		}
		o := r.runTarget(ctx, p, name, program)
		fmt.Println(o)
		all = append(all, o)
	}
	return all
}

// grace is what a target may take beyond its time: to try the inputs that it has, and to make a failing one small.
const grace = 2 * time.Minute

func (r *runner) runTarget(ctx context.Context, p pkg, name, program string) outcome {
	ctx, cancel := context.WithTimeout(ctx, r.duration+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.fuzz", "^"+name+"$",
		"-test.fuzztime", r.duration.String(),
		// Coverage differs from run to run where a map is ranged over; making such inputs small would take all the time.
		"-test.fuzzminimizetime", "50x",
		"-test.parallel", fmt.Sprint(r.workers), "-test.fuzzcachedir", filepath.Join(r.cache, p.path))
	cmd.Dir = p.dir
	// The program has children, which do the work: one that hangs would stay behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	o := parseRun(string(out), err)
	o.target = p.short() + "." + name
	if o.input != "" {
		o.input = filepath.Join(p.short(), o.input)
	}
	return o
}

// report prints the table. It fails when a target did, or when none of them was run to its end.
func report(ctx context.Context, all []outcome) error {
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.SetStyle(table.StyleLight)
	t.Style().Options.DrawBorder = false
	t.Style().Format.Header = text.FormatDefault
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, Align: text.AlignRight}, {Number: 3, Align: text.AlignRight}})
	t.AppendHeader(table.Row{"target", "executions", "new inputs", "verdict"})
	failed := 0
	for _, o := range all {
		verdict := o.verdict.String()
		if o.input != "" {
			verdict += ": " + o.input
		}
		if o.verdict != passed {
			failed++
		}
		t.AppendRow(table.Row{o.target, o.executions, o.fresh, verdict})
	}
	fmt.Println()
	t.Render()
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case failed > 0:
		return fmt.Errorf("%d of %d targets failed", failed, len(all))
	}
	return nil
}
