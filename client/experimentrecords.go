package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/controller"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/store"
)

// Records is what is looked up of an experiment beside its table of trials.
type Records struct {
	Curves   bool // the values at each step, from the journal
	Overhead bool // where the time went, from the journal
	Beside   bool // tags, note, environment, versions of data
}

// Record is an experiment as it is remembered, by its id or its job's. One that runs is told as it is now.
func (e *Experiments) Record(ctx context.Context, id string, want Records) (*history.Record, error) {
	p, err := e.find(ctx, id)
	if err != nil {
		return nil, err
	}
	s, err := e.Status(ctx, id)
	if err != nil {
		return nil, err
	}
	return e.record(ctx, s, p.dir, want)
}

// Beside is what there is about an experiment beside its status: where its time went, tags, note, environment, data. Of one
// that waits in its queue there is nothing.
func (e *Experiments) Beside(ctx context.Context, s *protocol.ExperimentStatus) (*history.Record, error) {
	if s.Directory == "" {
		return &history.Record{}, nil
	}
	r, err := e.record(ctx, s, s.Directory, Records{Overhead: true, Beside: true})
	if errors.Is(err, metadata.ErrNotExist) {
		return &history.Record{}, nil
	}
	return r, err
}

func (e *Experiments) record(ctx context.Context, s *protocol.ExperimentStatus, dir string, want Records) (*history.Record, error) {
	if want.Curves && !slices.ContainsFunc(s.Trials, func(t protocol.TrialStatus) bool { return len(t.Curve) > 0 }) {
		folded, err := controller.History(ctx, controller.DFS(e.c.fs), dir)
		if err != nil {
			return nil, fmt.Errorf("the journal of %s: %w", s.ID, err)
		}
		s.Trials = folded.Trials
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	r := &history.Record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	r.Directory = dir
	var about struct {
		Spec json.RawMessage `json:"spec"`
	}
	files := store.DFS(e.c.fs)
	text, err = store.ReadFile(ctx, files, path.Join(dir, "experiment.json"))
	if err == nil {
		err = json.Unmarshal(text, &about)
	}
	if err != nil && !errors.Is(err, metadata.ErrNotExist) {
		return nil, fmt.Errorf("%s/experiment.json: %w", dir, err)
	}
	r.Spec = about.Spec
	if want.Overhead {
		journal, err := files.Open(ctx, path.Join(dir, "journal.jsonl"), 0)
		if err == nil {
			r.Overhead, err = history.MeterJournal(journal)
			journal.Close()
		}
		if err != nil && !errors.Is(err, metadata.ErrNotExist) {
			return nil, fmt.Errorf("the journal of %s: %w", s.ID, err)
		}
	}
	if want.Beside {
		if err := r.Recorded(ctx, files); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Records lists experiments as they are remembered, without their trials.
func (e *Experiments) Records(ctx context.Context, project string, tags bool) ([]*history.Record, error) {
	list, err := e.List(ctx, project)
	if err != nil {
		return nil, err
	}
	out := make([]*history.Record, 0, len(list))
	for _, s := range list {
		text, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		r := &history.Record{}
		if err := json.Unmarshal(text, r); err != nil {
			return nil, err
		}
		if tags {
			if r.Tags, r.Note, err = history.Tags(ctx, store.DFS(e.c.fs), r.Directory); err != nil && !errors.Is(err, metadata.ErrNotExist) && !errors.Is(err, metadata.ErrPermission) {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// Program is the code of an experiment, nil if it had none or its artifact is gone.
func (e *Experiments) Program(ctx context.Context, r *history.Record) (*history.Program, error) {
	uri := r.Code().URI
	if uri == "" {
		return nil, nil
	}
	data, err := store.ReadFile(ctx, store.DFS(e.c.fs), pathOf(uri))
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return history.ReadProgram(data)
}

// pathOf is the path of a URI of the filesystem.
func pathOf(uri string) string {
	if _, rest, ok := strings.Cut(uri, "://"); ok {
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return rest[i:]
		}
	}
	return uri
}

// Diff compares two experiments.
func (e *Experiments) Diff(ctx context.Context, a, b string) (*history.Diff, error) {
	var records [2]*history.Record
	var programs [2]*history.Program
	for i, id := range []string{a, b} {
		var err error
		if records[i], err = e.Record(ctx, id, Records{Beside: true}); err != nil {
			return nil, err
		}
	}
	if records[0].Code().SHA256 != records[1].Code().SHA256 {
		for i, r := range records {
			var err error
			if programs[i], err = e.Program(ctx, r); err != nil {
				return nil, fmt.Errorf("the code of %s: %w", r.ID, err)
			}
		}
	}
	return history.Compared(records[0], records[1], programs[0], programs[1]), nil
}

// Directory is where an experiment is.
func (e *Experiments) Directory(ctx context.Context, id string) (string, error) {
	p, err := e.find(ctx, id)
	return p.dir, err
}

// Reproduction is how an experiment would run again.
type Reproduction struct {
	Study Study
	// Changed says what is not as it was: data, as far as that was recorded.
	Changed []string
	// Unknown says what cannot be told.
	Unknown []string
}

// Reproduce makes the study that an experiment was, with the same seed or one that is drawn anew, and says what differs
// from what was recorded when it began. Error: metadata.ErrNotExist, when its code is gone.
func (e *Experiments) Reproduce(ctx context.Context, id string, sameSeed bool) (*Reproduction, error) {
	p, err := e.find(ctx, id)
	if err != nil {
		return nil, err
	}
	about, err := e.about(ctx, p.dir)
	if err != nil {
		return nil, err
	}
	r := &Reproduction{Study: Study{Spec: about.Spec}}
	spec := &r.Study.Spec
	spec.Resume = ""
	if !sameSeed {
		spec.Seed = nil
	} else if spec.Seed == nil {
		r.Unknown = append(r.Unknown, "the seed was not recorded: another one is drawn")
	}
	if c := spec.Code; c != nil {
		if _, err := e.c.fs.Stat(ctx, pathOf(c.URI)); errors.Is(err, metadata.ErrNotExist) {
			return nil, metadata.Errorf(metadata.ErrNotExist, "%s cannot be run again: its code %s is gone; with the same files in hand, submit them as a new study", path.Base(p.dir), c.URI)
		} else if err != nil {
			return nil, err
		}
	} else {
		r.Unknown = append(r.Unknown, "the code: "+spec.Entry+" is imported on the nodes, where it may have changed")
	}
	record := &history.Record{Directory: p.dir}
	files := store.DFS(e.c.fs)
	if err := record.Recorded(ctx, files); err != nil {
		return nil, err
	}
	if record.Data == nil {
		r.Unknown = append(r.Unknown, "the data: its versions were not recorded")
	}
	for _, was := range record.Data {
		if is := history.Look(ctx, files, was); is.String() != was.String() {
			r.Changed = append(r.Changed, fmt.Sprintf("%s: was %s; is %s", was.Path, was, is))
		}
	}
	if record.Environment == nil {
		r.Unknown = append(r.Unknown, "the environment: it was not recorded")
	}
	return r, nil
}

// EnvironmentChange lists how the environments of two experiments differ; nil and false: one of them has none recorded.
func (e *Experiments) EnvironmentChange(ctx context.Context, before, after string) ([]history.Change, bool) {
	var both [2]*history.Record
	for i, id := range []string{before, after} {
		p, err := e.find(ctx, id)
		if err != nil {
			return nil, false
		}
		both[i] = &history.Record{Directory: p.dir}
		if err := both[i].Recorded(ctx, store.DFS(e.c.fs)); err != nil || both[i].Environment == nil {
			return nil, false
		}
	}
	return history.Compared(both[0], both[1], nil, nil).Environment, true
}

// PruneResult is what was removed of one experiment.
type PruneResult struct {
	ID    string `json:"id"`
	Bytes int64  `json:"bytes"` // without replicas
	Files int64  `json:"files"`
}

// Size is what the removal of an experiment, or of its checkpoints alone, would free.
func (e *Experiments) Size(ctx context.Context, dir string, checkpointsOnly bool) (PruneResult, error) {
	out := PruneResult{ID: path.Base(dir)}
	paths := []string{dir}
	if checkpointsOnly {
		var err error
		if paths, err = e.checkpointDirs(ctx, dir); err != nil {
			return out, err
		}
	}
	for _, p := range paths {
		s, err := e.c.fs.ContentSummary(ctx, p)
		if err != nil {
			return out, err
		}
		out.Bytes += s.Length
		out.Files += s.Files
	}
	return out, nil
}

// Remove deletes an experiment's directory, or its checkpoints alone. The caller has made sure that it does not run.
func (e *Experiments) Remove(ctx context.Context, dir string, checkpointsOnly bool) error {
	paths := []string{dir}
	if checkpointsOnly {
		var err error
		if paths, err = e.checkpointDirs(ctx, dir); err != nil {
			return err
		}
	}
	for _, p := range paths {
		if _, err := e.c.fs.Delete(ctx, p, true); err != nil {
			return err
		}
	}
	return nil
}

// blobs is the directory of an experiment with what its checkpoints share.
const blobs = ".blobs"

func (e *Experiments) checkpointDirs(ctx context.Context, dir string) ([]string, error) {
	list, err := e.c.fs.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range list {
		if s.IsDir() && s.Name == blobs {
			out = append(out, path.Join(dir, s.Name))
			continue
		}
		if _, err := training.ParseTrialID(s.Name); err != nil || !s.IsDir() {
			continue
		}
		name := path.Join(dir, s.Name, "checkpoints")
		if _, err := e.c.fs.Stat(ctx, name); err == nil {
			out = append(out, name)
		} else if !errors.Is(err, metadata.ErrNotExist) {
			return nil, err
		}
	}
	return out, nil
}
