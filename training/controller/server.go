package controller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// route is one call, with the right it needs. serve gets the container whose key signed an executor's request.
type route struct {
	pattern string
	right   security.Right
	serve   func(c *controller, w http.ResponseWriter, r *http.Request, container string) error
}

var routes = []route{
	{"GET /healthz", security.Open, (*controller).serveHealth},
	{"POST /v1/executors", security.ContainersOnly, (*controller).serveRegister},
	{"GET /v1/executors/{executor}/next", security.ContainersOnly, (*controller).serveNext},
	{"POST /v1/trials/{trial}/{attempt}/report", security.ContainersOnly, (*controller).serveReport},
	{"POST /v1/trials/{trial}/{attempt}/checkpoint", security.ContainersOnly, (*controller).serveCheckpoint},
	{"POST /v1/trials/{trial}/{attempt}/final", security.ContainersOnly, (*controller).serveFinal},
	{"GET /v1/experiments", security.Owner, (*controller).serveExperiments},
	{"GET /v1/experiments/{id}", security.Owner, (*controller).serveStatus},
	{"GET /v1/experiments/{id}/summary", security.Owner, (*controller).serveSummary},
	{"GET /v1/experiments/{id}/events", security.Owner, (*controller).serveEvents},
	{"POST /v1/experiments/{id}/stop", security.Owner, (*controller).serveStop},
}

// Routes lists what the port of a controller does, and the right that each thing needs.
func Routes() []security.Route {
	var out []security.Route
	for _, r := range routes {
		out = append(out, security.Route{Port: "controller HTTP", Name: r.pattern, Right: r.right})
	}
	return out
}

// handler is the controller's HTTP door.
func (c *controller) handler() http.Handler {
	mux := http.NewServeMux()
	for _, t := range routes {
		mux.HandleFunc(t.pattern, func(w http.ResponseWriter, r *http.Request) {
			w, container, err := c.authorize(w, r, t.right)
			if err == nil {
				err = readBody(w, r)
			}
			if err == nil && t.right != security.Open && !c.ready.Load() {
				err = experiment.Refuse(503, protocol.CodeNotReady, "the controller is starting")
			}
			if err == nil {
				err = t.serve(c, w, r, container)
			}
			if err != nil {
				c.answerError(w, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.answerError(w, experiment.Refuse(404, protocol.CodeNotFound, "no call %s %s", r.Method, r.URL.Path))
	})
	return mux
}

// authorize finds who calls, and refuses who has no right. Through the writer that it returns, answers to executors carry
// the controller's proof.
func (c *controller) authorize(w http.ResponseWriter, r *http.Request, need security.Right) (_ http.ResponseWriter, container string, err error) {
	switch need {
	case security.Open:
		return w, "", nil
	case security.ContainersOnly:
		return c.authorizeExecutor(w, r)
	case security.Owner:
		if c.env.Caller == nil {
			return w, "", experiment.Refuse(403, protocol.CodeForbidden, "users are not served here")
		}
		caller, err := c.env.Caller(r)
		if err != nil {
			return w, "", experiment.Refuse(401, protocol.CodeUnauthorized, "%v", err)
		}
		if caller.Superuser || caller.User == c.env.User {
			return w, "", nil
		}
		return w, "", experiment.Refuse(403, protocol.CodeForbidden, "the experiment belongs to %s, not to %s", c.env.User, caller.User)
	}
	return w, "", experiment.Refuse(403, protocol.CodeForbidden, "nobody has a right to this call")
}

// authorizeExecutor finds the container whose key signed a request. Only once it is sure that the request was made for
// this controller does the answer carry a proof, refusals included; one to somebody who passes on what an executor had
// sent to another address carries none, and so the executor believes it as little.
func (c *controller) authorizeExecutor(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, string, error) {
	s, ok := security.ParseSignature(r)
	if !ok {
		return w, "", experiment.Refuse(401, protocol.CodeUnauthorized, "the request carries no signature")
	}
	k := c.fleet.await(r.Context(), s.Container, c.times.Grant)
	if k == nil || !k.key.Signed(r, c.env.Listener.Addr().String(), s) {
		return w, "", experiment.Refuse(401, protocol.CodeUnauthorized, "the request is not signed with the key of a container of this experiment, for the address %s", c.env.Listener.Addr())
	}
	w = &provenWriter{w, k.key, s.Number}
	switch err := k.admission.Admit(s.Number, time.Now()); {
	case errors.Is(err, security.ErrSkew):
		return w, "", experiment.Refuse(401, protocol.CodeClockSkew, "%v", err)
	case err != nil:
		return w, "", experiment.Refuse(409, protocol.CodeRepeated, "%v", err)
	}
	r.Body = &sumReader{ReadCloser: r.Body, want: s.Body, hash: sha256.New()}
	return w, k.id, nil
}

// provenWriter is of an answer to a signed request.
type provenWriter struct {
	http.ResponseWriter
	key    security.RequestKey
	number int64
}

// Unwrap is for http.ResponseController.
func (w *provenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// sumReader compares a body with the hash that was signed, when it has been read to its end.
type sumReader struct {
	io.ReadCloser
	want string
	hash hash.Hash
}

func (s *sumReader) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.hash.Write(p[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(s.hash.Sum(nil)) != s.want {
		return n, experiment.Refuse(401, protocol.CodeUnauthorized, "the body is not the one that was signed")
	}
	return n, err
}

// bodyPatience bounds the time that a caller may take to send a body.
const bodyPatience = 30 * time.Second

// readBody reads a request's body into memory, within limits of size and time.
func readBody(w http.ResponseWriter, r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyPatience))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, protocol.MaxBody))
	_ = control.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(b))
	return err
}

func (c *controller) answerError(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	re, ok := errors.AsType[*experiment.Refusal](err)
	switch {
	case ok:
	case errors.As(err, &tooLarge):
		re = experiment.Refuse(413, protocol.CodeTooLarge, "the request has more than %d bytes", tooLarge.Limit)
	default: // also when the controller is ending: no answer would be an empty 200, which reads as an acknowledgement
		re = experiment.Refuse(503, protocol.CodeNotReady, "%v", err)
	}
	if re.Status == 503 {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, re.Status, protocol.ErrorBody{Error: re.ErrorDetail})
}

func answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		status, b = 500, []byte(`{"error":{"code":"BAD_REQUEST","message":"the answer cannot be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if p, ok := w.(*provenWriter); ok {
		w.Header().Set(security.ProofHeader, p.key.Proof(p.number, status, b))
	}
	w.WriteHeader(status)
	_, _ = w.Write(b) // a caller that is gone asks again
}

// decode reads a body. Unknown fields are ignored: the other side may be newer.
func decode(r *http.Request, to any) error {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, to); err != nil {
		return experiment.Refuse(400, protocol.CodeBadRequest, "%s %s: %v", r.Method, r.URL.Path, err)
	}
	return nil
}

// attemptOf reads the fencing token of a path.
func attemptOf(r *http.Request) (training.TrialID, int, error) {
	id, err := training.ParseTrialID(r.PathValue("trial"))
	n, err2 := strconv.Atoi(r.PathValue("attempt"))
	if err != nil || err2 != nil || n < 1 {
		return 0, 0, experiment.Refuse(404, protocol.CodeNotFound, "%q is not an attempt at a trial", r.PathValue("trial")+"/"+r.PathValue("attempt"))
	}
	return id, n, nil
}

func (c *controller) serveHealth(w http.ResponseWriter, _ *http.Request, _ string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !c.ready.Load() {
		w.WriteHeader(503)
		_, _ = io.WriteString(w, "starting\n")
		return nil
	}
	_, _ = io.WriteString(w, "ok\n")
	return nil
}

func (c *controller) serveRegister(w http.ResponseWriter, r *http.Request, container string) error {
	var body protocol.RegisterExecutor
	if err := decode(r, &body); err != nil {
		return err
	}
	switch {
	case body.Protocol != protocol.ProtocolVersion:
		return experiment.Refuse(400, protocol.CodeBadRequest, "the executor speaks protocol %d, the controller %d", body.Protocol, protocol.ProtocolVersion)
	case body.ContainerID != container:
		return experiment.Refuse(403, protocol.CodeForbidden, "the token belongs to %s, not to %s", container, body.ContainerID)
	case body.Instance == "" || len(body.Instance) > 64 || len(body.Host) > 255 || len(body.GPUs) > 64:
		return experiment.Refuse(400, protocol.CodeBadRequest, "an instance of 1 to 64 bytes, a host name of at most 255 and at most 64 GPUs are needed")
	}
	var out protocol.RegisteredExecutor
	status := 200
	err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (*experiment.Entry, error) {
		e, fresh, entry, err := x.Register(now, body, c.fleet.node(container))
		if err != nil {
			return nil, err
		}
		if fresh {
			status = 201
		}
		out = protocol.RegisteredExecutor{
			Executor: e.ID, Experiment: x.ID, LeaseMS: c.times.Lease.Milliseconds(), ReportMS: c.times.Report.Milliseconds(),
			ControllerAttempt: x.Attempt, Directory: x.Directory, Entry: x.Spec.Entry, Mode: x.Spec.ExecutorMode, Preload: x.Spec.Preload,
			Arguments: x.Spec.Arguments, Metric: x.Spec.Metric, Direction: x.Spec.Direction, StopGraceMS: x.Spec.StopGrace.D().Milliseconds(),
			MetricOptional: x.Spec.Optimizer.Type == training.None,
		}
		if x.Spec.Code != nil {
			out.CodeDir = codeDir
		}
		c.heard(e.ID)
		return entry, nil
	})
	if err != nil {
		return err
	}
	answer(w, status, out)
	return nil
}

func (c *controller) serveNext(w http.ResponseWriter, r *http.Request, container string) error {
	id := r.PathValue("executor")
	wait := 0.0
	if v := r.URL.Query().Get("wait"); v != "" {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || !(n >= 0) {
			return experiment.Refuse(400, protocol.CodeBadRequest, "wait is a number of seconds, not %q", v)
		}
		wait = min(n, protocol.MaxWaitSeconds)
	}
	until := time.After(time.Duration(wait * float64(time.Second)))
	for {
		wake := c.waker()
		var out protocol.Next
		err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (e *experiment.Entry, err error) {
			if w := x.Executor(id); w == nil || w.Container != container {
				return nil, experiment.Refuse(404, protocol.CodeUnknownExecutor, "no executor %s in %s: register again", id, x.ID)
			}
			c.heard(id)
			out, e, err = x.Next(now, id)
			return e, err
		})
		if err != nil {
			return err
		}
		if out.Action != protocol.ActionWait {
			answer(w, 200, out)
			return nil
		}
		select {
		case <-wake:
		case <-time.After(c.times.Lease / 3): // an executor that waits is alive
		case <-until:
			answer(w, 200, out)
			return nil
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func (c *controller) serveReport(w http.ResponseWriter, r *http.Request, container string) error {
	id, attempt, err := attemptOf(r)
	if err != nil {
		return err
	}
	var body protocol.Report
	if err := decode(r, &body); err != nil {
		return err
	}
	var out protocol.Reported
	err = c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (e *experiment.Entry, err error) {
		out, e, err = x.Report(now, container, id, attempt, body)
		c.heardTrial(x, err, id)
		return e, err
	})
	if err != nil {
		return err
	}
	answer(w, 200, out)
	return nil
}

func (c *controller) serveCheckpoint(w http.ResponseWriter, r *http.Request, container string) error {
	id, attempt, err := attemptOf(r)
	if err != nil {
		return err
	}
	var body protocol.Commit
	if err := decode(r, &body); err != nil {
		return err
	}
	err = c.propose(r.Context(), func(x *experiment.Experiment, _ training.Millis) (*experiment.Entry, error) {
		_, err := x.CheckCommit(container, id, attempt, body)
		c.heardTrial(x, err, id)
		return nil, err
	})
	if err != nil {
		return err
	}
	if err := c.inspect(r.Context(), id, attempt, body); err != nil {
		return err
	}
	var out protocol.Committed
	err = c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (e *experiment.Entry, err error) {
		out, e, err = x.Commit(now, container, id, attempt, body)
		c.heardTrial(x, err, id)
		return e, err
	})
	if err != nil {
		return err
	}
	answer(w, 200, out)
	return nil
}

// inspect looks whether a checkpoint is whole: its manifest names the files of the commit, and each is there in its
// size. Checksums are left to the reader that resumes.
func (c *controller) inspect(ctx context.Context, id training.TrialID, attempt int, k protocol.Commit) error {
	incomplete := func(format string, args ...any) error {
		return experiment.Refuse(422, protocol.CodeIncomplete, "checkpoint %s: %s", k.URI, fmt.Sprintf(format, args...))
	}
	b, err := readFile(ctx, c.env.FS, path.Join(k.URI, training.ManifestName))
	if missing(err) {
		return incomplete("%s is not there", training.ManifestName)
	}
	if err != nil {
		return err
	}
	var m training.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return incomplete("%s: %v", training.ManifestName, err)
	}
	if m.Version != 1 || m.Trial != id || m.Attempt != attempt || m.Step != k.Step {
		return incomplete("%s is of version %d, trial %v/%d, step %d", training.ManifestName, m.Version, m.Trial, m.Attempt, m.Step)
	}
	stated := map[string]training.File{}
	for _, f := range m.Files {
		stated[f.Name] = f
	}
	for _, f := range k.Files {
		if s, ok := stated[f.Name]; !ok || s != f {
			return incomplete("%s in the commit is not what the manifest says", f.Name)
		}
	}
	if len(stated) != len(k.Files) {
		return incomplete("the manifest names %d files, the commit %d", len(stated), len(k.Files))
	}
	sizes := map[string]int64{}
	listed := map[string]bool{}
	for _, f := range k.Files {
		dir := path.Join(k.URI, path.Dir(f.Name))
		if !listed[dir] {
			listed[dir] = true
			entries, err := c.env.FS.List(ctx, dir)
			if err != nil && !missing(err) {
				return err
			}
			for _, e := range entries {
				if !e.IsDir() {
					sizes[path.Join(dir, e.Name)] = e.Length
				}
			}
		}
		size, ok := sizes[path.Join(k.URI, f.Name)]
		if !ok {
			return incomplete("%s is not there", f.Name)
		}
		if size != f.Size {
			return incomplete("%s has %d bytes, the manifest says %d", f.Name, size, f.Size)
		}
	}
	return nil
}

func (c *controller) serveFinal(w http.ResponseWriter, r *http.Request, container string) error {
	id, attempt, err := attemptOf(r)
	if err != nil {
		return err
	}
	var body protocol.Final
	if err := decode(r, &body); err != nil {
		return err
	}
	var out protocol.Finished
	err = c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (e *experiment.Entry, err error) {
		out, e, err = x.Final(now, container, id, attempt, body)
		c.heardTrial(x, err, id)
		return e, err
	})
	if err != nil {
		return err
	}
	answer(w, 200, out)
	return nil
}

// named refuses an experiment that is not this one.
func (c *controller) named(r *http.Request) error {
	if id := r.PathValue("id"); id != c.id {
		return experiment.Refuse(404, protocol.CodeNotFound, "no experiment %q here, only %s", id, c.id)
	}
	return nil
}

func (c *controller) serveExperiments(w http.ResponseWriter, _ *http.Request, _ string) error {
	answer(w, 200, map[string][]string{"experiments": {c.id}})
	return nil
}

func (c *controller) serveStatus(w http.ResponseWriter, r *http.Request, _ string) error {
	if err := c.named(r); err != nil {
		return err
	}
	answer(w, 200, c.status(r.URL.Query().Get("curves") != "0"))
	return nil
}

func (c *controller) serveSummary(w http.ResponseWriter, r *http.Request, _ string) error {
	if err := c.named(r); err != nil {
		return err
	}
	var s protocol.ExperimentSummary
	c.view(func(x *experiment.Experiment) { s = x.Summary() })
	if s.Reason == "" && s.State == protocol.ExperimentRunning {
		s.Reason = c.fleet.reason()
	}
	answer(w, 200, s)
	return nil
}

func (c *controller) serveEvents(w http.ResponseWriter, r *http.Request, _ string) error {
	if err := c.named(r); err != nil {
		return err
	}
	c.hub.serve(w, r, func() protocol.ExperimentStatus { return c.status(true) })
	return nil
}

func (c *controller) serveStop(w http.ResponseWriter, r *http.Request, _ string) error {
	if err := c.named(r); err != nil {
		return err
	}
	var body protocol.StopExperiment
	if r.ContentLength != 0 {
		if err := decode(r, &body); err != nil {
			return err
		}
	}
	caller := metadata.Caller{User: c.env.User}
	if who, err := c.env.Caller(r); err == nil {
		caller = who
	}
	state := protocol.ExperimentKilled
	err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (*experiment.Entry, error) {
		if x.Over() {
			state = x.State
			return nil, nil
		}
		if x.Closing() {
			return nil, nil
		}
		return x.Propose(now, &experiment.Entry{Stopped: &experiment.Stopped{User: caller.User, Reason: experiment.Middle(body.Reason, 500)}})
	})
	if err != nil {
		return err
	}
	answer(w, 202, protocol.StoppedExperiment{State: state})
	return nil
}
