package server

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// TestHealthScriptsVerdict is the table of YARN's NodeHealthScriptRunner.
func TestHealthScriptsVerdict(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"plain": "#!/bin/sh\n", "rubbish": "\x00\x01\x02\x03"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "plain"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := func(text string) HealthScript {
		return HealthScript{Path: "/bin/sh", Args: []string{"-c", text}, Timeout: time.Minute}
	}
	short := sh("sleep 1000 & echo ERROR; wait")
	short.Timeout = 50 * time.Millisecond
	for name, c := range map[string]struct {
		script        HealthScript
		problem, note string // both as beginnings
	}{
		"well":              {sh("echo fine"), "", ""},
		"silent":            {sh(":"), "", ""},
		"error":             {sh("echo disk is slow; echo ERROR nvlink is down"), "disk is slow\nERROR nvlink is down", ""},
		"last line":         {sh("printf 'fine\\nERROR'"), "fine\nERROR", ""},
		"inside of a line":  {sh("echo no ERROR; echo ' ERROR'"), "", ""},
		"said elsewhere":    {sh("echo ERROR x >&2"), "", ""},
		"late":              {sh("yes fine | head -c 100000; echo ERROR late"), "ERROR late", ""},
		"endless line":      {sh("yes | tr -d '\\n' | head -c 3000000; echo; echo ERROR then"), "ERROR then", ""},
		"a mistake in it":   {sh("echo ERROR x; exit 3"), "", "the health script counts for nothing: it ended with exit status 3"},
		"takes too long":    {short, "Node health script timed out", ""},
		"is not there":      {HealthScript{Path: filepath.Join(dir, "gone"), Timeout: time.Minute}, "", "the health script is not run: stat"},
		"is a directory":    {HealthScript{Path: dir, Timeout: time.Minute}, "", "the health script is not run: " + dir},
		"is no executable":  {HealthScript{Path: filepath.Join(dir, "plain"), Timeout: time.Minute}, "", "the health script is not run"},
		"cannot be started": {HealthScript{Path: filepath.Join(dir, "rubbish"), Timeout: time.Minute}, "the health script could not be run", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problem, note := c.script.run(context.Background())
			if !strings.HasPrefix(problem, c.problem) || (problem == "") != (c.problem == "") || len(problem) > maxScriptOutput+200 ||
				!strings.HasPrefix(note, c.note) || (note == "") != (c.note == "") {
				t.Errorf("problem %q, note %q; want %q, %q", problem, note, c.problem, c.note)
			}
		})
	}
}

func TestAHealthScriptMakesTheNodeUnhealthyAndWellAgain(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	says := filepath.Join(t.TempDir(), "says")
	if err := os.WriteFile(says, []byte("ERROR the fans stand still\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.HealthScript = HealthScript{Path: "/bin/cat", Args: []string{says}, Interval: 20 * time.Millisecond, Timeout: time.Minute}
	run(t, c)
	m.until("unhealthy", func(r *rmpb.NodeReport) bool {
		return !r.Healthy && strings.Contains(r.HealthReport, "ERROR the fans stand still")
	})
	m.start(spec(t, 1, "true")) // what runs goes on, and who may start something here is the resource manager's matter
	if err := os.Rename(writeBeside(t, says, "fine\n"), says); err != nil {
		t.Fatal(err)
	}
	m.until("healthy", func(r *rmpb.NodeReport) bool { return r.Healthy && !strings.Contains(r.HealthReport, "fans") })
}

func writeBeside(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name + ".new"
}
