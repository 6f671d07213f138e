package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// cache is the folder of everything that is fetched or compiled; it survives runs.
type cache struct {
	dir    string
	source string // integration/hadoop
}

// openCache finds the folder: $HOPS_COMPAT_CACHE, else .cache beside the sources.
func openCache(root string) (*cache, error) {
	source := filepath.Join(root, "integration", "hadoop")
	dir := os.Getenv("HOPS_COMPAT_CACHE")
	if dir == "" {
		dir = filepath.Join(source, ".cache")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cache folder: %w", err)
	}
	return &cache{dir: dir, source: source}, nil
}

// once makes a part of the cache if it is not there. What it needs is identified by key, so that a changed input is made
// anew; a part that was interrupted is not taken for a whole one.
func (c *cache) once(name, key string, make func(dir string) error) (string, error) {
	sum := sha256.Sum256([]byte(key))
	dir := filepath.Join(c.dir, name)
	stamp := filepath.Join(dir, ".complete")
	want := hex.EncodeToString(sum[:8])
	if got, err := os.ReadFile(stamp); err == nil && string(got) == want {
		return dir, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := make(dir); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return dir, os.WriteFile(stamp, []byte(want), 0o644)
}

// need says what to install when a program is missing.
func need(program, install string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s is not installed: %s", program, install)
	}
	return nil
}

// java checks the JDK and returns its launcher.
func needJava() error {
	for _, program := range []string{"java", "javac"} {
		if err := need(program, "make compat needs a JDK, version 17 (Debian: apt-get install openjdk-17-jdk-headless)"); err != nil {
			return err
		}
	}
	out, err := tool("", nil, "java", "-version")
	if err != nil {
		return err
	}
	if m := regexp.MustCompile(`version "(\d+)`).FindStringSubmatch(out); m != nil {
		if major, _ := strconv.Atoi(m[1]); major < 17 {
			return fmt.Errorf("java is version %s: make compat needs 17 or later (Debian: apt-get install openjdk-17-jdk-headless)", m[1])
		}
	}
	return nil
}

// hadoop fetches Apache Hadoop's jars and compiles the driver of its shell. It returns the class path.
func (c *cache) hadoop() (string, error) {
	jars, err := c.jars("hadoop", c.source)
	if err != nil {
		return "", err
	}
	sources, err := filepath.Glob(filepath.Join(c.source, "java", "*.java"))
	if err != nil {
		return "", err
	}
	key := strings.TrimPrefix(filepath.Base(jars), "hadoop-")
	for _, s := range sources {
		text, err := os.ReadFile(s)
		if err != nil {
			return "", err
		}
		key += string(text)
	}
	classes, err := c.once("classes", key, func(dir string) error {
		argv := append([]string{"javac", "-proc:none", "-cp", filepath.Join(jars, "*"), "-d", dir}, sources...)
		_, err := tool(c.source, nil, argv...)
		return err
	})
	if err != nil {
		return "", err
	}
	return strings.Join([]string{classes, filepath.Join(jars, "*")}, ":"), nil
}

// jars fetches the jars that the pom.xml of a directory names, and returns their folder, NAME-VERSION.
func (c *cache) jars(name, from string) (string, error) {
	if err := needJava(); err != nil {
		return "", err
	}
	pom, err := os.ReadFile(filepath.Join(from, "pom.xml"))
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`<hadoop.version>(.*?)</hadoop.version>`).FindSubmatch(pom)
	if version == nil {
		return "", fmt.Errorf("pom.xml names no hadoop.version")
	}
	return c.once(name+"-"+string(version[1]), string(pom), func(dir string) error {
		if err := need("mvn", "make compat fetches Apache Hadoop with Maven (Debian: apt-get install maven)"); err != nil {
			return err
		}
		say("fetching Apache Hadoop %s with Maven, once", version[1])
		_, err := tool(from, nil, "mvn", "-B", "-ntp", "-q", "dependency:copy-dependencies", "-DoutputDirectory="+dir, "-DincludeScope=runtime")
		return err
	})
}
