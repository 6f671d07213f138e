package resourcemanager

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
)

// MaxSequence is the largest sequence number of an application: YARN's clients keep it in 32 bits.
const MaxSequence = math.MaxInt32

// ApplicationID identifies an application for ever: the time its cluster began, in milliseconds, and a sequence number. When all
// numbers are used up, they begin again with the next millisecond.
// The zero value is no application.
type ApplicationID struct {
	Cluster  int64
	Sequence int64
}

// String is application_<cluster>_<sequence, at least four digits>.
func (id ApplicationID) String() string {
	return fmt.Sprintf("application_%d_%04d", id.Cluster, id.Sequence)
}

// IsZero reports whether id is no application.
func (id ApplicationID) IsZero() bool { return id == ApplicationID{} }

// Compare orders by cluster, then sequence.
func (id ApplicationID) Compare(o ApplicationID) int {
	return cmp.Or(cmp.Compare(id.Cluster, o.Cluster), cmp.Compare(id.Sequence, o.Sequence))
}

// ParseApplicationID reads what String wrote. Error: metadata.ErrInvalidArgument.
func ParseApplicationID(s string) (ApplicationID, error) {
	n, ok := numbers(s, "application", 2)
	if !ok || n[1] > MaxSequence {
		return ApplicationID{}, metadata.Errorf(metadata.ErrInvalidArgument, "Invalid ApplicationId: %s", s)
	}
	return ApplicationID{n[0], n[1]}, nil
}

// AttemptID identifies one try to run an application's master. Numbers start at 1.
type AttemptID struct {
	Application ApplicationID
	Number      int
}

// String is appattempt_<cluster>_<sequence>_<number, six digits>.
func (id AttemptID) String() string {
	return fmt.Sprintf("appattempt_%d_%04d_%06d", id.Application.Cluster, id.Application.Sequence, id.Number)
}

// Compare orders by application, then number.
func (id AttemptID) Compare(o AttemptID) int {
	return cmp.Or(id.Application.Compare(o.Application), cmp.Compare(id.Number, o.Number))
}

// ParseAttemptID reads what String wrote. Error: metadata.ErrInvalidArgument.
func ParseAttemptID(s string) (AttemptID, error) {
	n, ok := numbers(s, "appattempt", 3)
	if !ok || n[1] > MaxSequence || n[2] > 1<<30 {
		return AttemptID{}, metadata.Errorf(metadata.ErrInvalidArgument, "Invalid AppAttemptId: %s", s)
	}
	return AttemptID{ApplicationID{n[0], n[1]}, int(n[2])}, nil
}

// ContainerID identifies a container for ever. Epoch is that of the resource manager's leader that granted it.
type ContainerID struct {
	Attempt AttemptID
	Epoch   int64
	Number  int64
}

// String is container_e<epoch, two digits>_<cluster>_<sequence>_<attempt, two digits>_<number, six digits>; as in YARN
// the epoch is left out when it is 0.
func (id ContainerID) String() string {
	a := id.Attempt.Application
	epoch := ""
	if id.Epoch > 0 {
		epoch = fmt.Sprintf("e%02d_", id.Epoch)
	}
	return fmt.Sprintf("container_%s%d_%04d_%02d_%06d", epoch, a.Cluster, a.Sequence, id.Attempt.Number, id.Number)
}

// IsZero reports whether id is no container.
func (id ContainerID) IsZero() bool { return id == ContainerID{} }

// Compare orders by application, number, attempt, epoch: an application's containers in the order they were granted.
func (id ContainerID) Compare(o ContainerID) int {
	return cmp.Or(id.Attempt.Application.Compare(o.Attempt.Application), cmp.Compare(id.Number, o.Number),
		cmp.Compare(id.Attempt.Number, o.Attempt.Number), cmp.Compare(id.Epoch, o.Epoch))
}

// ParseContainerID reads what String wrote. Error: metadata.ErrInvalidArgument.
func ParseContainerID(s string) (ContainerID, error) {
	bad := func() (ContainerID, error) {
		return ContainerID{}, metadata.Errorf(metadata.ErrInvalidArgument, "Invalid ContainerId: %s", s)
	}
	rest, epoch := s, int64(0)
	if after, ok := strings.CutPrefix(s, "container_e"); ok {
		digits, tail, ok := strings.Cut(after, "_")
		e, good := number(digits)
		if !ok || !good {
			return bad()
		}
		rest, epoch = "container_"+tail, e
	}
	n, ok := numbers(rest, "container", 4)
	if !ok || n[1] > MaxSequence || n[2] > 1<<30 {
		return bad()
	}
	return ContainerID{AttemptID{ApplicationID{n[0], n[1]}, int(n[2])}, epoch, n[3]}, nil
}

// numbers splits prefix_n_n_... into exactly want non-negative numbers.
func numbers(s, prefix string, want int) ([]int64, bool) {
	if len(s) > 128 {
		return nil, false
	}
	parts := strings.Split(s, "_")
	if len(parts) != want+1 || parts[0] != prefix {
		return nil, false
	}
	out := make([]int64, want)
	for i, p := range parts[1:] {
		n, ok := number(p)
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}

func number(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || s[0] == '+' {
		return 0, false
	}
	return int64(n), true
}

// NodeID is the address host:port of a node manager's HTTP server, which is YARN's node id.
type NodeID string
