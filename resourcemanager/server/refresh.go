package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// configured reads the configuration anew. What is wrong with it is one line.
func (s *Server) configured() (Configured, error) {
	if s.config.Configured == nil {
		return Configured{}, metadata.Errorf(metadata.ErrUnsupported, "resource manager %s runs without a configuration file (hops dev): start it again", s.config.ID)
	}
	now, err := s.config.Configured()
	if err != nil {
		return Configured{}, metadata.Errorf(metadata.ErrInvalidArgument, "resource manager %s: %s", s.config.ID, oneLine(err))
	}
	return now, nil
}

func oneLine(err error) string { return strings.Join(strings.Split(err.Error(), "\n"), "; ") }

// RefreshQueues implements rest.Operator.
func (s *Server) RefreshQueues(ctx context.Context, caller metadata.Caller, check bool) (string, error) {
	now, err := s.configured()
	if err != nil {
		return "", err
	}
	next, err := rm.NewQueues(now.Queues)
	if err != nil {
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "resource manager %s: Failed to re-init queues : %s", s.config.ID, oneLine(err))
	}
	if err := s.homeless(next); err != nil {
		return "", err
	}
	if check {
		return next.Hash(), nil
	}
	s.queues.Store(next) // before it is said, so that this member agrees with it
	if r := s.reign.Load(); r != nil {
		if _, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_SetQueues{SetQueues: &statepb.SetQueues{Epoch: r.epoch, Hash: next.Hash()}}}); err != nil {
			return "", err
		}
	}
	s.log.Info("queues read anew", "hash", next.Hash(), "queues", len(next.All), "by", caller.User)
	return next.Hash(), nil
}

// homeless refuses a tree without a place for an application that lives: a queue goes when it is empty, as in YARN.
func (s *Server) homeless(next *rm.Queues) error {
	missing := map[string]int{}
	for a := range s.state.View().Live() {
		if q := next.Find(a.Queue); !a.State.Final() && (q == nil || !q.Leaf()) {
			missing[a.Queue]++
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var names []string
	for queue, n := range missing {
		names = append(names, fmt.Sprintf("%s (%d)", queue, n))
	}
	slices.Sort(names)
	return metadata.Errorf(metadata.ErrInvalidArgument, "resource manager %s: Failed to re-init queues : there would be no place for the applications of %s: stop the queue, and take it away when they have ended",
		s.config.ID, strings.Join(names, ", "))
}

// RefreshUsers implements rest.Operator.
func (s *Server) RefreshUsers(_ context.Context, caller metadata.Caller, proxies bool) error {
	now, err := s.configured()
	if err != nil {
		return err
	}
	s.config.Door.ChangeRules(func(rules *security.UserRules) {
		if proxies {
			rules.ProxyUsers = now.Users.ProxyUsers
		} else {
			rules.Supergroup = now.Users.Supergroup
		}
	})
	s.log.Info("users' rights read anew", "proxies", proxies, "by", caller.User)
	return nil
}
