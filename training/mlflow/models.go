package mlflow

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/registry"
	"github.com/gohops/hops/training/store"
)

// Registered models are those of the project's registry (docs/reference/models.md). What MLflow knows beside them is in
// tags: aliases in mlflow.alias.<alias> of the model, the stage in mlflow.stage and the run in mlflow.run of a version.
const (
	aliasTag = "mlflow.alias."
	stageTag = "mlflow.stage"
	runTag   = "mlflow.run"
)

func (h *Server) modelCalls() map[string]call {
	return map[string]call{
		"POST registered-models/create":              h.createModel,
		"GET registered-models/get":                  h.getModel,
		"GET registered-models/search":               h.searchModels,
		"PATCH registered-models/update":             h.updateModel,
		"DELETE registered-models/delete":            h.deleteModel,
		"POST registered-models/rename":              h.renameModel,
		"POST registered-models/get-latest-versions": h.latestVersions,
		"GET registered-models/get-latest-versions":  h.latestVersions,
		"POST registered-models/set-tag":             h.tagModel(false, true),
		"DELETE registered-models/delete-tag":        h.tagModel(false, false),
		"POST registered-models/alias":               h.setAlias,
		"DELETE registered-models/alias":             h.deleteAlias,
		"GET registered-models/alias":                h.getAlias,
		"POST model-versions/create":                 h.createVersion,
		"GET model-versions/get":                     h.getVersion,
		"GET model-versions/search":                  h.searchVersions,
		"PATCH model-versions/update":                h.updateVersion,
		"DELETE model-versions/delete":               h.deleteVersion,
		"POST model-versions/transition-stage":       h.stageVersion,
		"GET model-versions/get-download-uri":        h.downloadURI,
		"POST model-versions/set-tag":                h.tagModel(true, true),
		"DELETE model-versions/delete-tag":           h.tagModel(true, false),
	}
}

// modelRequest is every field of requests about registered models.
type modelRequest struct {
	Name        string   `json:"name"`
	Version     number   `json:"version"`
	Description string   `json:"description"`
	Tags        []pair   `json:"tags"`
	Key         string   `json:"key"`
	Value       string   `json:"value"`
	Alias       string   `json:"alias"`
	Source      string   `json:"source"`
	RunID       string   `json:"run_id"`
	ModelID     string   `json:"model_id"`
	Stage       string   `json:"stage"`
	Stages      []string `json:"stages"`
	Filter      string   `json:"filter"`
	OrderBy     []string `json:"order_by"`
	MaxResults  number   `json:"max_results"`
	PageToken   string   `json:"page_token"`
}

func readModel(q *query) (r *modelRequest, err error) {
	r = &modelRequest{}
	return r, q.into(r)
}

// versions of a model, oldest first, with its own tags and description.
type registered struct {
	name        string
	created     int64
	tags        map[string]string
	description string
	versions    []*registry.Model
}

func (h *Server) model(ctx context.Context, name string) (*registered, error) {
	if err := registry.CheckName("model", name); err != nil {
		return nil, err
	}
	dir := h.registry.Directory(name)
	s, err := h.Files.Stat(ctx, dir)
	if store.Missing(err) {
		return nil, errorf(missing, "Registered Model with name=%s not found", name)
	}
	if err != nil {
		return nil, err
	}
	m := &registered{name: name, created: s.MTime.Time().UnixMilli()}
	if m.tags, m.description, err = history.Tags(ctx, h.Files, dir); err != nil {
		return nil, err
	}
	if m.versions, err = h.registry.Versions(ctx, name); err != nil {
		return nil, err
	}
	if len(m.versions) > 0 {
		m.created = int64(m.versions[0].Created)
	}
	return m, nil
}

// aliases of a version.
func (m *registered) aliases(version int) []string {
	out := []string{}
	for _, k := range slices.Sorted(maps.Keys(m.tags)) {
		if a, ok := strings.CutPrefix(k, aliasTag); ok && m.tags[k] == strconv.Itoa(version) {
			out = append(out, a)
		}
	}
	return out
}

func (h *Server) versionJSON(m *registered, v *registry.Model) object {
	tags := map[string]string{}
	for k, t := range v.Tags {
		if k != stageTag && k != runTag {
			tags[k] = t
		}
	}
	source := v.Source
	if !strings.Contains(source, ":") {
		source = artifactScheme + "/" + path.Join(modelsDir, v.Name, strconv.Itoa(v.Version))
	}
	run := v.Tags[runTag]
	if run == "" && v.Experiment != "" && v.Trial != "" {
		run = v.Experiment + "-" + v.Trial
	}
	return object{
		"name": v.Name, "version": strconv.Itoa(v.Version), "creation_timestamp": int64(v.Created), "last_updated_timestamp": int64(v.Created),
		"user_id": v.User, "current_stage": cmp.Or(v.Tags[stageTag], "None"), "description": v.Description, "source": source, "run_id": run,
		"status": "READY", "tags": pairs(tags), "aliases": m.aliases(v.Version),
	}
}

func (h *Server) modelJSON(m *registered) object {
	tags := map[string]string{}
	aliases := []object{}
	for _, k := range slices.Sorted(maps.Keys(m.tags)) {
		if a, ok := strings.CutPrefix(k, aliasTag); ok {
			aliases = append(aliases, object{"alias": a, "version": m.tags[k]})
		} else {
			tags[k] = m.tags[k]
		}
	}
	latest := []object{}
	for _, v := range m.latest(nil) {
		latest = append(latest, h.versionJSON(m, v))
	}
	updated := m.created
	if n := len(m.versions); n > 0 {
		updated = int64(m.versions[n-1].Created)
	}
	return object{
		"name": m.name, "creation_timestamp": m.created, "last_updated_timestamp": updated, "description": m.description,
		"latest_versions": latest, "tags": pairs(tags), "aliases": aliases,
	}
}

// tagValue is a tag in a filter. Clients leave prompts out by a tag that models do not have; there are no prompts here.
func tagValue(tags map[string]string, key string) value {
	v, ok := tags[key]
	if !ok && key == "mlflow.prompt.is_prompt" {
		return textValue("false", true)
	}
	return textValue(v, ok)
}

// latest are the newest versions of each stage.
func (m *registered) latest(stages []string) []*registry.Model {
	byStage := map[string]*registry.Model{}
	for _, v := range m.versions {
		byStage[cmp.Or(v.Tags[stageTag], "None")] = v
	}
	var out []*registry.Model
	for _, stage := range slices.Sorted(maps.Keys(byStage)) {
		if len(stages) == 0 || slices.ContainsFunc(stages, func(s string) bool { return strings.EqualFold(s, stage) }) {
			out = append(out, byStage[stage])
		}
	}
	return out
}

func (h *Server) createModel(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	if err := registry.CheckName("model", r.Name); err != nil {
		return nil, err
	}
	dir := h.registry.Directory(r.Name)
	if _, err := h.Files.Stat(ctx, dir); err == nil {
		return nil, errorf(exists, "Registered Model (name=%s) already exists.", r.Name)
	} else if !store.Missing(err) {
		return nil, err
	}
	if err := h.Files.Mkdirs(ctx, dir); err != nil {
		return nil, err
	}
	for _, t := range r.Tags {
		if err := history.SetTag(ctx, h.Files, dir, t.Key, t.Value); err != nil {
			return nil, err
		}
	}
	if r.Description != "" {
		if err := history.SetNote(ctx, h.Files, dir, r.Description); err != nil {
			return nil, err
		}
	}
	return h.theModel(ctx, r.Name)
}

func (h *Server) theModel(ctx context.Context, name string) (any, error) {
	m, err := h.model(ctx, name)
	if err != nil {
		return nil, err
	}
	return object{"registered_model": h.modelJSON(m)}, nil
}

func (h *Server) getModel(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	return h.theModel(ctx, r.Name)
}

func (h *Server) updateModel(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	if _, err := h.model(ctx, r.Name); err != nil {
		return nil, err
	}
	if err := history.SetNote(ctx, h.Files, h.registry.Directory(r.Name), r.Description); err != nil {
		return nil, err
	}
	return h.theModel(ctx, r.Name)
}

func (h *Server) deleteModel(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	if _, err := h.model(ctx, r.Name); err != nil {
		return nil, err
	}
	return object{}, h.registry.Delete(ctx, r.Name, 0)
}

func (h *Server) renameModel(context.Context, *query) (any, error) {
	return nil, errorf(badValue, "a registered model cannot be renamed here: its name is its directory, which experiments and programs know; export it again under the new name")
}

func (h *Server) searchModels(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	attributes := map[string]bool{"name": false, "creation_timestamp": true, "last_updated_timestamp": true, "timestamp": true}
	f, err := parseFilter(r.Filter, attributes)
	if err != nil {
		return nil, err
	}
	orders, err := parseOrder(r.OrderBy, attributes)
	if err != nil {
		return nil, err
	}
	names, err := h.registry.Names(ctx)
	if err != nil {
		return nil, err
	}
	lookup := func(m *registered) func(kind, key string) value {
		return func(kind, key string) value {
			switch {
			case kind == "tag":
				return tagValue(m.tags, key)
			case kind != "attribute":
				return value{}
			case key == "name":
				return textValue(m.name, true)
			case key == "creation_timestamp" || len(m.versions) == 0:
				return numberValue(float64(m.created), true)
			}
			return numberValue(float64(m.versions[len(m.versions)-1].Created), true)
		}
	}
	var found []*registered
	for _, name := range names {
		m, err := h.model(ctx, name)
		if err != nil {
			if coded(err).Code == missing {
				continue // deleted since
			}
			return nil, err
		}
		if f.match(lookup(m)) {
			found = append(found, m)
		}
	}
	slices.SortStableFunc(found, func(a, b *registered) int {
		for _, o := range orders {
			if c := o.compareValues(lookup(a)(o.kind, o.key), lookup(b)(o.kind, o.key)); c != 0 {
				return c
			}
		}
		return 0
	})
	cut, next, err := page(found, int64(r.MaxResults), r.PageToken)
	if err != nil {
		return nil, err
	}
	out := []object{}
	for _, m := range cut {
		out = append(out, h.modelJSON(m))
	}
	return object{"registered_models": out, "next_page_token": next}, nil
}

func (h *Server) latestVersions(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	m, err := h.model(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	out := []object{}
	for _, v := range m.latest(r.Stages) {
		out = append(out, h.versionJSON(m, v))
	}
	return object{"model_versions": out}, nil
}

// tagModel sets or removes a tag of a model, or of one of its versions.
func (h *Server) tagModel(ofVersion, set bool) call {
	return func(ctx context.Context, q *query) (any, error) {
		r, err := readModel(q)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(r.Key, aliasTag) || r.Key == stageTag || r.Key == runTag {
			return nil, errorf(badValue, "tag '%s' is this server's own", r.Key)
		}
		dir := h.registry.Directory(r.Name)
		if _, err := h.model(ctx, r.Name); err != nil {
			return nil, err
		}
		if ofVersion {
			v, err := h.registry.Version(ctx, r.Name, h.version(r.Version))
			if err != nil {
				return nil, err
			}
			dir = v.Directory
		}
		if set {
			return object{}, history.SetTag(ctx, h.Files, dir, r.Key, r.Value)
		}
		return object{}, history.RemoveTag(ctx, h.Files, dir, r.Key)
	}
}

// version never asks for the newest by accident.
func (h *Server) version(n number) int {
	if n < 1 || n > 1<<30 {
		return -1
	}
	return int(n)
}

func (h *Server) setAlias(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	if _, err := h.registry.Version(ctx, r.Name, h.version(r.Version)); err != nil {
		return nil, err
	}
	return object{}, history.SetTag(ctx, h.Files, h.registry.Directory(r.Name), aliasTag+r.Alias, itoa(int64(r.Version)))
}

func (h *Server) deleteAlias(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	if _, err := h.model(ctx, r.Name); err != nil {
		return nil, err
	}
	return object{}, history.RemoveTag(ctx, h.Files, h.registry.Directory(r.Name), aliasTag+r.Alias)
}

func (h *Server) getAlias(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	m, err := h.model(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	for _, v := range m.versions {
		if m.tags[aliasTag+r.Alias] == strconv.Itoa(v.Version) {
			return object{"model_version": h.versionJSON(m, v)}, nil
		}
	}
	return nil, errorf(badValue, "Registered model alias %s not found.", r.Alias)
}

// createVersion copies the files of a run, a logged model or another version into the registry.
func (h *Server) createVersion(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	if _, err := h.model(ctx, r.Name); err != nil {
		return nil, err
	}
	x := registry.Model{Name: r.Name, Description: r.Description, Source: r.Source, Metrics: map[string]training.Metric{}}
	from, run, err := h.modelSource(ctx, r.Source, r.ModelID)
	if err != nil {
		return nil, err
	}
	if run = cmp.Or(r.RunID, run); run != "" {
		v, err := h.view(ctx, run)
		if err != nil {
			return nil, err
		}
		for k, p := range v.last {
			x.Metrics[k] = training.M(p.Value)
		}
		x.Params = training.Params{}
		for k, p := range v.params {
			x.Params[k] = training.String(p)
		}
		if i := strings.LastIndexByte(run, '-'); i > 0 && searchID.MatchString(run[:i]) && h.Searches != nil {
			s, err := h.Searches.Get(ctx, run[:i])
			if err != nil {
				return nil, err
			}
			x.Trial, x.Params = run[i+1:], nil
			if err := registry.Lineage(ctx, h.Files, &x, s.Directory); err != nil {
				return nil, err
			}
		}
	}
	made, err := h.registry.Export(ctx, x, registry.FromCluster(h.Files, from), false)
	if err != nil {
		return nil, err
	}
	tags := r.Tags
	if run != "" {
		tags = append(tags, pair{runTag, run})
	}
	for _, t := range tags {
		if err := history.SetTag(ctx, h.Files, made.Directory, t.Key, t.Value); err != nil {
			return nil, err
		}
	}
	return h.theVersion(ctx, r.Name, made.Version)
}

// modelSource is where the files of a source are, and the run that made them if that is known.
func (h *Server) modelSource(ctx context.Context, source, modelID string) (dir, run string, err error) {
	if id, ok := strings.CutPrefix(source, "models:/m-"); ok {
		modelID = "m-" + id
	}
	switch {
	case strings.HasPrefix(source, artifactScheme+"/"):
		dir, err = h.place(ctx, strings.TrimLeft(strings.TrimPrefix(source, artifactScheme), "/"), false)
		return dir, "", err
	case strings.HasPrefix(source, "runs:/"):
		run, rest, _ := strings.Cut(strings.TrimPrefix(source, "runs:/"), "/")
		v, err := h.view(ctx, run)
		if err != nil {
			return "", "", err
		}
		at, err := under(v.Artifacts, rest)
		if err != nil {
			return "", "", err
		}
		dir, err = h.place(ctx, at, false)
		return dir, run, err
	case strings.HasPrefix(modelID, "m-"):
		err = h.store.view(func(s *state) error {
			m, err := s.modelOf(modelID)
			if err == nil {
				dir, run = m.Artifacts, m.Run
			}
			return err
		})
		if err != nil {
			return "", "", err
		}
		dir, err = h.place(ctx, strings.TrimPrefix(dir, artifactScheme+"/"), false)
		return dir, run, err
	}
	return "", "", errorf(badValue, "source '%.200s': a version is made of files behind this server: %s/…, runs:/… or models:/m-…", source, artifactScheme)
}

func (h *Server) theVersion(ctx context.Context, name string, version int) (any, error) {
	m, err := h.model(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, v := range m.versions {
		if v.Version == version {
			return object{"model_version": h.versionJSON(m, v)}, nil
		}
	}
	return nil, errorf(missing, "Model Version (name=%s, version=%d) not found", name, version)
}

func (h *Server) getVersion(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	return h.theVersion(ctx, r.Name, h.version(r.Version))
}

func (h *Server) updateVersion(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	v, err := h.registry.Version(ctx, r.Name, h.version(r.Version))
	if err == nil {
		err = history.SetNote(ctx, h.Files, v.Directory, r.Description)
	}
	if err != nil {
		return nil, err
	}
	return h.theVersion(ctx, r.Name, v.Version)
}

func (h *Server) deleteVersion(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	return object{}, h.registry.Delete(ctx, r.Name, h.version(r.Version))
}

func (h *Server) stageVersion(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	stages := []string{"None", "Staging", "Production", "Archived"}
	i := slices.IndexFunc(stages, func(s string) bool { return strings.EqualFold(s, r.Stage) })
	if i < 0 {
		return nil, errorf(badValue, "Invalid Model Version stage: %s. Value must be one of %s.", r.Stage, strings.Join(stages, ", "))
	}
	v, err := h.registry.Version(ctx, r.Name, h.version(r.Version))
	if err == nil {
		err = history.SetTag(ctx, h.Files, v.Directory, stageTag, stages[i])
	}
	if err != nil {
		return nil, err
	}
	return h.theVersion(ctx, r.Name, v.Version)
}

func (h *Server) downloadURI(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	v, err := h.registry.Version(ctx, r.Name, h.version(r.Version))
	if err != nil {
		return nil, err
	}
	return object{"artifact_uri": artifactScheme + "/" + path.Join(modelsDir, v.Name, strconv.Itoa(v.Version))}, nil
}

func (h *Server) searchVersions(ctx context.Context, q *query) (any, error) {
	r, err := readModel(q)
	if err != nil {
		return nil, err
	}
	attributes := map[string]bool{
		"name": false, "run_id": false, "source_path": false, "version_number": true, "creation_timestamp": true, "last_updated_timestamp": true,
	}
	f, err := parseFilter(r.Filter, attributes)
	if err != nil {
		return nil, err
	}
	if len(r.OrderBy) == 0 {
		r.OrderBy = []string{"creation_timestamp DESC", "name", "version_number DESC"}
	}
	orders, err := parseOrder(r.OrderBy, attributes)
	if err != nil {
		return nil, err
	}
	names, err := h.registry.Names(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range f { // the usual question is about one
		if c.kind == "attribute" && c.key == "name" && c.op == "=" {
			names = slices.DeleteFunc(names, func(n string) bool { return n != c.text })
		}
	}
	type found struct {
		m *registered
		v *registry.Model
		j object
	}
	lookup := func(x found) func(kind, key string) value {
		return func(kind, key string) value {
			switch {
			case kind == "tag":
				return tagValue(x.v.Tags, key)
			case kind != "attribute":
				return value{}
			case key == "version_number":
				return numberValue(float64(x.v.Version), true)
			case key == "source_path":
				return textValue(x.j["source"].(string), true)
			case strings.HasSuffix(key, "timestamp"):
				return numberValue(float64(x.v.Created), true)
			}
			return textValue(x.j[key].(string), true) // name, run_id
		}
	}
	var all []found
	for _, name := range names {
		m, err := h.model(ctx, name)
		if err != nil {
			if errors.Is(err, metadata.ErrNotExist) || coded(err).Code == missing {
				continue
			}
			return nil, err
		}
		for _, v := range m.versions {
			x := found{m, v, h.versionJSON(m, v)}
			if f.match(lookup(x)) {
				all = append(all, x)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b found) int {
		for _, o := range orders {
			if c := o.compareValues(lookup(a)(o.kind, o.key), lookup(b)(o.kind, o.key)); c != 0 {
				return c
			}
		}
		return 0
	})
	cut, next, err := page(all, int64(r.MaxResults), r.PageToken)
	if err != nil {
		return nil, err
	}
	out := []object{}
	for _, x := range cut {
		out = append(out, x.j)
	}
	return object{"model_versions": out, "next_page_token": next}, nil
}

// Logged models are what MLflow 3 makes of log_model: they belong to an experiment and are registered from there.

func (h *Server) loggedModelCalls() map[string]call {
	return map[string]call{
		"POST logged-models":                           h.createLoggedModel,
		"POST logged-models/search":                    h.searchLoggedModels,
		"GET logged-models/{id}":                       h.getLoggedModel,
		"PATCH logged-models/{id}":                     h.finishLoggedModel,
		"DELETE logged-models/{id}":                    h.deleteLoggedModel,
		"PATCH logged-models/{id}/tags":                h.tagLoggedModel,
		"DELETE logged-models/{id}/tags/{key}":         h.untagLoggedModel,
		"POST logged-models/{id}/params":               h.paramsOfLoggedModel,
		"GET logged-models/{id}/artifacts/directories": h.listLoggedModel,
	}
}

func (s *state) modelOf(id string) (*loggedModel, error) {
	m := s.models[id]
	if m == nil || m.Deleted {
		return nil, errorf(missing, "Logged model with ID '%.100s' not found.", id)
	}
	return m, nil
}

func loggedModelJSON(s *state, m *loggedModel) object {
	metrics := []metric{}
	if l := s.logged[m.Run]; l != nil {
		for _, k := range slices.Sorted(maps.Keys(l.last)) {
			metrics = append(metrics, metricJSON(k, l.last[k]))
		}
	}
	return object{
		"info": object{
			"model_id": m.ID, "experiment_id": m.Experiment, "name": m.Name, "model_type": m.Type, "source_run_id": m.Run, "status": m.Status,
			"artifact_uri": m.Artifacts, "creation_timestamp_ms": m.Created, "last_updated_timestamp_ms": m.Updated, "tags": pairs(m.Tags),
		},
		"data": object{"params": pairs(m.Params), "metrics": metrics},
	}
}

type loggedModelRequest struct {
	ExperimentID  string   `json:"experiment_id"`
	ExperimentIDs []string `json:"experiment_ids"`
	Name          string   `json:"name"`
	Type          string   `json:"model_type"`
	Run           string   `json:"source_run_id"`
	Params        []pair   `json:"params"`
	Tags          []pair   `json:"tags"`
	Status        string   `json:"status"`
	Filter        string   `json:"filter"`
	MaxResults    number   `json:"max_results"`
	PageToken     string   `json:"page_token"`
	Path          string   `json:"artifact_directory_path"`
}

func (h *Server) createLoggedModel(ctx context.Context, q *query) (any, error) {
	var r loggedModelRequest
	if err := q.into(&r); err != nil {
		return nil, err
	}
	if len(r.Name) > maxKey || strings.ContainsAny(r.Name, "/:.%\"'") {
		return nil, errorf(badValue, "Invalid model name (%.250s): at most %d characters, without / : . %% \" '", r.Name, maxKey)
	}
	var answer object
	err := h.store.change(ctx, func(s *state) ([]*entry, error) {
		x, err := s.experimentOf(cmp.Or(r.ExperimentID, "0"))
		if err != nil {
			return nil, err
		}
		if x.Stage != active {
			return nil, errorf(badValue, "The experiment %s must be in the 'active' state, it is deleted", x.ID)
		}
		if len(s.models) >= maxRunsPerProject {
			return nil, errorf(badValue, "there are %d logged models, as many as are kept", len(s.models))
		}
		now := h.now().UnixMilli()
		m := &loggedModel{
			ID: "m-" + strings.ReplaceAll(uuid.NewString(), "-", ""), Experiment: x.ID, Name: r.Name, Type: r.Type, Run: r.Run, Status: "LOGGED_MODEL_PENDING",
			Created: now, Updated: now, Params: map[string]string{}, Tags: map[string]string{},
		}
		m.Name = cmp.Or(m.Name, "model-"+m.ID[2:10])
		m.Artifacts = strings.TrimRight(x.Artifacts, "/") + "/models/" + m.ID + "/artifacts"
		if err := m.add(r.Params, r.Tags); err != nil {
			return nil, err
		}
		answer = object{"model": loggedModelJSON(s, m)}
		return []*entry{{Model: m}}, nil
	})
	return answer, err
}

func (m *loggedModel) add(params, tags []pair) error {
	for _, p := range params {
		if err := checkPair("param", p, maxParam); err != nil {
			return err
		}
		m.Params[p.Key] = p.Value
	}
	for _, t := range tags {
		if err := checkPair("tag", t, maxTag); err != nil {
			return err
		}
		m.Tags[t.Key] = t.Value
	}
	if len(m.Params) > 1000 || len(m.Tags) > 1000 {
		return errorf(badValue, "a logged model has at most 1000 params and 1000 tags")
	}
	return nil
}

// alterLogged changes a logged model and answers it.
func (h *Server) alterLogged(ctx context.Context, q *query, how func(m *loggedModel, r *loggedModelRequest) error) (any, error) {
	var r loggedModelRequest
	if err := q.into(&r); err != nil {
		return nil, err
	}
	var answer object
	err := h.store.change(ctx, func(s *state) ([]*entry, error) {
		was, err := s.modelOf(q.path("id"))
		if err != nil {
			return nil, err
		}
		m := *was
		m.Params, m.Tags = map[string]string{}, map[string]string{}
		maps.Copy(m.Params, was.Params)
		maps.Copy(m.Tags, was.Tags)
		if err := how(&m, &r); err != nil {
			return nil, err
		}
		m.Updated = h.now().UnixMilli()
		answer = object{"model": loggedModelJSON(s, &m)}
		return []*entry{{Model: &m}}, nil
	})
	return answer, err
}

func (h *Server) getLoggedModel(_ context.Context, q *query) (any, error) {
	var answer object
	err := h.store.view(func(s *state) error {
		m, err := s.modelOf(q.path("id"))
		if err == nil {
			answer = object{"model": loggedModelJSON(s, m)}
		}
		return err
	})
	return answer, err
}

func (h *Server) finishLoggedModel(ctx context.Context, q *query) (any, error) {
	return h.alterLogged(ctx, q, func(m *loggedModel, r *loggedModelRequest) error {
		states := map[string]string{"1": "LOGGED_MODEL_PENDING", "2": "LOGGED_MODEL_READY", "3": "LOGGED_MODEL_UPLOAD_FAILED"}
		status := cmp.Or(states[r.Status], r.Status)
		if !slices.Contains([]string{"LOGGED_MODEL_PENDING", "LOGGED_MODEL_READY", "LOGGED_MODEL_UPLOAD_FAILED"}, status) {
			return errorf(badValue, "status '%.40s' is none of a logged model", r.Status)
		}
		m.Status = status
		return nil
	})
}

func (h *Server) deleteLoggedModel(ctx context.Context, q *query) (any, error) {
	_, err := h.alterLogged(ctx, q, func(m *loggedModel, _ *loggedModelRequest) error {
		m.Deleted = true
		return nil
	})
	return object{}, err
}

func (h *Server) tagLoggedModel(ctx context.Context, q *query) (any, error) {
	return h.alterLogged(ctx, q, func(m *loggedModel, r *loggedModelRequest) error { return m.add(nil, r.Tags) })
}

func (h *Server) untagLoggedModel(ctx context.Context, q *query) (any, error) {
	_, err := h.alterLogged(ctx, q, func(m *loggedModel, _ *loggedModelRequest) error {
		delete(m.Tags, q.path("key"))
		return nil
	})
	return object{}, err
}

func (h *Server) paramsOfLoggedModel(ctx context.Context, q *query) (any, error) {
	_, err := h.alterLogged(ctx, q, func(m *loggedModel, r *loggedModelRequest) error { return m.add(r.Params, nil) })
	return object{}, err
}

func (h *Server) listLoggedModel(ctx context.Context, q *query) (any, error) {
	var r loggedModelRequest
	if err := q.into(&r); err != nil {
		return nil, err
	}
	root := ""
	if err := h.store.view(func(s *state) error {
		m, err := s.modelOf(q.path("id"))
		if err == nil {
			root = m.Artifacts
		}
		return err
	}); err != nil {
		return nil, err
	}
	below := strings.Trim(r.Path, "/")
	at, err := under(root, below)
	if err != nil {
		return nil, err
	}
	files, err := h.list(ctx, at, below)
	return object{"root_uri": root, "files": files}, err
}

func (h *Server) searchLoggedModels(_ context.Context, q *query) (any, error) {
	var r loggedModelRequest
	if err := q.into(&r); err != nil {
		return nil, err
	}
	attributes := map[string]bool{"name": false, "model_id": false, "model_type": false, "status": false, "source_run_id": false, "creation_timestamp": true, "creation_time": true, "last_updated_timestamp": true}
	f, err := parseFilter(r.Filter, attributes)
	if err != nil {
		return nil, err
	}
	var all []*loggedModel
	out := []object{}
	next := ""
	err = h.store.view(func(s *state) error {
		for _, m := range s.models {
			if m.Deleted || !slices.Contains(r.ExperimentIDs, m.Experiment) || !f.match(func(kind, key string) value { return m.lookup(s, kind, key) }) {
				continue
			}
			all = append(all, m)
		}
		slices.SortFunc(all, func(a, b *loggedModel) int { return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(a.ID, b.ID)) })
		var err error
		if all, next, err = page(all, int64(r.MaxResults), r.PageToken); err != nil {
			return err
		}
		for _, m := range all {
			out = append(out, loggedModelJSON(s, m))
		}
		return nil
	})
	return object{"models": out, "next_page_token": next}, err
}

func (m *loggedModel) lookup(s *state, kind, key string) value {
	switch kind {
	case "param":
		v, ok := m.Params[key]
		return textValue(v, ok)
	case "tag":
		v, ok := m.Tags[key]
		return textValue(v, ok)
	case "metric":
		if l := s.logged[m.Run]; l != nil {
			p, ok := l.last[key]
			return numberValue(p.Value, ok)
		}
		return value{}
	}
	switch key {
	case "name":
		return textValue(m.Name, true)
	case "model_id":
		return textValue(m.ID, true)
	case "model_type":
		return textValue(m.Type, m.Type != "")
	case "status":
		return textValue(strings.TrimPrefix(m.Status, "LOGGED_MODEL_"), true)
	case "source_run_id":
		return textValue(m.Run, m.Run != "")
	case "last_updated_timestamp":
		return numberValue(float64(m.Updated), true)
	}
	return numberValue(float64(m.Created), true)
}
