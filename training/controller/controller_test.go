package controller

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

const (
	testApp = "application_1_0001"
	testDir = "/Projects/lab/Experiments/application_1_0001_1"
)

// patience bounds what would hang: a goroutine may be late by many seconds on a machine that is busy.
const patience = 5 * time.Minute

// running is a controller under test.
type running struct {
	t      *testing.T
	fs     *memFS
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	url    string
}

// fast looks often and waits long: a machine that is slow loses no executor. Tests whose subject is a limit set it themselves.
var fast = Times{Lease: time.Minute, Report: 50 * time.Millisecond, Grace: time.Minute, Start: time.Minute, Grant: time.Minute, Drain: time.Minute, Amnesty: 200 * time.Millisecond, Tick: 5 * time.Millisecond, Snapshot: 25}

func jobOf(spec string) []byte {
	return []byte(`{"id": "` + testApp + `", "user": "ann", "kind": "experiment", "env": {"DATA": "/d"}, "fencing": "strict", "experiment": ` + spec + `}`)
}

func launch(t *testing.T, fs *memFS, rm ResourceManager, spec string, attempt int, times Times, change ...func(*Env)) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	level := slog.LevelError
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, fs: fs, cancel: cancel, done: make(chan struct{}), url: "http://" + l.Addr().String()}
	env := Env{
		Application: testApp, Attempt: attempt, User: "ann", Job: jobOf(spec), FS: fs, RM: rm, Listener: l, Times: times,
		SDK: func() ([]byte, string) { return []byte("zip"), strings.Repeat("ab", 32) },
		Caller: func(r *http.Request) (metadata.Caller, error) {
			name := r.URL.Query().Get("user.name")
			if name == "nobody" {
				return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "who?")
			}
			return metadata.Caller{User: name, Superuser: name == "root"}, nil
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
	for _, f := range change {
		f(&env)
	}
	go func() {
		defer close(r.done)
		r.err = Run(ctx, env)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

func (r *running) wait() {
	r.t.Helper()
	select {
	case <-r.done:
		if r.err != nil {
			r.t.Fatal(r.err)
		}
	case <-time.After(patience):
		r.t.Fatal("the controller does not end")
	}
}

// where reads the controller's address as executors do.
func where(fs *memFS) func() string {
	return func() string {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		var w protocol.Whereabouts
		if f := fs.files[testDir+"/"+protocol.WhereaboutsName]; f != nil {
			_ = json.Unmarshal(f.data, &w)
		}
		return w.URL
	}
}

func getJSON(t *testing.T, url string, out any) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatalf("%s: %s: %v", url, b, err)
	}
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode
}

// entriesOf reads the journal.
func entriesOf(t *testing.T, fs *memFS) []*experiment.Entry {
	t.Helper()
	var out []*experiment.Entry
	for _, line := range bytes.Split(bytes.TrimSpace(fs.get(t, testDir+"/"+journalName)), []byte("\n")) {
		if e, err := experiment.DecodeEntry(line); err == nil && e.N == int64(len(out)+1) {
			out = append(out, e)
		}
	}
	return out
}

const ashaSpec = `{"name": "digits", "project": "lab", "entry": "digits:train", "metric": "acc", "optimizer": {"type": "asha", "eta": 3, "r_min": 1, "r_max": 9}, "trials": 24, "executors": 4, "seed": 7,
	"space": {"lr": {"type": "DOUBLE", "range": [0.0001, 1], "log": true}, "hidden": {"type": "INTEGER", "range": [8, 64]}}}`

func accuracy(p training.Params, epoch int64) float64 {
	lr, _ := p["lr"].Float()
	return (1 - math.Abs(math.Log10(lr)+2)/3) * (1 - math.Exp(-float64(epoch)/4))
}

// recorder is told what executors saw acknowledged.
type recorder struct {
	mu     sync.Mutex
	acked  map[string]float64 // trial/attempt/step
	firsts map[string]int64   // first step of each attempt
	resume map[string]int64   // and the checkpoint that it resumed from
}

func newRecorder() *recorder {
	return &recorder{acked: map[string]float64{}, firsts: map[string]int64{}, resume: map[string]int64{}}
}

func (r *recorder) first(a *protocol.Assignment, step int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprintf("%v/%d", a.Trial, a.Attempt)
	r.firsts[key], r.resume[key] = step, 0
	if a.Resume != nil {
		r.resume[key] = a.Resume.Step
	}
}

func (r *recorder) ack(a *protocol.Assignment, step int64, v float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked[fmt.Sprintf("%v/%d/%d", a.Trial, a.Attempt, step)] = v
}

// A search of 24 trials on 4 executors, of which several are killed, one of them with a promoted trial; the controller
// is replaced on the way and the filesystem fails a few flushes.
func TestSearchSurvivesKilledExecutorsAndControllers(t *testing.T) {
	began := time.Now()
	fs := newMemFS()
	fs.keep = func(n int) int { return n / 2 }
	rec := newRecorder()
	var promoted, plain atomic.Bool
	var restarts atomic.Int32
	restart := make(chan struct{})
	all, stop := context.WithCancel(context.Background())
	defer stop()
	rm := newFakeRM(3, func(rm *fakeRM, c *rmpb.Container, l *rmpb.Launch) {
		ctx, cancel := context.WithCancel(all)
		defer cancel()
		w := &worker{client: newClient(t, where(fs), c.ContainerId, c.Token), fs: fs, value: accuracy, every: 1, firsts: rec.first}
		defer w.http.CloseIdleConnections()
		w.reported = func(a *protocol.Assignment, step int64, v float64) bool {
			rec.ack(a, step, v)
			return !(a.Budget.From > 0 && step == int64(a.Budget.From)+2 && promoted.CompareAndSwap(false, true))
		}
		w.epoch = func(a *protocol.Assignment, step int64) bool {
			if a.Trial == 9 && plain.CompareAndSwap(false, true) {
				return false
			}
			if a.Trial == 15 && restarts.CompareAndSwap(0, 1) {
				close(restart)
			}
			return true
		}
		status := int32(0)
		if err := w.run(ctx); errors.Is(err, errKilled) {
			status = 137
		} else if err != nil && all.Err() == nil {
			t.Errorf("executor in %s: %v", c.ContainerId, err)
		}
		rm.complete(c.ContainerId, status)
	})
	first := launch(t, fs, rm, ashaSpec, 1, fast)
	<-restart
	first.cancel()
	<-first.done
	if first.err != nil {
		t.Fatal(first.err)
	}
	fs.mu.Lock()
	fs.failFlush = 3
	fs.mu.Unlock()
	second := launch(t, fs, rm, ashaSpec, 2, fast)
	second.wait()
	stop()
	rm.started.Wait()
	t.Logf("took %s", time.Since(began))

	var result experiment.Result
	if err := json.Unmarshal(fs.get(t, testDir+"/result.json"), &result); err != nil {
		t.Fatal(err)
	}
	if result.State != protocol.ExperimentFinished || result.NumTrials != 24 || result.BestID == nil || len(result.Metrics) != 24 {
		t.Fatalf("result %+v", result)
	}
	if result.Counters.Lost < 2 || result.Counters.Promotions < 10 || result.Counters.EpochsWasted == 0 || result.Counters.EpochsResumed == 0 {
		t.Errorf("counters %+v", result.Counters)
	}
	if rm.finished.GetFinalStatus() != "SUCCEEDED" {
		t.Errorf("finished %v", rm.finished)
	}
	// The best of all that reached the top rung, computed here.
	for _, row := range result.Trials {
		if row.State == training.Completed && row.Metric != nil && *row.Metric > *result.BestValue {
			t.Errorf("trial %v has %v, better than the best %v", row.Trial, *row.Metric, *result.BestValue)
		}
	}
	// Every attempt began right behind its checkpoint.
	for key, first := range rec.firsts {
		if first != rec.resume[key]+1 {
			t.Errorf("attempt %s began at step %d, its checkpoint is of step %d", key, first, rec.resume[key])
		}
	}
	// The journal is whole, each event once, and makes the same experiment again.
	entries := entriesOf(t, fs)
	seen := map[string]bool{}
	journaled := map[string]float64{}
	x := experiment.New()
	for _, e := range entries {
		if e.Reported != nil {
			for _, ev := range e.Reported.Events {
				key := fmt.Sprintf("%v/%d/%d", e.Reported.Trial, e.Reported.Attempt, ev.Seq)
				if seen[key] {
					t.Errorf("event %s is in the journal twice", key)
				}
				seen[key] = true
				journaled[fmt.Sprintf("%v/%d/%d", e.Reported.Trial, e.Reported.Attempt, ev.Step)] = ev.Metrics["acc"].Value
			}
		}
		if err := x.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	for key, v := range rec.acked {
		if got, ok := journaled[key]; !ok || got != v {
			t.Errorf("step %s was acknowledged with %v, the journal has %v %v", key, v, got, ok)
		}
	}
	again := x.Result()
	if *again.BestID != *result.BestID || again.NumEpochs != result.NumEpochs || again.State != result.State {
		t.Errorf("the journal makes another result: %+v", again)
	}
	for _, name := range []string{"/0001/.hparams.json", "/0001/.outputs.json", "/0001/.metric", "/0001/trial.json", "/.summary.json", "/experiment.json", "/controller.log", "/.snapshot.json"} {
		fs.get(t, testDir+name)
	}
	if got := fs.get(t, "/user/ann/.hops/artifacts/"+strings.Repeat("ab", 32)+".zip"); string(got) != "zip" {
		t.Errorf("uploaded package is %q", got)
	}
	if n := rm.asks[0].Count; n != 4 {
		t.Errorf("the first ask is for %d executors", n)
	}
	if l := rm.asks[0].Launch; l.Fencing != rmpb.Fencing_FENCING_STRICT || strings.Join(l.Argv, " ") != "python3 -m hops.executor" || l.Env["PYTHONPATH"] != "hops-sdk.zip" || l.Env["DATA"] != "/d" || l.Env["HOPS_EXPERIMENT_DIR"] != testDir {
		t.Errorf("launch %v", l)
	}
	// Retention: the newest and the best of each trial, nothing else is left.
	for _, row := range result.Trials {
		n := 0
		for name := range fs.files {
			if strings.HasPrefix(name, fmt.Sprintf("%s/%v/checkpoints/", testDir, row.Trial)) && strings.HasSuffix(name, checkpoint.ManifestName) {
				n++
			}
		}
		if n != len(row.Steps) {
			t.Errorf("trial %v has %d checkpoints in the filesystem, %v are kept", row.Trial, n, row.Steps)
		}
	}
}

// manual is a controller whose executors are played by the test.
func manual(t *testing.T, spec string, containers int, times Times, change ...func(*Env)) (*running, *fakeRM, *memFS, []*client) {
	t.Helper()
	fs := newMemFS()
	started := make(chan *client, 100)
	rm := newFakeRM(2, func(_ *fakeRM, c *rmpb.Container, _ *rmpb.Launch) {
		started <- newClient(t, where(fs), c.ContainerId, c.Token)
	})
	r := launch(t, fs, rm, spec, 1, times, change...)
	var clients []*client
	for range containers {
		var c *client
		select {
		case c = <-started:
		case <-r.done:
			t.Fatal(r.err)
		}
		if _, err := c.register(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.http.CloseIdleConnections)
		clients = append(clients, c)
	}
	return r, rm, fs, clients
}

const randomSpec = `{"project": "lab", "entry": "digits:train", "metric": "acc", "optimizer": {"type": "random"}, "trials": %d, "executors": %d, "stop_grace": "100ms",
	"space": {"lr": {"type": "DOUBLE", "range": [0.0001, 1], "log": true}}}`

func (c *client) next(wait string) protocol.Next {
	c.t.Helper()
	var n protocol.Next
	if err := c.insist(c.t.Context(), "GET", "/v1/executors/"+c.executor+"/next?wait="+wait, nil, &n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

func (c *client) report(a *protocol.Assignment, seq, step int64, v float64) (out protocol.Reported, err error) {
	err = c.insist(c.t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/report", a.Trial, a.Attempt),
		protocol.Report{Events: []protocol.MetricEvent{{Seq: seq, Step: step, Metrics: map[string]training.Metric{"acc": training.M(v)}}}}, &out)
	return out, err
}

func (c *client) beat(a *protocol.Assignment) (out protocol.Reported, err error) {
	err = c.insist(c.t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/report", a.Trial, a.Attempt), protocol.Report{}, &out)
	return out, err
}

func (c *client) final(a *protocol.Assignment, f protocol.Final) (out protocol.Finished, err error) {
	err = c.insist(c.t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/final", a.Trial, a.Attempt), f, &out)
	return out, err
}

func TestLeaseExpiryMovesTheTrialAndFencesTheOldAttempt(t *testing.T) {
	// The clock is the test's: a machine that is slow loses nobody.
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	times := fast
	times.Lease, times.Grace = time.Hour, time.Hour
	_, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 2, 2), 2, times, func(e *Env) {
		e.now = func() time.Time { return time.Unix(0, clock.Load()) }
	})
	a := c[0].next("0").Trial
	if _, err := c[0].report(a, 1, 1, 0.5); err != nil {
		t.Fatal(err)
	}
	commit := writeCheckpoint(fs, a.Dirs.Checkpoints, a.Trial, a.Attempt, 1)
	if err := c[0].insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/checkpoint", a.Trial, a.Attempt), commit, nil); err != nil {
		t.Fatal(err)
	}
	// c[0] is silent from here; c[1] has work of its own and then waits.
	b := c[1].next("0").Trial
	lost := func() bool {
		return slices.ContainsFunc(entriesOf(t, fs), func(e *experiment.Entry) bool { return e.Lost != nil })
	}
	last := int64(0)
	for until := time.Now().Add(patience); !lost(); {
		if time.Now().After(until) {
			t.Fatal("the silent executor is not lost")
		}
		last++
		if _, err := c[1].report(b, last, last, 0.1); err != nil {
			t.Fatal(err)
		}
		clock.Add(int64(times.Lease / 4))
		time.Sleep(times.Tick) // what is due happens with a tick
	}
	if _, err := c[1].final(b, protocol.Final{Seq: last, Status: training.Completed}); err != nil {
		t.Fatal(err)
	}
	n := c[1].next("5")
	if n.Trial == nil || n.Trial.Trial != a.Trial || n.Trial.Attempt != 2 || n.Trial.Resume == nil || n.Trial.Resume.Step != 1 {
		t.Fatalf("next %+v", n)
	}
	if n.Trial.Dirs.Checkpoints == a.Dirs.Checkpoints || n.Trial.Dirs.Log == a.Dirs.Log {
		t.Error("the second attempt shares files with the first")
	}
	if _, err := c[0].report(a, 2, 2, 0.6); codeOf(err) != protocol.CodeStaleAttempt {
		t.Errorf("report of the lost attempt: %v", err)
	}
	if _, err := c[0].final(a, protocol.Final{Status: training.Completed}); codeOf(err) != protocol.CodeStaleAttempt {
		t.Errorf("final of the lost attempt: %v", err)
	}
	if n := c[0].next("0"); n.Action != protocol.ActionStop {
		t.Errorf("the lost executor asks next: %+v", n)
	}
	var released []string
	for until := time.Now().Add(patience); len(released) == 0 && time.Now().Before(until); time.Sleep(time.Millisecond) {
		rm.mu.Lock()
		released = slices.Clone(rm.released)
		rm.mu.Unlock()
	}
	if len(released) == 0 || released[0] != c[0].container {
		t.Errorf("released %v, want the silent executor's container", released)
	}
}

func TestExecutorsReattachAfterTheControllerRestarts(t *testing.T) {
	first, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	a := c[0].next("0").Trial
	if _, err := c[0].report(a, 1, 1, 0.5); err != nil {
		t.Fatal(err)
	}
	first.cancel()
	<-first.done
	second := launch(t, fs, rm, fmt.Sprintf(randomSpec, 1, 1), 2, fast)
	for where(fs)() == first.url {
		time.Sleep(time.Millisecond)
	}
	r, err := c[0].register(t.Context(), &protocol.Held{Trial: a.Trial, Attempt: a.Attempt})
	if err != nil || r.ControllerAttempt != 2 || r.Executor != "e0001" {
		t.Fatalf("%+v %v", r, err)
	}
	// Event 1 was acknowledged and is not lost; sending it again is harmless.
	if out, err := c[0].report(a, 1, 1, 0.5); err != nil || out.Ack != 1 {
		t.Fatalf("%+v %v", out, err)
	}
	if out, err := c[0].report(a, 2, 2, 0.6); err != nil || out.Ack != 2 {
		t.Fatalf("%+v %v", out, err)
	}
	if out, err := c[0].final(a, protocol.Final{Seq: 2, Status: training.Completed}); err != nil || out.State != training.Completed {
		t.Fatalf("%+v %v", out, err)
	}
	if n := c[0].next("5"); n.Action != protocol.ActionDrain {
		t.Fatalf("%+v", n)
	}
	rm.complete(c[0].container, 0)
	second.wait()
	var result experiment.Result
	if err := json.Unmarshal(fs.get(t, testDir+"/result.json"), &result); err != nil || *result.BestValue != 0.6 || result.Counters.Lost != 0 {
		t.Errorf("%+v %v", result, err)
	}
}

func TestAnExecutorThatDoesNotComeBackIsLostAfterTheGrace(t *testing.T) {
	first, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	c[0].next("0")
	first.cancel()
	<-first.done
	times := fast
	times.Lease, times.Grace = 50*time.Millisecond, 200*time.Millisecond
	launch(t, fs, rm, fmt.Sprintf(randomSpec, 1, 1), 2, times)
	var took training.Millis
	for until := time.Now().Add(patience); took == 0; time.Sleep(5 * time.Millisecond) {
		began := training.Millis(0)
		for _, e := range entriesOf(t, fs) {
			switch {
			case e.Started != nil:
				began = e.Time
			case e.Lost != nil:
				took = e.Time - began
			}
		}
		if time.Now().After(until) {
			t.Fatal("still not lost")
		}
	}
	if took < 200 { // by the controller's clock
		t.Errorf("lost after %d ms, before the grace of 200", took)
	}
}

func TestAContainerThatEndsIsReplacedAtOnce(t *testing.T) {
	r, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	a := c[0].next("0").Trial
	rm.complete(c[0].container, 137)
	var second *client
	for deadline := time.Now().Add(patience); second == nil; {
		rm.mu.Lock()
		for id, k := range rm.running {
			second = newClient(t, where(fs), id, k.Token)
		}
		rm.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatal("not replaced")
		}
		time.Sleep(time.Millisecond)
	}
	defer second.http.CloseIdleConnections()
	if _, err := second.register(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	b := second.next("5").Trial
	if b == nil || b.Trial != a.Trial || b.Attempt != 2 {
		t.Fatalf("%+v", b)
	}
	if _, err := second.final(b, protocol.Final{Status: training.Completed, Metric: &training.Metric{Value: 1}}); err != nil {
		t.Fatal(err)
	}
	second.next("5")
	rm.complete(second.container, 0)
	r.wait()
}

func TestExcludedNodesAreUsedAgainWhenNothingElseIsThere(t *testing.T) {
	fs := newMemFS()
	failures := atomic.Int32{}
	all, stop := context.WithCancel(context.Background())
	defer stop()
	rm := newFakeRM(1, func(rm *fakeRM, c *rmpb.Container, _ *rmpb.Launch) {
		w := newClient(t, where(fs), c.ContainerId, c.Token)
		defer w.http.CloseIdleConnections()
		defer rm.complete(c.ContainerId, 0)
		if _, err := w.register(all, nil); err != nil {
			return
		}
		for {
			var n protocol.Next
			if err := w.insist(all, "GET", "/v1/executors/"+w.executor+"/next?wait=5", nil, &n); err != nil || n.Action != protocol.ActionTrial && n.Action != protocol.ActionWait {
				return
			}
			if n.Trial == nil {
				continue
			}
			f := protocol.Final{Status: training.Completed, Metric: &training.Metric{Value: 1}}
			if n.Trial.Trial <= 3 && n.Trial.Trial > 1 && n.Trial.Attempt == 1 {
				failures.Add(1)
				f = protocol.Final{Status: training.Failed, Error: &training.TrialError{Type: training.CodeProcessDied, Message: "disk"}}
			}
			if _, err := w.final(n.Trial, f); err != nil {
				t.Error(err)
			}
		}
	})
	launch(t, fs, rm, fmt.Sprintf(randomSpec, 5, 1), 1, fast).wait()
	stop()
	rm.started.Wait()
	excluded, forgiven := false, false
	for _, e := range entriesOf(t, fs) {
		forgiven = forgiven || e.Forgiven != nil
	}
	for _, a := range rm.asks {
		excluded = excluded || len(a.ExcludedNodes) > 0
	}
	if failures.Load() != 2 || !excluded || !forgiven {
		t.Errorf("%d failures, excluded %v, forgiven %v", failures.Load(), excluded, forgiven)
	}
}

func TestCheckpointsAreInspectedBeforeTheyCount(t *testing.T) {
	_, _, fs, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	a := c[0].next("0").Trial
	if _, err := c[0].report(a, 1, 1, 0.5); err != nil {
		t.Fatal(err)
	}
	post := func(k protocol.Commit) error {
		return c[0].insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/checkpoint", a.Trial, a.Attempt), k, nil)
	}
	good := writeCheckpoint(fs, a.Dirs.Checkpoints, a.Trial, a.Attempt, 1)
	for name, c := range map[string]struct {
		change func(k *protocol.Commit)
		want   string
	}{
		"elsewhere":            {func(k *protocol.Commit) { k.URI = "/etc/step-1" }, protocol.CodeBadRequest},
		"above":                {func(k *protocol.Commit) { k.URI = a.Dirs.Checkpoints + "/../1/step-1" }, protocol.CodeBadRequest},
		"not renamed":          {func(k *protocol.Commit) { k.URI += ".tmp" }, protocol.CodeBadRequest},
		"no files":             {func(k *protocol.Commit) { k.Files = nil }, protocol.CodeBadRequest},
		"file outside":         {func(k *protocol.Commit) { k.Files = []training.File{{Name: "../x"}} }, protocol.CodeBadRequest},
		"missing":              {func(k *protocol.Commit) { k.Step, k.URI = 9, a.Dirs.Checkpoints+"/step-9" }, protocol.CodeIncomplete},
		"other step":           {func(k *protocol.Commit) { k.Step = 2 }, protocol.CodeBadRequest},
		"other size":           {func(k *protocol.Commit) { k.Files = []training.File{{Name: "model.json", Size: 1}} }, protocol.CodeIncomplete},
		"file not in manifest": {func(k *protocol.Commit) { k.Files = append(k.Files[:1:1], training.File{Name: "y"}) }, protocol.CodeIncomplete},
	} {
		k := good
		c.change(&k)
		if err := post(k); codeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	path := good.URI + "/model.json"
	whole := fs.get(t, path)
	fs.put(path, whole[:3])
	if err := post(good); codeOf(err) != protocol.CodeIncomplete || !strings.Contains(err.Error(), "has 3 bytes, the manifest says") {
		t.Errorf("torn file: %v", err)
	}
	fs.put(path, whole)
	for range 2 { // the second time the answer got lost
		if err := post(good); err != nil {
			t.Fatal(err)
		}
	}
}

// A blob goes with the last checkpoint that has it; a save that found it just before is told to write it anew.
func TestBlobsLiveAsLongAsACommittedCheckpointHasThem(t *testing.T) {
	r, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	a := c[0].next("0").Trial
	relative := "../../../../.blobs"
	commit := func(step int64, blobs ...string) error {
		uri := fmt.Sprintf("%s/step-%d", a.Dirs.Checkpoints, step)
		k := protocol.Commit{Step: step, URI: uri, Metric: new(training.M(1)), Files: []training.File{{Name: "tree.json", Size: 2}}}
		fs.put(uri+"/tree.json", []byte("{}"))
		for i, b := range blobs {
			k.Files = append(k.Files, training.File{Name: fmt.Sprintf("%04d.safetensors", i), Size: 3, Blob: b})
			if at := checkpoint.BlobPath(a.Dirs.Blobs, b); strings.HasSuffix(b, fmt.Sprintf("-%d", step)) {
				fs.put(at, []byte("abc"))
			}
		}
		m, err := json.Marshal(checkpoint.Manifest{Version: checkpoint.Version3, Trial: a.Trial, Attempt: a.Attempt, Step: step, Blobs: relative, Files: k.Files})
		if err != nil {
			t.Fatal(err)
		}
		fs.put(uri+"/"+checkpoint.ManifestName, m)
		return c[0].insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/checkpoint", a.Trial, a.Attempt), k, nil)
	}
	blob := func(sum byte, step int64) string {
		return checkpoint.Blob{Sum: [32]byte{sum}, Trial: a.Trial, Attempt: a.Attempt, Step: step}.String()
	}
	relative = "../../../.blobs"
	if err := commit(1, blob('a', 1)); codeOf(err) != protocol.CodeIncomplete || !strings.Contains(err.Error(), "its blobs are in") {
		t.Errorf("another directory of blobs: %v", err)
	}
	relative = "../../../../.blobs"
	for _, k := range []struct {
		step  int64
		blobs []string
		want  string
	}{
		{1, []string{blob('a', 1), blob('b', 1)}, ""},
		{2, []string{blob('a', 1), blob('b', 2)}, ""}, // drops the first, and with it b of step 1
		{3, []string{blob('a', 1), blob('b', 1)}, protocol.CodeIncomplete},
		{3, []string{blob('a', 1), checkpoint.Blob{Sum: [32]byte{'b'}, Trial: 9, Attempt: 1, Step: 3}.String()}, protocol.CodeIncomplete},
		{3, []string{blob('a', 1), "../../x"}, protocol.CodeBadRequest},
		{3, []string{blob('a', 1), blob('b', 3)}, ""},
		{3, []string{blob('a', 1), blob('c', 3)}, protocol.CodeBadRequest}, // recorded with other files
	} {
		if err := commit(k.step, k.blobs...); (err != nil || k.want != "") && codeOf(err) != k.want {
			t.Errorf("step %d, %v: %v, want %s", k.step, k.blobs, err, k.want)
		}
	}
	fs.put(checkpoint.BlobPath(a.Dirs.Blobs, blob('d', 7)), []byte("never committed"))
	// An application that has resumed the experiment meanwhile.
	ofNext := checkpoint.Blob{Sum: [32]byte{'e'}, Trial: a.Trial, Attempt: a.Attempt + 1, Step: 1}.String()
	fs.put(checkpoint.BlobPath(a.Dirs.Blobs, ofNext), []byte("about to be committed"))
	if _, err := c[0].report(a, 1, 1, 0.5); err != nil {
		t.Fatal(err)
	}
	if err := c[0].insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/final", a.Trial, a.Attempt), protocol.Final{Seq: 1, Status: training.Completed}, nil); err != nil {
		t.Fatal(err)
	}
	if n := c[0].next("5"); n.Action != protocol.ActionDrain {
		t.Fatalf("%+v", n)
	}
	rm.complete(c[0].container, 0)
	r.wait()
	for name, want := range map[string]bool{ofNext: true, blob('a', 1): true, blob('b', 3): true, blob('b', 1): false, blob('b', 2): false, blob('d', 7): false} {
		if _, err := fs.Stat(t.Context(), checkpoint.BlobPath(a.Dirs.Blobs, name)); (err == nil) != want {
			t.Errorf("%s in the end: %v", name, err)
		}
	}
}

func TestEarlyAnswersOfBadRequests(t *testing.T) {
	_, _, _, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	a := c[0].next("0").Trial
	path := fmt.Sprintf("/v1/trials/%v/%d/", a.Trial, a.Attempt)
	raw := func(method, p, body string) error { return c[0].raw(t.Context(), method, p, []byte(body), nil) }
	for _, b := range []struct{ method, path, body, want string }{
		{"POST", path + "report", `{"events": [{"seq": 1, "step": 1, "metrics": {"acc": NaN}}]}`, protocol.CodeBadRequest},
		{"POST", path + "report", `{`, protocol.CodeBadRequest},
		{"POST", path + "report", `{"events": [{"seq": 0}]}`, protocol.CodeBadRequest},
		{"POST", path + "report", `{"events": [{"seq": 1}, {"seq": 3}]}`, protocol.CodeBadRequest},
		{"POST", path + "report", `{"events": "` + strings.Repeat("x", protocol.MaxBody) + `"}`, protocol.CodeTooLarge},
		{"POST", path + "final", `{"status": "COMPLETED", "outputs": {"x": "` + strings.Repeat("x", protocol.MaxOutputs) + `"}}`, protocol.CodeTooLarge},
		{"POST", "/v1/trials/x/1/report", `{}`, protocol.CodeNotFound},
		{"POST", "/v1/trials/0001/0/report", `{}`, protocol.CodeNotFound},
		{"POST", "/v1/trials/0099/1/report", `{}`, protocol.CodeNotFound},
		{"GET", "/v1/executors/e0001/next?wait=soon", ``, protocol.CodeBadRequest},
		{"GET", "/v1/executors/e9999/next", ``, protocol.CodeUnknownExecutor},
		{"POST", "/v1/executors", `{"protocol": 2}`, protocol.CodeBadRequest},
		{"POST", "/v1/executors", `{"protocol": 1, "container_id": "other", "instance": "i"}`, protocol.CodeForbidden},
	} {
		if err := raw(b.method, b.path, b.body); codeOf(err) != b.want {
			t.Errorf("%s %s %.60s: %v, want %s", b.method, b.path, b.body, err, b.want)
		}
	}
	if _, err := c[0].report(a, 1, 1, 0.5); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// Every route has a right, and nobody without it gets through.
func TestEveryRouteNeedsItsRight(t *testing.T) {
	r, _, _, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	do := func(pattern, query string, who *client) int {
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{executor}", "e0001", "{trial}", "0001", "{attempt}", "1", "{id}", testApp+"_1").Replace(path)
		req, _ := http.NewRequest(method, r.url+path+query, strings.NewReader("{}"))
		if who != nil {
			req, _ = who.signed(t.Context(), method, path+query, []byte("{}"))
		}
		resp, err := c[0].http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, route := range routes {
		switch route.right {
		case security.Open:
			if got := do(route.pattern, "", nil); got != 200 {
				t.Errorf("%s: %d", route.pattern, got)
			}
		case security.ContainersOnly:
			if got := do(route.pattern, "?user.name=root", nil); got != 401 {
				t.Errorf("%s without a signature: %d", route.pattern, got)
			}
		case security.Owner:
			for query, want := range map[string]int{"?user.name=bob": 403, "": 403, "?user.name=nobody": 401} {
				if got := do(route.pattern, query, c[0]); got != want {
					t.Errorf("%s%s: %d, want %d", route.pattern, query, got, want)
				}
			}
		default:
			t.Errorf("%s has no right", route.pattern)
		}
	}
	wrong := newClient(t, c[0].base, c[0].container, "wrong")
	if got := do("GET /v1/executors/{executor}/next", "", wrong); got != 401 {
		t.Errorf("a wrong token: %d", got)
	}
	req, _ := http.NewRequest("GET", r.url+"/healthz", nil)
	req.Host = "evil.example"
	resp, err := c[0].http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode < 400 {
		t.Errorf("Host evil.example: %d", resp.StatusCode)
	}
}

// sse reads a stream of server-sent events.
type sse struct {
	resp  *http.Response
	lines *bufio.Scanner
}

type sseEvent struct{ id, name, data string }

func watchEvents(t *testing.T, c *http.Client, url, last string) *sse {
	t.Helper()
	req, _ := http.NewRequest("GET", url, nil)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := c.Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(err, resp)
	}
	s := &sse{resp, bufio.NewScanner(resp.Body)}
	s.lines.Buffer(nil, 1<<20)
	return s
}

func (s *sse) next() (e sseEvent, ok bool) {
	for s.lines.Scan() {
		key, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch key {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		case "":
			return e, true
		}
	}
	return e, false
}

func TestWatchersMissNothingAcrossReconnects(t *testing.T) {
	r, rm, _, c := manual(t, fmt.Sprintf(randomSpec, 2, 1), 1, fast)
	url := r.url + "/v1/experiments/" + testApp + "_1/events?user.name=ann"
	s := watchEvents(t, c[0].http, url, "")
	e, _ := s.next()
	var status protocol.ExperimentStatus
	if err := json.Unmarshal([]byte(e.data), &status); err != nil || e.name != protocol.EventReset || status.ID != testApp+"_1" || e.id != fmt.Sprint(status.Event) {
		t.Fatalf("%+v %v", e, err)
	}
	var got []string
	last := e.id
	points := ""
	take := func(s *sse, until string) {
		t.Helper()
		for {
			e, ok := s.next()
			if !ok {
				got = append(got, "end")
				return
			}
			got = append(got, e.name)
			if e.name == protocol.EventReport {
				points += e.data
			}
			if e.id != "" {
				last = e.id
			}
			if e.name == until && e.id != "" {
				return
			}
		}
	}
	a := c[0].next("0").Trial
	if _, err := c[0].report(a, 1, 1, 0.25); err != nil {
		t.Fatal(err)
	}
	take(s, protocol.EventExecutor) // the assignment
	take(s, protocol.EventTrial)    // the report, the first of its attempt
	s.resp.Body.Close()
	if _, err := c[0].report(a, 2, 2, 0.5); err != nil {
		t.Fatal(err)
	}
	if _, err := c[0].report(a, 3, 3, 0.75); err != nil {
		t.Fatal(err)
	}
	s = watchEvents(t, c[0].http, url, last)
	defer s.resp.Body.Close()
	if _, err := c[0].final(a, protocol.Final{Seq: 3, Status: training.Completed}); err != nil {
		t.Fatal(err)
	}
	b := c[0].next("0").Trial
	if _, err := c[0].final(b, protocol.Final{Status: training.Completed, Metric: &training.Metric{Value: 0.1}}); err != nil {
		t.Fatal(err)
	}
	if n := c[0].next("5"); n.Action != protocol.ActionDrain {
		t.Fatal(n)
	}
	take(s, "")
	want := `{"trial":"0001","attempt":1,"points":[[1,0.25]]}{"trial":"0001","attempt":1,"points":[[2,0.5]]}{"trial":"0001","attempt":1,"points":[[3,0.75]]}`
	if points != want {
		t.Errorf("points %s\nwant   %s", points, want)
	}
	if !strings.Contains(strings.Join(got, " "), "experiment") || got[len(got)-1] != "end" {
		t.Errorf("events %v", got)
	}
	rm.complete(c[0].container, 0)
	r.wait()
}

func TestAPersonStopsTheExperiment(t *testing.T) {
	r, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 9, 1), 1, fast)
	a := c[0].next("0").Trial
	if _, err := c[0].report(a, 1, 1, 0.5); err != nil {
		t.Fatal(err)
	}
	resp, err := c[0].http.Post(r.url+"/v1/experiments/"+testApp+"_1/stop?user.name=ann", "application/json", strings.NewReader(`{"reason": "enough"}`))
	if err != nil || resp.StatusCode != 202 {
		t.Fatal(err, resp)
	}
	resp.Body.Close()
	out, err := c[0].beat(a)
	if err != nil || out.Op != protocol.OpStop || out.GraceMS != 100 {
		t.Fatalf("%+v %v", out, err)
	}
	var status protocol.ExperimentStatus
	if code := getJSON(t, r.url+"/v1/experiments/"+testApp+"_1?user.name=ann", &status); code != 200 || status.Reason != "stopped by ann: enough" || len(status.Trials) != 1 || len(status.Trials[0].Curve) != 1 {
		t.Errorf("%d %+v", code, status)
	}
	if _, err := c[0].final(a, protocol.Final{Seq: 1, Status: training.Stopped}); err != nil {
		t.Fatal(err)
	}
	if n := c[0].next("5"); n.Action != protocol.ActionDrain {
		t.Fatal(n)
	}
	rm.complete(c[0].container, 0)
	r.wait()
	if rm.finished.GetFinalStatus() != "KILLED" {
		t.Errorf("%v", rm.finished)
	}
	var result experiment.Result
	if err := json.Unmarshal(fs.get(t, testDir+"/result.json"), &result); err != nil || result.State != protocol.ExperimentKilled || *result.BestValue != 0.5 {
		t.Errorf("%+v %v", result, err)
	}
}

// SIGTERM may mean that the node goes down, or that somebody killed the application. Only the latter ends the experiment.
func TestAKilledApplicationLeavesItsResult(t *testing.T) {
	for _, killed := range []bool{false, true} {
		fs := newMemFS()
		begun := make(chan *client, 1)
		rm := newFakeRM(1, func(_ *fakeRM, c *rmpb.Container, _ *rmpb.Launch) {
			begun <- newClient(t, where(fs), c.ContainerId, c.Token)
		})
		r := launch(t, fs, rm, fmt.Sprintf(randomSpec, 9, 1), 1, fast, func(e *Env) {
			e.Ended = func(context.Context) (string, bool) { return "killed by user ann", killed }
		})
		c := <-begun
		if _, err := c.register(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.report(c.next("0").Trial, 1, 1, 0.5); err != nil {
			t.Fatal(err)
		}
		c.http.CloseIdleConnections()
		r.cancel()
		<-r.done
		if r.err != nil || rm.finished != nil {
			t.Fatal(r.err, rm.finished)
		}
		if !killed {
			if _, err := fs.Stat(t.Context(), testDir+"/result.json"); err == nil {
				t.Error("an experiment that goes on has a result")
			}
			continue
		}
		var result experiment.Result
		if err := json.Unmarshal(fs.get(t, testDir+"/result.json"), &result); err != nil {
			t.Fatal(err)
		}
		if result.State != protocol.ExperimentKilled || !strings.Contains(result.Reason, "killed by user ann") || result.NumTrials != 1 || *result.BestValue != 0.5 {
			t.Errorf("%+v", result)
		}
		fs.get(t, testDir+"/0001/trial.json")
	}
}

func TestASpecThatCannotRunEndsTheApplicationWithAllItsMistakes(t *testing.T) {
	rm := newFakeRM(1, nil)
	launch(t, newMemFS(), rm, `{"entry": "train", "optimizer": {"type": "ahsa"}, "trails": 5, "space": {"x": {"type": "DOUBLE", "range": [2, 1]}}}`, 1, fast).wait()
	d := rm.finished.GetDiagnostics()
	for _, want := range []string{`"train" is not "module:function"`, `did you mean "asha"`, `did you mean "trials"`, `space.x: the range [2, 1] is empty`} {
		if !strings.Contains(d, want) {
			t.Errorf("diagnostics %q lack %q", d, want)
		}
	}
	if rm.finished.GetFinalStatus() != "FAILED" {
		t.Errorf("%v", rm.finished)
	}
}

func TestExecutorsThatNeverBeginEndTheExperiment(t *testing.T) {
	rm := newFakeRM(3, func(rm *fakeRM, c *rmpb.Container, _ *rmpb.Launch) { rm.complete(c.ContainerId, 127) })
	launch(t, newMemFS(), rm, fmt.Sprintf(randomSpec, 9, 1), 1, fast).wait()
	if d := rm.finished.GetDiagnostics(); rm.finished.GetFinalStatus() != "FAILED" || !strings.Contains(d, "exit status 127") {
		t.Errorf("%v", rm.finished)
	}
}

func TestAnAttemptThatIsNotTheNewestExits(t *testing.T) {
	r := launch(t, newMemFS(), staleRM{newFakeRM(1, nil)}, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
	<-r.done
	if !errors.Is(r.err, errStaleAttempt) {
		t.Errorf("%v", r.err)
	}
}

// The end of a killed application is written down while its state is asked for.
func TestAnEndIsWrittenDownBesideThoseWhoWatch(t *testing.T) {
	var watchers sync.WaitGroup
	r := launch(t, newMemFS(), staleRM{newFakeRM(1, nil)}, fmt.Sprintf(randomSpec, 1, 1), 1, fast, func(e *Env) {
		url := "http://" + e.Listener.Addr().String() + "/v1/experiments/" + testApp + "_1?user.name=ann"
		e.Ended = func(ctx context.Context) (string, bool) {
			answered := make(chan struct{}, 100)
			for range 4 {
				watchers.Go(func() {
					c := &http.Client{Transport: &http.Transport{}}
					defer c.CloseIdleConnections()
					for range 25 {
						resp, err := c.Get(url)
						if err != nil {
							return // the controller has ended
						}
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
						answered <- struct{}{}
					}
				})
			}
			select {
			case <-answered:
			case <-ctx.Done():
			}
			return "killed by user ann", true
		}
	})
	r.wait()
	watchers.Wait()
}

type staleRM struct{ *fakeRM }

func (staleRM) Allocate(context.Context, *rmpb.AllocateRequest) (*rmpb.AllocateResponse, error) {
	return nil, errStaleAttempt
}

// A request that a controller could not take in before it ended gets an error: no answer at all would arrive as an empty
// 200, and an executor would take its checkpoint or its result for recorded.
func TestEndingControllerAcknowledgesNothing(t *testing.T) {
	c := &controller{proposals: make(chan *proposal)} // no loop takes them
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/v1/trials/0001/1/final", strings.NewReader(`{"status": "COMPLETED"}`)).WithContext(ctx)
	r.SetPathValue("trial", "0001")
	r.SetPathValue("attempt", "1")
	err := c.serveFinal(w, r, "container")
	if err == nil {
		t.Fatal("a controller without a loop took a final in")
	}
	c.answerError(w, err)
	if w.Code != 503 || !strings.Contains(w.Body.String(), protocol.CodeNotReady) {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}

// A search that a person stopped is gone on with by another application: its journal, its trials, its checkpoints.
func TestAStoppedExperimentIsResumed(t *testing.T) {
	first, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 2, 1), 1, fast)
	a := c[0].next("0").Trial
	if _, err := c[0].report(a, 1, 1, 0.5); err != nil {
		t.Fatal(err)
	}
	commit := writeCheckpoint(fs, a.Dirs.Checkpoints, a.Trial, a.Attempt, 1)
	if err := c[0].insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/checkpoint", a.Trial, a.Attempt), commit, nil); err != nil {
		t.Fatal(err)
	}
	resp, err := c[0].http.Post(first.url+"/v1/experiments/"+testApp+"_1/stop?user.name=ann", "application/json", nil)
	if err != nil || resp.StatusCode != 202 {
		t.Fatal(err, resp)
	}
	resp.Body.Close()
	if _, err := c[0].final(a, protocol.Final{Seq: 1, Status: training.Stopped}); err != nil {
		t.Fatal(err)
	}
	rm.complete(c[0].container, 0)
	first.wait()

	const other = "application_1_0002"
	begun := make(chan *client, 1)
	rm = newFakeRM(1, func(_ *fakeRM, c *rmpb.Container, _ *rmpb.Launch) {
		begun <- newClient(t, where(fs), c.ContainerId, c.Token)
	})
	rm.n = 100 // another application's containers have other numbers
	spec := strings.Replace(fmt.Sprintf(randomSpec, 2, 1), "{", `{"resume": "`+testApp+`_1", `, 1)
	second := launch(t, fs, rm, spec, 1, fast, func(e *Env) { e.Application = other })
	d := <-begun
	if _, err := d.register(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(t.Context(), testDir+"/"+resultName); err == nil {
		t.Error("an experiment that goes on has a result")
	}
	n := d.next("0")
	b := n.Trial
	if b == nil || b.Trial != a.Trial || b.Attempt != 2 || b.Resume == nil || b.Resume.Step != 1 || b.Params.Key() != a.Params.Key() {
		t.Fatalf("%+v %+v", n, b)
	}
	var s protocol.ExperimentSummary
	if code := getJSON(t, second.url+"/v1/experiments/"+testApp+"_1/summary?user.name=ann", &s); code != 200 || s.State != protocol.ExperimentRunning || s.Planned != 2 || s.Ended != 0 || s.ID != testApp+"_1" {
		t.Errorf("%d %+v", code, s)
	}
	var w protocol.Whereabouts
	if err := json.Unmarshal(fs.get(t, testDir+"/"+protocol.WhereaboutsName), &w); err != nil || w.Application != other {
		t.Errorf("%+v %v", w, err)
	}
	for next := b; next != nil; next = d.next("5").Trial {
		if _, err := d.final(next, protocol.Final{Status: training.Completed, Metric: &training.Metric{Value: 0.25}}); err != nil {
			t.Fatal(err)
		}
	}
	rm.complete(d.container, 0)
	second.wait()
	var result experiment.Result
	if err := json.Unmarshal(fs.get(t, testDir+"/"+resultName), &result); err != nil || result.State != protocol.ExperimentFinished || result.NumTrials != 2 || result.ID != testApp+"_1" {
		t.Errorf("%+v %v", result, err)
	}
	d.http.CloseIdleConnections()

	for id, want := range map[string]string{testApp + "_1": "has finished", "application_1_0009_1": "no journal"} {
		rm = newFakeRM(1, nil)
		launch(t, fs, rm, strings.Replace(fmt.Sprintf(randomSpec, 2, 1), "{", `{"resume": "`+id+`", `, 1), 1, fast, func(e *Env) { e.Application = "application_1_0003" }).wait()
		if rm.finished.GetFinalStatus() != "FAILED" || !strings.Contains(rm.finished.GetDiagnostics(), want) {
			t.Errorf("%s: %v", id, rm.finished)
		}
	}
}

// openedFS notes from where the journal is read.
type openedFS struct {
	*memFS
	offsets chan int64
}

func (o openedFS) Open(ctx context.Context, p string, offset int64) (io.ReadCloser, error) {
	if strings.HasSuffix(p, journalName) {
		o.offsets <- offset
	}
	return o.memFS.Open(ctx, p, offset)
}

// A takeover reads the snapshot and what follows it, not the whole journal.
func TestATakeoverReadsWhatFollowsTheSnapshot(t *testing.T) {
	times := fast
	times.Snapshot = 1
	first, rm, fs, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, times)
	a := c[0].next("0").Trial
	var offset int64
	for i := int64(1); offset == 0; i++ {
		if _, err := c[0].report(a, i, i, 0.5); err != nil {
			t.Fatal(err)
		}
		var f experiment.SnapshotFile
		fs.mu.Lock()
		if s := fs.files[testDir+"/"+snapshotName]; s != nil && json.Unmarshal(s.data, &f) == nil {
			offset = f.Offset
		}
		fs.mu.Unlock()
	}
	first.cancel()
	<-first.done
	opened := openedFS{fs, make(chan int64, 10)}
	second := launch(t, fs, rm, fmt.Sprintf(randomSpec, 1, 1), 2, times, func(e *Env) { e.FS = opened })
	if at := <-opened.offsets; at < offset {
		t.Errorf("the journal is read from offset %d, the snapshot contains %d bytes of it", at, offset)
	}
	second.cancel()
	<-second.done
}

// Without a seed two searches differ; the one that was drawn is written down, and a restart keeps it.
func TestASeedIsDrawnAndRecorded(t *testing.T) {
	seeds := map[uint64]bool{}
	for range 3 {
		_, _, fs, c := manual(t, fmt.Sprintf(randomSpec, 1, 1), 1, fast)
		seed := entriesOf(t, fs)[0].Created.Spec.Seed
		if seed == nil {
			t.Fatal("no seed is in the journal")
		}
		seeds[*seed] = true
		var about struct{ Spec training.Spec }
		if err := json.Unmarshal(fs.get(t, testDir+"/experiment.json"), &about); err != nil || about.Spec.RandomSeed() != *seed {
			t.Errorf("%v, %v", about.Spec.Seed, err)
		}
		c[0].http.CloseIdleConnections()
	}
	if len(seeds) != 3 {
		t.Errorf("three searches have the seeds %v", seeds)
	}
}

// The interpreter of a virtual environment runs the executors.
func TestTheInterpreterIsTheStudys(t *testing.T) {
	for given, want := range map[string]string{"": "python3", "/venv": "/venv/bin/python3", "/venv/bin/python3.12": "/venv/bin/python3.12", "python3.11": "python3.11"} {
		launched := make(chan string, 1)
		rm := newFakeRM(1, func(rm *fakeRM, c *rmpb.Container, l *rmpb.Launch) {
			select {
			case launched <- l.Argv[0]:
			default:
			}
			rm.complete(c.ContainerId, 127)
		})
		r := launch(t, newMemFS(), rm, strings.Replace(fmt.Sprintf(randomSpec, 1, 1), "{", `{"python": "`+given+`", `, 1), 1, fast)
		if got := <-launched; got != want {
			t.Errorf("python: %q runs %q, want %q", given, got, want)
		}
		r.wait()
		if d := rm.finished.GetDiagnostics(); given != "" && !strings.Contains(d, want) {
			t.Errorf("%q does not name %s", d, want)
		}
	}
}
