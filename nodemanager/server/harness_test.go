package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/localizer"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// nodeVariable is the name of the node managers that start again. One run of these tests has another than the next, which may be at the same
// time: node managers end what was started under their name and is not theirs.
const nodeVariable = "HOPS_TEST_NODE"

// thisRun is in the names by which node managers of two runs of these tests on one machine would take each other's processes and devices
// for their own: of the cluster, and of devices that are not simulated.
var thisRun = strconv.Itoa(os.Getpid())

// TestMain makes this binary the supervisor, a whole node manager that can be killed, and what containers run.
func TestMain(m *testing.M) {
	if os.Getenv(nodeVariable) == "" { // not one of the processes below
		os.Setenv(nodeVariable, fmt.Sprintf("127.0.0.1:%d", 10_000+os.Getpid()%20_000)) // no port of a connection's
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervisor":
			// Not os.Exit: built with the race detector it sleeps a second, for which a test would wait twice or more.
			syscall.Exit(supervisor.Main(os.Args[2:]))
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
			syscall.Exit(0)
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
	code := leaktest.Run(m)
	for _, f := range atEnd {
		f()
	}
	os.Exit(code)
}

// credentials are of this process and of those that it starts, which are told the directory.
var credentials = func() security.Credentials {
	if len(os.Args) > 1 && slices.Contains([]string{"supervisor", "sleep", "orphan", "allocate"}, os.Args[1]) {
		return security.Credentials{} // it has none, nor the directory
	}
	c, err := loadCredentials(os.Getenv("HOPS_TEST_CREDENTIALS"))
	if err != nil {
		panic(err)
	}
	return c
}()

func loadCredentials(dir string) (c security.Credentials, err error) {
	create := dir == ""
	if create {
		if dir, err = os.MkdirTemp("", "hops-nm-test"); err != nil {
			return c, err
		}
		atEnd = append(atEnd, func() { os.RemoveAll(dir) })
		a, err := authority.New("CID-test-"+thisRun, time.Now())
		if err != nil {
			return c, err
		}
		i, err := a.Self("test", authority.Roles, nil, time.Now())
		if err != nil {
			return c, err
		}
		if err := i.Create(filepath.Join(dir, "identity.pem")); err != nil {
			return c, err
		}
		os.Setenv("HOPS_TEST_CREDENTIALS", dir)
	}
	if c.Secret, err = security.LoadOrCreateSecret(filepath.Join(dir, "secret"), create); err != nil {
		return c, err
	}
	i, err := authority.LoadIdentity(filepath.Join(dir, "identity.pem"))
	if err != nil {
		return c, err
	}
	c.Member, err = i.Member(time.Now)
	return c, err
}

// atEnd is done after the tests.
var atEnd []func()

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
	service *rmpb.NodeService  // of every answer
	last    *rmpb.NodeReport
	seen    func(*rmpb.NodeReport) // called with each report
	reports int
	open    int                          // sessions
	changed chan struct{}                // closed and replaced at every report
	push    func(*rmpb.NodeOrders) error // to the node that speaks, at once
	// give answers who asks for credentials; nil: there are none.
	give  func(*rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error)
	pulls int
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
	m := &manager{t: t, address: l.Addr().String(), term: 1, lease: time.Minute, changed: make(chan struct{})}
	keys := security.Keyring{Member: credentials.Member}
	m.server = grpc.NewServer(grpc.Creds(keys.Credentials()))
	rmpb.RegisterNodeManagersServer(m.server, m)
	go m.server.Serve(keys.Listen(l))
	t.Cleanup(m.server.Stop)
	return m
}

func (m *manager) Session(stream grpc.BidiStreamingServer[rmpb.NodeReport, rmpb.NodeOrders]) error {
	var sending sync.Mutex
	send := func(o *rmpb.NodeOrders) error {
		sending.Lock()
		defer sending.Unlock()
		return stream.Send(o)
	}
	m.set(func() { m.push = send; m.open++ })
	defer m.set(func() { m.open-- })
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
		answer := &rmpb.NodeOrders{Term: m.term, Acknowledged: r.GetSequence(), LeaseMs: m.lease.Milliseconds(), Service: m.service}
		for _, o := range m.orders {
			answer.Start = append(answer.Start, o.GetStart()...)
			answer.Stop = append(answer.Stop, o.GetStop()...)
			answer.Signal = append(answer.Signal, o.GetSignal()...)
			answer.Cleanup = append(answer.Cleanup, o.GetCleanup()...)
			answer.Devices = append(answer.Devices, o.GetDevices()...)
			answer.Ended = append(answer.Ended, o.GetEnded()...)
			answer.TokenKeys = append(answer.TokenKeys, o.GetTokenKeys()...)
		}
		m.orders = nil
		silent := m.silent
		m.mu.Unlock()
		if silent {
			continue
		}
		if err := send(answer); err != nil {
			return err
		}
	}
}

func (m *manager) Credentials(_ context.Context, q *rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error) {
	m.mu.Lock()
	give := m.give
	m.pulls++
	m.mu.Unlock()
	if give == nil {
		return &rmpb.CredentialsResponse{}, nil
	}
	return give(q)
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

// start orders a container until it is in a report: a node without a lease, which a busy machine may have let run out, starts none.
func (m *manager) start(spec *rmpb.ContainerSpec) {
	m.t.Helper()
	again := 0
	m.until("admission of "+spec.GetContainerId(), func(r *rmpb.NodeReport) bool {
		if find(r, spec.GetContainerId()) != nil {
			return true
		}
		m.set(func() {
			if m.reports >= again {
				m.orders = append(m.orders, &rmpb.NodeOrders{Start: []*rmpb.ContainerSpec{spec}})
				again = m.reports + 20
			}
		})
		return false
	})
}

// forget waits until the sessions of node managers that have ended are over here, too, and forgets what these reported.
func (m *manager) forget() {
	m.t.Helper()
	over := false
	eventually(m.t, "the end of the sessions", func() bool {
		m.set(func() {
			if over = m.open == 0; over {
				m.last = nil
			}
		})
		return over
	})
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

func (m *memoryFS) ListLogs(_ context.Context, dir string) (map[string]int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	found := map[string]int64{}
	for name, f := range m.files {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			found[rest] = int64(f.Len())
		}
	}
	return found, nil
}

func (m *memoryFS) RemoveLog(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errDown
	}
	delete(m.files, name)
	return nil
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

func (l *memoryLog) Close() error { return nil }

func (l *memoryLog) Abort() {}

const appID = "application_1700000000000_0001"

func containerName(n int) string { return fmt.Sprintf("container_1700000000000_0001_01_%06d", n) }

// nodeName is a name for a node that starts again while other tests run. One that is made of its port may be another's by then, who would
// end its containers.
func nodeName(n int) string { return fmt.Sprintf("127.0.0.1:%d", n) }

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
		Groups: &none, Version: "test", Reserve: 1, Isolation: IsolationAny, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
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
	t.Cleanup(func() {
		n.close(true)
		supervisorsEnd(t, c.Work)
	})
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

// supervisorsEnd waits until those of containers that have ended write nothing more into a work directory, which is to be removed.
func supervisorsEnd(t testing.TB, work string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(work, "containers", "*"))
	if err != nil {
		t.Error(err)
	}
	for _, dir := range all {
		eventually(t, "the end of the supervisor in "+dir, func() bool { alive, _ := supervisor.Alive(dir); return !alive })
	}
}

func lives(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ") && !strings.Contains(string(text), ") X ")
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
