package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Defaults of Hadoop's scheduler load simulator (SLSConfiguration): containers and masters of 1 GiB and one vcore, nodes of 10 GiB and ten.
const (
	slsContainerMiB = 1024
	slsNodeMiB      = 10240
	slsNodeVCores   = 10
)

// ReadSLS reads the jobs of Hadoop's scheduler load simulator (sls-jobs.json): objects one after the other, with GPUs as
// container.yarn.io/gpu. Every container works on its own, as there. Where containers ran (container.host) is not taken over: the
// cluster is another one.
func ReadSLS(name string, r io.Reader) (*Workload, error) {
	w := &Workload{}
	err := values(name, r, func(line int, v json.RawMessage) error {
		m, err := object(v)
		if err != nil {
			return err
		}
		return w.addSLS(line, &fields{m: m})
	})
	if err != nil {
		return nil, err
	}
	w.shift()
	return w, nil
}

func (w *Workload) addSLS(line int, f *fields) error {
	j := Job{ID: f.text("job.id"), User: f.text("job.user"), Queue: f.text("job.queue.name"), Arrival: f.number("job.start.ms", 0), Priority: int(f.number("job.priority", 0))}
	if j.ID == "" {
		j.ID = fmt.Sprintf("line_%d", line)
	}
	if j.Queue == "" {
		j.Queue = "default"
	}
	label := f.text("job.label.expression")
	count := f.number("job.count", 1)
	f.ignore("job.end.ms", "am.type")
	master := f.shape("am.", slsContainerMiB, 1)
	j.Master = &master
	for i, t := range f.list("job.tasks") {
		m, ok := t.(map[string]any)
		if !ok {
			return fmt.Errorf("job.tasks[%d] is no object", i)
		}
		if len(j.Parts) == maxContainers {
			return fmt.Errorf("job.tasks: more than %d", maxContainers)
		}
		p, err := slsTask(&fields{m: m})
		if err != nil {
			return fmt.Errorf("job.tasks[%d]: %w", i, err)
		}
		p.Label = label
		if last := len(j.Parts) - 1; last >= 0 {
			same := j.Parts[last]
			if same.Count = p.Count; same == p { // as the one before, only more of it
				j.Parts[last].Count += p.Count
				continue
			}
		}
		j.Parts = append(j.Parts, p)
	}
	if err := errors.Join(f.err(), j.check()); err != nil {
		return err
	}
	if count < 1 || count > maxJobs || len(w.Jobs)+int(count) > maxJobs {
		return fmt.Errorf("job.count: %d is not between 1 and what is left of %d jobs", count, maxJobs)
	}
	for k := range count {
		own := j
		if count > 1 {
			own.ID = fmt.Sprintf("%s_%d", j.ID, k+1)
		}
		w.Jobs = append(w.Jobs, own)
	}
	return nil
}

func slsTask(f *fields) (Part, error) {
	p := Part{Count: int(f.number("count", 1)), Priority: int(f.number("container.priority", 20)), Delay: f.number("container.request.delay", 0)}
	p.Shape = f.shape("container.", slsContainerMiB, 1)
	start, end := f.number("container.start.ms", 0), f.number("container.end.ms", 0)
	legacy := f.number("duration.ms", end-start)
	p.Duration = f.number("container.duration.ms", legacy)
	if kind := f.text("container.execution.type"); kind != "" && kind != "GUARANTEED" {
		f.errs = append(f.errs, fmt.Errorf("container.execution.type: %.40q is not supported, only GUARANTEED", kind))
	}
	f.ignore("container.host", "container.type", "container.allocation.id")
	return p, errors.Join(f.err(), p.check())
}

// ReadSLSNodes reads the nodes of Hadoop's scheduler load simulator (sls-nodes.json, also with resources): an object for each rack, one
// after the other.
func ReadSLSNodes(name string, r io.Reader) (*Cluster, error) {
	c := &Cluster{}
	known := map[string]bool{}
	err := values(name, r, func(_ int, v json.RawMessage) error {
		m, err := object(v)
		if err != nil {
			return err
		}
		f := &fields{m: m}
		rack := f.text("rack")
		if rack == "" || len(rack) > maxName || strings.ContainsAny(rack, " \t\n") {
			return fmt.Errorf("rack: %.40q is no name of a rack", rack)
		}
		for i, x := range f.list("nodes") {
			m, ok := x.(map[string]any)
			if !ok {
				return fmt.Errorf("nodes[%d] is no object", i)
			}
			n := &fields{m: m}
			node := Node{Name: n.text("node"), Rack: "/" + strings.Trim(rack, "/")}
			for label := range strings.SplitSeq(n.text("labels"), ",") {
				label, _, _ = strings.Cut(strings.TrimSpace(label), "(") // exclusive or not
				if label != "" {
					node.Labels = append(node.Labels, label)
				}
			}
			node.Shape = n.shape("", slsNodeMiB, slsNodeVCores)
			err := errors.Join(n.err(), node.check())
			switch {
			case err != nil:
			case node.Name == "" || len(node.Name) > maxName || strings.ContainsAny(node.Name, " \t\n/:"):
				err = fmt.Errorf("node: %.40q is no name of a machine", node.Name)
			case known[node.Name]:
				err = fmt.Errorf("there are two nodes %s", node.Name)
			case len(c.Nodes) == maxNodes || node.GPUs > maxGPUs:
				err = fmt.Errorf("more than %d nodes, or than %d GPUs of one", maxNodes, maxGPUs)
			}
			if err != nil {
				return fmt.Errorf("nodes[%d]: %w", i, err)
			}
			known[node.Name] = true
			c.Nodes = append(c.Nodes, node)
		}
		return f.err()
	})
	if err == nil && len(c.Nodes) == 0 {
		err = fmt.Errorf("%s: it holds no node", name)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}
