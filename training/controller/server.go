package controller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
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
	{"POST /v1/trials/{trial}/{attempt}/join", security.ContainersOnly, (*controller).serveJoin},
	{"POST /v1/trials/{trial}/{attempt}/report", security.ContainersOnly, (*controller).serveReport},
	{"POST /v1/trials/{trial}/{attempt}/checkpoint", security.ContainersOnly, (*controller).serveCheckpoint},
	{"POST /v1/trials/{trial}/{attempt}/final", security.ContainersOnly, (*controller).serveFinal},
	{"GET /v1/experiments", security.Owner, (*controller).serveExperiments},
	{"GET /v1/experiments/{id}", security.Owner, (*controller).serveStatus},
	{"GET /v1/experiments/{id}/summary", security.Owner, (*controller).serveSummary},
	{"GET /v1/experiments/{id}/events", security.Owner, (*controller).serveEvents},
	{"POST /v1/experiments/{id}/ask", security.Owner, (*controller).serveAsk},
	{"POST /v1/experiments/{id}/tell", security.Owner, (*controller).serveTell},
	{"POST /v1/experiments/{id}/should_stop", security.Owner, (*controller).serveShouldStop},
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
	case body.Instance == "" || len(body.Instance) > 64 || len(body.Host) > 255 || len(body.GPUs) > 64 || slices.ContainsFunc(body.GPUs, func(id string) bool { return len(id) > 128 }):
		return experiment.Refuse(400, protocol.CodeBadRequest, "an instance of 1 to 64 bytes, a host name of at most 255 and at most 64 GPUs, each of at most 128, are needed")
	}
	var out protocol.RegisteredExecutor
	status := 200
	err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) error {
		node, serves := c.fleet.where(container)
		e, fresh, _, err := x.Register(now, body, node, serves)
		if err != nil {
			return err
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
		if d := x.Spec.Distributed; d != nil {
			out.Framework = d.Framework
		}
		if n := len(e.Slots); n > 1 {
			out.Slots = n
		}
		if x.Spec.Code != nil {
			out.CodeDir = codeDir
		}
		c.heard(e.ID)
		for slot := range e.Slots {
			c.heard(e.ID, slot)
		}
		return nil
	})
	if err != nil {
		return err
	}
	answer(w, status, out)
	return nil
}

func (c *controller) serveNext(w http.ResponseWriter, r *http.Request, container string) error {
	id := r.PathValue("executor")
	slot := 0
	if v := r.URL.Query().Get("slot"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			return experiment.Refuse(400, protocol.CodeBadRequest, "slot is a number, not %q", v)
		}
		slot = n
	}
	var out protocol.Next
	came := true
	return c.poll(w, r, c.times.Lease/3, func(x *experiment.Experiment, now training.Millis) (waits bool, err error) {
		if w := x.Executor(id); w == nil || w.Container != container {
			return false, experiment.Refuse(404, protocol.CodeUnknownExecutor, "no executor %s in %s: register again", id, x.ID)
		}
		out, _, err = x.Next(now, id, slot)
		if came {
			c.heard(id)
			if err == nil { // it has that slot
				c.heard(id, slot)
			}
		}
		came = false
		return out.Action == protocol.ActionWait, err
	}, &out)
}

// poll asks again until the answer need not be waited for, or the request's wait is over, which is at most longest. An executor's is a part
// of its lease: that it asked is a sign of life, that it waits is none, for a machine that stands still keeps its connections.
func (c *controller) poll(w http.ResponseWriter, r *http.Request, longest time.Duration, ask func(*experiment.Experiment, training.Millis) (waits bool, err error), out any) error {
	wait := 0.0
	if v := r.URL.Query().Get("wait"); v != "" {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || !(n >= 0) {
			return experiment.Refuse(400, protocol.CodeBadRequest, "wait is a number of seconds, not %q", v)
		}
		wait = min(n, protocol.MaxWaitSeconds)
	}
	until := time.After(min(longest, time.Duration(wait*float64(time.Second))))
	for {
		wake := c.waker()
		waits := false
		err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (err error) {
			waits, err = ask(x, now)
			return err
		})
		if err != nil {
			return err
		}
		if !waits {
			answer(w, 200, out)
			return nil
		}
		select {
		case <-wake:
		case <-time.After(c.times.Lease / 3):
		case <-until:
			answer(w, 200, out)
			return nil
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func (c *controller) serveJoin(w http.ResponseWriter, r *http.Request, container string) error {
	id, attempt, err := attemptOf(r)
	if err != nil {
		return err
	}
	var body protocol.Join
	if err := decode(r, &body); err != nil {
		return err
	}
	var out protocol.Joined
	came := true
	return c.poll(w, r, c.times.Lease/3, func(x *experiment.Experiment, now training.Millis) (waits bool, err error) {
		out, _, err = x.Join(now, container, id, attempt, body)
		if came {
			c.heardMember(x, err, container, id, body.Rank)
		}
		came = false
		return !out.Ready && out.Op == "", err
	}, &out)
}

func (c *controller) serveReport(w http.ResponseWriter, r *http.Request, container string) error {
	id, attempt, err := attemptOf(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	body, err := protocol.ParseReport(text)
	if err != nil {
		return experiment.Refuse(400, protocol.CodeBadRequest, "%s %s: %v", r.Method, r.URL.Path, err)
	}
	var out protocol.Reported
	err = c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (err error) {
		out, _, err = x.Report(now, container, id, attempt, body)
		c.heardMember(x, err, container, id, body.Rank)
		if err == nil {
			c.didNothing(x, id, body.Rank, time.Duration(body.IdleMS)*time.Millisecond)
		}
		return err
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
	err = c.propose(r.Context(), func(x *experiment.Experiment, _ training.Millis) error {
		_, err := x.CheckCommit(container, id, attempt, body)
		c.heardMember(x, err, container, id, body.Rank)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.inspect(r.Context(), id, attempt, body); err != nil {
		return err
	}
	var out protocol.Committed
	err = c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (err error) {
		out, _, err = x.Commit(now, container, id, attempt, body)
		c.heardMember(x, err, container, id, body.Rank)
		return err
	})
	if err != nil {
		return err
	}
	answer(w, 200, out)
	return nil
}

// inspect looks whether a checkpoint is whole.
func (c *controller) inspect(ctx context.Context, id training.TrialID, attempt int, k protocol.Commit) error {
	err := checkpoint.Inspect(ctx, c.env.FS, checkpoint.Claim{
		Trial: id, Attempt: attempt, Step: k.Step, URI: k.URI, Blobs: path.Join(c.dir, checkpoint.BlobsName), Files: k.Files,
	})
	if _, ok := errors.AsType[*checkpoint.Incomplete](err); ok {
		return experiment.Refuse(422, protocol.CodeIncomplete, "%v", err)
	}
	return err
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
	err = c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) (err error) {
		c.heardMember(x, nil, container, id, body.Rank)
		var e *experiment.Entry
		if out, e, err = x.Final(now, container, id, attempt, body); err != nil || e == nil || !body.Next {
			return err
		}
		if w := x.InContainer(container); w != nil && body.Slot >= 0 && body.Slot < len(w.Slots) {
			c.heard(w.ID, body.Slot)
			next, _, err := x.Next(now, w.ID, body.Slot)
			if err != nil {
				return err
			}
			if next.Action != protocol.ActionWait {
				out.Next = &next
			}
		}
		return nil
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
	err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) error {
		if x.Over() {
			state = x.State
			return nil
		}
		if x.Closing() {
			return nil
		}
		_, err := x.Propose(now, &experiment.Entry{Stopped: &experiment.Stopped{User: caller.User, Reason: experiment.Middle(body.Reason, 500)}})
		return err
	})
	if err != nil {
		return err
	}
	answer(w, 202, protocol.StoppedExperiment{State: state})
	return nil
}

// steering refuses a client where nobody is to steer, or somebody else does.
func (c *controller) steering(r *http.Request) error {
	if err := c.named(r); err != nil {
		return err
	}
	if c.brain == nil || !c.brain.client() {
		return experiment.Refuse(400, protocol.CodeBadRequest, `no client steers this search: that needs "optimizer": {"type": "external"} without an entry`)
	}
	return nil
}

func (c *controller) serveAsk(w http.ResponseWriter, r *http.Request, _ string) error {
	var body protocol.Ask
	if err := c.steering(r); err != nil {
		return err
	}
	if err := decode(r, &body); err != nil {
		return err
	}
	var out protocol.Asked
	return c.poll(w, r, protocol.MaxWaitSeconds*time.Second, func(x *experiment.Experiment, now training.Millis) (waits bool, err error) {
		c.asked = now
		news, end := c.brain.from(max(0, body.Seen))
		out = protocol.Asked{State: x.State, Seen: end}
		for size := 0; len(news) > 0; news = news[1:] {
			if size += len(news[0].entry); size > protocol.MaxBody && len(out.News) > 0 {
				out.Seen = end - len(news) // the rest with the next call
				return false, nil
			}
			if news[0].entry != nil {
				out.News = append(out.News, news[0].entry)
			}
		}
		n, next := x.Asked()
		out.N, out.Next = n, int(next)
		for len(out.Checks) < protocol.MaxReportEvents {
			k, ok := c.brain.check()
			if !ok {
				break
			}
			out.Checks = append(out.Checks, protocol.Check{Trial: int(k.Trial), Attempt: k.Attempt, Params: k.Params, Curve: k.Curve})
		}
		return out.N == 0 && len(out.News)+len(out.Checks) == 0 && !x.Closing(), nil
	}, &out)
}

func (c *controller) serveTell(w http.ResponseWriter, r *http.Request, _ string) error {
	var body protocol.Tell
	if err := c.steering(r); err != nil {
		return err
	}
	if err := decode(r, &body); err != nil {
		return err
	}
	if len(body.Suggestions) > brainAsk {
		return experiment.Refuse(400, protocol.CodeBadRequest, "%d suggestions, at most %d", len(body.Suggestions), brainAsk)
	}
	var out protocol.Told
	err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) error {
		c.asked = now
		if err := x.Suggest(now, experiment.Suggested{Suggestions: suggestions(body.Suggestions), Done: body.Done}); err != nil {
			return err
		}
		out.Next = x.NextTrial()
		return nil
	})
	if err != nil {
		return err
	}
	answer(w, 200, out)
	return nil
}

func (c *controller) serveShouldStop(w http.ResponseWriter, r *http.Request, _ string) error {
	var body protocol.ShouldStop
	if err := c.steering(r); err != nil {
		return err
	}
	if err := decode(r, &body); err != nil {
		return err
	}
	err := c.propose(r.Context(), func(x *experiment.Experiment, now training.Millis) error {
		c.asked = now
		return x.Decide(now, experiment.Decided{Trial: training.TrialID(body.Trial), Attempt: body.Attempt, Reason: experiment.Middle(body.Reason, 300)})
	})
	if err != nil {
		return err
	}
	answer(w, 200, struct{}{})
	return nil
}
