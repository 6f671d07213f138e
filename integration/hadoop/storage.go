package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// storageRow has the stock client write and read with each kind of checksum, ask for checksums of files, and set quotas of storage types, on Apache HDFS and on
// hops (java/StorageDriver.java).
func (s *suite) storageRow(ctx context.Context) error {
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
	say("storage")
	row := &row{name: "storage", title: "checksums and storage types, the stock client, against the same on HDFS"}
	s.rows = append(s.rows, row)
	told := map[string]map[string][]string{}
	var names []string
	for _, c := range []*cluster{stock, ours} {
		out, err := tool(s.dir, javaEnv(), stockJava(s.dir, c.conf, classPath, "StorageDriver", c.uri, c.http[0])...)
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
		row.add(name, failed, fmt.Sprintf("hops\n%s\nHDFS\n%s", strings.Join(got, "\n"), strings.Join(want, "\n")))
	}
	return nil
}
