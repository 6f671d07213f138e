package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/simulate"
)

// journalOf reads the journal of the experiment whose application the text names first.
func journalOf(ctx context.Context, s *suite, text string) ([]*experiment.Entry, error) {
	id := experimentID.FindString(text)
	if id == "" {
		return nil, fmt.Errorf("no experiment is named in: %s", lastLines(text, 5))
	}
	out, err := s.hops(ctx, "fs", "-cat", "/Projects/*/Experiments/"+id+"_1/journal.jsonl")
	if err != nil {
		return nil, err
	}
	return simulate.ReadJournal(strings.NewReader(out))
}
