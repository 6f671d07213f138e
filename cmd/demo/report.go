package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// report prints what happened.
func (d *Demo) report(ctx context.Context) {
	d.heading("The cluster")
	t := d.table("role", "processes", "where")
	var nn []string
	for _, n := range d.cluster.File().Namenodes {
		nn = append(nn, n.IPC)
	}
	t.AppendRow(table.Row{"namenode", namenodes, "hdfs://" + strings.Join(nn, ", ")})
	t.AppendRow(table.Row{"datanode", datanodes, "3 replicas, 1 MiB blocks"})
	t.AppendRow(table.Row{"datanode", codedDatanodes - datanodes, "with these nine, for " + codedPolicy + " in the end"})
	t.AppendRow(table.Row{"resource manager", 1, "http://" + d.cluster.File().ResourceManagers[0].HTTP})
	t.AppendRow(table.Row{"node manager", nodeManagers, fmt.Sprintf("%d GPUs each (simulated)", gpusPerNode)})
	t.Render()

	d.heading(fmt.Sprintf("The search: ASHA, %d trials on %d executors (%s)", len(d.status.Trials), executors, d.job))
	curves := d.curves(ctx)
	t = d.table("trial", "lr", "momentum", "batch", "hidden", "epochs", "accuracy by epoch", "accuracy", "what happened")
	t.SetColumnConfigs([]table.ColumnConfig{{Name: "epochs", Align: text.AlignRight}})
	trials := slices.Clone(d.status.Trials)
	for _, s := range trials {
		metric := "-"
		if s.Metric != nil {
			metric = fmt.Sprintf("%.4f", *s.Metric)
		}
		mark := ""
		if d.status.Best != nil && d.status.Best.Trial == s.Trial {
			mark = "*"
		}
		t.AppendRow(table.Row{
			mark + s.Trial.String(), number(s.Params, "lr", "%.4f"), number(s.Params, "momentum", "%.2f"), number(s.Params, "batch", "%.0f"),
			number(s.Params, "hidden", "%.0f"), s.Epochs, sparkline(curves[s.Trial]), metric, story(s),
		})
	}
	t.Render()

	best := d.status.Best
	d.heading(fmt.Sprintf("The best: trial %v, accuracy %.4f after %d epochs", best.Trial, best.Metric, d.epochs(best.Trial)))
	d.fs("-ls", "-R", best.Dir)

	d.heading("What was killed, and what it cost")
	t = d.table("killed with SIGKILL", "at", "cost")
	for _, k := range d.kills {
		t.AppendRow(table.Row{k.what, fmt.Sprintf("%.1fs", k.at.Sub(d.started).Seconds()), k.cost})
	}
	t.Render()
	c := d.status.Counters
	fmt.Fprintf(d.Out, "%d epochs were trained, %d of them lost with the killed executor; checkpoints saved %d epochs; %d promotions\n",
		c.Epochs, c.EpochsWasted, c.EpochsResumed, c.Promotions)

	d.heading("Next")
	for _, line := range Next {
		fmt.Fprintf(d.Out, "  %-50s %s\n", line[0], line[1])
	}
	fmt.Fprintf(d.Out, "\nok: all of it happened and was checked, in %.0f s\n", time.Since(d.started).Seconds())
}

// Next are commands to go on with, in this order, each with what it does. They are tested.
var Next = [][2]string{
	{"bin/hops dev", "a cluster in one process that stays; the others in another terminal"},
	{"bin/hops fs -mkdir -p /data", "files, as with hadoop fs"},
	{"bin/hops fs -put examples/data/digits.csv.gz /data", ""},
	{"bin/hops experiment run -f examples/digits.yaml", "the search of this demo on it"},
}

func (d *Demo) heading(title string) { fmt.Fprintf(d.Out, "\n%s\n", title) }

func (d *Demo) table(columns ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(d.Out)
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	t.AppendHeader(table.Row(columns))
	return t
}

// fs runs the shell, as a user would.
func (d *Demo) fs(args ...string) {
	cmd := exec.Command(d.Binary, append([]string{"fs"}, args...)...)
	cmd.Env = append(cmd.Environ(), "HADOOP_CONF_DIR="+d.cluster.Conf(), "HADOOP_USER_NAME="+user)
	out, err := cmd.CombinedOutput()
	fmt.Fprintf(d.Out, "$ hops fs %s\n%s", strings.Join(args, " "), out)
	if err != nil {
		fmt.Fprintf(d.Out, "(%v)\n", err)
	}
}

// curves reads the accuracy of every epoch from the journal: of each step the value reported last.
func (d *Demo) curves(ctx context.Context) map[training.TrialID][]float64 {
	curves := map[training.TrialID][]float64{}
	data, err := d.client.FS().ReadFile(ctx, path.Join(d.status.Directory, "journal.jsonl"))
	if err != nil {
		return curves
	}
	for line := range bytes.Lines(data) {
		var j journalLine
		if json.Unmarshal(line, &j) != nil || j.Reported == nil {
			continue
		}
		for _, e := range j.Reported.Events {
			c := curves[j.Reported.Trial]
			for int64(len(c)) < e.Step {
				c = append(c, 0)
			}
			c[e.Step-1] = e.Metrics["accuracy"].Value
			curves[j.Reported.Trial] = c
		}
	}
	return curves
}

func (d *Demo) epochs(id training.TrialID) int {
	for _, t := range d.status.Trials {
		if t.Trial == id {
			return t.Epochs
		}
	}
	return 0
}

// sparkline draws accuracies from 0 to 1.
func sparkline(values []float64) string {
	const bars = "▁▂▃▄▅▆▇█"
	var b strings.Builder
	for _, v := range values {
		b.WriteRune([]rune(bars)[min(7, max(0, int(v*8)))])
	}
	return b.String()
}

func number(p training.Params, name, format string) string {
	v, ok := p[name]
	if !ok {
		return "-"
	}
	f, _ := v.Float()
	return fmt.Sprintf(format, f)
}

// story is a trial's life in a few words.
func story(s protocol.TrialStatus) string {
	var words []string
	if s.Promoted > 0 {
		words = append(words, fmt.Sprintf("promoted %dx", s.Promoted))
	}
	if lost := s.Attempt - 1 - s.Promoted; lost > 0 {
		words = append(words, fmt.Sprintf("resumed %dx after a kill", lost))
	}
	words = append(words, strings.ToLower(string(s.State)))
	return strings.Join(words, ", ")
}
