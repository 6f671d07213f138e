package simulator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// Recorded is a job that a cluster remembers, as GET /api/v1/jobs/{id} shows it. Times are milliseconds since 1970; 0: not yet.
type Recorded struct {
	ID         string              `json:"id"`
	Queue      string              `json:"queue"`
	User       string              `json:"user"`
	Priority   int                 `json:"priority"`
	Submitted  int64               `json:"submitted"`
	Finished   int64               `json:"finished"`
	Containers []RecordedContainer `json:"containers"`
}

// RecordedContainer is a container of it.
type RecordedContainer struct {
	ID        string            `json:"id"`
	Ask       string            `json:"ask"`
	Instance  *int              `json:"instance"`
	Master    bool              `json:"master"`
	State     rm.ContainerState `json:"state"`
	Resources Shape             `json:"resources"`
	Granted   int64             `json:"granted"`
	Started   int64             `json:"started"`
	Finished  int64             `json:"finished"`
}

// FromRecords makes a workload of what a cluster remembers of its jobs. Containers of one ask that were granted at the same moment count
// as a gang, because the cluster does not say which were one. An instance that was tried several times runs as long as all tries together.
// Jobs that have not ended, or of which no container is remembered, are skipped and counted.
func FromRecords(jobs []Recorded) *Workload {
	w := &Workload{Skipped: map[string]int{}}
	for _, r := range jobs {
		j := Job{ID: r.ID, Arrival: r.Submitted, Queue: r.Queue, User: r.User, Priority: max(r.Priority, 0)}
		if r.Finished == 0 {
			w.Skipped["has not ended"]++
			continue
		}
		j.Parts, j.Master = recordedParts(r.Containers)
		switch err := j.check(); {
		case len(j.Parts) == 0:
			w.Skipped["no container is remembered"]++
		case err != nil:
			w.Skipped[strings.ReplaceAll(err.Error(), "\n", "; ")]++
		default:
			w.Jobs = append(w.Jobs, j)
		}
	}
	w.shift()
	return w
}

// recordedParts are the instances of a job, with those that are alike together.
func recordedParts(containers []RecordedContainer) ([]Part, *Shape) {
	var master *Shape
	type instance struct {
		shape   Shape
		ran     int64
		granted int64
		ask     string
	}
	var all []*instance
	byNumber := map[int]*instance{}
	containers = slices.Clone(containers)
	slices.SortStableFunc(containers, func(a, b RecordedContainer) int { return cmp.Compare(a.Granted, b.Granted) })
	for _, c := range containers {
		switch {
		case c.Master:
			shape := c.Resources
			master = &shape
			continue
		case c.Started == 0 || c.Finished <= c.Started:
			continue // it never ran
		}
		var own *instance
		if c.Instance != nil {
			own = byNumber[*c.Instance]
		}
		if own == nil {
			own = &instance{shape: c.Resources, granted: c.Granted, ask: c.Ask}
			all = append(all, own)
			if c.Instance != nil {
				byNumber[*c.Instance] = own
			}
		}
		own.ran += c.Finished - c.Started
	}
	key := func(i *instance) string { return fmt.Sprintf("%s %d", i.ask, i.granted) }
	moment := map[string][]*instance{}
	for _, i := range all {
		moment[key(i)] = append(moment[key(i)], i)
	}
	var parts []Part
	seen := map[string]bool{}
	for _, i := range all {
		k := key(i)
		if seen[k] {
			continue
		}
		seen[k] = true
		members := moment[k]
		if len(members) > 1 && i.shape.GPUs > 0 {
			p := Part{Count: len(members), Gang: len(members), Shape: i.shape}
			for _, m := range members {
				p.Duration = max(p.Duration, m.ran)
			}
			parts = append(parts, p)
			continue
		}
		for _, m := range members {
			p := Part{Count: 1, Shape: m.shape, Duration: m.ran}
			if n := len(parts); n > 0 {
				same := parts[n-1]
				if same.Count = 1; same == p {
					parts[n-1].Count++
					continue
				}
			}
			parts = append(parts, p)
		}
	}
	return parts, master
}

// RecordedNode is a machine as GET /api/v1/nodes shows it.
type RecordedNode struct {
	ID       string   `json:"id"`
	Host     string   `json:"host"`
	Rack     string   `json:"rack"`
	Labels   []string `json:"labels"`
	Capacity Shape    `json:"capacity"`
	GPUs     []struct {
		Model  string `json:"model"`
		Island string `json:"island"`
	} `json:"gpus"`
}

// FromNodes are the machines of a cluster. A machine has GPUs of one model here, that of its first, and islands of one size, that of its
// largest if it divides the number of GPUs.
func FromNodes(nodes []RecordedNode) *Cluster {
	c := &Cluster{}
	known := map[string]bool{}
	for _, n := range nodes {
		name := n.Host
		if name == "" || known[name] || strings.ContainsAny(name, " \t\n/:") {
			name = strings.NewReplacer(":", "-", "/", "-").Replace(n.ID)
		}
		known[name] = true
		own := Node{Name: name, Rack: n.Rack, Labels: n.Labels, Shape: n.Capacity}
		islands := map[string]int{}
		for _, g := range n.GPUs {
			own.Model = cmp.Or(own.Model, g.Model)
			if g.Island != "" {
				islands[g.Island]++
				own.Island = max(own.Island, islands[g.Island])
			}
		}
		if own.Island > 0 && own.GPUs%own.Island != 0 {
			own.Island = 0
		}
		if own.Rack == "" || own.Rack[0] != '/' {
			own.Rack = "/default-rack"
		}
		if own.check() == nil { // a node that has nothing can run nothing
			c.Nodes = append(c.Nodes, own)
		}
	}
	return c
}
