package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// fleetVariable of the environment makes a process of this test binary a fleet.
const fleetVariable = "HOPS_TEST_FLEET"

// fleetConfig describes node managers that are simulated in a process of their own, so that the processor time and memory of this one
// are the resource managers'.
type fleetConfig struct {
	Authority []byte
	Managers  []string
	// Nodes with GPUs each; Name distinguishes two fleets.
	Name        string
	Nodes, GPUs int
	// Dials is how many nodes dial at a time at the beginning; afterwards all do at once, as they lose their leader at once.
	Dials int
}

// fleetState is what a fleet says of itself when it is asked.
type fleetState struct {
	// Open nodes have had a report acknowledged by the leader of Term; Running containers of the last answer, and Lost are those that
	// nobody ordered to end and that are not there.
	Open    int
	Term    uint64
	Running int
	// Started counts containers, Twice devices that were given to a container while another had them.
	Started, Twice int64
	Reports        int64
}

// fleet is a process of simulated nodes, seen from the test.
type fleet struct {
	tb  testing.TB
	in  io.Writer
	out *bufio.Scanner
}

func (c *testCluster) fleet(config fleetConfig) *fleet {
	c.t.Helper()
	text, err := c.authority.Marshal()
	if err != nil {
		c.t.Fatal(err)
	}
	config.Authority = text
	for _, p := range c.peers {
		config.Managers = append(config.Managers, p.GRPC)
	}
	b, err := json.Marshal(config)
	if err != nil {
		c.t.Fatal(err)
	}
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), fleetVariable+"="+string(b), "GOGC=200")
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		in.Close() // the process ends with it
		command.Wait()
	})
	return &fleet{c.t, in, bufio.NewScanner(out)}
}

// beat has the nodes report as often as they should.
func (f *fleet) beat() {
	if _, err := io.WriteString(f.in, "beat\n"); err != nil {
		f.tb.Fatal(err)
	}
}

// state asks the fleet how it is.
func (f *fleet) state() fleetState {
	f.tb.Helper()
	var s fleetState
	if _, err := io.WriteString(f.in, "state\n"); err != nil || !f.out.Scan() {
		f.tb.Fatal("the fleet does not answer: ", err)
	}
	if err := json.Unmarshal(f.out.Bytes(), &s); err != nil {
		f.tb.Fatal(err)
	}
	return s
}

// await waits until the fleet is as wanted.
func (f *fleet) await(what string, within time.Duration, is func(fleetState) bool) fleetState {
	f.tb.Helper()
	said := time.Now()
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		s := f.state()
		if os.Getenv("HOPS_BENCH_TALK") != "" && time.Since(said) > 3*time.Second {
			said = time.Now()
			fmt.Fprintln(os.Stderr, what, s, processorTime())
		}
		if is(s) {
			return s
		}
		if time.Now().After(end) {
			f.tb.Fatalf("waited in vain for %s: %+v", what, s)
		}
	}
}

// fleetProcess is all that the other process does.
func fleetProcess(text string) int {
	var config fleetConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a, err := authority.Parse(config.Authority)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	i, err := a.Self("fleet", []authority.Role{authority.NodeManager}, nil, time.Now())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	m, err := i.Member(time.Now)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	m.Raise(m.Program().Level)
	p := &fleetOfNodes{config: config, key: security.Credentials{Member: m}.Key(authority.ResourceManager), dials: make(chan struct{}, max(config.Dials, 1))}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for n := range config.Nodes {
		node := newFleetNode(p, n)
		p.nodes = append(p.nodes, node)
		wg.Go(func() { node.speak(ctx) })
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "beat" {
			p.beating.Store(true)
			continue
		}
		b, err := json.Marshal(p.state())
		if err != nil {
			return 1
		}
		fmt.Println(string(b))
	}
	return 0
}

type fleetOfNodes struct {
	config         fleetConfig
	key            security.Key
	nodes          []*fleetNode
	dials          chan struct{}
	beating        atomic.Bool // else the nodes report as seldom as they may, so that the others get to connect on a busy machine
	reports        atomic.Int64
	started, twice atomic.Int64
}

func (p *fleetOfNodes) state() fleetState {
	s := fleetState{Started: p.started.Load(), Twice: p.twice.Load(), Reports: p.reports.Load()}
	for _, n := range p.nodes {
		n.mu.Lock()
		switch {
		case n.term > s.Term:
			s.Term, s.Open = n.term, 0
			fallthrough
		case n.term == s.Term:
			if n.open {
				s.Open++
			}
		}
		for _, st := range n.containers {
			if st.State == pb.ContainerStatus_RUNNING {
				s.Running++
			}
		}
		n.mu.Unlock()
	}
	return s
}

// fleetNode is a node manager without processes: what it is told to start runs at once, until it is told to stop.
type fleetNode struct {
	p      *fleetOfNodes
	id     string
	static *pb.NodeReport

	mu         sync.Mutex
	term       uint64
	open       bool
	interval   time.Duration
	containers map[string]*pb.ContainerStatus
	sequence   uint64
	nudge      chan struct{}
}

func newFleetNode(p *fleetOfNodes, number int) *fleetNode {
	n := &fleetNode{p: p, id: fmt.Sprintf("%s-%d:8042", p.config.Name, number), interval: time.Second, containers: map[string]*pb.ContainerStatus{}, nudge: make(chan struct{}, 1)}
	n.static = &pb.NodeReport{
		NodeId: n.id, Incarnation: "5f0c1b7e-8a4d-4a39-9a11-0d8b6f4c2e71", Host: strings.TrimSuffix(n.id, ":8042"), HttpAddress: n.id, Healthy: true,
		Capacity: &pb.Resources{Memory: 512 << 30, Vcores: 96, Gpus: int32(p.config.GPUs)}, Rack: fmt.Sprintf("/row%d/rack%d", number/640, number/32), Version: "0.0.0",
	}
	for i := range p.config.GPUs {
		n.static.Gpus = append(n.static.Gpus, &pb.GPU{
			Uuid: fmt.Sprintf("GPU-%08x-0000-4000-8000-%s-%04x", i, p.config.Name, number), Model: "NVIDIA H100 80GB HBM3", Memory: 80 << 30, Minor: int32(i),
			Pci: fmt.Sprintf("00000000:%02X:00.0", 0x18+i), Island: "0", Health: "HEALTHY",
		})
	}
	return n
}

func (n *fleetNode) speak(ctx context.Context) {
	var conns []*grpc.ClientConn
	for _, address := range n.p.config.Managers {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(n.p.key.Credentials()),
			grpc.WithReadBufferSize(2<<10), // 10,000 in one process
			grpc.WithIdleTimeout(10*time.Second),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: 2 * time.Second,
			}))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	n.p.dials <- struct{}{}
	first := sync.OnceFunc(func() { <-n.p.dials })
	at, failures := 0, 0
	for ctx.Err() == nil { // as nodemanager/server does
		acknowledged, err := n.session(ctx, conns[at], first)
		if acknowledged {
			failures = 0
		}
		failures++
		next := (at + 1) % len(conns)
		if status.Code(err) == codes.FailedPrecondition {
			for i, address := range n.p.config.Managers {
				if i != at && strings.Contains(status.Convert(err).Message(), address) {
					next = i
				}
			}
		}
		at = next
		if failures%len(conns) == 0 {
			pause := min(500*time.Millisecond, 25*time.Millisecond<<min(failures/len(conns), 6))
			time.Sleep(pause/2 + rand.N(pause/2+1))
		}
	}
}

func (n *fleetNode) session(ctx context.Context, conn *grpc.ClientConn, first func()) (acknowledged bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewNodeManagersClient(conn).Session(ctx)
	if err != nil {
		return false, err
	}
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
		n.mu.Lock()
		n.open = false
		n.mu.Unlock()
	}()
	wg.Go(func() {
		defer cancel()
		for {
			var orders *pb.NodeOrders
			if orders, err = stream.Recv(); err != nil {
				return
			}
			first()
			acknowledged = true
			n.obey(orders)
		}
	})
	beat := time.NewTimer(0)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return acknowledged, err
		case <-beat.C:
		case <-n.nudge:
		}
		report, interval := n.report()
		if stream.Send(report) != nil {
			wg.Wait()
			return acknowledged, err
		}
		n.p.reports.Add(1)
		beat.Reset(interval)
	}
}

func (n *fleetNode) report() (*pb.NodeReport, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sequence++
	s := n.static
	r := &pb.NodeReport{
		NodeId: s.NodeId, Incarnation: s.Incarnation, Sequence: n.sequence, Host: s.Host, HttpAddress: s.HttpAddress, Healthy: true, Capacity: s.Capacity,
		Rack: s.Rack, Version: s.Version, Gpus: s.Gpus,
	}
	for _, id := range slices.Sorted(maps.Keys(n.containers)) {
		r.Containers = append(r.Containers, n.containers[id])
	}
	if !n.p.beating.Load() {
		return r, 10 * time.Second
	}
	return r, n.interval
}

func (n *fleetNode) obey(o *pb.NodeOrders) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.term, n.open = o.Term, true
	n.interval = max(time.Second, time.Duration(o.ReportMs)*time.Millisecond)
	for _, s := range o.Stop {
		if c := n.containers[s.ContainerId]; c == nil || c.State != pb.ContainerStatus_COMPLETE {
			n.containers[s.ContainerId] = &pb.ContainerStatus{ContainerId: s.ContainerId, State: pb.ContainerStatus_COMPLETE, ExitStatus: s.ExitStatus}
		}
	}
	for _, s := range o.Start {
		if n.containers[s.ContainerId] != nil {
			continue
		}
		for _, c := range n.containers {
			if c.State == pb.ContainerStatus_RUNNING && slices.ContainsFunc(s.GpuUuids, func(u string) bool { return slices.Contains(c.GpuUuids, u) }) {
				n.p.twice.Add(1)
			}
		}
		n.p.started.Add(1)
		n.containers[s.ContainerId] = &pb.ContainerStatus{
			ContainerId: s.ContainerId, State: pb.ContainerStatus_RUNNING, GpuUuids: s.GpuUuids, StartedMs: time.Now().UnixMilli(), MemoryUsed: 1 << 30, LogDir: "/var/log/hops/" + s.ContainerId,
		}
	}
	for _, id := range o.Cleanup {
		delete(n.containers, id)
	}
	if len(o.Start)+len(o.Stop) > 0 {
		kick(n.nudge)
	}
}
