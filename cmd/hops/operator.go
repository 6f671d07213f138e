package main

import "github.com/urfave/cli/v2"

func operatorCommand() *cli.Command {
	return &cli.Command{
		Name:  "operator",
		Usage: "look at the files of servers of this machine, and after search indexes: inspect, search",
		Subcommands: []*cli.Command{{
			Name:  "inspect",
			Usage: "read what a server has on disk, without the server, and change nothing: log, snapshot, checkpoint",
			Description: "Ends with 1 where something is damaged, or cannot be read. What may be a secret is not shown, but names of files and users are.\n" +
				"docs/how-to/troubleshooting.md says when to use it.",
			Subcommands: []*cli.Command{inspectLogCommand(), inspectSnapshotCommand(), inspectCheckpointCommand()},
		}, operatorSearchCommand()},
	}
}
