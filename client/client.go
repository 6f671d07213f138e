// Package client is the Go library of a hops cluster: files, jobs and experiments.
//
//	c, err := client.New(client.Config{})        // finds the cluster as the hops command does
//	defer c.Close()
//	err = c.FS().WriteFile(ctx, "/user/ann/hello", []byte("hello"), false)
//	id, err := c.Jobs().Submit(ctx, client.Job{Name: "hello", Argv: []string{"echo", "hello"}}, "")
//	job, err := c.Jobs().Wait(ctx, id, nil)
//
// The filesystem part, client/dfs, also works on stock HDFS 3. Everything else speaks the public REST interface of the
// resource manager, docs/reference/rest.md.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
)

// Config says where a cluster is. The zero value asks $HOPS_LOGIN, else HADOOP_CONF_DIR (core-site.xml, hdfs-site.xml and
// yarn-site.xml), else the login of the process's user (`hops login`), else the configuration of this machine's servers
// (/etc/hops/conf). In a container it asks what the container was given.
type Config struct {
	// ConfDir is read in place of HADOOP_CONF_DIR.
	ConfDir string
	// ResourceManagers are http addresses; default HOPS_RM, then yarn-site.xml.
	ResourceManagers []string
	// FS describes the filesystem; default what core-site.xml says.
	FS *dfs.Config
	// User acts; default HADOOP_USER_NAME, else the user of the process.
	User string
	// Logger is told what the filesystem's client does beside answering; default slog.Default().
	Logger *slog.Logger
	// Waiting, if not nil, is called when a call has been waiting for a server for a second and goes on waiting, with the
	// reason. It must not block.
	Waiting func(why error)
}

// Client is a client of one cluster. It is safe for concurrent use.
type Client struct {
	fs    *dfs.Client
	noFS  error
	rest  *rest
	jobs  *Jobs
	study *Experiments
}

// New makes a client. Nothing is connected to before it is used.
func New(config Config) (*Client, error) {
	dir := config.ConfDir
	if dir == "" {
		dir = os.Getenv("HADOOP_CONF_DIR")
	}
	var own *login.File
	if config.ConfDir == "" && config.FS == nil && len(config.ResourceManagers) == 0 {
		var err error
		if own, err = login.Chosen(); err != nil {
			return nil, err
		}
	}
	if dir == "" && own == nil && config.FS == nil && len(config.ResourceManagers) == 0 {
		if _, err := os.Stat(filepath.Join(machineConf, "core-site.xml")); err == nil {
			dir = machineConf
		}
	}
	conf := &dfs.HadoopConf{Properties: map[string]string{}}
	yarn := map[string]string{}
	if dir != "" {
		var err error
		if conf, err = dfs.LoadHadoopConf(dir); err != nil {
			return nil, err
		}
		if yarn, err = yarnSite(dir); err != nil {
			return nil, err
		}
	}
	c := &Client{}
	if own != nil {
		if err := own.Expired(time.Now()); err != nil {
			return nil, err
		}
		config.FS = FilesOf(own)
	}
	fs := config.FS
	if fs == nil && conf.DefaultFS() != "" {
		location, err := conf.LocateAs("/", config.User)
		if err != nil {
			return nil, err
		}
		fs = &location.Config
	}
	if fs == nil {
		c.noFS = errors.New("no filesystem is configured: set HADOOP_CONF_DIR, or start a cluster with `hops dev`")
		fs = &dfs.Config{Namenodes: []string{"127.0.0.1:8020"}, User: config.User}
	}
	if config.User != "" {
		fs.User = config.User
	}
	if config.Logger != nil {
		fs.Logger = config.Logger
	}
	if config.Waiting != nil {
		fs.Waiting = config.Waiting
	}
	var err error
	if c.fs, err = dfs.New(*fs); err != nil {
		return nil, err
	}
	if own != nil {
		c.rest = loginREST(own, c.fs.User(), config.Waiting)
		c.jobs, c.study = &Jobs{c.rest}, &Experiments{c}
		return c, nil
	}
	managers := slices.Clone(config.ResourceManagers)
	if len(managers) == 0 {
		managers = splitAddresses(os.Getenv("HOPS_RM"))
	}
	if len(managers) == 0 || len(config.ResourceManagers) == 0 && login.InContainer() { // whose environment is as old as it is
		for _, name := range slices.Sorted(maps.Keys(yarn)) {
			if strings.HasPrefix(name, "yarn.resourcemanager.webapp.address") {
				managers = append(managers, splitAddresses(yarn[name])...)
			}
		}
	}
	for i, m := range managers {
		if !strings.Contains(m, "://") {
			managers[i] = "http://" + m
		}
		if u, err := url.Parse(managers[i]); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("resource manager %q is not an http address", m)
		}
	}
	managers = distinct(managers)
	dialer, err := login.Dialer(fs.Roots, nil)
	if err != nil {
		return nil, err
	}
	c.rest = newREST(managers, c.fs.User(), dialer, config.Waiting)
	if err := c.rest.sign(); err != nil {
		return nil, err
	}
	c.jobs = &Jobs{c.rest}
	c.study = &Experiments{c}
	return c, nil
}

// Close ends the client's connections.
func (c *Client) Close() error {
	c.rest.http.CloseIdleConnections()
	c.rest.proxied.CloseIdleConnections()
	c.rest.nodes.CloseIdleConnections()
	return c.fs.Close()
}

// User is who acts.
func (c *Client) User() string { return c.fs.User() }

// FS is the cluster's filesystem.
func (c *Client) FS() *dfs.Client { return c.fs }

// HasFS returns nil if a filesystem is configured, else why there is none.
func (c *Client) HasFS() error { return c.noFS }

// Jobs are the cluster's jobs.
func (c *Client) Jobs() *Jobs { return c.jobs }

// Experiments are the searches among them.
func (c *Client) Experiments() *Experiments { return c.study }

// ResourceManagers are the addresses in use.
func (c *Client) ResourceManagers() []string { return slices.Clone(c.rest.addresses) }

// FilesOf is the configuration of the filesystem of a login's cluster: its user acts, unless HADOOP_USER_NAME names another one,
// for whom that user then acts as a proxy.
func FilesOf(own *login.File) *dfs.Config {
	return &dfs.Config{
		Namenodes: own.IPC(), User: cmp.Or(os.Getenv("HADOOP_USER_NAME"), own.User), Bearer: func() string { return own.Token },
		Dial: func(ctx context.Context, role, addr string) (net.Conn, error) {
			return own.Dial(ctx, addr, authority.Role(role))
		},
	}
}

// distinct leaves out what stood before.
func distinct(list []string) (out []string) {
	for _, a := range list {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// machineConf is what is read where nothing else says which cluster; tests change it.
var machineConf = dfs.MachineConf

func splitAddresses(text string) []string {
	var out []string
	for a := range strings.SplitSeq(text, ",") {
		if a = strings.TrimRight(strings.TrimSpace(a), "/"); a != "" {
			out = append(out, a)
		}
	}
	return out
}

// yarnSite reads yarn-site.xml of a configuration directory.
func yarnSite(dir string) (map[string]string, error) {
	c := &dfs.HadoopConf{Properties: map[string]string{}}
	if err := c.LoadFile(dir + "/yarn-site.xml"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return c.Properties, nil
}
