// Package process tests the hops program as users have it: real processes on loopback, which are killed, frozen and
// started again. Its tests hold the promises about crashes; its helpers are for the other tests of the program too.
package process

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Main runs the tests (testing.M) of a package that uses Binary, and removes what Binary made: TestMain calls it.
func Main(m interface{ Run() int }) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue && runtime.GOMAXPROCS(0) < 4 {
		_ = f.Value.Set("4") // tests of processes wait more than they compute
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

var built struct {
	once      sync.Once
	dir, path string
	err       error
}

// Binary is the hops program under test: HOPS_BINARY, or one that is built, once per test process.
func Binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() { built.path, built.err = build() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

func build() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	// go test keeps results as long as the files that a test looked at stay the same: look at the program's sources.
	for _, top := range []string{"client", "cmd", "datanode", "examples", "internal", "metadata", "namenode", "nodemanager", "resourcemanager", "training"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				_, err = os.Stat(name)
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) { // a file may vanish while an editor saves it
			return "", err
		}
	}
	if path := os.Getenv("HOPS_BINARY"); path != "" {
		return filepath.Abs(path)
	}
	if built.dir, err = os.MkdirTemp("", "hops-test-"); err != nil {
		return "", err
	}
	if err := os.Chmod(built.dir, 0o755); err != nil { // a test runs it as nobody
		return "", err
	}
	path := filepath.Join(built.dir, "hops")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w -X main.version=test", "-o", path, "./cmd/hops")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/hops: %w\n%s", err, out)
	}
	return path, nil
}

// moduleRoot is the directory of go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above %s", strings.TrimSuffix(dir, "/"))
		}
		dir = up
	}
}
