// Package mlflow is a tracking server for MLflow's clients: the REST interface 2.0 over the cluster's filesystem, as one user. What
// clients log is in a journal in the project's directory, synced before it is acknowledged; artifacts and registered models
// are files. The searches of the project appear as experiments that can only be read. See docs/how-to/mlflow.md.
package mlflow

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gohops/hops/training"
)

// MLflow's limits (mlflow/utils/validation.py); what is longer is refused by name.
const (
	maxKey            = 250
	maxParam          = 6000
	maxTag            = 8000
	maxExperimentTag  = 20000
	maxName           = 500
	maxBatchMetrics   = 1000
	maxBatchOthers    = 100
	maxBatchTotal     = 1000
	maxBatchBytes     = 1_000_000
	maxBody           = 4 << 20
	maxSearchResults  = 50_000
	defaultResults    = 1000
	maxInputs         = 1000
	maxInputBytes     = 1 << 20 // of a run's inputs, and of its outputs
	maxRunsPerProject = 1_000_000
	maxExperiments    = 100_000
	maxNames          = 10_000     // of the metrics of a run, of its params and of its tags
	maxPoints         = 50_000_000 // values of metrics of a project, which are held in memory
)

// The stages of life and the states of runs.
const (
	active  = "active"
	deleted = "deleted"

	running  = "RUNNING"
	finished = "FINISHED"
)

var runStates = []string{running, "SCHEDULED", finished, "FAILED", "KILLED"} // 1 … 5 in the protocol

// pair is a param or a tag.
type pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// point is a value of a metric.
type point struct {
	Value float64
	Time  int64
	Step  int64
}

// after orders points as MLflow takes the last one.
func (p point) after(q point) bool {
	return cmp.Or(cmp.Compare(p.Step, q.Step), cmp.Compare(p.Time, q.Time), cmp.Compare(p.Value, q.Value)) >= 0
}

func (p point) same(q point) bool {
	return p.Step == q.Step && p.Time == q.Time && (p.Value == q.Value || math.IsNaN(p.Value) && math.IsNaN(q.Value))
}

// metric is a point with its name, as it travels.
type metric struct {
	Key   string          `json:"key"`
	Value training.Metric `json:"value"`
	Time  number          `json:"timestamp"`
	Step  number          `json:"step"`
}

func (m metric) point() point { return point{m.Value.Value, int64(m.Time), int64(m.Step)} }

// experiment is an experiment of MLflow's.
type experiment struct {
	ID        string            `json:"experiment_id"`
	Name      string            `json:"name"`
	Artifacts string            `json:"artifact_location"`
	Stage     string            `json:"lifecycle_stage"`
	Created   int64             `json:"creation_time"`
	Updated   int64             `json:"last_update_time"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// run is a run without what was logged.
type run struct {
	ID         string            `json:"run_id"`
	Name       string            `json:"run_name"`
	Experiment string            `json:"experiment_id"`
	User       string            `json:"user_id"`
	Status     string            `json:"status"`
	Start      int64             `json:"start_time"`
	End        int64             `json:"end_time,omitempty"`
	Artifacts  string            `json:"artifact_uri"`
	Stage      string            `json:"lifecycle_stage"`
	Tags       map[string]string `json:"tags,omitempty"`
	Inputs     json.RawMessage   `json:"inputs,omitempty"`  // RunInputs of the protocol
	Outputs    json.RawMessage   `json:"outputs,omitempty"` // RunOutputs
}

// logged is what was logged to a run.
type logged struct {
	params  map[string]string
	metrics map[string][]point // in the order of arrival
	last    map[string]point
}

// loggedModel is MLflow 3's LoggedModel: a model that a run has made, before it is registered.
type loggedModel struct {
	ID         string            `json:"model_id"`
	Experiment string            `json:"experiment_id"`
	Name       string            `json:"name"`
	Type       string            `json:"model_type,omitempty"`
	Run        string            `json:"source_run_id,omitempty"`
	Status     string            `json:"status"`
	Artifacts  string            `json:"artifact_uri"`
	Created    int64             `json:"creation_timestamp_ms"`
	Updated    int64             `json:"last_updated_timestamp_ms"`
	Params     map[string]string `json:"params,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
	Deleted    bool              `json:"deleted,omitempty"`
}

// entry is a line of the journal. At most one of the pointers is set; none: a server has begun. An experiment, a run or a model replaces what was
// there under its id; a log is added.
type entry struct {
	N          int64        `json:"n"`
	Server     string       `json:"server"` // who wrote it, to know one's own lines
	Experiment *experiment  `json:"experiment,omitempty"`
	Run        *run         `json:"run,omitempty"`
	Model      *loggedModel `json:"model,omitempty"`
	Log        *logEntry    `json:"log,omitempty"`
}

type logEntry struct {
	Run     string   `json:"run_id"`
	Metrics []metric `json:"metrics,omitempty"`
	Params  []pair   `json:"params,omitempty"`
}

// state is everything that clients have logged: the fold of the journal.
type state struct {
	n           int64
	experiments map[string]*experiment
	names       map[string]string // of experiments, to their ids
	runs        map[string]*run
	logged      map[string]*logged
	models      map[string]*loggedModel
	points      int64 // of all metrics
	nextID      int64
}

func newState() *state {
	return &state{
		experiments: map[string]*experiment{}, names: map[string]string{}, runs: map[string]*run{}, logged: map[string]*logged{},
		models: map[string]*loggedModel{}, nextID: 1,
	}
}

// apply folds one entry in.
func (s *state) apply(e *entry) {
	s.n = e.N
	switch {
	case e.Experiment != nil:
		x := *e.Experiment
		if was := s.experiments[x.ID]; was != nil {
			delete(s.names, was.Name)
		}
		s.experiments[x.ID], s.names[x.Name] = &x, x.ID
		var n int64
		if _, err := fmt.Sscan(x.ID, &n); err == nil && n >= s.nextID {
			s.nextID = n + 1
		}
	case e.Run != nil:
		r := *e.Run
		s.runs[r.ID] = &r
	case e.Model != nil:
		m := *e.Model
		s.models[m.ID] = &m
	case e.Log != nil:
		l := s.logged[e.Log.Run]
		if l == nil {
			l = &logged{params: map[string]string{}, metrics: map[string][]point{}, last: map[string]point{}}
			s.logged[e.Log.Run] = l
		}
		for _, p := range e.Log.Params {
			l.params[p.Key] = p.Value
		}
		for _, m := range e.Log.Metrics {
			p := m.point()
			h := l.metrics[m.Key]
			if recent(h, p) {
				continue // sent again
			}
			if last, ok := l.last[m.Key]; !ok || p.after(last) {
				l.last[m.Key] = p
			}
			l.metrics[m.Key] = append(h, p)
			s.points++
		}
	}
}

// recent reports whether a point is among the last of a history: a client that got no answer sends a batch again.
func recent(h []point, p point) bool {
	return slices.ContainsFunc(h[max(0, len(h)-maxBatchMetrics):], p.same)
}

// entries write the state anew, as short as it can be.
func (s *state) entries(yield func(*entry) bool) {
	for _, id := range slices.Sorted(maps.Keys(s.experiments)) {
		if !yield(&entry{Experiment: s.experiments[id]}) {
			return
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.models)) {
		if !yield(&entry{Model: s.models[id]}) {
			return
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.runs)) {
		if !yield(&entry{Run: s.runs[id]}) {
			return
		}
		l := s.logged[id]
		if l == nil {
			continue
		}
		log := &logEntry{Run: id}
		for _, k := range slices.Sorted(maps.Keys(l.params)) {
			log.Params = append(log.Params, pair{k, l.params[k]})
		}
		for _, k := range slices.Sorted(maps.Keys(l.metrics)) {
			for _, p := range l.metrics[k] {
				log.Metrics = append(log.Metrics, metric{k, training.M(p.Value), number(p.Time), number(p.Step)})
				if len(log.Metrics) == maxBatchMetrics {
					if !yield(&entry{Log: log}) {
						return
					}
					log = &logEntry{Run: id}
				}
			}
		}
		if len(log.Params)+len(log.Metrics) > 0 && !yield(&entry{Log: log}) {
			return
		}
	}
}

// number is an integer that JSON has as a number or, as protocol buffers write 64 bits, as text.
type number int64

// UnmarshalJSON reads either form.
func (n *number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) > 1 && b[0] == '"' {
		b = b[1 : len(b)-1]
	}
	var f json.Number
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("%s is no number", b)
	}
	i, err := f.Int64()
	if err != nil {
		x, err := f.Float64()
		if err != nil || math.Abs(x) > 1<<62 {
			return fmt.Errorf("%s is no whole number", b)
		}
		i = int64(x)
	}
	*n = number(i)
	return nil
}
