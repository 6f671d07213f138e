package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/internal/jmx/jmxtest"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/rest/openapitest"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// fakeCluster is a state without a group: commands take effect at once.
type fakeCluster struct {
	tokens  []byte // of the last submission
	t       *testing.T
	state   *state.State
	queues  *rm.Queues
	index   uint64
	leading bool
	leader  string
	waiting []Waiting
	signals []string
	maximum rm.Resource
	level   int
	// containers sign their requests.
	containers map[string]Container
}

func newFakeCluster(t *testing.T) *fakeCluster { return newSmallCluster(t, state.Config{}) }

func newSmallCluster(t *testing.T, limits state.Config) *fakeCluster {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{
		"default": {Capacity: "40%"}, "stopped": {Capacity: "0%", State: rm.QueueStopped},
		"prod": {Capacity: "60%", Administer: []string{"boss"}, Children: map[string]rm.QueueConfig{"a": {Capacity: "20%"}, "b": {Capacity: "80%", Submit: []string{"bob"}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := &fakeCluster{t: t, state: state.New(limits), queues: q, leading: true, level: release.Level}
	c.do(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{}}})
	return c
}

func (c *fakeCluster) do(command *statepb.Command) *state.Result {
	c.index++
	if command.NowMs == 0 {
		command.NowMs = time.Now().UnixMilli()
	}
	b, err := state.Encode(command)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.state.Apply(c.index, [][]byte{b})[0].(*state.Result)
}

func (c *fakeCluster) Leading() bool      { return c.leading }
func (c *fakeCluster) LeaderHTTP() string { return c.leader }
func (c *fakeCluster) Started() time.Time { return time.Now() }
func (c *fakeCluster) View() *state.View  { return c.state.View() }
func (c *fakeCluster) Queues() *rm.Queues { return c.queues }
func (c *fakeCluster) Limits() (minimum, maximum rm.Resource) {
	return rm.Resource{Memory: 128 * rm.MiB, VCores: 1}, c.maximum
}

func (c *fakeCluster) NewApplication(context.Context) (rm.ApplicationID, error) {
	return c.do(&statepb.Command{Op: &statepb.Command_NewApplication{NewApplication: &statepb.NewApplication{}}}).Application, nil
}

func (c *fakeCluster) Submit(_ context.Context, caller metadata.Caller, b Submission) (rm.ApplicationID, bool, error) {
	a := &rm.Application{
		ID: b.ID, Name: b.Name, User: caller.User, Queue: b.Queue, Kind: b.Kind, Type: b.Type, Tags: b.Tags, Priority: b.Priority,
		Document: b.Document, MaxAttempts: 1, Timeout: b.Timeout, IdempotencyKey: b.Key, Digest: b.Digest, Master: rm.Resource{Memory: 512 * rm.MiB, VCores: 1},
	}
	c.tokens = b.Tokens
	q := c.queues.Find(b.Queue)
	switch {
	case q == nil && !b.AcceptAnyQueue:
		return a.ID, false, metadata.Errorf(metadata.ErrInvalidArgument, "there is no queue %q", b.Queue)
	case q == nil:
		b.Failure = fmt.Sprintf("Application %v submitted by user %s to unknown queue: %s", b.ID, caller.User, b.Queue)
	case q.State == rm.QueueStopped || !q.MaySubmit(caller.User):
		return a.ID, false, metadata.Errorf(metadata.ErrPermission, "User %s does not have permission to submit %v to queue %s", caller.User, b.ID, b.Queue)
	default:
		a.Queue = q.Path
	}
	if b.Failure != "" {
		a.State, a.Diagnostics = rm.StateFailed, b.Failure
	}
	r := c.do(&statepb.Command{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: state.Application(a)}}})
	return r.Application, r.Existing, r.Err
}

func (c *fakeCluster) Kill(_ context.Context, id rm.ApplicationID, why string) (rm.State, error) {
	r := c.do(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: state.ApplicationID(id), Diagnostics: why}}})
	return r.State, r.Err
}

func (c *fakeCluster) ResizeJob(_ context.Context, id rm.ApplicationID, size rm.Size, reason string) (rm.State, error) {
	r := c.do(&statepb.Command{Op: &statepb.Command_ResizeJob{ResizeJob: &statepb.ResizeJob{
		Application: state.ApplicationID(id), Max: int32(size.Max), Min: int32(size.Min), Reason: reason, DeadlineMs: 1,
	}}})
	return r.State, r.Err
}

func (c *fakeCluster) ChangeMembers(_ context.Context, id rm.ApplicationID, numbers []int, retry bool, reason string) (rm.State, error) {
	m := &statepb.ChangeMembers{Application: state.ApplicationID(id), Retry: retry, Reason: reason}
	for _, n := range numbers {
		m.Numbers = append(m.Numbers, int32(n))
	}
	r := c.do(&statepb.Command{Op: &statepb.Command_ChangeMembers{ChangeMembers: m}})
	return r.State, r.Err
}

func (c *fakeCluster) Update(_ context.Context, id rm.ApplicationID, u Update) (rm.State, error) {
	if c.level < release.Requests {
		return "", metadata.Errorf(metadata.ErrUnsupported, "the cluster has not been raised")
	}
	command := &statepb.UpdateApplication{Application: state.ApplicationID(id), Queue: u.Queue, ExpiresMs: int64(u.Expires)}
	if u.Priority != nil {
		p := int32(*u.Priority)
		command.Priority = &p
	}
	r := c.do(&statepb.Command{Op: &statepb.Command_UpdateApplication{UpdateApplication: command}})
	return r.State, r.Err
}

func (c *fakeCluster) Signal(id rm.ContainerID, signal syscall.Signal) error {
	c.signals = append(c.signals, fmt.Sprintf("%v %v", id, signal))
	return nil
}
func (c *fakeCluster) Waiting(rm.ApplicationID) []Waiting { return c.waiting }
func (c *fakeCluster) Explain(context.Context, rm.ApplicationID, []string) (list []Explanation, more int, err error) {
	for _, w := range c.waiting {
		list = append(list, Explanation{Ask: w.Ask, Reason: w.Reason})
	}
	return list, 0, nil
}

func (c *fakeCluster) Plan(_ context.Context, _ metadata.Caller, b Submission, spec *job.Spec, queues []string) (Planned, error) {
	return Planned{Queue: b.Queue, Starts: true, Placements: []PlannedContainer{}}, nil
}

func (c *fakeCluster) Progress(rm.ApplicationID) float64 { return 0 }
func (c *fakeCluster) ContainerOf(container string) (Container, bool) {
	k, ok := c.containers[container]
	return k, ok
}

func (c *fakeCluster) ProxyKey(*rm.Container) security.RequestKey {
	return security.NewRequestKey("the-master's-token", security.ProxiedRequests)
}

func (c *fakeCluster) LogDir(a *rm.Application) string {
	return "/logs/" + a.User + "/" + a.ID.String()
}

func (c *fakeCluster) LogAggregation(rm.ApplicationID) string { return "SUCCEEDED" }

func (c *fakeCluster) Liveness(rm.NodeID) Liveness {
	l := Liveness{Open: true, Heard: time.Now(), Memory: map[rm.ContainerID]int64{{}: 64 << 20}, GPUs: map[string]GPULoad{}, Uses: map[rm.ContainerID][]GPUUse{}}
	for uuid, id := range c.state.View().Holders() {
		busy := 37.5
		l.GPUs[uuid] = GPULoad{Utilization: &busy, MemoryUsed: 1 << 30, Power: 321}
		l.Uses[id] = append(l.Uses[id], GPUUse{UUID: uuid, Held: 2_700_000, Busy: 1000, MemoryPeak: 2 << 30, Energy: 7200, Idle: 2_640_000, Unused: uuid == "GPU-1"})
	}
	return l
}

// fill makes applications in the states that the recorded answers show: one running with a worker, one waiting, one
// finished.
func (c *fakeCluster) fill() (running rm.ApplicationID) {
	n := &rm.Node{
		ID: "host.example:8041", Incarnation: "i", Host: "host.example", HTTP: "host.example:8042", Rack: "/default-rack", Version: "1",
		Labels: []string{"h100"}, State: rm.NodeRunning, Capacity: rm.Resource{Memory: 8192 * rm.MiB, VCores: 16, GPUs: 8},
	}
	n.Attributes, _ = rm.NewAttributes(map[string]string{"gpu_driver": "570", "rm.yarn.io/zone": "a"})
	for i := range 8 {
		n.GPUs = append(n.GPUs, rm.GPU{UUID: fmt.Sprint("GPU-", i)})
	}
	c.do(&statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: 1, Node: state.Node(n)}}})
	ann := metadata.Caller{User: "alice"}
	submit := func() rm.ApplicationID {
		id, _, err := c.Submit(context.Background(), ann, Submission{Name: "ds-gpu", Queue: "root.prod.a", Type: "YARN", Kind: rm.KindCommand, Priority: 1, Document: []byte(`{}`)})
		if err != nil {
			c.t.Fatal(err)
		}
		return id
	}
	grant := func(id rm.ApplicationID, ask string, r rm.Resource, gpus ...string) rm.ContainerID {
		g := c.do(&statepb.Command{Op: &statepb.Command_Grant{Grant: &statepb.Grant{Epoch: 1, Groups: []*statepb.Group{{
			Application: state.ApplicationID(id), Attempt: 1,
			Ask: ask, Placements: []*statepb.Placement{{Node: string(n.ID), Resource: state.Resource(r), Gpus: gpus}},
		}}}}}).Groups[0]
		if len(g.Containers) != 1 {
			c.t.Fatal(g.Reason)
		}
		c.do(&statepb.Command{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{
			Epoch: 1, Node: string(n.ID), Incarnation: "i",
			Statuses: []*statepb.Status{{Container: state.ContainerID(g.Containers[0]), State: string(rm.ContainerRunning)}},
		}}})
		return g.Containers[0]
	}
	master := rm.Resource{Memory: 512 * rm.MiB, VCores: 1}
	done := submit()
	grant(done, "", master)
	e := c.register(done, "")
	c.do(&statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: state.ApplicationID(done), Attempt: 1, Epoch: e, Final: "SUCCEEDED"}}})
	running = submit()
	grant(running, "", master)
	e = c.register(running, "")
	worker := rm.Resource{Memory: 128 * rm.MiB, VCores: 1, GPUs: 2}
	c.do(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
		Application: state.ApplicationID(running), Attempt: 1, Epoch: e, Sequence: 1,
		Asks: []*statepb.WantedAsk{{Ask: state.Ask(rm.Ask{ID: "w", Resource: worker, Count: 1}), Launch: &statepb.Launch{Argv: []string{"x"}}}},
	}}})
	grant(running, "w", worker, "GPU-0", "GPU-1")
	return running
}

func (c *fakeCluster) register(id rm.ApplicationID, http string, certificate ...byte) uint64 {
	return c.do(&statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{
		Application: state.ApplicationID(id), Attempt: 1, Http: http, HttpCertificate: certificate,
	}}}).Epoch
}

// call is a request to a server on loopback; the answer's body is text.
func call(t *testing.T, server *httptest.Server, method, path, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequest(method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(b)
}

func serve(t *testing.T, c *fakeCluster, logs Logs) *httptest.Server {
	s := httptest.NewServer(New(Config{Cluster: c, Door: security.NewDoor(security.Config{}), Logs: logs}))
	t.Cleanup(s.Close)
	return s
}

func TestBeansAreThoseOfHadoop(t *testing.T) {
	c := newFakeCluster(t)
	c.fill()
	s := serve(t, c, nil)
	jmxtest.Check(t, strings.TrimPrefix(s.URL, "http://"), "Hadoop:service=ResourceManager,name=ClusterMetrics", "java.lang:type=Memory")
}

func TestEveryRouteHasARight(t *testing.T) {
	c := newFakeCluster(t)
	c.fill()
	api := New(Config{Cluster: c, Door: security.NewDoor(security.Config{})})
	s := httptest.NewServer(api)
	defer s.Close()
	for _, r := range api.routes {
		if !r.Right.Valid() || r.handle == nil {
			t.Errorf("%s %s has no right", r.Method, r.Path)
		}
		if r.Method == "GET" || r.Method == "HEAD" {
			continue
		}
		if r.Right != security.Named && r.Right != security.Owner && r.Right != security.Superuser {
			t.Errorf("%s %s changes something with the right to read", r.Method, r.Path)
		}
		// Nobody in particular may change nothing.
		path := strings.NewReplacer("{app}", "application_1_0001", "{containerid}", "container_1_0001_01_000001", "{rest...}", "x").Replace(r.Path)
		for _, who := range []string{"", "?user.name=dr.who"} {
			if code, _, body := call(t, s, r.Method, path+who, "{}"); code != http.StatusForbidden {
				t.Errorf("%s %s%s as nobody: %d %s", r.Method, path, who, code, body)
			}
		}
	}
}

// vectors is where the recorded answers of Hadoop 3.4.1 lie, as this package's testdata.
const vectors = "testdata/yarn"

// What the recordings (TestRecordedExchanges) have no case of.
func TestBadSubmissionsOfYARN(t *testing.T) {
	c := newFakeCluster(t)
	c.fill()
	s := serve(t, c, nil)
	if code, _, body := call(t, s, "GET", "/ws/v1/cluster/nosuch", ""); code != 404 || !strings.Contains(body, "<html") {
		t.Errorf("unknown path: %d %s", code, body)
	}
	overflow := `{"application-id": "application_1_0013", "am-container-spec": {"commands": {"command": "x"}}, "resource": {"memory": 17592186044417}}`
	if code, _, body := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", overflow); code != 400 || !strings.Contains(body, "resources.memory") {
		t.Errorf("memory that overflows: %d %s", code, body)
	}
	for _, bad := range []string{`{"application-id": "application_1_0012", "queue": "a", "queue": "b"}`, "{\"application-name\": \"\xff\"}"} {
		if code, _, body := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", bad); code != 400 || !strings.Contains(body, "UnmarshalException") || !strings.Contains(body, "line 1, column") {
			t.Errorf("%q: %d %s", bad, code, body)
		}
	}
	if code, _, body := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", "a=b", "Content-Type", "application/x-www-form-urlencoded"); code != 503 || !strings.Contains(body, "WebApplicationException") {
		t.Errorf("a form: %d %s", code, body)
	}
}

func TestYARNSubmissionsBecomeMasters(t *testing.T) {
	c := newFakeCluster(t)
	c.fill()
	s := serve(t, c, nil)
	for _, vector := range []string{"086-submit-minimal", "085-submit-same-id-again", "097-submit-unknown-field", "092-submit-unknown-queue", "089-submit-unallocated-id", "098-submit-no-amspec"} {
		b, err := os.ReadFile(filepath.Join(vectors, vector+".http"))
		if err != nil {
			t.Fatal(err)
		}
		request, _, _ := strings.Cut(string(b), "\n\nHTTP/1.1 ")
		_, body, _ := strings.Cut(request, "\n\n")
		for range 2 { // a known id is accepted again
			code, header, have := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", body)
			if code != http.StatusAccepted || have != "" || !strings.Contains(header.Get("Location"), "/ws/v1/cluster/apps/application_") {
				t.Errorf("%s: %d %s %v", vector, code, have, header)
			}
		}
	}
	app := func(id string) *rm.Application {
		k, err := rm.ParseApplicationID(id)
		if err != nil {
			t.Fatal(err)
		}
		return c.View().Application(k)
	}
	if a := app("application_1795248047013_0007"); a.State != rm.StateAccepted || a.Queue != "root.default" || a.Name != "rest-sleep" || a.Priority != -1 || !strings.Contains(string(a.Document), `"argv":["sleep 120"]`) || a.Kind != rm.KindMaster {
		t.Errorf("minimal: %+v %s", a, a.Document)
	}
	a := app("application_1795248047013_0006")
	for _, want := range []string{`"gpus":1`, `"memory":536870912`, `"AppMaster.jar"`, `"CLASSPATH"`, "DISTRIBUTEDSHELLSCRIPTLEN"} {
		if !strings.Contains(string(a.Document), want) {
			t.Errorf("document lacks %s: %s", want, a.Document)
		}
	}
	if a.Type != "YARN" || strings.Join(a.Tags, ",") != "taga,tagb" || a.Priority != 2 {
		t.Errorf("%+v", a)
	}
	if a := app("application_1795248047013_0010"); a.State != rm.StateFailed || a.Diagnostics != "Application application_1795248047013_0010 submitted by user alice to unknown queue: nosuch" {
		t.Errorf("unknown queue: %+v", a)
	}
	code, header, body := call(t, s, "PUT", "/ws/v1/cluster/apps/application_1795248047013_0007/state?user.name=alice", `{"state":"KILLED","diagnostics":"test kill"}`)
	if code != http.StatusAccepted || body != `{"state":"KILLED"}` || header.Get("Location") == "" {
		t.Errorf("kill: %d %s", code, body)
	}
	if code, _, body := call(t, s, "PUT", "/ws/v1/cluster/apps/application_1795248047013_0007/state?user.name=alice", `{"state":"KILLED"}`); code != 200 || body != `{"state":"KILLED"}` {
		t.Errorf("again: %d %s", code, body)
	}
	if a := app("application_1795248047013_0007"); !strings.Contains(a.Diagnostics, "test kill") {
		t.Errorf("%+v", a)
	}
}

func TestJobsAnswerProblems(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	s := serve(t, c, nil)
	for _, test := range []struct {
		method, path, body string
		code               int
		detail             string
	}{
		{"POST", "/api/v1/jobs?user.name=ann", `{`, 400, "cannot be read"},
		{"POST", "/api/v1/jobs?user.name=ann", ``, 415, "Content-Type: application/json"},
		{"POST", "/api/v1/jobs?user.name=ann", ` `, 400, "not a JSON object"},
		{"POST", "/api/v1/jobs?user.name=ann", `{"argv":["a"],"queue":"default","queue":"b"}`, 400, `line 1, column 39: \"queue\" is there twice`},
		{"POST", "/api/v1/jobs?user.name=ann", "{\"argv\":[\"a\"],\"name\":\"\xff\"}", 400, "byte 0xff is not UTF-8"},
		{"POST", "/api/v1/jobs?user.name=ann", `{"argv":["a"],"queue":"nosuch"}`, 400, `no queue \"nosuch\"`},
		{"POST", "/api/v1/jobs?user.name=ann&dry_run=maybe", `{"argv":["a"]}`, 400, "neither true nor false"},
		{"POST", "/api/v1/jobs", `{"argv":["a"]}`, 403, "user.name"},
		{"GET", "/api/v1/jobs/application_1_0404", "", 404, "no job"},
		{"GET", "/api/v1/jobs/x", "", 400, "Invalid ApplicationId"},
		{"GET", "/api/v1/jobs?limit=0", "", 400, "limit"},
		{"GET", "/api/v1/jobs?state=busy", "", 400, "state"},
		{"GET", "/api/v1/nosuch", "", 404, "nothing is served"},
		{"PATCH", "/api/v1/jobs", "", 405, "PATCH"},
		{"GET", "/api/v1/jobs/" + running.String() + "/logs?user.name=alice", "", 400, "no file system"},
		{"GET", "/api/v1/jobs/" + running.String() + "/logs?user.name=eve", "", 403, "belongs to alice"},
		{"DELETE", "/api/v1/jobs/application_1_0404?user.name=ann", "", 404, "no job"},
	} {
		code, header, body := call(t, s, test.method, test.path, test.body)
		if code != test.code || header.Get("Content-Type") != "application/problem+json" || !strings.Contains(body, test.detail) {
			t.Errorf("%s %s: %d %s %s", test.method, test.path, code, header.Get("Content-Type"), body)
		}
	}
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json5", "application/jsonx", ";"} {
		if code, _, body := call(t, s, "POST", "/api/v1/jobs?user.name=ann", `{"argv":["a"]}`, "Content-Type", kind); code != 415 {
			t.Errorf("%s: %d %s", kind, code, body)
		}
	}
	if code, _, body := call(t, s, "POST", "/api/v1/jobs?user.name=ann", `{"argv":["a"]}`, "Content-Type", "Application/JSON; charset=utf-8"); code != 201 {
		t.Errorf("with a character set: %d %s", code, body)
	}
	huge := `{"argv":["` + strings.Repeat("a", 3<<20) + `"]}`
	if code, _, _ := call(t, s, "POST", "/api/v1/jobs?user.name=ann", huge); code != 400 {
		t.Errorf("a huge body: %d", code)
	}
}

func TestWhatAProgramPrintedIsForThoseWhoMayReadItsLogs(t *testing.T) {
	c := newFakeCluster(t)
	s := serve(t, c, nil)
	id, _, err := c.Submit(t.Context(), metadata.Caller{User: "alice"}, Submission{Name: "j", Queue: "default", Kind: rm.KindCommand, Document: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	c.Kill(t.Context(), id, "exit code 3\nLast bytes of stderr:\npassword=42")
	for _, path := range []string{
		"/api/v1/jobs", "/api/v1/jobs/" + id.String(), "/ws/v1/cluster/apps", "/ws/v1/cluster/apps/" + id.String(),
		"/ws/v1/cluster/apps/" + id.String() + "/appattempts", "/proxy/" + id.String() + "/",
	} {
		for who, sees := range map[string]bool{"": false, "?user.name=eve": false, "?user.name=alice": !strings.HasSuffix(path, "appattempts")} {
			if _, _, body := call(t, s, "GET", path+who, ""); strings.Contains(body, "password") != sees || sees && !strings.Contains(body, "exit code 3") {
				t.Errorf("%s%s: %s", path, who, body)
			}
		}
	}
}

// Unlike in YARN, where the resource manager itself is the caller, only those who may end the application may signal its
// containers (recorded answers 191 and 192).
func TestContainersAreSignalledByTheirOwners(t *testing.T) {
	c := newFakeCluster(t)
	s := serve(t, c, nil)
	running := c.fill()
	var id rm.ContainerID
	for _, k := range c.View().Containers(running) {
		if k.Live() {
			id = k.ID
		}
	}
	path := func(container, command, user string) string {
		return "/ws/v1/cluster/containers/" + container + "/signal/" + command + "?user.name=" + user
	}
	for _, test := range []struct {
		path, body string
		code       int
	}{
		{path(id.String(), "GRACEFUL_SHUTDOWN", "eve"), "Unauthorized attempt", 403},
		{path(id.String(), "GRACEFUL_SHUTDOWN", "dr.who"), "", 403},
		{path(id.String(), "bogus", "alice"), "Invalid command: BOGUS, valid commands are: [OUTPUT_THREAD_DUMP, GRACEFUL_SHUTDOWN, FORCEFUL_SHUTDOWN]", 400},
		{path("container_1_0999_01_000001", "GRACEFUL_SHUTDOWN", "alice"), "Trying to signal an absent container container_1_0999_01_000001", 500},
		{path("container_1", "GRACEFUL_SHUTDOWN", "alice"), "Invalid ContainerId: container_1", 400},
		{path(id.String(), "graceful_shutdown", "alice"), "", 200},
		{path(id.String(), "OUTPUT_THREAD_DUMP", "alice"), "", 200},
		{path(id.String(), "FORCEFUL_SHUTDOWN", "alice"), "", 200},
	} {
		code, _, body := call(t, s, "POST", test.path, "")
		if code != test.code || !strings.Contains(body, test.body) || code == 200 && body != "" {
			t.Errorf("%s: %d %q", test.path, code, body)
		}
	}
	if want := []string{id.String() + " terminated", id.String() + " quit", id.String() + " killed"}; !slices.Equal(c.signals, want) {
		t.Errorf("signals: %q, want %q", c.signals, want)
	}
}

func TestIdempotencyKey(t *testing.T) {
	c := newFakeCluster(t)
	s := serve(t, c, nil)
	post := func(body string) (int, string) {
		code, _, answer := call(t, s, "POST", "/api/v1/jobs?user.name=ann", body, "Idempotency-Key", "k1")
		return code, answer
	}
	code, first := post(`{"argv":["a"]}`)
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, first)
	}
	if code, again := post(`{"argv":["a"]}`); code != http.StatusOK || again != first {
		t.Errorf("again: %d %s", code, again)
	}
	if code, other := post(`{"argv":["b"]}`); code != http.StatusUnprocessableEntity || !strings.Contains(other, "idempotency-key-reused") {
		t.Errorf("other body: %d %s", code, other)
	}
}

func TestFollowersSendToTheLeader(t *testing.T) {
	c := newFakeCluster(t)
	c.leading = false
	s := serve(t, c, nil)
	if code, header, body := call(t, s, "GET", "/ws/v1/cluster/apps?limit=1", ""); code != 503 || header.Get("Retry-After") == "" || !strings.Contains(body, "no leader is known") {
		t.Errorf("without a leader: %d %s", code, body)
	}
	d, err := openapitest.Parse(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if code, header, body := call(t, s, "GET", "/api/v1/jobs", ""); code != 503 || header.Get("Retry-After") == "" || header.Get("Content-Type") != "application/problem+json" ||
		!strings.Contains(body, `"urn:hops:no-leader"`) || d.Check("GET", "/api/v1/jobs", code, nil, []byte(body)) != nil {
		t.Errorf("without a leader: %d %v %s", code, header, body)
	}
	c.leader = "127.0.0.1:8088"
	if code, header, body := call(t, s, "GET", "/api/v1/jobs?limit=1", ""); code != 307 || header.Get("Location") != "http://127.0.0.1:8088/api/v1/jobs?limit=1" || header.Get("Content-Type") != "" || body != "" ||
		d.Check("GET", "/api/v1/jobs", code, nil, nil) != nil {
		t.Errorf("%d %v %q", code, header, body)
	}
	code, header, body := call(t, s, "PUT", "/ws/v1/cluster/apps/application_1_0001/state?user.name=ann", "{}")
	if code != 307 || header.Get("Location") != "http://127.0.0.1:8088/ws/v1/cluster/apps/application_1_0001/state?user.name=ann" || !strings.HasPrefix(body, "This is standby RM.") {
		t.Errorf("%d %v %s", code, header, body)
	}
	if code, _, body := call(t, s, "GET", "/isActive", ""); code != 405 {
		t.Errorf("isActive: %d %s", code, body)
	}
	if code, _, _ := call(t, s, "GET", "/livez", ""); code != 200 {
		t.Errorf("livez: %d", code)
	}
}

func TestNodesQueuesAndGrants(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	s := serve(t, c, nil)
	var nodes struct{ Nodes []NodeView }
	_, _, body := call(t, s, "GET", "/api/v1/nodes", "")
	if err := json.Unmarshal([]byte(body), &nodes); err != nil || len(nodes.Nodes) != 1 || nodes.Nodes[0].GPUs[0].Container == "" || nodes.Nodes[0].GPUs[2].Container != "" {
		t.Errorf("%v %s", err, body)
	}
	var queues struct{ Root QueueView }
	_, _, body = call(t, s, "GET", "/api/v1/queues", "")
	if err := json.Unmarshal([]byte(body), &queues); err != nil || len(queues.Root.Children) != 3 || queues.Root.Used.GPUs != 2 {
		t.Errorf("%v %s", err, body)
	}
	_, _, body = call(t, s, "GET", "/api/v1/grants?application="+running.String(), "")
	if !strings.Contains(body, `"gpus":["GPU-0","GPU-1"]`) {
		t.Error(body)
	}
	if a := nodes.Nodes[0].Attributes; len(a) != 2 || a["gpu_driver"] != "570" {
		t.Errorf("attributes: %v", a)
	}
	const attributes = `"nodeAttributesInfo":{"nodeAttributeInfo":[{"prefix":"nm.yarn.io","name":"gpu_driver","type":"STRING","value":"570"},{"prefix":"rm.yarn.io","name":"zone","type":"STRING","value":"a"}]}`
	if _, _, body := call(t, s, "GET", "/ws/v1/cluster/nodes", ""); !strings.Contains(body, attributes) {
		t.Errorf("YARN's view: %s", body)
	}
	if _, _, body := call(t, s, "GET", "/ws/v1/cluster/nodes?states=lost", ""); body != `{"nodes":{}}` {
		t.Error(body)
	}
	if _, _, body := call(t, s, "GET", "/ws/v1/cluster/apps?user=nobody", ""); body != `{"apps":{}}` {
		t.Error(body)
	}
}

// someLogs holds log files in memory.
type someLogs map[string]string

func (l someLogs) List(_ context.Context, user, dir string) ([]LogFile, error) {
	var out []LogFile
	for _, p := range sortedKeys(l) {
		if strings.HasPrefix(p, dir+"/") {
			out = append(out, LogFile{Path: p, Size: int64(len(l[p]))})
		}
	}
	if out == nil {
		return nil, metadata.Errorf(metadata.ErrNotExist, "no %s", dir)
	}
	return out, nil
}

func (l someLogs) Open(_ context.Context, user, path string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(l[path])), nil
}

func TestLogs(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	worker := c.View().Containers(running)[1].ID.String()
	dir := "/logs/alice/" + running.String() + "/" + worker
	logs := someLogs{dir + "/stdout": "hello\n", dir + "/stderr": "oh\n", dir + "/stdout@0000000000001024": "again\n"}
	s := serve(t, c, logs)
	at := "/api/v1/jobs/" + running.String() + "/logs?user.name=alice"
	if code, _, body := call(t, s, "GET", at, ""); code != 200 || !strings.Contains(body, "LogType:stdout") || !strings.Contains(body, "hello\n") ||
		!strings.Contains(body, "Container: "+worker+" on host.example:8041") {
		t.Errorf("%d %s", code, body)
	}
	if _, _, body := call(t, s, "GET", at+"&file=stderr&container="+worker, ""); strings.Contains(body, "hello") || !strings.Contains(body, "oh") {
		t.Error(body)
	}
	if _, _, body := call(t, s, "GET", at+"&list=true", ""); !strings.Contains(body, `"file":"stderr"`) {
		t.Error(body)
	}
	if _, _, body := call(t, s, "GET", at+"&file=stdout", ""); !strings.Contains(body, "hello") || !strings.Contains(body, "LogType:stdout@0000000000001024") || strings.Contains(body, "oh") {
		t.Errorf("a log in pieces: %s", body)
	}
	if code, _, _ := call(t, s, "GET", at+"&file=nosuch", ""); code != 404 {
		t.Errorf("no such file: %d", code)
	}
	if code, _, _ := call(t, s, "GET", "/api/v1/jobs/"+running.String()+"/logs?user.name=boss", ""); code != 200 {
		t.Errorf("the queue's administrator: %d", code)
	}
}

// gone is the address of a server that is there no more, which nobody else gets meanwhile: the port is bound, and not listened on.
func gone(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

// master is an application's HTTP server, as users reach it through the proxy.
func TestProxy(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	type seen struct {
		path, query        string
		signed             bool
		user, prefix, fake string
	}
	key := c.ProxyKey(nil)
	var admission security.Admission
	requests := make(chan seen, 16)
	release := make(chan struct{})
	master := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sig, ok := security.ParseSignature(r)
		ok = ok && key.Signed(r, r.Context().Value(http.LocalAddrContextKey).(net.Addr).String(), sig) && admission.Admit(sig.Number, time.Now()) == nil
		for _, values := range r.Header {
			for _, v := range values { // neither the container's token nor the user's
				ok = ok && !strings.Contains(v, "token") && !strings.Contains(v, "Bearer")
			}
		}
		requests <- seen{r.URL.EscapedPath(), r.URL.RawQuery, ok, r.Header.Get(security.UserHeader), r.Header.Get(PrefixHeader), r.Header.Get("X-Hops-Forged")}
		if strings.HasSuffix(r.URL.Path, "/events") {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-release
			io.WriteString(w, "data: 2\n\n")
			return
		}
		b, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s", r.Method, b)
	}))
	defer master.Close()
	sign, users := securitytest.Tokens(t)
	s := httptest.NewServer(New(Config{Cluster: c, Door: security.NewDoor(security.Config{Users: users})}))
	defer s.Close()
	bearer := "Bearer " + sign("alice", 12*time.Hour)
	prefix := "/proxy/" + running.String()
	if code, _, body := call(t, s, "GET", prefix+"/", ""); code != 404 || !strings.Contains(body, "serves no HTTP") {
		t.Errorf("a master without HTTP: %d %s", code, body)
	}
	c.register(running, strings.TrimPrefix(master.URL, "http://"))
	code, _, body := call(t, s, "POST", prefix+"/v1/a%2Fb?user.name=alice&x=1&&doas=&User%2EName=alice&y=a%26b", "hello", "X-Hops-User", "root", "X-Hops-Forged", "1", "Authorization", bearer)
	if code != http.StatusTeapot || body != "POST hello" {
		t.Errorf("%d %s", code, body)
	}
	if got := <-requests; got != (seen{"/v1/a%2Fb", "x=1&y=a%26b", true, "alice", prefix, ""}) {
		t.Errorf("the master saw %+v", got)
	}
	for token, want := range map[string]int{"Bearer " + sign("eve", 12*time.Hour): 403, "Bearer " + sign("alice", time.Minute): 401, "Bearer forged": 401} {
		if code, _, body := call(t, s, "POST", prefix+"/v1/stop", "{}", "Authorization", token); code != want {
			t.Errorf("a token that is not the owner's, or not good: %d %s, want %d", code, body, want)
		}
	}
	if code, _, _ := call(t, s, "POST", prefix+"/v1/stop?user.name=eve", "{}"); code != 403 {
		t.Errorf("another user changes something: %d", code)
	}
	if code, _, _ := call(t, s, "GET", prefix+"/v1/status", ""); code != http.StatusTeapot || (<-requests).user != "dr.who" {
		t.Errorf("anybody reads: %d", code)
	}
	// Events arrive when they happen.
	response, err := http.Get(s.URL + prefix + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	first := make([]byte, len("data: 1\n\n"))
	if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "data: 1\n\n" {
		t.Errorf("%q %v", first, err)
	}
	close(release)
	if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != "data: 2\n\n" {
		t.Errorf("%q %v", rest, err)
	}
	c.register(running, gone(t))
	if code, _, body := call(t, s, "GET", prefix+"/v1/status", ""); code != 503 || !strings.Contains(body, "does not answer") {
		t.Errorf("a master that is gone: %d %s", code, body)
	}
	waiting, _, err := c.Submit(t.Context(), metadata.Caller{User: "alice"}, Submission{Name: "w", Queue: "default", Kind: rm.KindCommand, Document: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	c.waiting = []Waiting{{Reason: rm.Reason{Code: rm.ReasonNoNodes, Text: "no node manager has registered"}}}
	if code, _, body := call(t, s, "GET", "/proxy/"+waiting.String()+"/", ""); code != 503 || !strings.Contains(body, "no node manager has registered") {
		t.Errorf("a master that waits: %d %s", code, body)
	}
	c.Kill(t.Context(), waiting, "enough")
	if code, _, body := call(t, s, "GET", "/proxy/"+waiting.String()+"/", ""); code != 404 || !strings.Contains(body, "has ended (KILLED") {
		t.Errorf("one that has ended: %d %s", code, body)
	}
	if code, _, _ := call(t, s, "GET", "/proxy/application_1_0404/", ""); code != 404 {
		t.Errorf("unknown: %d", code)
	}
}

// Credentials of a submission reach the master as a file of Hadoop's; what is none is refused, and so are services that there are not.
func TestCredentialsOfASubmission(t *testing.T) {
	c := newFakeCluster(t)
	c.fill()
	s := serve(t, c, nil)
	shown := token.Token{Identifier: []byte("id"), Password: []byte{0xfb, 0xff}, Kind: "other", Service: "elsewhere:1"}
	submit := func(n int, spec string) (int, string) {
		code, _, body := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice",
			fmt.Sprintf(`{"application-id":"application_1795248047013_%04d","am-container-spec":{"commands":{"command":"true"},%s},"resource":{"memory":512,"vCores":1}}`, n, spec))
		return code, body
	}
	entries := func(tokens, secrets string) string {
		return `"credentials":{"tokens":{"entry":[` + tokens + `]},"secrets":{"entry":[` + secrets + `]}}`
	}
	good := entries(`{"key":"mine","value":"`+shown.Text()+`"}`, `{"key":"a","value":"-_8="},{"key":"b","value":"+/8"}`)
	if code, body := submit(4001, good); code != http.StatusAccepted {
		t.Fatalf("%d %s", code, body)
	}
	f, err := token.ParseFile(c.tokens)
	if err != nil || len(f.Tokens) != 1 || len(f.Secrets) != 2 || f.Tokens[0].Alias != "mine" || f.Tokens[0].Token.Text() != shown.Text() ||
		string(f.Secrets[0].Secret) != "\xfb\xff" || string(f.Secrets[1].Secret) != "\xfb\xff" {
		t.Errorf("%v %v", f, err)
	}
	if code, body := submit(4002, entries("", "")); code != http.StatusAccepted || c.tokens != nil {
		t.Errorf("none: %d %s %v", code, body, c.tokens)
	}
	for spec, want := range map[string]string{
		entries(`{"key":"mine","value":"AAAA!"}`, ""):                           "credentials: token mine: malformed token",
		entries("", `{"key":"a","value":"?"}`):                                  "credentials: secret a is not base64",
		`"service-data":{"entry":[{"key":"mapreduce_shuffle","value":"AAAA"}]}`: "The auxService:mapreduce_shuffle does not exist",
	} {
		if code, body := submit(4003, spec); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", spec, code, body)
		}
	}
}
