package controller

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

func TestTheEnvironmentOfAContainerBecomesAnEnv(t *testing.T) {
	files, err := dfs.New(dfs.Config{Namenodes: []string{"127.0.0.1:1"}, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "job.json"), []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "authority.pem"), authority.MarshalRoots(securitytest.Credentials(t).Member.Roots()), 0o600); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{}
	_, _, err = FromEnvironment(func(k string) string { return vars[k] }, files, nil, slog.Default())
	if err == nil || !strings.Contains(err.Error(), "HOPS_APPLICATION_ID, HOPS_USER, HOPS_ATTEMPT, HOPS_WORK_DIR, HOPS_RM_GRPC, HOPS_CONTAINER_ID, HOPS_TOKEN, HOPS_AUTHORITY is not set") {
		t.Errorf("nothing set: %v", err)
	}
	vars = map[string]string{"HOPS_APPLICATION_ID": testApp, "HOPS_USER": "ann", "HOPS_ATTEMPT": "0", "HOPS_WORK_DIR": dir, "HOPS_RM_GRPC": "127.0.0.1:1,127.0.0.1:2", "HOPS_CONTAINER_ID": "container_1_0001_01_000001", "HOPS_TOKEN": filepath.Join(dir, "token"), "HOPS_AUTHORITY": filepath.Join(dir, "authority.pem")}
	if _, _, err := FromEnvironment(func(k string) string { return vars[k] }, files, nil, nil); err == nil {
		t.Error("attempt 0 accepted")
	}
	vars["HOPS_ATTEMPT"] = "2"
	env, closer, err := FromEnvironment(func(k string) string { return vars[k] }, files, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	defer env.Listener.Close()
	if env.Attempt != 2 || env.User != "ann" || string(env.Job) != "{}" || !strings.HasPrefix(env.Listener.Addr().String(), "127.0.0.1:") {
		t.Errorf("%+v", env)
	}
}

// Requests come through the resource manager's proxy, which signs them with a key of the master's own token and names the
// user. The token itself, and a signature that somebody caught, are of no use.
func TestTheResourceManagersWordForTheUserIsTaken(t *testing.T) {
	caller := proxied(security.NewDoor(security.Config{}), "secret", "127.0.0.1:80")
	request := func(user string, sign func(*http.Request)) *http.Request {
		r := httptest.NewRequest("GET", "http://127.0.0.1:80/v1/experiments", nil)
		r.RequestURI = r.URL.RequestURI()
		r.Header.Set(security.UserHeader, user)
		sign(r)
		return r
	}
	by := func(token string, number int64) func(*http.Request) {
		return func(r *http.Request) {
			security.NewRequestKey(token, security.ProxiedRequests).Sign(r, security.Signature{Container: "c", Number: number, Body: security.UnsignedBody})
		}
	}
	now := time.Now().UnixNano()
	caught := request("bob", by("secret", now+1))
	elsewhere := request("bob", by("secret", now+2))
	elsewhere.Host = "127.0.0.1:81"
	other := request("bob", by("secret", now+3))
	other.Header.Set(security.UserHeader, "root")
	for _, c := range []struct {
		what string
		r    *http.Request
		want string
	}{
		{"signed", caught, "bob"},
		{"once more", caught, ""},
		{"without a user", request("", by("secret", now+4)), ""},
		{"by another key", request("bob", by("other", now+5)), ""},
		{"for another address", elsewhere, ""},
		{"with another user", other, ""},
		{"long ago", request("bob", by("secret", now-int64(time.Hour))), ""},
		{"the token", request("bob", func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }), ""},
		{"the header alone", request("bob", func(*http.Request) {}), security.DrWho},
	} {
		got, err := caller(c.r)
		if got.User != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %+v %v", c.what, got, err)
		}
	}
}
