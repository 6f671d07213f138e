// Command sim measures the quality of scheduling: jobs like those of Philly's clusters, at several loads and seeds, on the scheduler
// and on what it is compared with, in the simulator. `make bench-sim` runs it; equal programs give equal results.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/simulator"
)

const (
	nodes, perNode = 16, 8
	jobs, days     = 1500, 7
	seeds          = 2
)

var (
	loads  = []float64{0.8, 0.95, 1.1}
	queues = []string{"vc1", "vc2", "vc3", "vc4", "vc5"}
)

// giveUp is how long a master holds a part of its gang: as the masters of Philly, two minutes (Jeon et al., ATC 2019), which of those that
// were tried (2, 15, 60 minutes) is also best for yarn-like.
const giveUp = 2 * time.Minute

func policies() []simulator.Policy {
	yarn := simulator.YARN{GiveUp: giveUp.Milliseconds(), Backoff: time.Minute.Milliseconds()}
	preempting, unreserved := yarn, yarn
	preempting.Preempt, unreserved.Unreserved = true, true
	return []simulator.Policy{simulator.Hops{}, simulator.Hops{Preempt: true}, simulator.Hops{Preempt: true, Answers: true}, yarn, preempting, unreserved, simulator.Slurm{Tree: true}}
}

// row is one policy at one load, the means over the seeds.
type row struct {
	Load       float64 `json:"load"`
	Policy     string  `json:"policy"`
	Completion float64 `json:"completion_mean_hours"`
	Waiting    float64 `json:"waiting_mean_hours"`
	Ratio      float64 `json:"completion_over_hops"`
	Lowest     float64 `json:"completion_over_hops_lowest"`
	Highest    float64 `json:"completion_over_hops_highest"`
	Busy       float64 `json:"gpus_at_work"`
	Trials     float64 `json:"gpus_at_work_while_a_trial_waits_lowest"`
	Lost       float64 `json:"lost_to_preemption_gpu_hours"`
	Rho        float64 `json:"finish_time_fairness_mean"`
	Unfinished int     `json:"unfinished"`
}

func main() {
	out := flag.String("out", "integration/bench/results", "`directory` for the results")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench-sim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	text := fmt.Sprintf("nodes:\n- {name: gpu, count: %d, gpus: %d, model: H100, island: 8, memory: 1TiB, vcores: 96, rack: /hall1, nodes_per_rack: 8}\n", nodes, perNode)
	cluster, err := simulator.ReadCluster("cluster", []byte(text))
	if err != nil {
		return err
	}
	tree, err := simulator.EvenQueues(queues)
	if err != nil {
		return err
	}
	var rows []row
	var shown []*simulator.Result
	for _, load := range loads {
		got, first, err := atLoad(ctx, cluster, tree, load)
		if err != nil {
			return err
		}
		if load == 0.95 {
			shown = first
		}
		rows = append(rows, got...)
		fmt.Printf("load %.2f done\n", load)
	}
	page, err := markdown(rows, shown)
	if err != nil {
		return err
	}
	fmt.Println(page)
	raw, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		return err
	}
	files := map[string][]byte{"sim.md": []byte(page), "sim.json": append(raw, '\n')}
	for name, svg := range simulator.Plots(shown) {
		files["sim-"+name] = []byte(svg)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// atLoad simulates every policy with every seed; the results are those of the first seed.
func atLoad(ctx context.Context, cluster *simulator.Cluster, tree *rm.Queues, load float64) ([]row, []*simulator.Result, error) {
	all := policies()
	rows := make([]row, len(all))
	var first []*simulator.Result
	for seed := range uint64(seeds) {
		w, err := simulator.Generate(simulator.Philly{Seed: seed + 1, Jobs: jobs, Load: load, GPUs: nodes * perNode, PerNode: perNode, Days: days, Queues: queues})
		if err != nil {
			return nil, nil, err
		}
		hours := 0.0 // of hops
		for i, p := range all {
			r, err := simulator.Run(ctx, simulator.Config{Cluster: cluster, Workload: w, Queues: tree, Policy: p})
			if err != nil {
				return nil, nil, err
			}
			if seed == 0 {
				first = append(first, r)
			}
			completion := float64(r.Completion.Mean) / float64(time.Hour.Milliseconds())
			if i == 0 {
				hours = completion
			}
			ratio := completion / hours
			x := &rows[i]
			if seed == 0 {
				*x = row{Load: load, Policy: r.Name(), Trials: 1, Lowest: ratio, Highest: ratio}
			}
			x.Completion += completion / seeds
			x.Waiting += float64(r.Waiting.Mean) / float64(time.Hour.Milliseconds()) / seeds
			x.Ratio += ratio / seeds
			x.Lowest, x.Highest = min(x.Lowest, ratio), max(x.Highest, ratio)
			x.Busy += r.Utilisation / seeds
			if r.TrialsWaited > 0 {
				x.Trials = min(x.Trials, r.BusyWhileTrials)
			}
			x.Lost += float64(r.LostToPreemption) / 3600 / seeds
			x.Rho += r.RhoMean / seeds
			x.Unfinished += r.Unfinished
		}
	}
	return rows, first, nil
}

func markdown(rows []row, shown []*simulator.Result) (string, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Quality of scheduling\n\n%d jobs over %d days on %d nodes of %d GPUs, drawn like those of Philly's clusters, %d seeds; %d queues with the same guarantee, of which the first gets most jobs. "+
		"The scheduler itself and policies like its peers, in `hops sim`: [what they leave out](../../../resourcemanager/simulator/DESIGN.md). `make bench-sim` makes this page again, byte for byte.\n\n",
		jobs, days, nodes, perNode, seeds, len(queues))
	t := simulator.Table{Title: "Means over the seeds; the ratio with its range", Header: []string{
		"load", "policy", "completion, hours", "over hops", "waiting, hours", "GPUs at work", "the same while a 1-GPU trial waits, lowest", "lost to preemption, GPU-hours", "finish-time fairness", "unfinished",
	}}
	for _, r := range rows {
		t.Rows = append(t.Rows, []string{
			fmt.Sprintf("%.2f", r.Load), r.Policy, fmt.Sprintf("%.2f", r.Completion), fmt.Sprintf("%.2f (%.2f-%.2f)", r.Ratio, r.Lowest, r.Highest), fmt.Sprintf("%.2f", r.Waiting),
			fmt.Sprintf("%.1f %%", 100*r.Busy), fmt.Sprintf("%.1f %%", 100*r.Trials), fmt.Sprintf("%.0f", r.Lost), fmt.Sprintf("%.2f", r.Rho), fmt.Sprint(r.Unfinished),
		})
	}
	if err := t.WriteMarkdown(&b); err != nil {
		return "", err
	}
	b.WriteString("\n" + verdict(rows) + "\n## One of them: load 0.95, seed 1\n\n![Completion times](sim-completion.svg)\n\n![GPUs at work](sim-utilisation.svg)\n\n![Waiting by size](sim-waiting.svg)\n\n")
	for i, t := range simulator.Tables(shown) {
		if i > 0 {
			b.WriteString("\n")
		}
		if err := t.WriteMarkdown(&b); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// verdict holds the goals against the rows.
func verdict(rows []row) string {
	var b strings.Builder
	kept := func(ok bool) string {
		if ok {
			return "reached"
		}
		return "**missed**"
	}
	of := func(load float64, policy string) row {
		return rows[slices.IndexFunc(rows, func(r row) bool { return r.Load == load && r.Policy == policy })]
	}
	names := make([]string, 0, len(policies()))
	for _, p := range policies() {
		names = append(names, p.Name())
	}
	b.WriteString("Goals:\n\n")
	for _, load := range loads {
		ours := of(load, names[0])
		best := min(of(load, names[1]).Ratio, of(load, names[2]).Ratio)
		fmt.Fprintf(&b, "- load %.2f: mean completion ≤ 1/1.5 of yarn-like's: 1/%.2f of the better one of those that YARN can be told to be, %s; beside one without reservations, which YARN cannot be told, 1/%.2f.\n",
			load, best, kept(best >= 1.5), of(load, names[3]).Ratio)
		fmt.Fprintf(&b, "- load %.2f: ≥ 95 %% of the GPUs at work while a 1-GPU trial waits: %.1f %% in the worst seed, %s.\n", load, 100*ours.Trials, kept(ours.Trials >= 0.95))
		fmt.Fprintf(&b, "- load %.2f: work lost to preemption ≤ 10 %% of yarn-like's (%.0f GPU-hours): %.0f; the scheduler does not preempt for queues yet, so this says nothing.\n", load, of(load, names[2]).Lost, ours.Lost)
	}
	return b.String()
}
