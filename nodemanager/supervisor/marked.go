package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Process is a living process that was found by its environment. It stays the same one, whoever gets its id later.
type Process struct {
	PID int
	// Env is the environment that it was started with.
	Env   []string
	start uint64
}

// Get is the value of a variable in the process's environment, empty if it has none.
func (p Process) Get(name string) string {
	for _, e := range p.Env {
		if rest, ok := strings.CutPrefix(e, name); ok && strings.HasPrefix(rest, "=") {
			return rest[1:]
		}
	}
	return ""
}

// Lives reports whether the process is still there. One that is exiting, and has no environment any more, is.
func (p Process) Lives() bool {
	now, ok := readProcess(p.PID)
	return ok && now.start == p.start && !now.zombie
}

// Below reports whether the process descends from one of these.
func (p Process) Below(ancestors map[int]bool) bool {
	for pid := p.PID; pid > 1; {
		now, ok := readProcess(pid)
		if !ok {
			return false
		}
		if pid = now.parent; ancestors[pid] {
			return true
		}
	}
	return false
}

// Carrying lists the living processes, except this one, whose environment has a variable; those of other users are not seen.
func Carrying(name string) []Process {
	var found []Process
	for _, pid := range allPids() {
		if pid == os.Getpid() {
			continue
		}
		has := func() (env []byte, ok bool) {
			env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
			return env, err == nil && bytes.Contains(env, []byte(name+"="))
		}
		if _, ok := has(); !ok { // as most of a machine's
			continue
		}
		before, ok := readProcess(pid)
		if !ok || before.zombie {
			continue
		}
		text, ok := has() // of that process
		if !ok {
			continue
		}
		p := Process{PID: pid, Env: strings.Split(string(text), "\x00"), start: before.start}
		if p.Get(name) != "" && p.Lives() {
			found = append(found, p)
		}
	}
	return found
}

// End kills the processes that list finds and their descendants, until it finds none and those once found are gone, or ctx
// is done.
func End(ctx context.Context, list func() []Process) error {
	seen := map[process]bool{}
	all := func() []process {
		for _, p := range list() {
			seen[process{pid: p.PID, start: p.start}] = true
			for _, d := range descendants(p.PID) {
				seen[process{pid: d.pid, start: d.start}] = true
			}
		}
		var left []process
		for p := range seen {
			if now, ok := readProcess(p.pid); ok && now.start == p.start && !now.zombie {
				left = append(left, now)
			}
		}
		return left
	}
	for {
		left := killAll(all)
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end: %w", left[0].pid, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
