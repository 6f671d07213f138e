package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
)

// nodeServiceCommands are the subcommands of `hops node` by which nodes are looked at and taken out of service.
func nodeServiceCommands() []*cli.Command {
	reason := &cli.StringFlag{Name: "reason", Usage: "`TEXT` that says why; `hops job explain` and `hops node list` show it to users"}
	lasts := &cli.StringFlag{Name: "for", Usage: "`DURATION`, as 2h, after which the nodes serve again by themselves", DefaultText: "until uncordon"}
	rest := []cli.Flag{confFlag(), userFlag(), outputFlag()}
	return []*cli.Command{
		{
			Name: "list", Aliases: []string{"ls"}, Usage: "list nodes with what they have, what is in use, and who wants what of them",
			Flags: rest, Action: listNodesHere,
		},
		{Name: "show", Usage: "describe nodes", ArgsUsage: "NODE ...", Flags: rest, Action: showNodes},
		{
			Name: "drain", Usage: "give nodes no more work, and empty them", ArgsUsage: "NODE ...",
			Description: "hops node drain --timeout 30m --reason 'new GPUs' gpu-17 gpu-18\n\n" +
				"What runs there may end until the timeout, and is ended then as preempted; without one it is waited for.\n" +
				"The nodes are in maintenance when they hold nothing any more, and serve again after `hops node uncordon`.",
			Flags: append([]cli.Flag{
				&cli.StringFlag{Name: "timeout", Usage: "`DURATION`, as 30m, that what runs there has; 0s: none", DefaultText: "as long as it takes"}, lasts, reason,
			}, rest...),
			Action: func(c *cli.Context) error { return serveHere(c, client.NodesMaintenance) },
		},
		{
			Name: "cordon", Usage: "give nodes no more work; what runs there goes on", ArgsUsage: "NODE ...",
			Flags: append([]cli.Flag{lasts, reason}, rest...), Action: func(c *cli.Context) error { return serveHere(c, client.NodesCordon) },
		},
		{
			Name: "uncordon", Usage: "have nodes serve again that were drained, cordoned or decommissioned", ArgsUsage: "NODE ...",
			Flags: rest, Action: func(c *cli.Context) error { return serveHere(c, client.NodesServe) },
		},
	}
}

// span reads a duration of the command line; absent: otherwise.
func span(c *cli.Context, flag string, otherwise, least time.Duration) (time.Duration, error) {
	if !c.IsSet(flag) {
		return otherwise, nil
	}
	d, err := time.ParseDuration(c.String(flag))
	if err != nil || d < least {
		return 0, fail(exitUsage, "--%s %s: want a time as 90s, 30m or 2h", flag, c.String(flag))
	}
	return d, nil
}

func serveHere(c *cli.Context, action string) error {
	nodes := c.Args().Slice()
	if len(nodes) == 0 {
		return fail(exitUsage, "node %s: name nodes, by machine, address or node id", c.Command.Name)
	}
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	o := client.NodeService{Action: action, Nodes: nodes, Reason: c.String("reason")}
	if o.Timeout, err = span(c, "timeout", -1, 0); err != nil {
		return err
	}
	if o.For, err = span(c, "for", 0, time.Second); err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	ids, err := cl.Jobs().ServeNodes(c.Context, o)
	if err != nil {
		return explain(err)
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(map[string][]string{"nodes": ids})
	}
	text := map[string]string{
		client.NodesMaintenance: "is being drained; `hops node list` shows when it is in maintenance", client.NodesCordon: "is cordoned", client.NodesServe: "is in service",
	}[action]
	for _, id := range ids {
		fmt.Fprintln(c.App.Writer, id, text)
	}
	return nil
}

// shownNodes are the nodes, sorted.
func shownNodes(c *cli.Context) ([]client.Node, error) {
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	nodes, err := cl.Jobs().Nodes(c.Context)
	slices.SortFunc(nodes, func(a, b client.Node) int { return cmp.Compare(a.ID, b.ID) })
	return nodes, explain(err)
}

func listNodesHere(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	nodes, err := shownNodes(c)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(nodes)
	}
	t := newTable(c.App.Writer, "NODE", "STATE", "RUNS", "MEMORY", "VCORES", "GPUS", "LABELS", "NOTE")
	for _, n := range nodes {
		of := func(used, all int64) string { return fmt.Sprintf("%d/%d", used, all) }
		t.row(n.ID, string(n.State), strconv.Itoa(len(n.Containers)), of(n.Used.Memory>>20, n.Capacity.Memory>>20)+" MiB", of(int64(n.Used.VCores), int64(n.Capacity.VCores)),
			of(int64(n.Used.GPUs), int64(n.Capacity.GPUs)), dashed(strings.Join(n.Labels, ",")), dashed(n.HealthReport))
	}
	return t.flush()
}

func dashed(s string) string { return cmp.Or(s, "-") }

func showNodes(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	names := c.Args().Slice()
	if len(names) == 0 {
		return fail(exitUsage, "node show: name nodes, by machine, address or node id")
	}
	all, err := shownNodes(c)
	if err != nil {
		return err
	}
	var chosen []client.Node
	for _, name := range names {
		had := len(chosen)
		for _, n := range all {
			if n.Named(name) && !slices.ContainsFunc(chosen, func(o client.Node) bool { return o.ID == n.ID }) {
				chosen = append(chosen, n)
			} else if n.Named(name) {
				had = -1
			}
		}
		if len(chosen) == had {
			return fail(exitFailed, "no node %.100q: `hops node list` shows what there is", name)
		}
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(chosen)
	}
	for i, n := range chosen {
		if i > 0 {
			fmt.Fprintln(c.App.Writer)
		}
		printNode(c.App.Writer, n)
	}
	return nil
}

// printNode describes a node for people.
func printNode(w io.Writer, n client.Node) {
	fmt.Fprintf(w, "%s %s\n", n.ID, n.State)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-11s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	if n.HealthReport != "" {
		line("note", "%s", n.HealthReport)
	}
	if l := n.Leaving; l != nil {
		line("wished", "by %s since %s", cmp.Or(l.By, "somebody"), clock(l.Since))
		if l.Reason != "" {
			line("reason", "%s", l.Reason)
		}
		if l.Deadline > 0 {
			line("deadline", "%s", clock(l.Deadline))
		}
		if l.Until > 0 {
			line("until", "%s", clock(l.Until))
		}
	}
	line("machine", "%s", dashed(n.Machine))
	line("rack", "%s", dashed(n.Rack))
	line("labels", "%s", dashed(strings.Join(n.Labels, ",")))
	for _, name := range slices.Sorted(maps.Keys(n.Attributes)) {
		line("attribute", "%s=%s", name, n.Attributes[name])
	}
	line("version", "%s", dashed(n.Version))
	line("memory", "%d of %d MiB in use", n.Used.Memory>>20, n.Capacity.Memory>>20)
	line("vcores", "%d of %d in use", n.Used.VCores, n.Capacity.VCores)
	line("containers", "%s", dashed(strings.Join(n.Containers, " ")))
	for _, g := range n.GPUs {
		line("gpu", "%s %s %s, held by %s", g.UUID, g.Model, g.Health, cmp.Or(g.Container, "nobody"))
	}
}
