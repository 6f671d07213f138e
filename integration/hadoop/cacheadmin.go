package main

import (
	"context"
	"regexp"
)

// cacheadmin of Hadoop on a stock HDFS and on hops, and that of hops on hops: testdata/cacheadmin.txt.

// cacheadminRow compares the tools for what datanodes keep in memory.
func (s *suite) cacheadminRow(ctx context.Context) error {
	stock, err := s.stock(ctx)
	if err != nil {
		return err
	}
	ours, err := s.ours(ctx, 1)
	if err != nil {
		return err
	}
	return s.toolRows(ctx, "cacheadmin.txt", "-cache", stock, ours)
}

func init() { // numbers of directives, which are never given twice, and times
	toolMasks = append(toolMasks, []struct {
		from *regexp.Regexp
		to   string
	}{
		{regexp.MustCompile(`(?m)(cached? directive) [1-9]\d?$`), "$1 <ID>"},
		{regexp.MustCompile(`(?m)^ +\d+ (pool\d) `), "<ID> $1 "},
		{regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}\b`), "<TIME>"},
	}...)
}
