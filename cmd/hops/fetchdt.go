package main

import (
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/token"
)

// fetchdtCommand is `hdfs fetchdt`.
func fetchdtCommand() *cli.Command {
	return &cli.Command{
		Name:      "fetchdt",
		Usage:     "fetch a delegation token, with which a job acts as you from anywhere, as `hdfs fetchdt` does",
		ArgsUsage: "FILE",
		Description: `hops fetchdt --renewer yarn FILE     get a token and write it to FILE, mode 0600
hops fetchdt --print FILE            show what is in FILE, without its secrets
hops fetchdt --renew FILE            make the tokens in FILE good for longer
hops fetchdt --cancel FILE           end them

HADOOP_TOKEN_FILE_LOCATION=FILE makes hops, and every client of Hadoop's, show the token in place of any other proof. FILE is
Hadoop's file of credentials.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "renewer", Usage: "`USER` who may renew the token; default: nobody"},
			&cli.BoolFlag{Name: "print", Usage: "print the tokens of the file"},
			&cli.BoolFlag{Name: "verbose", Usage: "with --print: all that they say"},
			&cli.BoolFlag{Name: "renew", Usage: "renew them; you have to be their renewer"},
			&cli.BoolFlag{Name: "cancel", Usage: "cancel them; you have to be their owner or renewer"},
			&cli.StringFlag{Name: "fs", Usage: "the filesystem's `URI`; default: the one that is configured"},
		},
		Action: fetchdt,
	}
}

func fetchdt(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "give exactly one file: hops fetchdt [--renewer USER | --print | --renew | --cancel] FILE")
	}
	chosen := 0
	for _, name := range []string{"print", "renew", "cancel"} {
		if c.Bool(name) {
			chosen++
		}
	}
	if chosen > 1 || chosen == 1 && c.IsSet("renewer") || c.Bool("verbose") && !c.Bool("print") {
		return fail(exitUsage, "--print (with --verbose), --renew, --cancel and --renewer exclude each other")
	}
	file := c.Args().First()
	if c.Bool("print") {
		return printTokens(c.App.Writer, file, c.Bool("verbose"))
	}
	conf, err := hadoopConf("")
	if err != nil {
		if !isNoCluster(err) || c.String("fs") == "" {
			return err
		}
		conf = &dfs.HadoopConf{Properties: map[string]string{}} // the URI says enough
	}
	uri := c.String("fs")
	if uri == "" {
		uri = conf.DefaultFS()
	}
	location, err := conf.Locate(uri)
	if err != nil {
		return err
	}
	location.Config.Logger = clientLogger(c.App.ErrWriter)
	location.Config.Leaderless = leaderless
	client, err := dfs.New(location.Config)
	if err != nil {
		return err
	}
	defer client.Close()
	services := dfs.TokenServices(location.Authority, location.Config.Namenodes)
	if !c.Bool("renew") && !c.Bool("cancel") {
		t, err := client.GetDelegationToken(c.Context, c.String("renewer"))
		if err != nil {
			return err
		}
		t.Service = services[0]
		return token.Credentials{{Alias: t.Service, Token: t}}.Save(file)
	}
	credentials, err := token.Load(file)
	if err != nil {
		return err
	}
	done := 0
	for _, e := range credentials {
		if t, ok := credentials.For(services...); !ok || t.Service != e.Token.Service || e.Token.Kind != token.Kind {
			continue
		}
		done++
		if c.Bool("cancel") {
			if err := client.CancelDelegationToken(c.Context, e.Token); err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "Cancelled token for %s\n", e.Token.Service)
			continue
		}
		until, err := client.RenewDelegationToken(c.Context, e.Token)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.App.Writer, "Renewed token for %s until: %s\n", e.Token.Service, until.Format(time.RFC1123))
	}
	if done == 0 {
		return fail(1, "%s has no delegation token for %s", file, services[0])
	}
	return nil
}

// printTokens shows what a file holds, as `hdfs fetchdt --print` does.
func printTokens(w io.Writer, file string, verbose bool) error {
	credentials, err := token.Load(file)
	if err != nil {
		return err
	}
	for _, e := range credentials {
		said := e.Token.Kind
		if id, err := token.ParseIdentifier(e.Token.Identifier); err == nil && verbose {
			said = id.String()
		} else if err == nil {
			said = fmt.Sprintf("%s token %d for %s with renewer %s", e.Token.Kind, id.Sequence, id.Owner, id.Renewer)
		}
		fmt.Fprintf(w, "Token (%s) for %s\n", said, e.Token.Service)
	}
	return nil
}
