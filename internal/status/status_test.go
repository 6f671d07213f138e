package status

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/gohops/hops/internal/jmx"
	"github.com/gohops/hops/internal/security"
)

func server(t *testing.T, report *Report) (*Pages, *httptest.Server) {
	p := New(Config{
		Role: "namenode", Port: "namenode HTTP", Aliases: []string{"/dfshealth.html", "/explorer.html"},
		Report: func() Report { return *report },
		Figures: func(s Sample) {
			s.Gauge("hops_namenode_files", "Files of the namespace.", 3)
			for _, state := range []string{"live", "de\xffad"} {
				s.Gauge("hops_namenode_datanodes", "Datanodes by state.", 2, "state", state)
			}
			s.Counter("hops_namenode_elections_total", "Elections that this namenode stood for.", 1)
		},
	})
	p.reports.Pause = 0
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return p, s
}

func get(t *testing.T, s *httptest.Server, path, accept string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func TestThePagesSayTheSameEverywhere(t *testing.T) {
	report := &Report{
		ID: "nn1", State: "active", Warnings: []string{"2 blocks are missing"}, Facts: []Fact{{"leader", "<nn1>"}}, Links: []Link{{"/webhdfs/v1/?op=LISTSTATUS", "WebHDFS"}},
		Detail: struct {
			Files int `json:"files"`
		}{3},
	}
	_, s := server(t, report)
	for _, c := range []struct {
		path, accept string
		code         int
		want         string
	}{
		{"/", "text/html,*/*", 200, "<tr><th>leader</th><td>&lt;nn1&gt;</td></tr>"},
		{"/", "*/*", 200, "hops namenode nn1: ready (active)"},
		{"/", "", 200, "warning: 2 blocks are missing"},
		{"/livez", "", 200, "ok\n"},
		{"/readyz", "", 200, "[+]active\n[!]2 blocks are missing\nok\n"},
		{"/health", "", 200, `"warnings":["2 blocks are missing"],"files":3}`},
		{"/metrics", "", 200, "hops_namenode_files 3\n"},
		{"/dfshealth.html", "", 302, ""},
		{"/nothing", "", 404, ""},
	} {
		code, body, header := get(t, s, c.path, c.accept)
		if code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %q, want %d with %q", c.path, code, body, c.code, c.want)
		}
		if code == 200 && (header.Get("Content-Security-Policy") == "" || header.Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%s: headers %v", c.path, header)
		}
	}
	report.Problem, report.State = "no leader is known", "standby"
	for path, want := range map[string]string{"/readyz": "[-]standby no leader is known\nnot ready\n", "/health": `"ready":false,"problem":"no leader is known"`} {
		if code, body, _ := get(t, s, path, ""); code != 503 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want 503 with %q", path, code, body, want)
		}
	}
	if code, body, _ := get(t, s, "/", ""); code != 200 || !strings.Contains(body, "not ready (standby): no leader is known") {
		t.Errorf("the page of a server that is not ready: %d %q", code, body)
	}
	if code, _, _ := get(t, s, "/livez", ""); code != 200 {
		t.Error("a server that is not ready is dead")
	}
	var h Health
	_, body, _ := get(t, s, "/health", "")
	if err := json.Unmarshal([]byte(body), &h); err != nil || h.Role != "namenode" || h.ID != "nn1" {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestFiguresAreAsPrometheusWantsThem runs the checks of promtool check metrics.
func TestFiguresAreAsPrometheusWantsThem(t *testing.T) {
	_, s := server(t, &Report{State: "active"})
	_, body, _ := get(t, s, "/metrics", "")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v\n%s", problems, err, body)
	}
	for _, want := range []string{`hops_build_info{role="namenode",version="unknown"} 1`, `hops_ready{role="namenode"} 1`, "process_open_fds", "go_goroutines", `{state="de` + "\ufffd" + `ad"} 2`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

func TestEveryPageIsAmongTheRights(t *testing.T) {
	p, _ := server(t, &Report{})
	routes := p.Routes()
	if len(routes) != 8 {
		t.Errorf("%v", routes)
	}
	for _, r := range routes {
		if r.Right != security.Open || r.Port != "namenode HTTP" {
			t.Errorf("%+v", r)
		}
		path := strings.TrimSuffix(strings.TrimPrefix(r.Name, "GET "), "{$}")
		if !p.Serves(httptest.NewRequest(http.MethodGet, path, nil)) {
			t.Errorf("%s is not served", r.Name)
		}
	}
	if p.Serves(httptest.NewRequest(http.MethodGet, "/webhdfs/v1/", nil)) {
		t.Error("it serves what is not its own")
	}
}

// TestManyWhoAskCostOneReport: anybody may ask at any rate, which must not cost the server a report each. But nobody gets a
// report that was begun before they asked, or else an operator would not see what they just did.
func TestManyWhoAskCostOneReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made, changes := 0, 0
		p := New(Config{Role: "namenode", Report: func() Report { made++; return Report{State: strconv.Itoa(changes)} }})
		ask := func(path string) string {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Body.String()
		}
		ask("/health")
		changes = 7
		var all sync.WaitGroup
		for _, path := range []string{"/", "/readyz", "/health", "/metrics", "/health", "/health"} {
			all.Go(func() {
				if said := ask(path); path == "/health" && !strings.Contains(said, `"state":"7"`) {
					t.Errorf("%s: %s", path, said)
				}
			})
		}
		all.Wait()
		if made != 2 {
			t.Errorf("%d reports were made, want one for who was first and one for all who asked at the same time", made)
		}
	})
}

// TestPagesOfAServerThatHangsAnswer: what a server says may be behind a lock that is held by who waits for a silent disk. Whoever watches it hears of that in time,
// however often they ask, and what they ask for does not pile up.
func TestPagesOfAServerThatHangsAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var gate atomic.Pointer[chan struct{}]
		var waiting atomic.Int64
		wait := func() {
			if g := gate.Load(); g != nil {
				waiting.Add(1)
				<-*g
				waiting.Add(-1)
			}
		}
		p := New(Config{
			Role: "namenode", Report: func() Report { wait(); return Report{State: "active"} },
			Figures: func(s Sample) { wait(); s.Gauge("hops_namenode_files", "Files of the namespace.", 3) },
			Beans:   func() []jmx.Bean { wait(); return []jmx.Bean{{Name: "Hadoop:service=NameNode,name=NameNodeInfo"}} },
		})
		ask := func(path string) (int, string) {
			t.Helper()
			began := time.Now()
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if took := time.Since(began); took > Patience {
				t.Errorf("%s takes %v", path, took)
			}
			return w.Code, w.Body.String()
		}
		check := func(path string, code int, want ...string) {
			t.Helper()
			got, body := ask(path)
			for _, text := range want {
				if !strings.Contains(body, text) {
					t.Errorf("%s says no %q: %s", path, text, body)
				}
			}
			if got != code {
				t.Errorf("%s: %d, want %d", path, got, code)
			}
		}
		late := func(at string) string { return `hops_figures_late_seconds{role="namenode"} ` + at + "\n" }

		g := make(chan struct{})
		gate.Store(&g)
		check("/health", 503, `"state":"unknown"`, "has not said how it is since")
		check("/metrics", 200, late("2"), "hops_ready{role=\"namenode\"} 0\n", "go_goroutines")
		check("/jmx", 200, "java.lang:type=Runtime")
		gate.Store(nil)
		close(g)
		time.Sleep(time.Second)
		check("/health", 200, `"state":"active"`, `"ready":true`)
		check("/metrics", 200, late("0"), "hops_namenode_files 3\n", "hops_ready{role=\"namenode\"} 1\n")
		check("/jmx", 200, "NameNodeInfo")

		g = make(chan struct{})
		time.Sleep(time.Minute)
		gate.Store(&g)
		since := Stamp(time.Now())
		var all sync.WaitGroup
		for range 50 {
			for _, path := range []string{"/", "/livez", "/readyz", "/health", "/metrics", "/jmx"} {
				all.Go(func() { ask(path) })
			}
		}
		time.Sleep(Patience)
		all.Wait()
		check("/readyz", 200, "[!]it has not said how it is since "+since)
		check("/metrics", 200, late("2"), "hops_namenode_files 3\n", "hops_ready{role=\"namenode\"} 1\n")
		time.Sleep(Hangs)
		check("/livez", 200, "ok\n")
		check("/readyz", 503, "[-]active it has not said how it is since "+since)
		check("/health", 503, `"state":"active"`, `"problem":"it has not said how it is since `+since)
		check("/", 200, "not ready (active): it has not said how it is since "+since)
		check("/metrics", 200, late("7"), "hops_namenode_files 3\n", "hops_ready{role=\"namenode\"} 0\n")
		check("/jmx", 200, "NameNodeInfo", "java.lang:type=Runtime")
		if n := waiting.Load(); n != 3 {
			t.Errorf("%d wait for what does not come, want one for each of three kinds", n)
		}
		gate.Store(nil)
		close(g)
		time.Sleep(time.Second)
		check("/health", 200, `"state":"active"`, `"ready":true`)
		check("/metrics", 200, late("0"))
	})
}
