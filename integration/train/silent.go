package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/training/experiment"
)

// What a gang has when one of its members is gone or stands still: until the controller has it in its journal, and until the gang has made
// its first step after it. The limits are wider than the goals of 5 and 15 s by what this machine may be busy with.
const (
	noticed = 10 * time.Second
	resumed = 45 * time.Second
)

// gang is an example of data parallel training, which takes its time and writes down who is where; each member on a node of its own if spread.
func gang(name, program string, ranks, epochs int, spread bool) example {
	return example{
		name: name, script: "{{dir}}/" + program + ".yaml", prints: []string{`FINISHED`},
		setup: func(_ context.Context, s *suite) error {
			text, err := os.ReadFile("examples/" + program + ".py")
			if err != nil {
				return err
			}
			study, err := os.ReadFile("examples/" + program + ".yaml")
			if err != nil {
				return err
			}
			study = bytes.Replace(study, []byte("workers: 2"), fmt.Appendf(nil, "workers: %d", ranks), 1)
			if spread { // two do not fit in one
				study = bytes.Replace(study, []byte("memory: 1GiB"), fmt.Appendf(nil, "memory: %dMiB", nodeMemory*5/9>>20), 1)
			}
			study = fmt.Appendf(study, "arguments: {epochs: %d, pause: 0.3, times: %s}\n", epochs, times(s))
			return errors.Join(os.WriteFile(times(s), nil, 0o666), os.WriteFile(filepath.Join(s.dir, program+".py"), text, 0o644), os.WriteFile(filepath.Join(s.dir, program+".yaml"), study, 0o644))
		},
		check: goesOn,
	}
}

// harmed is a case with what does it harm.
func harmed(c example, harm func(context.Context, *suite, string, <-chan struct{}) error) example {
	c.disturb = harm
	return c
}

// byHorovod is a case that needs Horovod.
func byHorovod(c example) example {
	c.horovod = true
	return c
}

// times is where the members of a gang write down their epochs.
func times(s *suite) string { return filepath.Join(s.dir, "gang.times") }

// step is an epoch that a member has done.
type step struct {
	at                           time.Time
	generation, rank, pid, epoch int
	loss                         float64
}

var stepLine = regexp.MustCompile(`(?m)^(\d+)\.(\d{3}) generation (\d+) rank (\d+) pid (\d+) epoch (\d+) loss ([\d.]+)$`)

func steps(s *suite) ([]step, error) {
	text, err := os.ReadFile(times(s))
	if err != nil {
		return nil, err
	}
	var out []step
	for _, m := range stepLine.FindAllStringSubmatch(string(text), -1) {
		n := make([]int, len(m))
		for i, digits := range m[1:7] {
			if n[i], err = strconv.Atoi(digits); err != nil {
				return nil, err
			}
		}
		loss, err := strconv.ParseFloat(m[7], 64)
		if err != nil {
			return nil, err
		}
		out = append(out, step{time.Unix(int64(n[0]), int64(n[1])*int64(time.Millisecond)), n[2], n[3], n[4], n[5], loss})
	}
	return out, nil
}

// member waits until a rank of the first generation is in its fifth epoch and tells its process.
func member(s *suite, rank int, ended <-chan struct{}) (int, error) {
	if err := when(times(s), fmt.Sprintf(`generation 1 rank %d pid \d+ epoch 5 `, rank), ended); err != nil {
		return 0, err
	}
	all, err := steps(s)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(all, func(p step) bool { return p.rank == rank })
	return all[i].pid, nil
}

// sendRank sends a signal to the process of a rank alone.
func sendRank(rank int, what syscall.Signal) func(context.Context, *suite, string, <-chan struct{}) error {
	return func(ctx context.Context, s *suite, log string, ended <-chan struct{}) error {
		pid, err := member(s, rank, ended)
		if err != nil {
			return err
		}
		at := time.Now()
		if err := syscall.Kill(pid, what); err != nil {
			return err
		}
		return recovers(ctx, s, log, ended, at)
	}
}

// stopRank has the whole container of rank 1 stand still: nobody ends, and no connection is closed.
func stopRank(ctx context.Context, s *suite, log string, ended <-chan struct{}) error {
	pid, err := member(s, 1, ended)
	if err != nil {
		return err
	}
	container, err := variable(pid, "HOPS_CONTAINER_ID")
	if err != nil {
		return err
	}
	pids := processes.Find("HOPS_CONTAINER_ID="+container+"\x00", "")
	at := time.Now()
	if err := send(syscall.SIGSTOP, pids); err != nil {
		return err
	}
	return recovers(ctx, s, log, ended, at) // the node manager kills what stands still
}

// stopNode has the node of a rank stand still, the node manager with all of its containers; not the one where the controller is. It is woken
// when the gang trains again, and its processes do no harm then.
func stopNode(ctx context.Context, s *suite, log string, ended <-chan struct{}) error {
	for rank := range 2 {
		pid, err := member(s, rank, ended)
		if err != nil {
			return err
		}
		work, err := variable(pid, "HOPS_WORK_DIR")
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.cluster.Names(), func(name string) bool { return strings.HasPrefix(work, filepath.Join(s.dir, name)+"/") })
		if i < 0 {
			return fmt.Errorf("%s is of no node manager", work)
		}
		name := s.cluster.Names()[i]
		containers := "HOPS_WORK_DIR=" + filepath.Join(s.dir, name) + "/"
		if len(processes.Find(containers, "hops controller")) > 0 {
			continue
		}
		pids := append(processes.Find(containers, ""), s.cluster.PID(name))
		at := time.Now()
		if err := send(syscall.SIGSTOP, pids); err != nil {
			return err
		}
		err = recovers(ctx, s, log, ended, at)
		return errors.Join(err, send(syscall.SIGCONT, pids), s.nodesRun(ctx))
	}
	return fmt.Errorf("both ranks are on the node of the controller")
}

func send(what syscall.Signal, pids []int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, what); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// variable reads the environment with which a process began.
func variable(pid int, name string) (string, error) {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", err
	}
	for _, entry := range strings.Split(string(env), "\x00") {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("process %d has no %s", pid, name)
}

// recovers waits until the second generation of a gang has done an epoch, and notes what the time since the harm went for.
func recovers(ctx context.Context, s *suite, log string, ended <-chan struct{}, at time.Time) error {
	if err := when(times(s), `generation 2 rank 0 `, ended); err != nil {
		return err
	}
	all, err := steps(s)
	if err != nil {
		return err
	}
	first := all[slices.IndexFunc(all, func(p step) bool { return p.generation == 2 && p.rank == 0 })]
	text, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	entries, err := journalOf(ctx, s, string(text))
	if err != nil {
		return err
	}
	var found, came, assigned, whole time.Duration
	why := ""
	for _, e := range entries {
		since := e.Time.Time().Sub(at)
		switch {
		case since < 0:
		case e.Lost != nil && found == 0:
			found, why = since, e.Lost.Reason
		case e.Ended != nil && found == 0:
			found, why = since, "rank "+strconv.Itoa(e.Ended.Rank)+" has ended"
		case e.Registered != nil && came == 0:
			came = since
		case e.Assigned != nil && assigned == 0:
			assigned = since
		case e.Joined != nil:
			whole = since
		}
	}
	trains := first.at.Sub(at)
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }
	replaced := ""
	if came > 0 {
		replaced = "an executor in its place " + seconds(came) + ", "
	}
	s.note("noticed after %s s (%s), %sassigned %s, whole %s, first epoch %s", seconds(found), why, replaced, seconds(assigned), seconds(whole), seconds(trains))
	say("  %s", s.noted)
	switch {
	case found == 0:
		return fmt.Errorf("the journal does not say what has become of the rank")
	case found > noticed:
		return fmt.Errorf("it was noticed after %s s only", seconds(found))
	case trains > resumed:
		return fmt.Errorf("the gang trains again after %s s only", seconds(trains))
	}
	return nil
}

// goesOn looks whether a gang that was harmed went on from its last checkpoint, as if nothing had been.
func goesOn(ctx context.Context, s *suite, output string) error {
	all, err := steps(s)
	if err != nil {
		return err
	}
	entries, err := journalOf(ctx, s, output)
	if err != nil {
		return err
	}
	saved := map[int64]bool{}
	attempts := 0
	for _, e := range entries {
		if c := e.Committed; c != nil && c.Attempt == 1 {
			saved[c.Step] = true
		}
		if e.Assigned != nil {
			attempts++
		}
	}
	before := map[int]float64{} // what the first generation had as loss
	first, lost := step{}, step{}
	for _, p := range all {
		switch {
		case p.rank != 0:
		case p.generation == 1:
			before[p.epoch], lost = p.loss, p
		case first.epoch == 0:
			first = p
		}
	}
	last := all[len(all)-1]
	switch {
	case attempts != 2 || last.generation != 2:
		return fmt.Errorf("there were %d attempts, of which the last one came to generation %d", attempts, last.generation)
	case !saved[int64(first.epoch-1)]:
		return fmt.Errorf("the gang began again with epoch %d, which follows no checkpoint", first.epoch)
	case first.epoch < lost.epoch:
		return fmt.Errorf("the gang began again with epoch %d, %d had been done", first.epoch, lost.epoch)
	}
	if old, done := before[first.epoch]; done && old != first.loss {
		return fmt.Errorf("epoch %d had loss %g before and %g after", first.epoch, old, first.loss)
	}
	if old := before[first.epoch-1]; first.loss > 2*old {
		return fmt.Errorf("epoch %d has loss %g, the one before had %g", first.epoch, first.loss, old)
	}
	return trialEnded(entries)
}

// trialEnded looks whether the one trial ended well.
func trialEnded(entries []*experiment.Entry) error {
	for _, e := range slices.Backward(entries) {
		if e.Ended != nil {
			if e.Ended.Status != "COMPLETED" {
				return fmt.Errorf("the trial is %s", e.Ended.Status)
			}
			return nil
		}
	}
	return fmt.Errorf("the trial has not ended")
}
