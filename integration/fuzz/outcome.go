package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// verdict is what became of a target.
type verdict uint8

const (
	passed verdict = iota
	// failed: an input brought it down.
	failed
	// stuck: one input took it more than half of its time.
	stuck
	// broken: its program ended in another way.
	broken
	// unbuilt: its program cannot be built.
	unbuilt
)

func (v verdict) String() string {
	return [...]string{"passed", "FAILED", "STUCK", "BROKEN", "CANNOT BE BUILT"}[v]
}

// outcome is a run of a target.
type outcome struct {
	target     string
	executions int
	fresh      int    // inputs that reached code which none before had reached
	input      string // the file of the failing input
	detail     string // what went wrong
	verdict    verdict
}

func (o outcome) String() string {
	s := fmt.Sprintf("%s: %s, %d executions, %d new inputs", o.target, o.verdict, o.executions, o.fresh)
	if o.input != "" {
		s += "\n  the input: " + o.input
	}
	if o.verdict != passed {
		s += "\n  " + strings.ReplaceAll(o.detail, "\n", "\n  ")
	}
	return s
}

// The lines of Go's fuzzing engine that count.
var (
	progressLine = regexp.MustCompile(`^fuzz: elapsed: (\S+), execs: (\d+) \(\d+/sec\), new interesting: (\d+)`)
	baselineLine = regexp.MustCompile(`^fuzz: elapsed: (\S+), gathering baseline coverage`)
	writtenLine  = regexp.MustCompile(`^\s+Failing input written to (\S+)`)
	seedLine     = regexp.MustCompile(`^failure while testing seed corpus entry: (\S+)/(\S+)`)
)

// deadline is all that is said of a target that ran to its end.
const deadline = "context deadline exceeded"

// maxDetail bounds the lines of a failure that are shown.
const maxDetail = 40

// parseRun reads what a test program printed while it ran one target; err is how it ended.
func parseRun(out string, err error) outcome {
	var o outcome
	var elapsed, moved time.Duration // of the run, and when executions went up last
	var detail []string
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\r\n")
		if m := progressLine.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[2])
			o.fresh, _ = strconv.Atoi(m[3])
			elapsed, _ = time.ParseDuration(m[1])
			if n > o.executions {
				moved = elapsed
			}
			o.executions = n
			continue
		}
		if m := baselineLine.FindStringSubmatch(line); m != nil {
			elapsed, _ = time.ParseDuration(m[1])
			moved = elapsed
			continue
		}
		if m := writtenLine.FindStringSubmatch(line); m != nil {
			o.input = m[1]
		} else if m := seedLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil && !strings.HasPrefix(m[2], "seed#") {
			o.input = "testdata/fuzz/" + m[1] + "/" + m[2]
		}
		if !strings.HasPrefix(line, "fuzz: ") && len(detail) < maxDetail {
			detail = append(detail, line)
		}
	}
	switch {
	case err != nil && o.input == "" && slices.Contains(detail, "    "+deadline):
		// Go's engine reports its own end as a failure when it comes while an input is made small (golang/go#75804).
	case err != nil && (o.input != "" || strings.Contains(out, "--- FAIL: ")):
		o.verdict = failed
	case err != nil:
		o.verdict = broken
		detail = append(detail, err.Error())
	case elapsed-moved > max(10*time.Second, elapsed/2):
		o.verdict = stuck
		detail = []string{fmt.Sprintf("nothing was executed after %v of %v: one input takes all the time", moved, elapsed)}
	}
	if o.verdict != passed {
		o.detail = strings.Join(detail, "\n")
	}
	return o
}
