package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/jobsecret"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/resourcemanager/rest"
)

// Secrets keeps users' secrets for their jobs, and opens them for containers.
type Secrets interface {
	rest.Secrets
	// Open is the contents of a user's secrets, by name. Errors: metadata.ErrNotExist for one that is not there, security.ErrSealed for
	// one that does not open.
	Open(ctx context.Context, user string, names []string) (map[string][]byte, error)
}

// DFSSecrets keeps users' secrets sealed in the file system, as files of the user's, through clients of the file system, which the function
// makes for a user.
func DFSSecrets(key security.Secret, client func(user string) (*dfs.Client, error)) Secrets {
	return &dfsSecrets{key, client}
}

type dfsSecrets struct {
	key    security.Secret
	client func(user string) (*dfs.Client, error)
}

func (s *dfsSecrets) open(user string) (*dfs.Client, string, error) {
	dir := jobsecret.Dir(user)
	if dir == "" {
		return nil, "", metadata.Errorf(metadata.ErrInvalidArgument, "user %q has no place for secrets", user)
	}
	c, err := s.client(user)
	return c, dir, err
}

// Put implements rest.Secrets.
func (s *dfsSecrets) Put(ctx context.Context, user, name string, secret []byte) error {
	sealed, err := jobsecret.Seal(s.key, user, name, secret)
	if err != nil {
		return err
	}
	c, dir, err := s.open(user)
	if err != nil {
		return err
	}
	defer c.Close()
	known, err := s.List(ctx, user)
	if err != nil {
		return err
	}
	if len(known) >= jobsecret.MaxPerUser && !slices.ContainsFunc(known, func(k rest.SecretInfo) bool { return k.Name == name }) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "there are %d secrets of %s, which is the most: remove one first", len(known), user)
	}
	if err := c.Mkdirs(ctx, dir, 0o700, true); err != nil {
		return err
	}
	// Under another name first: who reads meanwhile finds the old one or the new one.
	next := dir + "/.next-" + name
	w, err := c.Create(ctx, next, dfs.CreateOptions{Mode: 0o600, Overwrite: true})
	if err != nil {
		return err
	}
	if _, err := w.Write(sealed); err != nil {
		w.Abort()
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return c.RenameOverwrite(ctx, next, dir+"/"+name)
}

// List implements rest.Secrets.
func (s *dfsSecrets) List(ctx context.Context, user string) ([]rest.SecretInfo, error) {
	c, dir, err := s.open(user)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	files, err := c.List(ctx, dir)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []rest.SecretInfo
	for _, f := range files {
		if !f.IsDir() && jobsecret.CheckName(f.Name) == nil {
			all = append(all, rest.SecretInfo{Name: f.Name, Modified: int64(f.MTime)})
		}
	}
	return all, nil
}

// Remove implements rest.Secrets.
func (s *dfsSecrets) Remove(ctx context.Context, user, name string) error {
	if err := jobsecret.CheckName(name); err != nil {
		return err
	}
	c, dir, err := s.open(user)
	if err != nil {
		return err
	}
	defer c.Close()
	was, err := c.Delete(ctx, dir+"/"+name, false)
	if err == nil && !was {
		err = metadata.Errorf(metadata.ErrNotExist, "%s has no secret %s", user, name)
	}
	return err
}

// Open implements Secrets.
func (s *dfsSecrets) Open(ctx context.Context, user string, names []string) (map[string][]byte, error) {
	c, dir, err := s.open(user)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	opened := map[string][]byte{}
	for _, name := range names {
		sealed, err := readSealed(ctx, c, dir+"/"+name)
		if errors.Is(err, metadata.ErrNotExist) {
			return nil, metadata.Errorf(metadata.ErrNotExist, "%s has no secret %s: hops secret put %s", user, name, name)
		}
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", name, err)
		}
		if opened[name], err = jobsecret.Open(s.key, user, name, sealed); err != nil {
			return nil, err
		}
	}
	return opened, nil
}

func readSealed(ctx context.Context, c *dfs.Client, file string) ([]byte, error) {
	f, err := c.Open(ctx, file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(jobsecret.MaxSealed)+1))
}
