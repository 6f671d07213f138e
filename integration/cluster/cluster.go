// Package cluster runs a whole cluster in the process of a test: the servers are those of the program, made by
// cmd/roles, each with a listener of its own on loopback; only the containers are processes, whose supervisor is the
// test's own binary. It is up within a fraction of a second. Faults that need a process to die are in
// integration/process.
package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata/raftstore"
)

// Main runs the tests of a package that starts clusters with node managers: TestMain calls it. In a container it runs
// what the container is for instead.
func Main(m *testing.M) {
	if status, ok := roles.Container(context.Background(), os.Args[1:], os.Stderr); ok {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// Config describes a cluster. Servers are named nn1.., dn1.., rm1 and nm1.
type Config struct {
	// Namenodes is 1 or 3, default 1; Datanodes default 1.
	Namenodes, Datanodes int
	// NodeManager adds a resource manager and a node manager, with GPUs as in hops.yaml (default none).
	NodeManager bool
	GPUs        string
	// Properties are server settings under Hadoop's names. The replication is the number of datanodes, 3 at most, unless
	// they say otherwise.
	Properties map[string]string
	// Apart: the servers and clients take each other for other machines. Jobs are of whom Ask names, and containers, whose processes are
	// not told, take all servers for those of their machine.
	Apart bool
	// Types are those of the volumes of each datanode, directories of these names; default is one volume of type DISK.
	Types []string
	// Disk is what the volumes of datanodes lie on; nil: the machine's file systems.
	Disk vfs.FS
	// Search has the namenodes keep search indexes.
	Search bool
	// SmallFiles has the namenodes keep small files where no directory says anything.
	SmallFiles bool
	// SmallFileDelay is after how long it keeps what was written to datanodes; 0: the default.
	SmallFileDelay time.Duration
	// Simple are networks whose clients are believed (clients.simple).
	Simple []string
	// Executable is the program that containers are started with; default the test's binary, which must call Main.
	Executable string
}

// Cluster is a running cluster. Its methods are for one goroutine at a time.
type Cluster struct {
	// Dir holds everything.
	Dir string

	t       testing.TB
	config  Config
	shared  config.File
	own     map[string]*config.File // by server
	names   []string
	ports   processes.Ports
	log     lockedBuffer
	servers map[string]*server
	// authority of a cluster whose clients are on other machines: it issues users' certificates.
	authority *authority.Authority
}

// server is one running server.
type server struct {
	stop context.CancelFunc
	done chan struct{}
	err  error
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Patience is how long a test waits for what takes less than a second on an idle machine.
const Patience = 60 * time.Second

// Start makes and starts a cluster and waits until files can be written and, with a node manager, jobs be submitted. It
// is stopped at the end of the test; a process that is left then fails the test.
func Start(t testing.TB, c Config) *Cluster {
	t.Helper()
	c.Namenodes, c.Datanodes = max(c.Namenodes, 1), max(c.Datanodes, 1)
	k := &Cluster{t: t, config: c, own: map[string]*config.File{}, servers: map[string]*server{}}
	var err error
	if k.Dir, err = os.MkdirTemp(t.TempDir(), "c"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	if err := k.lay(); err != nil {
		t.Fatal(err)
	}
	if c.Apart {
		k.found()
	}
	for _, name := range k.names {
		k.Start(name)
	}
	k.Ready()
	return k
}

// found makes the cluster's authority, and keeps it: the first namenode takes it into the register, and removes the file.
func (k *Cluster) found() {
	k.t.Helper()
	if err := roles.Found(filepath.Join(k.Dir, "identity.pem"), "test", authority.Roles, []string{"localhost", "127.0.0.1", "::1"}); err != nil {
		k.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(k.Dir, "authority.pem"))
	if err != nil {
		k.t.Fatal(err)
	}
	if k.authority, err = authority.Parse(text); err != nil {
		k.t.Fatal(err)
	}
}

// lay makes the configuration of every server.
func (k *Cluster) lay() error {
	c := k.config
	managers := 0
	if c.NodeManager {
		managers = 1
	}
	free, err := k.ports.Take(c.Namenodes*4 + managers*5 + c.Datanodes*4)
	if err != nil {
		return err
	}
	next := func() string {
		a := free[0]
		free = free[1:]
		if c.Apart {
			a = strings.Replace(a, "127.0.0.1:", apart+":", 1)
		}
		return a
	}
	properties := map[string]string{"dfs.replication": fmt.Sprint(min(c.Datanodes, 3))}
	for name, value := range c.Properties {
		properties[name] = value
	}
	k.shared = config.File{
		Cluster:    config.Cluster{Name: "test", SecretFile: filepath.Join(k.Dir, "secret"), Conf: filepath.Join(k.Dir, "conf")},
		Properties: properties, Clients: config.Clients{Simple: c.Simple},
	}
	for i := range c.Namenodes {
		k.shared.Namenodes = append(k.shared.Namenodes, config.NamenodeMember{ID: fmt.Sprintf("nn%d", i+1), IPC: next(), HTTP: next(), GRPC: next(), Raft: next()})
	}
	for range managers {
		k.shared.ResourceManagers = append(k.shared.ResourceManagers, config.ManagerMember{ID: "rm1", HTTP: next(), GRPC: next(), Raft: next(), IPC: next()})
	}
	var errs []error
	add := func(name string, set func(f *config.File, dir string)) {
		f := k.shared
		set(&f, filepath.Join(k.Dir, name))
		errs = append(errs, f.Validate())
		k.own[name] = &f
		k.names = append(k.names, name)
	}
	const reserve = 1 << 20
	for _, n := range k.shared.Namenodes {
		add(n.ID, func(f *config.File, dir string) {
			f.Namenode = &config.Namenode{ID: n.ID, Data: dir, Reserve: reserve, Heartbeat: time.Second, StaleAfter: 4 * time.Second, DeadAfter: 10 * time.Second, Search: c.Search, SmallFiles: &c.SmallFiles}
			if c.SmallFileDelay > 0 {
				f.Namenode.SmallFileDelay = &c.SmallFileDelay
			}
		})
	}
	for i := range c.Datanodes {
		add(fmt.Sprintf("dn%d", i+1), func(f *config.File, dir string) {
			volumes := []config.Volume{{Path: dir, Type: "DISK"}}
			if len(c.Types) > 0 {
				volumes = nil
			}
			for _, kind := range c.Types {
				volumes = append(volumes, config.Volume{Path: filepath.Join(dir, kind), Type: kind})
			}
			f.Datanode = &config.Datanode{Volumes: volumes, Transfer: next(), HTTP: next(), IPC: next(), GRPC: next(), Reserve: reserve}
		})
	}
	for range managers {
		add("rm1", func(f *config.File, dir string) {
			f.ResourceManager = &config.ResourceManager{ID: "rm1", Data: dir, Reserve: reserve, Lease: 30 * time.Second}
			if c.Apart { // whoever has a certificate
				f.ResourceManager.Queues = config.Queues{"root": {ACLSubmit: []string{"*"}, Children: config.Queues{"default": {Capacity: "100%", ACLSubmit: []string{"*"}}}}}
			}
		})
		add("nm1", func(f *config.File, dir string) {
			f.NodeManager = &config.NodeManager{Work: dir, HTTP: next(), Memory: 4 << 30, VCores: 8, GPUs: c.GPUs, Isolation: "any"}
			if f.NodeManager.GPUs == "" {
				f.NodeManager.GPUs = "none"
			}
		})
	}
	return errors.Join(errs...)
}

// apart is where servers listen that are on machines of their own: connections to it come from 127.0.0.1.
const apart = "127.9.0.1"

// here is what servers and clients take for their own machine.
func (k *Cluster) here() func(remote, local netip.Addr) bool {
	if !k.config.Apart {
		return nil
	}
	return func(remote, local netip.Addr) bool { return remote == local }
}

// self is who runs the test.
func (k *Cluster) self() string {
	who, err := user.Current()
	if err != nil {
		k.t.Fatal(err)
	}
	return who.Username
}

// Dialer is of a client on a machine of its own that shows a user's certificate; an empty name: none.
func (k *Cluster) Dialer(name string) *security.Dialer {
	k.t.Helper()
	a := k.authority
	trust := &authority.Trust{Cluster: a.Cluster(), Roots: []*x509.Certificate{a.Root()}}
	if name == "" {
		return &security.Dialer{Trust: trust, Here: k.here()}
	}
	key, err := authority.NewKey()
	if err != nil {
		k.t.Fatal(err)
	}
	request, err := authority.Request(key)
	if err != nil {
		k.t.Fatal(err)
	}
	der, err := a.Issue(request, authority.Name{User: name}, nil, time.Now(), time.Hour)
	if err != nil {
		k.t.Fatal(err)
	}
	m, err := authority.NewMember(authority.Config{Key: key, Certificate: der, Trust: trust, Now: time.Now})
	if err != nil {
		k.t.Fatal(err)
	}
	return &security.Dialer{Member: m, Here: k.here()}
}

// FS is a client of the filesystem that acts for a user and connects by a dialer.
func (k *Cluster) FS(user string, d *security.Dialer) *dfs.Client {
	k.t.Helper()
	c, err := dfs.New(dfs.Config{
		Namenodes: k.namenodes(), User: user, DomainSocket: k.config.Properties[config.SocketProperty], Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, role, addr string) (net.Conn, error) {
			return d.Dial(ctx, addr, authority.Role(role))
		},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { c.Close() })
	return c
}

// Start starts a server that does not run.
func (k *Cluster) Start(name string) {
	k.t.Helper()
	if err := k.start(name); err != nil {
		k.t.Fatalf("%s: %v", name, err)
	}
}

func (k *Cluster) start(name string) error {
	f := k.own[name]
	if f == nil || k.servers[name] != nil {
		return errors.New("there is no such server, or it runs")
	}
	executable := k.config.Executable
	if executable == "" {
		var err error
		if executable, err = os.Executable(); err != nil {
			return err
		}
	}
	logger := slog.New(slog.NewTextHandler(&k.log, nil)).With("server", name)
	b, err := roles.NewAt(f, true, executable, "test", logger, k.here())
	if err != nil {
		return err
	}
	// Who votes alone elects itself at once. Among several a member that gets no processor for a while must not lose its office
	// all the time.
	patience := 50 * time.Millisecond
	if k.config.Namenodes > 1 {
		patience = time.Second
	}
	b.Disk = k.config.Disk
	b.Timers = raftstore.Timers{Heartbeat: patience, Election: patience}
	role := map[string]func() ([]program.Part, error){"nn": b.Namenode, "dn": b.Datanode, "rm": b.ResourceManager, "nm": b.NodeManager}[name[:2]]
	parts, err := role()
	if err != nil {
		return err
	}
	p := program.Program{Logger: logger, StopTimeout: Patience} // what is left behind has ports and files that the next start needs
	p.Add(b.Membership()...)
	p.Add(parts...)
	ctx, stop := context.WithCancel(context.Background())
	s := &server{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = p.Run(ctx, nil)
	}()
	k.servers[name] = s
	return nil
}

// Stop ends a server, as SIGTERM does, and returns when it is gone.
func (k *Cluster) Stop(name string) {
	k.t.Helper()
	s := k.servers[name]
	if s == nil {
		k.t.Fatalf("%s does not run", name)
	}
	delete(k.servers, name)
	s.stop()
	select {
	case <-s.done:
		if s.err != nil {
			k.t.Errorf("%s: %v", name, s.err)
		}
	case <-time.After(Patience):
		k.t.Errorf("%s does not stop", name)
	}
}

// close ends everything, once the containers of jobs that have ended are gone.
func (k *Cluster) close() {
	if k.servers["nm1"] != nil && !k.t.Failed() {
		for deadline := time.Now().Add(Patience); len(processes.Find(k.Dir+"/", "")) > 0 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for i := len(k.names) - 1; i >= 0; i-- {
		if k.servers[k.names[i]] != nil {
			k.Stop(k.names[i])
		}
	}
	for _, pid := range processes.Find(k.Dir+"/", "") {
		if !k.t.Failed() && k.config.NodeManager { // node managers leave containers to their successor; the test is to end them
			k.t.Errorf("process %d is left: %s", pid, processes.Command(pid))
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := k.ports.Close(); err != nil {
		k.t.Error(err)
	}
	if k.t.Failed() {
		k.log.mu.Lock()
		defer k.log.mu.Unlock()
		text := k.log.text.Bytes()
		k.t.Logf("the end of the servers' log:\n%s", text[max(0, len(text)-20000):])
	}
}

// Conf is the directory that HADOOP_CONF_DIR of clients should name.
func (k *Cluster) Conf() string { return k.shared.Cluster.Conf }

// File is the part of the configuration that all servers share.
func (k *Cluster) File() *config.File { return &k.shared }

// Server is the configuration of one server.
func (k *Cluster) Server(name string) *config.File { return k.own[name] }

// Client is a client for a user; empty: who runs the test. It is closed with the test.
func (k *Cluster) Client(user string) *client.Client {
	k.t.Helper()
	fs := &dfs.Config{Namenodes: k.namenodes(), User: user, DomainSocket: k.config.Properties[config.SocketProperty], Logger: slog.New(slog.DiscardHandler)}
	if k.config.Apart {
		d := k.Dialer(cmp.Or(user, k.self()))
		fs.Dial = func(ctx context.Context, role, addr string) (net.Conn, error) {
			return d.Dial(ctx, addr, authority.Role(role))
		}
	}
	c, err := client.New(client.Config{FS: fs, ResourceManagers: k.managers(), User: user})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { c.Close() })
	return c
}

func (k *Cluster) namenodes() []string {
	var out []string
	for _, n := range k.shared.Namenodes {
		out = append(out, n.IPC)
	}
	return out
}

func (k *Cluster) managers() []string {
	var out []string
	for _, m := range k.shared.ResourceManagers {
		out = append(out, m.HTTP)
	}
	if out == nil { // a client is made all the same; it finds nobody
		out = []string{"127.0.0.1:1"}
	}
	return out
}

// Ready waits until every server that runs is there.
func (k *Cluster) Ready() {
	k.t.Helper()
	datanodes := 0
	for name := range k.servers {
		if name[:2] == "dn" {
			datanodes++
		}
	}
	c := k.Client("")
	if k.config.Apart && k.servers["nm1"] != nil {
		defer k.Await("the resource manager", func(ctx context.Context) error {
			var answer struct{ Nodes struct{ Node []any } }
			if err := k.Ask(ctx, k.self(), http.MethodGet, "/ws/v1/cluster/nodes", nil, &answer); err != nil {
				return err
			}
			if len(answer.Nodes.Node) == 0 {
				return errors.New("the node manager is not there")
			}
			return nil
		})
	}
	k.Await("the filesystem", func(ctx context.Context) error {
		_, err := c.FS().Stat(ctx, "/tmp")
		return err
	})
	// Another namenode may lead at any time, and a leader whom no datanode knows has nowhere to write to.
	for _, n := range k.shared.Namenodes {
		if k.servers[n.ID] == nil {
			continue
		}
		k.Await("the datanodes at "+n.ID, func(ctx context.Context) error {
			live, err := k.liveDatanodes(ctx, n.HTTP)
			if err == nil && live < datanodes {
				err = fmt.Errorf("%d of %d datanodes have registered", live, datanodes)
			}
			return err
		})
	}
	if k.servers["nm1"] == nil || k.config.Apart {
		return
	}
	k.Await("the resource manager", func(ctx context.Context) error {
		nodes, err := c.Jobs().Nodes(ctx)
		if err == nil && len(nodes) == 0 {
			err = errors.New("the node manager is not there")
		}
		return err
	})
}

// Ask sends a request to the resource manager of a cluster that is Apart, with the certificate of a user.
func (k *Cluster) Ask(ctx context.Context, user, method, path string, body, into any) error {
	var in bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&in).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+k.managers()[0]+path, &in)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	transport := k.Dialer(user).Transport(authority.ResourceManager)
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return fmt.Errorf("%s: %s", answer.Status, text)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// liveDatanodes is how many live datanodes a namenode knows.
func (k *Cluster) liveDatanodes(ctx context.Context, namenode string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+namenode+"/health", nil)
	if err != nil {
		return 0, err
	}
	transport := http.DefaultTransport
	if k.config.Apart {
		t := k.Dialer("").Transport(authority.Namenode)
		defer t.CloseIdleConnections()
		transport = t
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var health struct {
		Live int `json:"live_datanodes"`
	}
	return health.Live, json.NewDecoder(answer.Body).Decode(&health)
}

// Leader is the namenode that leads, waited for.
func (k *Cluster) Leader() string {
	k.t.Helper()
	leader := ""
	c := k.Client("")
	k.Await("a leader", func(ctx context.Context) error {
		for _, s := range c.FS().HAState(ctx) {
			for _, n := range k.shared.Namenodes {
				if s.State == "active" && s.Address == n.IPC {
					leader = n.ID
					return nil
				}
			}
		}
		return errors.New("no namenode leads")
	})
	return leader
}

// MakeHome makes the home of a user. The namenode may not have made /user yet.
func (k *Cluster) MakeHome(ctx context.Context, super *dfs.Client, user string) {
	k.t.Helper()
	home := "/user/" + user
	err := super.Mkdirs(ctx, "/user", 0o755, true)
	if err == nil {
		err = super.Mkdirs(ctx, home, 0o700, true)
	}
	if err == nil {
		err = super.SetOwner(ctx, home, user, user)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// HandOver has another namenode lead. On a busy machine that may take longer than an election may, and is said to have failed then.
func (k *Cluster) HandOver(fs *dfs.Client) {
	k.t.Helper()
	k.Await("another namenode leads", func(ctx context.Context) error { return fs.TransferLeadership(ctx, "") })
}

// Await polls until check returns nil. It fails the test when that does not come, or when a server has ended by itself.
func (k *Cluster) Await(what string, check func(context.Context) error) {
	k.t.Helper()
	deadline := time.Now().Add(Patience)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := check(ctx)
		cancel()
		if err == nil {
			return
		}
		for name, s := range k.servers {
			select {
			case <-s.done:
				k.t.Fatalf("%s has ended: %v", name, s.err)
			default:
			}
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: not within %v: %v", what, Patience, err)
		}
		time.Sleep(pause)
	}
}
