package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/convert"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/registry"
	"github.com/gohops/hops/training/store"
)

// historyCommands look at experiments that have been, and clean up after them.
func historyCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "compare", Usage: "set experiments side by side: best value, cost, and the settings that differ", ArgsUsage: "ID ID ...",
			Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()}, Action: compareExperiments,
		},
		{
			Name: "diff", Usage: "show what differs between two experiments: specification, code, environment, data", ArgsUsage: "ID ID",
			Description: "Exits with 1 if anything differs. What was not recorded is named on standard error.",
			Flags:       []cli.Flag{confFlag(), userFlag(), outputFlag()}, Action: diffExperiments,
		},
		{
			Name: "export", Usage: "write the trials of an experiment as a table", ArgsUsage: "ID",
			Description: "One row per trial: parameters, metric, state, times. With --curves one row per step.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "format", Usage: "`FORMAT`: csv, json or parquet; default: by the name of --file, else csv"},
				&cli.StringFlag{Name: "file", Aliases: []string{"o"}, Usage: "`FILE` to write, instead of standard output"},
				&cli.BoolFlag{Name: "curves", Usage: "the metric at each step of each trial"},
				confFlag(), userFlag(),
			},
			Action: exportExperiment,
		},
		{
			Name: "prune", Usage: "remove experiments that have ended, or their checkpoints", ArgsUsage: "[ID ...]",
			Description: "hops experiment prune --older-than 30d --keep-best 3\nhops experiment prune --state FAILED,KILLED --checkpoints-only --yes\n\n" +
				"What all rules agree on goes; it is shown first. One that runs never goes, and one that a registered model is made\nof only with --force.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "project", Usage: "only those of `PROJECT`"},
				&cli.StringFlag{Name: "older-than", Usage: "ended longer ago than `TIME`: 30d, 12h"},
				&cli.StringSliceFlag{Name: "state", Usage: "in `STATE`: FINISHED, FAILED, KILLED"},
				&cli.IntFlag{Name: "keep-best", Usage: "keep the `NUMBER` best of each project, name and metric"},
				&cli.BoolFlag{Name: "checkpoints-only", Usage: "remove the checkpoints of the trials and keep the rest"},
				&cli.BoolFlag{Name: "force", Usage: "also those that registered models are made of"},
				&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
				confFlag(), userFlag(), outputFlag(),
			},
			Action: pruneExperiments,
		},
		{
			Name: "tag", Usage: "set, remove or show tags of an experiment", ArgsUsage: "ID [KEY=VALUE ...]",
			Flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "delete", Aliases: []string{"d"}, Usage: "remove `KEY`"},
				confFlag(), userFlag(), outputFlag(),
			},
			Action: tagExperiment,
		},
		{
			Name: "note", Usage: "write or show the note of an experiment", ArgsUsage: "ID [TEXT]",
			Description: "Without a text the note is printed; an empty text removes it.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "edit-from-file", Usage: "take the text of `FILE`, - for standard input"},
				confFlag(), userFlag(),
			},
			Action: noteExperiment,
		},
		{
			Name: "reproduce", Usage: "run an experiment again: the same specification, code and arguments", ArgsUsage: "ID",
			Description: "Says on standard error what is not as it was recorded. Refused when the code is gone.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "seed", Value: "same", Usage: "`WHICH`: same or new"},
				&cli.StringFlag{Name: "queue", Usage: "`QUEUE` that the job waits in", DefaultText: "default"},
				&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "do not wait, print the id"},
				&cli.BoolFlag{Name: "dry-run", Usage: "say what differs and submit nothing"},
				confFlag(), userFlag(), outputFlag(),
			},
			Action: reproduceExperiment,
		},
		{
			Name: "convert", Usage: "make a study of a description for CloudML, Vizier, SageMaker, Katib or Ray Tune", ArgsUsage: "FILE",
			Description: "hops experiment convert hptuning.yaml --entry train.py:train > study.yaml\n\n" +
				"The study goes to standard output. What has no counterpart is told on standard error, and in comments of the study.\n" +
				"Ray's search space is written as JSON or YAML: {\"lr\": {\"loguniform\": [1e-4, 1e-1]}}.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "from", Value: "auto", Usage: "`FORMAT`: " + strings.Join(convert.Formats, ", ")},
				&cli.StringFlag{Name: "entry", Usage: "`FILE.py:FUNCTION` that the study runs"},
				&cli.BoolFlag{Name: "strict", Usage: "fail if anything has no counterpart"},
			},
			Action: convertStudy,
		},
	}
}

// withCluster calls do with a client, after the number of arguments was checked; most < 0: any number.
func withCluster(c *cli.Context, least, most int, usage string, do func(*client.Client) error) error {
	if n := c.NArg(); n < least || most >= 0 && n > most {
		return fail(exitUsage, "%s: %s", c.Command.FullName(), usage)
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	return refused(explain(do(cl)))
}

// refused gives the errors of bad arguments and missing rights their exit statuses.
func refused(err error) error {
	var known *statusError
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, metadata.ErrInvalidArgument):
		return &statusError{exitUsage, err}
	case errors.Is(err, metadata.ErrPermission):
		return &statusError{exitDenied, err}
	}
	return err
}

func listExperiments(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	if by := c.String("sort"); !slices.Contains([]string{"time", "metric"}, by) {
		return fail(exitUsage, "cannot sort by %q: time or metric", by)
	}
	tags := map[string]string{}
	for _, text := range c.StringSlice("tag") {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return fail(exitUsage, "tag %q is not KEY=VALUE", text)
		}
		tags[key] = value
	}
	return withCluster(c, 0, 0, "takes no argument", func(cl *client.Client) error {
		list, err := cl.Experiments().Records(c.Context, c.String("project"), asJSON || len(tags) > 0)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(r *history.Record) bool {
			for k, v := range tags {
				if have, ok := r.Tags[k]; !ok || have != v {
					return true
				}
			}
			return len(c.StringSlice("state")) > 0 && !slices.Contains(upper(c.StringSlice("state")), r.State)
		})
		slices.SortFunc(list, func(a, b *history.Record) int { return client.Newer(a.ID, b.ID) })
		if c.String("sort") == "metric" { // best first, by the direction of each; those without a value last
			slices.SortStableFunc(list, func(a, b *history.Record) int {
				if a.Best == nil || b.Best == nil {
					return cmp.Compare(present(b.Best), present(a.Best))
				}
				return cmp.Compare(b.Direction.Score(b.Best.Metric), a.Direction.Score(a.Best.Metric))
			})
		}
		if n := c.Int("limit"); n > 0 {
			list = list[:min(n, len(list))]
		}
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(list)
		}
		t := newTable(c.App.Writer, "ID", "NAME", "PROJECT", "USER", "OPTIMIZER", "TRIALS", "STATE", "BEST")
		for _, r := range list {
			best := "-"
			if r.Best != nil {
				best = fmt.Sprintf("%.5g", r.Best.Metric)
			}
			t.row(r.ID, r.Name, r.Project, r.User, r.Optimizer, fmt.Sprint(r.Planned), r.State, best)
		}
		return t.flush()
	})
}

// printBeside prints what is known of an experiment beside its trials.
func printBeside(w io.Writer, r *history.Record) error {
	if r.Overhead != nil {
		fmt.Fprintln(w, r.Overhead)
	}
	for _, key := range slices.Sorted(maps.Keys(r.Tags)) {
		fmt.Fprintf(w, "%s=%s\n", key, r.Tags[key])
	}
	if r.Note != "" {
		fmt.Fprintln(w, r.Note)
	}
	return nil
}

func present(b *history.Best) int {
	if b == nil {
		return 0
	}
	return 1
}

func upper(words []string) []string {
	for i := range words {
		words[i] = strings.ToUpper(words[i])
	}
	return words
}

func compareExperiments(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	return withCluster(c, 2, 50, "name two experiments or more, at most 50", func(cl *client.Client) error {
		var records []*history.Record
		for _, id := range c.Args().Slice() {
			r, err := cl.Experiments().Record(c.Context, id, client.Records{Overhead: true, Beside: true})
			if err != nil {
				return err
			}
			records = append(records, r)
		}
		x := history.Compare(records, time.Now())
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(x)
		}
		return printComparison(c.App.Writer, x)
	})
}

// printComparison prints a column per experiment.
func printComparison(w io.Writer, x history.Comparison) error {
	t := newTable(w)
	line := func(what string, cell func(history.Column) string) {
		cells := []string{what}
		for _, col := range x.Columns {
			cells = append(cells, cell(col))
		}
		t.row(cells...)
	}
	line("", func(c history.Column) string { return c.ID })
	line("name", func(c history.Column) string { return c.Name })
	line("state", func(c history.Column) string { return c.State })
	line("best", func(c history.Column) string {
		if c.Best == nil {
			return "-"
		}
		return fmt.Sprintf("%s %.6g (trial %v)", c.Metric, *c.Best, *c.Trial)
	})
	line("trials", func(c history.Column) string {
		if c.Failed > 0 {
			return fmt.Sprintf("%d (%d failed)", c.Trials, c.Failed)
		}
		return fmt.Sprint(c.Trials)
	})
	line("epochs", func(c history.Column) string { return fmt.Sprintf("%d (%d wasted)", c.Epochs, c.Wasted) })
	line("duration", func(c history.Column) string {
		return time.Duration(c.Seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
	})
	seconds := func(of func(history.Spent) float64) func(history.Column) string {
		return func(c history.Column) string {
			if c.Overhead == nil {
				return "-"
			}
			if c.Overhead.GPUs.Total() > 0 {
				return fmt.Sprintf("%.1f GPU-s", of(c.Overhead.GPUs))
			}
			return fmt.Sprintf("%.1f executor-s", of(c.Overhead.Executors))
		}
	}
	line("training", seconds(func(s history.Spent) float64 { return s.Training }))
	line("waiting", seconds(func(s history.Spent) float64 { return s.Waiting }))
	line("checkpointing", seconds(func(s history.Spent) float64 { return s.Checkpointing }))
	line("wasted", seconds(func(s history.Spent) float64 { return s.Wasted }))
	rows := func(prefix string, list []history.Difference) {
		for _, d := range list {
			cells := []string{prefix + d.Key}
			for _, v := range d.Values {
				if v == "" {
					v = "-"
				}
				cells = append(cells, shorten(v, 60))
			}
			t.row(cells...)
		}
	}
	rows("best ", x.Best)
	rows("", x.Settings)
	return t.flush()
}

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func diffExperiments(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	return withCluster(c, 2, 2, "name two experiments", func(cl *client.Client) error {
		d, err := cl.Experiments().Diff(c.Context, c.Args().Get(0), c.Args().Get(1))
		if err != nil {
			return err
		}
		if asJSON {
			err = json.NewEncoder(c.App.Writer).Encode(d)
		} else {
			err = printDiff(c.App.Writer, c.App.ErrWriter, d)
		}
		if err == nil && !d.Same() {
			return &statusError{code: exitFailed}
		}
		return err
	})
}

func printDiff(w, unknown io.Writer, d *history.Diff) error {
	part := func(title string, list []history.Change) {
		for i, x := range list {
			if i == 0 {
				fmt.Fprintln(w, title)
			}
			switch {
			case x.Before == "":
				fmt.Fprintf(w, "  + %s: %s\n", x.Key, x.After)
			case x.After == "":
				fmt.Fprintf(w, "  - %s: %s\n", x.Key, x.Before)
			default:
				fmt.Fprintf(w, "    %s: %s -> %s\n", x.Key, x.Before, x.After)
			}
		}
	}
	part("specification", d.Settings)
	for i, f := range d.Code {
		if i == 0 {
			fmt.Fprintln(w, "code")
		}
		fmt.Fprintf(w, "  %s %s\n", f.Change, f.Name)
	}
	for _, f := range d.Code {
		fmt.Fprint(w, f.Unified)
	}
	part("environment", d.Environment)
	part("data", d.Data)
	if d.Same() {
		fmt.Fprintln(w, "no difference")
	}
	for _, u := range d.Unknown {
		fmt.Fprintln(unknown, u)
	}
	return nil
}

func exportExperiment(c *cli.Context) error {
	file := c.String("file")
	format := strings.ToLower(c.String("format"))
	if format == "" {
		if format = strings.TrimPrefix(filepath.Ext(file), "."); !slices.Contains([]string{"json", "parquet"}, format) {
			format = "csv"
		}
	}
	write := map[string]func(*history.Table, io.Writer) error{
		"csv": (*history.Table).WriteCSV, "json": (*history.Table).WriteJSON, "parquet": (*history.Table).WriteParquet,
	}[format]
	if write == nil {
		return fail(exitUsage, "unknown format %q: csv, json or parquet", format)
	}
	if format == "parquet" && (file == "" || file == "-") && isTerminal(c.App.Writer) {
		return fail(exitUsage, "parquet is nothing for a terminal: name a file with -o")
	}
	return withCluster(c, 1, 1, "name one experiment", func(cl *client.Client) error {
		r, err := cl.Experiments().Record(c.Context, c.Args().First(), client.Records{Curves: c.Bool("curves")})
		if err != nil {
			return err
		}
		table := r.TrialTable()
		if c.Bool("curves") {
			table = r.CurveTable()
		}
		if file == "" || file == "-" {
			return write(table, c.App.Writer)
		}
		return writeLocal(file, func(w io.Writer) error { return write(table, w) })
	})
}

// writeLocal writes a file of this machine; one that cannot be finished is removed.
func writeLocal(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	if err = errors.Join(write(b), b.Flush(), f.Close()); err != nil {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// age reads a time span in which days may stand: 30d, 12h, 1d12h.
func age(text string) (time.Duration, error) {
	rest := text
	var total time.Duration
	if days, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || n < 0 || n > 36500 {
			return 0, fmt.Errorf("%q is no time like 30d or 12h", text)
		}
		total, rest = time.Duration(n*24*float64(time.Hour)), after
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%q is no time like 30d or 12h", text)
		}
		total += d
	}
	return total, nil
}

func pruneExperiments(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	rules := history.Rules{States: upper(c.StringSlice("state")), KeepBest: c.Int("keep-best"), Force: c.Bool("force"), Now: time.Now()}
	for _, s := range rules.States {
		if !slices.Contains([]string{"FINISHED", "FAILED", "KILLED"}, s) {
			return fail(exitUsage, "no experiment that has ended is %q: FINISHED, FAILED or KILLED", s)
		}
	}
	if text := c.String("older-than"); text != "" {
		if rules.OlderThan, err = age(text); err != nil {
			return &statusError{exitUsage, err}
		}
	}
	if rules.KeepBest < 0 {
		return fail(exitUsage, "--keep-best %d is below 0", rules.KeepBest)
	}
	if c.NArg() == 0 && rules.OlderThan == 0 && len(rules.States) == 0 && !c.IsSet("keep-best") {
		return fail(exitUsage, "%s: say which: --older-than, --state, --keep-best, or ids", c.Command.FullName())
	}
	return withCluster(c, 0, -1, "", func(cl *client.Client) error {
		all, err := cl.Experiments().Records(c.Context, c.String("project"), false)
		if err != nil {
			return err
		}
		if c.NArg() > 0 {
			if all, err = named(all, c.Args().Slice()); err != nil {
				return err
			}
		}
		models, skipped, err := registry.References(c.Context, store.DFS(cl.FS()))
		if err != nil {
			return err
		}
		for _, s := range skipped {
			fmt.Fprintf(c.App.ErrWriter, "not looked at: %s\n", s)
		}
		if len(skipped) > 0 && !rules.Force {
			return fail(exitDenied, "experiments that these models are made of would not be kept; nothing is removed without --force")
		}
		rules.Models = models
		victims, kept := history.Prune(all, rules)
		for _, k := range kept {
			fmt.Fprintln(c.App.ErrWriter, k)
		}
		return prune(c, cl, victims, asJSON)
	})
}

// named picks experiments by their ids, or their jobs'.
func named(all []*history.Record, ids []string) (out []*history.Record, err error) {
	for _, id := range ids {
		i := slices.IndexFunc(all, func(r *history.Record) bool { return r.ID == id || r.ID == id+"_1" })
		if i < 0 {
			return nil, fmt.Errorf("there is no experiment %s", id)
		}
		if all[i].State == history.Running {
			return nil, fmt.Errorf("%s runs: end it first with: hops experiment stop %s", id, id)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// prune shows what goes, asks, and removes it.
func prune(c *cli.Context, cl *client.Client, victims []history.Victim, asJSON bool) error {
	only := c.Bool("checkpoints-only")
	t := newTable(c.App.ErrWriter, "ID", "NAME", "PROJECT", "USER", "STATE", "BEST", "FILES", "BYTES", "")
	removed := []client.PruneResult{}
	var bytes int64
	for i := 0; i < len(victims); i++ {
		v := victims[i]
		size, err := cl.Experiments().Size(c.Context, v.Directory, only)
		if err != nil {
			return err
		}
		if only && size.Files == 0 {
			victims = slices.Delete(victims, i, i+1)
			i--
			continue
		}
		bytes += size.Bytes
		removed = append(removed, size)
		best := "-"
		if v.Best != nil {
			best = fmt.Sprintf("%.5g", v.Best.Metric)
		}
		t.row(v.ID, v.Name, v.Project, v.User, v.State, best, fmt.Sprint(size.Files), fmt.Sprint(size.Bytes), v.Warning)
	}
	if len(victims) == 0 {
		fmt.Fprintln(c.App.ErrWriter, "nothing to remove")
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(removed)
		}
		return nil
	}
	if err := t.flush(); err != nil {
		return err
	}
	what := "experiments"
	if only {
		what = "experiments' checkpoints"
	}
	if !c.Bool("yes") {
		fmt.Fprintf(c.App.ErrWriter, "Remove %d %s, %d bytes? [y/N] ", len(victims), what, bytes)
		answer, err := bufio.NewReader(io.LimitReader(c.App.Reader, 1<<10)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return fail(exitFailed, "nothing is removed (--yes does not ask)")
		}
	}
	for i, v := range victims {
		s, err := cl.Experiments().Status(c.Context, v.ID)
		if err != nil {
			return fmt.Errorf("%s stays, and what follows it: whether it runs cannot be told: %w", v.ID, err)
		}
		if s.State == history.Running { // resumed since
			fmt.Fprintf(c.App.ErrWriter, "%s runs again: it stays\n", v.ID)
			removed[i].Files, removed[i].Bytes = 0, 0
			continue
		}
		if err := cl.Experiments().Remove(c.Context, v.Directory, only); err != nil {
			return err
		}
		if !asJSON {
			fmt.Fprintln(c.App.Writer, v.ID)
		}
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(removed)
	}
	return nil
}

func tagExperiment(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	set, err := pairs(c.Args().Tail())
	if err != nil {
		return err
	}
	return withCluster(c, 1, -1, "name one experiment", func(cl *client.Client) error {
		dir, err := cl.Experiments().Directory(c.Context, c.Args().First())
		if err != nil {
			return err
		}
		return changeTags(c, store.DFS(cl.FS()), dir, set, asJSON)
	})
}

// pairs reads KEY=VALUE.
func pairs(words []string) (map[string]string, error) {
	out := map[string]string{}
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			return nil, fail(exitUsage, "%q is not KEY=VALUE", w)
		}
		out[key] = value
	}
	return out, nil
}

// changeTags sets and removes tags; without either it prints them.
func changeTags(c *cli.Context, files store.FS, dir string, set map[string]string, asJSON bool) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if err := history.SetTag(c.Context, files, dir, key, set[key]); err != nil {
			return err
		}
	}
	for _, key := range c.StringSlice("delete") {
		if err := history.RemoveTag(c.Context, files, dir, key); err != nil {
			return err
		}
	}
	if len(set)+len(c.StringSlice("delete")) > 0 {
		return nil
	}
	tags, _, err := history.Tags(c.Context, files, dir)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(tags)
	}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		fmt.Fprintf(c.App.Writer, "%s=%s\n", key, tags[key])
	}
	return nil
}

func noteExperiment(c *cli.Context) error {
	text, write := c.Args().Get(1), c.NArg() == 2
	if file := c.String("edit-from-file"); file != "" {
		if write {
			return fail(exitUsage, "%s: a text or a file, not both", c.Command.FullName())
		}
		var data []byte
		var err error
		if file == "-" {
			data, err = io.ReadAll(io.LimitReader(c.App.Reader, history.MaxNote+1))
		} else {
			data, err = os.ReadFile(file)
		}
		if err != nil {
			return err
		}
		text, write = strings.TrimRight(string(data), "\n"), true
	}
	return withCluster(c, 1, 2, "name one experiment and, to write, one text", func(cl *client.Client) error {
		dir, err := cl.Experiments().Directory(c.Context, c.Args().First())
		if err != nil {
			return err
		}
		files := store.DFS(cl.FS())
		if write {
			return history.SetNote(c.Context, files, dir, text)
		}
		_, note, err := history.Tags(c.Context, files, dir)
		if err == nil && note != "" {
			fmt.Fprintln(c.App.Writer, note)
		}
		return err
	})
}

func reproduceExperiment(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	seed := c.String("seed")
	if seed != "same" && seed != "new" {
		return fail(exitUsage, "--seed %q: same or new", seed)
	}
	if err := client.MaySubmit(); err != nil && !c.Bool("dry-run") {
		return &statusError{exitDenied, err}
	}
	return withCluster(c, 1, 1, "name one experiment", func(cl *client.Client) error {
		id := c.Args().First()
		again, err := cl.Experiments().Reproduce(c.Context, id, seed == "same")
		if err != nil {
			return err
		}
		for _, what := range again.Changed {
			fmt.Fprintf(c.App.ErrWriter, "changed: %s\n", what)
		}
		for _, what := range again.Unknown {
			fmt.Fprintf(c.App.ErrWriter, "not known: %s\n", what)
		}
		if c.Bool("dry-run") {
			return nil
		}
		again.Study.Queue = c.String("queue")
		job, err := cl.Experiments().Submit(c.Context, again.Study, nil)
		if err != nil {
			if m, ok := errors.AsType[training.Mistakes](err); ok {
				return &statusError{exitUsage, m}
			}
			return err
		}
		fmt.Fprintf(c.App.ErrWriter, "%s runs again as %s\n", id, job)
		if c.Bool("detach") {
			return printID(c, job, asJSON)
		}
		done := awaitExperiment(c, cl, job, job, asJSON)
		showEnvironmentChange(c.Context, c.App.ErrWriter, cl, id, job)
		return done
	})
}

// showEnvironmentChange says what the executors of two experiments had that was not the same. It can be told only when the
// later one has begun.
func showEnvironmentChange(ctx context.Context, w io.Writer, cl *client.Client, before, after string) {
	changes, known := cl.Experiments().EnvironmentChange(ctx, before, after)
	if !known {
		return
	}
	for _, x := range changes {
		fmt.Fprintf(w, "changed: environment: %s: %s -> %s\n", x.Key, cmp.Or(x.Before, "-"), cmp.Or(x.After, "-"))
	}
}

func convertStudy(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "%s: name one file, - for standard input", c.Command.FullName())
	}
	name := c.Args().First()
	var text []byte
	var err error
	if name == "-" {
		text, err = io.ReadAll(io.LimitReader(c.App.Reader, convert.MaxBytes+1))
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return err
	}
	r, err := convert.Convert(name, text, strings.ToLower(c.String("from")), c.String("entry"))
	if err != nil {
		return &statusError{exitUsage, err}
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(c.App.ErrWriter, "%s: %s\n", name, w)
	}
	if n := len(r.Warnings); n > 0 && c.Bool("strict") {
		return fail(exitFailed, "%s: %d things have no counterpart, nothing is written (--strict)", name, n)
	}
	_, err = c.App.Writer.Write(r.YAML)
	return err
}
