package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gohops/hops/cmd/processes"
)

//go:embed testdata/*.py
var scripts embed.FS

// test is one application, submitted by spark-submit.
type test struct {
	name, script string
	args         []string
	cluster      bool // the driver is the application's master
	upload       bool // Spark's own jars are uploaded as by default, and not taken from where they are
	conf         map[string]string
	// prints are to be found in the driver's output.
	prints []string
	// check looks at what is left, given the application's id and what spark-submit and the driver have printed.
	check func(ctx context.Context, s *suite, app, output string) error
}

var cases = []test{
	{name: "pi, client mode", script: "pi.py", prints: []string{"Pi is roughly 3."}, check: finished("SUCCEEDED", 1)},
	{name: "pi, cluster mode, jars uploaded", script: "pi.py", cluster: true, upload: true, prints: []string{"Pi is roughly 3."}, check: finished("SUCCEEDED", 1)},
	{
		name: "data and event log", script: "data.py", args: []string{"{{fs}}/data-{{version}}"},
		conf:   map[string]string{"spark.eventLog.enabled": "true", "spark.eventLog.dir": "{{fs}}/events-{{version}}"},
		prints: []string{"weeks [(0, 28572), (1, 28572), (2, 28572), (3, 28571), (4, 28571), (5, 28571), (6, 28571)]", "words [('a', 3), ('b', 2)]"},
		check:  eventLog,
	},
	{
		name: "dynamic allocation, shuffle tracking", script: "dynamic.py", conf: map[string]string{
			"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true", "spark.dynamicAllocation.executorIdleTimeout": "3s",
			"spark.dynamicAllocation.minExecutors": "0", "spark.dynamicAllocation.maxExecutors": "2",
		},
		prints: []string{"idle without executors", "and back"}, check: finished("SUCCEEDED", 1),
	},
	{
		name: "GPU executors", script: "gpus.py", conf: map[string]string{
			"spark.executor.instances": "2", "spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1",
			"spark.executor.resource.gpu.discoveryScript": "./gpu-discovery.sh",
		},
		prints: []string{"tasks 4 devices 2"}, check: finished("SUCCEEDED", 1),
	},
	{name: "executor killed with -9", script: "killed.py", prints: []string{"sum 8"}, check: finished("SUCCEEDED", 1)},
	{name: "master killed with -9", script: "master.py", cluster: true, prints: []string{"attempt 02 counts 1000"}, check: finished("SUCCEEDED", 2)},
	{
		name: "external shuffle service: refused", script: "refused.py", conf: map[string]string{"spark.shuffle.service.enabled": "true"},
		prints: []string{"no executor came: True"}, check: refused,
	},
}

// suite is a run.
type suite struct {
	cluster *cluster
	dir     string
	rows    []row
}

type row struct {
	version, name string
	took          time.Duration
	err           error
}

const quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

// patience is how long one application may take; the machine may be slow.
const patience = 5 * time.Minute

var applicationID = regexp.MustCompile(`application_\d+_\d+`)

// run submits one application and judges it.
func (s *suite) run(ctx context.Context, k *kit, t test) {
	begin := time.Now()
	err := s.attempt(ctx, k, t)
	took := time.Since(begin)
	s.rows = append(s.rows, row{k.version, t.name, took, err})
	verdict := "ok"
	if err != nil {
		verdict = "FAILED: " + err.Error()
	}
	say("PySpark %s, %s (%.0f s): %s", k.version, t.name, took.Seconds(), verdict)
}

func (s *suite) attempt(ctx context.Context, k *kit, t test) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dir, err := os.MkdirTemp(s.dir, "case-")
	if err != nil {
		return err
	}
	script := filepath.Join(dir, t.script)
	text, err := scripts.ReadFile("testdata/" + t.script)
	if err == nil {
		err = os.WriteFile(script, text, 0o644)
	}
	if err != nil {
		return err
	}
	expand := strings.NewReplacer("{{fs}}", s.cluster.uri, "{{version}}", k.version).Replace
	if err := s.prepare(ctx, k); err != nil {
		return err
	}
	conf := map[string]string{
		"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.executor.cores": "1", "spark.executor.instances": "2",
		"spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1", "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1", "spark.driver.host": "127.0.0.1",
		"spark.yarn.appMasterEnv.PYSPARK_PYTHON": k.python, "spark.executorEnv.PYSPARK_PYTHON": k.python, "spark.ui.enabled": "false",
		"spark.yarn.am.memory": "512m", "spark.sql.shuffle.partitions": "4", "spark.yarn.maxAppAttempts": "2",
	}
	for _, of := range []string{"driver", "executor", "yarn.am"} { // programs of seconds are not worth a better compiler
		conf["spark."+of+".extraJavaOptions"] = quick
	}
	mode := "client"
	if t.cluster {
		mode = "cluster"
		delete(conf, "spark.yarn.am.extraJavaOptions")
		delete(conf, "spark.driver.host")
	}
	if !t.upload {
		conf["spark.yarn.jars"] = "local:" + filepath.Join(k.home, "jars") + "/*"
	}
	for name, value := range t.conf {
		conf[name] = expand(value)
	}
	argv := []string{filepath.Join(k.home, "bin", "spark-submit"), "--master", "yarn", "--deploy-mode", mode}
	for name, value := range conf {
		argv = append(argv, "--conf", name+"="+value)
	}
	argv = append(argv, script)
	for _, a := range t.args {
		argv = append(argv, expand(a))
	}
	log := filepath.Join(dir, "spark-submit.log")
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), "HADOOP_CONF_DIR="+s.cluster.conf, "YARN_CONF_DIR="+s.cluster.conf, "JAVA_HOME="+k.java, "SPARK_HOME="+k.home,
		"PYSPARK_PYTHON="+k.python, "SPARK_LOCAL_IP=127.0.0.1", "SPARK_SUBMIT_OPTS="+quick)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := processes.Spawn(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	ended := cmd.Wait()
	text, err = os.ReadFile(log)
	if err != nil {
		return err
	}
	output := string(text)
	app := applicationID.FindString(output)
	if ctx.Err() != nil {
		return fmt.Errorf("%s has not ended within %v; %s", app, patience, lastLines(output, 6))
	}
	if app == "" {
		return fmt.Errorf("nothing was submitted: %s", lastLines(output, 12))
	}
	if ended != nil {
		return fmt.Errorf("%s: spark-submit: %w; %s", app, ended, lastLines(output, 12))
	}
	var missing error
	if t.cluster { // what the driver prints is in the application's logs
		missing = await(ctx, "the logs are there", func() error {
			logs, err := s.cluster.hops(ctx, "logs", "-applicationId", app)
			if err == nil {
				err = printed(logs, t.prints)
			}
			return err
		})
	} else {
		missing = printed(output, t.prints)
	}
	if missing == nil && t.check != nil {
		missing = t.check(ctx, s, app, output)
	}
	if missing != nil {
		return fmt.Errorf("%s: %w", app, missing)
	}
	return nil
}

func printed(text string, want []string) error {
	for _, w := range want {
		if !strings.Contains(text, w) {
			return fmt.Errorf("%q is not printed; the end of what is: %s", w, lastLines(text, 6))
		}
	}
	return nil
}

// prepare puts into the filesystem what cases read.
func (s *suite) prepare(ctx context.Context, k *kit) error {
	words := filepath.Join(s.dir, "words.txt")
	if err := os.WriteFile(words, []byte("a b a\nb a\n"), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-mkdir", "-p", "/data-" + k.version, "/events-" + k.version}, {"-put", "-f", words, "/data-" + k.version + "/words.txt"},
	} {
		if _, err := s.cluster.hops(ctx, append([]string{"fs"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// finished checks how an application is recorded, and how many attempts it took.
func finished(final string, attempts int) func(context.Context, *suite, string, string) error {
	look := func(ctx context.Context, s *suite, app string) error {
		var of struct {
			App struct {
				State       string `json:"state"`
				FinalStatus string `json:"finalStatus"`
				Diagnostics string `json:"diagnostics"`
			} `json:"app"`
		}
		var tries struct {
			AppAttempts struct {
				AppAttempt []struct{} `json:"appAttempt"`
			} `json:"appAttempts"`
		}
		for path, into := range map[string]any{"": &of, "/appattempts": &tries} {
			r, err := s.cluster.get(ctx, "/ws/v1/cluster/apps/"+app+path)
			if err != nil {
				return err
			}
			err = json.NewDecoder(r.Body).Decode(into)
			r.Body.Close()
			if err != nil {
				return err
			}
		}
		if n := len(tries.AppAttempts.AppAttempt); of.App.FinalStatus != final || n != attempts {
			return fmt.Errorf("it is %s/%s after %d attempts (%s), want %s after %d", of.App.State, of.App.FinalStatus, n, of.App.Diagnostics, final, attempts)
		}
		return nil
	}
	return func(ctx context.Context, s *suite, app, _ string) error { // the driver does not wait for its master's end
		return await(ctx, "the application has ended", func() error { return look(ctx, s, app) })
	}
}

// eventLog looks for the application's event log in our filesystem.
func eventLog(ctx context.Context, s *suite, app, _ string) error {
	out, err := s.cluster.hops(ctx, "fs", "-ls", "-R", "/")
	if err == nil && !regexp.MustCompile(`/events-[\d.]+/(eventlog_v2_)?`+app).MatchString(out) {
		err = fmt.Errorf("there is no event log: %s", out)
	}
	if err != nil {
		return err
	}
	return finished("SUCCEEDED", 1)(ctx, s, app, "")
}

// refused looks for why no executor came: the master has been told, in YARN's words.
func refused(ctx context.Context, s *suite, app, _ string) error {
	if err := finished("SUCCEEDED", 1)(ctx, s, app, ""); err != nil {
		return err
	}
	out, err := s.cluster.hops(ctx, "logs", "-applicationId", app)
	if err == nil && !strings.Contains(out, "InvalidAuxServiceException: The auxService:spark_shuffle does not exist") {
		err = errors.New("the master's log does not say that the service is not there")
	}
	return err
}

// report prints the table. It fails when some case has.
func (s *suite) report() error {
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"PySpark", "case", "seconds", "result"})
	failed := 0
	for _, r := range s.rows {
		result := "ok"
		if r.err != nil {
			failed++
			result = "FAILED"
		}
		t.AppendRow(table.Row{r.version, r.name, fmt.Sprintf("%.0f", r.took.Seconds()), result})
	}
	t.Render()
	if failed > 0 || len(s.rows) == 0 {
		fmt.Printf("%d of %d cases have failed\n", failed, len(s.rows))
		return errFailures
	}
	return nil
}
