package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/durable"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// prepare localizes and launches. The end of the node manager cuts it short: the next one localizes anew.
func (c *container) prepare(work context.Context) nodemanager.Action {
	if c.isStopped() {
		return c.complete(nil)
	}
	ctx, cancel := context.WithCancel(work)
	defer cancel()
	go func() {
		select {
		case <-c.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	r, _, _ := c.view()
	c.disk = c.server.diskLimit() // before its inputs are on the disk, because they count
	err := c.admit(ctx, &r.Spec)
	if err == nil {
		err = c.localize(ctx, &r.Spec)
	}
	if err == nil {
		err = c.collect(ctx, &r.Spec)
	}
	if c.isStopped() {
		return c.complete(nil)
	}
	if work.Err() != nil {
		return nodemanager.Nothing
	}
	if err != nil {
		status, what := nodemanager.Invalid, "could not be localized"
		if passes(err) {
			status = nodemanager.NoFilesystem
		}
		if _, refused := errors.AsType[*refusal](err); refused {
			what = "was refused"
		}
		return c.complete(&state.Exit{Status: status, Diagnostics: fmt.Sprintf("Container %s %s: %v", c.id, what, err)})
	}
	launch, err := c.launch(&r.Spec)
	if err == nil && len(c.trees) > 0 {
		err = durable.ReplaceJSON(filepath.Join(c.dir, treesFile), c.trees, 0o600)
	}
	if err != nil {
		return c.complete(&state.Exit{Status: nodemanager.Invalid, Diagnostics: fmt.Sprintf("Container %s could not be launched: %v", c.id, err)})
	}
	if !c.awaitLease(ctx) {
		if c.isStopped() {
			return c.complete(nil)
		}
		return nodemanager.Nothing
	}
	// From here on a supervisor may exist, so a stop goes through it; only the end of the process cuts this short.
	started, err := supervisor.Start(work, c.server.config.Supervisor, supervisorEnvironment(), c.dir, launch, c.handed)
	c.handed = supervisor.Handed{}
	switch {
	case work.Err() != nil:
		return nodemanager.Nothing
	case err != nil:
		return c.lostStart(work, err)
	case started.Exit != nil:
		return c.finish(started.Exit)
	}
	if started.Degraded != "" {
		c.log.Warn("limits are not enforced by a control group", "reason", started.Degraded)
	}
	return c.move(nodemanager.Launched, func(r *state.Record) { r.Started, r.Degraded = time.Now().UnixMilli(), started.Degraded })
}

// awaitLease waits until the node holds a lease, which it may have lost during a long localization, or not have yet after
// a restart. Nothing is ever started without one.
func (c *container) awaitLease(ctx context.Context) bool {
	for {
		_, moved := c.server.watchLease()
		if c.server.leaseHolds() {
			return true
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}

// refusal is why a user has no containers here.
type refusal struct{ error }

// admit finds the account of the container's user and lets it come through the container's directory, which stays ours: nobody
// else can put anything in place of a file or a directory in it.
func (c *container) admit(ctx context.Context, spec *nodemanager.Spec) error {
	a, err := c.server.accountOf(ctx, spec.User)
	if err != nil {
		return &refusal{err}
	}
	if c.account = a; a == nil {
		return nil
	}
	return errors.Join(os.Chown(c.dir, -1, int(a.GID)), os.Chmod(c.dir, 0o710))
}

// put writes a file of the container's directory that only the container's user can read.
func (c *container) put(name string, data []byte) error {
	file := filepath.Join(c.dir, name)
	if c.account == nil {
		return durable.ReplaceFile(file, data, 0o600)
	}
	return c.place(file, data, 0o400, int(c.account.UID), int(c.account.GID))
}

// place puts a file into the container's directory that has its mode and its owner when it is there. Negative ids: ours.
func (c *container) place(file string, data []byte, mode fs.FileMode, uid, gid int) error {
	next := file + ".next"
	err := durable.ReplaceFile(next, data, 0o600)
	if err == nil {
		err = errors.Join(os.Chmod(next, mode), os.Chown(next, uid, gid))
	}
	if err == nil {
		err = os.Rename(next, file)
	}
	if err != nil {
		os.Remove(next)
	}
	return err
}

// tellAuthorities writes by which authorities' certificates the container knows the cluster's servers.
func (c *container) tellAuthorities() error {
	c.telling.Lock()
	defer c.telling.Unlock()
	return c.put(authorityFile, c.authorities())
}

// authorityFile is in a container's directory.
const authorityFile = "authority.pem"

func (c *container) authorities() []byte {
	return authority.MarshalRoots(c.server.config.Credentials.Member.Roots())
}

// tellAuthoritiesAgain writes them anew for a container that has been told, whoever it runs as: an adopted one has no account that is known
// here.
func (c *container) tellAuthoritiesAgain() error {
	c.telling.Lock()
	defer c.telling.Unlock()
	file := filepath.Join(c.dir, authorityFile)
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has no use for them, or is told when it starts
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner is not known", file)
	}
	return c.place(file, c.authorities(), info.Mode().Perm(), int(owner.Uid), int(owner.Gid))
}

func (c *container) launch(spec *nodemanager.Spec) (supervisor.Launch, error) {
	simulated := false
	var granted []nodemanager.GPU
	for _, d := range c.server.devices.current() {
		if slices.Contains(spec.Resources.GPUs, d.UUID) {
			granted = append(granted, d)
			simulated = simulated || d.Simulated
		}
	}
	limits := cgroup.Limits{Memory: spec.Resources.Memory, VCores: spec.Resources.VCores, Pids: c.server.config.Pids, HardCPU: c.server.config.HardCPU}
	if c.server.config.GPUCores {
		limits.CPUs = gpu.Cores(granted)
	}
	logs := filepath.Join(c.dir, "logs")
	argv, env := spec.Argv, c.server.environment(spec, c, simulated)
	if spec.Dialect == nodemanager.YARN {
		own := map[string]string{}
		for _, name := range ownVariables {
			if value, ok := env[name]; ok {
				own[name] = value
			}
		}
		text, err := script(spec, own, c.dir)
		if err == nil {
			err = c.put(scriptFile, []byte(text))
		}
		if err != nil {
			return supervisor.Launch{}, err
		}
		argv = []string{"/bin/bash", filepath.Join(c.dir, scriptFile)}
	}
	l := supervisor.Launch{
		Container: c.id, Argv: argv, Env: pairs(env),
		Dir: filepath.Join(c.dir, "work"), Stdout: filepath.Join(logs, "stdout"), Stderr: filepath.Join(logs, "stderr"),
		Grace: cmp.Or(spec.Grace, c.server.config.Grace), LogDir: logs, LogLimit: c.server.config.LogLimit, LogRate: c.server.config.LogRate,
		DiskDirs: []string{filepath.Join(c.dir, "work"), filepath.Join(c.dir, "tmp")}, DiskLimit: c.disk - c.server.localizer.Size(c.trees), Poll: c.server.config.Poll,
		Limits: limits,
		Group:  c.server.groups.Group(string(c.id)),
		Lease:  c.leaseOf(spec, c.server.currentLease()),
	}
	if c.server.config.LogKeep < l.LogLimit {
		l.Rolled, l.LogKeep = c.server.config.LogRolled, c.server.config.LogKeep
	}
	if shared := c.appDir(spec); shared != "" {
		l.SharedDir, l.Sharers = shared, c.sharers()
		c.sharing = l.Sharers
	}
	if len(c.handed.Secrets) > 0 {
		l.SecretsDir = c.secretsDir()
	}
	if c.handed.Tokens != nil {
		l.CredentialsDir = c.credentialsDir()
	}
	return l, c.isolate(&l, spec, granted)
}

// leaseOf is what of the node's lease a container lives by.
func (c *container) leaseOf(spec *nodemanager.Spec, lease supervisor.Lease) supervisor.Lease {
	if !spec.Strict {
		return supervisor.Lease{}
	}
	return lease
}
