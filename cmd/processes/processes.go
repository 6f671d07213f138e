// Package processes runs a cluster whose servers are processes of the hops program on this machine, each with its own
// configuration file, log and data directory below one directory. `hops demo` and the tests that kill servers stand on it.
package processes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
)

// Config describes a cluster. Servers are named nn1.., dn1.., rm1.. and nm1...
type Config struct {
	// Binary is the hops program, Dir an existing directory for everything.
	Binary, Dir string
	// Name is the cluster's; it becomes the authority of its filesystem.
	Name string
	// How many of each there are. Where there are node managers, there is one resource manager if not more are asked for.
	Namenodes, Datanodes, ResourceManagers, NodeManagers int
	// GPUs is how many simulated devices each node manager has.
	GPUs int
	// Properties are server settings under Hadoop's names.
	Properties map[string]string
	// Later are servers that StartAll leaves out.
	Later []string
	// Adjust, if not nil, changes one server's configuration before it is written.
	Adjust func(name string, f *config.File)
}

// Cluster is the processes and where they listen. It is safe for concurrent use.
type Cluster struct {
	config Config
	shared config.File
	names  []string // in the order in which they start
	ports  Ports

	mu      sync.Mutex
	servers map[string]*server // the newest process of each name
	binary  string             // that servers are started with
}

// server is one process.
type server struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done
	// expected: it is being ended on purpose.
	expected bool
}

// mark is a variable in the environment of every server. Containers have the directory in theirs by themselves.
const mark = "HOPS_CLUSTER_DIR"

var roles = map[string]string{"nn": "namenode", "dn": "datanode", "rm": "resourcemanager", "nm": "nodemanager"}

// New writes the configuration files of a cluster. Nothing runs yet. Close, or Stop, gives the ports back.
func New(c Config) (*Cluster, error) {
	k := &Cluster{config: c, servers: map[string]*server{}, binary: c.Binary}
	managers := max(c.ResourceManagers, min(c.NodeManagers, 1))
	free, err := k.ports.Take(c.Namenodes*4 + managers*3 + c.Datanodes*4 + c.NodeManagers)
	if err != nil {
		return nil, err
	}
	next := func() string {
		a := free[0]
		free = free[1:]
		return a
	}
	k.shared.Cluster = config.Cluster{Name: c.Name, SecretFile: filepath.Join(c.Dir, "secret"), Identity: filepath.Join(c.Dir, "identity.pem"), Conf: filepath.Join(c.Dir, "conf")}
	k.shared.Properties = c.Properties
	for i := range c.Namenodes {
		k.shared.Namenodes = append(k.shared.Namenodes, config.NamenodeMember{ID: fmt.Sprintf("nn%d", i+1), IPC: next(), HTTP: next(), GRPC: next(), Raft: next()})
	}
	for i := range managers {
		k.shared.ResourceManagers = append(k.shared.ResourceManagers, config.ManagerMember{ID: fmt.Sprintf("rm%d", i+1), HTTP: next(), GRPC: next(), Raft: next()})
	}
	write := func(name string, set func(*config.File)) {
		f := k.shared
		set(&f)
		if c.Adjust != nil {
			c.Adjust(name, &f)
		}
		text, marshalled := yaml.Marshal(f)
		k.names = append(k.names, name)
		err = errors.Join(err, marshalled, os.WriteFile(k.path(name+".yaml"), text, 0o644))
	}
	const reserve = 64 << 20
	for _, n := range k.shared.Namenodes {
		write(n.ID, func(f *config.File) {
			f.Namenode = &config.Namenode{
				ID: n.ID, Data: k.path(n.ID), Reserve: reserve,
				DeadAfter: 10 * time.Second, StaleAfter: 4 * time.Second, Heartbeat: time.Second,
			}
		})
	}
	for _, m := range k.shared.ResourceManagers {
		write(m.ID, func(f *config.File) {
			f.ResourceManager = &config.ResourceManager{ID: m.ID, Data: k.path(m.ID), Lease: 10 * time.Second, Reserve: reserve, Queues: config.DefaultQueues()}
		})
	}
	for i := range c.Datanodes {
		name := fmt.Sprintf("dn%d", i+1)
		write(name, func(f *config.File) {
			f.Datanode = &config.Datanode{
				Volumes:  []config.Volume{{Path: k.path(name), Type: "DISK"}},
				Transfer: next(), HTTP: next(), IPC: next(), GRPC: next(), Reserve: reserve,
			}
		})
	}
	for i := range c.NodeManagers {
		name := fmt.Sprintf("nm%d", i+1)
		gpus := "none"
		if c.GPUs > 0 {
			gpus = k.path(name + "-gpus.yaml")
			err = errors.Join(err, os.WriteFile(gpus, simulatedGPUs(c.Name, i, c.GPUs), 0o644))
		}
		write(name, func(f *config.File) {
			f.NodeManager = &config.NodeManager{Work: k.path(name), HTTP: next(), Memory: 4 << 30, VCores: 8, GPUs: gpus, Isolation: "any"}
		})
	}
	if err != nil {
		return nil, errors.Join(err, k.ports.Close())
	}
	return k, nil
}

// simulatedGPUs describes the devices of a node: all joined by NVLink, and labelled as what they are.
func simulatedGPUs(cluster string, node, n int) []byte {
	uuid := func(g int) string { return fmt.Sprintf("GPU-%s-%d-%d", cluster, node, g) }
	var b strings.Builder
	b.WriteString("gpus:\n")
	for g := range n {
		var links []string
		for other := range n {
			if other != g {
				links = append(links, uuid(other)+": nvlink")
			}
		}
		fmt.Fprintf(&b, "  - {uuid: %s, model: Simulated H100, memory: 80GiB, links: {%s}}\n", uuid(g), strings.Join(links, ", "))
	}
	return []byte(b.String())
}

func (k *Cluster) path(name string) string { return filepath.Join(k.config.Dir, name) }

// File is the part of the configuration that all servers share.
func (k *Cluster) File() *config.File { return &k.shared }

// Server is the configuration of one server.
func (k *Cluster) Server(name string) (*config.File, error) {
	return config.Load(k.path(name + ".yaml"))
}

// Pid is the process of a server that was started.
func (k *Cluster) Pid(name string) int { return k.server(name).cmd.Process.Pid }

// Names are all servers, in the order in which StartAll starts them.
func (k *Cluster) Names() []string { return slices.Clone(k.names) }

// Log is the file with a server's output.
func (k *Cluster) Log(name string) string { return k.path(name + ".log") }

// Conf is the directory that HADOOP_CONF_DIR of clients should name. A starting namenode fills it.
func (k *Cluster) Conf() string { return k.shared.Cluster.Conf }

// Install has servers that are started from now on run another program.
func (k *Cluster) Install(binary string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.binary = binary
}

// Start runs one server that does not run. Its output is appended to its log.
func (k *Cluster) Start(name string) error {
	role, ok := roles[name[:min(2, len(name))]]
	if !ok || !slices.Contains(k.names, name) {
		return fmt.Errorf("there is no server %s", name)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.servers[name]; old != nil {
		select {
		case <-old.done:
		default:
			return fmt.Errorf("%s runs already", name)
		}
	}
	log, err := os.OpenFile(k.Log(name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"server", "--role", role, "-c", k.path(name + ".yaml")}
	if role == "namenode" || role == "resourcemanager" {
		args = append(args, "--bootstrap")
	}
	s := &server{name: name, cmd: exec.Command(k.binary, args...), done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = append(os.Environ(), mark+"="+k.config.Dir+"/")
	if err := Spawn(s.cmd, syscall.SIGTERM); err != nil {
		return err
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	k.servers[name] = s
	return nil
}

// StartAll starts every server but those of Later. They wait for each other by themselves; only the first one makes the cluster's secret and its
// identity, in this order.
func (k *Cluster) StartAll() error {
	for i, name := range k.names {
		if slices.Contains(k.config.Later, name) {
			continue
		}
		if err := k.Start(name); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if err := k.Await(time.Minute, "the cluster's identity", func() error {
			_, err := os.Stat(k.shared.Cluster.Identity)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// Await polls until check is satisfied. It fails at once when a server has ended by itself.
func (k *Cluster) Await(patience time.Duration, what string, check func() error) error {
	deadline := time.Now().Add(patience)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		if died := k.Died(); died != nil {
			return died
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, patience, err)
		}
		time.Sleep(pause)
	}
}

// Died names a server that ended by itself, with the end of its log; nil: there is none.
func (k *Cluster) Died() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.servers {
		select {
		case <-s.done:
			if !s.expected {
				return fmt.Errorf("%s ended by itself (%w); the end of its log:\n%s", s.name, s.err, Tail(k.Log(s.name), 5))
			}
		default:
		}
	}
	return nil
}

// PID is the process of a server, 0 when none was started.
func (k *Cluster) PID(name string) int {
	if s := k.server(name); s != nil {
		return s.cmd.Process.Pid
	}
	return 0
}

// Signal sends a signal to a server. One that ends a process is meant to.
func (k *Cluster) Signal(name string, signal syscall.Signal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.servers[name]
	if s == nil {
		return fmt.Errorf("%s does not run", name)
	}
	if signal == syscall.SIGKILL || signal == syscall.SIGTERM || signal == syscall.SIGINT {
		s.expected = true
	}
	return s.cmd.Process.Signal(signal)
}

// MayEnd says that a server's end by itself is no failure from now on, until it is started again.
func (k *Cluster) MayEnd(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.servers[name]; s != nil {
		s.expected = true
	}
}

// Kill ends servers at once with SIGKILL, as a power cut would end their processes, and returns when they are gone.
func (k *Cluster) Kill(names ...string) error {
	for _, name := range names {
		if err := k.Signal(name, syscall.SIGKILL); err != nil {
			return err
		}
	}
	for _, name := range names {
		<-k.server(name).done
	}
	return nil
}

func (k *Cluster) server(name string) *server {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.servers[name]
}

// Ended is closed when the server's process has ended.
func (k *Cluster) Ended(name string) <-chan struct{} { return k.server(name).done }

// stopTime bounds the end of a server, which on a busy machine waits for its turn again and again.
const stopTime = time.Minute

// Stop ends all servers in an order in which nobody misses another, and reports those that do not end in time.
func (k *Cluster) Stop() error {
	var errs []error
	for _, prefix := range []string{"nm", "rm", "dn", "nn"} {
		var group []string
		for _, name := range k.names {
			if strings.HasPrefix(name, prefix) && k.server(name) != nil {
				group = append(group, name)
				_ = k.Signal(name, syscall.SIGTERM)
			}
		}
		for _, name := range group {
			select {
			case <-k.Ended(name):
			case <-time.After(stopTime):
				errs = append(errs, fmt.Errorf("%s did not stop within %v", name, stopTime), k.Kill(name))
			}
		}
	}
	return errors.Join(append(errs, k.ports.Close())...)
}

// Leftovers are processes of the cluster that still run, servers as well as containers with their children.
func (k *Cluster) Leftovers() []int { return Find(k.config.Dir+"/", "") }

// Gone waits until none of them runs, after Stop: what was being ended when the servers stopped has its time for it. It returns those that are
// left.
func (k *Cluster) Gone(patience time.Duration) []int {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if left := k.Leftovers(); len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}
