package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// client speaks the protocol as an executor does.
type client struct {
	t         testing.TB
	base      func() string // may change when the controller restarts
	key       security.RequestKey
	numbers   security.Numbers
	container string
	instance  string
	http      *http.Client
	executor  string
}

func newClient(t testing.TB, base func() string, container, token string) *client {
	return &client{t: t, base: base, key: security.NewRequestKey(token, security.ExecutorRequests), container: container, instance: "i-" + container, http: &http.Client{Transport: &http.Transport{}}}
}

// signed makes a request with a number and returns that.
func (c *client) signed(ctx context.Context, method, p string, body []byte) (*http.Request, int64) {
	r, err := http.NewRequestWithContext(ctx, method, c.base()+p, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	s := security.Signature{Container: c.container, Number: c.numbers.Next(), Body: security.BodySum(body)}
	c.key.Sign(r, s)
	return r, s.Number
}

// call sends one request; answers other than 2xx come back as *refusal. Those that do not come from the controller are
// errors.
func (c *client) call(ctx context.Context, method, p string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	return c.raw(ctx, method, p, body, out)
}

func (c *client) raw(ctx context.Context, method, p string, body []byte, out any) error {
	r, number := c.signed(ctx, method, p, body)
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if proof := resp.Header.Get(security.ProofHeader); proof != c.key.Proof(number, resp.StatusCode, b) {
		return fmt.Errorf("an answer without proof: %s: %s", resp.Status, b)
	}
	if resp.StatusCode >= 300 {
		var e protocol.ErrorBody
		if err := json.Unmarshal(b, &e); err != nil {
			return fmt.Errorf("%s: %s", resp.Status, b)
		}
		return &experiment.Refusal{Status: resp.StatusCode, ErrorDetail: e.Error}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// insist repeats a call while the controller is away.
func (c *client) insist(ctx context.Context, method, p string, in, out any) error {
	for {
		err := c.call(ctx, method, p, in, out)
		re, ok := errors.AsType[*experiment.Refusal](err)
		if err == nil || ok && re.Code != protocol.CodeNotReady || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (c *client) register(ctx context.Context, holding *protocol.Held) (out protocol.RegisteredExecutor, err error) {
	err = c.insist(ctx, "POST", "/v1/executors", protocol.RegisterExecutor{Protocol: 1, ContainerID: c.container, Instance: c.instance, Host: "h", Holding: holding}, &out)
	c.executor = out.Executor
	return out, err
}

func codeOf(err error) string {
	if re, ok := errors.AsType[*experiment.Refusal](err); ok {
		return re.Code
	}
	return fmt.Sprint(err)
}

// worker is an executor whose training function is a Go function of the parameters and the epoch.
type worker struct {
	*client
	fs    *memFS
	value func(p training.Params, epoch int64) float64
	// pause is slept after each epoch.
	pause time.Duration
	// every checkpoints each so-many-th epoch.
	every int64
	// epoch is told before each report; returning false ends the worker as if killed.
	epoch func(a *protocol.Assignment, step int64) bool
	// reported is told after each acknowledged report, before the checkpoint; returning false ends the worker as if killed.
	reported func(a *protocol.Assignment, step int64, v float64) bool
	// firsts records the first step of each attempt.
	firsts func(a *protocol.Assignment, step int64)
}

var errKilled = errors.New("killed")

// run works until it is drained, stopped or killed.
func (w *worker) run(ctx context.Context) error {
	if _, err := w.register(ctx, nil); err != nil {
		return err
	}
	for {
		var n protocol.Next
		err := w.insist(ctx, "GET", "/v1/executors/"+w.executor+"/next?wait=5", nil, &n)
		if codeOf(err) == protocol.CodeUnknownExecutor || codeOf(err) == protocol.CodeUnauthorized {
			if _, err = w.register(ctx, nil); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		switch n.Action {
		case protocol.ActionDrain, protocol.ActionStop:
			return nil
		case protocol.ActionTrial:
			if err := w.trial(ctx, n.Trial); err != nil && codeOf(err) != protocol.CodeStaleAttempt {
				return err
			}
		}
	}
}

func (w *worker) trial(ctx context.Context, a *protocol.Assignment) error {
	base := fmt.Sprintf("/v1/trials/%v/%d/", a.Trial, a.Attempt)
	start := int64(1)
	if a.Resume != nil {
		var saved struct{ Step int64 }
		if err := json.Unmarshal(w.fs.get(w.t, path.Join(a.Resume.URI, "model.json")), &saved); err != nil || saved.Step != a.Resume.Step {
			return fmt.Errorf("checkpoint of %v: %v, step %d, want %d", a.Trial, err, saved.Step, a.Resume.Step)
		}
		start = saved.Step + 1
	}
	if w.firsts != nil {
		w.firsts(a, start)
	}
	seq, value := int64(0), 0.0
	for step := start; step <= int64(a.Budget.To); step++ {
		if w.epoch != nil && !w.epoch(a, step) {
			return errKilled
		}
		value = w.value(a.Params, step)
		seq++
		var out protocol.Reported
		err := w.insist(ctx, "POST", base+"report", protocol.Report{Events: []protocol.MetricEvent{{Seq: seq, Step: step, Time: 1, Metrics: map[string]training.Metric{"acc": training.M(value)}}}}, &out)
		if err != nil {
			return err
		}
		if out.Ack != seq {
			return fmt.Errorf("ack %d of %d", out.Ack, seq)
		}
		if w.reported != nil && !w.reported(a, step, value) {
			return errKilled
		}
		if out.Op == protocol.OpStop || out.Op == protocol.OpPause {
			return w.insist(ctx, "POST", base+"final", protocol.Final{Seq: seq, Status: training.Stopped}, nil)
		}
		if w.every > 0 && step%w.every == 0 {
			if err := w.checkpoint(ctx, a, step); err != nil {
				return err
			}
		}
		if w.pause > 0 {
			time.Sleep(w.pause)
		}
	}
	return w.insist(ctx, "POST", base+"final", protocol.Final{Seq: seq, Status: training.Completed, Metric: &training.Metric{Value: value}}, nil)
}

func (w *worker) checkpoint(ctx context.Context, a *protocol.Assignment, step int64) error {
	c := writeCheckpoint(w.fs, a.Dirs.Checkpoints, a.Trial, a.Attempt, step)
	return w.insist(ctx, "POST", fmt.Sprintf("/v1/trials/%v/%d/checkpoint", a.Trial, a.Attempt), c, nil)
}

// writeCheckpoint writes a whole checkpoint and makes its commit.
func writeCheckpoint(fs *memFS, dir string, id training.TrialID, attempt int, step int64) protocol.Commit {
	uri := path.Join(dir, fmt.Sprintf("step-%d", step))
	data := []byte(fmt.Sprintf(`{"step": %d}`, step))
	files := []training.File{{Name: "model.json", Size: int64(len(data)), CRC32: crc32.ChecksumIEEE(data)}}
	m, _ := json.Marshal(training.Manifest{Version: 1, Trial: id, Attempt: attempt, Step: step, Files: files})
	fs.put(path.Join(uri, "model.json"), data)
	fs.put(path.Join(uri, training.ManifestName), m)
	return protocol.Commit{Step: step, URI: uri, Files: files}
}

func (c *client) String() string { return strings.TrimPrefix(c.container, "container_") }
