package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	rmjob "github.com/gohops/hops/resourcemanager/job"
)

func stopJobs(c *cli.Context) error {
	return stopEach(c, "jobs", func(ctx context.Context, cl *client.Client, id string) error {
		job, members := rmjob.ParseMembers(id)
		if members != "" {
			list, err := cl.Jobs().KillMembers(ctx, job, members)
			for _, m := range list {
				if m.State == client.MemberSucceeded {
					fmt.Fprintf(c.App.ErrWriter, "%s_%d has succeeded already\n", job, m.Number)
				}
			}
			if err != nil {
				if s, unknown := cl.Jobs().Get(ctx, job); unknown == nil && s.Ended() {
					return &client.EndedError{ID: job, Phase: s.Phase}
				}
			}
			return err
		}
		s, err := cl.Jobs().Get(ctx, job)
		if err != nil {
			return err
		}
		if s.Ended() {
			return &client.EndedError{ID: job, Phase: s.Phase}
		}
		return cl.Jobs().Stop(ctx, job)
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
