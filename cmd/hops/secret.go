package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/metadata"
)

func secretCommand() *cli.Command {
	return &cli.Command{
		Name:  "secret",
		Usage: "what your jobs are to know and nobody else: put, list, rm",
		Subcommands: []*cli.Command{
			{
				Name:      "put",
				Usage:     "keep a secret for your jobs",
				ArgsUsage: "NAME [FILE|-]",
				Description: "hops secret put db-password\n" +
					"hops secret put tls.key key.pem\n\n" +
					"Without a FILE it asks at the terminal, or reads standard input. A job that names it (hops job run --secret\n" +
					"NAME, or secrets: [NAME] in its file) reads it from the file $HOPS_SECRETS_DIR/NAME. It cannot be shown again.",
				Flags:  []cli.Flag{confFlag(), userFlag()},
				Action: putSecret,
			},
			{
				Name: "list", Usage: "names of your secrets, and when each was put", Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()},
				Action: listSecrets,
			},
			{
				Name: "rm", Usage: "forget a secret; containers that run keep what they were given", ArgsUsage: "NAME", Flags: []cli.Flag{confFlag(), userFlag()},
				Action: removeSecret,
			},
		},
	}
}

func putSecret(c *cli.Context) error {
	if c.NArg() < 1 || c.NArg() > 2 {
		return fail(exitUsage, "secret put: give NAME and, if you like, a file")
	}
	secret, err := readSecret(c)
	if err != nil {
		return err
	}
	if len(secret) == 0 {
		return fail(exitUsage, "secret put: it is empty")
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	return badSecret(cl.Secrets().Put(c.Context, c.Args().First(), secret))
}

// badSecret gives mistakes of the command line their status.
func badSecret(err error) error {
	if errors.Is(err, metadata.ErrInvalidArgument) {
		return fail(exitUsage, "%v", err)
	}
	return err
}

// readSecret reads it from where the command line says: one byte more than the limit, so that a file that is too large is told.
func readSecret(c *cli.Context) ([]byte, error) {
	name := c.Args().Get(1)
	in := os.Stdin
	switch {
	case name == "" && term.IsTerminal(int(in.Fd())):
		fmt.Fprintf(c.App.ErrWriter, "Secret %s: ", c.Args().First())
		secret, err := term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(c.App.ErrWriter)
		return secret, err
	case name != "" && name != "-":
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, client.MaxSecret+1))
}

func listSecrets(c *cli.Context) error {
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	list, err := cl.Secrets().List(c.Context)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(list)
	}
	t := newTable(c.App.Writer, "NAME", "PUT")
	for _, s := range list {
		t.row(s.Name, time.UnixMilli(s.Modified).Format(time.DateTime))
	}
	return t.flush()
}

func removeSecret(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "secret rm: give one NAME")
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	return badSecret(cl.Secrets().Remove(c.Context, c.Args().First()))
}
