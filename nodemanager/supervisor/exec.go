package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/shell"
)

const (
	// maxSessions bounds the sessions of a container.
	maxSessions = 8
	// hangUp lies between SIGHUP and SIGKILL for the processes of a session whose client has gone.
	hangUp = 5 * time.Second
	// leftover is how much is read of what a program has left in its pipes, which is what a pipe holds at most; quiet, how long the
	// ends that processes of it still hold are waited for.
	leftover = 1 << 20
	quiet    = 200 * time.Millisecond
	// endOfInput is what a terminal has for the end of its input (Ctrl-D).
	endOfInput = 4
)

// session is a program that runs beside the container's, for somebody who is connected.
type session struct {
	tty *terminal // nil: it has none
	in  *os.File  // nil: its input is empty
	out []*os.File
	// failed says why the program did not start; code is its exit status then.
	failed string
	code   nodemanager.ExitStatus

	pid    int
	done   chan struct{} // closed when the process is collected
	status syscall.WaitStatus

	over atomic.Bool // the program has ended
}

// begin starts the program of a session where and as the container's command was started: as its user, in its control group and
// namespaces, with its environment, directory, privileges and system calls. It ends with the container.
func (s *supervisor) begin(r *shell.Request) (x *session, err error) {
	if r == nil {
		return nil, errors.New("exec without a command")
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := s.takePlace(); err != nil {
		return nil, err
	}
	l := s.launch
	l.Argv, l.Stdout, l.Stderr = r.Argv, "", ""
	if r.Terminal && r.Term != "" {
		l.Env = append(slices.DeleteFunc(slices.Clone(l.Env), func(e string) bool { return strings.HasPrefix(e, "TERM=") }), "TERM="+r.Term)
	}
	x = &session{done: make(chan struct{})}
	defer func() {
		if err != nil {
			x.close()
			s.leavePlace()
		}
	}()
	std, err := x.open(r, l.uid())
	if err != nil {
		return x, err
	}
	start, status, err := l.prepare(std)
	if err != nil {
		return s.failed(x, status, err.Error()), nil
	}
	defer start.close()
	if l.Isolation != nil {
		l.Isolation.attributes(start.attr.Sys, false)
	}
	if x.tty != nil {
		controls(start.attr.Sys)
	}
	forked := make(chan error)
	go func() {
		runtime.LockOSThread() // and so the thread lives as long as the process, whose Pdeathsig watches it
		s.mu.Lock()
		err := s.open()
		if err == nil {
			x.pid, err = s.group.Fork(start.attr.Sys, func() (int, error) { return syscall.ForkExec(start.path, start.argv, start.attr) })
		}
		if err == nil {
			s.sessions[x.pid] = x
		}
		s.mu.Unlock()
		forked <- err
		if err == nil {
			<-x.done
		}
	}()
	err = <-forked
	if err != nil && start.answer != nil {
		start.answer.Close() // who has not begun says nothing
	}
	if errors.Is(err, errEnding) {
		return x, err
	} else if err != nil {
		return s.failed(x, statusOfExec(err), fmt.Sprintf("start %s: %v", start.path, err)), nil
	}
	if c := start.complaint(); c != nil {
		<-x.done
		return s.failed(x, c.Status, c.Text), nil
	}
	return x, nil
}

// errEnding is why a container that is about to end, or has not begun, has no new session.
var errEnding = errors.New("the container's program does not run")

// open says why there can be no more processes in the container. s.mu is held.
func (s *supervisor) open() error {
	if s.main == 0 || s.reaped || s.cause != nil {
		return errEnding
	}
	return nil
}

// ending: the program of a session has not ended by itself, or not only.
func (s *supervisor) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open() != nil
}

func (s *supervisor) takePlace() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		return err
	}
	if s.places >= maxSessions {
		return fmt.Errorf("the container has %d sessions already, no more are allowed", s.places)
	}
	s.places++
	return nil
}

func (s *supervisor) leavePlace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places--
}

// failed makes a session out of one whose program did not start.
func (s *supervisor) failed(x *session, status nodemanager.ExitStatus, text string) *session {
	if status <= 0 {
		status = nodemanager.NotExecutable
	}
	x.failed, x.code = text, status
	return x
}

// uid is the id of the user as whom the command runs; negative: ours.
func (l *Launch) uid() int {
	if l.Account == nil {
		return -1
	}
	return int(l.Account.UID)
}

// open makes the standard files of a session, and returns the program's ends.
func (x *session) open(r *shell.Request, uid int) (std []*os.File, err error) {
	if r.Terminal {
		t, far, err := openTerminal(r.Size, uid)
		if err != nil {
			return nil, err
		}
		x.tty, x.out = &t, []*os.File{t.File}
		if r.Stdin {
			x.in = t.File
		}
		return []*os.File{far, far, far}, nil
	}
	defer func() {
		if err != nil {
			for _, f := range std {
				f.Close()
			}
		}
	}()
	if r.Stdin {
		read, write, err := os.Pipe()
		if err != nil {
			return std, err
		}
		x.in, std = write, append(std, read)
	} else {
		empty, err := os.Open(os.DevNull)
		if err != nil {
			return std, err
		}
		std = append(std, empty)
	}
	for range 2 {
		read, write, err := os.Pipe()
		if err != nil {
			return std, err
		}
		x.out, std = append(x.out, read), append(std, write)
	}
	return std, nil
}

func (x *session) close() {
	if x.in != nil {
		x.in.Close()
	}
	for _, f := range x.out {
		f.Close()
	}
}

// answerExec carries a session to its end.
func (s *supervisor) answerExec(conn net.Conn, x *session) {
	defer s.leavePlace()
	s.answering.Add(1) // who is connected hears the end
	defer s.answering.Add(-1)
	defer x.close()
	if _, err := conn.Write([]byte("{}\n")); err != nil {
		x.end()
		return
	}
	out := shell.NewWriter(conn)
	if x.failed != "" {
		_ = out.Exit(int(x.code), x.failed) // nobody listens any more
		return
	}
	if x.serve(conn, out, shell.Patience, s.ending) != nil {
		conn.Close()
		x.end()
	}
}

// serve carries frames until the program has ended and all that it wrote is sent. An error: the client has gone, or sends what
// it may not.
func (x *session) serve(conn net.Conn, out *shell.Writer, patience time.Duration, ending func() bool) error {
	finished := make(chan struct{})
	defer close(finished)
	go out.Beats(shell.Every, finished)
	var pumps sync.WaitGroup
	for i, f := range x.out {
		pumps.Go(func() { x.pump(f, shell.Stdout+shell.Kind(i), out) })
	}
	input := newInput()
	defer input.stop()
	go input.feed(x, out)
	lost := make(chan error, 1)
	go func() { lost <- x.listen(shell.NewReader(conn, patience), input) }()

	select {
	case err := <-lost:
		return err
	case <-x.done:
	}
	x.over.Store(true)
	for _, f := range x.out {
		_ = f.SetReadDeadline(time.Now().Add(quiet))
	}
	written := make(chan struct{})
	go func() { defer close(written); pumps.Wait() }()
	select {
	case err := <-lost:
		return err
	case <-written:
	}
	text := ""
	if ending() {
		text = "the container has ended"
	}
	return out.Exit(int(x.exit()), text)
}

// exit is the program's exit status, as a shell says it.
func (x *session) exit() nodemanager.ExitStatus {
	if x.status.Signaled() {
		return nodemanager.OfSignal(int(x.status.Signal()))
	}
	return nodemanager.ExitStatus(x.status.ExitStatus())
}

// pump sends what the program writes. What it has left in the pipe when it ends is sent too; processes of it that hold the pipe longer
// are not waited for.
func (x *session) pump(from *os.File, kind shell.Kind, out *shell.Writer) {
	buffer := make([]byte, shell.MaxData)
	late := false // it was quiet, or the deadline passed while we were sending
	for rest := leftover; rest > 0; {
		var n int
		var err error
		if late {
			n, err = readNow(from, buffer)
		} else {
			n, err = from.Read(buffer)
		}
		if n > 0 && out.Send(kind, buffer[:n]) != nil {
			return // the client has gone
		}
		if x.over.Load() {
			rest -= n
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			late = true
		} else if err != nil {
			return
		}
	}
}

// readNow reads what is there, whatever the file's deadline is.
func readNow(from *os.File, p []byte) (n int, err error) {
	raw, err := from.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { n, failed = unix.Read(int(fd), p) }); err != nil {
		return 0, err
	}
	if n <= 0 && failed == nil {
		failed = io.EOF
	}
	return max(0, n), failed
}

// listen reads the client's frames until there are no more. It never waits for anything else, so that a client that is there is
// heard.
func (x *session) listen(in *shell.Reader, to *input) error {
	for {
		f, err := in.Next()
		if err != nil {
			return err
		}
		switch f.Kind {
		case shell.Stdin:
			if err := to.add(f.Data); err != nil {
				return err
			}
		case shell.Resize:
			if x.tty != nil {
				_ = x.tty.resize(f.Size()) // it may have ended
			}
		case shell.Beat:
		case shell.Taken, shell.Stdout, shell.Stderr, shell.Exit:
			return fmt.Errorf("the client sends a frame of kind %d", f.Kind)
		}
	}
}

// end ends the processes of a session: SIGHUP, as when a line is dropped, and SIGKILL to those that do not care. It returns when the
// first one, which the session is named after, is gone.
func (x *session) end() {
	if x.pid == 0 {
		return
	}
	select {
	case <-x.done: // what it left behind is the container's
		return
	default:
	}
	for _, p := range members(x.pid) {
		p.signal(unix.SIGHUP)
		p.signal(unix.SIGCONT)
	}
	for pause := hangUp; ; pause = 100 * time.Millisecond {
		select {
		case <-x.done:
			killAll(func() []process { return members(x.pid) })
			return
		case <-time.After(pause):
		}
		killAll(func() []process { return members(x.pid) })
	}
}

// input is what the client has sent and the program has not taken.
type input struct {
	mu      sync.Mutex
	bytes   []byte
	taking  int // of what was taken out, how much is not answered
	ended   bool
	stopped bool
	more    *sync.Cond
}

func newInput() *input {
	i := &input{}
	i.more = sync.NewCond(&i.mu)
	return i
}

// add takes data, or their end, which is no data.
func (i *input) add(data []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.bytes)+i.taking+len(data) > shell.Window {
		return errors.New("the client sends more than it may")
	}
	if i.ended && len(data) > 0 {
		return errors.New("the client sends input after its end")
	}
	i.bytes = append(i.bytes, data...)
	i.ended = i.ended || len(data) == 0
	i.more.Signal()
	return nil
}

// next waits for data; none are their end.
func (i *input) next(into []byte) (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.bytes) == 0 && !i.ended && !i.stopped {
		i.more.Wait()
	}
	if i.stopped {
		return 0
	}
	n = copy(into, i.bytes)
	i.bytes = append(i.bytes[:0], i.bytes[n:]...)
	i.taking = n
	return n
}

// took says that the program has what the last next returned.
func (i *input) took() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.taking = 0
}

func (i *input) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stopped = true
	i.more.Signal()
}

// feed gives the program its input. One that wants no more gets none, and its client may go on.
func (i *input) feed(x *session, out *shell.Writer) {
	buffer := make([]byte, shell.MaxData)
	var to io.Writer = x.in
	if x.in == nil {
		to = io.Discard
	}
	for {
		n := i.next(buffer)
		if n == 0 {
			break
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			to = io.Discard
		}
		i.took()
		if out.Taken(n) != nil {
			return
		}
	}
	switch {
	case x.tty != nil:
		_, _ = to.Write([]byte{endOfInput}) // it may have ended
	case x.in != nil:
		x.in.Close()
	}
}
