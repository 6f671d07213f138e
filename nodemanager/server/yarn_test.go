package server

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// runScript runs a launch in YARN's dialect in a directory of its own, and returns the log files.
func runScript(t *testing.T, spec *nodemanager.Spec, own map[string]string) map[string]string {
	t.Helper()
	dir := t.TempDir()
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

func TestOptionsOfNewJavas(t *testing.T) {
	for version, old := range map[string]bool{"1.8.0_402": true, "9": true, "9.0.4": true, "11.0.2": true, "16": true, "17.0.1": false, "21": false, "100": false} {
		if got := oldJava.MatchString("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"" + version + "\"\n"); got != old {
			t.Errorf("%s is old: %v", version, got)
		}
	}
	if got := expand("{{JAVA_HOME}}/bin/java <ADD_OPENS> X", "/l"); strings.Contains(got, "<") || !strings.HasPrefix(got, "$JAVA_HOME/bin/java ") {
		t.Error(got)
	}
}

func TestScriptIsYARNs(t *testing.T) {
	spec := &nodemanager.Spec{
		Dialect: nodemanager.YARN,
		Env: map[string]string{
			"CLASSPATH": "{{PWD}}<CPS>{{BASE}}/lib/*", "BASE": "$ROOT/base", "ROOT": "${JAVA_HOME}", "QUOTED": `{"a": "b"}`, "ESCAPED": `\"x\"`, "ENDS": `\`,
			"LOOP1": "$LOOP2", "LOOP2": "$LOOP1", "USER": "mallory",
		},
		// What Spark's client makes of arguments with $ and quotation marks (YarnSparkHadoopUtil.escapeForShell).
		Argv: []string{`printf '%s\n' $CLASSPATH $USER '\$HOME \"q\"' '$QUOTED' '$ESCAPED' '$ENDS' 1> <LOG_DIR>/stdout 2> <LOG_DIR>/stderr`},
	}
	files := runScript(t, spec, map[string]string{"USER": "alice"})
	want := "DIR/work:/java/base/lib/*\nalice\n$HOME \"q\"\n{\"a\": \"b\"}\n\"x\"\n\\\n"
	if got := files["stdout"]; got != want {
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

// yarnSpec is a container in YARN's dialect with an archive that is shared.
func yarnSpec(t *testing.T, n int, command string) *rmpb.ContainerSpec {
	s := spec(t, n, command)
	s.Dialect, s.Tokens, s.LogDir = "yarn", true, "/logs/"+s.ContainerId
	s.Env = map[string]string{"CLASSPATH": "{{PWD}}/libs/*"}
	s.Artifacts = []*rmpb.Artifact{{Name: "libs", Uri: "hdfs://127.0.0.1:8020/libs.zip", Kind: "archive", Timestamp: 1, Visibility: "private"}}
	return s
}

func libs(t *testing.T) *memoryFS {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.Create("a.jar")
	if err == nil {
		_, err = f.Write([]byte("A"))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	fs := newMemoryFS()
	fs.put("/libs.zip", b.String())
	return fs
}

// linkedDir is a work directory whose containers are linked to trees. These are for reading only, and a test that is not root's could not remove
// them as it does others.
func linkedDir(t *testing.T) string {
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := state.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestContainersInYARNsDialect(t *testing.T) {
	m, work, files := newManager(t, ""), linkedDir(t), libs(t)
	brought := token.File{Tokens: token.Credentials{{Alias: "", Token: token.Token{Identifier: []byte("i"), Password: []byte("p"), Kind: "YARN_AM_RM_TOKEN"}}}}
	m.give = func(q *rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error) {
		if !q.GetSecrets() {
			t.Error("what the launch brings is not asked for")
		}
		return &rmpb.CredentialsResponse{LaunchTokens: brought.Encode(), Token: &rmpb.Token{Identifier: []byte("f"), Password: []byte("q"), Kind: token.Kind}}, nil
	}
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	n := run(t, c)
	<-n.Ready()
	// Each changes what is shared, if it can; the second would see it. An uid of its own, or a mount, keeps it from that.
	command := "test -e $LOCAL_DIRS/first && echo shared > <LOG_DIR>/shared; touch $LOCAL_DIRS/first; (chmod -R u+w -L libs; echo B > libs/a.jar) 2>/dev/null; cat libs/a.jar; test -d $PWD/tmp && echo $CLASSPATH; " +
		"cat $HADOOP_TOKEN_FILE_LOCATION | tr -d '\\0' | grep -ao YARN_AM_RM_TOKEN; ./gpu-discovery.sh"
	for i := range 2 {
		s := yarnSpec(t, i+1, "{ "+command+"; } > <LOG_DIR>/stdout 2> <LOG_DIR>/stderr")
		m.start(s)
		if st := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); st.ExitStatus != 0 {
			t.Fatal(st)
		}
		name := "/logs/" + s.ContainerId + "/stdout"
		eventually(t, name, func() bool { return strings.Contains(files.get(name), "addresses") })
		want := "A" + work + "/containers/" + s.ContainerId + "/work/libs/a.jar\nYARN_AM_RM_TOKEN\n{\"name\": \"gpu\", \"addresses\": []}\n"
		got := files.get(name)
		if n.protection.exposed != "" { // nothing keeps a container from what its own user id may do
			got, want = got[strings.Index(got, "YARN_AM"):], want[strings.Index(want, "YARN_AM"):]
		}
		if got != want {
			t.Errorf("container %d: %q, want %q", i, got, want)
		}
	}
	eventually(t, "the second to find what the first has shared", func() bool { return files.get("/logs/"+containerName(2)+"/shared") == "shared\n" })
	m.order(&rmpb.NodeOrders{Cleanup: []string{containerName(1), containerName(2)}})
	eventually(t, "the shared directory to go with the last container", func() bool {
		left, err := os.ReadDir(filepath.Join(work, "apps"))
		return err == nil && len(left) == 0
	})
	if trees, err := os.ReadDir(filepath.Join(work, "trees")); err != nil || len(trees) != 1 {
		t.Errorf("%v %v", trees, err)
	}
}

// A container that was adopted goes on using what it is linked to.
func TestAdoptedContainersKeepWhatTheyAreLinkedTo(t *testing.T) {
	m, work, files := newManager(t, ""), linkedDir(t), libs(t)
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	n := run(t, c)
	s := yarnSpec(t, 1, "while test ! -e go; do sleep 0.1; done; cat libs/a.jar > <LOG_DIR>/stdout")
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	n.close(false)
	c = baseConfig(t, work, m.address)
	c.NodeID, c.FS = n.config.NodeID, n.config.FS
	n = run(t, c)
	<-n.Ready()
	if trees := n.find(nodemanager.ContainerID(s.ContainerId)).trees; len(trees) != 1 {
		t.Errorf("held after a restart: %v", trees)
	}
	if err := os.WriteFile(filepath.Join(work, "containers", s.ContainerId, "work", "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	name := "/logs/" + s.ContainerId + "/stdout"
	eventually(t, name, func() bool { return files.get(name) == "A" })
}

// The directory of an application goes with its last container here, also when that one was never started and knows nothing of it; while
// there are several, each knows how many.
func TestTheDirectoryOfAnApplicationGoesWithItsLastContainer(t *testing.T) {
	m, work, files := newManager(t, ""), linkedDir(t), libs(t)
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	n := run(t, c)
	<-n.Ready()
	first, second := yarnSpec(t, 1, "echo shuffle > $LOCAL_DIRS/data"), yarnSpec(t, 2, "sleep 100")
	m.start(first)
	m.untilState(first.ContainerId, rmpb.ContainerStatus_COMPLETE)
	m.start(second)
	m.untilState(second.ContainerId, rmpb.ContainerStatus_RUNNING)
	if got := n.find(nodemanager.ContainerID(second.ContainerId)).sharers(); got != 2 {
		t.Errorf("%d containers share the directory", got)
	}
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: second.ContainerId, Reason: "x"}, {ContainerId: containerName(3), Reason: "never started"}}})
	m.untilState(second.ContainerId, rmpb.ContainerStatus_COMPLETE)
	m.untilState(containerName(3), rmpb.ContainerStatus_COMPLETE)
	for _, id := range []string{first.ContainerId, second.ContainerId, containerName(3)} {
		if left, err := os.ReadDir(filepath.Join(work, "apps")); err != nil || len(left) != 1 {
			t.Errorf("before %s is forgotten: %v, %v", id, left, err)
		}
		m.order(&rmpb.NodeOrders{Cleanup: []string{id}})
		eventually(t, "a container to be forgotten", func() bool { return n.find(nodemanager.ContainerID(id)) == nil })
	}
	eventually(t, "the directory to go", func() bool {
		left, err := os.ReadDir(filepath.Join(work, "apps"))
		return err == nil && len(left) == 0
	})
}
