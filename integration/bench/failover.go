package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gohops/hops/cmd/bench"
)

// failed is what the death of a leader cost a side, run by run.
type failed struct {
	Side string           `json:"side"`
	What string           `json:"what"`
	Runs []bench.Failover `json:"runs"`
}

// failoverAlone starts replicated clusters for nothing but failovers.
func (r *runner) failoverAlone(ctx context.Context) (err error) {
	var sides []side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.stop())
		}
	}()
	o, err := r.startOurs(ctx, "failover-hops", shape{3, 1}, nil)
	if err != nil {
		return err
	}
	sides = append(sides, o)
	if r.jars != "" {
		h, err := r.startHadoop(ctx, "failover-hdfs", labelHDFS, shape{2, 1}, false)
		if err != nil {
			return fmt.Errorf("Apache HDFS does not run: %w", err)
		}
		sides = append(sides, h)
		if err := r.warmUp(ctx, h, metadataPhases()[:1]); err != nil {
			return err
		}
	}
	return r.failover(ctx, sides)
}

// failover kills the leading namenode of replicated clusters under load, the sides one after the other.
func (r *runner) failover(ctx context.Context, sides []side) error {
	began := time.Now()
	runs := r.rounds
	var all []failed
	for _, s := range sides {
		type death struct {
			what string
			host bool
			runs int
		}
		deaths := []death{{"namenode process", true, runs}}
		if s.label() != labelHops {
			deaths = []death{{"NameNode process", false, runs}, {"NameNode and its failover controller (machine)", true, (runs + 1) / 2}}
		}
		for _, d := range deaths {
			f := failed{Side: s.label(), What: d.what}
			for i := range d.runs {
				r.label = fmt.Sprintf("failover, %s, run %d of %d", d.what, i+1, d.runs)
				result, err := r.killed(ctx, s, d.host)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s.label(), d.what, err)
				}
				r.say("failover of %s, %s, run %d of %d: %.2f s, %d of %d lost", s.label(), d.what, i+1, d.runs, result.Seconds, result.Lost, result.Acknowledged)
				f.Runs = append(f.Runs, result)
			}
			all = append(all, f)
		}
	}
	r.report.Failovers = all
	r.say("failover done in %.1f minutes", time.Since(began).Minutes())
	return nil
}

// killed is one failover, after which all servers run again.
func (r *runner) killed(ctx context.Context, s side, host bool) (bench.Failover, error) {
	if err := r.space(8); err != nil {
		return bench.Failover{}, err
	}
	b, err := r.load(ctx, s, func(o *bench.Options) { o.Connections, o.Outstanding = 16, 16 })
	if err != nil {
		return bench.Failover{}, err
	}
	var revive func(context.Context) error
	result, err := b.Failover(ctx, bench.FailoverConfig{Kill: func() (err error) {
		revive, err = s.killLeader(ctx, host)
		return err
	}})
	if err == nil && revive != nil {
		err = revive(ctx)
	}
	return result, errors.Join(err, end(ctx, b))
}
