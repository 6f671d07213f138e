package training

import (
	"slices"
	"strings"
)

// Distributed makes each trial a gang of processes in as many executors, which find each other and train together.
type Distributed struct {
	// Framework is what they talk with: torch, tensorflow, parameter_server, jax, horovod, mpi, plain. Default torch.
	Framework Framework `json:"framework"`
	// Workers train; the chief is one of them. Default 1.
	Workers int `json:"workers"`
	// MinWorkers lets a gang begin with fewer, if the others do not come within seconds; it grows again at a checkpoint. Default
	// workers: always all.
	MinWorkers int `json:"min_workers,omitempty"`
	// ParameterServers hold variables; of framework parameter_server. They have no GPUs.
	ParameterServers int `json:"parameter_servers,omitempty"`
	// Evaluator adds a member, without GPUs, that evaluates; of the frameworks of TensorFlow.
	Evaluator bool `json:"evaluator,omitempty"`
	// Restarts is how often a trial may start again after one of its members failed. Default 3.
	Restarts *int `json:"restarts,omitempty"`
	// Within is the level of the network inside which the workers have to be: "node", or the depth of a rack's path; "": as near as
	// there is room.
	Within string `json:"within,omitempty"`
}

// Limits of gangs and slots.
const (
	MaxRestarts          = 1_000
	MaxTrialsPerExecutor = 64
	MaxRepeats           = 1_000
)

// Shape is the gang with so many workers.
func (d *Distributed) Shape(workers int) GangShape {
	return GangShape{Framework: d.Framework, Workers: workers, ParameterServers: d.ParameterServers, Evaluator: d.Evaluator}
}

// Servers is how many members do not train.
func (d *Distributed) Servers() int { return d.Shape(0).Size() }

// repeatable are the optimizers whose next configuration depends on no result.
var repeatable = []string{Random, Grid, Sobol, None}

// setDistributed writes the defaults of gangs and slots.
func (s *Spec) setDistributed() {
	defInt(&s.TrialsPerExecutor, 1)
	defInt(&s.Repeats, 1)
	d := s.Distributed
	if d == nil {
		return
	}
	d.Framework = Framework(strings.ToLower(string(d.Framework)))
	def((*string)(&d.Framework), string(Torch))
	defInt(&d.Workers, 1)
	defInt(&d.MinWorkers, d.Workers)
	defPointer(&d.Restarts, 3)
	defInt(&s.Executors, d.Shape(d.Workers).Size())
}

// validateDistributed lists the mistakes in gangs, slots and repeats.
func (s *Spec) validateDistributed(m *Mistakes) {
	if n := s.TrialsPerExecutor; n < 1 || n > MaxTrialsPerExecutor {
		m.addf("trials_per_executor", "%d is outside 1 … %d", n, MaxTrialsPerExecutor)
	}
	if n := s.Repeats; n < 1 || n > MaxRepeats {
		m.addf("repeats", "%d is outside 1 … %d", n, MaxRepeats)
	}
	if o := s.Optimizer.Type; s.Repeats > 1 && slices.Contains(Optimizers, o) && !slices.Contains(repeatable, o) {
		m.addf("repeats", "%s decides by single trials; configurations are repeated by %s", o, strings.Join(repeatable, ", "))
	}
	if s.Repeats > 1 && s.Trials*s.Repeats > MaxTrials {
		m.addf("repeats", "%d configurations %d times are more than %d trials", s.Trials, s.Repeats, MaxTrials)
	}
	d := s.Distributed
	if d == nil {
		return
	}
	shape := d.Shape(d.Workers)
	if err := shape.Validate(); err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			m.addf("distributed", "%s", line)
		}
		return
	}
	if d.MinWorkers < 1 || d.MinWorkers > d.Workers {
		m.addf("distributed.min_workers", "%d is outside 1 … workers %d", d.MinWorkers, d.Workers)
	} else if err := d.Shape(d.MinWorkers).Validate(); err != nil {
		m.addf("distributed.min_workers", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if *d.Restarts < 0 || *d.Restarts > MaxRestarts {
		m.addf("distributed.restarts", "%d is outside 0 … %d", *d.Restarts, MaxRestarts)
	}
	if len(d.Within) > 32 {
		m.addf("distributed.within", `%.40q is neither "node" nor the depth of a rack`, d.Within)
	}
	if s.TrialsPerExecutor > 1 {
		m.addf("trials_per_executor", "%d trials share an executor, but the members of a gang have one each; leave one of distributed and trials_per_executor away", s.TrialsPerExecutor)
	}
	if n := shape.Size(); s.Executors < n {
		m.addf("executors", "%d are fewer than the %d members of one gang", s.Executors, n)
	}
}
