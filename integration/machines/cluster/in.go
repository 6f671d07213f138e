package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// joinTime is how long a machine may take to get in.
const joinTime = 5 * time.Second

// gpus are those that each machine's node manager simulates.
const gpus = " --gpus sim:2"

var joinLine = regexp.MustCompile(`(?m)^\s*(hops join \S+ --token \S+.*)$`)

// address has a machine without a way to the others refuse to be the first of a cluster, unless it is told its address.
func address(ctx context.Context, t *teller) (string, error) {
	routes, err := t.do(ctx, "m1", "root", "sh", "-c", "ip route show default && ip route del default")
	if err != nil {
		return "", err
	}
	out, refused := t.do(ctx, "m1", "root", "hops", "cluster", "init")
	if _, err := t.do(ctx, "m1", "root", append([]string{"ip", "route", "add"}, strings.Fields(routes)...)...); err != nil {
		return "", err
	}
	if refused == nil || !strings.Contains(out, "--address") || strings.Count(strings.TrimSpace(out), "\n") > 0 {
		return "", fmt.Errorf("it is told %q, %w", out, refused)
	}
	return strings.TrimSpace(out), nil
}

// initialize makes the cluster on the first machine and keeps the line for the others.
func initialize(ctx context.Context, t *teller) (string, error) {
	w := newWatch()
	out, err := t.do(ctx, "m1", "root", strings.Fields("hops cluster init --name lab"+gpus)...)
	if err != nil {
		return "", err
	}
	took := time.Since(w.began)
	line := joinLine.FindStringSubmatch(out)
	if line == nil {
		return "", fmt.Errorf("no line to paste in what it said: %s", out)
	}
	t.pasted = line[1]
	seen := fmt.Sprintf("serving after %.1f s", took.Seconds())
	if err := w.kept(took, joinTime); err != nil {
		return "", fmt.Errorf("%s: %w", seen, err)
	}
	return seen, nil
}

// join pastes the line on the other machines, one after the other; two of them are namenodes and resource managers too, for which there is a token
// of its own.
func join(ctx context.Context, t *teller) (string, error) {
	out, err := t.do(ctx, "m1", "root", "hops", "cluster", "token", "--roles", "namenode,datanode,resourcemanager,nodemanager", "--uses", "2")
	if err != nil {
		return "", err
	}
	ofServers := strings.TrimSpace(out)
	var seen []string
	var errs []error
	for _, name := range members[1:] {
		line := t.pasted
		if name == servers[1] || name == servers[2] {
			line = ofServers
		}
		took, err := t.joins(ctx, name, line)
		if took == 0 {
			return "", err
		}
		seen, errs = append(seen, fmt.Sprintf("%s %.1f s", name, took.Seconds())), append(errs, err)
	}
	return strings.Join(seen, ", "), errors.Join(errs...)
}

// joins pastes a line on a machine. The time is 0 if it did not get in, and an error if it is more than a machine may take.
func (t *teller) joins(ctx context.Context, machine, line string) (time.Duration, error) {
	w := newWatch()
	if _, err := t.do(ctx, machine, "root", strings.Fields(line+gpus)...); err != nil {
		return 0, err
	}
	took := time.Since(w.began)
	if err := w.kept(took, joinTime); err != nil {
		return took, fmt.Errorf("%s took %.1f s, %w", machine, took.Seconds(), err)
	}
	return took, nil
}

// again pastes what must not work: the line on a machine that is in, a token that was changed, and one that was used up.
func again(ctx context.Context, t *teller) (string, error) {
	words := strings.Fields(t.pasted)
	token := words[len(words)-1]
	other := token[:len(token)-1] + "A"
	if strings.HasSuffix(token, "A") {
		other = token[:len(token)-1] + "B"
	}
	var seen []string
	for _, c := range []struct{ machine, line, want string }{
		{"m5", t.pasted, "in a cluster already"},
		{"alone", strings.Replace(t.pasted, token, other, 1) + " --dir /tmp/other --data /tmp/other-data", ""},
		{"alone", "hops join m1:1 --token " + token + " --dir /tmp/other --data /tmp/other-data", "no namenode of hops answers at m1:1"},
	} {
		out, err := t.do(ctx, c.machine, "root", strings.Fields(c.line)...)
		if err == nil {
			return "", fmt.Errorf("%s got in by %s", c.machine, c.line)
		}
		if !strings.Contains(out, c.want) || strings.Count(strings.TrimSpace(out), "\n") > 0 {
			return "", fmt.Errorf("not one line with %q: %s", c.want, out)
		}
		seen = append(seen, strings.TrimSpace(out))
	}
	return strings.Join(seen, " | "), nil
}

// nodes lists the machines, as root and as the servers' user, on machines of servers. The key of another machine is no operator's, and a user is none.
func nodes(ctx context.Context, t *teller) (string, error) {
	for _, on := range servers {
		for _, who := range []string{"root", "hops"} {
			out, err := t.do(ctx, on, who, "hops", "cluster", "nodes")
			if err != nil {
				return "", err
			}
			for _, name := range members {
				if !regexp.MustCompile(`(?m)^` + name + `\s`).MatchString(out) {
					return "", fmt.Errorf("no %s in what %s@%s is told:\n%s", name, who, on, out)
				}
			}
		}
	}
	leader, err := t.leader(ctx, namenodes)
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("all %d, on each machine of a namenode", len(members))
	for _, c := range []struct{ machine, who, want string }{
		{"m4", "root", "only namenodes and resource managers act for others here"}, {"m4", user, "run `hops login`"}, {leader, user, "is not a superuser"},
	} {
		out, err := t.do(ctx, c.machine, c.who, "hops", "cluster", "nodes")
		if err == nil || strings.Count(strings.TrimSpace(out), "\n") > 0 || !strings.Contains(out, c.want) {
			return "", fmt.Errorf("%s@%s is told %s", c.who, c.machine, out)
		}
		seen += fmt.Sprintf(" | %s@%s: %s", c.who, c.machine, strings.TrimSpace(out))
	}
	return seen, nil
}

// refusedTime is how long a removed machine may still be served.
const refusedTime = 10 * time.Second

// remove takes a machine out and waits until its datanode is no datanode any more; a server of it that starts again is refused.
func remove(ctx context.Context, t *teller) (string, error) {
	w := newWatch()
	if _, err := t.do(ctx, "m2", "root", "hops", "cluster", "remove", "m5"); err != nil {
		return "", err
	}
	began := time.Now()
	err := await(ctx, w.limit(refusedTime), func() error {
		h, err := t.health(ctx, "m5", "9864")
		if err == nil && h.Ready {
			err = errors.New("m5's datanode is still registered")
		}
		if err != nil && h.State != "" && !h.Ready {
			return nil
		}
		return err
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if err := t.m("m5").PowerOff(ctx); err != nil {
		return "", err
	}
	if err := t.m("m5").Boot(ctx); err != nil {
		return "", err
	}
	words := []string{"sh", "-c", "timeout 20 runuser -u hops -- hops server --role datanode -c /etc/hops/hops.yaml 2>&1"}
	said, failed := "", error(nil)
	for range 3 { // on a busy machine it may not have been heard in its time
		out, err := t.do(ctx, "m5", "root", words...)
		if strings.Contains(out, " ready in ") {
			return "", errors.New("a datanode of m5 that starts again is let in")
		}
		if said = regexp.MustCompile(`(?m)the machine was removed from the cluster: [^"\\]*`).FindString(out); said != "" {
			break
		}
		failed = errors.Join(fmt.Errorf("a datanode of m5 that starts again does not say that the machine was removed: %s", out), err)
	}
	if said == "" {
		return "", failed
	}
	return fmt.Sprintf("refused after %.1f s; started again its datanode says: %s", took.Seconds(), said), nil
}
