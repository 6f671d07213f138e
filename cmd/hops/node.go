package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// yarnNode is a node as /ws/v1/cluster/nodes describes it.
type yarnNode struct {
	ID              string   `json:"id"`
	Rack            string   `json:"rack"`
	State           string   `json:"state"`
	NodeHTTPAddress string   `json:"nodeHTTPAddress"`
	NumContainers   int      `json:"numContainers"`
	LastHealth      int64    `json:"lastHealthUpdate"`
	HealthReport    string   `json:"healthReport"`
	UsedMemoryMB    int64    `json:"usedMemoryMB"`
	UsedVCores      int      `json:"usedVirtualCores"`
	Labels          []string `json:"nodeLabels"`
	Attributes      struct {
		List []struct {
			Prefix string `json:"prefix"`
			Name   string `json:"name"`
			Type   string `json:"type"`
			Value  string `json:"value"`
		} `json:"nodeAttributeInfo,omitempty"`
	} `json:"nodeAttributesInfo"`
	Total       yarnResource `json:"totalResource"`
	Used        yarnResource `json:"usedResource"`
	Utilization struct {
		PhysicalMB           int64   `json:"nodePhysicalMemoryMB"`
		VirtualMB            int64   `json:"nodeVirtualMemoryMB"`
		CPU                  float64 `json:"nodeCPUUsage"`
		ContainersPhysicalMB int64   `json:"aggregatedContainersPhysicalMemoryMB"`
		ContainersVirtualMB  int64   `json:"aggregatedContainersVirtualMemoryMB"`
		ContainersCPU        float64 `json:"containersCPUUsage"`
	} `json:"resourceUtilization"`
}

type yarnResource struct {
	Memory       int64 `json:"memory"`
	VCores       int64 `json:"vCores"`
	Informations struct {
		List []struct {
			Name  string `json:"name"`
			Value int64  `json:"value"`
		} `json:"resourceInformation"`
	} `json:"resourceInformations"`
}

// String is YARN's text of a resource.
func (r yarnResource) String() string {
	text := fmt.Sprintf("<memory:%d, vCores:%d", r.Memory, r.VCores)
	for _, i := range r.Informations.List {
		if i.Name != "memory-mb" && i.Name != "vcores" && i.Value != 0 {
			text += fmt.Sprintf(", %s: %d", i.Name, i.Value)
		}
	}
	return text + ">"
}

// utilization prints both lines of what a node uses.
func (n *yarnNode) utilization(w io.Writer) {
	u := n.Utilization
	fmt.Fprintf(w, "\tResource Utilization by Node : PMem:%d MB, VMem:%d MB, VCores:%g\n", u.PhysicalMB, u.VirtualMB, u.CPU)
	fmt.Fprintf(w, "\tResource Utilization by Containers : PMem:%d MB, VMem:%d MB, VCores:%g\n", u.ContainersPhysicalMB, u.ContainersVirtualMB, u.ContainersCPU)
}

func nodeCommand() *cli.Command {
	return &cli.Command{
		Name:        "node",
		Usage:       "nodes, as `yarn node` shows them: -list, -status NODE; list, show, drain, cordon, uncordon, label, attribute",
		Subcommands: append(nodeServiceCommands(), nodeMarkCommands()...),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list running nodes"},
			&cli.BoolFlag{Name: "all", Usage: "with -list: nodes in every state"},
			&cli.BoolFlag{Name: "showDetails", Usage: "with -list: resources and GPUs as well"},
			&cli.StringFlag{Name: "states", Usage: "with -list: nodes in one of `STATES`, with commas"},
			&cli.StringFlag{Name: "status", Usage: "describe `NODE`, host:port"},
			confFlag(), userFlag(), outputFlag(),
		},
		Action: func(c *cli.Context) error {
			switch {
			case c.Args().Present() && !c.Bool("list") && !c.IsSet("status"):
				return unknownCommand(c)
			case c.Args().Present():
				return fail(exitUsage, "%s takes no argument: %q", c.Command.HelpName, c.Args().First())
			case c.Bool("list") == c.IsSet("status"):
				return fail(exitYarn, "node: give one of -list and -status NODE")
			case c.Bool("all") && c.IsSet("states"):
				return fail(exitYarn, "node: give one of -all and -states STATES, with -list")
			case c.IsSet("status"):
				return yarnError(nodeStatus(c, c.String("status")))
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
	states := words(strings.ToUpper(c.String("states")))
	for _, s := range states {
		if !slices.Contains(yarnNodeStates, s) {
			fmt.Fprintf(c.App.Writer, "The node state %s is invalid.\nThe valid node state can be one of the following: %s.\n", s, strings.Join(yarnNodeStates, ","))
			return &statusError{code: exitYarn}
		}
	}
	query := "nodes?states=RUNNING"
	switch {
	case c.Bool("all"):
		query = "nodes"
	case len(states) > 0:
		query = "nodes?states=" + strings.Join(states, ",")
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
		fmt.Fprintf(c.App.Writer, "Detailed Node Information :\n\tConfigured Resources : %v\n\tAllocated Resources : %v\n", n.Total, n.Used)
		n.utilization(c.App.Writer)
		fmt.Fprintf(c.App.Writer, "\tNode-Labels : %s\n", strings.Join(n.Labels, ","))
		for _, d := range details {
			if d.ID != n.ID {
				continue
			}
			for _, g := range d.GPUs {
				mark := ""
				if g.Simulated {
					mark = " (simulated)"
				}
				fmt.Fprintf(c.App.Writer, "\tGPU %s : %s%s %s\n", g.UUID, gpuModel(g), mark, g.Health)
			}
		}
	}
	return nil
}

// yarnNodeStates are YARN's words, in its order.
var yarnNodeStates = []string{"NEW", "RUNNING", "UNHEALTHY", "DECOMMISSIONED", "LOST", "REBOOTED", "DECOMMISSIONING", "SHUTDOWN"}

// nodeStatus describes a node; one that is not known is no failure, as in YARN.
func nodeStatus(c *cli.Context, id string) error {
	if !strings.Contains(id, ":") {
		return fail(exitYarn, "Invalid NodeId [%s]. Expected host:port", id)
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	var answer struct{ Node yarnNode }
	if err := yarn(c, cl, "nodes/"+url.PathEscape(id), &answer); isMissing(err) {
		fmt.Fprintf(c.App.Writer, "Could not find the node report for node id : %s\n", id)
		return nil
	} else if err != nil {
		return err
	}
	n := answer.Node
	if asJSON, err := wantJSON(c); err != nil {
		return err
	} else if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(n)
	}
	fmt.Fprintf(c.App.Writer, "Node Report : \n\tNode-Id : %s\n\tRack : %s\n\tNode-State : %s\n\tNode-Http-Address : %s\n\tLast-Health-Update : %s\n\tHealth-Report : %s\n\tContainers : %d\n\tMemory-Used : %dMB\n\tMemory-Capacity : %dMB\n\tCPU-Used : %d vcores\n\tCPU-Capacity : %d vcores\n\tNode-Labels : %s\n\tNode Attributes : %s\n",
		n.ID, n.Rack, n.State, n.NodeHTTPAddress, healthTime(n.LastHealth), n.HealthReport, n.NumContainers, n.UsedMemoryMB, n.Total.Memory, n.UsedVCores, n.Total.VCores,
		strings.Join(n.Labels, ","), n.attributes())
	n.utilization(c.App.Writer)
	fmt.Fprintln(c.App.Writer)
	return nil
}

// attributes is YARN's text of a node's attributes, one a line.
func (n *yarnNode) attributes() string {
	var lines []string
	for _, a := range n.Attributes.List {
		lines = append(lines, fmt.Sprintf("%s/%s(%s)=%s", a.Prefix, a.Name, a.Type, a.Value))
	}
	return strings.Join(lines, "\n\t                  ")
}

// healthTime is YARN's text of when a node was heard: milliseconds, and hours from 1 to 12 without saying which half of the day.
func healthTime(ms int64) string {
	t := time.UnixMilli(ms).UTC()
	return fmt.Sprintf("%s:%03dUTC", t.Format("Mon 02/Jan/06 03:04:05"), t.Nanosecond()/1e6)
}
