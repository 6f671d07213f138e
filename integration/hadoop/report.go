package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// known is known.yaml: how many cases each client has, and which of them are known to differ.
type known struct {
	// Cases is the number of cases of each row. A run with another number has lost or gained some: change it with them.
	Cases map[string]int `yaml:"cases"`
	// Differences, by row; the list may only shrink.
	Differences map[string][]knownDifference `yaml:"differences"`
}

type knownDifference struct {
	Case   string `yaml:"case"`
	Reason string `yaml:"reason"`
}

func (s *suite) loadKnown() (known, error) {
	var k known
	path := filepath.Join(s.cache.source, "known.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return k, err
	}
	if err := yaml.UnmarshalWithOptions(text, &k, yaml.Strict()); err != nil {
		return k, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// report prints what failed and the table. It fails when something failed that is not known to.
func (s *suite) report() error {
	k, err := s.loadKnown()
	if err != nil {
		return err
	}
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.SetStyle(table.StyleLight)
	t.Style().Options.DrawBorder = false
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"client", "cases", "passed", "failed", "not supported", "known", "equal"})
	var reasons []string
	bad := false
	for _, r := range s.rows {
		reason := map[string]string{}
		for _, d := range k.Differences[r.name] {
			reason[d.Case] = d.Reason
		}
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
				if line := fmt.Sprintf("%s: %s: %s", r.name, c.name, why); !slices.Contains(reasons, line) {
					reasons = append(reasons, line)
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
		if want := k.Cases[r.name]; want != len(r.cases) && s.cases == "" {
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
	if len(reasons) > 0 {
		fmt.Println("\nknown differences:")
		for _, r := range reasons {
			fmt.Println("  " + r)
		}
	}
	fmt.Printf("\n%.0f s\n", time.Since(s.started).Seconds())
	if bad {
		return errFailures
	}
	return nil
}
