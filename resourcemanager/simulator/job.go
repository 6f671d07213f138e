package simulator

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// Limits of what is read: a workload comes from outside.
const (
	maxJobs       = 1_000_000
	maxContainers = 100_000                // of a job
	maxMillis     = 100 * 365 * 24 * hour  // of any moment or duration
	maxLine       = 4 << 20                // bytes of a line of JSON
	maxName       = 255                    // bytes of a name
	maxProblems   = 20                     // that one error lists
	maxAmount     = int64(1) << 50         // of a resource of one container
	maxWork       = int64(1) << 62 / 1_000 // member-milliseconds of a part
)

// Durations in milliseconds, the unit of all times here.
const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// Job is a job of a workload, as a line of JSON. Times are milliseconds.
type Job struct {
	ID string `json:"id"`
	// Arrival counts from the beginning of the workload.
	Arrival int64  `json:"arrival_ms"`
	Queue   string `json:"queue"`
	User    string `json:"user,omitempty"`
	// Priority: larger is served first, as in YARN.
	Priority int `json:"priority,omitempty"`
	// Walltime is what its user says it runs at most, once all of it is there; 0: nothing was said.
	Walltime int64 `json:"walltime_ms,omitempty"`
	// Checkpoint is how long it runs between two checkpoints; 0: it writes none, and begins anew when it is interrupted.
	Checkpoint int64 `json:"checkpoint_ms,omitempty"`
	// Master is the container of its application master, which comes first and stays to the end; nil: it has none.
	Master *Shape `json:"master,omitempty"`
	Parts  []Part `json:"parts"`
}

// Shape is what one container has.
type Shape struct {
	Memory int64 `json:"memory,omitempty"` // bytes
	VCores int   `json:"vcores,omitempty"`
	GPUs   int   `json:"gpus,omitempty"`
}

// Resource is the shape in the resource manager's words.
func (s Shape) Resource() rm.Resource {
	return rm.Resource{Memory: s.Memory, VCores: s.VCores, GPUs: s.GPUs}
}

// Part is a number of containers of a job that are alike.
type Part struct {
	Count int `json:"count"`
	// Gang is how many must be there before any of them can work, 1 to Count; 0: each works on its own. A gang of fewer than
	// Count works more slowly, in proportion.
	Gang int `json:"gang,omitempty"`
	Shape
	// Duration is how long the part runs with all its containers; without a gang, how long each of them does.
	Duration int64  `json:"duration_ms"`
	Model    string `json:"model,omitempty"`  // of GPU
	Island   bool   `json:"island,omitempty"` // all GPUs of a container in one NVLink island
	Label    string `json:"label,omitempty"`  // that its nodes carry
	Delay    int64  `json:"delay_ms,omitempty"`
	Priority int    `json:"priority,omitempty"` // within the job: smaller is served first, as in YARN
}

// Workload is jobs in the order of their arrival.
type Workload struct {
	Jobs []Job
	// Skipped counts what the file holds that is no work, by the reason.
	Skipped map[string]int
}

// GPUs is how many the job has when all of it is there.
func (j *Job) GPUs() int {
	sum := 0
	for _, p := range j.Parts {
		sum += p.Count * p.GPUs
	}
	return sum
}

// Alone is how long the job takes when nobody else is there.
func (j *Job) Alone() int64 {
	longest := int64(0)
	for _, p := range j.Parts {
		longest = max(longest, p.Delay+p.Duration)
	}
	return longest
}

// check says what is wrong with a job.
func (j *Job) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, n := range []struct{ key, value string }{{"id", j.ID}, {"queue", j.Queue}} {
		if n.value == "" {
			wrong("%s is missing", n.key)
		}
	}
	for _, n := range []struct{ key, value string }{{"id", j.ID}, {"queue", j.Queue}, {"user", j.User}} {
		if len(n.value) > maxName || strings.ContainsFunc(n.value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			wrong("%s is longer than %d bytes or holds control characters", n.key, maxName)
		}
	}
	for _, t := range []struct {
		key   string
		value int64
	}{{"arrival_ms", j.Arrival}, {"walltime_ms", j.Walltime}, {"checkpoint_ms", j.Checkpoint}} {
		if t.value < 0 || t.value > maxMillis {
			wrong("%s: %d is not between 0 and 100 years", t.key, t.value)
		}
	}
	if j.Priority < -1<<20 || j.Priority > 1<<20 {
		wrong("priority: %d is beyond a million", j.Priority)
	}
	if j.Master != nil {
		if err := j.Master.check(); err != nil {
			wrong("master: %w", err)
		}
	}
	if len(j.Parts) == 0 {
		wrong("parts is missing: a job has at least one")
	}
	count := 0
	for i, p := range j.Parts {
		if err := p.check(); err != nil {
			wrong("parts[%d]: %w", i, err)
		} else if count += p.Count; count > maxContainers {
			wrong("parts: more than %d containers", maxContainers)
			break
		}
	}
	return errors.Join(errs...)
}

func (s Shape) check() error {
	if s.Memory < 0 || s.VCores < 0 || s.GPUs < 0 || s.Memory > maxAmount || int64(s.VCores) > 1<<20 || s.GPUs > 1<<20 {
		return errors.New("memory, vcores and gpus are not negative, and no more than a machine can have")
	}
	if s == (Shape{}) {
		return errors.New("it asks for nothing: memory, vcores or gpus is needed")
	}
	return nil
}

func (p Part) check() error {
	switch {
	case p.Count < 1 || p.Count > maxContainers:
		return fmt.Errorf("count: %d is not between 1 and %d", p.Count, maxContainers)
	case p.Gang < 0 || p.Gang > p.Count:
		return fmt.Errorf("gang: %d is not between 0 and the count, %d", p.Gang, p.Count)
	case p.Duration <= 0 || p.Duration > maxMillis || p.Duration > maxWork/int64(p.Count):
		return fmt.Errorf("duration_ms: %d is not between 1 and 100 years", p.Duration)
	case p.Delay < 0 || p.Delay > maxMillis:
		return fmt.Errorf("delay_ms: %d is not between 0 and 100 years", p.Delay)
	case len(p.Model) > maxName || len(p.Label) > maxName:
		return fmt.Errorf("model and label are at most %d bytes long", maxName)
	}
	return p.Shape.check()
}

// problems collects what is wrong with a file, by its lines, until it is too much.
type problems struct {
	file string
	list []error
	more int
}

// add notes a mistake; false: enough are known.
func (p *problems) add(line int, err error) bool {
	if len(p.list) == maxProblems {
		p.more++
		return false
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	p.list = append(p.list, fmt.Errorf("%s: line %d: %s", p.file, line, text))
	return true
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	if p.more > 0 {
		return errors.Join(append(p.list, fmt.Errorf("%s: and more", p.file))...)
	}
	return errors.Join(p.list...)
}

// ReadJobs reads a workload of this simulator: a job on each line, in JSON; empty lines and those that begin with # are
// comments. The error lists mistakes by line.
func ReadJobs(name string, r io.Reader) (*Workload, error) {
	w := &Workload{}
	wrong := &problems{file: name}
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLine)
	seen := map[string]int{}
	line := 0
	for scan.Scan() {
		line++
		text := bytes.TrimSpace(scan.Bytes())
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		if len(w.Jobs) == maxJobs {
			wrong.add(line, fmt.Errorf("more than %d jobs", maxJobs))
			break
		}
		var j Job
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err := d.Decode(&j)
		if err == nil && d.More() {
			err = errors.New("more than one job on the line")
		}
		if err == nil {
			err = j.check()
		}
		if err == nil && seen[j.ID] > 0 {
			err = fmt.Errorf("id %q is that of line %d", j.ID, seen[j.ID])
		}
		if err != nil {
			if !wrong.add(line, err) {
				break
			}
			continue
		}
		seen[j.ID] = line
		w.Jobs = append(w.Jobs, j)
	}
	if err := scan.Err(); err != nil {
		wrong.add(line+1, err)
	}
	if err := wrong.err(); err != nil {
		return nil, err
	}
	w.sort()
	return w, nil
}

// Write writes the workload as ReadJobs reads it, under a comment of lines.
func (w *Workload) Write(out io.Writer, comment ...string) error {
	b := bufio.NewWriter(out)
	for _, c := range comment {
		fmt.Fprintf(b, "# %s\n", strings.ReplaceAll(c, "\n", " "))
	}
	e := json.NewEncoder(b)
	for i := range w.Jobs {
		if err := e.Encode(&w.Jobs[i]); err != nil {
			return err
		}
	}
	return b.Flush()
}

// sort orders by arrival, then as in the file.
func (w *Workload) sort() {
	slices.SortStableFunc(w.Jobs, func(a, b Job) int { return cmp.Compare(a.Arrival, b.Arrival) })
}

// shift lets the workload begin with its first job.
func (w *Workload) shift() {
	if len(w.Jobs) == 0 {
		return
	}
	w.sort()
	first := w.Jobs[0].Arrival
	for i := range w.Jobs {
		w.Jobs[i].Arrival -= first
	}
}

// QueueNames are the names of queues that jobs are in, sorted.
func (w *Workload) QueueNames() []string {
	seen := map[string]bool{}
	for i := range w.Jobs {
		seen[w.Jobs[i].Queue] = true
	}
	return sortedKeys(seen)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// EvenQueues is a tree with a leaf of the same guarantee for each name; a name with dots is a path below root.
func EvenQueues(names []string) (*rm.Queues, error) {
	root := rm.QueueConfig{}
	for _, name := range names {
		nest(&root, strings.Split(strings.TrimPrefix(name, "root."), "."))
	}
	share(&root)
	return rm.NewQueues(root)
}

func nest(q *rm.QueueConfig, path []string) {
	if len(path) == 0 {
		return
	}
	if q.Children == nil {
		q.Children = map[string]rm.QueueConfig{}
	}
	child := q.Children[path[0]]
	nest(&child, path[1:])
	q.Children[path[0]] = child
}

// share gives the children of a queue what their leaves need to be alike.
func share(q *rm.QueueConfig) int {
	if len(q.Children) == 0 {
		return 1
	}
	leaves, sum := map[string]int{}, 0
	for _, name := range sortedKeys(q.Children) {
		child := q.Children[name]
		leaves[name] = share(&child)
		sum += leaves[name]
		q.Children[name] = child
	}
	for name, n := range leaves {
		child := q.Children[name]
		child.Capacity = fmt.Sprintf("%dw", n)
		q.Children[name] = child
	}
	return sum
}

// Format guesses from the beginning of a file of jobs whose it is: hops, sls or philly.
func Format(start []byte) string {
	for line := range bytes.Lines(start) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		switch {
		case line[0] == '[':
			return "philly"
		case bytes.Contains(start, []byte(`"job.tasks"`)) || bytes.Contains(start, []byte(`"job.start.ms"`)) || bytes.Contains(start, []byte(`"am.type"`)):
			return "sls"
		}
		break
	}
	return "hops"
}
