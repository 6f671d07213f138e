package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gohops/hops/internal/jobsecret"
	"github.com/gohops/hops/metadata"
)

// MaxSecret is the size of a secret in bytes, at most.
const MaxSecret = jobsecret.MaxBytes

// Secrets are what a user's jobs are to know and nobody else. A job that names them (Job.Secrets) finds each as a file of its name in the
// directory $HOPS_SECRETS_DIR of its containers. What was put cannot be asked for again.
type Secrets struct{ rest *rest }

// Secrets are the caller's.
func (c *Client) Secrets() *Secrets { return &Secrets{c.jobs.rest} }

// Secret is what is told of one.
type Secret struct {
	Name string `json:"name"`
	// Modified is in milliseconds since 1970.
	Modified int64 `json:"modified"`
}

// Put keeps a secret, in place of one of the same name. Containers that run keep what they were given.
//
// Error: metadata.ErrInvalidArgument if the name or the size are none of a secret.
func (s *Secrets) Put(ctx context.Context, name string, secret []byte) error {
	if err := jobsecret.CheckName(name); err != nil {
		return err
	}
	if len(secret) > MaxSecret {
		return metadata.Errorf(metadata.ErrInvalidArgument, "secret %s has more than %d bytes: put large content into the file system", name, MaxSecret)
	}
	var answer struct{}
	return s.rest.call(ctx, http.MethodPut, "/api/v1/secrets/"+url.PathEscape(name), octets(secret), nil, &answer)
}

// List tells what secrets there are, in the order of their names.
func (s *Secrets) List(ctx context.Context) ([]Secret, error) {
	var answer struct{ Secrets []Secret }
	err := s.rest.call(ctx, http.MethodGet, "/api/v1/secrets", nil, nil, &answer)
	return answer.Secrets, err
}

// Remove forgets a secret.
func (s *Secrets) Remove(ctx context.Context, name string) error {
	if err := jobsecret.CheckName(name); err != nil {
		return err
	}
	var answer struct{}
	return s.rest.call(ctx, http.MethodDelete, "/api/v1/secrets/"+url.PathEscape(name), nil, nil, &answer)
}
