package slowlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLinesAreFewAndWhatIsLeftOutIsCounted(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var end func()
	l := &Log{Logger: slog.New(slog.NewTextHandler(&out, nil)), after: func(d time.Duration, f func()) {
		if d != window || end != nil {
			t.Errorf("a window of %v, %v", d, end != nil)
		}
		end = f
	}}
	o := l.Operation("flush", 300*time.Millisecond)
	for i, r := range []struct {
		took time.Duration
		slow bool
	}{{299 * time.Millisecond, false}, {300 * time.Millisecond, true}, {time.Hour, true}} {
		if o.Slow(r.took) != r.slow {
			t.Errorf("%d: %v", i, r.took)
		}
	}
	for i := range atOnce + 7 {
		o.Tell("Slow flushOrSync took %dms", i)
	}
	if n := strings.Count(out.String(), "Slow flushOrSync"); n != atOnce {
		t.Errorf("%d lines", n)
	}
	next := end
	end = nil
	next()
	if want := "Slow operations were left out: 7 of flush in 10s"; !strings.Contains(out.String(), want) {
		t.Errorf("%s does not say %q", &out, want)
	}
	o.Tell("another")
	if !strings.Contains(out.String(), "another") || end == nil {
		t.Error("nothing is told in the next window")
	}
	if o.Count() != atOnce+8 {
		t.Errorf("counted %d", o.Count())
	}
	var f figures
	l.Figures(&f)
	if want := fmt.Sprintf("hops_slow_operations_total [operation flush] %d\n", atOnce+8); string(f) != want {
		t.Errorf("%q, want %q", string(f), want)
	}
}

func TestNothingIsSlowWithoutALimit(t *testing.T) {
	t.Parallel()
	var none *Log
	if o := none.Operation("rpc", time.Second); o.Slow(time.Hour) || o.Limit() != 0 || o.Count() != 0 {
		t.Error("no log has a slow operation")
	}
	if new(Log).Operation("rpc", 0).Slow(time.Hour) {
		t.Error("slow without a limit")
	}
}

type figures string

func (f *figures) Gauge(string, string, float64, ...string) {}
func (f *figures) Counter(name, _ string, value float64, labels ...string) {
	*f += figures(fmt.Sprintf("%s %v %v\n", name, labels, value))
}
