package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/authority"
)

// joining is a file beside hops.yaml while the groups of this machine's servers have not taken them: somebody has to ask them.
const joining = "joining"

// child is a server that was begun.
type child struct {
	role  authority.Role
	cmd   *exec.Cmd
	ended chan struct{}
}

// member reports whether the servers of this machine are to be run, and it has got into its cluster before.
func (m *machineSetup) member() bool {
	_, err := os.Stat(m.file("hops.yaml"))
	return m.run && err == nil
}

// again runs the servers of a machine that is in its cluster. One that died before the groups of its servers had taken them is taken now.
func (m *machineSetup) again(ctx context.Context) error {
	m.failed = make(chan error, len(m.roles))
	_, err := os.Stat(m.file(joining))
	late := err == nil
	if late {
		if err := m.know(); err != nil {
			return err
		}
		if m.has(authority.ResourceManager) && m.alone(authority.ResourceManager) {
			if err := m.foundManagers(); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	for _, r := range startOrder {
		if !m.has(r) {
			continue
		}
		if err := m.spawn(r); err != nil {
			return errors.Join(err, m.end())
		}
	}
	if late {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		enlisted := make(chan error, 1)
		go func() { enlisted <- m.enlistAll(ctx) }()
		select {
		case err := <-enlisted:
			if err != nil && ctx.Err() == nil {
				return errors.Join(err, m.end())
			}
		case err := <-m.failed:
			return errors.Join(err, m.end())
		}
	}
	return m.stay(ctx)
}

// enlistAll has the groups of this machine's servers take them.
func (m *machineSetup) enlistAll(ctx context.Context) error {
	for _, r := range startOrder {
		if m.has(r) && !m.alone(r) {
			if err := m.enlist(ctx, r); err != nil {
				return err
			}
		}
	}
	return m.enlisted()
}

// enlisted notes that the groups of this machine's servers have taken them.
func (m *machineSetup) enlisted() error {
	if err := os.Remove(m.file(joining)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// stay waits until a server ends, or ctx, and ends the servers.
func (m *machineSetup) stay(ctx context.Context) error {
	select {
	case err := <-m.failed:
		return errors.Join(err, m.end())
	case <-ctx.Done():
		return m.end()
	}
}

// endTime is how long a server may take to end.
const endTime = 10 * time.Second

// end ends the servers that run, one after the other, those first that need the others.
func (m *machineSetup) end() error { return m.endWithin(endTime) }

// endWithin kills those that take longer than most.
func (m *machineSetup) endWithin(most time.Duration) error {
	var errs []error
	for _, p := range slices.Backward(m.began) {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		select {
		case <-p.ended:
			continue
		case <-time.After(most):
		}
		errs = append(errs, fmt.Errorf("the %s did not end within %v and was killed", p.role, most))
		if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		<-p.ended
	}
	return errors.Join(errs...)
}
