package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

// Confinement is what a command gives up for good before its first instruction.
type Confinement struct {
	// Umask of the command; negative: ours.
	Umask int `json:"umask"`
	// Files is how many descriptors a process of it may have, at most what we may.
	Files uint64 `json:"files"`
}

// The stage is our own program in the command's process, as its user and in its namespaces and control group. It opens the log
// files, so that nothing is opened there with more rights than the command's own; gives up privileges for good
// (no_new_privs), sets limits and the filter of system calls, and becomes the command. It is not in the command's
// environment, because what that may say to a dynamic linker would run before the filter.
type stage struct {
	Argv   []string    `json:"argv"`
	Env    []string    `json:"env"`
	Dir    string      `json:"dir"`
	Stdout string      `json:"stdout"`
	Stderr string      `json:"stderr"`
	Limits Confinement `json:"limits"`
}

const (
	stageCommand = "--stage"
	// Descriptors of the stage: it reads what to do from one, and says on the other why it did not succeed. The other end
	// of that reads nothing when the command runs.
	orderFD, complaintFD = 3, 4
)

// stagePatience is how long a stage is waited for that neither succeeds nor complains, because a disk hangs, say. Then it counts
// as the command, so that it can be stopped.
const stagePatience = 10 * time.Second

// complaint is why a stage did not become the command.
type complaint struct {
	Status nodemanager.ExitStatus `json:"status"`
	Text   string                 `json:"text"`
}

// become is the stage's main function. It returns only when it failed.
func become() int {
	unix.CloseOnExec(complaintFD)
	order := os.NewFile(orderFD, "order")
	text, err := io.ReadAll(order)
	order.Close()
	var s stage
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil {
		err = s.exec()
	}
	c := complaint{Status: statusOfExec(err), Text: err.Error()}
	_ = json.NewEncoder(os.NewFile(complaintFD, "complaint")).Encode(c) // the exit status says it too
	return 127
}

func (s *stage) exec() error {
	runtime.LockOSThread() // no_new_privs, the filter and what follows are the thread's that execs
	// As prepare asks of every command. It is the first thread's since the fork and not ours, but ours is what the command keeps. The first
	// one lives until then: if the supervisor has died by now, we have.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("pdeathsig: %w", err)
	}
	if s.Limits.Umask >= 0 {
		unix.Umask(s.Limits.Umask)
	}
	if err := os.Chdir(s.Dir); err != nil {
		return asked(err)
	}
	for fd, name := range map[int]string{1: s.Stdout, 2: s.Stderr} {
		if name == "" { // it has what it writes to
			continue
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
		if err != nil {
			return fmt.Errorf("open log file: %w", asked(err))
		}
		if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
			return err
		}
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return err
		}
		f.Close()
	}
	path, err := lookPath(s.Argv[0], s.Dir, s.Env)
	if err != nil {
		return err
	}
	if err := limit(unix.RLIMIT_CORE, 0); err != nil {
		return err
	}
	if err := limit(unix.RLIMIT_NOFILE, s.Limits.Files); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := confineThread(); err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", path, syscall.Exec(path, s.Argv, s.Env))
}

// asked takes an error that came before the command for what it is: not the command's.
func asked(err error) error {
	if wrapped, ok := errors.AsType[*fs.PathError](err); ok {
		return errors.New(wrapped.Error())
	}
	return err
}

// limit sets a soft limit, below the hard one that we have.
func limit(resource int, soft uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(resource, &now); err != nil {
		return fmt.Errorf("limit %d: %w", resource, err)
	}
	now.Cur = min(soft, now.Max)
	// The system's package remembers what RLIMIT_NOFILE was and would bring it back at exec, had we not set it by itself.
	if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: now.Cur, Max: now.Max}); err != nil {
		return fmt.Errorf("limit %d: %w", resource, err)
	}
	return nil
}

// start is how the process of a command begins: as the command itself, or as its stage.
type start struct {
	path   string
	argv   []string
	attr   *syscall.ProcAttr
	files  []*os.File // for the process, ours to close
	answer *os.File   // of a stage; nil: there is none
}

func (s *start) close() {
	for _, f := range s.files {
		f.Close()
	}
	s.files = nil
}

// complaint waits until the process is the command, or says why it is not.
func (s *start) complaint() *complaint {
	s.close() // or there would be no end to what we read
	if s.answer == nil {
		return nil
	}
	defer s.answer.Close()
	_ = s.answer.SetReadDeadline(time.Now().Add(stagePatience))
	c := new(complaint)
	err := json.NewDecoder(io.LimitReader(s.answer, maxLine)).Decode(c)
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		return &complaint{Status: nodemanager.Invalid, Text: fmt.Sprintf("the stage of its command: %v", err)}
	}
	return c
}

// prepare opens what the process of the command begins with. status is that of a container whose preparation fails. std are its three
// standard files, which are closed with the others; none: it reads nothing and writes its logs.
func (l *Launch) prepare(std []*os.File) (s *start, status nodemanager.ExitStatus, err error) {
	s = &start{argv: l.Argv, attr: &syscall.ProcAttr{Dir: l.Dir, Env: l.Env, Sys: &syscall.SysProcAttr{
		Setsid: true,
		// Only a second line of defence: it ends the command alone, and only when this process dies by force.
		Pdeathsig: unix.SIGKILL,
	}}}
	defer func() {
		for _, f := range s.files {
			s.attr.Files = append(s.attr.Files, f.Fd())
		}
		if err != nil {
			s.close()
		}
	}()
	s.files = append(s.files, std...)
	if std == nil {
		if err := s.open(os.DevNull, os.O_RDONLY); err != nil {
			return s, nodemanager.Invalid, err
		}
	}
	if l.Confinement == nil {
		if s.path, err = lookPath(l.Argv[0], l.Dir, l.Env); err != nil {
			return s, statusOfExec(err), err
		}
		if std != nil {
			return s, 0, nil
		}
		for _, name := range []string{l.Stdout, l.Stderr} {
			if err := s.open(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE); err != nil {
				return s, nodemanager.Invalid, fmt.Errorf("open log file: %w", err)
			}
		}
		return s, 0, nil
	}
	s.path, s.argv = "/proc/self/exe", []string{os.Args[0], os.Args[1], stageCommand}
	s.attr.Dir, s.attr.Env = "", []string{"GOMAXPROCS=1"}
	for len(s.files) < 3 {
		if err := s.open(os.DevNull, os.O_WRONLY); err != nil {
			return s, nodemanager.Invalid, err
		}
	}
	order, err := l.order()
	if err != nil {
		return s, nodemanager.Invalid, err
	}
	s.files = append(s.files, order)
	answer, child, err := os.Pipe()
	if err != nil {
		return s, nodemanager.Invalid, err
	}
	s.answer, s.files = answer, append(s.files, child)
	if a := l.Account; a != nil {
		s.attr.Sys.Credential = &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.Groups}
	}
	return s, 0, nil
}

func (s *start) open(name string, flags int) error {
	f, err := os.OpenFile(name, flags, 0o640)
	if err == nil {
		s.files = append(s.files, f)
	}
	return err
}

// order is what the stage is told, in a file that has no name.
func (l *Launch) order() (*os.File, error) {
	text, err := json.Marshal(stage{Argv: l.Argv, Env: l.Env, Dir: l.Dir, Stdout: l.Stdout, Stderr: l.Stderr, Limits: *l.Confinement})
	if err != nil {
		return nil, err
	}
	return inMemory("order", text)
}

// inMemory is an open file of that content which has no place on any disk, for a process that is about to start.
func inMemory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil { // the offset stays at the beginning
		f.Close()
		return nil, err
	}
	return f, nil
}

// handOver gives the container's directories to the user of its command. They were ours alone until now, so nobody can have
// put anything else in their place.
func (l *Launch) handOver() error {
	if l.Account == nil {
		return nil
	}
	dirs := append([]string{l.LogDir}, l.DiskDirs...)
	if l.SharedDir != "" {
		dirs = append(dirs, l.SharedDir)
	}
	for _, dir := range dirs {
		d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		err = errors.Join(d.Chown(int(l.Account.UID), int(l.Account.GID)), d.Chmod(0o700))
		d.Close()
		if err != nil {
			return fmt.Errorf("hand %s over to %s: %w", filepath.Base(dir), l.Account.Name, err)
		}
	}
	return nil
}
