package shell

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// table prints rows with columns as wide as their widest cell, two blanks between them, the last one unpadded.
type table struct {
	rows  [][]string
	right bool // all columns but the first and last to the right
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (s *Shell) print(t *table) {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range t.rows {
		var b strings.Builder
		for i, cell := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			switch {
			case t.right && i > 0:
				fmt.Fprintf(&b, "%*s", widths[i], cell)
			case i == len(row)-1:
				b.WriteString(cell)
			default:
				fmt.Fprintf(&b, "%-*s", widths[i], cell)
			}
		}
		s.printf("%s\n", b.String())
	}
}

func runDu(ctx context.Context, s *Shell, args []string) error {
	if len(args) == 0 {
		args = []string{"."}
	}
	t := &table{}
	if s.option("v") {
		t.add("SIZE", "DISK_SPACE_CONSUMED_WITH_ALL_REPLICAS", "FULL_PATH_NAME")
	}
	one := func(it item) error {
		sum, err := s.client.ContentSummary(ctx, it.path)
		if err == nil {
			t.add(s.size(sum.Length), s.size(sum.SpaceConsumed), it.shown)
		}
		return err
	}
	err := s.each(ctx, args, func(it item) error {
		if !it.isDir() || s.option("s") {
			return one(it)
		}
		children, err := s.children(ctx, it)
		if err != nil {
			return err
		}
		for _, child := range children {
			if err := one(child); err != nil {
				s.report(err)
			}
		}
		return nil
	})
	s.print(t)
	return err
}

func runCount(ctx context.Context, s *Shell, args []string) error {
	if s.option("v") {
		header := fmt.Sprintf("%12s %12s %18s ", "DIR_COUNT", "FILE_COUNT", "CONTENT_SIZE")
		if s.option("q") {
			header = fmt.Sprintf("%12s %15s %15s %15s ", "QUOTA", "REM_QUOTA", "SPACE_QUOTA", "REM_SPACE_QUOTA") + header
		}
		s.printf("%sPATHNAME\n", header)
	}
	return s.each(ctx, args, func(it item) error {
		sum, err := s.client.ContentSummary(ctx, it.path)
		if err != nil {
			return err
		}
		count := func(n int64) string { return s.size(n) }
		if s.option("q") {
			quota := func(limit, used int64) (string, string) {
				if limit < 0 {
					return "none", "inf"
				}
				return count(limit), count(limit - used)
			}
			names, left := quota(sum.Quota, sum.Files+sum.Directories)
			space, spaceLeft := quota(sum.SpaceQuota, sum.SpaceConsumed)
			s.printf("%12s %15s %15s %15s ", names, left, space, spaceLeft)
		}
		s.printf("%12s %12s %18s %s\n", count(sum.Directories), count(sum.Files), count(sum.Length), it.shown)
		return nil
	})
}

func runDf(ctx context.Context, s *Shell, args []string) error {
	for _, word := range args {
		it, err := s.look(ctx, word)
		if err != nil {
			return err
		}
		if it.status == nil {
			return notFound(it.shown)
		}
	}
	stats, err := s.client.FsStats(ctx)
	if err != nil {
		return err
	}
	used := "0%"
	if stats.Capacity > 0 {
		used = strconv.FormatInt(stats.Used*100/stats.Capacity, 10) + "%"
	}
	t := &table{right: true}
	t.add("Filesystem", "Size", "Used", "Available", "Use%")
	t.add(s.uri, s.size(stats.Capacity), s.size(stats.Used), s.size(stats.Remaining), used)
	s.print(t)
	return nil
}
