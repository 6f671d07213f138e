package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The ports at which namenodes and resource managers say who leads.
const (
	namenodes  = "9870"
	managersAt = "8088"
)

// erase loses everything that hops has on a machine: its power, its configuration and keys, its data. Its processes do not come back.
func (t *teller) erase(ctx context.Context, machine string) error {
	m := t.m(machine)
	if err := m.PowerOff(ctx); err != nil {
		return err
	}
	if err := m.Boot(ctx); err != nil {
		return err
	}
	_, err := t.do(ctx, machine, "root", "sh", "-c", "find /etc/hops /var/lib/hops /var/log/hops -mindepth 1 -delete")
	return err
}

// signal sends one to the server of a role on a machine.
func (t *teller) signal(ctx context.Context, machine, role, signal string) error {
	_, err := t.do(ctx, machine, "root", "sh", "-c", `
for p in /proc/[0-9]*; do
  words=$(tr '\0' ' ' <$p/cmdline 2>/dev/null) || continue
  case $words in *hops\ server\ *--role\ $0\ *) [ "$(cat $p/comm 2>/dev/null)" = hops ] && kill -$1 ${p#/proc/} && found=y;; esac
done
[ "${found-}" ]`, role, signal)
	return err
}

// restarted stops the server of a role and starts it again.
func (t *teller) restarted(ctx context.Context, machine, role string) error {
	if err := t.stop(ctx, machine, role); err != nil {
		return err
	}
	return t.serve(ctx, machine, false, role)
}

// stop stops the server of a role, as its unit does, and waits until it has ended.
func (t *teller) stop(ctx context.Context, machine, role string) error {
	if err := t.signal(ctx, machine, role, "TERM"); err != nil {
		return err
	}
	gone := func() error {
		if t.signal(ctx, machine, role, "0") == nil {
			return fmt.Errorf("the %s of %s does not end", role, machine)
		}
		return nil
	}
	return await(ctx, time.Minute, gone)
}

// other is a server's machine that is none of these.
func other(but ...string) string {
	return servers[slices.IndexFunc(servers, func(s string) bool { return !slices.Contains(but, s) })]
}

// whole makes sure that a group, of namenodes or resource managers, has a vote on each machine that has to have one, and that nobody is behind.
func (t *teller) whole(ctx context.Context, role string) error {
	return await(ctx, time.Minute, func() error {
		out, err := t.do(ctx, servers[0], "root", "hops", role, "list")
		if err != nil {
			return err
		}
		for _, s := range servers {
			if !regexp.MustCompile(`(?m)^` + s + ` .* (active|standby) +yes +0 `).MatchString(out) {
				return fmt.Errorf("%s has no vote, or lags behind:\n%s", s, out)
			}
		}
		return nil
	})
}

// handOver has a machine lead by a command, such as "namenode transfer", that is given on another one, as often as it takes: where others use the
// processors a handover may take longer than an election may.
func (t *teller) handOver(ctx context.Context, on, command, to string) error {
	at := managersAt
	if strings.Contains(command, "namenode") {
		at = namenodes
	}
	return await(ctx, time.Minute, func() error {
		if _, err := t.do(ctx, on, "root", strings.Fields("hops "+command+" "+to)...); err != nil {
			return err
		}
		now, err := t.leader(ctx, at)
		if err == nil && now != to {
			err = fmt.Errorf("%s leads, %s was to", now, to)
		}
		return err
	})
}

// replace loses the machine whose namenode leads, with its disks, and puts a new one in its place by the line of `hops cluster replace`.
func replace(ctx context.Context, t *teller) (string, error) {
	lost, err := t.leader(ctx, namenodes)
	if err != nil {
		return "", err
	}
	sum, err := t.acknowledged(ctx, "m4", "replaced", 4<<20)
	if err != nil {
		return "", err
	}
	if err := t.erase(ctx, lost); err != nil {
		return "", err
	}
	leads, err := t.leader(ctx, namenodes)
	if err != nil {
		return "", err
	}
	if _, err := t.leader(ctx, managersAt); err != nil {
		return "", err
	}
	out, err := t.do(ctx, leads, "root", "hops", "cluster", "replace", lost)
	if err != nil {
		return "", err
	}
	line := joinLine.FindString(out)
	if line == "" {
		return "", fmt.Errorf("no line to paste in what it said: %s", out)
	}
	took, err := t.joins(ctx, lost, line)
	if err != nil {
		return "", err
	}
	if err := errors.Join(t.whole(ctx, "namenode"), t.whole(ctx, "resourcemanager")); err != nil {
		return "", err
	}
	for _, role := range []string{"namenode", "resourcemanager"} { // the new one alone answers then
		if err := t.handOver(ctx, leads, "cluster transfer "+role, lost); err != nil {
			return "", err
		}
	}
	if err := t.same(ctx, "alone", "replaced", sum); err != nil {
		return "", err
	}
	healthy, err := t.healthy(ctx, lost)
	return fmt.Sprintf("%s led and lost its disks; the new %s was in after %.1f s, all blocks as often as they should be %s later; it leads both groups", lost, lost, took.Seconds(), healthy), err
}

// healthy waits until every block has as many replicas as it should have.
func (t *teller) healthy(ctx context.Context, on string) (string, error) {
	began := time.Now()
	err := await(ctx, 4*time.Minute, func() error {
		out, err := t.do(ctx, on, "hops", "hops", "fsck", "-conf", conf, "/")
		if err == nil && !regexp.MustCompile(`Under-replicated blocks:\s+0 `).MatchString(out) {
			err = errors.New(out)
		}
		return err
	})
	return fmt.Sprintf("%.0f s", time.Since(began).Seconds()), err
}

// granted is a line of a container: when it began or ended with which GPU.
var granted = regexp.MustCompile(`(?m)(begin|end) (\S+) (\d+\.\d+)`)

// hold is the time in which a container had a GPU, in seconds since 1970.
type hold struct {
	gpu      string
	from, to float64
}

// holds are those that jobs tell of. It is an error if one has begun again, or not ended.
func holds(said string, want int) (out []hold, err error) {
	open := map[string]float64{}
	for _, g := range granted.FindAllStringSubmatch(said, -1) {
		at, err := strconv.ParseFloat(g[3], 64)
		if err != nil {
			return nil, err
		}
		from, began := open[g[2]]
		switch {
		case g[1] == "begin" && began:
			return nil, fmt.Errorf("%s was granted twice, or its container was started again", g[2])
		case g[1] == "begin":
			open[g[2]] = at
		case !began:
			return nil, fmt.Errorf("a container with %s ended that had not begun", g[2])
		default:
			out = append(out, hold{g[2], from, at})
			delete(open, g[2])
		}
	}
	if len(out) != want || len(open) > 0 {
		return nil, fmt.Errorf("%d containers ran to their end and %d did not, want %d", len(out), len(open), want)
	}
	return out, nil
}

// twice is the GPU that two containers had at the same time, if there is one.
func twice(all []hold) error {
	slices.SortFunc(all, func(a, b hold) int { return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.from, b.from)) })
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.gpu == b.gpu && b.from < a.to {
			return fmt.Errorf("two containers had %s at the same time, from %.3f until %.3f and from %.3f on", a.gpu, a.from, a.to, b.from)
		}
	}
	return nil
}

// gpuJob is a job of containers with a GPU each, which say when they had it.
func (t *teller) gpuJob(ctx context.Context, machine string, containers int, length time.Duration) *exec.Cmd {
	words := append(append([]string{"hops", "job", "run"}, t.jobConf...), "--memory", "128MiB", "--gpus", "1", "--instances", strconv.Itoa(containers), "--", "sh", "-c",
		fmt.Sprintf(`echo begin $CUDA_VISIBLE_DEVICES $(date +%%s.%%N); sleep %.0f; echo end $CUDA_VISIBLE_DEVICES $(date +%%s.%%N)`, length.Seconds()))
	return t.m(machine).Command(ctx, user, words...)
}

// managers kills the resource manager that leads, starts it again and pulls the cable of the next one that leads, while jobs run and are
// submitted: none of their containers is lost, started again or has a GPU that another one has, and clients notice nothing.
func managers(ctx context.Context, t *teller) (string, error) {
	const inLong = 4
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	var (
		wait   sync.WaitGroup
		mutex  sync.Mutex
		all    []hold
		errs   []error
		short  int
		longed = make(chan struct{}, 2)
		over   = make(chan struct{})
	)
	run := func(machine string, containers int, length time.Duration) error {
		said, err := t.gpuJob(ctx, machine, containers, length).CombinedOutput()
		var had []hold
		if err == nil {
			had, err = holds(string(said), containers)
		}
		mutex.Lock()
		defer mutex.Unlock()
		if err != nil {
			err = fmt.Errorf("a job from %s: %w\n%s", machine, err, said)
			errs = append(errs, err)
		}
		all = append(all, had...)
		return err
	}
	for _, machine := range []string{"m4", "alone"} {
		wait.Go(func() {
			_ = run(machine, inLong, 75*time.Second)
			longed <- struct{}{}
		})
	}
	wait.Go(func() { // one job after the other: some of them while nobody leads
		for {
			select {
			case <-over:
				return
			default:
			}
			if run("alone", 1, time.Second) != nil {
				return
			}
			mutex.Lock()
			short++
			mutex.Unlock()
		}
	})
	seen, err := func() (string, error) {
		defer close(over)
		if err := await(ctx, time.Minute, func() error { return t.running(ctx, 2*inLong) }); err != nil {
			return "", err
		}
		killed, err := t.leader(ctx, managersAt)
		if err != nil {
			return "", err
		}
		if err := t.signal(ctx, killed, "resourcemanager", "KILL"); err != nil {
			return "", err
		}
		first, next, err := t.submitted(ctx, killed)
		if err != nil {
			return "", err
		}
		if err := t.serve(ctx, killed, false, "resourcemanager"); err != nil {
			return "", err
		}
		if err := t.whole(ctx, "resourcemanager"); err != nil {
			return "", err
		}
		if err := t.m(next).Link(ctx, false); err != nil {
			return "", err
		}
		second, last, err := t.submitted(ctx, next)
		if err := errors.Join(err, t.m(next).Link(ctx, true)); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s killed: %s leads, a job is taken after %.1f s; %s without its cable: %s leads, a job is taken after %.1f s",
			killed, next, first.Seconds(), next, last, second.Seconds()), nil
	}()
	if err != nil {
		cancel() // the jobs are of no more use
	} else {
		<-longed
		<-longed
	}
	wait.Wait()
	if err != nil {
		return "", err
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	if err := errors.Join(twice(all), t.whole(ctx, "resourcemanager")); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; %d containers that ran meanwhile ended as they should, %d jobs were run one after the other, no GPU was granted twice", seen, 2*inLong, short), nil
}

// running makes sure that so many GPUs are in use.
func (t *teller) running(ctx context.Context, want int) error {
	out, err := t.do(ctx, "m4", user, append([]string{"hops", "job", "list", "--state", "running", "-o", "json"}, t.jobConf...)...)
	if err != nil {
		return err
	}
	n := 0
	for _, g := range regexp.MustCompile(`"gpus":(\d+)`).FindAllStringSubmatch(out, -1) {
		k, err := strconv.Atoi(g[1])
		if err != nil {
			return err
		}
		n += k
	}
	if n < want {
		return fmt.Errorf("%d GPUs are in use, want %d:\n%s", n, want, out)
	}
	return nil
}

// submitted submits a job on a machine that reaches the others, after the resource manager that leads was lost, and says how long it took and who leads then.
func (t *teller) submitted(ctx context.Context, lost string) (took time.Duration, leads string, err error) {
	began := time.Now()
	if _, err := t.do(ctx, "m4", user, append(append([]string{"hops", "job", "run"}, t.jobConf...), "--detach", "--memory", "128MiB", "--", "true")...); err != nil {
		return 0, "", err
	}
	took = time.Since(began)
	if leads, err = t.leaderBut(ctx, managersAt, lost); err != nil {
		return 0, "", err
	}
	return took, leads, nil
}

// managerMembers takes the resource manager of a machine out of the group and in again, and hands leadership over, by the commands of docs/how-to/namenodes.md.
func managerMembers(ctx context.Context, t *teller) (string, error) {
	leads, err := t.leader(ctx, managersAt)
	if err != nil {
		return "", err
	}
	out, next := other(leads), other(leads, other(leads))
	for _, words := range []string{"remove " + out, "list"} {
		said, err := t.do(ctx, leads, "root", strings.Fields("hops resourcemanager "+words)...)
		if err != nil {
			return "", err
		}
		if words == "list" && !regexp.MustCompile(`(?m)^`+out+` .* not a member`).MatchString(said) {
			return "", fmt.Errorf("the list does not say that %s is no member:\n%s", out, said)
		}
	}
	if err := t.stop(ctx, out, "resourcemanager"); err != nil {
		return "", err
	}
	if _, err := t.do(ctx, out, "root", "find", "/var/lib/hops/resourcemanager", "-mindepth", "1", "-delete"); err != nil {
		return "", err
	}
	began := time.Now()
	var wait sync.WaitGroup
	var ready error
	wait.Go(func() { ready = t.serve(ctx, out, false, "resourcemanager") }) // it is when it is a member
	err = await(ctx, time.Minute, func() error {
		_, err := t.do(ctx, leads, "root", "hops", "resourcemanager", "add", out, t.m(out).Address.String()+":8587")
		return err
	})
	wait.Wait()
	if err := errors.Join(err, ready); err != nil {
		return "", err
	}
	if err := t.whole(ctx, "resourcemanager"); err != nil {
		return "", err
	}
	took := time.Since(began)
	err = t.handOver(ctx, out, "resourcemanager transfer", next)
	return fmt.Sprintf("%s lost its vote, and had it again %.1f s after its start on an empty directory; %s leads", out, took.Seconds(), next), err
}
