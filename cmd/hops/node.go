package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"
)

// yarnNode is a node as /ws/v1/cluster/nodes describes it.
type yarnNode struct {
	ID              string `json:"id"`
	State           string `json:"state"`
	NodeHTTPAddress string `json:"nodeHTTPAddress"`
	NumContainers   int    `json:"numContainers"`
	LastHealth      int64  `json:"lastHealthUpdate"`
	HealthReport    string `json:"healthReport"`
	UsedMemoryMB    int64  `json:"usedMemoryMB"`
	AvailMemoryMB   int64  `json:"availMemoryMB"`
	UsedVCores      int    `json:"usedVirtualCores"`
	AvailVCores     int    `json:"availableVirtualCores"`
}

func nodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "node",
		Usage: "nodes, as `yarn node` shows them: -list",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list running nodes"},
			&cli.BoolFlag{Name: "all", Usage: "with -list: nodes in every state"},
			&cli.BoolFlag{Name: "showDetails", Usage: "with -list: resources and GPUs as well"},
			confFlag(), userFlag(), outputFlag(),
		},
		Action: func(c *cli.Context) error {
			if !c.Bool("list") {
				return fail(exitYarn, "node: give -list")
			}
			return yarnError(listNodes(c))
		},
	}
}

func listNodes(c *cli.Context) error {
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	details, err := cl.Jobs().Nodes(c.Context)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(details)
	}
	query := "nodes?states=RUNNING"
	if c.Bool("all") {
		query = "nodes"
	}
	var answer struct{ Nodes struct{ Node []yarnNode } }
	if err := yarn(c, cl, query, &answer); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "Total Nodes:%d\n", len(answer.Nodes.Node))
	fmt.Fprintf(c.App.Writer, "%16s\t%15s\t%17s\t%28s\n", "Node-Id", "Node-State", "Node-Http-Address", "Number-of-Running-Containers")
	for _, n := range answer.Nodes.Node {
		fmt.Fprintf(c.App.Writer, "%16s\t%15s\t%17s\t%28d\n", n.ID, n.State, n.NodeHTTPAddress, n.NumContainers)
		if !c.Bool("showDetails") {
			continue
		}
		fmt.Fprintf(c.App.Writer, "Detailed Node Information :\n\tLast-Health-Update : %s\n\tMemory : %d MB used, %d MB free\n\tvCores : %d used, %d free\n",
			time.UnixMilli(n.LastHealth).Format(time.DateTime), n.UsedMemoryMB, n.AvailMemoryMB, n.UsedVCores, n.AvailVCores)
		for _, d := range details {
			if d.ID != n.ID {
				continue
			}
			for _, g := range d.GPUs {
				mark := ""
				if g.Simulated {
					mark = " (simulated)"
				}
				fmt.Fprintf(c.App.Writer, "\tGPU %s : %s%s %s\n", g.UUID, g.Model, mark, g.Health)
			}
		}
	}
	return nil
}
