package training

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/size"
)

// Limits of a specification; beyond them a spec is refused by name.
const (
	MaxParameters = 200
	MaxTrials     = 100_000
	MaxExecutors  = 1_000
	MaxSpecBytes  = 4 << 20
	MaxMetricName = 128 // bytes
)

// Spec is what a person asks for: the document under "experiment" of a job. Its zero value of a field is the default;
// SetDefaults writes the defaults out.
type Spec struct {
	// Name is shown to people. Default "no-name".
	Name string `json:"name"`
	// Description is free text.
	Description string `json:"description,omitempty"`
	// Project owns the run: /Projects/<project>/Experiments/…. Default: the user's name.
	Project string `json:"project,omitempty"`
	// Kind is what the run is shown as: EXPERIMENT, PARALLEL_EXPERIMENTS, MAGGY. Default PARALLEL_EXPERIMENTS.
	Kind string `json:"kind,omitempty"`

	// Entry is the training function, "module:qualname", in the code artifact or importable by the executors.
	Entry string `json:"entry"`
	// Code is the zip that holds it (with manifest.json), in the cluster's filesystem.
	Code *Code `json:"code,omitempty"`
	// Arguments are handed to the function by name in every trial, beside the hyperparameters; any JSON.
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
	// Preload are modules that the warm interpreter imports before the first fork.
	Preload []string `json:"preload,omitempty"`
	// Python is the interpreter of the executors on the nodes: a path or a name, or the directory of a virtual environment.
	// Default: the node's python3.
	Python string `json:"python,omitempty"`
	// Resume is the id of an experiment that failed or was stopped: its journal is gone on with, and its specification counts.
	Resume string `json:"resume,omitempty"`
	// Env is added to the executors' environment.
	Env map[string]string `json:"env,omitempty"`
	// Files are further artifacts of the executors' work directory.
	Files []Artifact `json:"files,omitempty"`

	// Space is what is searched. Empty for optimizer none.
	Space Space `json:"space,omitempty"`
	// Configurations are the trials of optimizer none, in order; none: one trial without parameters.
	Configurations []Params `json:"configurations,omitempty"`
	// Optimizer chooses configurations.
	Optimizer Optimizer `json:"optimizer"`
	// EarlyStop ends bad trials.
	EarlyStop EarlyStop `json:"early_stop"`
	// Direction of the metric. Default max.
	Direction Direction `json:"direction"`
	// Metric is the name of the metric that is optimized, also the key in the function's returned dict. Default "metric".
	Metric string `json:"metric"`
	// Objectives are the metrics of a search for the best compromises; Metric and Direction are the first one's.
	Objectives []Objective `json:"objectives,omitempty"`
	// Trials is how many configurations are tried. Grid: all of the grid, differential_evolution: population times
	// generations, pbt: the population, whatever is written here. Default 1; hyperband and bohb: once through their brackets.
	Trials int `json:"trials"`
	// MaxEpochs ends a trial after so many reported steps; 0: when it returns. ASHA, Hyperband and BOHB use r_max instead.
	MaxEpochs int `json:"max_epochs,omitempty"`
	// Seed makes the search repeatable: same seed, same suggestions. Without one the controller draws it when the experiment
	// begins, and records it.
	Seed *uint64 `json:"seed,omitempty"`

	// Executors is how many containers work at once. Default 1.
	Executors int `json:"executors"`
	// TrialsPerExecutor run at once in each of them and share its devices. Default 1.
	TrialsPerExecutor int `json:"trials_per_executor,omitempty"`
	// Distributed: each trial is a gang of executors. Default none.
	Distributed *Distributed `json:"distributed,omitempty"`
	// Repeats runs each configuration so often, with other seeds; its metric is the mean. Default 1.
	Repeats int `json:"repeats,omitempty"`
	// Resources of each executor. Default 1 GiB, 1 vcore, no GPU.
	Resources Resources `json:"resources"`
	// ExecutorMode is fork (default), spawn (frameworks that break after a fork) or inproc (one process for one trial after the other).
	ExecutorMode string `json:"executor_mode,omitempty"`
	// Retention of checkpoints. Default: the newest and the best of each trial.
	Retention *Retention `json:"retention,omitempty"`

	// Timeout ends the experiment. Default none.
	Timeout Duration `json:"timeout,omitempty"`
	// TrialTimeout fails an attempt that takes longer, that of a gang from when all of its members have come. Default none.
	TrialTimeout Duration `json:"trial_timeout,omitempty"`
	// ReportTimeout fails an attempt that does not report for so long; before its first report it has 10m at least. Default 10m where the search depends on reports
	// (asha, hyperband, bohb, pbt, early stopping), else none; negative: none.
	ReportTimeout Duration `json:"report_timeout,omitempty"`
	// StopGrace is what a trial that is told to stop has until it is killed. Default 10s.
	StopGrace Duration `json:"stop_grace,omitempty"`
}

// RandomSeed is the seed that counts.
func (s *Spec) RandomSeed() uint64 {
	if s.Seed == nil {
		return 0
	}
	return *s.Seed
}

// Interpreter is the program that runs the executors; def where none is named.
func (s *Spec) Interpreter(def string) string {
	switch base := path.Base(s.Python); {
	case s.Python == "":
		return def
	case strings.HasPrefix(base, "python") || strings.HasPrefix(base, "pypy") || !strings.Contains(s.Python, "/"):
		return s.Python
	}
	return path.Join(s.Python, "bin", "python3")
}

// Code names a code artifact by its content.
type Code struct {
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
}

// Artifact is a file that executors find in their work directory; the words of the resource manager.
type Artifact struct {
	Name   string `json:"name"`
	URI    string `json:"uri"`
	Kind   string `json:"kind,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Resources of one executor.
type Resources struct {
	Memory Size `json:"memory"`
	VCores int  `json:"vcores"`
	GPUs   int  `json:"gpus"`
}

// SetDefaults writes defaults into what is empty and resolves aliases. user is who asks.
func (s *Spec) SetDefaults(user string) {
	def(&s.Name, "no-name")
	def(&s.Project, user)
	def(&s.Kind, "PARALLEL_EXPERIMENTS")
	s.setObjectives()
	def((*string)(&s.Direction), string(Max))
	def(&s.Metric, "metric")
	def(&s.ExecutorMode, "fork")
	o := &s.Optimizer
	o.setDefaults(s)
	s.EarlyStop.setDefaults()
	if n, ok := o.plannedTrials(s); ok {
		s.Trials = n
	}
	defInt(&s.Trials, 1)
	s.setDistributed()
	defInt(&s.Executors, 1)
	if s.Resources.Memory == 0 {
		s.Resources.Memory = 1 << 30
	}
	defInt(&s.Resources.VCores, 1)
	if s.Retention == nil {
		s.Retention = &Retention{Last: 1, Best: 1}
	}
	if s.ReportTimeout == 0 && (o.Halving() || o.Type == PBT || s.EarlyStop.Policy != NoStop) {
		s.ReportTimeout = Duration(10 * time.Minute)
	}
	if s.StopGrace == 0 {
		s.StopGrace = Duration(10 * time.Second)
	}
}

// Problem is one mistake of a spec.
type Problem struct {
	// Field is the path of keys, "optimizer.eta".
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Mistakes is the error of a spec that cannot run: everything that is wrong with it, in the order of the document.
type Mistakes []Problem

func (m Mistakes) Error() string {
	var b strings.Builder
	for i, p := range m {
		if i > 0 {
			b.WriteString("; ")
		}
		if p.Field != "" {
			b.WriteString(p.Field + ": ")
		}
		b.WriteString(p.Message)
	}
	return b.String()
}

func (m *Mistakes) addf(field, format string, args ...any) {
	*m = append(*m, Problem{field, fmt.Sprintf(format, args...)})
}

var (
	entryForm     = regexp.MustCompile(`^[A-Za-z_][\w]*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
	nameForm      = regexp.MustCompile(`^[A-Za-z_]\w*$`)
	projectForm   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$`)
	resumeForm    = regexp.MustCompile(`^application_\d+_\d+_1$`)
	sha256Form    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	executorModes = []string{"fork", "spawn", "inproc"}
	kinds         = []string{"EXPERIMENT", "PARALLEL_EXPERIMENTS", "MAGGY"}
)

// Validate lists every mistake at once, as Mistakes; nil if the spec can run. Call SetDefaults first.
func (s *Spec) Validate() error {
	var m Mistakes
	if len(s.Name) > 200 {
		m.addf("name", "longer than 200 bytes")
	}
	if !projectForm.MatchString(s.Project) || strings.Contains(s.Project, "..") {
		m.addf("project", "%q cannot be a directory name: letters, digits, _ . - and at most 100 of them", s.Project)
	}
	if !slices.Contains(kinds, s.Kind) {
		m.addf("kind", "unknown kind %q: one of %s", s.Kind, strings.Join(kinds, ", "))
	}
	switch {
	case s.Entry == "":
		m.addf("entry", "missing: the training function, FILE.py:FUNCTION in a study, module:function in a job")
	case strings.HasSuffix(s.Entry, ".py"):
		m.addf("entry", "%q names no function: write %s:FUNCTION", s.Entry, s.Entry)
	case !entryForm.MatchString(s.Entry):
		m.addf("entry", `%q is not "module:function"`, s.Entry)
	}
	if s.Code != nil {
		if s.Code.URI == "" {
			m.addf("code.uri", "missing")
		}
		if !sha256Form.MatchString(s.Code.SHA256) {
			m.addf("code.sha256", "not 64 hexadecimal digits")
		}
	}
	if strings.ContainsAny(s.Python, "\x00\n") || len(s.Python) > 4096 {
		m.addf("python", "not the path of a program")
	}
	if s.Resume != "" && !resumeForm.MatchString(s.Resume) {
		m.addf("resume", "%q is not the id of an experiment, <application>_<run>", s.Resume)
	}
	for i, f := range s.Files {
		if f.Name == "" || f.URI == "" {
			m.addf(fmt.Sprintf("files[%d]", i), "name and uri are needed")
		}
	}
	s.validateSearch(&m)
	s.validateObjectives(&m)
	s.validateEarlyStop(&m)
	if len(s.Metric) > MaxMetricName {
		m.addf("metric", "the name has %d bytes, at most %d", len(s.Metric), MaxMetricName)
	}
	if s.Direction != Max && s.Direction != Min {
		m.addf("direction", `%q is neither "max" nor "min"`, s.Direction)
	}
	if s.Trials < 1 || s.Trials > MaxTrials {
		m.addf("trials", "%d is outside 1 … %d", s.Trials, MaxTrials)
	}
	if s.MaxEpochs < 0 {
		m.addf("max_epochs", "%d is below 0", s.MaxEpochs)
	}
	if s.Executors < 1 || s.Executors > MaxExecutors {
		m.addf("executors", "%d is outside 1 … %d", s.Executors, MaxExecutors)
	}
	if s.Resources.Memory < 16<<20 {
		m.addf("resources.memory", "%d bytes are less than 16 MiB", s.Resources.Memory)
	}
	if s.Resources.VCores < 1 {
		m.addf("resources.vcores", "%d is below 1", s.Resources.VCores)
	}
	if s.Resources.GPUs < 0 {
		m.addf("resources.gpus", "%d is below 0", s.Resources.GPUs)
	}
	if !slices.Contains(executorModes, s.ExecutorMode) {
		m.addf("executor_mode", "unknown mode %q: one of %s", s.ExecutorMode, strings.Join(executorModes, ", "))
	}
	s.validateDistributed(&m)
	if r := s.Retention; r != nil && (r.Last < -1 || r.Best < 0 || r.Every < 0) {
		m.addf("retention", "last is at least -1, best and every at least 0")
	}
	for _, d := range []struct {
		name string
		d    Duration
	}{{"timeout", s.Timeout}, {"trial_timeout", s.TrialTimeout}, {"stop_grace", s.StopGrace}} {
		if d.d < 0 {
			m.addf(d.name, "%s is negative", time.Duration(d.d))
		}
	}
	if len(m) > 0 {
		return m
	}
	return nil
}

func (s *Spec) validateSearch(m *Mistakes) {
	if len(s.Space) > MaxParameters {
		m.addf("space", "%d parameters, at most %d", len(s.Space), MaxParameters)
		return
	}
	before := len(*m)
	for i, p := range s.Space {
		field := "space." + p.Name
		if !nameForm.MatchString(p.Name) {
			m.addf(field, "%q cannot be an argument of a Python function", p.Name)
		}
		if slices.ContainsFunc(s.Space[:i], func(q Parameter) bool { return q.Name == p.Name }) {
			m.addf(field, "is there twice")
		}
		for _, why := range append(p.problems(), s.Space.conditionProblems(i)...) {
			m.addf(field, "%s", why)
		}
		if _, twice := s.Arguments[p.Name]; twice {
			m.addf("arguments."+p.Name, "is a parameter of the space as well")
		}
	}
	if s.Space.decisions() > maxDecisions {
		m.addf("space", "the parameters that others depend on have more than %d combinations of values", maxDecisions)
	}
	spaceOK := len(*m) == before
	if s.Optimizer.Type != None && len(s.Configurations) > 0 {
		m.addf("configurations", "are for optimizer none, not %s", s.Optimizer.Type)
	}
	if s.Optimizer.Type == None {
		s.validateConfigurations(m, spaceOK)
	}
	s.validateOptimizer(m, spaceOK)
}

func (s *Spec) validateConfigurations(m *Mistakes, spaceOK bool) {
	if len(s.Space) > 0 && len(s.Configurations) == 0 {
		m.addf("optimizer.type", "none does not search the space; name one of %s", strings.Join(Optimizers, ", "))
	}
	if len(s.Configurations) > MaxTrials {
		m.addf("configurations", "%d of them, at most %d", len(s.Configurations), MaxTrials)
		return
	}
	for i, c := range s.Configurations {
		if len(s.Space) == 0 || !spaceOK {
			continue
		}
		for _, why := range s.Space.Check(c) {
			m.addf(fmt.Sprintf("configurations[%d]", i), "%s", why)
		}
	}
}

// Duration is a time span; JSON has it as Go writes it ("90s", "2h") or as a number of seconds.
type Duration time.Duration

// D converts to the standard library's.
func (d Duration) D() time.Duration { return time.Duration(d) }

// MarshalJSON writes Go's form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads either form.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if f, err := strconv.ParseFloat(string(data), 64); err == nil {
		if math.IsNaN(f) || math.Abs(f) > 1e9 {
			return fmt.Errorf("%s seconds are too long", data)
		}
		*d = Duration(f * float64(time.Second))
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf(`a duration is a number of seconds or text like "90s"`)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`%q is not a duration like "90s" or "2h"`, truncate(s, 40))
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes; JSON has it as a number or as people write it ("512MiB", "2GB").
type Size int64

// UnmarshalJSON reads either form.
func (z *Size) UnmarshalJSON(data []byte) error {
	if i, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		*z = Size(i)
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf(`%s is not a size (examples: 134217728, 128MiB, 1g)`, truncate(string(data), 40))
	}
	n, err := size.Parse(text)
	if err != nil {
		return err
	}
	*z = Size(n)
	return nil
}
