// Package registry keeps models: directories of files under a name and a version, with what they are made of. There is no
// server and no index; the layout is docs/reference/models.md, and the Python module hops.model writes the same.
package registry

import (
	"encoding/json"
	"math"
	"regexp"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/history"
)

// ModelName is the file that says what a version is.
const ModelName = "model.json"

// format is what this code writes.
const format = 1

// maxModelJSON bounds model.json, in bytes, and maxDescription the text in it.
const (
	maxModelJSON   = 1 << 20
	maxDescription = 8 << 10
)

// Model is a version of a model: model.json, and what was said of it later.
type Model struct {
	Format      int                        `json:"format"`
	Name        string                     `json:"name"`
	Version     int                        `json:"version"`
	Created     training.Millis            `json:"created"`
	User        string                     `json:"user,omitempty"`
	Description string                     `json:"description,omitempty"`
	Metrics     map[string]training.Metric `json:"metrics,omitempty"`
	Params      training.Params            `json:"params,omitempty"`
	// Experiment, Trial, Checkpoint and Step are where it comes from.
	Experiment string                `json:"experiment,omitempty"`
	Trial      string                `json:"trial,omitempty"`
	Checkpoint string                `json:"checkpoint,omitempty"`
	Step       *int64                `json:"step,omitempty"`
	Source     string                `json:"source,omitempty"`
	Code       *training.Code        `json:"code,omitempty"`
	Data       []history.DataVersion `json:"data,omitempty"`
	Files      []training.File       `json:"files,omitempty"`

	Directory string            `json:"-"`
	Tags      map[string]string `json:"-"`
}

// Listing is a model as commands print it: with its place and its tags.
type Listing struct {
	*Model
	Directory string            `json:"directory"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// Listing adds what is not in the file.
func (m *Model) Listing() Listing { return Listing{m, m.Directory, m.Tags} }

// Bytes is the size of its files.
func (m *Model) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$`)

// CheckName refuses what cannot be the name of a model or a project.
func CheckName(kind, name string) error {
	if !nameForm.MatchString(name) || strings.Contains(name, "..") {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%s %.120q: letters, digits, _ . - (not two dots together), beginning with a letter, digit or _, at most 100", kind, name)
	}
	return nil
}

// decode reads model.json.
func decode(text []byte) (*Model, error) {
	m := &Model{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, err
	}
	return m, nil
}

// value is a metric of a model if it can be compared.
func (m *Model) value(metric string) (float64, bool) {
	v, ok := m.Metrics[metric]
	return v.Value, ok && v.Finite() && !math.IsNaN(v.Value)
}
