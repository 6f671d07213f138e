package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
)

// member reports whether the servers of this machine are to be run, and it has got into its cluster before.
func (m *machineSetup) member() bool {
	_, err := os.Stat(m.file("hops.yaml"))
	return m.run && err == nil
}

// again runs the servers of a machine that is in its cluster.
func (m *machineSetup) again(ctx context.Context) error {
	m.failed = make(chan error, len(m.roles))
	for _, r := range startOrder {
		if !m.has(r) {
			continue
		}
		if _, err := m.spawn(r); err != nil {
			return errors.Join(err, m.end())
		}
	}
	return m.stay(ctx)
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

// end ends the servers that run, those first that need the others, and returns when they have ended.
func (m *machineSetup) end() error {
	var errs []error
	for _, cmd := range slices.Backward(m.began) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	m.alive.Wait()
	return errors.Join(errs...)
}
