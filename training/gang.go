package training

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxGangMembers bounds a gang.
const MaxGangMembers = 1024

// Framework is what the processes of a gang talk with.
type Framework string

// The frameworks.
const (
	Torch           Framework = "torch"            // torch.distributed, torchrun, Lightning, Accelerate, DeepSpeed
	TensorFlow      Framework = "tensorflow"       // MultiWorkerMirroredStrategy
	ParameterServer Framework = "parameter_server" // TensorFlow's ParameterServerStrategy
	JAX             Framework = "jax"
	Horovod         Framework = "horovod" // with gloo as its controller
	MPI             Framework = "mpi"     // a hostfile for the chief; the others hold their place
	Plain           Framework = "plain"   // ranks and addresses, nothing else
)

// Frameworks lists those that are supported, for messages.
var Frameworks = []Framework{Torch, TensorFlow, ParameterServer, JAX, Horovod, MPI, Plain}

// Role is what a member does.
type Role string

// The roles, in the order of their ranks.
const (
	Chief     Role = "chief"     // rank 0: its reports and checkpoints are the trial's
	Worker    Role = "worker"    // trains as the chief does
	PS        Role = "ps"        // holds variables, until the chief and the workers have ended
	Evaluator Role = "evaluator" // evaluates checkpoints, until they have ended
)

// GangShape is how many members a gang has of each role.
type GangShape struct {
	Framework Framework
	// Workers train; the chief is one of them.
	Workers int
	// ParameterServers hold variables; framework parameter_server only.
	ParameterServers int
	// Evaluator: one more member evaluates; the frameworks of TensorFlow only.
	Evaluator bool
}

// Validate lists every mistake.
func (s GangShape) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if !slices.Contains(Frameworks, s.Framework) {
		refuse("framework %q is not known; there are %s", s.Framework, list(Frameworks))
	}
	if s.Workers < 1 {
		refuse("workers is %d, want 1 or more (the chief is one of them)", s.Workers)
	}
	switch {
	case s.Framework == ParameterServer && s.ParameterServers < 1:
		refuse("parameter_servers is %d, framework parameter_server wants 1 or more", s.ParameterServers)
	case s.Framework == ParameterServer && s.Workers < 2:
		refuse("workers is %d, framework parameter_server wants 2 or more: the chief coordinates, the others train", s.Workers)
	case s.Framework != ParameterServer && s.ParameterServers != 0:
		refuse("parameter_servers is %d, framework %s has none; parameter_server does", s.ParameterServers, s.Framework)
	}
	if s.Evaluator && s.Framework != TensorFlow && s.Framework != ParameterServer {
		refuse("framework %s has no evaluator; tensorflow and parameter_server do", s.Framework)
	}
	if s.Workers > MaxGangMembers || s.ParameterServers > MaxGangMembers || s.Size() > MaxGangMembers {
		refuse("the gang has %d members, at most %d are supported", s.Size(), MaxGangMembers)
	}
	return errors.Join(wrong...)
}

// Size is the number of members.
func (s GangShape) Size() int {
	n := s.Workers + s.ParameterServers
	if s.Evaluator {
		n++
	}
	return n
}

// Roles are the roles by rank.
func (s GangShape) Roles() []Role {
	out := make([]Role, 0, s.Size())
	for rank := range s.Size() {
		switch {
		case rank == 0:
			out = append(out, Chief)
		case rank < s.Workers:
			out = append(out, Worker)
		case rank < s.Workers+s.ParameterServers:
			out = append(out, PS)
		default:
			out = append(out, Evaluator)
		}
	}
	return out
}

// Serves says whether members of the role do not call the function, but serve or hold a place until they are stopped: parameter
// servers, the workers of parameter_server, which the chief coordinates, and those of mpi, which mpirun uses.
func (s GangShape) Serves(role Role) bool {
	return role == PS || role == Worker && (s.Framework == ParameterServer || s.Framework == MPI)
}

// Ports is how many ports a member of the role needs. That of Horovod's chief is its executor's, which serves the rendezvous there.
func (s GangShape) Ports(role Role) int {
	switch s.Framework {
	case Torch, JAX, Horovod:
		if role == Chief {
			return 1
		}
		return 0
	case TensorFlow, ParameterServer, Plain:
		return 1
	}
	return 0
}

func list[T ~string](names []T) string {
	var b strings.Builder
	for i, n := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(n))
	}
	return b.String()
}
