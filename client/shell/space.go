package shell

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
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
	if s.option("v") && !s.json {
		t.add("SIZE", "DISK_SPACE_CONSUMED_WITH_ALL_REPLICAS", "FULL_PATH_NAME")
	}
	one := func(it item) error {
		sum, err := s.summary(ctx, it)
		if err == nil && s.json {
			return s.encode(usage{it.shown, sum.Length, sum.SpaceConsumed})
		}
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

// summary counts what is at and below an item; with -x not what only snapshots have.
func (s *Shell) summary(ctx context.Context, it item) (metadata.ContentSummary, error) {
	sum, err := s.fs.ContentSummary(ctx, it.path)
	if s.option("x") {
		sum = sum.Present()
	}
	return sum, err
}

// quotaColumns are the quotas of a directory and what is left of them.
func (s *Shell) quotaColumns(names, usedNames, space, usedSpace int64) string {
	columns := func(limit, used int64) (string, string) {
		if limit < 0 {
			return "none", "inf"
		}
		return s.size(limit), s.size(limit - used)
	}
	n, left := columns(names, usedNames)
	b, free := columns(space, usedSpace)
	return fmt.Sprintf("%12s %15s %15s %15s ", n, left, b, free)
}

// quotaTypes are the storage types that can have quotas, in Hadoop's order.
var quotaTypes = []string{"SSD", "DISK", "ARCHIVE", "PROVIDED", "NVDIMM"}

// storageTypes reads the value of -count -t: types with commas between them, "all" or nothing for all.
func storageTypes(word string) (types []string, err error) {
	if word == "" || strings.EqualFold(word, "all") {
		return quotaTypes, nil
	}
	for one := range strings.SplitSeq(word, ",") {
		name := strings.ToUpper(one)
		if !slices.Contains(quotaTypes, name) && name != "RAM_DISK" {
			return nil, usageError{"No enum constant org.apache.hadoop.fs.StorageType." + name}
		}
		types = append(types, name)
	}
	return types, nil
}

// countTypes is -count -q -t: the quotas of storage types alone.
func (s *Shell) countTypes(ctx context.Context, types, args []string) error {
	if s.option("v") {
		for _, name := range types {
			s.printf("%14s %18s ", name+"_QUOTA", "REM_"+name+"_QUOTA")
		}
		s.printf("PATHNAME\n")
	}
	return s.each(ctx, args, func(it item) error {
		var quotas map[string]dfs.TypeQuota
		if s.client != nil { // files of this machine have none
			var err error
			if quotas, err = s.client.TypeQuotas(ctx, it.path); err != nil {
				return err
			}
		}
		for _, name := range types {
			limit, left := "none", "inf"
			if q, ok := quotas[name]; ok && q.Quota >= 0 {
				limit, left = s.size(q.Quota), s.size(q.Quota-q.Consumed)
			}
			s.printf("%14s %18s ", limit, left)
		}
		s.printf("%s\n", it.shown)
		return nil
	})
}

func runCount(ctx context.Context, s *Shell, args []string) error {
	if s.json {
		return s.each(ctx, args, func(it item) error {
			sum, err := s.summary(ctx, it)
			if err != nil {
				return err
			}
			return s.encode(counted{it.shown, sum.Directories, sum.Files, sum.Length, sum.SpaceConsumed, sum.Quota, sum.SpaceQuota})
		})
	}
	if s.option("x") && (s.option("q") || s.option("u")) {
		s.printf("q or u option is given, the -x option is ignored.\n")
		delete(s.options, "x")
	}
	if s.option("t") {
		types, err := storageTypes(s.options["t"])
		if err != nil {
			return err
		}
		if s.option("q") || s.option("u") {
			return s.countTypes(ctx, types, args)
		}
	}
	if s.option("v") {
		header := ""
		if s.option("q") || s.option("u") {
			header = fmt.Sprintf("%12s %15s %15s %15s ", "QUOTA", "REM_QUOTA", "SPACE_QUOTA", "REM_SPACE_QUOTA")
		}
		if !s.option("u") {
			header += fmt.Sprintf("%12s %12s %18s ", "DIR_COUNT", "FILE_COUNT", "CONTENT_SIZE")
			if s.option("e") {
				header += "ERASURECODING_POLICY "
			}
			if s.option("s") {
				header += fmt.Sprintf("%18s %24s %24s %28s ", "SNAPSHOT_LENGTH", "SNAPSHOT_FILE_COUNT", "SNAPSHOT_DIR_COUNT", "SNAPSHOT_SPACE_CONSUMED")
			}
		}
		s.printf("%sPATHNAME\n", header)
	}
	return s.each(ctx, args, func(it item) error {
		if s.option("u") {
			u := metadata.QuotaUsage{NameQuota: -1, SpaceQuota: -1}
			var err error
			if s.client != nil {
				u, err = s.client.QuotaUsage(ctx, it.path)
			}
			if err == nil {
				s.printf("%s%s\n", s.quotaColumns(u.NameQuota, u.Names, u.SpaceQuota, u.Space), it.shown)
			}
			return err
		}
		sum, err := s.summary(ctx, it)
		if err != nil {
			return err
		}
		if s.option("q") {
			s.printf("%s", s.quotaColumns(sum.Quota, sum.Files+sum.Directories, sum.SpaceQuota, sum.SpaceConsumed))
		}
		s.printf("%12s %12s %18s ", s.size(sum.Directories), s.size(sum.Files), s.size(sum.Length))
		if s.option("e") {
			policy := erasureOf(it)
			if policy != replicated {
				policy = "EC:" + policy
			}
			s.printf("%20s ", policy)
		}
		if s.option("s") {
			lost := sum.Snapshot
			s.printf("%18s %24s %24s %28s ", s.size(lost.Length), s.size(lost.Files), s.size(lost.Directories), s.size(lost.SpaceConsumed))
		}
		s.printf("%s\n", it.shown)
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
