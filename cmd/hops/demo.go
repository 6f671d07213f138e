package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/demo"
)

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "start a cluster of processes, run a search on it, kill parts of it, check everything, and end",
		Description: "Needs python3 and nothing else. Ends with status 0 only if all of it happened and nothing that was\n" +
			"acknowledged is missing. Leaves nothing running and no files behind.",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "keep", Usage: "keep the directory with data and logs"}},
		Action: func(c *cli.Context) error {
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			return (&demo.Demo{Binary: executable, Out: c.App.Writer, Keep: c.Bool("keep")}).Run(c.Context)
		},
	}
}
