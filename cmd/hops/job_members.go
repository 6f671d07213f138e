package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	rmjob "github.com/gohops/hops/resourcemanager/job"
)

// memberStatus describes members of a job.
func memberStatus(c *cli.Context, cl *client.Client, job, members string, asJSON bool) error {
	list, err := cl.Jobs().Members(c.Context, job, members)
	if err != nil {
		return explain(err)
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(list)
	}
	t := newTable(c.App.Writer, "MEMBER", "STATE", "TRIES", "CONTAINER", "NODE", "EXIT", "STARTED", "FINISHED", "DIAGNOSTICS")
	for _, m := range list {
		container, node, exit, started, finished, why := "-", "-", "-", "-", "-", ""
		if n := len(m.Containers); n > 0 {
			k := m.Containers[n-1]
			container, node, started, finished, why = k.ID, k.Node, clock(k.Started), clock(k.Finished), k.Diagnostics
			if k.ExitStatus != nil {
				exit = strconv.Itoa(*k.ExitStatus)
			}
			if k.Preempted != nil && k.ExitStatus == nil {
				why = fmt.Sprintf("leaves at %s: %s", clock(k.Preempted.Deadline), k.Preempted.Reason)
			}
		}
		t.row(strconv.Itoa(m.Number), m.State, strconv.Itoa(len(m.Containers)), container, node, exit, started, finished, shortened(why, 60))
	}
	return t.flush()
}

func retryCommand() *cli.Command {
	return &cli.Command{
		Name: "retry", Usage: "run members of an array again that have failed or were ended: ID[7], ID_3-9", ArgsUsage: "ID[MEMBERS] ...",
		Description: "The job has to run still. Members get all their tries anew. Those that wait, run or have succeeded stay as they are.",
		Flags:       []cli.Flag{confFlag(), userFlag(), outputFlag()},
		Action: func(c *cli.Context) error {
			asJSON, err := wantJSON(c)
			if err != nil {
				return err
			}
			return stopEach(c, "members, as ID[7] or ID_3-9", func(ctx context.Context, cl *client.Client, name string) error {
				id, members := rmjob.ParseMembers(name)
				if members == "" {
					return fail(exitUsage, "%s: name members of it, as %s_7 or '%[1]s[1,3-9]'; a job that has ended is submitted anew", id, id)
				}
				list, err := cl.Jobs().RetryMembers(ctx, id, members)
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(c.App.Writer).Encode(list)
				}
				for _, m := range list {
					fmt.Fprintf(c.App.Writer, "%s_%d %s\n", id, m.Number, m.State)
				}
				return nil
			})
		},
	}
}

func resizeCommand() *cli.Command {
	return &cli.Command{
		Name: "resize", Usage: "give a job another number of instances", ArgsUsage: "ID N|MIN..MAX",
		Description: "hops job resize application_1700000000000_0001 8\n" +
			"hops job resize application_1700000000000_0001 2..8\n\n" +
			"Of a command that is no array, whether it waits or runs. With more, the rest is asked for. With less, the instances with the\n" +
			"largest numbers go: they have the notice that what is preempted has, and end at once when they say that their work is saved.\n" +
			"MIN is of a gang that was submitted with MIN..MAX alone: how many start at once.",
		Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()},
		Action: func(c *cli.Context) error {
			asJSON, err := wantJSON(c)
			if err != nil {
				return err
			}
			if c.NArg() != 2 {
				return fail(exitUsage, "%s: name a job, and how many instances it is to have: N or MIN..MAX", c.Command.FullName())
			}
			least, most, err := rmjob.ParseSize(c.Args().Get(1))
			if err != nil {
				return &statusError{exitUsage, err}
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			defer cl.Close()
			id := c.Args().First()
			size, err := cl.Jobs().Resize(c.Context, id, client.JobSize{Min: least, Max: most})
			if err != nil {
				return explain(err)
			}
			if asJSON {
				return json.NewEncoder(c.App.Writer).Encode(map[string]any{"id": id, "size": size})
			}
			_, err = fmt.Fprintf(c.App.Writer, "%s instances: %s\n", id, sizeText(size))
			return err
		},
	}
}
