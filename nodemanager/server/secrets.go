package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/gohops/hops/internal/jobsecret"
	"github.com/gohops/hops/nodemanager"
)

// secretsDir is where a container finds its secrets.
func (c *container) secretsDir() string { return filepath.Join(c.dir, "secrets") }

// openSecrets reads the secrets that a container is given, as its user, and opens them. They are in our memory until the
// supervisor has them, and nowhere else.
func (s *Server) openSecrets(ctx context.Context, fsys Filesystem, spec *nodemanager.Spec) (map[string][]byte, error) {
	if err := jobsecret.CheckNames(spec.Secrets); err != nil {
		return nil, err
	}
	dir := jobsecret.Dir(string(spec.User))
	if dir == "" {
		return nil, fmt.Errorf("user %q has no place for secrets", spec.User)
	}
	opened := map[string][]byte{}
	for _, name := range spec.Secrets {
		secret, err := s.openSecret(ctx, fsys, string(spec.User), dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s has no secret %s: hops secret put %s", spec.User, name, name)
		}
		if err != nil {
			return nil, err
		}
		opened[name] = secret
	}
	return opened, nil
}

func (s *Server) openSecret(ctx context.Context, fsys Filesystem, user, dir, name string) ([]byte, error) {
	if _, err := fsys.Stat(ctx, path.Join(dir, name)); err != nil {
		return nil, err
	}
	f, err := fsys.Open(ctx, path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sealed, err := io.ReadAll(io.LimitReader(f, int64(jobsecret.MaxSealed)+1))
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", name, err)
	}
	return jobsecret.Open(s.config.Credentials, user, name, sealed)
}
