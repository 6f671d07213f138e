package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// aloneConfig is a cluster on one machine, whose servers run as the units say.
const aloneConfig = `cluster: {name: alone, secret_file: /etc/hops/secret, conf: /etc/hops/conf}
namenodes: [{id: nn1, ipc: "127.0.0.1:8020", http: "127.0.0.1:9870", grpc: "127.0.0.1:8486", raft: "127.0.0.1:8487"}]
resourcemanagers: [{id: rm1, http: "127.0.0.1:8088", grpc: "127.0.0.1:8586", raft: "127.0.0.1:8587"}]
namenode: {id: nn1, data: /var/lib/hops/nn, reserve: 16MiB}
datanode: {volumes: [{path: /var/lib/hops/dn}], reserve: 16MiB, transfer: "127.0.0.1:9866", http: "127.0.0.1:9864", ipc: "127.0.0.1:9867", grpc: "127.0.0.1:9868"}
resourcemanager: {id: rm1, data: /var/lib/hops/rm, reserve: 16MiB, queues: {root: {children: {default: {capacity: 100%, acl_submit: [ada]}}}}}
nodemanager: {work: /var/lib/hops-node, http: "127.0.0.1:8042", memory: 2GiB, vcores: 4, gpus: none}
audit: {dir: /var/log/hops}
properties: {dfs.replication: 1}
`

// install looks at what the package brought.
func install(ctx context.Context, t *teller) (string, error) {
	var version string
	for _, name := range names {
		if out, err := t.do(ctx, name, "root", "dpkg", "--verify", "hops"); !t.replaced && (err != nil || strings.TrimSpace(out) != "") {
			return "", errors.Join(fmt.Errorf("dpkg finds changed files: %s", out), err)
		}
		out, err := t.do(ctx, name, user, "hops", "version")
		if err != nil {
			return "", err
		}
		if version = strings.TrimSpace(out); !strings.HasPrefix(version, "hops ") {
			return "", fmt.Errorf("hops version said %q", version)
		}
	}
	return version + " on all", nil
}

// reach lets machines open connections to each other by name and by both kinds of addresses.
func reach(ctx context.Context, t *teller) (string, error) {
	n := 0
	for i, from := range names {
		to := t.m(names[(i+1)%len(names)])
		for _, address := range []string{to.Name, to.Address.String(), to.Address6.String()} {
			// A port that nobody listens at answers at once, if the machine is there.
			out, err := t.do(ctx, from, user, "python3", "-c", `
import socket, sys
try: socket.create_connection((sys.argv[1], 9), 30)
except ConnectionRefusedError: print("refused")
`, address)
			if err != nil || strings.TrimSpace(out) != "refused" {
				return "", errors.Join(fmt.Errorf("from %s to %s: %q", from, address, out), err)
			}
			n++
		}
	}
	return fmt.Sprintf("%d ways by name, IPv4 and IPv6", n), nil
}

// cable pulls the cable of a machine and plugs it in again.
func cable(ctx context.Context, t *teller) (string, error) {
	m := t.m("m5")
	there := func() error {
		_, err := t.do(ctx, "m1", user, "python3", "-c", `
import socket, sys
try: socket.create_connection((sys.argv[1], 9), 1)
except ConnectionRefusedError: sys.exit(0)
except OSError as e: sys.exit(str(e))
`, m.Address.String())
		return err
	}
	if err := m.Link(ctx, false); err != nil {
		return "", err
	}
	gone := there()
	if err := m.Link(ctx, true); err != nil {
		return "", err
	}
	if gone == nil {
		return "", errors.New("m5 answers with its cable pulled")
	}
	if err := await(ctx, 30*time.Second, there); err != nil {
		return "", err
	}
	return "m5 was gone, and is there again", nil
}

// serveCommand is what stands in for systemd, which these machines do not have: it starts a server as its unit says and waits until it is ready.
const serveCommand = "/usr/local/sbin/serve"

const serveScript = `#!/bin/sh
# serve UNIT ROLE [FLAG]
set -eu
unit=$(find /lib/systemd/system /usr/lib/systemd/system -name "$1.service" | head -n 1)
command=$(sed -n 's/^ExecStart=//p' "$unit" | sed "s/%i/$2/")
user=$(sed -n 's/^User=//p' "$unit")
log=/run/hops-$2.log
: >$log # what the server said before does not count
ulimit -n "$(sed -n 's/^LimitNOFILE=//p' "$unit")" 2>/dev/null || true # a sandbox may forbid it
setsid runuser -u "$user" -- $command ${3-} >>$log 2>&1 </dev/null &
n=0
until grep -q " ready in " $log; do
  n=$((n+1))
  if ! kill -0 $! 2>/dev/null || [ $n -gt 600 ]; then tail -n 20 $log; exit 1; fi
  sleep 0.1
done
`

// serve starts servers of a machine as their units do, and waits until they say that they are ready.
func (t *teller) serve(ctx context.Context, machine string, bootstrap bool, roles ...string) error {
	for _, role := range roles {
		unit := "hops@"
		if role == "nodemanager" {
			unit = "hops@nodemanager"
		}
		flag := ""
		if bootstrap && (role == "namenode" || role == "resourcemanager") {
			flag = "--bootstrap"
		}
		if _, err := t.do(ctx, machine, "root", serveCommand, unit, role, flag); err != nil {
			return fmt.Errorf("%s on %s: %w", role, machine, err)
		}
	}
	return nil
}

// alone runs a cluster on one machine, from the package, with its servers under the users of their units, and a job of a user.
func alone(ctx context.Context, t *teller) (string, error) {
	m := t.m("alone")
	if err := m.Write("/etc/hops/hops.yaml", aloneConfig, 0o644); err != nil {
		return "", err
	}
	began := time.Now()
	if err := t.serve(ctx, "alone", true, "namenode", "datanode", "resourcemanager", "nodemanager"); err != nil {
		return "", err
	}
	up := time.Since(began)
	for _, words := range [][]string{
		{"hops", "fs", "-conf", "/etc/hops/conf", "-mkdir", "-p", "/user/" + user},
		{"hops", "fs", "-conf", "/etc/hops/conf", "-chown", user, "/user/" + user},
	} {
		if _, err := t.do(ctx, "alone", "hops", words...); err != nil {
			return "", err
		}
	}
	if _, err := t.do(ctx, "alone", user, "hops", "fs", "-conf", "/etc/hops/conf", "-put", "/etc/passwd", "passwd"); err != nil {
		return "", err
	}
	out, err := t.do(ctx, "alone", user, "hops", "job", "run", "--conf", "/etc/hops/conf", "--memory", "128MiB", "--", "id", "-un")
	if err != nil {
		return "", err
	}
	if who := lastLine(out); who != user {
		return "", fmt.Errorf("%s's job runs as %s", user, who)
	}
	return fmt.Sprintf("four servers in %.1f s; %s's file is there, and %s's job runs as %s", up.Seconds(), user, user, user), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
