package job

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// After is an application that a job waits for, and what it waits for of it.
type After struct {
	Application string `json:"application"`
	// State is succeeded (default), failed, ended or started.
	State rm.Outcome `json:"state,omitempty"`
}

// Dependencies are what the job waits for, each once.
func (s *Spec) Dependencies() []rm.Dependency {
	var out []rm.Dependency
	for _, a := range s.After {
		id, _ := rm.ParseApplicationID(a.Application) // see checkWhen
		d := rm.Dependency{Application: id, Outcome: a.State}
		if d.Outcome == "" {
			d.Outcome = rm.OutcomeSucceeded
		}
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// Due is the job's deadline, for one that is submitted now; 0: there is none.
func (s *Spec) Due(now time.Time) metadata.Time {
	at, d, _ := parseDeadline(s.Deadline) // see checkWhen
	if d > 0 {
		at = now.Add(d)
	}
	if at.IsZero() {
		return 0
	}
	return metadata.TimeOf(at)
}

// maxDeadline bounds how far from now a deadline lies that is a span of time.
const maxDeadline = 10 * 365 * 24 * time.Hour

// parseDeadline reads a time with its zone, or a span of time.
func parseDeadline(text string) (at time.Time, span time.Duration, err error) {
	if text == "" {
		return at, 0, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err == nil {
		if at.Year() < 1971 || at.Year() > 9999 {
			return at, 0, fmt.Errorf("year %d", at.Year())
		}
		return at, 0, nil
	}
	if span, err = time.ParseDuration(text); err == nil && (span <= 0 || span > maxDeadline) {
		err = fmt.Errorf("out of range")
	}
	return at, span, err
}

// checkWhen looks at what says when a job runs.
func (s *Spec) checkWhen(wrong func(ok bool, format string, args ...any)) {
	wrong(len(s.After) <= rm.MaxAfter, "after: at most %d applications", rm.MaxAfter)
	for i, a := range s.After[:min(len(s.After), rm.MaxAfter)] {
		_, err := rm.ParseApplicationID(a.Application)
		wrong(err == nil, "after[%d].application: %.100q is no application's id", i, a.Application)
		wrong(a.State == "" || slices.Contains(rm.Outcomes, string(a.State)), "after[%d].state: %.40q is not one of %s", i, a.State, strings.Join(rm.Outcomes, ", "))
	}
	_, _, err := parseDeadline(s.Deadline)
	wrong(err == nil, `deadline: %.100q is neither a time ("2027-01-31T18:00:00+01:00") nor how long from the submission on ("8h")`, s.Deadline)
}
