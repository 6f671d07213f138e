package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
)

// process is a server that runs beside the suite. It ends with the suite, however that ends.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// start runs a program in a process group of its own, its output in dir/NAME.log.
func start(name, dir string, env []string, argv ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Dir = dir
	if err := spawn(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// spawn starts a program as a child that ends with the suite. The end of its context, if it has one, ends what it has
// started too.
func spawn(cmd *exec.Cmd) error {
	if cmd.Cancel != nil {
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = 2 * time.Second
	}
	return processes.Spawn(cmd, syscall.SIGKILL)
}

// output runs a program to its end and returns what it wrote to standard output.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := spawn(cmd); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	return out.Bytes(), err
}

// stop ends the process: asked first, and after ten seconds not any more.
func (p *process) stop() {
	select {
	case <-p.done:
		return
	default:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// ended says how a process ended that should not have, or nil.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended by itself (%w); -keep keeps its log, which ends so:\n%s", p.name, p.err, lastLines(p.log, 8))
	default:
		return nil
	}
}

func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// freePorts finds n free ports of loopback, for servers to take. They lie below those that the kernel gives to outgoing
// connections, which would take one between now and the start of a slow server.
func freePorts(n int) ([]string, error) {
	const first, end = 12000, 32000
	var out []string
	var open []net.Listener
	defer func() {
		for _, l := range open {
			l.Close()
		}
	}()
	var last error
	for range 50 * n {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(end-first))))
		if err != nil {
			last = err
			continue
		}
		open = append(open, l)
		if out = append(out, l.Addr().String()); len(out) == n {
			return out, nil
		}
	}
	return nil, fmt.Errorf("no free ports from %d to %d on loopback: %w", first, end, last)
}

// taken deals out addresses one by one.
func taken(addrs []string) func() string {
	return func() string {
		a := addrs[0]
		addrs = addrs[1:]
		return a
	}
}

// tool runs a program to its end, or to an interrupt. Its error carries the last lines of what it printed.
func tool(dir string, env []string, argv ...string) (string, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := spawn(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		exit := new(exec.ExitError)
		if errors.As(err, &exit) && out.Len() > 0 {
			return out.String(), fmt.Errorf("%s: %w\n%s", filepath.Base(argv[0]), err, strings.Join(lines[max(0, len(lines)-12):], "\n"))
		}
		return out.String(), fmt.Errorf("%s: %w", filepath.Base(argv[0]), err)
	}
	return out.String(), nil
}
