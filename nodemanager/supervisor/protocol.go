package supervisor

import (
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/shell"
)

// maxLine bounds a request or an answer.
const maxLine = 256 << 10

// request is one line to a supervisor.
type request struct {
	// Op is status, renew, share, refresh, signal, stop, wait or exec. wait is answered when the container has ended, and is the last request
	// of its connection. After an exec that is answered without an error, the connection carries the frames of its session.
	Op     string         `json:"op"`
	Lease  *Lease         `json:"lease,omitempty"`
	Share  int            `json:"share,omitempty"`
	Tokens []byte         `json:"tokens,omitempty"`
	Signal int            `json:"signal,omitempty"`
	Stop   *StopRequest   `json:"stop,omitempty"`
	Exec   *shell.Request `json:"exec,omitempty"`
}

// answer is one line from a supervisor.
type answer struct {
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"`
	Exit   *Exit   `json:"exit,omitempty"`
}

// StopRequest ends a container. The first one decides; later ones can only shorten the grace.
type StopRequest struct {
	// Status becomes the exit status unless it is 0; then it is the command's own, as a signal leaves it (143, 137).
	Status nodemanager.ExitStatus `json:"status,omitempty"`
	Reason string                 `json:"reason,omitempty"`
	// Grace lies between SIGTERM and SIGKILL; negative: the launch's.
	Grace time.Duration `json:"grace"`
}

// Status is a supervisor's view of its container now.
type Status struct {
	Supervisor int `json:"supervisor"` // process id
	// Main is the command's process id, as the container counts.
	Main     int  `json:"main,omitempty"`
	Stopping bool `json:"stopping,omitempty"`
	// Memory is what the container uses, in bytes.
	Memory  int64 `json:"memory,omitempty"`
	Started int64 `json:"started_ms,omitempty"`
	Lease   Lease `json:"lease"`
	// Stuck lists processes that did not end although they were killed (usually in a system call on a dead device).
	Stuck []int `json:"stuck,omitempty"`
}

// started is the one line that a new supervisor writes to its parent.
type started struct {
	Main int   `json:"main,omitempty"`
	Exit *Exit `json:"exit,omitempty"`
	// Degraded: the control group could not be made, for this reason, and limits are polled; or it has not all of them.
	Degraded string `json:"degraded,omitempty"`
	Error    string `json:"error,omitempty"`
}
