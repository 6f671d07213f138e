package protocol

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gohops/hops/training"
)

var metrics = rapid.Custom(func(t *rapid.T) training.Metric {
	return rapid.OneOf(
		rapid.Map(rapid.Float64(), training.M),
		rapid.Map(rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1, 1e21, 1e-7, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(-1)}), training.M),
		rapid.Just(training.Metric{Text: "x"}),
	).Draw(t, "metric")
})

var someEvents = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) MetricEvent {
	return MetricEvent{
		Seq: rapid.Int64().Draw(t, "seq"), Step: rapid.Int64Range(-3, 1000).Draw(t, "step"), Time: training.Millis(rapid.Int64Min(0).Draw(t, "t")),
		Metrics: rapid.OneOf(
			rapid.Just(map[string]training.Metric(nil)),
			rapid.MapOfN(rapid.SampledFrom([]string{"acc", "loss", "val/acc", "a b", "ä", `"`, `\`, "<&>", "\x7f", ""}), metrics, 0, 10),
		).Draw(t, "metrics"),
	}
}), 0, 4)

func encoded(t *rapid.T, v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

var same = cmp.Comparer(func(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || math.IsNaN(a) && math.IsNaN(b)
})

// Events are written byte for byte as encoding/json writes them, and what was written is read back.
func TestEventsAreWrittenAsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := Events(someEvents.Draw(t, "events"))
		got, ok := e.AppendJSON(nil)
		if !ok {
			return
		}
		if want := encoded(t, e); !bytes.Equal(got, want) {
			t.Fatalf("%s, want %s", got, want)
		}
		if back, rest, ok := ParseEvents(append(got, "}}"...)); ok {
			if diff := cmp.Diff(e, back, same); diff != "" || string(rest) != "}}" {
				t.Fatal(diff, string(rest))
			}
		}
	})
}

// A report is read as encoding/json reads it, whatever stands in it, and refused when that refuses it.
func TestReportsAreReadAsJSON(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, body []byte) {
		var want Report
		wantErr := json.Unmarshal(body, &want)
		got, err := ParseReport(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%s: %v, want %v", body, err, wantErr)
		}
		if diff := cmp.Diff(want, got, same); err == nil && diff != "" {
			t.Fatalf("%s: %s", body, diff)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		body := encoded(t, Report{
			Rank: rapid.IntRange(0, 2).Draw(t, "rank"), Events: someEvents.Draw(t, "events"), LogBytes: rapid.Int64Range(0, 9).Draw(t, "log"), IdleMS: rapid.Int64Range(0, 1).Draw(t, "idle"),
		})
		if rapid.Bool().Draw(t, "as Python writes it") {
			body = bytes.ReplaceAll(bytes.ReplaceAll(body, []byte(`,"`), []byte(`, "`)), []byte(`":`), []byte(`": `))
		}
		check(t, body)
		for range 5 {
			i := rapid.IntRange(0, len(body)-1).Draw(t, "at")
			with := rapid.SampledFrom([]string{"", "0", "-", ".", "e", `"`, "{", "}", "[", "]", ",", ":", " ", "\n", `\u0041`, "null", "1.5", "ß", "\x00"}).Draw(t, "with")
			end := min(len(body), i+rapid.IntRange(0, 2).Draw(t, "instead of"))
			check(t, append(append(bytes.Clone(body[:i]), with...), body[end:]...))
		}
	})
	for _, body := range []string{
		``, `{}`, `null`, `{"events":null}`, `{"events":[]}`, `{"events":[{}]}`, `{"events":[{"metrics":{"a":1},"metrics":{"b":2}}]}`, `{"events":[{"metrics":{"a":1,"a":2}}]}`,
		`{"Events":[{"SEQ":1}]}`, `{"events":[{"seq":1e2}]}`, `{"events":[{"seq":01}]}`, `{"events":[{"seq":9223372036854775807}]}`, `{"events":[{"seq":9223372036854775808}]}`,
		`{"events":[{"metrics":{"a":1e999}}]}`, `{"events":[{"metrics":{"a":"NaN"}}]}`, `{"events":[{"metrics":{"a":-0}}]}`, `{"events":[{"seq":-0}]}`, `{"events":[]}x`, `{"events":[],}`,
		`{"new":{"a":[1]},"events":[{"seq":1,"new":2}]}`,
	} {
		check(t, []byte(body))
	}
}
