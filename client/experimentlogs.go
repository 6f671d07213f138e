package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// trialPause lies between two looks at the logs of trials, which executors append to every second.
const trialPause = 500 * time.Millisecond

// Logs copies what the function of an experiment has printed in its trials: of one, or with trial 0 of all, each line
// beginning with its trial. With follow it goes on until the experiment, or the trial, has ended. What an attempt printed
// whose executor was lost is left out as soon as the next one has begun.
func (e *Experiments) Logs(ctx context.Context, id string, trial training.TrialID, follow bool, w io.Writer) error {
	sink := &sink{all: &sinks{}, w: w}
	writers := map[string]*lineWriter{}
	offsets := map[string]int64{}
	for {
		s, err := e.Status(ctx, id)
		if err != nil {
			if !follow || !e.runs(ctx, id) {
				return err
			}
			s = &protocol.ExperimentStatus{State: protocol.ExperimentRunning} // it waits, or its controller has just begun
		}
		found, over := trial == 0, s.State != protocol.ExperimentRunning
		var wrong error
		for _, t := range s.Trials {
			if trial != 0 && t.Trial != trial {
				continue
			}
			found = true
			over = over || trial != 0 && t.State.Final()
			if t.Log == "" {
				continue
			}
			to := writers[t.Log]
			if to == nil {
				prefix := ""
				if trial == 0 {
					prefix = fmt.Sprintf("[%v] ", t.Trial)
				}
				to = sink.lines(prefix)
				writers[t.Log] = to
			}
			n, err := e.c.appendFrom(ctx, t.Log, offsets[t.Log], to)
			offsets[t.Log] += n
			if err != nil {
				wrong = errors.Join(wrong, err)
			}
		}
		if wrong != nil && !follow {
			return wrong
		}
		if !found && (over || !follow) {
			return metadata.Errorf(metadata.ErrNotExist, "%s has no trial %v", id, trial)
		}
		if !follow || over {
			for _, to := range writers {
				to.flush()
			}
			return wrong
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(trialPause):
		}
	}
}

// runs reports whether the job of an experiment has not ended.
func (e *Experiments) runs(ctx context.Context, id string) bool {
	application, err := e.Application(ctx, id)
	if err != nil {
		return false
	}
	j, err := e.c.jobs.Get(ctx, application)
	return err == nil && !j.Ended()
}

// appendFrom copies what a file has from an offset on; one that is not there is empty.
func (c *Client) appendFrom(ctx context.Context, name string, offset int64, w io.Writer) (int64, error) {
	r, err := c.fs.Open(ctx, name)
	if errors.Is(err, metadata.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if r.Size() <= offset {
		return 0, nil
	}
	if _, err := r.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(w, r)
}

// Newer orders experiments and jobs by their ids: the newest first.
func Newer(a, b string) int {
	number := func(id string) (cluster, n int64) {
		parts := strings.Split(id, "_")
		if len(parts) < 3 {
			return 0, 0
		}
		cluster, _ = strconv.ParseInt(parts[1], 10, 64)
		n, _ = strconv.ParseInt(parts[2], 10, 64)
		return cluster, n
	}
	ca, na := number(a)
	cb, nb := number(b)
	switch {
	case ca != cb && ca > cb, ca == cb && na > nb:
		return -1
	case ca == cb && na == nb:
		return strings.Compare(a, b)
	}
	return 1
}
