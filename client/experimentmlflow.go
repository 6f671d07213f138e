package client

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/mlflow"
)

// MLflow shows the searches of a project to MLflow's clients.
func (e *Experiments) MLflow(project string) mlflow.Searches {
	return &searches{e: e, project: project, seen: map[string]seenSearch{}}
}

// searches looks at a project's searches. What has ended changes no more and is kept.
type searches struct {
	e       *Experiments
	project string

	mu   sync.Mutex
	seen map[string]seenSearch
}

type seenSearch struct {
	search *mlflow.Search
	at     time.Time
	over   bool
}

// Of a search that runs the trials are looked at again after so long; so many are kept.
const (
	searchFresh = 2 * time.Second
	mostSeen    = 64
)

func (s *searches) List(ctx context.Context) ([]mlflow.Search, error) {
	records, err := s.e.Records(ctx, s.project, true)
	if err != nil {
		return nil, err
	}
	out := make([]mlflow.Search, len(records))
	for i, r := range records {
		out[i] = asSearch(r)
	}
	return out, nil
}

func (s *searches) Get(ctx context.Context, id string) (*mlflow.Search, error) {
	s.mu.Lock()
	known, ok := s.seen[id]
	s.mu.Unlock()
	if ok && (known.over || time.Since(known.at) < searchFresh) {
		return known.search, nil
	}
	r, err := s.e.Record(ctx, id, Records{Curves: true, Beside: true})
	if err != nil {
		return nil, err
	}
	if r.Project != s.project && !strings.HasPrefix(r.Directory, "/Projects/"+s.project+"/") {
		return nil, metadata.Errorf(metadata.ErrNotExist, "%s is a search of project %s, this server is of %s", id, r.Project, s.project)
	}
	search := asSearch(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) >= mostSeen {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(s.seen)), func(a, b string) int { return s.seen[a].at.Compare(s.seen[b].at) })
		delete(s.seen, oldest)
	}
	s.seen[id] = seenSearch{&search, time.Now(), r.State != history.Running}
	return &search, nil
}

func asSearch(r *history.Record) mlflow.Search {
	s := mlflow.Search{
		ID: r.ID, Name: r.Name, User: r.User, State: r.State, Metric: r.Metric, Directory: r.Directory,
		Started: r.Started, Finished: r.Finished, Tags: map[string]string{},
	}
	maps.Copy(s.Tags, r.Tags)
	if r.Note != "" {
		s.Tags["mlflow.note.content"] = r.Note
	}
	for _, t := range r.Trials {
		x := mlflow.SearchTrial{Number: t.Trial.String(), State: t.State, Params: t.Params, Metric: t.Metric, Started: t.Started, Ended: t.Ended}
		for _, p := range t.Curve {
			x.Steps, x.Values = append(x.Steps, p.Step), append(x.Values, p.Value)
		}
		s.Trials = append(s.Trials, x)
	}
	return s
}
