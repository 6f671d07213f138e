package mlflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/store"
	"github.com/gohops/hops/training/store/storetest"
)

// endpoint is a server over a filesystem in memory.
type endpoint struct {
	t     *testing.T
	files *storetest.Memory
	store *Store
	h     *Server
	stop  context.CancelFunc
	ended chan error
}

func begin(t *testing.T, files *storetest.Memory, searches Searches) *endpoint {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s, err := OpenStore(t.Context(), files, Directory("lab"), log)
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewServer(Config{Files: files, Project: "lab", Searches: searches, Log: log}, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &endpoint{t, files, s, h, stop, make(chan error, 1)}
	go func() { e.ended <- s.Run(ctx) }()
	t.Cleanup(stop)
	return e
}

// do calls an endpoint; answer is its document.
func (e *endpoint) do(method, name, body string) (status int, answer map[string]any) {
	e.t.Helper()
	target := "/api/2.0/mlflow/" + name
	var r *http.Request
	if method == "GET" {
		r = httptest.NewRequest(method, target+"?"+body, nil)
	} else {
		r = httptest.NewRequest(method, target, strings.NewReader(body))
	}
	r.Host = "127.0.0.1:5000"
	w := httptest.NewRecorder()
	e.h.ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		e.t.Fatalf("%s %s: %d %q", method, name, w.Code, w.Body)
	}
	return w.Code, answer
}

// must is do for what has to succeed.
func (e *endpoint) must(method, name, body string) map[string]any {
	e.t.Helper()
	status, answer := e.do(method, name, body)
	if status != 200 {
		e.t.Fatalf("%s %s %s: %d %v", method, name, body, status, answer)
	}
	return answer
}

// at digs in a document: at(doc, "run", "info", "run_id").
func at(v any, path ...string) any {
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

func (e *endpoint) newRun(experiment string) string {
	e.t.Helper()
	return at(e.must("POST", "runs/create", `{"experiment_id":"`+experiment+`"}`), "run", "info", "run_id").(string)
}

func TestWhatWasAcknowledgedSurvivesACrash(t *testing.T) {
	files := storetest.New()
	e := begin(t, files, nil)
	id := at(e.must("POST", "experiments/create", `{"name":"digits","tags":[{"key":"a","value":"b"}]}`), "experiment_id").(string)
	run := e.newRun(id)
	e.must("POST", "runs/log-batch", `{"run_id":"`+run+`","metrics":[{"key":"acc","value":0.5,"timestamp":"1","step":"1"},{"key":"acc","value":"NaN","timestamp":2,"step":2}],"params":[{"key":"lr","value":"0.1"}],"tags":[{"key":"t","value":"v"}]}`)
	e.must("POST", "runs/log-metric", `{"run_id":"`+run+`","key":"loss","value":"Infinity","timestamp":3}`)
	e.must("POST", "runs/update", `{"run_id":"`+run+`","status":3,"end_time":9}`)
	before := e.must("GET", "runs/get", "run_id="+run)
	// The process is killed: what was not synced is gone, half a line may be there.
	files.Put("/Projects/lab/MLflow/other", "")
	again := begin(t, files, nil)
	if after := again.must("GET", "runs/get", "run_id="+run); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after the crash\n%v\nbefore\n%v", after, before)
	}
	history := again.must("GET", "metrics/get-history", "run_id="+run+"&metric_key=acc")
	if fmt.Sprint(at(history, "metrics")) != "[map[key:acc step:1 timestamp:1 value:0.5] map[key:acc step:2 timestamp:2 value:NaN]]" {
		t.Errorf("history %v", history)
	}
	if x := again.must("GET", "experiments/get-by-name", "experiment_name=digits"); at(x, "experiment", "experiment_id") != id {
		t.Errorf("%v", x)
	}
	// The one before is no more: another has its journal.
	if status, answer := e.do("POST", "runs/set-tag", `{"run_id":"`+run+`","key":"k","value":"v"}`); status != 503 {
		t.Errorf("a server without its journal answers %d %v", status, answer)
	}
	if err := <-e.ended; !errors.Is(err, ErrSuperseded) {
		t.Errorf("it ended with %v", err)
	}
	again.must("POST", "runs/set-tag", `{"run_id":"`+run+`","key":"k","value":"v"}`)
}

func TestAFailedFlushIsToldAndForgotten(t *testing.T) {
	files := storetest.New()
	e := begin(t, files, nil)
	run := e.newRun("0")
	files.FailSync = 1
	if status, answer := e.do("POST", "runs/log-parameter", `{"run_id":"`+run+`","key":"lr","value":"1"}`); status != 503 || answer["error_code"] != unavailable {
		t.Errorf("%d %v", status, answer)
	}
	e.must("POST", "runs/log-parameter", `{"run_id":"`+run+`","key":"lr","value":"2"}`) // the first value was not kept
	if v := e.must("GET", "runs/get", "run_id="+run); fmt.Sprint(at(v, "run", "data", "params")) != "[map[key:lr value:2]]" {
		t.Errorf("%v", v)
	}
}

func TestRequestsAtOnceShareASync(t *testing.T) {
	files := storetest.New()
	s, err := OpenStore(t.Context(), files, Directory("lab"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	before := files.Syncs
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			if err := s.change(t.Context(), func(*state) ([]*entry, error) {
				return []*entry{{Log: &logEntry{Run: "r", Params: []pair{{fmt.Sprint(i), "v"}}}}}, nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	for len(s.queue) < 200 { // they gather: nobody serves them yet
		runtime.Gosched()
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { _ = s.Run(ctx) }()
	wg.Wait()
	if n := files.Syncs - before; n != 1 {
		t.Errorf("%d syncs for 200 requests", n)
	}
	st, _, err := s.read(t.Context())
	if err != nil || len(st.logged["r"].params) != 200 {
		t.Errorf("%v, %v", st.logged["r"], err)
	}
}

func TestABatchThatIsSentAgainCountsOnce(t *testing.T) {
	e := begin(t, storetest.New(), nil)
	run := e.newRun("0")
	batch := `{"run_id":"` + run + `","metrics":[{"key":"m","value":1,"timestamp":1,"step":1},{"key":"m","value":2,"timestamp":2,"step":2}]}`
	e.must("POST", "runs/log-batch", batch)
	e.must("POST", "runs/log-batch", batch)
	if h := e.must("GET", "metrics/get-history", "metric_key=m&run_id="+run); len(at(h, "metrics").([]any)) != 2 {
		t.Errorf("%v", h)
	}
}

func TestALongJournalIsWrittenAnew(t *testing.T) {
	files := storetest.New()
	e := begin(t, files, nil)
	run := e.newRun("0")
	for i := range 1200 {
		e.must("POST", "runs/set-tag", fmt.Sprintf(`{"run_id":"%s","key":"big","value":"%d%s"}`, run, i, strings.Repeat("x", 7900)))
	}
	e.must("POST", "runs/log-metric", `{"run_id":"`+run+`","key":"m","value":1,"timestamp":1}`)
	before := e.must("GET", "runs/get", "run_id="+run)
	again := begin(t, files, nil)
	if after := again.must("GET", "runs/get", "run_id="+run); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("the run is not as it was")
	}
	if s, err := files.Stat(t.Context(), Directory("lab")+"/"+journalName); err != nil || s.Length > 64<<10 {
		t.Errorf("the journal has %d bytes, %v", s.Length, err)
	}
	again.must("POST", "runs/log-metric", `{"run_id":"`+run+`","key":"m","value":2,"timestamp":2}`)
	third := begin(t, files, nil)
	if h := third.must("GET", "metrics/get-history", "metric_key=m&run_id="+run); len(at(h, "metrics").([]any)) != 2 {
		t.Errorf("%v", h)
	}
}

func TestRules(t *testing.T) {
	e := begin(t, storetest.New(), nil)
	run := e.newRun("0")
	e.must("POST", "runs/log-parameter", `{"run_id":"`+run+`","key":"lr","value":"1"}`)
	gone := e.newRun("0")
	e.must("POST", "runs/delete", `{"run_id":"`+gone+`"}`)
	metrics := strings.TrimSuffix(strings.Repeat(`{"key":"m","value":1,"timestamp":1},`, 1001), ",")
	params := strings.TrimSuffix(strings.Repeat(`{"key":"p","value":"1"},`, 101), ",")
	for _, c := range []struct{ method, name, body, code string }{
		{"POST", "runs/log-parameter", `{"run_id":"` + run + `","key":"lr","value":"2"}`, badValue},
		{"POST", "runs/log-batch", `{"run_id":"` + run + `","params":[{"key":"a","value":"1"},{"key":"a","value":"2"}]}`, badValue},
		{"POST", "runs/log-batch", `{"run_id":"` + run + `","metrics":[` + metrics + `]}`, badValue},
		{"POST", "runs/log-batch", `{"run_id":"` + run + `","params":[` + params + `]}`, badValue},
		{"POST", "runs/log-batch", `{"run_id":"` + run + `","params":[{"key":"a","value":"` + strings.Repeat("x", maxBatchBytes) + `"}]}`, badValue},
		{"POST", "runs/log-parameter", `{"run_id":"` + run + `","key":"long","value":"` + strings.Repeat("x", maxParam+1) + `"}`, badValue},
		{"POST", "runs/log-parameter", `{"run_id":"` + run + `","key":"` + strings.Repeat("k", maxKey+1) + `","value":"1"}`, badValue},
		{"POST", "runs/log-metric", `{"run_id":"` + run + `","key":"../up","value":1}`, badValue},
		{"POST", "runs/log-metric", `{"run_id":"` + run + `","key":"","value":1}`, badValue},
		{"POST", "runs/log-metric", `{"run_id":"` + run + `","key":"m","value":"high"}`, badValue},
		{"POST", "runs/log-metric", `{"run_id":"` + run + `","key":"m"}`, badValue},
		{"POST", "runs/log-metric", `{"run_id":"` + gone + `","key":"m","value":1}`, badValue},
		{"POST", "runs/log-metric", `{"run_id":"none","key":"m","value":1}`, missing},
		{"POST", "runs/log-metric", `{"run_id":`, badValue},
		{"POST", "runs/update", `{"run_id":"` + run + `","status":"DONE"}`, badValue},
		{"POST", "runs/create", `{"experiment_id":"77"}`, missing},
		{"POST", "experiments/create", `{"name":"Default"}`, exists},
		{"POST", "experiments/create", `{"name":" "}`, badValue},
		{"POST", "experiments/create", `{"name":"x","artifact_location":"s3://b"}`, badValue},
		{"POST", "experiments/delete", `{"experiment_id":"0"}`, badValue},
		{"POST", "runs/search", `{"experiment_ids":["0"],"filter":"metrics.a > 1 OR metrics.b > 2"}`, badValue},
		{"POST", "runs/search", `{"experiment_ids":["0"],"max_results":50001}`, badValue},
		{"POST", "runs/search", `{"experiment_ids":["0"],"page_token":"bad"}`, badValue},
		{"POST", "runs/search", `{"experiment_ids":["0"],"filter":"tags.a LIKE '` + strings.Repeat("%", maxPattern+1) + `'"}`, badValue},
		{"POST", "runs/log-inputs", `{"run_id":"` + run + `","datasets":[{"a":"` + strings.Repeat("x", maxInputBytes) + `"}]}`, badValue},
		{"GET", "artifacts/list", `path=../../x&run_id=` + run, badValue},
		{"POST", "registered-models/create", `{"name":"` + strings.Repeat("n", 101) + `"}`, badValue},
		{"GET", "runs/none", ``, noEndpoint},
		{"POST", "registered-models/create", `{"name":"a/b"}`, badValue},
		{"GET", "model-versions/get", `name=none&version=1`, missing},
		{"POST", "registered-models/rename", `{"name":"a","new_name":"b"}`, badValue},
	} {
		status, answer := e.do(c.method, c.name, c.body)
		if status == 200 || answer["error_code"] != c.code || answer["message"] == "" {
			t.Errorf("%s %.120s: %d %.200v; want %s", c.name, c.body, status, answer, c.code)
		}
	}
}

func TestFilters(t *testing.T) {
	v := &runView{
		run:    run{ID: "r1", Name: "it's", Status: finished, Start: 10, Tags: map[string]string{"a b": "x", "team": "Vision"}},
		params: map[string]string{"lr": "0.1"}, last: map[string]point{"acc": {Value: 0.9}, "a b": {Value: 1}, "nan": {Value: math.NaN()}},
	}
	for text, want := range map[string]bool{
		"":                                    true,
		"metrics.acc > 0.8":                   true,
		"metrics.acc>0.8 and params.lr='0.1'": true,
		"metric.acc >= 0.9 AND metrics.acc <= 9e-1":   true,
		"metrics.acc != 0.9":                          false,
		"metrics.none > 0":                            false,
		"metrics.nan > 0":                             false,
		"metrics.`a b` = 1 AND tags.\"a b\" = 'x'":    true,
		"tags.team ILIKE 'vis%'":                      true,
		"tags.team LIKE 'vis%'":                       false,
		"tags.team LIKE '_ision'":                     true,
		"params.lr LIKE '0.%' and status = 'RUNNING'": false,
		"attributes.status != 'RUNNING'":              true,
		"run_name = 'it''s'":                          true,
		"run_id IN ('r0', 'r1')":                      true,
		"run_id NOT IN ('r0','r1')":                   false,
		"params.x IS NULL AND params.lr IS NOT NULL":  true,
		"start_time >= 10 and end_time > 0":           false,
		"created < 11":                                true,
	} {
		f, err := parseFilter(text, runAttributes)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := f.match(v.lookup); got != want {
			t.Errorf("%s is %v", text, got)
		}
	}
	for _, bad := range []string{
		"metrics.acc", "metrics.acc >", "metrics.acc > 'x'", "metrics.acc LIKE 'a'", "params.lr > '1'", "params.lr = 1", "what.x = 1", "nothing = 'a'",
		"metrics.a = 1 or metrics.b = 1", "run_id IN ('a'", "start_time IN ('1')", "params.a IS 1", "params.a = 'x", "$$", "metrics.acc > 0.8 metrics.b > 1", strings.Repeat("a", maxFilter+1),
	} {
		if _, err := parseFilter(bad, runAttributes); err == nil {
			t.Errorf("%.60s is taken", bad)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("metrics.acc > 0.8 and params.lr='0.1' AND run_id IN ('a')")
	f.Add("tags.\"a b\" LIKE '%x_' AND params.x IS NOT NULL")
	v := &runView{}
	f.Fuzz(func(_ *testing.T, text string) {
		if parsed, err := parseFilter(text, runAttributes); err == nil {
			parsed.match(v.lookup)
		}
		_, _ = parseOrder([]string{text}, runAttributes)
	})
}

// Runs are sorted as by a slow model: by each column, what is missing last, NaN before it.
func TestOrderAndPages(t *testing.T) {
	e := begin(t, storetest.New(), nil)
	values := []string{"3", `"NaN"`, "1", "", "2", "3"}
	names := map[string]string{}
	for i, v := range values {
		r := e.newRun("0")
		names[r] = fmt.Sprint(i)
		if v != "" {
			e.must("POST", "runs/log-metric", `{"run_id":"`+r+`","key":"m","value":`+v+`,"timestamp":1}`)
		}
		e.must("POST", "runs/log-parameter", fmt.Sprintf(`{"run_id":"%s","key":"i","value":"%d"}`, r, 9-i))
	}
	ask := func(order string) (got []string) {
		token := ""
		for {
			a := e.must("POST", "runs/search", fmt.Sprintf(`{"experiment_ids":["0"],"order_by":[%q,"params.i"],"max_results":4,"page_token":%q}`, order, token))
			for _, r := range at(a, "runs").([]any) {
				got = append(got, names[at(r, "info", "run_id").(string)])
			}
			if token = at(a, "next_page_token").(string); token == "" {
				return got
			}
		}
	}
	if got := ask("metrics.m ASC"); !slices.Equal(got, []string{"2", "4", "5", "0", "1", "3"}) {
		t.Errorf("ascending %v", got)
	}
	if got := ask("metrics.`m` desc"); !slices.Equal(got, []string{"5", "0", "4", "2", "1", "3"}) {
		t.Errorf("descending %v", got)
	}
}

func (e *endpoint) raw(method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	r.URL = &url.URL{Path: target}
	r.Host = "localhost:5000"
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	e.h.ServeHTTP(w, r)
	return w
}

func TestArtifacts(t *testing.T) {
	files := storetest.New()
	e := begin(t, files, nil)
	run := e.newRun("0")
	root := "/api/2.0/mlflow-artifacts/artifacts/"
	own := root + "0/" + run + "/artifacts/"
	if w := e.raw("PUT", own+"d/x.html", "<script>"); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	w := e.raw("GET", own+"d/x.html", "")
	if w.Code != 200 || w.Body.String() != "<script>" || w.Header().Get("Content-Security-Policy") != "sandbox" || !strings.HasPrefix(w.Header().Get("Content-Disposition"), "attachment") {
		t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
	}
	list := e.must("GET", "artifacts/list", "path=d&run_id="+run)
	if fmt.Sprint(at(list, "files")) != "[map[file_size:8 is_dir:false path:d/x.html]]" {
		t.Errorf("%v", list)
	}
	for _, bad := range []string{"0/../../x", "..", "0//x", "0/.upload-x", `0/a\b`, "0/./x"} {
		for _, method := range []string{"PUT", "GET", "DELETE"} {
			if w := e.raw(method, root+bad, "x"); w.Code == 200 {
				t.Errorf("%s %s is done", method, bad)
			}
		}
	}
	for _, bad := range []string{"models/m/1/f", "searches/application_1_0001_1/0001/f"} {
		if w := e.raw("PUT", root+bad, "x"); w.Code != 403 {
			t.Errorf("PUT %s: %d %s", bad, w.Code, w.Body)
		}
	}
	if w := e.raw("GET", own+"none", ""); w.Code != 404 {
		t.Errorf("%d", w.Code)
	}
	if w := e.raw("DELETE", own+"d", ""); w.Code != 200 || len(files.Paths(Directory("lab")+"/artifacts/0/"+run+"/artifacts")) != 0 {
		t.Errorf("%d", w.Code)
	}
}

// What a server holds in memory has an end, and what was known before can be logged on.
func TestWhatIsHeldIsBounded(t *testing.T) {
	s := newState()
	s.runs["r"] = &run{ID: "r", Stage: active}
	l := &logged{params: map[string]string{}, metrics: map[string][]point{}, last: map[string]point{}}
	for i := range maxNames {
		l.metrics[fmt.Sprint(i)] = nil
	}
	s.logged["r"] = l
	if _, err := s.logTo("r", []metric{{Key: "7"}, {Key: "7", Step: 1}}, nil, nil); err != nil {
		t.Error(err)
	}
	if _, err := s.logTo("r", []metric{{Key: "new"}}, nil, nil); err == nil {
		t.Error("one name more is taken")
	}
	s.points = maxPoints
	if _, err := s.logTo("r", []metric{{Key: "7"}}, nil, nil); err == nil {
		t.Error("one value more is taken")
	}
	if _, err := s.logTo("r", nil, []pair{{"p", "1"}}, nil); err != nil {
		t.Error(err)
	}
}

func TestWhoMayAsk(t *testing.T) {
	e := begin(t, storetest.New(), nil)
	for _, c := range []struct {
		header []string
		want   int
	}{
		{nil, 200},
		{[]string{"Host", "[::1]:5000"}, 200},
		{[]string{"Host", "evil.example"}, 403},
		{[]string{"Origin", "http://evil.example"}, 403},
		{[]string{"Origin", "null"}, 403},
		{[]string{"Origin", "http://localhost:3000"}, 200},
	} {
		if w := e.raw("GET", "/health", "", c.header...); w.Code != c.want {
			t.Errorf("%v: %d, want %d", c.header, w.Code, c.want)
		}
	}
	e.h.Token = "0123456789abcdef"
	for _, c := range []struct {
		header []string
		want   int
	}{
		{nil, 401},
		{[]string{"Authorization", "Bearer x"}, 401},
		{[]string{"Authorization", "0123456789abcdef"}, 401},
		{[]string{"Authorization", "Bearer 0123456789abcdef", "Host", "team.example"}, 200},
	} {
		if w := e.raw("GET", "/health", "", c.header...); w.Code != c.want {
			t.Errorf("with a token, %v: %d, want %d", c.header, w.Code, c.want)
		}
	}
}

type fakeSearches struct{ s Search }

func (f fakeSearches) List(context.Context) ([]Search, error) { return []Search{f.s}, nil }

func (f fakeSearches) Get(_ context.Context, id string) (*Search, error) {
	if id != f.s.ID {
		return nil, metadata.Errorf(metadata.ErrNotExist, "there is no experiment %s", id)
	}
	return &f.s, nil
}

func TestSearchesCanBeReadAndNotChanged(t *testing.T) {
	files := storetest.New()
	id := "application_1_0001_1"
	files.Put("/Projects/lab/Experiments/"+id+"/0001/output.log", "hello")
	e := begin(t, files, fakeSearches{Search{
		ID: id, Name: "digits", User: "ann", State: "FINISHED", Metric: "acc", Directory: "/Projects/lab/Experiments/" + id, Started: 5, Finished: 50,
		Trials: []SearchTrial{
			{Number: "0001", State: training.Completed, Params: training.Params{"lr": training.Float(0.1)}, Metric: new(0.9), Steps: []int64{1, 2}, Values: []float64{0.5, 0.9}, Started: 6, Ended: 20},
			{Number: "0002", State: training.Failed, Started: 7, Ended: 9},
		},
	}})
	if x := e.must("POST", "experiments/search", `{"filter":"name LIKE 'digits%'"}`); len(at(x, "experiments").([]any)) != 1 {
		t.Errorf("%v", x)
	}
	found := e.must("POST", "runs/search", `{"experiment_ids":["`+id+`"],"filter":"metrics.acc > 0.8 and params.lr = '0.1'"}`)
	runs := at(found, "runs").([]any)
	if len(runs) != 1 || at(runs[0], "info", "run_id") != id+"-0001" || at(runs[0], "info", "status") != "FINISHED" {
		t.Fatalf("%v", found)
	}
	if h := e.must("GET", "metrics/get-history", "metric_key=acc&run_id="+id+"-0001"); len(at(h, "metrics").([]any)) != 2 {
		t.Errorf("%v", h)
	}
	if l := e.must("GET", "artifacts/list", "run_id="+id+"-0001"); fmt.Sprint(at(l, "files")) != "[map[file_size:5 is_dir:false path:output.log]]" {
		t.Errorf("%v", l)
	}
	for _, c := range [][2]string{
		{"runs/log-metric", `{"run_id":"` + id + `-0001","key":"m","value":1}`},
		{"runs/create", `{"experiment_id":"` + id + `"}`},
		{"experiments/delete", `{"experiment_id":"` + id + `"}`},
		{"runs/delete", `{"run_id":"` + id + `-0001"}`},
	} {
		if status, answer := e.do("POST", c[0], c[1]); status != 400 || !strings.Contains(fmt.Sprint(answer["message"]), "can be read here but not changed") {
			t.Errorf("%s: %d %v", c[0], status, answer)
		}
	}
	e.must("POST", "registered-models/create", `{"name":"digits"}`)
	v := e.must("POST", "model-versions/create", `{"name":"digits","source":"runs:/`+id+`-0001/"}`)
	if at(v, "model_version", "run_id") != id+"-0001" || at(v, "model_version", "version") != "1" {
		t.Errorf("%v", v)
	}
	if got := files.Paths("/Projects/lab/Models/digits/1"); !slices.Equal(got, []string{"model.json", "output.log"}) {
		t.Errorf("%v", got)
	}
}

func TestTwoExperimentsOfOneNameAtOnce(t *testing.T) {
	e := begin(t, storetest.New(), nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := map[int]int{}
	for range 10 {
		wg.Go(func() {
			status, _ := e.do("POST", "experiments/create", `{"name":"one"}`)
			mu.Lock()
			defer mu.Unlock()
			made[status]++
		})
	}
	wg.Wait()
	if made[200] != 1 || made[400] != 9 {
		t.Errorf("%v", made)
	}
}

// vanishing loses a directory as soon as it is looked at.
type vanishing struct {
	store.FS
	dir string
}

func (v vanishing) Stat(ctx context.Context, p string) (metadata.FileStatus, error) {
	if p == v.dir {
		_ = v.FS.Delete(ctx, p)
	}
	return v.FS.Stat(ctx, p)
}

func TestAModelThatIsDeletedMeanwhileIsNotFound(t *testing.T) {
	files := storetest.New()
	e := begin(t, files, nil)
	for _, name := range []string{"gone", "stays"} {
		e.must("POST", "registered-models/create", `{"name":"`+name+`"}`)
	}
	e.h.Files = vanishing{files, e.h.registry.Directory("gone")}
	found := at(e.must("GET", "registered-models/search", ""), "registered_models").([]any)
	if len(found) != 1 || at(found[0], "name") != "stays" {
		t.Errorf("%v", found)
	}
}

// creating tells of each file that is made.
type creating struct {
	store.FS
	at func(name string)
}

func (c creating) Create(ctx context.Context, p string, overwrite bool) (store.Writer, error) {
	c.at(p)
	return c.FS.Create(ctx, p, overwrite)
}

// lengthen makes the journal so long that the next server writes it anew.
func (e *endpoint) lengthen(run string) {
	e.t.Helper()
	for i := range 12 {
		var tags []string
		for k := range 100 {
			tags = append(tags, fmt.Sprintf(`{"key":"big%d","value":"%d%s"}`, k, i, strings.Repeat("x", 7900)))
		}
		e.must("POST", "runs/log-batch", `{"run_id":"`+run+`","tags":[`+strings.Join(tags, ",")+`]}`)
	}
}

func TestWhoHasALongJournalTakenAwayAcknowledgesNothingMore(t *testing.T) {
	files := storetest.New()
	e := begin(t, files, nil)
	run := e.newRun("0")
	e.lengthen(run)
	tries := 0
	meanwhile := func(name string) {
		for range 3 { // the first tells it that its file was closed
			tries++
			if status, answer := e.do("POST", "runs/set-tag", `{"run_id":"`+run+`","key":"late","value":"v"}`); status != 503 {
				t.Errorf("while %s is written: %d %v", name, status, answer)
			}
		}
	}
	if _, err := OpenStore(t.Context(), creating{files, meanwhile}, Directory("lab"), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	e.stop()
	if tries != 3 {
		t.Errorf("%d requests while the journal was written anew", tries)
	}
	if err := <-e.ended; !errors.Is(err, ErrSuperseded) {
		t.Errorf("it ended with %v", err)
	}
}

func TestWhoIsSupersededWhileItWritesTheJournalAnewReplacesNothing(t *testing.T) {
	files := storetest.New()
	e := begin(t, files, nil)
	run := e.newRun("0")
	e.lengthen(run)
	var later *endpoint
	if _, err := OpenStore(t.Context(), creating{files, func(string) {
		later = begin(t, files, nil)
		later.must("POST", "runs/set-tag", `{"run_id":"`+run+`","key":"late","value":"v"}`)
	}}, Directory("lab"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("two servers have taken it over")
	}
	later.must("POST", "runs/set-tag", `{"run_id":"`+run+`","key":"later","value":"v"}`)
	tags := fmt.Sprint(at(begin(t, files, nil).must("GET", "runs/get", "run_id="+run), "run", "data", "tags"))
	if !strings.Contains(tags, "key:late ") || !strings.Contains(tags, "key:later ") {
		t.Errorf("the tags late and later are not both in %d bytes", len(tags))
	}
}
