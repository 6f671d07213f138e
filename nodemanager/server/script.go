package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

// HealthScript is a program that an administrator wrote to say whether the machine is well, as YARN's
// yarn.nodemanager.health-checker.script: it runs as the node manager's user, with its environment.
type HealthScript struct {
	Path string // absolute; empty: there is none
	Args []string
	// Interval lies between its end and its next start, Timeout is how long it may take.
	Interval, Timeout time.Duration
}

// scriptError at the beginning of a line of its output is how a health script says that the machine is not well.
const scriptError = "ERROR"

// maxScriptOutput is how much of what a health script prints is reported, in bytes.
const maxScriptOutput = 2 << 10

// scriptState is what the health script said last.
type scriptState struct {
	mu sync.Mutex
	// problem makes the node unhealthy; note is for people.
	problem, note string
}

func (s *scriptState) said() (problem, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem, s.note
}

func (s *scriptState) set(problem, note string) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.problem != problem || s.note != note
	s.problem, s.note = problem, note
	return changed
}

// runHealthScript runs the health script again and again until ctx is done.
func (s *Server) runHealthScript(ctx context.Context) {
	if s.config.HealthScript.Path == "" {
		return
	}
	for {
		problem, note := s.config.HealthScript.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.script.set(problem, note) {
			s.log.Warn("the health script says something else", "problem", problem, "note", note)
			s.nudge()
		}
		if !sleep(ctx, s.config.HealthScript.Interval) {
			return
		}
	}
}

// run runs the program once. Its verdict is that of YARN's NodeHealthScriptRunner: a line that begins with ERROR, the timeout, and a
// program that cannot be started are problems of the machine. Another status than 0 is taken for a mistake in the script, and one that
// does not exist or is not executable is not run: both are noted only.
func (h HealthScript) run(ctx context.Context) (problem, note string) {
	if info, err := os.Stat(h.Path); err != nil {
		return "", fmt.Sprintf("the health script is not run: %v", err)
	} else if info.IsDir() || unix.Access(h.Path, unix.X_OK) != nil {
		return "", fmt.Sprintf("the health script is not run: %s cannot be executed", h.Path)
	}
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Path, h.Args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out := &scriptOutput{}
	cmd.Stdout = out
	err := cmd.Run()
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Sprintf("Node health script timed out: %s had not ended after %v", h.Path, h.Timeout), ""
	case ended:
		return "", fmt.Sprintf("the health script counts for nothing: it ended with %v", exit)
	case errors.Is(err, exec.ErrWaitDelay): // it has ended, and left somebody behind who holds its output
	case err != nil:
		return fmt.Sprintf("the health script could not be run: %v", err), ""
	}
	return out.problem(), ""
}

// scriptOutput keeps the beginning of what is written, and the first line of an error however late it comes.
type scriptOutput struct {
	head, line, bad []byte
	found           bool
}

func (o *scriptOutput) Write(p []byte) (int, error) {
	o.head = append(o.head, p[:min(len(p), maxScriptOutput-len(o.head))]...)
	for rest := p; len(rest) > 0 && !o.found; {
		part, after, whole := bytes.Cut(rest, []byte("\n"))
		o.line = append(o.line, part[:min(len(part), maxScriptOutput-len(o.line))]...)
		if rest = after; whole {
			o.endLine()
		}
	}
	return len(p), nil
}

func (o *scriptOutput) endLine() {
	if bytes.HasPrefix(o.line, []byte(scriptError)) {
		o.bad, o.found = o.line, true
		o.line = nil
		return
	}
	o.line = o.line[:0]
}

// problem is what the script printed if a line of it says ERROR.
func (o *scriptOutput) problem() string {
	if !o.found {
		o.endLine() // the last line may have no end
	}
	if !o.found {
		return ""
	}
	text := o.head
	if !bytes.Contains(text, o.bad) {
		text = o.bad
	}
	return nodemanager.Shorten(strings.TrimSpace(string(text)), maxScriptOutput)
}
