package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const twoCurves = "id,lr,epoch_ms,val_1,val_2\n0,.1,10,.5,.6\n1,.2,10,.7,.8\n"

// simulation runs a command line in a directory with a study and curves.
func simulation(t *testing.T, study, line string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"study.yaml": study, "curves.csv": twoCurves, "journal.jsonl": "{}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	var out bytes.Buffer
	app := newApp(nil, &out, &out)
	err := app.RunContext(context.Background(), flagsFirst(app, strings.Fields("hops experiment "+line)))
	return out.String(), err
}

func TestSimulatePrintsARowPerStudy(t *testing.T) {
	const study = "entry: train.py:train\ntrials: 2\nexecutors: 2\nspace: {id: {type: INTEGER, range: [0, 1]}}\n"
	out, err := simulation(t, study, "simulate study.yaml study.yaml --curves curves.csv --seeds 3 --workers 1")
	want := "STUDY  BEST             TEST  FINAL   TRIALS  ENDED  STOPPED  EPOCHS  TIME\n" +
		"study  0.8000 (0.0000)  -     0.8000  2 (0)   2      0        4       40ms\n" +
		"study  0.8000 (0.0000)  -     0.8000  2 (0)   2      0        4       40ms\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

func TestSimulateAndReplaySayWhatIsWrong(t *testing.T) {
	const space = "\nspace: {id: {type: INTEGER, range: [0, 1]}}\n"
	for _, c := range []struct{ study, line, want string }{
		{"trials: 2" + space, "simulate --curves curves.csv", "name a study"},
		{"trials: 2" + space, "simulate study.yaml", `"curves" not set`},
		{"trials: 2" + space, "simulate study.yaml --curves none.csv", "open none.csv: no such file"},
		{"trials: 2" + space, "simulate study.yaml --curves study.yaml", "study.yaml: the curves have neither columns val_1"},
		{"trials: 2" + space, "simulate study.yaml --curves curves.csv --budget -1", "--budget -1 is not above 0"},
		{"trials: 2" + space, "simulate study.yaml --curves curves.csv --seeds 0", "--seeds 0 is outside 1 … 10000"},
		{"trials: 2" + space, "simulate study.yaml --curves curves.csv --workers 0", "--workers 0 is outside 1 … 1000"},
		{"optimizer: {type: hyperband, r_mx: 3, max_budget: 9}" + space, "simulate study.yaml --curves curves.csv", "study.yaml: line 1: unknown key optimizer.r_mx (did you mean r_max?)"},
		{"optimizer: {type: hyperband}" + space, "simulate study.yaml --curves curves.csv", "study.yaml: optimizer.r_max: missing"},
		{"space: {width: {type: INTEGER, range: [0, 1]}}", "simulate study.yaml --curves curves.csv", `study.yaml: curves.csv: parameter "width" is no column of the curves, which have id, lr`},
		{"", "replay", "name one experiment, or the file of a journal"},
		{"", "replay journal.jsonl", "journal.jsonl: line 1 is no entry of a journal"},
		{"", "replay ./nothing", "open ./nothing: no such file"},
		{"", "replay journal.jsonl --es-min 3", "--es-min is of no use without --stop"},
	} {
		out, err := simulation(t, c.study, c.line)
		if got := fmt.Sprint(err); err == nil || !strings.Contains(got, c.want) || strings.Count(got, "\n") > 0 {
			t.Errorf("%s: %q %s, want %q", c.line, got, out, c.want)
		}
	}
}
