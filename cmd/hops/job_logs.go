package main

import (
	"io"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	rmjob "github.com/gohops/hops/resourcemanager/job"
)

func jobLogs(c *cli.Context) error {
	id, err := oneID(c)
	if err != nil {
		return err
	}
	o := client.LogOptions{Follow: c.Bool("follow"), Master: c.Bool("verbose")}
	if job, members := rmjob.ParseMembers(id); members != "" {
		n, err := strconv.Atoi(members)
		if err != nil || n < 0 {
			return fail(exitUsage, "job logs: %s: name one member at a time", id)
		}
		if c.IsSet("instance") && c.Int("instance") != n {
			return fail(exitUsage, "job logs: %s is not --instance %d", id, c.Int("instance"))
		}
		id, o.Instance = job, &n
	}
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
