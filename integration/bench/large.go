package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// large is what a namespace with many files costs a side.
type large struct {
	Side  string       `json:"side"`
	Files int64        `json:"files"`
	Fill  bench.Result `json:"fill"`
	// Resident is the namenode's memory in bytes when the files are there, Restarted after it was started again.
	Resident  int64 `json:"resident_bytes"`
	Restarted int64 `json:"resident_restarted_bytes"`
	// Restart is from the start of the process to its first answer, Shell a list of the root, in seconds.
	Restart  []float64       `json:"restart_seconds"`
	Shell    []float64       `json:"shell_seconds"`
	Subtrees []bench.Subtree `json:"subtrees"`
}

// filling is how a side gets its files.
type filling struct {
	side  side
	files int
	// within ends the filling; the files that are there then are what the rest is measured with.
	within time.Duration
	// before prepares restarts, of which there are so many.
	before   func() error
	restart  func() (time.Time, error)
	restarts int
	// shell lists the root.
	shell *exec.Cmd
}

// large fills each side, one after the other, with files, and restarts its namenode; then the directory is renamed and
// deleted.
func (r *runner) large(ctx context.Context) error {
	if err := r.largeOurs(ctx, "large", r.files, 10*time.Minute, 3); err != nil || r.jars == "" {
		return err
	}
	h, err := r.startHadoop(ctx, "large-hdfs", labelHDFS, shape{1, 1}, false)
	if err != nil {
		return fmt.Errorf("Apache HDFS does not run: %w", err)
	}
	f := filling{side: h, files: r.files, within: 10 * time.Minute, restarts: 3}
	f.before = func() error {
		for _, args := range [][]string{{"-safemode", "enter"}, {"-saveNamespace"}, {"-safemode", "leave"}} {
			if err := h.once(ctx, classAdmin, args...); err != nil {
				return err
			}
		}
		return nil
	}
	f.restart = func() (time.Time, error) {
		h.kill("nn1")
		return time.Now(), h.start("nn1")
	}
	f.shell = exec.Command("java", h.args("", classShell, []string{"-ls", "/"})...)
	return errors.Join(r.fillAndRestart(ctx, f), h.stop())
}

// hugeNamespace is the same with ten times as many files, for hops alone: as many of them as the time allows.
func (r *runner) hugeNamespace(ctx context.Context) error {
	return r.largeOurs(ctx, "huge", r.huge, 9*time.Minute, 1)
}

func (r *runner) largeOurs(ctx context.Context, name string, files int, within time.Duration, restarts int) error {
	o, err := r.startOurs(ctx, name+"-hops", shape{1, 1}, nil)
	if err != nil {
		return err
	}
	f := filling{side: o, files: files, within: within, restarts: restarts, before: func() error { return nil }}
	f.restart = func() (time.Time, error) {
		if err := o.cluster.Kill("nn1"); err != nil {
			return time.Time{}, err
		}
		return time.Now(), o.cluster.Start("nn1")
	}
	f.shell = exec.Command(r.hops, "fs", "-fs", "hdfs://"+o.addresses()[0], "-ls", "/")
	return errors.Join(r.fillAndRestart(ctx, f), o.stop())
}

func (r *runner) fillAndRestart(ctx context.Context, f filling) error {
	const namenode = "nn1"
	if err := r.space(8); err != nil {
		return err
	}
	l := large{Side: f.side.label()}
	r.label = "large namespace"
	r.say("large: filling %s with %d files, for %v at most", l.Side, f.files, f.within)
	b, err := r.load(ctx, f.side, func(o *bench.Options) { o.Connections, o.Outstanding = 4, 256 })
	if err != nil {
		return err
	}
	if l.Fill, err = b.Fill(ctx, f.files, f.within); err == nil && l.Fill.Errors > 0 {
		err = fmt.Errorf("%d files could not be created: %s", l.Fill.Errors, l.Fill.FirstError)
	}
	if err != nil {
		return err
	}
	l.Files = l.Fill.Ops
	l.Resident = bench.Resident(f.side.servers()[namenode])
	r.say("large: %s has %d files, filled at %.0f/s; %.2f GB resident", l.Side, l.Files, l.Fill.PerSecond, float64(l.Resident)/1e9)
	if err := f.before(); err != nil {
		return err
	}
	for range f.restarts {
		seconds, err := r.restart(ctx, f, b.Root)
		if err != nil {
			return err
		}
		l.Restart = append(l.Restart, seconds)
	}
	l.Restarted = bench.Resident(f.side.servers()[namenode])
	if err := ready(ctx, f.side, 1, time.Minute, f.side.died); err != nil {
		return err
	}
	for range 5 {
		seconds, err := timed(ctx, f.shell)
		if err != nil {
			return fmt.Errorf("list of /: %w", err)
		}
		l.Shell = append(l.Shell, seconds)
	}
	if l.Subtrees, err = b.Subtrees(ctx, 3); err != nil {
		return err
	}
	r.report.Large = append(r.report.Large, l)
	return end(ctx, b)
}

// restart kills the namenode, and returns how long after its start it answered for the first time.
func (r *runner) restart(ctx context.Context, f filling, name string) (float64, error) {
	at, err := f.restart()
	if err != nil {
		return 0, err
	}
	for {
		c, err := f.side.connect()
		if err != nil {
			return 0, err
		}
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err = c.Stat(attempt, name)
		cancel()
		c.Close()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if died := f.side.died(); died != nil {
			return 0, died
		}
		if time.Since(at) > 5*time.Minute {
			return 0, fmt.Errorf("%s did not answer within 5 minutes of its restart: %w", f.side.label(), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	seconds := time.Since(at).Seconds()
	return seconds, standing(ctx, f.side)
}

// timed runs a program, of which the command is the pattern, to its end.
func timed(ctx context.Context, pattern *exec.Cmd) (float64, error) {
	cmd := exec.CommandContext(ctx, pattern.Path, pattern.Args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	started := time.Now()
	err := processes.Spawn(cmd, syscall.SIGKILL)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, lastLine(out.Bytes()))
	}
	return time.Since(started).Seconds(), nil
}
