package main

import (
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
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/yaml"
	rm "github.com/gohops/hops/resourcemanager"
	rmjob "github.com/gohops/hops/resourcemanager/job"
)

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
	for flag, field := range map[string]*string{"name": &job.Name, "queue": &job.Queue, "memory": &job.Resources.Memory, "timeout": &job.Timeout, "fencing": &job.Fencing, "gpu-profile": &job.Resources.GPUProfile} {
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
	given := name
	if name, err = filepath.Abs(name); err != nil {
		return nil, "", err
	}
	// An absolute path may be there on the nodes alone; any other was meant to be here.
	if _, err := os.Stat(name); given != name && errors.Is(err, os.ErrNotExist) {
		return nil, "", fail(exitUsage, "--python: there is no %s: name a virtual environment or an interpreter by its path", name)
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
