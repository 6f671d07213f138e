package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/am"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/rest/openapitest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(fleetVariable); text != "" {
		os.Exit(fleetProcess(text))
	}
	if text := os.Getenv(memberVariable); text != "" {
		os.Exit(memberProcess(text))
	}
	os.Exit(leaktest.Run(m, leaktest.Raft()))
}

// testCluster is a set of resource managers in this process on loopback.
type testCluster struct {
	t           testing.TB
	credentials security.Credentials
	authority   *authority.Authority
	door        *security.Door
	lease       time.Duration
	queues      rm.QueueConfig
	tune        func(*Config)
	ports       processes.Ports // that nobody takes while a member is down
	peers       []Peer
	raft        []raftstore.Member
	dirs        []string
	live        []*member
}

// member is one running resource manager.
type member struct {
	*Server
	stop func() // kills it: nothing is flushed, handed over or said
}

func newTestCluster(t testing.TB, members int, tune func(*Config)) *testCluster {
	credentials, issuer, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{
		t: t, credentials: credentials, authority: issuer, door: security.NewDoor(security.Config{}), lease: time.Minute, tune: tune,
		live: make([]*member, members),
	}
	t.Cleanup(func() { c.ports.Close() })
	t.TempDir() // what it is for is removed when this one is: behind the members, whenever they got theirs
	t.Cleanup(func() {
		for i := range c.live {
			c.kill(i)
		}
	})
	for i := range members {
		a, err := c.ports.Take(3)
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("rm%d", i+1)
		c.peers = append(c.peers, Peer{id, a[0], a[1]})
		c.raft = append(c.raft, raftstore.Member{ID: id, Address: a[2]})
		c.dirs = append(c.dirs, t.TempDir())
	}
	for i := range members {
		c.start(i)
	}
	return c
}

// log writes to the test's output while the test lives.
func testLog(t testing.TB) *slog.Logger {
	switch t.(type) {
	case *testing.B, processTB: // what is measured writes no more than a server in production does
		return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (c *testCluster) start(i int) *member {
	c.t.Helper()
	log := testLog(c.t)
	quiet := slog.New(slog.DiscardHandler)
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: c.peers[i].ID, Listener: listen(c.t, c.raft[i].Address), Dir: c.dirs[i], Door: security.NewDoor(security.Config{}), Credentials: c.credentials, Role: authority.ResourceManager,
		Reserve: -1, Logger: quiet, WriteDeadline: time.Minute, OnFatal: func(err error) { c.t.Errorf("raft: %v", err) },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	timers := raftstore.Timers{Heartbeat: 300 * time.Millisecond, Election: 300 * time.Millisecond, Lease: 200 * time.Millisecond}
	if len(c.live) > 1 { // long enough for a leader that is only slow
		timers = raftstore.Timers{Heartbeat: 2 * time.Second, Election: 2 * time.Second, Lease: 2 * time.Second}
	}
	config := Config{
		ID: c.peers[i].ID, HTTP: listen(c.t, c.peers[i].HTTP), GRPC: listen(c.t, c.peers[i].GRPC), Host: host, Members: c.raft,
		Bootstrap: true, Peers: c.peers, Credentials: c.credentials, Door: c.door, Queues: c.queues, NodeLease: c.lease, Executable: "/opt/hops/bin/hops",
		Environment: Environment{FS: "hdfs://127.0.0.1:8020", WebHDFS: []string{"127.0.0.1:9870"}}, Logger: log, Timers: timers, levelEvery: 20 * time.Millisecond,
	}
	if c.tune != nil {
		c.tune(&config)
	}
	server, err := New(config)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := host.Run(ctx); err != nil {
			c.t.Errorf("raft host: %v", err)
		}
	})
	wg.Go(func() {
		if err := server.Run(ctx); err != nil && ctx.Err() == nil {
			c.t.Errorf("server: %v", err)
		}
	})
	m := &member{Server: server, stop: func() { cancel(); wg.Wait() }}
	c.live[i] = m
	return m
}

func (c *testCluster) kill(i int) {
	if c.live[i] != nil {
		c.live[i].stop()
		c.live[i] = nil
	}
}

// at is a moment at which the state's time is that of the clock.
func at(t time.Time) moment { return moment{t, metadata.TimeOf(t)} }

// leader waits until one of the members leads.
func (c *testCluster) leader() *member {
	c.t.Helper()
	var found *member
	eventually(c.t, "a leader", func() bool {
		for _, m := range c.live {
			if m != nil && m.Leading() {
				found = m
			}
		}
		return found != nil
	})
	return found
}

// eventually fails the test when a condition does not come true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

// http calls the leader as a user and decodes the answer; followers' redirects are followed. On a busy machine leaders change without being told
// to: what nobody took is asked again, and so is what nobody knows of, for a repeat has no effect. A submission has a key for that, and may
// answer 200 then. Who changes members looks at the outcome.
func (c *testCluster) http(method, path, user string, body, answer any) (int, http.Header) {
	c.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			c.t.Fatal(err)
		}
		in = bytes.NewReader(text)
	}
	if user != "" {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		path += sep + "user.name=" + user
	}
	var text []byte
	if in != nil {
		text, _ = io.ReadAll(in)
	}
	key := rand.Text()
	for end := time.Now().Add(time.Minute); ; {
		request, err := http.NewRequest(method, "http://"+c.leader().peer(c.leader().config.ID).HTTP+path, bytes.NewReader(text))
		if err != nil {
			c.t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		if method == http.MethodPost && (path == "/api/v1/jobs" || strings.HasPrefix(path, "/api/v1/jobs?")) {
			request.Header.Set("Idempotency-Key", key)
		}
		var body string
		code, header := c.do(request, &body)
		unknown := code == http.StatusGatewayTimeout && !strings.HasPrefix(path, "/api/v1/resourcemanagers")
		if (code == http.StatusServiceUnavailable || unknown) && time.Now().Before(end) {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		switch a := answer.(type) {
		case nil:
		case *string:
			*a = body
		default:
			if err := json.Unmarshal([]byte(body), answer); err != nil {
				c.t.Fatalf("%s %s: %v in %s", method, path, err, body)
			}
		}
		return code, header
	}
}

func (c *testCluster) do(request *http.Request, answer *string) (int, http.Header) {
	c.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	var said []byte
	if request.Body != nil {
		said, _ = io.ReadAll(request.Body)
		request.Body = io.NopCloser(bytes.NewReader(said))
	}
	response, err := client.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	*answer = string(b)
	if strings.HasPrefix(request.URL.Path, "/api/v1/") && response.Header.Get("Retry-After") == "" { // what is said and heard is as described
		d, err := openapitest.Parse(rest.OpenAPI)
		if err == nil {
			err = d.Check(request.Method, request.URL.Path, response.StatusCode, said, b)
		}
		if err != nil {
			c.t.Errorf("%v in %.300s", err, b)
		}
	}
	return response.StatusCode, response.Header
}

// submit submits a job and returns its id.
func (c *testCluster) submit(user string, document any) rm.ApplicationID {
	c.t.Helper()
	var answer map[string]any
	code, _ := c.http("POST", "/api/v1/jobs", user, document, &answer)
	if code != http.StatusCreated && code != http.StatusOK { // that of a repeat
		c.t.Fatalf("submission: %d %v", code, answer)
	}
	id, err := rm.ParseApplicationID(answer["id"].(string))
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c *testCluster) job(id rm.ApplicationID) rest.Job {
	c.t.Helper()
	var j rest.Job
	if code, _ := c.http("GET", "/api/v1/jobs/"+id.String(), "", nil, &j); code != http.StatusOK {
		c.t.Fatalf("job %v: %d", id, code)
	}
	return j
}

// waits is the code of the reason why a job waits; empty: it does not.
func (c *testCluster) waits(id rm.ApplicationID) rm.ReasonCode {
	c.t.Helper()
	if r := c.job(id).PendingReason; r != nil {
		return r.Code
	}
	return ""
}

// awaitReason waits until a job waits for a reason, and returns that. Whoever looks again may find none for a moment: what a listening
// master is told was found before.
func (c *testCluster) awaitReason(id rm.ApplicationID, code rm.ReasonCode) (r rm.Reason) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%v to wait: %s", id, code), func() bool {
		now := c.job(id).PendingReason
		if now == nil || now.Code != code {
			return false
		}
		r = *now
		return true
	})
	return r
}

// await waits for a state of a job.
func (c *testCluster) await(id rm.ApplicationID, states ...rm.State) rest.Job {
	c.t.Helper()
	var j rest.Job
	eventually(c.t, fmt.Sprintf("%v to be %v", id, states), func() bool {
		j = c.job(id)
		return slices.Contains(states, j.State)
	})
	return j
}

// heard is when the leader heard of a node last; silence of the lease and its margin after that makes it lost.
func (c *testCluster) heard(n *fakeNode) time.Time {
	r := c.leader().reign.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[rm.NodeID(n.id)].heard
}

// awaitOpen waits until nodes take work.
func (c *testCluster) awaitOpen(nodes ...*fakeNode) {
	c.t.Helper()
	for _, n := range nodes {
		eventually(c.t, n.id+" to take work", func() bool { return c.leader().Liveness(rm.NodeID(n.id)).Open })
	}
}

// check ends a test: the state is sound, and no GPU was ever granted twice.
func (c *testCluster) check() {
	c.t.Helper()
	s := c.leader().state
	for _, err := range s.Check() {
		c.t.Error(err)
	}
	last := map[string]rm.Grant{}
	for g := range s.View().Ledger() {
		for _, u := range g.GPUs {
			if p, ok := last[u]; ok && (p.To == 0 || p.To > g.From) {
				c.t.Errorf("GPU %s: %v until %d, %v from %d", u, p.Container, p.To, g.Container, g.From)
			}
			last[u] = g
		}
	}
}

// fakeNode is a node manager whose containers are functions. It keeps the protocol's promises: every report lists all
// that it knows, stops of unknown containers are answered, and containers end when the lease does.
type fakeNode struct {
	t       testing.TB
	cluster *testCluster
	id      string
	gpus    int
	// program is what runs in a container; its result is the exit status.
	program func(ctx context.Context, spec *pb.ContainerSpec) int

	mu          sync.Mutex
	incarnation string
	capacity    *pb.Resources        // GPUs aside
	spoil       func(*pb.NodeReport) // changes what is reported
	containers  map[string]*fakeContainer
	starts      map[string]int // orders seen
	signals     []string       // orders seen
	notices     []*pb.Notice   // of the last orders that say some
	judged      []string       // devices, likewise
	ended       []string       // applications of the last orders
	forgotten   map[string]bool
	deaf        bool      // carries out no orders
	mute        bool      // sends nothing
	extended    time.Time // when the lease ends
	nudge       chan struct{}
	sequence    uint64
	wg          sync.WaitGroup
	cancel      context.CancelFunc
}

type fakeContainer struct {
	spec   *pb.ContainerSpec
	status *pb.ContainerStatus
	cancel context.CancelFunc
	stop   *pb.Stop
}

func (c *testCluster) node(id string, gpus int, program func(context.Context, *pb.ContainerSpec) int) *fakeNode {
	n := &fakeNode{
		t: c.t, cluster: c, id: id, gpus: gpus, program: program, incarnation: "one", capacity: &pb.Resources{Memory: 16 << 30, Vcores: 16}, containers: map[string]*fakeContainer{},
		starts: map[string]int{}, forgotten: map[string]bool{}, nudge: make(chan struct{}, 1),
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.wg.Go(func() { n.speak(ctx) })
	n.wg.Go(func() { n.watchLease(ctx) })
	c.t.Cleanup(n.kill)
	return n
}

// kill ends the node manager and all its containers.
func (n *fakeNode) kill() {
	n.cancel()
	n.mu.Lock()
	n.deaf = true // an order on its way starts nothing
	for _, k := range n.containers {
		k.cancel()
	}
	n.mu.Unlock()
	n.wg.Wait()
}

func (n *fakeNode) speak(ctx context.Context) {
	for at := 0; ctx.Err() == nil; at++ {
		n.session(ctx, n.cluster.peers[at%len(n.cluster.peers)].GRPC)
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (n *fakeNode) session(ctx context.Context, address string) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(n.cluster.credentials.Key(authority.ResourceManager).Credentials()))
	if err != nil {
		n.t.Error(err)
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewNodeManagersClient(conn).Session(ctx)
	if err != nil {
		return
	}
	sent := map[uint64]time.Time{}
	var sentMu sync.Mutex
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		for {
			orders, err := stream.Recv()
			if err != nil {
				return
			}
			sentMu.Lock()
			at, ok := sent[orders.Acknowledged]
			delete(sent, orders.Acknowledged)
			sentMu.Unlock()
			n.obey(orders, at, ok)
		}
	})
	beat := time.NewTicker(30 * time.Millisecond)
	defer beat.Stop()
	for ctx.Err() == nil {
		if r := n.report(); r != nil {
			sentMu.Lock()
			sent[r.Sequence] = time.Now()
			sentMu.Unlock()
			if stream.Send(r) != nil {
				break
			}
		}
		select {
		case <-ctx.Done():
		case <-beat.C:
		case <-n.nudge:
		}
	}
	cancel()
	wg.Wait()
}

func (n *fakeNode) report() *pb.NodeReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mute {
		return nil
	}
	n.sequence++
	r := &pb.NodeReport{
		NodeId: n.id, Incarnation: n.incarnation, Sequence: n.sequence, Host: "127.0.0.1", HttpAddress: n.id, Healthy: true,
		Capacity: &pb.Resources{Memory: n.capacity.Memory, Vcores: n.capacity.Vcores, Gpus: int32(n.gpus)},
	}
	for i := range n.gpus {
		r.Gpus = append(r.Gpus, &pb.GPU{Uuid: fmt.Sprintf("GPU-%s-%d", n.id, i), Model: "Simulated H100", Minor: int32(i), Island: "0", Simulated: true, Health: "HEALTHY"})
	}
	for _, id := range slices.Sorted(maps.Keys(n.containers)) {
		r.Containers = append(r.Containers, n.containers[id].status)
	}
	if n.spoil != nil {
		n.spoil(r)
	}
	return r
}

func (n *fakeNode) poke() { kick(n.nudge) }

func (n *fakeNode) obey(o *pb.NodeOrders, sent time.Time, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if known {
		if until := sent.Add(time.Duration(o.LeaseMs) * time.Millisecond); until.After(n.extended) {
			n.extended = until
		}
	}
	if len(o.Ended) > 0 {
		n.ended = o.Ended
	}
	if n.deaf {
		return
	}
	for _, stop := range o.Stop {
		k := n.containers[stop.ContainerId]
		switch {
		case k != nil && k.stop == nil:
			k.stop = stop
			k.cancel()
		case k == nil && !n.forgotten[stop.ContainerId]:
			n.containers[stop.ContainerId] = &fakeContainer{cancel: func() {}, stop: stop, status: &pb.ContainerStatus{
				ContainerId: stop.ContainerId,
				State:       pb.ContainerStatus_COMPLETE, ExitStatus: stop.ExitStatus, Diagnostics: "stopped before it was started: " + stop.Reason,
			}}
		}
	}
	if o.Notices != nil {
		n.notices = o.Notices.Notices
	}
	for _, p := range o.Signal {
		n.signals = append(n.signals, fmt.Sprintf("%s %d", p.ContainerId, p.Signal))
	}
	for _, p := range o.Devices {
		n.judged = append(n.judged, fmt.Sprintf("%s %s %s", p.Uuid, p.Health, p.By))
	}
	for _, spec := range o.Start {
		n.starts[spec.ContainerId]++
		if n.containers[spec.ContainerId] == nil && !n.forgotten[spec.ContainerId] {
			n.run(spec)
		}
	}
	for _, id := range o.Cleanup {
		if k := n.containers[id]; k != nil && k.status.State == pb.ContainerStatus_COMPLETE {
			delete(n.containers, id)
			n.forgotten[id] = true
		}
	}
	n.poke()
}

func (n *fakeNode) run(spec *pb.ContainerSpec) {
	for _, other := range n.containers {
		if other.status.State != pb.ContainerStatus_COMPLETE {
			for _, u := range other.spec.GpuUuids {
				if slices.Contains(spec.GpuUuids, u) {
					n.t.Errorf("GPU %s is granted to %s while %s runs", u, spec.ContainerId, other.spec.ContainerId)
				}
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &fakeContainer{spec: spec, cancel: cancel, status: &pb.ContainerStatus{ContainerId: spec.ContainerId, State: pb.ContainerStatus_RUNNING, GpuUuids: spec.GpuUuids}}
	n.containers[spec.ContainerId] = k
	n.wg.Go(func() {
		exit := n.program(ctx, spec)
		cancel()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.containers[spec.ContainerId] != k {
			return
		}
		k.status = &pb.ContainerStatus{ContainerId: spec.ContainerId, State: pb.ContainerStatus_COMPLETE, ExitStatus: int32(exit), GpuUuids: spec.GpuUuids}
		if k.stop != nil {
			k.status.ExitStatus, k.status.Diagnostics = k.stop.ExitStatus, k.stop.Reason
		}
		n.poke()
	})
}

// watchLease ends what is fenced when the lease is over.
func (n *fakeNode) watchLease(ctx context.Context) {
	for ctx.Err() == nil {
		n.mu.Lock()
		if !n.extended.IsZero() && time.Now().After(n.extended) {
			for _, k := range n.containers {
				if k.spec.GetFencing() == pb.Fencing_FENCING_STRICT {
					k.cancel()
				}
			}
		}
		n.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// set changes the node under its lock.
func (n *fakeNode) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// endLease makes a node that nobody answers any more live as if the time of its lease had passed, until something has come of it.
// An acknowledgement that was on its way still begins another lease, which is ended too.
func (n *fakeNode) endLease(what string, come func() bool) {
	n.t.Helper()
	eventually(n.t, what, func() bool {
		n.set(func() { n.extended = time.Now() })
		return come()
	})
}

// leaseEnd is until when what runs there may.
func (n *fakeNode) leaseEnd() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.extended
}

// running lists the containers that run, masters or not.
func (n *fakeNode) running(masters bool) []*pb.ContainerSpec {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*pb.ContainerSpec
	for _, id := range slices.Sorted(maps.Keys(n.containers)) {
		if k := n.containers[id]; k.status.State == pb.ContainerStatus_RUNNING && k.spec.ApplicationMaster == masters {
			out = append(out, k.spec)
		}
	}
	return out
}

// realMaster runs the master of command jobs as its container would.
func realMaster(c *testCluster) func(ctx context.Context, spec *pb.ContainerSpec) int {
	t, dir, log := c.t, c.t.TempDir(), testLog(c.t)
	trust := filepath.Join(dir, "authority.pem")
	if err := os.WriteFile(trust, authority.MarshalRoots(c.credentials.Member.Roots()), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, spec *pb.ContainerSpec) int {
		work := filepath.Join(dir, spec.ContainerId)
		if err := os.MkdirAll(work, 0o700); err != nil {
			t.Error(err)
		}
		for _, a := range spec.Artifacts {
			if err := os.WriteFile(filepath.Join(work, a.Name), a.Content, 0o600); err != nil {
				t.Error(err)
			}
		}
		token := filepath.Join(work, "token")
		if err := os.WriteFile(token, []byte(spec.Token), 0o600); err != nil {
			t.Error(err)
		}
		e, err := am.EnvFrom(func(name string) string {
			switch name {
			case "HOPS_TOKEN":
				return token
			case "HOPS_AUTHORITY":
				return trust
			case "HOPS_WORK_DIR":
				return work
			}
			return spec.Env[name]
		})
		if err != nil {
			t.Error(err)
			return 1
		}
		e.Logger = log
		if err := am.Run(ctx, e); err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("master: %v", err)
			}
			return 143
		}
		return 0
	}
}

// programs runs real masters, and f in other containers.
func programs(c *testCluster, f func(ctx context.Context, spec *pb.ContainerSpec) int) func(context.Context, *pb.ContainerSpec) int {
	master := realMaster(c)
	return func(ctx context.Context, spec *pb.ContainerSpec) int {
		if spec.ApplicationMaster {
			return master(ctx, spec)
		}
		return f(ctx, spec)
	}
}

// untilStopped is a program that runs until it is stopped.
func untilStopped(ctx context.Context, _ *pb.ContainerSpec) int {
	<-ctx.Done()
	return 143
}

// dial makes a connection with a key, on which the server has answered something: it gives up a handshake that takes some seconds, as on a machine
// that stops for a moment, and then another one is made. A stranger is not let in, and is not waited for.
func dial(t testing.TB, address string, key security.Key, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(key.Credentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for end := time.Now().Add(time.Minute); len(options) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var none pb.FinishResponse
		if err := conn.Invoke(t.Context(), "/hops.None/None", &none, &none, grpc.WaitForReady(true)); status.Code(err) != codes.Unavailable {
			break // there is no such method
		}
	}
	return conn
}

// stranger is who is not let in, and does not wait for it.
func stranger() grpc.DialOption { return grpc.WithDefaultCallOptions(grpc.WaitForReady(false)) }

// mastersAt dials a resource manager with a key.
func mastersAt(t *testing.T, address string, key security.Key, options ...grpc.DialOption) pb.ApplicationMastersClient {
	return pb.NewApplicationMastersClient(dial(t, address, key, options...))
}

// machine is the key of a server on another machine of the cluster.
func (c *testCluster) machine(name string, roles ...authority.Role) security.Key {
	c.t.Helper()
	i, err := c.authority.Self(name, roles, nil, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	m, err := i.Member(time.Now)
	if err != nil {
		c.t.Fatal(err)
	}
	return security.Credentials{Member: m}.Key()
}

// nodesAt dials the first resource manager's service for node managers with a key.
func (c *testCluster) nodesAt(key security.Key, options ...grpc.DialOption) pb.NodeManagersClient {
	c.t.Helper()
	return pb.NewNodeManagersClient(dial(c.t, c.peers[0].GRPC, key, options...))
}
