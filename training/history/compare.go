package history

import (
	"fmt"
	"time"

	"github.com/gohops/hops/training"
)

// Column is one experiment of a comparison.
type Column struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	State    string            `json:"state"`
	Metric   string            `json:"metric"`
	Best     *float64          `json:"best"`
	Trial    *training.TrialID `json:"trial"`
	Trials   int               `json:"trials"`
	Failed   int               `json:"failed"`
	Epochs   int               `json:"epochs"`
	Wasted   int               `json:"epochs_wasted"`
	Seconds  float64           `json:"duration_s"`
	Overhead *Overhead         `json:"overhead,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
}

// Difference is a value that is not the same in all experiments; "" where there is none.
type Difference struct {
	Key    string   `json:"key"`
	Values []string `json:"values"`
}

// Comparison sets experiments side by side.
type Comparison struct {
	Columns []Column `json:"experiments"`
	// Settings are the values of the specifications that differ, and Best the parameters of the best trials.
	Settings []Difference `json:"settings"`
	Best     []Difference `json:"best_params"`
}

// Compare sets records side by side; now ends those that run.
func Compare(records []*Record, now time.Time) Comparison {
	c := Comparison{Settings: []Difference{}, Best: []Difference{}}
	settings := make([]map[string]string, len(records))
	best := make([]map[string]string, len(records))
	for i, r := range records {
		settings[i], best[i] = r.Settings(), map[string]string{}
		col := Column{
			ID: r.ID, Name: r.Name, State: r.State, Metric: r.Metric, Trials: len(r.Trials), Epochs: r.Counters.Epochs,
			Wasted: r.Counters.EpochsWasted, Seconds: r.Duration(now).Seconds(), Overhead: r.Overhead, Tags: r.Tags,
		}
		for _, t := range r.Trials {
			if t.State == training.Failed || t.State == training.Invalid {
				col.Failed++
			}
		}
		if r.Best != nil {
			col.Best, col.Trial = new(r.Best.Metric), new(r.Best.Trial)
			for name, v := range r.Best.Params {
				best[i][name] = v.String()
			}
		}
		c.Columns = append(c.Columns, col)
	}
	c.Settings = append(c.Settings, differences(settings)...)
	for _, key := range sortedKeys(best...) { // all of them: one that is the same in all is an answer too
		d := Difference{Key: key}
		for _, b := range best {
			d.Values = append(d.Values, b[key])
		}
		c.Best = append(c.Best, d)
	}
	return c
}

func differences(all []map[string]string) (out []Difference) {
	for _, key := range sortedKeys(all...) {
		d := Difference{Key: key}
		same := true
		for _, m := range all {
			d.Values = append(d.Values, m[key])
			same = same && m[key] == all[0][key]
		}
		if !same {
			out = append(out, d)
		}
	}
	return out
}

// Change is a value before and after; "" where there is none.
type Change struct {
	Key    string `json:"key"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Changes are the keys whose values differ, in order.
func Changes(before, after map[string]string) []Change {
	out := []Change{}
	for _, d := range differences([]map[string]string{before, after}) {
		out = append(out, Change{d.Key, d.Values[0], d.Values[1]})
	}
	return out
}

// Diff is what is not the same in two experiments. A nil list: it is not known of one of them.
type Diff struct {
	A           string     `json:"a"`
	B           string     `json:"b"`
	Settings    []Change   `json:"settings"`
	Code        []FileDiff `json:"code"`
	Environment []Change   `json:"environment"`
	Data        []Change   `json:"data"`
	// Unknown says what could not be compared, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Same reports whether no difference was found.
func (d *Diff) Same() bool {
	return len(d.Settings)+len(d.Code)+len(d.Environment)+len(d.Data) == 0
}

// Compared are two experiments; the code of both has been read by the caller: nil where it is gone or there is none.
func Compared(a, b *Record, codeA, codeB *Program) *Diff {
	d := &Diff{A: a.ID, B: b.ID, Settings: Changes(a.Settings(), b.Settings())}
	ca, cb := a.Code(), b.Code()
	switch {
	case ca.SHA256 == cb.SHA256:
		d.Code = []FileDiff{}
	case codeA == nil && ca.SHA256 != "":
		d.Unknown = append(d.Unknown, fmt.Sprintf("code: the artifact of %s is gone (%s)", a.ID, ca.URI))
	case codeB == nil && cb.SHA256 != "":
		d.Unknown = append(d.Unknown, fmt.Sprintf("code: the artifact of %s is gone (%s)", b.ID, cb.URI))
	default:
		d.Code = DiffPrograms(codeA, codeB)
	}
	for _, r := range []*Record{a, b} {
		if r.Environment == nil {
			d.Unknown = append(d.Unknown, fmt.Sprintf("environment: %s has none recorded", r.ID))
		}
		if r.Data == nil {
			d.Unknown = append(d.Unknown, fmt.Sprintf("data: %s has no versions recorded", r.ID))
		}
	}
	if a.Environment != nil && b.Environment != nil {
		d.Environment = Changes(a.Environment.facts(), b.Environment.facts())
	}
	if a.Data != nil && b.Data != nil {
		d.Data = Changes(dataFacts(a.Data), dataFacts(b.Data))
	}
	return d
}

// facts are what of an environment may make a difference; its host does not.
func (e *Environment) facts() map[string]string {
	out := map[string]string{}
	for name, v := range map[string]string{"python": e.Python, "platform": e.Platform, "kernel": e.Kernel, "driver": e.Driver, "cuda": e.CUDA} {
		if v != "" {
			out[name] = v
		}
	}
	if len(e.GPUs) > 0 {
		out["gpus"] = fmt.Sprint(e.GPUs)
	}
	for name, v := range e.Packages {
		out["package "+name] = v
	}
	return out
}

func dataFacts(list []DataVersion) map[string]string {
	out := map[string]string{}
	for _, v := range list {
		out[v.Path] = v.String()
	}
	return out
}

// String is one line for people: the version of a path.
func (v DataVersion) String() string {
	if v.Problem != "" {
		return v.Problem
	}
	s := fmt.Sprintf("%d bytes, changed %s, inode %d", v.Length, time.UnixMilli(v.MTime).UTC().Format("2006-01-02T15:04:05.000Z"), v.FileID)
	if v.Directory {
		s = fmt.Sprintf("%d files of ", v.Files) + s
	}
	if v.Checksum != "" {
		s += ", " + v.Checksum
	}
	return s
}
