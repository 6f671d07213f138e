package main

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// shortCircuitRow has the stock client read by descriptors and by the Unix-domain sockets of datanodes of hops (java/ShortCircuitDriver.java).
func (s *suite) shortCircuitRow(ctx context.Context, ours *cluster, socket string) error {
	classPath, err := s.hadoop()
	if err != nil {
		return err
	}
	row := &row{name: "shortcircuit", title: "short-circuit reads, the stock client with its native library"}
	s.rows = append(s.rows, row)
	library, err := s.cache.nativeLibrary()
	if err != nil {
		return err
	}
	say("shortcircuit")
	argv := stockJava(s.dir, ours.conf, classPath, "ShortCircuitDriver", ours.uri, socket)
	for _, store := range ours.stores {
		argv = append(argv, store)
	}
	argv = slices.Insert(argv, 1, "-Djava.library.path="+library)
	out, err := tool(s.dir, javaEnv(), argv...)
	cases, order := driverCases(out)
	if err != nil {
		cases["the driver ends well"] = strings.Split(err.Error(), "\n")
	}
	for _, name := range append(order, "the driver ends well") {
		switch wrong := cases[name]; {
		case !strings.Contains(name, s.cases):
		case len(wrong) == 0:
			row.add(name, passed, "")
		default:
			row.add(name, failed, strings.Join(wrong, "\n"))
		}
	}
	return nil
}

// nativeOf is where the jar of native libraries has those of this machine.
var nativeOf = map[string]string{"linux/amd64": "nativelib/Linux-amd64/libhadoop.so", "linux/arm64": "nativelib/Linux-aarch64/libhadoop.so"}

// nativeLibrary is a folder with Hadoop's native library. Apache has it in its archives of whole releases only; that of Trino is in a jar (native/pom.xml).
func (c *cache) nativeLibrary() (string, error) {
	name := nativeOf[runtime.GOOS+"/"+runtime.GOARCH]
	if name == "" {
		return "", fmt.Errorf("there is no native library of Hadoop for %s/%s: leave the row shortcircuit out (-only)", runtime.GOOS, runtime.GOARCH)
	}
	from := filepath.Join(c.source, "native")
	pom, err := os.ReadFile(filepath.Join(from, "pom.xml"))
	if err != nil {
		return "", err
	}
	return c.once("native", string(pom)+name, func(dir string) error {
		if err := need("mvn", "make compat fetches Hadoop's native library with Maven (Debian: apt-get install maven)"); err != nil {
			return err
		}
		say("fetching the native library of Hadoop with Maven, once")
		if _, err := tool(from, nil, "mvn", "-B", "-ntp", "-q", "dependency:copy-dependencies", "-DoutputDirectory="+dir, "-DexcludeTransitive=true"); err != nil {
			return err
		}
		jars, err := filepath.Glob(filepath.Join(dir, "*.jar"))
		if err != nil || len(jars) != 1 {
			return errors.Join(err, fmt.Errorf("Maven has fetched %d jars, not one", len(jars)))
		}
		if err := unzip(jars[0], name, filepath.Join(dir, "libhadoop.so")); err != nil {
			return err
		}
		return os.Remove(jars[0])
	})
}

// unzip copies a file out of an archive.
func unzip(archive, name, to string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	in, err := z.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
