package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/urfave/cli/v2"
)

// datanodeForgetCommand is `hops datanode forget`.
func datanodeForgetCommand() *cli.Command {
	file := &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE`, whose list of namenodes is asked"}
	return &cli.Command{
		Name: "forget", Usage: "give up a dead datanode that never comes back: nothing waits for what it has, and lists leave it out",
		ArgsUsage: "ID|ADDRESS",
		Description: "A file whose writer is gone stays under recovery while a datanode of its last block is dead, because that one may have the only copy of\n" +
			"bytes that were synced. The namenode's log names the files and the datanodes. forget says that it will not come back: such files are closed with\n" +
			"what the other datanodes have, or without the block if none has it, and what only the forgotten one had is lost. A datanode that lives is refused. One that\n" +
			"comes back all the same is taken in again; what it has of blocks that were settled without it goes to its trash. For superusers.",
		Flags: []cli.Flag{file, userFlag()}, Action: forgetDatanode,
	}
}

func forgetDatanode(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "datanode forget: give the ID of a datanode, or the ADDRESS of its data transfer (host:port)")
	}
	name := c.Args().First()
	if err := operate(c, http.MethodDelete, "/api/v1/datanodes/"+url.PathEscape(name), nil); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is given up: files under recovery do not wait for it any more\n", name)
	return nil
}
