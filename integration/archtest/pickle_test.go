package archtest

import (
	"os/exec"
	"strings"
	"testing"
)

// The controller of an experiment, and whoever serves what experiments wrote, has nothing that could read a pickle: what comes from a network is JSON there.
// Where the Python package reads pickles is in client/python/tests/test_pickles.py.
func TestNothingThatServesCanReadAPickle(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./training/...", "./cmd/hops")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		if name := strings.ToLower(pkg); strings.Contains(name, "pickle") || strings.Contains(name, "gopy") {
			t.Errorf("the program is built with %s", pkg)
		}
	}
}
