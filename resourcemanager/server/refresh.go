package server

import (
	"context"
	"strings"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
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
