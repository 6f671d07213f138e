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
	"github.com/gohops/hops/training/rendezvous"
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
	shards := []training.File{
		{Name: "tree.json", Size: 321, CRC32: 9},
		{Name: "0001.safetensors", Size: 33554432, Blob: strings.Repeat("a", 64) + "-0007-2-6"},
		{Name: "0002.safetensors", Size: 65536, Blob: strings.Repeat("b", 64) + "-0003-1-40"},
	}
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
				Dirs: protocol.Directories{Trial: run + "/0007", TensorBoard: run + "/0007", Log: run + "/0007/output.log", Checkpoints: run + "/0007/checkpoints/1", Blobs: run + "/.blobs"}, Env: map[string]string{"ML_ID": "application_1700000000000_0007_1"},
			}},
		},
		{
			"next-resume", "A promoted trial goes on from its checkpoint: its first reported step is 4.", "GET", "/v1/executors/e0003/next?wait=30", nil,
			200, &protocol.Next{Action: protocol.ActionTrial, Trial: &protocol.Assignment{
				Trial: 7, Attempt: 2, Params: params, Budget: training.Budget{From: 3, To: 9, Unit: training.Epoch}, Seed: 1234567890123456789,
				Resume:      &training.Checkpoint{Step: 3, Attempt: 1, URI: run + "/0007/checkpoints/1/step-3", Files: files, Metric: metric(0.75), Time: 1700000090000},
				Checkpoints: []training.Checkpoint{{Step: 2, Attempt: 1, URI: run + "/0007/checkpoints/1/step-2", Metric: metric(0.8), Time: 1700000080000}, {Step: 3, Attempt: 1, URI: run + "/0007/checkpoints/1/step-3", Metric: metric(0.75), Time: 1700000090000}},
				Dirs:        protocol.Directories{Trial: run + "/0007", TensorBoard: run + "/0007", Log: run + "/0007/output.2.log", Checkpoints: run + "/0007/checkpoints/2", Blobs: run + "/.blobs"},
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
			"checkpoint-blobs", "Of two shards one was written by this save, the other by an earlier one.", "POST", trialPath + "/checkpoint",
			&protocol.Commit{Step: 6, URI: run + "/0007/checkpoints/2/step-6", Files: shards}, 200, &protocol.Committed{Keep: []int64{6}, Delete: []int64{5}, Op: protocol.OpContinue},
		},
		{
			"checkpoint-gone", "A blob that the save found has been dropped meanwhile: it is written anew, and the checkpoint committed again.", "POST", trialPath + "/checkpoint",
			&protocol.Commit{Step: 6, URI: run + "/0007/checkpoints/2/step-6", Files: shards}, 422,
			&protocol.ErrorBody{Error: protocol.ErrorDetail{Code: protocol.CodeIncomplete, Message: "checkpoint " + run + "/0007/checkpoints/2/step-6: file \"0002.safetensors\": blob " + shards[2].Blob + " is of no committed checkpoint any more: save the checkpoint anew"}},
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
				Trials:    []protocol.TrialStatus{{Trial: 7, State: training.Running, Params: params, Label: "bracket 1", Attempt: 2, Epochs: 5, Metric: new(0.83), Curve: []protocol.CurvePoint{{Step: 3, Value: 0.75}, {Step: 4, Value: 0.8125}, {Step: 5, Value: 0.83}}, Budget: training.Budget{From: 3, To: 9, Unit: training.Epoch}, Promoted: 1, Resumed: 1, Executor: "e0003", Host: "gpu-12", Steps: []int64{3}, Dir: run + "/0007", Log: run + "/0007/output.2.log", Started: 1700000050000}},
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
		{
			"register-slots", "The executor runs two trials at once; the controller was restarted while both slots had one.", "POST", "/v1/executors",
			&protocol.RegisterExecutor{Protocol: 1, ContainerID: "container_1700000000000_0007_01_000003", Instance: "5f0c6a4e9d3b4a0c", Host: "gpu-12", PID: 4711, Holding: &protocol.Held{Trial: 7, Attempt: 2}, Held: []protocol.Held{{Trial: 9, Attempt: 1, Slot: 1}}},
			200, &protocol.RegisteredExecutor{Executor: "e0003", Experiment: "application_1700000000000_0007_1", LeaseMS: 10000, ReportMS: 1000, ControllerAttempt: 2, Directory: run, Entry: "digits:train", CodeDir: "code", Mode: "inproc", Slots: 2, Framework: training.Torch, Metric: "accuracy", Direction: training.Max, StopGraceMS: 10000},
		},
		{"next-slot", "The second slot of an executor asks for itself.", "GET", "/v1/executors/e0003/next?wait=30&slot=1", nil, 200, &protocol.Next{Action: protocol.ActionWait}},
		{
			"next-gang", "One member of a gang of two: rank 1, alone with its device, after rank 0 failed in attempt 1.", "GET", "/v1/executors/e0003/next?wait=30", nil,
			200, &protocol.Next{Action: protocol.ActionTrial, Trial: &protocol.Assignment{
				Trial: 7, Attempt: 2, Params: training.Params{"lr": training.Float(0.001)}, Budget: training.Budget{From: 3, To: 9, Unit: training.Epoch}, Seed: 1234567890123456789,
				Resume: &training.Checkpoint{Step: 3, Attempt: 1, URI: run + "/0007/checkpoints/1/step-3", Files: files, Metric: metric(0.75), Time: 1700000090000},
				Dirs:   protocol.Directories{Trial: run + "/0007", TensorBoard: run + "/0007", Log: run + "/0007/output.2.rank-1.log", Checkpoints: run + "/0007/checkpoints/2"},
				Gang:   &protocol.Gang{Framework: training.TensorFlow, Rank: 1, World: 2, Role: training.Worker, Index: 0, LocalRank: 0, LocalWorld: 1, Ports: 1},
			}},
		},
		{
			"join-wait", "The others have not joined within the wait: join again.", "POST", trialPath + "/join?wait=30",
			&protocol.Join{Rank: 1, Host: "10.0.0.12", Interface: "eth0", Ports: []int{40001}}, 200, &protocol.Joined{},
		},
		{
			"join", "The gang is whole.", "POST", trialPath + "/join?wait=30",
			&protocol.Join{Rank: 1, Host: "10.0.0.12", Interface: "eth0", Ports: []int{40001}}, 200, &protocol.Joined{
				Ready: true,
				Members: []rendezvous.Member{
					{Rank: 0, Role: training.Chief, Index: 0, Host: "10.0.0.9", Ports: []int{40000}, Interface: "eth0", LocalRank: 0, LocalWorld: 1, GPUs: []string{"GPU-1"}},
					{Rank: 1, Role: training.Worker, Index: 0, Host: "10.0.0.12", Ports: []int{40001}, Interface: "eth0", LocalRank: 0, LocalWorld: 1, GPUs: []string{"GPU-2"}},
				},
				Env: map[string]string{"HOPS_RANK": "1", "HOPS_WORLD_SIZE": "2", "TF_CONFIG": `{"cluster":{"chief":["10.0.0.9:40000"],"worker":["10.0.0.12:40001"]},"task":{"index":0,"type":"worker"}}`},
			},
		},
		{
			"join-stop", "The trial is told to end before all members have joined: send the final.", "POST", trialPath + "/join?wait=30",
			&protocol.Join{Rank: 1, Host: "10.0.0.12", Ports: []int{40001}}, 200, &protocol.Joined{Op: protocol.OpStop, Reason: "the experiment was stopped: good enough"},
		},
		{
			"join-stale", "A member is lost: the attempt has failed, the next one comes with next.", "POST", trialPath + "/join?wait=30",
			&protocol.Join{Rank: 1, Host: "10.0.0.12", Ports: []int{40001}}, 409,
			&protocol.ErrorBody{Error: protocol.ErrorDetail{Code: protocol.CodeStaleAttempt, Message: "trial 0007 is at attempt 3, not 2: rank 0 was lost (no report for 10s)"}},
		},
		{
			"report-rank", "Events of another rank than 0 are acknowledged, and not the trial's.", "POST", trialPath + "/report",
			&protocol.Report{Rank: 1, Events: []protocol.MetricEvent{point(1, 4, map[string]training.Metric{"accuracy": training.M(0.8)})}}, 200, &protocol.Reported{Ack: 1, Op: protocol.OpContinue},
		},
		{
			"final-rank", "A worker has ended, the others go on; nothing else is to be done yet.", "POST", trialPath + "/final",
			&protocol.Final{Rank: 1, Next: true, Seq: 1, Status: training.Completed, Metric: metric(0.8)}, 200, &protocol.Finished{State: training.Running},
		},
		{
			"final-rank-died", "The process of a member has died: the attempt fails, and the gang is started again from the last checkpoint.", "POST", trialPath + "/final",
			&protocol.Final{Rank: 1, Seq: 0, Status: training.Failed, Error: &training.TrialError{Type: "ProcessDied", Message: "the trial's process ended with signal 9 (SIGKILL), as when memory runs out", Remedy: "look at the end of its log"}},
			200, &protocol.Finished{State: training.Pending, Reason: "ProcessDied: the trial's process ended with signal 9 (SIGKILL), as when memory runs out (log: " + run + "/0007/output.2.rank-1.log); attempt 1 of 3 that may fail"},
		},
		{
			"final-next", "The answer carries the next trial of the slot.", "POST", trialPath + "/final",
			&protocol.Final{Next: true, Slot: 1, Seq: 6, Status: training.Completed, Metric: metric(0.85)}, 200, &protocol.Finished{State: training.Completed, Next: &protocol.Next{Action: protocol.ActionTrial, Trial: &protocol.Assignment{
				Trial: 8, Attempt: 1, Params: training.Params{"lr": training.Float(0.5)}, Budget: training.Budget{From: 0, To: 3, Unit: training.Epoch}, Seed: 5,
				Dirs: protocol.Directories{Trial: run + "/0008", TensorBoard: run + "/0008", Log: run + "/0008/output.log", Checkpoints: run + "/0008/checkpoints/1"},
			}}},
		},
		{
			"ask", "A client steers: two trials could begin, one has ended, one has reported.", "POST", "/v1/experiments/application_1700000000000_0007_1/ask?wait=30", &protocol.Ask{Seen: 3},
			200, &protocol.Asked{
				State: protocol.ExperimentRunning, N: 2, Next: 8, Seen: 4,
				News:   []json.RawMessage{raw(`{"event":{"kind":"finished","trial":6,"params":{"lr":0.5},"epochs":1,"value":0.75,"curve":[[1,0.75]],"started":1700000050000,"ended":1700000090000}}`)},
				Checks: []protocol.Check{{Trial: 7, Attempt: 2, Params: training.Params{"lr": training.Float(0.001)}, Curve: []protocol.CurvePoint{{Step: 3, Value: 0.75}, {Step: 4, Value: 0.8125}}}},
			},
		},
		{
			"tell", "The client suggests a new trial, and that a paused one goes on.", "POST", "/v1/experiments/application_1700000000000_0007_1/tell",
			&protocol.Tell{Suggestions: []protocol.TrialSuggestion{{Trial: 8, Params: training.Params{"lr": training.Float(0.25)}, Budget: 3, Last: new(false), Label: "model"}, {Trial: 2, Budget: 9}}}, 200, &protocol.Told{Next: 9},
		},
		{"should-stop", "The client's rule ends a trial.", "POST", "/v1/experiments/application_1700000000000_0007_1/should_stop", &protocol.ShouldStop{Trial: 7, Attempt: 2, Reason: "worse than the others"}, 200, &struct{}{}},
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
