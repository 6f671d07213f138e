package rest

import (
	"context"
	"io"
	"net/http"

	"github.com/gohops/hops/internal/jobsecret"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// Secrets keeps what users' jobs are to know and nobody else, see package jobsecret. No method answers a content.
type Secrets interface {
	// Put keeps a secret, in place of one of the same name.
	Put(ctx context.Context, user, name string, secret []byte) error
	List(ctx context.Context, user string) ([]SecretInfo, error)
	// Remove forgets a secret. ErrNotExist: there is none.
	Remove(ctx context.Context, user, name string) error
}

// SecretInfo is what is told of a secret.
type SecretInfo struct {
	Name string `json:"name"`
	// Modified is in milliseconds since 1970.
	Modified int64 `json:"modified"`
}

var secretRoutes = []Route{
	{Method: "GET", Path: "/api/v1/secrets", Right: security.Named, handle: (*request).listSecrets},
	{Method: "PUT", Path: "/api/v1/secrets/{name}", Right: security.Named, handle: (*request).putSecret},
	{Method: "DELETE", Path: "/api/v1/secrets/{name}", Right: security.Named, handle: (*request).removeSecret},
}

// keepsSecrets answers and reports false where none are kept.
func (q *request) keepsSecrets() bool {
	if q.Secrets == nil {
		q.fail(metadata.Errorf(metadata.ErrUnsupported, "this resource manager has no file system to keep secrets in"))
	}
	return q.Secrets != nil
}

func (q *request) listSecrets() {
	if !q.keepsSecrets() {
		return
	}
	list, err := q.Config.Secrets.List(q.r.Context(), q.caller.User)
	if err != nil {
		q.fail(err)
		return
	}
	if list == nil {
		list = []SecretInfo{}
	}
	writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", map[string][]SecretInfo{"secrets": list})
}

// putSecret takes the body as it is. It is not quoted in any answer.
func (q *request) putSecret() {
	if !q.keepsSecrets() {
		return
	}
	name := q.r.PathValue("name")
	if err := jobsecret.CheckName(name); err != nil {
		q.fail(err)
		return
	}
	if q.r.Header.Get("Content-Type") != "application/octet-stream" {
		problem(q.w, http.StatusUnsupportedMediaType, "unsupported-media-type", "a secret is its bytes: send it with Content-Type: application/octet-stream")
		return
	}
	secret, err := io.ReadAll(io.LimitReader(q.r.Body, jobsecret.MaxBytes+1))
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "the body cannot be read: %v", err))
		return
	}
	if err := q.Config.Secrets.Put(q.r.Context(), q.caller.User, name, secret); err != nil {
		q.fail(err)
		return
	}
	writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", map[string]string{"name": name})
}

func (q *request) removeSecret() {
	if !q.keepsSecrets() {
		return
	}
	name := q.r.PathValue("name")
	if err := q.Config.Secrets.Remove(q.r.Context(), q.caller.User, name); err != nil {
		q.fail(err)
		return
	}
	writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", map[string]string{"name": name})
}
