package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
)

// nodeMarkCommands are the subcommands of `hops node` that say what nodes are like.
func nodeMarkCommands() []*cli.Command {
	rest := []cli.Flag{confFlag(), userFlag()}
	return []*cli.Command{
		{
			Name: "label", Usage: "add labels to nodes, or take them away", ArgsUsage: "NODE[,NODE...] LABEL | LABEL- ...",
			Description: "hops node label gpu-17,gpu-18 ssd nvlink-\n\n" +
				"What is set wins over the node managers' configuration, and outlives their restart; --own ends that.",
			Flags: append([]cli.Flag{&cli.BoolFlag{Name: "own", Usage: "the labels are those of the node manager's configuration again"}}, rest...), Action: labelNodes,
		},
		{
			Name: "attribute", Usage: "set attributes of nodes, or give the node managers' own back", ArgsUsage: "NODE[,NODE...] NAME=VALUE | NAME- ...",
			Description: "hops node attribute gpu-17,gpu-18 gpu_driver=570 zone-\n\nWhat is set wins over the node managers' configuration, and outlives their restart.",
			Flags:       rest, Action: attributeNodes,
		},
	}
}

// marked sends a mark of each of the nodes that the first argument names.
func marked(c *cli.Context, mark client.NodeMarks) error {
	var marks []client.NodeMarks
	for _, node := range words(c.Args().First()) {
		mark.Node = node
		marks = append(marks, mark)
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := cl.Jobs().MarkNodes(c.Context, marks); err != nil {
		return explain(err)
	}
	for _, m := range marks {
		fmt.Fprintln(c.App.Writer, m.Node, "is changed; hops node show", m.Node)
	}
	return nil
}

func labelNodes(c *cli.Context) error {
	own := c.Bool("own")
	if c.NArg() == 0 || own != (c.NArg() == 1) {
		return fail(exitUsage, "node label: give nodes and then labels, LABEL to add or LABEL- to take away, or --own alone")
	}
	m := client.NodeMarks{OwnLabels: own}
	for _, word := range c.Args().Tail() {
		if l, drop := strings.CutSuffix(word, "-"); drop {
			m.DropLabels = append(m.DropLabels, l)
		} else {
			m.AddLabels = append(m.AddLabels, word)
		}
	}
	return marked(c, m)
}

func attributeNodes(c *cli.Context) error {
	if c.NArg() < 2 {
		return fail(exitUsage, "node attribute: give nodes and then attributes, NAME=VALUE to set or NAME- to give the node manager's own back")
	}
	m := client.NodeMarks{SetAttributes: map[string]string{}}
	for _, word := range c.Args().Tail() {
		name, value, set := strings.Cut(word, "=")
		bare, drop := strings.CutSuffix(word, "-")
		switch {
		case set:
			m.SetAttributes[name] = value
		case drop:
			m.DropAttributes = append(m.DropAttributes, bare)
		default:
			return fail(exitUsage, "node attribute: %q is neither NAME=VALUE nor NAME-", word)
		}
	}
	return marked(c, m)
}
