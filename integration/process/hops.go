package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Hops runs commands of the program against one cluster.
type Hops struct {
	T testing.TB
	// Conf is HADOOP_CONF_DIR; empty: there is none.
	Conf string
	// Env is added to the environment, which has no settings of the machine's user.
	Env []string
	// Timeout of one command, which bounds one that hangs; default twice Patience.
	Timeout time.Duration
}

// Result is what a command did.
type Result struct {
	Stdout, Stderr string
	Status         int
}

// Environ is the environment of a command: this process's without what would lead to another cluster.
func Environ(t testing.TB, conf string, more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "HADOOP_") || strings.HasPrefix(e, "HOPS_") || strings.HasPrefix(e, "XDG_") {
			continue
		}
		env = append(env, e)
	}
	env = append(env, "XDG_CACHE_HOME="+t.TempDir(), "TZ=UTC")
	if conf != "" {
		env = append(env, "HADOOP_CONF_DIR="+conf)
	}
	return append(env, more...)
}

// Run runs one command and returns what it did.
func (h Hops) Run(args ...string) Result { return h.Input("", args...) }

// Input is Run with standard input.
func (h Hops) Input(stdin string, args ...string) Result {
	h.T.Helper()
	timeout := h.Timeout
	if timeout == 0 {
		timeout = 2 * Patience
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(h.T), args...)
	cmd.Env = Environ(h.T, h.Conf, h.Env...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	r := Result{Stdout: stdout.String(), Stderr: stderr.String(), Status: cmd.ProcessState.ExitCode()}
	if ctx.Err() != nil {
		h.T.Fatalf("hops %s: no end within %v\n%s%s", strings.Join(args, " "), timeout, r.Stdout, r.Stderr)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.T.Fatalf("hops %s: %v", strings.Join(args, " "), err)
	}
	return r
}

// OK runs a command that must end with status 0, and returns its standard output.
func (h Hops) OK(args ...string) string {
	h.T.Helper()
	r := h.Run(args...)
	if r.Status != 0 {
		h.T.Fatalf("hops %s: status %d\n%s%s", strings.Join(args, " "), r.Status, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Fails runs a command that must end with a status and an error that has all the words.
func (h Hops) Fails(status int, words []string, args ...string) Result {
	h.T.Helper()
	r := h.Run(args...)
	r.Says(h.T, status, words...)
	return r
}

// Says checks a failed command: its status, and an error of few lines that has all the words.
func (r Result) Says(t testing.TB, status int, words ...string) {
	t.Helper()
	if r.Status != status {
		t.Errorf("status %d, want %d\n%s%s", r.Status, status, r.Stdout, r.Stderr)
	}
	for _, w := range words {
		if !strings.Contains(r.Stderr, w) {
			t.Errorf("the error does not say %q:\n%s", w, r.Stderr)
		}
	}
	if strings.Contains(r.Stderr, "goroutine ") || strings.Contains(r.Stderr, "panic:") {
		t.Errorf("a panic:\n%s", r.Stderr)
	}
	if n := strings.Count(strings.TrimSpace(r.Stderr), "\n"); n > 5 {
		t.Errorf("the error has %d lines:\n%s", n+1, r.Stderr)
	}
}
