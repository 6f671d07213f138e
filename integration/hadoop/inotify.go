package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// inotifyRow has the stock client's inotify tell what it changes, on Apache HDFS and on hops (java/InotifyDriver.java).
func (s *suite) inotifyRow(ctx context.Context) error {
	classPath, err := s.hadoop()
	if err != nil {
		return err
	}
	stock, err := s.stock(ctx)
	if err != nil {
		return err
	}
	ours, err := s.ours(ctx, 1)
	if err != nil {
		return err
	}
	say("inotify")
	row := &row{name: "inotify", title: "inotify (DFSInotifyEventInputStream), against the same on HDFS"}
	s.rows = append(s.rows, row)
	told := map[string]map[string][]string{}
	var names []string
	for _, c := range []*cluster{stock, ours} {
		out, err := tool(s.dir, javaEnv(), stockJava(s.dir, c.conf, classPath, "InotifyDriver", c.uri)...)
		cases, order := driverCases(out)
		if err != nil {
			cases["the driver ends well"] = strings.Split(err.Error(), "\n")
		}
		told[c.name] = cases
		if names == nil {
			names = append(order, "the driver ends well")
		}
	}
	for _, name := range names {
		if !strings.Contains(name, s.cases) {
			continue
		}
		want, got := told[stock.name][name], told[ours.name][name]
		if slices.Equal(want, got) {
			row.add(name, passed, "")
			continue
		}
		row.add(name, failed, fmt.Sprintf("hops tells\n%s\nHDFS tells\n%s", strings.Join(got, "\n"), strings.Join(want, "\n")))
	}
	return nil
}

// driverCases are the lines that a driver has printed, by case, without what it logs, and the cases in their order.
func driverCases(out string) (cases map[string][]string, order []string) {
	cases = map[string][]string{}
	name := ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if next, ok := strings.CutPrefix(line, "case "); ok {
			name, order = next, append(order, next)
			cases[name] = []string{}
		} else if name != "" {
			cases[name] = append(cases[name], line)
		}
	}
	return cases, order
}
