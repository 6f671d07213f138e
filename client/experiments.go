package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/gohops/hops/client/code"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/controller"
	"github.com/gohops/hops/training/protocol"
)

// Study is an experiment to run: what is searched, and how it is queued.
type Study struct {
	training.Spec
	Queue    string `json:"queue,omitempty"`
	Priority int    `json:"priority,omitempty"`
}

// Experiments are the searches of a cluster. While one runs it is asked through the resource manager; afterwards its
// directory in the filesystem tells.
type Experiments struct{ c *Client }

// Submit checks a study, stores its program (nil: the entry can be imported on the nodes) and submits it. It returns the
// job's id.
func (e *Experiments) Submit(ctx context.Context, study Study, program *code.Artifact) (string, error) {
	if err := MaySubmit(); err != nil { // before anything is stored
		return "", err
	}
	if program != nil {
		uri, err := e.store(ctx, program)
		if err != nil {
			return "", err
		}
		study.Entry = program.Entry
		study.Code = &training.Code{URI: uri, SHA256: program.SHA256}
	}
	checked := study.Spec
	checked.SetDefaults(e.c.User())
	if err := checked.Validate(); err != nil {
		return "", fmt.Errorf("the study cannot run: %w", err)
	}
	job := Job{Name: checked.Name, Queue: study.Queue, Kind: "experiment", Priority: study.Priority, Experiment: checked}
	return e.c.jobs.Submit(ctx, job, "")
}

// store puts a program where executors find it, once.
func (e *Experiments) store(ctx context.Context, program *code.Artifact) (string, error) {
	fs := e.c.fs
	dir := path.Join(fs.Home(), ".hops", "artifacts")
	name := path.Join(dir, program.SHA256+".zip")
	if _, err := fs.Stat(ctx, name); err == nil {
		return name, nil
	} else if !errors.Is(err, metadata.ErrNotExist) {
		return "", err
	}
	if err := fs.Mkdirs(ctx, dir, 0o755, true); err != nil {
		return "", err
	}
	temporary := name + "." + uuid.NewString() + ".tmp"
	if err := fs.WriteFile(ctx, temporary, program.Data, false); err != nil {
		return "", err
	}
	err := fs.RenameStrict(ctx, temporary, name)
	if errors.Is(err, metadata.ErrExist) { // somebody else was faster with the same bytes
		_, err = fs.Delete(ctx, temporary, false)
	}
	return name, err
}

// ID is the id of a job's experiment.
func (e *Experiments) ID(job string) string { return job + "_1" }

// base is an experiment's id without its run: that of the application it began as.
func base(id string) string { return strings.TrimSuffix(id, "_1") }

// place is where an experiment is: its directory, and the application that runs it or ran it last.
type place struct {
	dir         string
	application string
}

// find looks for an experiment's directory. metadata.ErrNotExist: it has none, perhaps not yet.
func (e *Experiments) find(ctx context.Context, id string) (place, error) {
	p := place{application: base(id)}
	var err error
	if p.dir, err = e.directory(ctx, p.application); err != nil {
		return p, err
	}
	var where protocol.Whereabouts
	if text, err := e.c.fs.ReadFile(ctx, path.Join(p.dir, protocol.WhereaboutsName)); err == nil && json.Unmarshal(text, &where) == nil && where.Application != "" {
		p.application = where.Application
	}
	return p, nil
}

// Application is the job that runs an experiment, or ran it last: its own, unless it was resumed.
func (e *Experiments) Application(ctx context.Context, id string) (string, error) {
	p, err := e.find(ctx, id)
	if errors.Is(err, metadata.ErrNotExist) {
		err = nil // it waits in its queue
	}
	return p.application, err
}

// away reports whether an answer of the proxy says that no controller is there.
func away(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return !ok || e.Status == 404 || e.Status == 502 || e.Status == 503
}

// live asks the controller of an experiment, wherever it runs; the place is empty if the first job asked was the right one.
func (e *Experiments) live(ctx context.Context, id, call string, into any) (place, error) {
	job := base(id)
	live := e.c.jobs.Proxy(ctx, job, "/v1/experiments/"+e.ID(job)+call, into)
	if live == nil || !away(live) {
		return place{}, live
	}
	p, err := e.find(ctx, id)
	if errors.Is(err, metadata.ErrNotExist) {
		return p, live // which says why: it waits, it never began, nobody knows it
	}
	if err != nil {
		return p, errors.Join(live, err)
	}
	if p.application != job {
		live = e.c.jobs.Proxy(ctx, p.application, "/v1/experiments/"+e.ID(job)+call, into)
	}
	return p, live
}

// Summary describes an experiment that runs without its tables: for those who ask again and again. The error is that of the
// proxy when no controller answers.
func (e *Experiments) Summary(ctx context.Context, id string) (*protocol.ExperimentSummary, error) {
	s := &protocol.ExperimentSummary{}
	_, err := e.live(ctx, id, "/summary", s)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Status describes an experiment by its id or its job's: from its controller while it runs, from its directory afterwards.
func (e *Experiments) Status(ctx context.Context, id string) (*protocol.ExperimentStatus, error) {
	s := &protocol.ExperimentStatus{}
	p, live := e.live(ctx, id, "", s)
	if live == nil {
		return s, nil
	}
	if p.dir == "" || !away(live) {
		return nil, live
	}
	s, err := e.history(ctx, p.dir, true)
	if err != nil || s.State != protocol.ExperimentRunning {
		return s, err
	}
	j, err := e.c.jobs.Get(ctx, p.application)
	if err != nil || !j.Ended() {
		return s, nil
	}
	return e.after(ctx, s, j, true)
}

// Stop ends an experiment: what its trials found is kept, its result is written, its state is KILLED. It returns at once. One
// that has no controller, because it waits in its queue, is taken out of it. *EndedError: it does not run.
func (e *Experiments) Stop(ctx context.Context, id, reason string) error {
	application, err := e.Application(ctx, id)
	if err != nil {
		return err
	}
	j, err := e.c.jobs.Get(ctx, application)
	if err != nil {
		return err
	}
	if j.Ended() {
		return &EndedError{ID: id, Phase: j.Phase}
	}
	_, err = e.c.jobs.Raw(ctx, http.MethodPost, "/proxy/"+url.PathEscape(application)+"/v1/experiments/"+e.ID(base(id))+"/stop", protocol.StopExperiment{Reason: reason})
	if err != nil && away(err) {
		return e.c.jobs.Stop(ctx, application)
	}
	return err
}

// Resume goes on with an experiment that failed or was stopped, from its journal: trials that ended are kept, those that were
// cut short go on from their checkpoints. It returns the id of the job that does so; the experiment keeps its own.
func (e *Experiments) Resume(ctx context.Context, id, queue string) (string, error) {
	p, err := e.find(ctx, id)
	if err != nil {
		return "", err
	}
	if j, err := e.c.jobs.Get(ctx, p.application); err == nil && !j.Ended() {
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "experiment %s runs, as %s", base(id), p.application)
	}
	s, err := e.history(ctx, p.dir, false)
	if err != nil {
		return "", err
	}
	if s.State == protocol.ExperimentFinished {
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "experiment %s has finished: there is nothing to resume", base(id))
	}
	about, err := e.about(ctx, p.dir)
	if err != nil {
		return "", err
	}
	about.Spec.Resume = e.ID(base(id))
	return e.c.jobs.Submit(ctx, Job{Name: about.Spec.Name, Queue: queue, Kind: "experiment", Experiment: about.Spec}, "")
}

// after completes what an experiment's directory said before its job had ended.
func (e *Experiments) after(ctx context.Context, s *protocol.ExperimentStatus, job JobStatus, fold bool) (*protocol.ExperimentStatus, error) {
	s, err := e.history(ctx, s.Directory, fold) // the result may have come between the two looks
	if err != nil || s.State != protocol.ExperimentRunning {
		return s, err
	}
	s.State, s.Reason, s.Finished = protocol.ExperimentFailed, "its controller left no result", training.Millis(job.Finished)
	if job.State == rm.StateKilled {
		s.State = protocol.ExperimentKilled
	}
	if job.Diagnostics != "" {
		s.Reason = job.Diagnostics
	}
	return s, nil
}

// directory finds an experiment that has ended.
func (e *Experiments) directory(ctx context.Context, job string) (string, error) {
	projects, err := e.c.fs.List(ctx, "/Projects")
	if err != nil && !errors.Is(err, metadata.ErrNotExist) {
		return "", err
	}
	for _, p := range projects {
		dir := path.Join("/Projects", p.Name, "Experiments", e.ID(job))
		if _, err := e.c.fs.Stat(ctx, dir); err == nil {
			return dir, nil
		}
	}
	return "", metadata.Errorf(metadata.ErrNotExist, "there is no experiment %s", job)
}

// description is experiment.json.
type description struct {
	User    string          `json:"user"`
	Created training.Millis `json:"created"`
	Spec    training.Spec   `json:"spec"`
}

func (e *Experiments) about(ctx context.Context, dir string) (d description, err error) {
	text, err := e.c.fs.ReadFile(ctx, path.Join(dir, "experiment.json"))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s/experiment.json: %w", dir, err)
	}
	return d, nil
}

// history reads an experiment's directory. Without a result it is RUNNING as far as the directory tells; with fold the trials
// are then read from the journal.
func (e *Experiments) history(ctx context.Context, dir string, fold bool) (*protocol.ExperimentStatus, error) {
	var result struct {
		BestID     *training.TrialID      `json:"best_id"`
		BestVal    *float64               `json:"best_val"`
		BestDir    string                 `json:"best_dir"`
		BestConfig training.Params        `json:"best_config"`
		State      string                 `json:"state"`
		Reason     string                 `json:"reason"`
		Direction  training.Direction     `json:"direction"`
		Metric     string                 `json:"metric"`
		DurationMS int64                  `json:"duration_ms"`
		Counters   protocol.Counters      `json:"counters"`
		Trials     []protocol.TrialStatus `json:"trials"`
	}
	s := &protocol.ExperimentStatus{ID: path.Base(dir), Directory: dir, State: protocol.ExperimentRunning, Reason: "its controller does not answer"}
	s.Application = base(s.ID)
	s.Project = path.Base(path.Dir(path.Dir(dir))) // /Projects/PROJECT/Experiments/ID
	if about, err := e.about(ctx, dir); err == nil {
		s.Name, s.Project, s.User, s.Optimizer, s.Planned = about.Spec.Name, about.Spec.Project, about.User, about.Spec.Optimizer.Type, about.Spec.Trials
		s.Metric, s.Direction, s.Seed, s.Started = about.Spec.Metric, about.Spec.Direction, about.Spec.RandomSeed(), about.Created
	}
	text, err := e.c.fs.ReadFile(ctx, path.Join(dir, "result.json"))
	if errors.Is(err, metadata.ErrNotExist) {
		if fold {
			if folded, err := controller.History(ctx, controller.DFS(e.c.fs), dir); err == nil && folded.State == protocol.ExperimentRunning {
				folded.Reason = s.Reason
				return folded, nil
			}
		}
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &result); err != nil { // of one experiment: lists are of all
		s.State, s.Reason = protocol.ExperimentFailed, fmt.Sprintf("%s/result.json cannot be read: %v", dir, err)
		return s, nil
	}
	s.State, s.Reason, s.Direction, s.Metric = result.State, result.Reason, result.Direction, result.Metric
	s.Counters, s.Trials, s.Finished = result.Counters, result.Trials, s.Started+training.Millis(result.DurationMS)
	if result.BestID != nil && result.BestVal != nil {
		s.Best = &protocol.BestTrial{Trial: *result.BestID, Metric: *result.BestVal, Dir: result.BestDir, Params: result.BestConfig}
		for _, t := range result.Trials {
			if t.Trial == s.Best.Trial {
				s.Best.Epochs = t.Epochs
			}
		}
	}
	return s, nil
}

// List describes the experiments below /Projects, newest last, without their trials.
func (e *Experiments) List(ctx context.Context, project string) ([]*protocol.ExperimentStatus, error) {
	names := []string{project}
	if project == "" {
		names = nil
		projects, err := e.c.fs.List(ctx, "/Projects")
		if err != nil && !errors.Is(err, metadata.ErrNotExist) {
			return nil, err
		}
		for _, p := range projects {
			names = append(names, p.Name)
		}
	}
	out := []*protocol.ExperimentStatus{}
	for _, name := range names {
		runs, err := e.c.fs.List(ctx, path.Join("/Projects", name, "Experiments"))
		if errors.Is(err, metadata.ErrNotExist) || errors.Is(err, metadata.ErrPermission) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, run := range runs {
			if !run.IsDir() {
				continue
			}
			s, err := e.history(ctx, path.Join("/Projects", name, "Experiments", run.Name), false)
			if errors.Is(err, metadata.ErrNotExist) || errors.Is(err, metadata.ErrPermission) { // removed since, or nothing for this user
				continue
			}
			if err != nil {
				return nil, err
			}
			s.Trials = nil
			out = append(out, s)
		}
	}
	if !slices.ContainsFunc(out, func(s *protocol.ExperimentStatus) bool { return s.State == protocol.ExperimentRunning }) {
		return out, nil
	}
	jobs, err := e.c.jobs.List(ctx)
	if err != nil {
		return out, nil // what the directories say is all that can be known
	}
	for i, s := range out {
		if s.State == protocol.ExperimentRunning {
			if p, err := e.find(ctx, s.ID); err == nil {
				s.Application = p.application
			}
		}
		k := slices.IndexFunc(jobs, func(j JobStatus) bool { return j.ID == s.Application })
		switch {
		case s.State != protocol.ExperimentRunning || k < 0:
		case !jobs[k].Ended():
			s.Reason = ""
		default:
			if out[i], err = e.after(ctx, s, jobs[k], false); err != nil {
				return nil, err
			}
			out[i].Trials = nil
		}
	}
	return out, nil
}
