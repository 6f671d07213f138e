package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// What group erasure has: files of six data blocks and three of parity, on as many datanodes.
const (
	codedPolicy    = "RS-6-3-1024k"
	codedNodes     = 9
	codedParity    = 3
	codedDead      = 3
	warmFiles      = 2
	codedFiles     = 8
	codedBytes     = 256 << 20
	codedWriters   = 16
	flushReplicas  = 3
	rowCodedWrite  = "write " + codedPolicy
	rowCodedRead   = "read " + codedPolicy
	rowCodedLost   = "read " + codedPolicy + ", 3 of 9 datanodes dead"
	rowFlush       = "hflush x3"
	rowFlushCoded  = "hflush " + codedPolicy
	followed       = ", followed" // behind the name of a row of which a reader follows a file
	labelOurClient = "HDFS servers, our client"
	labelNear      = "hops, near"
	groupErasure   = "erasure"
)

// codedGoals are how many times as many megabytes hops has to move with a second of CPU of all processes as HDFS in the same run.
var codedGoals = map[string]float64{rowCodedWrite: 2, rowCodedRead: 2, rowCodedLost: 3}

// flushGoals are the least shares of HDFS's flushes on replicated files, a second; seenGoal is the most of milliseconds until a reader that follows has the
// bytes, for 99 of 100 flushes.
var flushGoals = map[string]float64{rowFlush: 1, rowFlushCoded: 0.8}

const seenGoal = 10

// coded is servers with a client, because of a file with a policy the client does most of the work.
type coded struct {
	name string
	on   mortal
	java *javaClient // nil: the client is ours
	near *dfs.Client // of labelNear, while it is open
	load *bench.Bench
}

// flushes reports whether it takes part in rows of flushes.
func (c *coded) flushes() bool { return c.name == labelHops || c.name == labelHDFS }

// mortal is a side whose servers can be killed and started one by one.
type mortal interface {
	side
	killServers(names []string) error
	startServer(name string) error
}

func (o *ours) killServers(names []string) error { return o.cluster.Kill(names...) }
func (o *ours) startServer(name string) error    { return o.cluster.Start(name) }

func (h *hadoop) killServers(names []string) error {
	for _, name := range names {
		h.kill(name)
	}
	return nil
}
func (h *hadoop) startServer(name string) error { return h.start(name) }

// erasure compares files with an erasure coding policy, of which each side has a client of its own, and appends with flushes, which HDFS refuses there.
func (r *runner) erasure(ctx context.Context) (err error) {
	var servers []mortal
	var clients []*coded
	defer func() {
		for _, c := range clients {
			c.java.stop()
		}
		for _, s := range servers {
			err = errors.Join(err, s.stop())
		}
	}()
	r.say("erasure: starting hops")
	o, err := r.startOurs(ctx, "erasure-hops", shape{1, codedNodes}, func(c *processes.Config) {
		c.Properties[domainSocket] = filepath.Join(r.dir, "dn._PORT")
		c.Adjust = func(_ string, f *config.File) {
			if n := f.Namenode; n != nil { // as long as HDFS's, so that neither begins to repair what comes back
				n.DeadAfter, n.StaleAfter, n.Heartbeat = 630*time.Second, 30*time.Second, 3*time.Second
			}
		}
	})
	if err != nil {
		return err
	}
	servers, clients = append(servers, o), append(clients, &coded{name: labelHops, on: o}, &coded{name: labelNear, on: o})
	if r.jars != "" {
		r.say("erasure: starting Apache HDFS")
		h, err := r.startHadoop(ctx, "erasure-hdfs", labelHDFS, shape{1, codedNodes}, false)
		if err != nil {
			return fmt.Errorf("Apache HDFS does not run: %w", err)
		}
		servers = append(servers, h)
		java, err := r.startJavaClient(h, h.nodes[0])
		if err != nil {
			return fmt.Errorf("Hadoop's client does not run: %w", err)
		}
		clients = append(clients, &coded{name: labelHDFS, on: h, java: java}, &coded{name: labelOurClient, on: h})
	}
	t := &table{Group: groupErasure, Title: "Erasure coding, " + codedPolicy + ": 1 namenode, 9 datanodes"}
	for _, c := range clients {
		t.Sides = append(t.Sides, c.name)
	}
	if err := r.warmCoded(ctx, clients); err != nil {
		return err
	}
	rounds := (r.rounds + 1) / 2
	for round := range rounds {
		r.label = fmt.Sprintf("erasure, round %d of %d", round+1, rounds)
		if err := r.rewarm(ctx, clients); err != nil { // datanodes were dead
			return err
		}
		if err := r.codedRound(ctx, round, servers, clients, t); err != nil {
			return err
		}
		r.say("%s done, %.0f s of it waiting for calm", r.label, r.waited.Seconds())
		r.waited = 0
	}
	r.report.Tables = append(r.report.Tables, t)
	return nil
}

// warmCoded does everything at least once, and with Hadoop's client and servers for minutes, and looks at every byte of what is computed.
func (r *runner) warmCoded(ctx context.Context, clients []*coded) error {
	r.label = "erasure, warm-up"
	for _, c := range clients {
		if err := r.open(ctx, c); err != nil {
			return err
		}
		patience := r.warm / 2
		if c.java == nil {
			patience = 0
		}
		err := r.exercise(ctx, c, patience)
		if err == nil && c.name != labelNear {
			err = r.without(ctx, []mortal{c.on}, func() error {
				for started, first := time.Now(), true; first || time.Since(started) < patience; first = false {
					if _, err := c.files(ctx, rowCodedLost, warmFiles, c.check); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err = errors.Join(err, end(ctx, c.load)); err != nil {
			return err
		}
		r.say("erasure: %s is warm", c.name)
	}
	return nil
}

// exercise writes and reads files, and flushes, once and then until the time is over.
func (r *runner) exercise(ctx context.Context, c *coded, patience time.Duration) error {
	for started, first := time.Now(), true; first || time.Since(started) < patience; first = false {
		_, err := c.files(ctx, rowCodedWrite, warmFiles, c.write)
		if err == nil {
			err = c.whole(ctx)
		}
		if err == nil {
			_, err = c.files(ctx, rowCodedRead, warmFiles, c.read)
		}
		if err == nil && c.flushes() {
			_, err = r.flushes(ctx, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rewarm exercises HDFS, of which virtual machines have been started anew.
func (r *runner) rewarm(ctx context.Context, clients []*coded) error {
	for _, c := range clients {
		if c.java == nil {
			continue
		}
		if err := r.open(ctx, c); err != nil {
			return err
		}
		if err := errors.Join(r.exercise(ctx, c, r.warm/5), end(ctx, c.load)); err != nil {
			return err
		}
	}
	return nil
}

// codedRound lets the sides take turns at every operation, in every second round in the other order.
func (r *runner) codedRound(ctx context.Context, round int, servers []mortal, clients []*coded, t *table) (err error) {
	if err := r.space(8 + 1.5*float64(len(clients)*codedFiles*codedBytes)/(1<<30)); err != nil {
		return err
	}
	turn, all := slices.Clone(clients), make([]side, len(servers))
	if round%2 == 1 {
		slices.Reverse(turn)
	}
	for i, s := range servers {
		all[i] = s
	}
	calm := func(c *coded) error {
		r.quiet(all, c.on)
		return r.written()
	}
	for _, c := range turn {
		if !c.flushes() {
			continue
		}
		if err := calm(c); err != nil {
			return err
		}
		results, err := r.flushes(ctx, c)
		if err != nil {
			return err
		}
		for _, res := range results {
			t.add(c.name, res)
		}
	}
	var opened []*coded
	closed := func() error {
		var errs []error
		for _, c := range opened {
			errs = append(errs, end(ctx, c.load))
		}
		opened = nil
		return errors.Join(errs...)
	}
	defer func() { err = errors.Join(err, closed()) }()
	for _, c := range turn {
		if err := r.open(ctx, c); err != nil {
			return err
		}
		opened = append(opened, c)
	}
	phase := func(what string, move func(*coded, context.Context, string) error) error {
		for _, c := range turn {
			if what == rowCodedLost && c.name == labelNear { // its descriptors would read on
				continue
			}
			if err := calm(c); err != nil {
				return err
			}
			if what == rowCodedWrite {
				r.touch(codedFiles * codedBytes * 3 / 2)
			}
			res, err := c.files(ctx, what, codedFiles, func(ctx context.Context, name string) error { return move(c, ctx, name) })
			if err != nil {
				return err
			}
			r.say("%s: %s by %s: %.0f MB/s, %.0f MB with a second of CPU", r.label, what, c.name, res.PerSecond, perCPU(res))
			t.add(c.name, res)
		}
		return nil
	}
	if err := phase(rowCodedWrite, (*coded).write); err != nil {
		return err
	}
	for _, c := range turn {
		if err := c.whole(ctx); err != nil {
			return err
		}
	}
	if err := phase(rowCodedRead, (*coded).read); err != nil {
		return err
	}
	if err := r.without(ctx, servers, func() error { return phase(rowCodedLost, (*coded).read) }); err != nil {
		return err
	}
	return closed()
}

// flushes measures appends with flushes: on replicated files, and where the servers take them also on files with the policy. The client is ours.
func (r *runner) flushes(ctx context.Context, c *coded) (results []bench.Result, err error) {
	b, err := r.load(ctx, c.on, func(o *bench.Options) {
		o.Connections, o.Outstanding, o.Replication = codedWriters, codedWriters, flushReplicas
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end(ctx, b)) }()
	policies := []string{""}
	if c.name == labelHops {
		policies = append(policies, codedPolicy)
	}
	for _, policy := range policies {
		some, err := b.FlushSeen(ctx, codedWriters, policy)
		if err != nil {
			return nil, fmt.Errorf("hflush on %s: %w", c.name, err)
		}
		for _, res := range some {
			if res.Errors > 0 {
				return nil, fmt.Errorf("%s on %s: %d of %d failed: %s", res.Name, c.name, res.Errors, res.Ops, res.FirstError)
			}
		}
		results = append(results, some...)
	}
	return results, nil
}

// open makes a directory with the policy for what the side does next.
func (r *runner) open(ctx context.Context, c *coded) (err error) {
	c.load, err = r.load(ctx, c.on, func(o *bench.Options) {
		o.Connections, o.Outstanding, o.Bytes, o.Client = 1, 1, codedBytes, c.java.pid()
		o.Label = strings.Replace(o.Label, c.on.label()+":", c.name+":", 1)
		if c.name == labelNear {
			o.Clients = func(int) (_ *dfs.Client, err error) {
				c.near, err = c.on.(*ours).connectNear()
				return c.near, err
			}
		}
	})
	if err != nil {
		return err
	}
	fs, err := c.on.connect()
	if err == nil {
		err = errors.Join(fs.SetErasurePolicy(ctx, c.load.Root, codedPolicy), fs.Close())
	}
	return err
}

func (c *coded) files(ctx context.Context, what string, files int, move func(context.Context, string) error) (bench.Result, error) {
	res, err := c.load.Files(ctx, what, files, move)
	if err == nil && res.Errors > 0 {
		err = errors.New(res.FirstError)
	}
	if err == nil && c.near != nil {
		if n := c.near.LocalCounts(); n.Connections == 0 || what == rowCodedRead && n.Opened == 0 || n.Abandoned+n.Refused+n.Unreached > 0 {
			err = fmt.Errorf("the client used TCP: %+v", n)
		}
	}
	if err != nil {
		return bench.Result{}, fmt.Errorf("%s by %s: %w", what, c.name, err)
	}
	return res, nil
}

func (c *coded) write(ctx context.Context, name string) error {
	if c.java != nil {
		return c.java.do(ctx, "write", name, c.load.Bytes)
	}
	return c.load.WriteFile(ctx, name)
}

func (c *coded) read(ctx context.Context, name string) error {
	if c.java != nil {
		return c.java.do(ctx, "read", name, c.load.Bytes)
	}
	return c.load.ReadFile(ctx, name)
}

func (c *coded) check(ctx context.Context, name string) error {
	if c.java != nil {
		return c.java.do(ctx, "check", name, c.load.Bytes)
	}
	return c.load.CheckFile(ctx, name)
}

// whole fails if a file of the side lacks an internal block: what was left out would have cost nothing. HDFS closes a file when six of nine have told
// the namenode of theirs; the others have ten seconds.
func (c *coded) whole(ctx context.Context) error {
	fs, err := c.on.connect()
	if err != nil {
		return err
	}
	defer fs.Close()
	listed, err := fs.List(ctx, c.load.Root)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, f := range listed {
		name := path.Join(c.load.Root, f.Name)
		for {
			blocks, err := fs.BlockLocations(ctx, name, 0, codedBytes)
			if err != nil {
				return err
			}
			least := codedNodes
			for _, b := range blocks {
				least = min(least, len(b.Datanodes))
			}
			if least == codedNodes {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s wrote %s, of which a block group has %d internal blocks in place of %d", c.name, name, least, codedNodes)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}

// without kills three datanodes of all servers, does something, and waits until they are back with what they have.
func (r *runner) without(ctx context.Context, servers []mortal, do func() error) error {
	var names []string
	for i := range codedDead {
		names = append(names, fmt.Sprintf("dn%d", i+1))
	}
	for _, s := range servers {
		if err := s.killServers(names); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	for _, s := range servers {
		began := time.Now()
		for _, name := range names {
			if err := s.startServer(name); err != nil {
				return err
			}
		}
		if err := reported(ctx, s, began); err != nil {
			return err
		}
	}
	return nil
}

// reported waits until datanodes that were started at a time have told their namenode which blocks they have.
func reported(ctx context.Context, s mortal, began time.Time) error {
	const patience = 5 * time.Minute
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for time.Since(began) < patience {
		nodes, err := c.Datanodes(ctx, dfs.LiveDatanodes)
		if err != nil {
			return err
		}
		back := 0
		for _, n := range nodes {
			if int64(n.LastReport) >= began.UnixMilli() {
				back++
			}
		}
		if back >= codedDead {
			return nil
		}
		if err := s.died(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("datanodes of %s have not reported their blocks %v after their start", s.label(), patience)
}

// perCPU is megabytes that are moved with a second of CPU time of all processes.
func perCPU(r bench.Result) float64 { return 1e6 / allCPU(r) }

// codedTable has a line for each side of a row: of files CPU is what compares, and the client's is most of it.
func codedTable(b *strings.Builder, t *table) {
	fmt.Fprintf(b, "\n## %s\n\n%d files of %d MiB, one after the other, by one client. Three datanodes are killed with SIGKILL before the third row; no file lacks anything before.", t.Title, codedFiles, codedBytes>>20)
	if slices.Contains(t.Sides, labelHDFS) {
		fmt.Fprintf(b, " HDFS's client is Hadoop's own in a warm JVM, with Java's coder, because Maven has no native library with ISA-L; *%s* is hops's client with the same servers. "+
			"Neither side repairs meanwhile (both wait 630 s).", labelOurClient)
	}
	if slices.Contains(t.Sides, labelNear) {
		fmt.Fprintf(b, " *%s* writes by the datanodes' Unix-domain sockets and reads by descriptors, with all checksums verified, as a client does that has internal blocks on its own machine.", labelNear)
	}
	b.WriteString("\n\n")
	b.WriteString("| operation | side | MB/s | servers, CPU us per MB | client, CPU us per MB | MB per CPU-second of all | hops, times as many | others, cores | goal |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, w := range t.Rows {
		least, ok := codedGoals[w.Name]
		if !ok {
			continue
		}
		hops, near, hdfs := w.of(labelHops, perCPU).median, w.of(labelNear, perCPU).median, w.of(labelHDFS, perCPU).median
		for _, s := range sidesOf(t, w) {
			times, verdict := "", ""
			switch all := w.of(s, perCPU).median; s {
			case labelHops:
			case labelNear:
				if hdfs > 0 {
					verdict = fmt.Sprintf("%s of HDFS, ≥ %s times: %s", ratio(near, hdfs), number(least), reached(near >= least*hdfs))
				}
			case labelHDFS:
				verdict = fmt.Sprintf("≥ %s times: %s", number(least), reached(hops >= least*all))
				fallthrough
			default:
				times = ratio(hops, all)
			}
			fmt.Fprintf(b, "| %s (n=%d) | %s | %s | %s | %s | %s | %s | %s | %s |\n", w.Name, len(w.Rounds[s]), s, w.of(s, rate), w.of(s, serverCPU), w.of(s, clientCPU), w.of(s, perCPU),
				times, number(w.of(s, others).median), verdict)
		}
	}
	fmt.Fprintf(b, "\n%d writers append 200 bytes to a file each and hflush, with our client on both sides; HDFS refuses that on files with a policy, where hops writes to %d replicas. "+
		"In rows *followed* a reader opens one of the files again and again, and the latency is from the return of hflush until it has the bytes.\n\n", codedWriters, codedParity+1)
	b.WriteString("| operation | side | flushes per second | p50, p99, longest, ms | servers, CPU us | client, CPU us | of HDFS's x3 | others, cores | goal |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	peer := 0.0
	for _, w := range t.Rows {
		if w.Name == rowFlush {
			peer = w.of(labelHDFS, rate).median
		}
	}
	for _, w := range t.Rows {
		plain, seen := strings.CutSuffix(w.Name, followed)
		least, ok := flushGoals[plain]
		if !ok {
			continue
		}
		for _, s := range sidesOf(t, w) {
			share, verdict := "", ""
			switch mine := w.of(s, rate).median; {
			case s != labelHops:
			case seen:
				verdict = fmt.Sprintf("p99 ≤ %d ms: %s", seenGoal, reached(w.of(s, tail).median <= seenGoal))
			case peer > 0:
				share, verdict = ratio(mine, peer), fmt.Sprintf("≥ %s: %s", number(least), reached(mine >= least*peer))
			}
			fmt.Fprintf(b, "| %s (n=%d) | %s | %s | %s, %s, %s | %s | %s | %s | %s | %s |\n", w.Name, len(w.Rounds[s]), s, w.of(s, rate),
				w.of(s, half), w.of(s, tail), w.of(s, func(r bench.Result) float64 { return r.Max }), w.of(s, serverCPU), w.of(s, clientCPU), share, number(w.of(s, others).median), verdict)
		}
	}
}

func reached(is bool) string {
	if is {
		return "reached"
	}
	return "**missed**"
}
