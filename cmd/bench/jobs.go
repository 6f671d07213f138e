package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/cmd/processes"
)

// JobsOptions say how resource managers are loaded.
type JobsOptions struct {
	// Clients makes the n-th client.
	Clients func(n int) (*client.Client, error)
	// Submitters submit one short job after the other, each by a client of its own, with Pause between two. Each job runs one
	// process on one GPU.
	Submitters int
	Pause      time.Duration
	// Held are the containers, each with one GPU, that run from the beginning to the end.
	Held int
	// Dir is an empty directory of this machine in which containers note what they do. Node managers must be on it, too.
	Dir string
	// Patience is how long anything may take; default a minute.
	Patience time.Duration
	// Died says which server ended by itself; nil: it is not looked at.
	Died func() error
}

// Jobs is a load on resource managers whose every job is accounted for.
type Jobs struct {
	JobsOptions
	clients []*client.Client
	long    string // id of the job whose containers run all the time
	held    []hold
	began   int64 // of the load, ms since 1970
	serial  atomic.Int64

	mu   sync.Mutex
	jobs map[string]string // ids by key; empty: not acknowledged yet
}

// hold is a process of a container, and the devices that it had from when to when, in nanoseconds since 1970; to 0: it runs.
type hold struct {
	key      string
	pid      int
	gpus     []string
	from, to int64
}

// JobsFailover is what the death of the leading resource manager cost. Times are seconds from the kill to the first thing of its
// kind that the next leader did.
type JobsFailover struct {
	// Submission: a client had a submission acknowledged.
	Submission float64 `json:"submission_seconds"`
	// Grant: a container was granted; Start: the first process ran in one that was granted after the kill.
	Grant float64 `json:"grant_seconds"`
	Start float64 `json:"start_seconds"`
	// Acknowledged submissions, and the containers that ran for them.
	Acknowledged int `json:"acknowledged"`
	Ran          int `json:"ran"`
	// Wrong is what must never happen: a container or job lost, a job run twice, a device or memory given twice.
	Wrong []string `json:"wrong,omitempty"`
}

// NewJobs starts the containers that run all the time, and returns when they do.
func NewJobs(ctx context.Context, o JobsOptions) (*Jobs, error) {
	setDefault(&o.Submitters, 4)
	setDefault(&o.Patience, time.Minute)
	j := &Jobs{JobsOptions: o, jobs: map[string]string{}, began: time.Now().UnixMilli()}
	for _, d := range []string{"held", "ran"} {
		if err := os.Mkdir(filepath.Join(o.Dir, d), 0o777); err != nil {
			return nil, err
		}
		if err := os.Chmod(filepath.Join(o.Dir, d), 0o777); err != nil { // containers may be other users'
			return nil, err
		}
	}
	for i := range o.Submitters {
		c, err := o.Clients(i)
		if err != nil {
			return nil, errors.Join(err, j.Close(ctx))
		}
		j.clients = append(j.clients, c)
	}
	script := fmt.Sprintf(`echo "$(date +%%s%%N) $CUDA_VISIBLE_DEVICES" >> %s/held/$HOPS_INSTANCE; exec %s`, o.Dir, j.sleep())
	var err error
	if j.long, err = j.clients[0].Jobs().Submit(ctx, client.Job{
		Name: "held", Argv: []string{"sh", "-c", script}, Instances: o.Held, Resources: client.JobResources{Memory: "16MiB", VCores: 1, GPUs: 1},
	}, ""); err != nil {
		return nil, errors.Join(err, j.Close(ctx))
	}
	if err := j.await(ctx, "the containers that run all the time", func() error {
		if n := len(j.pids()); n != o.Held {
			return fmt.Errorf("%d of %d run", n, o.Held)
		}
		j.held = j.notes("held")
		if len(j.held) != o.Held {
			return fmt.Errorf("%d of %d have noted themselves", len(j.held), o.Held)
		}
		return nil
	}); err != nil {
		return nil, errors.Join(err, j.Close(ctx))
	}
	pids := j.pids()
	for i := range j.held {
		j.held[i].pid = pids[i] // which is whose does not matter: all must stay
	}
	return j, nil
}

// sleep is what containers that run all the time do; nothing else on the machine has this command line.
func (j *Jobs) sleep() string { return fmt.Sprintf("sleep 86400.%d", j.began) }

// pids are the processes of the containers that run all the time, in order.
func (j *Jobs) pids() []int {
	all := processes.Find("", j.sleep())
	all = slices.DeleteFunc(all, func(pid int) bool { return processes.Command(pid) != j.sleep() }) // its supervisor, whose command has it, too
	slices.Sort(all)
	return all
}

// notes are those of a directory, a line a process: start, devices, end.
func (j *Jobs) notes(dir string) (all []hold) {
	files, _ := os.ReadDir(filepath.Join(j.Dir, dir))
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(j.Dir, dir, f.Name()))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if !strings.HasSuffix(line, "\n") || len(words) < 2 {
				continue // being written
			}
			h := hold{key: f.Name(), gpus: strings.Split(words[1], ",")}
			h.from, _ = strconv.ParseInt(words[0], 10, 64)
			if len(words) > 2 {
				h.to, _ = strconv.ParseInt(words[2], 10, 64)
			}
			all = append(all, h)
		}
	}
	return all
}

func (j *Jobs) await(ctx context.Context, what string, check func() error) error {
	for deadline := time.Now().Add(j.Patience); ; pause(ctx, 20*time.Millisecond) {
		err := check()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if j.Died != nil {
			if died := j.Died(); died != nil {
				return died
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, j.Patience, err)
		}
	}
}

// Close ends the containers that run all the time, and the clients.
func (j *Jobs) Close(ctx context.Context) error {
	var errs []error
	if j.long != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.Patience)
		defer cancel()
		errs = append(errs, j.clients[0].Jobs().Stop(ctx, j.long), j.await(ctx, "the end of the containers that ran all the time", func() error {
			if left := j.pids(); len(left) > 0 {
				return fmt.Errorf("%d run", len(left))
			}
			return nil
		}), j.await(ctx, "the end of all containers", func() error {
			// Masters end after their jobs, and whoever stops the node managers now would leave theirs behind.
			nodes, err := j.clients[0].Jobs().Nodes(ctx)
			for _, n := range nodes {
				if len(n.Containers) > 0 {
					err = errors.Join(err, fmt.Errorf("%v on %s", n.Containers, n.ID))
				}
			}
			return err
		}))
	}
	for _, c := range j.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// waiting bounds the jobs that have not run yet when the leader dies: more would be a backlog, whose end says nothing.
const waiting = 16

// submit submits jobs until ctx is done and returns when each was acknowledged, by id. It counts those that were begun since the kill.
func (j *Jobs) submit(ctx context.Context, c *client.Client, killed *atomic.Bool, since *atomic.Int64) (acknowledged map[string]time.Time, err error) {
	acknowledged = map[string]time.Time{}
	for ctx.Err() == nil {
		if entries, err := os.ReadDir(filepath.Join(j.Dir, "ran")); err == nil && int(j.serial.Load())-len(entries) >= waiting && !killed.Load() {
			pause(ctx, 5*time.Millisecond)
			continue
		}
		key, after := fmt.Sprintf("k%d", j.serial.Add(1)), killed.Load()
		j.mu.Lock()
		j.jobs[key] = ""
		j.mu.Unlock()
		script := fmt.Sprintf(`a=$(date +%%s%%N); echo "$a $CUDA_VISIBLE_DEVICES $(date +%%s%%N)" >> %s/ran/%s`, j.Dir, key)
		document := client.Job{Name: key, Argv: []string{"sh", "-c", script}, Resources: client.JobResources{Memory: "16MiB", VCores: 1, GPUs: 1}}
		for deadline := time.Now().Add(j.Patience); ; {
			// A submission that was begun is brought to its end: under its key it is the same one, however often it is said.
			id, err := c.Jobs().Submit(context.WithoutCancel(ctx), document, key)
			if err == nil {
				acknowledged[id] = time.Now()
				if after {
					since.Add(1)
				}
				j.mu.Lock()
				j.jobs[key] = id
				j.mu.Unlock()
				break
			}
			if !errors.Is(err, client.ErrUnreachable) || time.Now().After(deadline) {
				return acknowledged, fmt.Errorf("submission %s: %w", key, err)
			}
		}
		pause(ctx, j.Pause)
	}
	return acknowledged, nil
}

// Failover kills the leader while jobs are submitted, and then accounts for everything. Kill returns when the server is gone, before
// and after are how long the load runs before the kill, and after the first container that was granted behind it has run.
func (j *Jobs) Failover(ctx context.Context, kill func() error, before, after time.Duration) (JobsFailover, error) {
	var f JobsFailover
	load, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	times, errs := make([]map[string]time.Time, len(j.clients)), make([]error, len(j.clients))
	var dead atomic.Bool
	var since atomic.Int64
	first := int(j.serial.Load())
	for i, c := range j.clients {
		group.Go(func() { times[i], errs[i] = j.submit(load, c, &dead, &since) })
	}
	finish := sync.OnceValue(func() error {
		stop()
		group.Wait()
		return errors.Join(errs...)
	})
	defer func() { _ = finish() }()
	pause(ctx, before)
	if err := j.await(ctx, "jobs before the kill", func() error {
		if len(j.notes("ran")) <= first {
			return errors.New("none has run")
		}
		return nil
	}); err != nil {
		return f, err
	}
	if err := kill(); err != nil {
		return f, fmt.Errorf("kill: %w", err)
	}
	killed := time.Now()
	dead.Store(true)
	var grants []client.Grant
	if err := j.await(ctx, "a submission and a container after the kill", func() (err error) {
		if grants, err = j.clients[0].Jobs().Grants(ctx); err == nil {
			f.Grant, f.Start, err = j.after(grants, killed)
		}
		if err == nil && since.Load() == 0 {
			err = errors.New("no submission was acknowledged")
		}
		return err
	}); err != nil {
		return f, err
	}
	pause(ctx, after)
	if err := finish(); err != nil {
		return f, err
	}
	known, err := j.ended(ctx)
	if err != nil {
		return f, err
	}
	f.Submission = math.Inf(1)
	for _, own := range times {
		f.Acknowledged += len(own)
		for id, at := range own {
			if known[id].Submitted > killed.UnixMilli() {
				f.Submission = min(f.Submission, at.Sub(killed).Seconds())
			}
		}
	}
	f.Wrong, f.Ran, err = j.account(ctx, known)
	return f, err
}

// after is how long after the kill the next leader's first grant came, and the first process in such a container.
func (j *Jobs) after(grants []client.Grant, killed time.Time) (grant, start float64, err error) {
	of := map[string]string{} // keys by id
	j.mu.Lock()
	for key, id := range j.jobs {
		of[id] = key
	}
	j.mu.Unlock()
	var granted []time.Time
	running := map[string]int64{}
	for _, n := range j.notes("ran") {
		running[n.key] = n.from
	}
	at := int64(0)
	for _, g := range grants {
		if g.From <= killed.UnixMilli() {
			continue
		}
		granted = append(granted, time.UnixMilli(g.From))
		if from := running[of[g.Application]]; from > 0 && (at == 0 || from < at) {
			at = from
		}
	}
	if len(granted) == 0 || at == 0 {
		return 0, 0, fmt.Errorf("%d containers were granted, and none has run", len(granted))
	}
	return slices.MinFunc(granted, time.Time.Compare).Sub(killed).Seconds(), time.Unix(0, at).Sub(killed).Seconds(), nil
}

// ended waits until every job has ended that is to end, and returns all by id.
func (j *Jobs) ended(ctx context.Context) (known map[string]client.JobStatus, err error) {
	err = j.await(ctx, "the end of all jobs", func() error {
		list, err := j.clients[0].Jobs().List(ctx)
		if err != nil {
			return err
		}
		known = map[string]client.JobStatus{}
		for _, s := range list {
			known[s.ID] = s
			if s.ID != j.long && !s.Ended() {
				return fmt.Errorf("%s is %s", s.ID, s.State)
			}
		}
		return nil
	})
	return known, err
}

// account says what is wrong when all jobs have ended.
func (j *Jobs) account(ctx context.Context, known map[string]client.JobStatus) (wrong []string, ran int, err error) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	j.mu.Lock()
	jobs := maps.Clone(j.jobs)
	j.mu.Unlock()
	if s := known[j.long]; s.Ended() {
		bad("the job whose containers run all the time ended: %s: %s", s.FinalStatus, s.Diagnostics)
	}
	times := map[string]int{}
	holds := slices.Clone(j.held)
	for _, n := range j.notes("ran") {
		times[n.key]++
		holds = append(holds, n)
	}
	ids := map[string]string{}
	for key, id := range jobs {
		s, listed := known[id]
		switch {
		case !listed:
			bad("job %s (%s), which was acknowledged, is lost", id, key)
		case !s.Succeeded():
			bad("job %s (%s): %s %s: %s", id, key, s.State, s.FinalStatus, s.Diagnostics)
		}
		if other, taken := ids[id]; taken {
			bad("job %s was acknowledged for two submissions, %s and %s", id, key, other)
		}
		ids[id] = key
		if times[key] != 1 {
			bad("job %s (%s) ran %d times", id, key, times[key])
		}
		ran += times[key]
	}
	for id, s := range known {
		if _, ours := ids[id]; !ours && id != j.long {
			bad("job %s (%s) is one that nobody submitted", id, s.Name)
		}
	}
	if lines := len(j.notes("held")); lines != len(j.held) {
		bad("%d processes were started in the %d containers that run all the time", lines, len(j.held))
	}
	now := j.pids()
	for _, h := range j.held {
		if !slices.Contains(now, h.pid) || syscall.Kill(h.pid, 0) != nil {
			bad("process %d of a container that was to run all the time has ended", h.pid)
		}
	}
	wrong = append(wrong, twice(holds)...)
	more, err := j.compare(ctx)
	return append(wrong, more...), ran, err
}

// twice says which devices two processes had at the same time, by what they have noted.
func twice(holds []hold) (wrong []string) {
	by := map[string][]hold{}
	for _, h := range holds {
		for _, g := range h.gpus {
			by[g] = append(by[g], h)
		}
	}
	for gpu, all := range by {
		slices.SortFunc(all, func(a, b hold) int { return int(a.from - b.from) })
		for i := 1; i < len(all); i++ {
			if before := all[i-1]; before.to == 0 || before.to > all[i].from {
				wrong = append(wrong, fmt.Sprintf("GPU %s was of %s and of %s at the same time", gpu, before.key, all[i].key))
			}
		}
	}
	return wrong
}

// nodeContainer is a container as its node manager shows it.
type nodeContainer struct {
	ID, State           string
	TotalMemoryNeededMB int64
	GPUs                []string
}

// compare holds what the node managers say against what the resource manager has granted, when nothing changes any more: the same
// containers with the same devices, no device twice, and no more memory than there is.
func (j *Jobs) compare(ctx context.Context) (wrong []string, err error) {
	differ := errors.New("the node managers and the resource manager do not agree")
	err = j.await(ctx, "that the node managers and the resource manager agree", func() error {
		wrong = nil
		nodes, err := j.clients[0].Jobs().Nodes(ctx)
		if err != nil {
			return err
		}
		devices := map[string]string{}
		for _, n := range nodes {
			has, err := containersOf(ctx, n.HTTP)
			if err != nil {
				return err
			}
			var memory int64
			var ids []string
			for _, c := range has {
				if c.State == "DONE" {
					continue
				}
				ids = append(ids, c.ID)
				memory += c.TotalMemoryNeededMB << 20
				for _, g := range c.GPUs {
					if other := devices[g]; other != "" {
						wrong = append(wrong, fmt.Sprintf("GPU %s is in %s and in %s", g, c.ID, other))
					}
					devices[g] = c.ID
					if i := slices.IndexFunc(n.GPUs, func(d client.GPU) bool { return d.UUID == g }); i < 0 || n.GPUs[i].Container != c.ID {
						wrong = append(wrong, fmt.Sprintf("GPU %s is in %s, to which it was not granted", g, c.ID))
					}
				}
			}
			granted := slices.Sorted(slices.Values(n.Containers))
			slices.Sort(ids)
			if !slices.Equal(ids, granted) {
				wrong = append(wrong, fmt.Sprintf("node %s has %v, granted are %v", n.ID, ids, granted))
			}
			if memory != n.Used.Memory || memory > n.Capacity.Memory {
				wrong = append(wrong, fmt.Sprintf("the containers of node %s have %d bytes of memory, %d are granted, there are %d", n.ID, memory, n.Used.Memory, n.Capacity.Memory))
			}
		}
		if len(wrong) > 0 {
			return differ
		}
		return nil
	})
	if errors.Is(err, differ) {
		err = nil // wrong says how
	}
	return wrong, err
}

// containersOf asks a node manager.
func containersOf(ctx context.Context, address string) ([]nodeContainer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/ws/v1/node/containers", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var list struct {
		Containers struct{ Container []nodeContainer }
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("node manager %s: %s", address, answer.Status)
	}
	err = json.NewDecoder(answer.Body).Decode(&list)
	return list.Containers.Container, err
}
