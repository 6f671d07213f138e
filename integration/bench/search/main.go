// Command search compares the searches over recorded learning curves, in virtual time: which finds the better configuration within
// the same time, and what asynchronous workers and early stopping save. Everything in its tables is deterministic.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/simulate"
)

func main() {
	curves := flag.String("curves", "training/simulate/testdata/digits-curves.csv.gz", "recorded curves")
	seeds := flag.Int("seeds", 30, "searches of each kind")
	flag.Parse()
	if err := compare(os.Stdout, *curves, *seeds); err != nil {
		fmt.Fprintln(os.Stderr, "bench search:", err)
		os.Exit(1)
	}
}

// kind is a way to search.
type kind struct {
	name string
	doc  string
	then func(*simulate.Study)
}

var (
	asha     = kind{"ASHA, promotion (resumes)", `"optimizer": {"type": "asha", "r_max": 81}`, nil}
	restart  = kind{"ASHA, restart (Maggy's)", `"optimizer": {"type": "asha", "r_max": 81, "variant": "restart"}`, nil}
	stopping = kind{"ASHA, stopping", `"optimizer": {"type": "asha", "r_max": 81, "variant": "stopping"}`, nil}
	brackets = kind{"Hyperband", `"optimizer": {"type": "hyperband", "r_max": 81}`, nil}
	random   = kind{"random search", `"optimizer": {"type": "random"}`, nil}
	median   = kind{"random search, median stop", `"optimizer": {"type": "random"}, "early_stop": {"policy": "median"}`, nil}
	sooner   = kind{"random search, median stop from 4 on", `"optimizer": {"type": "random"}, "early_stop": {"policy": "median", "es_min": 3}`, nil}
)

func compare(out io.Writer, curves string, seeds int) error {
	f, err := os.Open(curves)
	if err != nil {
		return err
	}
	defer f.Close()
	table, err := simulate.ReadTable(f)
	if err != nil {
		return err
	}
	repeat := func(k kind, trials, workers int, budget float64) (simulate.Summary, error) {
		doc := fmt.Sprintf(`{"entry": "recorded:curves", "executors": %d, "trials": %d, "seed": 0, "space": {"id": ["INTEGER", [0, %d]]}, %s}`, workers, trials, len(table.Rows)-1, k.doc)
		spec, err := training.ParseSpec([]byte(doc), "bench")
		if err != nil {
			return simulate.Summary{}, err
		}
		s := simulate.Study{Spec: spec, Table: table, Budget: budget}
		if k.then != nil {
			k.then(&s)
		}
		return simulate.Repeat(s, seeds)
	}
	fmt.Fprintf(out, "%d recorded configurations, %d seeds; mean (standard deviation). best: of all epochs, chosen by validation, its test accuracy beside it.\n", len(table.Rows), seeds)
	for _, setting := range []struct {
		workers int
		budget  float64
	}{{16, 3}, {8, 2}, {8, 1}} {
		fmt.Fprintf(out, "\n%d workers x %g median full trials\n", setting.workers, setting.budget)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "search\tbest validation\tits test\tbest final\ttrials\tended\tstopped\tepochs")
		line := func(k kind, budget float64) (simulate.Summary, error) {
			s, err := repeat(k, len(table.Rows), setting.workers, budget)
			if err != nil {
				return s, fmt.Errorf("%s: %w", k.name, err)
			}
			fmt.Fprintf(w, "%s\t%.4f (%.4f)\t%.4f\t%.4f\t%.0f (%.0f)\t%.0f\t%.0f\t%.0f\n", k.name, s.Best.Mean, s.Best.Std, s.Test.Mean, s.BestFinal.Mean,
				s.Trials.Mean, s.Trials.Std, s.Ended.Mean, s.Stopped.Mean, s.Epochs.Mean)
			return s, nil
		}
		for _, k := range []kind{asha, restart, stopping, brackets, median, random} {
			if _, err := line(k, setting.budget); err != nil {
				return err
			}
		}
		short := asha
		short.name = "ASHA, promotion, 0.7 of the time"
		if _, err := line(short, 0.7*setting.budget); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return times(out, repeat)
}

// times compares the time of the same 100 trials.
func times(out io.Writer, repeat func(k kind, trials, workers int, budget float64) (simulate.Summary, error)) error {
	fmt.Fprintf(out, "\n100 trials of random search: virtual time, and how much less than bulk-synchronous\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "workers\tbulk-synchronous\tasynchronous\t\twith median stop\t\tes_min 3\t\tbest validation of the four")
	synchronous := random
	synchronous.then = func(s *simulate.Study) { s.Barrier = true }
	for _, workers := range []int{4, 8, 16} {
		var sums []simulate.Summary
		for _, k := range []kind{synchronous, random, median, sooner} {
			s, err := repeat(k, 100, workers, 0)
			if err != nil {
				return err
			}
			sums = append(sums, s)
		}
		less := func(s simulate.Summary) string { return fmt.Sprintf("-%.0f %%", 100*(1-s.Time.Mean/sums[0].Time.Mean)) }
		fmt.Fprintf(w, "%d\t%.0f ms\t%.0f ms\t%s\t%.0f ms\t%s\t%.0f ms\t%s\t%.4f %.4f %.4f %.4f\n", workers, sums[0].Time.Mean, sums[1].Time.Mean, less(sums[1]), sums[2].Time.Mean,
			less(sums[2]), sums[3].Time.Mean, less(sums[3]), sums[0].Best.Mean, sums[1].Best.Mean, sums[2].Best.Mean, sums[3].Best.Mean)
	}
	return w.Flush()
}
