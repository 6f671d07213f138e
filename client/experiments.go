package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/gohops/hops/client/code"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/controller"
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

// Status describes an experiment by its job's id: from its controller while it runs, from its directory afterwards.
func (e *Experiments) Status(ctx context.Context, job string) (*controller.ExperimentStatus, error) {
	job = strings.TrimSuffix(job, "_1")
	s := &controller.ExperimentStatus{}
	live := e.c.jobs.Proxy(ctx, job, "/v1/experiments/"+e.ID(job), s)
	if live == nil {
		return s, nil
	}
	if e, ok := errors.AsType[*Error](live); ok && e.Status != 404 && e.Status != 502 && e.Status != 503 {
		return nil, live
	}
	dir, err := e.directory(ctx, job)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, live // which says why: it waits, it never began, nobody knows it
	}
	if err != nil {
		return nil, errors.Join(live, err)
	}
	if s, err = e.history(ctx, dir); err != nil || s.State != controller.ExperimentRunning {
		return s, err
	}
	j, err := e.c.jobs.Get(ctx, job)
	if err != nil || !j.Ended() {
		return s, nil
	}
	return e.after(ctx, s, j)
}

// after completes what an experiment's directory said before its job had ended.
func (e *Experiments) after(ctx context.Context, s *controller.ExperimentStatus, job JobStatus) (*controller.ExperimentStatus, error) {
	s, err := e.history(ctx, s.Directory) // the result may have come between the two looks
	if err != nil || s.State != controller.ExperimentRunning {
		return s, err
	}
	s.State, s.Reason, s.Finished = controller.ExperimentFailed, "its controller left no result", training.Millis(job.Finished)
	if job.State == rm.StateKilled {
		s.State = controller.ExperimentKilled
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

// history reads an experiment's directory.
func (e *Experiments) history(ctx context.Context, dir string) (*controller.ExperimentStatus, error) {
	var result struct {
		BestID     *training.TrialID        `json:"best_id"`
		BestVal    *float64                 `json:"best_val"`
		BestDir    string                   `json:"best_dir"`
		BestConfig training.Params          `json:"best_config"`
		State      string                   `json:"state"`
		Reason     string                   `json:"reason"`
		Direction  training.Direction       `json:"direction"`
		Metric     string                   `json:"metric"`
		Counters   controller.Counters      `json:"counters"`
		Trials     []controller.TrialStatus `json:"trials"`
	}
	var about struct {
		User string        `json:"user"`
		Spec training.Spec `json:"spec"`
	}
	s := &controller.ExperimentStatus{ID: path.Base(dir), Directory: dir, State: controller.ExperimentRunning, Reason: "its controller does not answer"}
	s.Application = strings.TrimSuffix(s.ID, "_1")
	s.Project = path.Base(path.Dir(path.Dir(dir))) // /Projects/PROJECT/Experiments/ID
	if text, err := e.c.fs.ReadFile(ctx, path.Join(dir, "experiment.json")); err == nil && json.Unmarshal(text, &about) == nil {
		s.Name, s.Project, s.User, s.Optimizer, s.Planned = about.Spec.Name, about.Spec.Project, about.User, about.Spec.Optimizer.Type, about.Spec.Trials
		s.Metric, s.Direction = about.Spec.Metric, about.Spec.Direction
	}
	text, err := e.c.fs.ReadFile(ctx, path.Join(dir, "result.json"))
	if errors.Is(err, metadata.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &result); err != nil {
		return nil, fmt.Errorf("%s/result.json: %w", dir, err)
	}
	s.State, s.Reason, s.Direction, s.Metric = result.State, result.Reason, result.Direction, result.Metric
	s.Counters, s.Trials = result.Counters, result.Trials
	if result.BestID != nil && result.BestVal != nil {
		s.Best = &controller.BestTrial{Trial: *result.BestID, Metric: *result.BestVal, Dir: result.BestDir, Params: result.BestConfig}
	}
	return s, nil
}

// List describes the experiments below /Projects, newest last, without their trials.
func (e *Experiments) List(ctx context.Context, project string) ([]*controller.ExperimentStatus, error) {
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
	out := []*controller.ExperimentStatus{}
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
			s, err := e.history(ctx, path.Join("/Projects", name, "Experiments", run.Name))
			if err != nil {
				return nil, err
			}
			s.Trials = nil
			out = append(out, s)
		}
	}
	if !slices.ContainsFunc(out, func(s *controller.ExperimentStatus) bool { return s.State == controller.ExperimentRunning }) {
		return out, nil
	}
	jobs, err := e.c.jobs.List(ctx)
	if err != nil {
		return out, nil // what the directories say is all that can be known
	}
	for i, s := range out {
		k := slices.IndexFunc(jobs, func(j JobStatus) bool { return j.ID == s.Application })
		switch {
		case s.State != controller.ExperimentRunning || k < 0:
		case !jobs[k].Ended():
			s.Reason = ""
		default:
			if out[i], err = e.after(ctx, s, jobs[k]); err != nil {
				return nil, err
			}
			out[i].Trials = nil
		}
	}
	return out, nil
}
