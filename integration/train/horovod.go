package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Horovod comes as source, and is compiled against the PyTorch that is there. Its last release wants C++14 of the compiler where this PyTorch wants
// C++20; nothing else of it is changed.
const (
	horovodRelease = "horovod-0.28.1"
	horovodSum     = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0" // SHA-256 of its .tar.gz on PyPI
)

var horovodSources = []string{"CMakeLists.txt", "horovod/torch/CMakeLists.txt"}

// wheels is where Horovod lies when it is built: for one PyTorch.
func (k *kit) wheels() string {
	return filepath.Join(k.cache, horovodRelease+"-"+torch)
}

// hasHorovod says whether it was built before.
func (k *kit) hasHorovod() bool {
	found, err := filepath.Glob(filepath.Join(k.wheels(), "*.whl"))
	return err == nil && len(found) == 1
}

// horovod installs it, and builds it before where that has not been done.
func (k *kit) horovod(ctx context.Context) error {
	if !k.hasHorovod() {
		if err := k.buildHorovod(ctx); err != nil {
			return fmt.Errorf("building Horovod: %w", err)
		}
	}
	if err := execute(ctx, k.python, "-c", "import horovod.torch"); err == nil {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(k.wheels(), "*.whl"))
	if err != nil {
		return err
	}
	return execute(ctx, append([]string{k.python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-compile", "--no-deps"}, found...)...)
}

func (k *kit) buildHorovod(ctx context.Context) error {
	for _, tool := range []string{"cmake", "make", "c++"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not installed (Debian: apt-get install cmake make g++)", tool)
		}
	}
	say("building %s from its source for %s, once: six minutes of a core", horovodRelease, torch)
	dir, err := os.MkdirTemp(k.cache, "horovod-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := execute(ctx, k.python, "-m", "pip", "-q", "--disable-pip-version-check", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", dir, "horovod==0.28.1"); err != nil {
		return err
	}
	archive := filepath.Join(dir, horovodRelease+".tar.gz")
	data, err := os.ReadFile(archive)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != horovodSum {
		return fmt.Errorf("%s has the SHA-256 %x, not the one that is known", archive, sum)
	}
	if err := execute(ctx, "tar", "-xzf", archive, "-C", dir); err != nil {
		return err
	}
	source := filepath.Join(dir, horovodRelease)
	for _, name := range horovodSources {
		file := filepath.Join(source, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed := bytes.ReplaceAll(text, []byte("set(CMAKE_CXX_STANDARD 14)"), []byte("set(CMAKE_CXX_STANDARD 20)"))
		if slices.Equal(text, changed) {
			return fmt.Errorf("%s does not choose C++14, as it is known to", file)
		}
		if err := os.WriteFile(file, changed, 0o644); err != nil {
			return err
		}
	}
	built := filepath.Join(dir, "wheel")
	cmd := exec.CommandContext(ctx, k.python, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation", "--no-deps", "-w", built, source)
	cmd.Env = append(os.Environ(), "HOROVOD_WITH_PYTORCH=1", "HOROVOD_WITH_GLOO=1", "HOROVOD_WITHOUT_MPI=1", "HOROVOD_WITHOUT_TENSORFLOW=1", "HOROVOD_WITHOUT_MXNET=1",
		"MAKEFLAGS=-j2", "PATH="+filepath.Dir(k.python)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, lastLines(string(out), 12))
	}
	if err := os.RemoveAll(k.wheels()); err != nil {
		return err
	}
	return os.Rename(built, k.wheels())
}
