package python

import (
	"archive/zip"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
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

// TestPython runs the package's own tests, with no Python package but the standard library: a process for each module, four at a
// time, because they wait more than they compute. They run in a copy that is compiled once, and not by each of the many
// processes that import it.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	root := t.TempDir()
	dir := filepath.Join(root, "client", "python")
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"internal", "training"} { // whose testdata are read
		path, err := filepath.Abs(filepath.Join("..", "..", name))
		if err == nil {
			err = os.Symlink(path, filepath.Join(root, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(python, "-m", "compileall", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	modules, err := filepath.Glob(filepath.Join(dir, "tests", "test_*.py"))
	if err != nil || len(modules) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	var all sync.WaitGroup
	turns := make(chan struct{}, 4)
	for _, module := range modules {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			cmd := exec.Command(python, "-W", "ignore", "-m", "unittest", "discover", "-s", "tests", "-p", filepath.Base(module))
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", module, err, out)
			}
		})
	}
	all.Wait()
}
