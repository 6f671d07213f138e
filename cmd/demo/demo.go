// Package demo is `hops demo`: it starts a cluster of real processes, runs a hyperparameter search on it, kills a
// namenode leader, a datanode and an executor on the way, and checks afterwards, from records of its own, that nothing
// acknowledged was lost. Then it loses three of nine datanodes while it reads a file with erasure coding.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/code"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/examples"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

const (
	trials    = 27
	executors = 4
	dataPath  = "/data/digits.csv.gz"
	user      = "demo"
)

// The cluster of the demo: each server a process of its own.
const (
	namenodes    = 3
	datanodes    = 4
	nodeManagers = 2
	gpusPerNode  = 2
	blockSize    = 1 << 20
)

// patience is how long what has to happen may take, on a machine that is slow or has other things to do.
const patience = 5 * time.Minute

// Demo runs the demonstration.
type Demo struct {
	// Binary is the hops program.
	Binary string
	Out    io.Writer
	// Keep leaves the directory of the demo behind.
	Keep bool

	dir      string
	started  time.Time
	cluster  *processes.Cluster
	client   *client.Client
	recorder *recorder
	kills    []*kill
	status   *protocol.ExperimentStatus // last seen
	job      string

	// watched is closed when every block has its replicas again; the others are set by then.
	watched      chan struct{}
	rereplicated int64
	healed       time.Time
}

// kill is one process that was killed and what it cost.
type kill struct {
	what string
	at   time.Time
	cost string
	// trial and attempt that the killed executor held.
	trial   string
	attempt int
}

// Run runs everything. An error says what did not happen, or was lost.
func (d *Demo) Run(ctx context.Context) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.started = time.Now()
	if err := prerequisites(); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "hops-demo-"); err != nil {
		return err
	}
	defer func() {
		if err != nil || d.Keep {
			fmt.Fprintf(d.Out, "\nlogs of the servers are in %s\n", d.dir)
		} else {
			os.RemoveAll(d.dir)
		}
	}()
	d.cluster, err = processes.New(processes.Config{
		Binary: d.Binary, Dir: d.dir, Name: "demo", Namenodes: namenodes, Datanodes: codedDatanodes, NodeManagers: nodeManagers, GPUs: gpusPerNode,
		Properties: map[string]string{"dfs.replication": "3", "dfs.blocksize": fmt.Sprint(blockSize)}, Later: later(),
	})
	if err != nil {
		return err
	}
	defer func() {
		stopped := d.cluster.Stop()
		wait := time.Minute
		if stopped != nil || err != nil {
			wait = 0
		}
		for _, pid := range d.cluster.Gone(wait) {
			stopped = errors.Join(stopped, fmt.Errorf("process %d was left running", pid))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err == nil {
			err = stopped
		}
	}()
	for _, step := range []func(context.Context) error{d.start, d.load, d.search, d.heal, d.verify, d.coded} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.report(ctx)
	return nil
}

func prerequisites() error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return errors.New("python3 is not installed, and the search runs a Python function: install Python 3.9 or newer")
	}
	out, err := exec.Command(python, "-c", "import sys; print(sys.version_info >= (3, 9))").Output()
	if err != nil || string(out) != "True\n" {
		return fmt.Errorf("%s is older than Python 3.9, or does not work", python)
	}
	return nil
}

// say prints a line of progress with the time since the start.
func (d *Demo) say(format string, args ...any) {
	fmt.Fprintf(d.Out, "[%5.1fs] %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

func (d *Demo) record() string { return filepath.Join(d.dir, "acknowledged.jsonl") }

// start brings the cluster up and waits until all of it is there.
func (d *Demo) start(ctx context.Context) error {
	d.say("starting %d namenodes, %d datanodes, 1 resource manager, %d node managers with %d simulated GPUs each", namenodes, datanodes, nodeManagers, gpusPerNode)
	if err := d.cluster.StartAll(); err != nil {
		return err
	}
	var ipc []string
	for _, n := range d.cluster.File().Namenodes {
		ipc = append(ipc, n.IPC)
	}
	quiet := slog.New(slog.DiscardHandler)
	fs := dfs.Config{Namenodes: ipc, User: user, BlockSize: blockSize, Logger: quiet, DatanodeTimeout: 5 * time.Second}
	var err error
	if d.client, err = client.New(client.Config{FS: &fs, ResourceManagers: []string{d.cluster.File().ResourceManagers[0].HTTP}, User: user}); err != nil {
		return err
	}
	root := fs
	root.User = ""
	super, err := dfs.New(root)
	if err != nil {
		return err
	}
	defer super.Close()
	err = d.cluster.Await(patience, "the filesystem", func() error {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		live, err := super.Datanodes(attempt, dfs.LiveDatanodes)
		if err == nil && len(live) < datanodes {
			err = fmt.Errorf("%d of %d datanodes have registered", len(live), datanodes)
		}
		return err
	})
	if err != nil {
		return err
	}
	leader, term := d.leader(ctx)
	d.say("filesystem ready: leader %s%s, %d datanodes", leader, term, datanodes)
	for _, dir := range []string{"/data", "/user/" + user, "/Projects", "/logs", "/demo"} {
		if err := super.Mkdirs(ctx, dir, 0o777, true); err != nil {
			return err
		}
		if err := super.SetPermission(ctx, dir, 0o777); err != nil {
			return err
		}
	}
	err = d.cluster.Await(patience, "the resource manager", func() error {
		nodes, err := d.client.Jobs().Nodes(ctx)
		if err == nil && len(nodes) < nodeManagers {
			err = fmt.Errorf("%d of %d node managers have registered", len(nodes), nodeManagers)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.say("resource manager ready: %d nodes, %d simulated GPUs", nodeManagers, nodeManagers*gpusPerNode)
	d.recorder = &recorder{fs: d.client.FS(), dir: "/demo"}
	return nil
}

// leader names the namenode that leads.
func (d *Demo) leader(ctx context.Context) (name, about string) {
	attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, s := range d.client.FS().HAState(attempt) {
		if s.State != "active" {
			continue
		}
		for _, n := range d.cluster.File().Namenodes {
			if n.IPC == s.Address {
				return n.ID, " at " + s.Address
			}
		}
	}
	return "", ""
}

// load puts the data into the filesystem.
func (d *Demo) load(ctx context.Context) error {
	if err := d.client.FS().WriteFile(ctx, dataPath, examples.DigitsData, true); err != nil {
		return err
	}
	d.say("put the UCI optical digits (1,797 images) at %s", dataPath)
	return nil
}

// study is the search of the demo.
func (d *Demo) study() client.Study {
	return client.Study{Spec: training.Spec{
		Name: "digits", Project: "demo",
		Space: training.Space{
			{Name: "lr", Type: training.Double, Min: 0.003, Max: 1, Log: true},
			{Name: "momentum", Type: training.Double, Min: 0, Max: 0.95},
			{Name: "batch", Type: training.Discrete, Values: []training.Value{training.Int(8), training.Int(16), training.Int(32), training.Int(64)}},
			{Name: "hidden", Type: training.Integer, Min: 4, Max: 32},
		},
		Optimizer: training.Optimizer{Type: training.ASHA, Eta: 3, RMin: 1, RMax: 27},
		Direction: training.Max, Metric: "accuracy",
		Trials: trials, Executors: executors, Seed: new(uint64(20)),
		Resources: training.Resources{Memory: 512 << 20, VCores: 1, GPUs: 1},
		Env:       map[string]string{"HOPS_RECORD": d.record()},
	}}
}

// search runs the search and kills what it runs on.
func (d *Demo) search(ctx context.Context) error {
	program, err := code.New("digits:train", map[string][]byte{"digits.py": examples.Digits})
	if err != nil {
		return err
	}
	if d.job, err = d.client.Experiments().Submit(ctx, d.study(), program); err != nil {
		return err
	}
	d.say("submitted %s: ASHA over %d trials on %d executors, one GPU each", d.job, trials, executors)
	recording, stop := context.WithCancel(ctx)
	written := make(chan struct{})
	go func() { defer close(written); d.recorder.run(recording) }()
	defer func() { stop(); <-written }()

	plan := []struct {
		ready func() bool
		kill  func(context.Context) (*kill, error)
	}{
		{func() bool { return d.ended() >= 4 }, d.killLeader},
		{func() bool { return d.ended() >= 8 && d.settled(0) }, d.killDatanode},
		{func() bool { return d.victim() != nil }, d.killExecutor},
	}
	shown := 0
	deadline := time.Now().Add(4 * patience)
	for {
		if err := sleep(ctx, 40*time.Millisecond); err != nil {
			return err
		}
		if err := d.cluster.Died(); err != nil {
			return err
		}
		job, err := d.client.Jobs().Get(ctx, d.job)
		if err != nil {
			return err
		}
		_ = d.look(ctx) // its controller may not be there yet, or any more
		if len(plan) > 0 && d.status != nil && !job.Ended() && plan[0].ready() {
			k, err := plan[0].kill(ctx)
			if err != nil {
				return err
			}
			if k != nil {
				d.kills = append(d.kills, k)
				d.say("killed %s", k.what)
				plan = plan[1:]
			}
		}
		d.settled(0)
		if n := d.ended(); n >= shown+6 {
			shown = n
			best := ""
			if b := d.status.Best; b != nil {
				best = fmt.Sprintf(", best accuracy so far %.4f (trial %v)", b.Metric, b.Trial)
			}
			d.say("%d trials have ended a run%s", n, best)
		}
		if job.Ended() {
			if !job.Succeeded() {
				return fmt.Errorf("the search ended as %s %s: %s", job.State, job.FinalStatus, job.Diagnostics)
			}
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the search did not end within %v", 4*patience)
		}
	}
	d.say("the search has ended")
	if len(plan) > 0 {
		return fmt.Errorf("the search ended before all kills were made: %d of 3 are missing", len(plan))
	}
	return nil
}

// ended counts trials that have ended at least one run.
func (d *Demo) ended() int {
	if d.status == nil {
		return 0
	}
	n := 0
	for _, t := range d.status.Trials {
		if t.State.Final() || t.State == training.Paused || t.Promoted > 0 {
			n++
		}
	}
	return n
}

// settled fills in what the kill of the leader cost, once a write was acknowledged after it; it reports whether it was.
func (d *Demo) settled(i int) bool {
	if i >= len(d.kills) {
		return false
	}
	k := d.kills[i]
	if k.cost == "" {
		if at, ok := d.recorder.firstAfter(k.at); ok {
			k.cost = fmt.Sprintf("%.2f s to the next acknowledged write", at.Sub(k.at).Seconds())
			d.say("%s: %s", k.what, k.cost)
		}
	}
	return k.cost != ""
}

func (d *Demo) killLeader(ctx context.Context) (*kill, error) {
	name, _ := d.leader(ctx)
	if name == "" {
		return nil, nil // between two leaders; later
	}
	k := &kill{what: "namenode " + name + ", the leader", at: time.Now()}
	return k, d.cluster.Kill(name)
}

func (d *Demo) killDatanode(ctx context.Context) (*kill, error) {
	k := &kill{what: "datanode dn2", at: time.Now()}
	if err := d.cluster.Kill("dn2"); err != nil {
		return nil, err
	}
	d.watched = make(chan struct{})
	go d.watchReplication(ctx)
	return k, nil
}

// look asks the controller how the search is.
func (d *Demo) look(ctx context.Context) error {
	live := &protocol.ExperimentStatus{}
	err := d.client.Jobs().Proxy(ctx, d.job, "/v1/experiments/"+d.client.Experiments().ID(d.job), live)
	if err == nil {
		d.status = live
	}
	return err
}

// midway reports whether a trial was promoted, runs, has made a checkpoint in this run, and has some epochs to go.
func midway(t protocol.TrialStatus) bool {
	return t.State == training.Running && t.Promoted > 0 && t.Executor != "" && t.Epochs > t.Budget.From && t.Budget.To-t.Epochs >= 2 && len(t.Steps) > 0
}

// victim is a trial that is midway.
func (d *Demo) victim() *protocol.TrialStatus {
	if i := slices.IndexFunc(d.status.Trials, midway); i >= 0 {
		return &d.status.Trials[i]
	}
	return nil
}

// killExecutor kills the executor of the victim, which may have come to its end since it was looked at, and the executor to another trial: so
// it stands still until the controller has said again that it has this one.
func (d *Demo) killExecutor(ctx context.Context) (*kill, error) {
	victim := d.victim()
	for _, x := range d.status.Executors {
		if x.Executor != victim.Executor {
			continue
		}
		pids := processes.Find("HOPS_CONTAINER_ID="+x.Container, "-m hops.executor")
		if len(pids) == 0 {
			return nil, nil // it has ended meanwhile; the next one
		}
		signal := func(s syscall.Signal) error {
			for _, pid := range pids {
				if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
					return err
				}
			}
			return nil
		}
		if err := signal(syscall.SIGSTOP); err != nil {
			return nil, err
		}
		if err := d.look(ctx); err != nil || !slices.ContainsFunc(d.status.Trials, func(t protocol.TrialStatus) bool {
			return midway(t) && t.Trial == victim.Trial && t.Attempt == victim.Attempt && t.Executor == victim.Executor
		}) {
			return nil, signal(syscall.SIGCONT)
		}
		k := &kill{
			what:  fmt.Sprintf("executor %s with promoted trial %v", x.Executor, victim.Trial),
			at:    time.Now(),
			trial: victim.Trial.String(), attempt: victim.Attempt,
		}
		return k, signal(syscall.SIGKILL)
	}
	return nil, nil
}

// heal waits until every block has its replicas again.
func (d *Demo) heal(ctx context.Context) error {
	k := d.kills[1]
	err := d.cluster.Await(patience, "blocks back at full replication", func() error {
		select {
		case <-d.watched:
			return nil
		default:
			return errors.New("not all blocks have three replicas")
		}
	})
	if err != nil {
		return err
	}
	k.cost = fmt.Sprintf("%d blocks replicated again, all at 3 replicas %.1f s after the kill (dead after 10 s)", d.rereplicated, d.healed.Sub(k.at).Seconds())
	d.say("%s: %s", k.what, k.cost)
	return nil
}

// watchReplication follows the number of under-replicated blocks after the datanode was killed, until it has died for
// the namenode and the number is back at zero. Every fall of the number is a block replicated again.
func (d *Demo) watchReplication(ctx context.Context) {
	defer close(d.watched)
	last, dead := int64(0), false
	for sleep(ctx, 50*time.Millisecond) == nil {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		stats, err := d.client.FS().FsStats(attempt)
		live, liveErr := d.liveDatanodes(attempt)
		cancel()
		if err != nil || liveErr != nil {
			continue
		}
		dead = dead || live < datanodes
		if stats.UnderReplicated < last {
			d.rereplicated += last - stats.UnderReplicated
		}
		last = stats.UnderReplicated
		if dead && last == 0 && d.rereplicated > 0 {
			d.healed = time.Now()
			return
		}
	}
}

func (d *Demo) liveDatanodes(ctx context.Context) (int, error) {
	super, err := d.super()
	if err != nil {
		return 0, err
	}
	defer super.Close()
	live, err := super.Datanodes(ctx, dfs.LiveDatanodes)
	return len(live), err
}

// super is a client as the user of the servers.
func (d *Demo) super() (*dfs.Client, error) {
	var ipc []string
	for _, n := range d.cluster.File().Namenodes {
		ipc = append(ipc, n.IPC)
	}
	return dfs.New(dfs.Config{Namenodes: ipc, Logger: slog.New(slog.DiscardHandler)})
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
