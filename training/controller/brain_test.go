package controller

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	python "github.com/gohops/hops/client/python"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// The conversations that test the brain: what it answers there is what is read here, and the events in it are those told here.
func TestTheConversationsWithABrainAreUnderstood(t *testing.T) {
	files, err := filepath.Glob("testdata/brain/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no conversations", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f struct {
			Exchanges []struct {
				Request map[string]json.RawMessage
				Answer  json.RawMessage
			}
		}
		if err := json.Unmarshal(data, &f); err != nil {
			t.Fatal(file, err)
		}
		strictly := func(raw json.RawMessage, into any) {
			t.Helper()
			d := json.NewDecoder(bytes.NewReader(raw))
			d.DisallowUnknownFields()
			if err := d.Decode(into); err != nil {
				t.Errorf("%s: %s: %v", file, raw, err)
			}
		}
		for _, e := range f.Exchanges {
			var a brainAnswer
			strictly(e.Answer, &a)
			if !(a.OK || a.Idle || a.Done || a.Ready != nil || a.Error != nil || len(a.Suggest) > 0 || e.Request["check"] != nil) {
				t.Errorf("%s: %s is read as nothing", file, e.Answer)
			}
			if raw := e.Request["event"]; raw != nil && !bytes.Contains(raw, []byte(`Infinity"]`)) { // a curve here has numbers only
				var ev protocol.TrialEvent
				strictly(raw, &ev)
				again, err := json.Marshal(ev)
				if err != nil || !sameJSON(t, raw, again) {
					t.Errorf("%s: told as %s: %v, not %s", file, again, err, raw)
				}
			}
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

// steered runs an experiment whose optimizer or rule is in testdata/brain, with executors whose function is value.
func steered(t *testing.T, fs *memFS, optimizer string, value func(p training.Params, epoch int64) float64, interrupt func(a *protocol.Assignment) bool) *experiment.Result {
	t.Helper()
	code, err := os.ReadFile("testdata/brain/brains.py")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	f, err := z.Create("brains.py")
	if err == nil {
		_, err = f.Write(code)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	fs.put("/code.zip", b.Bytes())
	spec := fmt.Sprintf(`{"project": "lab", "entry": "m:f", "metric": "acc", "seed": 7, "max_epochs": 3, "executors": 2, "stop_grace": "1s",
		"code": {"uri": "/code.zip", "sha256": "%s"}, "space": {"x": {"type": "INTEGER", "range": [1, 64]}}, %s}`, hex.EncodeToString(sum[:]), optimizer)
	all, stop := context.WithCancel(context.Background())
	defer stop()
	restart := make(chan struct{}, 1)
	rm := newFakeRM(2, func(rm *fakeRM, c *rmpb.Container, _ *rmpb.Launch) {
		w := &worker{client: newClient(t, where(fs), c.ContainerId, c.Token), fs: fs, value: value}
		defer w.http.CloseIdleConnections()
		w.epoch = func(a *protocol.Assignment, _ int64) bool {
			if interrupt != nil && interrupt(a) {
				select {
				case restart <- struct{}{}:
				default:
				}
			}
			return true
		}
		_ = w.run(all)
		rm.complete(c.ContainerId, 0)
	})
	own := func(e *Env) { e.SDK, e.WorkDir = python.Zip, t.TempDir() }
	times := fast
	times.brain.pause = 10 * time.Millisecond
	r := launch(t, fs, rm, spec, 1, times, own)
	if interrupt != nil {
		<-restart
		r.cancel()
		<-r.done
		r = launch(t, fs, rm, spec, 2, times, own)
	}
	r.wait()
	stop()
	rm.started.Wait()
	var result experiment.Result
	if err := json.Unmarshal(fs.get(t, testDir+"/"+resultName), &result); err != nil {
		t.Fatal(err)
	}
	return &result
}

// awaitEntry waits until there is such an entry in the journal.
func awaitEntry(t *testing.T, fs *memFS, is func(*experiment.Entry) bool) {
	for !slices.ContainsFunc(entriesOf(t, fs), is) && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

func number(p training.Params) float64 {
	v, _ := p["x"].Float()
	return v
}

// What a user wrote in Python steers the search, also across a restart of the controller, whose brain is told everything again.
func TestAUsersOptimizerSteersTheSearch(t *testing.T) {
	result := steered(t, newMemFS(), `"trials": 5, "optimizer": {"type": "external", "entry": "brains:Learns"}`,
		func(p training.Params, epoch int64) float64 { return number(p) + float64(epoch)/10 },
		func(a *protocol.Assignment) bool { return a.Trial == 3 })
	if result.State != protocol.ExperimentFinished || result.NumTrials != 5 || result.BestValue == nil {
		t.Fatalf("%+v", result)
	}
	largest := 0.0
	for _, row := range result.Trials {
		if row.State != training.Completed || row.Epochs != 3 {
			t.Errorf("%+v", row)
		}
		largest = max(largest, number(row.Params))
	}
	if largest < 2 { // it doubles the parameter of what it was told of last
		t.Errorf("it learned nothing: largest x %g", largest)
	}
}

func TestAUsersRuleStopsTrials(t *testing.T) {
	const epochs = 20
	fs := newMemFS()
	result := steered(t, fs, fmt.Sprintf(`"optimizer": {"type": "grid"}, "space": {"x": {"type": "INTEGER", "range": [1, 2]}}, "max_epochs": %d, "early_stop": {"policy": "external", "entry": "brains:Below", "es_min": 0}`, epochs),
		func(p training.Params, epoch int64) float64 {
			switch {
			case number(p) == 1 && epoch == 4: // the rule is asked when the other trial has ended
				awaitEntry(t, fs, func(e *experiment.Entry) bool { return e.Ended != nil })
			case number(p) == 1 && epoch == epochs-1: // however long it takes to answer
				awaitEntry(t, fs, func(e *experiment.Entry) bool { return e.Decided != nil })
			}
			return number(p) / 4
		}, nil)
	one, two := result.Trials[0], result.Trials[1]
	if result.State != protocol.ExperimentFinished || one.State != training.Stopped || one.Epochs >= epochs || !strings.Contains(one.Reason, "stopped by Below") || two.State != training.Completed {
		t.Errorf("%s, %+v, %+v", result.State, one, two)
	}
}

// An optimizer that raises cannot hurt the controller: the experiment ends and says why.
func TestAnOptimizerThatRaisesFailsTheExperiment(t *testing.T) {
	for entry, want := range map[string]string{"Raises": "brains:Raises: ValueError: no idea", "Nobody": "brains:Nobody: FunctionMissing: Nobody is not defined"} {
		fs := newMemFS()
		result := steered(t, fs, `"trials": 3, "optimizer": {"type": "external", "entry": "brains:`+entry+`"}`, func(training.Params, int64) float64 { return 1 }, nil)
		if result.State != protocol.ExperimentFailed || !strings.HasPrefix(result.Reason, want) || !strings.Contains(result.Reason, brainLogName) {
			t.Errorf("%s: %s", result.State, result.Reason)
		}
		if log := string(fs.get(t, testDir+"/"+logName)); entry == "Raises" && !strings.Contains(log, "raise ValueError") {
			t.Errorf("no traceback in %s", log)
		}
	}
}

// A process that says something and reads nothing is given up in its time.
func TestABrainThatDoesNotRead(t *testing.T) {
	read, in := io.Pipe()
	k := &conversation{in: in, out: make(chan []byte, 1)}
	k.out <- []byte("{}")
	if _, err := k.ask(t.Context(), 10*time.Millisecond, "init", nil); err == nil || !strings.Contains(err.Error(), `did not read "init"`) {
		t.Error(err)
	}
	read.Close()
}

// An answer that is there counts, however late a busy machine has this process look.
func TestAnAnswerThatIsThereIsTaken(t *testing.T) {
	read, in := io.Pipe()
	defer read.Close()
	for range 100 {
		k := &conversation{in: in, out: make(chan []byte, 1)}
		k.out <- []byte("{}")
		if _, err := k.ask(t.Context(), 0, "init", nil); err == nil || !strings.Contains(err.Error(), `did not read "init"`) {
			t.Fatal(err)
		}
	}
}

// A client that suggests over HTTP: it is asked when an executor is free, told what became of it, and may stop what runs.
func TestAClientSteersTheSearch(t *testing.T) {
	spec := `{"project": "lab", "entry": "m:f", "metric": "acc", "optimizer": {"type": "external"}, "early_stop": {"policy": "external", "es_min": 0}, "trials": 2, "executors": 1, "stop_grace": "1s", "space": {"x": ["INTEGER", [1, 9]]}}`
	r, rm, fs, c := manual(t, spec, 1, fast)
	post := func(call string, in, out any) int {
		t.Helper()
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c[0].http.Post(r.url+"/v1/experiments/"+testApp+"_1/"+call, "application/json", bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	ask := func(seen int) (a protocol.Asked) {
		t.Helper()
		if code := post("ask?wait=60&user.name=ann", protocol.Ask{Seen: seen}, &a); code != 200 {
			t.Fatal(code)
		}
		return a
	}
	a := ask(0)
	if a.N != 1 || a.Next != 1 || len(a.News) != 0 {
		t.Fatalf("%+v", a)
	}
	var refused protocol.ErrorBody
	if code := post("tell?user.name=ann", protocol.Tell{Suggestions: []protocol.TrialSuggestion{{Trial: 1, Params: training.Params{"x": training.Int(70)}}}}, &refused); code != 400 || !strings.Contains(refused.Error.Message, "trial 0001") {
		t.Fatalf("%d %+v", code, refused)
	}
	if code := post("tell?user.name=bob", protocol.Tell{}, &refused); code != 403 {
		t.Errorf("another user: %d", code)
	}
	var told protocol.Told
	if code := post("tell?user.name=ann", protocol.Tell{Suggestions: []protocol.TrialSuggestion{{Trial: 1, Params: training.Params{"x": training.Int(7)}}, {Trial: 2, Params: training.Params{"x": training.Int(8)}}}}, &told); code != 200 || told.Next != 3 {
		t.Fatalf("%d %+v", code, told)
	}
	one := c[0].next("5").Trial
	var fin protocol.Finished
	if err := c[0].insist(t.Context(), "POST", "/v1/trials/0001/1/final", protocol.Final{Next: true, Status: training.Completed, Metric: &training.Metric{Value: 0.5}}, &fin); err != nil || one.Trial != 1 {
		t.Fatal(err)
	}
	if fin.State != training.Completed || fin.Next == nil || fin.Next.Trial == nil || fin.Next.Trial.Trial != 2 {
		t.Fatalf("the answer to the final has not the next trial: %+v", fin)
	}
	two := fin.Next.Trial
	if _, err := c[0].report(two, 1, 1, 0.1); err != nil {
		t.Fatal(err)
	}
	for seen, events := a.Seen, ""; ; {
		a = ask(seen)
		seen = a.Seen
		for _, n := range a.News {
			events += string(n)
		}
		if len(a.Checks) > 0 {
			if a.Checks[0].Trial != 2 || len(a.Checks[0].Curve) != 1 || !strings.Contains(events, `"kind":"finished","trial":1`) {
				t.Fatalf("%+v %s", a, events)
			}
			break
		}
	}
	var nothing struct{}
	if code := post("should_stop?user.name=ann", protocol.ShouldStop{Trial: 2, Attempt: 1, Reason: "too low"}, &nothing); code != 200 {
		t.Fatal(code)
	}
	if out, err := c[0].beat(two); err != nil || out.Op != protocol.OpStop || out.Reason != "too low" {
		t.Fatalf("%+v %v", out, err)
	}
	if _, err := c[0].final(two, protocol.Final{Seq: 1, Status: training.Stopped}); err != nil {
		t.Fatal(err)
	}
	if code := post("tell?user.name=ann", protocol.Tell{Done: true}, &told); code != 200 {
		t.Fatal(code)
	}
	if n := c[0].next("5"); n.Action != protocol.ActionDrain {
		t.Fatalf("%+v", n)
	}
	rm.complete(c[0].container, 0)
	r.wait()
	var result experiment.Result
	if err := json.Unmarshal(fs.get(t, testDir+"/"+resultName), &result); err != nil || result.State != protocol.ExperimentFinished || result.NumTrials != 2 || result.EarlyStopped != 1 {
		t.Errorf("%+v %v", result, err)
	}
}
