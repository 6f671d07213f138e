package simulate

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
)

func digits(t testing.TB) *Table {
	t.Helper()
	f, err := os.Open("testdata/digits-curves.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := ReadTable(f)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func table(t testing.TB, text string) *Table {
	t.Helper()
	got, err := ReadTable(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func study(t testing.TB, table *Table, doc string) Study {
	t.Helper()
	spec, err := training.ParseSpec([]byte(`{"entry": "recorded:curves", `+doc+`}`), "ann")
	if err != nil {
		t.Fatal(err)
	}
	return Study{Spec: spec, Table: table}
}

func simulated(t testing.TB, s Study) Outcome {
	t.Helper()
	o, err := Run(s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

const byNumber = `"space": {"id": ["INTEGER", [0, 639]]}, "trials": 640`

// The decks' comparison on 8 workers for the time of two full trials: by validation ASHA is better than random search with median
// stopping, and that is not worse than without. The numbers of many seeds stand in integration/bench/results/search.txt.
func TestSearchesCompareAsInTheDecks(t *testing.T) {
	digits := digits(t)
	best := map[string]float64{}
	all := map[string]Summary{}
	for name, doc := range map[string]string{
		"asha":     `"optimizer": {"type": "asha", "r_max": 81}`,
		"restart":  `"optimizer": {"type": "asha", "r_max": 81, "variant": "restart"}`,
		"stopping": `"optimizer": {"type": "asha", "r_max": 81, "variant": "stopping"}`,
		"es":       `"optimizer": {"type": "random"}, "early_stop": {"policy": "median"}`,
		"ns":       `"optimizer": {"type": "random"}`,
	} {
		s := study(t, digits, `"executors": 16, `+byNumber+`, `+doc)
		s.Budget = 3
		sum, err := Repeat(s, 6)
		if err != nil {
			t.Fatal(err)
		}
		best[name], all[name] = sum.Best.Mean, sum
	}
	if !(best["asha"] > best["es"] && best["es"] >= best["ns"] && best["restart"] > best["es"] && best["stopping"] > best["es"]) {
		t.Errorf("best validation: %v", best)
	}
	// Of one standard deviation around what an independent program made of the same table.
	for name, want := range map[string][2]float64{"asha": {.7950, .0005}, "restart": {.7945, .0015}, "es": {.7873, .0066}, "ns": {.7849, .0079}} {
		if got := best[name]; got < want[0]-want[1] || got > want[0]+want[1] {
			t.Errorf("%s: %.4f, want %.4f ± %.4f", name, got, want[0], want[1])
		}
	}
	// Promotions of the restart type are trials of their own, and cost their epochs again.
	if a, r := all["asha"], all["restart"]; a.Trials.Mean != 640 || r.Trials.Mean < 900 || a.Epochs.Mean > 0.8*r.Epochs.Mean {
		t.Errorf("%.0f trials with %.0f epochs, and with restarts %.0f with %.0f", a.Trials.Mean, a.Epochs.Mean, r.Trials.Mean, r.Epochs.Mean)
	}
}

func TestWorkersThatDoNotWaitForOneAnotherSaveTime(t *testing.T) {
	digits := digits(t)
	plain := study(t, digits, `"optimizer": {"type": "random"}, "executors": 16, "space": {"id": ["INTEGER", [0, 639]]}, "trials": 100`)
	barrier, median := plain, study(t, digits, `"optimizer": {"type": "random"}, "executors": 16, "space": {"id": ["INTEGER", [0, 639]]}, "trials": 100, "early_stop": {"policy": "median"}`)
	barrier.Barrier = true
	b, a, m := simulated(t, barrier), simulated(t, plain), simulated(t, median)
	if b.Epochs != a.Epochs || b.Trials != 100 || *a.Best != *b.Best {
		t.Errorf("not the same trials: %+v, %+v", a, b)
	}
	if a.Time > 0.67*b.Time || m.Time > 0.5*b.Time {
		t.Errorf("bulk-synchronous %.0f ms, asynchronous %.0f, with median stop %.0f", b.Time, a.Time, m.Time)
	}
}

// Two workers, three trials of known costs: every number of the outcome by hand.
func TestVirtualTimeByHand(t *testing.T) {
	curves := table(t, "id,epoch_ms,val_1,val_2,test_1,test_2\n1,10,.1,.4,.11,.41\n2,30,.9,.2,.91,.21\n3,5,.3,.3,.31,.31\n")
	s := study(t, curves, `"executors": 2, "configurations": [{"id": 1}, {"id": 2}, {"id": 3}], "space": {"id": ["INTEGER", [1, 3]]}, "optimizer": {"type": "none"}`)
	// 1: 0 to 20; 3 after it: 20 to 30; 2: 0 to 60.
	o := simulated(t, s)
	if o.Time != 60 || o.Epochs != 6 || o.Trials != 3 || o.Ended != 3 || *o.Best != .9 || *o.Test != .91 || *o.BestFinal != .4 || *o.TestFinal != .41 {
		t.Errorf("%+v", o)
	}
	s.Barrier = true // 1 and 2 first, then 3
	if o := simulated(t, s); o.Time != 70 {
		t.Errorf("with a barrier %v ms, want 70", o.Time)
	}
	s.Barrier, s.Budget = false, 1 // the median full trial takes 20 ms: 2 has not ended
	if o := simulated(t, s); o.Time != 20 || o.Ended != 1 || o.Trials != 3 || *o.Best != .4 || o.Epochs != 2 {
		t.Errorf("within the budget: %+v best %v", o, *o.Best)
	}
}

func TestAPromotedTrialGoesOnOrBeginsAgain(t *testing.T) {
	var text strings.Builder
	text.WriteString("id,epoch_ms,val_1,val_2,val_3,val_4\n")
	for i := range 4 {
		fmt.Fprintf(&text, "%d,10,.%d,.%d,.%d,.%d\n", i, i, i, i, i)
	}
	s := study(t, table(t, text.String()), `"executors": 1, "optimizer": {"type": "asha", "eta": 2, "r_max": 4}, "trials": 4, "space": {"id": ["INTEGER", [0, 3]]}`)
	// Four reach epoch 1, two go on to epoch 2 or more may as they come, one to epoch 4.
	resumed := simulated(t, s)
	s.Scratch = true
	again := simulated(t, s)
	if resumed.Trials != 4 || again.Trials != 4 || *resumed.Best != .3 || *again.Best != .3 {
		t.Errorf("%+v, %+v", resumed, again)
	}
	if resumed.Time != 10*float64(resumed.Epochs) || again.Epochs <= resumed.Epochs {
		t.Errorf("%d epochs in %v ms, without checkpoints %d", resumed.Epochs, resumed.Time, again.Epochs)
	}
}

// Every optimizer runs over the columns of the table, twice alike.
func TestSimulationsAreRepeatable(t *testing.T) {
	digits := digits(t)
	space := `"space": {"lr": {"type": "DOUBLE", "range": [1e-4, 1], "log": true}, "optimizer": ["CATEGORICAL", ["sgd", "momentum", "adam", "rmsprop"]],
		"momentum": {"type": "DOUBLE", "range": [0.5, 0.99], "when": {"optimizer": ["momentum", "adam"]}}, "batch": ["DISCRETE", [16, 32, 64, 128]]}`
	for _, doc := range []string{
		`"optimizer": {"type": "sobol"}, "trials": 30`, `"optimizer": {"type": "hyperband", "r_max": 9}`, `"optimizer": {"type": "de"}, "max_epochs": 9`,
		`"optimizer": {"type": "pbt", "population": 6, "interval": 3}, "max_epochs": 30`, `"optimizer": {"type": "asha", "r_max": 27, "variant": "stopping"}, "trials": 30`,
		`"optimizer": {"type": "random"}, "trials": 30, "early_stop": {"policy": "percentile", "percentile": 25, "es_min": 4}`,
	} {
		s := study(t, digits, `"executors": 5, "seed": 3, `+space+`, `+doc)
		a, b := simulated(t, s), simulated(t, s)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %+v, then %+v", doc, a, b)
		}
		if *a.Best < 0.5 || a.Ended != a.Trials {
			t.Errorf("%s: best %v, %+v", doc, *a.Best, a)
		}
		s.Spec.Seed = new(uint64(4))
		if c := simulated(t, s); reflect.DeepEqual(a, c) {
			t.Errorf("%s: another seed finds the same: %+v", doc, a)
		}
	}
}

func TestTablesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "the curves have no header",
		"a,b\n1,2\n":                    "neither columns val_1, val_2, … nor trial, step, metric; they have a, b",
		"id,val_1\n":                    "no rows",
		"id,val_1\nx,1\n":               `line 2: id "x" is not a whole number`,
		"id,val_1\n1,1\n1,2\n":          "line 3: id 1 is there twice",
		"id,val_1\n1,NaN\n":             `line 2: val_1: "NaN" is not a finite number`,
		"id,val_1,val_2\n1,,\n":         "line 2: configuration 1 has no epoch",
		"id,epoch_ms,val_1\n1,-3,.5\n":  `the cost "-3" of an epoch is no time`,
		"id,val_1\n1,.5,7\n":            "wrong number of fields",
		"trial,step,metric\n0001,1,x\n": `line 2: metric: "x" is not a finite number`,
		"\x1f\x8bnot really gzip":       "gzip",
	} {
		if _, err := ReadTable(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestSpacesThatTheTableHasNot(t *testing.T) {
	curves := table(t, "id,lr,val_1\n0,.1,.5\n1,.2,.6\n")
	for doc, want := range map[string]string{
		`"space": {"id": ["INTEGER", [0, 1]], "lr": ["DOUBLE", [0, 1]]}`:                         "there can be no other beside it",
		`"space": {"width": ["INTEGER", [0, 1]]}`:                                                `parameter "width" is no column of the curves, which have id, lr`,
		`"space": {"id": ["INTEGER", [0, 2]]}, "trials": 3`:                                      "the curves have no configuration with id 2",
		`"objectives": [{"metric": "a"}, {"metric": "b"}], "space": {"id": ["INTEGER", [0, 1]]}`: "2 objectives are not supported here: the curves have one metric",
		`"configurations": [{"lr": 1}]`:                                                          "the study has no space; search by id or by the columns lr",
	} {
		if _, err := Run(study(t, curves, doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
	// The nearest: in the logarithm .3 is nearer to 1 than to .01.
	near := table(t, "id,lr,val_1\n0,.01,.5\n1,1,.6\n")
	s := study(t, near, `"configurations": [{"lr": 0.3}], "optimizer": {"type": "none"}, "space": {"lr": {"type": "DOUBLE", "range": [0.001, 1], "log": true}}`)
	if o := simulated(t, s); *o.Best != .6 {
		t.Errorf("%v, want the curve of the nearest", *o.Best)
	}
}

func TestCurvesAsTheyAreExported(t *testing.T) {
	curves := table(t, "experiment,trial,step,metric\ne,0001,1,.5\ne,0002,1,.25\ne,0001,2,.75\n")
	if diff := cmp.Diff([]float64{.5, .75}, curves.Rows[0].Curve); diff != "" || curves.Rows[1].ID != 2 || curves.FullCost() != 1.5 {
		t.Errorf("%s %+v", diff, curves.Rows)
	}
}

// recorded simulates a study and returns the lines of its journal.
func recorded(t testing.TB, s Study) []byte {
	t.Helper()
	var b bytes.Buffer
	s.note = func(e *experiment.Entry) {
		line, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		b.Write(line)
	}
	simulated(t, s)
	return b.Bytes()
}

func journal(t testing.TB, lines []byte) []*experiment.Entry {
	t.Helper()
	out, err := ReadJournal(bytes.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReplayMakesEverySuggestionAgain(t *testing.T) {
	digits := digits(t)
	for _, doc := range []string{
		`"optimizer": {"type": "asha", "r_max": 9}, "trials": 20`, `"optimizer": {"type": "asha", "r_max": 9, "variant": "stopping"}, "trials": 20`,
		`"optimizer": {"type": "random"}, "max_epochs": 5, "trials": 20, "early_stop": {"policy": "median", "es_min": 3}`,
	} {
		lines := recorded(t, study(t, digits, `"executors": 3, "seed": 9, "space": {"id": ["INTEGER", [0, 639]]}, `+doc))
		r := Replay(journal(t, lines))
		if r.Differs != "" || r.Suggestions < 20 || !strings.Contains(doc, "r_max\": 9}") && r.Decisions == 0 {
			t.Errorf("%s: %+v", doc, r)
		}
		other := bytes.Replace(lines, []byte(`"seed":9`), []byte(`"seed":8`), 1)
		if r := Replay(journal(t, other)); !strings.Contains(r.Differs, "the optimizer suggests trial 0001") {
			t.Errorf("%s: with another seed: %+v", doc, r)
		}
	}
}

func TestReplayTellsWhatAnotherStoppingWouldHaveDone(t *testing.T) {
	// Trials end in the order 1, 2, 3, 4, each after four epochs, on one worker.
	curves := table(t, "id,val_1,val_2,val_3,val_4\n0,.5,.5,.5,.5\n1,.6,.6,.6,.6\n2,.1,.2,.9,.95\n3,.7,.7,.7,.7\n")
	lines := recorded(t, study(t, curves, `"space": {"id": ["INTEGER", [0, 3]]}, "optimizer": {"type": "none"}, "configurations": [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}]`))
	w, err := If(journal(t, lines), training.EarlyStop{Policy: "median", Min: new(1)})
	if err != nil {
		t.Fatal(err)
	}
	// The third has .1 after its first epoch, where the median of the two before it is .55: it would have become the best.
	if len(w.Stopped) != 1 || w.Stopped[0].Trial != 3 || w.Stopped[0].Step != 1 || w.Stopped[0].Saved != 3 || *w.Stopped[0].Value != .95 ||
		w.Saved != 3 || w.Epochs != 16 || w.BestSurvives || w.Best != 3 || w.Next != 4 || *w.NextValue != .7 {
		t.Errorf("%+v", w)
	}
	if w, err = If(journal(t, lines), training.EarlyStop{Policy: "median", Min: new(1), Warmup: 3}); err != nil || len(w.Stopped) != 0 || !w.BestSurvives {
		t.Errorf("after a warmup of 3: %+v, %v", w, err)
	}
	if w, err = If(journal(t, lines), training.EarlyStop{Policy: "threshold", Threshold: new(.55)}); err != nil || len(w.Stopped) != 2 || w.Saved != 6 {
		t.Errorf("threshold: %+v, %v", w, err)
	}
	if _, err = If(journal(t, lines), training.EarlyStop{Policy: "percentile"}); err == nil || !strings.Contains(err.Error(), "early_stop.percentile: missing") {
		t.Errorf("%v", err)
	}
}

func TestJournalsThatAreTorn(t *testing.T) {
	lines := recorded(t, study(t, table(t, "id,val_1\n0,.5\n1,.6\n"), `"space": {"id": ["INTEGER", [0, 1]]}, "trials": 2`))
	whole := journal(t, lines)
	all := bytes.SplitAfter(lines, []byte("\n"))
	torn := append(append(append([]byte{}, all[0]...), all[1][:10]...), '\n')
	for _, l := range all[1:] {
		torn = append(append(torn, l...), l...)
	}
	if got := journal(t, append(torn, `{"n":99`...)); len(got) != len(whole) {
		t.Errorf("%d entries, want %d", len(got), len(whole))
	}
	for text, want := range map[string]string{
		"":                                 "the journal is empty",
		"hello\n":                          "line 1 is no entry of a journal",
		string(all[0]) + string(all[2]):    "line 2: entry 3 follows entry 1",
		strings.Repeat("x", maxLine+1):     "line 1 is longer than 8388608 bytes",
		"{\"n\":1,\"kind\":\"drained\"}\n": "line 1 is no entry of a journal",
	} {
		if _, err := ReadJournal(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}
