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
	l.settle(t)
	if n := strings.Count(out.String(), "Slow flushOrSync"); n != atOnce {
		t.Errorf("%d lines", n)
	}
	next := end
	end = nil
	next()
	l.settle(t)
	if want := "Slow operations were left out: 7 of flush in 10s"; !strings.Contains(out.String(), want) {
		t.Errorf("%s does not say %q", &out, want)
	}
	o.Tell("another")
	l.settle(t)
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

// settle waits until all lines are written.
func (l *Log) settle(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		done := !l.writes
		l.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatal("lines wait")
		}
	}
}

// stuck is a writer that hangs until it is closed.
type stuck chan struct{}

func (s stuck) Write(p []byte) (int, error) {
	<-s
	return len(p), nil
}

// Who tells of a slow operation may hold what everybody waits for: it does not wait for a terminal, or a pipe that nobody reads.
func TestNobodyWaitsForTheLog(t *testing.T) {
	t.Parallel()
	hangs := make(stuck)
	l := &Log{Logger: slog.New(slog.NewTextHandler(hangs, nil)), after: func(time.Duration, func()) {}}
	for i := range 2 * waiting {
		l.Operation(fmt.Sprint(i), time.Second).Tell("slow")
	}
	l.mu.Lock()
	left := 0
	for _, o := range l.operations {
		left += o.leftOut
	}
	l.mu.Unlock()
	if left < waiting-1 {
		t.Errorf("%d are left out of %d", left, 2*waiting)
	}
	close(hangs)
	l.settle(t)
}
