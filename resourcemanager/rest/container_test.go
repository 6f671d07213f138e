package rest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
)

// A container reads as its user, and changes something only where its job may.
func TestWhatAContainerMayAsk(t *testing.T) {
	const quiet, busy = "container_1_0001_01_000002", "container_1_0002_01_000002"
	c := newFakeCluster(t)
	c.containers = map[string]Container{
		quiet: {Token: "one", User: "ann", MaySubmit: func() bool { return false }}, busy: {Token: "two", User: "ann", MaySubmit: func() bool { return true }},
	}
	s := serve(t, c, nil)
	var numbers security.Numbers
	ask := func(container, token, method, path, body string) (int, string) {
		r, err := http.NewRequest(method, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		security.NewRequestKey(token, security.ManagerRequests).Sign(r, security.Signature{Container: container, Number: numbers.Next(), Body: security.BodySum([]byte(body))})
		code, _, text := call(t, s, method, path, body, "Authorization", r.Header.Get("Authorization"))
		return code, text
	}
	const job = `{"argv": ["true"]}`
	for _, a := range []struct {
		who, container, token, method, path, body string
		code                                      int
		want                                      string
	}{
		{"a container reads", quiet, "one", "GET", "/api/v1/jobs", "", 200, ""},
		{"a container submits whose job may not", quiet, "one", "POST", "/api/v1/jobs", job, 403, "whose job may not submit or change others: if it is to, submit it with HOPS_MAY_SUBMIT=1 in its env"},
		{"a container submits whose job may", busy, "two", "POST", "/api/v1/jobs", job, 201, ""},
		{"a container with another's token", quiet, "two", "GET", "/api/v1/jobs", "", 401, "is not signed by a container that runs"},
		{"a container that has ended", "container_1_0003_01_000002", "one", "GET", "/api/v1/jobs", "", 401, "is not signed by a container that runs"},
		{"a container for root", busy, "two", "GET", "/api/v1/jobs?user.name=root", "", 401, "acts for nobody else"},
		{"a container as operator", busy, "two", "DELETE", "/api/v1/resourcemanagers/rm1", "", 403, "is not a superuser"},
	} {
		t.Run(a.who, func(t *testing.T) {
			if code, text := ask(a.container, a.token, a.method, a.path, a.body); code != a.code || !strings.Contains(text, a.want) {
				t.Errorf("%d %s", code, text)
			}
		})
	}
	for a := range c.state.View().Applications() {
		if a.User != "ann" {
			t.Errorf("%v is of %s", a.ID, a.User)
		}
	}
}
