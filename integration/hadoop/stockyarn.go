package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The programs of YARN: its command line, the distributed shell and MapReduce, unmodified, on a cluster of hops with one node.

// Classes of Hadoop's.
const (
	cliClass       = "org.apache.hadoop.yarn.client.cli."
	shellClass     = "org.apache.hadoop.yarn.applications.distributedshell.Client"
	runJar         = "org.apache.hadoop.util.RunJar"
	yarnPatience   = 2 * time.Minute
	mapredPatience = 5 * time.Minute
)

// yarnScene is the cluster with what its clients need.
type yarnScene struct {
	*suite
	dir, conf, jars string
	cluster         *process
	row             *row
}

// stockYARNRow runs the cases. Text is compared with what Apache YARN printed, where that was recorded.
func (s *suite) stockYARNRow(ctx context.Context) error {
	jars, err := s.cache.jars("yarn-client", filepath.Join(s.cache.source, "yarn"))
	if err != nil {
		return err
	}
	say("the stock yarn client, distributed shell and MapReduce")
	y := &yarnScene{suite: s, dir: filepath.Join(s.dir, "stockyarn"), jars: jars, row: &row{name: "stockyarn", title: "yarn, distributed shell, MapReduce of Hadoop"}}
	s.rows = append(s.rows, y.row)
	if err := y.start(ctx); err != nil {
		return err
	}
	defer y.cluster.stop()
	for _, part := range []func(context.Context) error{y.commands, y.shell, y.mapReduce} {
		if err := part(ctx); err != nil {
			return err
		}
		if err := y.cluster.ended(); err != nil {
			return err
		}
	}
	return nil
}

// start starts the cluster and writes the clients' configuration.
func (y *yarnScene) start(ctx context.Context) error {
	data := filepath.Join(y.dir, "data")
	y.conf = filepath.Join(y.dir, "conf")
	if err := os.MkdirAll(filepath.Join(y.dir, "tmp"), 0o755); err != nil {
		return err
	}
	var err error
	if y.cluster, err = start("dev", y.dir, nil, y.binary, "dev", "--data", data, "--ports", "random", "--gpus", "sim:2", "--datanodes", "1", "-D", "dfs.replication=1"); err != nil {
		return err
	}
	err = (&cluster{name: "hops dev", parts: []*process{y.cluster}}).await(ctx, time.Minute, func() error {
		text, err := os.ReadFile(y.cluster.log)
		if err == nil && !bytes.Contains(text, []byte("ready in ")) {
			err = errors.New("it does not say that it is ready")
		}
		return err
	})
	if err == nil {
		err = os.CopyFS(y.conf, os.DirFS(filepath.Join(data, "conf")))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(y.conf, "log4j.properties"), []byte(strings.Replace(log4j, "WARN", "INFO", 1)), 0o644)
	}
	if err == nil {
		err = addToSite(filepath.Join(y.conf, "yarn-site.xml"), [][2]string{{"yarn.application.classpath", y.conf + "," + filepath.Join(y.jars, "*")}})
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(y.conf, "mapred-site.xml"), []byte(siteXML([][2]string{
			{"mapreduce.framework.name", "yarn"},
			{"mapreduce.application.classpath", filepath.Join(y.jars, "*")},
			{"yarn.app.mapreduce.am.resource.mb", "512"},
			{"yarn.app.mapreduce.am.command-opts", "-Xmx400m"},
			{"mapreduce.map.memory.mb", "512"},
			{"mapreduce.reduce.memory.mb", "512"},
		})), 0o644)
	}
	if err != nil {
		y.cluster.stop()
	}
	return err
}

// java runs a class of Hadoop's and returns what it printed and its status. An error says that it did not run, or not in time.
func (y *yarnScene) java(ctx context.Context, patience time.Duration, class ...string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	argv := stockJava(y.dir, y.conf, filepath.Join(y.jars, "*"), class...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = y.dir, append(append(os.Environ(), javaEnv()...), "HADOOP_CONF_DIR="+y.conf)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := spawn(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	got := outcome{stdout: stdout.String(), stderr: stderr.String()}
	exit := new(exec.ExitError)
	switch {
	case ctx.Err() != nil:
		return got, fmt.Errorf("it does not end: %w", ctx.Err())
	case errors.As(err, &exit):
		got.status = exit.ExitCode()
		return got, nil
	}
	return got, err
}

// hops runs a command of ours.
func (y *yarnScene) hops(args ...string) (string, error) {
	return tool(y.dir, []string{"HADOOP_CONF_DIR=" + y.conf}, append([]string{y.binary}, args...)...)
}

// expected is what a command of the line is held to: its status, what its output matches, and the recording of Apache YARN's answer
// whose labels it has.
type expected struct {
	class     string
	args      []string
	status    int
	match     string
	recording string
}

// hold runs a command and makes a case of it.
func (y *yarnScene) hold(ctx context.Context, e expected, name string) (string, error) {
	got, err := y.java(ctx, yarnPatience, append([]string{cliClass + e.class}, e.args...)...)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case got.status != e.status:
		problem = fmt.Sprintf("status %d, expected %d", got.status, e.status)
	case !regexp.MustCompile(e.match).MatchString(got.stdout):
		problem = "the output does not match " + e.match
	case e.recording != "":
		recorded, err := os.ReadFile(filepath.Join(y.cache.source, "..", "..", "cmd", "hops", "testdata", "yarn", e.recording))
		if err != nil {
			return "", err
		}
		if want, have := labels(string(recorded)), labels(got.stdout); !slices.Equal(want, have) {
			problem = fmt.Sprintf("its lines are %q, and Apache YARN's %q", have, want)
		}
	}
	y.verdict(name, problem, got)
	return got.stdout, nil
}

func (y *yarnScene) verdict(name, problem string, got outcome) {
	if problem == "" {
		y.row.add(name, passed, "")
		return
	}
	y.row.add(name, failed, indent(problem+"\n"+got.stdout+lastOf(got.stderr, 15)))
}

func lastOf(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// labels are the beginnings of the lines of a report, up to the colon.
func labels(report string) []string {
	var out []string
	for line := range strings.Lines(report) {
		if label, _, ok := strings.Cut(line, " : "); ok && strings.HasPrefix(line, "\t") || strings.HasSuffix(label, " Report") {
			out = append(out, strings.TrimSpace(label))
		}
	}
	return out
}

var (
	applicationID = regexp.MustCompile(`application_\d+_\d+`)
	containerID   = regexp.MustCompile(`container_\w+`)
	nodeID        = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// commands are those that need no application.
func (y *yarnScene) commands(ctx context.Context) error {
	out, err := y.hold(ctx, expected{class: "NodeCLI", args: []string{"-list", "-all"}, match: `^Total Nodes:1\n[^\n]*Node-Id[^\n]*\n *127\.0\.0\.1:\d+\s+RUNNING\s`}, "node -list -all")
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		expected
	}{
		{"node -status", expected{class: "NodeCLI", args: []string{"-status", nodeID.FindString(out)}, match: `Node-State : RUNNING\n`, recording: "cli-node-status.txt"}},
		{"node -status x:1", expected{class: "NodeCLI", args: []string{"-status", "x:1"}, match: `^Could not find the node report for node id : x:1\n$`}},
		{"queue -list all", expected{class: "QueueCLI", args: []string{"-list", "all"}, match: `\| +default +\| +root\.default +\| +RUNNING +\| +100\.00% +\|`}},
		{"queue -status default", expected{class: "QueueCLI", args: []string{"-status", "default"}, match: `State : RUNNING\n`, recording: "cli-queue-status.txt"}},
		{"queue -status nosuch", expected{class: "QueueCLI", args: []string{"-status", "nosuch"}, status: 255, match: `^Cannot get queue from RM by queueName = nosuch, please check\.\n$`}},
		{"application -list -appStates BOGUS", expected{class: "ApplicationCLI", args: []string{"application", "-list", "-appStates", "BOGUS"}, status: 255, match: `^The application state BOGUS is invalid\.\n`}},
		{"application -status of none", expected{class: "ApplicationCLI", args: []string{"application", "-status", "application_1_0001"}, status: 255, match: `Application with id 'application_1_0001' doesn't exist in RM`}},
	} {
		if _, err := y.hold(ctx, c.expected, c.name); err != nil {
			return err
		}
	}
	return nil
}

// distributed is a run of the distributed shell.
func (y *yarnScene) distributed(ctx context.Context, command string) (outcome, error) {
	jar, err := filepath.Glob(filepath.Join(y.jars, "hadoop-yarn-applications-distributedshell-*.jar"))
	if err != nil || len(jar) != 1 {
		return outcome{}, fmt.Errorf("the distributed shell's jar is not in %s", y.jars)
	}
	return y.java(ctx, mapredPatience, shellClass, "-jar", jar[0], "-shell_command", command, "-num_containers", "2", "-master_memory", "256", "-container_memory", "128")
}

// shell runs the distributed shell, looks at it while it runs and kills it; another one ends by itself.
func (y *yarnScene) shell(ctx context.Context) error {
	type ended struct {
		outcome
		err error
	}
	long := make(chan ended, 1)
	go func() {
		o, err := y.distributed(ctx, "sleep 300")
		long <- ended{o, err}
	}()
	app := ""
	for deadline := time.Now().Add(yarnPatience); ; {
		got, err := y.java(ctx, yarnPatience, cliClass+"ApplicationCLI", "application", "-list", "-appStates", "RUNNING")
		if err == nil {
			app = applicationID.FindString(got.stdout)
		}
		if app != "" {
			attempt := strings.Replace(app, "application", "appattempt", 1) + "_000001"
			if got, err = y.java(ctx, yarnPatience, cliClass+"ApplicationCLI", "container", "-list", attempt); err == nil && len(regexp.MustCompile(`\sRUNNING\s`).FindAllString(got.stdout, -1)) == 3 {
				break
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the distributed shell has not started its containers within %v; the last question: %w\n%s%s", yarnPatience, cmp.Or(err, errors.New("answered")), got.stdout, lastOf(got.stderr, 10))
		}
	}
	attempt := strings.Replace(app, "application", "appattempt", 1) + "_000001"
	list, err := y.hold(ctx, expected{class: "ApplicationCLI", args: []string{"container", "-list", attempt}, match: `^Total number of containers :3\n`}, "container -list")
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		expected
	}{
		{"application -list", expected{class: "ApplicationCLI", args: []string{"application", "-list"}, match: app + `\s+DistributedShell\s+YARN\s+\S+\s+root\.default\s+RUNNING\s+UNDEFINED\s`}},
		{"application -status, running", expected{class: "ApplicationCLI", args: []string{"application", "-status", app}, match: `State : RUNNING\n`, recording: "cli-application-status-running.txt"}},
		{"applicationattempt -list", expected{class: "ApplicationCLI", args: []string{"applicationattempt", "-list", app}, match: `^Total number of application attempts :1\n[^\n]*\n` + attempt + `\s+RUNNING\s`}},
		{"applicationattempt -status", expected{class: "ApplicationCLI", args: []string{"applicationattempt", "-status", attempt}, match: `State : RUNNING\n`, recording: "cli-applicationattempt-status.txt"}},
		{"container -status", expected{class: "ApplicationCLI", args: []string{"container", "-status", containerID.FindString(list)}, match: `State : RUNNING\n`, recording: "cli-container-status.txt"}},
		{"application -kill", expected{class: "ApplicationCLI", args: []string{"application", "-kill", app}, match: `^Killing application ` + app + `\n`}},
		{"application -status, killed", expected{class: "ApplicationCLI", args: []string{"application", "-status", app}, match: `Final-State : KILLED\n`}},
		{"application -kill, again", expected{class: "ApplicationCLI", args: []string{"application", "-kill", app}, match: `^Application ` + app + ` has already finished`}},
	} {
		if _, err := y.hold(ctx, c.expected, c.name); err != nil {
			return err
		}
	}
	killed, problem := <-long, ""
	switch {
	case killed.err != nil:
		problem = killed.err.Error()
	case killed.status != 2 || !strings.Contains(killed.stderr, "YarnState=KILLED, DSFinalStatus=KILLED"):
		problem = fmt.Sprintf("the client of an application that was killed ends with %d", killed.status)
	}
	y.verdict("distributed shell, killed", problem, killed.outcome)
	got, err := y.distributed(ctx, "hostname")
	problem = ""
	switch {
	case err != nil:
		problem = err.Error()
	case got.status != 0 || !strings.Contains(got.stderr, "Application completed successfully"):
		problem = fmt.Sprintf("status %d", got.status)
	}
	y.verdict("distributed shell, 2 containers", problem, got)
	_, err = y.hold(ctx, expected{class: "LogsCLI", args: []string{"-applicationId", app}, match: `Container: container_`}, "logs -applicationId")
	return err
}

// mapReduce runs examples of MapReduce.
func (y *yarnScene) mapReduce(ctx context.Context) error {
	jar, err := filepath.Glob(filepath.Join(y.jars, "hadoop-mapreduce-examples-*.jar"))
	if err != nil || len(jar) != 1 {
		return fmt.Errorf("the examples' jar is not in %s", y.jars)
	}
	home := "/user/" + superuser()
	if _, err := y.hops("fs", "-mkdir", "-p", home+"/in"); err != nil {
		return err
	}
	// Enough words for each map to have some for each reduce.
	for i := range 3 {
		var text strings.Builder
		for k := range 10_000 {
			fmt.Fprintf(&text, "word%d all\n", (k+i)%100)
		}
		file := filepath.Join(y.dir, fmt.Sprintf("in%d", i))
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			return err
		}
		if _, err := y.hops("fs", "-put", file, home+"/in/"); err != nil {
			return err
		}
	}
	run := func(name string, check func(outcome) string, args ...string) error {
		got, err := y.java(ctx, mapredPatience, append([]string{runJar, jar[0]}, args...)...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		problem := ""
		switch {
		case err != nil:
			problem = err.Error()
		case got.status != 0:
			problem = fmt.Sprintf("status %d", got.status)
		default:
			problem = check(got)
		}
		y.verdict(name, problem, got)
		return nil
	}
	if err := run("MapReduce pi", func(o outcome) string {
		if !strings.Contains(o.stdout, "Estimated value of Pi is 3.12000000000000000000\n") {
			return "it is another number"
		}
		return ""
	}, "pi", "2", "100"); err != nil {
		return err
	}
	if err := run("MapReduce wordcount, 3 maps and 2 reduces", func(outcome) string {
		out, err := y.hops("fs", "-cat", home+"/out/part-r-*")
		if err != nil {
			return err.Error()
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		slices.Sort(lines)
		want := []string{"all\t30000"}
		for k := range 100 {
			want = append(want, fmt.Sprintf("word%d\t300", k))
		}
		slices.Sort(want)
		if !slices.Equal(lines, want) {
			return "the words are counted wrong:\n" + out
		}
		return ""
	}, "wordcount", "-Dmapreduce.job.reduces=2", home+"/in", home+"/out"); err != nil {
		return err
	}
	left := ""
	_ = (&cluster{name: "hops dev", parts: []*process{y.cluster}}).await(ctx, time.Minute, func() error {
		entries, err := os.ReadDir(filepath.Join(y.dir, "data", "nm", "apps"))
		if left = fmt.Sprint(entries, err); err == nil && len(entries) > 0 {
			err = errors.New("something is kept")
		} else if err == nil {
			left = ""
		}
		return err
	})
	y.verdict("nothing of ended jobs stays on the node", left, outcome{})
	return nil
}
