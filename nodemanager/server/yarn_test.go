package server

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
)

// runScript runs a launch in YARN's dialect in a directory of its own, and returns the log files.
func runScript(t *testing.T, spec *nodemanager.Spec, own map[string]string) map[string]string {
	t.Helper()
	dir := t.TempDir() + "/it's here"
	for _, sub := range []string{"work", "logs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text, err := script(spec, own, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, scriptFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := furnish(filepath.Join(dir, "work"), spec); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/bash", filepath.Join(dir, scriptFile))
	cmd.Dir, cmd.Env = filepath.Join(dir, "work"), []string{"PATH=" + os.Getenv("PATH"), "JAVA_HOME=/java"}
	out, err := cmd.CombinedOutput()
	files := map[string]string{}
	entries, _ := os.ReadDir(filepath.Join(dir, "logs"))
	for _, e := range entries {
		b, _ := os.ReadFile(filepath.Join(dir, "logs", e.Name()))
		files[e.Name()] = strings.ReplaceAll(string(b), dir, "DIR")
	}
	if err != nil {
		t.Errorf("%v %s %v", err, out, files)
	}
	return files
}

func TestScriptIsYARNs(t *testing.T) {
	spec := &nodemanager.Spec{
		Dialect: nodemanager.YARN,
		Env: map[string]string{
			"CLASSPATH": "{{PWD}}<CPS>{{BASE}}/lib/*", "BASE": "$ROOT/base", "ROOT": "${JAVA_HOME}", "QUOTED": `{"a": "b"}`, "ESCAPED": `\"x\"`, "ENDS": `\`,
			"LOOP1": "$LOOP2", "LOOP2": "$LOOP1", "USER": "mallory",
		},
		// What Spark's client makes of arguments with $ and quotation marks (YarnSparkHadoopUtil.escapeForShell).
		Argv: []string{`printf '%s\n' $CLASSPATH $USER '\$HOME \"q\"' "<LOG_DIR>" 1> <LOG_DIR>/stdout 2> <LOG_DIR>/stderr; echo \"$QUOTED\" \"$ESCAPED\" \"$ENDS\" >> '<LOG_DIR>'/stdout`},
	}
	// A log directory with an apostrophe is ours to quote, where YARN's <LOG_DIR> is not quoted.
	spec.Argv[0] = strings.NewReplacer(`1> <LOG_DIR>/stdout 2> <LOG_DIR>/stderr`, `1> \"<LOG_DIR>/stdout\"`, `"<LOG_DIR>"`, `-`, `'<LOG_DIR>'/stdout`, `\"<LOG_DIR>/stdout\"`).Replace(spec.Argv[0])
	files := runScript(t, spec, map[string]string{"USER": "alice", "PWD": "/nowhere"})
	want := "/nowhere:/java/base/lib/*\nalice\n$HOME \"q\"\n-\n"
	got := files["stdout"]
	if !strings.HasPrefix(strings.ReplaceAll(got, "DIR/work", "/nowhere"), want) {
		t.Errorf("stdout %q\nwant   %q\n%v", got, want, files)
	}
	for _, name := range []string{"prelaunch.out", "prelaunch.err", "launch_container.sh", "directory.info"} {
		if _, ok := files[name]; !ok {
			t.Errorf("no %s", name)
		}
	}
}

func TestVariablesComeAfterWhatTheyReferTo(t *testing.T) {
	got := byDependency(map[string]string{"A": "${C}:$B", "B": "$C", "C": "1", "D": "$D:$UNKNOWN", "E": "$F", "F": "$E"})
	if want := []string{"C", "B", "A", "D", "F", "E"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestScriptRefuses(t *testing.T) {
	for name, spec := range map[string]nodemanager.Spec{
		"two lines": {Argv: []string{"a", "b"}},
		"variable":  {Argv: []string{"a"}, Env: map[string]string{"A;rm": "x"}},
	} {
		if _, err := script(&spec, nil, "/d"); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestDiscoveryScriptCountsWhatTheContainerSees(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		file := filepath.Join(t.TempDir(), discoveryFile)
		if err := os.WriteFile(file, []byte(discovery(n)), 0o700); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("/bin/sh", file).Output()
		var answer struct {
			Name      string
			Addresses []string
		}
		if err == nil {
			err = json.Unmarshal(out, &answer)
		}
		if err != nil || answer.Name != "gpu" || !slices.Equal(answer.Addresses, []string{"0", "1", "2"}[:n]) {
			t.Errorf("%d: %s %v", n, out, err)
		}
	}
}
