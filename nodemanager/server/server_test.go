package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/gpu/fake"
	"github.com/gohops/hops/nodemanager/localizer"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// TestMain makes this binary the supervisor, a whole node manager that can be killed, and what containers run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervisor":
			os.Exit(supervisor.Main(os.Args[2:]))
		case "nodemanager":
			os.Exit(nodeManagerMain(os.Args[2:]))
		case "sleep":
			time.Sleep(time.Hour)
		case "orphan":
			cmd := exec.Command("/proc/self/exe", "sleep")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := cmd.Start(); err != nil {
				os.Exit(9)
			}
			os.WriteFile("orphan.pid", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
			os.Exit(0)
		case "allocate":
			n, _ := strconv.Atoi(os.Args[2])
			block := make([]byte, n<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1
			}
			time.Sleep(time.Hour)
			fmt.Print(block[0])
		}
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	// Who collects a supervisor waits for it, and one built with the race detector sleeps a second before it exits.
	err := goleak.Find()
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); {
		err = goleak.Find()
	}
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var secret = func() security.Secret {
	dir, err := os.MkdirTemp("", "hops-nm-test")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if text := os.Getenv("HOPS_TEST_SECRET"); text != "" { // of the test that started us
		file := filepath.Join(dir, "secret")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			panic(err)
		}
		s, err := security.LoadSecret(file)
		if err != nil {
			panic(err)
		}
		return s
	}
	s, err := security.CreateSecret(filepath.Join(dir, "secret"))
	if err != nil {
		panic(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "secret"))
	if err != nil {
		panic(err)
	}
	os.Setenv("HOPS_TEST_SECRET", string(text))
	return s
}()

var credentials = func() security.Credentials {
	c, _, err := securitytest.Make(secret)
	if err != nil {
		panic(err)
	}
	return c
}()

// manager is a resource manager that does what the test says.
type manager struct {
	rmpb.UnimplementedNodeManagersServer
	t       testing.TB
	address string
	server  *grpc.Server

	mu      sync.Mutex
	term    uint64
	lease   time.Duration
	silent  bool // takes reports, acknowledges none
	standby string
	orders  []*rmpb.NodeOrders // to send with the next acknowledgement
	last    *rmpb.NodeReport
	seen    func(*rmpb.NodeReport) // called with each report
	reports int
	changed chan struct{} // closed and replaced at every report
}

func newManager(t testing.TB, address string) *manager {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, address: l.Addr().String(), term: 1, lease: 10 * time.Second, changed: make(chan struct{})}
	keys := security.Keyring{Member: credentials.Member}
	m.server = grpc.NewServer(grpc.Creds(keys.Credentials()))
	rmpb.RegisterNodeManagersServer(m.server, m)
	go m.server.Serve(keys.Listen(l))
	t.Cleanup(m.server.Stop)
	return m
}

func (m *manager) Session(stream grpc.BidiStreamingServer[rmpb.NodeReport, rmpb.NodeOrders]) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		m.mu.Lock()
		if m.standby != "" {
			m.mu.Unlock()
			return status.Error(codes.FailedPrecondition, m.standby)
		}
		m.last = r
		if m.seen != nil {
			m.seen(r)
		}
		m.reports++
		close(m.changed)
		m.changed = make(chan struct{})
		answer := &rmpb.NodeOrders{Term: m.term, Acknowledged: r.GetSequence(), LeaseMs: m.lease.Milliseconds()}
		for _, o := range m.orders {
			answer.Start = append(answer.Start, o.GetStart()...)
			answer.Stop = append(answer.Stop, o.GetStop()...)
			answer.Signal = append(answer.Signal, o.GetSignal()...)
			answer.Cleanup = append(answer.Cleanup, o.GetCleanup()...)
		}
		m.orders = nil
		silent := m.silent
		m.mu.Unlock()
		if silent {
			continue
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (m *manager) order(o *rmpb.NodeOrders) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.orders = append(m.orders, o)
}

func (m *manager) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// until waits for a report that satisfies ok.
func (m *manager) until(what string, ok func(*rmpb.NodeReport) bool) *rmpb.NodeReport {
	m.t.Helper()
	deadline := time.After(time.Minute)
	for {
		m.mu.Lock()
		last, changed := m.last, m.changed
		m.mu.Unlock()
		if last != nil && ok(last) {
			return last
		}
		select {
		case <-changed:
		case <-deadline:
			m.t.Fatalf("not reported within a minute: %s; last report %v", what, last)
		}
	}
}

func find(r *rmpb.NodeReport, id string) *rmpb.ContainerStatus {
	for _, c := range r.GetContainers() {
		if c.GetContainerId() == id {
			return c
		}
	}
	return nil
}

// untilState waits for a state of a container.
func (m *manager) untilState(id string, state rmpb.ContainerStatus_State) *rmpb.ContainerStatus {
	m.t.Helper()
	r := m.until(id+" is "+state.String(), func(r *rmpb.NodeReport) bool {
		c := find(r, id)
		return c != nil && (c.GetState() == state || c.GetState() == rmpb.ContainerStatus_COMPLETE)
	})
	c := find(r, id)
	if c.GetState() != state {
		m.t.Fatalf("%s is %s with %d %q, want %s", id, c.GetState(), c.GetExitStatus(), c.GetDiagnostics(), state)
	}
	return c
}

// start orders a container until it is in a report.
func (m *manager) start(spec *rmpb.ContainerSpec) {
	m.t.Helper()
	m.order(&rmpb.NodeOrders{Start: []*rmpb.ContainerSpec{spec}})
	m.until("admission of "+spec.GetContainerId(), func(r *rmpb.NodeReport) bool { return find(r, spec.GetContainerId()) != nil })
}

// memoryFS is a filesystem in memory. Appending can be made to fail.
type memoryFS struct {
	mu    sync.Mutex
	files map[string]*bytes.Buffer
	down  bool
}

func newMemoryFS() *memoryFS { return &memoryFS{files: map[string]*bytes.Buffer{}} }

func (m *memoryFS) put(name, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = bytes.NewBufferString(text)
}

func (m *memoryFS) get(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.files[name]; f != nil {
		return f.String()
	}
	return ""
}

func (m *memoryFS) setDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

func (m *memoryFS) Stat(_ context.Context, name string) (localizer.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[name]
	if f == nil {
		return localizer.Info{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return localizer.Info{Size: int64(f.Len()), Modified: 1}, nil
}

func (m *memoryFS) Readable(context.Context, string) error { return nil }

func (m *memoryFS) Open(_ context.Context, name string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(m.get(name))), nil
}

var errDown = errors.New("the filesystem is down")

func (m *memoryFS) OpenLog(_ context.Context, name string) (LogFile, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	if m.files[name] == nil {
		m.files[name] = new(bytes.Buffer)
	}
	return &memoryLog{m, name}, nil
}

type memoryLog struct {
	fs   *memoryFS
	name string
}

func (l *memoryLog) Size() int64 { return int64(len(l.fs.get(l.name))) }

func (l *memoryLog) Write(p []byte) (int, error) {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.fs.down { // half of it arrives
		l.fs.files[l.name].Write(p[:len(p)/2])
		return 0, errDown
	}
	return l.fs.files[l.name].Write(p)
}

func (l *memoryLog) Flush(context.Context) error { return nil }
func (l *memoryLog) Close() error                { return nil }
func (l *memoryLog) Abort()                      {}

const appID = "application_1700000000000_0001"

func containerName(n int) string { return fmt.Sprintf("container_1700000000000_0001_01_%06d", n) }

func self(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func me() string {
	u, err := user.Current()
	if err != nil {
		return "nobody"
	}
	return u.Username
}

func spec(t testing.TB, n int, argv ...string) *rmpb.ContainerSpec {
	t.Helper()
	return &rmpb.ContainerSpec{
		ContainerId: containerName(n), ApplicationId: appID, Attempt: 1, User: me(), Queue: "root.default", Argv: argv,
		Env: map[string]string{"SELF": self(t)}, Resources: &rmpb.Resources{Memory: 512 << 20, Vcores: 2}, GraceMs: 500, Token: "s3cret",
	}
}

// node is a node manager under test.
type node struct {
	*Server
	t      testing.TB
	url    string
	stop   context.CancelFunc
	result chan error
}

func baseConfig(t testing.TB, work string, managers ...string) Config {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	none := cgroup.None("the test does not use them")
	return Config{
		Work: work, Memory: 1 << 30, VCores: 4, HTTP: l, ResourceManagers: managers, Credentials: credentials, Door: security.NewDoor(security.Config{}),
		Supervisor: []string{self(t), "supervisor"}, Heartbeat: 40 * time.Millisecond, LogInterval: 50 * time.Millisecond, Poll: 50 * time.Millisecond,
		Groups: &none, Version: "test", Reserve: 1, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		Cluster: Cluster{FS: "hdfs://127.0.0.1:8020", WebHDFS: []string{"http://127.0.0.1:9870"}, ResourceManagers: []string{"http://127.0.0.1:8088"}, HadoopConfDir: "/conf"},
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	if testing.Verbose() {
		w.t.Logf("%s", bytes.TrimSuffix(b, []byte("\n")))
	}
	return len(b), nil
}

func run(t testing.TB, c Config) *node {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{Server: s, t: t, url: "http://" + c.HTTP.Addr().String(), stop: cancel, result: make(chan error, 1)}
	go func() { n.result <- s.Run(ctx) }()
	t.Cleanup(func() { n.close(true) })
	return n
}

// close ends the node manager; with containers, or leaving them as a restart does.
func (n *node) close(containers bool) {
	n.t.Helper()
	if n.stop == nil {
		return
	}
	n.Server.config.StopContainers = containers
	n.stop()
	n.stop = nil
	select {
	case err := <-n.result:
		if err != nil {
			n.t.Error("run:", err)
		}
	case <-time.After(time.Minute):
		n.t.Fatal("the node manager does not stop within a minute")
	}
}

func lives(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func pidIn(t testing.TB, work string, container int, file string) int {
	t.Helper()
	name := filepath.Join(work, "containers", containerName(container), "work", file)
	var pid int
	eventually(t, name, func() bool {
		text, err := os.ReadFile(name)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	return pid
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within a minute: %s", what)
}

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
	if strings.Contains(text, "HOPS_TEST_SECRET") {
		t.Error("a variable of the daemon reached the container")
	}
	if files.get("/logs/app/"+s.ContainerId+"/stderr") != "bye\n" {
		t.Error("stderr was not shipped")
	}
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	m.until("oblivion", func(r *rmpb.NodeReport) bool { return find(r, s.ContainerId) == nil })
	eventually(t, "directory removed", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
	m.order(&rmpb.NodeOrders{Start: []*rmpb.ContainerSpec{s}, Cleanup: []string{s.ContainerId}}) // a late repetition
	if find(m.more(4), s.ContainerId) != nil {
		t.Error("a forgotten container was started again")
	}
}

// more waits for n more reports and returns the last.
func (m *manager) more(n int) *rmpb.NodeReport {
	m.t.Helper()
	m.mu.Lock()
	want := m.reports + n
	m.mu.Unlock()
	m.until("more reports", func(*rmpb.NodeReport) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.reports >= want
	})
	return m.report()
}

// report is the last one.
func (m *manager) report() *rmpb.NodeReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
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

func TestContainersOutliveTheNodeManagerAndAreAdopted(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	config := func() Config {
		c := baseConfig(t, work, m.address)
		c.FS = func(string) (Filesystem, error) { return files, nil }
		c.NodeID = "127.0.0.1:45454"
		return c
	}
	n := run(t, config())
	long := spec(t, 2, "sh", "-c", "echo begin; while [ ! -e go ]; do sleep 0.02; done; echo end; exit 5")
	long.LogDir = "/logs"
	short := spec(t, 3, "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 6")
	m.start(long)
	m.start(short)
	m.untilState(long.ContainerId, rmpb.ContainerStatus_RUNNING)
	m.untilState(short.ContainerId, rmpb.ContainerStatus_RUNNING)
	eventually(t, "first line shipped", func() bool { return files.get("/logs/"+long.ContainerId+"/stdout") == "begin\n" })
	incarnation, sequence := m.report().Incarnation, m.report().Sequence
	n.close(false)
	release := func(n int) {
		if err := os.WriteFile(filepath.Join(work, "containers", containerName(n), "work", "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	release(3) // ends while nobody watches
	eventually(t, "short ends", func() bool {
		e, _ := supervisor.ReadExit(filepath.Join(work, "containers", short.ContainerId))
		return e != nil
	})
	m.set(func() { m.last = nil })
	run(t, config())
	if got := m.untilState(short.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != 6 {
		t.Errorf("the exit status was lost: %v", got)
	}
	m.untilState(long.ContainerId, rmpb.ContainerStatus_RUNNING)
	if r := m.report(); r.Incarnation != incarnation || r.Sequence <= sequence {
		t.Errorf("incarnation %s then %s, sequence %d then %d", incarnation, r.Incarnation, sequence, r.Sequence)
	}
	release(2)
	if got := m.untilState(long.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != 5 {
		t.Errorf("%v", got)
	}
	eventually(t, "log goes on where it was", func() bool { return files.get("/logs/"+long.ContainerId+"/stdout") == "begin\nend\n" })
}

// nodeManagerMain is a node manager in a process of its own: work directory, resource manager.
func nodeManagerMain(args []string) int {
	t := &processTest{}
	c := baseConfig(t, args[0], args[1])
	c.NodeID = "127.0.0.1:45454"
	c.GPUs = fake.Simulate(4, "x")
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := New(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := s.Run(context.Background()); err != nil {
		return 1
	}
	return 0
}

// processTest stands in for a testing.TB where there is no test.
type processTest struct{ testing.TB }

func (*processTest) Helper()           {}
func (*processTest) Fatal(args ...any) { fmt.Fprintln(os.Stderr, args...); os.Exit(1) }

// shortLease ends within a test, but not while a busy machine starts a container.
const shortLease = 6 * time.Second

func TestKilledNodeManagerLeavesNothingAfterItsLease(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	m.lease = shortLease
	start := func() *exec.Cmd {
		cmd := exec.Command(self(t), "nodemanager", work, m.address)
		cmd.Stderr = testWriter{t}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	nm := start()
	s := spec(t, 2, "sh", "-c", `trap '' TERM; echo $$ > main.pid; "$SELF" orphan; while :; do sleep 0.02; done`)
	s.Fencing = rmpb.Fencing_FENCING_STRICT
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	main, orphan := pidIn(t, work, 2, "main.pid"), pidIn(t, work, 2, "orphan.pid")
	held := func() supervisor.Instant {
		st, err := supervisor.NewClient(filepath.Join(work, "containers", containerName(2))).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Lease.Kill
	}
	first := held()
	eventually(t, "a renewal reaches the container", func() bool { return held() > first })
	nm.Process.Kill()
	nm.Wait()
	eventually(t, "the tree is gone", func() bool { return !lives(main) && !lives(orphan) })
	m.set(func() { m.last = nil })
	start()
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "lease") {
		t.Errorf("%v", got)
	}
}

func TestKilledNodeManagerThatComesBackKeepsItsContainers(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	start := func() *exec.Cmd {
		cmd := exec.Command(self(t), "nodemanager", work, m.address)
		cmd.Stderr = testWriter{t}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	nm := start()
	s := spec(t, 2, "sh", "-c", `echo $$ > main.pid; "$SELF" orphan; while :; do sleep 0.02; done`)
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	main, orphan := pidIn(t, work, 2, "main.pid"), pidIn(t, work, 2, "orphan.pid")
	nm.Process.Kill()
	nm.Wait()
	m.set(func() { m.last = nil })
	start()
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	if !lives(main) || !lives(orphan) {
		t.Fatal("the container did not survive")
	}
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -105, Reason: "enough"}}})
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -105 {
		t.Errorf("%v", got)
	}
	if lives(main) || lives(orphan) {
		t.Error("processes outlive the stop")
	}
}

func TestPartitionedNodeEndsItsContainersBeforeTheLease(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	m.lease = shortLease
	run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", `echo $$ > main.pid; exec sleep 100`)
	s.Fencing = rmpb.Fencing_FENCING_STRICT
	m.start(s)
	main := pidIn(t, work, 2, "main.pid")
	m.set(func() { m.silent = true })
	eventually(t, "gone", func() bool { return !lives(main) })
	m.set(func() { m.silent = false })
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "lease") {
		t.Errorf("%v", got)
	}
}

func TestKilledSupervisorIsNoticedAndItsTreeEnded(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", `"$SELF" orphan; sleep 100`)
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	orphan := pidIn(t, work, 2, "orphan.pid")
	st, err := supervisor.NewClient(filepath.Join(work, "containers", s.ContainerId)).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(st.Supervisor, syscall.SIGKILL)
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "supervisor was killed") {
		t.Errorf("%v", got)
	}
	if lives(orphan) {
		t.Error("the orphan outlives its container")
	}
}

func TestLeaderIsFoundAndOldTermsAreNotObeyed(t *testing.T) {
	first, second := newManager(t, ""), newManager(t, "")
	first.standby = "not the leader; try " + second.address
	n := run(t, baseConfig(t, t.TempDir(), first.address, "127.0.0.1:1", second.address))
	<-n.Ready()
	second.until("report", func(r *rmpb.NodeReport) bool { return r.GetSequence() > 0 })
	second.set(func() { second.term = 5 })
	s := spec(t, 2, "sleep", "100")
	second.start(s)
	second.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	// The old leader speaks again, with its old term.
	second.set(func() { second.standby = "gone" })
	first.set(func() { first.standby, first.term = "", 4 })
	first.until("report", func(r *rmpb.NodeReport) bool { return r.GetSequence() > 0 })
	before := n.currentLease()
	first.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -100}}})
	if got := find(first.more(2), s.ContainerId); got.GetState() != rmpb.ContainerStatus_RUNNING {
		t.Errorf("an order of an old term was obeyed: %v", got)
	}
	if n.currentLease() != before {
		t.Error("an acknowledgement of an old term extended the lease")
	}
	first.set(func() { first.term = 6 })
	eventually(t, "lease extended by the new term", func() bool { return n.currentLease().Term > before.Term })
}

func TestLogsAreShippedThroughAFailureOfTheFilesystem(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	run(t, c)
	s := spec(t, 2, "sh", "-c", `i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo extra > $HOPS_LOG_DIR/events; ln -s /etc/passwd $HOPS_LOG_DIR/link; mkfifo $HOPS_LOG_DIR/pipe; sleep 0.1`)
	s.LogDir = "/logs/" + s.ContainerId
	m.start(s)
	stdout := s.LogDir + "/stdout"
	eventually(t, "some lines", func() bool { return files.get(stdout) != "" })
	files.setDown(true)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE) // is not held up
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	m.until("oblivion", func(r *rmpb.NodeReport) bool { return find(r, s.ContainerId) == nil })
	files.setDown(false)
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	eventually(t, "all lines, once each", func() bool { return files.get(stdout) == want.String() })
	eventually(t, "directory removed", func() bool {
		_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId))
		return os.IsNotExist(err)
	})
	if files.get(s.LogDir+"/events") != "extra\n" {
		t.Error("a log file of the container's own was not shipped")
	}
	if files.get(s.LogDir+"/link") != "" || files.get(s.LogDir+"/pipe") != "" {
		t.Error("something that is no log file was shipped")
	}
}

// TestLogsTakeABoundedShare: of this disk, of the filesystem, and of the report that says so.
func TestLogsTakeABoundedShare(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	c.LogLimit, c.LogRate = 100<<10, 1<<40
	run(t, c)
	endless := spec(t, 2, "yes")
	// The file is shipped, removed and written anew under another name: each time it is small enough.
	const again = `for i in 1 2 3 4; do head -c 60000 /dev/zero > $HOPS_LOG_DIR/$i; while [ ! -e go$i ]; do sleep 0.02; done; rm $HOPS_LOG_DIR/$i; done`
	moving := spec(t, 3, "sh", "-c", again)
	hole := spec(t, 4, "sh", "-c", "truncate -s 1T $HOPS_LOG_DIR/hole")
	shipped := func(s *rmpb.ContainerSpec) (sum int) {
		files.mu.Lock()
		defer files.mu.Unlock()
		for name, f := range files.files {
			if strings.HasPrefix(name, s.LogDir+"/") {
				sum += f.Len()
			}
		}
		return sum
	}
	for _, s := range []*rmpb.ContainerSpec{endless, hole, moving} {
		s.LogDir = "/logs/" + s.ContainerId
		m.start(s)
	}
	for _, s := range []*rmpb.ContainerSpec{endless, hole} {
		if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -109 || !strings.Contains(got.Diagnostics, "exceeded the limit of its log files") {
			t.Errorf("%d %q", got.ExitStatus, got.Diagnostics)
		}
	}
	for i, want := range []int{60000, 100 << 10, 100 << 10, 100 << 10} {
		if i < 2 {
			eventually(t, "shipped", func() bool { return shipped(moving) == want })
		}
		if err := os.WriteFile(filepath.Join(work, "containers", moving.ContainerId, "work", fmt.Sprintf("go%d", i+1)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.untilState(moving.ContainerId, rmpb.ContainerStatus_COMPLETE)
	for _, s := range []*rmpb.ContainerSpec{endless, hole, moving} {
		m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
		eventually(t, "directory removed, so that everything was shipped", func() bool {
			_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId))
			return os.IsNotExist(err)
		})
		if n := shipped(s); n > 100<<10 {
			t.Errorf("%v: %d bytes were shipped, the limit is %d", s.Argv, n, 100<<10)
		}
	}
}

// TestReportAlwaysFitsAMessage: a node whose report is too large for the resource manager is lost, with everybody's work.
func TestReportAlwaysFitsAMessage(t *testing.T) {
	n, err := New(baseConfig(t, t.TempDir(), "127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.store.Close()
	defer n.config.HTTP.Close()
	long := strings.Repeat("x\xff", 10<<10)
	for i := range 1500 {
		c := n.newContainer(&state.Record{Spec: nodemanager.Spec{ID: nodemanager.ContainerID(containerName(i))}, State: nodemanager.Running})
		c.unrecorded = true
		c.complete(&state.Exit{Status: 1, Diagnostics: fmt.Sprintf("container %d\n%s", i, long)})
		n.mu.Lock()
		n.containers[c.id] = c
		n.mu.Unlock()
	}
	r := n.report(1)
	if size := proto.Size(r); size > 7<<20 {
		t.Errorf("%d containers make a report of %d bytes", len(r.Containers), size)
	}
	for _, c := range r.Containers {
		if !strings.HasPrefix(c.Diagnostics, "container ") {
			t.Fatalf("the first line is lost: %.100q", c.Diagnostics)
		}
	}
}

func TestGPUHealthIsReportedAtOnce(t *testing.T) {
	source, err := fake.Parse("gpus.yaml", []byte("gpus: [{uuid: GPU-a, model: Simulated H100, memory: 80GiB}]\nscript: [{at: 50ms, gpu: GPU-a, xid: 79}]"))
	if err != nil {
		t.Fatal(err)
	}
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.GPUs = gpu.Source(source)
	run(t, c)
	r := m.until("quarantine", func(r *rmpb.NodeReport) bool { return len(r.Gpus) == 1 && r.Gpus[0].Health == "QUARANTINED" })
	if !r.Gpus[0].Simulated || !strings.Contains(r.Gpus[0].HealthReason, "XID 79") || !strings.Contains(r.HealthReport, "simulated") || r.Capacity.Gpus != 1 {
		t.Errorf("%v", r)
	}
}

func TestDiskThatFillsUpMakesTheNodeUnhealthy(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.Reserve = 1 << 60
	n := run(t, c)
	r := m.until("report", func(*rmpb.NodeReport) bool { return true })
	if r.Healthy || !strings.Contains(r.HealthReport, "no more usable space") {
		t.Errorf("%v", r)
	}
	code, _, _ := n.get("/health", "")
	if code != http.StatusServiceUnavailable {
		t.Errorf("/health answers %d", code)
	}
}

func TestWorkDirectoryIsLocked(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	run(t, baseConfig(t, work, m.address))
	if _, err := New(baseConfig(t, work, m.address)); err == nil || !strings.Contains(err.Error(), "in use by another node manager") {
		t.Errorf("got %v", err)
	}
	_, err := New(Config{})
	for _, want := range []string{"no work directory", "no HTTP listener", "no resource manager", "no command that starts", "no door"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// TestNothingStartsWithoutALease: a container that was being localized when the node manager was killed.
func TestNothingStartsWithoutALease(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	s := spec(t, 2, "sleep", "100")
	store, err := state.Open(work)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Create(&state.Record{Spec: specOf(s), State: nodemanager.Localizing, Boot: state.BootID()}); err != nil {
		t.Fatal(err)
	}
	store.Close()
	m.silent = true
	run(t, baseConfig(t, work, m.address))
	if got := find(m.more(5), s.ContainerId); got.GetState() != rmpb.ContainerStatus_LOCALIZING {
		t.Errorf("without a lease: %v", got)
	}
	m.set(func() { m.silent = false })
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
}

func TestDamagedRecordEndsItsContainer(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	n := run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", "echo $$ > main.pid; exec sleep 100")
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	main := pidIn(t, work, 2, "main.pid")
	n.close(false)
	if err := os.WriteFile(filepath.Join(work, "containers", s.ContainerId, "record.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.last = nil })
	run(t, baseConfig(t, work, m.address))
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "damaged") {
		t.Errorf("%v", got)
	}
	if lives(main) {
		t.Error("still alive")
	}
}

func (n *node) get(path, accept string) (int, string, http.Header) {
	n.t.Helper()
	r, err := http.NewRequest("GET", n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), resp.Header
}

func TestRESTSpeaksYARN(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.GPUs = fake.Simulate(2, "x")
	devices, _ := c.GPUs.Devices(t.Context())
	n := run(t, c)
	s := spec(t, 2, "sh", "-c", "printf 'one\\ntwo\\n<b>'; ln -s /etc/passwd $LOG_DIRS/secret; echo > up; exec sleep 100")
	s.GpuUuids = []string{devices[1].UUID}
	s.User = "alice"
	m.start(s)
	id := s.ContainerId
	eventually(t, "up", func() bool {
		_, err := os.Stat(filepath.Join(n.store.ContainerDir(nodemanager.ContainerID(id)), "work", "up"))
		return err == nil
	})
	m.untilState(id, rmpb.ContainerStatus_RUNNING)

	parse := func(path string) map[string]any {
		code, body, h := n.get(path, "")
		var v map[string]any
		if err := json.Unmarshal([]byte(body), &v); err != nil || code != 200 || h.Get("Content-Type") != "application/json;charset=utf-8" {
			t.Fatalf("%s: %d %v %s", path, code, err, body)
		}
		return v
	}
	for _, path := range []string{"/ws/v1/node", "/ws/v1/node/", "/ws/v1/node/info"} {
		info := parse(path)["nodeInfo"].(map[string]any)
		if info["id"] != n.config.NodeID || info["nodeHealthy"] != true || info["totalPmemAllocatedContainersMB"] != 1024.0 || info["simulatedGPUs"] != 2.0 {
			t.Errorf("%s: %v", path, info)
		}
	}
	list := parse("/ws/v1/node/containers")["containers"].(map[string]any)["container"].([]any)
	one := parse("/ws/v1/node/containers/" + id)["container"].(map[string]any)
	if len(list) != 1 || one["id"] != id || one["state"] != "RUNNING" || one["exitCode"] != -1000.0 || one["user"] != "alice" || one["totalMemoryNeededMB"] != 512.0 {
		t.Errorf("%v", one)
	}
	app := parse("/ws/v1/node/apps")["apps"].(map[string]any)["app"].([]any)[0].(map[string]any)
	if app["id"] != appID || app["state"] != "RUNNING" {
		t.Errorf("%v", app)
	}
	res := parse("/ws/v1/node/resources/yarn.io%2Fgpu")
	if len(res["totalGpuDevices"].([]any)) != 2 || res["assignedGpuDevices"].([]any)[0].(map[string]any)["containerId"] != id {
		t.Errorf("%v", res)
	}
	if _, body, _ := n.get("/ws/v1/node/resources/fpga", ""); strings.TrimSpace(body) != "{}" {
		t.Errorf("fpga: %s", body)
	}
	superuser := "?user.name=" + me()
	_, body, _ := n.get("/ws/v1/node/containers/"+id+"/logs"+superuser, "")
	if !strings.Contains(body, `"fileName":"stdout","fileSize":"11"`) || !strings.Contains(body, `"logAggregationType":"LOCAL"`) || strings.Contains(body, "secret") {
		t.Errorf("logs: %s", body)
	}
	_, body, _ = n.get("/ws/v1/node/containers/"+id+"/logs/stdout"+superuser, "text/plain")
	if !strings.Contains(body, "LogLength:11\nLogContents:\none\ntwo\n<b>\nEnd of LogType:stdout.This log file belongs to a running container ("+id+")") {
		t.Errorf("log: %s", body)
	}
	for size, want := range map[string]string{"4": "LogContents:\none\nEnd", "-4": "LogContents:\n\n<b>\nEnd", "-900": "LogContents:\none", "0": "LogContents:\nEnd"} {
		if _, body, _ := n.get("/ws/v1/node/containerlogs/"+id+"/stdout"+superuser+"&size="+size, ""); !strings.Contains(body, want) {
			t.Errorf("size %s: %s", size, body)
		}
	}
	if _, body, _ := n.get("/node/containerlogs/"+id+"/alice/stdout/"+superuser+"&start=4", ""); !strings.Contains(body, "<pre>two\n&lt;b&gt;</pre>") {
		t.Errorf("page: %s", body)
	}
	if _, body, _ := n.get("/node/containerlogs/"+id+"/alice"+superuser, ""); !strings.Contains(body, "stdout : Total file length is 11 bytes.") {
		t.Errorf("page: %s", body)
	}
	for _, test := range []struct {
		path, accept string
		code         int
		want         string
	}{
		{"/ws/v1/node/containers/zz", "", 400, `"message":"java.lang.Exception: invalid container id, zz"`},
		{"/ws/v1/node/containers/" + containerName(99), "", 404, "container with id, " + containerName(99) + ", not found"},
		{"/ws/v1/node/containers/" + containerName(99) + "/logs", "", 200, `{"containerLogsInfo":{"logAggregationType":"LOCAL","containerId":"` + containerName(99) + `"`},
		{"/ws/v1/node/containers/" + id + "/logs/stdout", "", 500, "User [dr.who] is not authorized to view the logs for application " + appID},
		{"/ws/v1/node/containers/" + id + "/logs/stdout" + superuser, "application/json", 503, "WebApplicationException"},
		{"/ws/v1/node/containers/" + id + "/logs/nothing" + superuser, "", 404, "Cannot find this log on the local disk."},
		{"/ws/v1/node/containers/" + id + "/logs/secret" + superuser, "", 404, "Cannot find this log on the local disk."},
		{"/ws/v1/node/containers/" + id + "/logs/..%2Frecord.json" + superuser, "", 404, "Cannot find this log on the local disk."},
		{"/ws/v1/node/containers/" + id + "/logs/stdout" + superuser + "&size=x", "", 503, "WebApplicationException"},
		{"/ws/v1/node/containers/" + id + "/logs/stdout" + superuser + "&format=xml", "", 400, "valid values"},
		{"/ws/v1/node/apps/application_1_0001", "", 404, "app with id application_1_0001 not found"},
		{"/health", "", 200, `"lease":true`},
	} {
		code, body, _ := n.get(test.path, test.accept)
		if code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s: got %d %s, want %d %s", test.path, code, body, test.code, test.want)
		}
	}
	r, _ := http.NewRequest("GET", n.url+"/ws/v1/node/info", nil)
	r.Host = "evil.example"
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		t.Fatalf("a foreign Host: %v %v", resp, err)
	}
	resp.Body.Close()
}

func TestEveryRouteHasARight(t *testing.T) {
	for _, r := range routes {
		if !r.right.Valid() {
			t.Errorf("%s has no right", r.pattern)
		}
		if strings.Contains(r.pattern, "log") != (r.right == security.Owner) {
			t.Errorf("%s: logs are for the owner", r.pattern)
		}
	}
}

func TestLeaseDeadlinesLieBeforeItsEnd(t *testing.T) {
	for _, d := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 10 * time.Second, time.Minute} {
		l := deadlines(supervisor.Instant(time.Hour), d)
		begin := supervisor.Instant(time.Hour) - supervisor.Instant(d)
		if !(l.Term < l.Kill && l.Kill < supervisor.Instant(time.Hour)) || l.Term.Sub(begin) < d*7/10 {
			t.Errorf("%v: term after %v, kill after %v", d, l.Term.Sub(begin), l.Kill.Sub(begin))
		}
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
	n.close(true)
	for _, pid := range pids {
		if lives(pid) {
			t.Errorf("process %d outlives the node manager that was told to stop its containers", pid)
		}
	}
}
