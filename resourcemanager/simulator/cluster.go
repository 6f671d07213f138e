package simulator

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/internal/yaml"
	rm "github.com/gohops/hops/resourcemanager"
)

const (
	maxNodes    = 100_000
	maxGPUs     = 1_024 // of a node
	maxFailures = 1_000_000
)

// Cluster is the machines of a simulation.
type Cluster struct {
	Nodes []Node
	// Failures are in the order of the file.
	Failures []Failure
}

// Node is a machine.
type Node struct {
	Name   string
	Rack   string // a path from outside to inside, as /row1/rack2
	Labels []string
	Shape
	Model string
	// Island is how many of its GPUs each NVLink island has; 0: they are not joined.
	Island int
}

// Failure takes a node away for a while.
type Failure struct {
	Node string
	At   int64 // ms from the beginning
	For  int64 // ms
}

// clusterFile is a cluster as written in YAML.
type clusterFile struct {
	Nodes    []nodeGroup   `yaml:"nodes"`
	Failures []failureLine `yaml:"failures"`
}

type nodeGroup struct {
	Name         string   `yaml:"name"`
	Count        int      `yaml:"count"`
	Memory       string   `yaml:"memory"`
	VCores       int      `yaml:"vcores"`
	GPUs         int      `yaml:"gpus"`
	Model        string   `yaml:"model"`
	Island       int      `yaml:"island"`
	Rack         string   `yaml:"rack"`
	NodesPerRack int      `yaml:"nodes_per_rack"`
	Labels       []string `yaml:"labels"`
}

type failureLine struct {
	Node string        `yaml:"node"`
	At   time.Duration `yaml:"at"`
	For  time.Duration `yaml:"for"`
}

// ReadCluster reads a cluster in YAML: groups of nodes that are alike, and when which of them fail.
//
//	nodes:
//	- {name: gpu, count: 64, gpus: 8, model: H100, island: 8, memory: 1TiB, vcores: 96, rack: /hall1, nodes_per_rack: 8}
//	failures:
//	- {node: gpu-3, at: 24h, for: 2h}
//
// A group of one is named as it says; nodes of others have their number behind a dash, from 0. With nodes_per_rack the rack is
// the place of racks that are numbered from 0.
func ReadCluster(name string, text []byte) (*Cluster, error) {
	var file clusterFile
	if err := yaml.UnmarshalStrict(name, text, &file); err != nil {
		return nil, err
	}
	c := &Cluster{}
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}
	known := map[string]bool{}
	for i, g := range file.Nodes {
		at := fmt.Sprintf("nodes[%d]", i)
		if g.Name == "" || len(g.Name) > maxName || strings.ContainsAny(g.Name, " \t\n/:") {
			wrong("%s.name: %q is no name of a machine", at, g.Name)
		}
		if g.Count == 0 {
			g.Count = 1
		}
		if g.Rack == "" {
			g.Rack = "/default-rack"
		}
		memory, err := size.Parse(g.Memory)
		shape := Shape{Memory: memory, VCores: g.VCores, GPUs: g.GPUs}
		switch {
		case err != nil:
			wrong("%s.memory: %w", at, err)
		case g.Count < 0 || g.Count+len(c.Nodes) > maxNodes:
			wrong("%s.count: there are at most %d nodes", at, maxNodes)
		case g.GPUs > maxGPUs:
			wrong("%s.gpus: a node has at most %d", at, maxGPUs)
		case g.Island < 0 || g.Island > 0 && g.GPUs%g.Island != 0:
			wrong("%s.island: %d GPUs are not islands of %d", at, g.GPUs, g.Island)
		case !strings.HasPrefix(g.Rack, "/") || g.Rack != path.Clean(g.Rack) || g.Rack == "/" || len(g.Rack) > maxName:
			wrong("%s.rack: %q is no path of a rack, as /row7/rack3", at, g.Rack)
		case g.NodesPerRack < 0:
			wrong("%s.nodes_per_rack: %d is negative", at, g.NodesPerRack)
		case shape.check() != nil:
			wrong("%s: %w", at, shape.check())
		default:
			for k := range g.Count {
				n := Node{Name: g.Name, Rack: g.Rack, Labels: g.Labels, Shape: shape, Model: g.Model, Island: g.Island}
				if g.Count > 1 {
					n.Name = fmt.Sprintf("%s-%d", g.Name, k)
				}
				if g.NodesPerRack > 0 {
					n.Rack = fmt.Sprintf("%s/rack%d", g.Rack, k/g.NodesPerRack)
				}
				if known[n.Name] {
					wrong("%s.name: there are two nodes %s", at, n.Name)
					break
				}
				known[n.Name] = true
				c.Nodes = append(c.Nodes, n)
			}
		}
	}
	if len(file.Nodes) == 0 {
		wrong("nodes is missing: a cluster has machines")
	}
	if len(file.Failures) > maxFailures {
		wrong("failures: more than %d", maxFailures)
		file.Failures = nil
	}
	for i, f := range file.Failures {
		out := Failure{f.Node, f.At.Milliseconds(), f.For.Milliseconds()}
		if !known[f.Node] && len(errs) == 0 {
			wrong("failures[%d].node: there is no node %q", i, f.Node)
		}
		if out.At < 0 || out.For <= 0 {
			wrong("failures[%d]: at and for are times, as 24h and 30m", i)
		}
		c.Failures = append(c.Failures, out)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// Total is what all nodes have.
func (c *Cluster) Total() rm.Resource {
	var t rm.Resource
	for _, n := range c.Nodes {
		t = t.Add(n.Resource())
	}
	return t
}

// YAML writes the cluster as ReadCluster reads it, a line a node.
func (c *Cluster) YAML() string {
	var b strings.Builder
	b.WriteString("nodes:\n")
	for _, n := range c.Nodes {
		fmt.Fprintf(&b, "- {name: %q, memory: %s, vcores: %d", n.Name, size.Format(n.Memory), n.VCores)
		if n.GPUs > 0 {
			fmt.Fprintf(&b, ", gpus: %d, model: %q, island: %d", n.GPUs, n.Model, n.Island)
		}
		fmt.Fprintf(&b, ", rack: %q", n.Rack)
		if len(n.Labels) > 0 {
			quoted := make([]string, len(n.Labels))
			for i, l := range n.Labels {
				quoted[i] = fmt.Sprintf("%q", l)
			}
			fmt.Fprintf(&b, ", labels: [%s]", strings.Join(quoted, ", "))
		}
		b.WriteString("}\n")
	}
	return b.String()
}
