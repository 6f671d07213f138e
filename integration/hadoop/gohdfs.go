package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gohops/hops/client/dfs"
)

// The Go library whose own tests are run, and its version.
const (
	gohdfsModule  = "github.com/colinmarc/hdfs/v2"
	gohdfsVersion = "v2.4.0"
)

// gohdfs fetches the library with its tests. It returns a folder that can be written to.
func (c *cache) gohdfs() (string, error) {
	return c.once("gohdfs-"+gohdfsVersion, gohdfsModule+gohdfsVersion, func(dir string) error {
		say("fetching %s %s, once", gohdfsModule, gohdfsVersion)
		// Outside of our own module.
		scratch, err := os.MkdirTemp("", "hops-compat-module-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(scratch)
		out, err := tool(scratch, []string{"GOFLAGS=-mod=mod", "GOWORK=off"}, "go", "mod", "download", "-json", gohdfsModule+"@"+gohdfsVersion)
		if err != nil {
			return err
		}
		var module struct{ Dir string }
		if err := json.Unmarshal([]byte(out), &module); err != nil {
			return fmt.Errorf("go mod download: %w", err)
		}
		return copyTree(module.Dir, dir)
	})
}

// copyTree copies files, which may be read-only, to where they can be written.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o644)
	})
}

// gohdfsRow runs the library's own tests against a cluster.
func (s *suite) gohdfsRow(ctx context.Context, name, title string, c *cluster) error {
	dir, err := s.cache.gohdfs()
	if err != nil {
		return err
	}
	say("%s", title)
	row := &row{name: name, title: title}
	s.rows = append(s.rows, row)
	if err := gohdfsFixtures(ctx, c, dir); err != nil {
		return err
	}
	binary := filepath.Join(s.cache.dir, "gohdfs.test")
	if _, err := tool(dir, []string{"GOFLAGS=-mod=mod", "GOWORK=off"}, "go", "test", "-c", "-o", binary, "."); err != nil {
		return fmt.Errorf("building the tests of %s: %w", gohdfsModule, err)
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", binary, "-test.v=test2json", "-test.timeout", "300s")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HADOOP_CONF_DIR="+c.conf, "HADOOP_USER_NAME="+superuser())
	out, err := output(cmd)
	if len(out) == 0 {
		return fmt.Errorf("the tests of %s did not run: %w", gohdfsModule, err)
	}
	results, err := readTests(out, false)
	if err != nil {
		return err
	}
	skipped := 0
	for _, r := range results {
		switch {
		case r.verdict == "skip": // by itself, on Apache HDFS too
			skipped++
			row.add(r.name, passed, "")
		case r.verdict == "pass":
			row.add(r.name, passed, "")
		case saysUnsupported(r.output):
			row.add(r.name, unsupported, indent(r.output))
		default:
			row.add(r.name, failed, indent(r.output))
		}
	}
	if skipped > 0 {
		row.note = fmt.Sprintf("%d of the tests skip themselves, always or for want of Kerberos; they count as passed", skipped)
	}
	return nil
}

// gohdfsFixtures makes what the tests expect to find.
func gohdfsFixtures(ctx context.Context, c *cluster, dir string) error {
	fs, err := c.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	if _, err := fs.Delete(ctx, "/_test", true); err != nil && !snapshotted(err) {
		return err
	}
	if err := fs.Mkdirs(ctx, "/_test", 0o777, true); err != nil {
		return err
	}
	if err := fs.SetPermission(ctx, "/_test", 0o777); err != nil {
		return err
	}
	for name, blockSize := range map[string]int64{"foo.txt": 0, "mobydick.txt": 1 << 20} {
		data, err := os.ReadFile(filepath.Join(dir, "testdata", name))
		if err != nil {
			return err
		}
		w, err := fs.Create(ctx, "/_test/"+name, dfs.CreateOptions{Overwrite: true, BlockSize: blockSize})
		if err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
	}
	return nil
}

// testResult is how one top-level test ended.
type testResult struct {
	name, verdict, output string
}

// readTests reads what test2json prints: the top-level tests, or with leaves their parts in place of those that have some.
// A test that did not end, because the program died, has failed.
func readTests(out []byte, leaves bool) ([]testResult, error) {
	byName, hasParts := map[string]*testResult{}, map[string]bool{}
	var order []string
	lines := bufio.NewReader(bytes.NewReader(out))
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("test2json: %w", err)
		}
		name, _, sub := strings.Cut(event.Test, "/")
		if name == "" {
			continue
		}
		if leaves && sub {
			hasParts[name] = true
			name, sub = event.Test, false
		}
		r := byName[name]
		if r == nil {
			r = &testResult{name: name, verdict: "did not end"}
			byName[name] = r
			order = append(order, name)
		}
		switch event.Action {
		case "output":
			r.output += event.Output
		case "pass", "fail", "skip":
			if !sub {
				r.verdict = event.Action
			}
		}
	}
	slices.Sort(order)
	var results []testResult
	for _, name := range order {
		if !hasParts[name] {
			results = append(results, *byName[name])
		}
	}
	return results, nil
}

func indent(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > 25 {
		lines = append(lines[:25], "...")
	}
	return "  " + strings.Join(lines, "\n  ") + "\n"
}
