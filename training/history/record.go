// Package history is what is left of experiments, to be compared, exported and cleaned up: pure functions over records that
// others have read, and the readers of the files that only history needs (tags, environment, versions of the data).
package history

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/training"
)

// Record is one experiment as it is remembered. What was never written down is empty.
type Record struct {
	ID        string             `json:"id"`
	Name      string             `json:"name"`
	Project   string             `json:"project"`
	User      string             `json:"user"`
	State     string             `json:"state"`
	Reason    string             `json:"reason,omitempty"`
	Directory string             `json:"directory"`
	Optimizer string             `json:"optimizer"`
	Metric    string             `json:"metric"`
	Direction training.Direction `json:"direction"`
	Started   training.Millis    `json:"started"`
	Finished  training.Millis    `json:"finished,omitempty"`
	Planned   int                `json:"planned"`
	Trials    []Trial            `json:"trials,omitempty"`
	Best      *Best              `json:"best,omitempty"`
	Counters  Counters           `json:"counters"`

	// Spec is the specification with its defaults, as in experiment.json.
	Spec        json.RawMessage   `json:"spec,omitempty"`
	Overhead    *Overhead         `json:"overhead,omitempty"`
	Environment *Environment      `json:"environment,omitempty"`
	Data        []DataVersion     `json:"data,omitempty"`
	Tags        map[string]string `json:"tags,omitempty"`
	Note        string            `json:"note,omitempty"`
}

// Counters is what is compared of the costs that the controller counts.
type Counters struct {
	Epochs       int `json:"epochs"`
	EpochsWasted int `json:"epochs_wasted"`
}

// Best is the best trial of an experiment.
type Best struct {
	Trial      training.TrialID `json:"trial"`
	Metric     float64          `json:"metric"`
	Params     training.Params  `json:"params"`
	Checkpoint string           `json:"checkpoint,omitempty"`
}

// Trial is a row of the table of trials.
type Trial struct {
	Trial    training.TrialID     `json:"trial"`
	State    training.State       `json:"state"`
	Params   training.Params      `json:"params"`
	Attempt  int                  `json:"attempt"`
	Failures int                  `json:"failures,omitempty"`
	Epochs   int                  `json:"epochs"`
	Metric   *float64             `json:"metric,omitempty"`
	Values   []float64            `json:"values,omitempty"` // one per objective, where there are several
	Curve    []Point              `json:"curve,omitempty"`
	Host     string               `json:"host,omitempty"`
	Reason   string               `json:"reason,omitempty"`
	Error    *training.TrialError `json:"error,omitempty"`
	Steps    []int64              `json:"checkpoints,omitempty"`
	Dir      string               `json:"dir"`
	Started  training.Millis      `json:"started,omitempty"`
	Ended    training.Millis      `json:"ended,omitempty"`
}

// Point is the searched metric at a step; as JSON [step, value].
type Point struct {
	Step  int64
	Value float64
}

// MarshalJSON writes the pair.
func (p Point) MarshalJSON() ([]byte, error) { return json.Marshal([2]any{p.Step, p.Value}) }

// UnmarshalJSON reads the pair.
func (p *Point) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[2]any{&p.Step, &p.Value})
}

// Environment is environment.json: what the first executor found where it ran.
type Environment struct {
	Python   string            `json:"python"`
	Platform string            `json:"platform,omitempty"`
	Kernel   string            `json:"kernel,omitempty"`
	Host     string            `json:"host,omitempty"`
	Driver   string            `json:"driver,omitempty"` // of NVIDIA
	CUDA     string            `json:"cuda,omitempty"`   // the highest version that the driver speaks
	GPUs     []string          `json:"gpus,omitempty"`   // their models
	Packages map[string]string `json:"packages"`
	Recorded training.Millis   `json:"recorded,omitempty"`
}

// DataVersion is an entry of data.json: a path of the filesystem that the specification names, as it was when the experiment
// began.
type DataVersion struct {
	// Key is where the specification names it: arguments.data, files.x.
	Key  string `json:"key,omitempty"`
	Path string `json:"path"`
	// Directories have the sum of the lengths of their files.
	Directory bool  `json:"directory,omitempty"`
	Length    int64 `json:"length"`
	Files     int64 `json:"files,omitempty"`
	// MTime is when it changed, in milliseconds since 1970; FileID is the inode's number: another one is another file.
	MTime    int64  `json:"mtime"`
	FileID   uint64 `json:"file_id"`
	Checksum string `json:"checksum,omitempty"`
	// Problem says why nothing is known of it.
	Problem string `json:"problem,omitempty"`
}

// Settings are the values of a specification by their path, "optimizer.eta", each as JSON. Where the code lies is left out:
// its hash says what it is.
func (r *Record) Settings() map[string]string {
	out := map[string]string{}
	var tree any
	d := json.NewDecoder(bytes.NewReader(r.Spec))
	d.UseNumber() // a seed has more digits than a float
	if d.Decode(&tree) != nil {
		return out
	}
	flatten("", tree, out)
	delete(out, "code.uri")
	return out
}

func flatten(at string, v any, out map[string]string) {
	object, ok := v.(map[string]any)
	if !ok || len(object) == 0 || strings.Count(at, ".") == 1 && strings.HasPrefix(at, "space.") {
		text, err := json.Marshal(v)
		if err == nil && at != "" {
			out[at] = string(text)
		}
		return
	}
	for k, w := range object {
		if at != "" {
			k = at + "." + k
		}
		flatten(k, w, out)
	}
}

// Code is the hash of an experiment's code, "" if it has none.
func (r *Record) Code() (c training.Code) {
	var spec struct {
		Code training.Code `json:"code"`
	}
	if json.Unmarshal(r.Spec, &spec) != nil {
		return training.Code{}
	}
	return spec.Code
}

// objectives are the metrics of an experiment that has several.
func (r *Record) objectives() []string {
	var spec struct{ Objectives []struct{ Metric string } }
	if json.Unmarshal(r.Spec, &spec) != nil || len(spec.Objectives) < 2 {
		return nil
	}
	var names []string
	for _, o := range spec.Objectives {
		names = append(names, o.Metric)
	}
	return names
}

// Duration is how long the experiment took, up to now if it runs.
func (r *Record) Duration(now time.Time) time.Duration {
	end := r.Finished
	if end == 0 {
		end = training.MillisOf(now)
	}
	return time.Duration(max(end-r.Started, 0)) * time.Millisecond
}

// sortedKeys are the keys of maps, each once.
func sortedKeys[V any](all ...map[string]V) []string {
	seen := map[string]bool{}
	for _, m := range all {
		for k := range m {
			seen[k] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
