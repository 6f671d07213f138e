package history

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/store/storetest"
)

var update = flag.Bool("update", false, "rewrite testdata")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = "testdata/" + name
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what comes out:\n%s", name, got)
	}
}

// patch applies a unified difference to a text: the reader that the writer is held against.
func patch(t *rapid.T, a, diff string) string {
	before := lines(a)
	var out []string
	at := 0
	script := strings.SplitAfter(diff, "\n")[2:]
	for i := 0; i < len(script); i++ {
		line := script[i]
		switch {
		case line == "":
		case strings.HasPrefix(line, "@@"):
			var start, n int
			head := strings.Fields(line)[1][1:]
			if _, err := fmt.Sscanf(head, "%d,%d", &start, &n); err != nil {
				n = 1
				if _, err := fmt.Sscanf(head, "%d", &start); err != nil {
					t.Fatal(line)
				}
			}
			if n > 0 {
				start--
			}
			out = append(out, before[at:start]...)
			at = start
		case line[0] == '\\':
		default:
			text := line[1:]
			if i+1 < len(script) && strings.HasPrefix(script[i+1], "\\") {
				text = strings.TrimSuffix(text, "\n")
			}
			if line[0] != '+' {
				if before[at] != text {
					t.Fatalf("line %d is %q, the difference says %q", at, before[at], text)
				}
				at++
			}
			if line[0] != '-' {
				out = append(out, text)
			}
		}
	}
	return strings.Join(append(out, before[at:]...), "")
}

func TestUnifiedDifferencesApplyAndAreShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.Custom(func(t *rapid.T) string {
			s := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "-", "+x", ""}), 0, 25).Draw(t, "lines"), "\n")
			if rapid.Bool().Draw(t, "newline") && s != "" {
				s += "\n"
			}
			return s
		})
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		d := Unified("a", "b", a, b)
		if a == b {
			if d != "" {
				t.Fatalf("equal texts differ: %q", d)
			}
			return
		}
		if got := patch(t, a, d); got != b {
			t.Fatalf("%q with\n%s is %q, want %q", a, d, got, b)
		}
		la, lb := lines(a), lines(b)
		common := make([][]int, len(la)+1) // of the longest common subsequence, the slow way
		for i := range common {
			common[i] = make([]int, len(lb)+1)
		}
		for i := range la {
			for j := range lb {
				if la[i] == lb[j] {
					common[i+1][j+1] = common[i][j] + 1
				} else {
					common[i+1][j+1] = max(common[i][j+1], common[i+1][j])
				}
			}
		}
		changed := 0
		for _, e := range edits(la, lb) {
			if e.op != ' ' {
				changed++
			}
		}
		if want := len(la) + len(lb) - 2*common[len(la)][len(lb)]; changed != want {
			t.Fatalf("%d lines change, %d are enough:\n%s", changed, want, d)
		}
	})
}

func TestTextsWithoutAnythingInCommonDoNotTakeForEver(t *testing.T) {
	var a, b strings.Builder
	for i := range 15_000 {
		fmt.Fprintf(&a, "a%d\n", i)
		fmt.Fprintf(&b, "b%d\n", i)
	}
	if d := Unified("a", "b", a.String(), b.String()); strings.Count(d, "\n") != 30_003 {
		t.Errorf("%d lines", strings.Count(d, "\n"))
	}
}

func sample() *Record {
	return &Record{
		ID: "application_1_0001_1", Name: "digits", Project: "lab", State: "FINISHED", Metric: "accuracy", Direction: training.Max,
		Started: 1000, Finished: 61_000, Counters: Counters{Epochs: 5, EpochsWasted: 1},
		Spec: json.RawMessage(`{"name":"digits","seed":18446744073709551615,"optimizer":{"type":"random"},"space":{"lr":{"type":"DOUBLE","range":[0.0001,1]}},"code":{"uri":"/a/1.zip","sha256":"1"}}`),
		Best: &Best{Trial: 1, Metric: 0.9, Params: training.Params{"lr": training.Float(0.1)}},
		Trials: []Trial{
			{
				Trial: 1, State: training.Completed, Params: training.Params{"lr": training.Float(0.1), "act": training.String("relu"), "n": training.Int(8), "norm": training.Bool(true)},
				Attempt: 1, Epochs: 2, Metric: new(0.9), Curve: []Point{{1, 0.5}, {2, 0.9}}, Host: "n1", Started: 1000, Ended: 3500,
			},
			{
				Trial: 2, State: training.Failed, Params: training.Params{"lr": training.Int(1), "act": training.String(`t,"h`), "n": training.Int(9), "norm": training.Bool(false)},
				Attempt: 3, Failures: 3, Epochs: 1, Curve: []Point{{1, math.Inf(1)}}, Error: &training.TrialError{Type: "ValueError", Message: "no"}, Started: 1000, Ended: 2000,
			},
			{Trial: 3, State: training.Pending, Params: training.Params{"lr": training.Float(0.5)}},
		},
	}
}

func TestTablesOfTrials(t *testing.T) {
	for name, table := range map[string]*Table{"trials": sample().TrialTable(), "curves": sample().CurveTable()} {
		for form, write := range map[string]func(*Table, *bytes.Buffer) error{
			"csv":     func(t *Table, b *bytes.Buffer) error { return t.WriteCSV(b) },
			"json":    func(t *Table, b *bytes.Buffer) error { return t.WriteJSON(b) },
			"parquet": func(t *Table, b *bytes.Buffer) error { return t.WriteParquet(b) }, // read with pyarrow when it was made
		} {
			var b bytes.Buffer
			if err := write(table, &b); err != nil {
				t.Fatal(err)
			}
			golden(t, name+"."+form, b.Bytes())
		}
	}
}

func TestSeveralObjectivesAreColumns(t *testing.T) {
	r := sample()
	r.Spec = json.RawMessage(`{"objectives":[{"metric":"accuracy","direction":"max"},{"metric":"ms","direction":"min"}]}`)
	r.Trials[0].Values = []float64{0.9, 12}
	table := r.TrialTable()
	n := len(table.Columns)
	if !slices.Equal(table.Columns[n-2:], []string{"objectives.accuracy", "objectives.ms"}) {
		t.Fatal(table.Columns)
	}
	if !slices.Equal(table.Rows[0][n-2:], []any{0.9, 12.0}) || !slices.Equal(table.Rows[1][n-2:], []any{nil, nil}) {
		t.Errorf("%v, %v", table.Rows[0], table.Rows[1])
	}
}

func TestRowGroupsAreBounded(t *testing.T) {
	long := strings.Repeat("x", groupBytes/4)
	table := &Table{Columns: []string{"a"}}
	for range 10 {
		table.Rows = append(table.Rows, []any{long})
	}
	var ends []int
	for from := 0; from < len(table.Rows); from = ends[len(ends)-1] {
		ends = append(ends, table.groupEnd(from))
	}
	if !slices.Equal(ends, []int{4, 8, 10}) {
		t.Error(ends)
	}
	table.Rows = make([][]any, rowGroup+1)
	if a, b := table.groupEnd(0), table.groupEnd(rowGroup); a != rowGroup || b != rowGroup+1 {
		t.Error(a, b)
	}
	table.Rows = [][]any{{strings.Repeat("x", 2*groupBytes)}, {nil}}
	if a := table.groupEnd(0); a != 1 {
		t.Error("one row that is longer than a group:", a)
	}
}

func TestComparisonShowsWhatDiffers(t *testing.T) {
	a, b := sample(), sample()
	b.ID, b.Name, b.Best = "application_1_0002_1", "digits-2", nil
	b.Spec = json.RawMessage(`{"name":"digits-2","seed":18446744073709551614,"optimizer":{"type":"asha","eta":3},"space":{"lr":{"type":"DOUBLE","range":[0.0001,1]}},"code":{"uri":"/b/2.zip","sha256":"1"}}`)
	x := Compare([]*Record{a, b}, time.UnixMilli(90_000))
	var keys []string
	for _, d := range x.Settings {
		keys = append(keys, d.Key+"="+strings.Join(d.Values, "|"))
	}
	want := []string{`name="digits"|"digits-2"`, "optimizer.eta=|3", `optimizer.type="random"|"asha"`, "seed=18446744073709551615|18446744073709551614"}
	if !slices.Equal(keys, want) {
		t.Errorf("settings %q\nwant     %q", keys, want)
	}
	if c := x.Columns[0]; c.Seconds != 60 || c.Failed != 1 || *c.Best != 0.9 || x.Columns[1].Best != nil {
		t.Errorf("%+v", x.Columns)
	}
}

func TestDifferencesOfExperiments(t *testing.T) {
	a, b := sample(), sample()
	b.Spec = bytes.Replace(b.Spec, []byte(`"sha256":"1"`), []byte(`"sha256":"2"`), 1)
	a.Environment = &Environment{Python: "3.11.2", Host: "n1", Packages: map[string]string{"numpy": "1.26", "old": "1"}}
	b.Environment = &Environment{Python: "3.11.2", Host: "n2", Packages: map[string]string{"numpy": "2.0", "new": "1"}}
	a.Data = []DataVersion{{Path: "/d", Length: 5, MTime: 1, FileID: 7}}
	before := &Program{Files: map[string][]byte{"m.py": []byte("a = 1\n"), "gone.py": []byte("x\n"), "same.py": []byte("s")}}
	after := &Program{Files: map[string][]byte{"m.py": []byte("a = 2\n"), "same.py": []byte("s"), "bin": {0, 1}}}
	d := Compared(a, b, before, after)
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "diff.json", append(text, '\n'))
	if d := Compared(a, b, before, nil); len(d.Unknown) != 2 || !strings.Contains(d.Unknown[0], "gone (/a/1.zip)") || d.Code != nil {
		t.Errorf("without the code of one: %+v", d)
	}
	if d := Compared(a, a, nil, nil); !d.Same() {
		t.Errorf("the same: %+v", d)
	}
}

// The story of a search with one executor of two GPUs and one of none: a trial that is lost after its checkpoint and done again from
// it, one that fails for good, one that goes on.
func TestOverheadOfAJournal(t *testing.T) {
	journal := `
{"n":1,"t":0,"kind":"created","created":{"spec":{"resources":{"gpus":0}}}}
{"n":2,"t":0,"kind":"started","started":{"attempt":1,"containers":[]}}
{"n":3,"t":1000,"kind":"registered","registered":{"container":"c1","gpus":["0","1"]}}
{"n":4,"t":2000,"kind":"assigned","assigned":{"trial":"0001","attempt":1,"seats":[{"executor":"e0001"}]}}
{"n":5,"t":5000,"kind":"reported","reported":{"trial":"0001","attempt":1,"events":[{"step":1}]}}
{"n":6,"t":6000,"kind":"committed","committed":{"trial":"0001","attempt":1,"step":1}}
{"n":7,"t":10000,"kind":"reported","reported":{"trial":"0001","attempt":1,"events":[{"step":2},{"step":3}]}}
{"n":7,"t":10000,"kind":"reported","reported":{"trial":"0001","attempt":1,"events":[{"step":2},{"step":3}]}}
{"n":8,"t":11000,"kind":"lost","lost":{"executor":"e0001","reason":"x","blame":true}}
{"n":9,"t":12000,"kind":"registered","registered":{"container":"c2"}}
{"n":10,"t":12000,"kind":"assigned","assigned":{"trial":"0001","attempt":2,"seats":[{"executor":"e0002"}]}}
half a line
{"n":11,"t":14000,"kind":"reported","reported":{"trial":"0001","attempt":2,"events":[{"step":2}]}}
{"n":12,"t":14000,"kind":"reported","reported":{"trial":"0001","attempt":1,"events":[{"step":9}]}}
{"n":13,"t":15000,"kind":"ended","ended":{"trial":"0001","attempt":2,"status":"COMPLETED"}}
{"n":14,"t":15000,"kind":"assigned","assigned":{"trial":"0002","attempt":1,"seats":[{"executor":"e0002"}]}}
{"n":15,"t":16000,"kind":"reported","reported":{"trial":"0002","attempt":1,"events":[{"step":1}]}}
{"n":16,"t":17000,"kind":"ended","ended":{"trial":"0002","attempt":1,"status":"FAILED"}}
{"n":17,"t":18000,"kind":"assigned","assigned":{"trial":"0003","attempt":1,"seats":[{"executor":"e0002"}]}}
{"n":18,"t":20000,"kind":"reported","reported":{"trial":"0003","attempt":1,"events":[]}}`
	o, err := MeterJournal(strings.NewReader(journal))
	if err != nil {
		t.Fatal(err)
	}
	want := &Overhead{
		// 3 s of step 1, 2+1 of attempt 2, 2 of trial 3; waiting: 1 at the beginning, 1 before trial 3; wasted: steps 2 and 3 (4), the
		// tail (1), trial 2 (2).
		Executors: Spent{Training: 3 + 3 + 2, Waiting: 1 + 1, Checkpointing: 1, Wasted: 4 + 1 + 2},
		GPUs:      Spent{Training: 6, Waiting: 2, Checkpointing: 2, Wasted: 10},
	}
	if *o != *want {
		t.Errorf("%+v\nwant %+v", *o, *want)
	}
	if s := o.String(); s != "20.0 GPU-seconds: training 6.0 s (30 %), waiting 2.0 s (10 %), checkpointing 2.0 s (10 %), wasted 10.0 s (50 %)" {
		t.Error(s)
	}
}

// The journals are those of the controller's stories of these names, with a second between entries: a gang whose rank 2 dies, that loses a
// node, grows, and whose chief ends first; two trials in each executor, one of which is lost; a gang with parameter servers, whose
// executors have no GPU.
func TestOverheadOfGangsSlotsAndServers(t *testing.T) {
	for name, want := range map[string]Overhead{
		// Steps 1, 2 again, 3 and 4 take 15+6+4+12, the chief's, the workers' and the last end 3+2+1.
		"gang":    {Executors: Spent{Training: 43, Waiting: 17, Checkpointing: 3 + 2, Wasted: 3 + 3 + 12 + 2}},
		"slots":   {Executors: Spent{Training: 1.5 + 4, Waiting: 9.5, Wasted: 4 + 1}},
		"servers": {Executors: Spent{Training: 20 + 8 + 6 + 4 + 1, Waiting: 19}, GPUs: Spent{Training: 7 + 9, Waiting: 9 + 6}},
	} {
		text, err := os.ReadFile("testdata/" + name + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) { // as the journal is written now
			e, err := experiment.DecodeEntry(line)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if again, err := e.Encode(); err != nil || !bytes.Equal(again, line) {
				t.Errorf("%s: the journal has another form now: %s, %v\nthe test has %s", name, again, err, line)
			}
		}
		o, err := MeterJournal(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if *o != want {
			t.Errorf("%s: %+v\nwant %+v", name, *o, want)
		}
	}
}

// Whatever a journal says, no time is made or lost: the parts add up to the lives of the executors.
func TestNoTimeIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMeter()
		now, lives := int64(0), 0.0
		type executor struct {
			since int64
			trial int
		}
		var all []*executor
		attempts := map[int]int{}
		for n := range rapid.IntRange(1, 60).Draw(t, "entries") {
			now += rapid.Int64Range(0, 1000).Draw(t, "pause")
			line := ""
			free := slices.IndexFunc(all, func(x *executor) bool { return x != nil && x.trial == 0 })
			busy := slices.IndexFunc(all, func(x *executor) bool { return x != nil && x.trial != 0 })
			alive := slices.IndexFunc(all, func(x *executor) bool { return x != nil })
			switch what := rapid.SampledFrom([]string{"registered", "assigned", "reported", "reported", "committed", "ended", "lost"}).Draw(t, "what"); {
			case what == "registered":
				all = append(all, &executor{since: now})
				line = fmt.Sprintf(`"registered":{"container":"c%d","gpus":["0"]}`, len(all))
			case what == "assigned" && free >= 0:
				trial := rapid.IntRange(1, 5).Draw(t, "trial")
				if slices.ContainsFunc(all, func(x *executor) bool { return x != nil && x.trial == trial }) {
					continue
				}
				attempts[trial]++
				all[free].trial = trial
				line = fmt.Sprintf(`"assigned":{"trial":"%04d","attempt":%d,"seats":[{"executor":"e%04d"}]}`, trial, attempts[trial], free+1)
			case what == "reported" && busy >= 0:
				line = fmt.Sprintf(`"reported":{"trial":"%04d","attempt":%d,"events":[{"step":%d}]}`, all[busy].trial, attempts[all[busy].trial], rapid.IntRange(1, 9).Draw(t, "step"))
			case what == "committed" && busy >= 0:
				line = fmt.Sprintf(`"committed":{"trial":"%04d","attempt":%d}`, all[busy].trial, attempts[all[busy].trial])
			case what == "ended" && busy >= 0:
				line = fmt.Sprintf(`"ended":{"trial":"%04d","attempt":%d,"status":%q}`, all[busy].trial, attempts[all[busy].trial], rapid.SampledFrom([]string{"COMPLETED", "FAILED"}).Draw(t, "status"))
				all[busy].trial = 0
			case what == "lost" && alive >= 0:
				line = fmt.Sprintf(`"lost":{"executor":"e%04d"}`, alive+1)
				lives += float64(now-all[alive].since) / 1000
				all[alive] = nil
			default:
				line = `"forgiven":{"node":"n"}`
			}
			m.Entry([]byte(fmt.Sprintf(`{"n":%d,"t":%d,%s}`, n+1, now, line)))
		}
		for _, x := range all {
			if x != nil {
				lives += float64(m.now-training.Millis(x.since)) / 1000
			}
		}
		o := m.Overhead()
		for _, s := range []Spent{o.Executors, o.GPUs} {
			if math.Abs(s.Total()-lives) > 0.01 || s.Training < 0 || s.Waiting < 0 || s.Checkpointing < 0 || s.Wasted < 0 {
				t.Fatalf("%+v adds up to %v, the executors lived %v s", s, s.Total(), lives)
			}
		}
	})
}

// The same of gangs and of executors with two slots, in whatever order their entries come.
func TestNoTimeOfGangsIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMeter()
		m.Entry([]byte(`{"n":1,"t":0,"created":{"spec":{"resources":{"gpus":1},"trials_per_executor":2}}}`))
		now, lives := int64(0), 0.0
		since := map[int]int64{}
		registered := 0
		for n := range rapid.IntRange(1, 80).Draw(t, "entries") {
			now += rapid.Int64Range(0, 1000).Draw(t, "pause")
			trial, attempt := rapid.IntRange(1, 3).Draw(t, "trial"), rapid.IntRange(1, 4).Draw(t, "attempt")
			rank := rapid.IntRange(0, 3).Draw(t, "rank")
			at := fmt.Sprintf(`"trial":"%04d","attempt":%d,"rank":%d`, trial, attempt, rank)
			line := ""
			switch rapid.SampledFrom([]string{"registered", "registered", "assigned", "assigned", "reported", "committed", "ended", "ended", "lost", "decided", "expired", "stopped"}).Draw(t, "what") {
			case "registered":
				registered++
				since[registered] = now
				line = fmt.Sprintf(`"registered":{"container":"c%d"}`, registered)
			case "assigned":
				var seats []string
				for x := 1; x <= registered; x++ {
					for slot := range 2 {
						if rapid.Bool().Draw(t, "seat") {
							seats = append(seats, fmt.Sprintf(`{"executor":"e%04d","slot":%d}`, x, slot))
						}
					}
				}
				line = fmt.Sprintf(`"assigned":{%s,"seats":[%s]}`, at, strings.Join(seats, ","))
			case "reported":
				line = fmt.Sprintf(`"reported":{%s,"events":[{"step":%d}]}`, at, rapid.IntRange(1, 5).Draw(t, "step"))
			case "committed":
				line = fmt.Sprintf(`"committed":{%s}`, at)
			case "ended":
				line = fmt.Sprintf(`"ended":{%s,"status":%q}`, at, rapid.SampledFrom([]string{"COMPLETED", "FAILED", "STOPPED"}).Draw(t, "status"))
			case "lost":
				x := rapid.IntRange(1, 4).Draw(t, "executor")
				line = fmt.Sprintf(`"lost":{"executor":"e%04d"}`, x)
				if begin, ok := since[x]; ok {
					lives += float64(now-begin) / 1000
					delete(since, x)
				}
			case "decided":
				line = fmt.Sprintf(`"decided":{%s}`, at)
			case "expired":
				line = fmt.Sprintf(`"expired":{%s}`, at)
			case "stopped":
				line = `"stopped":{}`
			}
			m.Entry(fmt.Appendf(nil, `{"n":%d,"t":%d,%s}`, n+2, now, line))
		}
		for _, begin := range since {
			lives += float64(now-begin) / 1000
		}
		o := m.Overhead()
		for _, s := range []Spent{o.Executors, o.GPUs} {
			if math.Abs(s.Total()-lives) > 0.01 || s.Training < 0 || s.Waiting < 0 || s.Checkpointing < 0 || s.Wasted < 0 {
				t.Fatalf("%+v adds up to %v, the executors lived %v s", s, s.Total(), lives)
			}
		}
	})
}

func TestPruneTakesWhatAllRulesAgreeOn(t *testing.T) {
	day := int64(24 * time.Hour / time.Millisecond)
	var all []*Record
	add := func(id, name, state string, age int64, best float64) {
		r := &Record{ID: id, Name: name, Project: "lab", State: state, Metric: "m", Direction: training.Max, Started: training.Millis(100*day - age*day - 1000), Finished: training.Millis(100*day - age*day)}
		if best > 0 {
			r.Best = &Best{Metric: best}
		}
		all = append(all, r)
	}
	add("e1", "a", "FINISHED", 50, 0.9)
	add("e2", "a", "FINISHED", 40, 0.8)
	add("e3", "a", "FAILED", 35, 0)
	add("e4", "a", "FINISHED", 1, 0.7)
	add("e5", "b", "KILLED", 60, 0.1)
	add("e6", "b", Running, 90, 0.05)
	now := time.UnixMilli(100 * day)
	models := map[string]string{"e2": "model m version 1"}
	for _, c := range []struct {
		rules Rules
		want  string
		kept  int
	}{
		{Rules{OlderThan: 30 * 24 * time.Hour}, "e5 e1 e3", 1},
		{Rules{OlderThan: 30 * 24 * time.Hour, Force: true}, "e5 e1 e2 e3", 0},
		{Rules{States: []string{"FAILED"}}, "e3", 0},
		{Rules{KeepBest: 1}, "e3 e4", 1},
		{Rules{KeepBest: 2, States: []string{"FINISHED", "KILLED"}}, "e4", 0},
		{Rules{}, "e5 e1 e3 e4", 1},
	} {
		c.rules.Now, c.rules.Models = now, models
		victims, kept := Prune(all, c.rules)
		var got []string
		for _, v := range victims {
			got = append(got, v.ID)
			if (v.Warning != "") != (v.ID == "e2") {
				t.Errorf("%s warns %q", v.ID, v.Warning)
			}
		}
		if strings.Join(got, " ") != c.want || len(kept) != c.kept {
			t.Errorf("%+v: %v, kept %v; want %s", c.rules, got, kept, c.want)
		}
	}
}

func TestTagsAndNotes(t *testing.T) {
	m := storetest.New()
	m.Put("/x/f", "")
	ctx := t.Context()
	for k, v := range map[string]string{"team/a": "vision", "best": ""} {
		if err := SetTag(ctx, m, "/x", k, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := SetNote(ctx, m, "/x", "two\nlines"); err != nil {
		t.Fatal(err)
	}
	if err := m.SetAttribute(ctx, "/x", "other", "1"); err != nil {
		t.Fatal(err)
	}
	tags, note, err := Tags(ctx, m, "/x")
	if err != nil || len(tags) != 2 || tags["team/a"] != "vision" || note != "two\nlines" {
		t.Errorf("%v, %q, %v", tags, note, err)
	}
	for _, bad := range []string{"", "a b", strings.Repeat("k", 101), "ü"} {
		if SetTag(ctx, m, "/x", bad, "v") == nil {
			t.Errorf("key %q is taken", bad)
		}
	}
	if SetTag(ctx, m, "/x", "k", strings.Repeat("v", MaxTag+1)) == nil || SetNote(ctx, m, "/x", strings.Repeat("v", MaxNote+1)) == nil {
		t.Error("a text without end is taken")
	}
	for i := range 32 {
		err = SetTag(ctx, m, "/x", fmt.Sprintf("k%d", i), "")
	}
	if err == nil || !strings.Contains(err.Error(), "remove a tag first") {
		t.Errorf("too many: %v", err)
	}
	if err := RemoveTag(ctx, m, "/x", "best"); err != nil {
		t.Error(err)
	}
	if err := SetNote(ctx, m, "/x", ""); err != nil {
		t.Error(err)
	}
	if tags, note, _ := Tags(ctx, m, "/x"); tags["best"] != "" || note != "" {
		t.Errorf("removed: %v, %q", tags, note)
	}
}

func TestVersionsOfDataAreSeenToChange(t *testing.T) {
	m := storetest.New()
	m.Put("/d/a", "12345")
	m.Put("/d/sub/b", "678")
	ctx := t.Context()
	file, dir := Look(ctx, m, DataVersion{Path: "/d/a"}), Look(ctx, m, DataVersion{Path: "/d"})
	if file.Length != 5 || dir.Length != 8 || dir.Files != 2 || !dir.Directory {
		t.Errorf("%+v, %+v", file, dir)
	}
	if again := Look(ctx, m, dir); again != dir {
		t.Errorf("%+v without a change", again)
	}
	m.Now++
	m.Put("/d/sub/b", "679")
	if again := Look(ctx, m, dir); again.String() == dir.String() {
		t.Error("a change is not seen")
	}
	if gone := Look(ctx, m, DataVersion{Path: "/none"}); gone.Problem != "it is not there" {
		t.Errorf("%+v", gone)
	}
}
