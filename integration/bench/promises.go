package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// keep notes a promise, whose goal bounds the median: at least, or at most.
func (r *runner) keep(what, unit string, values []float64, goal float64, least bool, note string) {
	s := spreadOf(values)
	p := promise{What: what, Unit: unit, Measured: s.median, Low: s.low, High: s.high, N: len(values), Note: note}
	if least {
		p.Goal, p.Kept = "≥ "+number(goal)+" "+unit, s.median >= goal
	} else {
		p.Goal, p.Kept = "≤ "+number(goal)+" "+unit, s.median <= goal
	}
	r.report.Promises = append(r.report.Promises, p)
	r.say("%s: %s %s (goal %s)", what, s, unit, p.Goal)
}

// promises measures what hops promises of itself, without a peer.
func (r *runner) promises(ctx context.Context) error {
	for _, part := range []func(context.Context) error{r.dev, r.trials, r.threeNamenodes} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// devProcess is a running `hops dev`.
type devProcess struct {
	cmd   *exec.Cmd
	ready float64 // seconds until it said so
	uri   string
	done  chan struct{}
}

func (r *runner) startDev(ctx context.Context, data string, args ...string) (*devProcess, error) {
	d := &devProcess{done: make(chan struct{})}
	d.cmd = exec.Command(r.hops, append([]string{"dev", "--data", data, "--ports", "random", "--gpus", "none"}, args...)...)
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var complaint bytes.Buffer
	d.cmd.Stderr = &complaint
	started := time.Now()
	if err := processes.Spawn(d.cmd, syscall.SIGTERM); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	said := make(chan string, 1)
	go func() {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "ready in ") {
				said <- lines.Text()
				break
			}
		}
		close(said)
		_, _ = io.Copy(io.Discard, out)
		_ = d.cmd.Wait()
		close(d.done)
	}()
	select {
	case line, ok := <-said:
		if !ok {
			<-d.done
			return nil, fmt.Errorf("hops dev ended: %s", lastLine(complaint.Bytes()))
		}
		d.ready = time.Since(started).Seconds()
		for _, word := range strings.Fields(line) {
			if uri, ok := strings.CutPrefix(word, "fs="); ok {
				d.uri = uri
			}
		}
		return d, nil
	case <-time.After(time.Minute):
		d.stop()
		return nil, errors.New("hops dev was not ready within a minute")
	case <-ctx.Done():
		d.stop()
		return nil, ctx.Err()
	}
}

func (d *devProcess) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(15 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// dev measures the cluster in one process: start, shell, and one large file.
func (r *runner) dev(ctx context.Context) error {
	var empty, used []float64
	for i := range 5 {
		data := filepath.Join(r.dir, fmt.Sprintf("dev%d", i))
		for _, starts := range []*[]float64{&empty, &used} {
			d, err := r.startDev(ctx, data)
			if err != nil {
				return err
			}
			*starts = append(*starts, d.ready)
			if starts == &empty { // something to come back to
				if out, err := exec.CommandContext(ctx, r.hops, "fs", "-fs", d.uri, "-touchz", "/tmp/was-here").CombinedOutput(); err != nil {
					d.stop()
					return fmt.Errorf("touchz: %w: %s", err, lastLine(out))
				}
			}
			d.stop()
		}
		os.RemoveAll(data)
	}
	r.keep("`hops dev` ready, empty directory", "s", empty, 3, false, "")
	r.keep("`hops dev` ready, used directory", "s", used, 3, false, "")
	last, err := r.startDev(ctx, filepath.Join(r.dir, "dev"), "-D", "dfs.replication=1")
	if err != nil {
		return err
	}
	defer last.stop()
	var list []float64
	for range 20 {
		started := time.Now()
		if out, err := exec.CommandContext(ctx, r.hops, "fs", "-fs", last.uri, "-ls", "/").CombinedOutput(); err != nil {
			return fmt.Errorf("ls: %w: %s", err, lastLine(out))
		}
		list = append(list, float64(time.Since(started))/1e6)
	}
	r.keep("`hops fs -ls /`", "ms", list, 30, false, "")
	return r.oneFile(ctx, last.uri)
}

// oneFile puts and gets a file of 1 GiB beside what the disk does without a filesystem of ours.
func (r *runner) oneFile(ctx context.Context, uri string) error {
	const size = 1 << 30
	local, copied := filepath.Join(r.dir, "file"), filepath.Join(r.dir, "copy")
	if err := fill(local, size); err != nil {
		return err
	}
	defer os.Remove(local)
	rate := func(cmd *exec.Cmd) (float64, error) {
		started := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, lastLine(out))
		}
		return size / 1e6 / time.Since(started).Seconds(), nil
	}
	var dd, put, share, get, cat []float64
	for range 3 {
		os.Remove(copied)
		plain, err := rate(exec.CommandContext(ctx, "dd", "if="+local, "of="+copied, "bs=1M", "conv=fsync"))
		os.Remove(copied)
		if err != nil {
			return err
		}
		stored, err := rate(exec.CommandContext(ctx, r.hops, "fs", "-fs", uri, "-D", "dfs.replication=1", "-put", "-f", local, "/tmp/large"))
		if err != nil {
			return err
		}
		fetched, err := rate(exec.CommandContext(ctx, r.hops, "fs", "-fs", uri, "-get", "/tmp/large", copied))
		if err != nil {
			return err
		}
		read := exec.CommandContext(ctx, r.hops, "fs", "-fs", uri, "-cat", "/tmp/large")
		var w discard
		read.Stdout = &w
		started := time.Now()
		if err := read.Run(); err != nil {
			return err
		}
		if w.n != size {
			return fmt.Errorf("cat gave %d bytes of %d", w.n, size)
		}
		dd, put, share = append(dd, plain), append(put, stored), append(share, stored/plain)
		get, cat = append(get, fetched), append(cat, size/1e6/time.Since(started).Seconds())
	}
	os.Remove(copied)
	r.keep("1 GiB `hops fs -put`, replication 1, of `dd conv=fsync`", "", share, 0.8, true, fmt.Sprintf("%s against %s MB/s", number(spreadOf(put).median), number(spreadOf(dd).median)))
	r.keep("1 GiB `hops fs -get` from page cache into a file", "MB/s", get, 800, true, fmt.Sprintf("`-cat` into a pipe: %s MB/s", number(spreadOf(cat).median)))
	return nil
}

// discard counts what is thrown away.
type discard struct{ n int64 }

func (d *discard) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return len(p), nil
}

func fill(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	x := uint32(7)
	for i := range block {
		x = x*1664525 + 1013904223
		block[i] = byte(x >> 24)
	}
	for left := size; left > 0; left -= int64(len(block)) {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return f.Sync()
}

// threeNamenodes measures a replicated namespace: pairs of create and complete, stats, and the death of the leader.
func (r *runner) threeNamenodes(ctx context.Context) (err error) {
	o, err := r.startOurs(ctx, "promises", shape{3, 1}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.stop()) }()
	// One more round than is counted: the first is warm-up.
	var pairs, stats, pairCPU, statCPU []float64
	for round := range r.rounds + 1 {
		b, err := r.load(ctx, o, func(o *bench.Options) { o.Connections, o.Outstanding = 4, 256 })
		if err != nil {
			return err
		}
		results, err := b.CreateAndStat(ctx)
		if err = errors.Join(err, end(ctx, b)); err != nil {
			return err
		}
		if round > 0 {
			pairs, stats = append(pairs, results[0].PerSecond), append(stats, results[1].PerSecond)
			pairCPU, statCPU = append(pairCPU, results[0].ServerCPU), append(statCPU, results[1].ServerCPU)
		}
	}
	cpu := func(v []float64) string { return "CPU of all servers " + spreadOf(v).String() + " us" }
	r.keep("3 namenodes, create + complete, 256 outstanding", "/s", pairs, 10000, true, cpu(pairCPU))
	r.keep("3 namenodes, stat, 256 outstanding", "/s", stats, 60000, true, cpu(statCPU))
	b, err := r.load(ctx, o, func(o *bench.Options) { o.Connections, o.Outstanding, o.Progress = 1, 1, nil })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(ctx, b)) }()
	var outages []float64
	for range 20 {
		var revive func(context.Context) error
		seconds, err := b.Outage(ctx, func() (err error) {
			revive, err = o.killLeader(ctx, true)
			return err
		})
		if err == nil {
			err = revive(ctx)
		}
		if err != nil {
			return err
		}
		outages = append(outages, seconds)
	}
	// The 99th percentile of 20 is the highest.
	s := spreadOf(outages)
	r.keep("first write after kill -9 of the leader, highest of 20", "s", []float64{s.high}, 6, false, fmt.Sprintf("median %.2f s, lowest %.2f s", s.median, s.low))
	r.report.Promises[len(r.report.Promises)-1].N = len(outages)
	return nil
}
