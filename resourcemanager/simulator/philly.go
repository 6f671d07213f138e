package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// phillyJob is a job of the public trace (github.com/msr-fiddle/philly-traces, cluster_job_log).
type phillyJob struct {
	Status    string          `json:"status"`
	VC        string          `json:"vc"`
	ID        string          `json:"jobid"`
	Attempts  []phillyAttempt `json:"attempts"`
	Submitted string          `json:"submitted_time"`
	User      string          `json:"user"`
}

type phillyAttempt struct {
	Start  string `json:"start_time"`
	End    string `json:"end_time"`
	Detail []struct {
		IP   string   `json:"ip"`
		GPUs []string `json:"gpus"`
	} `json:"detail"`
}

// ReadPhilly reads a trace in the form of Microsoft's Philly clusters: an array of jobs with their attempts. A virtual cluster is a queue,
// a job a gang of the GPUs of its first attempt, in members of at most perNode, and it runs as long as all of its attempts together:
// those that failed are done again as well. Jobs that never ran, or whose end is not known, are skipped and counted. The
// trace knows neither walltimes nor checkpoints.
func ReadPhilly(name string, r io.Reader, perNode int) (*Workload, error) {
	if perNode < 1 || perNode > maxGPUs {
		return nil, fmt.Errorf("GPUs of a node: %d is not between 1 and %d", perNode, maxGPUs)
	}
	w := &Workload{Skipped: map[string]int{}}
	seen := map[string]bool{}
	err := values(name, r, func(_ int, v json.RawMessage) error {
		var p phillyJob
		if err := json.Unmarshal(v, &p); err != nil {
			if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				return fmt.Errorf("%s: a JSON %s is not what the trace has there", wrong.Field, wrong.Value)
			}
			return err
		}
		j, why, err := p.job(perNode)
		switch {
		case err != nil:
			return err
		case why != "":
			w.Skipped[why]++
			return nil
		case seen[j.ID]:
			return fmt.Errorf("jobid %q is there twice", j.ID)
		case len(w.Jobs) == maxJobs:
			return fmt.Errorf("more than %d jobs", maxJobs)
		}
		seen[j.ID] = true
		w.Jobs = append(w.Jobs, j)
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.shift()
	return w, nil
}

// job translates; why is not empty for what is no work.
func (p *phillyJob) job(perNode int) (j Job, why string, err error) {
	submitted, ok, err := phillyTime("submitted_time", p.Submitted)
	if err != nil {
		return j, "", err
	}
	if !ok {
		return j, "submitted_time is not known", nil
	}
	if len(p.Attempts) == 0 {
		return j, "never ran", nil
	}
	gpus, ran := 0, int64(0)
	for i, a := range p.Attempts {
		start, has1, err1 := phillyTime("start_time", a.Start)
		end, has2, err2 := phillyTime("end_time", a.End)
		if err := errors.Join(err1, err2); err != nil {
			return j, "", fmt.Errorf("attempts[%d]: %w", i, err)
		}
		if !has1 || !has2 {
			continue
		}
		if end < start {
			return j, "", fmt.Errorf("attempts[%d] ends before it starts", i)
		}
		ran += end - start
		if gpus == 0 {
			for _, d := range a.Detail {
				gpus += len(d.GPUs)
			}
		}
	}
	switch {
	case ran == 0:
		return j, "start or end is not known, or the same", nil
	case gpus == 0:
		return j, "no GPU", nil
	case gpus > maxContainers:
		return j, "", fmt.Errorf("more than %d GPUs", maxContainers)
	}
	each := min(gpus, perNode)
	for gpus%each != 0 { // members are alike
		each--
	}
	j = Job{ID: p.ID, Arrival: submitted, Queue: p.VC, User: p.User}
	j.Parts = []Part{{Count: gpus / each, Gang: gpus / each, Shape: Shape{GPUs: each, VCores: each, Memory: int64(each) << 30}, Duration: ran}}
	return j, "", j.check()
}

// phillyTime reads a moment; false: the trace does not know it.
func phillyTime(key, text string) (int64, bool, error) {
	if text == "" || text == "None" {
		return 0, false, nil
	}
	t, err := time.Parse(time.DateTime, text)
	if err != nil || t.Year() < 1970 || t.Year() > 2069 {
		return 0, false, fmt.Errorf("%s: %.40q is no time as 2017-10-07 01:12:09", key, text)
	}
	return t.UnixMilli(), true, nil
}
