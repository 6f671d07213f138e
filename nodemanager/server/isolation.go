package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// Isolation says what becomes of containers, which run under the servers' user id, where they could read the servers' files.
type Isolation string

// The policies.
const (
	// IsolationAuto hides the servers' files from containers. Where the kernel refuses that, only containers of the servers'
	// own user run, who may read them anyway.
	IsolationAuto Isolation = "auto"
	// IsolationAny hides them where the kernel lets us, and runs everybody's containers in any case.
	IsolationAny Isolation = "any"
	// IsolationOff hides nothing and runs everybody's containers.
	IsolationOff Isolation = "off"
)

// findIsolation finds out whether the kernel isolates.
func (s *Server) findIsolation(ctx context.Context) {
	if s.config.Isolation == IsolationOff {
		s.exposed = "configured (isolation: off)"
		return
	}
	err := supervisor.TryIsolation(ctx, s.config.Supervisor, s.store.Dir())
	for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // a slow machine says nothing of its kernel
		s.log.Warn("it is not known yet whether containers can be isolated, trying again", "error", err)
		err = supervisor.TryIsolation(ctx, s.config.Supervisor, s.store.Dir())
	}
	if err != nil {
		s.exposed = err.Error()
		s.log.Warn("containers are not isolated from the files of the servers", "error", err, "policy", s.config.Isolation)
	}
}

// isolation of one container; nil: there is none.
func (s *Server) isolation(dir string) *supervisor.Isolation {
	if s.exposed != "" {
		return nil
	}
	return &supervisor.Isolation{
		Hide: append([]string{s.store.Dir()}, s.config.Hidden...),
		Show: append([]string{dir}, s.config.Shown...),
	}
}

// checkIsolation refuses a container that could read what is not its user's.
func (s *Server) checkIsolation(user nodemanager.User) error {
	own := s.config.Door.Daemon()
	if s.exposed == "" || s.config.Isolation != IsolationAuto || string(user) == own {
		return nil
	}
	return fmt.Errorf("containers of %s could read the secret of the cluster on this node, where only those of %s run: %s "+
		"(nodemanager.isolation in docs/reference/configuration.md)", user, own, s.exposed)
}

// isolationNote is for the health report.
func (s *Server) isolationNote() string {
	switch {
	case s.exposed == "":
		return ""
	case s.config.Isolation == IsolationAuto:
		return fmt.Sprintf("containers are not isolated from the servers' files, so only those of %s run here: %s", s.config.Door.Daemon(), s.exposed)
	}
	return "containers are not isolated from the servers' files and can read the cluster's secret: " + s.exposed
}
