package rest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

type memorySecrets map[string]string

func (m memorySecrets) Put(_ context.Context, user, name string, secret []byte) error {
	if len(secret) > 64<<10 {
		return metadata.Errorf(metadata.ErrInvalidArgument, "secret %s is too large", name)
	}
	m[user+"/"+name] = string(secret)
	return nil
}

func (m memorySecrets) List(_ context.Context, user string) (all []SecretInfo, _ error) {
	for key := range m {
		if name, ok := strings.CutPrefix(key, user+"/"); ok {
			all = append(all, SecretInfo{Name: name})
		}
	}
	return all, nil
}

func (m memorySecrets) Remove(_ context.Context, user, name string) error {
	if _, ok := m[user+"/"+name]; !ok {
		return metadata.Errorf(metadata.ErrNotExist, "%s has no secret %s", user, name)
	}
	delete(m, user+"/"+name)
	return nil
}

// Who tries what with secrets over HTTP.
func TestSecretsOverHTTP(t *testing.T) {
	c := newFakeCluster(t)
	c.fill()
	kept := memorySecrets{}
	s := httptest.NewServer(New(Config{Cluster: c, Door: security.NewDoor(security.Config{}), Secrets: kept}))
	defer s.Close()
	octets := []string{"Content-Type", "application/octet-stream"}
	for _, test := range []struct {
		who, method, path, body string
		header                  []string
		code                    int
		want                    string
	}{
		{"ann puts one", "PUT", "/api/v1/secrets/db?user.name=ann", "hunter2", octets, 200, `{"name":"db"}`},
		{"ann lists hers", "GET", "/api/v1/secrets?user.name=ann", "", nil, 200, `"name":"db"`},
		{"eve lists hers", "GET", "/api/v1/secrets?user.name=eve", "", nil, 200, `{"secrets":[]}`},
		{"eve removes ann's", "DELETE", "/api/v1/secrets/db?user.name=eve", "", nil, 404, "eve has no secret db"},
		{"eve asks for ann's", "GET", "/api/v1/secrets/db?user.name=eve", "", nil, 405, "not served"},
		{"ann asks for hers", "GET", "/api/v1/secrets/db?user.name=ann", "", nil, 405, "not served"},
		{"nobody lists", "GET", "/api/v1/secrets", "", nil, 403, "names no user"},
		{"nobody puts", "PUT", "/api/v1/secrets/db?user.name=dr.who", "x", octets, 403, ""},
		{"a form of a web page puts", "PUT", "/api/v1/secrets/db?user.name=ann", "hunter2", []string{"Content-Type", "text/plain"}, 415, "application/octet-stream"},
		{"a name that is a path", "PUT", "/api/v1/secrets/..%2Fx?user.name=ann", "hunter2", octets, 400, "is no name of a secret"},
		{"too much", "PUT", "/api/v1/secrets/big?user.name=ann", strings.Repeat("hunter2 ", 10_000), octets, 400, "too large"},
		{"ann removes hers", "DELETE", "/api/v1/secrets/db?user.name=ann", "", nil, 200, `{"name":"db"}`},
	} {
		code, _, body := call(t, s, test.method, test.path, test.body, test.header...)
		if code != test.code || !strings.Contains(body, test.want) && code != http.StatusForbidden || strings.Contains(body, "hunter2") {
			t.Errorf("%s: %d %.300s, want %d %q", test.who, code, body, test.code, test.want)
		}
	}
	if len(kept) != 0 {
		t.Errorf("kept: %v", kept)
	}
}
