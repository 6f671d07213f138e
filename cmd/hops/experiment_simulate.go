package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	curves "github.com/gohops/hops/training/simulate"
)

func simulateCommand() *cli.Command {
	return &cli.Command{
		Name: "simulate", Usage: "run searches over recorded learning curves, in virtual time and without a cluster", ArgsUsage: "STUDY.yaml ...",
		Description: "The search and its early stopping are those that a cluster runs. An epoch takes the time that stands in the curves. The space\n" +
			"is id, the number of a recorded configuration, or some of their columns: then a configuration is the recorded one nearest\n" +
			"to it. Each study is one row of the table; the means and, in parentheses, standard deviations over the seeds.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "curves", Usage: "CSV `FILE`, perhaps packed with gzip: id, parameters, epoch_ms, val_1, val_2, ..., test_1, ...; or what hops experiment export --curves writes", Required: true},
			&cli.IntFlag{Name: "workers", Aliases: []string{"w"}, Usage: "`NUMBER` of trials at a time", DefaultText: "the study's executors"},
			&cli.Float64Flag{Name: "budget", Aliases: []string{"b"}, Usage: "end after the time of `NUMBER` full trials of median length", DefaultText: "when the search is over"},
			&cli.IntFlag{Name: "seeds", Usage: "repeat it with `NUMBER` seeds, from the study's on", Value: 1},
			&cli.BoolFlag{Name: "scratch", Usage: "trials save no checkpoints: a promoted one begins again"},
			&cli.BoolFlag{Name: "barrier", Usage: "new trials begin only when all workers are free, as in bulk-synchronous stages"},
			outputFlag(),
		},
		Action: simulateStudies,
	}
}

// maxSeeds bounds how often a study is simulated.
const maxSeeds = 10_000

func simulateStudies(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	switch n := c.Int("seeds"); {
	case c.NArg() == 0:
		return fail(exitUsage, "experiment simulate: name a study: hops experiment simulate study.yaml --curves FILE")
	case n < 1 || n > maxSeeds:
		return fail(exitUsage, "--seeds %d is outside 1 … %d", n, maxSeeds)
	case c.IsSet("workers") && (c.Int("workers") < 1 || c.Int("workers") > training.MaxExecutors):
		return fail(exitUsage, "--workers %d is outside 1 … %d", c.Int("workers"), training.MaxExecutors)
	case c.IsSet("budget") && !(c.Float64("budget") > 0):
		return fail(exitUsage, "--budget %g is not above 0", c.Float64("budget"))
	}
	table, err := readCurves(c.String("curves"))
	if err != nil {
		return &statusError{exitUsage, err}
	}
	type row struct {
		Study string `json:"study"`
		curves.Summary
	}
	var rows []row
	for _, file := range c.Args().Slice() {
		spec, err := readStudy(c, file)
		if err != nil {
			return &statusError{exitUsage, err}
		}
		if c.IsSet("workers") {
			spec.Executors = c.Int("workers")
		}
		study := curves.Study{Spec: spec, Table: table, Budget: c.Float64("budget"), Scratch: c.Bool("scratch"), Barrier: c.Bool("barrier")}
		if err := table.Check(spec.Space); err != nil {
			return fail(exitUsage, "%s: %s: %v", file, c.String("curves"), err)
		}
		s, err := curves.Repeat(study, c.Int("seeds"))
		if err != nil {
			return fail(exitFailed, "%s: %v", file, err)
		}
		name := spec.Name
		if name == "no-name" {
			name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		}
		rows = append(rows, row{name, s})
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(rows)
	}
	t := newTable(c.App.Writer, "STUDY", "BEST", "TEST", "FINAL", "TRIALS", "ENDED", "STOPPED", "EPOCHS", "TIME")
	for _, r := range rows {
		test := "-"
		if r.Test != nil {
			test = fmt.Sprintf("%.4f", r.Test.Mean)
		}
		t.row(r.Study, fmt.Sprintf("%.4f (%.4f)", r.Best.Mean, r.Best.Std), test, fmt.Sprintf("%.4f", r.BestFinal.Mean),
			fmt.Sprintf("%.0f (%.0f)", r.Trials.Mean, r.Trials.Std), fmt.Sprintf("%.0f", r.Ended.Mean), fmt.Sprintf("%.0f", r.Stopped.Mean), fmt.Sprintf("%.0f", r.Epochs.Mean),
			(time.Duration(r.Time.Mean) * time.Millisecond).String())
	}
	return t.flush()
}

func readCurves(name string) (*curves.Table, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	table, err := curves.ReadTable(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return table, nil
}

// readStudy reads a study that need not have a function.
func readStudy(c *cli.Context, file string) (*training.Spec, error) {
	var study client.Study
	if err := readDocument(file, c.App.Reader, &study); err != nil {
		return nil, err
	}
	study.Entry, study.Code = "recorded:curves", nil // what is searched stands in the curves
	study.SetDefaults("simulated")
	if err := study.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &study.Spec, nil
}

func replayCommand() *cli.Command {
	return &cli.Command{
		Name: "replay", Usage: "make every suggestion of an experiment again, and say what another early stopping would have done", ArgsUsage: "ID|JOURNAL",
		Description: "Each suggestion and decision in the journal is compared with what this program makes of the ones before: bit for bit, on a processor of the architecture that the search ran on.\n" +
			"With --stop the curves that were recorded go through another policy, in the order in which they were reported.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "stop", Usage: "`POLICY`: none, median, percentile or threshold"},
			&cli.IntFlag{Name: "es-min", Usage: "--stop is silent until more than `NUMBER` trials have ended", Value: 10},
			&cli.IntFlag{Name: "interval", Usage: "--stop looks at every `NUMBER`-th step", Value: 1},
			&cli.IntFlag{Name: "warmup", Usage: "--stop looks at no trial before `NUMBER` steps"},
			&cli.Float64Flag{Name: "percentile", Usage: "trials among the best `PERCENT` go on"},
			&cli.Float64Flag{Name: "threshold", Usage: "trials at least as good as `VALUE` go on"},
			confFlag(), userFlag(), outputFlag(),
		},
		Action: replayExperiment,
	}
}

func replayExperiment(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	if c.NArg() != 1 {
		return fail(exitUsage, "experiment replay: name one experiment, or the file of a journal")
	}
	for _, name := range []string{"es-min", "interval", "warmup", "percentile", "threshold"} {
		if c.IsSet(name) && !c.IsSet("stop") {
			return fail(exitUsage, "--%s is of no use without --stop", name)
		}
	}
	journal, err := openJournal(c, c.Args().First())
	if err != nil {
		return err
	}
	entries, err := curves.ReadJournal(journal)
	if err := journal.Close(); err != nil {
		return err
	}
	if err != nil {
		return fail(exitFailed, "%s: %v", c.Args().First(), err)
	}
	out := struct {
		curves.Replayed
		WhatIf *curves.WhatIf `json:"what_if,omitempty"`
	}{Replayed: curves.Replay(entries)}
	if c.IsSet("stop") {
		if out.WhatIf, err = whatIf(c, entries); err != nil {
			return &statusError{exitUsage, err}
		}
	}
	if asJSON {
		if err := json.NewEncoder(c.App.Writer).Encode(out); err != nil {
			return err
		}
	} else if err := printReplay(c, out.Replayed, out.WhatIf); err != nil {
		return err
	}
	if out.Differs != "" {
		return fail(exitFailed, "the search of this program is not that of the journal: %s", out.Differs)
	}
	return nil
}

// openJournal opens a file of this machine if there is one of the name, else an experiment's journal.
func openJournal(c *cli.Context, name string) (io.ReadCloser, error) {
	if f, err := os.Open(name); err == nil || strings.ContainsAny(name, "/.") {
		return f, err
	}
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
	r, err := cl.Experiments().Journal(c.Context, name)
	if err != nil {
		cl.Close()
		return nil, explain(err)
	}
	return &dialled{r, cl}, nil
}

// dialled closes its client after itself.
type dialled struct {
	io.ReadCloser
	client io.Closer
}

func (d *dialled) Close() error {
	err := d.ReadCloser.Close()
	d.client.Close()
	return err
}

func whatIf(c *cli.Context, entries []*experiment.Entry) (*curves.WhatIf, error) {
	policy := training.EarlyStop{Policy: c.String("stop"), Min: new(c.Int("es-min")), Interval: c.Int("interval"), Warmup: c.Int("warmup")}
	if c.IsSet("percentile") {
		policy.Percentile = new(c.Float64("percentile"))
	}
	if c.IsSet("threshold") {
		policy.Threshold = new(c.Float64("threshold"))
	}
	return curves.If(entries, policy)
}

func printReplay(c *cli.Context, r curves.Replayed, w *curves.WhatIf) error {
	out := c.App.Writer
	fmt.Fprintf(out, "%d entries: %d suggestions and %d decisions are made again as they were\n", r.Entries, r.Suggestions, r.Decisions)
	if w == nil {
		return nil
	}
	share := 0.0
	if w.Epochs > 0 {
		share = 100 * float64(w.Saved) / float64(w.Epochs)
	}
	fmt.Fprintf(out, "early stopping %s would have stopped %d of %d trials (%d were) and saved %d of %d epochs (%.0f %%)\n",
		w.Policy.Policy, len(w.Stopped), w.Trials, w.StoppedInFact, w.Saved, w.Epochs, share)
	switch {
	case w.BestValue == nil:
		fmt.Fprintln(out, "no trial has ended with a value")
	case w.BestSurvives:
		fmt.Fprintf(out, "the best trial, %v with %s %.6g, would have survived\n", w.Best, w.Metric, *w.BestValue)
	case w.NextValue == nil:
		fmt.Fprintf(out, "the best trial, %v with %s %.6g, would have been stopped, as would all others\n", w.Best, w.Metric, *w.BestValue)
	default:
		fmt.Fprintf(out, "the best trial, %v with %s %.6g, would have been stopped; the best left is %v with %.6g\n", w.Best, w.Metric, *w.BestValue, w.Next, *w.NextValue)
	}
	if len(w.Stopped) == 0 {
		return nil
	}
	t := newTable(out, "TRIAL", "STEP", "SAVED", "VALUE", "REASON")
	for _, s := range w.Stopped {
		value := "-"
		if s.Value != nil {
			value = fmt.Sprintf("%.5g", *s.Value)
		}
		t.row(s.Trial.String(), fmt.Sprint(s.Step), fmt.Sprint(s.Saved), value, s.Reason)
	}
	return t.flush()
}
