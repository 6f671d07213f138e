package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/internal/yaml"
	rm "github.com/gohops/hops/resourcemanager"
	rmjob "github.com/gohops/hops/resourcemanager/job"
)

// explain gives an error of a client its exit status.
func explain(err error) error {
	var answer *client.Error
	var namenodes *hrpc.UnreachableError
	switch {
	case err == nil:
		return nil
	case isNoCluster(err):
		return &statusError{exitUnreachable, err}
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
	// description are the options that describe a job.
	description := []cli.Flag{
		&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "job `FILE` (YAML), - for standard input"},
		&cli.StringFlag{Name: "name", Usage: "`NAME` shown to people", DefaultText: "command"},
		&cli.StringFlag{Name: "queue", Usage: "`QUEUE` that the job waits in", DefaultText: "default"},
		&cli.IntFlag{Name: "priority", Usage: "larger is served first"},
		&cli.StringFlag{Name: "memory", Usage: "`SIZE` per container, as 2GiB", DefaultText: "1GiB"},
		&cli.IntFlag{Name: "vcores", Usage: "cores per container", DefaultText: "1"},
		&cli.IntFlag{Name: "gpus", Usage: "GPUs per container"},
		&cli.IntFlag{Name: "instances", Usage: "containers at once", DefaultText: "1"},
		&cli.BoolFlag{Name: "gang", Usage: "start all instances together or none"},
		&cli.StringSliceFlag{Name: "near", Usage: "`PATH` of data in the filesystem on whose nodes the containers run if there is room, or will be soon; may be repeated"},
		&cli.StringFlag{Name: "fencing", Usage: "none, or strict: never two tries at once, at the price of ending in a long outage of the resource managers"},
		&cli.StringSliceFlag{Name: "env", Usage: "`NAME=VALUE` for the containers; may be repeated"},
		&cli.StringSliceFlag{Name: "secret", Usage: "`NAME` of a secret that the containers read from $HOPS_SECRETS_DIR/NAME; may be repeated"},
		pythonFlag(),
		&cli.StringFlag{Name: "array", Usage: "run once for each of `FROM-TO[:STEP][%AT_ONCE]`, as 0-99%10; the number is $HOPS_ARRAY_INDEX"},
		&cli.StringSliceFlag{Name: "after", Usage: "start when job `ID[:STATE]` has succeeded, or failed, ended or started; may be repeated"},
		&cli.StringFlag{Name: "deadline", Usage: "`TIME` (2027-01-31T18:00) or duration (8h) by which the job has to have ended", DefaultText: "none"},
		&cli.StringFlag{Name: "timeout", Usage: "`DURATION` after which the job is ended, as 2h", DefaultText: "none"},
	}
	verbose := &cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "with the log of the application master"}
	return &cli.Command{
		Name:  "job",
		Usage: "run commands in containers: run, exec, plan, explain, list, status, logs, stop",
		Subcommands: []*cli.Command{
			{
				Name:      "run",
				Usage:     "run a command on the cluster, or the job of a file",
				ArgsUsage: "-- COMMAND [ARGUMENT ...]",
				Description: "hops job run --gpus 1 -- nvidia-smi\n" +
					"hops job run --with . -- python3 train.py\n" +
					"hops job run -it --gpus 1 -- bash\n" +
					"hops job run -f job.yaml\n\n" +
					"Prints what the command writes to standard output and standard error while it runs, and exits with its status.\n" +
					"With several instances every line begins with the number of its instance. --detach prints the id and returns.\n" +
					"Ctrl-C leaves the job running; with -i or -t it ends it, as long as the command has not begun, and is the command's then.\n\n" +
					"Containers start in an empty directory: --with sends files along. The keys of a job file are those of POST\n" +
					"/api/v1/jobs in docs/reference/rest.md: name, queue, priority, resources {memory, vcores, gpus, gpu_model, ...},\n" +
					"instances, argv or run, env, secrets, artifacts, workdir, timeout, deadline, after, array, retry, grace.",
				Flags: append(slices.Clone(description),
					&cli.StringSliceFlag{Name: "with", Usage: "`FILE` or directory that is sent along, into the directory in which the command runs; . for this one; may be repeated"},
					&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "do not wait"},
					&cli.BoolFlag{Name: "stdin", Aliases: []string{"i"}, Usage: "pass standard input on; the job ends with this program"},
					&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give the command a terminal, which this has to be too; with -i"},
					verbose, confFlag(), userFlag(), outputFlag(),
				),
				Action: runJob,
			},
			planCommand(description),
			explainCommand(),
			execCommand(),
			{
				Name: "list", Aliases: []string{"ls"}, Usage: "list jobs, newest first",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "state", Usage: "only those in `STATES`: pending, running, succeeded, failed, killed; with commas"},
					&cli.StringFlag{Name: "of", Usage: "only those of `USER`"},
					&cli.StringFlag{Name: "queue", Usage: "only those in `QUEUE`"},
					&cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Value: 50, Usage: "at most `NUMBER`; 0: all"},
					&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "ids alone"},
					confFlag(), userFlag(), outputFlag(),
				},
				Action: listJobs,
			},
			{Name: "status", Usage: "describe a job and its containers", ArgsUsage: "ID", Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()}, Action: jobStatus},
			{
				Name: "logs", Usage: "print what a job's command has written, standard output and standard error apart", ArgsUsage: "ID",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the job ends"},
					&cli.IntFlag{Name: "instance", Usage: "only instance `NUMBER`, from 0 on"},
					verbose, confFlag(), userFlag(),
				},
				Action: jobLogs,
			},
			{Name: "stop", Usage: "end jobs", ArgsUsage: "ID ...", Flags: []cli.Flag{confFlag(), userFlag()}, Action: stopJobs},
		},
	}
}

// readDocument reads a YAML (or JSON) file into values with json tags, all of it into each. All that is wrong with it for the
// first is told at once.
func readDocument(name string, stdin io.Reader, into ...any) error {
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
	for _, v := range into {
		if err := yaml.UnmarshalJSON(name, text, v); err != nil {
			return err
		}
	}
	return nil
}

// logPatience is how long `hops job run` waits for the last of the logs to be in the filesystem.
const logPatience = 5 * time.Second

// document makes the job of a command line.
func document(c *cli.Context) (client.Job, error) {
	var job client.Job
	if f := c.String("file"); f != "" {
		var kinds rmjob.Spec // has a kind for every key, where client.Job has text
		if err := readDocument(f, c.App.Reader, &kinds, &job); err != nil {
			return job, &statusError{exitUsage, err}
		}
	}
	if c.Args().Present() {
		job.Argv = c.Args().Slice()
	}
	if len(job.Argv) == 0 && job.Run == "" && job.Experiment == nil {
		return job, fail(exitUsage, "job %s: give a command after --, or a file with -f", c.Command.Name)
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
	if c.IsSet("instances") && job.Instances < 1 {
		return job, fail(exitUsage, "--instances %d: a job has one at least", job.Instances)
	}
	if c.IsSet("array") {
		array, err := rmjob.ParseArray(c.String("array"))
		if err != nil {
			return job, fail(exitUsage, "--array: %w", err)
		}
		job.Array = array
	}
	for _, text := range c.StringSlice("after") {
		id, state, _ := strings.Cut(text, ":")
		job.After = append(job.After, client.JobAfter{Application: id, State: rm.Outcome(state)})
	}
	if c.IsSet("deadline") {
		job.Deadline = withZone(c.String("deadline"))
	}
	if c.IsSet("gang") {
		job.Gang = client.Gang{All: c.Bool("gang")}
	}
	job.Secrets = append(job.Secrets, c.StringSlice("secret")...)
	job.Near.Paths = append(job.Near.Paths, c.StringSlice("near")...)
	for _, pair := range c.StringSlice("env") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return job, fail(exitUsage, "--env %q is not NAME=VALUE", pair)
		}
		if job.Env == nil {
			job.Env = map[string]string{}
		}
		job.Env[name] = value
	}
	if p := c.String("python"); p != "" {
		env, interpreter, err := python(p, job.Env)
		if err != nil {
			return job, err
		}
		job.Env = env
		if len(job.Argv) > 0 && (job.Argv[0] == "python" || job.Argv[0] == "python3") {
			job.Argv = append([]string{interpreter}, job.Argv[1:]...)
		}
	}
	return job, nil
}

// withZone is a time with the zone of this machine, where it has none; what is no such time is left to the server.
func withZone(text string) string {
	for _, form := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if at, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return at.Format(time.RFC3339)
		}
	}
	return text
}

func runJob(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	job, err := document(c)
	if err != nil {
		return err
	}
	interactive := c.Bool("stdin") || c.Bool("tty")
	if interactive {
		if job, err = sessionJob(c, job, asJSON); err != nil {
			return err
		}
	}
	if err := client.MaySubmit(); err != nil {
		return &statusError{exitDenied, err}
	}
	with := c.StringSlice("with")
	if len(with) > 0 && job.Workdir != "" {
		return fail(exitUsage, "--with: the job of %s has a workdir already", c.String("file"))
	}
	if len(with) == 0 {
		hint(c.App.ErrWriter, job)
	}
	for _, name := range with {
		if _, err := os.Stat(name); err != nil {
			return fail(exitUsage, "--with: %w", err)
		}
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	if len(with) > 0 {
		staged, err := cl.Stage(c.Context, with)
		if err != nil {
			return explain(fmt.Errorf("--with: %w", err))
		}
		job.Workdir = staged.URI
		if isTerminal(c.App.ErrWriter) {
			note := ""
			if len(staged.LeftOut) > 0 {
				note = "; without " + strings.Join(staged.LeftOut[:min(5, len(staged.LeftOut))], ", ")
			}
			fmt.Fprintf(c.App.ErrWriter, "sent %d files, %d KiB%s\n", staged.Files, (staged.Bytes+1023)>>10, note)
		}
	}
	id, err := cl.Jobs().Submit(c.Context, job, "")
	if err != nil {
		return explain(err)
	}
	if c.Bool("detach") {
		return printID(c, id, asJSON)
	}
	if interactive {
		return runSession(c, cl, id, job.Argv[len(sessionWords):])
	}
	o := client.LogOptions{Follow: true, Label: job.Instances > 1 || job.Array != nil, Master: c.Bool("verbose")}
	stdout, stderr := c.App.Writer, c.App.ErrWriter
	if asJSON {
		stdout, stderr = io.Discard, io.Discard
	} else {
		fmt.Fprintln(stderr, id)
		last := ""
		o.Seen = func(s client.JobStatus) {
			line := progress(s)
			if line != last && !s.Ended() {
				fmt.Fprintln(c.App.ErrWriter, line)
			}
			last = line
		}
	}
	followed, err := cl.Follow(c.Context, id, o, stdout, stderr)
	s := followed.Job
	if c.Context.Err() != nil {
		return &statusError{exitInterrupted, fmt.Errorf("%s goes on; end it with: hops job stop %s", id, id)}
	}
	if err != nil && !s.Ended() {
		return explain(err)
	}
	if asJSON {
		if err := json.NewEncoder(c.App.Writer).Encode(s); err != nil {
			return err
		}
	} else {
		if err != nil {
			fmt.Fprintf(c.App.ErrWriter, "logs: %v\n", err)
		}
		complete, cancel := context.WithTimeout(c.Context, logPatience)
		if err := cl.AwaitKept(complete, followed); err != nil {
			fmt.Fprintf(c.App.ErrWriter, "warning: what it wrote is not kept: it could not be written to %s in the filesystem (has it space? see hops doctor)\n", s.LogDir)
		}
		cancel()
	}
	return result(s, c.Bool("verbose"))
}

// result is the error of a job that has not succeeded, with the exit status of its program.
func result(s client.JobStatus, verbose bool) error {
	if s.Succeeded() {
		return nil
	}
	code := s.ExitStatus()
	for _, k := range s.Containers {
		if !verbose && !k.Master && k.ExitStatus != nil && *k.ExitStatus == code && code > 0 {
			which := ""
			if k.Instance() > 0 {
				which = fmt.Sprintf("instance %d: ", k.Instance())
			}
			if code == exitNotStarted || code == exitNotFound { // nobody else says why
				return fail(code, "%s %s: %s%s", s.ID, s.Phase, which, cmp.Or(k.Diagnostics, rm.ExitStatus(code).String()))
			}
			return fail(code, "%s %s: %s%v; hops job logs %s", s.ID, s.Phase, which, rm.ExitStatus(code), s.ID)
		}
		if !verbose && !k.Master && k.ExitStatus != nil && *k.ExitStatus == int(rm.ExitUnknown) && code == 1 && k.Diagnostics != "" {
			return fail(code, "%s %s: %s", s.ID, s.Phase, k.Diagnostics) // it was not started, and has no log
		}
	}
	return fail(code, "%s %s: %s", s.ID, s.Phase, s.Diagnostics)
}

// The exit statuses of a command that could not be started, as in a shell.
const (
	exitNotStarted = 126
	exitNotFound   = 127
)

// progress is a job's phase, and what it waits for.
func progress(s client.JobStatus) string {
	if s.Phase == client.PhasePending && s.PendingReason != nil {
		return s.Phase + ": " + s.PendingReason.Text
	}
	return s.Phase
}

// hint says that a file of this directory is not where the command runs.
func hint(w io.Writer, job client.Job) {
	if job.Workdir != "" {
		return
	}
	for _, word := range job.Argv {
		info, err := os.Stat(word)
		if filepath.IsAbs(word) || strings.HasPrefix(word, "-") || err != nil || !info.Mode().IsRegular() ||
			slices.ContainsFunc(job.Artifacts, func(a rm.Artifact) bool { return a.Name == filepath.Clean(word) }) {
			continue
		}
		with := word
		if filepath.Dir(word) != "." { // with its directory it keeps its name
			with = "."
		}
		fmt.Fprintf(w, "note: %s exists here, not where the command runs: add --with %s\n", word, quoted(with))
		return
	}
}

func pythonFlag() cli.Flag {
	return &cli.StringFlag{Name: "python", Usage: "virtual environment or interpreter to use, a `PATH` on the nodes", DefaultText: "python3 of the nodes"}
}

// containerPath is the PATH of containers unless their node says otherwise.
const containerPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// python is the environment in which a virtual environment or an interpreter is what python3 means.
func python(name string, env map[string]string) (out map[string]string, interpreter string, err error) {
	if name, err = filepath.Abs(name); err != nil {
		return nil, "", err
	}
	dir, bin := name, filepath.Join(name, "bin")
	interpreter = filepath.Join(bin, "python3")
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		interpreter, bin = name, filepath.Dir(name)
		dir = filepath.Dir(bin)
	} else if err == nil {
		if _, err := os.Stat(interpreter); err != nil {
			return nil, "", fail(exitUsage, "--python: %s has no bin/python3: name a virtual environment or an interpreter", name)
		}
	}
	out = map[string]string{}
	maps.Copy(out, env)
	rest := out["PATH"]
	if rest == "" {
		rest = containerPath
	}
	out["PATH"] = bin + ":" + rest
	if _, err := os.Stat(filepath.Join(dir, "pyvenv.cfg")); err == nil {
		out["VIRTUAL_ENV"] = dir
	}
	return out, interpreter, nil
}

// printID is the answer to --detach.
func printID(c *cli.Context, id string, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(map[string]string{"id": id})
	}
	_, err := fmt.Fprintln(c.App.Writer, id)
	return err
}

// stateFilter is what --state names, as the resource manager's states.
var stateFilter = map[string][]string{
	"pending": {"ACCEPTED", "RUNNING"}, "running": {"RUNNING"}, "succeeded": {"FINISHED"}, "failed": {"FAILED", "FINISHED"}, "killed": {"KILLED"},
}

func listJobs(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	query := url.Values{"limit": {"10000"}}
	var states []string
	if text := c.String("state"); text != "" {
		for word := range strings.SplitSeq(strings.ToLower(text), ",") {
			theirs, ok := stateFilter[word]
			if !ok {
				names := slices.Sorted(maps.Keys(stateFilter))
				return fail(exitUsage, "--state: there is no state %q%s: %s", word, nearest.Hint(word, names), strings.Join(names, ", "))
			}
			states = append(states, strings.ToUpper(word))
			query["state"] = append(query["state"], theirs...)
		}
	}
	if c.Int("limit") < 0 {
		return fail(exitUsage, "--limit %d is not a number of jobs", c.Int("limit"))
	}
	for flag, name := range map[string]string{"of": "user", "queue": "queue"} {
		if v := c.String(flag); v != "" {
			query.Set(name, v)
		}
	}
	if n := c.Int("limit"); n > 0 && len(states) == 0 {
		query.Set("limit", strconv.Itoa(min(n, 10_000)))
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	raw, err := cl.Jobs().Raw(c.Context, http.MethodGet, "/api/v1/jobs?"+query.Encode(), nil)
	if err != nil {
		return explain(err)
	}
	var answer struct{ Jobs []client.JobStatus }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return err
	}
	jobs := answer.Jobs
	if len(states) > 0 {
		jobs = slices.DeleteFunc(jobs, func(j client.JobStatus) bool {
			return !slices.Contains(states, j.Phase)
		})
	}
	if n := c.Int("limit"); n > 0 {
		jobs = jobs[:min(n, len(jobs))]
	}
	switch {
	case c.Bool("quiet"):
		for _, j := range jobs {
			fmt.Fprintln(c.App.Writer, j.ID)
		}
		return nil
	case asJSON:
		return json.NewEncoder(c.App.Writer).Encode(jobs)
	}
	t := newTable(c.App.Writer, "ID", "NAME", "USER", "QUEUE", "KIND", "STATE", "GPUS", "SUBMITTED", "TIME", "REASON")
	for _, j := range jobs {
		why := j.Diagnostics
		if j.PendingReason != nil {
			why = j.PendingReason.Text
		}
		t.row(j.ID, j.Name, j.User, j.Queue, j.Kind, j.Phase, strconv.Itoa(j.Used.GPUs), clock(j.Submitted), ran(j), shortened(why, 60))
	}
	return t.flush()
}

// ran is how long a job has run, "-" if it has not.
func ran(j client.JobStatus) string {
	if j.Started == 0 {
		return "-"
	}
	end := time.Now()
	if j.Finished > 0 {
		end = time.UnixMilli(j.Finished)
	}
	return max(0, end.Sub(time.UnixMilli(j.Started))).Round(time.Second).String()
}

// shortened is the beginning of a text.
func shortened(text string, n int) string {
	text, _, _ = strings.Cut(text, "\n")
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
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
	if len(s.Command) > 0 {
		var words []string
		for _, w := range s.Command {
			words = append(words, quoted(w))
		}
		t.row("command", strings.Join(words, " "))
	}
	t.row("state", s.Phase)
	if s.PendingReason != nil {
		t.row("waits", s.PendingReason.Text)
	}
	if m := s.Members; m != nil {
		t.row("members", fmt.Sprintf("%d: %d wait, %d run, %d succeeded, %d failed", m.Total, m.Waiting, m.Running, m.Succeeded, m.Failed))
	}
	if s.Deadline > 0 {
		t.row("deadline", clock(s.Deadline))
	}
	if s.Ended() {
		t.row("exit status", strconv.Itoa(s.ExitStatus()))
	}
	t.row("submitted", clock(s.Submitted))
	t.row("started", clock(s.Started))
	t.row("finished", clock(s.Finished))
	t.row("time", ran(s))
	t.row("uses", fmt.Sprintf("%d MiB, %d vcores, %d GPUs", s.Used.Memory>>20, s.Used.VCores, s.Used.GPUs))
	t.row("logs", s.LogDir)
	if s.Diagnostics != "" {
		t.row("diagnostics", s.Diagnostics)
	}
	for _, w := range s.Warnings {
		t.row("warning", w)
	}
	if err := t.flush(); err != nil || len(s.Containers) == 0 {
		return err
	}
	fmt.Fprintln(c.App.Writer)
	t = newTable(c.App.Writer, "CONTAINER", "RUNS", "NODE", "STATE", "EXIT", "MEMORY", "VCORES", "GPUS")
	for _, k := range s.Containers {
		runs, exit, gpus := fmt.Sprintf("instance %d", k.Instance()), "-", "-"
		switch {
		case k.Master:
			runs = "master"
		case s.Kind != "command":
			runs = "executor"
		}
		if k.ExitStatus != nil {
			exit = strconv.Itoa(*k.ExitStatus)
		}
		if len(k.GPUs) > 0 {
			gpus = strings.Join(k.GPUs, ",")
		}
		t.row(k.ID, runs, k.Node, string(k.State), exit, fmt.Sprintf("%d MiB", k.Resources.Memory>>20), strconv.Itoa(k.Resources.VCores), gpus)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return writeGPUUse(c.App.Writer, s.Containers)
}

func jobLogs(c *cli.Context) error {
	id, err := oneID(c)
	if err != nil {
		return err
	}
	o := client.LogOptions{Follow: c.Bool("follow"), Master: c.Bool("verbose")}
	if c.IsSet("instance") {
		n := c.Int("instance")
		o.Instance = &n
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	followed, err := cl.Follow(c.Context, id, o, c.App.Writer, c.App.ErrWriter)
	s := followed.Job
	if c.Context.Err() != nil {
		return &statusError{code: exitInterrupted}
	}
	if err != nil {
		return explain(err)
	}
	theirs := slices.DeleteFunc(slices.Clone(s.Containers), func(k client.JobContainer) bool { return k.Master || k.Started == 0 })
	if o.Instance != nil && !slices.ContainsFunc(theirs, func(k client.JobContainer) bool { return k.Instance() == *o.Instance }) {
		return fail(exitFailed, "%s has no instance %d that has begun", id, *o.Instance)
	}
	if len(theirs) == 0 && !o.Master {
		why := ""
		switch {
		case s.PendingReason != nil:
			why = ": it waits: " + s.PendingReason.Text
		case s.Diagnostics != "":
			why = ": " + s.Diagnostics
		}
		return fail(exitFailed, "%s has no logs of its command%s (-v has those of its application master)", id, why)
	}
	return nil
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

func stopJobs(c *cli.Context) error {
	return stopEach(c, "jobs", func(ctx context.Context, cl *client.Client, id string) error {
		s, err := cl.Jobs().Get(ctx, id)
		if err != nil {
			return err
		}
		if s.Ended() {
			return &client.EndedError{ID: id, Phase: s.Phase}
		}
		return cl.Jobs().Stop(ctx, id)
	})
}

// stopEach ends what the arguments name. One that cannot be ended does not keep the others from it; one that has ended
// already is well.
func stopEach(c *cli.Context, what string, stop func(context.Context, *client.Client, string) error) error {
	if c.NArg() == 0 {
		return fail(exitUsage, "%s: name the %s", c.Command.FullName(), what)
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	var first error
	for _, id := range c.Args().Slice() {
		err := stop(c.Context, cl, id)
		if ended, ok := errors.AsType[*client.EndedError](err); ok {
			fmt.Fprintln(c.App.ErrWriter, ended)
			continue
		}
		if err != nil && c.NArg() > 1 {
			fmt.Fprintf(c.App.ErrWriter, "hops: %s: %v\n", id, err)
		}
		if err != nil && first == nil {
			first = explain(err)
		}
	}
	if first != nil && c.NArg() > 1 { // it is said already
		status := &statusError{code: exitFailed}
		if s, ok := errors.AsType[*statusError](first); ok {
			status.code = s.code
		}
		return status
	}
	return first
}

// clock shows a time in milliseconds since 1970, "-" for none.
func clock(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Format("2006-01-02 15:04:05")
}
