package training

import (
	"fmt"
	"strconv"
	"time"
)

// TrialID is a trial's sequence number within its experiment, from 1. It is written with at least four digits
// everywhere: in URLs, JSON and directory names.
type TrialID int

func (t TrialID) String() string { return fmt.Sprintf("%04d", int(t)) }

// MarshalText writes the id as in directory names.
func (t TrialID) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText accepts any number of leading zeros, and 0000 for no trial.
func (t *TrialID) UnmarshalText(b []byte) error {
	if string(b) == TrialID(0).String() {
		*t = 0
		return nil
	}
	n, err := ParseTrialID(string(b))
	*t = n
	return err
}

// ParseTrialID reads an id.
func ParseTrialID(s string) (TrialID, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || len(s) > 9 {
		return 0, fmt.Errorf("%q is not a trial id", truncate(s, 20))
	}
	return TrialID(n), nil
}

// State is where a trial is in its life; see the package comment.
type State string

// The states of a trial.
const (
	Pending   State = "PENDING"   // waits for an executor (again)
	Scheduled State = "SCHEDULED" // assigned to an executor, nothing heard yet
	Running   State = "RUNNING"   // has reported
	Completed State = "COMPLETED"
	Stopped   State = "STOPPED"
	Paused    State = "PAUSED"
	Failed    State = "FAILED"
	Invalid   State = "INVALID"
)

// Final reports whether no executor will work on the trial any more. PAUSED is not final: a promotion resumes it.
func (s State) Final() bool {
	return s == Completed || s == Stopped || s == Failed || s == Invalid
}

// Held reports whether an executor has the trial.
func (s State) Held() bool { return s == Scheduled || s == Running }

// Budget is how far an attempt goes: the first From epochs are done (they are in the checkpoint that it resumes from),
// the function ends after To epochs in all. To 0: until it returns.
type Budget struct {
	From int    `json:"from"`
	To   int    `json:"to"`
	Unit string `json:"unit"`
}

// Epoch is the only unit of budgets.
const Epoch = "epoch"

// TrialError is why an attempt failed, in words that tell the user what to do.
type TrialError struct {
	// Type is one of the codes below, or the class of the exception that the function raised.
	Type string `json:"type"`
	// Message is one line.
	Message string `json:"message"`
	// Traceback is the exception's, when there is one.
	Traceback string `json:"traceback,omitempty"`
	// Log is the path of the attempt's log in the filesystem.
	Log string `json:"log,omitempty"`
	// Remedy is what to do about it.
	Remedy string `json:"remedy,omitempty"`
}

// Codes of trial errors that the platform itself finds.
const (
	CodeNotFinite    = "MetricNotFinite"   // NaN or infinity as the metric that is searched for
	CodeNotNumber    = "MetricNotNumber"   // text, a list, ... reported as a metric
	CodeMissing      = "MetricMissing"     // neither reported nor returned
	CodeBackwards    = "StepBackwards"     // a step lower than the one before
	CodeNoReport     = "ReportTimeout"     // no report within the time allowed
	CodeTimeout      = "TrialTimeout"      // the trial took longer than allowed
	CodeNotWhole     = "GangTimeout"       // not all members of a gang came within the time allowed
	CodeIdle         = "GangIdle"          // all members of a gang waited, for nothing
	CodeNotEnding    = "MembersRemain"     // members of a gang did not end with its chief
	CodeNotStopping  = "StopTimeout"       // told to stop, did not, and was killed
	CodeExecutorLost = "ExecutorLost"      // the executor's container or its lease ended
	CodeProcessDied  = "ProcessDied"       // the trial's process was killed
	CodeInvalid      = "InvalidParameters" // the function raised InvalidParams, or failed on two nodes
	CodeExited       = "FunctionExited"    // the function called sys.exit
	CodeArguments    = "ArgumentMismatch"  // the function's parameters are not those of the trial
	CodeNoFunction   = "FunctionMissing"   // the module has no function of the name
	CodeSyntax       = "SyntaxError"       // the program is no Python, or of another version
	CodeForked       = "ReportFromFork"    // two processes of a trial reported
)

// Repeats reports whether trying the same parameters again would end the same way: the mistake is the function's.
func (e *TrialError) Repeats() bool {
	switch e.Type {
	case CodeNotFinite, CodeNotNumber, CodeMissing, CodeBackwards, CodeInvalid, CodeExited, CodeArguments, CodeNoFunction, CodeSyntax, CodeForked:
		return true
	}
	return false
}

// Exception reports whether the function raised it: the process, its container and its node are well as far as that tells.
func (e *TrialError) Exception() bool {
	switch e.Type {
	case CodeNoReport, CodeTimeout, CodeNotWhole, CodeIdle, CodeNotStopping, CodeExecutorLost, CodeProcessDied:
		return false
	}
	return true
}

// Error is one line with the remedy and the log.
func (e *TrialError) Error() string {
	s := e.Type + ": " + e.Message
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	if e.Log != "" {
		s += " (log: " + e.Log + ")"
	}
	return s
}

// Millis is a time in milliseconds since 1970, as the journal and the protocol write it.
type Millis int64

// MillisOf converts a wall-clock time.
func MillisOf(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time converts to a wall-clock time.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)) }

// Add moves the time.
func (m Millis) Add(d time.Duration) Millis { return m + Millis(d.Milliseconds()) }
