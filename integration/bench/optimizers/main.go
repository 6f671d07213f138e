// Command optimizers runs the model-based optimizers on functions whose minimum is known, beside what peer.py measured of
// Optuna's on the same ones: simple regret after 25, 50 and 100 evaluations, one at a time, and the time of a suggestion.
//
//	go run ./integration/bench/optimizers -peer peer.json
//
// `make bench-optimizers` runs both.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/search"
)

// run is one search.
type run struct {
	Function  string     `json:"function"`
	Optimizer string     `json:"optimizer"`
	Seed      int        `json:"seed"`
	Regret    [3]float64 `json:"regret"`  // after each of evaluations
	Seconds   float64    `json:"seconds"` // a suggestion, the mean
	slowest   time.Duration
}

var evaluations = [3]int{25, 50, 100}

func main() {
	var names []string
	for _, f := range functions {
		names = append(names, f.name)
	}
	peer := flag.String("peer", "", "`file` that peer.py wrote, for the comparison")
	only := flag.String("functions", strings.Join(names, ","), "`names`")
	optimizers := flag.String("optimizers", "tpe,cmaes,gp", "`names`")
	seeds := flag.Int("seeds", 20, "searches of each function, with the seeds from 0")
	options := flag.String("options", "", `more of the optimizer's options, as JSON: '"gamma": 0.2'`)
	workers := flag.Int("workers", 1, "trials that run at once; each ends after all that began before it")
	flag.Parse()
	if err := bench(os.Stdout, strings.Split(*optimizers, ","), strings.Split(*only, ","), *seeds, *workers, *options, *peer); err != nil {
		fmt.Fprintln(os.Stderr, "optimizers:", err)
		os.Exit(1)
	}
}

func bench(out io.Writer, optimizers, only []string, seeds, workers int, options, peer string) error {
	theirs, err := readRuns(peer)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "regret after 100 evaluations of %d seeds: lower quartile, median, upper quartile; median after 25 and 50; ms a suggestion, mean and slowest; Optuna (runs, probability of those if our median were above its upper quartile)\n", seeds)
	fmt.Fprintf(out, "%-7s%-12s %9s %9s %9s %9s %9s %6s %6s  |%9s %9s %9s %6s  %s\n", "", "", "q1", "median", "q3", "at 25", "at 50", "ms", "max ms", "Optuna q1", "median", "q3", "ms", "")
	met, reached, compared := 0, 0, 0
	for _, o := range optimizers {
		for _, name := range only {
			i := slices.IndexFunc(functions, func(f function) bool { return f.name == name })
			if i < 0 {
				return fmt.Errorf("there is no function %q", name)
			}
			ours, err := searches(functions[i], o, options, seeds, workers)
			if err != nil {
				return err
			}
			q := func(runs []run, at int, p float64) float64 { return quantile(runs, at, p) }
			ms, slowest := 0.0, time.Duration(0)
			for _, r := range ours {
				ms += r.Seconds * 1000 / float64(len(ours))
				slowest = max(slowest, r.slowest)
			}
			fmt.Fprintf(out, "%-7s%-12s %9.3g %9.3g %9.3g %9.3g %9.3g %6.2f %6.1f", o, name, q(ours, 2, 0.25), q(ours, 2, 0.5), q(ours, 2, 0.75),
				q(ours, 0, 0.5), q(ours, 1, 0.5), ms, float64(slowest.Microseconds())/1000)
			if them := slices.Collect(func(yield func(run) bool) {
				for _, r := range theirs {
					if r.Function == name && r.Optimizer == o && !yield(r) {
						return
					}
				}
			}); len(them) > 0 {
				verdict := "WORSE"
				compared++
				ms := 0.0
				for _, r := range them {
					ms += r.Seconds * 1000 / float64(len(them))
				}
				if q(ours, 2, 0.5) <= q(them, 2, 0.75) {
					verdict = "ok"
					met++
				}
				if q(ours, 2, 0.5) <= q(them, 2, 0.5) {
					verdict = "better"
					reached++
				}
				worse := 0
				for _, r := range them {
					if r.Regret[2] >= q(ours, 2, 0.5) {
						worse++
					}
				}
				fmt.Fprintf(out, "  |%9.3g %9.3g %9.3g %6.1f  %s (%d, p %.2g)", q(them, 2, 0.25), q(them, 2, 0.5), q(them, 2, 0.75), ms, verdict, len(them), chance(worse, len(them)))
			}
			fmt.Fprintln(out)
		}
	}
	if compared > 0 {
		fmt.Fprintf(out, "median at most Optuna's upper quartile: %d of %d; at most its median: %d of %d\n", met, compared, reached, compared)
	}
	return nil
}

// searches runs all seeds, as many at a time as there are processors.
func searches(f function, optimizer, options string, seeds, workers int) ([]run, error) {
	out := make([]run, seeds)
	errs := make([]error, seeds)
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for seed := range seeds {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out[seed], errs[seed] = one(f, optimizer, options, seed, workers)
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

func one(f function, optimizer, options string, seed, workers int) (run, error) {
	r := run{Function: f.name, Optimizer: optimizer, Seed: seed}
	if options != "" {
		options = ", " + options
	}
	s, err := training.ParseSpec(fmt.Appendf(nil, `{"entry": "bench:%s", "direction": "min", "trials": 100, "seed": %d, "optimizer": {"type": %q%s}, "space": %s}`,
		f.name, seed, optimizer, options, f.space), "bench")
	if err != nil {
		return r, err
	}
	o, err := search.New(s)
	if err != nil {
		return r, err
	}
	clean := f.clean
	if clean == nil {
		clean = f.f
	}
	best, total := math.Inf(1), time.Duration(0)
	var running []search.Suggestion
	for n := 1; ; n++ {
		begin := time.Now()
		x, verdict := o.Next()
		took := time.Since(begin)
		if verdict != search.Suggest {
			break
		}
		r.slowest = max(r.slowest, took)
		total += took
		best = min(best, clean(point(x.Params))-f.optimum)
		if running = append(running, x); len(running) == workers {
			o.Observe(search.Event{Kind: search.Finished, Trial: running[0].Trial, Value: f.f(point(running[0].Params))})
			running = running[1:]
		}
		if i := slices.Index(evaluations[:], n); i >= 0 {
			r.Regret[i] = best
		}
	}
	r.Seconds = total.Seconds() / 100
	return r, nil
}

// quantile interpolates between order statistics, as numpy does.
func quantile(runs []run, at int, p float64) float64 {
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = r.Regret[at]
	}
	slices.SortFunc(values, cmp.Compare)
	place := p * float64(len(values)-1)
	i := min(int(place), len(values)-2)
	if i < 0 {
		return values[0]
	}
	return values[i] + (place-float64(i))*(values[i+1]-values[i])
}

// chance is the probability that so many or more of n runs are no better than our median if it were worse than their upper quartile, so that
// each is with 1/4 at most: how much few runs say.
func chance(worse, n int) float64 {
	sum, term := 0.0, math.Pow(0.75, float64(n)) // of none
	for k := range n + 1 {
		if k >= worse {
			sum += term
		}
		term *= float64(n-k) / float64(k+1) / 3
	}
	return min(sum, 1)
}

func readRuns(name string) ([]run, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not there; peer.py writes it", name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []run
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var r run
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s line %d: %w", name, n, err)
		}
		out = append(out, r)
	}
	return out, lines.Err()
}
