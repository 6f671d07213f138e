package main

import (
	"debug/elf"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// neededGlibc is the oldest C library with which a program starts. It is an error if the program needs another library.
func neededGlibc(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return "", err
	}
	if others := slices.DeleteFunc(slices.Clone(libraries), partOfGlibc); len(others) > 0 {
		return "", fmt.Errorf("%s needs %s: only the C library may be taken for granted", path, strings.Join(others, ", "))
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return "", err
	}
	newest := ""
	for _, library := range needs {
		for _, v := range library.Needs {
			if version, ok := strings.CutPrefix(v.Dep, "GLIBC_"); ok && newer(version, newest) {
				newest = version
			}
		}
	}
	if newest == "" {
		return "", fmt.Errorf("%s names no version of glibc: build it with a C compiler (apt install gcc libc6-dev) on a system that has glibc", path)
	}
	return newest, nil
}

// partOfGlibc: those that are apart before 2.34 are parts of the C library all the same.
func partOfGlibc(library string) bool {
	return slices.Contains([]string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, library)
}

// checkStatic is an error if a program needs a loader or a library.
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	interpreter := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if len(libraries) > 0 || interpreter {
		return fmt.Errorf("%s is not static: it needs %v", path, libraries)
	}
	return nil
}

// newer compares versions like 2.9 and 2.34; an empty one is older than all.
func newer(a, b string) bool { return slices.Compare(numbers(a), numbers(b)) > 0 }

func numbers(version string) (n []int) {
	for part := range strings.SplitSeq(version, ".") {
		i, err := strconv.Atoi(part)
		if err != nil {
			return n
		}
		n = append(n, i)
	}
	return n
}
