package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
)

// Job is what is submitted: the document of POST /api/v1/jobs (docs/reference/rest.md). The zero value of a field is the
// server's default.
type Job struct {
	Name     string `json:"name,omitempty"`
	Queue    string `json:"queue,omitempty"`
	Kind     string `json:"kind,omitempty"` // command (default), experiment or master
	Priority int    `json:"priority,omitempty"`
	// Resources of each container of a command, or of the master.
	Resources JobResources `json:"resources,omitzero"`
	// Instances of a command run at once.
	Instances int      `json:"instances,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	// Run is a shell command in place of Argv.
	Run       string            `json:"run,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Artifacts []rm.Artifact     `json:"artifacts,omitempty"`
	// Secrets are names of the submitter's secrets, see Secrets.
	Secrets []string `json:"secrets,omitempty"`
	// Workdir is an archive of the filesystem that is unpacked where the command runs; Client.Stage makes one.
	Workdir string `json:"workdir,omitempty"`
	// Timeout ends the job, "2h". Grace lies between SIGTERM and SIGKILL.
	Timeout string `json:"timeout,omitempty"`
	Grace   string `json:"grace,omitempty"`
	// Placement says beside what the containers of a command may be.
	Placement JobPlacement `json:"placement,omitzero"`
	// Near says where the data of a command lies.
	Near JobNear `json:"near,omitzero"`
	// Array runs a command once for each of some numbers, see job.ParseArray.
	Array *JobArray `json:"array,omitempty"`
	// After are the jobs before whose outcome nothing of it is started.
	After []JobAfter `json:"after,omitempty"`
	// Deadline is when it has to have ended: a time (RFC 3339), or how long from the submission on, "8h".
	Deadline string `json:"deadline,omitempty"`
	// Gang starts the instances together or not at all.
	Gang Gang `json:"gang,omitzero"`
	// Fencing is job.FencingNone (default) or job.FencingStrict.
	Fencing string `json:"fencing,omitempty"`
	// Dialect of a master's Argv and Env: rm.DialectOurs (default) or rm.DialectYARN.
	Dialect string `json:"dialect,omitempty"`
	// Retry says how often a failed container runs again.
	Retry *JobRetry `json:"retry,omitempty"`
	// Experiment is a training.Spec, for the kind experiment, and Checkpoint its controller's.
	Experiment any `json:"experiment,omitempty"`
	Checkpoint any `json:"checkpoint,omitempty"`
}

// UnmarshalJSON reads a document as the server does: spans of time are text or a number of seconds. Unknown members are
// errors.
func (j *Job) UnmarshalJSON(b []byte) error {
	type plain Job
	document := struct {
		*plain
		Timeout job.Duration `json:"timeout"`
		Grace   job.Duration `json:"grace"`
	}{plain: (*plain)(j)}
	if err := strict(b, &document); err != nil {
		return err
	}
	if document.Timeout != 0 {
		j.Timeout = time.Duration(document.Timeout).String()
	}
	if document.Grace != 0 {
		j.Grace = time.Duration(document.Grace).String()
	}
	return nil
}

// strict decodes JSON and refuses members that are not there to be read.
func strict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// JobPlacement says beside what the containers of a command may be.
type JobPlacement = job.Placement

// JobNear says where the data of a command lies: its containers are placed there if there is room, or will be soon.
type JobNear = job.Near

// JobArray are the members of a command that is run once for each of some numbers.
type JobArray = job.Array

// JobAfter is a job that another one waits for, and what it waits for of it: rm.OutcomeSucceeded (default), …
type JobAfter = job.After

// Gang says how many instances must start at once.
type Gang = job.Gang

// JobResources are those of one container.
type JobResources struct {
	// Memory is a size, "2GiB".
	Memory string `json:"memory,omitempty"`
	VCores int    `json:"vcores,omitempty"`
	GPUs   int    `json:"gpus,omitempty"`
	// GPUModel is a part of the model's name, Island wants all GPUs of a container in one NVLink island.
	GPUModel string `json:"gpu_model,omitempty"`
	Island   bool   `json:"gpu_island,omitempty"`
	// GPUProfile is a MIG profile, such as 1g.10gb: GPUs counts instances of that in place of whole GPUs.
	GPUProfile string `json:"gpu_profile,omitempty"`
	Label      string `json:"label,omitempty"`
	// GPUMemory is the least of each GPU, a size; Within is the level of the network inside which a gang has to be: node, or the depth
	// of a rack's path.
	GPUMemory string `json:"gpu_memory,omitempty"`
	Within    string `json:"within,omitempty"`
	// Other are amounts of what else nodes have, by name.
	Other map[string]int64 `json:"other,omitempty"`
}

// UnmarshalJSON reads resources as the server does: memory is text with a unit, or a number of bytes.
func (r *JobResources) UnmarshalJSON(b []byte) error {
	type plain JobResources
	document := struct {
		*plain
		Memory json.RawMessage `json:"memory"`
	}{plain: (*plain)(r)}
	if err := strict(b, &document); err != nil || len(document.Memory) == 0 {
		return err
	}
	if document.Memory[0] != '"' {
		r.Memory = string(document.Memory)
		return nil
	}
	return json.Unmarshal(document.Memory, &r.Memory)
}

// JobRetry says how often a failed container runs again.
type JobRetry struct {
	// Max is how many more times each instance may run.
	Max int `json:"max,omitempty"`
	// On lists the causes, job.OnFailure, job.OnNodeLost and job.OnPreempted; empty: all.
	On []string `json:"on,omitempty"`
}

// Jobs are the jobs of a cluster.
type Jobs struct{ rest *rest }

// Submit submits a job and returns its id. A key that was used before returns the job of then, so a submission whose
// answer was lost can be repeated; empty: one is drawn. A container submits only if its job says so, see MaySubmit.
func (j *Jobs) Submit(ctx context.Context, document Job, key string) (string, error) {
	if err := MaySubmit(); err != nil {
		return "", err
	}
	if key == "" {
		key = uuid.NewString()
	}
	var answer struct{ ID string }
	err := j.rest.call(ctx, http.MethodPost, "/api/v1/jobs", document, http.Header{"Idempotency-Key": {key}}, &answer)
	return answer.ID, err
}

// Get describes a job.
func (j *Jobs) Get(ctx context.Context, id string) (JobStatus, error) {
	var s JobStatus
	err := j.rest.call(ctx, http.MethodGet, "/api/v1/jobs/"+url.PathEscape(id), nil, nil, &s)
	return s, err
}

// List describes the jobs that the user may see, newest first.
func (j *Jobs) List(ctx context.Context) ([]JobStatus, error) {
	var answer struct{ Jobs []JobStatus }
	err := j.rest.call(ctx, http.MethodGet, "/api/v1/jobs", nil, nil, &answer)
	return answer.Jobs, err
}

// Stop ends a job; one that has ended stays as it is.
func (j *Jobs) Stop(ctx context.Context, id string) error {
	var answer struct{ ID string }
	return j.rest.call(ctx, http.MethodDelete, "/api/v1/jobs/"+url.PathEscape(id), nil, nil, &answer)
}

// Logs opens what the job's containers have written so far. The caller closes it.
func (j *Jobs) Logs(ctx context.Context, id string) (io.ReadCloser, error) {
	return j.Open(ctx, "/api/v1/jobs/"+url.PathEscape(id)+"/logs")
}

// Open asks for something that is read as it comes. The caller closes it.
func (j *Jobs) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	answer, err := j.rest.open(ctx, http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// Wait polls until a job has ended. seen, if not nil, is called with every status.
func (j *Jobs) Wait(ctx context.Context, id string, seen func(JobStatus)) (JobStatus, error) {
	pause := 50 * time.Millisecond
	for {
		s, err := j.Get(ctx, id)
		if err != nil {
			return s, err
		}
		if seen != nil {
			seen(s)
		}
		if s.Ended() {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(pause):
		}
		pause = nextPause(pause, len(s.Containers))
	}
}

// nextPause lies between two looks at a job. A status names all containers, so that one of many is looked at less often: megabytes a second
// for each who waits for an array of thousands would be the resource manager's, and the network's, work.
func nextPause(last time.Duration, containers int) time.Duration {
	return min(last*3/2, max(time.Second, time.Duration(containers)*time.Millisecond))
}

// Proxy asks the job's application master, path beginning with /v1, and decodes its JSON. An *Error of status 404 or 503:
// it does not run (any more).
func (j *Jobs) Proxy(ctx context.Context, id, path string, into any) error {
	return j.rest.call(ctx, http.MethodGet, "/proxy/"+url.PathEscape(id)+path, nil, nil, into)
}

// Grants is the ledger of GPUs: every grant of a device to a container, live and past.
func (j *Jobs) Grants(ctx context.Context) ([]Grant, error) {
	var answer struct{ Grants []Grant }
	err := j.rest.call(ctx, http.MethodGet, "/api/v1/grants", nil, nil, &answer)
	return answer.Grants, err
}

// Raw asks any address of the resource manager for JSON.
func (j *Jobs) Raw(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
	var m json.RawMessage
	err := j.rest.call(ctx, method, path, body, nil, &m)
	return m, err
}

// Do makes a request whose answer has nothing in it that is of use.
func (j *Jobs) Do(ctx context.Context, method, path string, body any) error {
	return j.rest.each(ctx, method, path, body, nil, func(answer *http.Response) error { return answer.Body.Close() })
}

// Nodes are the node managers that are alive.
func (j *Jobs) Nodes(ctx context.Context) ([]Node, error) {
	var answer struct{ Nodes []Node }
	err := j.rest.call(ctx, http.MethodGet, "/api/v1/nodes", nil, nil, &answer)
	return answer.Nodes, err
}
