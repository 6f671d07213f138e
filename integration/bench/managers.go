package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	hops "github.com/gohops/hops/client"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// What group rmfailover has: so many containers run all the time, and so many deaths are measured.
const (
	managerNodes  = 3
	managerHeld   = 48
	managerDeaths = 20
)

// managers measures the death of the leading resource manager of three, while clients submit jobs and containers run.
func (r *runner) managers(ctx context.Context) (err error) {
	dir := filepath.Join(r.dir, "managers")
	notes := filepath.Join(dir, "notes")
	if err := os.MkdirAll(notes, 0o755); err != nil {
		return err
	}
	k, err := processes.New(processes.Config{
		Binary: r.hops, Dir: dir, Name: "bench", Namenodes: 1, Datanodes: 1, ResourceManagers: 3, NodeManagers: managerNodes, GPUs: 32,
		Properties: map[string]string{"dfs.replication": "1"},
		Adjust: func(_ string, f *config.File) {
			if n := f.NodeManager; n != nil { // more than there is: what runs there does nothing
				n.Memory, n.VCores = 64<<30, 256
			}
		},
	})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, k.Stop())
		for _, pid := range k.Leftovers() {
			err = errors.Join(err, fmt.Errorf("process %d was left running: %s", pid, processes.Command(pid)), syscall.Kill(pid, syscall.SIGKILL))
		}
	}()
	if err := k.StartAll(); err != nil {
		return err
	}
	c, err := hops.New(hops.Config{ConfDir: k.Conf()})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if err == nil {
			var nodes []hops.Node
			if nodes, err = c.Jobs().Nodes(ctx); err == nil && len(nodes) == managerNodes {
				break
			}
		}
		switch died := k.Died(); {
		case died != nil:
			return died
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("the resource managers are not ready after a minute: %w", err)
		}
		if c == nil {
			c, err = hops.New(hops.Config{ConfDir: k.Conf()}) // a namenode writes the directory when it starts
		}
	}
	defer c.Close()
	load, err := bench.NewJobs(ctx, bench.JobsOptions{
		Clients:    func(int) (*hops.Client, error) { return hops.New(hops.Config{ConfDir: k.Conf()}) },
		Submitters: 4, Pause: 400 * time.Millisecond, Held: managerHeld, Dir: notes, Died: k.Died,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, load.Close(ctx)) }()
	var submissions, grants, starts []float64
	var wrong []string
	acknowledged, ran := 0, 0
	for i := range managerDeaths {
		r.label = fmt.Sprintf("death of the leading resource manager, %d of %d", i+1, managerDeaths)
		dead := ""
		f, err := load.Failover(ctx, func() (err error) {
			if dead, err = leadingManager(ctx, k); err != nil {
				return err
			}
			return k.Kill(dead)
		}, time.Second, 2*time.Second)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		r.say("run %d of %d: submission after %.2f s, grant after %.2f s, start after %.2f s; %d acknowledged, %d ran; wrong: %d", i+1, managerDeaths, f.Submission, f.Grant, f.Start, f.Acknowledged, f.Ran, len(f.Wrong))
		for _, w := range f.Wrong {
			r.say("WRONG: %s", w)
		}
		submissions, grants, starts = append(submissions, f.Submission), append(grants, f.Grant), append(starts, f.Start)
		acknowledged, ran, wrong = acknowledged+f.Acknowledged, f.Ran, f.Wrong // of all runs so far
		if err := k.Start(dead); err != nil {
			return err
		}
		if err := managersStand(ctx, k); err != nil {
			return err
		}
	}
	for _, what := range []struct {
		name   string
		values []float64
	}{{"submission acknowledged", submissions}, {"container granted", grants}, {"process started in a container granted since", starts}} {
		s := spreadOf(what.values) // the 99th percentile of 20 is the highest
		r.keep("3 resource managers, kill -9 of the leader: next "+what.name+", highest of 20", "s", []float64{s.high}, 3, false, fmt.Sprintf("median %.2f s, lowest %.2f s", s.median, s.low))
		r.report.Promises[len(r.report.Promises)-1].N = len(what.values)
	}
	r.keep("the same: containers or jobs lost, jobs run twice, GPUs or memory granted twice", "", []float64{float64(len(wrong))}, 0, false,
		fmt.Sprintf("%d submissions acknowledged, %d jobs ran, %d containers ran from the first to the last", acknowledged, ran, managerHeld))
	return nil
}

// managerSays is what a resource manager says of itself.
func managerSays(ctx context.Context, address, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s%s: %s", address, path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// leadingManager waits for one that leads.
func leadingManager(ctx context.Context, k *processes.Cluster) (leader string, err error) {
	err = k.Await(time.Minute, "a resource manager that leads", func() error {
		for _, m := range k.File().ResourceManagers {
			var h struct{ State string }
			if err := managerSays(ctx, m.HTTP, "/health", &h); err == nil && h.State == "active" {
				leader = m.ID
				return nil
			}
		}
		return errors.Join(errors.New("none"), ctx.Err())
	})
	return leader, err
}

// managersStand waits until all resource managers are in step with the one that leads.
func managersStand(ctx context.Context, k *processes.Cluster) error {
	return k.Await(time.Minute, "that all resource managers are in step", func() error {
		var lags []string
		for _, m := range k.File().ResourceManagers {
			var h struct{ State string }
			if err := managerSays(ctx, m.HTTP, "/health", &h); err != nil {
				return err
			}
			if h.State != "active" {
				continue
			}
			var list struct {
				Members []struct {
					ID     string
					Voter  bool
					Behind uint64
					Silent float64 `json:"silent_s"`
				}
			}
			if err := managerSays(ctx, m.HTTP, "/api/v1/resourcemanagers", &list); err != nil {
				return err
			}
			for _, o := range list.Members {
				if !o.Voter || o.Behind > 10 || o.Silent < 0 || o.Silent > 2 {
					lags = append(lags, o.ID)
				}
			}
			if len(lags) == 0 && len(list.Members) == len(k.File().ResourceManagers) {
				return nil
			}
		}
		slices.Sort(lags)
		return fmt.Errorf("behind: %s", strings.Join(lags, ", "))
	})
}
