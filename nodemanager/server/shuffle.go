package server

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/nodemanager/hadoop"
	"github.com/gohops/hops/nodemanager/shuffle"
	rm "github.com/gohops/hops/resourcemanager"
)

func (s *Server) shufflePort() int {
	_, port, _ := net.SplitHostPort(s.config.Shuffle.Addr().String())
	n, _ := strconv.Atoi(port)
	return n
}

func (s *Server) serveShuffle(ctx context.Context) error {
	if s.shuffled == nil {
		return nil
	}
	handler := &shuffle.Handler{Keys: s.shuffled, Port: s.shufflePort(), Logger: s.log, Root: func(app rm.ApplicationID) (*os.Root, error) {
		return os.OpenRoot(filepath.Join(s.appsDir(), app.String()))
	}}
	return s.config.Door.ServeHTTP(ctx, s.config.Shuffle, security.HTTP{
		// A request is signed, so it does not matter by which name the node is called.
		Doorway: security.Doorway{Name: "node manager shuffle", Descriptors: 3}, Handler: handler, Hosts: func(string) bool { return true }, Logger: s.log,
	})
}

// Service implements hadoop.Node.
func (y *yarnNode) Service(app rm.ApplicationID, user, name string, data []byte) (func(bool), error) {
	if y.shuffled == nil || name != shuffle.Service {
		return nil, hadoop.ErrNoService
	}
	return y.shuffled.Register(app, user, data)
}

// Services implements hadoop.Node.
func (y *yarnNode) Services() map[string][]byte {
	if y.shuffled == nil {
		return nil
	}
	return map[string][]byte{shuffle.Service: shuffle.Meta((*Server)(y).shufflePort())}
}

// serves reports whether an application's outputs are served from here.
func (s *Server) serves(app string) bool {
	if s.shuffled == nil {
		return false
	}
	id, err := rm.ParseApplicationID(app)
	return err == nil && s.shuffled.Has(id)
}

// kept are the applications whose outputs are served although no container of theirs is here.
func (s *Server) kept() []string {
	if s.shuffled == nil {
		return nil
	}
	all := s.shuffled.Applications()
	if len(all) == 0 {
		return nil
	}
	s.mu.Lock()
	live := s.liveApps()
	s.mu.Unlock()
	var out []string
	for _, app := range all {
		if name := app.String(); !live[name] {
			out = append(out, name)
		}
	}
	return out
}

// endShuffle forgets an application that has ended, with its outputs.
func (s *Server) endShuffle(app string) {
	if id, err := rm.ParseApplicationID(app); err == nil && s.shuffled != nil && s.shuffled.End(id) {
		s.work.Go(func() {
			s.shuffled.Clean(id)
			s.removeAppDir(app)
		})
	}
}
