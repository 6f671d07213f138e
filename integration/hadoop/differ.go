package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gohops/hops/integration/hadoop/differ"
)

// The differential test as a row of the table: so many sequences of so many operations, of one seed.
const (
	differSequences = 250
	differSteps     = 40
	differSeed      = 1
)

// differRow runs random operations on both clusters.
func (s *suite) differRow(ctx context.Context) error {
	row := &row{name: "differ", title: "random operations, hops and HDFS", open: true}
	s.rows = append(s.rows, row)
	result, err := s.differ(ctx, differ.Config{Seed: differSeed, Sequences: differSequences, Steps: differSteps})
	if err != nil {
		return err
	}
	byName := map[string]*differ.Difference{}
	for _, d := range result.Differences {
		byName[d.Signature] = d
	}
	for _, signature := range result.Of {
		if signature == "" {
			row.add("no difference", passed, "")
			continue
		}
		row.add(signature, failed, "")
		if d := byName[signature]; d != nil {
			row.cases[len(row.cases)-1].detail = d.String()
			delete(byName, signature)
		}
	}
	for _, group := range result.Unsupported {
		row.add(group, unsupported, "  hops does not have this operation\n")
	}
	for range len(differ.Features) - len(result.Unsupported) {
		row.add("feature", passed, "")
	}
	row.note = fmt.Sprintf("%d operations of %d kinds in %d sequences, seed %d", result.Steps, result.Kinds, result.Sequences, differSeed)
	return nil
}

func (s *suite) differ(ctx context.Context, c differ.Config) (*differ.Result, error) {
	stock, err := s.stock(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := s.ours(ctx, 1)
	if err != nil {
		return nil, err
	}
	say("random operations on both")
	c.Want = &differ.Side{Name: "HDFS", Namenodes: stock.ipc, Superuser: superuser()}
	c.Got = &differ.Side{Name: "hops", Namenodes: ours.ipc, Superuser: superuser()}
	c.Strict = s.strict
	if s.verbose {
		c.Report = func(d differ.Difference) { say("%s", d) }
	}
	c.Progress = func(sequences, steps int) {
		if s.verbose || c.Sequences == 0 {
			say("%d sequences, %d operations", sequences, steps)
		}
	}
	result, err := differ.Run(ctx, c)
	if err != nil {
		err = errors.Join(err, stock.died(), ours.died())
	}
	return result, err
}

// fuzz is the differential test alone, for a time.
func (s *suite) fuzz(ctx context.Context, seconds int, seed uint64) error {
	started := time.Now()
	k, err := s.loadKnown()
	if err != nil {
		return err
	}
	s.verbose = true
	result, err := s.differ(ctx, differ.Config{Seed: seed, Until: time.Now().Add(time.Duration(seconds) * time.Second), Steps: differSteps})
	if err != nil {
		return err
	}
	reason := k.reasons("differ")
	bad := 0
	fmt.Println()
	for _, d := range result.Differences {
		if why, ok := reason[d.Signature]; ok {
			fmt.Printf("known: %s, %d times: %s\n", d.Signature, d.Times, why)
			continue
		}
		bad++
		fmt.Println(d)
	}
	if len(result.Unsupported) > 0 {
		fmt.Printf("not compared, because hops does not have them: %s\n", strings.Join(result.Unsupported, ", "))
	}
	fmt.Print(result.Table())
	for _, a := range differ.Accidents {
		if n := result.Accidents[a.Name]; n > 0 {
			fmt.Printf("not compared further, %d times: %s: %s\n", n, a.Name, a.Reason)
		}
	}
	fmt.Printf("%d operations of %d kinds in %d sequences, seed %d, %.0f s: %d kinds of differences, %d of them not known\n",
		result.Steps, result.Kinds, result.Sequences, seed, time.Since(started).Seconds(), len(result.Differences), bad)
	if bad > 0 {
		return errFailures
	}
	return nil
}
