package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	nnserver "github.com/gohops/hops/namenode/server"
)

func removeCommand(file cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "remove", Usage: "take a machine out: its certificate is void at once, its connections end", ArgsUsage: "NAME",
		Description: "It says first what the machine holds, and refuses if blocks would be lost that no other datanode has. To empty it:\n" +
			"  hops dfsadmin -decommission NAME     until `hops datanode list` says decommissioned\n" +
			"  hops rmadmin -decommission NAME      until `hops node -list -all` says DECOMMISSIONED",
		Flags: []cli.Flag{
			file, userFlag(),
			&cli.BoolFlag{Name: "force", Usage: "although data is lost"},
			&cli.BoolFlag{Name: "last-resourcemanager", Usage: "although it runs the last resource manager, with which the applications and their history go"},
		},
		Action: clusterRemove,
	}
}

func clusterRemove(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "cluster remove: give the NAME of one machine; `hops cluster nodes` lists them")
	}
	name := c.Args().First()
	if err := tellHoldings(c, name); err != nil {
		return err
	}
	if err := removeMachine(c, name, c.Bool("last-resourcemanager")); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is no member any more; its connections end within seconds. It may join again with a new token.\n", name)
	return nil
}

// tellHoldings says what a machine holds. Without --force it refuses if data would be lost.
func tellHoldings(c *cli.Context, name string) error {
	var data nnserver.Holds
	if err := operation(c, http.MethodGet, "/api/v1/cluster/machines/"+url.PathEscape(name)+"/holds", nil, &data); err != nil {
		return err
	}
	for _, d := range data.Datanodes {
		state := d.State
		if !d.Alive {
			state = "dead, " + state
		}
		fmt.Fprintf(c.App.Writer, "%s: datanode %s is %s\n", name, d.Address, state)
	}
	if data.Blocks > 0 {
		fmt.Fprintf(c.App.Writer, "%s: replicas of %d blocks, %d of which no other living datanode has\n", name, data.Blocks, data.Only)
	}
	if _, leader, err := askManagers(c); err == nil && leader != nil {
		var known struct{ Nodes []client.Node }
		if err := requestManager(c.Context, *leader, "", http.MethodGet, "/api/v1/nodes", nil, &known); err != nil {
			fmt.Fprintf(c.App.Writer, "%s: what runs there is not known: %v\n", name, err)
		}
		for _, n := range known.Nodes {
			if n.Machine == name && len(n.Containers) > 0 {
				fmt.Fprintf(c.App.Writer, "%s: %d containers run there, and end with it: %s\n", name, len(n.Containers), strings.Join(n.Containers[:min(len(n.Containers), 5)], " "))
			}
		}
	}
	if data.Only > 0 && !c.Bool("force") {
		return fail(exitFailed, "%s has %d blocks that no other living datanode has, and they would be lost: `hops dfsadmin -decommission %s` has them copied; --force removes the machine all the same",
			name, data.Only, name)
	}
	if data.Missing > 0 && !c.Bool("force") {
		more := ""
		if data.Missing > int64(len(data.Lost)) {
			more = ", …"
		}
		return fail(exitFailed, "%s has a datanode that does not run, and %d blocks are on no other one (%s%s): start it, and `hops dfsadmin -decommission %s` has its blocks copied; --force removes the machine all the same",
			name, data.Missing, strings.Join(data.Lost, ", "), more, name)
	}
	return nil
}
