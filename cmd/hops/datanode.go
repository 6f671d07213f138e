package main

import "github.com/urfave/cli/v2"

func datanodeCommand() *cli.Command {
	return &cli.Command{
		Name:        "datanode",
		Usage:       "the datanodes: forget",
		Subcommands: []*cli.Command{datanodeForgetCommand()},
	}
}
