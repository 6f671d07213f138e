package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/durable"
	"github.com/gohops/hops/nodemanager/shell"
)

// ErrGone means that no supervisor answers: it has ended (ReadExit tells how) or was killed (Alive is false and there is
// no exit).
var ErrGone = errors.New("the supervisor is gone")

// Client speaks to the supervisor of one container directory. It connects when needed and is safe for concurrent use.
type Client struct {
	dir string

	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader

	peerMu sync.Mutex
	peer   process // the supervisor that was spoken to last
}

// NewClient makes a client for the supervisor that lives, or will live, in dir.
func NewClient(dir string) *Client { return &Client{dir: dir} }

// Close drops the connection; the supervisor goes on.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropLocked()
}

func (c *Client) dropLocked() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn, c.in = nil, nil
	return err
}

// dial connects through a descriptor of the directory, because a socket's name must stay below 108 bytes.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	dir, err := os.Open(c.dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	defer dir.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(dir.Fd()))+"/"+socketFile)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	if p, ok := readProcess(peerOf(conn)); ok {
		c.peerMu.Lock()
		c.peer = p
		c.peerMu.Unlock()
	}
	return conn, nil
}

// Supervisor is the process id of the supervisor that was spoken to last; 0: of none.
func (c *Client) Supervisor() int {
	c.peerMu.Lock()
	defer c.peerMu.Unlock()
	return c.peer.pid
}

// Find is Supervisor, and looks who is there where none was spoken to yet.
func (c *Client) Find(ctx context.Context) int {
	if pid := c.Supervisor(); pid != 0 {
		return pid
	}
	if conn, err := c.dial(ctx); err == nil {
		conn.Close()
	}
	return c.Supervisor()
}

// AwaitEnd waits until the process of the supervisor that was spoken to last is over. The first process of a namespace
// lets go of its files, and with them of its lock, before the others of the namespace are gone, but is over only after them.
func (c *Client) AwaitEnd(ctx context.Context) error {
	c.peerMu.Lock()
	p := c.peer
	c.peerMu.Unlock()
	for {
		now, ok := readProcess(p.pid)
		if p.pid == 0 || !ok || now.start != p.start {
			return nil
		}
		// Of a process with several threads the first may be a zombie while another one still ends the namespace.
		if threads, err := os.ReadDir("/proc/" + strconv.Itoa(p.pid) + "/task"); now.zombie && (err != nil || len(threads) <= 1) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("supervisor %d does not end: %w", p.pid, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// call sends one request on the kept connection, once more on a fresh one when the kept one turns out to be dead.
func (c *Client) call(ctx context.Context, r request) (*Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.conn != nil
	a, err := c.tryLocked(ctx, r)
	if err != nil && kept && ctx.Err() == nil {
		a, err = c.tryLocked(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	if st := a.Status; st != nil && st.Supervisor == 1 { // as it counts in its own namespace
		if st.Supervisor = peerOf(c.conn); st.Supervisor <= 1 {
			return nil, fmt.Errorf("%w: its process is not there", ErrGone)
		}
		if len(st.Stuck) > 0 {
			st.Stuck = outside(st.Supervisor, st.Stuck)
		}
	}
	return a.Status, nil
}

func (c *Client) tryLocked(ctx context.Context, r request) (a answer, err error) {
	defer func() {
		if err != nil {
			c.dropLocked()
		}
	}()
	if c.conn == nil {
		conn, err := c.dial(ctx)
		if err != nil {
			return a, err
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
	}
	conn := c.conn
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(c.conn).Encode(r); err != nil {
		return a, gone(ctx, err)
	}
	if a, err = readAnswer(c.in); err != nil {
		return a, gone(ctx, err)
	}
	return a, nil
}

// peerOf is the process at the other end of a connection, as we count.
func peerOf(conn net.Conn) (pid int) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

func gone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

func readAnswer(in *bufio.Reader) (a answer, err error) {
	line, err := readLine(in)
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > maxLine {
			return nil, err
		}
	}
}

// Status asks how the container does.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return c.call(ctx, request{Op: "status"})
}

// Renew moves the deadlines of the lease.
func (c *Client) Renew(ctx context.Context, l Lease) (*Status, error) {
	return c.call(ctx, request{Op: "renew", Lease: &l})
}

// Share says how many containers have Launch.SharedDir in common now.
func (c *Client) Share(ctx context.Context, sharers int) error {
	_, err := c.call(ctx, request{Op: "share", Share: sharers})
	return err
}

// Signal sends a signal to the command's process group.
func (c *Client) Signal(ctx context.Context, sig int) error {
	_, err := c.call(ctx, request{Op: "signal", Signal: sig})
	return err
}

// Refresh puts other credentials in the place of those that the container has.
func (c *Client) Refresh(ctx context.Context, tokens []byte) error {
	_, err := c.call(ctx, request{Op: "refresh", Tokens: tokens})
	return err
}

// Stop asks for the end: SIGTERM to the tree, SIGKILL after the grace. It returns at once; Wait tells when it is over.
func (c *Client) Stop(ctx context.Context, r StopRequest) error {
	_, err := c.call(ctx, request{Op: "stop", Stop: &r})
	return err
}

// Wait blocks until the container has ended. ErrGone: the supervisor went away without answering; ReadExit may still know.
func (c *Client) Wait(ctx context.Context) (*Exit, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(request{Op: "wait"}); err != nil {
		return nil, gone(ctx, err)
	}
	a, err := readAnswer(bufio.NewReader(conn))
	if err != nil {
		return nil, gone(ctx, err)
	}
	if a.Exit == nil {
		return nil, fmt.Errorf("supervisor: %s", a.Error)
	}
	return a.Exit, nil
}

// Exec begins a session in the container: a program beside its own, with the same rights and limits. What comes and goes over the
// connection from then on are the session's frames. An error of another kind than ErrGone says why the supervisor begins none.
func (c *Client) Exec(ctx context.Context, r shell.Request) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	in := bufio.NewReader(conn)
	err = json.NewEncoder(conn).Encode(request{Op: "exec", Exec: &r})
	var a answer
	if err == nil {
		a, err = readAnswer(in)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, gone(ctx, err)
	}
	if a.Error != "" {
		conn.Close()
		return nil, errors.New(a.Error)
	}
	return &begun{conn, in}, nil
}

// begun is a connection of which something may be read already.
type begun struct {
	net.Conn
	in *bufio.Reader
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) { return b.in.Read(p) }

// Started is what Start found out.
type Started struct {
	// Main is the command's process id.
	Main int
	// Exit is set when the command could not be started: the container has ended.
	Exit *Exit
	// Degraded says which limits a control group does not enforce, and why; empty when it enforces all.
	Degraded string
}

// Start writes launch.json into dir and runs a supervisor there: argv with dir appended, in a session of its own, with the
// environment env. It returns once the command runs or has failed to.
//
// The lock of the directory is taken here and handed over, so that there is no moment in which a restarted node manager
// could find the directory free while a supervisor is on its way.
//
// handed is handed over in memory.
func Start(ctx context.Context, argv, env []string, dir string, launch Launch, handed Handed) (Started, error) {
	if err := durable.ReplaceJSON(filepath.Join(dir, launchFile), launch, 0o600); err != nil {
		return Started{}, err
	}
	lock, err := acquire(dir)
	for end := time.Now().Add(lookTime); errors.Is(err, errLocked) && time.Now().Before(end) && ctx.Err() == nil; lock, err = acquire(dir) {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		return Started{}, err
	}
	defer lock.Close()
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return Started{}, err
	}
	defer log.Close()
	ready, child, err := os.Pipe()
	if err != nil {
		return Started{}, err
	}
	defer ready.Close()
	defer child.Close()
	cmd := exec.Command(argv[0], append(append([]string(nil), argv[1:]...), dir)...)
	cmd.Env, cmd.Dir = env, dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock, child}
	if launch.SecretsDir != "" || launch.CredentialsDir != "" {
		text, err := json.Marshal(handed)
		if err != nil {
			return Started{}, err
		}
		f, err := inMemory("secrets", text)
		if err != nil {
			return Started{}, err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if launch.Isolation != nil {
		launch.Isolation.attributes(cmd.SysProcAttr, true)
	}
	if err := cmd.Start(); err != nil {
		return Started{}, fmt.Errorf("start supervisor: %w", err)
	}
	if launch.Isolation != nil && launch.Isolation.Private != nil {
		if err := launch.writePID(dir, cmd.Process.Pid); err != nil { // it is for people, and its disk is the container's
			fmt.Fprintf(log, "process %d: %v\n", cmd.Process.Pid, err)
		}
	}
	go cmd.Wait() // collects the process when its time comes
	child.Close()
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var s started
	if err := json.NewDecoder(io.LimitReader(ready, maxLine)).Decode(&s); err != nil {
		if ctx.Err() != nil {
			return Started{}, ctx.Err()
		}
		return Started{}, fmt.Errorf("supervisor said nothing (see %s): %w", log.Name(), err)
	}
	if s.Error != "" {
		return Started{}, fmt.Errorf("supervisor: %s", s.Error)
	}
	return Started{Main: s.Main, Exit: s.Exit, Degraded: s.Degraded}, nil
}

// Mark is the environment entry by which processes of a container are recognised when their supervisor was killed: its
// value is the work directory, which no other container of any node has.
func Mark(workDir string) string { return "HOPS_WORK_DIR=" + workDir }

// KillStray ends the processes of a container whose supervisor is gone: those in its control group, those that carry
// mark in their environment, and the descendants of either. It returns when none is left or ctx is done.
func KillStray(ctx context.Context, group cgroup.Group, mark string) error {
	// A process that is exiting has no environment any more while it still holds its files, and with them its GPU: one
	// that was found once counts until it is gone.
	seen := map[process]bool{}
	list := func() []process {
		all := marked(mark)
		for p := range seen {
			if now, ok := readProcess(p.pid); ok && now.start == p.start && !now.zombie {
				all = append(all, now)
			}
		}
		for _, pid := range group.Procs() {
			if p, ok := readProcess(pid); ok && !p.zombie {
				all = append(all, p)
			}
		}
		for _, p := range all[:len(all):len(all)] {
			all = append(all, descendants(p.pid)...)
		}
		for _, p := range all {
			seen[process{pid: p.pid, start: p.start}] = true
		}
		return all
	}
	for {
		_ = group.Kill()
		left := killAll(list)
		if len(left) == 0 {
			return group.Remove()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d of the container does not end: %w", left[0].pid, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
