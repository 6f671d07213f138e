package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/hrpc"
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
		&cli.StringFlag{Name: "gpu-profile", Usage: "`PROFILE` of MIG instances, such as 1g.10gb: --gpus counts these in place of whole GPUs"},
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
		Usage: "run commands in containers: run, exec, plan, explain, list, status, resize, retry, logs, stop",
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
			{Name: "status", Usage: "describe a job and its containers, or members of one: ID[7], ID_3-9", ArgsUsage: "ID", Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()}, Action: jobStatus},
			{
				Name: "logs", Usage: "print what a job's command has written, standard output and standard error apart", ArgsUsage: "ID",
				Description: "ID[7] or ID_7 is member 7 of an array, or instance 7.",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the job ends"},
					&cli.IntFlag{Name: "instance", Usage: "only instance `NUMBER`, from 0 on"},
					verbose, confFlag(), userFlag(),
				},
				Action: jobLogs,
			},
			resizeCommand(),
			retryCommand(),
			{Name: "stop", Aliases: []string{"kill"}, Usage: "end jobs, or members of an array: ID[7], ID_3-9", ArgsUsage: "ID ...", Flags: []cli.Flag{confFlag(), userFlag()}, Action: stopJobs},
		},
	}
}
