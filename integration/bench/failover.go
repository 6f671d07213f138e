package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gohops/hops/cmd/bench"
)

// failed is what the death of a leader cost a side, run by run.
type failed struct {
	Side string           `json:"side"`
	What string           `json:"what"`
	Runs []bench.Failover `json:"runs"`
}

// failover kills the leading namenode of replicated clusters under load, the sides one after the other.
func (r *runner) failover(ctx context.Context) error {
	runs := max(5, r.rounds)
	measure := func(s side, what string, host bool, runs int) error {
		f := failed{Side: s.label(), What: what}
		for i := range runs {
			b, err := r.load(ctx, s, func(o *bench.Options) { o.Connections, o.Outstanding = 16, 16 })
			if err != nil {
				return err
			}
			var revive func(context.Context) error
			result, err := b.Failover(ctx, bench.FailoverConfig{Kill: func() (err error) {
				revive, err = s.killLeader(ctx, host)
				return err
			}})
			if err == nil && revive != nil {
				err = revive(ctx)
			}
			if err = errors.Join(err, b.Close(context.WithoutCancel(ctx))); err != nil {
				return fmt.Errorf("%s, %s: %w", s.label(), what, err)
			}
			r.say("failover of %s, %s, run %d of %d: %.2f s, %d of %d lost", s.label(), what, i+1, runs, result.Seconds, result.Lost, result.Acknowledged)
			f.Runs = append(f.Runs, result)
		}
		r.report.Failovers = append(r.report.Failovers, f)
		return nil
	}
	o, err := r.startOurs(ctx, "failover-hops", shape{3, 1}, nil)
	if err != nil {
		return err
	}
	err = errors.Join(measure(o, "namenode (process or machine)", true, runs), o.stop())
	if err != nil || r.jars == "" {
		return err
	}
	h, err := r.startHadoop(ctx, "failover-hdfs", labelHDFS, shape{2, 1}, false)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.say("failover: Apache HDFS does not run: %v", err)
		r.report.PeerMissing = err.Error()
		return nil
	}
	err = r.warmUp(ctx, h, metadataPhases()[:1])
	if err == nil {
		err = measure(h, "NameNode process", false, runs)
	}
	if err == nil {
		err = measure(h, "NameNode and its failover controller (machine)", true, max(3, runs/2))
	}
	return errors.Join(err, h.stop())
}
