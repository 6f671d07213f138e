package python

import (
	"archive/zip"
	"bytes"
	"os"
	"os/exec"
	"testing"
)

func TestZipHoldsThePackage(t *testing.T) {
	data, sum := Zip()
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range r.File {
		found[f.Name] = true
	}
	for _, name := range []string{"hops/__init__.py", "hops/executor.py", "maggy/experiment.py", "maggy/core/exceptions.py", "tensorflowonspark/TFCluster.py"} {
		if !found[name] {
			t.Errorf("%s is missing", name)
		}
	}
	if len(sum) != 64 {
		t.Errorf("sha256 %q", sum)
	}
}

// TestPython runs the package's own tests, with no Python package but the standard library.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	cmd := exec.Command(python, "-W", "ignore", "-m", "unittest", "discover", "-s", "tests")
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
