package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/durable"
)

// Descriptors that Start hands to a supervisor.
const (
	lockFD    = 3
	readyFD   = 4
	secretsFD = 5 // only with Launch.SecretsDir or CredentialsDir
)

// Main is the command "hops supervisor <container directory>": it runs the container to its end and returns the exit code
// of the process: 0 when exit.json tells the story, 2 when there was nothing to run.
func Main(args []string) int {
	if len(args) == 1 && args[0] == tryCommand {
		return 0
	}
	if len(args) == 1 && args[0] == stageCommand {
		return become()
	}
	if len(args) == 2 && args[0] == tryIsolation {
		if err := attempt(args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: hops supervisor <container directory> (started by the node manager)")
		return 2
	}
	if err := run(args[0]); err != nil {
		fmt.Fprintf(os.Stderr, "supervisor: %v\n", err)
		return 2
	}
	return 0
}

func run(dir string) error {
	// A relative socket name stays below the 108 bytes of sun_path however deep the directory is.
	if err := os.Chdir(dir); err != nil {
		return err
	}
	ready, err := inherit()
	if err != nil {
		return err
	}
	report := func(s started) {
		_ = json.NewEncoder(ready).Encode(s) // nobody listens any more: the node manager will find exit.json
		ready.Close()
	}
	s, err := newSupervisor()
	if err != nil {
		report(started{Error: err.Error()})
		return err
	}
	return s.run(report)
}

// inherit takes over the lock and the pipe from Start, or takes the lock when started by hand. Whatever else the node
// manager's own parent left open is not passed on to the command.
func inherit() (ready *os.File, err error) {
	if err := unix.CloseRange(lockFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil && err != unix.ENOSYS && err != unix.EINVAL {
		return nil, err
	}
	var held, named unix.Stat_t
	if unix.Fstat(lockFD, &held) == nil && unix.Stat(lockFile, &named) == nil && held.Ino == named.Ino && held.Dev == named.Dev {
		unix.CloseOnExec(lockFD)
		unix.CloseOnExec(readyFD)
		return os.NewFile(readyFD, "ready"), nil
	}
	lock, err := acquire(".")
	if err != nil {
		return nil, err
	}
	keep = lock
	return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
}

// diskPatience is how long the answer to those who wait for the end of a container waits for exit.json.
const diskPatience = time.Second

// keep holds the lock of a supervisor started by hand against the finalizer until the process ends.
var keep *os.File //nolint:unused // it is there to be reachable

// cause is why the supervisor ends a container.
type cause struct {
	status      nodemanager.ExitStatus // 0: what the signal leaves
	diagnostics string
	killAt      Instant
	ordered     bool
}

var errStopped = errors.New("stopped before the start")

type supervisor struct {
	launch Launch
	log    *slog.Logger
	group  cgroup.Group
	socket net.Listener
	// oomBase is what the control group has counted before the command: it may be killed before anybody watches.
	oomBase int64

	wake      chan struct{} // something below changed
	mainDone  chan syscall.WaitStatus
	treeGone  chan struct{} // closed at ECHILD: no descendant exists
	ended     chan struct{} // closed when exit is set
	answering atomic.Int32  // waiters not yet answered
	sharers   atomic.Int64  // of Launch.SharedDir; 0: as at the launch
	unrolled  atomic.Bool   // log files cannot be rolled here

	refreshing sync.Mutex // of who puts other credentials in place: a request may still be at it when its connection is given up for another

	mu        sync.Mutex
	lease     Lease
	cause     *cause
	main      int
	reaped    bool // main's process id may belong to somebody else by now
	startedAt time.Time
	memory    int64
	peak      int64
	refused   int64 // processes and threads that its control group did not give it
	stuck     []int
	exit      *Exit
	places    int              // of sessions that are taken
	sessions  map[int]*session // by the process that each began with, until it is collected
}

func newSupervisor() (*supervisor, error) {
	s := &supervisor{
		log:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
		wake:     make(chan struct{}, 1),
		mainDone: make(chan syscall.WaitStatus, 1),
		treeGone: make(chan struct{}),
		ended:    make(chan struct{}),
		sessions: map[int]*session{},
	}
	if err := durable.ReadJSON(launchFile, &s.launch); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(exitFile); err == nil {
		return nil, fmt.Errorf("container %s has already ended: %s exists", s.launch.Container, exitFile)
	}
	if s.launch.Poll <= 0 {
		s.launch.Poll = 500 * time.Millisecond
	}
	s.lease = s.launch.Lease
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become a subreaper: %w", err)
	}
	if i := s.launch.Isolation; i != nil {
		if err := i.enter(); err != nil {
			return nil, fmt.Errorf("isolate the container: %w", err)
		}
	}
	if err := s.launch.deliverAll(); err != nil {
		return nil, err
	}
	_ = os.Remove(socketFile) // of a predecessor that crashed: we hold the lock
	var err error
	if s.socket, err = net.Listen("unix", socketFile); err != nil {
		return nil, err
	}
	if pid := os.Getpid(); pid != 1 { // as the first process of a namespace it does not know its id outside
		if err := s.launch.writePID(".", pid); err != nil {
			s.socket.Close()
			return nil, err
		}
	}
	return s, nil
}

// writePID tells people which process the supervisor of a container's directory is.
func (l *Launch) writePID(dir string, pid int) error {
	self := map[string]any{"pid": pid, "container": l.Container, "started_ms": time.Now().UnixMilli()}
	return durable.ReplaceJSON(filepath.Join(dir, pidFile), self, 0o600)
}

func (s *supervisor) run(report func(started)) error {
	// Notify instead of Ignore: an ignored signal would stay ignored in the command, a caught one does not.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	go func() {
		for sig := range signals {
			if sig == unix.SIGTERM {
				s.stop(StopRequest{Status: nodemanager.Aborted, Reason: "the supervisor was terminated by a signal", Grace: -1})
			}
		}
	}()
	go s.serve()

	degraded, exit := s.launchMain()
	if exit != nil {
		err := s.finish(exit)
		report(started{Exit: exit, Degraded: degraded})
		return err
	}
	s.mu.Lock()
	main := s.main
	s.mu.Unlock()
	report(started{Main: main, Degraded: degraded})
	go s.watchDisk()
	go s.watchLogs()
	return s.finish(s.watch())
}

// launchMain starts the command. exit is set when it could not be.
func (s *supervisor) launchMain() (degraded string, exit *Exit) {
	l := &s.launch
	fail := func(status nodemanager.ExitStatus, format string, args ...any) *Exit {
		return &Exit{Container: l.Container, Status: status, Diagnostics: fmt.Sprintf(format, args...), Finished: time.Now().UnixMilli()}
	}
	if l.Lease.Term != 0 && Now() >= l.Lease.Term {
		return "", fail(nodemanager.Aborted, "Container %s was not started: the lease of its node had ended", l.Container)
	}
	s.group = l.Group
	unmet, err := s.group.Make(l.Limits)
	if err == nil && unmet != nil {
		degraded = "not all limits of the container are enforced: " + strings.ReplaceAll(unmet.Error(), "\n", "; ")
		s.log.Warn("control group without some limits", "container", l.Container, "error", unmet)
	}
	if err != nil {
		if l.groupAlone() {
			return "", fail(nodemanager.Invalid, "Container %s: nothing would keep it from devices that it was not granted: control group of the container could not be made: %v", l.Container, err)
		}
		degraded = fmt.Sprintf("control group of the container could not be made, memory is polled: %v", err)
		s.log.Warn("no control group", "container", l.Container, "error", err)
		_ = s.group.Remove()
		s.group = cgroup.Group{}
	}
	if err := l.handOver(); err != nil {
		return degraded, fail(nodemanager.Invalid, "Container %s: %v", l.Container, err)
	}
	s.oomBase = s.group.OOMKills()
	start, status, err := l.prepare(nil)
	if err != nil {
		return degraded, fail(status, "Container %s: %v", l.Container, err)
	}
	defer start.close()
	path, argv, attr := start.path, start.argv, start.attr
	if l.Isolation != nil {
		l.Isolation.attributes(attr.Sys, false)
	}
	forked := make(chan error)
	go func() {
		// The thread that forks must live on, because Pdeathsig watches the thread, and it enters the control group for
		// the moment of the fork.
		runtime.LockOSThread()
		fork := func() (int, error) { return syscall.ForkExec(path, argv, attr) }
		s.mu.Lock()
		if s.cause != nil {
			s.mu.Unlock()
			forked <- errStopped
			return
		}
		pid, err := s.group.Fork(attr.Sys, fork)
		if err != nil && s.group.Version != 0 && statusOfExec(err) == nodemanager.Invalid && !l.groupAlone() {
			degraded = fmt.Sprintf("control group of the container could not be entered, memory is polled: %v", err)
			_ = s.group.Remove()
			s.group = cgroup.Group{}
			attr.Sys.UseCgroupFD = false
			pid, err = fork()
		}
		s.main, s.startedAt = pid, time.Now()
		s.mu.Unlock()
		forked <- err
		if err == nil {
			s.reap(pid)
		}
	}()
	if err := <-forked; errors.Is(err, errStopped) {
		c := s.currentCause()
		exit := fail(c.status, "Container %s was stopped before its command started: %s", l.Container, c.diagnostics)
		if exit.Status == 0 {
			exit.Status = nodemanager.Terminated
		}
		exit.Stopped = c.ordered
		return degraded, exit
	} else if err != nil {
		return degraded, fail(statusOfExec(err), "Container %s: start %s: %v", l.Container, path, err)
	}
	if c := start.complaint(); c != nil && s.currentCause() == nil {
		s.destroy() // sessions may have begun meanwhile
		return degraded, fail(c.Status, "Container %s: %s", l.Container, c.Text)
	}
	return degraded, nil
}

// reap collects every child until none is left.
func (s *supervisor) reap(main int) {
	defer close(s.treeGone)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD
			return
		case pid == main:
			s.mu.Lock()
			s.reaped = true
			s.mu.Unlock()
			s.mainDone <- status
		default:
			s.mu.Lock()
			if x := s.sessions[pid]; x != nil {
				delete(s.sessions, pid)
				x.status = status
				close(x.done)
			}
			s.mu.Unlock()
		}
	}
}

// finish writes the exit down, answers who waits, and cleans up.
func (s *supervisor) finish(exit *Exit) error {
	if err := s.group.Remove(); err != nil {
		s.log.Warn("control group not removed", "container", s.launch.Container, "error", err)
	}
	if err := s.launch.forget(); err != nil {
		s.log.Warn("secrets not removed", "container", s.launch.Container, "error", err)
	}
	written := make(chan error, 1)
	go func() { written <- durable.ReplaceJSON(exitFile, exit, 0o600) }()
	var err error
	hangs := false
	select {
	case err = <-written:
	case <-time.After(diskPatience):
		hangs = true
	}
	s.mu.Lock()
	s.exit = exit
	s.mu.Unlock()
	close(s.ended)
	if hangs { // who waits has the answer meanwhile
		err = <-written
	}
	for err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the container's directory is gone: %w", err)
		}
		// The disk is full, say. Until it is written the answer is in our memory and in our socket.
		s.log.Error("exit status not written, trying again", "container", s.launch.Container, "status", int(exit.Status), "error", err)
		time.Sleep(time.Second)
		err = durable.ReplaceJSON(exitFile, exit, 0o600)
	}
	for deadline := time.Now().Add(time.Second); s.answering.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	return s.socket.Close()
}

// lookPath finds the file of a command as execvp does, in the container's own PATH.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	var path string
	for _, e := range env {
		if rest, ok := strings.CutPrefix(e, "PATH="); ok {
			path = rest
		}
	}
	var denied error
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = "."
		}
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		candidate := filepath.Join(d, name)
		err := executable(candidate)
		if err == nil {
			return candidate, nil
		}
		// A directory of PATH that we may not search is as good as absent, as in a shell.
		if _, statErr := os.Stat(candidate); statErr == nil && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("command %q is not in the container's PATH %q: %w", name, path, fs.ErrNotExist)
}

func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return &fs.PathError{Op: "exec", Path: file, Err: unix.EISDIR}
	}
	if err := unix.Access(file, unix.X_OK); err != nil {
		return &fs.PathError{Op: "exec", Path: file, Err: err}
	}
	return nil
}

// statusOfExec is what a shell reports for a command that did not start.
func statusOfExec(err error) nodemanager.ExitStatus {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nodemanager.NotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.EISDIR), errors.Is(err, unix.E2BIG):
		return nodemanager.NotExecutable
	}
	return nodemanager.Invalid
}
