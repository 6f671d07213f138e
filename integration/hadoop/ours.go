package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/sasl"
)

// startOurs starts a hops cluster in dir, with more properties than settings: one process a server.
func startOurs(ctx context.Context, binary, dir string, namenodes int, more ...[2]string) (*cluster, error) {
	return startOursOn(ctx, binary, dir, namenodes, special{}, more...)
}

// special is what is otherwise about a cluster.
type special struct {
	// types are those of the volumes of each datanode; none: one of type DISK.
	types []string
	// socket is the path of the datanodes' Unix-domain sockets; empty: there are none.
	socket string
	// smallFileDelay is after how long short files are kept by the namenodes; 0: the default.
	smallFileDelay time.Duration
}

// startOursOn starts one that is otherwise.
func startOursOn(ctx context.Context, binary, dir string, namenodes int, o special, more ...[2]string) (*cluster, error) {
	types, socket := o.types, o.socket
	if types == nil {
		types = []string{"DISK"}
	}
	free, err := freePorts(4*namenodes + 4*datanodes)
	if err != nil {
		return nil, err
	}
	next := taken(free)
	c := &cluster{name: "hops", stores: map[string]string{}, conf: filepath.Join(dir, "conf")}
	if err := os.MkdirAll(c.conf, 0o755); err != nil {
		return nil, err
	}
	if len(more) > 0 {
		c.protection = []sasl.Quality{sasl.Privacy}
	}
	shared := config.File{Cluster: config.Cluster{Name: "hops", SecretFile: filepath.Join(dir, "secret"), Identity: filepath.Join(dir, "identity.pem")}, Properties: map[string]string{}}
	for _, s := range append(settings(), more...) {
		shared.Properties[s[0]] = s[1]
	}
	if socket != "" {
		shared.Properties["dfs.domain.socket.path"] = socket
	}
	for i := range namenodes {
		shared.Namenodes = append(shared.Namenodes, config.NamenodeMember{ID: fmt.Sprintf("nn%d", i+1), IPC: next(), HTTP: next(), GRPC: next(), Raft: next()})
	}
	for _, n := range shared.Namenodes {
		c.ipc, c.http = append(c.ipc, n.IPC), append(c.http, n.HTTP)
	}
	c.uri = roles.FSURI(&shared)
	c.authority = strings.TrimPrefix(c.uri, "hdfs://")
	run := func(name, role string, f config.File, more ...string) error {
		path := filepath.Join(dir, name+".yaml")
		if err := writeYAML(path, f); err != nil {
			return err
		}
		p, err := start(name, dir, nil, append([]string{binary, "server", "--role", role, "-c", path}, more...)...)
		if err == nil {
			c.parts = append([]*process{p}, c.parts...)
		}
		return err
	}
	for i, n := range shared.Namenodes {
		f := shared
		f.Namenode = &config.Namenode{
			ID: n.ID, Data: filepath.Join(dir, n.ID), DeadAfter: 20 * time.Second, StaleAfter: 8 * time.Second, Heartbeat: time.Second, Reserve: 64 << 20,
		}
		if o.smallFileDelay > 0 {
			f.Namenode.SmallFileDelay = &o.smallFileDelay
		}
		if err := run(fmt.Sprintf("namenode%d", i+1), "namenode", f, "--bootstrap"); err != nil {
			c.stop()
			return nil, err
		}
		if err := c.await(ctx, 30*time.Second, func() error { // the first one makes it
			_, err := os.Stat(shared.Cluster.Identity)
			return err
		}); err != nil {
			c.stop()
			return nil, err
		}
	}
	for i := range datanodes {
		f := shared
		f.Datanode = &config.Datanode{
			Transfer: next(), HTTP: next(), IPC: next(), GRPC: next(), Reserve: 64 << 20,
		}
		for n, t := range types {
			path := filepath.Join(dir, fmt.Sprintf("dn%d", i+1))
			if n > 0 {
				path += "-" + strings.ToLower(t)
			}
			f.Datanode.Volumes = append(f.Datanode.Volumes, config.Volume{Path: path, Type: t})
		}
		c.datanode = f.Datanode.IPC
		c.stores[f.Datanode.Transfer] = f.Datanode.Volumes[0].Path
		if err := run(fmt.Sprintf("datanode%d", i+1), "datanode", f); err != nil {
			c.stop()
			return nil, err
		}
	}
	if err := shared.Validate(); err != nil {
		c.stop()
		return nil, err
	}
	if err := roles.WriteConf(c.conf, &shared, nil); err != nil {
		c.stop()
		return nil, err
	}
	if err := addToSite(filepath.Join(c.conf, "hdfs-site.xml"), clientSettings); err != nil {
		c.stop()
		return nil, err
	}
	if err := c.ready(ctx, time.Minute); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}
