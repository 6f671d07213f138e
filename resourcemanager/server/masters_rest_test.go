package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

// restMaster speaks for an attempt as a program with nothing but HTTP and JSON does.
type restMaster struct {
	c     *testCluster
	id    rm.AttemptID
	token string
}

func (c *testCluster) restMaster(n *fakeNode) *restMaster {
	c.t.Helper()
	id := rm.AttemptID{Application: c.submit("ann", `{"kind":"master","argv":["m"]}`), Number: 1}
	m := &restMaster{c: c, id: id}
	eventually(c.t, "its master to run", func() bool {
		for _, s := range n.running(true) {
			if s.ApplicationId == id.Application.String() {
				m.token = s.Token
			}
		}
		return m.token != ""
	})
	return m
}

func (m *restMaster) request(method, path, body string) *http.Request {
	m.c.t.Helper()
	url := fmt.Sprintf("http://%s/api/v1/applications/%v/attempts/%d%s", m.c.leader().peer(m.c.leader().config.ID).HTTP, m.id.Application, m.id.Number, path)
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		m.c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+m.token)
	return r
}

// call asks and decodes the answer; it fails the test unless the status is code.
func (m *restMaster) call(code int, method, path, body string, answer any) {
	m.c.t.Helper()
	var text string
	if got, _ := m.c.do(m.request(method, path, body), &text); got != code {
		m.c.t.Fatalf("%s %s %.300s: %d %s, want %d", method, path, body, got, text, code)
	}
	if answer != nil {
		if err := json.Unmarshal([]byte(text), answer); err != nil {
			m.c.t.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	}
}

// granted polls for so many grants and answers the last event.
func (m *restMaster) granted(count int, after uint64) ([]rest.MasterContainer, uint64) {
	m.c.t.Helper()
	var held []rest.MasterContainer
	for len(held) < count {
		var news rest.Events
		m.call(200, "GET", fmt.Sprintf("/events?wait=60s&after=%d", after), "", &news)
		for after = news.Last; len(news.Events) > 0; news.Events = news.Events[1:] {
			if e := news.Events[0]; e.Type == "granted" {
				held = append(held, *e.Container)
			}
		}
	}
	return held, after
}

func TestAMasterOverREST(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	c.raise()
	m := c.restMaster(n)
	var registered rest.Registered
	m.call(200, "PUT", "/registration", `{"tracking_url":"http://x/"}`, &registered)
	if registered.Queue != "root.default" || registered.SilenceMs != 600_000 || registered.Maximum.GPUs != 4 {
		t.Errorf("%+v", registered)
	}
	// A gang that is held, and one too large for ever.
	ask := `{"progress":0.5,"asks":[{"id":"w","gang":"2..2","resources":{"memory":"256MiB","gpus":1,"gpu_model":"H100","gpu_island":true}}]}`
	r := m.request("POST", "/requests", ask)
	r.Header.Set("Idempotency-Key", "1")
	var text string
	if code, _ := c.do(r, &text); code != 200 {
		t.Fatal(code, text)
	}
	held, last := m.granted(2, 0)
	again := m.request("POST", "/requests", ask)
	again.Header.Set("Idempotency-Key", "1")
	if code, _ := c.do(again, &text); code != 200 || len(c.leader().View().Asks(m.id.Application)) != 0 {
		t.Errorf("a repeat asks again: %d %s", code, text)
	}
	if held[0].State != "HELD" || held[0].Token == "" || len(held[0].Devices) != 1 || held[0].Host == "" || held[0].Resources.GPUs != 1 {
		t.Errorf("%+v", held[0])
	}
	var launched rest.Launched
	launch := fmt.Sprintf(`{"launches":[{"containers":[%q],"launch":{"argv":["work"],"env":{"A":"1"},"grace":"3s"}}]}`, held[0].ID)
	for range 2 {
		m.call(200, "POST", "/launches", launch, &launched)
		if len(launched.Launches) != 1 || launched.Launches[0].Problem != nil {
			t.Fatalf("%+v", launched)
		}
	}
	m.call(200, "POST", "/launches", strings.Replace(launch, "work", "other", 1), &launched)
	if p := launched.Launches[0].Problem; p == nil || p.Status != 409 || p.Type != "urn:hops:launched" {
		t.Errorf("%+v", p)
	}
	eventually(t, "it to run", func() bool { return len(n.running(false)) == 1 })
	if s := n.running(false)[0]; s.Argv[0] != "work" || s.Env["A"] != "1" || s.GraceMs != 3000 {
		t.Errorf("%+v", s)
	}
	// An ask that waits, its reason, and its size.
	m.call(200, "POST", "/requests", `{"asks":[{"id":"more","count":9,"resources":{"gpus":2}}]}`, nil)
	var asks rest.Asks
	eventually(t, "a reason", func() bool {
		m.call(200, "GET", "/asks", "", &asks)
		return len(asks.Asks) == 1 && asks.Asks[0].Pending != nil
	})
	m.call(200, "PATCH", "/asks/more", `{"count":3}`, nil)
	m.call(404, "PATCH", "/asks/none", `{"count":3}`, nil)
	if m.call(200, "GET", "/asks", "", &asks); asks.Asks[0].Count > 3 || !asks.Asks[0].Held {
		t.Errorf("%+v", asks)
	}
	m.call(400, "PATCH", "/containers/"+held[0].ID, `{}`, nil)
	m.call(200, "POST", "/requests", fmt.Sprintf(`{"cancel":["more"],"release":[%q]}`, held[1].ID), nil)
	var page rest.MasterContainers
	m.call(200, "GET", "/containers", "", &page)
	if i := slices.IndexFunc(page.Containers, func(k rest.MasterContainer) bool { return k.ID == held[1].ID }); i < 0 || page.Containers[i].State != "COMPLETE" || *page.Containers[i].ExitStatus != -100 {
		t.Errorf("%+v", page)
	}

	// Server-sent events go on after the last that was heard.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream := m.request("GET", "/events", "").WithContext(ctx)
	stream.Header.Set("Accept", "text/event-stream")
	stream.Header.Set("Last-Event-ID", fmt.Sprint(last))
	answer, err := http.DefaultClient.Do(stream)
	if err != nil || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(answer, err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	seen := map[string]bool{}
	for !seen["event: completed"] && lines.Scan() {
		seen[lines.Text()] = true
		if strings.HasPrefix(lines.Text(), fmt.Sprintf("id: %d", last)) && lines.Text() == fmt.Sprintf("id: %d", last) {
			t.Error("an event that was heard comes again")
		}
	}
	if !seen["event: managers"] || !seen["event: completed"] {
		t.Errorf("%v", seen)
	}
	m.call(200, "PUT", "/result", `{"final_status":"SUCCEEDED"}`, nil)
	for !seen["event: problem"] && lines.Scan() { // and ends with the application
		seen[lines.Text()] = true
	}
	if !seen["event: problem"] {
		t.Errorf("%v", seen)
	}
	c.await(m.id.Application, rm.StateFinished)
	m.call(410, "POST", "/requests", `{}`, nil)
	c.check()
}

func TestWhatMastersDoWrongOverREST(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	c.raise()
	m, other := c.restMaster(n), c.restMaster(n)
	var p rest.Problem
	for _, test := range []struct {
		code         int
		method, path string
		body, says   string
	}{
		{400, "POST", "/requests", `{"asks":[{"id":"a","count":1}]}`, "has not registered"},
		{200, "PUT", "/registration", `{}`, ""},
		{400, "PUT", "/registration", `{"http":"192.0.2.1:80"}`, "is not on the master's node"},
		{400, "POST", "/requests", `{"asks":[{"id":"a","count":1,"deadline_x":1}]}`, "unknown field"},
		{400, "POST", "/requests", `{"asks":[{"id":"a","count":1}],"asks":[]}`, "is there twice"},
		{400, "POST", "/requests", `[]`, "not a JSON object"},
		{400, "POST", "/requests", `{"asks":[{"id":"a","count":-1}]}`, "count -1"},
		{400, "POST", "/requests", `{"asks":[{"id":"a","count":2,"gang":"2..3"}]}`, "gang is of 3"},
		{400, "POST", "/requests", `{"asks":[{"id":"a","count":1,"resources":{"gpus":64}}]}`, "the most is 4"},
		{400, "POST", "/requests", `{"asks":[{"id":"a","count":1,"launch":{}}]}`, "nothing to run"},
		{400, "POST", "/requests", `{"progress":2}`, "not between 0 and 1"},
		{400, "POST", "/requests", `{"release":["x"]}`, "Invalid ContainerId"},
		{403, "POST", "/requests", `{"release":["container_e01_1_0001_01_000007"]}`, "is no container of"},
		{400, "POST", "/requests", `{"asks":[` + strings.Repeat(`{"id":"a"},`, 1000) + `{"id":"b"}]}`, "at most 1000"},
		{400, "GET", "/events?after=x", ``, "not the number of an event"},
		{400, "GET", "/events?wait=2h", ``, "not a duration up to 1m"},
		{400, "GET", "/containers?after=x", ``, "Invalid ContainerId"},
		{400, "PUT", "/result", `{"final_status":"GOOD"}`, "is not SUCCEEDED"},
	} {
		m.call(test.code, test.method, test.path, test.body, &p)
		if test.code != 200 && (p.Status != test.code || !strings.Contains(p.Detail, test.says) || !strings.HasPrefix(p.Type, "urn:hops:")) {
			t.Errorf("%s %s %.100s: %+v", test.method, test.path, test.body, p)
		}
	}
	// Nobody speaks for another.
	other.id, m.id = m.id, other.id
	other.call(401, "GET", "/asks", "", nil) // the token is that of another attempt
	var text string
	for user, want := range map[string]int{"": 403, "bob": 403, "ann": 200} {
		r := other.request("GET", "/asks", "")
		r.Header.Del("Authorization")
		r.URL.RawQuery = "user.name=" + user
		if code, _ := c.do(r, &text); code != want {
			t.Errorf("%q: %d %s", user, code, text)
		}
	}
	// A stream that nobody reads holds one of a few places.
	other.id, m.id = m.id, other.id
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range maxStreams + 1 {
		r := m.request("GET", "/events", "").WithContext(ctx)
		r.Header.Set("Accept", "text/event-stream")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if want := map[bool]int{true: 429, false: 200}[i == maxStreams]; answer.StatusCode != want {
			t.Errorf("stream %d: %d", i, answer.StatusCode)
		}
	}
	cancel()
	eventually(t, "the places to be free again", func() bool {
		r := c.leader().reign.Load()
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.streams[m.id.Application]) == 0
	})
	c.check()
}

// A master that only keeps a stream open, and asks nothing, is silent.
func TestASilentMasterEnds(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, untilStopped)
	c.awaitOpen(n)
	c.raise()
	m := c.restMaster(n)
	m.call(200, "PUT", "/registration", `{}`, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := m.request("GET", "/events", "").WithContext(ctx)
	r.Header.Set("Accept", "text/event-stream")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	expiry := c.leader().config.MasterExpiry
	c.leader().reign.Load().endOverdue(at(time.Now().Add(expiry / 2)))
	if a := c.leader().View().Application(m.id.Application); c.leader().View().Master(a).StopStatus != 0 {
		t.Error("it ends before its time")
	}
	eventually(t, "the next attempt", func() bool {
		c.leader().reign.Load().endOverdue(at(time.Now().Add(expiry + time.Second)))
		return len(c.leader().View().Application(m.id.Application).Attempts) > 1
	})
	if d := c.leader().View().Application(m.id.Application).Attempts[0].Diagnostics; !strings.Contains(d, "silent") {
		t.Error(d)
	}
	m.call(401, "POST", "/requests", `{}`, nil) // its token is none any more
}

// The examples run as masters, as the processes that they are. The first manager that they know does not lead: who follows its redirect to
// a host of another name and loses the token on the way is let in nowhere.
func TestTheExampleMasters(t *testing.T) {
	for name, command := range map[string]func(t *testing.T) []string{
		"Go": func(t *testing.T) []string {
			program := filepath.Join(t.TempDir(), "master")
			if out, err := exec.Command("go", "build", "-o", program, "github.com/gohops/hops/examples/master").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			return []string{program}
		},
		"Python": func(t *testing.T) []string {
			python, err := exec.LookPath("python3")
			if err != nil {
				t.Skip("no Python here")
			}
			return []string{python, "../../examples/master.py"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			argv := command(t)
			c := newTestCluster(t, 1, nil)
			follower := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, port, _ := net.SplitHostPort(c.peers[0].HTTP)
				w.Header().Set("Location", "http://localhost:"+port+r.URL.RequestURI())
				w.WriteHeader(http.StatusTemporaryRedirect)
			}))
			defer follower.Close()
			dir := t.TempDir()
			trust := filepath.Join(dir, "authority.pem")
			if err := os.WriteFile(trust, authority.MarshalRoots(c.credentials.Member.Roots()), 0o600); err != nil {
				t.Fatal(err)
			}
			n := c.node("127.0.0.1:1001", 0, func(ctx context.Context, spec *pb.ContainerSpec) int {
				if !spec.ApplicationMaster {
					return 0
				}
				token := filepath.Join(dir, spec.ContainerId)
				if err := os.WriteFile(token, []byte(spec.Token), 0o600); err != nil {
					t.Error(err)
				}
				run := exec.CommandContext(ctx, argv[0], argv[1:]...)
				run.Env = append(os.Environ(), "HOPS_TOKEN="+token, "HOPS_AUTHORITY="+trust)
				for name, value := range spec.Env {
					run.Env = append(run.Env, name+"="+value)
				}
				run.Env = append(run.Env, "HOPS_RM="+strings.TrimPrefix(follower.URL, "http://")+","+spec.Env["HOPS_RM"])
				var out bytes.Buffer
				run.Stdout, run.Stderr = &out, &out
				if err := run.Run(); err != nil && ctx.Err() == nil {
					t.Errorf("%v\n%s", err, out.String())
					return 1
				}
				return 0
			})
			c.awaitOpen(n)
			c.raise()
			id := c.submit("ann", `{"kind":"master","argv":["example"]}`)
			if j := c.await(id, rm.StateFinished, rm.StateFailed); j.FinalStatus != rm.FinalSucceeded {
				t.Errorf("%+v", j)
			}
			c.check()
		})
	}
}

// What is submitted by YARN's REST is the application's master: one that ends without having registered has failed, whatever its exit
// status, as in YARN. The node gets it as a launch in YARN's dialect. It is refused before the cluster has been raised.
func TestYARNsRESTSubmitsMasters(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	specs := make(chan *pb.ContainerSpec, 10)
	c.node("127.0.0.1:1001", 0, func(_ context.Context, spec *pb.ContainerSpec) int {
		specs <- spec
		return 0
	})
	submit := func() (rm.ApplicationID, int, string) {
		t.Helper()
		var id map[string]any
		c.http(http.MethodPost, "/ws/v1/cluster/apps/new-application", "ann", nil, &id)
		text, _ := id["application-id"].(string)
		app, err := rm.ParseApplicationID(text)
		if err != nil {
			t.Fatal(err)
		}
		var answer string
		code, _ := c.http(http.MethodPost, "/ws/v1/cluster/apps", "ann", map[string]any{
			"application-id": text, "application-name": "x", "queue": "default", "max-app-attempts": 1, "resource": map[string]int{"memory": 64, "vCores": 1},
			"am-container-spec": map[string]any{
				"commands":    map[string]string{"command": "echo $A > {{PWD}}/x"},
				"environment": map[string]any{"entry": []map[string]string{{"key": "A", "value": "b"}}},
			},
		}, &answer)
		return app, code, answer
	}
	if _, code, answer := submit(); code != http.StatusBadRequest || !strings.Contains(answer, "hops cluster finalize") {
		t.Errorf("before the cluster was raised: %d %s", code, answer)
	}
	c.raise()
	id, code, answer := submit()
	if code != http.StatusAccepted {
		t.Fatalf("%d %s", code, answer)
	}
	if spec := <-specs; spec.GetDialect() != rm.DialectYARN || len(spec.GetArgv()) != 1 || spec.GetArgv()[0] != "echo $A > {{PWD}}/x" || !spec.GetApplicationMaster() {
		t.Errorf("%v", spec)
	}
	if j := c.await(id, rm.StateFailed); !strings.Contains(j.Diagnostics, "ended without finishing") {
		t.Errorf("%+v", j)
	}
	c.check()
}
