package server

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/gpu/fake"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func TestContainerRunsFromOrderToOblivion(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	files.put("/data/in", "input\n")
	c := baseConfig(t, work, m.address)
	c.FS = func(user string) (Filesystem, error) { return files, nil }
	c.GPUs = fake.Simulate(2, "x")
	devices, _ := c.GPUs.Devices(t.Context())
	run(t, c)
	s := spec(t, 2, "sh", "-c", "cat in job.json; env | sort; cat $HOPS_TOKEN; stat -c %a $HOPS_TOKEN; pwd; echo bye >&2; exit 3")
	s.GpuUuids, s.LogDir = []string{devices[1].UUID}, "/logs/app"
	s.Env["CUDA_VISIBLE_DEVICES"], s.Env["OMP_NUM_THREADS"], s.Env["HOPS_CONTROLLER"] = "all of them", "7", "http://127.0.0.1:1"
	s.Artifacts = []*rmpb.Artifact{{Name: "in", Uri: "/data/in", Kind: "file", Size: 6}, {Name: "job.json", Content: []byte("{}\n"), Kind: "file"}}
	m.start(s)
	got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	if got.ExitStatus != 3 || !strings.Contains(got.Diagnostics, "non-zero exit code 3") || !strings.Contains(got.Diagnostics, "bye") ||
		got.StartedMs == 0 || got.FinishedMs < got.StartedMs || got.LogDir != "/logs/app/"+s.ContainerId || !slices.Equal(got.GpuUuids, s.GpuUuids) {
		t.Errorf("status %v", got)
	}
	for who, sees := range map[string]bool{"": false, "?user.name=eve": false, "?user.name=" + me(): true} {
		r, err := http.Get("http://" + c.HTTP.Addr().String() + "/ws/v1/node/containers/" + s.ContainerId + who)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if !strings.Contains(string(text), "non-zero exit code 3") || strings.Contains(string(text), "bye") != sees {
			t.Errorf("what the program printed, shown to %q: %s", who, text)
		}
	}
	dir := filepath.Join(work, "containers", s.ContainerId)
	stdout := "/logs/app/" + s.ContainerId + "/stdout"
	eventually(t, "logs arrive", func() bool { return strings.HasSuffix(files.get(stdout), dir+"/work\n") })
	text := files.get(stdout)
	for _, want := range []string{
		"input\n{}\n", "\ns3cret\n600\n", "HOPS_APPLICATION_ID=" + appID + "\n", "HOPS_ATTEMPT=1\n", "HOPS_CONTAINER_ID=" + s.ContainerId + "\n",
		"HOPS_USER=" + me() + "\n", "HOPS_WORK_DIR=" + dir + "/work\n", "HOPS_FS=hdfs://127.0.0.1:8020\n", "HOPS_WEBHDFS=http://127.0.0.1:9870\n",
		"HOPS_RM=http://127.0.0.1:8088\n", "HOPS_RM_GRPC=" + m.address + "\n", "HOPS_TOKEN=" + dir + "/token\n", "HOPS_CONTROLLER=http://127.0.0.1:1\n",
		"HADOOP_CONF_DIR=/conf\n", "HADOOP_USER_NAME=" + me() + "\n", "CUDA_VISIBLE_DEVICES=" + devices[1].UUID + "\n", "CUDA_DEVICE_ORDER=PCI_BUS_ID\n",
		"OMP_NUM_THREADS=7\n", "CONTAINER_ID=" + s.ContainerId + "\n", "NM_HOST=127.0.0.1\n", "LOG_DIRS=" + dir + "/logs\n", "HOPS_GPUS_SIMULATED=1\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("stdout lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "HOPS_TEST_CREDENTIALS") {
		t.Error("a variable of the daemon reached the container")
	}
	eventually(t, "stderr arrives", func() bool { return files.get("/logs/app/"+s.ContainerId+"/stderr") == "bye\n" })
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	m.until("oblivion", func(r *rmpb.NodeReport) bool { return find(r, s.ContainerId) == nil })
	eventually(t, "directory removed", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
	m.order(&rmpb.NodeOrders{Start: []*rmpb.ContainerSpec{s}, Cleanup: []string{s.ContainerId}}) // a late repetition
	if find(m.more(4), s.ContainerId) != nil {
		t.Error("a forgotten container was started again")
	}
}

func TestASignalReachesTheCommandAndItsChildren(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", "trap 'echo main >> heard' USR1; (trap 'echo child >> heard' USR1; echo >> ready; while :; do sleep 0.02; done) & "+
		"echo >> ready; while :; do sleep 0.02; done")
	m.start(s)
	file := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(work, "containers", s.ContainerId, "work", name))
		return string(text)
	}
	eventually(t, "both processes", func() bool { return strings.Count(file("ready"), "\n") == 2 })
	m.order(&rmpb.NodeOrders{Signal: []*rmpb.Signal{{ContainerId: s.ContainerId, Signal: 10}, {ContainerId: "container_1_0001_01_000099", Signal: 9}}})
	eventually(t, "the signal", func() bool {
		return strings.Contains(file("heard"), "main\n") && strings.Contains(file("heard"), "child\n")
	})
	m.order(&rmpb.NodeOrders{Signal: []*rmpb.Signal{{ContainerId: s.ContainerId, Signal: 9}}})
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != 137 {
		t.Errorf("killed: %v", got)
	}
}

// A container that takes its time to end is killed all the same when its master wants that.
func TestWhoWantsAnEndAtOnceDoesNotWaitForAGrace(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	n := run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", "trap 'echo > asked' TERM; echo > ready; while :; do sleep 0.02; done")
	s.GraceMs = nodemanager.MaxGrace.Milliseconds()
	m.start(s)
	has := func(name string) func() bool {
		return func() bool {
			_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId, "work", name))
			return err == nil
		}
	}
	eventually(t, "it is ready", has("ready"))
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -105, Reason: "enough"}}})
	eventually(t, "it is asked to end", has("asked"))
	id, err := rm.ParseContainerID(s.ContainerId)
	if err != nil || !(*yarnNode)(n.Server).Signal(id, 9) {
		t.Fatal("no such container", err)
	}
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -105 { // of the first order
		t.Errorf("%v", got)
	}
}

func TestRepeatedOrdersChangeNothing(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", "trap 'exit 0' TERM; echo x >> runs; while :; do sleep 0.02; done")
	m.start(s)
	ran := func() string {
		b, _ := os.ReadFile(filepath.Join(work, "containers", s.ContainerId, "work", "runs"))
		return string(b)
	}
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	eventually(t, "the command has begun", func() bool { return ran() != "" }) // RUNNING says that its process is there
	for range 3 {
		m.order(&rmpb.NodeOrders{Start: []*rmpb.ContainerSpec{s}})
	}
	stop := func(status int32, reason string) *rmpb.NodeOrders {
		return &rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: status, Reason: reason}}}
	}
	m.order(stop(-102, "preempted"))
	m.order(stop(-106, "another"))
	got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	if got.ExitStatus != -102 || got.Diagnostics != "preempted" {
		t.Errorf("%d %q", got.ExitStatus, got.Diagnostics)
	}
	if got := ran(); got != "x\n" {
		t.Errorf("ran %q", got)
	}
	m.order(stop(-106, "late"))
	if got := find(m.more(4), s.ContainerId); got == nil || got.ExitStatus != -102 {
		t.Errorf("the final status is not repeated as it was: %v", got)
	}
}

func TestStopBeforeStartPreventsIt(t *testing.T) {
	m := newManager(t, "")
	run(t, baseConfig(t, t.TempDir(), m.address))
	s := spec(t, 2, "sleep", "100")
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -100, Reason: "released"}}})
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 {
		t.Errorf("%v", got)
	}
	m.order(&rmpb.NodeOrders{Start: []*rmpb.ContainerSpec{s}})
	if got := find(m.more(3), s.ContainerId); got.GetState() != rmpb.ContainerStatus_COMPLETE {
		t.Errorf("%v", got)
	}
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	m.until("oblivion", func(r *rmpb.NodeReport) bool { return find(r, s.ContainerId) == nil })
}

func TestContainersThatCannotRunSayWhy(t *testing.T) {
	m, files := newManager(t, ""), newMemoryFS()
	c := baseConfig(t, t.TempDir(), m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	c.GPUs = fake.Simulate(1, "x")
	devices, _ := c.GPUs.Devices(t.Context())
	run(t, c)
	holder := spec(t, 1, "sleep", "100")
	holder.GpuUuids = []string{devices[0].UUID}
	m.start(holder)
	for i, test := range []struct {
		change func(*rmpb.ContainerSpec)
		status int32
		want   string
	}{
		{func(s *rmpb.ContainerSpec) { s.Argv = nil }, -1000, "has no command"},
		{func(s *rmpb.ContainerSpec) { s.Argv = []string{"no-such-program"} }, 127, `"no-such-program" is not in the container's PATH`},
		{func(s *rmpb.ContainerSpec) { s.Artifacts = []*rmpb.Artifact{{Name: "x", Uri: "/missing"}} }, -1000, `artifact "x" (/missing)`},
		{func(s *rmpb.ContainerSpec) { s.Artifacts = []*rmpb.Artifact{{Name: "../x", Content: []byte("x")}} }, -1000, "leads out of its directory"},
		{func(s *rmpb.ContainerSpec) { s.GpuUuids = []string{"GPU-elsewhere"} }, -100, "GPU GPU-elsewhere is not on this node"},
		{func(s *rmpb.ContainerSpec) { s.GpuUuids = []string{devices[0].UUID} }, -100, "is held by container " + holder.ContainerId},
	} {
		s := spec(t, 10+i, "true")
		test.change(s)
		m.start(s)
		if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != test.status || !strings.Contains(got.Diagnostics, test.want) {
			t.Errorf("got %d %q, want %d %s", got.ExitStatus, got.Diagnostics, test.status, test.want)
		}
	}
}

func TestMemoryBeyondLimitIsTheReason(t *testing.T) {
	for _, mode := range []string{"polling", "control group"} {
		t.Run(mode, func(t *testing.T) {
			m := newManager(t, "")
			c := baseConfig(t, t.TempDir(), m.address)
			if mode == "control group" {
				r := cgroup.Detect()
				if !r.Memory {
					t.Skipf("needs a writable memory controller: %v", r)
				}
				c.Groups = &r
			}
			n := run(t, c)
			s := spec(t, 2, self(t), "allocate", "200")
			s.Resources.Memory = 64 << 20
			m.start(s)
			got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
			if got.ExitStatus != -104 || !strings.Contains(got.Diagnostics, "beyond the 'PHYSICAL' memory limit") || !strings.Contains(got.Diagnostics, "of 64 MB physical") {
				t.Errorf("%d %q", got.ExitStatus, got.Diagnostics)
			}
			r := m.until("health", func(r *rmpb.NodeReport) bool { return r.GetHealthy() })
			if degraded := strings.Contains(r.HealthReport, "memory is limited by polling"); degraded != (mode == "polling") {
				t.Errorf("health report %q", r.HealthReport)
			}
			n.close(true)
			if left := n.groups.List(); len(left) != 0 {
				t.Errorf("groups left: %v", left)
			}
		})
	}
}

func TestStopReleasesEverythingAtOnce(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	n := run(t, baseConfig(t, work, m.address))
	for i := range 3 {
		m.start(spec(t, 2+i, "sh", "-c", "trap '' TERM; echo $$ > main.pid; while :; do sleep 0.05; done"))
	}
	var pids []int
	for i := range 3 {
		pids = append(pids, pidIn(t, work, 2+i, "main.pid"))
	}
	begin := time.Now()
	n.close(true)
	if time.Since(begin) > StopPatience { // a machine on which they take longer
		supervisorsEnd(t, work)
	}
	for _, pid := range pids {
		if lives(pid) {
			t.Errorf("process %d outlives the node manager that was told to stop its containers", pid)
		}
	}
}
