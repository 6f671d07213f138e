package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/gohops/hops/internal/config"
)

// The cluster of the demo: each server a process of its own.
const (
	namenodes    = 3
	datanodes    = 4
	nodeManagers = 2
	gpusPerNode  = 2
	blockSize    = 1 << 20
)

// cluster is the processes and where they listen.
type cluster struct {
	binary, dir string
	log         *os.File
	file        config.File // what all share
	servers     []*server

	mu sync.Mutex
}

// server is one process.
type server struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
	// killed by the demo: its end is no failure.
	killed bool
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// ports reserves n free ports of loopback. They are freed before the servers take them.
func ports(n int) ([]string, error) {
	var out []string
	var open []net.Listener
	defer func() {
		for _, l := range open {
			l.Close()
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		open = append(open, l)
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// newCluster lays out the configuration. Nothing runs yet.
func newCluster(binary, dir string) (*cluster, error) {
	free, err := ports(namenodes*4 + 3 + datanodes*4 + nodeManagers)
	if err != nil {
		return nil, err
	}
	next := func() string {
		a := free[0]
		free = free[1:]
		return a
	}
	c := &cluster{binary: binary, dir: dir}
	c.file.Cluster = config.Cluster{Name: "demo", SecretFile: filepath.Join(dir, "secret"), Conf: filepath.Join(dir, "conf")}
	for i := range namenodes {
		c.file.Namenodes = append(c.file.Namenodes, config.NamenodeMember{
			ID: fmt.Sprintf("nn%d", i+1), IPC: next(), HTTP: next(), GRPC: next(), Raft: next(),
		})
	}
	c.file.ResourceManagers = []config.ManagerMember{{ID: "rm1", HTTP: next(), GRPC: next(), Raft: next()}}
	c.file.Properties = map[string]string{"dfs.replication": "3", "dfs.blocksize": fmt.Sprint(blockSize)}
	for i := range namenodes {
		f := c.file
		f.Namenode = &config.Namenode{
			ID: fmt.Sprintf("nn%d", i+1), Data: filepath.Join(dir, fmt.Sprintf("nn%d", i+1)),
			DeadAfter: 10 * time.Second, StaleAfter: 4 * time.Second, Heartbeat: time.Second, Reserve: 64 << 20,
		}
		if err := c.write(f, fmt.Sprintf("nn%d", i+1)); err != nil {
			return nil, err
		}
	}
	for i := range datanodes {
		f := c.file
		name := fmt.Sprintf("dn%d", i+1)
		f.Datanode = &config.Datanode{
			Volumes:  []config.Volume{{Path: filepath.Join(dir, name), Type: "DISK"}},
			Transfer: next(), HTTP: next(), IPC: next(), GRPC: next(), Reserve: 64 << 20,
		}
		if err := c.write(f, name); err != nil {
			return nil, err
		}
	}
	f := c.file
	f.ResourceManager = &config.ResourceManager{ID: "rm1", Data: filepath.Join(dir, "rm1"), Lease: 10 * time.Second, Reserve: 64 << 20, Queues: config.DefaultQueues()}
	if err := c.write(f, "rm1"); err != nil {
		return nil, err
	}
	for i := range nodeManagers {
		f := c.file
		name := fmt.Sprintf("nm%d", i+1)
		gpus := filepath.Join(dir, name+"-gpus.yaml")
		if err := os.WriteFile(gpus, []byte(simulatedGPUs(i)), 0o644); err != nil {
			return nil, err
		}
		f.NodeManager = &config.NodeManager{
			Work: filepath.Join(dir, name), HTTP: next(), Memory: 4 << 30, VCores: 8, GPUs: gpus, Lease: 10 * time.Second,
		}
		if err := c.write(f, name); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// simulatedGPUs describes the devices of node i: two, joined by NVLink, and labelled as what they are.
func simulatedGPUs(i int) string {
	var b strings.Builder
	b.WriteString("gpus:\n")
	for g := range gpusPerNode {
		other := fmt.Sprintf("GPU-demo-%d-%d", i, 1-g)
		fmt.Fprintf(&b, "  - {uuid: GPU-demo-%d-%d, model: Simulated H100, memory: 80GiB, links: {%s: nvlink}}\n", i, g, other)
	}
	return b.String()
}

func (c *cluster) write(f config.File, name string) error {
	text, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, name+".yaml"), text, 0o644)
}

// start runs one server. Its output goes to a log file.
func (c *cluster) start(name, role string, more ...string) (*server, error) {
	s := &server{name: name, log: filepath.Join(c.dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(s.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(c.binary, append([]string{"server", "--role", role, "-c", filepath.Join(c.dir, name+".yaml")}, more...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = append(os.Environ(), marker+"="+c.dir)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	c.mu.Lock()
	c.servers = append(c.servers, s)
	c.mu.Unlock()
	return s, nil
}

// startAll starts every server. They wait for each other by themselves.
func (c *cluster) startAll() error {
	for i := range namenodes {
		if _, err := c.start(fmt.Sprintf("nn%d", i+1), "namenode", "--bootstrap"); err != nil {
			return err
		}
		if i == 0 { // it makes the secret
			if err := c.await(5*time.Second, "the cluster's secret", func() error {
				_, err := os.Stat(c.file.Cluster.SecretFile)
				return err
			}); err != nil {
				return err
			}
		}
	}
	if _, err := c.start("rm1", "resourcemanager", "--bootstrap"); err != nil {
		return err
	}
	for i := range datanodes {
		if _, err := c.start(fmt.Sprintf("dn%d", i+1), "datanode"); err != nil {
			return err
		}
	}
	for i := range nodeManagers {
		if _, err := c.start(fmt.Sprintf("nm%d", i+1), "nodemanager"); err != nil {
			return err
		}
	}
	return nil
}

// await polls until check is satisfied. It fails at once when a server that nobody killed has ended.
func (c *cluster) await(patience time.Duration, what string, check func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if died := c.died(); died != nil {
			return died
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// died names a server that ended by itself, with the end of its log.
func (c *cluster) died() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		select {
		case <-s.done:
			if !s.killed {
				return fmt.Errorf("%s ended by itself (%v); the end of its log:\n%s", s.name, s.err, lastLines(s.log, 5))
			}
		default:
		}
	}
	return nil
}

func (c *cluster) server(name string) *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		if s.name == name {
			return s
		}
	}
	return nil
}

// kill ends a server as a power cut would end its process.
func (c *cluster) kill(name string) error {
	s := c.server(name)
	if s == nil {
		return fmt.Errorf("there is no server %s", name)
	}
	c.mu.Lock()
	s.killed = true
	c.mu.Unlock()
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	<-s.done
	return nil
}

// stop ends all servers in an order in which nobody misses another, and reports those that do not end in time.
func (c *cluster) stop() error {
	var errs []error
	for _, prefix := range []string{"nm", "rm", "dn", "nn"} {
		c.mu.Lock()
		var group []*server
		for _, s := range c.servers {
			if strings.HasPrefix(s.name, prefix) {
				s.killed = true
				group = append(group, s)
			}
		}
		c.mu.Unlock()
		for _, s := range group {
			_ = s.cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, s := range group {
			select {
			case <-s.done:
			case <-time.After(10 * time.Second):
				errs = append(errs, fmt.Errorf("%s did not stop within 10s", s.name))
				_ = s.cmd.Process.Kill()
				<-s.done
			}
		}
	}
	return errors.Join(errs...)
}

// marker is in the environment of every process of the demo, containers included, by which leftovers are found.
const marker = "HOPS_DEMO"

// leftovers are processes of the demo that still run.
func (c *cluster) leftovers() []int {
	return processesWith(marker+"="+c.dir, "")
}

// processesWith finds processes by a line of their environment and a part of their command line.
func processesWith(environment, command string) []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid := 0
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !strings.Contains("\x00"+string(env), "\x00"+environment+"\x00") {
			continue
		}
		if command != "" {
			line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			if err != nil || !strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), command) {
				continue
			}
		}
		if state, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat")); err == nil {
			if i := strings.LastIndexByte(string(state), ')'); i >= 0 && strings.HasPrefix(string(state[i+1:]), " Z") {
				continue
			}
		}
		found = append(found, pid)
	}
	return found
}

func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
