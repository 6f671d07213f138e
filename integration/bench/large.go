package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/gohops/hops/cmd/bench"
)

// large is what a namespace with many files costs a side.
type large struct {
	Side  string       `json:"side"`
	Files int          `json:"files"`
	Fill  bench.Result `json:"fill"`
	// Resident is the namenode's memory in bytes when the files are there.
	Resident int64 `json:"resident_bytes"`
	// Restart is from the start of the process to its first answer, Shell a list of the root, in seconds.
	Restart  float64         `json:"restart_seconds"`
	Shell    float64         `json:"shell_seconds"`
	Subtrees []bench.Subtree `json:"subtrees"`
}

// large fills each side, one after the other, with files, and restarts its namenode; then the directory is renamed and
// deleted.
func (r *runner) large(ctx context.Context) error {
	o, err := r.startOurs(ctx, "large-hops", shape{1, 1}, nil)
	if err != nil {
		return err
	}
	err = r.largeOn(ctx, o, "nn1", func() (time.Time, error) {
		if err := o.cluster.Kill("nn1"); err != nil {
			return time.Time{}, err
		}
		return time.Now(), o.cluster.Start("nn1")
	}, func() *exec.Cmd {
		return exec.CommandContext(ctx, r.hops, "fs", "-fs", "hdfs://"+o.addresses()[0], "-ls", "/")
	})
	if err = errors.Join(err, o.stop()); err != nil || r.jars == "" {
		return err
	}
	h, err := r.startHadoop(ctx, "large-hdfs", labelHDFS, shape{1, 1}, false)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.say("large: Apache HDFS does not run: %v", err)
		r.report.PeerMissing = err.Error()
		return nil
	}
	err = r.largeOn(ctx, h, "nn1", func() (time.Time, error) {
		for _, args := range [][]string{{"-safemode", "enter"}, {"-saveNamespace"}, {"-safemode", "leave"}} {
			if err := h.once(ctx, classAdmin, args...); err != nil {
				return time.Time{}, err
			}
		}
		h.kill("nn1")
		return time.Now(), h.start("nn1")
	}, func() *exec.Cmd {
		return exec.CommandContext(ctx, "java", h.args("", classShell, []string{"-ls", "/"})...)
	})
	return errors.Join(err, h.stop())
}

func (r *runner) largeOn(ctx context.Context, s side, namenode string, restart func() (time.Time, error), shell func() *exec.Cmd) error {
	l := large{Side: s.label(), Files: r.million}
	r.say("large: filling %s with %d files", s.label(), r.million)
	b, err := r.load(ctx, s, nil)
	if err != nil {
		return err
	}
	if l.Fill, err = b.Fill(ctx, r.million); err == nil && l.Fill.Errors > 0 {
		err = fmt.Errorf("%d files could not be created: %s", l.Fill.Errors, l.Fill.FirstError)
	}
	if err != nil {
		return err
	}
	l.Resident = b.Resident()[namenode]
	at, err := restart()
	if err != nil {
		return err
	}
	for {
		c, err := client(s)
		if err != nil {
			return err
		}
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err = c.Stat(attempt, b.Root)
		cancel()
		c.Close()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(at) > 3*time.Minute {
			return fmt.Errorf("%s did not answer within 3 minutes of its restart: %w", s.label(), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.Restart = time.Since(at).Seconds()
	if err := standing(ctx, s); err != nil {
		return err
	}
	if err := ready(ctx, s, 1, time.Minute, nil); err != nil {
		return err
	}
	var walls []float64
	for range 5 {
		started := time.Now()
		if out, err := shell().CombinedOutput(); err != nil {
			return fmt.Errorf("list of /: %w: %s", err, lastLine(out))
		}
		walls = append(walls, time.Since(started).Seconds())
	}
	l.Shell = spreadOf(walls).median
	if l.Subtrees, err = b.Subtrees(ctx); err != nil {
		return err
	}
	r.report.Large = append(r.report.Large, l)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return b.Close(closing)
}
