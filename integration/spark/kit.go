package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// kit is an installed PySpark.
type kit struct {
	version, python, home, java string
}

// findJava is the folder of a JDK that Spark runs on: $JAVA_HOME, or that of the java in the PATH.
func findJava() (string, error) {
	const want = "Spark needs a JDK, version 17 (Debian: apt-get install openjdk-17-jdk-headless)"
	home := os.Getenv("JAVA_HOME")
	if home == "" {
		program, err := exec.LookPath("java")
		if err == nil {
			program, err = filepath.EvalSymlinks(program)
		}
		if err != nil {
			return "", fmt.Errorf("java is not installed: %s", want)
		}
		home = filepath.Dir(filepath.Dir(program))
	}
	out, err := exec.Command(filepath.Join(home, "bin", "java"), "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s/bin/java: %w: %s", home, err, want)
	}
	if m := regexp.MustCompile(`version "(\d+)`).FindSubmatch(out); m != nil {
		if major, _ := strconv.Atoi(string(m[1])); major < 17 {
			return "", fmt.Errorf("java is version %s: %s", m[1], want)
		}
	}
	return home, nil
}

// install puts a version of PySpark into the cache, $HOPS_SPARK_CACHE or .cache beside these sources, once.
func install(ctx context.Context, version, java string) (*kit, error) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(version) {
		return nil, fmt.Errorf("%q is no version of PySpark", version)
	}
	cache := os.Getenv("HOPS_SPARK_CACHE")
	if cache == "" {
		cache = filepath.Join("integration", "spark", ".cache")
	}
	dir, err := filepath.Abs(filepath.Join(cache, version))
	if err != nil {
		return nil, err
	}
	python := filepath.Join(dir, "bin", "python")
	k := &kit{version: version, python: python, java: java}
	find := func() bool {
		out, err := exec.CommandContext(ctx, python, "-c", "import pyspark; print(pyspark.__version__, pyspark.__path__[0])").Output()
		found, home, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		k.home = home
		return err == nil && found == version
	}
	if find() {
		return k, nil
	}
	say("installing PySpark %s from PyPI, once", version)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	for _, argv := range [][]string{
		{"python3", "-m", "venv", dir}, {python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "pyspark==" + version},
	} {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastLines(string(out), 5))
		}
	}
	if !find() {
		return nil, fmt.Errorf("PySpark %s is installed in %s, and cannot be imported there", version, dir)
	}
	return k, nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
