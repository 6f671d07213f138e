package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/training"
)

// Member is one process of a gang. In JSON it is what the executor protocol carries.
type Member struct {
	Rank int           `json:"rank"`
	Role training.Role `json:"role"`
	// Index counts the members of a role from 0.
	Index int `json:"index"`
	// Serves: it does not call the function, see training.GangShape.Serves.
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
func (m *Member) Ends() bool { return m.Role != training.Evaluator && !m.Serves }

// Seat is where a member can run.
type Seat struct {
	Host string
	GPUs []string
}

// Arrange gives each member one of the seats: members[i] sits on seats[at[i]]. Hosts are in the order of their names with
// numbers compared as numbers, so that neighbours in rank share a host. Parameter servers and the evaluator leave seats with devices to
// those that train, if there are others. It fails when there are too few seats.
func Arrange(s training.GangShape, seats []Seat) (members []Member, at []int, err error) {
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
	count := map[training.Role]int{}
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
