package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/yaml"
)

// dial makes the client of a command.
func dial(c *cli.Context) (*client.Client, error) {
	return client.New(client.Config{ConfDir: confDirectory(), User: c.String("user")})
}

// explain gives an error of a client its exit status.
func explain(err error) error {
	var answer *client.Error
	var namenodes *hrpc.UnreachableError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrUnreachable), errors.As(err, &namenodes):
		return &statusError{exitUnreachable, fmt.Errorf("%w; is the cluster running? `hops doctor` looks into it", err)}
	case errors.As(err, &answer) && (answer.Status == 401 || answer.Status == 403):
		return &statusError{exitDenied, err}
	case errors.As(err, &answer) && answer.Status == 400:
		return &statusError{exitUsage, err}
	}
	return err
}

func userFlag() cli.Flag {
	return &cli.StringFlag{Name: "user", Usage: "act as `USER`; default: HADOOP_USER_NAME, else who runs this"}
}

func jobCommand() *cli.Command {
	return &cli.Command{
		Name:  "job",
		Usage: "run commands in containers: run, list, status, logs, stop",
		Subcommands: []*cli.Command{
			{
				Name:      "run",
				Usage:     "run a command on the cluster, or the job of a file",
				ArgsUsage: "-- COMMAND [ARGUMENT ...]",
				Description: "hops job run --gpus 1 -- nvidia-smi\n" +
					"hops job run -f job.yaml\n\n" +
					"Waits for the end, prints what the command wrote to standard output and standard error, and exits with 0 if the\n" +
					"job succeeded; if not, standard error has the log of its application master too. --detach prints the id and\n" +
					"returns.",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "job `FILE` (YAML), - for standard input"},
					&cli.StringFlag{Name: "name", Usage: "`NAME` shown to people"},
					&cli.StringFlag{Name: "queue", Usage: "`QUEUE`"},
					&cli.IntFlag{Name: "priority", Usage: "larger is served first"},
					&cli.StringFlag{Name: "memory", Usage: "`SIZE` per container, as 2GiB"},
					&cli.IntFlag{Name: "vcores", Usage: "cores per container"},
					&cli.IntFlag{Name: "gpus", Usage: "GPUs per container"},
					&cli.IntFlag{Name: "instances", Usage: "containers at once"},
					&cli.BoolFlag{Name: "gang", Usage: "start all instances together or none"},
					&cli.StringFlag{Name: "fencing", Usage: "none, or strict: never two tries at once, at the price of ending in a long outage of the resource managers"},
					&cli.StringSliceFlag{Name: "env", Usage: "`NAME=VALUE` for the containers; may be repeated"},
					&cli.StringFlag{Name: "timeout", Usage: "`DURATION` after which the job is ended, as 2h"},
					&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "do not wait"},
					userFlag(), outputFlag(),
				},
				Action: runJob,
			},
			{Name: "list", Aliases: []string{"ls"}, Usage: "list jobs", Flags: []cli.Flag{userFlag(), outputFlag()}, Action: listJobs},
			{Name: "status", Usage: "describe a job", ArgsUsage: "ID", Flags: []cli.Flag{userFlag(), outputFlag()}, Action: jobStatus},
			{Name: "logs", Usage: "print what a job's containers have written", ArgsUsage: "ID", Flags: []cli.Flag{userFlag()}, Action: jobLogs},
			{Name: "stop", Usage: "end a job", ArgsUsage: "ID", Flags: []cli.Flag{userFlag()}, Action: stopJob},
		},
	}
}

// readDocument reads a YAML (or JSON) file into a value by way of JSON, whose names the value has.
func readDocument(name string, stdin io.Reader, into any) error {
	var text []byte
	var err error
	if name == "-" { // one byte more than may be read: not half a document
		text, err = io.ReadAll(io.LimitReader(stdin, 1<<20+1))
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return err
	}
	asJSON, err := yaml.ToJSON(name, text)
	if err != nil {
		return err
	}
	d := json.NewDecoder(strings.NewReader(string(asJSON)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// logPatience is how long `hops job run` waits for the last of the logs.
const logPatience = 5 * time.Second

func runJob(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	var job client.Job
	if f := c.String("file"); f != "" {
		if err := readDocument(f, c.App.Reader, &job); err != nil {
			return &statusError{exitUsage, err}
		}
	}
	if c.Args().Present() {
		job.Argv = c.Args().Slice()
	}
	if len(job.Argv) == 0 && job.Run == "" && job.Experiment == nil {
		return fail(exitUsage, "job run: give a command after --, or a file with -f")
	}
	for flag, field := range map[string]*string{"name": &job.Name, "queue": &job.Queue, "memory": &job.Resources.Memory, "timeout": &job.Timeout, "fencing": &job.Fencing} {
		if c.IsSet(flag) {
			*field = c.String(flag)
		}
	}
	for flag, field := range map[string]*int{"priority": &job.Priority, "vcores": &job.Resources.VCores, "gpus": &job.Resources.GPUs, "instances": &job.Instances} {
		if c.IsSet(flag) {
			*field = c.Int(flag)
		}
	}
	if c.IsSet("gang") {
		job.Gang = client.Gang{All: c.Bool("gang")}
	}
	for _, pair := range c.StringSlice("env") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fail(exitUsage, "--env %q is not NAME=VALUE", pair)
		}
		if job.Env == nil {
			job.Env = map[string]string{}
		}
		job.Env[name] = value
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	id, err := cl.Jobs().Submit(c.Context, job, "")
	if err != nil {
		return explain(err)
	}
	if c.Bool("detach") {
		return printID(c, id, asJSON)
	}
	if !asJSON {
		fmt.Fprintln(c.App.ErrWriter, id)
	}
	last := ""
	s, err := cl.Jobs().Wait(c.Context, id, func(s client.JobStatus) {
		line := string(s.State)
		if s.PendingReason != nil {
			line += ": " + s.PendingReason.Text
		}
		if line != last && !asJSON {
			fmt.Fprintln(c.App.ErrWriter, line)
		}
		last = line
	})
	if c.Context.Err() != nil {
		return &statusError{exitInterrupted, fmt.Errorf("%s goes on; end it with: hops job stop %s", id, id)}
	}
	if err != nil {
		return explain(err)
	}
	if asJSON {
		if err := json.NewEncoder(c.App.Writer).Encode(s); err != nil {
			return err
		}
	} else {
		complete, cancel := context.WithTimeout(c.Context, logPatience)
		if err := cl.AwaitLogs(complete, id); err != nil {
			fmt.Fprintf(c.App.ErrWriter, "logs may lack their end: %v\n", err)
		}
		cancel()
		if err := cl.Output(c.Context, s, !s.Succeeded(), c.App.Writer, c.App.ErrWriter); err != nil {
			fmt.Fprintf(c.App.ErrWriter, "logs: %v\n", err)
		}
	}
	if !s.Succeeded() {
		return fail(exitFailed, "%s %s: %s", id, s.FinalStatus, s.Diagnostics)
	}
	return nil
}

// printID is the answer to --detach.
func printID(c *cli.Context, id string, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(map[string]string{"id": id})
	}
	_, err := fmt.Fprintln(c.App.Writer, id)
	return err
}

func listJobs(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	jobs, err := cl.Jobs().List(c.Context)
	if err != nil {
		return explain(err)
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(jobs)
	}
	t := newTable(c.App.Writer, "ID", "NAME", "USER", "QUEUE", "KIND", "STATE", "STATUS", "STARTED")
	for _, j := range jobs {
		t.row(j.ID, j.Name, j.User, j.Queue, j.Kind, string(j.State), string(j.FinalStatus), clock(j.Started))
	}
	return t.flush()
}

func oneID(c *cli.Context) (string, error) {
	if c.NArg() != 1 {
		return "", fail(exitUsage, "%s: name one job", c.Command.FullName())
	}
	return c.Args().First(), nil
}

func jobStatus(c *cli.Context) error {
	id, err := oneID(c)
	if err != nil {
		return err
	}
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	s, err := cl.Jobs().Get(c.Context, id)
	if err != nil {
		return explain(err)
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(s)
	}
	t := newTable(c.App.Writer)
	t.row("id", s.ID)
	t.row("name", s.Name)
	t.row("user", s.User)
	t.row("queue", s.Queue)
	t.row("kind", s.Kind)
	t.row("state", string(s.State))
	t.row("status", string(s.FinalStatus))
	t.row("submitted", clock(s.Submitted))
	t.row("started", clock(s.Started))
	t.row("finished", clock(s.Finished))
	if s.PendingReason != nil {
		t.row("waits", s.PendingReason.Text)
	}
	if s.Diagnostics != "" {
		t.row("diagnostics", s.Diagnostics)
	}
	return t.flush()
}

func jobLogs(c *cli.Context) error {
	id, err := oneID(c)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	return explain(printLogs(c, cl, id))
}

func printLogs(c *cli.Context, cl *client.Client, id string) error {
	r, err := cl.Jobs().Logs(c.Context, id)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(c.App.Writer, r)
	return err
}

func stopJob(c *cli.Context) error {
	id, err := oneID(c)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	return explain(cl.Jobs().Stop(c.Context, id))
}

// clock shows a time in milliseconds since 1970, "-" for none.
func clock(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Format("2006-01-02 15:04:05")
}
