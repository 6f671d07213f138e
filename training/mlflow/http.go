package mlflow

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/training/registry"
	"github.com/gohops/hops/training/store"
)

// Config is what a Server needs beside its Store.
type Config struct {
	Files    store.FS
	Project  string
	Searches Searches // may be nil
	// Token, if not empty, is what every request has to show (Authorization: Bearer, MLFLOW_TRACKING_TOKEN).
	Token string
	// Hosts, without a Token, are the names in requests by which this server may be meant, so that a page in a browser cannot reach it
	// under a name of its own. Loopback's are always among them.
	Hosts []string
	Log   *slog.Logger
}

// Server is the endpoint as an http.Handler.
type Server struct {
	Config
	store    *Store
	registry *registry.Registry
	mux      *http.ServeMux
	now      func() time.Time
}

// Directory is where an endpoint keeps what a project's clients log.
func Directory(project string) string { return path.Join("/Projects", project, "MLflow") }

// NewServer makes the handler.
func NewServer(c Config, s *Store) (*Server, error) {
	r, err := registry.Open(c.Files, c.Project)
	if err != nil {
		return nil, err
	}
	h := &Server{Config: c, store: s, registry: r, mux: http.NewServeMux(), now: time.Now}
	h.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "OK") })
	for _, api := range []string{"/api/2.0", "/ajax-api/2.0"} { // the second is what pages call
		for pattern, call := range h.calls() {
			method, name, _ := strings.Cut(pattern, " ")
			h.mux.HandleFunc(method+" "+api+"/mlflow/"+name, h.answer(call))
		}
		h.artifactRoutes(api + "/mlflow-artifacts/artifacts")
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, &Error{noEndpoint, "there is no " + r.Method + " " + r.URL.Path + " here: this server has experiments, runs, metrics, artifacts and registered models of MLflow's REST interface 2.0"})
	})
	return h, nil
}

// call is one endpoint: it decodes its request with q and returns the document that answers.
type call func(ctx context.Context, q *query) (any, error)

// ServeHTTP lets in who may.
func (h *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.admit(r); err != nil {
		h.fail(w, err)
		return
	}
	h.mux.ServeHTTP(w, r)
}

func (h *Server) admit(r *http.Request) error {
	if h.Token != "" {
		shown, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		a, b := sha256.Sum256([]byte(shown)), sha256.Sum256([]byte(h.Token)) // of one length, whatever is shown
		if !ok || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
			return &Error{strange, "this server wants its token: set MLFLOW_TRACKING_TOKEN"}
		}
		return nil
	}
	if !h.known(r.Host) {
		return &Error{denied, "this server is not " + r.Host}
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !h.known(u.Host) {
			return &Error{denied, "pages of " + origin + " may not call this server"}
		}
	}
	return nil
}

func (h *Server) known(host string) bool {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.Trim(name, "[]")
	return name == "localhost" || net.ParseIP(name).IsLoopback() || slices.Contains(h.Hosts, name)
}

var statuses = map[string]int{
	badValue: 400, badRequest: 400, exists: 400, missing: 404, noEndpoint: 404, denied: 403, strange: 401, unavailable: 503, internal: 500,
}

func (h *Server) fail(w http.ResponseWriter, err error) {
	e := coded(err)
	if e.Code == internal {
		h.Log.Error("a request failed", "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(statuses[e.Code])
	_ = json.NewEncoder(w).Encode(map[string]string{"error_code": e.Code, "message": e.Message}) // who asked may be gone
}

func (h *Server) answer(c call) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		wait := http.NewResponseController(w)
		_ = wait.SetReadDeadline(time.Now().Add(bodyTime)) // not of a test's recorder
		q, err := readQuery(r)
		if err != nil {
			w.Header().Set("Connection", "close")
			h.fail(w, err)
			return
		}
		_ = wait.SetReadDeadline(time.Time{})
		document, err := c(r.Context(), q)
		if err != nil {
			h.fail(w, err)
			return
		}
		text, err := json.Marshal(document)
		if err != nil {
			h.fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
	}
}

// bodyTime is how long a request, other than an artifact, may take to arrive.
const bodyTime = time.Minute

// query is a request: its body, or what stands behind the question mark as JSON.
type query struct {
	body []byte
	path func(string) string
}

// lists are the parameters that may stand there more than once.
var lists = []string{"experiment_ids", "order_by", "stages", "run_ids"}

func readQuery(r *http.Request) (*query, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, errorf(badRequest, "the request ended early: %v", err)
	}
	limit := maxBody
	if strings.HasSuffix(r.URL.Path, "/runs/log-batch") {
		limit = maxBatchBytes
	}
	if len(body) > limit {
		return nil, errorf(badValue, "the request has more than %d bytes: send it in parts", limit)
	}
	if len(body) == 0 {
		values := map[string]any{}
		for k, v := range r.URL.Query() {
			if slices.Contains(lists, k) {
				values[k] = v
			} else {
				values[k] = v[len(v)-1]
			}
		}
		if body, err = json.Marshal(values); err != nil {
			return nil, err
		}
	}
	return &query{body, r.PathValue}, nil
}

func (q *query) into(v any) error {
	if err := json.Unmarshal(q.body, v); err != nil {
		return errorf(badValue, "the request cannot be read: %v", err)
	}
	return nil
}

// request is every field that a request may have; each endpoint reads its own.
type request struct {
	ExperimentID     string          `json:"experiment_id"`
	ExperimentName   string          `json:"experiment_name"`
	ExperimentIDs    []string        `json:"experiment_ids"`
	RunID            string          `json:"run_id"`
	RunUUID          string          `json:"run_uuid"`
	RunName          string          `json:"run_name"`
	User             string          `json:"user_id"`
	Name             string          `json:"name"`
	NewName          string          `json:"new_name"`
	ArtifactLocation string          `json:"artifact_location"`
	Start            number          `json:"start_time"`
	End              number          `json:"end_time"`
	Status           json.RawMessage `json:"status"`
	Key              string          `json:"key"`
	Value            json.RawMessage `json:"value"`
	Timestamp        number          `json:"timestamp"`
	Step             number          `json:"step"`
	MetricKey        string          `json:"metric_key"`
	Metrics          []metric        `json:"metrics"`
	Params           []pair          `json:"params"`
	Tags             []pair          `json:"tags"`
	Filter           string          `json:"filter"`
	OrderBy          []string        `json:"order_by"`
	MaxResults       number          `json:"max_results"`
	PageToken        string          `json:"page_token"`
	RunView          json.RawMessage `json:"run_view_type"`
	View             json.RawMessage `json:"view_type"`
	Path             string          `json:"path"`
	Datasets         []any           `json:"datasets"`
	Models           []any           `json:"models"`
	ModelJSON        string          `json:"model_json"`
}

func (r *request) run() string { return cmp.Or(r.RunID, r.RunUUID) }

func word(raw json.RawMessage) string { return strings.Trim(string(raw), `"`) }

func read(q *query) (r *request, err error) {
	r = &request{}
	return r, q.into(r)
}

type object = map[string]any

// calls are the endpoints below /mlflow/.
func (h *Server) calls() map[string]call {
	all := map[string]call{
		"POST experiments/create":                h.createExperiment,
		"GET experiments/get":                    h.getExperiment,
		"GET experiments/get-by-name":            h.getExperimentByName,
		"POST experiments/search":                h.searchExperiments,
		"GET experiments/search":                 h.searchExperiments,
		"GET experiments/list":                   h.searchExperiments,
		"POST experiments/delete":                h.stageExperiment(deleted),
		"POST experiments/restore":               h.stageExperiment(active),
		"POST experiments/update":                h.updateExperiment,
		"POST experiments/set-experiment-tag":    h.tagExperiment(true),
		"POST experiments/delete-experiment-tag": h.tagExperiment(false),
		"POST runs/create":                       h.createRun,
		"GET runs/get":                           h.getRun,
		"POST runs/update":                       h.updateRun,
		"POST runs/delete":                       h.stageRun(deleted),
		"POST runs/restore":                      h.stageRun(active),
		"POST runs/search":                       h.search,
		"POST runs/log-metric":                   h.logMetric,
		"POST runs/log-parameter":                h.logParameter,
		"POST runs/log-batch":                    h.logBatch,
		"POST runs/set-tag":                      h.setTag,
		"POST runs/delete-tag":                   h.deleteTag,
		"POST runs/log-inputs":                   h.logInputs,
		"POST runs/outputs":                      h.logOutputs,
		"POST runs/log-model":                    h.logModel,
		"GET metrics/get-history":                h.metricHistory,
		"GET metrics/get-history-bulk":           h.metricHistoryBulk,
		"GET metrics/get-history-bulk-interval":  h.metricHistoryBulk,
		"GET artifacts/list":                     h.listArtifacts,
	}
	maps.Copy(all, h.modelCalls())
	maps.Copy(all, h.loggedModelCalls())
	return all
}

func (h *Server) createExperiment(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSpace(r.Name)
	if name == "" || len(name) > maxName {
		return nil, errorf(badValue, "an experiment has a name of 1 to %d characters, this one %d", maxName, len(name))
	}
	if l := r.ArtifactLocation; l != "" && !strings.HasPrefix(l, artifactScheme) {
		return nil, errorf(badValue, "artifact_location '%.100s': artifacts lie in the cluster's filesystem behind this server; leave it empty", l)
	}
	tags, err := experimentTags(r.Tags)
	if err != nil {
		return nil, err
	}
	var id string
	err = h.store.change(ctx, func(s *state) ([]*entry, error) {
		if was, ok := s.names[name]; ok {
			if s.experiments[was].Stage == deleted {
				return nil, errorf(exists, "Experiment '%s' already exists in deleted state. You can restore the experiment, or permanently delete it", name)
			}
			return nil, errorf(exists, "Experiment '%s' already exists.", name)
		}
		if len(s.experiments) >= maxExperiments {
			return nil, errorf(badValue, "there are %d experiments, as many as are kept", len(s.experiments))
		}
		id = itoa(s.nextID)
		now := h.now().UnixMilli()
		return []*entry{{Experiment: &experiment{ID: id, Name: name, Artifacts: cmp.Or(r.ArtifactLocation, artifactScheme+"/"+id), Stage: active, Created: now, Updated: now, Tags: tags}}}, nil
	})
	return object{"experiment_id": id}, err
}

func experimentTags(list []pair) (map[string]string, error) {
	out := map[string]string{}
	for _, t := range list {
		if err := checkPair("tag", t, maxExperimentTag); err != nil {
			return nil, err
		}
		out[t.Key] = t.Value
	}
	return out, nil
}

// found reads an experiment of either kind.
func (h *Server) found(ctx context.Context, id string) (*experiment, *Search, error) {
	if searchID.MatchString(id) && h.Searches != nil {
		s, err := h.Searches.Get(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		return s.experiment(), s, nil
	}
	var x experiment
	err := h.store.view(func(s *state) error {
		e, err := s.experimentOf(id)
		if err == nil {
			x = *e
		}
		return err
	})
	return &x, nil, err
}

func (h *Server) getExperiment(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	x, _, err := h.found(ctx, r.ExperimentID)
	if err != nil {
		return nil, err
	}
	return object{"experiment": experimentJSON(x)}, nil
}

func (h *Server) getExperimentByName(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	all, err := h.experiments(ctx)
	if err != nil {
		return nil, err
	}
	for _, x := range all {
		if x.Name == r.ExperimentName {
			return object{"experiment": experimentJSON(x)}, nil
		}
	}
	return nil, errorf(missing, "Could not find experiment with name '%s'", r.ExperimentName)
}

// experiments are those of both kinds.
func (h *Server) experiments(ctx context.Context) ([]*experiment, error) {
	var out []*experiment
	if err := h.store.view(func(s *state) error {
		for _, x := range s.experiments {
			c := *x
			out = append(out, &c)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if h.Searches != nil {
		list, err := h.Searches.List(ctx)
		if err != nil {
			return nil, err
		}
		for i := range list {
			out = append(out, list[i].experiment())
		}
	}
	return out, nil
}

var experimentAttributes = map[string]bool{"name": false, "experiment_id": false, "creation_time": true, "last_update_time": true}

func (x *experiment) lookup(kind, key string) value {
	if kind == "tag" {
		v, ok := x.Tags[key]
		return textValue(v, ok)
	}
	if kind != "attribute" {
		return value{}
	}
	switch key {
	case "name":
		return textValue(x.Name, true)
	case "experiment_id":
		return textValue(x.ID, true)
	case "creation_time":
		return numberValue(float64(x.Created), true)
	}
	return numberValue(float64(x.Updated), true)
}

func (h *Server) searchExperiments(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	f, err := parseFilter(r.Filter, experimentAttributes)
	if err != nil {
		return nil, err
	}
	if len(r.OrderBy) == 0 {
		r.OrderBy = []string{"last_update_time DESC"}
	}
	orders, err := parseOrder(r.OrderBy, experimentAttributes)
	if err != nil {
		return nil, err
	}
	all, err := h.experiments(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(x *experiment) bool { return !inStage(x.Stage, word(r.View)) || !f.match(x.lookup) })
	slices.SortFunc(all, func(a, b *experiment) int {
		for _, o := range orders {
			if c := o.compareValues(a.lookup(o.kind, o.key), b.lookup(o.kind, o.key)); c != 0 {
				return c
			}
		}
		return cmp.Compare(b.ID, a.ID)
	})
	cut, next, err := page(all, int64(r.MaxResults), r.PageToken)
	if err != nil {
		return nil, err
	}
	out := []any{}
	for _, x := range cut {
		out = append(out, experimentJSON(x))
	}
	return object{"experiments": out, "next_page_token": next}, nil
}

// alter changes an experiment.
func (h *Server) alter(ctx context.Context, id string, how func(s *state, x *experiment) error) error {
	return h.store.change(ctx, func(s *state) ([]*entry, error) {
		was, err := s.experimentOf(id)
		if err != nil {
			return nil, err
		}
		x := *was
		x.Tags = maps.Clone(was.Tags)
		if x.Tags == nil {
			x.Tags = map[string]string{}
		}
		if err := how(s, &x); err != nil {
			return nil, err
		}
		x.Updated = h.now().UnixMilli()
		return []*entry{{Experiment: &x}}, nil
	})
}

func (h *Server) stageExperiment(stage string) call {
	return func(ctx context.Context, q *query) (any, error) {
		r, err := read(q)
		if err != nil {
			return nil, err
		}
		if r.ExperimentID == "0" && stage == deleted {
			return nil, errorf(badValue, "Cannot delete the default experiment '0'. This is an internally reserved experiment.")
		}
		return object{}, h.alter(ctx, r.ExperimentID, func(_ *state, x *experiment) error {
			if x.Stage == stage {
				return errorf(badValue, "The experiment %s is %s already", x.ID, stage)
			}
			x.Stage = stage
			return nil
		})
	}
}

func (h *Server) updateExperiment(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	if r.NewName == "" || len(r.NewName) > maxName {
		return nil, errorf(badValue, "an experiment has a name of 1 to %d characters", maxName)
	}
	return object{}, h.alter(ctx, r.ExperimentID, func(s *state, x *experiment) error {
		if id, taken := s.names[r.NewName]; taken && id != x.ID {
			return errorf(exists, "Experiment '%s' already exists.", r.NewName)
		}
		x.Name = r.NewName
		return nil
	})
}

func (h *Server) tagExperiment(set bool) call {
	return func(ctx context.Context, q *query) (any, error) {
		r, err := read(q)
		if err != nil {
			return nil, err
		}
		value, err := text(r.Value)
		if err != nil {
			return nil, err
		}
		if err := checkPair("tag", pair{r.Key, value}, maxExperimentTag); err != nil {
			return nil, err
		}
		return object{}, h.alter(ctx, r.ExperimentID, func(_ *state, x *experiment) error {
			if delete(x.Tags, r.Key); set {
				x.Tags[r.Key] = value
			}
			if len(x.Tags) > maxNames {
				return errorf(badValue, "experiment %s has %d tags, at most %d", x.ID, len(x.Tags), maxNames)
			}
			return nil
		})
	}
}

// text reads a value that is text; a number is taken as it is written.
func text(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var s string
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", errorf(badValue, "the value is no text: %v", err)
		}
		return s, nil
	}
	return string(raw), nil
}

func (h *Server) createRun(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	var answer object
	err = h.store.change(ctx, func(s *state) ([]*entry, error) {
		x, err := s.experimentOf(cmp.Or(r.ExperimentID, "0"))
		if err != nil {
			return nil, err
		}
		made, err := s.newRun(x, r.User, r.RunName, int64(r.Start), h.now().UnixMilli(), r.Tags)
		if err != nil {
			return nil, err
		}
		v := s.viewOf(made)
		answer = object{"run": runJSON(&v)}
		return []*entry{{Run: made}}, nil
	})
	return answer, err
}

// view finds a run of either kind.
func (h *Server) view(ctx context.Context, id string) (*runView, error) {
	if i := strings.LastIndexByte(id, '-'); i > 0 && searchID.MatchString(id[:i]) && h.Searches != nil {
		s, err := h.Searches.Get(ctx, id[:i])
		if err != nil {
			return nil, err
		}
		for _, v := range s.runs() {
			if v.ID == id {
				return &v, nil
			}
		}
		return nil, errorf(missing, "Run with id=%s not found", id)
	}
	var v runView
	err := h.store.view(func(s *state) error {
		r := s.runs[id]
		if r == nil {
			return errorf(missing, "Run with id=%s not found", id)
		}
		v = s.viewOf(r)
		return nil
	})
	return &v, err
}

func (h *Server) getRun(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	v, err := h.view(ctx, r.run())
	if err != nil {
		return nil, err
	}
	return object{"run": runJSON(v)}, nil
}

// alterRun changes a run.
func (h *Server) alterRun(ctx context.Context, id string, how func(r *run) error) error {
	return h.store.change(ctx, func(s *state) ([]*entry, error) {
		was, err := s.runOf(id)
		if err != nil {
			return nil, err
		}
		r := *was
		if r.Tags = maps.Clone(was.Tags); r.Tags == nil {
			r.Tags = map[string]string{}
		}
		if err := how(&r); err != nil {
			return nil, err
		}
		return []*entry{{Run: &r}}, nil
	})
}

func (h *Server) updateRun(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	status, err := runStatus(r.Status)
	if err != nil {
		return nil, err
	}
	var info object
	err = h.alterRun(ctx, r.run(), func(x *run) error {
		if x.Stage != active {
			return errorf(badValue, "The run %s must be in the 'active' state, it is deleted", x.ID)
		}
		x.Status = cmp.Or(status, x.Status)
		x.End = cmp.Or(int64(r.End), x.End)
		if r.RunName != "" {
			x.Name, x.Tags["mlflow.runName"] = r.RunName, r.RunName
		}
		info = infoJSON(x)
		return nil
	})
	return object{"run_info": info}, err
}

func (h *Server) stageRun(stage string) call {
	return func(ctx context.Context, q *query) (any, error) {
		r, err := read(q)
		if err != nil {
			return nil, err
		}
		return object{}, h.alterRun(ctx, r.run(), func(x *run) error {
			x.Stage = stage
			return nil
		})
	}
}

func (h *Server) search(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	var all []runView
	wanted := map[string]bool{}
	for _, id := range r.ExperimentIDs {
		wanted[id] = true
	}
	if err := h.store.view(func(s *state) error {
		for _, x := range s.runs {
			if wanted[x.Experiment] {
				all = append(all, s.viewOf(x))
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, id := range r.ExperimentIDs {
		if searchID.MatchString(id) && h.Searches != nil {
			s, err := h.Searches.Get(ctx, id)
			if err != nil {
				return nil, err
			}
			all = append(all, s.runs()...)
		}
	}
	found, err := searchRuns(all, r.Filter, word(r.RunView), r.OrderBy)
	if err != nil {
		return nil, err
	}
	cut, next, err := page(found, int64(r.MaxResults), r.PageToken)
	if err != nil {
		return nil, err
	}
	out := []any{}
	for _, v := range cut {
		out = append(out, runJSON(v))
	}
	return object{"runs": out, "next_page_token": next}, nil
}

// logAll logs to a run.
func (h *Server) logAll(ctx context.Context, run string, metrics []metric, params, tags []pair) (any, error) {
	return object{}, h.store.change(ctx, func(s *state) ([]*entry, error) { return s.logTo(run, metrics, params, tags) })
}

func (h *Server) logMetric(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	m := metric{Key: r.Key, Time: r.Timestamp, Step: r.Step}
	if len(r.Value) == 0 {
		return nil, errorf(badValue, "Missing value for required parameter 'value'")
	}
	if err := m.Value.UnmarshalJSON(r.Value); err != nil {
		return nil, errorf(badValue, "the value of metric '%s': %v", r.Key, err)
	}
	return h.logAll(ctx, r.run(), []metric{m}, nil, nil)
}

func (h *Server) logParameter(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	v, err := text(r.Value)
	if err != nil {
		return nil, err
	}
	return h.logAll(ctx, r.run(), nil, []pair{{r.Key, v}}, nil)
}

func (h *Server) logBatch(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	return h.logAll(ctx, r.run(), r.Metrics, r.Params, r.Tags)
}

func (h *Server) setTag(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	v, err := text(r.Value)
	if err != nil {
		return nil, err
	}
	return h.logAll(ctx, r.run(), nil, nil, []pair{{r.Key, v}})
}

func (h *Server) deleteTag(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	return object{}, h.alterRun(ctx, r.run(), func(x *run) error {
		if _, ok := x.Tags[r.Key]; !ok {
			return errorf(missing, "No tag with name: %s in run with id %s", r.Key, x.ID)
		}
		delete(x.Tags, r.Key)
		return nil
	})
}

// logModel is how MLflow 2 said that a model is among the artifacts: a tag with the history of them.
func (h *Server) logModel(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	var model json.RawMessage
	if json.Unmarshal([]byte(r.ModelJSON), &model) != nil || len(r.ModelJSON) > maxExperimentTag {
		return nil, errorf(badValue, "model_json is no JSON of at most %d bytes", maxExperimentTag)
	}
	return object{}, h.alterRun(ctx, r.run(), func(x *run) error {
		var before []json.RawMessage
		_ = json.Unmarshal([]byte(x.Tags["mlflow.log-model.history"]), &before) // what is no list is replaced
		if len(before) == 100 {
			before = before[1:]
		}
		text, err := json.Marshal(append(before, model))
		x.Tags["mlflow.log-model.history"] = string(text)
		return err
	})
}

// logInputs adds data sets and models that a run has read, logOutputs models that it has made.
func (h *Server) logInputs(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	return object{}, h.alterRun(ctx, r.run(), func(x *run) error {
		return extend(&x.Inputs, map[string][]any{"dataset_inputs": r.Datasets, "model_inputs": r.Models})
	})
}

func (h *Server) logOutputs(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	return object{}, h.alterRun(ctx, r.run(), func(x *run) error {
		return extend(&x.Outputs, map[string][]any{"model_outputs": r.Models})
	})
}

// extend appends to the lists of a document what is not there yet.
func extend(document *json.RawMessage, more map[string][]any) error {
	was := map[string][]any{}
	if *document != nil {
		if err := json.Unmarshal(*document, &was); err != nil {
			return err
		}
	}
	for name, list := range more {
		seen := map[string]bool{}
		for _, x := range was[name] {
			b, err := json.Marshal(x)
			if err != nil {
				return err
			}
			seen[string(b)] = true
		}
		for _, x := range list {
			b, err := json.Marshal(x)
			if err != nil {
				return err
			}
			if !seen[string(b)] {
				was[name] = append(was[name], x)
			}
		}
		if len(was[name]) > maxInputs {
			return errorf(badValue, "a run has at most %d %s", maxInputs, name)
		}
	}
	text, err := json.Marshal(was)
	if len(text) > maxInputBytes {
		return errorf(badValue, "the inputs or outputs of a run have at most %d bytes in all, these %d", maxInputBytes, len(text))
	}
	*document = text
	return err
}

func (h *Server) metricHistory(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	v, err := h.view(ctx, r.run())
	if err != nil {
		return nil, err
	}
	most := int64(r.MaxResults)
	if most == 0 {
		most = maxSearchResults
	}
	cut, next, err := page(v.metrics[r.MetricKey], most, r.PageToken)
	if err != nil {
		return nil, err
	}
	out := []metric{}
	for _, p := range cut {
		out = append(out, metricJSON(r.MetricKey, p))
	}
	return object{"metrics": out, "next_page_token": next}, nil
}

// metricHistoryBulk is what pages draw: the points of one metric of several runs, thinned out evenly.
func (h *Server) metricHistoryBulk(ctx context.Context, q *query) (any, error) {
	var r struct {
		RunIDs     []string `json:"run_ids"`
		RunID      string   `json:"run_id"`
		MetricKey  string   `json:"metric_key"`
		MaxResults number   `json:"max_results"`
		First      *number  `json:"start_step"`
		Last       *number  `json:"end_step"`
	}
	if err := q.into(&r); err != nil {
		return nil, err
	}
	if r.RunID != "" {
		r.RunIDs = append(r.RunIDs, r.RunID)
	}
	if len(r.RunIDs) == 0 || len(r.RunIDs) > 100 {
		return nil, errorf(badValue, "run_ids names %d runs, 1 to 100 may be asked for", len(r.RunIDs))
	}
	most := int(cmp.Or(r.MaxResults, 2500))
	if most < 1 || most > 25_000 {
		return nil, errorf(badValue, "max_results %d is not between 1 and 25000", most)
	}
	type ofRun struct {
		metric
		Run string `json:"run_id"`
	}
	out := []ofRun{}
	for _, id := range r.RunIDs {
		v, err := h.view(ctx, id)
		if err != nil {
			return nil, err
		}
		points := slices.Clone(v.metrics[r.MetricKey])
		slices.SortStableFunc(points, func(a, b point) int { return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Time, b.Time)) })
		points = slices.DeleteFunc(points, func(p point) bool {
			return r.First != nil && p.Step < int64(*r.First) || r.Last != nil && p.Step > int64(*r.Last)
		})
		every := (len(points) + most - 1) / most
		for i, p := range points {
			if i%max(every, 1) == 0 || i == len(points)-1 {
				out = append(out, ofRun{metricJSON(r.MetricKey, p), id})
			}
		}
	}
	return object{"metrics": out}, nil
}
