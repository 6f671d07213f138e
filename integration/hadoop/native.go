package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// nativeRow is about hdfs-native, the client in Rust: it reads and appends to files that our client made, of which the namenodes keep the small ones, and ours
// reads what it wrote.
func (s *suite) nativeRow(ctx context.Context, ours *cluster) error {
	python, err := s.cache.python()
	if err != nil {
		return err
	}
	say("hdfs-native")
	row := &row{name: "hdfsnative", title: "hdfs-native (Rust, Python), small files that namenodes keep among others"}
	s.rows = append(s.rows, row)
	fs, err := ours.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	const dir, coded = "/hdfs-native", "/hdfs-native-ec"
	if err := fs.Mkdirs(ctx, dir, 0o755, true); err != nil {
		return err
	}
	if err := codedDirectory(ctx, fs, coded); err != nil {
		return err
	}
	content := func(n int) []byte {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i*7 + i>>8)
		}
		return data
	}
	sizes := []int{1, 511, 5000, 64 << 10, 64<<10 + 1, 3_000_000}
	argv := []string{python, filepath.Join(s.cache.source, "python", "native_cases.py"), ours.uri, dir, coded}
	for _, n := range sizes {
		name := fmt.Sprintf("%s/kept-%d", dir, n)
		if err := fs.WriteFile(ctx, name, content(n), false); err != nil {
			return err
		}
		if n <= 64<<10 {
			if err := isKept(ctx, fs, name); err != nil {
				return err
			}
		}
		argv = append(argv, strconv.Itoa(n))
	}
	out, err := command(ctx, nil, argv...)
	if err != nil {
		return err
	}
	row.addLines(string(out))
	reads := func(name, path string, want []byte) {
		got, err := fs.ReadFile(ctx, path)
		switch {
		case err != nil:
			row.add(name, failed, "  "+shorten(err.Error())+"\n")
		case !bytes.Equal(got, want):
			row.add(name, failed, fmt.Sprintf("  %d bytes, want %d, the first difference at %d\n", len(got), len(want), firstDifference(got, want)))
		default:
			row.add(name, passed, "")
		}
	}
	for _, n := range sizes {
		reads(fmt.Sprintf("%d bytes are read by hops", n), fmt.Sprintf("%s/written-%d", dir, n), content(n))
		reads(fmt.Sprintf("%d bytes and what was appended are read by hops", n), fmt.Sprintf("%s/kept-%d", dir, n), append(content(n), content(700)...))
	}
	for _, n := range []int{1, 700_000, 5_000_000} {
		reads(fmt.Sprintf("%d bytes, coded, are read by hops", n), fmt.Sprintf("%s/written-%d", coded, n), content(n))
	}
	return ctx.Err()
}

// addLines takes the lines of a program: "ok NAME", or "fail NAME: WHY".
func (r *row) addLines(out string) {
	for line := range strings.Lines(out) {
		verdictWord, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, why, _ := strings.Cut(rest, ": ")
		if verdictWord == "ok" {
			r.add(name, passed, "")
		} else {
			r.add(name, failed, "  "+why+"\n")
		}
	}
}
