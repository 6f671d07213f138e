package experiment

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// The lines of reports are those that encoding/json makes, and are read as it reads them, damaged ones too.
func TestLinesOfReportsAreJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &reported{
			Trial: training.TrialID(rapid.IntRange(1, 20000).Draw(t, "trial")), Attempt: rapid.IntRange(1, 12).Draw(t, "attempt"), Rank: rapid.IntRange(0, 2).Draw(t, "rank"),
			LogBytes: rapid.Int64Range(0, 1<<40).Draw(t, "log"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "events") {
			r.Events = append(r.Events, protocol.MetricEvent{
				Seq: rapid.Int64Range(1, 99).Draw(t, "seq"), Step: rapid.Int64Range(-9, 99).Draw(t, "step"), Time: training.Millis(rapid.Int64Range(0, 1<<50).Draw(t, "t")),
				Metrics: rapid.MapOfN(rapid.SampledFrom([]string{"acc", "loss", "<", "ä"}), rapid.Map(rapid.Float64(), training.M), 0, 3).Draw(t, "metrics"),
			})
		}
		if rapid.IntRange(0, 5).Draw(t, "decided") == 0 {
			r.Decision = &decision{3, protocol.OpStop, "median <"}
		}
		e := &Entry{N: rapid.Int64Range(1, 1<<40).Draw(t, "n"), Time: training.Millis(rapid.Int64Range(0, 1<<50).Draw(t, "time")), Kind: "reported", Reported: r}
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
		line, err := e.Encode()
		if err != nil || !bytes.Equal(line, want.Bytes()) {
			t.Fatalf("%s, want %s, %v", line, want.Bytes(), err)
		}
		check := func(line []byte) {
			var want Entry
			wantErr := json.Unmarshal(line, &want)
			got, err := DecodeEntry(line)
			if err != nil {
				if wantErr == nil && want.What() == want.Kind && want.Kind != "" {
					t.Fatalf("%s: %v", line, err)
				}
				return
			}
			if diff := cmp.Diff(&want, got, cmp.AllowUnexported(Entry{}, reported{}, decision{})); wantErr != nil || diff != "" {
				t.Fatalf("%s: %v %s", line, wantErr, diff)
			}
		}
		check(line)
		i := rapid.IntRange(0, len(line)-1).Draw(t, "at")
		with := rapid.SampledFrom([]string{"", "0", "-", `"`, "}", ",", " ", "x"}).Draw(t, "with")
		check(append(append(bytes.Clone(line[:i]), with...), line[min(len(line), i+rapid.IntRange(0, 1).Draw(t, "instead of")):]...))
	})
}
