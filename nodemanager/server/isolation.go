package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// Isolation says under which user id containers run, and so whether one can become somebody else.
type Isolation string

// The policies.
const (
	// IsolationAuto runs each container as its user, which a node manager can that is root; another one runs those of its own
	// user only. What the kernel offers is used: namespaces, a private /dev, a filter of system calls.
	IsolationAuto Isolation = "auto"
	// IsolationAny runs everybody's containers under the servers' user id. The servers' files are hidden from them where the
	// kernel lets us. It is for one person, or a group in which everybody may be everybody.
	IsolationAny Isolation = "any"
	// IsolationOff is IsolationAny with nothing hidden.
	IsolationOff Isolation = "off"
)

// protection is what this machine offers. Set before anything runs.
type protection struct {
	// users: containers run as their users, and not all as ours.
	users bool
	// exposed says why containers that run as ourselves see the servers' files; empty: they do not.
	exposed string
	// shared says why containers of users have no processes, /tmp and /dev of their own; empty: they have.
	shared string
	// unreachable says why users cannot come to their containers' directories; empty: they can.
	unreachable string
}

// umask and openFiles are those of users' containers; YARN has the same umask.
const (
	umask     = 0o027
	openFiles = 65536
)

// findIsolation finds out what the kernel lets us do.
func (s *Server) findIsolation(ctx context.Context) {
	p := &s.protection
	p.users = s.config.Isolation == IsolationAuto && os.Geteuid() == 0
	if s.config.Isolation == IsolationOff {
		p.exposed = "configured (isolation: off)"
		return
	}
	try := func(attempt func(context.Context, []string, string) error) string {
		err := attempt(ctx, s.config.Supervisor, s.store.Dir())
		for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // a slow machine says nothing of its kernel
			s.log.Warn("it is not known yet whether containers can be isolated, trying again", "error", err)
			err = attempt(ctx, s.config.Supervisor, s.store.Dir())
		}
		if err != nil {
			s.log.Warn("containers are not isolated", "error", err, "policy", s.config.Isolation)
			return err.Error()
		}
		return ""
	}
	p.exposed = try(supervisor.TryIsolation)
	if p.users {
		p.shared = try(supervisor.TryPrivate)
		p.unreachable = unreachable(s.store.Dir())
	}
}

// unreachable names the directory on the way to dir that not everybody may search.
func unreachable(dir string) string {
	for {
		info, err := os.Stat(dir)
		if err != nil {
			return err.Error()
		}
		if info.Mode()&0o001 == 0 {
			return fmt.Sprintf("users cannot reach their containers, because %s has mode %04o: chmod o+x %s", dir, info.Mode().Perm(), dir)
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
		dir = filepath.Dir(dir)
	}
}

// accountOf is the account under which a user's containers run here; nil: our own. An error says why there is none.
func (s *Server) accountOf(ctx context.Context, user nodemanager.User) (*account.Account, error) {
	if s.config.Isolation != IsolationAuto {
		return nil, nil
	}
	if own := s.config.Door.Daemon(); string(user) == own {
		if s.config.Accounts.Banned != nil { // somebody has decided
			return nil, s.config.Accounts.Forbids(own)
		}
		return nil, nil
	}
	switch {
	case !s.protection.users:
		return nil, fmt.Errorf("this node manager runs as %s and not as root, so it runs containers of %[1]s only: start it as root for those of %s "+
			"(nodemanager.isolation in docs/reference/configuration.md)", s.config.Door.Daemon(), user)
	case s.protection.unreachable != "":
		return nil, errors.New(s.protection.unreachable)
	}
	if err := s.config.Accounts.Forbids(string(user)); err != nil {
		return nil, err
	}
	a, err := s.config.FindAccount(ctx, string(user))
	if errors.Is(err, account.ErrUnknown) {
		return nil, fmt.Errorf("%w on node %s: containers run as their users, so each user needs an account on each node", err, s.config.Host)
	}
	if err != nil {
		return nil, err
	}
	return a, s.config.Accounts.Check(a)
}

// isolate completes a launch with what keeps the container to itself.
func (c *container) isolate(l *supervisor.Launch, spec *nodemanager.Spec, granted []nodemanager.GPU) error {
	s, dir, a := c.server, c.dir, c.account
	var trees []string
	for _, tree := range c.trees {
		trees = append(trees, s.localizer.Tree(tree))
	}
	if s.config.Isolation == IsolationAuto {
		l.Confinement = &supervisor.Confinement{Umask: -1, Files: openFiles}
	}
	hide, show := append([]string{s.store.Dir()}, s.config.Hidden...), append([]string{dir}, s.config.Shown...)
	if shared := c.appDir(spec); shared != "" {
		show = append(show, shared)
	}
	if a == nil {
		if s.protection.exposed == "" {
			l.Isolation = &supervisor.Isolation{Hide: hide, Show: show, ShowReadOnly: trees}
		}
		return nil
	}
	l.Account, l.Confinement.Umask = a, umask
	files, err := gpu.Files(granted)
	if err != nil {
		return err
	}
	if s.protection.shared == "" {
		l.Isolation = &supervisor.Isolation{Hide: hide, Show: show, ShowReadOnly: trees, Private: &supervisor.Private{
			Tmp: filepath.Join(dir, "tmp"), Devices: files, Shared: l.Limits.Memory,
		}}
	}
	if s.groups.Report().Devices {
		l.Limits.Devices = cgroup.Everyday()
		for _, file := range files {
			d, err := cgroup.DeviceOf(file)
			if err != nil {
				return err
			}
			l.Limits.Devices = append(l.Limits.Devices, d)
		}
	}
	return nil
}

// isolationNote is for the health report: what is not enforced, or who does not run here.
func (s *Server) isolationNote() string {
	own, p := s.config.Door.Daemon(), &s.protection
	exposed := ""
	if p.exposed != "" {
		exposed = ", not isolated from the servers' files: " + p.exposed
	}
	switch {
	case s.config.Isolation != IsolationAuto && exposed != "":
		return fmt.Sprintf("containers of all users run as %s%s, and can read the cluster's secret", own, exposed)
	case s.config.Isolation != IsolationAuto:
		return fmt.Sprintf("containers of all users run as %s (isolation: %s)", own, s.config.Isolation)
	case !p.users:
		return fmt.Sprintf("only containers of %s run here, because the node manager does not run as root%s", own, exposed)
	case p.unreachable != "":
		return fmt.Sprintf("only containers of %s run here: %s", own, p.unreachable)
	case p.shared != "":
		return "containers run as their users, but see the machine's processes, /tmp and /dev: " + p.shared
	}
	return ""
}

// gpuNote says how containers are kept from devices that they were not granted, if it is not by all means.
func (s *Server) gpuNote() string {
	p := &s.protection
	switch {
	case p.users && p.shared == "" && s.groups.Report().Devices:
		return ""
	case p.users && p.shared == "":
		return "GPU isolation: private /dev only (" + s.groups.Report().NoDevices + ")"
	case p.users && s.groups.Report().Devices:
		return "GPU isolation: control group only"
	}
	return "GPU isolation: environment only (CUDA_VISIBLE_DEVICES)"
}
