package mlflow

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/gohops/hops/training"
)

// Searches are the searches of the project, which appear as experiments that can only be read. They may be nil.
type Searches interface {
	// List names them, without their trials.
	List(ctx context.Context) ([]Search, error)
	// Get is one with its trials, their parameters and curves.
	Get(ctx context.Context, id string) (*Search, error)
}

// Search is a search as MLflow sees it.
type Search struct {
	ID, Name, User, State, Metric, Directory string
	Started, Finished                        training.Millis
	Tags                                     map[string]string
	Trials                                   []SearchTrial
}

// SearchTrial is a trial as a run.
type SearchTrial struct {
	Number         string // "0007"
	State          training.State
	Params         training.Params
	Metric         *float64
	Steps          []int64
	Values         []float64 // as many as Steps
	Started, Ended training.Millis
}

// searchID is how the ids of searches look; those of MLflow's experiments are numbers.
var searchID = regexp.MustCompile(`^application_\d+_\d+_\d+$`)

// readOnly refuses to change a search.
func readOnly(id string) error {
	if base, _, _ := strings.Cut(id, "-"); searchID.MatchString(base) {
		return errorf(badValue, "%s is a search of the cluster, which can be read here but not changed", id)
	}
	return nil
}

// runView is a run with what was logged, however it came about.
type runView struct {
	run
	params  map[string]string
	last    map[string]point
	metrics map[string][]point
}

func (s *state) viewOf(r *run) runView {
	v := runView{run: *r}
	if l := s.logged[r.ID]; l != nil {
		v.params, v.last, v.metrics = maps.Clone(l.params), maps.Clone(l.last), maps.Clone(l.metrics)
	}
	return v
}

// experiment makes the experiment that a search is shown as.
func (s *Search) experiment() *experiment {
	tags := map[string]string{"hops.search": s.ID, "hops.state": s.State, "hops.metric": s.Metric}
	maps.Copy(tags, s.Tags)
	return &experiment{
		ID: s.ID, Name: s.Name + " (" + s.ID + ")", Artifacts: artifactScheme + "/" + searchesDir + "/" + s.ID, Stage: active,
		Created: int64(s.Started), Updated: int64(max(s.Started, s.Finished)), Tags: tags,
	}
}

// runs makes a run of each trial.
func (s *Search) runs() []runView {
	var out []runView
	for _, t := range s.Trials {
		v := runView{
			run: run{
				ID: s.ID + "-" + t.Number, Name: t.Number, Experiment: s.ID, User: s.User, Start: int64(t.Started), End: int64(t.Ended), Stage: active,
				Artifacts: artifactScheme + "/" + searchesDir + "/" + s.ID + "/" + t.Number,
				Tags:      map[string]string{"mlflow.runName": t.Number, "mlflow.user": s.User, "hops.state": string(t.State)},
			},
			params: map[string]string{}, last: map[string]point{}, metrics: map[string][]point{},
		}
		switch {
		case t.State == training.Completed || t.State == training.Stopped:
			v.Status = finished
		case t.State == training.Failed || t.State == training.Invalid:
			v.Status = "FAILED"
		case s.Finished != 0:
			v.Status = "KILLED"
		case t.State == training.Running:
			v.Status = running
		default:
			v.Status = "SCHEDULED"
		}
		if v.Start == 0 {
			v.Start = int64(s.Started)
		}
		for name, p := range t.Params {
			v.params[name] = p.String()
		}
		for i, step := range t.Steps {
			p := point{t.Values[i], int64(t.Started), step}
			v.metrics[s.Metric] = append(v.metrics[s.Metric], p)
			v.last[s.Metric] = p
		}
		if t.Metric != nil { // the final value, which may not be the last one reported
			last := v.last[s.Metric]
			p := point{*t.Metric, int64(max(t.Ended, t.Started)), last.Step}
			v.last[s.Metric] = p
			if len(v.metrics[s.Metric]) == 0 {
				v.metrics[s.Metric] = []point{p}
			}
		}
		out = append(out, v)
	}
	return out
}

// The documents of the protocol.

func experimentJSON(x *experiment) map[string]any {
	return map[string]any{
		"experiment_id": x.ID, "name": x.Name, "artifact_location": x.Artifacts, "lifecycle_stage": x.Stage,
		"creation_time": x.Created, "last_update_time": x.Updated, "tags": pairs(x.Tags),
	}
}

func pairs(m map[string]string) []pair {
	out := []pair{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, pair{k, m[k]})
	}
	return out
}

func infoJSON(r *run) map[string]any {
	info := map[string]any{
		"run_id": r.ID, "run_uuid": r.ID, "run_name": r.Name, "experiment_id": r.Experiment, "user_id": r.User, "status": r.Status,
		"start_time": r.Start, "artifact_uri": r.Artifacts, "lifecycle_stage": r.Stage,
	}
	if r.End != 0 {
		info["end_time"] = r.End
	}
	return info
}

func runJSON(v *runView) map[string]any {
	metrics := []metric{}
	for _, k := range slices.Sorted(maps.Keys(v.last)) {
		metrics = append(metrics, metricJSON(k, v.last[k]))
	}
	out := map[string]any{
		"info": infoJSON(&v.run),
		"data": map[string]any{"metrics": metrics, "params": pairs(v.params), "tags": pairs(v.Tags)},
	}
	if v.Inputs != nil {
		out["inputs"] = v.Inputs
	}
	if v.Outputs != nil {
		out["outputs"] = v.Outputs
	}
	return out
}

func metricJSON(key string, p point) metric {
	return metric{key, training.M(p.Value), number(p.Time), number(p.Step)}
}

// checkKey refuses names that MLflow refuses.
func checkKey(what, key string) error {
	switch {
	case key == "":
		return errorf(badValue, "a %s has no name", what)
	case len(key) > maxKey:
		return errorf(badValue, "%s '%.40s…': the name has %d characters, at most %d", what, key, len(key), maxKey)
	case !keyForm.MatchString(key), path.Clean(key) != key, key == ".", strings.HasPrefix(key, ".."), strings.HasPrefix(key, "/"):
		return errorf(badValue, "%s '%s': a name has letters, digits, _ - . : / and blanks, and is no path elsewhere", what, key)
	}
	return nil
}

var keyForm = regexp.MustCompile(`^[\pL\pN_.:/ -]+$`)

func checkPair(what string, p pair, most int) error {
	if err := checkKey(what, p.Key); err != nil {
		return err
	}
	if len(p.Value) > most {
		return errorf(badValue, "%s '%s' has a value of %d characters, at most %d", what, p.Key, len(p.Value), most)
	}
	return nil
}

// experimentOf finds an experiment that clients made.
func (s *state) experimentOf(id string) (*experiment, error) {
	if err := readOnly(id); err != nil {
		return nil, err
	}
	x := s.experiments[id]
	if x == nil {
		return nil, errorf(missing, "No Experiment with id=%s exists", id)
	}
	return x, nil
}

func (s *state) runOf(id string) (*run, error) {
	if err := readOnly(id); err != nil {
		return nil, err
	}
	r := s.runs[id]
	if r == nil {
		return nil, errorf(missing, "Run with id=%s not found", id)
	}
	return r, nil
}

// activeRun finds a run that may be changed.
func (s *state) activeRun(id string) (*run, error) {
	r, err := s.runOf(id)
	if err == nil && r.Stage != active {
		return nil, errorf(badValue, "The run %s must be in the 'active' state, it is deleted", id)
	}
	return r, err
}

// newRun makes a run in an experiment.
func (s *state) newRun(x *experiment, user, name string, start, now int64, tags []pair) (*run, error) {
	if x.Stage != active {
		return nil, errorf(badValue, "The experiment %s must be in the 'active' state, it is deleted", x.ID)
	}
	if len(s.runs) >= maxRunsPerProject {
		return nil, errorf(badValue, "there are %d runs, as many as are kept", len(s.runs))
	}
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	r := &run{
		ID: id, Experiment: x.ID, User: user, Status: running, Start: cmp.Or(start, now), Stage: active,
		Artifacts: strings.TrimRight(x.Artifacts, "/") + "/" + id + "/artifacts", Tags: map[string]string{},
	}
	for _, t := range tags {
		if err := checkPair("tag", t, maxTag); err != nil {
			return nil, err
		}
		r.Tags[t.Key] = t.Value
	}
	r.Name = cmp.Or(name, r.Tags["mlflow.runName"], "run-"+id[:8])
	r.Tags["mlflow.runName"] = r.Name
	if r.User == "" {
		r.User = r.Tags["mlflow.user"]
	}
	return r, nil
}

// logTo checks what is to be logged to a run.
func (s *state) logTo(id string, metrics []metric, params, tags []pair) ([]*entry, error) {
	r, err := s.activeRun(id)
	if err != nil {
		return nil, err
	}
	if len(metrics) > maxBatchMetrics || len(params) > maxBatchOthers || len(tags) > maxBatchOthers || len(metrics)+len(params)+len(tags) > maxBatchTotal {
		return nil, errorf(badValue, "A batch logging request can contain at most %d metrics, %d params, %d tags and %d in all; here are %d, %d and %d",
			maxBatchMetrics, maxBatchOthers, maxBatchOthers, maxBatchTotal, len(metrics), len(params), len(tags))
	}
	for _, m := range metrics {
		if err := checkKey("metric", m.Key); err != nil {
			return nil, err
		}
		if m.Value.Text != "" {
			return nil, errorf(badValue, "Got invalid value %s for metric '%s': it is no number", m.Value, m.Key)
		}
	}
	was, names := map[string]string{}, map[string]bool{}
	for _, m := range metrics {
		names[m.Key] = true
	}
	if l := s.logged[id]; l != nil {
		was = l.params
		for k := range l.metrics {
			names[k] = true
		}
	}
	if len(names) > maxNames || len(was)+len(params) > maxNames || len(r.Tags)+len(tags) > maxNames {
		return nil, errorf(badValue, "run %s would have more than %d metrics, params or tags", id, maxNames)
	}
	if s.points+int64(len(metrics)) > maxPoints {
		return nil, errorf(badValue, "there are %d values of metrics in this project, as many as are kept: log to another one", s.points)
	}
	fresh := map[string]string{}
	for _, p := range params {
		if err := checkPair("param", p, maxParam); err != nil {
			return nil, err
		}
		old, known := was[p.Key]
		if again, twice := fresh[p.Key]; twice {
			old, known = again, true
		}
		if known && old != p.Value {
			return nil, errorf(badValue, "Changing param values is not allowed. Param with key='%s' was already logged with value='%s' for run ID='%s'. Attempted logging new value '%s'.", p.Key, old, id, p.Value)
		}
		fresh[p.Key] = p.Value
	}
	var out []*entry
	if len(tags) > 0 {
		c := *r
		c.Tags = maps.Clone(r.Tags)
		for _, t := range tags {
			if err := checkPair("tag", t, maxTag); err != nil {
				return nil, err
			}
			c.Tags[t.Key] = t.Value
		}
		c.Name = cmp.Or(c.Tags["mlflow.runName"], c.Name)
		out = append(out, &entry{Run: &c})
	}
	if len(metrics)+len(params) > 0 {
		out = append(out, &entry{Log: &logEntry{Run: id, Metrics: metrics, Params: params}})
	}
	return out, nil
}

// runStatus reads a state by its name or its number.
func runStatus(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil && slices.Contains(runStates, text) {
		return text, nil
	}
	if n, err := strconv.Atoi(strings.Trim(string(raw), `"`)); err == nil && n >= 1 && n <= len(runStates) {
		return runStates[n-1], nil
	}
	return "", errorf(badValue, "status %.40s is none of %s", raw, strings.Join(runStates, ", "))
}

// runAttributes are those of a filter over runs, and whether each is a number.
var runAttributes = map[string]bool{
	"run_id": false, "run_name": false, "status": false, "user_id": false, "artifact_uri": false, "experiment_id": false,
	"start_time": true, "end_time": true,
}

func (v *runView) lookup(kind, key string) value {
	switch kind {
	case "metric":
		p, ok := v.last[key]
		return numberValue(p.Value, ok)
	case "param":
		s, ok := v.params[key]
		return textValue(s, ok)
	case "tag":
		s, ok := v.Tags[key]
		return textValue(s, ok)
	}
	switch key {
	case "run_id":
		return textValue(v.ID, true)
	case "run_name":
		return textValue(v.Name, true)
	case "status":
		return textValue(v.Status, true)
	case "user_id":
		return textValue(v.User, true)
	case "artifact_uri":
		return textValue(v.Artifacts, true)
	case "experiment_id":
		return textValue(v.Experiment, true)
	case "start_time":
		return numberValue(float64(v.Start), true)
	}
	return numberValue(float64(v.End), v.End != 0)
}

// inStage reports whether something of a stage is asked for by run_view_type.
func inStage(stage, view string) bool {
	switch strings.ToUpper(view) {
	case "DELETED_ONLY", "2":
		return stage == deleted
	case "ALL", "3":
		return true
	}
	return stage == active
}

// searchRuns filters, sorts and pages.
func searchRuns(all []runView, text, view string, orderBy []string) ([]*runView, error) {
	f, err := parseFilter(text, runAttributes)
	if err != nil {
		return nil, err
	}
	orders, err := parseOrder(orderBy, runAttributes)
	if err != nil {
		return nil, err
	}
	var out []*runView
	for i := range all {
		if v := &all[i]; inStage(v.Stage, view) && f.match(v.lookup) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b *runView) int {
		for _, o := range orders {
			if c := o.compareValues(a.lookup(o.kind, o.key), b.lookup(o.kind, o.key)); c != 0 {
				return c
			}
		}
		return cmp.Or(cmp.Compare(b.Start, a.Start), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// page cuts a list at max_results and says where it goes on: "" at its end.
func page[T any](list []T, most int64, token string) ([]T, string, error) {
	if most < 0 || most > maxSearchResults {
		return nil, "", errorf(badValue, "max_results %d is not between 1 and %d", most, maxSearchResults)
	}
	if most == 0 {
		most = defaultResults
	}
	from := 0
	if token != "" {
		text, err := base64.StdEncoding.DecodeString(token)
		if err == nil {
			from, err = strconv.Atoi(string(text))
		}
		if err != nil || from < 0 {
			return nil, "", errorf(badValue, "the page token is none of this server")
		}
	}
	from = min(from, len(list))
	to := min(from+int(most), len(list))
	next := ""
	if to < len(list) {
		next = base64.StdEncoding.EncodeToString([]byte(fmt.Sprint(to)))
	}
	return list[from:to], next, nil
}
