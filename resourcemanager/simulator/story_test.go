package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// tree makes queues of name=guarantee, or name=guarantee:maximum, in percent.
func tree(t testing.TB, queues ...string) *rm.Queues {
	t.Helper()
	root := rm.QueueConfig{Children: map[string]rm.QueueConfig{}}
	for _, q := range queues {
		var name string
		var capacity, limit float64
		name, rest, _ := strings.Cut(q, "=")
		if n, _ := fmt.Sscanf(rest, "%g:%g", &capacity, &limit); n < 1 {
			t.Fatal(q)
		}
		c := rm.QueueConfig{Capacity: fmt.Sprintf("%g%%", capacity)}
		if limit > 0 {
			c.Max = fmt.Sprintf("%g%%", limit)
		}
		root.Children[name] = c
	}
	tree, err := rm.NewQueues(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// machines are n nodes of 8 GPUs in one island, two nodes a rack.
func machines(n int) *Cluster {
	c := &Cluster{}
	for i := range n {
		c.Nodes = append(c.Nodes, Node{Name: fmt.Sprintf("n%d", i), Rack: fmt.Sprintf("/r%d", i/2), Model: "H100", Island: 8, Shape: Shape{Memory: 1 << 40, VCores: 96, GPUs: 8}})
	}
	return c
}

// gang is a job of n containers that only work together, times in seconds.
func gang(id, queue string, at int64, n, gpus int, lasts int64) Job {
	return Job{ID: id, Queue: queue, Arrival: at * second, Walltime: lasts * second, Parts: []Part{{Count: n, Gang: n, Shape: Shape{GPUs: gpus}, Duration: lasts * second}}}
}

// bag is a job of n containers that work by themselves.
func bag(id, queue string, at int64, n, gpus int, lasts int64) Job {
	j := gang(id, queue, at, n, gpus, lasts)
	j.Parts[0].Gang = 0
	return j
}

func simulated(t testing.TB, c Config) *Result {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// times are "id began-ended" in seconds, in the order of the workload.
func (r *Result) times() string {
	var out []string
	for _, j := range r.PerJob {
		show := func(ms int64) string {
			if ms < 0 {
				return "never"
			}
			return fmt.Sprint(float64(ms) / 1000)
		}
		out = append(out, fmt.Sprintf("%s %s-%s", j.ID, show(j.Began), show(j.Ended)))
	}
	return strings.Join(out, ", ")
}

// What happens in each of these stories was worked out by hand.
func TestStories(t *testing.T) {
	one := func(t testing.TB) *rm.Queues { return tree(t, "a=100") }
	halves := func(t testing.TB) *rm.Queues { return tree(t, "a=50", "b=50") }
	elastic := gang("E", "a", 0, 4, 4, 100)
	elastic.Parts[0].Gang = 2
	saved := gang("S", "a", 0, 1, 8, 400)
	saved.Checkpoint = 100 * second
	mastered := bag("M", "a", 0, 2, 8, 50)
	mastered.Master = &Shape{Memory: 1 << 30, VCores: 1}
	later := gang("D", "a", 0, 1, 8, 10)
	later.Parts[0].Delay = 30 * second
	urgent := gang("C", "a", 20, 1, 8, 10)
	urgent.Priority = 5
	muchLater := later
	muchLater.Parts = []Part{later.Parts[0]}
	muchLater.Parts[0].Delay = 10 * day
	away := machines(1)
	away.Failures = []Failure{{Node: "n0", At: second, For: 10 * day}}
	dotted := func(t testing.TB) *rm.Queues {
		q, err := EvenQueues([]string{"x.y", "root.x.z"})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	failing := machines(1)
	failing.Failures = []Failure{{Node: "n0", At: 250 * second, For: 100 * second}}
	for _, s := range []struct {
		name     string
		policies []Policy
		nodes    *Cluster
		queues   func(testing.TB) *rm.Queues
		jobs     []Job
		want     string
		check    func(*Result) string
	}{
		{
			name: "one after the other", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}, Slurm{}}, nodes: machines(1), queues: one,
			jobs: []Job{gang("A", "a", 0, 1, 8, 100), gang("B", "a", 10, 2, 4, 50)},
			want: "A 0-100, B 100-150",
		},
		{
			name: "the only node is away for long", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}, Slurm{}}, nodes: away, queues: one,
			jobs: []Job{gang("A", "a", 10, 1, 8, 100)},
			want: "A 864001-864101",
		},
		{
			name: "a part opens after long", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}, Slurm{}}, nodes: machines(1), queues: one,
			jobs: []Job{muchLater},
			want: "D 864000-864010",
		},
		{
			name: "queues that are paths", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}, Slurm{}}, nodes: machines(1), queues: dotted,
			jobs: []Job{gang("A", "x.y", 0, 1, 4, 100), gang("B", "root.x.z", 0, 1, 4, 100), gang("C", "z", 0, 1, 8, 100)},
			want: "A 0-100, B 0-100, C 100-200",
		},
		{
			name: "priority goes first", policies: []Policy{Hops{}, Slurm{Tree: true}}, nodes: machines(1), queues: one,
			jobs: []Job{gang("A", "a", 0, 1, 8, 100), gang("B", "a", 10, 1, 8, 50), urgent},
			want: "A 0-100, B 110-160, C 100-110",
		},
		{ // B has reserved the node before C is there
			name: "a reservation of yarn's stays, whatever comes", policies: []Policy{YARN{}}, nodes: machines(1), queues: one,
			jobs: []Job{gang("A", "a", 0, 1, 8, 100), gang("B", "a", 10, 1, 8, 50), urgent},
			want: "A 0-100, B 100-150, C 150-160",
		},
		{
			name: "containers of a bag run when there is room", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}}, nodes: machines(1), queues: one,
			jobs: []Job{bag("A", "a", 0, 3, 4, 100)},
			want: "A 0-200",
		},
		{
			name: "a master comes first and stays", policies: []Policy{Hops{}, YARN{}}, nodes: machines(1), queues: one,
			jobs: []Job{mastered},
			want: "M 0-100",
		},
		{
			name: "a delay", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}}, nodes: machines(1), queues: one,
			jobs: []Job{later},
			want: "D 30-40",
		},
		{ // two members until 60: 120 of 400 member-seconds; then all four: 70 seconds more
			name: "an elastic gang grows and gets faster", policies: []Policy{Hops{}, YARN{}}, nodes: machines(2), queues: one,
			jobs: []Job{gang("A", "a", 0, 1, 8, 60), func() Job { e := elastic; e.ID, e.Arrival = "E", 0; return e }()},
			want: "A 0-60, E 0-130",
		},
		{
			name: "slurm fixes the size when a gang starts", policies: []Policy{Slurm{Tree: true}}, nodes: machines(2), queues: one,
			jobs: []Job{gang("A", "a", 0, 1, 8, 60), elastic},
			want: "A 0-60, E 0-200",
		},
		{ // 250 s done, 200 s saved; 200 s more from 350
			name: "a failure costs what is not saved", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}}, nodes: failing, queues: one,
			jobs: []Job{saved},
			want: "S 0-550",
			check: func(r *Result) string {
				if r.LostToFailures != 50*8 {
					return fmt.Sprintf("lost %d GPU-seconds, want 400", r.LostToFailures)
				}
				return ""
			},
		},
		{ // each holds one node; at 120 A gives up, B begins; A asks again at 180
			name: "gangs hold parts and wait for each other", policies: []Policy{YARN{GiveUp: 2 * minute, Backoff: minute, Unreserved: true}}, nodes: machines(2), queues: halves,
			jobs: []Job{gang("A", "a", 0, 2, 8, 100), gang("B", "b", 0, 2, 8, 100)},
			want: "A 220-320, B 120-220",
			check: func(r *Result) string {
				if r.GaveUp != 1 || r.HeldIdle != 120*16 {
					return fmt.Sprintf("%d gave up, %d GPU-seconds idle", r.GaveUp, r.HeldIdle)
				}
				return ""
			},
		},
		{
			name: "without giving up they wait for ever", policies: []Policy{YARN{Unreserved: true}}, nodes: machines(2), queues: halves,
			jobs: []Job{gang("A", "a", 0, 2, 8, 100), gang("B", "b", 0, 2, 8, 100)},
			want: "A never-never, B never-never",
		},
		{
			name: "gangs that come whole do not", policies: []Policy{Hops{}, Slurm{Tree: true}}, nodes: machines(2), queues: halves,
			jobs: []Job{gang("A", "a", 0, 2, 8, 100), gang("B", "b", 0, 2, 8, 100)},
			want: "A 0-100, B 100-200",
		},
		{ // C ends before B can begin, D would not
			name: "backfill does not delay the first", policies: []Policy{Slurm{Tree: true}, Slurm{}}, nodes: machines(1), queues: one,
			jobs: []Job{gang("A", "a", 0, 1, 4, 100), gang("B", "a", 1, 1, 8, 100), gang("C", "a", 2, 1, 4, 50), gang("D", "a", 3, 1, 4, 200)},
			want: "A 0-100, B 100-200, C 2-52, D 200-400",
		},
		{
			name: "a maximum", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}}, nodes: machines(1), queues: func(t testing.TB) *rm.Queues { return tree(t, "a=50:50", "b=50") },
			jobs: []Job{gang("A", "a", 0, 1, 4, 100), gang("B", "a", 0, 1, 4, 100), gang("C", "a", 0, 1, 8, 1)},
			want: "A 0-100, B 100-200, C never-never",
			check: func(r *Result) string {
				if r.Refused["it never fits the maximum of its queue"] != 1 {
					return fmt.Sprint(r.Refused)
				}
				return ""
			},
		},
		{
			name: "queues by what they use of their guarantee", policies: []Policy{Hops{}, YARN{}}, nodes: machines(1), queues: func(t testing.TB) *rm.Queues { return tree(t, "a=75", "b=25") },
			jobs: []Job{bag("F", "a", 0, 1, 8, 10), bag("A", "a", 1, 8, 1, 100), bag("B", "b", 1, 8, 1, 100)},
			want: "F 0-10, A 10-210, B 10-210",
		},
		{ // 15 s after it is missed the first container ends; two in a round at most of twenty percent
			name: "yarn takes back what was borrowed, and what was not saved is lost", policies: []Policy{YARN{Preempt: true}}, nodes: machines(1), queues: halves,
			jobs: []Job{bag("A", "a", 0, 8, 1, 1000), gang("B", "b", 100, 4, 1, 10)},
			check: func(r *Result) string {
				if began := r.PerJob[1].Began; began < 115*second || began > 140*second {
					return fmt.Sprintf("B begins at %d", began)
				}
				if r.Preemptions != 4 || r.LostToPreemption < 4*115 || r.LostToPreemption > 4*140 {
					return fmt.Sprintf("%d preempted, %d lost", r.Preemptions, r.LostToPreemption)
				}
				return ""
			},
		},
		{
			name: "what never fits and what has no queue is not taken", policies: []Policy{Hops{}, YARN{}, Slurm{Tree: true}}, nodes: machines(1), queues: one,
			jobs: []Job{gang("A", "a", 0, 1, 9, 100), gang("B", "nowhere", 0, 1, 1, 100), gang("C", "a", 0, 2, 8, 100)},
			want: "A never-never, B never-never, C never-never",
		},
	} {
		for _, p := range s.policies {
			t.Run(s.name+"/"+p.Name(), func(t *testing.T) {
				r := simulated(t, Config{Cluster: s.nodes, Workload: &Workload{Jobs: s.jobs}, Queues: s.queues(t), Policy: p})
				if got := r.times(); s.want != "" && got != s.want {
					t.Errorf("got  %s\nwant %s", got, s.want)
				}
				if s.check != nil {
					if wrong := s.check(r); wrong != "" {
						t.Error(wrong)
					}
				}
			})
		}
	}
}

func TestFinishTimeFairness(t *testing.T) {
	// Alone the whole time: its share is the cluster. Two jobs of the whole cluster at once: half of it would have taken each 200 s.
	r := simulated(t, Config{Cluster: machines(1), Workload: &Workload{Jobs: []Job{gang("A", "a", 0, 1, 8, 100)}}, Queues: tree(t, "a=100"), Policy: Hops{}})
	if r.RhoMean != 1 || r.RhoWorst != 1 || r.Unfair != 0 {
		t.Errorf("alone: %g, %g, %g", r.RhoMean, r.RhoWorst, r.Unfair)
	}
	r = simulated(t, Config{Cluster: machines(1), Workload: &Workload{Jobs: []Job{gang("A", "a", 0, 1, 8, 100), gang("B", "a", 0, 1, 8, 100)}}, Queues: tree(t, "a=100"), Policy: Hops{}})
	// A: 100 s over 200 s. B: 200 s, in which there were 1.5 jobs: over 150 s.
	if want := (0.5 + 200.0/150) / 2; r.RhoMean < want-1e-9 || r.RhoMean > want+1e-9 || r.Unfair != 0.5 {
		t.Errorf("two: %g, want %g; %g", r.RhoMean, want, r.Unfair)
	}
}

// everyPolicy is one of each, as they are compared.
func everyPolicy() []Policy {
	return []Policy{Hops{}, Hops{Preempt: true}, Hops{Preempt: true, Answers: true}, Hops{Preempt: true, Answers: true, Defragment: true}, YARN{GiveUp: 2 * minute, Backoff: minute}, YARN{GiveUp: 2 * minute, Backoff: minute, Preempt: true}, YARN{GiveUp: 2 * minute, Backoff: minute, Unreserved: true}, Slurm{Tree: true}, Slurm{}}
}

func drawn(t testing.TB, seed uint64, jobs int, queues ...string) *Workload {
	t.Helper()
	w, err := Generate(Philly{Seed: seed, Jobs: jobs, Load: 0.9, GPUs: 64, PerNode: 8, Days: 1, Queues: queues})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestEqualInputGivesEqualOutput(t *testing.T) {
	once := func() []byte {
		var results []*Result
		for _, p := range everyPolicy() {
			c := machines(8)
			c.Failures = []Failure{{"n3", 2 * hour, hour}}
			results = append(results, simulated(t, Config{Cluster: c, Workload: drawn(t, 7, 150, "a", "b", "c"), Queues: tree(t, "a=50", "b=30:60", "c=20"), Policy: p}))
		}
		text, err := json.Marshal(results)
		if err != nil {
			t.Fatal(err)
		}
		b := bytes.NewBuffer(text)
		for _, table := range append(Tables(results), Differences(results[0], results[1])) {
			if err := errorsOf(table.WriteText(b), table.WriteMarkdown(b)); err != nil {
				t.Fatal(err)
			}
		}
		plots := Plots(results)
		for _, name := range sortedKeys(plots) {
			b.WriteString(plots[name])
		}
		return b.Bytes()
	}
	if a, b := once(), once(); !bytes.Equal(a, b) {
		t.Error("two simulations of the same differ")
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Whatever the policy: every job that is taken ends, GPUs work exactly as long as jobs need plus what was lost, and no grant is of
// something that is not there (which Run checks).
func TestWorkIsConserved(t *testing.T) {
	for seed := range uint64(4) {
		w := drawn(t, seed, 120, "a", "b")
		need := int64(0)
		for i := range w.Jobs {
			for _, p := range w.Jobs[i].Parts {
				need += p.Duration * int64(p.Count*p.GPUs)
			}
		}
		for _, p := range everyPolicy() {
			c := machines(8)
			c.Failures = []Failure{{"n1", 3 * hour, hour}, {"n5", 5 * hour, 30 * minute}, {"n1", 9 * hour, hour}}
			d := Config{Cluster: c, Workload: w, Queues: tree(t, "a=60", "b=40"), Policy: p}
			r := simulated(t, d)
			if r.Finished != len(w.Jobs) {
				t.Errorf("seed %d, %s: %d of %d jobs ended", seed, p.Name(), r.Finished, len(w.Jobs))
			}
			if got, want := r.WorkedGPUSeconds, need/second+r.LostToFailures+r.LostToPreemption; got < want-2 || got > want+2 {
				t.Errorf("seed %d, %s: GPUs worked %d s, want %d s", seed, p.Name(), got, want)
			}
		}
	}
}

// The generator draws what it says: sizes, load, order, queues.
func TestGeneratedJobsAreAsDescribed(t *testing.T) {
	w, err := Generate(Philly{Seed: 3, Jobs: 4000, Load: 0.8, GPUs: 256, PerNode: 8, Days: 14, Queues: []string{"x", "y", "z"}})
	if err != nil {
		t.Fatal(err)
	}
	need, single, large := 0.0, 0, 0
	for i := range w.Jobs {
		j := &w.Jobs[i]
		if err := j.check(); err != nil {
			t.Fatal(err)
		}
		need += float64(j.Parts[0].Duration) * float64(j.GPUs())
		if j.GPUs() == 1 {
			single++
		}
		if j.GPUs() > 8 {
			large++
		}
		if j.Walltime < j.Parts[0].Duration {
			t.Errorf("%s is said to last shorter than it does", j.ID)
		}
	}
	if load := need / (14 * float64(day) * 256); load < 0.78 || load > 0.82 {
		t.Errorf("the load is %g", load)
	}
	if single < 2600 || single > 3000 || large < 160 || large > 320 {
		t.Errorf("%d jobs of one GPU, %d of more than a node", single, large)
	}
	if !slices.IsSortedFunc(w.Jobs, func(a, b Job) int { return int(a.Arrival/second - b.Arrival/second) }) || !slices.Equal(w.QueueNames(), []string{"x", "y", "z"}) {
		t.Error("out of order, or other queues", w.QueueNames())
	}
}
