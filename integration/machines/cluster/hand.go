package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/internal/authority"
)

// members are the machines of the cluster; servers, those with a namenode and a resource manager.
var (
	members = names[:5]
	servers = names[:3]
)

// handConfig is hops.yaml of a machine with static lists, whose clients on the lab's network are believed.
func handConfig(t *teller, machine string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster: {name: lab, secret_file: /etc/hops/secret, conf: /etc/hops/conf, address: %s}\n", machine)
	b.WriteString("namenodes:\n")
	for i, s := range servers {
		fmt.Fprintf(&b, "  - {id: nn%d, ipc: %q, http: %q, grpc: %q, raft: %q}\n", i+1, s+":8020", s+":9870", s+":8486", s+":8487")
	}
	b.WriteString("resourcemanagers:\n")
	for i, s := range servers {
		fmt.Fprintf(&b, "  - {id: rm%d, http: %q, grpc: %q, raft: %q}\n", i+1, s+":8088", s+":8586", s+":8587")
	}
	for i, s := range servers {
		if s == machine {
			fmt.Fprintf(&b, "namenode: {id: nn%d, data: /var/lib/hops/nn, reserve: 16MiB, stale_after: 3s, dead_after: 8s, heartbeat: 1s}\n", i+1)
			fmt.Fprintf(&b, "resourcemanager: {id: rm%d, data: /var/lib/hops/rm, reserve: 16MiB, lease: 20s, queues: {root: {children: {default: {capacity: 100%%, acl_submit: [%s]}}}}}\n", i+1, user)
		}
	}
	b.WriteString("datanode: {volumes: [{path: /var/lib/hops/dn}], reserve: 16MiB}\n")
	b.WriteString("nodemanager: {work: /var/lib/hops-node, memory: 2GiB, vcores: 4, gpus: none}\n")
	b.WriteString("audit: {dir: /var/log/hops}\n")
	b.WriteString("clients: {simple: [10.88.0.0/24, \"fd00:88::/64\"]}\n")
	b.WriteString("properties: {dfs.replication: 3}\n")
	return b.String()
}

// hand lays a cluster of five machines without the commands for it: the authority and the secret are made here and each machine gets
// its own identity.
func hand(ctx context.Context, t *teller) (string, error) {
	t.shellConf, t.jobConf = []string{"-conf", conf}, []string{"--conf", conf}
	began := time.Now()
	a, err := authority.New("CID-by-hand", time.Now())
	if err != nil {
		return "", err
	}
	secret := strings.Repeat("0123456789abcdef", 4)
	scratch, err := os.MkdirTemp("/mnt", "hand-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	for _, name := range members {
		m := t.m(name)
		i, err := a.Self(name, authority.Roles, []string{name, m.Address.String(), m.Address6.String(), "localhost", "127.0.0.1", "::1"}, time.Now())
		if err != nil {
			return "", err
		}
		file := filepath.Join(scratch, name)
		if err := i.Write(file); err != nil {
			return "", err
		}
		identity, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if err := errors.Join(
			m.Write("/etc/hops/identity.pem", string(identity), 0o600), m.Write("/etc/hops/secret", secret+"\n", 0o600), m.Write("/etc/hops/hops.yaml", handConfig(t, name), 0o644),
		); err != nil {
			return "", err
		}
		if _, err := t.do(ctx, name, "root", "chown", "hops:hops", "/etc/hops/identity.pem", "/etc/hops/secret"); err != nil {
			return "", err
		}
	}
	if err := t.serveAll(ctx, true); err != nil {
		return "", err
	}
	up := time.Since(began)
	for _, name := range members[len(servers):] {
		for _, file := range []string{"core-site.xml", "hdfs-site.xml", "yarn-site.xml", "ca.pem"} {
			text, err := t.do(ctx, servers[0], "root", "cat", "/etc/hops/conf/"+file)
			if err != nil {
				return "", err
			}
			if _, err := t.do(ctx, name, "root", "mkdir", "-p", "/etc/hops/conf"); err != nil {
				return "", err
			}
			if err := t.m(name).Write("/etc/hops/conf/"+file, text, 0o644); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("five machines, %d servers, ready in %.1f s", 2*len(servers)+2*len(members), up.Seconds()), nil
}

// serveAll starts the servers that the configuration of each machine has, all machines at the same time.
func (t *teller) serveAll(ctx context.Context, bootstrap bool) error {
	var wait sync.WaitGroup
	errs := make([]error, len(members))
	for i, name := range members {
		wait.Go(func() {
			text, err := t.do(ctx, name, "root", "cat", "/etc/hops/hops.yaml")
			if err != nil {
				errs[i] = err
				return
			}
			var each sync.WaitGroup // one waits for another of another machine
			roles := []string{"resourcemanager", "namenode", "datanode", "nodemanager"}
			failed := make([]error, len(roles))
			for j, role := range roles {
				if strings.Contains(text, "\n"+role+":") {
					each.Go(func() { failed[j] = t.serve(ctx, name, bootstrap, role) })
				}
			}
			each.Wait()
			errs[i] = errors.Join(failed...)
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
