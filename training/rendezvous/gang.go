package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxMembers bounds a gang.
const MaxMembers = 1024

// Framework is what the processes of a gang talk with.
type Framework string

// The frameworks.
const (
	Torch           Framework = "torch"            // torch.distributed, torchrun, Lightning, Accelerate, DeepSpeed
	TensorFlow      Framework = "tensorflow"       // MultiWorkerMirroredStrategy
	ParameterServer Framework = "parameter_server" // TensorFlow's ParameterServerStrategy
	JAX             Framework = "jax"
	MPI             Framework = "mpi"   // a hostfile for the chief; the others hold their place
	Plain           Framework = "plain" // ranks and addresses, nothing else
	Horovod         Framework = "horovod"
)

// Frameworks lists those that are supported, for messages.
var Frameworks = []Framework{Torch, TensorFlow, ParameterServer, JAX, MPI, Plain}

// Role is what a member does.
type Role string

// The roles, in the order of their ranks.
const (
	Chief     Role = "chief"     // rank 0: its reports and checkpoints are the trial's
	Worker    Role = "worker"    // trains as the chief does
	PS        Role = "ps"        // holds variables, until the chief and the workers have ended
	Evaluator Role = "evaluator" // evaluates checkpoints, until they have ended
)

// Shape is how many members a gang has of each role.
type Shape struct {
	Framework Framework
	// Workers train; the chief is one of them.
	Workers int
	// ParameterServers hold variables; framework parameter_server only.
	ParameterServers int
	// Evaluator: one more member evaluates; the frameworks of TensorFlow only.
	Evaluator bool
}

// Validate lists every mistake.
func (s Shape) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	switch {
	case s.Framework == Horovod:
		refuse("framework horovod is not supported: there is no server for its rendezvous here; torch (DistributedDataParallel) and tensorflow (MultiWorkerMirroredStrategy) do the same")
	case !slices.Contains(Frameworks, s.Framework):
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
	if s.Workers > MaxMembers || s.ParameterServers > MaxMembers || s.Size() > MaxMembers {
		refuse("the gang has %d members, at most %d are supported", s.Size(), MaxMembers)
	}
	return errors.Join(wrong...)
}

// Size is the number of members.
func (s Shape) Size() int {
	n := s.Workers + s.ParameterServers
	if s.Evaluator {
		n++
	}
	return n
}

// Roles are the roles by rank.
func (s Shape) Roles() []Role {
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
func (s Shape) Serves(role Role) bool {
	return role == PS || role == Worker && (s.Framework == ParameterServer || s.Framework == MPI)
}

// Ports is how many ports a member of the role needs.
func (s Shape) Ports(role Role) int {
	switch s.Framework {
	case Torch, JAX:
		if role == Chief {
			return 1
		}
		return 0
	case TensorFlow, ParameterServer, Plain:
		return 1
	}
	return 0
}

// Member is one process of a gang. In JSON it is what the executor protocol carries.
type Member struct {
	Rank int  `json:"rank"`
	Role Role `json:"role"`
	// Index counts the members of a role from 0.
	Index int `json:"index"`
	// Serves: it does not call the function, see Shape.Serves.
	Serves bool `json:"serves,omitempty"`
	// Host is the address at which the other members reach this one; Ports are open there for it.
	Host  string `json:"host,omitempty"`
	Ports []int  `json:"ports,omitempty"`
	// Interface is the network interface that has that address, where it is known.
	Interface string `json:"interface,omitempty"`
	// LocalRank counts the members that see the same devices (of one host; without devices: all members of the host), of
	// which there are LocalWorld. A process takes the device of this number, so members in containers with devices of their own
	// all have 0 of 1.
	LocalRank  int `json:"local_rank"`
	LocalWorld int `json:"local_world"`
	// GPUs are the devices that the member sees.
	GPUs []string `json:"gpus,omitempty"`
}

// Ends says whether the trial has not ended before the member has. The others are stopped then.
func (m *Member) Ends() bool { return m.Role != Evaluator && !m.Serves }

// Seat is where a member can run.
type Seat struct {
	Host string
	GPUs []string
}

// Arrange gives each member one of the seats: members[i] sits on seats[at[i]]. Hosts are in the order of their names with
// numbers compared as numbers, so that neighbours in rank share a host. Parameter servers and the evaluator leave seats with devices to
// those that train, if there are others. It fails when there are too few seats.
func Arrange(s Shape, seats []Seat) (members []Member, at []int, err error) {
	if err := s.Validate(); err != nil {
		return nil, nil, err
	}
	if len(seats) < s.Size() {
		return nil, nil, fmt.Errorf("a gang of %d members has %d executors", s.Size(), len(seats))
	}
	order := make([]int, len(seats))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return naturally(seats[a].Host, seats[b].Host) })
	train, serve := order[:s.Workers], order[s.Workers:]
	if s.Workers < s.Size() {
		// Seats with devices first, for those that train.
		devices := slices.Clone(order)
		slices.SortStableFunc(devices, func(a, b int) int {
			return cmp.Compare(min(1, len(seats[b].GPUs)), min(1, len(seats[a].GPUs)))
		})
		train, serve = devices[:s.Workers], devices[s.Workers:]
		// Those that serve take the seats that have none.
		serve = slices.Clone(serve)
		slices.SortStableFunc(serve, func(a, b int) int {
			return cmp.Compare(min(1, len(seats[a].GPUs)), min(1, len(seats[b].GPUs)))
		})
	}
	at = slices.Concat(train, serve)[:s.Size()]
	count := map[Role]int{}
	for rank, role := range s.Roles() {
		seat := seats[at[rank]]
		members = append(members, Member{Rank: rank, Role: role, Index: count[role], Serves: s.Serves(role), Host: seat.Host, GPUs: seat.GPUs})
		count[role]++
	}
	place(members)
	return members, at, nil
}

// node names the members among which LocalRank counts.
func (m *Member) node() string { return m.Host + "\n" + strings.Join(m.GPUs, ",") }

// place fills in LocalRank and LocalWorld.
func place(members []Member) {
	count := map[string]int{}
	for i := range members {
		members[i].LocalRank = count[members[i].node()]
		count[members[i].node()]++
	}
	for i := range members {
		members[i].LocalWorld = count[members[i].node()]
	}
}

// naturally compares names with the numbers in them compared as numbers: node-9 before node-10, 10.0.0.9 before 10.0.0.10.
func naturally(a, b string) int {
	whole := cmp.Compare(a, b) // names that differ only in zeros before a number
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x > 0 && y > 0 {
			m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			a, b = a[x:], b[y:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), whole)
}

// digits is the length of the number that s begins with.
func digits(s string) int {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return i
		}
	}
	return len(s)
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
