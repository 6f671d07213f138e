package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/durable"
)

// Names in a container directory.
const (
	lockFile   = "lock"
	launchFile = "launch.json"
	pidFile    = "supervisor.json"
	socketFile = "sock"
	exitFile   = "exit.json"
	logFile    = "supervisor.log"
)

// Instant is a moment of CLOCK_BOOTTIME in nanoseconds. It means nothing after a restart of the machine.
type Instant int64

// Now reads the clock.
func Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the clock exists since Linux 2.6.39
	}
	return Instant(ts.Nano())
}

// Add is the instant d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub is the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Lease holds the deadlines that end a container nobody speaks for. The zero value never ends.
type Lease struct {
	Term Instant `json:"term,omitempty"` // SIGTERM to the whole tree
	Kill Instant `json:"kill,omitempty"` // SIGKILL to what is left
}

// Launch is what a supervisor has to run.
type Launch struct {
	Container nodemanager.ContainerID `json:"container"`
	// Argv[0] without a slash is looked up in the PATH of Env.
	Argv []string `json:"argv"`
	// Env is the complete environment, as name=value.
	Env []string `json:"env"`
	// Dir is the working directory; Stdout and Stderr are appended to.
	Dir    string `json:"dir"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// Grace is used when a stop names none.
	Grace time.Duration `json:"grace"`
	// Limits and Group: the group is made and removed by the supervisor. Without one that limits memory, Limits.Memory is
	// enforced by polling.
	Limits cgroup.Limits `json:"limits"`
	Group  cgroup.Group  `json:"group"`
	// LogDir is watched: more than LogLimit bytes in its files (0: no limit) end the container, and so does more than a
	// quarter of that and LogRate bytes for each second it runs (0: at any rate).
	LogDir   string `json:"log_dir,omitempty"`
	LogLimit int64  `json:"log_limit,omitempty"`
	LogRate  int64  `json:"log_rate,omitempty"`
	// Rolled are names, or patterns of path.Match, of files in LogDir that lose what is older than their last LogKeep bytes, and a quarter
	// of that, but for their first few kilobytes. They keep their length: what was there is a hole. No more than LogKeep of each counts for LogLimit and
	// LogRate, but for what cannot be cut.
	Rolled  []string `json:"rolled,omitempty"`
	LogKeep int64    `json:"log_keep,omitempty"`
	// DiskDirs are measured: more than DiskLimit bytes on disk in all of them (0: no limit) end the container.
	// Of what is in SharedDir, which Sharers containers have in common (more or fewer later, see Client.Share), each has an equal part.
	DiskDirs  []string `json:"disk_dirs,omitempty"`
	SharedDir string   `json:"shared_dir,omitempty"`
	Sharers   int      `json:"sharers,omitempty"`
	DiskLimit int64    `json:"disk_limit,omitempty"`
	// Poll is how often memory, log size and lease are looked at, default 500 ms; log size more often where it is near its end.
	Poll  time.Duration `json:"poll,omitempty"`
	Lease Lease         `json:"lease"`
	// Isolation hides the servers' files from the command; nil: they are not hidden.
	Isolation *Isolation `json:"isolation,omitempty"`
	// Account is the user as whom the command runs; it owns LogDir, DiskDirs and SharedDir from the start of the command on, and nobody
	// else may have been able to write there before. Only root may name one, and with it a Confinement. nil: our own.
	Account *account.Account `json:"account,omitempty"`
	// SecretsDir, directly in the container's directory, is made for the files that Start was given for the command's eyes
	// only: in memory where there is an Isolation, otherwise on the disk, and gone with the container. Empty: there are none.
	SecretsDir string `json:"secrets_dir,omitempty"`
	// CredentialsDir is another such directory, with the one file TokensFile. What Refresh is given takes its place.
	CredentialsDir string `json:"credentials_dir,omitempty"`
	// Confinement takes privileges and system calls from the command; nil: it keeps those of its user.
	Confinement *Confinement `json:"confinement,omitempty"`
}

// groupAlone reports whether the control group is all that keeps the container from devices that it was not granted.
func (l *Launch) groupAlone() bool {
	return l.Limits.Devices != nil && (l.Isolation == nil || l.Isolation.Private == nil)
}

// Exit says how a container ended. Written after its last process was gone.
type Exit struct {
	Container nodemanager.ContainerID `json:"container"`
	Status    nodemanager.ExitStatus  `json:"status"`
	// Diagnostics is for people; empty when the command ended with 0.
	Diagnostics string `json:"diagnostics,omitempty"`
	// Stopped: the status comes from a stop order, not from the command.
	Stopped bool `json:"stopped,omitempty"`
	// Started is 0 when the command never ran.
	Started    int64 `json:"started_ms,omitempty"`
	Finished   int64 `json:"finished_ms"`
	PeakMemory int64 `json:"peak_memory,omitempty"`
}

// ReadExit reads how the container of dir ended; nil when that is not written.
func ReadExit(dir string) (*Exit, error) {
	var e Exit
	err := durable.ReadJSON(filepath.Join(dir, exitFile), &e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &e, nil
}

// Alive reports whether a supervisor lives in dir.
func Alive(dir string) (bool, error) {
	lock, err := acquire(dir)
	if errors.Is(err, errLocked) {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return false, lock.Close()
}

var errLocked = errors.New("a supervisor lives in this directory")

// lookTime is how long Start waits for the lock of a directory: who looks whether a supervisor lives there holds it for a moment, and so does
// a process between its fork and its exec that was forked meanwhile.
var lookTime = time.Second // a variable for tests

// acquire takes the lock of a container directory.
func acquire(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
