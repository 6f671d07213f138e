package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
)

// cluster is a namenode, datanodes, a resource manager and node managers with simulated GPUs, each a process of its own.
type cluster struct {
	binary, dir, conf string
	uri               string
	rm                string // host:port of the resource manager's HTTP
	ports             processes.Ports
	parts             []*exec.Cmd
}

const (
	datanodes = 2
	// One: executors on the same host read each other's files, and two node managers of one machine hide them.
	nodeManagers = 1
)

func startCluster(ctx context.Context, binary, dir string) (c *cluster, err error) {
	c = &cluster{binary: binary, dir: dir, conf: filepath.Join(dir, "conf")}
	addrs, err := c.ports.Take(40)
	if err != nil {
		return nil, err
	}
	next := func() string {
		a := addrs[0]
		addrs = addrs[1:]
		return a
	}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	shared := config.File{
		Cluster:          config.Cluster{Name: "spark", SecretFile: filepath.Join(dir, "secret"), Identity: filepath.Join(dir, "identity.pem"), Conf: c.conf},
		Namenodes:        []config.NamenodeMember{{ID: "nn1", IPC: next(), HTTP: next(), GRPC: next(), Raft: next()}},
		ResourceManagers: []config.ManagerMember{{ID: "rm1", HTTP: next(), GRPC: next(), Raft: next(), IPC: next()}},
		Properties:       map[string]string{"dfs.replication": "2", "dfs.blocksize": "32m"},
	}
	c.uri, c.rm = roles.FSURI(&shared), shared.ResourceManagers[0].HTTP
	start := func(name, role string, f config.File, more ...string) {
		path := filepath.Join(dir, name+".yaml")
		text, yamlErr := yaml.Marshal(f)
		if err == nil {
			err = yamlErr
		}
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err == nil {
			err = c.start(name, append([]string{"server", "--role", role, "-c", path}, more...)...)
		}
	}
	f := shared
	f.Namenode = &config.Namenode{ID: "nn1", Data: filepath.Join(dir, "nn"), Heartbeat: time.Second, DeadAfter: 30 * time.Second, Reserve: 64 << 20}
	start("namenode", "namenode", f, "--bootstrap")
	if err == nil {
		err = await(ctx, "the cluster has an identity", func() error { _, err := os.Stat(shared.Cluster.Identity); return err })
	}
	for i := range datanodes {
		f := shared
		f.Datanode = &config.Datanode{
			Volumes:  []config.Volume{{Path: filepath.Join(dir, fmt.Sprintf("dn%d", i+1)), Type: "DISK"}},
			Transfer: next(), HTTP: next(), IPC: next(), GRPC: next(), Reserve: 64 << 20,
		}
		start(fmt.Sprintf("datanode%d", i+1), "datanode", f)
	}
	f = shared
	f.ResourceManager = &config.ResourceManager{ID: "rm1", Data: filepath.Join(dir, "rm"), Queues: config.DefaultQueues()}
	start("resourcemanager", "resourcemanager", f, "--bootstrap")
	for i := range nodeManagers {
		f := shared
		f.NodeManager = &config.NodeManager{
			Work: filepath.Join(dir, fmt.Sprintf("nm%d", i+1)), HTTP: next(), IPC: next(), Memory: 12 << 30, VCores: 12, GPUs: "sim:2",
		}
		start(fmt.Sprintf("nodemanager%d", i+1), "nodemanager", f)
	}
	if err == nil {
		err = shared.Validate()
	}
	if err == nil {
		err = roles.WriteConf(c.conf, &shared, nil)
	}
	if err == nil {
		err = await(ctx, "the node managers are there", func() error {
			out, err := c.hops(ctx, "node", "-list")
			if n := strings.Count(out, "RUNNING"); err == nil && n < nodeManagers {
				err = fmt.Errorf("%d of %d run", n, nodeManagers)
			}
			return err
		})
	}
	return c, err
}

// start runs a server whose output goes into a file. It ends with this program.
func (c *cluster) start(name string, args ...string) error {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.binary, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, c.dir
	if err := processes.Spawn(cmd, syscall.SIGKILL); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.parts = append(c.parts, cmd)
	return nil
}

// stop ends the servers, those last that others need, and what runs on them.
func (c *cluster) stop() {
	for i := len(c.parts) - 1; i >= 0; i-- {
		p := c.parts[i]
		_ = p.Process.Signal(syscall.SIGTERM)
		killed := time.AfterFunc(15*time.Second, func() { _ = p.Process.Kill() })
		_ = p.Wait()
		killed.Stop()
	}
	c.parts = nil
	_ = c.ports.Close()
	for _, pid := range processes.Find("NM_HOST=127.0.0.1", c.dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// hops runs a command of the program and returns what it printed.
func (c *cluster) hops(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.binary, args...)
	cmd.Env = append(os.Environ(), "HADOOP_CONF_DIR="+c.conf)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("hops %s: %w: %s", strings.Join(args, " "), err, lastLines(string(out), 5))
	}
	return string(out), err
}

// get is the resource manager's REST.
func (c *cluster) get(ctx context.Context, path string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.rm+path, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(q)
}

// await tries until it succeeds, a minute and a half at most.
func await(ctx context.Context, what string, try func() error) error {
	deadline := time.Now().Add(90 * time.Second)
	for {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("in vain waited until %s: %w", what, err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
