package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	rmjob "github.com/gohops/hops/resourcemanager/job"
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
	if job, members := rmjob.ParseMembers(id); members != "" {
		return memberStatus(c, cl, job, members, asJSON)
	}
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
		text := fmt.Sprintf("%d: %d wait, %d run, %d succeeded, %d failed", m.Total, m.Waiting, m.Running, m.Succeeded, m.Failed)
		if m.Killed > 0 {
			text += fmt.Sprintf(", %d killed", m.Killed)
		}
		t.row("members", text)
	}
	if s.Size != nil {
		t.row("instances", sizeText(*s.Size))
	}
	if at, step := lastCheckpoint(s.Containers); at > 0 {
		t.row("checkpoint", fmt.Sprintf("step %d at %s", step, clock(at)))
	}
	leave := 0
	for _, k := range s.Containers {
		p := k.Preempted
		if p == nil || k.ExitStatus != nil {
			continue
		}
		if leave++; leave <= maxLeaving {
			t.row("leaves", fmt.Sprintf("%s at %s: %s", k.ID, clock(p.Deadline), p.Reason))
		}
	}
	if leave > maxLeaving {
		t.row("leaves", fmt.Sprintf("%d more", leave-maxLeaving))
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
	return writeContainers(c, s)
}

// maxLeaving bounds the containers with a notice that are told of each on its own.
const maxLeaving = 20

// lastCheckpoint is when a container said last that its work is saved, and up to which step; 0: none ever did.
func lastCheckpoint(list []client.JobContainer) (at, step int64) {
	for _, k := range list {
		if k.Checkpointed > at {
			at, step = k.Checkpointed, k.Step
		}
	}
	return at, step
}

// sizeText is how many instances a job has.
func sizeText(s client.JobSize) string {
	if s.Min > 0 {
		return fmt.Sprintf("%d, of which %d at least start at once", s.Max, s.Min)
	}
	return strconv.Itoa(s.Max)
}

// writeContainers lists those of a job.
func writeContainers(c *cli.Context, s client.JobStatus) error {
	head := []string{"CONTAINER", "RUNS", "NODE", "STATE", "EXIT", "MEMORY", "VCORES", "GPUS"}
	saved, _ := lastCheckpoint(s.Containers)
	if saved > 0 {
		head = append(head, "STEP")
	}
	t := newTable(c.App.Writer, head...)
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
		row := []string{k.ID, runs, k.Node, string(k.State), exit, fmt.Sprintf("%d MiB", k.Resources.Memory>>20), strconv.Itoa(k.Resources.VCores), gpus}
		switch {
		case k.Checkpointed > 0:
			row = append(row, strconv.FormatInt(k.Step, 10))
		case saved > 0:
			row = append(row, "-")
		}
		t.row(row...)
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
