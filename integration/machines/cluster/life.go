package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const conf = "/etc/hops/conf"

// fs runs the shell of the filesystem as a user on a machine: with a login, or with the configuration of a cluster that was laid by hand.
func (t *teller) fs(ctx context.Context, machine, user string, words ...string) (string, error) {
	return t.do(ctx, machine, user, append(append([]string{"hops", "fs"}, t.shellConf...), words...)...)
}

// login gives the users tokens, with which they log in on all machines.
func login(ctx context.Context, t *teller) (string, error) {
	leader, err := t.leader(ctx, "9870")
	if err != nil {
		return "", err
	}
	for _, who := range []string{user, "bob"} {
		token, err := t.do(ctx, leader, "hops", "hops", "user", "token", "-c", "/etc/hops/hops.yaml", who)
		if err != nil {
			return "", err
		}
		for _, machine := range names {
			cmd := t.m(machine).Command(ctx, who, "hops", "login", "--token", "-")
			cmd.Stdin = strings.NewReader(token)
			if out, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("%s@%s: hops login: %w: %s", who, machine, err, out)
			}
		}
	}
	t.shellConf, t.jobConf = nil, nil
	out, err := t.do(ctx, "alone", user, "hops", "whoami")
	if err != nil {
		return "", err
	}
	return "ada and bob, on all machines; one that is no server's says: " + strings.TrimSpace(out), nil
}

// files has the user write and read on a machine that has no server: everything goes by TLS.
func files(ctx context.Context, t *teller) (string, error) {
	sum, err := t.acknowledged(ctx, "alone", "far", 8<<20)
	if err != nil {
		return "", err
	}
	for _, machine := range []string{"alone", "m4"} {
		if err := t.same(ctx, machine, "far", sum); err != nil {
			return "", err
		}
	}
	if out, err := t.fs(ctx, "alone", "bob", "-rm", "/user/"+user+"/far"); err == nil || !strings.Contains(out, "Permission denied: user=bob") {
		return "", fmt.Errorf("bob who removes ada's file is told %q, %w", out, err)
	}
	return "8 MiB written and read; bob may not remove them", nil
}

// job has the user run a job on all machines from one that has no server. Its containers are the user's.
func job(ctx context.Context, t *teller) (string, error) {
	began := time.Now()
	out, err := t.do(ctx, "alone", user, append(append([]string{"hops", "job", "run"}, t.jobConf...),
		"--memory", "128MiB", "--instances", "8", "--", "sh", "-c", "echo ran as $(id -un) on $(hostname); sleep 2")...)
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	on := map[string]bool{}
	for _, ran := range regexp.MustCompile(`ran as (\S+) on (\S+)`).FindAllStringSubmatch(out, -1) {
		if ran[1] != user {
			return "", fmt.Errorf("%s's job ran as %s", user, ran[1])
		}
		on[ran[2]] = true
	}
	delete(on, "m1")
	if len(on) == 0 {
		return "", fmt.Errorf("no container ran on another machine than the resource manager's: %s", out)
	}
	return fmt.Sprintf("%.1f s, as %s on %s, among others", took.Seconds(), user, strings.Join(slices.Sorted(maps.Keys(on)), ", ")), nil
}

// home gives the user a home directory in the filesystem, as the superuser on the machine whose namenode leads.
func home(ctx context.Context, t *teller) (string, error) {
	leader, err := t.leader(ctx, "9870")
	if err != nil {
		return "", err
	}
	for _, words := range [][]string{{"-mkdir", "-p", "/user/" + user, "/data"}, {"-chown", user, "/user/" + user, "/data"}} {
		if _, err := t.do(ctx, leader, "hops", append([]string{"hops", "fs", "-conf", conf}, words...)...); err != nil {
			return "", err
		}
	}
	if out, err := t.fs(ctx, "m4", "bob", "-put", "/etc/passwd", "/user/"+user+"/of-bob"); err == nil || !strings.Contains(out, "Permission denied: user=bob") {
		return "", fmt.Errorf("bob who writes into ada's directory is told %q, %w", out, err)
	}
	return user + " has a home; bob may not write into it", nil
}

// search runs the demo's search as the user, on a machine without a namenode.
func search(ctx context.Context, t *teller) (string, error) {
	for _, file := range []string{"digits.py", "digits.yaml", "data/digits.csv.gz"} {
		text, err := os.ReadFile(filepath.Join(t.examples, file))
		if err != nil {
			return "", err
		}
		at := "/home/" + user + "/" + filepath.Base(file)
		if err := t.m("m5").Write(at, string(text), 0o644); err != nil {
			return "", err
		}
	}
	if _, err := t.fs(ctx, "m5", user, "-put", "-f", "/home/"+user+"/digits.csv.gz", "/data/"); err != nil {
		return "", err
	}
	began := time.Now()
	out, err := t.do(ctx, "m5", user, append(append([]string{"hops", "experiment", "run"}, t.jobConf...), "-f", "/home/"+user+"/digits.yaml")...)
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if n := strings.Count(out, "FAILED"); n > 0 {
		return "", fmt.Errorf("%d trials failed:\n%s", n, out)
	}
	best := regexp.MustCompile(`best accuracy ([\d.]+)`).FindAllStringSubmatch(out, -1)
	if len(best) == 0 {
		return "", fmt.Errorf("no accuracy is told:\n%s", out)
	}
	return fmt.Sprintf("18 trials in %.0f s, the best one has accuracy %s", took.Seconds(), best[len(best)-1][1]), nil
}

// health is what a server says of itself.
type health struct {
	State string
	Ready bool
}

func (t *teller) health(ctx context.Context, machine, port string) (h health, err error) {
	// On the machine itself, where its doors are plain.
	out, err := t.do(ctx, machine, user, "python3", "-c", `
import sys, urllib.request, urllib.error
try: print(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())
except urllib.error.HTTPError as e: print(e.read().decode())
`, "http://"+machine+":"+port+"/health")
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal([]byte(out), &h)
}

// leader is the machine whose namenode, or resource manager, leads.
func (t *teller) leader(ctx context.Context, port string) (leader string, err error) {
	return t.leaderBut(ctx, port, "")
}

// leaderBut is the one that leads beside a machine whose cable is pulled.
func (t *teller) leaderBut(ctx context.Context, port, but string) (leader string, err error) {
	err = await(ctx, time.Minute, func() error {
		var found []string
		for _, s := range servers {
			if s == but {
				continue
			}
			if h, err := t.health(ctx, s, port); err == nil && h.State == "active" {
				found = append(found, s)
			}
		}
		if len(found) == 0 {
			return errors.New("nobody leads")
		}
		leader = found[0]
		return nil
	})
	return leader, err
}

// acknowledged writes a file as the user and remembers what is in it.
func (t *teller) acknowledged(ctx context.Context, machine, name string, size int) (sum string, err error) {
	text := strings.Repeat(name+" 0123456789\n", size/(len(name)+12))
	if err := t.m(machine).Write("/tmp/"+name, text, 0o644); err != nil {
		return "", err
	}
	if _, err := t.fs(ctx, machine, user, "-put", "-f", "/tmp/"+name, name); err != nil {
		return "", err
	}
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:]), nil
}

// same reads a file back.
func (t *teller) same(ctx context.Context, machine, name, sum string) error {
	out, err := t.do(ctx, machine, user, "sh", "-c", "out=$(mktemp) && "+strings.Join(append(append([]string{"hops", "fs"}, t.shellConf...), "-cat", name, "> $out && sha256sum $out; end=$?; rm -f $out; exit $end"), " "))
	if err != nil {
		return err
	}
	if got, _, _ := strings.Cut(out, " "); got != sum {
		return fmt.Errorf("%s has changed", name)
	}
	return nil
}

// datanode pulls the cable of a machine that has a replica, until its blocks are on other machines.
func datanode(ctx context.Context, t *teller) (string, error) {
	sum, err := t.acknowledged(ctx, "m5", "of-m5", 4<<20) // the writer's machine has the first replica
	if err != nil {
		return "", err
	}
	if err := t.m("m5").Link(ctx, false); err != nil {
		return "", err
	}
	began := time.Now()
	gone := func() error {
		leader, err := t.leader(ctx, "9870")
		if err != nil {
			return err
		}
		out, err := t.do(ctx, leader, "hops", "hops", "datanode", "list", "--conf", conf)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "dead") {
			return errors.New("no datanode is dead yet")
		}
		return nil
	}
	if err := await(ctx, 4*time.Minute, gone); err != nil {
		return "", errors.Join(err, t.m("m5").Link(ctx, true))
	}
	dead := time.Since(began)
	if err := t.same(ctx, "m4", "of-m5", sum); err != nil {
		return "", errors.Join(err, t.m("m5").Link(ctx, true))
	}
	if err := t.m("m5").Link(ctx, true); err != nil {
		return "", err
	}
	began = time.Now()
	err = await(ctx, 2*time.Minute, func() error {
		h, err := t.health(ctx, "m5", "9864")
		if err == nil && !h.Ready {
			err = fmt.Errorf("the datanode of m5 is %s", h.State)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("dead after %.1f s, its file is read meanwhile; back %.1f s after the cable", dead.Seconds(), time.Since(began).Seconds()), nil
}

// decommission drains the datanode of a machine: its blocks are elsewhere before it is stopped.
func decommission(ctx context.Context, t *teller) (string, error) {
	sum, err := t.acknowledged(ctx, "m4", "of-m4", 4<<20)
	if err != nil {
		return "", err
	}
	leader, err := t.leader(ctx, "9870")
	if err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := t.do(ctx, leader, "hops", "hops", "dfsadmin", "-conf", conf, "-decommission", t.m("m4").Address.String()); err != nil {
		return "", err
	}
	state := func(want string) error {
		return await(ctx, 2*time.Minute, func() error {
			out, err := t.do(ctx, leader, "hops", "hops", "datanode", "list", "--conf", conf)
			if err == nil && !regexp.MustCompile(want).MatchString(out) {
				err = fmt.Errorf("no datanode is %s:\n%s", want, out)
			}
			return err
		})
	}
	if err := state("decommissioned"); err != nil {
		return "", err
	}
	took := time.Since(began)
	if err := t.same(ctx, "m3", "of-m4", sum); err != nil {
		return "", err
	}
	if _, err := t.do(ctx, leader, "hops", "hops", "dfsadmin", "-conf", conf, "-recommission", t.m("m4").Address.String()); err != nil {
		return "", err
	}
	return fmt.Sprintf("m4 was empty after %.1f s, and was taken back", took.Seconds()), nil
}

// rotate replaces the authority. Servers go on; users' logins, which know the old one, are told to log in again.
func rotate(ctx context.Context, t *teller) (string, error) {
	sum, err := t.acknowledged(ctx, "m4", "rotated", 1<<20)
	if err != nil {
		return "", err
	}
	root := func(machine string) (string, error) {
		return t.do(ctx, machine, "root", "sh", "-c", "sed -n '/END PRIVATE KEY/,$p' /etc/hops/identity.pem | sha256sum")
	}
	before, err := root("m1")
	if err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := t.do(ctx, "m2", "root", "hops", "cluster", "rotate"); err != nil {
		return "", err
	}
	err = await(ctx, 3*time.Minute, func() error {
		out, err := t.do(ctx, "m2", "root", "hops", "cluster", "nodes")
		if err != nil {
			return err
		}
		if strings.Contains(out, "new authority") {
			return errors.New(lastLine(out))
		}
		var only string
		for _, machine := range members {
			now, err := root(machine)
			if err != nil {
				return err
			}
			if only == "" {
				only = now
			}
			if now == before || now != only {
				return fmt.Errorf("%s has not the same new authority alone", machine)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if out, err := t.fs(ctx, "alone", user, "-ls"); err != nil {
		return "", fmt.Errorf("a login from before: %q, %w", out, err)
	}
	if _, err := login(ctx, t); err != nil {
		return "", err
	}
	if err := t.same(ctx, "alone", "rotated", sum); err != nil {
		return "", err
	}
	return fmt.Sprintf("all machines have another one after %.1f s; a login from before works", took.Seconds()), nil
}

// failover pulls the cable of the machine whose namenode leads, and writes.
func failover(ctx context.Context, t *teller) (string, error) {
	old, err := t.leader(ctx, "9870")
	if err != nil {
		return "", err
	}
	before, err := t.acknowledged(ctx, "m4", "before", 1<<20)
	if err != nil {
		return "", err
	}
	if err := t.m(old).Link(ctx, false); err != nil {
		return "", err
	}
	began := time.Now()
	after, err := t.acknowledged(ctx, "m4", "after", 1<<20)
	took := time.Since(began)
	if err = errors.Join(err, t.same(ctx, "m4", "before", before)); err != nil {
		return "", errors.Join(err, t.m(old).Link(ctx, true))
	}
	if err := t.m(old).Link(ctx, true); err != nil {
		return "", err
	}
	err = await(ctx, 2*time.Minute, func() error {
		h, err := t.health(ctx, old, "9870")
		if err == nil && !(h.Ready && h.State == "standby") {
			err = fmt.Errorf("the namenode of %s is %s", old, h.State)
		}
		return err
	})
	if err = errors.Join(err, t.same(ctx, old, "after", after)); err != nil {
		return "", err
	}
	leads, err := t.leader(ctx, "9870")
	return fmt.Sprintf("%s led; the next file was acknowledged after %.1f s; %s leads, %s follows", old, took.Seconds(), leads, old), err
}

// transfer hands leadership to the namenode of another machine.
func transfer(ctx context.Context, t *teller) (string, error) {
	old, err := t.leader(ctx, "9870")
	if err != nil {
		return "", err
	}
	to := other(old)
	from := other(old, to)
	began := time.Now()
	err = t.handOver(ctx, from, "namenode transfer", to)
	return fmt.Sprintf("from %s to %s in %.1f s, said on %s", old, to, time.Since(began).Seconds(), from), err
}

// restart takes the power of all five machines at once.
func restart(ctx context.Context, t *teller) (string, error) {
	sum, err := t.acknowledged(ctx, "m4", "kept", 4<<20)
	if err != nil {
		return "", err
	}
	for _, name := range members {
		if err := t.m(name).PowerOff(ctx); err != nil {
			return "", err
		}
	}
	for _, name := range members {
		if err := t.m(name).Boot(ctx); err != nil {
			return "", err
		}
	}
	w := newWatch()
	if err := t.serveAll(ctx, false); err != nil {
		return "", err
	}
	ready := time.Since(w.began)
	if err := await(ctx, time.Minute, func() error { return t.same(ctx, "m4", "kept", sum) }); err != nil {
		return "", err
	}
	took := time.Since(w.began)
	seen := fmt.Sprintf("all ready after %.1f s, an old file read after %.1f s", ready.Seconds(), took.Seconds())
	if err := w.kept(took, 10*time.Second); err != nil {
		return "", fmt.Errorf("%s: %w", seen, err)
	}
	return seen, nil
}
