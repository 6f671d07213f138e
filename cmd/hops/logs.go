package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
)

func logsCommand() *cli.Command {
	return &cli.Command{
		Name:  "logs",
		Usage: "print the logs of an application, as `yarn logs` does: -applicationId ID",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "applicationId", Required: true, Usage: "whose containers' logs to print"},
			confFlag(), userFlag(),
		},
		Action: func(c *cli.Context) error {
			cl, err := dial(c)
			if err != nil {
				return yarnError(err)
			}
			defer cl.Close()
			id := c.String("applicationId")
			err = printLogs(c, cl, id)
			var missing *client.Error
			if errors.As(err, &missing) && missing.Status == 404 {
				fmt.Fprintf(c.App.ErrWriter, "Could not locate application logs for %s\n", id)
				return &statusError{code: exitYarn}
			}
			return yarnError(err)
		},
	}
}
