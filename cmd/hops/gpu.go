package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	rm "github.com/gohops/hops/resourcemanager"
)

func gpuCommand() *cli.Command {
	return &cli.Command{
		Name:  "gpu",
		Usage: "GPUs of the cluster: map, list, return, retire",
		Subcommands: []*cli.Command{
			{
				Name: "map", Usage: "one sign for each device, those of a GPU in MIG mode in brackets: in use, held and idle, free, or why it is not granted", Flags: []cli.Flag{confFlag(), userFlag()},
				Action: mapGPUs,
			},
			{
				Name: "list", Usage: "a line for each device, with its health, its load, and who holds it", Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()},
				Action: listGPUs,
			},
			{
				Name: "return", Usage: "grant a device again that was reset or repaired", ArgsUsage: "UUID",
				Description: "Forgets what happened to the device. One that was quarantined comes back by itself after it has rested, where the driver\n" +
					"says whether it needs a reset; one that is retired only by this.",
				Flags: []cli.Flag{confFlag(), userFlag()}, Action: func(c *cli.Context) error { return judgeGPU(c, rm.GPUHealthy) },
			},
			{
				Name: "retire", Usage: "grant a device no more, until it is returned", ArgsUsage: "UUID",
				Description: "What runs on it goes on.", Flags: []cli.Flag{confFlag(), userFlag()},
				Action: func(c *cli.Context) error { return judgeGPU(c, rm.GPURetired) },
			},
		},
	}
}

// gpuSigns are the signs of the map, and what they mean.
var gpuSigns = []struct{ sign, meaning string }{
	{"#", "in use"}, {"_", "held, and nothing is done with it"}, {".", "free"}, {"?", "suspect"}, {"!", "quarantined"}, {"~", "probing"}, {"x", "retired"}, {"-", "its node takes no work"},
}

// gpuSign is which of them stands for a device.
func gpuSign(n client.Node, g client.GPU) string {
	switch {
	case g.Container != "" && g.Use != nil && g.Use.Unused:
		return "_"
	case g.Container != "":
		return "#"
	case g.Health == rm.GPUSuspect:
		return "?"
	case g.Health == rm.GPUQuarantined:
		return "!"
	case g.Health == rm.GPUProbing:
		return "~"
	case g.Health == rm.GPURetired:
		return "x"
	case !n.Open:
		return "-"
	}
	return "."
}

func mapGPUs(c *cli.Context) error {
	nodes, err := gpuNodes(c)
	if err != nil {
		return err
	}
	counts := map[string]int{}
	t := newTable(c.App.Writer, "NODE", "GPUS", "MODEL")
	total, instances := 0, 0
	for _, n := range nodes {
		var signs strings.Builder
		var models []string
		show := func(g client.GPU) {
			sign := gpuSign(n, g)
			signs.WriteString(sign)
			counts[sign]++
			if model := gpuModel(g); !slices.Contains(models, model) {
				models = append(models, model)
			}
		}
		island := ""
		for _, g := range n.GPUs {
			if g.Profile != "" {
				continue
			}
			if signs.Len() > 0 && (g.Island == "" || g.Island != island) {
				signs.WriteByte(' ') // another NVLink island
			}
			island = g.Island
			show(g)
			total++
		}
		for _, d := range n.Divided {
			if signs.Len() > 0 {
				signs.WriteByte(' ')
			}
			signs.WriteByte('[')
			for _, g := range n.GPUs {
				if g.Parent == d.UUID {
					show(g)
					instances++
				}
			}
			signs.WriteByte(']')
			if d.Instances == 0 {
				models = append(models, d.Model+" in MIG mode without instances")
			}
		}
		t.row(n.ID, signs.String(), strings.Join(models, ", "))
	}
	if err := t.flush(); err != nil {
		return err
	}
	var legend []string
	for _, s := range gpuSigns {
		if counts[s.sign] > 0 {
			legend = append(legend, fmt.Sprintf("%s %s (%d)", s.sign, s.meaning, counts[s.sign]))
		}
	}
	what := fmt.Sprintf("%d GPUs", total)
	if instances > 0 {
		what += fmt.Sprintf(" and %d MIG instances", instances)
	}
	fmt.Fprintf(c.App.Writer, "%s: %s\n", what, strings.Join(legend, ", "))
	return nil
}

// gpuModel names what a device is.
func gpuModel(g client.GPU) string {
	if g.Profile == "" {
		return g.Model
	}
	return g.Model + " MIG " + g.Profile
}

// gpuNodes are the nodes that have devices, by name, their devices by island and number.
func gpuNodes(c *cli.Context) ([]client.Node, error) {
	if c.Args().Present() {
		return nil, fail(exitUsage, "%s: %q is not understood", c.Command.HelpName, c.Args().First())
	}
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	nodes, err := cl.Jobs().Nodes(c.Context)
	nodes = slices.DeleteFunc(nodes, func(n client.Node) bool { return len(n.GPUs)+len(n.Divided) == 0 })
	slices.SortFunc(nodes, func(a, b client.Node) int { return strings.Compare(a.ID, b.ID) })
	for _, n := range nodes {
		slices.SortStableFunc(n.GPUs, func(a, b client.GPU) int {
			return cmp.Or(strings.Compare(a.Island, b.Island), strings.Compare(a.Parent, b.Parent))
		})
	}
	return nodes, err
}

// listedGPU is a device in the output of `hops gpu list -o json`.
type listedGPU struct {
	client.GPU
	Node string `json:"node"`
	// Instances of a GPU in MIG mode; absent: it is a device that is granted.
	Instances *int `json:"instances,omitempty"`
}

// ofDivided is the line of a GPU in MIG mode.
func ofDivided(d client.DividedGPU, node string) listedGPU {
	g := listedGPU{GPU: client.GPU{UUID: d.UUID, Model: d.Model, Simulated: d.Simulated, Health: d.Health, HealthReason: d.HealthReason, Load: d.Load}, Node: node, Instances: &d.Instances}
	if g.HealthReason == "" {
		g.HealthReason = fmt.Sprintf("in MIG mode: its %d instances are granted", d.Instances)
		if d.Instances == 0 {
			g.HealthReason = "in MIG mode without instances: nothing of it is granted"
		}
	}
	return g
}

func listGPUs(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	nodes, err := gpuNodes(c)
	if err != nil {
		return err
	}
	all := []listedGPU{}
	for _, n := range nodes {
		for _, g := range n.GPUs {
			all = append(all, listedGPU{GPU: g, Node: n.ID})
		}
		for _, d := range n.Divided {
			all = append(all, ofDivided(d, n.ID))
		}
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(all)
	}
	t := newTable(c.App.Writer, "UUID", "NODE", "MODEL", "HEALTH", "BUSY", "MEMORY", "POWER", "CONTAINER", "IDLE", "REASON")
	for _, g := range all {
		busy, memory, power := gpuLoad(g.Load)
		t.row(g.UUID, g.Node, gpuModel(g.GPU), string(g.Health), busy, memory, power, g.Container, gpuIdle(g.Use), g.HealthReason)
	}
	return t.flush()
}

// gpuLoad is what a device does now: utilization, memory, power.
func gpuLoad(l *client.GPULoad) (busy, memory, power string) {
	if l == nil {
		return "-", "-", "-"
	}
	busy, power = "-", "-"
	if l.Utilization != nil {
		busy = fmt.Sprintf("%.0f%%", *l.Utilization)
	}
	if l.Power > 0 {
		power = fmt.Sprintf("%.0f W", l.Power)
	}
	return busy, fmt.Sprintf("%d MiB", l.MemoryUsed>>20), power
}

// gpuIdle is for how long a container has done nothing with a device, where that is unusually long.
func gpuIdle(u *client.GPUUse) string {
	if u == nil || !u.Unused {
		return "-"
	}
	return (time.Duration(u.Idle) * time.Millisecond).Round(time.Minute).String()
}

// writeGPUUse is the table of what containers did with their devices; nothing where nobody says.
func writeGPUUse(w io.Writer, containers []client.JobContainer) error {
	if !slices.ContainsFunc(containers, func(k client.JobContainer) bool { return len(k.GPUUse) > 0 }) {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable(w, "CONTAINER", "GPU", "BUSY", "PEAK MEMORY", "ENERGY", "IDLE")
	for _, k := range containers {
		for _, u := range k.GPUUse {
			busy := "-"
			if u.Held > 0 {
				busy = fmt.Sprintf("%.0f%%", 100*float64(u.Busy)/float64(u.Held))
			}
			t.row(k.ID, u.UUID, busy, fmt.Sprintf("%d MiB", u.MemoryPeak>>20), fmt.Sprintf("%.1f Wh", u.Energy/3600), gpuIdle(&u))
		}
	}
	return t.flush()
}

// judged is how long a node may take to say what has become of a device.
const judged = time.Minute

func judgeGPU(c *cli.Context, health rm.GPUHealth) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "%s: give the UUID of one device (hops gpu list shows them)", c.Command.HelpName)
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	uuid := c.Args().First()
	if _, err := cl.Jobs().Raw(c.Context, http.MethodPut, "/api/v1/admin/gpus/"+url.PathEscape(uuid)+"/health?health="+string(health), nil); err != nil {
		return explain(err)
	}
	ctx, cancel := context.WithTimeout(c.Context, judged)
	defer cancel()
	for {
		nodes, err := cl.Jobs().Nodes(ctx)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			for _, g := range n.GPUs {
				if g.UUID == uuid && g.Health == health {
					fmt.Fprintf(c.App.Writer, "%s of %s is %s\n", uuid, n.ID, health)
					return nil
				}
			}
			for _, g := range n.Divided {
				if g.UUID == uuid && g.Health == health {
					fmt.Fprintf(c.App.Writer, "%s of %s is %s, with its MIG instances\n", uuid, n.ID, health)
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the node has been told, and its device is not %s after %v: hops gpu list shows why", health, judged)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
