package rest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
)

// A page of an application is a stranger to this server: it gets an origin of its own, and what it then asks for, as
// browsers mark such requests, is refused, whoever reads it.
func TestAProxiedPageIsAStranger(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	posts := 0
	master := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			posts++
		}
		h := w.Header()
		h.Set("Content-Type", "text/html")
		h.Set("Content-Security-Policy", "default-src *")
		h.Set("Set-Cookie", "a=b; Path=/")
		h.Set("Access-Control-Allow-Origin", "null")
		h.Set("Clear-Site-Data", `"cookies"`)
		io.WriteString(w, "<script>fetch('/api/v1/jobs?user.name=alice', {method: 'POST'})</script>")
	}))
	defer master.Close()
	c.register(running, strings.TrimPrefix(master.URL, "http://"))
	s := httptest.NewServer(security.GuardHTTP(New(Config{Cluster: c, Door: security.NewDoor(security.Config{})}), nil))
	defer s.Close()
	page := "/proxy/" + running.String() + "/page?user.name=alice"
	code, h, body := call(t, s, "GET", page, "", "Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	if code != 200 || !strings.Contains(body, "<script>") {
		t.Fatalf("the page: %d %s", code, body)
	}
	policies := h.Values("Content-Security-Policy")
	if len(policies) != 2 || !strings.HasPrefix(policies[1], "sandbox allow-scripts") || strings.Contains(strings.Join(policies, " "), "allow-same-origin") || strings.Contains(policies[1], "top-navigation") {
		t.Errorf("policies %q", policies)
	}
	for _, name := range []string{"Set-Cookie", "Access-Control-Allow-Origin", "Clear-Site-Data"} {
		if v := h.Get(name); v != "" {
			t.Errorf("%s: %s", name, v)
		}
	}
	other := "/proxy/application_1_0404/"
	for _, test := range []struct {
		what, method, path string
		headers            []string
	}{
		{"fetch of a list", "GET", "/api/v1/jobs", []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}},
		{"submission", "POST", "/api/v1/jobs?user.name=alice", []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}},
		{"form", "POST", "/api/v1/jobs?user.name=alice", []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Content-Type", "text/plain"}},
		{"form, of an old browser", "POST", "/api/v1/jobs?user.name=alice", []string{"Origin", "null", "Content-Type", "text/plain"}},
		{"kill", "PUT", "/ws/v1/cluster/apps/" + running.String() + "/state?user.name=alice", []string{"Origin", "null"}},
		{"another application", "POST", other, []string{"Origin", "null", "Sec-Fetch-Site", "cross-site"}},
		{"its own application", "POST", page, []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}},
		{"script", "GET", page, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}},
		{"frame", "GET", page, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}},
	} {
		if code, h, body := call(t, s, test.method, test.path, `{"argv":["x"]}`, test.headers...); code != http.StatusForbidden || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %s", test.what, code, body)
		}
	}
	if posts != 0 {
		t.Errorf("%d requests of the page reached the master", posts)
	}
}
