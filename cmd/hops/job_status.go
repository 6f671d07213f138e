package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

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

// clock shows a time in milliseconds since 1970, "-" for none.
func clock(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Format("2006-01-02 15:04:05")
}
