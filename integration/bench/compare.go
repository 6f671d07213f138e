package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// plan is a comparison: one kind of cluster, and what is done on it.
type plan struct {
	group, title string
	hops, hdfs   shape
	secure       bool // clients by TLS are compared with those in plain, in place of HDFS
	near         bool // datanodes of hops have a Unix-domain socket
	empty        bool // an empty server is measured, too
	phases       []phase
}

// phase is a part of a round; it gives one or more rows.
type phase struct {
	name string
	// full: left out of a quick run. seldom: in every second round only, for time.
	full, seldom bool
	// closes: files with data are closed, so that HDFS also runs with dfs.datanode.synconclose.
	closes bool
	// unsynced: hops also runs without it, for this row alone; empty: it does not.
	unsynced string
	// echo: the empty server can answer this. near: hops' client speaks to datanodes by their Unix-domain sockets, and reads by
	// descriptors; HDFS's sides have no socket and stay with TCP.
	echo bool
	near bool
	// large is how many replicas of the large file are written.
	large  int
	run    func(ctx context.Context, b *bench.Bench) ([]bench.Result, error)
	change func(*bench.Options)
}

// takes reports whether a side has turns at the phase.
func (p phase) takes(s side) bool {
	switch s.label() {
	case labelSynced:
		return p.closes
	case labelUnsynced:
		return p.unsynced != ""
	case labelEmpty:
		return p.echo
	}
	return true
}

func small(size int) func(context.Context, *bench.Bench) ([]bench.Result, error) {
	return func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) { return b.Small(ctx, size) }
}

func metadataPhases() []phase {
	return []phase{
		{name: "metadata", echo: true, run: func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) { return b.Meta(ctx) }},
		{name: "mix", run: func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) { return b.Mix(ctx, false) }},
		{
			name: "pipelined", echo: true, change: func(o *bench.Options) { o.Connections, o.Outstanding = 4, 256 },
			run: func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) {
				results, err := b.CreateAndStat(ctx)
				for i := range results {
					results[i].Name += ", 4 x 64"
				}
				return results, err
			},
		},
		{name: "shared mix", full: true, seldom: true, run: func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) { return b.Mix(ctx, true) }},
	}
}

func dataPhases(replication int) []phase {
	x := func(o *bench.Options) { o.Replication = replication }
	return []phase{
		{name: "1 KiB files", full: true, seldom: true, closes: true, run: small(1 << 10), change: x},
		{name: "4 KiB files", closes: true, run: small(4 << 10), change: x},
		{name: "32 KiB files", full: true, seldom: true, closes: true, run: small(32 << 10), change: x},
		{
			name: "1 GiB file", closes: true, large: replication, unsynced: fmt.Sprintf("write seq x%d", replication), change: func(o *bench.Options) { x(o); o.Connections, o.Outstanding = 1, 1 },
			run: func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) { return b.Sequential(ctx) },
		},
		{name: "hflush", change: x, run: func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) { return b.Flush(ctx, 16) }},
	}
}

// nearPhase is the large file once more, for a client on the datanode's machine that may use what it has of that.
func nearPhase(replication int) phase {
	return phase{
		name: "1 GiB file, near", closes: true, near: true, large: replication, unsynced: fmt.Sprintf("write seq x%d, near", replication),
		change: func(o *bench.Options) { o.Replication, o.Connections, o.Outstanding = replication, 1, 1 },
		run: func(ctx context.Context, b *bench.Bench) ([]bench.Result, error) {
			results, err := b.Sequential(ctx)
			for i := range results {
				results[i].Name += ", near"
			}
			return results, err
		},
	}
}

var single = plan{
	group: "single", title: "One server: 1 namenode, 1 datanode", hops: shape{1, 1}, hdfs: shape{1, 1}, empty: true, near: true,
	phases: append(append(metadataPhases(), dataPhases(1)...), nearPhase(1)),
}

var replicated = plan{
	group: "replicated", title: "Replicated three ways: hops with 3 namenodes, HDFS with 2 NameNodes, 3 JournalNodes and ZooKeeper; 3 datanodes",
	hops: shape{3, 3}, hdfs: shape{2, 3},
	phases: append(metadataPhases(), dataPhases(3)...),
}

const (
	labelHops     = "hops"
	labelUnsynced = "hops, no synconclose"
	labelHDFS     = "HDFS"
	labelSynced   = "HDFS, synconclose"
)

// compare runs a plan: both sides up, warm, then rounds in which the sides take turns at every phase; then, if not nil,
// gets the sides of the first comparison, without those that have the other's synconclose.
func (r *runner) compare(ctx context.Context, p plan, then func(context.Context, []side) error) (err error) {
	var sides []side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.stop())
		}
	}()
	r.say("%s: starting hops", p.group)
	near := func(c *processes.Config) {
		if p.near {
			c.Properties[domainSocket] = filepath.Join(r.dir, "dn._PORT")
		}
	}
	o, err := r.startOurs(ctx, p.group+"-hops", p.hops, near)
	if err != nil {
		return err
	}
	sides = append(sides, o)
	switch {
	case p.secure:
		s, err := newSecured(o)
		if err != nil {
			return err
		}
		sides = append(sides, s)
	case r.jars != "":
		r.say("%s: starting Apache HDFS", p.group)
		h, err := r.startHadoop(ctx, p.group+"-hdfs", labelHDFS, p.hdfs, false)
		if err != nil {
			return fmt.Errorf("Apache HDFS does not run: %w", err)
		}
		sides = append(sides, h)
		// One NameNode is enough for this one, whose rows are those with data.
		synced, err := r.startHadoop(ctx, p.group+"-hdfs-sync", labelSynced, shape{1, p.hdfs.datanodes}, true)
		if err != nil {
			return fmt.Errorf("Apache HDFS with synconclose does not run: %w", err)
		}
		sides = append(sides, synced)
		u, err := r.startOurs(ctx, p.group+"-hops-unsynced", shape{1, p.hops.datanodes}, func(c *processes.Config) {
			near(c)
			c.Properties["dfs.datanode.synconclose"] = "false"
		})
		if err != nil {
			return err
		}
		sides = append(sides, unsynced{u})
	}
	if p.empty {
		e, err := r.startEmpty(ctx, o)
		if err != nil {
			return err
		}
		sides = append(sides, e)
	}
	var phases []phase
	for _, ph := range p.phases {
		if !ph.full || !r.quick {
			phases = append(phases, ph)
		}
	}
	t := &table{Group: p.group, Title: p.title}
	for _, s := range sides {
		t.Sides = append(t.Sides, s.label())
		r.label = p.group + ", warm-up"
		if err := r.warmUp(ctx, s, phases); err != nil {
			return err
		}
	}
	for round := range r.rounds {
		r.label = fmt.Sprintf("%s, round %d of %d", p.group, round+1, r.rounds)
		if err := r.space(8); err != nil {
			return err
		}
		if err := r.round(ctx, round, sides, phases, t); err != nil {
			return err
		}
		r.say("%s done, %.0f s of it waiting for calm", r.label, r.waited.Seconds())
		r.waited = 0
	}
	r.report.Tables = append(r.report.Tables, t)
	if then == nil {
		return nil
	}
	return then(ctx, slices.DeleteFunc(slices.Clone(sides), func(s side) bool { return s.label() != labelHops && s.label() != labelHDFS }))
}

// round lets the sides take turns at every phase, in every second round in the other order.
func (r *runner) round(ctx context.Context, round int, sides []side, phases []phase, t *table) error {
	odd := round%2 == 1
	turn := slices.Clone(sides)
	if odd {
		slices.Reverse(turn)
	}
	for _, ph := range phases {
		if ph.seldom && odd {
			continue
		}
		for _, s := range turn {
			if !ph.takes(s) || s.label() == labelSynced && odd {
				continue
			}
			r.quiet(sides, s)
			if ph.closes {
				if err := r.written(); err != nil {
					return err
				}
			}
			if ph.large > 0 {
				r.touch(r.bytes * int64(ph.large))
			}
			results, err := r.phaseOn(ctx, s, ph, 0)
			if err != nil && ctx.Err() == nil { // once more, and the report says so, lest one failure cost all rounds
				r.report.Repeated = append(r.report.Repeated, fmt.Sprintf("%s: %s", r.label, oneLine(err.Error())))
				r.say("%v: once more", err)
				results, err = r.phaseOn(ctx, s, ph, 0)
			}
			if err != nil {
				return err
			}
			for _, res := range results {
				if s.label() != labelUnsynced || res.Name == ph.unsynced {
					t.add(s.label(), res)
				}
			}
		}
	}
	return nil
}

// quiet waits, for some seconds at most, until the other sides have done what their last turn left behind: a JVM that
// still compiles, a checkpoint, blocks that go. It would slow down the side whose turn it is.
func (r *runner) quiet(sides []side, next side) {
	var pids []int
	for _, s := range sides {
		if s == next {
			continue
		}
		for _, pid := range s.servers() {
			pids = append(pids, pid)
		}
	}
	used := func() float64 {
		total := 0.0
		for _, pid := range pids {
			total += bench.ProcessCPU(pid)
		}
		return total
	}
	const look, calm, patience = 250 * time.Millisecond, 0.1, 20
	started := time.Now()
	defer func() { r.waited += time.Since(started) }()
	for range patience {
		before := used()
		time.Sleep(look)
		if used()-before <= calm*float64(look.Microseconds()) {
			return
		}
	}
}

// written waits until what the last turn left in the page cache is on the disk, which a side that fsyncs would share
// with it: HDFS leaves up to all that it wrote.
func (r *runner) written() error {
	started := time.Now()
	defer func() { r.waited += time.Since(started) }()
	dir, err := os.Open(r.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync of %s: %w", r.dir, err)
	}
	return nil
}

// touch uses memory for n bytes of files, and half as much again, and gives it back: what a machine has not used yet, or its hypervisor has taken back because
// it was free, comes a page at a time from there, which can take ten times as long as writing it. Neither side has a part in that, and whose turn was later,
// or wrote where files had just been deleted, had less of it.
func (r *runner) touch(n int64) {
	started := time.Now()
	defer func() { r.waited += time.Since(started) }()
	n = min(n*3/2, int64(memoryAvailable()/2*(1<<30)))
	memory, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err == nil {
		err = unix.Munmap(memory)
	}
	if err != nil { // the turn goes on with memory as it is
		r.say("%s: memory for what is written: %v", r.label, err)
	}
}

// phaseOn runs one phase on one side, in a directory of its own. A time of 0 means the run's.
func (r *runner) phaseOn(ctx context.Context, s side, ph phase, each time.Duration) ([]bench.Result, error) {
	by, _ := s.(interface{ connectNear() (*dfs.Client, error) })
	var near *dfs.Client
	b, err := r.load(ctx, s, func(o *bench.Options) {
		if ph.change != nil {
			ph.change(o)
		}
		if each > 0 {
			o.Time = each
		}
		if ph.near && by != nil {
			o.Clients = func(int) (c *dfs.Client, err error) {
				near, err = by.connectNear()
				return near, err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	results, err := ph.run(ctx, b)
	err = errors.Join(err, end(ctx, b))
	if near != nil && err == nil {
		switch n := near.LocalCounts(); {
		case n.Connections == 0 || n.Opened == 0:
			err = fmt.Errorf("the client used TCP: %+v", n)
		case n.Abandoned+n.Refused+n.Unreached > 0:
			r.say("%s on %s: the client also used TCP: %+v", ph.name, s.label(), n)
		}
	}
	for _, res := range results {
		switch {
		case res.Errors == 0 || err != nil:
		case res.Errors*10 > res.Ops:
			err = fmt.Errorf("%s: %d of %d operations failed: %s", res.Name, res.Errors, res.Ops, res.FirstError)
		default:
			r.say("%s on %s: %d of %d failed: %s", res.Name, s.label(), res.Errors, res.Ops, res.FirstError)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", ph.name, s.label(), err)
	}
	time.Sleep(300 * time.Millisecond) // what was deleted goes from the datanodes
	return results, nil
}

// isOurs says that a side has no JVM to warm up.
func isOurs(s side) bool { return !strings.HasPrefix(s.label(), labelHDFS) }

// warmUp loads a side as the rounds will: hops once over all phases, HDFS until the time for it is over, because a JVM
// needs minutes to compile what it runs.
func (r *runner) warmUp(ctx context.Context, s side, phases []phase) error {
	patience, each := r.warm, r.phase
	if strings.HasPrefix(s.label(), labelSynced) {
		patience /= 3
	}
	started := time.Now()
	for pass := 0; ; pass++ {
		for _, ph := range phases {
			if !ph.takes(s) {
				continue
			}
			if !isOurs(s) && pass > 0 && time.Since(started) > patience {
				return nil
			}
			if _, err := r.phaseOn(ctx, s, ph, each); err != nil {
				return err
			}
		}
		if pass == 0 {
			r.say("%s: first warm-up pass took %v", s.label(), time.Since(started).Round(time.Second))
		}
		if isOurs(s) || time.Since(started) > patience {
			return nil
		}
	}
}
