package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// What group repair has: three datanodes with all the files, and a fourth one, which is empty, for what a dead one had.
const (
	repairNodes    = 4
	repairReplicas = 3
	repairFiles    = 16
	repairBytes    = 256 << 20
	repairFill     = 100 * time.Second // no file is begun later, so that a slow disk has fewer
	repairBefore   = 20 * time.Second  // of reads, which those that come later are compared with
	repairPatience = 5 * time.Minute
	repairReaders  = 4
	readSize       = 64 << 10
	readPause      = 20 * time.Millisecond
	frozenTrials   = 6
	frozenFor      = 8 * time.Second
)

// repair measures what the death of a datanode takes, and what one that is frozen costs who reads and writes.
func (r *runner) repair(ctx context.Context) (err error) {
	if err := r.space(8 + repairNodes*float64(repairFiles*repairBytes)/(1<<30)); err != nil {
		return err
	}
	spare := fmt.Sprintf("dn%d", repairNodes)
	o, err := r.startOurs(ctx, "repair-hops", shape{1, repairNodes}, func(c *processes.Config) { c.Later = []string{spare} })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.stop()) }()
	b, err := r.load(ctx, o, func(o *bench.Options) {
		o.Connections, o.Outstanding, o.Replication, o.Bytes = 1, 1, repairReplicas, repairBytes
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(ctx, b)) }()
	var names []string
	for began := time.Now(); len(names) < repairFiles && time.Since(began) < repairFill; {
		name := path.Join(b.Root, strconv.Itoa(len(names)))
		if err := b.WriteFile(ctx, name); err != nil {
			return err
		}
		names = append(names, name)
	}
	r.say("repair: each of three datanodes has %.1f GiB", float64(len(names)*repairBytes)/(1<<30))
	if err := o.startServer(spare); err != nil {
		return err
	}
	if err := ready(ctx, o, repairNodes, 30*time.Second, o.died); err != nil {
		return err
	}
	if err := r.written(); err != nil {
		return err
	}
	if err := r.deadDatanode(ctx, o, names, spare); err != nil {
		return err
	}
	return r.frozenDatanode(ctx, o, b.Root, names)
}

// deadDatanode kills one of the datanodes that have everything, and waits until another one has what it had.
func (r *runner) deadDatanode(ctx context.Context, o *ours, names []string, spare string) error {
	const dead = "dn1"
	port, err := transferPort(o, dead)
	if err != nil {
		return err
	}
	server, err := o.cluster.Server(spare)
	if err != nil {
		return err
	}
	volume := server.Datanode.Volumes[0].Path
	c, err := o.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	readers, err := startReaders(ctx, o, names)
	if err != nil {
		return err
	}
	defer readers.stop()
	if err := rest(ctx, repairBefore); err != nil {
		return err
	}
	const few = 1 << 20 // what is more than that is no file of the datanode's own
	before := stored(volume)
	killed := time.Now()
	if err := o.killServers([]string{dead}); err != nil {
		return err
	}
	// await polls, and says when it was so.
	await := func(what string, every time.Duration, is func() (bool, error)) (time.Time, error) {
		for {
			ok, err := is()
			now := time.Now()
			switch {
			case err != nil:
				return now, err
			case ok:
				return now, nil
			case now.Sub(killed) > 2*repairPatience:
				return now, fmt.Errorf("%s: not within %v", what, 2*repairPatience)
			}
			if err := o.died(); err != nil {
				return now, err
			}
			if err := rest(ctx, every); err != nil {
				return now, err
			}
		}
	}
	declared, err := await("the datanode is declared dead", 20*time.Millisecond, func() (bool, error) {
		gone, err := c.Datanodes(ctx, dfs.DeadDatanodes)
		return len(gone) > 0, err
	})
	if err != nil {
		return err
	}
	begun, err := await("the repair begins", 20*time.Millisecond, func() (bool, error) { return stored(volume)-before > few, nil })
	if err != nil {
		return err
	}
	repaired, err := await("all blocks are repaired", 200*time.Millisecond, func() (bool, error) {
		for _, name := range names {
			blocks, err := c.BlockLocations(ctx, name, 0, repairBytes)
			if err != nil {
				return false, err
			}
			for _, l := range blocks {
				if len(l.Datanodes) < repairReplicas || slices.ContainsFunc(l.Datanodes, func(n dfs.Datanode) bool { return n.TransferPort == port }) {
					return false, nil
				}
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	if err := readers.stop(); err != nil {
		return err
	}
	held := fmt.Sprintf("dead datanode with %.1f GiB", float64(len(names)*repairBytes)/(1<<30))
	took := repaired.Sub(killed).Seconds()
	r.keep(held+": begun after it is declared dead", "s", []float64{begun.Sub(declared).Seconds()}, 15, false, fmt.Sprintf("declared %.1f s after its end, of 10 s that are configured", declared.Sub(killed).Seconds()))
	r.keep(held+": repaired after its end", "s", []float64{took}, repairPatience.Seconds(), false,
		fmt.Sprintf("%.0f MB/s from two datanodes to one, all on one disk", float64(len(names)*repairBytes)/1e6/repaired.Sub(begun).Seconds()))
	quiet, after, during := readers.between(killed.Add(-repairBefore), killed), readers.between(killed, begun), readers.between(begun, repaired)
	if len(quiet) == 0 || len(during) == 0 {
		return errors.New("nobody read")
	}
	note := fmt.Sprintf("%d readers, 64 KiB each 20 ms: p99 %.1f ms, before %.1f ms", repairReaders, percentile(during), percentile(quiet))
	if len(after) > 0 {
		note += fmt.Sprintf(", from its end to the repair %.1f ms", percentile(after))
	}
	r.keep(held+": p99 of reads while it is repaired, of that before", "", []float64{percentile(during) / percentile(quiet)}, 2, false, note)
	r.report.Promises[len(r.report.Promises)-1].N = len(during)
	if err := o.startServer(dead); err != nil {
		return err
	}
	return ready(ctx, o, repairNodes, time.Minute, o.died)
}

// frozenDatanode stops one datanode of a pipeline after the other, and looks for the longest that somebody waits.
func (r *runner) frozenDatanode(ctx context.Context, o *ours, dir string, names []string) error {
	var reads, writes []float64
	for trial := range frozenTrials {
		read, wrote, err := r.frozen(ctx, o, path.Join(dir, fmt.Sprintf("frozen%d", trial)), names, trial%repairReplicas)
		if err != nil {
			return err
		}
		reads, writes = append(reads, read), append(writes, wrote)
		r.say("repair: frozen datanode %d of %d: readers waited %.2f s, the writer %.2f s", trial+1, frozenTrials, read, wrote)
	}
	longest := func(who string, seconds []float64, goal float64, note string) {
		s := spreadOf(seconds)
		r.keep(fmt.Sprintf("frozen datanode (SIGSTOP): longest wait of %s, in %d times", who, len(seconds)), "s", []float64{s.high}, goal, false, fmt.Sprintf("%s; by time: median %.2f s, lowest %.2f s", note, s.median, s.low))
		r.report.Promises[len(r.report.Promises)-1].N = len(seconds)
	}
	longest("readers", reads, 1, fmt.Sprintf("%d of them open a file and read 64 KiB, each 20 ms", repairReaders))
	longest("a writer", writes, 5, "64 KiB and hflush, three replicas; frozen are the first, the second and the last datanode of its pipeline in turn")
	return nil
}

// frozen has clients read and one write, freezes the datanode at a place of the writer's pipeline, and returns how long a reader and the writer waited at
// most, in seconds.
func (r *runner) frozen(ctx context.Context, o *ours, name string, names []string, place int) (read, wrote float64, err error) {
	c, err := o.connect()
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	w, err := c.Create(ctx, name, dfs.CreateOptions{Replication: repairReplicas})
	if err != nil {
		return 0, 0, err
	}
	defer w.Abort()
	readers, err := startReaders(ctx, o, names)
	if err != nil {
		return 0, 0, err
	}
	defer readers.stop()
	data := make([]byte, readSize)
	writer := startLoad(ctx, 1, readPause, func(ctx context.Context, _ int) error {
		if _, err := w.Write(data); err != nil {
			return err
		}
		return w.Hflush(ctx)
	})
	defer writer.stop()
	if err := rest(ctx, 2*time.Second); err != nil {
		return 0, 0, err
	}
	blocks, err := c.BlockLocations(ctx, name, 0, 1<<40)
	if err != nil {
		return 0, 0, err
	}
	if len(blocks) == 0 || len(blocks[len(blocks)-1].Datanodes) <= place {
		return 0, 0, fmt.Errorf("%s has no datanode at place %d", name, place)
	}
	victim, err := serverAt(o, blocks[len(blocks)-1].Datanodes[place].TransferPort)
	if err != nil {
		return 0, 0, err
	}
	at := time.Now()
	if err := o.cluster.Signal(victim, syscall.SIGSTOP); err != nil {
		return 0, 0, err
	}
	err = rest(ctx, frozenFor)
	err = errors.Join(err, writer.stop(), readers.stop(), o.cluster.Signal(victim, syscall.SIGCONT))
	if err != nil {
		return 0, 0, err
	}
	longest := func(l *load) float64 { return slices.Max(l.between(at, time.Now())).Seconds() }
	read, wrote = longest(readers), longest(writer)
	if err := w.Close(); err != nil {
		return 0, 0, err
	}
	return read, wrote, rest(ctx, 2*time.Second)
}

// load is work that is done again and again, a few times at once, and how long each took.
type load struct {
	cancel context.CancelFunc
	ended  func() error // nothing more is begun; waits for what is under way

	mu   sync.Mutex
	done []timing // guarded by mu
}

type timing struct {
	began time.Time
	took  time.Duration
}

// startLoad has some workers do something, with a pause behind each time. The first error ends it.
func startLoad(ctx context.Context, workers int, pause time.Duration, do func(ctx context.Context, worker int) error) *load {
	l := new(load)
	var begins context.Context
	begins, l.cancel = context.WithCancel(ctx)
	var group sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		group.Go(func() {
			for begins.Err() == nil {
				began := time.Now()
				if errs[w] = do(ctx, w); errs[w] != nil {
					return
				}
				l.mu.Lock()
				l.done = append(l.done, timing{began, time.Since(began)})
				l.mu.Unlock()
				_ = rest(begins, pause)
			}
		})
	}
	l.ended = func() error {
		group.Wait()
		return errors.Join(errs...)
	}
	return l
}

func (l *load) stop() error {
	l.cancel()
	return l.ended()
}

// between is how long each time took that was under way between two moments.
func (l *load) between(from, to time.Time) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []time.Duration
	for _, t := range l.done {
		if t.began.Before(to) && t.began.Add(t.took).After(from) {
			out = append(out, t.took)
		}
	}
	return out
}

// startReaders has clients open one of the files and read a piece of it.
func startReaders(ctx context.Context, o *ours, names []string) (*load, error) {
	clients := make([]*dfs.Client, repairReaders)
	for i := range clients {
		c, err := o.connect()
		if err != nil {
			return nil, err
		}
		clients[i] = c
	}
	buffers := make([][readSize]byte, repairReaders)
	l := startLoad(ctx, repairReaders, readPause, func(ctx context.Context, w int) error {
		r, err := clients[w].Open(ctx, names[rand.IntN(len(names))])
		if err != nil {
			return err
		}
		_, err = r.ReadAt(buffers[w][:], rand.Int64N(repairBytes-readSize))
		return errors.Join(err, r.Close())
	})
	wait := l.ended
	l.ended = sync.OnceValue(func() error {
		errs := []error{wait()}
		for _, c := range clients {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	})
	return l, nil
}

// percentile is the 99th, in milliseconds.
func percentile(of []time.Duration) float64 {
	slices.Sort(of)
	return float64(of[min(len(of)-1, len(of)*99/100)]) / float64(time.Millisecond)
}

// rest waits, or returns the error of the context.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// stored is how many bytes lie below a directory.
func stored(dir string) int64 {
	total := int64(0)
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // it may have gone meanwhile
		}
		if info, err := d.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	return total
}

func transferPort(o *ours, name string) (int, error) {
	server, err := o.cluster.Server(name)
	if err != nil {
		return 0, err
	}
	return portOf(server.Datanode.Transfer)
}

// serverAt is the datanode that takes data at a port.
func serverAt(o *ours, port int) (string, error) {
	for i := range repairNodes {
		name := fmt.Sprintf("dn%d", i+1)
		if p, err := transferPort(o, name); err != nil {
			return "", err
		} else if p == port {
			return name, nil
		}
	}
	return "", fmt.Errorf("no datanode takes data at port %d", port)
}

func portOf(addr string) (int, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}
