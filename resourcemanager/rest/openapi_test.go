package rest

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/rest/openapitest"
)

var update = flag.Bool("update", false, "write openapi.json anew")

// operation describes one route. The types are those of the bodies; nil: there is none.
type operation struct {
	summary  string
	request  any
	answers  map[int]any // by status; text: of that media type
	query    []string    // "name: what it is"
	headers  []string
	requires []string // media type of a request that is no JSON
}

type media string

type (
	created struct {
		ID string `json:"id"`
	}
	stopped struct{ ID, State string }
	named   struct {
		Name string `json:"name"`
	}
	nothing struct{}
)

func (stopped) schema() any {
	return object(map[string]any{"id": text, "state": text}, "id", "state")
}

func list[T any](name string) any {
	return map[string]any{"type": "object", "required": []string{name}, "properties": map[string]any{name: []T(nil)}}
}

// queueQuery are what changes of queues take.
var queueQuery = []string{"dry_run: true: change nothing, and say what would be affected", "force: true: although applications are affected", "version: of the queues that are to be changed"}

// operations are all of /api/v1. A route that is not here, and one that is no route, fails TestOpenAPI.
var operations = map[string]operation{
	"GET /api/v1/openapi.json": {summary: "This document", answers: map[int]any{200: media("application/json")}},

	"POST /api/v1/jobs": {summary: "Submit a job", request: job.Spec{}, answers: map[int]any{201: created{}, 200: map[string]any{"anyOf": []any{created{}, Planned{}}}}, query: []string{"dry_run: true: submit nothing, and say what would be placed where now"}, headers: []string{"Idempotency-Key: a repeat answers the same job"}},
	"GET /api/v1/jobs": {
		summary: "List jobs, newest first", answers: map[int]any{200: list[Job]("jobs")},
		query: []string{"limit: how many at most, 1 to 10000, default 1000", "state: in YARN's words, with commas", "user: of one user", "queue: of one queue"},
	},
	"GET /api/v1/jobs/{app}":         {summary: "A job with its containers", answers: map[int]any{200: Job{}}},
	"GET /api/v1/jobs/{app}/explain": {summary: "Why a job waits, who holds what it waits for, and what would start now; or what it has", answers: map[int]any{200: ExplainedJob{}}},
	"DELETE /api/v1/jobs/{app}":      {summary: "End a job", answers: map[int]any{202: stopped{}}, query: []string{"reason: shown to users"}},
	"GET /api/v1/jobs/{app}/logs": {
		summary: "What the containers of a job have written, or the names of these files", answers: map[int]any{200: media("text/plain")},
		query: []string{"list: true for the names, as JSON", "container: of one container", "file: of one name, with the later pieces NAME@OFFSET of one that was rolled"},
	},

	"POST /api/v1/jobs/{app}/resize":                  {summary: "Give a command another number of instances: those with larger numbers go, with a notice. A repeat is no error", request: Size{}, answers: map[int]any{200: Resized{}}},
	"GET /api/v1/jobs/{app}/members":                  {summary: "The members of an array, or the instances of a command, with their containers", answers: map[int]any{200: list[Member]("members")}},
	"GET /api/v1/jobs/{app}/members/{numbers}":        {summary: "Some of them: 7, 3-9 or 1,3-9", answers: map[int]any{200: list[Member]("members")}},
	"DELETE /api/v1/jobs/{app}/members/{numbers}":     {summary: "End members of an array for good, also those that wait. What has succeeded stays so", answers: map[int]any{200: list[Member]("members")}, query: []string{"reason: shown to users"}},
	"POST /api/v1/jobs/{app}/members/{numbers}/retry": {summary: "Have members of an array run again that have failed or were killed, with all their tries", answers: map[int]any{200: list[Member]("members")}},

	"PUT " + attemptPath + "/registration": {summary: "Begin an attempt. A repeat answers the same", request: Registration{}, answers: map[int]any{200: Registered{}}},
	"POST " + attemptPath + "/requests": {
		summary: "Ask for containers, cancel asks, release containers, acknowledge events. An empty request is a sign of life", request: MasterRequest{},
		answers: map[int]any{200: nothing{}}, headers: []string{"Idempotency-Key: a number, larger with each request of the attempt; one that is not has no effect again"},
	},
	"GET " + attemptPath + "/asks":                                 {summary: "What is not granted yet, and why", answers: map[int]any{200: Asks{}}},
	"PATCH " + attemptPath + "/asks/{ask}":                         {summary: "Change how many containers an ask still wants", request: AskSize{}, answers: map[int]any{200: nothing{}}},
	"GET " + attemptPath + "/containers":                           {summary: "The application's containers, 1000 a page", answers: map[int]any{200: MasterContainers{}}, query: []string{"after: the last container of the page before"}},
	"PATCH " + attemptPath + "/containers/{container}":             {summary: "Not supported: always a problem", answers: map[int]any{}},
	"POST " + attemptPath + "/containers/{container}/checkpointed": {summary: "Say that a container has saved its work: by its master, or its own program with its token. One that is to go is ended then", request: Saved{}, answers: map[int]any{200: struct{}{}}},
	"POST " + attemptPath + "/launches":                            {summary: "Say what runs in containers that are held. The same again is no error", request: Launches{}, answers: map[int]any{200: Launched{}}},
	"GET " + attemptPath + "/events": {
		summary: "What happens to the application: one answer when there is something, or with Accept: text/event-stream a stream of server-sent events with the same data", answers: map[int]any{200: Events{}},
		query: []string{"after: events up to it are handled, and not repeated", "wait: how long to wait for one, up to 60s, default 30s"}, headers: []string{"Last-Event-ID: as after"},
	},
	"PUT " + attemptPath + "/result": {summary: "End the application. A repeat is no error", request: Result{}, answers: map[int]any{200: nothing{}}},

	"GET /api/v1/secrets":           {summary: "The names of the caller's secrets", answers: map[int]any{200: list[SecretInfo]("secrets")}},
	"PUT /api/v1/secrets/{name}":    {summary: "Keep a secret", requires: []string{"application/octet-stream"}, answers: map[int]any{200: named{}}},
	"DELETE /api/v1/secrets/{name}": {summary: "Forget a secret", answers: map[int]any{200: named{}}},

	"GET /api/v1/nodes":             {summary: "Nodes with their GPUs", answers: map[int]any{200: list[NodeView]("nodes")}},
	"GET /api/v1/queues":            {summary: "The tree of queues", answers: map[int]any{200: QueuesView{}}},
	"PUT /api/v1/queues":            {summary: "Replace all queues", request: rm.QueueConfig{}, answers: map[int]any{200: QueueChange{}}, query: queueQuery},
	"PATCH /api/v1/queues":          {summary: "Change several queues at once: paths with changes as of one, null takes a queue away", request: map[string]any{"type": "object"}, answers: map[int]any{200: QueueChange{}}, query: queueQuery},
	"GET /api/v1/queues/{queue}":    {summary: "A queue", answers: map[int]any{200: QueueView{}}},
	"PUT /api/v1/queues/{queue}":    {summary: "Make or replace a queue", request: rm.QueueConfig{}, answers: map[int]any{200: QueueChange{}}, query: queueQuery},
	"PATCH /api/v1/queues/{queue}":  {summary: "Change a queue: members that are not there stay, null takes one back to its default", request: map[string]any{"type": "object"}, answers: map[int]any{200: QueueChange{}}, query: queueQuery},
	"DELETE /api/v1/queues/{queue}": {summary: "Take a queue away that is stopped and empty", answers: map[int]any{200: QueueChange{}}, query: queueQuery},
	"GET /api/v1/grants":            {summary: "The ledger of GPUs: who had which, from when to when", answers: map[int]any{200: list[GrantView]("grants")}, query: []string{"application: of one application"}},
	"GET /api/v1/groups/{user}":     {summary: "A user's groups, as this resource manager knows them", answers: map[int]any{200: Groups{}}},

	"GET /api/v1/resourcemanagers":         {summary: "The members of the resource managers' group", answers: map[int]any{200: list[MemberView]("members")}},
	"PUT /api/v1/resourcemanagers/{id}":    {summary: "Make a resource manager a member", answers: map[int]any{200: nothing{}}, query: []string{"raft: host:port"}},
	"DELETE /api/v1/resourcemanagers/{id}": {summary: "Take a resource manager out of the group", answers: map[int]any{200: nothing{}}},
	"POST /api/v1/leader":                  {summary: "Hand leadership on", answers: map[int]any{200: nothing{}}, query: []string{"to: a member; absent: the best"}},
	"POST /api/v1/backup":                  {summary: "A snapshot of the state", answers: map[int]any{200: media("application/octet-stream")}},

	"POST /api/v1/admin/marks":                {summary: "Set labels and attributes of nodes over those of their node managers", request: MarksRequest{}, answers: map[int]any{200: nothing{}}},
	"POST /api/v1/admin/nodes":                {summary: "Take nodes out of service or back", request: AdminRequest{}, answers: map[int]any{200: AdminAnswer{}}},
	"POST /api/v1/admin/refresh-nodes":        {summary: "Read the list of excluded nodes", answers: map[int]any{200: nothing{}}, query: []string{"timeout_s: for what runs there, default 0"}},
	"PUT /api/v1/admin/nodes/{node}/resource": {summary: "Set what a node has", answers: map[int]any{200: nothing{}}, query: []string{"memory_mib: both 0: as it reports", "vcores: both 0: as it reports"}},
	"POST /api/v1/admin/refresh-queues":       {summary: "Read the queues anew", answers: map[int]any{200: QueueChange{}}, query: []string{"check: true: look only", "force: true: although applications are affected"}},
	"PUT /api/v1/admin/gpus/{uuid}/health":    {summary: "Take a device back into service, or out of it for good", answers: map[int]any{200: nothing{}}, query: []string{"health: HEALTHY or RETIRED"}},
	"POST /api/v1/admin/refresh-groups":       {summary: "Forget users' groups", answers: map[int]any{200: nothing{}}},
	"POST /api/v1/admin/refresh-proxy-users":  {summary: "Read anew who may act for others", answers: map[int]any{200: nothing{}}},
	"POST /api/v1/admin/refresh-superusers":   {summary: "Read anew who is a superuser", answers: map[int]any{200: nothing{}}},
}

var (
	text   = map[string]any{"type": "string"}
	whole  = map[string]any{"type": "integer"}
	number = map[string]any{"type": "number"}
	truth  = map[string]any{"type": "boolean"}
	// byHand are types that read more than one form.
	byHand = map[reflect.Type]any{
		reflect.TypeFor[job.Memory]():      map[string]any{"anyOf": []any{whole, text}, "description": "bytes, or text with a unit: 8GiB"},
		reflect.TypeFor[job.Duration]():    map[string]any{"anyOf": []any{number, text}, "description": "seconds, or text: 2h"},
		reflect.TypeFor[job.Gang]():        map[string]any{"anyOf": []any{truth, whole, text}, "description": "true: all at once or none; so many at least; or MIN..MAX"},
		reflect.TypeFor[json.RawMessage](): map[string]any{},
		reflect.TypeFor[[]byte]():          map[string]any{"type": "string", "contentEncoding": "base64"},
		reflect.TypeFor[rm.FinalStatus]():  map[string]any{"type": "string", "enum": []any{"UNDEFINED", "SUCCEEDED", "FAILED", "KILLED"}},
	}
)

func object(properties map[string]any, required ...string) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

// schemas makes schemas of types.
type schemas map[string]any

func (s schemas) of(v any) any {
	switch v := v.(type) {
	case interface{ schema() any }:
		return v.schema()
	case map[string]any: // by hand, with types in it
		out := map[string]any{}
		for k, e := range v {
			if k == "anyOf" {
				var forms []any
				for _, t := range e.([]any) {
					forms = append(forms, s.of(t))
				}
				e = forms
			}
			if k == "properties" {
				inner := map[string]any{}
				for name, t := range e.(map[string]any) {
					inner[name] = s.of(t)
				}
				e = inner
			}
			out[k] = e
		}
		return out
	}
	return s.typ(reflect.TypeOf(v))
}

func (s schemas) typ(t reflect.Type) any {
	if by, ok := byHand[t]; ok {
		return by
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.typ(t.Elem())
	case reflect.String:
		return text
	case reflect.Bool:
		return truth
	case reflect.Float64, reflect.Float32:
		return number
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return whole
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.typ(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.typ(t.Elem())}
	case reflect.Struct:
		if t.NumField() == 0 {
			return map[string]any{"type": "object"}
		}
		name := strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
		if t == reflect.TypeFor[job.Spec]() {
			name = "JobDocument"
		}
		if _, known := s[name]; !known {
			s[name] = nil // it may hold itself
			properties, required := map[string]any{}, []string{}
			for i := range t.NumField() {
				f := t.Field(i)
				tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
				if !f.IsExported() || tag == "-" {
					continue
				}
				properties[tag] = s.typ(f.Type)
				if options == "" {
					required = append(required, tag)
				}
			}
			s[name] = object(properties, required...)
		}
		return map[string]any{"$ref": "#/components/schemas/" + name}
	}
	panic("no schema for " + t.String())
}

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

// describe makes the document.
func describe() ([]byte, error) {
	all := schemas{}
	problem := map[string]any{"description": "why not (RFC 9457)", "content": map[string]any{"application/problem+json": map[string]any{"schema": all.of(Problem{})}}}
	all["Problem"].(map[string]any)["properties"].(map[string]any)["RemoteException"] = map[string]any{"type": "object", "description": "the same in Hadoop's words, where a token was refused"}
	paths := map[string]any{}
	passed := map[string]bool{} // answered by the leader alone
	for _, r := range New(Config{}).routes {
		passed[r.Method+" "+r.Path] = !r.each && r.Right != security.Open
	}
	for name, op := range operations {
		method, path, _ := strings.Cut(name, " ")
		responses := map[string]any{"default": problem}
		if passed[name] {
			responses["307"], responses["503"] = map[string]any{"$ref": "#/components/responses/leader"}, map[string]any{"$ref": "#/components/responses/noLeader"}
		}
		for code, answer := range op.answers {
			r := map[string]any{"description": http.StatusText(code)}
			if m, ok := answer.(media); ok {
				r["content"] = map[string]any{string(m): map[string]any{}}
			} else {
				r["content"] = map[string]any{"application/json": map[string]any{"schema": all.of(answer)}}
			}
			responses[strings.TrimSpace(string(rune('0'+code/100))+string(rune('0'+code/10%10))+string(rune('0'+code%10)))] = r
		}
		parameters := []any{}
		add := func(in, text string, required bool) {
			name, what, _ := strings.Cut(text, ": ")
			p := map[string]any{"name": name, "in": in, "schema": map[string]any{"type": "string"}}
			if what != "" {
				p["description"] = what
			}
			if required {
				p["required"] = true
			}
			parameters = append(parameters, p)
		}
		for _, m := range pathParameter.FindAllStringSubmatch(path, -1) {
			add("path", m[1], true)
		}
		for _, p := range op.query {
			add("query", p, false)
		}
		for _, p := range op.headers {
			add("header", p, false)
		}
		out := map[string]any{"summary": op.summary, "responses": responses}
		if len(parameters) > 0 {
			out["parameters"] = parameters
		}
		if strings.HasPrefix(path, attemptPath) {
			out["security"] = []any{map[string]any{"token": []string{}}}
		}
		if op.request != nil {
			out["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": map[string]any{"schema": all.of(op.request)}}}
		}
		for _, m := range op.requires {
			out["requestBody"] = map[string]any{"required": true, "content": map[string]any{m: map[string]any{}}}
		}
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path].(map[string]any)[strings.ToLower(method)] = out
	}
	b, err := json.MarshalIndent(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "hops resource manager", "version": "1", "license": map[string]any{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "A follower answers 307 to the leader, and 503 with Retry-After while nobody leads. Who asks: docs/reference/rest.md.",
		},
		"paths": paths,
		"components": map[string]any{"schemas": all, "responses": map[string]any{
			"leader":   map[string]any{"description": "another one leads", "headers": map[string]any{"Location": map[string]any{"description": "where", "schema": text}}},
			"noLeader": map[string]any{"description": "nobody leads at the moment (urn:hops:no-leader), or there is too much to do: again after some time", "headers": map[string]any{"Retry-After": map[string]any{"description": "seconds", "schema": text}}, "content": problem["content"]},
		}, "securitySchemes": map[string]any{"token": map[string]any{
			"type": "http", "scheme": "bearer", "description": "the token of the master's container (the file that HOPS_TOKEN names), or a user token of the job's owner",
		}}},
	}, "", " ")
	return append(b, '\n'), err
}

// TestOpenAPI: every route under /api/v1 is described and nothing else, and the document is that of the types.
func TestOpenAPI(t *testing.T) {
	want, err := describe()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		OpenAPI = want
	}
	if !bytes.Equal(OpenAPI, want) {
		t.Error("openapi.json is not what the routes and their types say: describe new routes in operations, then go test ./resourcemanager/rest -run TestOpenAPI -update")
	}
	d, err := openapitest.Parse(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	described := d.Operations()
	var served []string
	for _, r := range New(Config{}).routes {
		if strings.HasPrefix(r.Path, "/api/v1/") {
			served = append(served, r.Method+" "+r.Path)
		}
	}
	for _, r := range served {
		if !slices.Contains(described, r) {
			t.Errorf("%s is served and not described", r)
		}
	}
	for _, r := range described {
		if !slices.Contains(served, r) {
			t.Errorf("%s is described and not served", r)
		}
	}
}

// What is served is what is described, as far as a cluster with jobs in it shows.
func TestAnswersAreAsDescribed(t *testing.T) {
	d, err := openapitest.Parse(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	c := newFakeCluster(t)
	id := c.fill()
	s := serve(t, c, nil)
	for _, r := range []struct{ method, path, body string }{
		{"GET", "/api/v1/openapi.json", ""},
		{"GET", "/api/v1/jobs", ""},
		{"GET", "/api/v1/jobs/" + id.String(), ""},
		{"GET", "/api/v1/jobs/application_1_9999", ""},
		{"GET", "/api/v1/nodes", ""},
		{"GET", "/api/v1/queues", ""},
		{"GET", "/api/v1/grants", ""},
		{"GET", "/api/v1/secrets?user.name=ann", ""},
		{"GET", "/api/v1/groups/ann?user.name=ann", ""},
		{"GET", "/api/v1/resourcemanagers", ""},
		{"POST", "/api/v1/jobs?user.name=ann", `{"argv":["a"],"resources":{"memory":"1GiB","gpus":1},"gang":"1..2","timeout":"2h","env":{"A":"b"},"artifacts":[{"name":"f","uri":"/f"}]}`},
		{"POST", "/api/v1/jobs?user.name=ann", `{"argv":1}`},
		{"DELETE", "/api/v1/jobs/" + id.String() + "?user.name=alice", ""},
	} {
		code, _, text := call(t, s, r.method, r.path, r.body)
		if err := d.Check(r.method, r.path, code, []byte(r.body), []byte(text)); err != nil {
			t.Errorf("%v in %.300s", err, text)
		}
	}
	for what, bad := range map[string]string{
		"another member":   `{"id":"a","more":1}`,
		"a member too few": `{}`,
		"another type":     `{"id":1}`,
	} {
		if d.Check("POST", "/api/v1/jobs", 201, []byte(`{}`), []byte(bad)) == nil {
			t.Errorf("%s is not noticed", what)
		}
	}
	if d.Check("GET", "/api/v1/none", 200, nil, nil) == nil || d.Check("GET", "/api/v1/nodes", 201, nil, []byte(`{}`)) == nil {
		t.Error("a path or status that is not described is not noticed")
	}
}
