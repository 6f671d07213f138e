package server

import (
	"context"
	"fmt"
	"time"

	"github.com/gohops/hops/internal/pace"
)

// levelEvery is how often a member looks whether the cluster has been raised.
const levelEvery = time.Second

// heedLevel notes in the group's directory to which level the cluster has been raised, as far as this machine has heard: the resource managers have
// no level of their own. What is proposed goes by the group's.
func (s *Server) heedLevel(ctx context.Context) error {
	tick := pace.NewBeat(s.config.levelEvery)
	defer tick.Stop()
	for {
		g := s.group.Load()
		if level := s.config.Credentials.Member.Level(); level > g.Level() {
			if err := g.Raise(level); err != nil {
				return fmt.Errorf("the cluster has been raised to level %d, which cannot be noted: %w", level, err)
			}
			s.log.Info("the cluster has been raised", "level", level)
		}
		s.installQueues(ctx)
		s.clock.now() // who does not lead sees its clock being set, too: it may lead later
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			tick.Next()
		}
	}
}
