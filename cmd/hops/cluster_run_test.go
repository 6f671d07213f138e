package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
)

// Servers end one after the other, the last that began first; one that does not is killed.
func TestServersEndInTurn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := &machineSetup{failed: make(chan error, 3)}
	begin := func(r authority.Role, script string) {
		t.Helper()
		up := filepath.Join(dir, string(r))
		cmd := exec.Command("sh", "-c", script+"; : > "+up+"; while :; do sleep 0.01; done")
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := m.begin(r, cmd, func() string { return "" }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(up); err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the %s does not begin", r)
			}
		}
	}
	begin(authority.Namenode, `trap 'test -e gone || exit 7; exit 0' TERM`)
	begin(authority.Datanode, `trap 'sleep 0.05; : > gone; exit 0' TERM`)
	if err := m.endWithin(30 * time.Second); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-m.failed; !strings.Contains(err.Error(), "by itself") {
			t.Errorf("it ended before the one that needs it: %v", err)
		}
	}
	m.began = nil
	begin(authority.NodeManager, `trap '' TERM`)
	if err := m.endWithin(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "the nodemanager did not end within 10ms and was killed") {
		t.Errorf("one that does not end: %v", err)
	}
	if err := <-m.failed; errors.Is(err, os.ErrProcessDone) || !strings.Contains(err.Error(), "killed") {
		t.Error(err)
	}
}
