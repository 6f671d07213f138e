package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
	rm "github.com/gohops/hops/resourcemanager"
	rmserver "github.com/gohops/hops/resourcemanager/server"
	"github.com/gohops/hops/resourcemanager/simulator"
)

func simCommand() *cli.Command {
	inputs := []cli.Flag{
		&cli.StringFlag{Name: "jobs", Required: true, Usage: "`FILE` of jobs, - for standard input"},
		&cli.StringFlag{Name: "cluster", Required: true, Usage: "`FILE` of machines: YAML, or the nodes of Hadoop's SLS (.json)"},
		&cli.StringFlag{Name: "format", Value: "auto", Usage: "`FORMAT` of the jobs: hops, sls, philly, auto"},
		&cli.IntFlag{Name: "gpus-per-node", Value: 8, Usage: "with philly: jobs of more GPUs are gangs with so many `GPUS` in a member"},
		&cli.StringFlag{Name: "json", Usage: "write all results to `FILE`, each job among them"},
		&cli.StringFlag{Name: "plots", Usage: "write plots to `DIR`: completion.svg, utilisation.svg, waiting.svg"},
		&cli.BoolFlag{Name: "timing", Usage: "say how much CPU the schedulers took, which differs from run to run"},
		outputFlag(),
	}
	yarnFlags := []cli.Flag{
		&cli.DurationFlag{Name: "yarn-give-up", Value: 2 * time.Minute, Usage: "yarn: a master that holds a part of its gang in vain gives it back after `TIME`; 0: never"},
		&cli.BoolFlag{Name: "preempt", Usage: "hops: take back what queues borrowed, as the resource manager does; programs that write checkpoints write one when they are told to go"},
		&cli.BoolFlag{Name: "defragment", Usage: "hops: beside that, once more with containers that write checkpoints moved so that others find room in one piece; implies --preempt"},
		&cli.BoolFlag{Name: "yarn-preempt", Usage: "yarn: take back what queues borrowed, as its monitor does when it is switched on"},
		&cli.BoolFlag{Name: "yarn-unreserved", Usage: "yarn: reserve no nodes for containers that do not fit yet, which YARN cannot be told"},
	}
	return &cli.Command{
		Name:  "sim",
		Usage: "replay jobs on the scheduler in virtual time: run, compare, generate, record",
		Subcommands: []*cli.Command{
			{
				Name:  "run",
				Usage: "simulate jobs under one or more policies",
				Description: "hops sim run --cluster cluster.yaml --jobs jobs.jsonl --policy hops,yarn,slurm\n\n" +
					"Equal input gives equal output. The policies are hops (the scheduler of the resource manager itself),\n" +
					"yarn (like YARN's CapacityScheduler) and slurm (like Slurm with backfill).",
				Flags: append(append([]cli.Flag{
					&cli.StringFlag{Name: "queues", Usage: "`FILE` with the queues: a configuration of hops, or its part queues; default: a queue for each that jobs name, all with the same guarantee"},
					&cli.StringFlag{Name: "policy", Value: "hops,yarn,slurm", Usage: "`POLICIES` with commas"},
				}, yarnFlags...), inputs...),
				Action: simRun,
			},
			{
				Name:      "compare",
				Usage:     "simulate jobs under several configurations of queues, and say what changes for each queue",
				ArgsUsage: "A.yaml B.yaml ...",
				Description: "hops sim compare --cluster cluster.yaml --jobs jobs.jsonl today.yaml tomorrow.yaml\n\n" +
					"Each file is a configuration of hops, or its part queues.",
				Flags:  inputs,
				Action: simCompare,
			},
			{
				Name:  "generate",
				Usage: "draw jobs like those of Microsoft's Philly clusters, and a cluster for them",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "jobs", Required: true, Usage: "write the jobs to `FILE`"},
					&cli.StringFlag{Name: "cluster", Usage: "write a cluster for them to `FILE`"},
					&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "equal seeds draw equal jobs"},
					&cli.IntFlag{Name: "count", Value: 4000, Usage: "how many jobs"},
					&cli.Float64Flag{Name: "days", Value: 14, Usage: "from the first arrival to the last"},
					&cli.Float64Flag{Name: "load", Value: 0.95, Usage: "GPU time that the jobs need, as a part of what there is"},
					&cli.IntFlag{Name: "nodes", Value: 32, Usage: "machines of the cluster, each with 8 GPUs joined by NVLink, 8 machines a rack"},
					&cli.StringFlag{Name: "queues", Value: "vc1,vc2,vc3,vc4,vc5", Usage: "`NAMES` of queues with commas: the second gets half as many jobs as the first, the third a third, ..."},
				},
				Action: simGenerate,
			},
			{
				Name:  "record",
				Usage: "write down the jobs that a running cluster remembers, and its machines",
				Description: "hops sim record --jobs jobs.jsonl --cluster cluster.yaml --since 168h\n\n" +
					"At most the newest 10000 jobs. Jobs that have not ended are left out.",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "jobs", Required: true, Usage: "write the jobs to `FILE`"},
					&cli.StringFlag{Name: "cluster", Usage: "write the machines to `FILE`"},
					&cli.DurationFlag{Name: "since", Usage: "only jobs that were submitted at most so long ago", DefaultText: "all"},
					confFlag(), userFlag(),
				},
				Action: simRecord,
			},
		},
	}
}

// simInput is what run and compare read.
type simInput struct {
	cluster  *simulator.Cluster
	workload *simulator.Workload
	asJSON   bool
}

func readSimInput(c *cli.Context) (*simInput, error) {
	in := &simInput{}
	var err error
	if in.asJSON, err = wantJSON(c); err != nil {
		return nil, err
	}
	name := c.String("cluster")
	file, err := os.Open(name)
	if err != nil {
		return nil, fail(exitUsage, "--cluster: %w", err)
	}
	defer file.Close()
	if strings.HasSuffix(name, ".json") {
		in.cluster, err = simulator.ReadSLSNodes(name, file)
	} else {
		var text []byte
		if text, err = io.ReadAll(io.LimitReader(file, 64<<20)); err == nil {
			in.cluster, err = simulator.ReadCluster(name, text)
		}
	}
	if err != nil {
		return nil, &statusError{exitUsage, err}
	}
	if in.workload, err = readWorkload(c); err != nil {
		return nil, &statusError{exitUsage, err}
	}
	if len(in.workload.Jobs) == 0 {
		return nil, fail(exitUsage, "%s holds no job", c.String("jobs"))
	}
	for _, why := range sorted(in.workload.Skipped) {
		fmt.Fprintf(c.App.ErrWriter, "skipped %d jobs: %s\n", in.workload.Skipped[why], why)
	}
	return in, nil
}

func readWorkload(c *cli.Context) (*simulator.Workload, error) {
	name := c.String("jobs")
	r := c.App.Reader
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		r = file
	}
	b := bufio.NewReaderSize(r, 1<<16)
	format := c.String("format")
	if format == "auto" {
		start, err := b.Peek(4096)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		format = simulator.Format(start)
	}
	switch format {
	case "hops":
		return simulator.ReadJobs(name, b)
	case "sls":
		return simulator.ReadSLS(name, b)
	case "philly":
		return simulator.ReadPhilly(name, b, c.Int("gpus-per-node"))
	}
	return nil, fmt.Errorf("--format: %q is none of hops, sls, philly, auto", format)
}

func sorted(m map[string]int) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// readQueues reads the tree of queues of a configuration: a whole one, or the part queues alone.
func readQueues(name string) (*rm.Queues, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var file struct {
		Queues          config.Queues `yaml:"queues"`
		ResourceManager struct {
			Queues config.Queues `yaml:"queues"`
		} `yaml:"resourcemanager"`
	}
	if err := yaml.UnmarshalStrict(name, text, &file); err != nil {
		wrong, ok := errors.AsType[*yaml.Mistakes](err)
		if !ok || wrong.Hides() {
			return nil, err
		}
		ours := *wrong // what else a configuration says is not looked at
		ours.List = slices.DeleteFunc(slices.Clone(wrong.List), func(m yaml.Mistake) bool {
			return !strings.HasPrefix(m.Key, "queues.") && !strings.HasPrefix(m.Key, "resourcemanager.queues.")
		})
		if len(ours.List) > 0 {
			return nil, &ours
		}
	}
	from := file.ResourceManager.Queues
	if from == nil {
		from = file.Queues
	}
	if _, ok := from["root"]; !ok || len(from) != 1 {
		return nil, fmt.Errorf("%s: there is no resourcemanager.queues, or queues, with the one queue root at the top", name)
	}
	queues, err := rm.NewQueues(rmserver.Queues(from))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return queues, nil
}

func simRun(c *cli.Context) error {
	var policies []simulator.Policy
	for name := range strings.SplitSeq(c.String("policy"), ",") {
		switch strings.TrimSpace(name) {
		case "hops":
			moves := c.Bool("defragment")
			preempt := c.Bool("preempt") || moves
			policies = append(policies, simulator.Hops{Preempt: preempt, Answers: preempt})
			if moves {
				policies = append(policies, simulator.Hops{Preempt: true, Answers: true, Defragment: true})
			}
		case "yarn":
			giveUp := c.Duration("yarn-give-up")
			if giveUp < 0 {
				return fail(exitUsage, "--yarn-give-up: %v is negative", giveUp)
			}
			policies = append(policies, simulator.YARN{Preempt: c.Bool("yarn-preempt"), GiveUp: giveUp.Milliseconds(), Backoff: time.Minute.Milliseconds(), Unreserved: c.Bool("yarn-unreserved")})
		case "slurm":
			policies = append(policies, simulator.Slurm{Tree: true})
		default:
			return fail(exitUsage, "--policy: %q is none of hops, yarn, slurm", name)
		}
	}
	in, err := readSimInput(c)
	if err != nil {
		return err
	}
	queues, err := simulator.EvenQueues(in.workload.QueueNames())
	if name := c.String("queues"); name != "" {
		queues, err = readQueues(name)
	}
	if err != nil {
		return &statusError{exitUsage, err}
	}
	var results []*simulator.Result
	for _, p := range policies {
		r, err := simulate(c, simulator.Config{Cluster: in.cluster, Workload: in.workload, Queues: queues, Policy: p})
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	return showSimulation(c, in, results, nil)
}

func simCompare(c *cli.Context) error {
	if c.NArg() < 2 || c.NArg() > 6 {
		return fail(exitUsage, "sim compare: name two to six files with queues")
	}
	var trees []*rm.Queues
	for _, name := range c.Args().Slice() {
		q, err := readQueues(name)
		if err != nil {
			return &statusError{exitUsage, err}
		}
		trees = append(trees, q)
	}
	in, err := readSimInput(c)
	if err != nil {
		return err
	}
	var results []*simulator.Result
	for i, q := range trees {
		r, err := simulate(c, simulator.Config{Cluster: in.cluster, Workload: in.workload, Queues: q, Policy: simulator.Hops{}})
		if err != nil {
			return err
		}
		r.Label = filepath.Base(c.Args().Get(i))
		if slices.ContainsFunc(results, func(o *simulator.Result) bool { return o.Label == r.Label }) {
			r.Label = c.Args().Get(i)
		}
		results = append(results, r)
	}
	var more []simulator.Table
	for _, r := range results[1:] {
		more = append(more, simulator.Differences(results[0], r))
	}
	return showSimulation(c, in, results, more)
}

// simulate runs one simulation, with the clock of the process when CPU is asked for.
func simulate(c *cli.Context, s simulator.Config) (*simulator.Result, error) {
	if c.Bool("timing") {
		s.Clock = func() time.Duration {
			var u unix.Rusage
			if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
				return 0
			}
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	r, err := simulator.Run(c.Context, s)
	if err != nil && c.Context.Err() != nil {
		return nil, &statusError{exitInterrupted, errors.New("interrupted; nothing was written")}
	}
	return r, err
}

// showSimulation prints results and writes the files that were asked for.
func showSimulation(c *cli.Context, in *simInput, results []*simulator.Result, more []simulator.Table) error {
	if dir := c.String("plots"); dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		plots := simulator.Plots(results)
		for name, svg := range plots {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644); err != nil {
				return err
			}
		}
	}
	if name := c.String("json"); name != "" {
		text, err := json.MarshalIndent(results, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if in.asJSON {
		short := make([]simulator.Result, len(results))
		for i, r := range results {
			short[i] = *r
			short[i].PerJob = nil
		}
		return json.NewEncoder(c.App.Writer).Encode(short)
	}
	fmt.Fprintf(c.App.Writer, "%d jobs on %d nodes with %d GPUs\n", results[0].Jobs, results[0].Nodes, results[0].GPUs)
	for _, t := range append(simulator.Tables(results), more...) {
		fmt.Fprintln(c.App.Writer)
		if err := t.WriteText(c.App.Writer); err != nil {
			return err
		}
	}
	for _, r := range results {
		if c.Bool("timing") {
			fmt.Fprintf(c.App.ErrWriter, "%s: %.2f s CPU in %d passes\n", r.Name(), r.CPU, r.Passes)
		}
		if r.Unfinished > 0 {
			fmt.Fprintf(c.App.ErrWriter, "%s: %d jobs still waited when nothing moved any more; times are of the others\n", r.Name(), r.Unfinished)
		}
	}
	return nil
}

func simGenerate(c *cli.Context) error {
	const perNode = 8
	queues := strings.Split(c.String("queues"), ",")
	for i := range queues {
		queues[i] = strings.TrimSpace(queues[i])
	}
	nodes := c.Int("nodes")
	if nodes < 1 || nodes > 100_000 {
		return fail(exitUsage, "--nodes: %d is not between 1 and 100000", nodes)
	}
	if _, err := simulator.EvenQueues(queues); err != nil {
		return fail(exitUsage, "--queues: %w", err)
	}
	w, err := simulator.Generate(simulator.Philly{
		Seed: c.Uint64("seed"), Jobs: c.Int("count"), Load: c.Float64("load"), GPUs: nodes * perNode, PerNode: perNode, Days: c.Float64("days"), Queues: queues,
	})
	if err != nil {
		return &statusError{exitUsage, err}
	}
	comment := fmt.Sprintf("seed %d, %d jobs, %g days, load %g on %d GPUs", c.Uint64("seed"), c.Int("count"), c.Float64("days"), c.Float64("load"), nodes*perNode)
	cluster := fmt.Sprintf("nodes:\n- {name: gpu, count: %d, gpus: %d, model: H100, island: %d, memory: 1TiB, vcores: 96, rack: /hall1, nodes_per_rack: 8}\n", nodes, perNode, perNode)
	return writeSimFiles(c, w, cluster, comment)
}

// writeSimFiles writes jobs, and a cluster when it is asked for.
func writeSimFiles(c *cli.Context, w *simulator.Workload, cluster, comment string) error {
	var jobs bytes.Buffer
	if err := w.Write(&jobs, comment); err != nil {
		return err
	}
	if err := os.WriteFile(c.String("jobs"), jobs.Bytes(), 0o644); err != nil {
		return err
	}
	if name := c.String("cluster"); name != "" {
		if err := os.WriteFile(name, []byte(cluster), 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.App.Writer, "%d jobs in %d queues written to %s\n", len(w.Jobs), len(w.QueueNames()), c.String("jobs"))
	return nil
}
