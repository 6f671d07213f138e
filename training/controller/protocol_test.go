package controller

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

var update = flag.Bool("update", false, "rewrite testdata/protocol from the literals of this test")

// vector is one exchange. Its file is read by the Python tests too.
type vector struct {
	name, about  string
	method, path string
	request      any
	status       int
	response     any
}

func vectors() []vector {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	metric := func(v float64) *training.Metric { return &training.Metric{Value: v} }
	files := []training.File{{Name: "model.json", Size: 5321, CRC32: 3735928559}, {Name: "optimizer.json", Size: 17, CRC32: 1}}
	const run = "/Projects/lab/Experiments/application_1700000000000_0007_1"
	params := training.Params{"lr": training.Float(0.001), "hidden": training.Int(32), "activation": training.String("relu"), "bias": training.Bool(true), "momentum": training.Float(1)}
	trialPath := "/v1/trials/0007/2"
	point := func(seq, step int64, m map[string]training.Metric) protocol.MetricEvent {
		return protocol.MetricEvent{Seq: seq, Step: step, Time: 1700000100000 + training.Millis(seq), Metrics: m}
	}
	stale := protocol.ErrorBody{Error: protocol.ErrorDetail{Code: protocol.CodeStaleAttempt, Message: "trial 0007 is at attempt 3, not 2: its executor was lost (no report for 10s)"}}
	return []vector{
		{
			"register", "An executor starts.", "POST", "/v1/executors",
			&protocol.RegisterExecutor{Protocol: 1, ContainerID: "container_1700000000000_0007_01_000003", Instance: "5f0c6a4e9d3b4a0c", Host: "gpu-12", PID: 4711, GPUs: []string{"GPU-7f1e6a0e-0000-0000-0000-000000000001"}, Python: "3.11.7", SDK: "0.1.0"},
			201, &protocol.RegisteredExecutor{Executor: "e0003", Experiment: "application_1700000000000_0007_1", LeaseMS: 10000, ReportMS: 1000, ControllerAttempt: 1, Directory: run, Entry: "digits:train", CodeDir: "code", Mode: "fork", Preload: []string{"math"}, Arguments: map[string]json.RawMessage{"data": raw(`"/data/digits.csv"`), "folds": raw(`[1,2]`)}, Metric: "accuracy", Direction: training.Max, StopGraceMS: 10000},
		},
		{
			"reattach", "The controller was restarted; the executor found it again and still trains.", "POST", "/v1/executors",
			&protocol.RegisterExecutor{Protocol: 1, ContainerID: "container_1700000000000_0007_01_000003", Instance: "5f0c6a4e9d3b4a0c", Host: "gpu-12", PID: 4711, Holding: &protocol.Held{Trial: 7, Attempt: 2}},
			200, &protocol.RegisteredExecutor{Executor: "e0003", Experiment: "application_1700000000000_0007_1", LeaseMS: 10000, ReportMS: 1000, ControllerAttempt: 2, Directory: run, Entry: "digits:train", CodeDir: "code", Mode: "fork", Metric: "accuracy", Direction: training.Max, StopGraceMS: 10000},
		},
		{
			"next-trial", "The first attempt at a new configuration; ASHA's first rung.", "GET", "/v1/executors/e0003/next?wait=30", nil,
			200, &protocol.Next{Action: protocol.ActionTrial, Trial: &protocol.Assignment{
				Trial: 7, Attempt: 1, Params: params, Budget: training.Budget{From: 0, To: 3, Unit: training.Epoch}, Seed: 1234567890123456789,
				Dirs: protocol.Directories{Trial: run + "/0007", TensorBoard: run + "/0007", Log: run + "/0007/output.log", Checkpoints: run + "/0007/checkpoints/1"}, Env: map[string]string{"ML_ID": "application_1700000000000_0007_1"},
			}},
		},
		{
			"next-resume", "A promoted trial goes on from its checkpoint: its first reported step is 4.", "GET", "/v1/executors/e0003/next?wait=30", nil,
			200, &protocol.Next{Action: protocol.ActionTrial, Trial: &protocol.Assignment{
				Trial: 7, Attempt: 2, Params: params, Budget: training.Budget{From: 3, To: 9, Unit: training.Epoch}, Seed: 1234567890123456789,
				Resume: &training.Checkpoint{Step: 3, Attempt: 1, URI: run + "/0007/checkpoints/1/step-3", Files: files, Metric: metric(0.75), Time: 1700000090000},
				Dirs:   protocol.Directories{Trial: run + "/0007", TensorBoard: run + "/0007", Log: run + "/0007/output.2.log", Checkpoints: run + "/0007/checkpoints/2"},
			}},
		},
		{"next-wait", "Nothing to do within the wait.", "GET", "/v1/executors/e0003/next?wait=30", nil, 200, &protocol.Next{Action: protocol.ActionWait}},
		{"next-drain", "No more work: exit 0.", "GET", "/v1/executors/e0003/next?wait=30", nil, 200, &protocol.Next{Action: protocol.ActionDrain, Reason: "the search is finished"}},
		{"next-stop", "The executor was given up: exit now.", "GET", "/v1/executors/e0003/next?wait=30", nil, 200, &protocol.Next{Action: protocol.ActionStop, Reason: "the executor's lease expired"}},
		{
			"report", "Two events are recorded.", "POST", trialPath + "/report",
			&protocol.Report{Events: []protocol.MetricEvent{point(1, 4, map[string]training.Metric{"accuracy": training.M(0.8125), "loss": training.M(0.5)}), point(2, 5, map[string]training.Metric{"accuracy": training.M(0.83), "loss": training.M(math.Inf(1))})}, LogBytes: 2048},
			200, &protocol.Reported{Ack: 2, Op: protocol.OpContinue},
		},
		{"report-heartbeat", "Nothing new; the lease is renewed.", "POST", trialPath + "/report", &protocol.Report{Events: []protocol.MetricEvent{}}, 200, &protocol.Reported{Ack: 2, Op: protocol.OpContinue}},
		{
			"report-gap", "Event 3 is missing: nothing is recorded, the executor sends again from 3.", "POST", trialPath + "/report",
			&protocol.Report{Events: []protocol.MetricEvent{point(4, 7, map[string]training.Metric{"accuracy": training.M(0.84)})}}, 200, &protocol.Reported{Ack: 2, Op: protocol.OpContinue},
		},
		{
			"report-stop", "Early stopping.", "POST", trialPath + "/report",
			&protocol.Report{Events: []protocol.MetricEvent{point(3, 6, map[string]training.Metric{"accuracy": training.M(0.5)})}},
			200, &protocol.Reported{Ack: 3, Op: protocol.OpStop, Reason: "median: best 0.83 after step 6 is worse than the median 0.86 of 11 trials", GraceMS: 10000},
		},
		{
			"report-nan", "The searched metric is not a number: the trial has failed, its function is to end.", "POST", trialPath + "/report",
			&protocol.Report{Events: []protocol.MetricEvent{point(3, 6, map[string]training.Metric{"accuracy": training.M(math.NaN())})}},
			200, &protocol.Reported{Ack: 3, Op: protocol.OpStop, Reason: "MetricNotFinite: accuracy is NaN at step 6; lower the learning rate or return early, the same parameters are not tried again (log: " + run + "/0007/output.2.log)", GraceMS: 10000},
		},
		{"report-stale", "The trial has moved on: kill its process, write nothing more, ask next.", "POST", trialPath + "/report", &protocol.Report{Events: []protocol.MetricEvent{}}, 409, &stale},
		{
			"checkpoint", "step-6/ is renamed; now it is committed.", "POST", trialPath + "/checkpoint",
			&protocol.Commit{Step: 6, URI: run + "/0007/checkpoints/2/step-6", Files: files, Metric: metric(0.84)}, 200, &protocol.Committed{Keep: []int64{3, 6}, Delete: []int64{5}, Op: protocol.OpContinue},
		},
		{
			"checkpoint-incomplete", "A file is shorter than stated.", "POST", trialPath + "/checkpoint",
			&protocol.Commit{Step: 6, URI: run + "/0007/checkpoints/2/step-6", Files: files}, 422,
			&protocol.ErrorBody{Error: protocol.ErrorDetail{Code: protocol.CodeIncomplete, Message: "checkpoint " + run + "/0007/checkpoints/2/step-6: model.json has 4096 bytes, the manifest says 5321"}},
		},
		{
			"final", "The function returned a dict.", "POST", trialPath + "/final",
			&protocol.Final{Seq: 6, Status: training.Completed, Metric: metric(0.85), Outputs: map[string]json.RawMessage{"accuracy": raw("0.85"), "model": raw(`"model.json"`)}, LogBytes: 4096}, 200, &protocol.Finished{State: training.Completed},
		},
		{
			"final-infinite", "Infinities, NaN and halves of surrogate pairs among what the function returned: only the searched metric is a mistake.", "POST", trialPath + "/final",
			&protocol.Final{Seq: 6, Status: training.Completed, Metric: metric(math.Inf(-1)), Outputs: map[string]json.RawMessage{"accuracy": raw(`"-Infinity"`), "losses": raw(`[0.5,"Infinity","NaN"]`), "note": raw(`"\ufffd"`), "none": raw("null")}},
			200, &protocol.Finished{State: training.Failed, Reason: `MetricNotFinite: the function returned -Infinity as accuracy; the same parameters are not tried again (log: ` + run + `/0007/output.2.log)`},
		},
		{"final-paused", "The budget of a rung is used.", "POST", trialPath + "/final", &protocol.Final{Seq: 3, Status: training.Completed, Metric: metric(0.75)}, 200, &protocol.Finished{State: training.Paused, Reason: "rung of 3 epochs"}},
		{
			"final-failed", "The function raised; the trial is tried again elsewhere.", "POST", trialPath + "/final",
			&protocol.Final{Seq: 1, Status: training.Failed, Error: &training.TrialError{Type: "ZeroDivisionError", Message: "division by zero", Traceback: "Traceback (most recent call last):\n  File \"digits.py\", line 12, in train\nZeroDivisionError: division by zero\n"}},
			200, &protocol.Finished{State: training.Pending, Reason: "ZeroDivisionError: division by zero (log: " + run + "/0007/output.2.log); attempt 1 of 3 that may fail"},
		},
		{
			"final-unreported", "Events 5 and 6 were never acknowledged: send them first.", "POST", trialPath + "/final", &protocol.Final{Seq: 6, Status: training.Completed},
			409, &protocol.ErrorBody{Error: protocol.ErrorDetail{Code: protocol.CodeUnreported, Message: "6 events were made, 4 are recorded: report the rest first", Ack: 4}},
		},
		{
			"unknown-executor", "The controller does not know the executor: register again.", "GET", "/v1/executors/e0099/next?wait=30", nil,
			404, &protocol.ErrorBody{Error: protocol.ErrorDetail{Code: protocol.CodeUnknownExecutor, Message: "no executor e0099 in application_1700000000000_0007_1: register again"}},
		},
		{
			"unauthorized", "The key is not that of a container of this experiment.", "POST", "/v1/executors",
			&protocol.RegisterExecutor{Protocol: 1, ContainerID: "container_1700000000000_0007_01_000003", Instance: "0"},
			401, &protocol.ErrorBody{Error: protocol.ErrorDetail{Code: protocol.CodeUnauthorized, Message: "the request is not signed with the key of a container of this experiment, for the address 10.0.0.7:40123"}},
		},
		{
			"status", "What people and programs see of an experiment.", "GET", "/v1/experiments/application_1700000000000_0007_1", nil,
			200, &protocol.ExperimentStatus{
				ID: "application_1700000000000_0007_1", Name: "digits", Project: "lab", User: "ann", Application: "application_1700000000000_0007", State: protocol.ExperimentRunning, Directory: run, Optimizer: "asha", Metric: "accuracy", Direction: training.Max, Seed: 7, Started: 1700000000000, ControllerAttempt: 1, Event: 512, Planned: 24,
				Trials:    []protocol.TrialStatus{{Trial: 7, State: training.Running, Params: params, Attempt: 2, Epochs: 5, Metric: new(0.83), Curve: []protocol.CurvePoint{{Step: 3, Value: 0.75}, {Step: 4, Value: 0.8125}, {Step: 5, Value: 0.83}}, Budget: training.Budget{From: 3, To: 9, Unit: training.Epoch}, Promoted: 1, Resumed: 1, Executor: "e0003", Host: "gpu-12", Steps: []int64{3}, Dir: run + "/0007", Log: run + "/0007/output.2.log", Started: 1700000050000}},
				Best:      &protocol.BestTrial{Trial: 7, Metric: 0.83, Params: params, Epochs: 5, Dir: run + "/0007", Checkpoint: run + "/0007/checkpoints/1/step-3"},
				Executors: []protocol.ExecutorStatus{{Executor: "e0003", Container: "container_1700000000000_0007_01_000003", Node: "gpu-12:8042", Host: "gpu-12", GPUs: []string{"GPU-7f1e6a0e-0000-0000-0000-000000000001"}, State: "BUSY", Trial: "0007/2", Trials: 4}},
				Counters:  protocol.Counters{Epochs: 40, EpochsWasted: 1, EpochsResumed: 3, Attempts: 8, Lost: 1, Promotions: 1, Checkpoints: 9, BusyMS: 41000, IdleMS: 900},
			},
		},
		{
			"summary", "The experiment without its tables, for those who ask again and again.", "GET", "/v1/experiments/application_1700000000000_0007_1/summary", nil,
			200, &protocol.ExperimentSummary{
				ID: "application_1700000000000_0007_1", Name: "digits", State: protocol.ExperimentRunning, Metric: "accuracy", Planned: 24, Ended: 9, Started: 1700000000000,
				Best:     &protocol.BestTrial{Trial: 7, Metric: 0.83, Params: params, Epochs: 5, Dir: run + "/0007", Checkpoint: run + "/0007/checkpoints/1/step-3"},
				Counters: protocol.Counters{Epochs: 40, Attempts: 8},
			},
		},
		{"stop", "A person ends the experiment.", "POST", "/v1/experiments/application_1700000000000_0007_1/stop", &protocol.StopExperiment{Reason: "good enough"}, 202, &protocol.StoppedExperiment{State: protocol.ExperimentKilled}},
	}
}

type vectorFile struct {
	About   string `json:"about"`
	Request struct {
		Method string          `json:"method"`
		Path   string          `json:"path"`
		Body   json.RawMessage `json:"body,omitempty"`
	} `json:"request"`
	Response struct {
		Status int             `json:"status"`
		Body   json.RawMessage `json:"body"`
	} `json:"response"`
}

// TestGoldenVectors holds the protocol still: what the Go structs write is what the files say, and what the files say is
// what the Go structs read.
func TestGoldenVectors(t *testing.T) {
	dir := filepath.Join("testdata", "protocol")
	seen := map[string]bool{}
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			file := filepath.Join(dir, v.name+".json")
			seen[v.name+".json"] = true
			var f vectorFile
			f.About, f.Request.Method, f.Request.Path, f.Response.Status = v.about, v.method, v.path, v.status
			if v.request != nil {
				f.Request.Body = encode(t, v.request)
			}
			f.Response.Body = encode(t, v.response)
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			if err := e.Encode(f); err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Fatalf("encoding differs from %s (-file +code):\n%s", file, diff)
			}
			var got vectorFile
			if err := json.Unmarshal(want, &got); err != nil {
				t.Fatal(err)
			}
			decodesTo(t, got.Request.Body, v.request)
			decodesTo(t, got.Response.Body, v.response)
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !seen[e.Name()] && strings.HasSuffix(e.Name(), ".json") {
			t.Errorf("%s has no vector in this test", e.Name())
		}
	}
}

func encode(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decodesTo(t *testing.T, data json.RawMessage, want any) {
	t.Helper()
	if want == nil {
		return
	}
	got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(got); err != nil {
		t.Fatal(err)
	}
	raws := cmp.Comparer(func(a, b json.RawMessage) bool {
		var x, y bytes.Buffer
		return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && x.String() == y.String()
	})
	values := cmp.Comparer(func(a, b training.Value) bool { return a == b })
	if diff := cmp.Diff(want, got, raws, values, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("decoding differs (-want +got):\n%s", diff)
	}
}
