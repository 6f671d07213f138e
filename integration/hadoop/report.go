package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gohops/hops/internal/yaml"
)

// known is known.yaml: how many cases each client has, and which of them are known to differ.
type known struct {
	// Cases is the number of cases of each row. A run with another number has lost or gained some: change it with them.
	Cases map[string]int `yaml:"cases"`
	// Differences may only shrink.
	Differences []knownDifference `yaml:"differences"`
}

// knownDifference is a reason, with the cases that differ for it in each of some rows.
type knownDifference struct {
	Reason string   `yaml:"reason"`
	Rows   []string `yaml:"rows"`
	Cases  []string `yaml:"cases"`
}

// reasons are those of a row, by case.
func (k *known) reasons(row string) map[string]string {
	out := map[string]string{}
	for _, d := range k.Differences {
		if slices.Contains(d.Rows, row) {
			for _, c := range d.Cases {
				out[c] = d.Reason
			}
		}
	}
	return out
}

// has refuses words that are no rows.
func (k *known) has(rows map[string]bool) error {
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		if _, ok := k.Cases[row]; !ok {
			return fmt.Errorf("-only: %q is no row: they are %s", row, strings.Join(slices.Sorted(maps.Keys(k.Cases)), ", "))
		}
	}
	return nil
}

func (s *suite) loadKnown() (known, error) { return loadKnown(s.cache.source) }

func loadKnown(source string) (known, error) {
	var k known
	path := filepath.Join(source, "known.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return k, err
	}
	err = yaml.UnmarshalStrict(path, text, &k)
	return k, err
}

// report prints what failed and the table. It fails when something failed that is not known to.
func (s *suite) report() error {
	k, err := s.loadKnown()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(s.rows, func(r *row) bool { return len(r.cases) > 0 }) {
		return fmt.Errorf("no case has run: none of these rows has one whose name contains %q", s.options.cases)
	}
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.SetStyle(table.StyleLight)
	t.Style().Options.DrawBorder = false
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"client", "cases", "passed", "failed", "not supported", "known", "equal"})
	cases, rowsOf := map[string]int{}, map[string][]string{} // by reason
	bad := false
	for _, r := range s.rows {
		reason := k.reasons(r.name)
		counts := map[verdict]int{}
		knownCount := 0
		for _, c := range r.cases {
			counts[c.verdict]++
			why, listed := reason[c.name]
			if !r.open {
				delete(reason, c.name)
			}
			switch {
			case c.verdict == passed && listed:
				bad = true
				fmt.Printf("%s: %s\n  is in the list of known differences and passes: take it out\n", r.name, c.name)
			case c.verdict != passed && listed:
				knownCount++
				cases[why]++
				if !slices.Contains(rowsOf[why], r.title) {
					rowsOf[why] = append(rowsOf[why], r.title)
				}
			case c.verdict != passed:
				bad = true
				if c.detail != "" {
					fmt.Printf("%s: %s\n%s", r.name, c.name, c.detail)
				}
			}
		}
		for name := range reason {
			if s.cases == "" && !r.open {
				bad = true
				fmt.Printf("%s: %s\n  is in the list of known differences and is no case\n", r.name, name)
			}
		}
		if want := k.Cases[r.name]; want != len(r.cases) && s.cases == "" && (len(r.cases) > 0 || r.note == "") {
			bad = true
			fmt.Printf("%s: %d cases, and known.yaml says %d\n", r.name, len(r.cases), want)
		}
		equal := "-"
		if len(r.cases) > 0 {
			equal = fmt.Sprintf("%.1f %%", 100*float64(counts[passed])/float64(len(r.cases)))
		}
		t.AppendRow(table.Row{r.title, len(r.cases), counts[passed], counts[failed], counts[unsupported], knownCount, equal})
	}
	fmt.Println()
	t.Render()
	for _, r := range s.rows {
		if r.note != "" {
			fmt.Printf("%s: %s\n", r.title, r.note)
		}
	}
	if len(cases) > 0 {
		fmt.Println("\nknown differences, by reason (integration/hadoop/known.yaml has the cases):")
		for _, d := range k.Differences {
			if n := cases[d.Reason]; n > 0 {
				fmt.Printf("  %3d  %s (%s)\n", n, d.Reason, strings.Join(rowsOf[d.Reason], ", "))
				delete(cases, d.Reason)
			}
		}
	}
	fmt.Printf("\n%.0f s\n", time.Since(started).Seconds())
	if bad {
		return errFailures
	}
	return nil
}
