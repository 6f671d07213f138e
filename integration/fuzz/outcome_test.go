package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestOutcomeIsReadFromWhatGoPrints(t *testing.T) {
	exit := errors.New("exit status 1")
	for name, test := range map[string]struct {
		out    string
		err    error
		want   outcome
		detail string
	}{
		"passed": {`fuzz: elapsed: 0s, gathering baseline coverage: 0/12 completed
fuzz: elapsed: 0s, gathering baseline coverage: 12/12 completed, now fuzzing with 2 workers
fuzz: elapsed: 3s, execs: 3868 (1289/sec), new interesting: 2 (total: 115)
fuzz: elapsed: 6s, execs: 20314 (5484/sec), new interesting: 15 (total: 128)
fuzz: elapsed: 6s, execs: 20314 (0/sec), new interesting: 15 (total: 128)
PASS
`, nil, outcome{executions: 20314, fresh: 15}, ""},
		"a new failure": {`fuzz: elapsed: 0s, gathering baseline coverage: 1/1 completed, now fuzzing with 1 workers
fuzz: elapsed: 3s, execs: 30 (10/sec), new interesting: 1 (total: 2)
fuzz: minimizing 34-byte failing input file
fuzz: elapsed: 4s, minimizing
--- FAIL: FuzzX (4.20s)
    --- FAIL: FuzzX (0.00s)
        x_test.go:12: it broke
    
    Failing input written to testdata/fuzz/FuzzX/bb3e1c2d9782108b
    To re-run:
    go test -run=FuzzX/bb3e1c2d9782108b
FAIL
`, exit, outcome{executions: 30, fresh: 1, input: "testdata/fuzz/FuzzX/bb3e1c2d9782108b", verdict: failed}, "x_test.go:12: it broke"},
		"a failure that is known": {`fuzz: elapsed: 0s, gathering baseline coverage: 0/3 completed
failure while testing seed corpus entry: FuzzX/a5c76efc9942e6b0
fuzz: elapsed: 0s, gathering baseline coverage: 1/3 completed
--- FAIL: FuzzX (0.02s)
    --- FAIL: FuzzX (0.00s)
        panic: runtime error: index out of range
FAIL
`, exit, outcome{input: "testdata/fuzz/FuzzX/a5c76efc9942e6b0", verdict: failed}, "index out of range"},
		"a failing seed of the target": {`failure while testing seed corpus entry: FuzzX/seed#3
--- FAIL: FuzzX (0.02s)
FAIL
`, exit, outcome{verdict: failed}, "--- FAIL"},
		"an input that takes for ever": {`fuzz: elapsed: 3s, execs: 4 (1/sec), new interesting: 0 (total: 1)
fuzz: elapsed: 6s, execs: 4 (0/sec), new interesting: 0 (total: 1)
fuzz: elapsed: 30s, execs: 4 (0/sec), new interesting: 0 (total: 1)
PASS
`, nil, outcome{executions: 4, verdict: stuck}, "after 3s of 30s"},
		"the end, which Go calls a failure": {"fuzz: elapsed: 40s, execs: 9 (1/sec), new interesting: 7 (total: 8)\n--- FAIL: FuzzX (40.09s)\n    context deadline exceeded\nFAIL\n", exit, outcome{executions: 9, fresh: 7}, ""},
		"a program that died":               {"fuzz: elapsed: 3s, execs: 4 (1/sec), new interesting: 0 (total: 1)\nSIGQUIT: quit\n", errors.New("signal: quit"), outcome{executions: 4, verdict: broken}, "signal: quit"},
		"nothing":                           {"", exit, outcome{verdict: broken}, "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := parseRun(test.out, test.err)
			if !strings.Contains(got.detail, test.detail) || strings.Contains(got.detail, "elapsed:") {
				t.Errorf("detail %q, want %q", got.detail, test.detail)
			}
			if got.detail = ""; got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestTargetsAreFunctionsOfTheirForm(t *testing.T) {
	const file = `package p
import "testing"
func FuzzOne(f *testing.F) {}
func (x) FuzzMethod(f *testing.F) {}
func FuzzHelper(t *testing.T) {}
func fuzzRecords(data []byte) {}
func TestFuzz(f *testing.F) {}
func FuzzTwo(f *testing.F) { f.Fuzz(func(t *testing.T, b []byte) {}) }
`
	got, err := targetsOf("p_test.go", file)
	if err != nil || !slices.Equal(got, []string{"FuzzOne", "FuzzTwo"}) {
		t.Errorf("%v, %v", got, err)
	}
}
