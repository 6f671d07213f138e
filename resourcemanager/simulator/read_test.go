package simulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const slsJobs = `{
  "am.type": "mapreduce", "job.start.ms": 5000, "job.end.ms": 95000, "job.queue.name": "x", "job.id": "j1", "job.user": "ann",
  "job.tasks": [
    {"container.host": "/rack1/node1", "container.start.ms": 6000, "container.end.ms": 26000, "container.priority": 20, "container.type": "map"},
    {"container.host": "/rack1/node2", "container.start.ms": 7000, "container.end.ms": 27000, "container.priority": 20, "container.type": "map"},
    {"container.duration.ms": "30000", "container.memory-mb": 4096, "container.vcores": 4, "container.yarn.io/gpu": 2, "count": 3, "container.request.delay": 100}
  ]
}
{"job.start.ms": 1000, "job.count": 2, "job.id": "j2", "am.memory-mb": 2048, "job.label.expression": "fast", "job.tasks": [{"duration.ms": 10000}]}
`

const phillyJobs = `[
  {"status": "Pass", "vc": "aa", "jobid": "application_1", "user": "u1", "submitted_time": "2017-10-07 01:00:00", "attempts": [
    {"start_time": "2017-10-07 01:00:30", "end_time": "2017-10-07 01:01:30", "detail": [{"ip": "m1", "gpus": ["gpu0","gpu1","gpu2","gpu3","gpu4","gpu5","gpu6","gpu7"]}, {"ip": "m2", "gpus": ["gpu0","gpu1","gpu2","gpu3"]}]},
    {"start_time": "2017-10-07 01:02:00", "end_time": "2017-10-07 02:02:00", "detail": [{"ip": "m3", "gpus": ["gpu0"]}]}]},
  {"status": "Failed", "vc": "bb", "jobid": "application_2", "user": "u2", "submitted_time": "2017-10-07 00:59:00", "attempts": [
    {"start_time": "2017-10-07 00:59:00", "end_time": "2017-10-07 00:59:40", "detail": [{"ip": "m1", "gpus": ["gpu3"]}]},
    {"start_time": null, "end_time": "None", "detail": []}]},
  {"status": "Killed", "vc": "bb", "jobid": "application_3", "user": "u2", "submitted_time": "2017-10-07 03:00:00", "attempts": []}
]
`

func written(t testing.TB, w *Workload) string {
	t.Helper()
	var b strings.Builder
	if err := w.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReadersTranslate(t *testing.T) {
	w, err := ReadSLS("f", strings.NewReader(slsJobs))
	if err != nil {
		t.Fatal(err)
	}
	const wantSLS = `{"id":"j2_1","arrival_ms":0,"queue":"default","master":{"memory":2147483648,"vcores":1},"parts":[{"count":1,"memory":1073741824,"vcores":1,"duration_ms":10000,"label":"fast","priority":20}]}
{"id":"j2_2","arrival_ms":0,"queue":"default","master":{"memory":2147483648,"vcores":1},"parts":[{"count":1,"memory":1073741824,"vcores":1,"duration_ms":10000,"label":"fast","priority":20}]}
{"id":"j1","arrival_ms":4000,"queue":"x","user":"ann","master":{"memory":1073741824,"vcores":1},"parts":[{"count":2,"memory":1073741824,"vcores":1,"duration_ms":20000,"priority":20},{"count":3,"memory":4294967296,"vcores":4,"gpus":2,"duration_ms":30000,"delay_ms":100,"priority":20}]}
`
	if got := written(t, w); got != wantSLS {
		t.Errorf("SLS:\n%s", got)
	}
	if w, err = ReadPhilly("f", strings.NewReader(phillyJobs), 8); err != nil {
		t.Fatal(err)
	}
	const wantPhilly = `{"id":"application_2","arrival_ms":0,"queue":"bb","user":"u2","parts":[{"count":1,"gang":1,"memory":1073741824,"vcores":1,"gpus":1,"duration_ms":40000}]}
{"id":"application_1","arrival_ms":60000,"queue":"aa","user":"u1","parts":[{"count":2,"gang":2,"memory":6442450944,"vcores":6,"gpus":6,"duration_ms":3660000}]}
`
	if got := written(t, w); got != wantPhilly || w.Skipped["never ran"] != 1 {
		t.Errorf("Philly:\n%s%v", got, w.Skipped)
	}
	again, err := ReadJobs("f", strings.NewReader(wantPhilly))
	if err != nil || written(t, again) != wantPhilly {
		t.Error("what is written is not read back", err)
	}
	nodes, err := ReadSLSNodes("f", strings.NewReader("{\"rack\": \"r1\", \"nodes\": [{\"node\": \"n1\"}, {\"node\": \"n2\", \"memory-mb\": 2048, \"vcores\": 6, \"yarn.io/gpu\": 4, \"labels\": \"x, y(exclusive=false)\"}]}\n{\"rack\": \"/r2\", \"nodes\": []}"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := nodes.YAML(), "nodes:\n- {name: \"n1\", memory: 10GiB, vcores: 10, rack: \"/r1\"}\n- {name: \"n2\", memory: 2GiB, vcores: 6, gpus: 4, model: \"\", island: 0, rack: \"/r1\", labels: [\"x\", \"y\"]}\n"; got != want {
		t.Errorf("nodes:\n%s", got)
	}
	if back, err := ReadCluster("f", []byte(nodes.YAML())); err != nil || back.YAML() != nodes.YAML() {
		t.Error("a cluster that is written is not read back", err)
	}
	for text, want := range map[string]string{slsJobs: "sls", phillyJobs: "philly", wantPhilly: "hops", "# a comment\n\n" + wantPhilly: "hops", "": "hops"} {
		if got := Format([]byte(text)); got != want {
			t.Errorf("%.40q is %s, want %s", text, got, want)
		}
	}
}

// Mistakes name the file and the line; nothing is guessed.
func TestBadInputIsNamed(t *testing.T) {
	job := `{"id":"a","arrival_ms":0,"queue":"q","parts":[{"count":1,"gpus":1,"duration_ms":10}]}`
	reads := map[string]func(string) error{
		"hops":   func(s string) error { _, err := ReadJobs("f", strings.NewReader(s)); return err },
		"sls":    func(s string) error { _, err := ReadSLS("f", strings.NewReader(s)); return err },
		"philly": func(s string) error { _, err := ReadPhilly("f", strings.NewReader(s), 8); return err },
		"nodes":  func(s string) error { _, err := ReadSLSNodes("f", strings.NewReader(s)); return err },
		"yaml":   func(s string) error { _, err := ReadCluster("f", []byte(s)); return err },
	}
	for _, c := range []struct{ reader, text, want string }{
		{"hops", job + "\n\n" + job, `f: line 3: id "a" is that of line 1`},
		{"hops", "# x\n{", "f: line 2: unexpected EOF"},
		{"hops", `{"id":"a","arrival_ms":0,"queue":"q","parts":[{"count":1,"gpu":1,"duration_ms":10}]}`, `f: line 1: json: unknown field "gpu"`},
		{"hops", `{"id":"a","queue":"q","arrival_ms":-1,"parts":[{"count":2,"gang":3,"gpus":1,"duration_ms":10}]}`, "f: line 1: arrival_ms: -1 is not between 0 and 100 years; parts[0]: gang: 3 is not between 0 and the count, 2"},
		{"hops", `{"id":"a","queue":"q","parts":[{"count":100000,"gpus":1,"duration_ms":3000000000000}]}`, "duration_ms"},
		{"hops", `{"id":"a","queue":"q","parts":[{"count":1,"duration_ms":10}]}`, "it asks for nothing"},
		{"sls", "\n\n{\"job.start.ms\": 1, \"job.tasks\": [{\"duration.ms\": 0}]}", "f: line 3: job.tasks[0]: duration_ms"},
		{"sls", "{\"job.start.ms\": \"x\", \"job.tasks\": [{\"duration.ms\": 5}]}", `f: line 1: job.start.ms: "x" is not a whole number`},
		{"sls", "{\"job.tasks\": [{\"duration.ms\": 5, \"container.fpga\": 1}]}", `"container.fpga" is not known`},
		{"sls", "\n{\"job.tasks\"", "f: line 2: the file ends within a value"},
		{"philly", "[\n{\"jobid\": \"a\",\n \"submitted_time\": \"yesterday\"}]", `f: line 2: submitted_time: "yesterday" is no time`},
		{"sls", "\n{]}", "f: line 2: invalid character"},
		{"philly", "[{\"jobid\": \"a\"}", "f: line 1: the file ends within a value"},
		{"philly", `[{"jobid": 5}]`, "f: line 1: jobid: a JSON number"},
		{"nodes", `{"rack": "r", "nodes": [{"node": "a"}, {"node": "a"}]}`, "there are two nodes a"},
		{"nodes", ``, "it holds no node"},
		{"yaml", "nodes:\n- {name: a, memory: 1GiB, gpus: 7, island: 4}\n", "7 GPUs are not islands of 4"},
		{"yaml", "nodes:\n- {name: a, memory: 1GiB, cpus: 7}\n", "line 2"},
		{"yaml", "nodes:\n- {name: a, memory: 1GiB, count: 1000000}\n", "at most 100000 nodes"},
		{"yaml", "nodes:\n- {name: a, memory: 1GiB}\nfailures:\n- {node: b, at: 1h, for: 1h}\n", `there is no node "b"`},
	} {
		if err := reads[c.reader](c.text); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %.60q: %v, want %s", c.reader, c.text, err, c.want)
		}
	}
}

func TestRecordsBecomeJobs(t *testing.T) {
	zero, one := 0, 1
	shape := Shape{Memory: 1 << 30, VCores: 1, GPUs: 4}
	c := func(ask string, instance *int, granted, started, finished int64) RecordedContainer {
		return RecordedContainer{Ask: ask, Instance: instance, Resources: shape, Granted: granted, Started: started, Finished: finished}
	}
	w := FromRecords([]Recorded{
		{ID: "gang", Queue: "root.a", Submitted: 5000, Finished: 90_000, Priority: -1, Containers: []RecordedContainer{
			{Master: true, Resources: Shape{Memory: 1 << 28, VCores: 1}, Granted: 5100, Started: 5200, Finished: 90_000},
			c("t1", &zero, 6000, 6100, 16_100), c("t1", &one, 6000, 6100, 26_100), c("t2", &one, 30_000, 31_000, 41_000),
		}},
		{ID: "singles", Queue: "root.a", Submitted: 1000, Finished: 90_000, Containers: []RecordedContainer{c("t1", nil, 6000, 6100, 16_100), c("t1", nil, 7000, 7100, 17_100)}},
		{ID: "runs", Queue: "root.a", Submitted: 1000},
		{ID: "forgotten", Queue: "root.a", Submitted: 1000, Finished: 2000},
	})
	const want = `{"id":"singles","arrival_ms":0,"queue":"root.a","parts":[{"count":2,"memory":1073741824,"vcores":1,"gpus":4,"duration_ms":10000}]}
{"id":"gang","arrival_ms":4000,"queue":"root.a","master":{"memory":268435456,"vcores":1},"parts":[{"count":2,"gang":2,"memory":1073741824,"vcores":1,"gpus":4,"duration_ms":30000}]}
`
	if got := written(t, w); got != want || w.Skipped["has not ended"] != 1 || w.Skipped["no container is remembered"] != 1 {
		t.Errorf("%s%v", got, w.Skipped)
	}
}

func TestEvenQueues(t *testing.T) {
	q, err := EvenQueues([]string{"b", "root.a.x", "a.y"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, q := range q.All {
		got = append(got, fmt.Sprintf("%s %.3f", q.Path, q.AbsoluteCapacity))
	}
	if want := []string{"root 1.000", "root.a 0.667", "root.a.x 0.333", "root.a.y 0.333", "root.b 0.333"}; !slices.Equal(got, want) {
		t.Error(got)
	}
	if _, err := EvenQueues([]string{"a b"}); err == nil {
		t.Error("a blank in a name is taken")
	}
}

// Whatever a file of jobs holds: it is refused with a place, or what it says can be written, read back and simulated.
func FuzzJobs(f *testing.F) {
	f.Add(slsJobs)
	f.Add(phillyJobs)
	f.Add(`{"id":"a","arrival_ms":0,"queue":"q","checkpoint_ms":3,"parts":[{"count":4,"gang":2,"gpus":3,"duration_ms":10},{"count":1,"vcores":1,"duration_ms":5,"delay_ms":7}],"master":{"vcores":1}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var w *Workload
		var err error
		switch Format([]byte(text)) {
		case "philly":
			w, err = ReadPhilly("f", strings.NewReader(text), 8)
		case "sls":
			w, err = ReadSLS("f", strings.NewReader(text))
		default:
			w, err = ReadJobs("f", strings.NewReader(text))
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f: ") {
				t.Errorf("no place: %v", err)
			}
			return
		}
		small := len(w.Jobs) > 0 && len(w.Jobs) < 20
		for i := range w.Jobs {
			count := 0
			for _, p := range w.Jobs[i].Parts {
				count += p.Count
			}
			small = small && count < 50
		}
		if !small {
			return
		}
		queues, err := EvenQueues(w.QueueNames())
		if err != nil {
			return
		}
		for _, p := range everyPolicy() {
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
			_, err := Run(ctx, Config{Cluster: machines(2), Workload: w, Queues: queues, Policy: p})
			stop()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", p.Name(), err)
			}
		}
	})
}

func FuzzCluster(f *testing.F) {
	f.Add("nodes:\n- {name: gpu, count: 4, gpus: 8, model: H100, island: 8, memory: 1TiB, vcores: 96, rack: /hall1, nodes_per_rack: 2}\nfailures:\n- {node: gpu-3, at: 24h, for: 2h}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ReadCluster("f", []byte(text))
		if err != nil || len(c.Nodes) > 1000 {
			return
		}
		back, err := ReadCluster("f", []byte(c.YAML()))
		if err != nil || !bytes.Equal([]byte(back.YAML()), []byte(c.YAML())) {
			t.Errorf("it is not read back as it was written: %v", err)
		}
	})
}
