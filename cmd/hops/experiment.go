package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/code"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/protocol"
)

func experimentCommand() *cli.Command {
	return &cli.Command{
		Name:  "experiment",
		Usage: "search hyperparameters with a Python function, and look back: run, list, show, compare, diff, export, ...",
		Subcommands: append([]*cli.Command{
			{
				Name:      "run",
				Usage:     "run the study of a file",
				ArgsUsage: "[STUDY.yaml]",
				Description: "hops experiment run study.yaml\n\n" +
					"The study is YAML: name, entry (FILE.py:FUNCTION), space, optimizer, metric, direction, trials, executors,\n" +
					"resources, env, ... as docs/how-to/studies.md describes them, with queue and priority beside them.\n" +
					"Ctrl-C leaves the search running.",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "study `FILE`, - for standard input"},
					pythonFlag(),
					&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "do not wait"},
					confFlag(), userFlag(), outputFlag(),
				},
				Action: runExperiment,
			},
			{
				Name: "list", Aliases: []string{"ls"}, Usage: "list experiments, newest first",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "project", Usage: "only those of `PROJECT`"},
					&cli.StringSliceFlag{Name: "tag", Usage: "only those with the tag `KEY=VALUE`"},
					&cli.StringSliceFlag{Name: "state", Usage: "only those in `STATE`"},
					&cli.StringFlag{Name: "sort", Value: "time", Usage: "`BY` time, newest first, or metric, best first"},
					&cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Usage: "at most `NUMBER`", DefaultText: "all"},
					confFlag(), userFlag(), outputFlag(),
				},
				Action: listExperiments,
			},
			{Name: "show", Usage: "show the trials of an experiment", ArgsUsage: "ID", Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()}, Action: showExperiment},
			{Name: "best", Usage: "show the best trial of an experiment", ArgsUsage: "ID", Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()}, Action: bestTrial},
			{
				Name: "logs", Usage: "print what the function has printed, of all trials or of one", ArgsUsage: "ID [TRIAL]",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the experiment or the trial ends"},
					confFlag(), userFlag(),
				},
				Action: experimentLogs,
			},
			{
				Name: "stop", Usage: "end experiments; what their trials found is kept", ArgsUsage: "ID ...",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "reason", Usage: "`TEXT` that the result gives as the reason"},
					confFlag(), userFlag(),
				},
				Action: stopExperiments,
			},
			{
				Name: "resume", Usage: "go on with an experiment that failed or was stopped", ArgsUsage: "ID",
				Description: "Trials that have ended are kept, those that were cut short go on from their checkpoints. The experiment keeps its id;\n" +
					"another job runs it. Ctrl-C leaves it running.",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "queue", Usage: "`QUEUE` that the job waits in", DefaultText: "default"},
					&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "do not wait, print the job's id"},
					confFlag(), userFlag(), outputFlag(),
				},
				Action: resumeExperiment,
			},
			simulateCommand(), replayCommand(),
		}, historyCommands()...),
	}
}

func runExperiment(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	var study client.Study
	file := c.String("file")
	switch {
	case file == "" && c.NArg() == 1:
		file = c.Args().First()
	case file == "" || c.NArg() > 0:
		return fail(exitUsage, "experiment run: name one study file: hops experiment run study.yaml")
	}
	if err := readDocument(file, c.App.Reader, &study); err != nil {
		return &statusError{exitUsage, err}
	}
	var program *code.Artifact
	if path, function, ok := strings.Cut(study.Entry, ":"); ok && strings.HasSuffix(path, ".py") {
		if !filepath.IsAbs(path) && file != "-" {
			path = filepath.Join(filepath.Dir(file), path)
		}
		if program, err = code.Pack(path + ":" + function); err != nil {
			return &statusError{exitUsage, err}
		}
	}
	p := c.String("python")
	if p == "" && study.Python == "" {
		p = os.Getenv("HOPS_PYTHON")
	}
	if p != "" {
		if _, _, err := python(p, nil); err != nil {
			return err
		}
		if study.Python, err = filepath.Abs(p); err != nil {
			return err
		}
	}
	if err := client.MaySubmit(); err != nil {
		return &statusError{exitDenied, err}
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	id, err := cl.Experiments().Submit(c.Context, study, program)
	if err != nil {
		if m, ok := errors.AsType[training.Mistakes](err); ok {
			return &statusError{exitUsage, m}
		}
		return explain(err)
	}
	if c.Bool("detach") {
		return printID(c, id, asJSON)
	}
	fmt.Fprintln(c.App.ErrWriter, id)
	return awaitExperiment(c, cl, id, id, asJSON)
}

// resumeExperiment goes on with an experiment in another job.
func resumeExperiment(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	if c.NArg() != 1 {
		return fail(exitUsage, "%s: name one experiment", c.Command.FullName())
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	id := c.Args().First()
	job, err := cl.Experiments().Resume(c.Context, id, c.String("queue"))
	if err != nil {
		return explain(err)
	}
	if c.Bool("detach") {
		return printID(c, job, asJSON)
	}
	fmt.Fprintf(c.App.ErrWriter, "%s goes on as %s\n", id, job)
	return awaitExperiment(c, cl, id, job, asJSON)
}

// awaitExperiment follows an experiment to the end of the job that runs it, and prints what came out.
func awaitExperiment(c *cli.Context, cl *client.Client, id, job string, asJSON bool) error {
	s, ended, err := followExperiment(c, cl, id, job)
	if c.Context.Err() != nil {
		return &statusError{exitInterrupted, fmt.Errorf("%s goes on; end it with: hops experiment stop %s", id, id)}
	}
	if err != nil {
		return explain(err)
	}
	if asJSON {
		if err := json.NewEncoder(c.App.Writer).Encode(s); err != nil {
			return err
		}
	} else if err := printTrials(c, s); err != nil {
		return err
	}
	if !ended.Succeeded() {
		return fail(exitFailed, "%s %s: %s", id, ended.Phase, ended.Diagnostics)
	}
	return nil
}

// followExperiment prints a line when something changes, until the job that runs the experiment has ended.
func followExperiment(c *cli.Context, cl *client.Client, id, job string) (*protocol.ExperimentStatus, client.JobStatus, error) {
	last, show := "", func(line string) { fmt.Fprintln(c.App.ErrWriter, line) }
	if isTerminal(c.App.ErrWriter) { // one line, which changes
		wide := 0
		show = func(line string) {
			fmt.Fprintf(c.App.ErrWriter, "\r%-*s", wide, line)
			wide = len(line)
		}
		defer fmt.Fprintln(c.App.ErrWriter)
	}
	ended, err := cl.Jobs().Wait(c.Context, job, func(j client.JobStatus) {
		line := progress(j)
		if !j.Ended() {
			attempt, cancel := context.WithTimeout(c.Context, 2*time.Second)
			defer cancel()
			if s, err := cl.Experiments().Summary(attempt, id); err == nil {
				line += fmt.Sprintf("  trials %d/%d", s.Ended, s.Planned)
				if s.Best != nil {
					line += fmt.Sprintf("  best %s %.5g (trial %v)", s.Metric, s.Best.Metric, s.Best.Trial)
				}
			}
		}
		if line != last {
			show(line)
		}
		last = line
	})
	if err != nil {
		return nil, ended, err
	}
	s, err := cl.Experiments().Status(c.Context, id)
	return s, ended, err
}

func status(c *cli.Context) (*protocol.ExperimentStatus, error) {
	if c.NArg() != 1 {
		return nil, fail(exitUsage, "%s: name one experiment", c.Command.FullName())
	}
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	s, err := cl.Experiments().Status(c.Context, c.Args().First())
	return s, explain(err)
}

func showExperiment(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	return withCluster(c, 1, 1, "name one experiment", func(cl *client.Client) error {
		s, err := cl.Experiments().Status(c.Context, c.Args().First())
		if err != nil {
			return err
		}
		r, err := cl.Experiments().Beside(c.Context, s)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(struct {
				*protocol.ExperimentStatus
				Overhead *history.Overhead `json:"overhead,omitempty"`
				Tags     map[string]string `json:"tags,omitempty"`
				Note     string            `json:"note,omitempty"`
			}{s, r.Overhead, r.Tags, r.Note})
		}
		if err := printTrials(c, s); err != nil {
			return err
		}
		return printBeside(c.App.Writer, r)
	})
}

func experimentLogs(c *cli.Context) error {
	if n := c.NArg(); n < 1 || n > 2 {
		return fail(exitUsage, "%s: name an experiment and, if you like, one of its trials", c.Command.FullName())
	}
	var trial training.TrialID
	if text := c.Args().Get(1); text != "" {
		var err error
		if trial, err = training.ParseTrialID(text); err != nil {
			return &statusError{exitUsage, err}
		}
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	err = cl.Experiments().Logs(c.Context, c.Args().First(), trial, c.Bool("follow"), c.App.Writer)
	if c.Context.Err() != nil {
		return &statusError{code: exitInterrupted}
	}
	return explain(err)
}

// stopExperiments ends searches. One that cannot be ended does not keep the others from it.
func stopExperiments(c *cli.Context) error {
	return stopEach(c, "experiments", func(ctx context.Context, cl *client.Client, id string) error {
		return cl.Experiments().Stop(ctx, id, c.String("reason"))
	})
}

func printTrials(c *cli.Context, s *protocol.ExperimentStatus) error {
	fmt.Fprintf(c.App.Writer, "%s  %s  %s  %s\n", s.ID, s.Name, s.State, s.Directory)
	if s.Reason != "" {
		fmt.Fprintf(c.App.Writer, "%s\n", s.Reason)
	}
	t := newTable(c.App.Writer, "TRIAL", "STATE", "EPOCHS", strings.ToUpper(s.Metric), "PARAMETERS", "NOTE")
	for _, r := range s.Trials {
		metric := "-"
		if r.Metric != nil {
			metric = fmt.Sprintf("%.5g", *r.Metric)
		}
		note := r.Reason
		if r.Error != nil {
			note = r.Error.Error()
		}
		mark := r.Trial.String()
		if s.Best != nil && s.Best.Trial == r.Trial {
			mark += "*"
		}
		t.row(mark, string(r.State), fmt.Sprint(r.Epochs), metric, parameters(r.Params), note)
	}
	return t.flush()
}

func parameters(p training.Params) string {
	var parts []string
	for name, value := range p {
		text := value.String()
		if f, ok := value.Float(); ok {
			text = fmt.Sprintf("%.4g", f)
		}
		parts = append(parts, name+"="+text)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func bestTrial(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	s, err := status(c)
	if err != nil {
		return err
	}
	if s.Best == nil {
		return fail(exitFailed, "%s has no trial with a result yet", s.ID)
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(s.Best)
	}
	t := newTable(c.App.Writer)
	t.row("trial", s.Best.Trial.String())
	t.row(s.Metric, fmt.Sprintf("%.6g", s.Best.Metric))
	t.row("parameters", parameters(s.Best.Params))
	t.row("directory", s.Best.Dir)
	if s.Best.Checkpoint != "" {
		t.row("checkpoint", s.Best.Checkpoint)
	}
	return t.flush()
}
